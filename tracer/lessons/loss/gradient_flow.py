"""The norm of the loss's gradient at the residual stream after each block, with and without the residual path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

SUMS = (torch.Tensor.add, torch.Tensor.__add__, torch.add)


class GradientNorms(NamedTuple):
    """The norms of ∂loss/∂X at the input of the first block and after each block, on both paths, and the loss.

    The paths are with the residual sums and without; the loss is the same number on both.
    """

    whole: tuple[float, ...]
    branches: tuple[float, ...]
    loss: float


def highway(net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor) -> GradientNorms:
    """Return one backward pass each, from the mean loss of the next token of `tokens` `[1, T]`, of a net with `blocks`.

    The second is of the same forward pass, number by number; but at a sum of a block the gradient goes back through the
    result of attention or the MLP alone. It runs a copy: the net's own gradients and hooks stay as they are, also for
    other users.
    """
    copy = deepcopy(net).requires_grad_(False)
    whole, loss = _norms(copy, inputs, tokens, cut=False)
    branches, _ = _norms(copy, inputs, tokens, cut=True)
    return GradientNorms(whole, branches, loss)


def _norms(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor, cut: bool
) -> tuple[tuple[float, ...], float]:
    """Return the norms at the streams, and the loss; with `cut` no gradient goes past a branch."""
    blocks = [net.get_submodule(name) for name in net.blocks]
    streams: list[torch.Tensor] = []
    streams_list: list[torch.Tensor] = []

    def begin(module: nn.Module, args: tuple) -> tuple:
        streams.append(args[0].detach().requires_grad_())
        return (streams[0], *args[1:])

    def end(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        streams.append(output)

    def branch(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        streams_list.append(output)

    hooks = [blocks[0].register_forward_pre_hook(begin), *(block.register_forward_hook(end) for block in blocks)]
    hooks += [part.register_forward_hook(branch) for block in blocks for part in block.children()]
    try:
        with torch.enable_grad(), _cutting(streams_list) if cut else _nothing():
            logits = net(*inputs)
        with torch.enable_grad():
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            gradients = torch.autograd.grad(loss, streams)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(float(gradient.norm()) for gradient in gradients), float(loss.detach())


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _cutting(cut_streams: list[torch.Tensor]) -> Iterator[None]:
    """Send gradients of sums of a stream and a block's result back to the latter alone, in this thread."""
    with _Cut(cut_streams):
        yield


class _Cut(TorchFunctionMode):
    def __init__(self, streams: list[torch.Tensor]):
        super().__init__()
        self.streams = streams

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in SUMS and len(args) == 2:
            parts = [any(argument is branch for branch in self.streams) for argument in args]
            if sum(parts) == 1:
                args = tuple(
                    argument if part else argument.detach() for argument, part in zip(args, parts, strict=True)
                )
        return func(*args, **(kwargs or {}))
