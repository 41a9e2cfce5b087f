"""Run without changes beside the changed one: the answer, the attention, the equations and the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import streamlit as st

from pages import components
from pages.jobs.render_cache import of
from pages.state import session, url_state
from pages.ui import data_tables, texts
from tracer.attention import layers, places
from tracer.figures.matrix_panels import Panel, edge
from tracer.figures.predictions import class_bars, model_output
from tracer.figures.tensors.heatmap import as_array
from tracer.record import CHANGED_SUFFIX, Step, Trace

ROW_SUM_TOLERANCE = 0.01
"""Tolerance of a row's sum of weights around 1, in the least exact of the dtypes."""
MIN_DIGITS_CHANGE = 0.05
"""Percentage points below which a change is told in words."""
LINES, ROWS = 6, 12
"""Most equations, and most rows of numbers."""
WIDTH = 640
"""Pixels that the bars take at most."""
CLASSES = {"classes": "classes", "sentences": "sentences", "next": "tokens", "labels": "classes"}
"""Where a result of a kind holds the names of its shares."""
BARS = ("classes", "sentences", "next")
"""Kinds of results whose bars the overview draws."""
PIXELS = "labels"
"""Kind of results with a class for each pixel."""
WORDS = ("caption", "tokens")
"""Kinds of results that are words."""


def show(
    trace: Trace, shown: tuple[int, str] | None = None, query: int = 0, head: str = "mean", with_answer: bool = True
) -> None:
    """Draw both runs side by side below the picture; nothing for a plain run, or a saved one. `shown` is the layer and
    the tower whose attention is on screen, `query` and `head` the defaults where the address names no other."""
    if not trace.changes or session.user_input().kind == "trace":
        return
    plain = session.plain_trace()
    st.header("Before and after the changes")
    if with_answer:
        with st.container(width=WIDTH):
            answer(plain, trace, "answer before and after")
    if shown is not None:
        place = st.query_params.get("head", head), st.query_params.get("query", str(query))
        attention(plain, trace, *shown, *place)
    if lines := changed_lines(trace):  # none where only an input was changed
        if step := components.equations(trace, lines[:LINES], "equations changed"):
            url_state.open_step(step)
        first = f" These are the first {LINES} of {len(lines)} such lines; the page Trace has all of them."
        left_out = first if len(lines) > LINES else ""
        st.caption(
            "A tensor that is changed directly has a caron, as in $\\check{\\mathbf{A}}$; others follow from it. "
            f"The verdicts are those of this run.{left_out}"
        )
    numbers(plain, trace)


def shares(result: Mapping[str, Any]) -> tuple[list[str], list[float]] | None:
    """Return the names and probabilities of a result, or None if it has none."""
    names = result.get(CLASSES.get(str(result.get("kind")), ""))
    each = result.get("probabilities", result.get("shares"))
    if not isinstance(names, Sequence) or not isinstance(each, Sequence) or len(names) != len(each):
        return None
    return [model_output.visible_token(str(name)) for name in names], [float(share) for share in each]


def answer(plain: Trace, trace: Trace, key: str, top: int = class_bars.TOP) -> None:
    """Draw the answer of both runs: bars of the `top` classes with arrows where it has probabilities, else in words."""
    before, after = shares(plain.result), shares(trace.result)
    if before and after:
        axis = {"next": "token", "sentences": "sentence"}.get(str(trace.result.get("kind")), "class")
        value = "share of the pixels" if trace.result.get("kind") == PIXELS else "probability"
        bars = of(trace, ("comparison", axis, top), lambda: class_bars.comparison(before, after, axis, top, value))
        components.drawing(bars, key)
        st.markdown(texts.plain(sentence(plain, trace)))
        return
    if trace.result.get("kind") in WORDS:
        answers = [texts.plain(model_output.short(run.result)) for run in (plain, trace)]
        same = "The answer is the same." if answers[0] == answers[1] else "The answer differs."
        st.table({"": ["before", "after"], "what the model answers": answers}, hide_index=True)
        st.caption(same)


def sentence(plain: Trace, trace: Trace) -> str:
    """Return a sentence on the likeliest name before and after, in Markdown; "" for results without probabilities."""
    both = [shares(run.result) for run in (plain, trace)]
    if None in both:
        return ""
    if trace.result.get("kind") == PIXELS:
        return _of_pixels(*(np.asarray(run.result["labels"]) for run in (plain, trace)))
    first, now = (class_bars.ranking(*each)[0][0] for each in both if each)
    before, after = (dict(zip(*each, strict=True)) for each in both if each)
    if first == now:
        points = class_bars.points(before[now], after[now])
        if abs(points) < MIN_DIGITS_CHANGE:
            share = class_bars.percent(after[now])
            return f"The answer stays **{texts.escape(now)}**, and its probability hardly changes: it is {share}."
        way = "more" if points > 0 else "less"
        return f"The answer stays **{texts.escape(now)}**, {abs(points):.1f} percentage points {way} probable."
    return f"The answer changes from **{texts.escape(first)}** to **{texts.escape(now)}**."


def _of_pixels(before: np.ndarray, after: np.ndarray) -> str:
    if before.shape != after.shape:
        return ""
    differing = float((before != after).mean())
    if not differing:
        return "No pixel changes its class."
    return f"**{class_bars.percent(differing)}** of the pixels change their class."


def attention(plain: Trace, trace: Trace, layer: int, part: str, head: str, query: str) -> None:
    """Draw the attention of one layer before and after, and the difference: of a head and a query, as an address names
    them."""
    if len(layers(trace, part)) <= layer or any(layers(run, part)[layer].problem for run in (plain, trace)):
        return
    record = layers(trace, part)[layer]
    number = int(head) if head.isdecimal() and int(head) < record.heads else None
    counts = {layers(run, part)[layer].queries for run in (plain, trace)}
    at = int(query) if query.isdecimal() and int(query) < min(counts) else 0
    key = "attention before and after", layer, part, number, at
    components.panels(
        trace, key, partial(_attention_panels, plain, trace, layer, part, number, at), "attention changed"
    )
    which = "mean over the heads" if number is None else f"head {number + 1}"
    common = f" Only the first {min(counts)} tokens are drawn, which both runs have." if len(counts) > 1 else ""
    st.caption(f"Block {layer + 1}, {which}. Before and after share one scale.{common}")
    key = "concentration", layer, part, number
    st.markdown(texts.plain(of(trace, key, partial(_concentration_of, plain, trace, layer, part, number))))


def _concentration_of(plain: Trace, trace: Trace, layer: int, part: str, head: int | None) -> str:
    weights = [as_array(run.attention(layer, part=part))[0] for run in (plain, trace)]
    return concentration(*(each.mean(0, keepdims=True) if head is None else each[[head]] for each in weights))


def concentration(before: np.ndarray, after: np.ndarray) -> str:
    """Return how concentrated attention is before and after, from weights `[h, S_q, S_k]`: the largest weight of a row
    and its entropy, means over queries."""
    if any(np.nanmax(np.abs(weights.sum(-1) - 1)) > ROW_SUM_TOLERANCE for weights in (before, after)):
        return "Not every row of these weights sums to 1, so how concentrated they are can’t be compared."
    largest = [class_bars.percent(float(np.nanmean(weights.max(-1)))) for weights in (before, after)]
    rows = [(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1) for weights in (before, after)]
    entropies = [-float(np.nanmean(row)) for row in rows]
    first, last = (f"{entropy:.2f}" for entropy in entropies)
    if first == last:
        return f"Attention is as concentrated as before: the entropy of a row is {first} nats, a mean over all queries."
    way, what = ("falls", "more concentrated") if entropies[1] < entropies[0] else ("rises", "more spread out")
    return (
        f"Attention is {what} than before: the entropy of a row {way} from {first} to {last} nats, and its largest "
        f"weight goes from {largest[0]} to {largest[1]}. Both are means over all queries."
    )


def _attention_panels(plain: Trace, trace: Trace, layer: int, part: str, head: int | None, query: int) -> list[Panel]:
    maps = [as_array(run.attention(layer, part=part))[0] for run in (plain, trace)]
    maps = [each.mean(0) if head is None else each[head] for each in maps]
    axes, where = ("query", "key"), ""
    patches, picture = places(trace, part), trace.picture
    if picture is not None and patches and maps[0].shape[1] > max(patches):
        maps = [_on_patches(each[query], patches, picture.rows, picture.columns) for each in maps]
        axes, where = ("row", "column"), f" of token {query + 1}"
    if maps[0].shape != maps[1].shape:  # a model that reads its own text may write a longer one
        rows, columns = map(min, *(each.shape for each in maps))
        maps = [each[:rows, :columns] for each in maps]
    top, difference = float(np.nanmax(maps)) or 1.0, maps[1] - maps[0]
    return [
        Panel(f"Attention{where} before", maps[0], *axes, first=(1, 1), top=top, weights=True),
        Panel(f"Attention{where} after", maps[1], *axes, first=(1, 1), top=top, weights=True),
        Panel("After − before", difference, *axes, first=(1, 1), edge=edge(difference)),
    ]


def _on_patches(row: np.ndarray, patches: Mapping[int, int], rows: int, columns: int) -> np.ndarray:
    """Return the weights of one query on the grid of patches; a patch that is not a token has none."""
    grid = np.full(rows * columns, np.nan)
    for token, patch in patches.items():
        grid[patch] = row[token]
    return grid.reshape(rows, columns)


def changed_lines(trace: Trace) -> list[Step]:
    """Return the lines of the changes, and those that read a changed tensor."""
    lines = [step for step in trace.steps if step.id.endswith(CHANGED_SUFFIX)]
    symbols = [step.symbol for step in lines]
    readers = [step for step in trace.steps if step not in lines and any(each in step.latex for each in symbols)]
    return sorted((*lines, *readers), key=trace.steps.index)


def numbers(plain: Trace, trace: Trace) -> None:
    """Draw how far the lines of both runs differ: the changed ones, the residual stream after each block, the last."""
    rows = of(trace, "differences", lambda: differences(plain, trace))
    if not rows:
        return
    with st.expander("How far the change spreads, in numbers"):
        shown = rows if len(rows) <= ROWS else [*rows[: ROWS - 1], rows[-1]]
        columns = ("step", "largest difference", "as a share of the largest value before")
        data_tables.show(dict(zip(columns, zip(*shown, strict=True), strict=True)), alt="Differences of both runs")
        st.caption("Differences are between the tensor of the step before and after the changes, cell by cell.")


def differences(plain: Trace, trace: Trace) -> list[tuple[str, str, str]]:
    """Return the title of each line that is displayed in numbers, the largest difference of both runs, and its share of
    the largest value."""
    from tracer.changes import options  # torch, which pages start without
    from tracer.record.comparison import compare  # for the same reason

    ends = {step.layer: step.id for step in trace.steps if step.layer is not None and step.id.endswith("residual")}
    wanted = {*ends.values(), trace.steps[-1].id} | {
        step.id for step in trace.steps if step.id.endswith(CHANGED_SUFFIX)
    }
    rows = []
    for row in compare(plain, trace).rows:
        if row.id in wanted and row.values.difference is not None:
            title = ", ".join(filter(None, (options.block_title(trace, row.step), row.step.title)))
            share = "" if row.values.relative is None else class_bars.percent(row.values.relative)
            rows.append((title, f"{row.values.difference:.3g}", share))
    return rows
