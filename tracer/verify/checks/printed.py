"""What is printed is what runs: every equation of a trace is read again from its LaTeX, and evaluated.

The string that the page shows is all that counts, with the two tables that stand beside it: of sizes, and of the
tensors that equations name. What is read and how it is evaluated (`reading`, `evaluating`) has neither PyTorch, nor
sympy, nor `tracer.equations`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain

import numpy as np
import torch

from tracer.common.quoting import quoted
from tracer.common.seeding import seeded_draws
from tracer.derive import HERE, KERNEL
from tracer.inputs.given import Inputs
from tracer.models.shared.model import Model, Spec, seeded
from tracer.record import Trace
from tracer.symbols import notation
from tracer.tracing import AT_HAND, assemble, record_or_explain
from tracer.verify.checks.evaluating import evaluate
from tracer.verify.checks.reading import read
from tracer.verify.checks.signs import Unread

EXACT = 1e-12
"""Largest error of what is printed, as a share of the largest value, in float64."""
FAR = 1e30
"""Numbers beyond it stand for infinities: some masks have the lowest one of float32 for -∞."""
NEAR = 2
"""How many times the error of the executed equation that of the printed one may be, where the code itself computes in
less than float64."""


def problems(run) -> Iterator[str]:
    """One sentence for each equation whose LaTeX does not give what ran, and for each name that stands for two things.

    `run` has the `trace`, the `model`, and the `inputs` that it was given. The same strings are then read for a run of
    the same net at the first of its probe sizes, in float64 and with other weights: what a batch of one, a γ of ones or
    the tolerance of float32 hides in the run itself is wrong there.
    """
    if not run.trace.steps:
        return
    wrong = dict(differences(run.trace, run.model.net, run.inputs))
    yield from wrong.values()
    if not run.model.spec.probes:
        return
    try:
        there = elsewhere(run.trace, run.model)
    except Exception as error:  # the model's own error at another size
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        yield f"what is printed was not read at other sizes: the model did not run there ({reason})"
        return
    for where, said in differences(*there, exact=True):
        if where not in wrong:
            yield f"at other sizes, {said}"


def differences(trace: Trace, net: torch.nn.Module, inputs: Inputs, exact: bool = False) -> Iterator[tuple[str, str]]:
    """Each step whose LaTeX does not give the tensor that ran, by its id, with a sentence; first each name of two
    things, by itself. If `exact`, what is printed has to be as near to the run as the executed equation is.

    Steps that a fused op went through have no tensor: theirs is what their own LaTeX gives, and is judged by what
    follows from it.
    """
    sizes = {notation.latex(size.name): size.value for size in trace.symbols}
    table = names(trace)
    for name, things in table.items():
        things = [*things, *["size"] * (name in sizes)]
        if len(things) > 1:
            said = " and ".join(map(quoted, things))
            yield name, f"{quoted(name)} is the name of {said}, expected one thing for each name"
    found = Tensors(trace, net, inputs, {name: things[0] for name, things in table.items()}, sizes)
    for step in trace.steps:
        if exact and HERE in step.note:
            continue
        if KERNEL in step.note:  # it says that its proof is a weaker one: PyTorch's own op has no words to be read
            continue
        try:
            line = read(step.latex, found.names)
            if line.name != step.symbol:
                raise Unread(f"it says what {quoted(line.name)} is")
            made = evaluate(line, found, step.shape)
            if step.recomputed:
                found.made[step.symbol] = made
                continue
            error = relative(made, found(step.symbol), lowest=exact)
        except Unread as reason:
            yield step.id, f"step {step.id!r} prints {quoted(step.latex)}, but {reason}"
            continue
        most = max(EXACT, NEAR * step.error) if exact and step.error is not None else step.tolerance
        if not error <= most:
            yield step.id, f"what step {step.id!r} prints is off by {error:.2g}, expected at most {most:.2g}"


def names(trace: Trace) -> dict[str, list[str]]:
    """What each printed name of a tensor stands for, in words that tell one thing from another; one, if all is well:
    `"step logits"`, `"input image"`, `"parameter head.weight"`, and that with `.T` where it is transposed."""
    found: dict[str, dict[str, None]] = {}
    for step in trace.steps:
        found.setdefault(step.symbol, {})[f"step {step.id}"] = None
    for name in chain.from_iterable(step.names for step in trace.steps):
        found.setdefault(name.symbol, {})[name.of + ".T" * name.transposed] = None
    return {symbol: list(things) for symbol, things in found.items()}


class Tensors:
    """The numbers that names stand for, in float64 where they are no whole numbers: `tensors(name)`."""

    def __init__(self, trace: Trace, net, inputs: Inputs, table: Mapping[str, str], sizes: Mapping[str, int]):
        self.names = frozenset(table) | frozenset(sizes)
        self.made: dict[str, np.ndarray] = {}
        """What printed lines gave for tensors that were never held, by their names."""
        self._table, self._sizes = table, sizes
        self._held = {f"parameter {path}": tensor for path, tensor in net.named_buffers()}
        self._held |= {f"parameter {path}": tensor for path, tensor in net.named_parameters(remove_duplicate=False)}
        given = inspect.signature(net.forward).bind(*inputs, **inputs.named).arguments
        for name, value in given.items():  # those that a `*raw` takes are raw.0, raw.1 …
            several = {f".{place}": one for place, one in enumerate(value)} if isinstance(value, tuple) else {"": value}
            self._held |= {f"input {name}{place}": tensor for place, tensor in several.items()}
        self._held |= {key: value for key, value in trace.values.items() if key.startswith("constant ")}
        self._held |= {f"step {step.id}": trace.value(step) for step in trace.steps}

    def __call__(self, name: str) -> np.ndarray:
        if name in self._sizes:
            return np.asarray(self._sizes[name])
        if name in self.made:
            return self.made[name]
        of = self._table[name]
        tensor = self._held.get(of.removesuffix(".T"))
        if tensor is None and "*" in of:
            tensor = self._of_a_list(*of.removesuffix(".T").split("*", 1))
        if tensor is None:
            raise Unread(f"{quoted(of)} was not kept")
        tensor = tensor.detach().cpu()
        array = (tensor.double() if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor).numpy()
        return array.swapaxes(-2, -1) if of.endswith(".T") else array

    def _of_a_list(self, front: str, back: str) -> torch.Tensor | None:
        """The parameters that the modules of a list have under one name, each behind the other."""
        found = []
        while (one := self._held.get(f"{front}{len(found)}{back}")) is not None:
            found.append(one)
        return torch.stack(found) if found else None


def relative(made: np.ndarray, ran: np.ndarray, lowest: bool = False) -> float:
    """max|made - ran| / max|ran|; equal infinities count 0, and so does NaN in both. A number beyond `FAR` is compared
    with itself, and no other with it; with `lowest`, the lowest one of another dtype counts as the same."""
    made, ran = made.astype(float), ran.astype(float)
    same, size = (made == ran) | (np.isnan(made) & np.isnan(ran)), np.abs(ran)
    same |= lowest & (made < -FAR) & (ran < -FAR)
    largest = size[size <= FAR].max(initial=0)
    with np.errstate(all="ignore"):
        off = np.where(same, 0, np.abs(made - ran) / np.where((size > FAR) & np.isfinite(size), size, largest))
    return float(off.max(initial=0))


def elsewhere(trace: Trace, model: Model) -> tuple[Trace, torch.nn.Module, Inputs]:
    """A run of the model's net at the first of its probe sizes, with other weights, its steps printed as those of
    `trace`; that net; and what it was given, in float64."""
    spec, sizes = model.spec, {**model.sizes, **model.spec.probes[0]}
    config = {name: size for name, size in sizes.items() if name not in spec.runs} | model.options
    net, inputs = _drawn(spec, config, sizes)
    with torch.no_grad():
        recording = record_or_explain(net, tuple(inputs), inputs.named, AT_HAND, True, calls=True)
    facts = {
        "sizes": model.vocabulary.complete(sizes),
        "derived": spec.derived,
        "parts": spec.parts,
        "hints": spec.hints,
    }
    run = assemble(net, recording, model=model.name, solution=None, **facts)
    shown = {step.id: step for step in trace.steps}
    steps = tuple(
        replace(step, symbol=one.symbol, latex=one.latex, names=one.names, note=one.note)
        for step in run.steps
        if (one := shown.get(step.id))
    )
    return replace(run, steps=steps), net, inputs


def _drawn(spec: Spec, config: dict, sizes: dict[str, int]) -> tuple[torch.nn.Module, Inputs]:
    """A net all of whose weights are random, also those of norms, and the input of a probe."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.double() if tensor.is_floating_point() else tensor

    net = seeded(spec.net, config).double()
    with torch.no_grad(), seeded_draws(0):
        for parameter in net.parameters():
            parameter.normal_(std=0.1)
        example = spec.example(sizes)
    named = {name: cast(tensor) for name, tensor in getattr(example, "named", {}).items()}
    return net, Inputs(tuple(map(cast, example)), named=named)
