"""Symbolic shapes by probing: the same model run again at other sizes, each dimension solved from all runs.

Nothing is annotated. The probes take the same ops as the run itself: on the CPU, or on tensors without values that say
that they are there (on `meta`, attention dispatches to other kernels). Op lists that differ with the batch are solved
with B held at the run's value, and say so. The last probe is not used to solve: only what is right there, too, has a
symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cache
from math import nan

import torch
from torch.utils._pytree import tree_map_only

from tracer.capture import Recording, Seen, record
from tracer.capture.composite_calls import Calls
from tracer.capture.python_scalars import Scalars, scalars_of
from tracer.ops import having
from tracer.shapes.batch_of_one import respell
from tracer.shapes.op_alignment import COPIES, align, spelled
from tracer.shapes.op_size_rules import own_sizes
from tracer.shapes.scalar_solver import (
    DATA,
    NEAR,
    SLICES,
    Edge,
    Key,
    Owners,
    Where,
    flat,
    moving,
    slice_edge,
    solve_number,
)
from tracer.shapes.solver import UNKNOWN, Solver, Units, base_form, common, same_at, value_of
from tracer.shapes.twin_variation import FREE, other_inputs
from tracer.utils.error_text import reason
from tracer.utils.thread_local_rng import seeded_draws

__all__ = ["UNKNOWN", "Solution", "Unlike", "Vocabulary", "base_form", "same_at", "solve", "value_of"]

LEAST = 3
"""Probes besides the run itself: those that solve, and one that is predicted."""

ASKED = "prim.device"
"""What tensors without values run where others are asked for their device."""

READS = having("data-dependent")
"""Ops from which numbers or sizes follow from values."""
AT_SOME = "this op runs only at some sizes: solved with"
"""How the note of such an op begins, before the size that was held."""
NOT_ALL = "this op does not run at all sizes, so its dimensions have no symbols"
"""The note of an op that a probe did not have."""
OF_DATA = "its size follows from the values of the input, so it has no symbol"
"""The note of an op that makes a tensor of another size for other values."""
UNCOMPARED = "numbers that follow from values of the input were not looked for: the model does not run on others ({})"
"""What is said where a run could not be repeated on other values."""
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

    def probe(self, sizes: dict[str, int], *, primitives: bool | Collection[int], values: int = 0) -> Recording:
        """A run at these sizes, with the primitives of all ops or of those that stand at these places in it; with
        `values`, on other values of the input, as `other_inputs` draws them."""
        key = (*sizes.items(), values)
        found = None if primitives else self.ran.get(key)
        if found is None:
            with (self.inside or nullcontext)():
                with seeded_draws(0):
                    module, args, *kwargs = self.build(sizes)
                if self.device is not None and self.device.type != "cpu":
                    module, (args, *kwargs) = module.to(self.device), _moved((args, *kwargs), self.device)
                if values:
                    args, *kwargs = other_inputs((args, *kwargs), values)
                alike = {"primitives": primitives} if primitives else {"scalars": True, "digests": self.inside is None}
                found = record(module, args, *kwargs, cap=0, attention=False, **alike)
            kept = [i for i, op in enumerate(found.ops) if op.name != ASKED]
            opened = [found.opened[i] for i in kept] if primitives else []
            found = Recording(  # no tensor of the run
                ops=[found.ops[i] for i in kept],
                opened=opened,
                numbers=kept,
                scalars=found.scalars,
                constants=found.constants,
            )
            if not primitives:
                if len(self.ran) >= REMEMBERED:
                    self.ran.pop(next(iter(tuple(self.ran))), None)  # other threads add to it
                self.ran[key] = found
        return found

    def others(self, sizes: dict[str, int], reads: bool) -> list[Recording]:
        """Runs at these sizes on other values of the input: `FREE` where a model `reads` values, since a number may be
        the same by chance, else one. Raises the model's own error where it runs on no others."""
        found: list[Recording] = []
        failed = None
        for draw in range(1, FREE + 2):
            if found and (draw > FREE or not reads):
                break
            try:
                found.append(self.probe(sizes, primitives=False, values=draw))
            except Exception as error:  # values that the model does not take
                failed = error
        if failed and not found:
            raise failed
        return found

    def keep(self, probes: list[dict[str, int]]) -> None:
        """Forgets all runs but those at these sizes, to solve the next run of the same model."""
        wanted = {(*sizes.items(), values) for sizes in probes for values in range(FREE + 2)}
        for key in {*self.ran} - wanted:
            self.ran.pop(key, None)


def _moved(value, device: torch.device):
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), value)


@dataclass(frozen=True, eq=False)
class Solution:
    """Symbolic shapes by op: `inputs[i]` and `outputs[i]` are tuples of shapes, `held[i]` a note or "".

    One is made once for each op list and sizes, and is equal to itself alone. `parts[i]` has the shapes of the
    primitives of op i, a pair (inputs, outputs) for each, where the run was opened into them. `scalars` has, by call,
    the Python numbers that are not the same in all runs: a formula, "?" where none fits, `DATA` where they move with
    the values of the input; `edges` are those of slices by their ops, and `brought` the tensors that an op took, by its
    number and theirs, which came from outside of PyTorch and are others for other values. `way` is the vocabulary and
    the probes that it was solved with; `problem` says why there was no run on other values.
    """

    inputs: tuple[tuple[tuple[str, ...], ...], ...]
    outputs: tuple[tuple[tuple[str, ...], ...], ...]
    held: tuple[str, ...]
    parts: tuple[tuple, ...] = ()
    scalars: dict[Key, dict[Where, str]] = field(default_factory=dict)
    edges: dict[int, Edge] = field(default_factory=dict)
    brought: frozenset[tuple[int, int]] = frozenset()
    way: tuple[Vocabulary, list[dict[str, int]]] | None = field(default=None, repr=False)
    problem: str = ""

    @property
    def sized(self) -> bool:
        """Whether shapes are solved; where no sizes are named, only what follows from values is known."""
        return bool(self.inputs)

    def units(self, sizes: dict[str, int]) -> Units:
        """What the sizes of all runs were multiples of, with this one, at `sizes`."""
        if self.way is None:
            return ()
        vocabulary, probes = self.way
        return common([vocabulary.complete({**sizes, **probe}) for probe in ({}, *probes)])

    def predicts(self, recording: Recording, sizes: dict[str, int]) -> bool:
        """Whether a run of the same op list has, at these sizes, every shape and every number that is solved."""
        run = recording.ops
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

        if not all(
            alike(inputs, op.inputs) and alike(outputs, op.outputs)
            for op, inputs, outputs in zip(run, self.inputs, self.outputs, strict=True)
        ):
            return False
        for entry in scalars_of(recording.calls.made if recording.calls else ()):
            solved, numbers = self.scalars.get((entry.name, entry.first, entry.last), {}), flat(entry)
            for where, text in solved.items():
                if text not in (UNKNOWN, DATA) and not near(value(text), numbers.get(where, nan)):
                    return False
        return True


def solve(
    run: list[Seen],
    sizes: dict[str, int],
    vocabulary: Vocabulary,
    probes: list[dict[str, int]],
    opened=(),
    calls: Calls | None = None,
) -> Solution:
    """Solves every dimension of `run`, made at `sizes`, and the numbers of its `calls`, with runs at `probes`; both
    name the underived sizes.

    All probes but the last solve, the last is predicted. What moves in a run at the first of these sizes on other
    values is data. `opened` has the primitives of each op, or None, where their dimensions are to be solved too.
    ValueError for too few probes; `Unlike` where tensors without values take other ops than the run.
    """
    if len(probes) < LEAST:
        raise ValueError(f"{len(probes)} runs at other sizes are too few to solve and to predict one: {LEAST} are")
    found = Unsolved(run, opened, list(scalars_of(calls.made)) if calls else [])
    found.fill(sizes, vocabulary, probes, vocabulary.names)
    found.carry()
    held = [""] * len(run)
    missing, open_ = found.missing(), found.open()
    if (missing or open_ or None in found.parts) and any(probe.get("B") != sizes.get("B") for probe in probes):
        fixed = [{**probe, "B": sizes["B"]} for probe in probes]
        again = {i for i in open_ if found.by_batch(i, vocabulary, sizes, probes)}
        found.fill(sizes, vocabulary, fixed, tuple(name for name in vocabulary.names if name != "B"), again)
        found.carry()
        for i in {*missing} - {*found.missing()}:
            if not found.by_batch(i, vocabulary, sizes, probes):  # another size is why it does not run in each probe
                found.inputs[i] = found.outputs[i] = None
        for i in {*missing, *again} - {*found.missing(), *found.open()}:
            held[i] = f"{AT_SOME} B held at {sizes['B']}"
    if found.missing() and vocabulary.inside and not vocabulary.partly:
        raise Unlike(f"without values it does not run {run[found.missing()[0]].name}")
    for i in found.missing():
        held[i] = NOT_ALL
        found.inputs[i], found.outputs[i] = _unknown(run[i])
    if calls and any(held):
        respell(run, calls.made, found.probes, held, found.inputs, found.outputs)
    problem = ""
    if vocabulary.inside is None:
        try:
            others = vocabulary.others(probes[0], reads(run))
        except Exception as error:
            problem, others = UNCOMPARED.format(reason(error)), []
        for other in others:
            for i in found.compare(vocabulary.probe(probes[0], primitives=False), other):
                held[i] = OF_DATA
    vocabulary.keep(probes)
    return found.solution(held, (vocabulary, probes), problem)


def reads(run: list[Seen]) -> bool:
    """Whether a run asked for the value of a tensor, or made one whose sizes follow from values."""
    return any(op.name in READS for op in run)


def held_size(note: str) -> str:
    """The size that an op was solved with held, by the note of it; "" where none was."""
    return note.removeprefix(AT_SOME).split()[0] if note.startswith(AT_SOME) else ""


def near(value: float, number: float) -> bool:
    """Whether a number is what a formula gives, as floats have it."""
    return abs(value - number) <= NEAR * abs(number)


class Unsolved:
    """The ops of a run, and what is solved of them so far."""

    def __init__(self, run: list[Seen], opened, scalars: list[Scalars]):
        self.run, self.opened = run, opened
        self.entries = {(entry.name, entry.first, entry.last): entry for entry in scalars}
        self.alone: list[list[int | None]] | None = None
        self.scalars: dict[Key, dict[Where, str]] = {}
        self.edges: dict[int, Edge] = {}
        self.brought: set[tuple[int, int]] = set()
        self.probes: list[tuple[Recording, list[int | None]]] = []
        self.inputs: list = [None] * len(run)
        self.outputs: list = [None] * len(run)
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

    def by_batch(self, op: int, vocabulary: Vocabulary, sizes: dict[str, int], probes) -> bool:
        """Whether the batch is why an op differs: it is another one, or elsewhere, where nothing but B changes. A batch
        of one is: sizes of one are taken for any."""
        if sizes["B"] == 1:
            return True
        if self.alone is None:
            self.alone = []
            for batch in {probes[0]["B"], probes[1]["B"]}:
                with suppress(Exception):  # a batch that the model does not take
                    self.alone.append(align(self.run, vocabulary.probe({**sizes, "B": batch}, primitives=False).ops))
        return not self.alone or any(match[op] is None for match in self.alone)

    def fill(self, sizes, vocabulary: Vocabulary, probes, names: tuple[str, ...], again: Collection[int] = ()) -> None:
        """Solves what all probes have over `names`, and `again` these ops, of which those stay as they were that are
        open here, too."""
        plain = others = [vocabulary.probe(probe, primitives=False) for probe in probes]
        matches = [align(self.run, other.ops) for other in plain]
        self.probes = self.probes or list(zip(plain, matches, strict=True))
        if self.wanted:
            places = [
                {other.numbers[same] for i in self.wanted if (same := match[i]) is not None}
                for other, match in zip(plain, matches, strict=True)
            ]
            others = [vocabulary.probe(at, primitives=these) for at, these in zip(probes, places, strict=True)]
        *configurations, fresh = (vocabulary.complete(s) for s in (sizes, *probes))
        solver = Solver(names, vocabulary.derived, configurations, fresh)
        before = {i: (self.inputs[i], self.outputs[i]) for i in again}
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
            self.inputs[i], self.outputs[i] = before[i]
        self._solve_scalars(solver, plain, matches)

    def _each(self, solver: Solver, others: list[Recording], matches) -> None:
        """Solves the ops, in order, that are not solved yet."""
        for i, op in enumerate(self.run):
            places = [match[i] for match in matches]
            if None in places:
                continue
            if self.inputs[i] is None:
                same = [op, *(other.ops[j] for other, j in zip(others, places, strict=True))]
                self.inputs[i], self.outputs[i] = _both(solver, same, [self._made(tensor) for tensor in op.inputs])
            if self.opened and self.parts[i] is None:
                lists = [self.opened[i].parts, *(o.opened[j].parts for o, j in zip(others, places, strict=True))]
                if len({tuple(map(_outline, parts)) for parts in lists}) == 1:
                    self.parts[i] = tuple(_both(solver, same) for same in zip(*lists, strict=True))

    def _solve_scalars(self, solver: Solver, others: list[Recording], matches) -> None:
        """Solves the numbers of calls, and the ends of slices, that are not solved yet."""
        owners = [Owners(other.scalars, other.numbers) for other in others]
        for key, entry in self.entries.items():
            if key in self.scalars:
                continue
            same = [entry, *filter(None, (o.of(entry, match) for o, match in zip(owners, matches, strict=True)))]
            if len(same) <= len(others):
                continue
            self.scalars[key] = {where: solve_number(solver, vector) for where, vector in moving(same)}
            if entry.name in SLICES and entry.last == entry.first + 1:
                ops = [self.run[entry.first], *(o.ops[m[entry.first]] for o, m in zip(others, matches, strict=True))]
                if (edge := slice_edge(solver, same, ops, self.inputs[entry.first])) is not None:
                    self.edges[entry.first] = edge

    def compare(self, one: Recording, two: Recording) -> list[int]:
        """The ops that make tensors of other sizes in the second of two runs at the same sizes, on other values of the
        input, which then have no symbol there; also notes the numbers and the constants that are others."""
        there, across = align(self.run, one.ops), align(one.ops, two.ops)
        match = [None if j is None else across[j] for j in there]
        found = []
        for i, (j, k) in enumerate(zip(there, match, strict=True)):
            if j is None or k is None:
                continue
            first, second = one.ops[j], two.ops[k]
            self.inputs[i] = _unless_other(self.inputs[i], first.inputs, second.inputs)
            outputs = _unless_other(self.outputs[i], first.outputs, second.outputs)
            if outputs_differ(first, second):
                found.append(i)
            self.outputs[i] = outputs
            for place in range(len(first.inputs)):
                digests = one.constants.get((one.numbers[j], place)), two.constants.get((two.numbers[k], place))
                if all(digests) and digests[0] != digests[1]:
                    self.brought.add((i, place))
        owners = [Owners(other.scalars, other.numbers) for other in (one, two)]
        for key, entry in self.entries.items():
            here, there_ = owners[0].of(entry, there), owners[1].of(entry, match)
            moved = [where for where, _ in moving([here, there_])]
            if moved:
                self.scalars.setdefault(key, {}).update(dict.fromkeys(moved, DATA))
                self._end_of_data(entry, {name for name, _ in moved})
        return found

    def _end_of_data(self, entry: Scalars, moved: set[str]) -> None:
        """Says of a slice which of its ends follow from the values of the input."""
        if (edge := self.edges.get(entry.first)) is not None and entry.name in SLICES:
            start = DATA if moved & {"start", "index"} else edge.start
            self.edges[entry.first] = edge._replace(start=start, stop=DATA if moved & {"end", "index"} else edge.stop)

    def carry(self) -> None:
        """Solves copies that no probe made: they have the shape of what they copy, which another op made, or takes."""
        for i in self.missing():
            op = self.run[i]
            if op.name == "detach":  # of a tensor that was written into
                self.inputs[i] = self.outputs[i] = self._taken(op.inputs[0])
            if op.name in COPIES and (copied := self._made(op.inputs[0])):
                self.inputs[i] = self.outputs[i] = (copied,)

    def _made(self, tensor: tuple) -> tuple[str, ...]:
        """The solved shape of a tensor by the op that made it; empty where there is none."""
        shape, _, maker = tensor
        if not isinstance(maker, int) or self.outputs[maker] is None or self.run[maker].name.endswith("_"):
            return ()
        shapes = [one for one, *_ in self.run[maker].outputs]
        return self.outputs[maker][shapes.index(shape)] if shapes.count(shape) == 1 else ()

    def _taken(self, tensor: tuple) -> tuple | None:
        """The solved shape of a tensor by an op that takes it too."""
        for op, solved in zip(self.run, self.inputs, strict=True):
            if solved is not None and tensor in op.inputs:
                return (solved[op.inputs.index(tensor)],)
        return None

    def solution(self, held: list[str], way, problem: str) -> Solution:
        """All that is solved; every dimension of the rest is unknown."""
        for i, found in enumerate(self.parts):
            if found is None:
                self.parts[i] = tuple(map(_unknown, self.opened[i].parts))
        solved = tuple(self.inputs), tuple(self.outputs), tuple(held), tuple(self.parts)
        return Solution(*solved, self.scalars, self.edges, frozenset(self.brought), way, problem)


def _outline(part) -> tuple:
    """What primitives must have in common to be the same one at other sizes."""
    return spelled(part.name), *(tuple(len(shape) for shape, *_ in tensors) for tensors in (part.inputs, part.outputs))


def _both(solver: Solver, same, made: Sequence[tuple[str, ...]] = ()) -> tuple[tuple, tuple]:
    """The solved shapes of the inputs and of the outputs of one op, or primitive, in all runs. A size that the runs
    don't tell is, of an input, that with which it was `made`, and of an output that of an input that has it."""
    before, after = (_vectors([getattr(op, tensors) for op in same]) for tensors in ("inputs", "outputs"))
    inputs = _solved(solver, before)
    if any(made) and any(UNKNOWN in shape for shape in inputs):
        inputs = _solved(solver, before, [dict(enumerate(zip(shape))) for shape in made], inputs)
    own = own_sizes(same[0], inputs, same[1:]) if isinstance(same[0], Seen) else {}
    outputs = _solved(solver, after, [own] * len(after))
    if any(UNKNOWN in shape for shape in outputs):
        sizes = {v: size for one, shape in zip(before, inputs, strict=True) for v, size in zip(one, shape, strict=True)}
        taken = [{axis: (sizes.get(v, UNKNOWN),) for axis, v in enumerate(one)} for one in after]
        outputs = _solved(solver, after, taken, outputs)
    return inputs, outputs


def _vectors(tensors: list) -> list[list[tuple[int, ...]]]:
    """The sizes of each tensor's axes in all runs, as many tensors as the first run has: what is joined, or dealt out,
    is one more in another."""
    columns = zip(*([one[min(n, len(one) - 1)] for n in range(len(tensors[0]))] for one in tensors), strict=True)
    return [list(zip(*(shape for shape, *_ in same), strict=True)) for same in columns]


def _unless_other(solved, first, second):
    """Solved shapes without the sizes that two runs at the same sizes have not in common."""
    if solved is None or len(first) != len(second):
        return solved
    return tuple(
        tuple(UNKNOWN if a != b else size for size, a, b in zip(sizes, one, two, strict=True))
        if len(sizes) == len(one) == len(two)
        else sizes
        for sizes, (one, *_), (two, *_) in zip(solved, first, second, strict=False)
    ) + tuple(solved[len(first) :])


def outputs_differ(first: Seen, second: Seen) -> bool:
    """Whether an op made tensors of other sizes in two runs."""
    return [shape for shape, *_ in first.outputs] != [shape for shape, *_ in second.outputs]


def _unknown(op) -> tuple[tuple, tuple]:
    inputs, outputs = (tuple((UNKNOWN,) * len(shape) for shape, *_ in tensors) for tensors in (op.inputs, op.outputs))
    return inputs, outputs


def _solved(
    solver: Solver,
    vectors: list,
    own: Sequence[Mapping[int, Sequence[str]]] = (),
    known: Sequence[tuple[str, ...]] = (),
) -> tuple[tuple[str, ...], ...]:
    """The shapes of tensors with these sizes in all runs; those of `known` that have a symbol stay."""
    own = own or [{}] * len(vectors)

    def size(n: int, axis: int, vector: tuple[int, ...]) -> str:
        if known and known[n][axis] != UNKNOWN:
            return known[n][axis]
        return solver.solve(vector, [text for text in own[n].get(axis, ()) if text != UNKNOWN])

    return tuple(tuple(size(n, axis, v) for axis, v in enumerate(one)) for n, one in enumerate(vectors))
