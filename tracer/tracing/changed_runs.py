"""Changes of lines as interventions: the calls whose results they replace, from a run without changes."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import NamedTuple

from tracer.capture import Recording
from tracer.capture.composite_calls import CallLog, refs
from tracer.capture.interventions import CallSite, Intervention, ParameterSite, call_sites, with_interventions
from tracer.capture.tensors.tensor_store import TensorStore
from tracer.changes import Change, TargetLine
from tracer.changes.kinds import Several
from tracer.expr import Node, Tensor, tensors
from tracer.expr.math.algebra import Plus
from tracer.ops import ATTENTION
from tracer.record import CHANGED_SUFFIX, AttentionRecord, split_id
from tracer.textbook.steps import DerivedStep
from tracer.tracing.score_equations import unmask, unscale
from tracer.utils.error_text import quote

PARAMETER = "parameter "
"""What the names of parameters begin with, as in the `names` of steps."""
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
    lines: dict[str, LineSite] = _parameter_sites(calls, steps)
    for step in steps:
        entry = _line_site(step, sites, ids, kernels)
        sizes = frozenset(tokens.get(split_id(step.line.id)[0], ()))
        lines[step.line.id] = entry._replace(line=entry.line._replace(token_sizes=sizes))
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
    """Return the parameters and buffers that the calls of a run read."""
    symbolic = {
        tensor.key: tensor.shape[::-1] if tensor.transposed else tensor.shape
        for step in steps
        for tensor in tensors(step.line.equation)
        if tensor.key in calls.weights
    }
    read = {ref.key for call in calls.entries for ref in refs(call.arguments)}
    return {
        key: LineSite(
            TargetLine(key, tuple(map(str, symbolic.get(key, shape))), tuple(shape)),
            ParameterSite(key.removeprefix(PARAMETER)),
        )
        for key, shape in calls.weights.items()
        if key in read and key.startswith(PARAMETER)
    }


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
        for id in _matching(pattern, lines):
            by_line.setdefault(id, []).append(change)
    wanted = {id: several[0] if len(several) == 1 else Several(tuple(several)) for id, several in by_line.items()}
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
    return Intervention(site, position, change.apply(line), str(change), reads)  # type: ignore[arg-type] # all have one


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
    attentions: Iterable[AttentionRecord], derived: Sequence[DerivedStep], store: TensorStore
) -> tuple[AttentionRecord, ...]:
    """Return the attentions of a run, with the weights that values were multiplied by where scores or weights were
    changed: these do not follow from queries and keys. Changed scores that lead to no queries are named, too."""
    steps = {step.line.id: step for step in derived}
    used: dict[str, DerivedStep] = {}
    for id, step in steps.items():
        changed = (
            id.endswith(CHANGED_SUFFIX) and id.removesuffix(CHANGED_SUFFIX) in steps
        )  # a parameter has no other line
        if changed and split_id(id)[1] in ("scores", "weights") and step.line.place:
            weights = _beside(steps, id, "weights", CHANGED_SUFFIX) or _beside(steps, id, "weights")
            if weights is not None and store.get(weights.value) is not None:
                used[step.line.place.module] = weights
    return tuple(
        _with_weights(record, used[record.module], steps, store) if record.module in used else record
        for record in attentions
    )


def _with_weights(
    record: AttentionRecord, weights: DerivedStep, steps: Mapping[str, DerivedStep], store: TensorStore
) -> AttentionRecord:
    """Return the record of an attention with its changed weights; unchanged where its scores were not kept."""
    changed = replace(record, weights=weights.value, problem="", after=())
    if record.q:
        return changed
    scores = _beside(steps, weights.line.id, "scores", CHANGED_SUFFIX)
    return record if scores is None or store.get(scores.value) is None else replace(changed, scores=scores.value)


def _beside(steps: Mapping[str, DerivedStep], id: str, name: str, end: str = "") -> DerivedStep | None:
    """Return the line of another name in the same attention."""
    around, _, number = split_id(id)
    return steps.get(f"{f'{around}.' if around else ''}{name}{number}{end}")
