"""Notes' claims on attention: scores, weights, and the mixture of values."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import cached_property
from math import log, sqrt
from typing import Any, NamedTuple

import torch
from torch import nn

import tracer
from tracer.attention import masks, places, segments, weights
from tracer.attention import textbook_claims as numbers
from tracer.attention.textbook_claims import reads
from tracer.lessons.notes.measurement import FIRST_BLOCK, Measurement, at_step, close, off, tensor_of, verdict_of
from tracer.lessons.notes.statements import Verdict
from tracer.record import Trace
from tracer.spec.spec import Model
from tracer.utils.text import percent, scientific, shape_numbers

# One attention of a run in parts: its input, its results, and the module itself to run on other tokens.


class BlockAttention:
    """Attention of one block.

    Raise ValueError, in a sentence, for a model without an attention that can be taken apart, and for a run that did
    not keep its tensors.
    """

    def __init__(self, model: Model, trace: Trace, layer: int = 0):
        if len(trace.attentions) <= layer:
            raise ValueError(f"{model.name} has no attention {layer + 1}")
        record = trace.attentions[layer]
        self.model, self.trace, self.record, self.path = model, trace, record, record.module
        self.block, self.layer = self.path.rpartition(".")[0], layer
        self.ids = {step.id for step in trace.steps}
        if not {f"{self.path}.{name}" for name in ("query", "key", "value", "scores", "context")} <= self.ids:
            raise ValueError(f"the attention of {model.name} is not written out in steps of its own")

    def value(self, id: str) -> torch.Tensor:
        """Return the tensor of a step."""
        return tensor_of(self.trace, id)

    def step_value(self, name: str) -> torch.Tensor:
        """Return the tensor of a step of this attention, such as "query"; a single head gets an axis of its own too."""
        value = self.value(f"{self.path}.{name}")
        return value[:, None] if value.dim() == 3 and name not in ("context", "output") else value

    @property
    def heads(self) -> int:
        """Number of heads of the queries."""
        return self.step_value("query").shape[1]

    @property
    def scope(self) -> str:
        """Block and the heads of this attention, in words."""
        part = f" of the {self.record.part}" if self.record.part else ""
        return f"block {self.layer + 1}{part}, {f'all {self.heads} heads' if self.heads > 1 else 'its one head'}"

    @cached_property
    def weights(self) -> torch.Tensor:
        """Attention weights that ran, `[B, h, S, S]`; computed from queries and keys if the run kept none."""
        id = f"{self.path}.weights"
        known = id in self.ids and self.trace.value(id) is not None
        return self.step_value("weights") if known else self.trace.attention(self.layer, part=self.record.part)

    @cached_property
    def entering(self) -> torch.Tensor:
        """Input of queries, `[B, S, D]`."""
        return self.value(reads(self.trace, f"{self.path}.query")[0])

    @cached_property
    def module(self) -> nn.Module:
        """Attention itself."""
        return self.model.net.get_submodule(self.path)

    @cached_property
    def arguments(self) -> dict[str, Any]:
        """Arguments of the attention besides the tokens, by name, as in this run."""
        names = list(inspect.signature(self.module.forward).parameters)[1:]
        part = self.path.rpartition("block")[0]
        return {name: self.value(f"{part}{name}") if f"{part}{name}" in self.ids else None for name in names}

    @cached_property
    def attend(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Attention as a function of tokens `[B, S, D]`, mask and all else as in this run."""

        @torch.no_grad()
        def attend(x: torch.Tensor) -> torch.Tensor:
            return self.module(x, **self.arguments)

        return attend

    @cached_property
    def is_masked(self) -> bool:
        """True if some pair of tokens was closed."""
        return bool(torch.isinf(self.step_value("scores")).any())

    def linear(self, name: str) -> nn.Linear:
        """Return the matrix of queries, keys or values, as a module."""
        layer = getattr(self.module, name, None)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"{self.model.name} has no matrix of its own for {name}")
        return layer


def blocks(trace: Trace) -> list[str]:
    """Return the paths of the blocks of the first tower."""
    first = trace.attentions[0].part if trace.attentions else ""
    return [record.module.rpartition(".")[0] for record in trace.attentions if record.part == first]


BOOK = {"circle": 1.0, "square": 2.0, "triangle": 3.0, "diamond": 4.0}
"""The dictionary that a misspelt word is looked up in."""
MISSPELT_QUERY, UNRELATED_QUERY = "sqare", "boy"
"""The queries: a misspelt word, and a word that shares no pair of letters with any key."""
SHARPER = (1, 10, 100)
"""Factors of the scores."""
DRAWS = 8
"""Random projections of a baseline."""


def _mix(inside: BlockAttention, scores: torch.Tensor) -> torch.Tensor:
    """Return the values mixed by the softmax of the scores, heads side by side, `[B, S, h·d_k]`."""
    value = inside.step_value("value")
    value = value.repeat_interleave(scores.shape[1] // value.shape[1], dim=1)
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def _even(scores: torch.Tensor) -> torch.Tensor:
    """Return scores that share the weight evenly over the open keys."""
    return torch.zeros_like(scores).masked_fill(scores.isinf(), -torch.inf)


def mixture(model: Model, trace: Trace) -> Measurement:
    """Measure whether the output of the heads is the values mixed by the weights."""
    inside = BlockAttention(model, trace)
    scores, context = inside.step_value("scores"), inside.value(f"{inside.path}.context")
    error, even = off(_mix(inside, scores), context), off(_mix(inside, _even(scores)), context)
    return Measurement(
        inside.scope,
        f"values mixed by the attention weights are what the heads returned, to within {_share(error)}",
        f"Mixed evenly, they would be off by {_share(even)} of the largest value",
        verdict_of(close(error) and not close(even)),
        *FIRST_BLOCK,
    )


def soft_lookup(model: Model, trace: Trace) -> Measurement:
    """Measure the weight of the best-fitting key, at these scores and at larger ones."""
    inside = BlockAttention(model, trace)
    scores = inside.step_value("scores")
    best = [float((scores * by).nan_to_num(neginf=-torch.inf).softmax(-1).amax(-1).mean()) for by in SHARPER]
    even = float((1 / scores.isfinite().sum(-1)).mean())
    return Measurement(
        f"{inside.scope}, mean over {scores.shape[-2]} queries",
        f"the key that fits best gets {percent(best[0])} of the weight; with all scores × 10 {percent(best[1])}, "
        f"× 100 {percent(best[2])}: the larger the scores, the closer this is to a plain lookup",
        f"Shared evenly, each key gets {percent(even)}",
        verdict_of(even < best[0] < best[1] <= best[2]),
        *FIRST_BLOCK,
    )


def misspelt(model: Model, trace: Trace) -> Measurement:
    """Measure a lookup with a misspelt query in a dictionary; it does not depend on the run."""
    shares, value = numbers.lookup(BOOK, MISSPELT_QUERY)
    unrelated, _ = numbers.lookup(BOOK, UNRELATED_QUERY)
    best, chance = max(shares, key=lambda key: shares[key]), max(unrelated.values())
    return Measurement(
        f"a dictionary of {len(BOOK)} keys, words compared by their pairs of letters",
        f"“{MISSPELT_QUERY}” in {', '.join(f'{key}: {number:g}' for key, number in BOOK.items())}: "
        f"{percent(shares[best])} {best}, value {value:.2f}",
        f"“{UNRELATED_QUERY}”, which is like no key, gives no key more than {percent(chance)}",
        verdict_of(best == "square" and shares[best] > chance),
    )


def order(model: Model, trace: Trace) -> Measurement:
    """Measure the effect of shuffled tokens on the attention, without positions and with them."""
    inside = BlockAttention(model, trace)
    x = inside.entering
    shuffle = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))
    equivariant, invariant = numbers.shuffle_effect(inside.attend, x, shuffle)
    mean = off(inside.attend(x[:, shuffle]).mean(1), inside.attend(x).mean(1))
    result = (
        f"tokens shuffled: the result of a token then differs by {_share(equivariant)} of the largest value, the "
        f"result at a position by {_share(invariant)}"
    )
    if close(equivariant):
        result += ": the results are shuffled in the same way (equivariant), but they do not stay the same (invariant)"
    else:
        result += f": here attention does see the order, through {'its mask' if inside.is_masked else 'its positions'}"
    return Measurement(
        inside.scope,
        result,
        f"The mean over all tokens differs by {_share(mean)}",
        verdict_of(close(equivariant) and close(invariant)),
        *FIRST_BLOCK,
    )


def symmetric(model: Model, trace: Trace) -> Measurement:
    """Measure whether scores and weights are symmetric with one matrix for queries and keys."""
    inside = BlockAttention(model, trace)
    tokens, width = inside.entering[0], inside.step_value("query").shape[-1]
    apart = []
    with torch.no_grad():
        for columns in inside.linear("query").weight.T.split(width, 1):
            apart.append([numbers.asymmetry(difference) for difference in numbers.shared_projection(tokens, columns)])
    score, weight = (max(column) for column in zip(*apart, strict=True))
    own = numbers.asymmetry(inside.step_value("scores").nan_to_num(neginf=0.0))
    verdict: Verdict = "holds" if close(weight) else "sense" if close(score) else "not"
    return Measurement(
        f"{inside.scope}, largest |M − Mᵀ| over largest |M|",
        f"with $W_Q$ for both, the scores of i with j and of j with i differ by {_share(score)}; the weights after "
        f"the softmax are {', '.join(_share(difference) for _, difference in apart)}, head by head, "
        "since each row is divided by a sum of its own",
        f"With the model's own $W_Q$ and $W_K$, the scores differ by {_share(own)}",
        verdict,
        *FIRST_BLOCK,
    )


def asymmetric(model: Model, trace: Trace) -> Measurement:
    """Measure how unequal the scores of a pair of tokens are in both directions, with the model's two matrices."""
    inside = BlockAttention(model, trace)
    if inside.is_masked:
        raise ValueError(f"{model.name} has a mask, so of two tokens, one never sees the other")
    maps, own = inside.weights[0], numbers.asymmetry(inside.step_value("scores"))
    width = inside.step_value("query").shape[-1]
    with torch.no_grad():
        columns = inside.linear("query").weight.T[:, :width]
        shared = numbers.asymmetry(numbers.shared_projection(inside.entering[0], columns)[0])
    head, i, j = map(int, torch.unravel_index((maps - maps.mT).argmax(), maps.shape))
    there, back = float(maps[head, i, j]), float(maps[head, j, i])
    place = (("block", "1"), ("head", str(head + 1)))
    return Measurement(
        f"block 1, the scores of all heads and the two tokens that differ most, in head {head + 1}",
        f"scores differ by {_share(own)} of the largest between i → j and j → i; token {i + 1} gives token {j + 1} "
        f"{percent(there)} of its weight and gets {percent(back)}",
        f"With $W_Q$ for both, the scores differ by {_share(shared)}",
        verdict_of(not close(own) and close(shared) and there > 2 * back),
        "attention",
        place,
    )


def raw(model: Model, trace: Trace) -> Measurement:
    """Measure attention of the tokens without projections."""
    inside = BlockAttention(model, trace)
    tokens = inside.entering[0]
    weights, _ = numbers.soft_lookup(tokens, tokens, tokens)
    own, even = float(weights.diagonal().mean()), 1 / len(tokens)
    heads = float(inside.weights[0].diagonal(dim1=-2, dim2=-1).mean())
    error = float((weights.sum(-1) - 1).abs().max())
    return Measurement(
        f"block 1, the tokens that enter it, mean over {len(tokens)} of them",
        f"rows sum to 1 within {scientific(error)}; a token gives itself {percent(own)}",
        f"Shared evenly, it is {percent(even)}, and in the block's own heads {percent(heads)}",
        verdict_of(close(error) and own > 1.01 * even),
        *FIRST_BLOCK,
    )


def routing(model: Model, trace: Trace) -> Measurement:
    """Measure the effect of W_V on the weights.

    The attention runs again with W_V times -2, and with one matrix for keys and values.
    """
    inside = BlockAttention(model, trace)
    inside.linear("value")

    def attend(shared: bool, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        net = copy.deepcopy(inside.module)
        net.value.weight.mul_(factor)
        if shared:
            net.key.load_state_dict(net.value.state_dict())
        run = tracer.trace(net, inside.entering, **inside.arguments, prove=False)
        return run.attention(0), run.output

    with torch.no_grad():
        apart, coupled = ([attend(shared, factor) for factor in (1.0, -2.0)] for shared in (False, True))
    weights, moved = off(apart[1][0], apart[0][0]), off(apart[1][1], apart[0][1])
    tied = off(coupled[1][0], coupled[0][0])
    return Measurement(
        inside.scope,
        f"with $W_V$ times −2, the weights change by {_share(weights)} of the largest, the output by {_share(moved)}",
        f"With one matrix for keys and values, the same change moves the weights by {_share(tied)}",
        verdict_of(weights == 0 and not close(moved) and not close(tied)),
        *FIRST_BLOCK,
    )


def comparison(model: Model, trace: Trace) -> Measurement:
    """Measure how far scores follow the dot products of the tokens themselves, beside random projections."""
    inside = BlockAttention(model, trace)
    scores, tokens = inside.step_value("scores")[0], inside.entering[0]
    plain, visible = (tokens @ tokens.T).expand_as(scores), scores.isfinite()
    correlation = _correlation(scores[visible], plain[visible])
    random, width = torch.Generator().manual_seed(0), inside.step_value("query").shape[-1]
    projections = [tokens @ torch.randn(tokens.shape[-1], width, generator=random) for _ in range(DRAWS)]
    chance = sum(_correlation((sample @ sample.T)[visible[0]], plain[0][visible[0]]) for sample in projections) / DRAWS
    return Measurement(
        f"{inside.scope}, all pairs together",
        f"scores and the dot products of the tokens themselves have a correlation of {correlation:.2f} (1 would be the "
        "same comparison)",
        f"One random matrix to {width} numbers for both keeps {chance:.2f}",
        verdict_of(correlation < chance),
        *FIRST_BLOCK,
    )


def _correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a, b]))[0, 1])


def entry(model: Model, trace: Trace) -> Measurement:
    """Measure one score as the product of one query and one key."""
    inside = BlockAttention(model, trace)
    q, k, scores = inside.step_value("query"), inside.step_value("key"), inside.step_value("scores")
    i, j = min(5, q.shape[-2] - 1), min(2, k.shape[-2] - 1)
    value, next_key = (float(q[0, 0, i] @ k[0, 0, at]) / sqrt(q.shape[-1]) for at in (j, j - 1))
    ran = float(scores[0, 0, i, j])
    largest = float(scores[scores.isfinite()].abs().max())
    return Measurement(
        f"{inside.scope.partition(',')[0]}, head 1",
        f"query {i + 1} · key {j + 1} / √{q.shape[-1]} = {value:.4f}; the score that ran is {ran:.4f}",
        f"With key {j} it would be {next_key:.4f}",
        verdict_of(abs(value - ran) <= 1e-4 * largest < abs(next_key - ran)),
        *at_step(f"{inside.path}.scores"),
    )


def one_source(model: Model, trace: Trace) -> Measurement:
    """Measure whether queries, keys and values are computed from the same tokens."""
    inside = BlockAttention(model, trace)
    sources = [reads(trace, f"{inside.path}.{name}")[0] for name in ("query", "key", "value")]
    output = reads(trace, f"{inside.path}.output")[0]
    names = list(dict.fromkeys(sources))
    result = f"`{names[0]}`, all three" if len(names) == 1 else ", ".join(f"`{name}`" for name in sources)
    return Measurement(
        f"{inside.scope.partition(',')[0]}, the line that each reads",
        f"queries, keys and values are computed from {result}",
        f"The attention's output is computed from another line, `{output}`",
        verdict_of(len(names) == 1 and output not in names),
        *at_step(sources[0]),
    )


def rows(model: Model, trace: Trace) -> Measurement:
    """Measure whether every row of weights is a distribution."""
    inside = BlockAttention(model, trace)
    maps, scores = inside.weights, inside.step_value("scores")
    error, least = float((maps.sum(-1) - 1).abs().max()), float(maps.min())
    sums = scores.masked_fill(scores.isinf(), 0).sum(-1)
    return Measurement(
        f"{inside.scope}, {maps.shape[:-1].numel():,} rows of weights",
        f"each sums to 1 within {scientific(error)}, no weight is below {least:.2g}",
        f"Before the softmax, the rows sum to between {float(sums.min()):.3g} and {float(sums.max()):.3g}",
        verdict_of(close(error) and least >= 0),
        *FIRST_BLOCK,
    )


def spread(model: Model, trace: Trace) -> Measurement:
    """Measure the standard deviation of dot products, of random vectors and of this run's queries and keys."""
    inside = BlockAttention(model, trace)
    width = inside.step_value("query").shape[-1]
    plain, scaled = (numbers.spread(width, scaled=scaled) for scaled in (False, True))
    scores = inside.step_value("scores")
    ran = float(scores[scores.isfinite()].std())
    so = abs(plain / sqrt(width) - 1) < 0.1 and abs(scaled - 1) < 0.1
    nearer = abs(log(ran)) < abs(log(ran * sqrt(width))) if ran else False
    result = (
        f"products of random vectors with d_k = {width} numbers have a standard deviation of {plain:.2f} (√d_k = "
        f"{sqrt(width):.2f}) and a variance of {plain**2:.1f}; divided by √d_k, their standard deviation is "
        f"{scaled:.2f}"
    )
    beside = "which the scale brings nearer to 1" if nearer else "which is nearer to 1 than with the scale"
    return Measurement(
        f"random vectors, and on the scores of {inside.scope}",
        result,
        f"This run's scores have a standard deviation of {ran:.2f}, and without the scale {ran * sqrt(width):.2f}, "
        f"{beside}",
        "not" if not so else "holds" if nearer else "sense",
        *at_step(f"{inside.path}.scores"),
    )


def slopes(scores: torch.Tensor, by: float) -> float:
    """Return the mean sensitivity of softmax to its scores `[…, S]`, times `by`: the norm of diag(a) - aaᵀ.

    It is computed in float64: near a weight of 1, the terms cancel.
    """
    a = (scores.double() * by).softmax(-1)
    squares = a.square()
    return float((squares.sum(-1) - 2 * (squares * a).sum(-1) + squares.sum(-1).square()).clamp_min(0).sqrt().mean())


def gradients(model: Model, trace: Trace) -> Measurement:
    """Measure how the softmax's gradients change as scores grow, and without the scale of this run."""
    inside = BlockAttention(model, trace)
    scores, width = inside.step_value("scores"), inside.step_value("query").shape[-1]
    several = scores[scores.isfinite().sum(-1) > 1]
    own, unscaled = slopes(several, 1), slopes(several, sqrt(width))
    by_scale = {by: slopes(several, by) for by in (10, 100, 1000)}
    even = slopes(_even(several), 1)
    falls = by_scale[1000] < 0.1 * max(own, unscaled, *by_scale.values())
    rises = (
        f"it rises first, up to × {max(by_scale, key=by_scale.__getitem__):,}, " if max(by_scale.values()) > own else ""
    )
    return Measurement(
        f"{inside.scope}, the norm of the softmax's derivative, mean over the rows",
        f"{own:.2g} at this run's scores, {unscaled:.2g} without its 1/√d_k (× {sqrt(width):.3g}); "
        + ", ".join(f"{value:.2g} at × {by:,}" for by, value in by_scale.items())
        + (f": {rises}and falls for still larger ones" if falls and rises else ""),
        f"Evenly shared weights have {even:.2g}",
        "not" if not falls else "holds" if unscaled < own else "sense",
        *at_step(f"{inside.path}.scores"),
    )


def _share(error: float) -> str:
    return "0" if error == 0 else scientific(error) if error < 1e-4 else percent(error)


# Notes' claims on the pairs of tokens that attend to each other, and their distance.

MAX_NEIGHBOUR_DISTANCE = 1.5
"""Patches or tokens at most this far apart are neighbours: on a grid, the eight around one."""


def whom(model: Model, trace: Trace) -> Measurement:
    """Measure the open pairs of tokens, by the mask and by the weights."""
    cells = masks.visible(trace)
    kind, share = trace.attentions[0].mask, float(cells.float().mean())
    open_share = float((weights(trace, 0) > 0).float().mean())
    result = (
        f"{'there is no mask' if kind == 'none' else f'the mask is {kind}'}, and {percent(share)} of the pairs are open"
    )
    if kind != "none" and len(named := segments(trace)) > 1:
        result += "; " + ", ".join(
            f"{block.queries} sees {percent(block.share)} of {block.keys}" for block in masks.blocks(cells, named)
        )
    count = cells.shape[-1]
    causal = (count + 1) / (2 * count)
    fits = (share == 1) == (kind == "none") and abs(open_share - share) < 1e-6
    return Measurement(
        "block 1, all heads, pairs of a query and a key",
        f"{result}; {percent(open_share)} of the pairs have weight",
        f"A causal mask over {count} tokens leaves {percent(causal)} of the pairs open, and no mask leaves 100\u00a0%",
        verdict_of(fits),
        "mask",
    )


def far(model: Model, trace: Trace) -> Measurement:
    """Measure the mean distance of attention, block by block, beside evenly shared attention."""
    mean_distances, even, beyond = distances(trace), even_distance(trace), beyond_neighbours(trace)
    unit = "patches" if trace.picture else "tokens"
    farther = sum(distance > even for distance in mean_distances)
    return Measurement(
        f"all {len(mean_distances)} blocks, mean over heads and queries, distance between centres in {unit}",
        f"the mean distance is {', '.join(f'{distance:.2f}' for distance in mean_distances)}, block by block; "
        f"{percent(beyond)} of the weight lies beyond the next neighbours",
        f"Shared evenly over the same {unit}, it would be {even:.2f}: {farther} of {len(mean_distances)} blocks look "
        "farther",
        "holds" if farther > len(mean_distances) / 2 else "sense" if beyond > 0.5 else "not",
        "attention",
    )


def _grid(trace: Trace) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of the first tower that have a position, and their distances."""
    if not blocks(trace):
        raise ValueError(f"{trace.model} has no attention")
    columns, lie = trace.picture.columns if trace.picture else 1, places(trace)
    count = trace.attentions[0].queries
    tokens = torch.tensor(sorted(lie) if lie else list(range(count)))
    at = torch.tensor([divmod(lie[int(t)], columns) if lie else (0, int(t)) for t in tokens]).float()
    return tokens, torch.cdist(at, at)


def _maps(trace: Trace, layer: int, tokens: torch.Tensor) -> torch.Tensor:
    """Return the weights of a block between those tokens, mean over heads, `[n, n]`."""
    maps = weights(trace, layer, part=trace.attentions[0].part)[0].mean(0)
    return maps[tokens][:, tokens]


def distances(trace: Trace) -> list[float]:
    """Return the mean distance of attention in each block of the first tower.

    It is in patches between the centres of two patches of a picture, else in tokens. Tokens without a position, such as
    CLS, are left out.
    """
    tokens, apart = _grid(trace)
    maps = [_maps(trace, layer, tokens) for layer in range(len(blocks(trace)))]
    return [float((weights_of_block * apart).sum() / weights_of_block.sum()) for weights_of_block in maps]


def even_distance(trace: Trace) -> float:
    """Return the mean distance if each token shared its weight evenly over its open keys."""
    tokens, apart = _grid(trace)
    even = (_maps(trace, 0, tokens) > 0).float()
    even /= even.sum(-1, keepdim=True)
    return float((even * apart).sum() / even.sum())


def beyond_neighbours(trace: Trace) -> float:
    """Return the share of the weight of all blocks beyond a token itself and its next neighbours."""
    tokens, apart = _grid(trace)
    maps = torch.stack([_maps(trace, layer, tokens) for layer in range(len(blocks(trace)))])
    return float((maps * (apart > MAX_NEIGHBOUR_DISTANCE)).sum() / maps.sum())


# Notes' claims on heads: their columns, their shared parts, and the sum of their results.


class HeadColumns(NamedTuple):
    """Largest difference of heads from what their own columns of the matrix give, and the least from what columns that
    begin one place later give."""

    error: float
    shifted: float


@torch.no_grad()
def head_columns(inside: BlockAttention, name: str) -> HeadColumns:
    """Compute each head's "query", "key" or "value" alone, from its d_k columns of the one matrix."""
    linear, ran = inside.linear(name), inside.step_value(name)
    d_k, W, worst, least = ran.shape[-1], linear.weight.T, 0.0, float("inf")
    b = torch.zeros(W.shape[1]) if linear.bias is None else linear.bias
    for head in range(ran.shape[1]):
        columns = [at % W.shape[1] for at in range(head * d_k, (head + 1) * d_k)]
        shifted = [(at + 1) % W.shape[1] for at in columns]
        worst = max(worst, off(inside.entering @ W[:, columns] + b[columns], ran[:, head]))
        least = min(least, off(inside.entering @ W[:, shifted] + b[shifted], ran[:, head]))
    return HeadColumns(worst, least)


def heads_are_columns(model: Model, trace: Trace) -> Measurement:
    """Measure whether each head's queries, keys and values come from d_k columns of the one matrix."""
    inside = BlockAttention(model, trace)
    parts = [head_columns(inside, name) for name in ("query", "key", "value")]
    worst, least = max(part.error for part in parts), min(part.shifted for part in parts)
    d_k = inside.step_value("query").shape[-1]
    return Measurement(
        f"{inside.scope}, queries, keys and values",
        f"each head is {d_k} columns of the one matrix, to within {scientific(worst)}",
        f"Columns that begin one place later give results that are off by at least {percent(least)} of the largest",
        verdict_of(close(worst) and not close(least)),
        *at_step(f"{inside.path}.query"),
    )


def side_by_side(model: Model, trace: Trace) -> Measurement:
    """Measure the heads' own scores, each computed alone."""
    inside = BlockAttention(model, trace)
    if inside.heads < 2:
        raise ValueError(f"{model.name} has one head")
    q, k, scores = inside.step_value("query"), inside.step_value("key"), inside.step_value("scores")
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    visible = scores.isfinite()
    alone, crossed = (
        off((q @ keys.mT / sqrt(q.shape[-1]))[visible], scores[visible]) for keys in (k, k.roll(-1, dims=1))
    )
    return Measurement(
        inside.scope,
        f"at once: queries {shape_numbers(tuple(q.shape))}, scores {shape_numbers(tuple(scores.shape))}; each head's "
        f"own queries and keys give its scores, to within {scientific(alone)}",
        f"With the keys of the next head, they are off by {percent(crossed)} of the largest",
        verdict_of(close(alone) and not close(crossed)),
        *FIRST_BLOCK,
    )


def heads_differ(model: Model, trace: Trace) -> Measurement:
    """Measure the distance of two heads' weights: total variation, 0 if they are equal, 1 if disjoint."""
    inside = BlockAttention(model, trace)
    maps = inside.weights
    if maps.shape[1] < 2:
        raise ValueError(f"{model.name} has one head")
    pairs = torch.triu_indices(maps.shape[1], maps.shape[1], 1)
    mean = float((maps[:, pairs[0]] - maps[:, pairs[1]]).abs().sum(-1).mean()) / 2
    queries = float((maps[:, :, 1:] - maps[:, :, :-1]).abs().sum(-1).mean()) / 2
    return Measurement(
        f"{inside.scope}, the share of the weight that lies elsewhere, mean over pairs of heads",
        f"two heads put {percent(mean)} of their weight in different places",
        f"Two neighbouring queries of one head differ by {percent(queries)}",
        "holds" if mean > max(queries, 1e-3) else "sense" if mean > 1e-3 else "not",
        *FIRST_BLOCK,
    )


def merged(model: Model, trace: Trace) -> Measurement:
    """Measure whether the output is the sum of all heads' results through their rows of W_O."""
    inside = BlockAttention(model, trace)
    context, output = inside.value(f"{inside.path}.context"), inside.value(f"{inside.path}.output")
    linear, h = inside.linear("output"), inside.heads
    bias = 0 if linear.bias is None else linear.bias
    with torch.no_grad():
        rows = linear.weight.chunk(h, 1)
        error, moved = (
            off(sum(part @ W.T for part, W in zip(heads.chunk(h, -1), rows, strict=True)) + bias, output)
            for heads in (context, context.roll(1, -1))
        )
    return Measurement(
        inside.scope,
        f"the output is the sum of its heads ({h}), each through its own rows of $W_O$, to within {scientific(error)}",
        f"Through rows that begin one place later, it is off by {percent(moved)} of the largest",
        verdict_of(close(error) and not close(moved)),
        *at_step(f"{inside.path}.output"),
    )
