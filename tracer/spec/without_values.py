"""A run on the device `meta`, where tensors have shapes but no values: any size, without weights and without memory.

Sizes are solved on a net of few blocks and carried over to all blocks of the same kind. The textbook is that of the
run; its lines are verified on a small twin of the same code, with values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from tracer.capture import Recording
from tracer.inputs.model_inputs import Inputs
from tracer.record import Step, Trace
from tracer.record.costs import T_PAST
from tracer.record.steps import BLOCK_NUMBER, at_any
from tracer.shapes import Solution, Vocabulary, block_repetition
from tracer.shapes.variation import OnMeta
from tracer.textbook.names import Hint
from tracer.tracing import KEEP, assemble, record_or_explain, solve_first
from tracer.tracing.records import FUSED_NOTE, UNVERIFIED
from tracer.utils.errors import quote, reason
from tracer.utils.job_queue import doing
from tracer.utils.torch_internals import disable_dispatch_modes

ELSEWHERE = "Not executed at this size."
VERIFIED_ON = "Not executed at this size; verified on {}."
RECOMPUTED_NOTE = "Not executed at this size; the small twin recomputes it, since a fused op never holds it."
"""The notes of a line of such a run, of one that the twin proves, and of one that it recomputes."""
DATA = "it asks for the values of tensors, and without values there are none"


EXTRA_CACHE_TOKENS = 3
"""Tokens by which the cache of each probe is longer than its text, and than that of the probe before."""


class _Case(NamedTuple):
    """Setup of a run: the model, on `meta` or a twin with values, its net, which may read from a cache, its inputs, and
    the hints of its lines."""

    model: Any
    net: torch.nn.Module
    inputs: Inputs
    hints: tuple[Hint, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """All sizes that are not derived."""
        return {**self.inputs.sizes, **self.model.sizes}

    @property
    def reads_cache(self) -> bool:
        """True for a library's decoder that reads from a cache, whose probes are derived from those of the plain
        model."""
        return T_PAST in self.inputs.sizes and self.model.spec.ways is not None


def trace_without_values(model: Any, image, text: str | None, sizes: dict[str, int], cache: bool = False) -> Trace:
    """Return the run of a model on the device `meta`; see `Model.trace`.

    Raises:
        ValueError: A size that can't be set, a forward that asks for values, or a model that keeps no cache where the
            run is to read from one.
    """
    empty = model.empty
    with torch.no_grad():
        case = _case(empty, image, text, sizes, cache)
        with doing("Running the model without values"):
            recording = _record(case)
        with doing("Running a net of few blocks at other sizes, to tell which sizes are which"):
            solution, notes, depths = _solve(case, recording)
        trace = assemble(
            case.net,
            recording,
            model=model.name,
            sizes=_complete(case),
            derived=case.model.spec.derived,
            solution=solution,
            prove=False,
            hints=case.hints,
            notes=notes,
            parts=case.model.spec.parts,
            words=case.inputs.words,
            segments=case.inputs.segments,
            result={"kind": "none"},
            weights=empty.weights,
        )
        trace = with_meanings(model, trace)
        with doing("Verifying its lines on a small twin"):
            return _with_twin(case, trace, solution, depths)


def with_meanings(model: Any, trace: Trace) -> Trace:
    """Return the trace with the model's own meanings of its sizes, without those that its options make idle."""
    idle, known = model.spec.idle(model.options), model.spec.meanings
    sizes = (replace(size, meaning=known.get(size.name, size.meaning)) for size in trace.symbols)
    return replace(trace, symbols=tuple(size for size in sizes if size.name not in idle))


def _case(model: Any, image, text: str | None, sizes: dict[str, int], cache: bool) -> _Case:
    """Return the requested run: of the model, or with a cache of its decoder."""
    if not cache and T_PAST not in sizes:
        return _Case(model, model.net, model.inputs(image, text, **sizes), model.spec.hints)
    decoder = model.decoder
    try:
        inputs = decoder.inputs(image, text, **sizes)
    except (NotImplementedError, RuntimeError) as error:
        raise _refusal(decoder, sizes, error) from error
    return _Case(decoder if model.spec.ways is None else model, decoder.net, inputs, decoder.spec.hints)


def _record(case: _Case) -> Recording:
    """Return the run. Raise ValueError in one sentence where the model does not run without values."""
    try:
        return record_or_explain(case.net, tuple(case.inputs), case.inputs.named, 0, False, calls=True)
    except Exception as error:
        raise _refusal(case.model, case.inputs.sizes, error) from error


def _refusal(model: Any, sizes: dict[str, int], error: Exception) -> ValueError:
    """Return the message for a forward that does not run without values."""
    at = ", ".join(f"{symbol}={size}" for symbol, size in sizes.items())
    data = any(word in f"{error}".lower() for word in ("meta tensor", "data-dependent", "device 'meta'", "on meta"))
    return ValueError(f"{quote(model.name)} does not run at {at} without values: {DATA if data else reason(error)}")


def _complete(case: _Case) -> dict[str, int]:
    """Return all sizes of a case, the derived ones among them."""
    return case.model.vocabulary.complete(case.sizes)


def _solve(case: _Case, recording: Recording) -> tuple[Solution | None, tuple[str, ...], dict[str, int]]:
    """Return the solution of a run, notes on it, and the numbers of blocks that have all kinds of blocks."""
    containers, depths = _blocks(case, recording)
    if depths:
        shallow = _at(case, depths)
        run = _record(shallow)
        matches = block_repetition.match_blocks(recording.ops, run.ops, containers)
        if matches is not None:
            solution, notes = _solve_case(shallow, run)
            if solution is None:
                return None, notes, depths
            if (extended := block_repetition.extend(solution, recording, matches, _complete(case))) is not None:
                return extended, notes, depths
    solution, notes = _solve_case(case, recording)
    return solution, notes, depths or _depths(case)


def _solve_case(case: _Case, recording: Recording) -> tuple[Solution | None, tuple[str, ...]]:
    """Solve a run with probes of its own model."""
    model = case.model
    if not case.reads_cache:
        return model._solve(recording, case.sizes, case.inputs)
    sizes = {name: size for name, size in case.inputs.sizes.items() if name != T_PAST}
    inputs = replace(model.spec.example({**case.sizes, **sizes}).on(model.device), sizes=sizes)
    plain = _Case(model, model.net, inputs, model.spec.hints)  # the same model without a cache, whose probes are known
    solution, notes = _solve_case(plain, _record(plain))
    if solution is None or solution.way is None:
        return solution, notes
    vocabulary, probes = solution.way

    def way(names: Iterable[str], probes: list[dict[str, int]], **held: int) -> tuple[Vocabulary, list]:
        def build(at: dict[str, int]) -> tuple:
            with disable_dispatch_modes():
                probe = _after_cache(model.at_sizes(at), {**at, **held})
                return probe.net, tuple(probe.inputs), probe.inputs.named

        return Vocabulary(tuple(dict.fromkeys(names)), vocabulary.derived, build, OnMeta, vocabulary.note), probes

    probes = [{**probe, T_PAST: probe["T"] + EXTRA_CACHE_TOKENS * number} for number, probe in enumerate(probes, 1)]
    several, single = (*vocabulary.names, T_PAST, f"{T_PAST} + T"), sizes["T"]
    solution, notes = solve_first(recording, case.sizes, [way(several, probes)])
    if solution is not None:
        return solution, notes
    held = [_without_length(probe) for probe in probes]  # a single token takes other ops than several
    names = (*(name for name in vocabulary.names if name != "T"), T_PAST, f"{T_PAST} + {single}")
    return solve_first(recording, _without_length(case.sizes), [way(names, held, T=single)])


def _without_length(sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes without the number of new tokens."""
    return {name: size for name, size in sizes.items() if name != "T"}


def _after_cache(model: Any, sizes: dict[str, int]) -> _Case:
    """Return the run of a library's decoder on T tokens, after a cache of T_past that a run fills."""
    example, decoder = model.spec.example({**model.sizes, **sizes, "T": sizes[T_PAST] + sizes["T"]}), model.decoder
    example = example.on(model.device)
    tokens = example.named["input_ids"] if "input_ids" in example.named else example[0]
    with torch.no_grad():
        past = decoder.net(tokens[:, : sizes[T_PAST]], ())[1]
    runs = {symbol: sizes[symbol] for symbol in ("B", "T", T_PAST)}
    inputs = Inputs((tokens[:, sizes[T_PAST] :],), runs, {"past": past})
    return _Case(model, decoder.net, inputs, decoder.spec.hints)


def _depths(case: _Case) -> dict[str, int]:
    """Return the numbers of blocks of a model, by their symbols."""
    return {symbol: case.model.sizes[symbol] for symbol in case.model.spec.parts.values() if symbol in case.model.sizes}


def _blocks(case: _Case, recording: Recording) -> tuple[frozenset[str], dict[str, int]]:
    """Return the locations of a model's blocks, and the numbers of blocks that have all kinds of them; none for a model
    without more, or whose depth can't be set."""
    depths = _depths(case)
    deep = {symbol: depth for symbol, depth in depths.items() if depth > block_repetition.FEWEST}
    if not deep:
        return frozenset(), {}
    try:
        shallow = case.model.at_sizes(dict.fromkeys(deep, 1)).net
    except Exception:  # whatever a library makes of a depth that it was not written for
        return frozenset(), {}
    paths = ([name for name, _ in net.named_modules()] for net in (case.model.net, shallow))
    containers = block_repetition.repeated_modules(*paths)
    fewest = block_repetition.fewest_blocks(recording.ops, containers)
    if not containers or fewest >= max(deep.values()):
        return frozenset(), {}
    return containers, {symbol: min(depth, fewest) for symbol, depth in depths.items()}


def _at(case: _Case, depths: dict[str, int]) -> _Case:
    """Return the case with fewer blocks."""
    model = case.model.at_sizes(depths)
    if case.reads_cache:
        return _after_cache(model, case.sizes)
    named = case.inputs.named
    if "past" in named:  # the keys and values of each block
        named = {**named, "past": named["past"][: model.sizes["L"]]}
    return case._replace(model=model, net=model.net, inputs=replace(case.inputs, named=named))


def _with_twin(case: _Case, trace: Trace, solution: Solution | None, depths: dict[str, int]) -> Trace:
    """Return the trace with the verdict of a small twin of the same code on each of its lines."""
    if solution is None or solution.way is None:
        return _with_notes(trace, {}, "", "none of its sizes can be changed")
    probes = solution.way[1]
    smallest = min(probes, key=lambda probe: probe.get("D", 0))
    sizes = {**case.sizes, **smallest, **depths}
    width = next((f" of width {sizes[symbol]}" for symbol in ("D", "D_v") if symbol in sizes), "")
    count = max(depths.values(), default=0)
    blocks = f"{count} block{'s' if count > 1 else ''}{width}" if count else f"a small twin{width}"
    try:
        twin = _trace_twin(case, solution, sizes, [{**probe, **depths} for probe in probes])
    except Exception as error:  # whatever the code makes of such sizes on the CPU
        return _with_notes(trace, {}, blocks, reason(error))
    return _with_notes(trace, {_key(step, twin): step.verdict for step in twin.steps}, blocks, "")


def _trace_twin(case: _Case, solution: Solution, sizes: dict[str, int], probes: list[dict[str, int]]) -> Trace:
    """Return the verified run of a small net of the same code, with seeded weights."""
    spec, (vocabulary, _) = case.model.spec, solution.way or (None, [])

    def small(at: dict[str, int]) -> _Case:
        at = {**case.inputs.sizes, **at}
        twin = case.model.at_sizes(at, values=True)
        if case.reads_cache:
            return _after_cache(twin, at)
        inputs = replace(
            spec.probe_inputs(at), sizes={symbol: at[symbol] for symbol in case.inputs.sizes if symbol in at}
        )
        return _Case(twin, twin.net, inputs, case.hints)

    def build(at: dict[str, int]) -> tuple:
        probe = small(at)
        return probe.net, tuple(probe.inputs), probe.inputs.named

    sizes = {**sizes, "B": 2} if "B" in sizes else sizes
    twin = small(sizes)
    recording = record_or_explain(twin.net, tuple(twin.inputs), twin.inputs.named, KEEP, True, calls=True)
    names, derived = (vocabulary.names, vocabulary.derived) if vocabulary else ((), {})
    solved, _ = solve_first(recording, sizes, [(Vocabulary(names, derived, build), probes)], twin.net)
    return assemble(
        twin.net,
        recording,
        model=case.model.name,
        sizes=case.model.vocabulary.complete(sizes),
        derived=spec.derived,
        solution=solved,
        hints=twin.hints,
        parts=spec.parts,
    )


def _with_notes(trace: Trace, verdicts: dict[tuple, str], blocks: str, problem: str) -> Trace:
    """Return the trace with a note on each line: the verdict of the same line of the twin."""
    steps, verified = [], 0
    for step in trace.steps:
        verdict = verdicts.get(_key(step, trace), "")
        verified += verdict == "verified"
        own = " ".join(
            filter(None, (step.note.replace(UNVERIFIED, "").replace(_fusion_note(trace, step), "").strip(),))
        )
        says = (
            VERIFIED_ON.format(blocks)
            if verdict == "verified"
            else RECOMPUTED_NOTE
            if verdict == "recomputed"
            else ELSEWHERE
        )
        steps.append(replace(step, recomputed=False, note=" ".join(filter(None, (own, says)))))
    if not steps:
        return trace
    there = f"equations verified on {blocks}: {verified} of {len(steps)} lines"
    note = f"shapes at this size; {there if verdicts else f'no equation is verified, since {problem}'}"
    return replace(trace, steps=tuple(steps), notes=(*trace.notes, note))


def _fusion_note(trace: Trace, step: Step) -> str:
    """Return the note of a line that a fused op never holds, "" for any other."""
    return FUSED_NOTE.format(op=trace.ops[step.inside].op) if step.inside is not None else ""


def _key(step: Step, trace: Trace) -> tuple:
    """Return a key that is equal for two lines of two runs of the same code, whatever the number of blocks."""
    if step.layer is None:
        depths = {str(symbol.value) for symbol in trace.symbols if symbol.name.startswith("L")}
        latex = BLOCK_NUMBER.sub(lambda match: "(L)}" if match[1] in depths else match[0], step.latex)
        return step.id, latex, step.symbolic
    number = next((match[1] for match in BLOCK_NUMBER.finditer(step.symbol)), str(step.layer + 1))
    for own in (step.layer, step.layer + 1):
        id, count = re.subn(rf"(?<!\d){own}(?!\d)", "ℓ", step.id, count=1)
        if count:
            return id, at_any(step.latex, number), step.symbolic
    return step.id, at_any(step.latex, number), step.symbolic
