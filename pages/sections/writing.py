"""Lesson on writing: the next token, the mask and the cache, one step against all, and padding."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import streamlit as st

from pages import components
from pages.jobs import run_cache, single_flight
from pages.state import session
from pages.state.visitor import UserInput, visitor
from pages.ui import texts, widgets
from pages.ui.screen import next_token_run
from pages.ui.texts import plain
from tracer.attention import layers
from tracer.figures import predictions
from tracer.figures.predictions import visible_token
from tracer.figures.tensors import Panel, as_array
from tracer.record import Step, Trace
from tracer.symbols import notation
from tracer.utils.errors import capitalize
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import amount, scientific, shape_numbers

if TYPE_CHECKING:
    from tracer.attention import masks
    from tracer.lessons import writing
    from tracer.lessons.writing import CacheCosts, PaddedAnswer
    from tracer.spec import decoding, results
    from tracer.tracing import counterfactual
else:  # imported when first used
    masks = lazy_import("tracer.attention.masks")
    writing = lazy_import("tracer.lessons.writing")
    decoding = lazy_import("tracer.spec.decoding")
    results = lazy_import("tracer.spec.results")
    counterfactual = lazy_import("tracer.tracing.counterfactual")


# Run on screen and the run that reads its last token after a cache, computed once for all who look at it.

DOING = "Reading the last token from a cache"
MAX_TEXTS = 64
"""Tokens whose texts the browser gets."""


class DecoderRun(NamedTuple):
    """A run of a whole text, `trace`, and of its last token after a cache, `cached`, with the costs of both.

    `logits` are those of the last token, float32 `[V]`, `names` the texts of the likeliest tokens by their numbers,
    `answers` those to its first half in a batch. `problem` says why there is no run with a cache.
    """

    trace: Trace
    logits: np.ndarray
    names: Mapping[int, str]
    cached: Trace | None = None
    costs: CacheCosts | None = None
    answers: tuple[PaddedAnswer, ...] = ()
    problem: str = ""


def current() -> DecoderRun:
    """Return the run on screen if its model writes, else that of a model that does, on its sample."""
    run = next_token_run("Your model does not write text")
    return single_flight.of_queued(run.trace, "decoder", partial(_compute, *run), DOING)


def _compute(name: str, options: run_cache.Options, chosen: UserInput, trace: Trace) -> DecoderRun:
    """Return both runs; does not use the session."""
    model = run_cache.load(name, options)
    spell = model.spec.spell or results.token_names
    logits = writing.last_logits(trace)
    best = logits.topk(min(MAX_TEXTS, len(logits))).indices.tolist()
    names = dict(zip(best, spell(model, best), strict=True))
    run = DecoderRun(trace, logits.numpy(), names)
    inputs = session.inputs(model, chosen, options)
    try:
        cached = counterfactual.check(model.trace(cache=True, **inputs))
        costs = writing.costs(trace, cached)
        answers = tuple(writing.compare_sides(model, inputs.get("text"), inputs.get("image")))
    except ValueError as error:
        return run._replace(problem=capitalize(str(error)))
    return run._replace(cached=cached, costs=costs, answers=answers)


MAX_TOKENS = 64
"""The last tokens whose mask and keys are drawn."""
PLACES = "mask", "angles", "places", "position", "text_position"
"""Lines before the blocks that differ where tokens are read from a cache."""


def show() -> None:
    """Show the whole page."""
    run = current()
    _next_token(run)
    if run.cached is None or run.costs is None:
        st.info(plain(f"There is no run with a cache. {run.problem}."))
        return
    layer = _block(run.trace)
    _growth(run, run.cached, layer)
    _costs(run, run.costs)
    _textbook(run.cached, layer)
    _padding(run)


def _next_token(run: DecoderRun) -> None:
    """Show the text, the last row of the logits, and the choice of the next token."""
    words = run.trace.words
    _text(words)
    logits = next((step for step in run.trace.steps if step.symbol == r"\mathbf{Z}"), run.trace.steps[-1])
    st.header("The last row chooses")
    st.markdown(
        f"The model returns a row of logits for every token, ${logits.symbol} \\in "
        f"{notation.shape_latex(logits.symbolic)}$ = {shape_numbers(logits.shape)}. Only the last row says what comes "
        "next: `logits[:, -1]`. Its softmax is a probability for each token of the vocabulary."
    )
    if not any(any(character.isalnum() for character in name) for name in run.names.values()):
        st.caption("This model has no tokenizer here, so its tokens have numbers in place of texts.")
    writes = _writes(run)
    components.next_token(run.logits, run.names, partial(_write, run), writes=writes, undoes=writes and len(words) > 1)


def _text(words: tuple[str, ...]) -> None:
    """Show the tokens of the text, the last one marked."""
    components.style(Path(__file__).with_name("writing.css"))
    shown = [visible_token(word) if len(word) > 1 else word for word in words]
    letters = all(len(word) == 1 for word in shown)
    between = "" if letters else " "
    before = html.escape(between.join([*shown[:-1], ""])).replace("\n", "<br>")
    last = html.escape(visible_token(words[-1]))
    st.html(f'<p class="text-so-far">{before}<mark title="the last token">{last}</mark></p>')
    st.caption(f"{len(words)} tokens. The next one is predicted from the last, which is marked.")


def _writes(run: DecoderRun) -> bool:
    """Return whether a token can be added to the text of the run on screen."""
    return visitor().instead == "" and all("token " not in name for name in list(run.names.values())[:3])


def _write(run: DecoderRun, token: int) -> None:
    """Add a token to the text on screen, or remove the last one for -1."""
    if token != -1 and token not in run.names:
        return
    words, model = list(run.trace.words), session.model()

    if model.spec.takes == ("image", "text"):
        words = words[1:]  # the begin token is not a part of the text
    vocabulary = decoding.words_of(model)
    if vocabulary:
        text = decoding.join_tokens(vocabulary, "", words[:-1] if token == -1 else [*words, run.names[token]])
    else:
        now = session.user_input().text
        before = now if now is not None else "".join(words)
        text = "".join(words[:-1]) if token == -1 else before + run.names[token]
    session.write(text)


def _block(trace: Trace) -> int:
    """Return the index of the chosen block, from 0."""
    count = len(layers(trace))
    numbers = list(range(1, count + 1))
    st.header("The mask grows by a row, the cache by a column")
    if count < 2:
        return 0
    chosen = st.segmented_control("Block", numbers, **widgets.widget("block", numbers, 1))
    return (chosen or 1) - 1


def _growth(run: DecoderRun, cached: Trace, layer: int) -> None:
    """Draw the mask of the whole run with its last row, and the keys and values with their last column."""
    components.panels(cached, ("growth", layer), partial(_panels, run, cached, layer), "growth")
    key = _line(cached, layer, "attention.key")
    last = layers(run.trace)[layer].queries
    st.markdown(
        "Without a cache, the whole triangle is computed again for each token. With it, only the last row is: the "
        f"query of token {last} meets all keys. Keys and values of the tokens before are read from the cache, and one "
        "column is appended to them."
        + (f" ${key.symbol} \\in {notation.shape_latex(key.symbolic)}$ = {shape_numbers(key.shape)}." if key else "")
    )


def _panels(run: DecoderRun, cached: Trace, layer: int) -> list[Panel]:
    record = layers(run.trace)[layer]
    first = max(0, record.keys - MAX_TOKENS)
    queries = list(range(max(0, record.queries - MAX_TOKENS), record.queries))
    open_cells = as_array(masks.whole(run.trace, queries, layer).open[0][:, first:]).astype(float)
    panels = [
        Panel(
            "Open cells of the mask", open_cells, "query", "key", first=(queries[0] + 1, first + 1), top=1.0,
            frame=("row", len(queries) - 1, f"Framed: the row of token {record.queries}, the only one that is new."),
        )
    ]  # fmt: skip
    for name, title in (("key", "Keys in the cache, head 1"), ("value", "Values in the cache, head 1")):
        step = _line(cached, layer, f"attention.{name}")
        cells = None if step is None else cached.values.get(step.value)
        if step is None or cells is None or cells.ndim != 4:
            continue
        columns = as_array(cells[0, 0]).T[:, -MAX_TOKENS:]
        frame = ("column", columns.shape[1] - 1, f"Framed: the {name} of the new token, the only one that is computed.")
        start = (1, cells.shape[2] - columns.shape[1] + 1)
        panels.append(Panel(title, columns, "feature", "token", first=start, square=False, frame=frame))
    return panels


def _line(trace: Trace, layer: int, ending: str) -> Step | None:
    """Return the step of a block whose id ends with this suffix."""
    return next((step for step in trace.steps if step.layer == layer and step.id.endswith(ending)), None)


def _costs(run: DecoderRun, costs: CacheCosts) -> None:
    """Show both runs of the last token side by side, and the cost of each token of a text."""
    length = len(run.trace.words)
    st.header("One step against all")
    without, cached = costs.flops(length)
    texts.show(
        {
            "": ["without a cache", "with the cache"],
            "tokens that go through the blocks": [str(layers(run.trace)[0].keys), "1"],
            "arithmetic": [amount(flops, "FLOP") for flops in (without, cached)],
            "memory of keys and values": ["none is kept", amount(costs.bytes(length), "B")],
        },
        alt="The last token, without a cache and with it",
    )
    same = "equal up to rounding" if costs.same else "**not the same**"
    st.markdown(
        f"Both runs give the same logits: the largest difference is {scientific(costs.difference)}, {same}. With "
        f"the cache, this token needs {without / cached:.3g} times less arithmetic. The cache grows with every token: "
        f"${notation.latex(costs.memory)}$ bytes."
    )
    most = max(2 * length, 32)
    lengths = list(range(2, most + 1))
    alone, after = zip(*map(costs.flops, lengths), strict=True)
    draw = partial(predictions.per_token, lengths, alone, after, length)
    single_flight.chart(run.trace, "decoding", draw, alt="FLOPs of each token, with a cache and without")


def _textbook(cached: Trace, layer: int) -> None:
    """Show the lines of the run with a cache that differ from those of the whole run."""
    st.header("The equations with a cache")
    lines = [step for step in cached.steps if step.id in PLACES]
    lines += [
        step
        for step in cached.steps
        if step.layer == layer and step.stage == "attention" and not step.id.endswith(("residual", "output"))
    ]
    widgets.show(lines)


def _padding(run: DecoderRun) -> None:
    """Show whether a short text in a batch with a longer one gets another answer."""
    if not run.answers:
        return
    st.header("Two texts of different lengths in one batch")
    half = len(run.trace.words) // 2
    st.markdown(
        f"A batch is a rectangle, so a shorter text is padded. Here the first half of the text, {half} tokens, runs "
        "beside the whole text, and its last logits are compared with those of the half alone."
    )
    ways = {(False, False): "no", (True, False): "mask", (True, True): "mask and positions"}
    columns = {
        "padding on the": [answer.side for answer in run.answers],
        "the model is told of it by": [ways[answer.masked, answer.placed] for answer in run.answers],
        "largest difference of a logit": [scientific(answer.difference) for answer in run.answers],
        "does the answer change?": ["yes" if answer.moves else "no, up to rounding" for answer in run.answers],
    }
    if not any(answer.masked for answer in run.answers):
        del columns["the model is told of it by"]
    texts.show(columns, alt="Padding on both sides")
    moved = {answer.side for answer in run.answers if answer.moves}
    if "left" in moved and "right" not in moved:
        st.caption(
            "On the right, the padding comes later, and a causal mask hides it anyway. On the left, the short text has "
            "other positions, and its tokens attend to the padding before them."
        )
