"""What the notes claim of who attends to whom, and how far."""

from __future__ import annotations

import torch

from tracer.attention import places, segments, weights
from tracer.attention.masks import reading
from tracer.figures.classes import percent
from tracer.lessons.notes.claims.inside import blocks
from tracer.lessons.notes.claims.measured import Measured
from tracer.models.shared.model import Model
from tracer.record import Trace


def whom(model: Model, trace: Trace) -> Measured:
    """Which pairs of tokens were open."""
    cells = reading.visible(trace)
    kind, open_ = trace.attentions[0].mask, float(cells.float().mean())
    said = f"{percent(open_)} of the pairs are open; mask: {kind}"
    if kind != "none" and len(named := segments(trace)) > 1:
        said += "; " + ", ".join(
            f"{one.queries} sees {percent(one.share)} of {one.keys}" for one in reading.blocks(cells, named)
        )
    fits = (open_ == 1) == (kind == "none")
    return Measured(said, "holds" if fits else "not", "mask")


def far(model: Model, trace: Trace) -> Measured:
    """How far attention looks, block by block."""
    found = distances(trace)
    unit = "patches" if trace.picture else "tokens"
    said = f"mean distance, in {unit}, by block: {', '.join(f'{one:.2f}' for one in found)}"
    return Measured(said, "holds" if max(found) > 1 else "not", "attention")


def distances(trace: Trace) -> list[float]:
    """How far a token looks on average, in each block of the first tower: in patches between the centres of two patches
    of a picture, else in tokens. Tokens that lie nowhere, such as CLS, are left out."""
    count = len(blocks(trace))
    if not count:
        raise ValueError(f"{trace.model} has no attention")
    columns = trace.picture.columns if trace.picture else 1
    lie = places(trace)
    found = []
    for layer in range(count):
        maps = weights(trace, layer, part=trace.attentions[0].part)[0].mean(0)
        tokens = torch.tensor(sorted(lie) if lie else list(range(len(maps))))
        at = torch.tensor([divmod(lie[int(t)], columns) if lie else (0, int(t)) for t in tokens]).float()
        apart = torch.cdist(at, at)
        inside = maps[tokens][:, tokens]
        found.append(float((inside * apart).sum() / inside.sum()))
    return found
