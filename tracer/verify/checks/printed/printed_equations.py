"""Printed equations against the run: every equation of a trace is parsed again from its LaTeX, and evaluated.

The string that the page shows is all that counts, with the two tables that stand beside it: of sizes, and of the
tensors that equations name. The reader has neither PyTorch, nor sympy, nor `tracer.expr`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import numpy as np
import torch

from tracer.inputs.model_inputs import Inputs
from tracer.record import Trace, tolerance
from tracer.record.latex_reader.evaluator import evaluate
from tracer.record.latex_reader.lexer import UnreadableLatex
from tracer.record.latex_reader.operands import Operands, deviation, names
from tracer.record.latex_reader.parser import read
from tracer.symbols import notation
from tracer.textbook.derivation import KERNEL
from tracer.utils.error_text import quote


def problems(run) -> Iterator[str]:
    """Yield one sentence for each equation whose LaTeX does not evaluate to the run's tensor, and for each ambiguous
    name.

    `run` has the `trace`, the `model`, and the `inputs` that it was given. The same strings are then read for other
    runs of the same net, with other inputs, weights and sizes, in float64: what a batch of one, a γ of ones or the
    tolerance of float32 hides in the run itself is wrong there.
    """
    if not run.trace.steps:
        return
    wrong = dict(differences(run.trace, run.model.net, run.inputs))
    yield from wrong.values()
    if run.trace.replay is None:
        return
    known = any(step.checked or step.replayed for step in run.trace.steps)
    checked = run.trace.steps if known else run.trace.check().steps
    for step in checked:
        if step.refuted and step.id not in wrong:
            yield f"step {step.id!r} prints {quote(step.latex)}. {step.replayed}"
    if run.model.spec.probes:  # sizes at which it was said to run
        yield from run.trace.replay.notes
    if not any(step.checked for step in checked):
        yield next(step.replayed for step in checked if step.replayed)


def differences(trace: Trace, net: torch.nn.Module, inputs: Inputs) -> Iterator[tuple[str, str]]:
    """Yield each step whose LaTeX does not evaluate to the run's tensor, by its id, with a sentence; first each
    ambiguous name, by itself.

    Steps that a fused op went through have no tensor: theirs is what their own LaTeX gives, and is judged by what
    follows from it.
    """
    sizes = {notation.latex(size.name): size.value for size in trace.symbols}
    table = names(trace.steps)
    for name, things in table.items():
        things = [*things, *["size"] * (name in sizes)]
        if len(things) > 1:
            ambiguous = " and ".join(map(quote, things))
            yield name, f"{quote(name)} is the name of {ambiguous}, expected one thing for each name"
    operands = Operands({name: things[0] for name, things in table.items()}, sizes, RunTensors(trace, net, inputs))
    for step in trace.steps:
        if KERNEL in step.note:  # it says that its proof is a weaker one: PyTorch's own op has no words to be read
            continue
        try:
            line = read(step.latex, operands.names)
            if line.name != step.symbol:
                raise UnreadableLatex(f"it says what {quote(line.name)} is")
            evaluated = evaluate(line, operands, step.shape)
            if step.recomputed:
                operands.computed[step.symbol] = evaluated
                continue
            error = float(deviation(evaluated, operands(step.symbol)).max(initial=0))
        except UnreadableLatex as reason:
            yield step.id, f"step {step.id!r} prints {quote(step.latex)}, but {reason}"
            continue
        if not error <= tolerance(step.dtype):
            yield (
                step.id,
                f"what step {step.id!r} prints is off by {error:.2g}, expected at most {tolerance(step.dtype):.2g}",
            )


class RunTensors:
    """Tensors of a run by the keys of equations, in float64 unless they are whole numbers."""

    def __init__(self, trace: Trace, net, inputs: Inputs):
        self._tensors = {f"parameter {path}": tensor for path, tensor in net.named_buffers()}
        self._tensors |= {f"parameter {path}": tensor for path, tensor in net.named_parameters(remove_duplicate=False)}
        arguments = inspect.signature(net.forward).bind(*inputs, **inputs.named).arguments
        for name, value in arguments.items():  # those that a `*raw` takes are raw.0, raw.1 …
            several = (
                {f".{place}": item for place, item in enumerate(value)} if isinstance(value, tuple) else {"": value}
            )
            self._tensors |= {f"input {name}{place}": tensor for place, tensor in several.items()}
        self._tensors |= {key: value for key, value in trace.values.items() if key.startswith("constant ")}
        self._tensors |= {f"step {step.id}": trace.value(step) for step in trace.steps}

    def __call__(self, key: str) -> np.ndarray | None:
        tensor = self._tensors.get(key)
        if tensor is None and "*" in key:
            tensor = self._of_a_list(*key.split("*", 1))
        if tensor is None:
            return None
        tensor = tensor.detach().cpu()
        return (tensor.double() if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor).numpy()

    def _of_a_list(self, front: str, back: str) -> torch.Tensor | None:
        """Return the parameters that the modules of a list have under one name, concatenated."""
        stack = []
        while (item := self._tensors.get(f"{front}{len(stack)}{back}")) is not None:
            stack.append(item)
        return torch.stack(stack) if stack else None
