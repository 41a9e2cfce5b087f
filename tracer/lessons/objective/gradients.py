"""The gradient that flows back from the loss: how large it is at the residual stream after each block, with and without
the residual path."""

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


class Highway(NamedTuple):
    """The norms of ∂loss/∂X of the stream that goes into the first block and that after each block, with the residual
    path and without, and the loss, which is the same number on both ways."""

    whole: tuple[float, ...]
    branches: tuple[float, ...]
    loss: float


def highway(net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor) -> Highway:
    """One backward pass each, from the mean loss of the next token of `tokens` `[1, T]`, of a net with `blocks`.

    The second is of the same forward pass, number by number; but where a block adds what attention or the MLP made to
    the stream, the gradient goes back through what was made alone. Runs a copy: the net's own gradients and hooks stay
    as they are, whoever else uses it.
    """
    copy = deepcopy(net).requires_grad_(False)
    whole, loss = _norms(copy, inputs, tokens, cut=False)
    branches, _ = _norms(copy, inputs, tokens, cut=True)
    return Highway(whole, branches, loss)


def _norms(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor, cut: bool
) -> tuple[tuple[float, ...], float]:
    """The norms at the streams, and the loss; with `cut` no gradient goes past a branch."""
    blocks = [net.get_submodule(name) for name in net.blocks]
    streams: list[torch.Tensor] = []
    made: list[torch.Tensor] = []

    def begin(module: nn.Module, args: tuple) -> tuple:
        streams.append(args[0].detach().requires_grad_())
        return (streams[0], *args[1:])

    def end(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        streams.append(output)

    def branch(module: nn.Module, args: tuple, output: torch.Tensor) -> None:
        made.append(output)

    hooks = [blocks[0].register_forward_pre_hook(begin), *(block.register_forward_hook(end) for block in blocks)]
    hooks += [part.register_forward_hook(branch) for block in blocks for part in block.children()]
    try:
        with torch.enable_grad(), _cutting(made) if cut else _nothing():
            logits = net(*inputs)
        with torch.enable_grad():
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            found = torch.autograd.grad(loss, streams)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(float(one.norm()) for one in found), float(loss.detach())


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _cutting(made: list[torch.Tensor]) -> Iterator[None]:
    """Sums of a stream and what a part of a block made send gradients back to the latter alone; in this thread."""
    with _Cut(made):
        yield


class _Cut(TorchFunctionMode):
    def __init__(self, made: list[torch.Tensor]):
        super().__init__()
        self.made = made

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in SUMS and len(args) == 2:
            parts = [any(one is branch for branch in self.made) for one in args]
            if sum(parts) == 1:
                args = tuple(one if part else one.detach() for one, part in zip(args, parts, strict=True))
        return func(*args, **(kwargs or {}))
