"""Scores recomputed from queries, keys and the model's ops on them, against NumPy and against attention written out
here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tracer
from tests.support.drawing import check_name, drawn_alike
from tracer.attention import weights, windows
from tracer.attention.masks import visible
from tracer.capture.score_path import SCORES, own_columns, scores_rows, sinks, softmax_columns
from tracer.verify.checks.reference_run import array, softmax

B, h, S, S_k, d = 2, 6, 5, 7, 4
INF = float("inf")


def _random_tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _links() -> Iterator[str]:
    """Check every op with one number for each score, over all rows and over some."""
    kept = {
        "bias": _random_tensor(S, S_k),
        "of heads": _random_tensor(h, S, S_k),
        "of keys": _random_tensor(S_k),
        "of both": _random_tensor(B * h, S, S_k),
        "of pairs": _random_tensor(B, 1, S, S_k),
        "cells": _random_tensor(S, S_k) > 0,
    }
    bias, cells = array(kept["bias"]), kept["cells"].numpy()
    both = array(kept["of both"]).reshape(B, h, S, S_k)
    later, i, j = np.triu(np.ones((S, S_k), bool), 1), np.arange(S)[:, None] >= 2, np.arange(S_k) >= 3
    cases: dict[str, tuple[tuple, Callable[[np.ndarray], np.ndarray]]] = {
        "add": (("add", (SCORES, "bias")), lambda s: s + bias),
        "add heads": (("add", ("of heads", SCORES)), lambda s: s + array(kept["of heads"])),
        "add both": (("add", (SCORES, "of both")), lambda s: s + both),
        "add pairs": (("add", (SCORES, "of pairs")), lambda s: s + array(kept["of pairs"])),
        "sub": (("sub", (SCORES, "of keys")), lambda s: s - array(kept["of keys"])),
        "sub from": (("sub", ("bias", SCORES)), lambda s: bias - s),
        "mul": (("mul", (SCORES, 0.5)), lambda s: s / 2),
        "div": (("div", (SCORES, 4.0)), lambda s: s / 4),
        "masked_fill": (("masked_fill", (SCORES, "cells", -INF)), lambda s: np.where(cells, -np.inf, s)),
        "masked_fill none": (("masked_fill", (SCORES, False, -INF)), lambda s: s),
        "where all": (("where", (True, SCORES, -1e9)), lambda s: s),
        "where": (("where", ("cells", SCORES, -1e9)), lambda s: np.where(cells, s, -1e9)),
        "where not": (("where", ("cells", -5.0, SCORES)), lambda s: np.where(cells, -5, s)),
        "tanh": (("tanh", (SCORES,)), np.tanh),
        "clamp": (("clamp", (SCORES, -1.0, 0.5)), lambda s: np.clip(s, -1, 0.5)),
        "clamp_min": (("clamp_min", (SCORES, -0.5)), lambda s: np.maximum(s, -0.5)),
        "clamp_max": (("clamp_max", (SCORES, 0.5)), lambda s: np.minimum(s, 0.5)),
        "minimum": (("minimum", (SCORES, "bias")), lambda s: np.minimum(s, bias)),
        "maximum": (("maximum", (SCORES, "bias")), lambda s: np.maximum(s, bias)),
        "neg": (("neg", (SCORES,)), lambda s: -s),
        "exp": (("exp", (SCORES,)), np.exp),
        "relu": (("relu", (SCORES,)), lambda s: s * (s > 0)),
        "pow": (("pow", (SCORES, 2)), lambda s: s * s),
        "causal": (("causal", (-INF,)), lambda s: np.where(later, -np.inf, s)),
        "causal by a number": (("causal", (-7.0,)), lambda s: np.where(later, -7, s)),
        "pieces": (("pieces", (2, 3, 3, 4)), lambda s: np.where(i != j, -np.inf, s)),
    }
    for groups in (h, 3, 1):
        q, k = _random_tensor(B, h, S, d), _random_tensor(B, groups, S_k, d)
        product = np.einsum("bhid,bhjd->bhij", array(q), np.repeat(array(k), h // groups, axis=1))
        for name, (link, numpy) in cases.items():
            for rows in (range(S), [3], [4, 0, 2], range(1, 5, 2)):
                given = array(scores_rows(q, k, (link,), rows, kept.get))
                expected = numpy(product)[:, :, list(rows)]
                if given.shape != expected.shape or not np.allclose(given, expected, atol=1e-12):
                    yield f"scores of {groups} heads of keys after {name}, rows {list(rows)}, are not those of NumPy"
    q, k = _random_tensor(3, S, d), _random_tensor(3, S_k, d)
    two, bias = _random_tensor(1, 1, 2, d), _random_tensor(2, 2)
    for row in (0, 1):
        given = scores_rows(two, two, (("add", (SCORES, "bias")),), [row], {"bias": bias}.get)
        if not np.allclose(
            array(given)[0, 0], (array(two)[0, 0] @ array(two)[0, 0].T + array(bias))[[row]], atol=1e-12
        ):
            yield f"row {row} of two queries takes another row of what is added"
    powers = scores_rows(q, k, (("mul", (SCORES, 0.5)), ("exp", (SCORES,)), ("log", (SCORES,))), range(S), kept.get)
    if not np.allclose(array(powers), array(q) @ array(k).swapaxes(1, 2) / 2, atol=1e-12):
        yield "three links are not run one after the other"


def _beside() -> Iterator[str]:
    """Check columns beside the keys, heads that are mixed, and rows that are closed as a whole."""
    q, k = _random_tensor(B, h, S, d), _random_tensor(B, h, S_k, d)
    product = np.einsum("bhid,bhjd->bhij", array(q), array(k))
    kept = {
        "sink": _random_tensor(h, 1, 2),
        "rest": _random_tensor(B, h, S, 1),
        "mix": _random_tensor(h, 3),
        "row": torch.ones(S, S_k).bool(),
    }
    kept["row"][1:] = False
    sink = np.broadcast_to(array(kept["sink"]), (B, h, S, 2))
    for rows in (range(S), [3, 1]):
        chosen, at = product[:, :, list(rows)], list(rows)
        cases = {
            "after": ((("cat", (SCORES, "sink")),), np.concatenate([chosen, sink[:, :, at]], -1), slice(0, S_k)),
            "before": ((("cat", ("sink", SCORES)),), np.concatenate([sink[:, :, at], chosen], -1), slice(2, 2 + S_k)),
            "at both sides": (
                (("cat", ("sink", SCORES)), ("cat", (SCORES, "rest")), ("mul", (SCORES, 0.5))),
                np.concatenate([sink[:, :, at], chosen, array(kept["rest"])[:, :, at]], -1) / 2,
                slice(2, 2 + S_k),
            ),
            "nowhere": (
                (("heads", (SCORES, "mix")),),
                np.einsum("bhij,hg->bgij", chosen, array(kept["mix"])),
                slice(7),
            ),
            "in a closed row": (
                (("masked_fill", (SCORES, "row", -INF)),),
                np.where(kept["row"].numpy()[at], -np.inf, chosen),
                slice(0, S_k),
            ),
        }
        for where, (chain, expected, own) in cases.items():
            made = array(softmax_columns(q, k, chain, rows, kept.get))
            if made.shape != expected.shape or not np.allclose(made, softmax(expected), atol=1e-12):
                yield f"weights with columns {where} of the keys are not those of NumPy"
            elif (array(own_columns(torch.from_numpy(made), chain, S_k, kept.get)) != made[..., own]).any():
                yield f"the columns {where} of the keys are taken for keys"
            if sinks(chain) != (made.shape[-1] > S_k):
                yield f"columns {where} of the keys are said to be there: {sinks(chain)}"
    for dtype in (torch.float16, torch.bfloat16):
        rows = softmax_columns(q.to(dtype), k.to(dtype), (), range(S), kept.get)
        if rows.dtype != torch.float32 or not np.allclose(array(rows), softmax(product), atol=0.1):
            yield f"rows in {dtype} are not summed in float32"


def _check_refusals() -> Iterator[str]:
    """Check that ops without one number for each score are refused."""
    q, kept = (
        _random_tensor(B, h, S, d),
        {"row": _random_tensor(1, 40), "wide": _random_tensor(h, 5 * h), "large": _random_tensor(9, B, h, S, S)},
    )
    kept |= {
        "four": _random_tensor(h, 4 * h),
        "few": _random_tensor(1, 2 * S + 59),
        "many": _random_tensor(1, 2 * S + 60),
    }
    refused = {
        "an op that nobody knows": ("sigmoid", (SCORES,)),
        "a tensor that was not kept": ("add", (SCORES, "gone")),
        "nine times as many scores": ("add", (SCORES, "large")),
        "a matrix that is not kept": ("heads", (SCORES, "gone")),
        "five heads out of one": ("heads", (SCORES, "wide")),
        "no matrix": ("heads", (SCORES, "large")),
        "no tensor beside the scores": ("cat", (SCORES, 1.0)),
        "three tensors": ("cat", (SCORES, "few", "few")),
        "more columns than keys": ("cat", (SCORES, "many")),
        "pieces of other sizes": ("pieces", (2, 2, 2, 3)),
        "pieces of fewer keys": ("pieces", (2, 2, 3, 2)),
        "pieces of less than none": ("pieces", (-1, 2, 6, 3)),
    }
    for what, link in refused.items():
        try:
            scores_rows(q, q, (link,), range(S), kept.get)
        except RuntimeError:
            continue
        yield f"{what} is taken for scores"
    for link in (("heads", (SCORES, "four")), ("pieces", (5, 5, 0, 0)), ("cat", (SCORES, "few"))):
        scores_rows(q, q, (link,), range(S), kept.get)


class _Attends(nn.Module):
    """Attention with an op on its scores, beside the weights that it ran."""

    def __init__(self, done: Callable[[Tensor, nn.Module], Tensor]):
        super().__init__()
        self.done, self.mix = done, nn.Parameter(torch.randn(h, h))
        self.sinks = nn.Parameter(torch.randn(h, 1, 1))

    def forward(self, q: Tensor, k: Tensor, v: Tensor):
        weights = self.done(q @ k.transpose(-2, -1) / 2, self).softmax(-1)
        weights = weights[..., -k.shape[-2] :]
        return weights @ v, weights


class _Grouped(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _modules() -> Iterator[str]:
    """Check the attention of small modules, its mask and one row of it."""
    upper = torch.ones(S, S).triu(1).bool()
    apart = torch.arange(S)[:, None] // 2 != torch.arange(S) // 2
    far = (torch.arange(S)[:, None] - torch.arange(S)).abs()
    none = torch.zeros(S, S).bool()
    cases: dict[str, tuple[Callable, str, Tensor]] = {
        "nothing": (lambda s, net: s, "none", none),
        "capped": (lambda s, net: 5 * torch.tanh(s / 5), "none", none),
        "causal": (lambda s, net: s.masked_fill(upper, -INF), "causal", upper),
        "causal by ten thousand": (lambda s, net: s + upper * -1e4, "causal", upper),
        "windows": (lambda s, net: s + apart * -100.0, "windows", apart),
        "a bias that falls": (lambda s, net: s - far * 6.0, "none", none),
        "a mask beside a bias": (lambda s, net: (s + far * 0.1).masked_fill(far > 2, -INF), "given", far > 2),
        "sinks": (lambda s, net: torch.cat([net.sinks.expand(B, h, S, 1), s], -1), "none", none),
        "heads": (lambda s, net: torch.einsum("bhij,hg->bgij", s, net.mix), "none", none),
    }
    for name, (done, mask, hidden) in cases.items():
        net, given = _Attends(done).eval(), [torch.randn(B, h, S, d) for _ in range(3)]
        trace = tracer.trace(net, *given, prove=False)
        record, ran = trace.attentions[0], array(net(*given)[1])
        said = [weights(trace, 0), weights(trace, 0, 4), weights(trace, 0, query=3), weights(trace, 0, 1, 2)]
        parts = (ran, ran[:, 4], ran[:, :, 3], ran[:, 1, 2])
        if record.problem or any(
            one.shape != part.shape or abs(array(one) - part).max() > 1e-6
            for one, part in zip(said, parts, strict=True)
        ):
            yield f"attention with {name} is not the one that ran {record.problem}"
        elif (record.heads, record.queries, record.keys, record.mask) != (h, S, S, mask):
            yield f"attention with {name} has {record.heads} heads, {record.queries} queries, the mask {record.mask!r}"
        elif name != "a bias that falls" and not torch.equal(visible(trace, 0, head=1, batch=1), ~hidden):
            yield f"attention with {name} is said to be open at {visible(trace).int().tolist()}"
    q, k = torch.randn(B, h, S, d), torch.randn(B, 2, S_k, d)
    trace = tracer.trace(_Grouped(), q, k, k, prove=False)
    scores = np.einsum("bhid,bhjd->bhij", array(q), np.repeat(array(k), h // 2, axis=1)) / 2
    if not abs(array(weights(trace, 0)) - softmax(scores)).max() <= 1e-6:
        yield "attention of fewer heads of keys is not the one that ran"


class _Split(nn.Module):
    """Attention in windows of three tokens; `first` tokens stay outside them."""

    def __init__(self, first: int = 0):
        super().__init__()
        self.packed, self.first = nn.Linear(8, 24), first

    def forward(self, x: Tensor):
        inside = x[:, self.first :].unflatten(1, (-1, 3)).flatten(0, 1)  # [B·n, 3, D]
        q, k, v = self.packed(inside).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return (q @ k.mT / 2).softmax(-1) @ v


class _Chosen(nn.Module):
    """Attention of some inputs of the batch alone."""

    def __init__(self, count: int):
        super().__init__()
        self.packed, self.count = nn.Linear(8, 24), count

    def forward(self, x: Tensor):
        q, k, v = self.packed(x[: self.count]).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return (q @ k.mT / 2).softmax(-1) @ v


def _windows() -> Iterator[str]:
    """Check the number of windows of an attention."""
    for net, shape, expected in (
        (_Split(), (2, 12, 8), 4),
        (_Split(1), (5, 7, 8), 2),
        (_Split(), (3, 3, 8), 1),
        (_Chosen(5), (7, 9, 8), 1),
        (_Chosen(3), (3, 9, 8), 1),
    ):
        trace = tracer.trace(net.eval(), torch.randn(shape), prove=False)
        said = windows(trace, trace.attentions[0])
        if said != expected:
            yield f"attention of {shape} is said to run in {said} windows, expected {expected}"
        flat = tracer.trace(
            nn.MultiheadAttention(8, 2, batch_first=True).eval(), *[torch.randn(shape)] * 3, prove=False
        )
        if windows(flat, flat.attentions[0]) != 1:
            yield "attention of the whole sequence is said to run in windows"


CHECKS = [_links, _beside, _check_refusals, _modules, _windows]


@pytest.mark.parametrize("problems", CHECKS, ids=check_name)
def test_scores_are_those_of_numpy(problems):
    with drawn_alike():
        assert list(problems()) == []
