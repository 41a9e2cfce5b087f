"""Norm of the loss's gradient at the residual stream after each block, with and without the residual path."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from typing import NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tracer.lessons.loss.parameter_uses import SUMS
from tracer.lessons.loss.training_step import loss_of
from tracer.record import Trace


class GradientNorms(NamedTuple):
    """Norms of ∂loss/∂X at the input of the first block and after each block, on both paths, and the loss.

    The paths are with the residual sums and without; the loss is the same number on both.
    """

    whole: tuple[float, ...]
    branches: tuple[float, ...]
    loss: float


def find_blocks(net: nn.Module, trace: Trace) -> tuple[str, ...]:
    """Return the paths of the blocks of a net: its own `blocks`, else the items of lists of modules with an attention
    in a run."""
    if isinstance(own := getattr(net, "blocks", None), Sequence):
        return tuple(own)
    paths = (_find_item(net, record.module) for record in trace.attentions)
    return tuple(dict.fromkeys(filter(None, paths)))


def _find_item(net: nn.Module, path: str) -> str:
    """Return the path of the innermost item of a list of modules that has a module in it; "" if there is none."""
    while path:
        parent = path.rpartition(".")[0]
        if isinstance(net.get_submodule(parent), nn.ModuleList):
            return path
        path = parent
    return ""


def highway(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor, blocks: Sequence[str]
) -> GradientNorms:
    """Return one backward pass each, from the mean loss of the next token of `tokens` `[1, T]`, through the `blocks`.

    The second is of the same forward pass, number by number; but at a sum of a block the gradient goes back through the
    result of attention or the MLP alone. It runs a copy: the net's own gradients and hooks stay as they are, also for
    other users. Raise ValueError, in a sentence, for blocks of other than two sums.
    """
    if not blocks:
        raise ValueError("the run has no blocks with attention to follow the gradient through")
    copy = deepcopy(net).requires_grad_(False)
    whole, loss = _norms(copy, inputs, tokens, blocks, cut=False)
    branches, _ = _norms(copy, inputs, tokens, blocks, cut=True)
    return GradientNorms(whole, branches, loss)


def _norms(
    net: nn.Module, inputs: tuple[torch.Tensor, ...], tokens: torch.Tensor, paths: Sequence[str], cut: bool
) -> tuple[tuple[float, ...], float]:
    """Return the norms at the streams, and the loss; with `cut` no gradient goes past a branch."""
    blocks = [net.get_submodule(path) for path in paths]
    streams: list[torch.Tensor] = []
    branches: list[torch.Tensor] = []

    def begin(module: nn.Module, args: tuple) -> tuple:
        if not args or not isinstance(args[0], torch.Tensor):
            raise ValueError(f"the first argument of {paths[0]} is not the residual stream")
        streams.append(args[0].detach().requires_grad_())
        return (streams[0], *args[1:])

    def end(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        streams.append(_first(output))

    def branch(module: nn.Module, args: tuple, output: torch.Tensor | tuple) -> None:
        branches.append(_first(output))

    hooks = [blocks[0].register_forward_pre_hook(begin), *(block.register_forward_hook(end) for block in blocks)]
    hooks += [part.register_forward_hook(branch) for block in blocks for part in block.children()]
    try:
        with torch.enable_grad(), _Cut(branches) if cut else nullcontext() as mode:
            loss = loss_of(net, inputs, tokens)
        if mode is not None and mode.count != (expected := 2 * len(blocks)):
            raise ValueError(
                f"{mode.count} sums add a branch to the residual stream in its {len(blocks)} blocks, expected "
                f"{expected}: one of attention and one of the MLP in each"
            )
        gradients = torch.autograd.grad(loss, streams)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(float(gradient.norm()) for gradient in gradients), float(loss.detach())


def _first(output: torch.Tensor | tuple) -> torch.Tensor:
    """Return the tensor of a module that returns it beside others."""
    return output[0] if isinstance(output, tuple) else output


class _Cut(TorchFunctionMode):
    """Send gradients of sums of a stream and a branch back to the latter alone, in this thread; count these sums."""

    def __init__(self, branches: list[torch.Tensor]):
        super().__init__()
        self.branches, self.count = branches, 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in SUMS and len(args) == 2:
            parts = [any(argument is branch for branch in self.branches) for argument in args]
            if sum(parts) == 1:
                self.count += 1
                args = tuple(
                    argument if part else argument.detach() for argument, part in zip(args, parts, strict=True)
                )
        return func(*args, **(kwargs or {}))
