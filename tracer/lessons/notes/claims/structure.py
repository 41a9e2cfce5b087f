"""Notes' claims on a model's structure: its blocks, its lines in order, its code, its two paths."""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import nn

import tracer
from tracer.attention.textbook_claims import reads
from tracer.lessons.notes.claims.attention import BlockAttention, blocks
from tracer.lessons.notes.measurement import Measurement, at_step, close, of_model, off, tensor_of, verdict_of
from tracer.record import Trace
from tracer.spec.spec import Model, build_seeded
from tracer.tracing import attention_backends
from tracer.utils.text import percent, scientific

FILES = ("vision_transformer.py", "activation.py", "functional.py", "misc.py")
"""The source files that note 003 lists."""


def numbered(model: Model, trace: Trace) -> Measurement:
    """Measure whether each block has parameters of its own."""
    block_list = blocks(trace)
    named = {name: value for name, value in model.net.named_parameters(remove_duplicate=False)
             if name.startswith(tuple(f"{path}." for path in block_list))}  # fmt: skip
    own = {value.data_ptr() for value in named.values()}
    each = len(named) // max(1, len(block_list))
    return Measurement(
        f"all {len(block_list)} blocks, their parameters by name and by memory",
        f"{each} in each, {len(own)} in all, none of them shared" if len(own) == len(named) else
        f"{each} in each, {len(own)} in all, {len(named) - len(own)} of them shared",
        f"Blocks that shared theirs would have {each} in all",
        verdict_of(len(own) == len(named) == each * len(block_list)),
        "trace",
    )  # fmt: skip


def four_times(model: Model, trace: Trace) -> Measurement:
    """Measure the hidden width over the width."""
    D, hidden = model.sizes["D"], model.sizes["d_ff"]
    return Measurement(
        "the MLP of every block",
        f"here d_ff is {hidden}, which is {hidden / D:g} D",
        f"With D = {D}, 4 D is {4 * D}",
        "holds" if hidden == 4 * D else "sense",
        *of_model(model),
    )


def in_order(model: Model, trace: Trace) -> Measurement:
    """Measure all lines of the run in order: how many are verified, and whether each reads only earlier values."""
    verified = sum(step.verdict == "verified" for step in trace.steps)
    at = {step.id: number for number, step in enumerate(trace.steps)}
    pairs = [(at[step.id], at[source]) for step in trace.steps for source in reads(trace, step.id) if source in at]
    early = len({line for line, source in pairs if source > line})
    reversals = len({line for line, source in pairs if source < line})
    return Measurement(
        f"all {len(trace.steps)} lines of the run",
        f"{verified} are verified; in this order {early} lines read what comes after them",
        f"In the reverse order {reversals} would",
        verdict_of(verified == len(trace.steps) and early == 0 < reversals),
        "operations",
        (("zoom", "steps"),),
    )


def both_paths(model: Model, trace: Trace) -> Measurement:
    """Measure one attention, on the standard and on the fused path."""
    inputs = model.inputs()
    comparison = attention_backends.compare(model.net, *inputs)
    names = [way.name for way in comparison.ways]
    a, b = names.index("standard"), names.index("fused")
    error = comparison.outputs[b][a]
    rounded = copy.deepcopy(model.net)
    attention = next(module for module in rounded.modules() if isinstance(module, nn.MultiheadAttention))
    with torch.no_grad():
        attention.out_proj.weight.copy_(attention.out_proj.weight.bfloat16())
        coarse = off(rounded(*inputs), model.net(*inputs))
    return Measurement(
        "the attention of block 1, one photo",
        f"standard {len(comparison.ways[a].ops)} ops, fused {len(comparison.ways[b].ops)}; the outputs differ by "
        f"{scientific(error)}",
        f"With $W_O$ rounded to bfloat16 the model's output changes by {scientific(coarse)}",
        verdict_of(close(error) and not close(coarse)),
        "operations",
    )


def source_files(model: Model, trace: Trace) -> Measurement:
    """Measure the number of ops that ran in each source file that the note lists, and in others."""
    ran: Counter[str] = Counter()
    for op in trace.ops:
        parts = op.module.split(".") if op.module else []
        paths_above = [".".join(parts[:depth]) for depth in range(len(parts) + 1)]
        kinds = [kind for path in paths_above for kind in type(model.net.get_submodule(path)).__mro__]
        files = {_file(kind.__module__) for kind in kinds if kind.__module__.startswith("torch")}
        function = getattr(torch.nn.functional, op.function or "", None)
        if hasattr(function, "__code__"):
            files.add(_file(function.__module__))
        ran.update(files)
    missing = [file for file in FILES if not ran[file]]
    others = sorted(ran.keys() - set(FILES))
    return Measurement(
        f"{len(trace.ops)} ops, by the classes of the modules that they ran in and by the functions that were called",
        ", ".join(f"{ran[file]} ran in `{file}`" for file in FILES),
        f"Of files that the note does not list: {', '.join(f'{ran[file]} in `{file}`' for file in others)}",
        verdict_of(not missing),
        "operations",
    )


def _file(module: str) -> str:
    return f"{module.rpartition('.')[2]}.py"


def biases_optional(model: Model, trace: Trace) -> Measurement:
    """Measure a run without biases: the lines that add one, and the parameters saved."""
    layers = [module for module in model.net.modules() if isinstance(module, nn.Linear | nn.LayerNorm)]
    biased = sum(module.bias is not None for module in layers)
    lines = sum(r"\mathbf{b}" in step.latex for step in trace.steps)
    sizes = [
        _count(build_seeded(model.spec.net, {**model.sizes, **model.options, "bias": bias})) for bias in (False, True)
    ]
    own = _count(model.net)
    return Measurement(
        f"{len(layers)} linear layers and norms, {len(trace.steps)} lines of the run",
        f"{biased} of them have a bias, {lines} lines add one; the run has {own:,} parameters",
        f"With biases it has {sizes[1]:,}, that is {sizes[1] - sizes[0]:,} more",
        verdict_of(biased == lines == 0 and own == sizes[0] < sizes[1]),
        *at_step("block1.mlp.hidden"),
    )


def _count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def types_optional(model: Model, trace: Trace) -> Measurement:
    """Measure a run with type embeddings: each vector is added to its own segment alone."""
    parameters = dict(model.net.named_parameters())
    if not {"image_type", "text_type"} <= parameters.keys():
        raise ValueError(f"this {model.name} has no type embeddings")
    added = [tensor_of(trace, after) - tensor_of(trace, before)
             for before, after in (("position", "image_type"), ("text_position", "text_type"))]  # fmt: skip
    image, text = (parameters[name].detach() for name in ("image_type", "text_type"))
    error = max(
        float((difference - vector).abs().max()) for difference, vector in zip(added, (image, text), strict=True)
    )
    crossed = min(float((added[0] - text).abs().max()), float((added[1] - image).abs().max()))
    without, own = (
        _count(build_seeded(model.spec.net, {**model.sizes, **model.options, "types": types}))
        for types in (False, True)
    )
    return Measurement(
        f"{added[0].shape[1]} patches and {added[1].shape[1]} words, the largest difference",
        f"each kind of token has its own vector of {len(image)} numbers added, to within {scientific(error)}",
        f"The vector of the other kind would be off by {crossed:.2g}; a run without the option has {own - without} "
        "parameters fewer",
        verdict_of(error < 1e-5 < crossed and own - without == 2 * len(image)),
        *at_step("sequence"),
    )


def mask_optional(model: Model, trace: Trace) -> Measurement:
    """Measure the attention with the mask of this run and without any, on the same tokens and weights."""
    inside = BlockAttention(model, trace)
    with torch.no_grad():
        runs = [
            tracer.trace(copy.deepcopy(inside.module), inside.entering, **arguments, prove=False)
            for arguments in (inside.arguments, dict.fromkeys(inside.arguments))
        ]
    with_mask, without = (float((run.attention(0) > 0).float().mean()) for run in runs)
    moved = off(runs[1].output, runs[0].output)
    return Measurement(
        f"{inside.scope}, the same tokens and weights",
        f"with its mask {percent(with_mask)} of the pairs have weight; it runs without one, too, and its output "
        f"changes by {percent(moved)} of the largest value",
        f"Without the mask {percent(without)} of the pairs have weight",
        verdict_of(with_mask < without == 1 and not close(moved)),
        "mask",
    )


# Notes' claims on norms, on the MLP, and on the residual stream.


def norm_of(inside: BlockAttention) -> tuple[str, nn.Module, torch.Tensor, torch.Tensor]:
    """Return the first norm of a block: its step, its module, its input and its output, `[B, S, D]` each."""
    id = f"{inside.block}.norm1"
    module = inside.model.net.get_submodule(id)
    entering = reads(inside.trace, id)
    if not entering:
        raise ValueError(f"the norm of {inside.model.name} reads no step of the run")
    return id, module, inside.value(entering[0]), inside.value(id)


def bound(model: Model, trace: Trace) -> Measurement:
    """Measure the size of scores block by block, with norms and without them, with the same weights."""
    inside = BlockAttention(model, trace)
    id, module, x, _ = norm_of(inside)
    with torch.no_grad():
        moved = off(module(10 * x), module(x))
    with_norms, without = (score_sizes(model, trace, norms=norms) for norms in (True, False))
    with torch.no_grad():
        linear = inside.linear("query"), inside.linear("key")
        plain, larger = (_largest_product(linear[0](y), linear[1](y), inside.heads) for y in (x, 10 * x))
    products = larger / plain if plain else 1.0  # queries of zeros
    ran = float(inside.step_value("scores").masked_fill(inside.step_value("scores").isinf(), 0).abs().max())
    if not close(abs(with_norms[0] - ran) / max(ran, 1e-9)):
        raise ValueError(f"the blocks of {model.name} are not pre-norm blocks, so their norms can't be left out")
    grows = without[-1] > 2 * with_norms[-1] and products > 10
    return Measurement(
        f"all {len(with_norms)} blocks, the largest score of each; in the forward pass, training is not run",
        f"without norms and with the same weights, the largest score is {_list_numbers(without)}, block by block",
        f"With the norms it is {_list_numbers(with_norms)}. Tokens 10 times as long come out of block 1's first norm "
        f"{percent(moved)} different; without it the largest product of a query and a key is {products:.3g} times "
        "as large",
        "sense" if moved < 0.05 and grows else "not",
        *at_step(id),
    )


def _largest_product(queries: torch.Tensor, keys: torch.Tensor, heads: int) -> float:
    """Return the largest |q · k| of all queries and keys of a head, `[B, S, h·d_k]` each."""
    q, k = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in (queries, keys))
    return float((q @ k.mT).abs().max())


def _list_numbers(numbers: list[float]) -> str:
    return ", ".join(f"{number:.3g}" for number in numbers)


@torch.no_grad()
def score_sizes(model: Model, trace: Trace, *, norms: bool) -> list[float]:
    """Return the largest score of each block, in absolute value, with its norms or without.

    Raise ValueError for blocks that are not `x + attention(norm1(x))`, `x + mlp(norm2(x))`.
    """
    inside = BlockAttention(model, trace)
    y, sizes = inside.value(reads(trace, f"{inside.block}.norm1")[0]), []
    for path in blocks(trace):
        block = model.net.get_submodule(path)
        query, key = (getattr(block.attention, name, None) for name in ("query", "key"))
        if not (isinstance(query, nn.Linear) and isinstance(key, nn.Linear) and query.weight.shape == key.weight.shape):
            raise ValueError(f"{model.name} has no matrices of one shape for queries and keys")
        normed = block.norm1(y) if norms else y
        q, k = (part(normed).unflatten(-1, (inside.heads, -1)).transpose(1, 2) for part in (query, key))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if inside.is_masked:
            scores = scores.tril()
        sizes.append(float(scores.abs().max()))
        y = y + block.attention(normed, **inside.arguments)
        y = y + block.mlp(block.norm2(y) if norms else y)
    return sizes


def undo(model: Model, trace: Trace) -> Measurement:
    """Measure whether γ = σ and β = μ recover the norm's input: for one token, and for all with one γ and β."""
    id, module, x, _ = norm_of(BlockAttention(model, trace))
    centred = isinstance(module, nn.LayerNorm)
    mean = x.mean(-1, keepdim=True) if centred else torch.zeros_like(x[..., :1])
    scale = ((x - mean).square().mean(-1, keepdim=True) + (module.eps or 0)).sqrt()
    normal = (x - mean) / scale
    own, others = [], []
    for at in range(x.shape[1]):
        back = normal * scale[:, at, None] + mean[:, at, None]
        own.append(off(back[:, at], x[:, at]))
        others.append(off(back, x))
    share, least, most = max(own), min(others), max(others)
    return Measurement(
        f"block 1, its first norm, {len(own)} tokens, the largest difference over the largest value",
        f"with γ = σ and β = μ of a token, that token comes back to within {scientific(share)}",
        f"The other tokens are then off by up to {percent(least)} to {percent(most)}, depending on whose γ and β it "
        "is: these are "
        "the same for all tokens, and each token has a σ of its own",
        "not" if not close(share) else "holds" if close(most) else "sense",
        *at_step(id),
    )


def mixing(inside: BlockAttention) -> tuple[float, float, float]:
    """Return the effects of one changed token, as shares of the largest result.

    They are the changes of the MLP's and of the attention's results at the other tokens, and of the MLP's at the token
    itself.
    """
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


def mlp_alone(model: Model, trace: Trace) -> Measurement:
    """Measure whether the MLP mixes tokens."""
    inside = BlockAttention(model, trace)
    others, mixed, own = mixing(inside)
    return Measurement(
        "block 1, one token in the middle changed in sign, the largest change over the largest result",
        f"the MLP's result of that token moves by {percent(own)}, those of all others by {others:.2g}",
        f"The attention's results of the others move by {percent(mixed)}",
        verdict_of(close(others) and not close(own)),
        *at_step(f"{inside.block}.mlp.output"),
    )


def complementary(model: Model, trace: Trace) -> Measurement:
    """Measure the same change, in the attention and in the MLP."""
    inside = BlockAttention(model, trace)
    others, mixed, _ = mixing(inside)
    return Measurement(
        "block 1, one token in the middle changed in sign, the largest change over the largest result",
        f"attention moves the other tokens by {percent(mixed)}",
        f"The MLP moves them by {others:.2g}",
        verdict_of(close(others) and not close(mixed)),
        *at_step(f"{inside.block}.attention.output"),
    )


def corrections(trace: Trace) -> list[tuple[float, float]]:
    """Return for each block the norms of attention's and the MLP's results over those of their streams.

    They are means over the tokens.
    """
    pairs = []
    for path in blocks(trace):
        both = []
        for part in ("attention", "mlp"):
            total, added = tensor_of(trace, f"{path}.{part}.residual"), tensor_of(trace, f"{path}.{part}.output")
            both.append(float((added.norm(dim=-1) / (total - added).norm(dim=-1)).mean()))
        pairs.append((both[0], both[1]))
    if not pairs:
        raise ValueError(f"{trace.model} has no blocks with attention")
    return pairs


def correction(model: Model, trace: Trace) -> Measurement:
    """Measure the size of each block's correction to the identity."""
    pairs = corrections(trace)
    small = sum(pair < 1 for both in pairs for pair in both)
    return Measurement(
        f"all {len(pairs)} blocks, lengths of tokens, mean over the tokens",
        "‖O‖/‖X‖ and ‖F‖/‖X′‖ by block: " + ", ".join(f"{a:.2f} and {b:.2f}" for a, b in pairs),
        f"1 is the length of the stream that it is added to: {small} of {2 * len(pairs)} are below it",
        "holds" if small == 2 * len(pairs) else "sense" if small else "not",
        *at_step(f"{blocks(trace)[0]}.attention.residual"),
    )


DIRECTIONS = 3
"""Random directions along which a gradient is sent back."""


class GradientShare(NamedTuple):
    """Share of a gradient at the last block that arrives at the tokens that enter a block, by its norm.

    It is measured with the residual sums; through the branches alone, without the sums' skips in the backward pass but
    with the same activations; and in a network without the sums, whose activations differ.
    """

    whole: float
    branches: float
    without: float


def _run_blocks(
    inside: BlockAttention, y: torch.Tensor, skip: Callable[[torch.Tensor], torch.Tensor] = lambda y: y
) -> Iterator[torch.Tensor]:
    """Yield what enters each block, and what the last one returns, with `skip(y)` for y in each sum."""
    yield y
    for path in blocks(inside.trace):
        block = inside.model.net.get_submodule(path)
        y = skip(y) + block.attention(block.norm1(y), **inside.arguments)
        y = skip(y) + block.mlp(block.norm2(y))
        yield y


def highways(model: Model, trace: Trace) -> list[GradientShare]:
    """Return the share of the gradient that arrives at each block, a mean over fixed random directions.

    Raise ValueError for blocks that are not `x + attention(norm1(x))`, `x + mlp(norm2(x))`.
    """
    inside = BlockAttention(model, trace)
    x = inside.value(reads(trace, f"{inside.block}.norm1")[0])
    ran = inside.value(f"{blocks(trace)[-1]}.mlp.residual")
    ways = [_arriving(inside, x, skip) for skip in (lambda y: y, lambda y: y.detach(), torch.zeros_like)]
    if not all(close(off(last, ran)) for last, _ in ways[:2]):
        raise ValueError(f"the blocks of {model.name} are not pre-norm blocks, so their sums can't be left out")
    return [GradientShare(*shares) for shares in zip(*(shares for _, shares in ways), strict=True)]


@torch.enable_grad()
def _arriving(
    inside: BlockAttention, x: torch.Tensor, skip: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, list[float]]:
    """Return the last block's output, and the gradient's share at each block, with `skip(y)` for y in each sum."""
    *entering, y = _run_blocks(inside, x.detach().clone().requires_grad_(), skip)
    totals = [0.0] * len(entering)
    for seed in range(DIRECTIONS):
        towards = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
        for at, gradient in enumerate(torch.autograd.grad((y * towards).sum(), entering, retain_graph=True)):
            totals[at] += float(gradient.norm() / towards.norm()) / DIRECTIONS
    return y.detach(), totals


@torch.no_grad()
def influence(model: Model, trace: Trace) -> torch.Tensor:
    """Return the effect of each token on each at the last block's output, `[S, S]`, tokens of the first tower.

    Entry `[i, j]` is the largest change of token j over the largest value, after the sign of token i was changed where
    it enters the first block. Raise ValueError for blocks that are not `x + attention(norm1(x))`, `x + mlp(norm2(x))`.
    """
    inside = BlockAttention(model, trace)
    x = inside.value(reads(trace, f"{inside.block}.norm1")[0])[:1]
    changed = x.repeat(x.shape[1], 1, 1)
    changed.diagonal(dim1=0, dim2=1).neg_()
    (plain,), (moved,) = (deque(_run_blocks(inside, y), maxlen=1) for y in (x, changed))
    if not close(off(plain, inside.value(f"{blocks(trace)[-1]}.mlp.residual")[:1])):
        raise ValueError(f"the blocks of {model.name} are not pre-norm blocks, the kind that is run once more here")
    return (moved - plain).abs().amax(-1) / plain.abs().max()


def highway(model: Model, trace: Trace) -> Measurement:
    """Measure the effect of residual sums on gradients, beside the branches alone and a network without the sums."""
    first = highways(model, trace)[0]
    return Measurement(
        f"from the last block to the first, length over length, mean of {DIRECTIONS} random directions",
        f"with the sums {first.whole:.3g} of a gradient arrives, and through the branches alone, skips left out of the "
        f"backward pass at the same activations, {first.branches:.3g}",
        f"In a network that runs without the sums, at other activations, {first.without:.3g} arrives",
        "not" if first.whole <= first.branches else "holds" if first.whole > first.without else "sense",
        *at_step(f"{blocks(trace)[0]}.attention.residual"),
    )
