"""Weights from a file into a net: names and shapes must fit, and nothing is executed."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

PICKLED = (".pt", ".pth", ".ckpt", ".bin")


def read(weights) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, by its path or its bytes, or of a checkpoint of PyTorch, by its path alone.

    A checkpoint is read with `weights_only=True`; bytes are what a browser sends, and are never unpickled.
    ValueError in one sentence that quotes the file where it can't be read or holds something else.
    """
    if isinstance(weights, bytes):
        return _safetensors(weights, "the file")
    path = Path(str(weights))
    try:
        return _checkpoint(path) if path.suffix in PICKLED else _safetensors(path.read_bytes(), repr(str(weights)))
    except OSError as error:
        raise ValueError(f"weights {str(path)!r} can't be read: {error.strerror or error}") from None


def converted(spec, weights, config: dict) -> tuple[dict[str, torch.Tensor], dict]:
    """The tensors of a file in the model's own names, and `config` with the sizes and options that they tell.

    ValueError in one sentence where `config` says otherwise, or the file holds a layout that it does not keep to.
    """
    tensors = read(weights)
    try:
        found = spec.convert(tensors, config) if spec.convert else None
    except ValueError as error:
        raise ValueError(f"{named(weights)} don't fit: {error}") from None
    if found is None:
        return tensors, config
    tensors, told = found
    for symbol, value in told.items():
        if config.get(symbol, value) != value:
            raise ValueError(f"{named(weights)} don't fit: {symbol}={config[symbol]} was given, they have {value}")
    return tensors, {**told, **config}


def load_into(net: torch.nn.Module, tensors: dict[str, torch.Tensor], name: str) -> None:
    """Loads tensors into the net, cast to its dtype. ValueError in one sentence that says what of `name` misfits."""
    wanted = net.state_dict()
    problem = _misfit(tensors, wanted)
    if problem:
        raise ValueError(f"{name} don't fit: {problem}")
    net.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()})


def named(weights) -> str:
    """What a message calls the weights."""
    return "the uploaded weights" if isinstance(weights, bytes) else f"the weights of {str(weights)!r}"


def _safetensors(data: bytes, name: str) -> dict[str, torch.Tensor]:
    try:
        return load(data)
    except SafetensorError:
        raise ValueError(f"{name} is no safetensors file, which is the one format that is loaded") from None


def _checkpoint(path: Path) -> dict[str, torch.Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, KeyError, ValueError):
        raise ValueError(f"{str(path)!r} is no checkpoint of tensors alone, and nothing else is loaded") from None
    for inner in ("model", "state_dict"):
        if isinstance(found, dict) and isinstance(found.get(inner), dict):
            found = found[inner]
    if not isinstance(found, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in found.values()):
        raise ValueError(f"{str(path)!r} holds no tensors by their names")
    return found


def _misfit(tensors, wanted) -> str:
    for name, tensor in wanted.items():
        if name not in tensors:
            return f"they lack {name!r} {list(tensor.shape)}"
        if tensors[name].shape != tensor.shape:
            return f"{name!r} is {list(tensors[name].shape)} there, and {list(tensor.shape)} at these sizes"
    extra = next((name for name in tensors if name not in wanted), None)
    return f"they also hold {extra!r}, which the model does not have" if extra else ""
