"""What the notes claim of attention: scores, weights, and what they mix."""

from __future__ import annotations

import copy
from math import sqrt

import torch

import tracer
from tracer.attention import claims as numbers
from tracer.attention import weights
from tracer.attention.reads import reads
from tracer.figures.classes import percent
from tracer.figures.labels import scientific
from tracer.lessons.notes.claims.inside import Inside
from tracer.lessons.notes.claims.measured import Measured, close, off
from tracer.lessons.notes.found import Verdict
from tracer.models.shared.model import Model
from tracer.record import Trace

BOOK = {"circle": 1.0, "square": 2.0, "triangle": 3.0, "diamond": 4.0}
"""The dictionary that a misspelt word is looked up in."""
SHARPER = (1, 10, 100)
"""What scores are multiplied by."""


def _mixed(inside: Inside) -> torch.Tensor:
    """The values mixed by the softmax of the scores, heads side by side, `[B, S, h·d_k]`."""
    value, scores = inside.own("value"), inside.own("scores")
    value = value.repeat_interleave(scores.shape[1] // value.shape[1], dim=1)
    return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)


def mixture(model: Model, trace: Trace) -> Measured:
    """Whether what the heads return is the values mixed by the weights."""
    inside = Inside(model, trace)
    error = off(_mixed(inside), inside.value(f"{inside.path}.context"))
    said = f"values mixed by the attention weights are what the heads returned, to within {scientific(error)}"
    return Measured(said, "holds" if close(error) else "not", "attention")


def soft_lookup(model: Model, trace: Trace) -> Measured:
    """How much of the weight the key gets that fits best, at these scores and at larger ones."""
    inside = Inside(model, trace)
    scores = inside.own("scores")
    best = [float((scores * by).nan_to_num(neginf=-torch.inf).softmax(-1).amax(-1).mean()) for by in SHARPER]
    even = float((1 / scores.isfinite().sum(-1)).mean())
    said = (
        f"the key that fits best gets {percent(best[0])} of the weight on average (evenly shared: "
        f"{percent(even)}); with all "
        f"scores × 10 {percent(best[1])}, × 100 {percent(best[2])}: the larger the scores, the closer to a plain lookup"
    )
    return Measured(said, "holds" if even < best[0] <= best[1] <= best[2] else "not", "attention")


def misspelt(model: Model, trace: Trace) -> Measured:
    """A dictionary with a query that is misspelt; the run has no say in it."""
    shares, value = numbers.lookup(BOOK, "sqare")
    best = max(shares, key=lambda key: shares[key])
    said = (
        f"“sqare” in {', '.join(f'{key}: {number:g}' for key, number in BOOK.items())}: "
        f"{percent(shares[best])} {best}, value {value:.2f}"
    )
    return Measured(said, "holds" if best == "square" else "not", "notes", (("note", "claims"),))


def order(model: Model, trace: Trace) -> Measured:
    """What shuffling the tokens does to the attention, without positions and with them."""
    inside = Inside(model, trace)
    x = inside.entering
    shuffle = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))
    equivariant, invariant = numbers.shuffled(inside.attend, x, shuffle)
    said = (
        f"tokens shuffled: the result of a token then differs by {_share(equivariant)} of the largest "
        "value, the result at a "
        f"place by {_share(invariant)}"
    )
    if close(equivariant):
        said += ": the results are shuffled alike (equivariant), they are not the same (invariant)"
        return Measured(said, "not" if not close(invariant) else "holds", "attention")
    why = "its mask" if inside.masked else "what it knows of places"
    return Measured(f"{said}: here attention does see the order, by {why}", "not", "attention")


def symmetric(model: Model, trace: Trace) -> Measured:
    """One matrix for queries and keys: are scores and weights symmetric?"""
    inside = Inside(model, trace)
    tokens, width = inside.entering[0], inside.own("query").shape[-1]
    with torch.no_grad():
        scores, shared = numbers.shared_projection(tokens, inside.linear("query").weight.T[:, :width])
    score, weight = numbers.asymmetry(scores), numbers.asymmetry(shared)
    said = (
        f"with $W_Q$ for both, the scores of i with j and of j with i are {_share(score)} apart, the "
        "weights after the softmax "
        f"{_share(weight)}: each row is divided by a sum of its own"
    )
    verdict: Verdict = "holds" if close(weight) else "sense" if close(score) else "not"
    return Measured(said, verdict, "attention")


def asymmetric(model: Model, trace: Trace) -> Measured:
    """How unequally two tokens look at each other, with the model's two matrices."""
    inside = Inside(model, trace)
    if inside.masked:
        raise ValueError(f"{model.name} has a mask, so of two tokens one never sees the other")
    maps = weights(trace, 0)[0]
    head, i, j = _at((maps - maps.mT).flatten().argmax(), maps.shape)
    said = (
        f"scores differ by {_share(numbers.asymmetry(inside.own('scores')))} of the largest between i "
        "→ j and j → i; in head "
        f"{head + 1} token {i} gives token {j} {percent(float(maps[head, i, j]))} of its weight and gets "
        f"{percent(float(maps[head, j, i]))}"
    )
    return Measured(
        said, "holds" if maps[head, i, j] > maps[head, j, i] else "not", "attention", (("head", str(head + 1)),)
    )


def raw(model: Model, trace: Trace) -> Measured:
    """Attention of the tokens as they are, without projections."""
    inside = Inside(model, trace)
    tokens = inside.entering[0]
    made, _ = numbers.soft_lookup(tokens, tokens, tokens)
    own, even = float(made.diagonal().mean()), 1 / len(tokens)
    error = float((made.sum(-1) - 1).abs().max())
    said = (
        f"rows sum to 1 within {scientific(error)}; a token gives itself {percent(own)} on average "
        f"(evenly {percent(even)})"
    )
    return Measured(said, "holds" if close(error) and own > even else "not", "attention")


def routing(model: Model, trace: Trace) -> Measured:
    """Whether W_V has a say in who attends to whom: the attention once more, W_V times -2."""
    inside = Inside(model, trace)
    changed = copy.deepcopy(inside.module)
    with torch.no_grad():
        changed.value.weight.mul_(-2)
        runs = [tracer.trace(net, inside.entering, **inside.given, prove=False) for net in (inside.module, changed)]
    before, after = (run.attention(0) for run in runs)
    moved = off(runs[1].output, runs[0].output)
    said = f"with $W_V$ times -2 the weights change by {off(after, before):g}, the output by {_share(moved)}"
    return Measured(said, "holds" if torch.equal(before, after) and not close(moved) else "not", "attention")


def comparison(model: Model, trace: Trace) -> Measured:
    """How far scores follow the dot products of the tokens themselves."""
    inside = Inside(model, trace)
    scores, tokens = inside.own("scores")[0], inside.entering[0]
    plain = (tokens @ tokens.T).expand_as(scores)
    seen = scores.isfinite()
    found = float(torch.corrcoef(torch.stack([scores[seen], plain[seen]]))[0, 1])
    said = (
        f"scores and the dot products of the tokens themselves: correlation {found:.2f} (1 would be the "
        "same comparison)"
    )
    return Measured(said, "holds" if abs(found) < 0.99 else "not", "attention")


def entry(model: Model, trace: Trace) -> Measured:
    """One score as the product of one query and one key."""
    inside = Inside(model, trace)
    q, k, scores = inside.own("query"), inside.own("key"), inside.own("scores")
    i, j = min(5, q.shape[-2] - 1), min(2, k.shape[-2] - 1)
    value = float(q[0, 0, i] @ k[0, 0, j]) / sqrt(q.shape[-1])
    ran = float(scores[0, 0, i, j])
    said = f"query {i} · key {j} / √{q.shape[-1]} = {value:.4f}; the score that ran is {ran:.4f}"
    largest = float(scores[scores.isfinite()].abs().max())
    so = abs(value - ran) <= 1e-4 * largest
    return Measured(said, "holds" if so else "not", "trace", (("step", f"{inside.path}.scores"),))


def one_source(model: Model, trace: Trace) -> Measured:
    """What queries, keys and values are made of."""
    inside = Inside(model, trace)
    made = [reads(trace, f"{inside.path}.{name}")[:1] for name in ("query", "key", "value")]
    said = f"queries, keys and values are all made of `{made[0][0]}`"
    return Measured(said, "holds" if made[0] == made[1] == made[2] else "not", "trace", (("step", made[0][0]),))


def rows(model: Model, trace: Trace) -> Measured:
    """Whether every row of weights is a distribution."""
    maps = weights(trace, 0)
    error, least = float((maps.sum(-1) - 1).abs().max()), float(maps.min())
    said = (
        f"{maps.shape[:-1].numel():,} rows: each sums to 1 within {scientific(error)}, no weight is below {least:.2g}"
    )
    return Measured(said, "holds" if close(error) and least >= 0 else "not", "attention")


def spread(model: Model, trace: Trace) -> Measured:
    """The standard deviation of dot products, of random vectors and of this run's queries and keys."""
    inside = Inside(model, trace)
    width = inside.own("query").shape[-1]
    plain, scaled = (numbers.spread(width, scaled=scaled) for scaled in (False, True))
    ran = inside.own("scores")
    ran = float(ran[ran.isfinite()].std())
    said = (
        f"of random vectors with d_k = {width} numbers, products have a spread of {plain:.2f} (√d_k = "
        f"{sqrt(width):.2f}), over "
        f"√d_k {scaled:.2f}; this run's scores have {ran:.2f}, and without the scale {ran * sqrt(width):.2f}"
    )
    so = abs(plain / sqrt(width) - 1) < 0.1 and abs(scaled - 1) < 0.1
    return Measured(said, "holds" if so else "not", "notes", (("note", "claims"),))


def slopes(scores: torch.Tensor, by: float) -> float:
    """How much a row of softmax moves where its scores do, on average: the norm of diag(a) - aaᵀ, `[…, S]` scores."""
    a = (scores * by).softmax(-1)
    squares = a.square()
    return float((squares.sum(-1) - 2 * (squares * a).sum(-1) + squares.sum(-1).square()).clamp_min(0).sqrt().mean())


def gradients(model: Model, trace: Trace) -> Measured:
    """How small the softmax's gradients become as scores grow."""
    scores = Inside(model, trace).own("scores")
    several = scores[scores.isfinite().sum(-1) > 1]
    found = {by: slopes(several, by) for by in (1, 10, 100, 1000)}
    said = "the softmax's derivative, its norm on average: " + ", ".join(
        f"{value:.2g} at scores × {by:,}" for by, value in found.items()
    )
    return Measured(said, "holds" if found[1000] < 0.1 * max(found.values()) else "not", "attention")


def _at(flat: torch.Tensor, shape: torch.Size) -> tuple[int, int, int]:
    head, i, j = (int(one) for one in torch.unravel_index(flat, shape))
    return head, i, j


def _share(error: float) -> str:
    return "0" if error == 0 else scientific(error) if error < 1e-4 else percent(error)
