"""Measurements of claims, on runs that the statements of the notes share."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

import tracer
from tracer import models
from tracer.lessons.notes.statements import Verdict
from tracer.record import Trace, tolerance
from tracer.spec.spec import Model
from tracer.tracing import counterfactual

# Runs behind the statements of the notes: the shipped models on their samples, or small ones.

ModelRun = tuple[Model, Trace]
Provider = Callable[[str], ModelRun]
"""A function that returns the model and the run of a name."""
STANDARD = "torchvision-standard"


class ReferenceRun(NamedTuple):
    """A model with the options and sizes that the app offers, and a small run of it, all of whose sizes differ.

    The fields are the arguments of `load` and `Model.trace`. `shipped` says that the app's run is that of the model on
    its sample.
    """

    model: str
    options: tuple[tuple[str, Any], ...]
    sizes: Mapping[str, Any]
    arguments: Mapping[str, Any]
    shipped: bool = True


def _preset(model: str, name: str) -> tuple[tuple[str, Any], ...]:
    """Return sizes and options that the page Sizes offers for a model."""
    return tuple(sorted(models.spec_of(model).presets[name].items()))


_GPT = {"V": 17, "T_max": 11, "D": 10, "h": 1, "d_ff": 23, "L": 2}, {"B": 3, "T": 7}
_TEXT = {"H": 12, "W": 20, "P": 4, "V": 17, "T_max": 11, "D": 14, "h": 1, "d_ff": 23, "L": 2}, {"B": 2, "T": 7}
_REVERSE = {"V": 17, "T_max": 11, "D": 12, "h": 3, "d_ff": 23, "R": 2, "L": 1}, {"T": 7}
_PATCHES = {"H": 12, "W": 20, "P": 4, "D": 14, "h": 2, "d_ff": 23, "K": 9, "L": 2}

RUNS = {
    "nanogpt": ReferenceRun("nanogpt", (), *_GPT),
    "nanogpt-single": ReferenceRun("nanogpt", (("single", True),), *_GPT),
    "nanogpt-separate": ReferenceRun("nanogpt", (("tied", False),), *_GPT),
    "nanogpt-no-bias": ReferenceRun("nanogpt", (("bias", False),), *_GPT),
    "vit-text": ReferenceRun("vit-text", (), *_TEXT),
    "vit-text-single": ReferenceRun("vit-text", (("h", 1),), *_TEXT),
    "vit-text-types": ReferenceRun("vit-text", (("types", True),), *_TEXT),
    "vit-text-separate": ReferenceRun("vit-text", (("tied", False),), *_TEXT),
    "vit-note": ReferenceRun("vit-note", (), {}, {}),
    "segmenter": ReferenceRun("segmenter", (), _PATCHES, {}),
    "segmenter-note": ReferenceRun(
        "segmenter", _preset("segmenter", "Note 001: 14 × 14 × 768 to 224 × 224 × K"), {}, {}
    ),
    "mae": ReferenceRun("mae", (), {"H": 12, "W": 20, "P": 4, "D": 16, "h": 2, "d_ff": 24, "L": 1, "L_dec": 1}, {}),
    "clip": ReferenceRun("clip", (), {"L": 1}, {}),
    "vit": ReferenceRun("vit", (), _PATCHES, {}),
    "torchvision": ReferenceRun("torchvision:vit_b_16", (), {"L": 1}, {"B": 2, "primitives": True}, shipped=False),
    "transformer": ReferenceRun("transformer", (), *_REVERSE),
    "transformer-learned": ReferenceRun("transformer", (("positions", "learned"),), *_REVERSE),
    "transformer-relative": ReferenceRun("transformer", (("positions", "relative"),), *_REVERSE),
    "transformer-causal": ReferenceRun("transformer", (("mask", "causal"),), *_REVERSE),
}
"""The runs by name. One more is made of `torchvision`: `STANDARD`, the same block asked for its attention weights."""


def small(name: str) -> ModelRun:
    """Return the small run of that name."""
    run = RUNS[name]
    model = tracer.load(run.model, **{**dict(run.options), **run.sizes})
    return model, counterfactual.check(model.trace(**run.arguments))


def standard(settings: ModelRun) -> ModelRun:
    """Return torchvision's model of the run `torchvision`, asked for attention weights, and its run."""
    model = copy.deepcopy(settings[0])
    for module in model.net.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.__class__ = WithWeights
    with torch.no_grad():
        trace = tracer.trace(model.net, *model.inputs(B=2), symbols={"B": 0}, primitives=True)
    return model, trace


class WithWeights(nn.MultiheadAttention):
    """Attention that returns its weights, whatever its caller asks for."""

    def forward(self, *args, need_weights=False, **kwargs) -> torch.Tensor:
        return super().forward(*args, need_weights=True, **kwargs)


def provider(make: Callable[[str], ModelRun]) -> Provider:
    """Return a function that returns runs by name, each computed once by `make` and cached; `STANDARD` too."""
    cache: dict[str, ModelRun] = {}

    def run(name: str) -> ModelRun:
        if name not in cache:
            cache[name] = standard(run("torchvision")) if name == STANDARD else make(name)
        return cache[name]

    return run


# Measurement of a claim on a run.


class Measurement(NamedTuple):
    """A measured claim.

    It has its scope and measure; the numbers; the baseline or the counterfactual of the comparison, a sentence; the
    verdict that follows; and the page that shows it. Texts are markdown.
    """

    scope: str
    result: str
    baseline: str
    verdict: Verdict
    page: str = ""
    place: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Scope, result and baseline as sentences in one line."""
        return f"Measured on {self.scope}: {self.result}. {self.baseline.rstrip('.')}."


PagePlace = tuple[str, tuple[tuple[str, str], ...]]
"""The page that shows a measurement, and the query parameters of the place on it."""
FIRST_BLOCK: PagePlace = "attention", (("block", "1"),)
ROLLOUT: PagePlace = "attention", (("head", "rollout"),)
CONTRASTS: PagePlace = "notes", (("note", "contrasts"),)


def at_step(id: str) -> PagePlace:
    """Return the place of a step among the equations."""
    return "trace", (("step", id),)


def of_model(model: Model) -> PagePlace:
    """Return the place of a model on the first page."""
    return "overview", (("model", model.name),)


def tensor_of(trace: Trace, id: str) -> torch.Tensor:
    """Return the tensor of a step.

    Raise ValueError, in a sentence, for a run without such a step, or without its tensor.
    """
    value = next((trace.value(step) for step in trace.steps if step.id == id), None)
    if value is None:
        raise ValueError(f"the run of {trace.model} kept no {id}")
    return value


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return max|a - b| / max|b|; 0 if both are 0."""
    largest = float(b.abs().max())
    apart = float((a - b).abs().max())
    return apart / largest if largest else apart


def close(error: float) -> bool:
    """Return whether a difference is only rounding: at most the tolerance of a verified equation."""
    return error <= tolerance("float32")


def verdict_of(holds: bool) -> Verdict:
    """Return the verdict of a claim that either holds or does not."""
    return "holds" if holds else "not"
