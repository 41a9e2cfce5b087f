"""Recorder: one forward pass with every op observed, and nothing changed.

Forward hooks know the module, a dispatch mode knows the op, a function mode opens the fast paths. All state is
of one thread and one run.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from tracer.capture.attention_detector import AttentionDetector
from tracer.capture.calls import (
    CallLog,
    CallRecorder,
    CallRunner,
    Frame,
    Stack,
    decompose_composites,
    kind,
    locate,
    settings,
    tensors,
)
from tracer.capture.calls import written_tensors as written_to
from tracer.capture.logged_sizes import Comparison, ScalarRecorder, Scalars, digest
from tracer.capture.modes import CallMode, FailedCall, following, observe_ops, push_mode, written_out
from tracer.capture.outer_values import DRAWS, ITERATOR, StateName
from tracer.capture.primitives import opening
from tracer.capture.program_slices import Choice, ValueRead, reads_of
from tracer.capture.state import HeldState, restoring
from tracer.capture.tensors import (
    CONSTANT,
    InputGuard,
    ProducerIndex,
    TensorStore,
    copy_tensors,
    named_tensors,
    output_tensors,
)
from tracer.utils.errors import quote
from tracer.utils.torch_internals import exclude_autograd_keys

RETURN_OP = -1
"""In place of an op, what takes the tensors that a run returns."""
VALUE_READS = frozenset(("_local_scalar_dense", "equal", "allclose", "is_nonzero"))
"""Ops by which Python gets the one number of a tensor, or the truth of what it holds."""
READERS = frozenset(("item", "float", "int", "index", "complex", "equal", "allclose", "is_nonzero"))
"""Calls by which code gets these; others, such as `one_hot`, look at values for themselves."""
THREADS_NOTE = "The forward hands work to other threads: operations that run in them are not in this trace."

ITERATOR_NOTE = "`{}` is an iterator, which nothing can put back: it is where the runs of this trace have left it."
DRAWS_NOTE = "The forward draws numbers of `{}`, and where it reads them was not found: another run may draw others."


class OpEvent(NamedTuple):
    """One op as it ran: tensors by (shape, dtype, maker); `number` distinguishes Python-level calls, and `settings` are
    all arguments of an op whose output sizes follow from them, none of any other. `frame` is the expression of the
    model's code that ran it."""

    name: str
    layout: bool
    module: str
    call: int
    function: str
    number: int
    line: tuple[str, int] | None
    inputs: tuple[tuple, ...]
    outputs: tuple[tuple, ...]
    settings: tuple = ()
    frame: Frame | None = None


@dataclass
class Recording:
    """Record of one run: ops as seen, attentions, kept tensors, named inputs, output; with primitives, `opened` has
    those of each op, None for one that was not asked for, and with calls, `calls` has those. `notes` are sentences on
    what the record leaves out; `opened_error` is the relative difference to a fast path that was opened. Of a probe,
    `numbers` has the position of each op in the run, `scalars` are the numbers that its calls received, and `constants`
    has a digest of each tensor that no op of the run computed, by the op that read it and its operand position.
    `positions` has, by op and operand, the position of an operand in the list that another op returned; what the run
    returned has `RETURN_OP` for an op. `comparisons` are those of sizes that code read, with the code's frames, and
    `reads` the shapes that it read at each line. `arguments` is what forward was called with, and `grad` whether
    gradients were on; `returned` has the producer of each tensor that it returned. `choices` are the branches that were
    taken by values, `value_reads` the other reads of values, `state` the names by which code reads what forward
    changed, and `sites` the expressions that called modules, with the parameters of these. Of a run that failed,
    `failed_call` is the call of PyTorch that raised, None where code around it did, and `makers` knows the producers of
    its tensors."""

    ops: list[OpEvent] = field(default_factory=list)
    store: TensorStore = field(default_factory=lambda: TensorStore(0))
    parameters: dict[str, torch.nn.Parameter] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    attentions: AttentionDetector | None = None
    inputs: dict[str, Tensor] = field(default_factory=dict)
    output: object = None
    opened: list = field(default_factory=list)
    notes: tuple[str, ...] = ()
    opened_error: float | None = None
    calls: CallLog | None = None
    numbers: list[int] = field(default_factory=list)
    arguments: tuple[tuple, dict[str, Any]] = ((), {})
    grad: bool = False
    scalars: list[Scalars] = field(default_factory=list)
    constants: dict[tuple[int, int], bytes] = field(default_factory=dict)
    returned: tuple[int | str, ...] = ()
    positions: dict[tuple[int, int], int] = field(default_factory=dict)
    failed_call: FailedCall | None = None
    makers: ProducerIndex | None = field(default=None, repr=False)
    comparisons: dict[Comparison, Stack] = field(default_factory=dict)
    choices: list[Choice] = field(default_factory=list)
    value_reads: dict[Stack, ValueRead] = field(default_factory=dict)
    reads: Mapping[tuple[str, int], Collection[tuple[int, ...]]] = field(default_factory=dict)
    state: frozenset[StateName] = frozenset()
    sites: Mapping[Frame, tuple[str, ...]] = field(default_factory=dict)

    def note_read(self, op: int, maker: int | str) -> None:
        """Note that the code reads the values of a tensor now, behind an op: the first time at each place."""
        if (read := ValueRead.here(op, maker)) is not None:
            self.value_reads.setdefault(read.frames, read)

    def own(self) -> None:
        """Copy the tensors of the output."""
        self.output = copy_tensors(self.output)


def record(
    module: torch.nn.Module,
    args=(),
    kwargs=None,
    *,
    cap: int = 0,
    attention: bool = True,
    primitives: bool | Collection[int] = False,
    calls: bool = False,
    scalars: bool = False,
    digests: bool = False,
    store: TensorStore | None = None,
) -> Recording:
    """Run `module(*args, **kwargs)` in the caller's grad mode and record every op.

    `cap` bounds the bytes kept of ordinary values, or `store` is offered them all; queries, keys and masks are kept
    besides. `primitives` also opens every op, or those of these numbers, into what PyTorch makes of it; `calls` records
    the composite ops above them, and the calls of modules; `scalars` only the Python numbers that those were given, and
    `digests` what tensors hold that nothing of the run made. The module, what it is given, the RNG and the process are
    as before afterwards. An error of the forward is raised as it is, with the recording so far as its attribute
    `recording` and a note that says how far the run got. ValueError for parameters that have no shape yet.
    """
    kwargs, parameters = kwargs or {}, dict(module.named_parameters())
    if (lazy := next((name for name, parameter in parameters.items() if is_lazy(parameter)), None)) is not None:
        raise ValueError(
            f"the parameter {quote(lazy)} has no shape before the first forward: run it once, then trace it"
        )
    recording = Recording(
        store=store or TensorStore(cap), parameters=parameters, inputs=inputs_of(module, args, kwargs)
    )
    recording.arguments, recording.grad = (tuple(args), dict(kwargs)), torch.is_grad_enabled()
    inputs = {f"input {name}": tensor for name, tensor in recording.inputs.items()}
    recording.buffers = dict(module.named_buffers())
    weights = parameters | recording.buffers
    makers = ProducerIndex(inputs | weights)
    keeping = cap > 0 or store is not None
    if keeping:
        for name, tensor in inputs.items():
            recording.store.offer(name, tensor)
    with ExitStack() as stack:
        if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
            torch.clear_autocast_cache()  # a weight that was cast before is cast again, so that it is seen
            stack.callback(torch.clear_autocast_cache)
        modules = stack.enter_context(following(module))
        recording.sites = modules.sites
        held = stack.enter_context(restoring(module, args, kwargs))
        if torch.is_inference_mode_enabled():  # inference mode shows another op list, of composite ops
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
        if attention:
            recording.attentions = AttentionDetector(recording.ops, recording.store, recording.inputs)
            stack.callback(recording.attentions.over)

        def note_read(tensor: Tensor) -> None:
            with torch.DisableTorchFunction():
                recording.note_read(len(recording.ops) - 1, makers.of(tensor)[2])

        names = stack.enter_context(CallMode(note_read))
        untouched = InputGuard(held.tensors, recording.store)
        stack.callback(untouched.restore)
        stack.callback(recording.own)  # before anything that the output may share memory with is put back
        keyed = inputs | {f"parameter {name}": tensor for name, tensor in weights.items()}  # by keys of equations
        call_recorder = CallRecorder(recording, keyed, modules) if calls else None
        if call_recorder:
            call_recorder.calls.ties = _ties(module, weights)
        above_ops = ScalarRecorder(recording) if scalars else call_recorder
        run = (above_ops or CallRunner()).run
        observer = _observer(recording, makers, modules, names, untouched, keeping, digests, run)
        if primitives:
            observer = opening(observer, recording, primitives)
        if above_ops:
            observer = above_ops.observer(observer)
            stack.enter_context(exclude_autograd_keys())
        else:
            observer = decompose_composites(observer)
        if call_recorder:
            recording.calls = call_recorder.calls
            modules.call_recorder = call_recorder
            stack.callback(call_recorder.over)
        stack.enter_context(observe_ops(observer))
        try:
            recording.output = module(*args, **kwargs)
            with torch.DisableTorchFunction():
                ends = [output for _, output in output_tensors(recording.output)]
                recording.state = held.names({op.frame[0] for op in recording.ops if op.frame is not None})
                recording.returned = tuple([makers.of(output)[2] for output in ends])
                _note_positions(recording, makers, RETURN_OP, ends)
            if call_recorder:
                call_recorder.record_output(recording.output)
        except Exception as error:
            vars(error)["recording"] = recording
            recording.makers = makers
            if names.failed_call is not None and names.failed_call.error is error:
                recording.failed_call = names.failed_call
            error.add_note(_how_far(recording))
            raise
        finally:
            recording.notes = ((THREADS_NOTE,) if modules.threads else ()) + _state_notes(recording, held)
    if recording.attentions:
        recording.notes += tuple(recording.attentions.problems)
    return recording


def _state_notes(recording: Recording, held: HeldState) -> tuple[str, ...]:
    """Return notes on state that can't be put back, and on random numbers whose use was not found."""
    ran = [op.frame for op in recording.ops if op.frame is not None]
    special = frozenset(name for name in recording.state if name.kind in (ITERATOR, DRAWS))
    read = {name for name, _ in reads_of(special, ran)}
    iterators = sorted({name.name for name in read if name.kind == ITERATOR})
    notes = [ITERATOR_NOTE.format(name) for name in iterators]
    if not any(name.kind == DRAWS for name in read):
        notes += [DRAWS_NOTE.format(module) for module in held.draws]
    return tuple(notes)


def _observer(recording, makers, modules, calls, untouched, keeping, digests, run):
    ops, store, attentions, code = recording.ops, recording.store, recording.attentions, record.__code__
    describe, record_output, running = makers.of, makers.record, modules.stack
    constants = recording.constants
    known: dict[int, tuple[Tensor, bytes]] = {}
    place: list[Any] = [-1, "", None, None]

    def observe(mode, func, types, args=(), kwargs=None):
        facts, index = kind(func), len(ops)
        if facts.higher and (opened := written_out(func)) is not None:
            with push_mode(mode):
                return opened(*args, **(kwargs or {}))
        inputs = (*args, *kwargs.values()) if kwargs else args
        if facts.lists:
            inputs = tensors(inputs)
        taken = [value for value in inputs if isinstance(value, Tensor)]
        before = tuple([describe(value) for value in taken])
        if makers.listed:
            _note_positions(recording, makers, index, taken)
        written = tuple(written_to(facts, args, kwargs or {})) if facts.written else ()
        for tensor in written:
            store.protect(tensor)
            untouched.protect(tensor)
        result = run(func, args, kwargs)
        for tensor in written:
            makers.wrote(tensor, index)
        if isinstance(result, Tensor):
            outputs, after = (result,), (record_output(result, index),)
        else:
            outputs = tensors((result,))
            after = tuple([record_output(tensor, index) for tensor in outputs])
            if isinstance(result, list):
                makers.record_listed(outputs)
        if keeping:
            for position, tensor in enumerate(outputs):
                store.offer(f"{index}.{position}", tensor)
        _, path, call = running[-1]
        number = calls.number
        if number == 0 or number != place[0]:  # the ops of one Python-level call have one name and one source line
            place[:] = number, calls.name, *locate(code)
        own = settings(facts, args, kwargs or {}) if facts.defaults else ()
        function, line, frame = place[1:]
        ops.append(OpEvent(facts.name, facts.layout, path, call, function, number, line, before, after, own, frame))
        if facts.name in VALUE_READS and before:
            if (choice := Choice.here(index, bool(result), function == "bool")) is not None:
                recording.choices.append(choice)
            elif function in READERS:
                recording.note_read(index, before[0][2])
        if attentions is not None:
            attentions.see(index, facts, path, args, kwargs or {}, before, result)
        if digests:  # inputs from computations outside PyTorch differ with the input, and no op shows it
            for operand, (_, _, maker) in enumerate(before):
                if maker == CONSTANT:
                    tensor = taken[operand]
                    if id(tensor) not in known:
                        known[id(tensor)] = tensor, digest(tensor)
                    constants[index, operand] = known[id(tensor)][1]
        return result

    return observe


def _note_positions(recording: Recording, makers: ProducerIndex, op: int, operands: Iterable[Tensor]) -> None:
    """Note the operands of an op that are tensors of a list that an op returned."""
    for place, tensor in enumerate(operands):
        if (position := makers.position(tensor)) is not None:
            recording.positions[op, place] = position


def _ties(module: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Return the key of each parameter and buffer by its other keys."""
    first = {id(tensor): name for name, tensor in reversed(list(weights.items()))}
    every = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    others = ((name, first.get(id(tensor))) for name, tensor in every if name not in weights)
    return {f"parameter {name}": f"parameter {known}" for name, known in others if known is not None}


def inputs_of(module, args, kwargs) -> dict[str, Tensor]:
    """Return the tensors that forward takes, by the names of its parameters; a nested one gets its index or key."""
    try:
        arguments = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    except (TypeError, ValueError):  # forward itself will say what is wrong with the call
        arguments = {str(position): value for position, value in enumerate(args)} | kwargs
    return {name: tensor for key, value in arguments.items() for name, tensor in named_tensors(key, value)}


def _how_far(recording: Recording) -> str:
    if not recording.ops:
        return "the forward failed before its first tensor operation"
    last = recording.ops[-1]
    where = f" in {last.module}" if last.module else ""
    line = f" ({last.line[0]}:{last.line[1]})" if last.line else ""
    return f"traced {len(recording.ops)} ops; the last was {last.name}{where}{line}"
