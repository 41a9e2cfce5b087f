"""Loss of a text as colour behind its tokens, and its gradient over the blocks."""

import html
from collections.abc import Sequence

import plotly.graph_objects as go
from PIL import Image

from tracer.figures.palette import STAGES
from tracer.figures.svg_layout import CURVES, title
from tracer.figures.tensors.image_patches import data_uri

DEEPEST = 0.65
"""Largest opacity behind a token: letters stay readable on it, on a light page and on a dark one."""
MAX_SIDE = 400
"""Pixels of a picture's longer side."""


def _shade(share: float) -> str:
    red, green, blue = (int(STAGES["position"][at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {DEEPEST * min(1.0, share):.3f})"


def colour_text(
    words: Sequence[str], losses: Sequence[float], shares: Sequence[float], guess: float, joined: bool
) -> str:
    """Return a text as HTML, with the loss of each token but the first as its background, up to that of a `guess`.

    Numbers are in titles. Tokens are `joined` as characters, or words with blanks between.
    """
    first, *rest = words
    spans = [f'<span class="unasked" title="no loss: no token precedes it">{_token_html(first)}</span>']
    for word, loss, share in zip(rest, losses, shares, strict=True):
        label = f"{word!r}: p = {share:.3g}, −log p = {loss:.3g}"
        spans.append(
            f'<span style="background:{_shade(loss / guess)}" title="{html.escape(label)}">{_token_html(word)}</span>'
        )
    ends = f"{_shade(0)}, {_shade(1)}"
    scale = (
        '<div class="loss-scale"><span>0: certain</span>'
        f'<div style="background:linear-gradient(to right, {ends})"></div>'
        f"<span>{guess:.2f} = ln V: as good as a random guess</span></div>"
    )
    text = ("" if joined else " ").join(spans)
    return f'<div class="loss-text" data-figure="The text by its loss">{text}</div>{scale}'


def _token_html(word: str) -> str:
    return "⏎\n" if word == "\n" else html.escape(word)


def hatch(image: Image.Image, rows: int, columns: int) -> str:
    """Draw the picture that a model sees, hatched: no logits belong to its patches."""
    width, height = image.size
    lines = "".join(f"M{x * width / columns:g} 0V{height}" for x in range(1, columns))
    lines += "".join(f"M0 {y * height / rows:g}H{width}" for y in range(1, rows))
    large = image.resize((MAX_SIDE, round(MAX_SIDE * height / width)), Image.Resampling.NEAREST)
    thin = 'fill="none" vector-effect="non-scaling-stroke"'
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" style="display:block;width:100%;max-width:16rem" '
        f'aria-label="The picture in {rows} × {columns} patches, all hatched: they have no targets">'
        f'<defs><pattern id="unasked" width="{width / 16:g}" height="{width / 16:g}" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="{width / 32:g}" height="{width / 16:g}" fill="#7a8494" '
        'fill-opacity="0.75"/></pattern></defs>'
        f'<image href="{data_uri(large)}" width="{width}" height="{height}"/>'
        f'<rect width="{width}" height="{height}" fill="url(#unasked)"/>'
        f'<path d="{lines}" stroke="#fff" stroke-opacity="0.8" {thin}/></svg>'
    )


def gradients(whole: Sequence[float], branches: Sequence[float]) -> go.Figure:
    """Draw the norms of ∂loss/∂X over the blocks, with the residual path and without, on a logarithmic scale."""
    x = list(range(len(whole)))
    lines = [
        {
            "type": "scatter", "mode": "lines+markers", "x": x, "y": list(values), "name": name,
            "line": {"color": STAGES[stage], "width": 3}, "marker": {"size": 9, "symbol": mark},
            "hovertemplate": "X<sup>(%{x})</sup>: %{y:.3g}<extra></extra>",
        }
        for name, values, stage, mark in (
            ("with the residual path", whole, "patches", "circle"),
            ("through attention and MLPs only", branches, "attention", "square"),
        )
    ]  # fmt: skip
    layout = {
        **CURVES,
        "height": 380,
        "xaxis": {"title": title("ℓ: the stream after block ℓ, 0 before the first", 14), "dtick": 1},
        "yaxis": {"title": title("norm of ∂loss/∂X", 14), "type": "log", "dtick": 1, "exponentformat": "power"},
    }
    return go.Figure({"data": lines, "layout": layout}, skip_invalid=False)
