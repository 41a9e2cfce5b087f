"""Attention: the weights of every layer and head, rows of them, and rollout, against the softmaxes that ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracer.attention import rollout
from tracer.attention.image_regions import region
from tracer.record import tolerance
from tracer.verify.checks.reference_run import PlainRun, array, plain


def problems(run: PlainRun) -> Iterator[str]:
    """Compare the trace's attention with the softmaxes of the plain run, tower by tower; of models of text also for one
    of two tokens."""
    yield from _compare(run)
    if "T" in getattr(run.model.spec, "runs", ()) and run.trace.picture is None and ":" not in run.model.name:
        model = replace(run.model)
        yield from _compare(plain(model, model.inputs(T=2), model.trace(T=2, prove=False)))


def _compare(run: PlainRun) -> Iterator[str]:
    ran, lost = match_softmaxes(run)
    yield from lost
    for part, layers in ran.items():
        for layer, weights in layers.items():
            yield from _layer(run.trace, part, layer, weights)
        yield from _rollout(run.trace, part, [weights.mean(axis=1) for weights in layers.values()])
    yield from _regions(run.trace, ran)


def match_softmaxes(run: PlainRun) -> tuple[dict[str, dict[int, np.ndarray]], list[str]]:
    """Return the softmax that ran for each attention of the trace, `[B, h, S_q, S_k]`, by tower and layer, in the order
    of the run; and a sentence for each attention without a softmax."""
    left, matched, lost = iter(run.softmaxes), {}, []
    for record in run.trace.attentions:
        layers = matched.setdefault(record.part, {})
        shape = (record.queries, record.keys)
        weights = next((w for w in left if w.ndim >= 3 and w.shape[-2:] == shape and _heads(w, record.heads)), None)
        if weights is None:
            lost.append(f"no softmax of {record.heads} heads, {shape}, ran for layer {len(layers)} of {record.part!r}")
            return {}, lost
        layers[len(layers)] = np.nan_to_num(weights).reshape(-1, record.heads, *shape)
    problem = {(record.part, record.layer) for record in run.trace.attentions if record.problem}
    return {p: {n: w for n, w in each.items() if (p, n) not in problem} for p, each in matched.items()}, lost


def _heads(weights: np.ndarray, heads: int) -> bool:
    return weights.shape[-3] == heads if weights.ndim == 4 else weights.shape[0] % heads == 0


def _layer(trace, part: str, layer: int, ran: np.ndarray) -> Iterator[str]:
    where = f"layer {layer}" + (f" of {part!r}" if part else "")
    allowed = tolerance(str(trace.values[_record(trace, part, layer).q].dtype).removeprefix("torch."))
    shown = array(trace.attention(layer, part=part))
    if shown.shape != ran.shape:
        yield f"{where} has weights of shape {shown.shape}, the softmax that ran {ran.shape}"
        return
    if not abs(shown - ran).max() <= allowed:
        yield f"{where} is off by {abs(shown - ran).max():.1e} from the softmax that ran"
    for head in range(ran.shape[1]):
        query = (7 * head + 3) % ran.shape[2]
        head_rows, row = trace.attention(layer, head, part=part), trace.attention(layer, head, query, part=part)
        if not abs(array(head_rows) - ran[:, head]).max() <= allowed:
            yield f"{where}: head {head} is not the one that ran"
        if not abs(array(row) - ran[:, head, query]).max() <= allowed:
            yield f"{where}: row {query} of head {head} is not the one that ran"


def _record(trace, part: str, layer: int):
    return [record for record in trace.attentions if record.part == part][layer]


def _rollout(trace, part: str, means: list[np.ndarray]) -> Iterator[str]:
    """Check the rollout: each token keeps half of itself and reads half of others, layer after layer (Abnar and Zuidema
    2020)."""
    count = sum(record.part == part for record in trace.attentions)
    if len(means) < count or any(mean.shape != means[0].shape or mean.shape[-1] != mean.shape[-2] for mean in means):
        return
    shown = array(rollout(trace, part=part, steps=True))
    if len(shown) != count:
        yield f"rollout of {part!r} has {len(shown)} layers, the run {count}"
        return
    for first in {0, count // 2}:
        carried = np.eye(means[0].shape[-1])[None]
        for layer, mean in enumerate(means[first:], first):
            carried = 0.5 * (mean @ carried + carried)
            if first == 0 and not abs(shown[layer] - carried).max() <= 1e-5:
                yield f"rollout of {part!r} after layer {layer} is off by {abs(shown[layer] - carried).max():.1e}"
        if not abs(array(rollout(trace, part=part, start=first)) - carried).max() <= 1e-5:
            yield f"rollout of {part!r} from layer {first} on is not that of the weights that ran"


def _regions(trace, ran) -> Iterator[str]:
    """Check the attention of a word on the picture: the row of the token before it, as a grid of patches."""
    text = next((segment for segment in trace.segments if segment.name == "text" and not segment.part), None)
    image = next((segment for segment in trace.segments if segment.name == "image" and not segment.part), None)
    if trace.picture is None or text is None or image is None:
        return
    for layer, weights in ran.get("", {}).items():
        for place in {1, text.stop - text.start}:
            row = weights[0, :, text.start + place - 1, image.start : image.stop]
            for head, expected in ((None, row.mean(axis=0)), (1 % len(row), row[1 % len(row)])):
                shown = array(region(trace, place, layer, head)).ravel()
                if shown.shape != expected.shape or not abs(shown - expected).max() <= 1e-5:
                    yield f"where word {place} looks in layer {layer} is not the row of weights that ran"
