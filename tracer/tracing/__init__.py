"""Tracing of a module on its inputs to a `Trace`: record, solve, align the steps with the ops, prove."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from tracer.capture import Recording, inputs_of, record
from tracer.capture.calls import CallLog, refs
from tracer.capture.interventions import Intervention, with_interventions
from tracer.capture.modes import as_module, compare_fast_path, name_of, watched_notes
from tracer.capture.tensors import TensorStore
from tracer.changes import changes_of
from tracer.expr import tensors
from tracer.record import AttentionRecord, Symbol, Trace
from tracer.shapes import Solution, Vocabulary, solve
from tracer.shapes.probes import named_axes, solve_value_dependence
from tracer.symbols.notation import MEANINGS, NAMED_MEANING
from tracer.textbook.derivation import Textbook, derive, owners
from tracer.textbook.names import Hint
from tracer.tracing.changed_runs import (
    LineSite,
    changing_build,
    interventions_of,
    line_sites,
    with_changed_weights,
)
from tracer.tracing.counterfactual import Replay
from tracer.tracing.proofs import DeferredProofs, QueriedRun, Rerun, Values, run_size_matcher, same_size, size_matcher
from tracer.tracing.records import (
    OpSequence,
    decompositions,
    given_back,
    levels,
    limit_note,
    part_of,
    returned_of,
    steps_of,
    unaccounted_note,
)
from tracer.tracing.records import account as account_of
from tracer.utils.devices import copy_to_cpu
from tracer.utils.errors import describe_error, quote
from tracer.utils.job_queue import doing


class FailedRun(NamedTuple):
    """A forward that raised: the module, the recording so far, and the caller's arguments for running it at other
    sizes.

    Of a module that a factory built, `sizes` are the factory's, and `rebuild(sizes, text)` runs the factory out of
    another text of its file, `file`.
    """

    module: torch.nn.Module
    recording: Recording
    symbols: Mapping[str, Any] | None = None
    build: Callable[[dict[str, int]], tuple] | None = None
    sizes: dict[str, int] | None = None
    file: str = ""
    rebuild: Callable[[dict[str, int], str], tuple] | None = None


def note_origin(error: BaseException, **origin: Any) -> None:
    """Complete the `failed_run` of an error, or of its cause, if there is one."""
    holder: BaseException | None = error
    while holder is not None and "failed_run" not in vars(holder):
        holder = holder.__cause__
    if holder is not None:
        vars(holder)["failed_run"] = vars(holder)["failed_run"]._replace(**origin)


SINGLE_TOWER = {"": "L"}
"""The towers of a model that is one: all its modules, L blocks."""

KEEP = 64 * 2**20
"""Default cap in bytes on the ordinary values that a trace keeps."""

AT_HAND = 2**30
"""Cap in bytes where all steps are to be verified, whatever the model's size."""

MOST_IDS = 2**14
"""Whole numbers of an input that a trace keeps."""

FAKE = (
    "{} is a fake tensor, whose ops PyTorch does not show: make it outside FakeTensorMode, on the device 'meta'"
    " where it is to have no values"
)
"""Why tensors of a mode of PyTorch's compiler are refused."""

FORWARD_AD_PROBLEM = (
    "it takes derivatives by torch.autograd.forward_ad or torch.func.linearize, whose zeros have no memory to record:"
    " torch.func.jvp computes the same"
)
"""Why derivatives that are computed forwards outside `torch.func.jvp` are refused."""
UNALLOCATED_MESSAGE = "data is not allocated yet"
"""What PyTorch says of such zeros."""
DEVICES_PROBLEM = "{} is on the device 'meta', where tensors have no values, and {} is not: put both on one device"
VALUELESS = "it asks for values, and on the device 'meta' tensors have none ({}): run it on the CPU"
"""Why a model without values can't go on."""

CHANGED_NOTE = "This run was changed: {}."

PROVE_LATER = "later"
"""What `prove` is given where equations are to be executed when somebody asks for them."""


def trace(
    module: torch.nn.Module,
    *args: Any,
    symbols: dict | None = None,
    build: Callable[[dict[str, int]], tuple] | None = None,
    keep: int | None = None,
    prove: bool | str = True,
    primitives: bool | Collection[int] = False,
    change: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Trace:
    """Run `module(*args, **kwargs)` once, a module or a function, and record every op, as plain data.

    `symbols={"B": 0, "T": ("input_ids", 1)}` names axes of inputs (an axis of every tensor, of one by its name, of all
    whose names fit a pattern such as `"past.*"`, or a list of these): the module is then run again with those axes at
    other sizes, and every dimension is solved. `build(sizes)` returns `(module, args)` at other sizes, for modules
    whose own sizes are symbols too, which are then axes of parameters: `symbols={"B": 0, "D": ("proj.weight", 0)}`.
    `keep` is a cap in bytes on kept values (64 MB, 0 with `prove=False`); queries, keys and masks of attention are
    kept besides. Lines whose tensors do not fit are verified in a second run of the module, which holds each tensor
    until the last line that needs it is verified. `prove=False` leaves the equations unexecuted, and `prove="later"`
    pending, until `Trace.prove` is asked for them. `primitives=True` also opens every op into PyTorch's own
    decomposition, runs that on the op's own arguments and compares; `primitives=[17]` opens that op only. The module
    runs in the caller's grad mode, and nothing is changed.

    `change={"scores": tracer.changes.zero()}` replaces the values of lines, by their ids, as soon as they are computed:
    by the result of one of `tracer.changes`, by a tensor, by the same line of another trace, or by any function of
    a tensor. `parameter PATH` names a parameter or buffer: all calls then read its new value. The changed value is a
    line of its own. The module is left alone. ValueError for an unknown line.

    Raises:
        RuntimeError: A trace is already running in this thread. An error of the forward itself is raised as it is, with
            the ops so far as its attribute `trace`; `tracer.explain(error)` says what went wrong.

    Examples:
        >>> import torch, tracer
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> run = tracer.trace(layer, torch.randn(1, 5, 8), symbols={"B": 0, "T": 1})
        >>> run.ops[-1].op, run.ops[-1].outputs[0].symbolic
        ('native_layer_norm', ('B', 'T', '8'))
        >>> run.attention(layer=0, head=1).shape
        torch.Size([1, 5, 5])
    """
    module, changes = as_module(module), {}
    build = build and partial(_build_module, build)
    if change:
        changes = changes_of(change)
        interventions = interventions_of(changes, partial(_lines_of, module, args, kwargs, symbols or {}, build))
        module = with_interventions(module, interventions)
        build = changing_build(build, interventions) if build else None
    try:
        recording = record_or_explain(module, args, kwargs, keep, prove, primitives, calls=True)
    except Exception as error:
        note_origin(error, symbols=symbols or {}, build=build)
        raise
    sizes, ways = named_axes(module, recording, symbols or {}, build)
    solution, notes = solve_first(recording, sizes, ways, module if prove else None)
    return of_caller(
        assemble(
            module,
            recording,
            model=name_of(module),
            sizes=sizes,
            derived={},
            solution=solution,
            prove=prove,
            notes=notes,
            changes=tuple(f"{line}={line_change}" for line, line_change in changes.items()),
        )
    )


def _build_module(build: Callable[[dict[str, int]], tuple], sizes: dict[str, int]) -> tuple:
    """Return what `build` returns at these sizes; a function in place of the module becomes one."""
    module, *inputs = build(sizes)
    return as_module(module), *inputs


def _lines_of(
    module: torch.nn.Module,
    args: tuple,
    kwargs: dict,
    symbols: dict,
    build: Callable | None,
    interventions: tuple[Intervention, ...],
) -> dict[str, LineSite]:
    """Return the lines that can be changed in a run with some interventions."""
    if interventions:
        module = with_interventions(module, interventions)
        build = changing_build(build, interventions) if build else None
    recording = record_or_explain(module, args, kwargs, None, False, calls=True)
    sizes, ways = named_axes(module, recording, symbols, build)
    solution, _ = solve_first(recording, sizes, ways)
    return line_sites(recording, lay_book(recording, sizes, {}, solution, ())[0].steps)


def of_caller(trace: Trace) -> Trace:
    """Return a trace whose sizes the caller named; their meaning is the caller's."""
    return replace(trace, symbols=tuple(replace(size, meaning=NAMED_MEANING) for size in trace.symbols))


def record_or_explain(
    module: torch.nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
    keep: int | None,
    prove: bool | str,
    primitives: bool | Collection[int] = False,
    calls: bool = False,
) -> Recording:
    if prove not in (True, False, PROVE_LATER):
        raise ValueError(f"prove={quote(prove)} was given, expected True, False or {PROVE_LATER!r}")
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), **inputs_of(module, args, kwargs)}
    for name, tensor in tensors.items():
        if type(tensor).__name__ == "FakeTensor":  # the class is not public
            raise ValueError(FAKE.format(quote(name)))
    cap = (KEEP if prove else 0) if keep is None else keep
    try:
        recording = record(module, args, kwargs, cap=cap, primitives=primitives, calls=calls, digests=calls)
    except Exception as error:
        if hasattr(error, "recording"):
            recording = error.__dict__.pop("recording")
            partial_trace = assemble(module, recording, model=name_of(module), sizes={}, derived={}, solution=None)
            vars(error)["trace"] = partial_trace
            vars(error)["failed_run"] = FailedRun(module, recording)
        if refusal := _refusal(error, tensors):
            raise ValueError(refusal) from error
        raise
    recording.opened_error, note = compare_fast_path(module, args, kwargs, recording.inputs, recording.output)
    recording.notes += ((note,) if note else ()) + watched_notes((op.name, op.function) for op in recording.ops)
    return recording


def _refusal(error: Exception, tensors: dict[str, torch.Tensor]) -> str:
    """Return in one sentence why a forward that runs elsewhere can't be recorded, or has no values to run on; "" for an
    error of the model's own."""
    if UNALLOCATED_MESSAGE in str(error):
        return FORWARD_AD_PROBLEM
    bare = [name for name, tensor in tensors.items() if tensor.is_meta]
    rest = [name for name, tensor in tensors.items() if not tensor.is_meta]
    if not bare or "meta" not in str(error):
        return ""
    return DEVICES_PROBLEM.format(quote(bare[0]), quote(rest[0])) if rest else VALUELESS.format(describe_error(error))


def solve_first(
    recording: Recording,
    sizes: dict[str, int],
    ways: Iterable[tuple[Vocabulary, list[dict[str, int]]]],
    module: torch.nn.Module | None = None,
) -> tuple[Solution | None, tuple[str, ...]]:
    """Solve the run's dimensions in the first of these ways in which the model runs, each a vocabulary and the sizes of
    the probes; return in one sentence why that was not possible.

    Where it was not, a copy of the `module`, if there is one, is run at the same sizes on other values.
    """
    reason = ""
    for vocabulary, probes in ways:
        try:
            solution = solve(recording, sizes, vocabulary, probes)
            return solution, tuple(filter(None, [vocabulary.note, solution.problem]))
        except Exception as error:  # the model's own error at another size: its shapes stay numbers, with the reason
            message = str(error).splitlines()[0] if str(error) else type(error).__name__
            reason = reason if vocabulary.mode else reason or message
    notes = (f"the shapes stay numbers: the model did not run at the probed sizes ({reason})",) if reason else ()
    solution, note = solve_value_dependence(module, recording) if module is not None else (None, "")
    return solution, (*notes, *filter(None, [note]))


def assemble(
    module: torch.nn.Module,
    recording: Recording,
    *,
    model: str,
    sizes: dict[str, int],
    derived: dict[str, str],
    solution: Solution | None,
    prove: bool | str = True,
    notes: tuple[str, ...] = (),
    parts: dict[str, str] = SINGLE_TOWER,
    hints: tuple[Hint, ...] = (),
    lend: bool = False,
    spelled: frozenset[int] = frozenset(),
    **more: Any,
) -> Trace:
    """Build the plain record of a recording; `sizes` holds the values of all symbols, `more` other fields.

    `parts` names the towers by their modules' paths, each with the symbol of its number of blocks. With `lend`, the
    equations may be those that were derived at other sizes: they are derived anew unless all are verified here. So are
    those with a name that the numbers of the run refute: the ops `spelled` are written as the code has them.
    """
    events = recording.ops
    with doing("Deriving its equations"):
        book, same = lay_book(recording, sizes, derived, solution, hints, lend, spelled)
    derived_steps = book.steps
    lines, before, notes = [step.line for step in derived_steps], notes, (*notes, *book.problems)
    layers = {line.id: line.layer for line in lines}
    depths = tuple((part, name, sizes[name]) for part, name in parts.items() if name in sizes)
    account = account_of(
        OpSequence(events),
        tuple((name, tensor.numel()) for name, tensor in recording.parameters.items()),
        tuple((op, step, layers[step]) for op, step in owners(derived_steps, events).items()),
        solution,
        tuple(parts),
        depths,
    )
    now = prove and prove != PROVE_LATER and derived_steps
    value = Values(module, recording.store, derived_steps, lines, sizes) if now else None
    rerun = Rerun(module, recording, sizes) if prove and derived_steps else None
    steps, derived_steps = steps_of(
        derived_steps, account.ops, solution, sizes, same, value, prove == PROVE_LATER, rerun
    )
    misnamed = book.idioms & {op for step in steps if step.verdict == "refuted" for op in step.ops}
    facts: dict[str, Any] = {"sizes": sizes, "derived": derived, "solution": solution, "parts": parts, "hints": hints}
    facts |= more
    if misnamed or (book.lent and any(step.verdict in ("refuted", "not executed") for step in steps)):
        return assemble(module, recording, model=model, prove=prove, notes=before, spelled=spelled | misnamed, **facts)
    lines = [step.line for step in derived_steps]
    keys = [step.value for step in steps if step.value]
    attentions = ()
    if recording.attentions:
        keys += recording.attentions.keys()
        attentions = recording.attentions.records
    if recording.calls and recording.calls.changes:
        factors = recording.attentions.head_factors if recording.attentions else {}
        attentions = with_changed_weights(attentions, derived_steps, recording.store, factors)
        keys += [record.weights for record in attentions if record.weights]
    follow = prove and derived_steps
    outside = (tensor.key for line in lines for tensor in tensors(line.equation)) if follow else ()
    input_keys = [key for key in dict.fromkeys(outside) if key.startswith(("input ", "constant "))]
    keys += [key for key in input_keys if key.startswith("constant ") or _few_ids(key, recording)]
    values = recording.store.take([*keys, *input_keys])
    for key in input_keys:  # the cap does not hold for inputs: what was not kept is computed again from them
        if key not in values and (tensor := recording.inputs.get(key.removeprefix("input "))) is not None:
            values[key] = copy_to_cpu(tensor)
    respell: Callable[[frozenset[int]], Trace] | None = None
    if prove == PROVE_LATER and book.idioms and recording.calls:
        facts |= {"model": model, "notes": before, "prove": PROVE_LATER}
        held = _holding(recording, recording.calls, values)

        def respell(ops: frozenset[int]) -> Trace:
            """Return the trace of the recording with these ops as the code spells them, too, its proofs pending."""
            return assemble(module, held, spelled=spelled | ops, **facts)

    later, replay = None, None
    if follow:
        later = DeferredProofs(QueriedRun(module, values, derived_steps, sizes), rerun, book.idioms, respell)
        there = partial(lay_book, derived=derived, solution=solution, hints=hints, lend=True, spelled=spelled)
        calls_here, depths_here = recording.calls or CallLog(), tuple(parts.values())
        run = module, *recording.arguments, calls_here, derived_steps, sizes, solution
        replay = Replay(*run, there, depths_here, hints, recording.grad, state=recording.state, ops=tuple(events))
    modules, calls = levels(recording.calls, account.ops) if recording.calls else ((), ())
    returned = returned_of(recording.calls, book, derived_steps) if recording.calls else ()
    changed = CHANGED_NOTE.format(", ".join(more["changes"])) if more.get("changes") else ""
    said = changed, limit_note(account.ops, sizes), unaccounted_note(returned), given_back(returned, book.conditions)
    notes = (*notes, *filter(None, said))
    return Trace(
        model=model,
        ops=account.ops,
        steps=steps,
        symbols=tuple(
            Symbol(name, MEANINGS.get(name, NAMED_MEANING), n, derived.get(name, "")) for name, n in sizes.items()
        ),
        attentions=_of_parts(attentions, parts),
        values={key: values[key] for key in keys if key in values} | more.pop("values", {}),
        output=recording.output,
        returned=returned,
        params=account.params,
        params_symbolic=account.params_symbolic,
        flops=account.flops,
        flops_symbolic=account.flops_symbolic,
        notes=(*recording.notes, *notes),
        opened_error=recording.opened_error,
        decompositions=decompositions(recording.opened, solution),
        modules=modules,
        calls=calls,
        later=later,
        replay=replay,
        **more,
    )


def _holding(recording: Recording, calls: CallLog, values: dict[str, torch.Tensor]) -> Recording:
    """Return a recording that holds no more tensors than its trace, besides the numbers that its calls received."""
    numbers = {ref.key for call in calls.entries for ref in refs(call.arguments) if not ref.shape}
    holds = TensorStore(0)
    for key, tensor in values.items():
        holds.offer(key, tensor, needed=True)
    for key in numbers:
        if (tensor := recording.store.get(key)) is not None:
            holds.offer(key, tensor, needed=True)
    return replace(recording, store=holds, opened=[])


def _few_ids(key: str, recording: Recording) -> bool:
    """Return whether an input is whole numbers, such as token ids, and few enough to be kept."""
    tensor = recording.inputs.get(key.removeprefix("input "))
    return tensor is not None and not tensor.is_floating_point() and tensor.numel() <= MOST_IDS


def lay_book(
    recording: Recording,
    sizes: dict[str, int],
    derived: dict[str, str],
    solution: Solution | None,
    hints: tuple[Hint, ...],
    lend: bool = False,
    spelled: frozenset[int] = frozenset(),
) -> tuple[Textbook, Any]:
    """Return the textbook of a run, and a predicate that compares two sizes of its lines. A run whose calls were not
    recorded has no lines; one that can't be derived has none either, and states the reason."""
    same = same_size(tuple(derived.items()))
    if recording.calls is None:
        return Textbook(), same
    at = tuple(sizes.items())
    try:
        book = derive(
            recording, solution, sizes, same, size_matcher(same, at), run_size_matcher(at), hints, lend, spelled
        )
    except Exception as error:  # the run is there all the same: its operations, shapes and attention
        book = Textbook(problems=[f"its equations could not be derived ({describe_error(error)})"])
    return book, run_size_matcher(at)


def _of_parts(records: Iterable[AttentionRecord], parts: dict[str, str]) -> tuple[AttentionRecord, ...]:
    """Return the attention of each tower with its layers numbered from 0."""
    attentions, count = [], Counter()
    for attention in records:
        part = part_of(attention.module, parts)
        attentions.append(replace(attention, part=part, layer=count[part]))
        count[part] += 1
    return tuple(attentions)
