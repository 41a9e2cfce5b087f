"""Weights from a file into a net: names and shapes must fit, and nothing is executed."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from tracer.models.shared.model_cards import card_of
from tracer.utils.error_text import quote

PICKLE_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


def read(weights) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, by its path or bytes, or of a checkpoint of PyTorch, by its path alone.

    A checkpoint is read with `weights_only=True`; bytes come from a browser, and are never unpickled. Raise ValueError
    in one sentence that quotes the file if it can't be read or holds something else.
    """
    if isinstance(weights, bytes):
        return _safetensors(weights, "the file")
    path = Path(str(weights))
    try:
        return (
            _checkpoint(path) if path.suffix in PICKLE_SUFFIXES else _safetensors(path.read_bytes(), repr(str(weights)))
        )
    except OSError as error:
        raise ValueError(f"weights {quote(str(path))} can't be read: {error.strerror or error}") from None


def convert(spec, weights, config: dict) -> tuple[dict[str, torch.Tensor], dict]:
    """Return the tensors of a file in the model's own names, and `config` with the sizes and options of the file.

    Raise ValueError in one sentence if `config` contradicts them, or the file deviates from its layout.
    """
    tensors = read(weights)
    try:
        converted = spec.convert(tensors, config) if spec.convert else None
    except ValueError as error:
        raise ValueError(f"{label(weights)} don't fit: {error}") from None
    if converted is None:
        return tensors, config
    tensors, facts = converted
    for symbol, value in facts.items():
        if config.get(symbol, value) != value:
            raise ValueError(f"{label(weights)} don't fit: {symbol}={config[symbol]} was given, they have {value}")
    return tensors, {**facts, **config}


def place(net: torch.nn.Module, weights, tensors: dict[str, torch.Tensor] | None = None) -> str:
    """Load a file, or its tensors, into the net, cast to its dtype, and return the name of the weights.

    Raise ValueError in one sentence on the tensors that misfit.
    """
    tensors, wanted = read(weights) if tensors is None else tensors, net.state_dict()
    problem = _misfit(tensors, wanted)
    if problem:
        raise ValueError(f"{label(weights)} don't fit: {problem}")
    net.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()})
    return "uploaded weights" if isinstance(weights, bytes) else f"weights of {weights}"


def card_beside(weights) -> dict | None:
    """Return the card beside a file of weights, as training writes it, or None if there is none.

    The card is JSON of the same name with the "sizes". Raise ValueError in one sentence if it can't be read.
    """
    file = None if isinstance(weights, bytes) else Path(str(weights)).with_suffix(".json")
    if file is None or not isfile(file):
        return None
    return card_of(file.read_bytes(), file)


def label(weights) -> str:
    """Return the name of the weights in messages."""
    return "the uploaded weights" if isinstance(weights, bytes) else f"the weights of {quote(str(weights))}"


def _safetensors(data: bytes, name: str) -> dict[str, torch.Tensor]:
    try:
        return load(data)
    except SafetensorError:
        raise ValueError(f"{name} is not a safetensors file, the only format that is loaded") from None
    except RuntimeError as error:  # an empty tensor may state sizes whose product no 64 bits hold
        raise ValueError(f"{name} has a tensor whose shape PyTorch refuses: {error}") from None


def _checkpoint(path: Path) -> dict[str, torch.Tensor]:
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception:  # a damaged pickle makes the reader raise anything
        reason = "is not a checkpoint of tensors alone, and nothing else is loaded"
        raise ValueError(f"{quote(str(path))} {reason}") from None
    for inner in ("model", "state_dict"):
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get(inner), dict):
            checkpoint = checkpoint[inner]
    if not isinstance(checkpoint, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in checkpoint.values()):
        raise ValueError(f"{quote(str(path))} holds no tensors by their names")
    return checkpoint


def _misfit(tensors, wanted) -> str:
    for name, tensor in wanted.items():
        if name not in tensors:
            return f"they lack {quote(name)} {list(tensor.shape)}"
        if tensors[name].shape != tensor.shape:
            return f"{quote(name)} is {list(tensors[name].shape)} there, and {list(tensor.shape)} at these sizes"
    extra = next((name for name in tensors if name not in wanted), None)
    return f"they also hold {quote(extra)}, which the model does not have" if extra else ""
