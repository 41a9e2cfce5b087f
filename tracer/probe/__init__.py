"""Symbolic shapes by probing: the same model run again at other sizes, each dimension solved from all runs.

Nothing is annotated. The probes take the same ops as the run itself: on the CPU, or on tensors without values that say
that they are there (on `meta`, attention dispatches to other kernels). Op lists that differ with the batch are solved
with B held at the run's value, and say so. The last probe is not used to solve: only what is right there, too, has a
symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import torch
from torch.utils._pytree import tree_map_only

from tracer.common.seeding import seeded_draws
from tracer.probe.align import COPIES, align, spelled
from tracer.probe.solve import UNKNOWN, Solver, base_form, value_of
from tracer.probe.windows import own_sizes
from tracer.recorder import Recording, Seen, record
from tracer.recorder.ops import NUMBERED

__all__ = ["UNKNOWN", "Solution", "Unlike", "Vocabulary", "base_form", "solve", "value_of"]

LEAST = 3
"""Probes besides the run itself: those that solve, and one that is predicted."""

ASKED = "prim.device"
"""What tensors without values run where others are asked for their device."""

AT_THIS_BATCH = "this op runs only at some batch sizes: solved with B held at"
"""How the note of such an op begins."""
REMEMBERED = 24
"""Probes that a vocabulary holds while sizes are tried."""


class Unlike(RuntimeError):
    """Without values, a module takes other ops than it did in the run."""


@dataclass(frozen=True)
class Vocabulary:
    """The sizes of a model: `names` that a dimension may be, in order of preference, what `derived` ones equal,
    and `build(sizes)`, which gives `(module, args)` or `(module, args, kwargs)` at other sizes.

    `inside` gives the mode that tensors without values are run in, if these are; `held` says which sizes are no symbols
    here, and why; `partly` leaves ops open that do not run at the sizes of the probes. What `build` gives is run on
    `device`, where one is named: which ops run depends on it.
    """

    names: tuple[str, ...]
    derived: dict[str, str]
    build: Callable[[dict[str, int]], tuple]
    inside: Callable[[], AbstractContextManager] | None = None
    held: str = ""
    partly: bool = False
    device: torch.device | None = None
    ran: dict[tuple, Recording] = field(default_factory=dict, repr=False, compare=False)

    def complete(self, sizes: dict[str, int]) -> dict[str, int]:
        """Sizes with the derived ones, in order, computed from the others."""
        full = dict(sizes)
        for name, text in self.derived.items():
            full[name] = int(value_of(text, full))
        return full

    def probe(self, sizes: dict[str, int], *, primitives: bool | Collection[int]) -> Recording:
        """A run at these sizes, with the primitives of all ops or of those that stand at these places in it."""
        key = tuple(sizes.items())
        found = None if primitives else self.ran.get(key)
        if found is None:
            with (self.inside or nullcontext)():
                with seeded_draws(0):
                    module, args, *kwargs = self.build(sizes)
                if self.device is not None and self.device.type != "cpu":
                    module, (args, *kwargs) = module.to(self.device), _moved((args, *kwargs), self.device)
                found = record(module, args, *kwargs, cap=0, attention=False, primitives=primitives)
            kept = [i for i, op in enumerate(found.ops) if op.name != ASKED]
            opened = [found.opened[i] for i in kept] if primitives else []
            found = Recording(ops=[found.ops[i] for i in kept], opened=opened, numbers=kept)  # no tensor of the run
            if not primitives:
                if len(self.ran) >= REMEMBERED:
                    self.ran.pop(next(iter(tuple(self.ran))), None)  # other threads add to it
                self.ran[key] = found
        return found

    def keep(self, probes: list[dict[str, int]]) -> None:
        """Forgets all runs but those at these sizes, to solve the next run of the same model."""
        wanted = {tuple(sizes.items()) for sizes in probes}
        for key in {*self.ran} - wanted:
            self.ran.pop(key, None)


def _moved(value, device: torch.device):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value)


@dataclass(frozen=True, eq=False)
class Solution:
    """Symbolic shapes by op: `inputs[i]` and `outputs[i]` are tuples of shapes, `held[i]` a note or "".

    One is made once for each op list and sizes, and is equal to itself alone. `parts[i]` has the shapes of the
    primitives of op i, a pair (inputs, outputs) for each, where the run was opened into them. `numbers[i]` has the
    whole numbers among its arguments that are sizes, by their positions in its schema. `way` is the vocabulary and the
    probes that it was solved with.
    """

    inputs: tuple[tuple[tuple[str, ...], ...], ...]
    outputs: tuple[tuple[tuple[str, ...], ...], ...]
    held: tuple[str, ...]
    parts: tuple[tuple, ...] = ()
    numbers: tuple[dict[int, str], ...] = ()
    way: tuple[Vocabulary, list[dict[str, int]]] | None = field(default=None, repr=False)

    def predicts(self, run: list[Seen], sizes: dict[str, int]) -> bool:
        """Whether a run of the same op list has, at these sizes, every shape that is solved."""
        if any(self.held) or len(run) != len(self.inputs):
            return False

        @cache
        def value(size: str) -> float:
            return value_of(size, sizes)

        def alike(solved: tuple, tensors: tuple) -> bool:
            return len(solved) == len(tensors) and all(
                len(stated) == len(shape)
                and all(size == UNKNOWN or value(size) == real for size, real in zip(stated, shape, strict=True))
                for stated, (shape, *_) in zip(solved, tensors, strict=True)
            )

        return all(
            alike(inputs, op.inputs)
            and alike(outputs, op.outputs)
            and all(op.settings and value(size) == op.settings[place] for place, size in numbers.items())
            for op, inputs, outputs, numbers in zip(run, self.inputs, self.outputs, self.numbers, strict=True)
        )


def solve(
    run: list[Seen], sizes: dict[str, int], vocabulary: Vocabulary, probes: list[dict[str, int]], opened=()
) -> Solution:
    """Solves every dimension of `run`, made at `sizes`, with runs at `probes`; both name the underived sizes.

    All probes but the last solve, the last is predicted. `opened` has the primitives of each op, or None, where their
    dimensions are to be solved too. ValueError for too few probes; `Unlike` where tensors without values take other
    ops than the run.
    """
    if len(probes) < LEAST:
        raise ValueError(f"{len(probes)} runs at other sizes are too few to solve and to predict one: {LEAST} are")
    found = Unsolved(run, opened)
    found.fill(sizes, vocabulary, probes, vocabulary.names)
    found.carry()
    held = [""] * len(run)
    missing, open_ = found.missing(), found.open()
    if (missing or open_ or None in found.parts) and any(probe.get("B") != sizes.get("B") for probe in probes):
        fixed = [{**probe, "B": sizes["B"]} for probe in probes]
        found.fill(sizes, vocabulary, fixed, tuple(name for name in vocabulary.names if name != "B"), open_)
        found.carry()
        for i in (*missing, *(open_ - found.open())):
            held[i] = f"{AT_THIS_BATCH} {sizes['B']}"
    if found.missing() and vocabulary.inside and not vocabulary.partly:
        raise Unlike(f"without values it does not run {run[found.missing()[0]].name}")
    for i in found.missing():
        held[i] = "this op does not run at all sizes, so its dimensions have no symbols"
    vocabulary.keep(probes)
    return found.solution(held, (vocabulary, probes))


class Unsolved:
    """The ops of a run, and what is solved of them so far."""

    def __init__(self, run: list[Seen], opened):
        self.run, self.opened = run, opened
        self.inputs: list = [None] * len(run)
        self.outputs: list = [None] * len(run)
        self.numbers: list[dict[int, str]] = [{} for _ in run]
        self.parts: list = [() if one is None else None for one in opened]
        self.wanted = [i for i, one in enumerate(opened) if one is not None]

    def missing(self) -> list[int]:
        """The ops that no probe had."""
        return [i for i, found in enumerate(self.inputs) if found is None]

    def open(self) -> set[int]:
        """The ops with a dimension that nothing fits: where it is another one at B = 1, a run of other batches has it
        in another place."""
        both = enumerate(zip(self.inputs, self.outputs, strict=True))
        return {i for i, (one, two) in both if one is not None and any(UNKNOWN in shape for shape in (*one, *two))}

    def fill(self, sizes, vocabulary: Vocabulary, probes, names: tuple[str, ...], again: Collection[int] = ()) -> None:
        """Solves what all probes have over `names`, and `again` these ops, of which those stay as they were that are
        open here, too."""
        every = bool(self.opened) and len(self.wanted) == len(self.opened)
        others = [vocabulary.probe(probe, primitives=every) for probe in probes]
        matches = [align(self.run, other.ops) for other in others]
        if self.wanted and not every:
            places = [
                {other.numbers[same] for i in self.wanted if (same := match[i]) is not None}
                for other, match in zip(others, matches, strict=True)
            ]
            others = [vocabulary.probe(at, primitives=these) for at, these in zip(probes, places, strict=True)]
        *configurations, fresh = (vocabulary.complete(s) for s in (sizes, *probes))
        solver = Solver(names, vocabulary.derived, configurations, fresh)
        before = {i: (self.inputs[i], self.outputs[i], self.numbers[i]) for i in again}
        for i in again:
            self.inputs[i] = self.outputs[i] = None
        new = [i for i, found in enumerate(self.inputs) if found is None]
        self._each(solver, others, matches)
        if solver.ambiguous:
            for i in new:
                self.inputs[i] = self.outputs[i] = None
            solver.again()
            self._each(solver, others, matches)
        for i in before.keys() & {*self.missing(), *self.open()}:
            self.inputs[i], self.outputs[i], self.numbers[i] = before[i]

    def _each(self, solver: Solver, others: list[Recording], matches) -> None:
        """Solves the ops, in order, that are not solved yet."""
        for i, op in enumerate(self.run):
            places = [match[i] for match in matches]
            if None in places:
                continue
            if self.inputs[i] is None:
                same = [op, *(other.ops[j] for other, j in zip(others, places, strict=True))]
                self.inputs[i], self.outputs[i] = _both(solver, same)
                self.numbers[i] = _numbers(solver, same)
            if self.opened and self.parts[i] is None:
                lists = [self.opened[i].parts, *(o.opened[j].parts for o, j in zip(others, places, strict=True))]
                if len({tuple(map(_outline, parts)) for parts in lists}) == 1:
                    self.parts[i] = tuple(_both(solver, same) for same in zip(*lists, strict=True))

    def carry(self) -> None:
        """Solves copies that no probe made: they have the shape of what they copy, which another op made, or takes."""
        for i in self.missing():
            op = self.run[i]
            if op.name == "detach":  # of a tensor that was written into
                self.inputs[i] = self.outputs[i] = self._taken(op.inputs[0])
            maker = op.inputs[0][2] if op.name in COPIES else None
            if not isinstance(maker, int) or self.outputs[maker] is None or self.run[maker].name.endswith("_"):
                continue
            shapes = [shape for shape, *_ in self.run[maker].outputs]
            if shapes.count(op.inputs[0][0]) == 1:
                copied = self.outputs[maker][shapes.index(op.inputs[0][0])]
                self.inputs[i] = self.outputs[i] = (copied,)

    def _taken(self, tensor: tuple) -> tuple | None:
        """The solved shape of a tensor by an op that takes it too."""
        for op, solved in zip(self.run, self.inputs, strict=True):
            if solved is not None and tensor in op.inputs:
                return (solved[op.inputs.index(tensor)],)
        return None

    def solution(self, held: list[str], way) -> Solution:
        """All that is solved; every dimension of the rest is unknown."""
        for i in self.missing():
            self.inputs[i], self.outputs[i] = _unknown(self.run[i])
        for i, found in enumerate(self.parts):
            if found is None:
                self.parts[i] = tuple(map(_unknown, self.opened[i].parts))
        solved = tuple(self.inputs), tuple(self.outputs), tuple(held), tuple(self.parts), tuple(self.numbers)
        return Solution(*solved, way)


def _outline(part) -> tuple:
    """What primitives must have in common to be the same one at other sizes."""
    return spelled(part.name), *(tuple(len(shape) for shape, *_ in tensors) for tensors in (part.inputs, part.outputs))


def _both(solver: Solver, same) -> tuple[tuple, tuple]:
    """The solved shapes of the inputs and of the outputs of one op, or primitive, in all runs."""
    count = len(same[0].inputs)
    inputs = _solved(solver, [[op.inputs[min(n, len(op.inputs) - 1)] for n in range(count)] for op in same])
    own = own_sizes(same[0], inputs, same[1:]) if isinstance(same[0], Seen) else {}
    return inputs, _solved(solver, [op.outputs for op in same], own)


def _numbers(solver: Solver, same: list[Seen]) -> dict[int, str]:
    """The whole numbers among an op's arguments that are sizes: they change with them."""
    if not all(op.settings for op in same) or same[0].name.rstrip("_") not in NUMBERED:
        return {}
    found = {}
    for position, values in enumerate(zip(*(op.settings for op in same), strict=True)):
        whole = all(type(value) is int for value in values) and len(set(values)) > 1
        if whole and (size := solver.number(values)) != UNKNOWN:
            found[position] = size
    return found


def _unknown(op) -> tuple[tuple, tuple]:
    inputs, outputs = (tuple((UNKNOWN,) * len(shape) for shape, *_ in tensors) for tensors in (op.inputs, op.outputs))
    return inputs, outputs


def _solved(solver: Solver, tensors: list, own: dict[int, list[str]] | None = None) -> tuple[tuple[str, ...], ...]:
    own = own or {}
    return tuple(
        tuple(
            solver.solve(vector, own.get(axis, ()))
            for axis, vector in enumerate(zip(*(shape for shape, *_ in same), strict=True))
        )
        for same in zip(*tensors, strict=True)
    )
