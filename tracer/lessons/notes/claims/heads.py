"""Notes' claims on heads: their columns, their shared parts, and the sum of their results."""

from __future__ import annotations

from math import sqrt

import torch

from tracer.export.math_labels import scientific, shape_numbers
from tracer.figures.predictions.class_bars import percent
from tracer.lessons.notes.claims.attention_inputs import BlockAttention
from tracer.lessons.notes.claims.measurement import Measurement, close, off, verdict_of
from tracer.models.shared.spec import Model
from tracer.record import Trace


def heads_are_columns(model: Model, trace: Trace) -> Measurement:
    """Measure whether each head's queries, keys and values come from d_k columns of the one matrix."""
    inside, worst, least = BlockAttention(model, trace), 0.0, float("inf")
    with torch.no_grad():
        for name in ("query", "key", "value"):
            linear, ran = inside.linear(name), inside.step_value(name)
            d_k, W = ran.shape[-1], linear.weight.T
            b = torch.zeros(W.shape[1]) if linear.bias is None else linear.bias
            for head in range(ran.shape[1]):
                columns = [at % W.shape[1] for at in range(head * d_k, (head + 1) * d_k)]
                shifted = [(at + 1) % W.shape[1] for at in columns]
                worst = max(worst, off(inside.entering @ W[:, columns] + b[columns], ran[:, head]))
                least = min(least, off(inside.entering @ W[:, shifted] + b[shifted], ran[:, head]))
    return Measurement(
        f"{inside.scope}, queries, keys and values",
        f"each head is {d_k} columns of the one matrix, to within {scientific(worst)}",
        f"Columns that begin one place later give results that are off by at least {percent(least)} of the largest",
        verdict_of(close(worst) and not close(least)),
        "trace",
        (("step", f"{inside.path}.query"),),
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
        off((q @ keys.mT / sqrt(q.shape[-1]))[visible], scores[visible]) for keys in (k, k.roll(1, dims=1))
    )
    return Measurement(
        inside.scope,
        f"at once: queries {shape_numbers(tuple(q.shape))}, scores {shape_numbers(tuple(scores.shape))}; each head's "
        f"own queries and keys give its scores, to within {scientific(alone)}",
        f"With the keys of the next head, they are off by {percent(crossed)} of the largest",
        verdict_of(close(alone) and not close(crossed)),
        "attention",
        (("block", "1"),),
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
        "attention",
        (("block", "1"),),
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
        "trace",
        (("step", f"{inside.path}.output"),),
    )
