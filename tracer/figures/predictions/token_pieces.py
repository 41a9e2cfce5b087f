"""A text as its tokens, each with its id: HTML for a page, with the classes of `pieces.css`."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import plotly.graph_objects as go

from tracer.figures.palette import DIVERGING_SCALE, STAGES
from tracer.figures.svg_layout import TRANSPARENT_BACKGROUND, title

if TYPE_CHECKING:
    from tracer.record import Trace

MAX_ROWS = 24
"""Rows of a table that are drawn."""
WHITESPACE_SYMBOLS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
"""Symbols for invisible characters."""


UNKNOWN = "[UNK]"
"""The label beside the id of the unknown token."""


class TokenPiece(NamedTuple):
    """A token as it is shown: its text, its id, whether it is the unknown token, and its meaning in a few words."""

    text: str
    id: int
    unknown: bool = False
    about: str = ""


def visible(text: str) -> str:
    """Return a text with every character visible.

    Blanks are `␣`, a combining mark without a letter is on `◌`, others are numbers.
    """
    characters = []
    for character in text:
        kind = unicodedata.category(character)
        if character in WHITESPACE_SYMBOLS or kind[0] in "CZ":
            characters.append(WHITESPACE_SYMBOLS.get(character, f"U+{ord(character):04X}"))
        else:
            characters.append(f"◌{character}" if kind[0] == "M" and not characters else character)
    return "".join(characters)


def of_bytes(raw: bytes) -> str:
    """Return bytes as the characters that they encode, or as hexadecimal numbers if they encode no whole character."""
    try:
        return visible(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return raw.hex(" ").upper()


def of_run(trace: Trace) -> list[TokenPiece]:
    """Return the tokens of a run's text, with the model's ids; none if it lacks either."""
    named = dict.fromkeys(name.of for step in trace.steps for name in step.names if name.of.startswith("input "))
    for ids in (trace.values[key] for key in named if key in trace.values):
        rows = np.asarray(ids).reshape(-1, ids.shape[-1]) if ids.ndim else np.empty((0, 0))
        if rows.dtype.kind in "iu" and rows.shape[-1] == len(trace.words) > 0 and (rows == rows[:1]).all():
            return [TokenPiece(visible(word), int(id)) for word, id in zip(trace.words, rows[0], strict=True)]
    return []


def cut(label: str, pieces: Sequence[TokenPiece]) -> str:
    """Return the tokens of a text in order, side by side, the id under each, as HTML."""
    inside = "".join(map(_one, pieces))
    return f'<div class="pieces" dir="ltr" role="group" aria-label="{html.escape(label)}">{inside}</div>'


def row(name: str, facts: Sequence[str], pieces: Sequence[TokenPiece], spelled: str, chosen: bool = False) -> str:
    """Return one tokenization of a text as HTML: its name, facts of it, its tokens and the text that they decode to."""
    facts_html = "".join(f"<span>{html.escape(fact)}</span>" for fact in facts)
    here = " chosen" if chosen else ""
    return (
        f'<div class="cut{here}"><p class="facts"><strong>{html.escape(name)}</strong>{facts_html}</p>'
        f'{cut(name, pieces)}<p class="spelled">{html.escape(spelled)}</p></div>'
    )


def _one(piece: TokenPiece) -> str:
    kind = ' class="unknown"' if piece.unknown else ""
    about = f' title="{html.escape(piece.about)}"' if piece.about else ""
    number = f"{UNKNOWN} {piece.id}" if piece.unknown else piece.id
    return f"<span{kind}{about}><bdi>{html.escape(piece.text)}</bdi><i>{number}</i></span>"


def rows(ids: Sequence[int], texts: Sequence[str], vectors: np.ndarray) -> go.Figure:
    """Draw the rows of a table that ids pick, `[n, D]`, the first `MAX_ROWS` of them, each named by its id and
    token."""
    count = min(len(ids), MAX_ROWS)
    names = [
        f"{place}: {text}  <b>{id}</b>"
        for place, (id, text) in enumerate(zip(ids, map(html.escape, texts), strict=True), 1)
    ]
    heat = {
        "type": "heatmap",
        "z": np.asarray(vectors[:count], dtype=np.float32),
        "x0": 1,
        "y": list(range(1, count + 1)),
        "colorscale": DIVERGING_SCALE,
        "zmid": 0,
        "colorbar": {"thickness": 12, "title": {"text": "value"}},
        "hovertemplate": "token %{y}, feature %{x}: %{z:.3f}<extra></extra>",
    }
    layout = {
        **TRANSPARENT_BACKGROUND,
        "height": 110 + 22 * count,
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "xaxis": {"title": title("feature of the row, 1 to D", 14), "showgrid": False, "zeroline": False},
        "yaxis": {
            "autorange": "reversed", "tickvals": list(range(1, count + 1)), "ticktext": names[:count],
            "automargin": True, "showgrid": False, "zeroline": False, "title": title("place: piece, id", 14),
        },
    }  # fmt: skip
    return go.Figure({"data": [heat], "layout": layout})


TICKS = [2**power for power in range(4, 15)]
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x")


def lengths(points: Mapping[str, tuple[int, int]], curve: Sequence[tuple[int, int]], name: str) -> go.Figure:
    """Draw the number of tokens of a text over the size of the vocabulary.

    `points` has (V, n) of each tokenizer, and `curve` is that of one of them, `name`, as its vocabulary grows.
    """
    line = {
        "type": "scatter", "mode": "lines+markers", "name": name, "marker": {"size": 5},
        "x": [V for V, _ in curve], "y": [n for _, n in curve], "line": {"color": STAGES["attention"], "width": 2},
        "hovertemplate": "V = %{x:,}: n = %{y}<extra></extra>",
    }  # fmt: skip
    marks = [
        {
            "type": "scatter", "mode": "markers", "name": way, "marker": {"size": 12, "symbol": symbol},
            "x": [V], "y": [n], "hovertemplate": f"{html.escape(way)}: V = %{{x:,}}, n = %{{y}}<extra></extra>",
        }
        for symbol, (way, (V, n)) in zip(SYMBOLS, points.items(), strict=False)
    ]  # fmt: skip
    layout = {
        **TRANSPARENT_BACKGROUND,
        "height": 380,
        "margin": {"l": 10, "r": 10, "t": 10, "b": 10},
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "font": {"size": 14}},
        "xaxis": {"title": title("entries of the vocabulary, V"), "type": "log", "tickvals": TICKS, "zeroline": False},
        "yaxis": {"title": title("tokens, n"), "rangemode": "tozero", "automargin": True, "zeroline": False},
    }
    return go.Figure({"data": [line, *marks], "layout": layout})
