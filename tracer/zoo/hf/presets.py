"""Published models of transformers at their published sizes: configuration, number of parameters, shapes and costs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from tracer import zoo
from tracer.record import Step
from tracer.record.cost_scaling import Scaling, scaling
from tracer.record.repeats import at_any, repeats
from tracer.shapes.shadow_module import on_meta
from tracer.utils.error_text import quote
from tracer.zoo.hf import auto_classes, config_attributes
from tracer.zoo.hf.dummy import build_and_probe
from tracer.zoo.hf.hub import import_transformers
from tracer.zoo.hf.published_models import published_models


class ShapeLine(NamedTuple):
    r"""A tensor of a run: its symbol, its meaning, and its shape in symbols.

    Equal blocks share a line, and `blocks` has their numbers as LaTeX, `\ell = 1, 2, \ldots, 12`; "" outside of those.
    """

    symbol: str
    title: str
    symbolic: tuple[str, ...]
    blocks: str


class PublishedRun(NamedTuple):
    """A published model, run without values: the formulas of its costs, its shapes, and a sentence on where its
    equations were `proven`.

    `sizes` are those of the whole model. Of one that ran with its first blocks alone, `blocks` is their number, and
    FLOPs and activations have no formula.
    """

    scaling: Scaling
    sizes: dict[str, int]
    lines: tuple[ShapeLine, ...]
    proven: str
    params: int
    blocks: int | None


def configuration(name: str) -> Any:
    """Return the configuration of a published model. ValueError quotes an unknown name."""
    known = published_models()
    if name not in known:
        raise ValueError(f"{quote(name)} is not a published model, expected one of {', '.join(known)}")
    fields = dict(known[name].config)
    return config_attributes.with_defaults(
        import_transformers().AutoConfig.for_model(fields.pop("model_type"), **fields)
    )


@lru_cache(maxsize=64)
def count(name: str) -> int:
    """Return the number of parameters of a published model, counted on its net, which is built without memory."""
    config = configuration(name)
    architecture = auto_classes.classes(config)[0]
    net: torch.nn.Module = on_meta(lambda: build_and_probe.net(architecture, config))
    return sum(parameter.numel() for parameter in net.parameters())


def run(name: str) -> PublishedRun:
    """Run a published model on the device `meta`, and return its shapes and the formulas of its costs."""
    config, blocks = configuration(name), published_models()[name].blocks
    depth = config.num_hidden_layers
    if blocks:
        config.num_hidden_layers = blocks
    with TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        trace = zoo.load(f"hf:{folder}", values=False).trace(values=False)
    costs, params = scaling(trace), count(name)
    if blocks:
        unknown = "?"
        costs = replace(costs, params=str(params), flops=unknown, tensors=unknown, weights=unknown, parts={})
    proven = next((note.partition("; ")[2] for note in trace.notes if note.startswith("shapes at this size; ")), "")
    sentence = f"{proven[:1].upper()}{proven[1:]}." if proven else ""
    return PublishedRun(costs, {**costs.sizes, "L": depth}, _lines(trace.steps), sentence, params, blocks)


def _lines(steps: tuple[Step, ...]) -> tuple[ShapeLine, ...]:
    """Return the shape of each line of a textbook, of blocks with equal shapes once."""
    lines, at = [], 0
    shapes = [replace(step, latex="", title="", note="") for step in steps]
    for repeat in (*repeats(shapes), None):
        end = repeat.start if repeat else len(steps)
        lines += [ShapeLine(step.symbol, step.title, step.symbolic, "") for step in steps[at:end]]
        if repeat:
            each = steps[end : end + repeat.length]
            symbols = [at_any(step.symbol, repeat.blocks[0]) for step in each]
            blocks = repeat.numbers
            lines += [
                ShapeLine(symbol, step.title, step.symbolic, blocks) for symbol, step in zip(symbols, each, strict=True)
            ]
            at = end + repeat.length * repeat.times
    return tuple(lines)
