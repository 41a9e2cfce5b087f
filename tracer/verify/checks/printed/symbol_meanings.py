"""Meaning of each symbol, measured on the net and its input."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from tracer.verify.checks.reference_run import PlainRun


def problems(run: PlainRun) -> Iterator[str]:
    """Measure every symbol of one of our models by the words of its meaning."""
    if not getattr(run.model.spec, "whole", False) or ":" in run.model.name:
        return
    for symbol in run.trace.symbols:
        meaning = symbol.meaning.split(":")[0].split(",")[0]
        if meaning not in MEASUREMENTS:
            yield f"nothing measures {symbol.name}, “{meaning}”"
            continue
        value = MEASUREMENTS[meaning](run)
        if value is not None and value != symbol.value:
            yield f"{symbol.name} is said to be the {meaning}: {symbol.value}, measured {value}"


def _image(run: PlainRun) -> torch.Tensor:
    return next(x for x in run.inputs if x.is_floating_point())


def _numbers(run: PlainRun) -> torch.Tensor:
    return next(x for x in run.inputs if not x.is_floating_point())


def _module(run: PlainRun, name: str) -> nn.Module:
    """Return the first module of that name, at any depth."""
    return next(module for path, module in run.model.net.named_modules() if path.rpartition(".")[2] == name)


def _parameter(run: PlainRun, *names: str) -> torch.Tensor:
    return next(p for path, p in run.model.net.named_parameters() if path.rpartition(".")[2] in names)


def _towers(run: PlainRun, name: str = "") -> int:
    """Return the number of blocks of one tower: the one of that name, or the first."""
    paths = [path for path, _ in run.model.net.named_modules() if path.rpartition(".")[2].startswith("block")]
    chosen = [path for path in paths if path.startswith(name)] if name else paths
    tower = chosen[0].rpartition(".")[0]
    return sum(path.rpartition(".")[0] == tower for path in paths)


def _patches(run: PlainRun) -> int:
    image = _image(run)
    return image[0].numel() // _cell(run)


def _cell(run: PlainRun) -> int:
    """Return the number of pixel values of one patch."""
    embedding = run.model.net.get_parameter(
        next(n for n, p in run.model.net.named_parameters() if n.rpartition(".")[2] == "weight" and p.dim() == 2)
    )
    return embedding.shape[1]


def _head_width(run: PlainRun) -> int:
    """Return the last axis of the queries that the first attention multiplies."""
    return run.trace.values[run.trace.attentions[0].q].shape[-1]


MEASUREMENTS = {
    "batch": lambda run: run.output.shape[0],
    "height of the picture that the model sees": lambda run: _image(run).shape[-2],
    "width of the picture that the model sees": lambda run: _image(run).shape[-1],
    "colour channels": lambda run: _image(run).shape[1],
    "side of a square patch": lambda run: round((_cell(run) / _image(run).shape[1]) ** 0.5),
    "number of patches": _patches,
    "text length in tokens": lambda run: _numbers(run).shape[1],
    "the longest text that the model can read": lambda run: (
        len(_parameter(run, "positions", "text_positions"))
        if any("positions" in path for path, _ in run.model.net.named_parameters())
        else run.model.net.T_max
    ),
    "size of the vocabulary": lambda run: _module(run, "tokens").weight.shape[0],
    "model width": lambda run: _module(run, "norm1").weight.shape[0],
    "hidden width of the MLP": lambda run: _module(run, "expand").weight.shape[0],
    "number of attention heads": lambda run: _module(run, "query").weight.shape[0] // _head_width(run),
    "number of heads of keys and values": lambda run: _module(run, "key").weight.shape[0] // _head_width(run),
    "width of one head": _head_width,
    "number of blocks": _towers,
    "number of possible answers": lambda run: run.output.shape[-1],
    "reach": lambda run: (len(_parameter(run, "key_distances")) - 1) // 2,
    "number of visible patches": lambda run: _numbers(run).shape[1],
    "number of hidden patches": lambda run: _patches(run) - _numbers(run).shape[1],
    "number of blocks of the decoder": lambda run: _towers(run, "decoder"),
    "width of the space in which photos and sentences are compared": lambda run: (
        _module(run, "projection").out_features
    ),
}
"""The words that a meaning begins with, and what they measure."""
