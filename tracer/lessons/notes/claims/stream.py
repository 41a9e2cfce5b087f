"""What the notes claim of norms, of the MLP, and of the residual stream."""

from __future__ import annotations

import torch
from torch import nn

from tracer.attention.reads import reads
from tracer.figures.classes import percent
from tracer.figures.labels import scientific
from tracer.lessons.notes.claims.inside import Inside, blocks
from tracer.lessons.notes.claims.measured import Measured, close, kept, off
from tracer.models.shared.model import Model
from tracer.record import Trace


def norm_of(inside: Inside) -> tuple[str, nn.Module, torch.Tensor, torch.Tensor]:
    """The first norm of a block: its step, its module, what enters it and what it makes, `[B, S, D]` each."""
    id = f"{inside.block}.norm1"
    module = inside.model.net.get_submodule(id)
    entering = reads(inside.trace, id)
    if not entering:
        raise ValueError(f"the norm of {inside.model.name} reads no step of the run")
    return id, module, inside.value(entering[0]), inside.value(id)


def bound(model: Model, trace: Trace) -> Measured:
    """How long tokens are before and after the norm, and what ten times longer tokens do to its result."""
    inside = Inside(model, trace)
    id, module, x, _ = norm_of(inside)
    with torch.no_grad():
        plain, larger = module(x), module(10 * x)
    lengths = x.norm(dim=-1)
    bare = plain / module.weight if getattr(module, "bias", None) is None else (plain - module.bias) / module.weight
    after = bare.norm(dim=-1) / x.shape[-1] ** 0.5
    moved = off(larger, plain)
    said = (
        f"tokens are {lengths.min():.3g} to {lengths.max():.3g} long before the norm; after it, without γ and β, "
        f"{after.min():.3f} to {after.max():.3f} times √D. Tokens 10 times as long come out "
        f"{percent(moved)} different, and "
        f"without a norm their products would be 100 times as large"
    )
    return Measured(said, "holds" if moved < 0.05 else "not", "trace", (("step", id),))


def undo(model: Model, trace: Trace) -> Measured:
    """Whether γ = σ and β = μ give back what entered the norm: for one token, and for all with one γ and β."""
    id, module, x, _ = norm_of(Inside(model, trace))
    centred = isinstance(module, nn.LayerNorm)
    mean = x.mean(-1, keepdim=True) if centred else torch.zeros_like(x[..., :1])
    scale = ((x - mean).square().mean(-1, keepdim=True) + (module.eps or 0)).sqrt()
    normal = (x - mean) / scale
    one = off(normal[:, :1] * scale[:, :1] + mean[:, :1], x[:, :1])
    every = off(normal * scale[:, :1] + mean[:, :1], x)
    said = (
        f"with γ = σ and β = μ of one token, that token comes back to within {scientific(one)}; the "
        f"others are {percent(every)} "
        "off, since γ and β are the same for all tokens and each has a σ of its own"
    )
    return Measured(
        said, "sense" if close(one) and not close(every) else "holds" if close(one) else "not", "trace", (("step", id),)
    )


def mixing(inside: Inside) -> tuple[float, float, float]:
    """One token changed: by how much the MLP's and the attention's results of the other tokens move, as a share of the
    largest result, and by how much the MLP's of the token itself does."""
    path, x = f"{inside.block}.mlp", inside.entering
    mlp = inside.model.net.get_submodule(path)
    at = x.shape[1] // 2
    changed = x.clone()
    changed[:, at] = -changed[:, at]
    others = [i for i in range(x.shape[1]) if i != at]
    with torch.no_grad():
        before, after = mlp(x), mlp(changed)
        mixed, moved = inside.attend(x), inside.attend(changed)
    return (
        off(after[:, others], before[:, others]),
        off(moved[:, others], mixed[:, others]),
        off(after[:, at], before[:, at]),
    )


def mlp_alone(model: Model, trace: Trace) -> Measured:
    """Whether the MLP mixes tokens."""
    inside = Inside(model, trace)
    others, _, own = mixing(inside)
    said = (
        f"one token changed: its own result moves by {percent(own)} of the largest, those of all others by {others:.2g}"
    )
    return Measured(
        said, "holds" if close(others) and not close(own) else "not", "trace", (("step", f"{inside.block}.mlp.output"),)
    )


def complementary(model: Model, trace: Trace) -> Measured:
    """The same change, in the attention and in the MLP."""
    inside = Inside(model, trace)
    others, mixed, _ = mixing(inside)
    said = (
        f"one token changed: the attention moves the other tokens by {percent(mixed)} of the largest, the "
        f"MLP by {others:.2g}"
    )
    return Measured(
        said,
        "holds" if close(others) and not close(mixed) else "not",
        "trace",
        (("step", f"{inside.block}.attention.output"),),
    )


def corrections(trace: Trace) -> list[tuple[float, float]]:
    """For each block how long what attention and what the MLP adds is, over how long what it is added to is; means over
    the tokens."""
    found = []
    for path in blocks(trace):
        both = []
        for part in ("attention", "mlp"):
            total, added = kept(trace, f"{path}.{part}.residual"), kept(trace, f"{path}.{part}.output")
            both.append(float((added.norm(dim=-1) / (total - added).norm(dim=-1)).mean()))
        found.append((both[0], both[1]))
    if not found:
        raise ValueError(f"{trace.model} has no blocks with attention")
    return found


def correction(model: Model, trace: Trace) -> Measured:
    """How large a correction to the identity each block is."""
    found = corrections(trace)
    said = "‖O‖/‖X‖ and ‖F‖/‖X′‖ by block: " + ", ".join(f"{a:.2f} and {b:.2f}" for a, b in found)
    small = sum(one < 1 for both in found for one in both)
    said += f"; {small} of {2 * len(found)} are below 1, the length of what they are added to"
    return Measured(said, "holds" if small == 2 * len(found) else "sense" if small else "not", "trace",
                    (("step", f"{blocks(trace)[0]}.attention.residual"),))  # fmt: skip


def highways(model: Model, trace: Trace) -> list[tuple[float, float]]:
    """How much gradient is left at the tokens that enter each block, through the residual sums and the branches and
    through the branches alone: the length of the gradient of the last block's output, along one fixed random direction,
    over its length at that output. The forward pass is the same on both ways.

    ValueError for blocks that are not `x + attention(norm1(x))`, `x + mlp(norm2(x))`.
    """
    inside = Inside(model, trace)
    x = inside.value(reads(trace, f"{inside.block}.norm1")[0])
    found = []
    for skip in (True, False):
        stream = x.detach().clone().requires_grad_()
        entering, y = [], stream
        for path in blocks(trace):
            block = model.net.get_submodule(path)
            entering.append(y)
            y = (y if skip else y.detach()) + block.attention(block.norm1(y), **inside.given)
            y = (y if skip else y.detach()) + block.mlp(block.norm2(y))
        if not close(off(y.detach(), inside.value(f"{blocks(trace)[-1]}.mlp.residual"))):
            raise ValueError(f"the blocks of {model.name} are no pre-norm blocks, whose sums could be left out")
        towards = torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
        found.append([float(one.norm() / towards.norm()) for one in torch.autograd.grad((y * towards).sum(), entering)])
    return list(zip(*found, strict=True))


def highway(model: Model, trace: Trace) -> Measured:
    """What the residual sums do to gradients, by one backward pass with and one without them."""
    first = highways(model, trace)[0]
    said = (
        f"of a gradient at the last block, {first[0]:.3g} times its length arrives at the first with the "
        f"sums, {first[1]:.3g} without"
    )
    where = (("step", f"{blocks(trace)[0]}.attention.residual"),)
    return Measured(said, "holds" if first[0] > first[1] else "sense", "trace", where)
