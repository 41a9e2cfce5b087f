"""Changes of lines as interventions: the calls whose results they replace, from a run without changes."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from math import nan
from typing import NamedTuple

from tracer.capture import OpEvent, Recording
from tracer.capture.calls import CallLog, refs
from tracer.capture.interventions import CallSite, Intervention, ParameterSite, call_sites, with_interventions
from tracer.capture.logged_sizes import Scalars, scalars_of
from tracer.capture.tensors import TensorStore
from tracer.changes import Change, TargetLine
from tracer.changes.kinds import join_changes
from tracer.expr import Node, Tensor, tensors
from tracer.expr.arithmetic import Plus
from tracer.ops import ATTENTION
from tracer.record import CHANGED_SUFFIX, AttentionRecord, split_id
from tracer.shapes import Solution, Vocabulary, have_shapes
from tracer.shapes.alignment import COPIES, Match, align, find_diverging_ops, repeated_pairs
from tracer.shapes.solver import DATA, SLICES, UNKNOWN, CallIndex, Key, Where, evaluator, find_changing, flatten
from tracer.shapes.variation import SmallRun, moved_constants
from tracer.symbols.axes import AxisFactor
from tracer.textbook.claims import PARAMETER
from tracer.textbook.derivation import DerivedStep
from tracer.tracing.records import unmask, unscale
from tracer.utils.errors import quote

# Solutions of changed runs, taken over from the run without the change: a change adds a few ops, and leaves the shapes
# of all others.
#
# The ops of both runs are aligned, and each keeps its formulas. A run of the changed model at other sizes has to
# confirm all of them, those of the added ops, too; where it does not, the run is solved like any other.

Shapes = tuple[tuple[str, ...], ...]
Evaluator = Callable[[str], float]
"""A function that returns the value of a formula at the sizes of one run."""


class _NoFormula(Exception):
    """No formula, or more than one, has the values of both runs."""


def take_over_solution(
    known: Solution, recording: Recording, sizes: dict[str, int], vocabulary: Vocabulary, probes: list[dict[str, int]]
) -> Solution | None:
    """Return the solution of a changed run at `sizes` by that of a run without the change, `known`; None where the
    run at one of the `probes`, with all sizes others than here, does not confirm it."""
    at = _find_probe(sizes, vocabulary, probes)
    if at is None or any(known.notes) or any(recording.opened):
        return None
    try:
        probe = vocabulary.probe(at, primitives=False)
    except Exception:  # sizes that the change does not take
        return None
    there = align(recording.ops, probe.ops)
    if any(j is None and op.name not in COPIES for op, j in zip(recording.ops, there, strict=True)):
        return None
    at_probe = vocabulary.complete(at)
    try:
        partial = _TakenSolution(
            known, recording, probe, there, evaluator(vocabulary.complete(sizes)), evaluator(at_probe)
        )
    except _NoFormula:
        return None
    return partial.solution(vocabulary, probes) if partial.is_confirmed(at_probe) else None


def _find_probe(
    sizes: dict[str, int], vocabulary: Vocabulary, probes: Sequence[dict[str, int]]
) -> dict[str, int] | None:
    """Return the first probe at which all sizes that vary are others than here; None if there is none."""
    here, *there = (vocabulary.complete({**sizes, **at}) for at in ({}, *probes))
    varying = [name for name in here if len({at[name] for at in (here, *there)}) > 1]
    differing = (probe for probe, at in zip(probes, there, strict=True) if all(at[n] != here[n] for n in varying))
    return next(differing, None)


class _TakenSolution:
    """What a changed run takes over from one whose solution is `known`.

    `there` are the ops of this run in the `probe`; `here` and `elsewhere` evaluate formulas at the sizes of both.
    """

    def __init__(
        self,
        known: Solution,
        recording: Recording,
        probe: Recording,
        there: Match,
        here: Evaluator,
        elsewhere: Evaluator,
    ):
        self._known, self._recording, self._probe, self._there = known, recording, probe, there
        self._here, self._elsewhere = here, elsewhere
        self._run, self._calls = recording.ops, recording.calls.entries if recording.calls else ()
        self._origin: list[int | None] = []
        """The op of the known run that each op is; None for an added one."""
        self._moved: dict[int, int] = {}
        """The op of this run that each op of the known one is."""
        for i, j in enumerate(align(self._run, known.run)):
            if j is None or j in self._moved:  # the second looks like another turn of a loop
                self._origin.append(None)
            else:
                self._origin.append(j)
                self._moved[j] = i
        self.inputs: list[Shapes] = []
        self.outputs: list[Shapes] = []
        for i in range(len(self._run)):
            inputs, outputs = self._known_shapes(i) or self._recomputed_shapes(i) or self._added_shapes(i)
            self.inputs.append(inputs)
            self.outputs.append(outputs)
        self.entries: dict[Key, Scalars] = {}
        self.scalars: dict[Key, dict[Where, str]] = {}
        owners = CallIndex(probe.scalars, probe.numbers)
        for entry in scalars_of(self._calls):
            key = entry.name, entry.first, entry.last
            self.entries[key] = entry
            if entry.first == entry.last:  # such as a dropout that is off
                continue
            known_numbers = self._known_numbers(entry)
            self.scalars[key] = self._added_numbers(entry, owners) if known_numbers is None else known_numbers
        self.edges = {self._moved[op]: edge for op, edge in known.edges.items() if op in self._moved}
        self.positions = {
            (self._moved[op], place): text for (op, place), text in known.positions.items() if op in self._moved
        }

    def _known_shapes(self, i: int) -> tuple[Shapes, Shapes] | None:
        """Return the shapes of an op's inputs and outputs in the known run; None where it has others here."""
        j, op = self._origin[i], self._run[i]
        if j is None:
            return None
        inputs, outputs = self._known.inputs[j], self._known.outputs[j]
        return (inputs, outputs) if self._fit(op, inputs, outputs, self._here) else None

    def _recomputed_shapes(self, i: int) -> tuple[Shapes, Shapes] | None:
        """Return the shapes of an added op that does what an op of the known run does in the same module, such as a
        product that is computed again; None where there is no such op, or several have other shapes."""
        op, there, known = self._run[i], self._there[i], self._known
        if there is None:
            return None
        after = self._probe.ops[there]
        fitting = {
            (known.inputs[j], known.outputs[j])
            for j, other in enumerate(known.run)
            if (other.name, other.module) == (op.name, op.module)
            and self._fit(op, known.inputs[j], known.outputs[j], self._here)
            and self._fit(after, known.inputs[j], known.outputs[j], self._elsewhere)
        }
        return fitting.pop() if len(fitting) == 1 else None

    def _added_shapes(self, i: int) -> tuple[Shapes, Shapes]:
        """Return the shapes of an added op's inputs and outputs, by the sizes of what it reads, and where these are not
        enough, by those of the changed line, too."""
        op, there = self._run[i], self._there[i]
        shapes = [shape for *_, producer in op.inputs if isinstance(producer, int) for shape in self.outputs[producer]]
        if there is None:  # a copy, which has the shape of its source
            sources = {shape for shape in shapes if have_shapes(op.inputs, (shape,), self._here)}
            if len(sources) != 1:
                raise _NoFormula
            return tuple(sources), tuple(sources)
        read = [size for shape in shapes for size in shape]
        after, changed = self._probe.ops[there], self._changed_sizes(i)
        for sizes in (read, [*read, *changed]):
            try:
                inputs = self._solve_tensors(op.inputs, after.inputs, sizes, changed)
                return inputs, self._solve_tensors(op.outputs, after.outputs, sizes, changed)
            except _NoFormula:
                continue
        raise _NoFormula

    @staticmethod
    def _fit(op: OpEvent, inputs: Shapes, outputs: Shapes, value: Evaluator) -> bool:
        """Return whether an op's inputs and outputs have these shapes, by the value of each formula."""
        return have_shapes(op.inputs, inputs, value) and have_shapes(op.outputs, outputs, value)

    def _changed_sizes(self, i: int) -> list[str]:
        """Return the sizes of the line before an added op, which is the changed one."""
        before = next((op for op in range(i - 1, -1, -1) if self._origin[op] is not None), None)
        return [] if before is None else [size for shape in self.outputs[before] for size in shape]

    def _solve_tensors(
        self, tensors: Sequence[tuple], others: Sequence[tuple], sizes: Sequence[str], changed: Sequence[str]
    ) -> Shapes:
        """Return the shapes of tensors of this run, which are `others` in the probe, by these sizes; a number is none
        of the `changed` ones."""
        if [len(shape) for shape, *_ in tensors] != [len(shape) for shape, *_ in others]:
            raise _NoFormula
        return tuple(
            tuple(self._solve(number, other, sizes, changed) for number, other in zip(shape, there, strict=True))
            for (shape, *_), (there, *_) in zip(tensors, others, strict=True)
        )

    def _solve(self, number: float, other: float, sizes: Sequence[str], changed: Sequence[str]) -> str:
        """Return the one formula among `sizes` that has this value here and the other in the probe, or the number that
        both are. Raise `_NoFormula` where there is none, or several, or where a changed size is this number."""
        fitting = self._fitting(number, other, sizes)
        if not fitting and number == other and not self._fitting(number, other, changed):
            return str(number)
        if len(fitting) != 1:
            raise _NoFormula
        return fitting.pop()

    def _fitting(self, number: float, other: float, sizes: Sequence[str]) -> set[str]:
        """Return the formulas among `sizes` that have this value here and the other in the probe."""
        return {
            size
            for size in sizes
            if size not in (UNKNOWN, DATA) and self._here(size) == number and self._elsewhere(size) == other
        }

    def _known_numbers(self, entry: Scalars) -> dict[Where, str] | None:
        """Return the numbers of a call that differ between runs, as in the known run; None for an added call."""
        ops = [op for op in self._origin[entry.first : entry.last] if op is not None]
        if not ops or len(ops) < entry.last - entry.first:
            return None
        numbers = self._known.scalars.get((entry.name, ops[0], ops[-1] + 1))
        return None if numbers is None else dict(numbers)

    def _added_numbers(self, entry: Scalars, owners: CallIndex) -> dict[Where, str]:
        """Return the same for an added call, by the sizes of the changed line, and by the numbers of the known run's
        calls of this name in the same module, which it may compute again."""
        there = owners.of(entry, self._there)
        if there is None or entry.name in SLICES:
            raise _NoFormula
        recomputed, sizes = self._recomputed_numbers(entry, there), self._changed_sizes(entry.first)
        return {
            where: self._solve(number, other, sizes, sizes)
            for where, (number, other) in find_changing([entry, there])
            if where not in recomputed
        } | recomputed

    def _recomputed_numbers(self, entry: Scalars, there: Scalars) -> dict[Where, str]:
        """Return the formulas of an added call that does what a call of the known run does in the same module, where
        they have the values of both runs; none where there is no such call, or several have others."""
        here, elsewhere, run = flatten(entry), flatten(there), self._known.run
        op, shapes = self._run[entry.first], (self.inputs[entry.first], self.outputs[entry.last - 1])
        fitting = [
            numbers
            for (name, first, last), numbers in self._known.scalars.items()
            if first < last
            and (name, run[first].module) == (entry.name, op.module)
            and (self._known.inputs[first], self._known.outputs[last - 1]) == shapes
            and all(
                where in here and self._fitting(here[where], elsewhere.get(where, nan), [text])
                for where, text in numbers.items()
            )
        ]
        return dict(fitting[0]) if fitting and all(numbers == fitting[0] for numbers in fitting) else {}

    def is_confirmed(self, sizes: dict[str, int]) -> bool:
        """Return whether the probe, at these sizes, has every shape and number."""
        run = SmallRun(self._probe, self._there, sizes, [""] * len(self._run))
        inputs, outputs, edges, positions = [*self.inputs], [*self.outputs], dict(self.edges), dict(self.positions)
        scalars = {key: dict(numbers) for key, numbers in self.scalars.items()}
        run.refute_shapes(inputs, outputs)
        has_other_arguments = bool([*run.refute_numbers(self.entries, scalars, edges)])
        run.refute_positions(self._run, self._recording.positions, positions)
        solved = self.inputs, self.outputs, self.scalars, self.edges, self.positions
        return not has_other_arguments and solved == (inputs, outputs, scalars, edges, positions)

    def solution(self, vocabulary: Vocabulary, probes: list[dict[str, int]]) -> Solution:
        """Return the solution, with what the probe shows of the ops that differ at other sizes."""
        known, recording = self._known, self._recording
        diverging = find_diverging_ops(self._run, recording.returned, self._calls, self._probe, self._there)
        constants = moved_constants(recording.constants, [(self._probe, self._there)])
        return Solution(
            tuple(self.inputs),
            tuple(self.outputs),
            notes=("",) * len(self._run),
            parts=((),) * len(recording.opened),
            scalars=self.scalars,
            edges=self.edges,
            value_dependent=frozenset(self._move_operands(known.value_dependent)),
            diverging=frozenset({*diverging, *self._move_pairs(known.diverging)}),
            iterations=frozenset({*repeated_pairs(self._there), *self._move_pairs(known.iterations)}),
            size_dependent=frozenset({*constants, *self._move_operands(known.size_dependent)}),
            positions=self.positions,
            way=(vocabulary, probes),
            problem=known.problem,
            run=tuple(self._run),
        )

    def _move_operands(self, operands: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield operands of the known run as those of this one."""
        return ((self._moved[op], place) for op, place in operands if op in self._moved)

    def _move_pairs(self, pairs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yield pairs of ops of the known run, or of an op and a negative number, as those of this one."""
        for op, producer in pairs:
            if op in self._moved and (producer < 0 or producer in self._moved):
                yield self._moved[op], self._moved.get(producer, producer)


NEAREST = 3
"""Number of known lines that an error names."""


class LineSite(NamedTuple):
    """A line or a parameter that can be changed: the call that returns its value, or the fused attention inside which
    it is computed (`fused`)."""

    line: TargetLine
    site: CallSite | ParameterSite | None
    position: int = 0
    fused: bool = False


def line_sites(recording: Recording, steps: Sequence[DerivedStep]) -> dict[str, LineSite]:
    """Return the parameters that a run reads, as `parameter PATH`, and all lines, by their ids; those without a site
    are computed inside other calls. A fused attention with dropout stays closed: if expanded, values are multiplied by
    another line than its weights."""
    calls = recording.calls or CallLog()
    sites, ids = call_sites(calls), {step.line.id for step in steps}
    kernels = {
        op: sites[call.outputs[0].key][0]
        for call in calls.entries
        if call.name == ATTENTION and call.outputs[0].key in sites and not call.arguments.get("dropout_p")
        for op in range(call.first, call.last)
    }
    tokens: dict[str, set[str]] = {}
    for step in steps:
        around, end, _ = split_id(step.line.id)
        if end == "scores":
            tokens.setdefault(around, set()).update(map(str, step.line.tensor.shape[-2:]))
    factors = recording.attentions.head_factors if recording.attentions else {}
    lines: dict[str, LineSite] = _parameter_sites(calls, steps)
    for step in steps:
        entry = _line_site(step, sites, ids, kernels)
        sizes = frozenset(tokens.get(split_id(step.line.id)[0], ()))
        factor = factors.get(step.op) if step.line.place else None
        lines[step.line.id] = entry._replace(line=entry.line._replace(token_sizes=sizes, head_factor=factor))
    equations = {step.line.id: step.line.equation for step in steps}
    for number, step in enumerate(steps):
        if split_id(step.line.id)[1] == "scores":
            earlier = [before.line.tensor for before in steps[:number]]
            unmasked, unscaled = (
                opened if isinstance(opened, str) else opened.read_sizes(earlier)
                for opened in (unmask(step.line.tensor, equations), unscale(step.line.tensor, equations))
            )
            entry = lines[step.line.id]
            lines[step.line.id] = entry._replace(line=entry.line._replace(unmasked=unmasked, unscaled=unscaled))
    return lines


def _parameter_sites(calls: CallLog, steps: Sequence[DerivedStep]) -> dict[str, LineSite]:
    """Return the parameters and buffers that the calls of a run read, tied ones under each of their names."""
    symbolic = {
        tensor.key: tensor.shape[::-1] if tensor.transposed else tensor.shape
        for step in steps
        for tensor in tensors(step.line.equation)
        if tensor.key in calls.weights
    }
    read = {ref.key for call in calls.entries for ref in refs(call.arguments)}
    sites = {
        key: LineSite(
            TargetLine(key, tuple(map(str, symbolic.get(key, shape))), tuple(shape)),
            ParameterSite(key.removeprefix(PARAMETER)),
        )
        for key, shape in calls.weights.items()
        if key in read and key.startswith(PARAMETER)
    }
    return sites | {other: sites[key] for other, key in calls.ties.items() if key in sites}


def _line_site(step: DerivedStep, sites: Mapping, ids: set[str], kernels: Mapping[int, CallSite]) -> LineSite:
    line, shape = step.line, step.line.tensor.shape
    named = [operand.key for operand in line.equation.operands if isinstance(operand, Tensor) and operand.key in ids]
    terms = _terms(line.equation.operands, ids, line.tensor.shape) if isinstance(line.equation, Plus) else ()
    operands = dict.fromkeys(operand.key for operand in tensors(line.equation) if operand.key in ids)
    target = TargetLine(
        line.id,
        tuple(map(str, shape)),
        tuple(step.shape) if step.shape else tuple(int(n) if n.is_Integer else -1 for n in shape),
        tuple(operands),
        terms,
        named[0] if line.stage == "norm" and named else "",
    )
    if line.place is None:
        return LineSite(target, kernels.get(step.op), fused=True)
    site, position = sites.get(step.value, (None, 0))
    return LineSite(target, site, position)


def _terms(operands: Sequence[Node], ids: set[str], shape: tuple) -> tuple[str, str]:
    """Return the lines that are the first and the last term of a sum; "" for a term that is not a line of its shape."""
    first, last = (
        term.key if isinstance(term, Tensor) and term.key in ids and term.shape == shape else ""
        for term in (operands[0], operands[-1])
    )
    return first, last


def resolve(changes: Mapping[str, Change], lines: Mapping[str, LineSite]) -> tuple[Intervention, ...]:
    """Return the interventions that make these changes, or those that first open fused attention, which have no
    `change`: the lines inside have sites only in a run with these.

    Raise ValueError in one sentence for an unknown line, or one that can't be changed.
    """
    by_line: dict[str, list[Change]] = {}
    for pattern, change in changes.items():
        for id in dict.fromkeys(lines[id].line.id for id in _matching(pattern, lines)):
            by_line.setdefault(id, []).append(change)
    wanted = {id: join_changes(several) for id, several in by_line.items()}
    for id, change in wanted.items():
        for read in change.reads(lines[id].line):
            if list(lines).index(_check_id(read, lines)) >= list(lines).index(id):
                raise ValueError(f"{quote(read)} is computed after {quote(id)}, expected a line before it")
    needed = [lines[name] for id, change in wanted.items() for name in (id, *change.reads(lines[id].line))]
    if around := {split_id(entry.line.id)[0] for entry in needed if entry.fused and entry.site is not None}:
        beside = (entry for id, entry in lines.items() if split_id(id)[0] in around)  # so that numbers in ids stay
        return tuple(map(Intervention, dict.fromkeys(entry.site for entry in beside if entry.fused and entry.site)))
    for line_name in needed:
        if line_name.site is None:
            raise ValueError(f"{quote(line_name.line.id)} can't be changed: no call of the model returns it by itself")
    return tuple(_intervention(lines, id, change) for id, change in wanted.items())


def _intervention(lines: Mapping[str, LineSite], id: str, change: Change) -> Intervention:
    line, site, position, _ = lines[id]
    assert site is not None
    reads = tuple((lines[read].site, lines[read].position) for read in change.reads(line))
    function = change.apply(line)
    return Intervention(site, position, function, str(change), reads, line.behind_heads)  # type: ignore[arg-type] # all have one


def _matching(pattern: str, lines: Iterable[str]) -> list[str]:
    """Return the lines that a pattern such as `*.attention.scores` matches, or the parameters, for one such as
    `parameter *.bias`; an id matches itself."""
    matching = fnmatch.filter(_alike(pattern, lines), pattern) if "*" in pattern else []
    return matching or [_check_id(pattern, lines)]


def _alike(name: str, lines: Iterable[str]) -> list[str]:
    """Return all parameters for the name of one, all lines for any other name."""
    return [line for line in lines if line.startswith(PARAMETER) == str(name).startswith(PARAMETER)]


def _check_id(id: str, lines: Iterable[str]) -> str:
    """Return the id of a line or parameter. Raise ValueError for an unknown one, with the nearest."""
    known = list(lines)
    if id in known:
        return id
    what, alike = "parameter" if str(id).startswith(PARAMETER) else "line", _alike(id, known)
    near = get_close_matches(str(id), alike, n=NEAREST, cutoff=0.3) or alike[:NEAREST]
    near = [f"{PARAMETER}{id}"] if f"{PARAMETER}{id}" in known else near
    nearest = f"the nearest are {', '.join(map(quote, near))}" if near else f"this run reads no {what}"
    raise ValueError(f"there is no {what} {quote(str(id).removeprefix(PARAMETER))} to change; {nearest}")


def interventions_of(
    changes: Mapping[str, Change], lines_of: Callable[[tuple[Intervention, ...]], Mapping[str, LineSite]]
) -> tuple[Intervention, ...]:
    """Return the interventions that make these changes; `lines_of(interventions)` returns the lines of a run with
    some. Fused attention that has a changed line inside is opened."""
    lines = lines_of(())
    openings = resolve(changes, lines)
    if all(opening.change is not None for opening in openings):
        return openings
    return (*openings, *resolve(changes, lines_of(openings)))


def changing_build(build: Callable, interventions: tuple[Intervention, ...]) -> Callable:
    """Return a `build(sizes)` whose modules have these interventions."""
    return partial(_build, build, interventions)


def _build(build: Callable, interventions: tuple[Intervention, ...], sizes: dict[str, int]) -> tuple:
    module, *rest = build(sizes)
    return with_interventions(module, interventions), *rest


def with_changed_weights(
    attentions: Iterable[AttentionRecord],
    derived: Sequence[DerivedStep],
    store: TensorStore,
    factors: Mapping[int, AxisFactor],
) -> tuple[AttentionRecord, ...]:
    """Return the attentions of a run, with the weights that values were multiplied by where scores or weights were
    changed: these do not follow from queries and keys. Changed scores that lead to no queries are named, too. `factors`
    are the axes of heads by the ops; weights with heads and batch on one axis are kept as `[B, h, S_q, S_k]`."""
    steps = {step.line.id: step for step in derived}
    used: dict[str, DerivedStep] = {}
    for id, step in steps.items():
        changed = id.endswith(CHANGED_SUFFIX) and id.removesuffix(CHANGED_SUFFIX) in steps  # unlike a parameter
        if changed and split_id(id)[1] in ("scores", "weights") and step.line.place:
            weights = _beside(steps, id, "weights", CHANGED_SUFFIX) or _beside(steps, id, "weights")
            if weights is not None and store.get(weights.value) is not None:
                used[step.line.place.module] = weights
    return tuple(
        _with_weights(record, used[record.module], steps, store, factors) if record.module in used else record
        for record in attentions
    )


def _with_weights(
    record: AttentionRecord,
    weights: DerivedStep,
    steps: Mapping[str, DerivedStep],
    store: TensorStore,
    factors: Mapping[int, AxisFactor],
) -> AttentionRecord:
    """Return the record of an attention with its changed weights; unchanged where its scores were not kept."""
    changed = replace(record, weights=weights.value, problem="", after=())
    if record.q:
        before = _beside(steps, weights.line.id.removesuffix(CHANGED_SUFFIX), "weights")
        factor, tensor = factors.get(before.op) if before else None, store.get(weights.value)
        if factor is None or tensor is None or tensor.dim() != 3:
            return changed
        outermost = factor.inner is None
        apart = tensor.unflatten(0, (factor.size, -1) if outermost else (-1, factor.size))
        store.offer(key := f"{weights.value}.heads", apart.transpose(0, 1) if outermost else apart, needed=True)
        return replace(changed, weights=key)
    scores = _beside(steps, weights.line.id, "scores", CHANGED_SUFFIX)
    return record if scores is None or store.get(scores.value) is None else replace(changed, scores=scores.value)


def _beside(steps: Mapping[str, DerivedStep], id: str, name: str, end: str = "") -> DerivedStep | None:
    """Return the line of another name in the same attention."""
    around, _, number = split_id(id)
    return steps.get(f"{f'{around}.' if around else ''}{name}{number}{end}")
