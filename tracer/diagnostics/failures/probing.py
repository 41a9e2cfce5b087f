"""Shapes of a failing forward in symbols: the code runs at other sizes, and what ran before the error is solved.

Two entries that are no ops stand at the end of each run: one takes all inputs and parameters, one takes the operands of
the failed call. Their shapes are solved like those of any op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from tracer.capture import OpEvent, Recording, inputs_of, record
from tracer.capture.tensors.pytree import named_tensors
from tracer.diagnostics.failures.failure_site import line_of
from tracer.shapes import UNKNOWN, Solution, Vocabulary, solve
from tracer.shapes.input_axes import named_axes
from tracer.shapes.probe_sizes import candidate_probes
from tracer.shapes.twin_variation import other_inputs
from tracer.tracing import FailedRun
from tracer.utils.error_text import reason
from tracer.utils.thread_local_rng import seeded_draws

INPUT_ENTRY, FAILURE_ENTRY = "given", "failed"
"""The names of the two entries at the end of a run."""
PICTURES = (1, 3, 4)
"""Numbers of channels by which a picture is known."""
WAYS = 3
"""Most ways in which sizes are chosen."""


class OtherFailure(RuntimeError):
    """Error of a module that fails before it reaches the call that is explained."""


@dataclass(frozen=True)
class FailingVocabulary(Vocabulary):
    """Named sizes of a module whose forward raises. `outcomes` are the messages by sizes, "" where it ran to its end;
    `line` is where the explained error came from."""

    line: tuple[str, int] | None = None
    outcomes: dict[tuple, str] = field(default_factory=dict, compare=False)

    def probe(self, sizes: dict[str, int], *, primitives: Any = False, values: int = 0) -> Recording:
        """Run the module at these sizes and return what it did before it failed, or to its end."""
        key = (*sizes.items(), values)
        if key not in self.recordings:
            with (self.mode or nullcontext)():
                with seeded_draws(0):
                    module, args, *kwargs = self.build(sizes)
                if values:
                    args, *kwargs = other_inputs((args, *kwargs), values)
                recording, error = run_to_error(module, args, kwargs[0] if kwargs else {})
            if error is not None and line_of(error) != self.line:
                raise OtherFailure(reason(error)) from error
            if not values:
                self.outcomes[tuple(sizes.items())] = "" if error is None else reason(error)
            self.recordings[key] = Recording(
                ops=entries(recording, module),
                numbers=list(range(len(recording.ops) + 2)),
                scalars=recording.scalars,
                constants=recording.constants,
                positions=recording.positions,
            )
        return self.recordings[key]


def run_to_error(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[Recording, Exception | None]:
    """Run a module and return the recording, so far as the module ran, and its error."""
    try:
        return record(module, args, kwargs, attention=False), None
    except Exception as error:
        if "recording" not in vars(error):
            raise
        return vars(error).pop("recording"), error


def entries(recording: Recording, module: torch.nn.Module) -> list[OpEvent]:
    """Return the ops of a run with the two entries at its end."""
    weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    inputs = {f"input {name}": tensor for name, tensor in recording.inputs.items()}
    externals = tuple((tuple(tensor.shape), tensor.dtype, name) for name, tensor in (weights | inputs).items())
    ends = [OpEvent(INPUT_ENTRY, False, "", 0, "", 0, None, externals, ())]
    if recording.failed_call is not None and recording.makers is not None:
        operands = call_tensors(recording)
        taken = tuple((tuple(tensor.shape), tensor.dtype, "operand") for tensor in operands)
        ends.append(OpEvent(FAILURE_ENTRY, False, "", 0, "", 0, None, taken, ()))
    return [*recording.ops, *ends]


def call_tensors(recording: Recording) -> list[Tensor]:
    """Return the tensors that the failed call took, in order."""
    call = recording.failed_call
    if call is None:
        return []
    return [tensor for _, tensor in named_tensors("", (call.args, call.kwargs))]


@dataclass(frozen=True)
class Shapes:
    """Shapes of a failed run in symbols.

    `symbolic` has those of inputs and parameters by name, and `operands` those of the failed call's tensors, in order.
    `probes` are sizes at which the module came to the same call, `messages` the error at those. `build(sizes)` returns
    the module and its arguments at other sizes; None where no size could be changed.
    """

    sizes: dict[str, int] = field(default_factory=dict)
    solution: Solution | None = None
    symbolic: dict[str, tuple[str, ...]] = field(default_factory=dict)
    operands: tuple[tuple[str, ...], ...] = ()
    probes: tuple[dict[str, int], ...] = ()
    messages: tuple[tuple[dict[str, int], str], ...] = ()
    build: Callable[[dict[str, int]], tuple] | None = None
    note: str = ""


def solve_shapes(run: FailedRun, line: tuple[str, int] | None) -> Shapes:
    """Return the symbolic shapes of a failed run; none where the code does not run at other sizes."""
    outcomes: dict[tuple, str] = {}
    sizes, ways, note = _ways(run, partial(_failing, line=line, outcomes=outcomes))
    if not sizes:
        return Shapes()
    events = entries(run.recording, run.module)
    for vocabulary, probes in islice(ways, WAYS):
        try:
            solution = solve(events, sizes, vocabulary, probes)
        except Exception:  # at these sizes the code fails elsewhere: at others it may not
            continue
        names = [name for _, _, name in events[len(run.recording.ops)].inputs]
        index = len(run.recording.ops)
        symbolic = dict(zip(names, solution.inputs[index], strict=True))
        operands = solution.inputs[index + 1] if len(events) > index + 1 else ()
        kept = solution.inputs[:index], solution.outputs[:index], solution.notes[:index]
        solution = replace(solution, inputs=kept[0], outputs=kept[1], notes=kept[2], parts=solution.parts[:index])
        reached = tuple(at for at in probes if tuple(at.items()) in outcomes)
        messages = tuple((at, outcomes[tuple(at.items())]) for at in reached)
        built = vocabulary.build
        return Shapes(sizes, solution, symbolic, operands, reached, messages, built, vocabulary.note or note)
    return Shapes(sizes, note=note)


def _failing(vocabulary: Vocabulary, line: tuple[str, int] | None, outcomes: dict[tuple, str]) -> FailingVocabulary:
    own = {name: getattr(vocabulary, name) for name in Vocabulary.__dataclass_fields__ if name != "recordings"}
    return FailingVocabulary(**own, line=line, outcomes=outcomes)


def _ways(run: FailedRun, adapt: Callable[[Vocabulary], Vocabulary]) -> tuple[dict[str, int], Iterator, str]:
    """Return the sizes of a run, the ways to choose other ones, and a note on default names."""
    if run.sizes is not None and run.build is not None:
        vocabulary = adapt(Vocabulary(tuple(run.sizes), {}, run.build))
        return run.sizes, candidate_probes(vocabulary, run.sizes), ""
    arguments = run.recording.arguments
    symbols, note = dict(run.symbols or {}), ""
    if not symbols:
        symbols = default_symbols(inputs_of(run.module, *arguments))
        note = default_note(symbols)
    try:
        return *named_axes(run.module, *arguments, run.recording, symbols, run.build, adapt), note
    except ValueError:  # symbols of axes that the inputs lack
        return {}, iter(()), ""


def default_symbols(inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Return names for the unnamed axes of inputs: B for the first, T for the second of tokens, H and W of pictures,
    where all inputs agree."""
    tensors = {name: tensor for name, tensor in inputs.items() if tensor.dim()}
    if not tensors:
        return {}
    first, symbols = next(iter(tensors)), dict[str, Any]()
    symbols["B"] = 0 if len({tensor.shape[0] for tensor in tensors.values()}) == 1 else (first, 0)
    tensor = tensors[first]
    if tensor.dim() == 4 and (channels := next((axis for axis in (1, 3) if tensor.shape[axis] in PICTURES), None)):
        symbols |= {"H": (first, 3 - channels if channels == 1 else 1), "W": (first, 3 if channels == 1 else 2)}
    elif tensor.dim() == 3 or (tensor.dim() == 2 and not tensor.is_floating_point()):
        alike = all(other.dim() > 1 and other.shape[1] == tensor.shape[1] for other in tensors.values())
        symbols["T"] = 1 if alike else (first, 1)
    return symbols


def default_note(symbols: dict[str, Any]) -> str:
    """Return in a sentence which axes were named."""
    if not symbols:
        return ""
    names = [f"{name} is axis {site if isinstance(site, int) else site[1]}" for name, site in symbols.items()]
    return f"{', '.join(names)} of the input; symbols= names others."


def is_solved(symbolic: tuple[str, ...] | None) -> bool:
    """Return whether all sizes of a shape have a formula."""
    return symbolic is not None and UNKNOWN not in symbolic
