"""Notes' claims on the pairs of tokens that attend to each other, and their distance."""

from __future__ import annotations

import torch

from tracer.attention import places, segments, weights
from tracer.attention.masks import inspection
from tracer.figures.predictions.class_bars import percent
from tracer.lessons.notes.claims.attention_inputs import blocks
from tracer.lessons.notes.claims.measurement import Measurement, verdict_of
from tracer.models.shared.spec import Model
from tracer.record import Trace

MAX_NEIGHBOUR_DISTANCE = 1.5
"""Patches or tokens at most this far apart are neighbours: on a grid, the eight around one."""


def whom(model: Model, trace: Trace) -> Measurement:
    """Measure the open pairs of tokens, by the mask and by the weights."""
    cells = inspection.visible(trace)
    kind, share = trace.attentions[0].mask, float(cells.float().mean())
    open_share = float((weights(trace, 0) > 0).float().mean())
    result = (
        f"{'there is no mask' if kind == 'none' else f'the mask is {kind}'}, and {percent(share)} of the pairs are open"
    )
    if kind != "none" and len(named := segments(trace)) > 1:
        result += "; " + ", ".join(
            f"{block.queries} sees {percent(block.share)} of {block.keys}" for block in inspection.blocks(cells, named)
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
