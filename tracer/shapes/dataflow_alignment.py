"""Which ops of a run are given something else at other sizes: there the code takes another way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tracer.capture import Recording, Seen
from tracer.capture.composite_calls import Call
from tracer.shapes.batch_of_one import is_in_probe
from tracer.shapes.op_alignment import DEALS, JOINS
from tracer.shapes.scalar_solver import CallIndex

ARGUMENT = -1
"""What stands for a producer where an op differs in its arguments, is there at some sizes only, or is returned at some
only."""

Match = Sequence[int | None]


class Dataflow:
    """The producers of one run's tensors, behind the ops that only lay data out."""

    def __init__(self, ops: Sequence[Seen], numbers: Sequence[int] | None = None):
        self.ops = ops
        self._place = {number: i for i, number in enumerate(numbers)} if numbers is not None else None

    def source(self, maker: int | str) -> int | str:
        """Return the op that computed what `maker` made, or what the run was given."""
        while isinstance(maker, int):
            maker = self._at(maker)
            op = self.ops[maker]
            if not op.layout or not op.inputs or op.name.endswith("_") or op.name in JOINS:
                return maker
            maker = op.inputs[0][2]
        return maker

    def sources(self, op: Seen) -> list[int | str]:
        """Return the producers of what an op takes; one of what is joined again as it was dealt out."""
        makers = [maker for *_, maker in op.inputs]
        if op.name in JOINS and len({*makers}) == 1 and isinstance(makers[0], int):
            dealt = self.ops[self._at(makers[0])]
            if dealt.name in DEALS and len(dealt.outputs) == len(makers):
                return [self.source(dealt.inputs[0][2])]
        return [self.source(maker) for maker in makers]

    def _at(self, maker: int) -> int:
        return maker if self._place is None else self._place.get(maker, maker)


def diverging(
    run: Sequence[Seen], returned: Sequence[int | str], calls: Iterable[Call], probe: Recording, match: Match
) -> Iterator[tuple[int, int]]:
    """Yield each op of a run that takes something else in a probe, with the producer that is another one there.

    Several ops that are one in the probe are turns of a loop that it has fewer of: what they take is not compared.
    """
    ours, theirs = Dataflow(run), Dataflow(probe.ops, probe.numbers)
    times = Counter(j for j in match if j is not None)

    def differs(a: int | str, b: int | str) -> bool:
        if isinstance(a, str) or isinstance(b, str):
            return a != b
        return match[a] != b and (match[a] is not None or b in times)

    for i, j in enumerate(match):
        if j is None or times[j] > 1:
            continue
        before, there = ours.sources(run[i]), theirs.sources(probe.ops[j])
        others = [a for a, b in zip(before, there, strict=False) if differs(a, b)]
        others += before[len(there) :] or ([before[-1]] if len(there) > len(before) > 0 else [])
        yield from ((i, a if isinstance(a, int) else ARGUMENT) for a in others)
    ends, there = (
        [flow.source(maker) for maker in makers] for flow, makers in ((ours, returned), (theirs, probe.returned))
    )
    for n, (maker, a) in enumerate(zip(returned, ends, strict=True)):
        if isinstance(maker, int) and isinstance(a, int) and (n >= len(there) or differs(a, there[n])):
            yield from ((op, a) for op in {maker, a})
    owners = CallIndex(probe.scalars, probe.numbers)
    for call in calls:
        missing = [op for op in range(call.first, call.last) if match[op] is None and not run[op].layout]
        if missing and not (call.inner and is_in_probe(run, call, probe, match, owners)):
            yield from ((op, ARGUMENT) for op in missing)
