"""Symbolic shapes by probing: the same model runs at other sizes, and each dimension is solved from all runs.

Nothing is annotated. Probes take the same ops as the run itself: on the CPU, or on tensors without values that report
the run's device (on `meta`, attention dispatches to other kernels). If the op list differs with the batch, B is held at
the run's value, and a note says so. The last probe is not used to solve. A dimension has a symbol only if its formula
predicts that probe, too.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from math import nan
from typing import Any

import torch

from tracer.capture import OpEvent, Recording, record
from tracer.capture.calls import Call, Stack
from tracer.capture.logged_sizes import Read, SizeLog, scalars_of
from tracer.capture.outer_values import CHANGED
from tracer.capture.plain_sizes import Callees, Decision, Value, decisions
from tracer.capture.program_slices import DEEPEST_CALLS, Slice, by_name, forward_slice, functions_at, parameters
from tracer.capture.state import restoring
from tracer.ops import UNARY, ops_with, schema
from tracer.shapes.alignment import (
    ARGUMENT,
    COPIES,
    align,
    apply_size_rules,
    canonical_name,
    find_diverging_ops,
    repeated_pairs,
    respell,
)
from tracer.shapes.arguments import AFTER_NOTE, MAX_NUMBERS, Comparison, bind, call_with, variations
from tracer.shapes.solver import (
    DATA,
    PADS,
    SLICES,
    UNKNOWN,
    CallIndex,
    Key,
    SliceBounds,
    Solver,
    Units,
    Where,
    base_form,
    common_divisors,
    equal_at,
    evaluator,
    find_changing,
    flatten,
    is_near,
    names_of,
    solve_number,
    solve_padding,
    solve_slice,
    value_of,
)
from tracer.shapes.variation import (
    CONSTANTS,
    FORMULAS,
    FREE_DRAWS,
    SOLVES,
    Guard,
    SmallRun,
    Trials,
    moved_constants,
    note_decided,
    note_unreached,
    other_inputs,
    probe_kind,
    probe_kinds,
    solve_positions,
)
from tracer.utils import files
from tracer.utils.errors import reason
from tracer.utils.torch_internals import tree_map_only
from tracer.utils.torch_state import seeded_draws

__all__ = ["UNKNOWN", "OpsDiffer", "Solution", "Vocabulary", "base_form", "equal_at", "solve", "value_of"]

MIN_PROBES = 3
"""Fewest probes besides the run itself: two that solve, and one that is predicted."""

DEVICE_OP = "prim.device"
"""The op that tensors without values run where others are asked for their device."""

READS = ops_with("data-dependent")
"""Ops whose numbers or sizes depend on values."""
AT_SOME = "this op runs only at some sizes: solved with"
"""Beginning of the note of an op that is missing at some sizes; the held size follows."""
NOT_ALL = "this op does not run at all sizes, so its dimensions have no symbols"
"""The note of an op that a probe did not run."""
OF_DATA = "its size follows from the values of the input, so it has no symbol"
"""The note of an op whose result has another size for other values."""
UNCOMPARED_NOTE = (
    "numbers that follow from values of the input were not looked for: the model does not run on others ({})"
)
"""The note of a run that could not be repeated on other values."""
MOST_TRIALS = 6
"""Largest number of runs at sizes at which comparisons come out otherwise."""
MOST_FAR_TRIALS = 2
"""Largest number of such runs on tensors without values."""
MOST_FAR_OPS = 20_000
"""Largest number of ops of such a run: the turns of a loop over a large size cost time without values, too."""
MOST_UNIT_OPS = 2_000
"""Largest number of ops of a run that is made again at sizes of 1, whatever its ops are."""
SQUEEZES = frozenset(("squeeze", "squeeze_"))
"""Ops that drop an axis of 1."""
CACHE_SIZE = 24
"""Largest number of probes in a vocabulary's cache."""


class OpsDiffer(RuntimeError):
    """Error of a module that runs other ops on tensors without values."""


@dataclass(frozen=True)
class Vocabulary:
    """Named sizes of a model, and a way to build it at other sizes.

    `names` are the sizes that a dimension can be, in order of preference; `derived` has formulas of some of them.
    `build(sizes)` returns `(module, args)` or `(module, args, kwargs)` at other sizes, which runs on `device`, if there
    is one. `mode` returns the mode of tensors without values, if these are used. `note` is about sizes that are no
    symbols. `beyond` are sizes below and above those of the probes: groups, each in order of preference. `missing_ops`
    allows ops that do not run at the sizes of the probes. `valueless()` returns the same model on tensors without
    values, where a run at large sizes costs next to nothing. `axes` are those of inputs that have the names, and
    `recordings` caches the probes.
    """

    names: tuple[str, ...]
    derived: dict[str, str]
    build: Callable[[dict[str, int]], tuple]
    mode: Callable[[], AbstractContextManager] | None = None
    note: str = ""
    beyond: tuple[tuple[dict[str, int], ...], ...] = ()
    missing_ops: bool = False
    device: torch.device | None = None
    valueless: Callable[[], Vocabulary] | None = field(default=None, repr=False, compare=False)
    axes: Mapping[str, Sequence[tuple[str, int]]] = field(default_factory=dict, repr=False, compare=False)
    recordings: dict[tuple, Recording] = field(default_factory=dict, repr=False, compare=False)

    def complete(self, sizes: dict[str, int]) -> dict[str, int]:
        """Return sizes with the derived ones, computed in order."""
        full = dict(sizes)
        for name, text in self.derived.items():
            full[name] = int(value_of(text, full))
        return full

    def probe(
        self,
        sizes: dict[str, int],
        *,
        primitives: bool | Collection[int],
        values: int = 0,
        change: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        before: dict[str, int] | None = None,
    ) -> Recording:
        """Run the model at these sizes and return its recording.

        `primitives` are recorded for all ops or for the ops with these indices. With `values`, the input has other
        values, drawn by `other_inputs`. With `change`, its arguments are those that this returns, by their names. With
        `before`, the same module was called at these sizes before.
        """
        key, once = (*sizes.items(), values), change is not None or before is not None
        recording = None if primitives or once else self.recordings.get(key)
        if recording is None:
            with (self.mode or nullcontext)():
                with seeded_draws(0):
                    module, args, *kwargs = self.build(sizes)
                if self.device is not None and self.device.type != "cpu":
                    inputs = tree_map_only(torch.Tensor, lambda tensor: tensor.to(self.device), (args, *kwargs))
                    module, (args, *kwargs) = module.to(self.device), inputs
                if values:
                    args, *kwargs = other_inputs((args, *kwargs), values)
                if change:
                    args, *kwargs = call_with(module, change(bind(module, args, *kwargs or ({},))))
                alike = {"primitives": primitives} if primitives else {"scalars": True, "digests": self.mode is None}
                with SizeLog() as log, self._after(before) if before is not None else nullcontext(module) as module:
                    recording = record(module, args, *kwargs, cap=0, attention=False, **alike)
            indices = [i for i, op in enumerate(recording.ops) if op.name != DEVICE_OP]
            opened = [recording.opened[i] for i in indices] if primitives else []
            recording = Recording(  # no tensor of the run
                ops=[recording.ops[i] for i in indices],
                opened=opened,
                numbers=indices,
                scalars=recording.scalars,
                constants=recording.constants,
                returned=recording.returned,
                positions=recording.positions,
                comparisons=log.comparisons,
                reads=log.reads,
                state=recording.state,
            )
            if not primitives and not once:
                if len(self.recordings) >= CACHE_SIZE:
                    self.recordings.pop(next(iter(tuple(self.recordings))), None)  # other threads add to it
                self.recordings[key] = recording
        return recording

    @contextmanager
    def _after(self, sizes: dict[str, int]) -> Iterator[torch.nn.Module]:
        """Yield the module behind a call at these sizes; what is outside of it is put back."""
        with seeded_draws(0):
            module, args, *kwargs = self.build(sizes)
        with restoring(module, args, *kwargs):
            with torch.no_grad():
                module(*args, **(kwargs[0] if kwargs else {}))
            yield module

    def probe_other_values(self, sizes: dict[str, int], reads: bool) -> list[Recording]:
        """Run the model at these sizes on other values of the input and return the recordings.

        There are `FREE_DRAWS` of them if the model `reads` values, since a number can be equal by chance; else one.
        Raise the model's own error if it runs on no other values.
        """
        recordings: list[Recording] = []
        failed = None
        for draw in range(1, FREE_DRAWS + 2):
            if recordings and (draw > FREE_DRAWS or not reads):
                break
            try:
                recordings.append(self.probe(sizes, primitives=False, values=draw))
            except Exception as error:  # values that the model does not take
                failed = error
        if failed and not recordings:
            raise failed
        return recordings

    def keep(self, probes: list[dict[str, int]]) -> None:
        """Drop all cached runs except those at these sizes, before the next run of the same model is solved."""
        wanted = {(*sizes.items(), values) for sizes in probes for values in range(FREE_DRAWS + 2)}
        for key in {*self.recordings} - wanted:
            self.recordings.pop(key, None)


@dataclass(frozen=True, eq=False)
class Solution:
    """Symbolic shapes by op: `inputs[i]` and `outputs[i]` are tuples of shapes, `held[i]` is a note or "".

    There is one for each op list and sizes; it equals only itself. `parts[i]` has pairs (inputs, outputs) of shapes for
    the primitives of op i, if these were recorded. `scalars` has by call the Python numbers that differ between runs: a
    formula, "?" if none fits, `DATA` if they depend on the values of the input. `edges` are the bounds of slices by
    their ops. `value_dependent` are tensors from outside PyTorch that depend on values, as (op, operand), and
    `size_dependent` those that depend on sizes. `positions` has a formula of the position of each tensor that is taken
    from a list, by the op that returned the list and the position in this run. `diverging` are the ops that take
    something else at other sizes, as (op, producer that differs), and `iterations` pairs of ops that are one at others.
    `way` is the vocabulary and the probes that it was solved with. `problem` is a note on why there was no run on other
    values, or at sizes that the code compares with. `run` has the ops that were solved, and `limits` are notes on
    parts of the source that may compute something else at sizes that no run reached. `called` are notes on ops that
    compute something else where forward is called otherwise.
    """

    inputs: tuple[tuple[tuple[str, ...], ...], ...]
    outputs: tuple[tuple[tuple[str, ...], ...], ...]
    notes: tuple[str, ...]
    parts: tuple[tuple, ...] = ()
    scalars: dict[Key, dict[Where, str]] = field(default_factory=dict)
    edges: dict[int, SliceBounds] = field(default_factory=dict)
    value_dependent: frozenset[tuple[int, int]] = frozenset()
    diverging: frozenset[tuple[int, int]] = frozenset()
    iterations: frozenset[tuple[int, int]] = frozenset()
    size_dependent: frozenset[tuple[int, int]] = frozenset()
    positions: dict[tuple[int, int], str] = field(default_factory=dict)
    way: tuple[Vocabulary, list[dict[str, int]]] | None = field(default=None, repr=False)
    problem: str = ""
    run: tuple[OpEvent, ...] = field(default=(), repr=False)
    limits: tuple[tuple[str, Slice], ...] = field(default=(), repr=False)
    called: tuple[tuple[int, str], ...] = ()

    @property
    def has_sizes(self) -> bool:
        """True if shapes are solved; without named sizes only dependence on values is known."""
        return bool(self.inputs)

    def varying_paddings(self) -> frozenset[int]:
        """Return the ops of paddings whose numbers differ between runs."""
        calls = (call for call, numbers in self.scalars.items() if call[0] in PADS and numbers)
        return frozenset(op for _, first, last in calls for op in range(first, last))

    def unsolved_numbers(self) -> frozenset[int]:
        """Return the ops of the calls with a number that differs between runs, and has no formula."""
        moving = (call for call, numbers in self.scalars.items() if {UNKNOWN, DATA} & {*numbers.values()})
        return frozenset(op for _, first, last in moving for op in range(first, last))

    def units(self, sizes: dict[str, int]) -> Units:
        """Return the greatest common divisor of each size over all runs, with this one at `sizes`."""
        if self.way is None:
            return ()
        vocabulary, probes = self.way
        return common_divisors([vocabulary.complete({**sizes, **probe}) for probe in ({}, *probes)])

    def predicts(self, recording: Recording, sizes: dict[str, int]) -> bool:
        """Return whether another run of the same ops has every solved shape and number, evaluated at `sizes`."""
        run = recording.ops
        if any(self.notes) or len(run) != len(self.inputs):
            return False

        value = evaluator(sizes)
        if not all(
            have_shapes(op.inputs, inputs, value) and have_shapes(op.outputs, outputs, value)
            for op, inputs, outputs in zip(run, self.inputs, self.outputs, strict=True)
        ):
            return False
        for entry in scalars_of(recording.calls.entries if recording.calls else ()):
            solved, numbers = self.scalars.get((entry.name, entry.first, entry.last), {}), flatten(entry)
            for where, text in solved.items():
                if text not in (UNKNOWN, DATA) and not is_near(value(text), numbers.get(where, nan)):
                    return False
        return True


def have_shapes(tensors: Sequence[tuple], shapes: Sequence[tuple[str, ...]], value: Callable[[str], float]) -> bool:
    """Return whether tensors of a run have these shapes, by the value of each formula; an unknown size is any."""
    return len(shapes) == len(tensors) and all(
        len(shape) == len(real)
        and all(size == UNKNOWN or value(size) == number for size, number in zip(shape, real, strict=True))
        for shape, (real, *_) in zip(shapes, tensors, strict=True)
    )


def solve(
    recording: Recording, sizes: dict[str, int], vocabulary: Vocabulary, probes: list[dict[str, int]]
) -> Solution:
    """Solve every dimension of a run at `sizes`, and the numbers of its calls, with runs at `probes`.

    Sizes are the underived ones. All probes but the last are used to solve; the last is predicted. A number that
    changes in a run at the first probe's sizes on other values is data. The dimensions of primitives are solved, too,
    where the recording has these. Raise ValueError for too few probes, and `OpsDiffer` if tensors without values run
    other ops.
    """
    if len(probes) < MIN_PROBES:
        raise ValueError(f"{len(probes)} runs at other sizes are too few to solve and to predict one: {MIN_PROBES} are")
    partial = PartialSolution(recording, vocabulary, sizes, probes)
    for kind in probe_kinds(SOLVES, partial):
        kind.make(partial)
    partial.give_up()
    for kind in (kind for shows in (CONSTANTS, FORMULAS) for kind in probe_kinds(shows, partial)):
        kind.make(partial)
    partial.diverge()
    vocabulary.keep([*probes, *partial.tried])
    return partial.solution((vocabulary, probes))


# The kinds of probes of a run whose shapes are solved.


@probe_kind("other sizes", SOLVES, cost=5)
def _run_at_other_sizes(partial: PartialSolution) -> None:
    """Solve what all probes have; the last is predicted."""
    partial.solve_over(partial.at, partial.vocabulary.names)
    partial.solve_copies()
    partial.size_dependent.update(moved_constants(partial.constants, partial.probes))


def _is_open(partial: PartialSolution) -> bool:
    """Return whether something is not solved, and may be at the batch of the traced run."""
    unsolved = partial.missing_ops() or partial.unsolved_ops() or None in partial.parts
    return bool(unsolved) and any(probe.get("B") != partial.sizes.get("B") for probe in partial.at)


@probe_kind("other sizes, the same batch", SOLVES, cost=7, applies=_is_open)
def _run_at_the_same_batch(partial: PartialSolution) -> None:
    """Solve what differs with the batch, with B held: another op at B = 1, and ops that a batch alone changes."""
    vocabulary, batch, missing = partial.vocabulary, partial.sizes["B"], partial.missing_ops()
    again = {i for i in partial.unsolved_ops() if partial.depends_on_batch(i)}
    names = tuple(name for name in vocabulary.names if name != "B")
    partial.solve_over([{**probe, "B": batch} for probe in partial.at], names, again)
    partial.solve_copies()
    for i in {*missing} - {*partial.missing_ops()}:
        if not partial.depends_on_batch(i):  # another size is why it does not run in each probe
            partial.inputs[i] = partial.outputs[i] = None
    for i in {*missing, *again} - {*partial.missing_ops(), *partial.unsolved_ops()}:
        partial.notes[i] = f"{AT_SOME} B held at {batch}"


@probe_kind("other values", CONSTANTS, cost=FREE_DRAWS, applies=lambda partial: partial.vocabulary.mode is None)
def _run_on_other_values(partial: PartialSolution) -> None:
    """Note the numbers, sizes and tensors that differ between runs at one size."""
    try:
        reads = any(op.name in READS for op in partial.run)
        recordings = partial.vocabulary.probe_other_values(partial.at[0], reads)
    except Exception as error:
        partial.problems.append(UNCOMPARED_NOTE.format(reason(error)))
        return
    for recording in recordings:
        for i in partial.compare(partial.reference(), recording):
            partial.notes[i] = OF_DATA


@probe_kind("other arguments", CONSTANTS, cost=MAX_NUMBERS + 1, applies=lambda partial: partial.vocabulary.mode is None)
def _run_with_other_arguments(partial: PartialSolution) -> None:
    """Note the ops that compute something else where forward is called with other numbers, keys in another order, or
    tensors of other strides, or where sizes differ that have one name."""
    vocabulary, (args, kwargs) = partial.vocabulary, partial.arguments
    known = partial.sizes, vocabulary.axes, partial.run
    if not any(variations({"args": args, "kwargs": kwargs}, *known)):
        return
    with suppress(Exception):  # of a model that can't be run again
        with seeded_draws(0):
            module, args, *more = vocabulary.build(partial.sizes)
        ways = [*variations(bind(module, args, *more or ({},)), *known)]
        comparison = None
        solved = [key for key, numbers in partial.scalars.items() if numbers]
        for variation in ways:
            with suppress(Exception):  # a call that the model refuses
                varied = vocabulary.probe(partial.sizes, primitives=False, change=variation.change)
                comparison = comparison or partial.comparison()
                ops = comparison.dependents(varied, variation, solved)
                partial.called |= dict.fromkeys((op, variation.note) for op in sorted(ops))


@probe_kind("sizes beyond those of the probes", FORMULAS, cost=4)
def _run_beyond(partial: PartialSolution) -> None:
    """Drop the formulas that runs at sizes below and above those of the probes contradict, where the model runs.

    Those that were solved with B held are compared in runs with the same B.
    """
    for choices in partial.vocabulary.beyond:
        if 1 in choices[0].values() and partial.differs_below():
            continue
        any(partial.try_sizes(at, partial.notes) for at in choices)
        if batch := next((int(note.split()[-1]) for note in partial.notes if held_size(note)), 0):
            compared = ["" if held_size(note) else note for note in partial.notes]
            any(partial.try_sizes({**at, "B": batch}, compared) for at in choices)


@probe_kind("sizes at which comparisons come out otherwise", FORMULAS, cost=MOST_TRIALS)
def _run_beyond_guards(partial: PartialSolution) -> None:
    """Drop the formulas that are contradicted by runs in which a comparison of sizes has another outcome than in all so
    far; note the comparisons for which such a run would be too large."""
    vocabulary, runs = partial.vocabulary, [partial.sizes, *partial.at, *partial.tried]
    names = [name for name in partial.sizes if all(name in at for at in runs)]  # others can't be chosen
    trials = Trials([vocabulary.complete(at) for at in runs], names, vocabulary.complete, vocabulary.derived)
    untried, count, guards = [], 0, partial.guards()
    plain = partial.plain_decisions()
    for file, decision in plain:
        for guard in _plain_guards(decision):
            guards.setdefault(guard, ((file, decision.span),))
    for guard in guards:
        at = trials.sizes(guard)
        if at is None or (at and count == MOST_TRIALS):
            untried.append(guard)
        elif at:
            count += 1
            partial.try_sizes(at, partial.notes)
            trials.add(at)
    untried = _run_without_values(partial, trials, untried) if untried else []
    partial.problems += filter(None, [note_unreached(untried)])
    for guard in untried:
        partial.limit(guards[guard], note_unreached([guard]))
    for file, decision in plain:
        tried = runs if decision.in_loop else [*runs, *partial.tried]
        completed = [vocabulary.complete(at) for at in tried]
        largest = {text: max(int(value_of(text, at)) for at in completed) for text in decision.formulas}
        if decision.numbers is None or max(decision.numbers) >= max(largest.values()):
            partial.limit(((file, decision.span),), note_decided(largest))


def _changes_state_elsewhere(partial: PartialSolution) -> bool:
    """Return whether a run at other sizes, of the same module, changed what the traced one leaves."""
    return bool(partial.vocabulary.axes) and partial.vocabulary.mode is None and bool([*partial.other_states()])


@probe_kind("a call at other sizes before", FORMULAS, cost=MOST_TRIALS + 1, applies=_changes_state_elsewhere)
def _run_after_other_sizes(partial: PartialSolution) -> None:
    """Note the ops that compute something else behind a call at other sizes, which changed what the module reads."""
    with suppress(Exception):  # of a model that can't be run again
        comparison = partial.comparison()
        for at, names in partial.other_states():
            behind = partial.vocabulary.probe(partial.sizes, primitives=False, before=at)
            if ops := comparison.dependents(behind):
                sizes = " and ".join(f"{name} = {size}" for name, size in at.items() if size != partial.sizes.get(name))
                note = AFTER_NOTE.format(sizes, " and ".join(f"`{name}`" for name in names))
                partial.called |= dict.fromkeys((op, note) for op in sorted(ops))
                return


def _plain_guards(decision: Decision) -> Iterator[Guard]:
    """Yield the comparisons of sizes with the numbers that a plain number is compared with; of a count in a loop none,
    since its turns are not compared one by one."""
    for number in () if decision.in_loop else decision.numbers or ():
        yield from (Guard(operator.le, Read(text), number) for text in decision.formulas)


def _run_without_values(partial: PartialSolution, trials: Trials, guards: list[Guard]) -> list[Guard]:
    """Run the model on tensors without values where comparisons come out otherwise only at sizes that are too large for
    real ones; return those that were not reached so. A model that does not run there makes no such comparison."""
    vocabulary, count, untried = partial.vocabulary.valueless, 0, []
    valueless = partial.vocabulary if partial.vocabulary.mode else vocabulary() if vocabulary else None
    for guard in guards:
        at = trials.far_sizes(guard)
        if at == {}:
            continue
        if at is None or valueless is None or count == MOST_FAR_TRIALS or partial.unrolls(at):
            untried.append(guard)
            continue
        count += 1
        if partial.try_sizes(at, partial.notes, valueless):
            trials.add(at)
        elif not partial.runs(partial.at[0], valueless):
            untried.append(guard)
    return untried


def held_size(note: str) -> str:
    """Return the size that was held for an op, from its note; "" if there is none."""
    return note.removeprefix(AT_SOME).split()[0] if note.startswith(AT_SOME) else ""


class PartialSolution:
    """A partial solution: the recording of a run at some `sizes`, the sizes of its probes, `at`, and the shapes that
    are solved so far. `problems` are notes on runs that were not made."""

    def __init__(self, recording: Recording, vocabulary: Vocabulary, sizes: dict[str, int], at: list[dict[str, int]]):
        self.sites, self.arguments, self.state = recording.sites, recording.arguments, recording.state
        self.run, self.opened = run, opened = recording.ops, recording.opened
        self.returned, self.listed = recording.returned, recording.positions
        self.vocabulary, self.sizes, self.at, self.constants = vocabulary, sizes, at, recording.constants
        self.calls: Sequence[Call] = recording.calls.entries if recording.calls else ()
        self.notes = [""] * len(run)
        self.problems: list[str] = []
        self.limits: dict[tuple[str, Slice], None] = {}
        self.called: dict[tuple[int, str], None] = {}
        self.entries = {(entry.name, entry.first, entry.last): entry for entry in scalars_of(self.calls)}
        self.alone: list[list[int | None]] | None = None
        self.scalars: dict[Key, dict[Where, str]] = {}
        self.edges: dict[int, SliceBounds] = {}
        self.value_dependent: set[tuple[int, int]] = set()
        self.diverging: set[tuple[int, int]] = set()
        self.iterations: set[tuple[int, int]] = set()
        self.size_dependent: set[tuple[int, int]] = set()
        self.positions: dict[tuple[int, int], str] = {}
        self.probes: list[tuple[Recording, list[int | None]]] = []
        self.tried: list[dict[str, int]] = []
        self.inputs: list = [None] * len(run)
        self.outputs: list = [None] * len(run)
        self.parts: list = [() if decomposition is None else None for decomposition in opened]
        self.wanted = [i for i, decomposition in enumerate(opened) if decomposition is not None]

    def missing_ops(self) -> list[int]:
        """Return the ops that no probe ran."""
        return [i for i, size in enumerate(self.inputs) if size is None]

    def unsolved_ops(self) -> set[int]:
        """Return the ops with an unsolved dimension, such as one that differs at B = 1."""
        both = enumerate(zip(self.inputs, self.outputs, strict=True))
        return {
            i for i, (first, two) in both if first is not None and any(UNKNOWN in shape for shape in (*first, *two))
        }

    def depends_on_batch(self, op: int) -> bool:
        """Return whether an op differs because of the batch: another op runs, or at another position, if only B
        changes.

        A batch of one counts, since sizes of one are broadcast.
        """
        if self.sizes["B"] == 1:
            return True
        if self.alone is None:
            self.alone = []
            for batch in {self.at[0]["B"], self.at[1]["B"]}:
                with suppress(Exception):  # a batch that the model does not take
                    probe = self.vocabulary.probe({**self.sizes, "B": batch}, primitives=False)
                    self.alone.append(align(self.run, probe.ops))
        return not self.alone or any(match[op] is None for match in self.alone)

    def solve_over(self, probes: list[dict[str, int]], names: tuple[str, ...], again: Collection[int] = ()) -> None:
        """Solve what all probes have, over `names`; solve the ops `again` anew, unless they are unsolved here, too."""
        vocabulary = self.vocabulary
        plain = others = [vocabulary.probe(probe, primitives=False) for probe in probes]
        matches = [align(self.run, recording.ops) for recording in plain]
        self.probes = self.probes or list(zip(plain, matches, strict=True))
        if self.wanted:
            places = [
                {recording.numbers[same] for i in self.wanted if (same := match[i]) is not None}
                for recording, match in zip(plain, matches, strict=True)
            ]
            others = [vocabulary.probe(at, primitives=these) for at, these in zip(probes, places, strict=True)]
        *configurations, fresh = (vocabulary.complete(s) for s in (self.sizes, *probes))
        solver = Solver(names, vocabulary.derived, configurations, fresh)
        before = {i: (self.inputs[i], self.outputs[i]) for i in again}
        for i in again:
            self.inputs[i] = self.outputs[i] = None
        new = [i for i, size in enumerate(self.inputs) if size is None]
        self._solve_ops(solver, others, matches)
        if solver.ambiguous:
            for i in new:
                self.inputs[i] = self.outputs[i] = None
            solver.reset()
            self._solve_ops(solver, others, matches)
        for i in before.keys() & {*self.missing_ops(), *self.unsolved_ops()}:
            self.inputs[i], self.outputs[i] = before[i]
        self._solve_scalars(solver, plain, matches)
        aligned = list(zip(plain, matches, strict=True))
        self.positions = solve_positions(solver, self.run, self.returned, self.listed, aligned) | self.positions

    def _solve_ops(self, solver: Solver, others: list[Recording], matches) -> None:
        """Solve the shapes of all unsolved ops, in order."""
        for i, op in enumerate(self.run):
            places = [match[i] for match in matches]
            if None in places:
                continue
            if self.inputs[i] is None:
                same = [op, *(probe.ops[j] for probe, j in zip(others, places, strict=True))]
                self.inputs[i], self.outputs[i] = _solve_op(
                    solver, same, [self._shape_from_producer(tensor, in_place=True) for tensor in op.inputs]
                )
            if self.opened and self.parts[i] is None:
                lists = [self.opened[i].parts, *(o.opened[j].parts for o, j in zip(others, places, strict=True))]
                if len({tuple(map(_outline, parts)) for parts in lists}) == 1:
                    self.parts[i] = tuple(_solve_op(solver, same) for same in zip(*lists, strict=True))

    def _solve_scalars(self, solver: Solver, others: list[Recording], matches) -> None:
        """Solve the numbers of calls and the bounds of slices that are not solved yet."""
        owners = [CallIndex(probe.scalars, probe.numbers) for probe in others]
        for key, entry in self.entries.items():
            if key in self.scalars:
                continue
            same = [entry, *filter(None, (o.of(entry, match) for o, match in zip(owners, matches, strict=True)))]
            if len(same) <= len(others):
                continue
            self.scalars[key] = {where: solve_number(solver, vector) for where, vector in find_changing(same)}
            if entry.name in PADS and self.inputs[entry.first]:
                tensors = self.inputs[entry.first][0], self.outputs[entry.last - 1][0]
                self.scalars[key] |= dict(solve_padding(solver, same, self.scalars[key], *tensors))
            if any(scalar.flags != entry.flags or scalar.values.keys() != entry.values.keys() for scalar in same):
                self.diverging.update((op, ARGUMENT) for op in range(entry.first, entry.last))
            if entry.name in SLICES and entry.last == entry.first + 1:
                ops = [self.run[entry.first], *(o.ops[m[entry.first]] for o, m in zip(others, matches, strict=True))]
                if (edge := solve_slice(solver, same, ops, self.inputs[entry.first])) is not None:
                    self.edges[entry.first] = edge

    def give_up(self) -> None:
        """Note the ops that no probe ran. Raise `OpsDiffer` if tensors without values run other ops."""
        missing = self.missing_ops()
        if missing and self.vocabulary.mode and not self.vocabulary.missing_ops:
            raise OpsDiffer(f"without values it does not run {self.run[missing[0]].name}")
        for i in missing:
            self.notes[i] = NOT_ALL
            self.inputs[i], self.outputs[i] = _unknown(self.run[i])
        if self.calls and any(self.notes):
            respell(self.run, self.calls, self.probes, self.notes, self.inputs, self.outputs)

    def reference(self) -> Recording:
        """Return the run that those on other values are compared with: the first probe, or the traced run itself where
        no sizes are named."""
        if self.sizes:
            return self.vocabulary.probe(self.at[0], primitives=False)
        numbers = list(range(len(self.run)))
        return Recording(
            ops=self.run, numbers=numbers, scalars=[*self.entries.values()], constants=dict(self.constants)
        )

    def comparison(self) -> Comparison:
        """Return a comparison of the traced run with others at its sizes."""
        base = self.vocabulary.probe(self.sizes, primitives=False)
        return Comparison(self.run, self.returned, self.calls, self.entries, base)

    def other_states(self) -> Iterator[tuple[dict[str, int], list[str]]]:
        """Yield the sizes of the probes that changed what the traced run leaves, with the names of that."""
        for at, (probe, _) in zip((*self.at, *self.tried), self.probes, strict=False):
            names = sorted(name.name for name in probe.state - self.state if name.kind == CHANGED)
            if names:
                yield at, names

    def limit(self, frames: Stack, note: str) -> None:
        """Add a note to what depends on the expression that the innermost frame evaluates."""
        part = forward_slice(frames, {op.frame for op in self.run}, self.sites)
        self.limits[f"{note[0].upper()}{note[1:]}.", part] = None

    def formulas_of(self, probe: Recording, match: Sequence[int | None]) -> dict[int, str]:
        """Return the formulas of the sizes of a probe by their numbers."""
        formulas: dict[int, str] = {}
        for i, j in enumerate(match):
            if j is None or self.inputs[i] is None:
                continue
            for solved, tensors in ((self.inputs[i], probe.ops[j].inputs), (self.outputs[i], probe.ops[j].outputs)):
                for shape, (numbers, *_) in zip(solved, tensors, strict=False):
                    for size, number in zip(shape, numbers, strict=False):
                        if size != UNKNOWN and not formulas.get(number, "").isdigit():
                            formulas[number] = size
        return formulas

    def plain_decisions(self) -> list[tuple[str, Decision]]:
        """Return the decisions by plain numbers that follow from sizes, each with its file."""
        found: dict[tuple[str, Decision], None] = {}
        for probe, match in self.probes[:1]:
            formulas = self.formulas_of(probe, match)

            def reads(file: str, line: int, probe=probe, formulas=formulas) -> list[tuple[str, ...]]:
                shapes = probe.reads.get((file, line), ())
                solved = ([formulas.get(size, "") for size in shape] for shape in shapes)
                return [tuple(text if text and names_of(text) else "" for text in texts) for texts in solved]

            found |= dict.fromkeys(self._follow_decisions(probe, reads))
        return [*found]

    def _follow_decisions(self, probe: Recording, reads: Callable) -> Iterator[tuple[str, Decision]]:
        """Yield the decisions in the functions that read sizes, and in those that they hand numbers to."""
        read = ((file, (line, 0, line, 0)) for file, line in probe.reads)
        functions = functions_at([*(op.frame for op in probe.ops if op.frame is not None), *self.sites, *read])
        defined, handed = by_name(taken for _, taken in functions), dict[str, Value]()
        waiting = [
            (file, taken) for file, taken in functions if any((file, n) in probe.reads for n in files.lines(taken))
        ]
        for _ in range(DEEPEST_CALLS):
            passed: dict[str, Value] = {}
            for file, taken in waiting:
                sites = {span: named for (name, span), named in self.sites.items() if name == file}
                own = {name: value for name, value in handed.items() if name in parameters(taken)}
                decided, more = decisions(taken, partial(reads, file), own, Callees(sites, defined))
                yield from ((file, decision) for decision in decided)
                passed |= more
            waiting, handed = [place for place in functions if parameters(place[1]) & passed.keys()], passed

    def guards(self) -> dict[Guard, Stack]:
        """Return the comparisons that all probes make, of formulas, each with the code's frames."""
        guards: dict[Guard, Stack] = {}
        for probe, match in self.probes:
            if not probe.comparisons:
                continue
            formulas = self.formulas_of(probe, match)
            for comparison, frames in probe.comparisons.items():
                if (guard := Guard.of(comparison, formulas)) is not None:
                    guards.setdefault(guard, frames)
        return guards

    def differs_below(self) -> bool:
        """Return whether a run at sizes of 1 shows nothing new: slices that take fewer there say so, and a loop of one
        turn takes other slices. Of a long run, only `squeeze` is worth one."""
        if len(self.run) > MOST_UNIT_OPS and not any(op.name in SQUEEZES for op in self.run):
            return True
        loops = len({len(probe.ops) for probe, _ in self.probes[: len(self.at)]}) > 1
        return loops or any(edge.least > 1 for edge in self.edges.values())

    def unrolls(self, at: dict[str, int]) -> bool:
        """Return whether a run at these sizes would have too many ops, by the growth of their number in the probes."""
        if len({len(probe.ops) for probe, _ in self.probes}) == 1:
            return False
        known = {name: max(run[name] for run in (self.sizes, *self.at)) for name in at if name in self.sizes}
        growth = max(at[name] / size for name, size in known.items())
        return growth * max(len(probe.ops) for probe, _ in self.probes) > MOST_FAR_OPS

    def runs(self, at: dict[str, int], vocabulary: Vocabulary) -> bool:
        """Return whether the model runs at these sizes."""
        with suppress(Exception):
            vocabulary.probe(at, primitives=False)
            return True
        return False

    def try_sizes(self, at: dict[str, int], notes: Sequence[str], vocabulary: Vocabulary | None = None) -> bool:
        """Drop the formulas that a run at these sizes contradicts, except those of ops with `notes`; return whether the
        model runs there. The run is made in another `vocabulary` if there is one."""
        try:
            probe = (vocabulary or self.vocabulary).probe(at, primitives=False)
        except Exception:  # a size that the model does not take
            return False
        match = align(self.run, probe.ops)
        small = SmallRun(probe, match, self.vocabulary.complete(at), notes)
        small.refute_shapes(self.inputs, self.outputs)
        small.refute_missing_slices(self.entries, self.edges, self.inputs, self.outputs)
        ops = small.refute_numbers(self.entries, self.scalars, self.edges)
        self.diverging.update((op, ARGUMENT) for op in ops)
        small.refute_positions(self.run, self.listed, self.positions)
        self.probes.append((probe, match))
        self.tried.append(at)
        return True

    def diverge(self) -> None:
        """Note the ops that have other operands in the probes."""
        for probe, match in self.probes:
            self.diverging.update(find_diverging_ops(self.run, self.returned, self.calls, probe, match))
            self.iterations.update(repeated_pairs(match))

    def compare(self, reference: Recording, two: Recording) -> list[int]:
        """Return the ops whose results differ in size between two runs on different values.

        These sizes lose their symbols. Numbers and constants that differ are marked as data.
        """
        there, across = align(self.run, reference.ops), align(reference.ops, two.ops)
        match = [None if j is None else across[j] for j in there]
        differences = []
        for i, (j, k) in enumerate(zip(there, match, strict=True)):
            if j is None or k is None:
                continue
            first, second = reference.ops[j], two.ops[k]
            self.inputs[i] = _mask_differences(self.inputs[i], first.inputs, second.inputs)
            self.outputs[i] = _mask_differences(self.outputs[i], first.outputs, second.outputs)
            if [shape for shape, *_ in first.outputs] != [shape for shape, *_ in second.outputs]:
                differences.append(i)
            for place in range(len(first.inputs)):
                digests = (
                    reference.constants.get((reference.numbers[j], place)),
                    two.constants.get((two.numbers[k], place)),
                )
                if all(digests) and digests[0] != digests[1]:
                    self.value_dependent.add((i, place))
        owners = [CallIndex(recording.scalars, recording.numbers) for recording in (reference, two)]
        for key, entry in self.entries.items():
            here, there_ = owners[0].of(entry, there), owners[1].of(entry, match)
            moved = [where for where, _ in find_changing([here, there_])]
            if moved:
                self.scalars.setdefault(key, {}).update(dict.fromkeys(moved, DATA))
            if entry.name in SLICES and (edge := self.edges.get(entry.first)) is not None:
                names = {name for name, _ in moved}
                start = DATA if names & {"start", "index"} else edge.start
                stop = (
                    DATA if names & ({"start", "length"} if entry.name == "narrow" else {"end", "index"}) else edge.stop
                )
                self.edges[entry.first] = edge._replace(start=start, stop=stop)
        return differences

    def solve_copies(self) -> None:
        """Solve copies that no probe ran: they have the shape of their source."""
        for i in self.missing_ops():
            op = self.run[i]
            if op.name == "detach":  # of a tensor that was written into
                self.inputs[i] = self.outputs[i] = self._shape_from_user(op.inputs[0])
            if op.name in COPIES and (copied := self._shape_from_producer(op.inputs[0])):
                self.inputs[i] = self.outputs[i] = (copied,)
                parts = self.opened[i].parts if self.opened and self.parts[i] is None else ()
                if parts and all(
                    shape == op.inputs[0][0] for part in parts for shape, *_ in part.inputs + part.outputs
                ):
                    self.parts[i] = tuple(
                        ((copied,) * len(part.inputs), (copied,) * len(part.outputs)) for part in parts
                    )

    def _shape_from_producer(self, tensor: tuple, in_place: bool = False) -> tuple[str, ...]:
        """Return the solved shape of a tensor from its producer; empty if there is none.

        With `in_place` it can be an op that wrote into the tensor, perhaps through a view of another shape.
        """
        shape, _, maker = tensor
        if not isinstance(maker, int) or self.outputs[maker] is None:
            return ()
        if self.run[maker].name.endswith("_") and not in_place:
            return ()
        shapes = [numeric for numeric, *_ in self.run[maker].outputs]
        return self.outputs[maker][shapes.index(shape)] if shapes.count(shape) == 1 else ()

    def _shape_from_user(self, tensor: tuple) -> tuple | None:
        """Return the solved shape of a tensor from another op that uses it, in a tuple; None if there is none."""
        for op, solved in zip(self.run, self.inputs, strict=True):
            if solved is not None and tensor in op.inputs:
                return (solved[op.inputs.index(tensor)],)
        return None

    def dependence(self) -> Solution | None:
        """Return what depends on the values of the input alone, without sizes; None if nothing does."""
        if not (any(self.notes) or self.scalars or self.value_dependent or self.called):
            return None
        notes, of_values = tuple(self.notes), frozenset(self.value_dependent)
        return Solution((), (), notes, (), self.scalars, value_dependent=of_values, called=tuple(self.called))

    def solution(self, way: tuple[Vocabulary, list[dict[str, int]]] | None) -> Solution:
        """Return the solution; dimensions that are not solved are unknown."""
        for i, part in enumerate(self.parts):
            if part is None:
                self.parts[i] = tuple(map(_unknown, self.opened[i].parts))
        solved = tuple(self.inputs), tuple(self.outputs), tuple(self.notes), tuple(self.parts)
        sets = self.value_dependent, self.diverging, self.iterations, self.size_dependent
        of_values, diverging, iterations, of_sizes = map(frozenset, sets)
        rest = self.positions, way, "; ".join(self.problems), tuple(self.run)
        return Solution(
            *solved,
            self.scalars,
            self.edges,
            of_values,
            diverging,
            iterations,
            of_sizes,
            *rest,
            limits=tuple(self.limits),
            called=tuple(self.called),
        )


def _outline(part) -> tuple:
    """Return the properties that a primitive shares with the same one at other sizes."""
    return canonical_name(part.name), *(
        tuple(len(shape) for shape, *_ in tensors) for tensors in (part.inputs, part.outputs)
    )


def _solve_op(solver: Solver, same, solved: Sequence[tuple[str, ...]] = ()) -> tuple[tuple, tuple]:
    """Return the solved shapes of the inputs and outputs of one op, or primitive, in all runs.

    An ambiguous size of an input is taken from its producer's shape, `solved`, and one of an output from an input that
    has it.
    """
    before, after = (_size_vectors([getattr(op, tensors) for op in same]) for tensors in ("inputs", "outputs"))
    inputs = _solve_tensors(solver, before)
    if any(solved) and any(UNKNOWN in shape for shape in inputs):
        inputs = _solve_tensors(solver, before, [dict(enumerate(zip(shape))) for shape in solved], inputs)
    inputs = tuple(_with_symbols(solver, shape, known) for shape, known in zip(inputs, solved or inputs, strict=True))
    own = apply_size_rules(same[0], inputs, same[1:]) if isinstance(same[0], OpEvent) else {}
    outputs = _solve_tensors(solver, after, [own] * len(after))
    if any(UNKNOWN in shape for shape in outputs):
        taken = [
            {axis: tuple(_sizes_of_inputs(vector, axis, before, inputs)) for axis, vector in enumerate(entry)}
            for entry in after
        ]
        outputs = _solve_tensors(solver, after, taken, outputs)
    if before and after and before[0] == after[0] and _is_elementwise(same[0].name):
        outputs = (_with_symbols(solver, outputs[0], inputs[0]), *outputs[1:])
    return inputs, outputs


def _is_elementwise(name: str) -> bool:
    op = schema(name)
    return op.category == UNARY or op.title == "Batch norm" or "identity" in op.traits


def _with_symbols(solver: Solver, shape: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return a shape with the formulas of the same axes in another for its numbers: ⌈H/512⌉ is 1 in many runs."""
    if len(shape) != len(known):
        return shape
    return tuple(
        known_size if size.isdigit() and solver.varies(known_size) else size
        for size, known_size in zip(shape, known, strict=True)
    )


def _sizes_of_inputs(vector: tuple[int, ...], axis: int, before: Sequence, inputs: Sequence) -> Iterator[str]:
    """Yield the formula of inputs' axes with these sizes in all runs: that of the same axis first, none if several axes
    with other formulas have them."""
    pairs = [pair for entry, shape in zip(before, inputs, strict=True) for pair in zip(entry, shape, strict=True)]
    aligned = [shape[axis] for entry, shape in zip(before, inputs, strict=True) if entry[axis : axis + 1] == [vector]]
    formulas = {size for v, size in pairs if v == vector}
    yield from aligned[:1] or (formulas if len(formulas) == 1 else ())


def _size_vectors(tensors: list) -> list[list[tuple[int, ...]]]:
    """Return the sizes of each tensor's axes in all runs, for as many tensors as the first run has.

    Joins and splits can have more tensors in another run.
    """
    columns = zip(
        *([tensor[min(n, len(tensor) - 1)] for n in range(len(tensors[0]))] for tensor in tensors), strict=True
    )
    return [list(zip(*(shape for shape, *_ in same), strict=True)) for same in columns]


def _mask_differences(solved, first, second):
    """Return solved shapes without the sizes that differ between two runs at the same sizes."""
    if solved is None or len(first) != len(second):
        return solved
    return tuple(
        tuple(UNKNOWN if a != b else size for size, a, b in zip(sizes, shape, two, strict=True))
        if len(sizes) == len(shape) == len(two)
        else sizes
        for sizes, (shape, *_), (two, *_) in zip(solved, first, second, strict=False)
    ) + tuple(solved[len(first) :])


def _unknown(op) -> tuple[tuple, tuple]:
    inputs, outputs = (tuple((UNKNOWN,) * len(shape) for shape, *_ in tensors) for tensors in (op.inputs, op.outputs))
    return inputs, outputs


def _solve_tensors(
    solver: Solver,
    vectors: list,
    own: Sequence[Mapping[int, Sequence[str]]] = (),
    known: Sequence[tuple[str, ...]] = (),
) -> tuple[tuple[str, ...], ...]:
    """Return the solved shapes of tensors with these sizes in all runs; symbols in `known` stay."""
    own = own or [{}] * len(vectors)

    def size(n: int, axis: int, vector: tuple[int, ...]) -> str:
        if known and known[n][axis] != UNKNOWN:
            return known[n][axis]
        return solver.solve(vector, [text for text in own[n].get(axis, ()) if text != UNKNOWN])

    return tuple(tuple(size(n, axis, v) for axis, v in enumerate(size_vector)) for n, size_vector in enumerate(vectors))
