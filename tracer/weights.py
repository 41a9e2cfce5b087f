"""Weights from a safetensors file into a net: names and shapes must fit, and nothing is executed."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load


def load_into(net: torch.nn.Module, path) -> None:
    """Loads a safetensors file into the net, cast to its dtype.

    ValueError in one sentence that quotes the file where it is missing, no safetensors, or does not fit.
    """
    try:
        tensors = load(Path(str(path)).read_bytes())
    except OSError as error:
        raise ValueError(f"weights {str(path)!r} can't be read: {error.strerror or error}") from None
    except SafetensorError:
        raise ValueError(f"{str(path)!r} is no safetensors file, which is the one format that is loaded") from None
    wanted = net.state_dict()
    problem = _misfit(tensors, wanted)
    if problem:
        raise ValueError(f"the weights of {str(path)!r} don't fit: {problem}")
    net.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()})


def _misfit(tensors, wanted) -> str:
    for name, tensor in wanted.items():
        if name not in tensors:
            return f"they lack {name!r} {list(tensor.shape)}"
        if tensors[name].shape != tensor.shape:
            return f"{name!r} is {list(tensors[name].shape)} there, and {list(tensor.shape)} at these sizes"
    extra = next((name for name in tensors if name not in wanted), None)
    return f"they also hold {extra!r}, which the model does not have" if extra else ""
