"""Lens: the answer as it forms, block by block, by the model's own last norm and head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from pages import components
from pages.jobs.single_flight import of
from pages.sections import mask_controls
from pages.state import session
from pages.state.visitor import PhotoView
from pages.ui import texts
from pages.ui.texts import literal, plain
from tracer.attention import parts, places
from tracer.figures import attention_maps, predictions, tensors
from tracer.figures.drawing import OTHER_COLOR, Bar, BarPart, bars, stage_colour
from tracer.figures.predictions import label_token, visible_token
from tracer.record import Trace
from tracer.utils.errors import result_or_reason, shorten
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent

if TYPE_CHECKING:
    from tracer import tracing
    from tracer.attention import head_effects, masks
    from tracer.attention.lens_answers import LensAnswer, LensAnswers
else:  # imported when first used
    head_effects = lazy_import("tracer.attention.head_effects")
    masks = lazy_import("tracer.attention.masks")
    tracing = lazy_import("tracer.tracing")


# Image ablation by the visitor: attention to the picture is masked in some blocks, and the words are predicted
# again.


@st.fragment
def show_image_ablation(place: int, names: Sequence[str], layer: int, blocks: int) -> None:
    """Show how the word at `place`, counted from 1, and the others change without the picture; of `blocks` blocks the
    one on screen, `layer`, is masked at first."""
    st.header("Does the word come from the picture? Test it")
    layers = st.segmented_control(
        "Close the picture to the words in these blocks",
        range(blocks),
        selection_mode="multi",
        default=[layer],
        format_func=lambda layer: f"block {layer + 1}",
    )
    request = mask_controls.MaskRequest.now()

    def run():
        return request.measure(masks.close_picture, tuple(sorted(layers)))

    doing = "Running the model with the picture closed"
    closed = mask_controls.once("closed", request, tuple(sorted(layers)), run, doing, where=request.queue())
    word, before, after = names[place - 1], closed.open[place - 1], closed.closed[place - 1]
    sentence = f"“{word}” has a probability of **{percent(before)}** with the picture open"
    if layers:
        sentence += f" and of **{percent(after)}** with it closed in {_blocks(sorted(layers))}"
        if closed.instead[place - 1] != closed.words[place - 1]:
            sentence += f", where “{closed.instead[place - 1]}” is the most probable"
    count = len(closed.words)
    stay = f"{_right(closed.words, closed.best)} of the {count} words are the most probable ones at their places"
    if layers:
        stay += f" with the picture open, {_right(closed.words, closed.instead)} with it closed"
    st.markdown(texts.plain(f"{sentence}. {stay}."))
    st.caption(
        "Closed means that −∞ is added to the scores of words for patches in these blocks: their weights are 0. The "
        "words keep what they read from the picture in other blocks."
    )
    with st.expander("Every word"):
        st.table(
            {
                "word": [label_token(name, number) for number, name in enumerate(names, 1)],
                "picture open": list(map(percent, closed.open)),
                "picture closed": list(map(percent, closed.closed)),
                "most probable when closed": list(closed.instead),
            },
            hide_index=True,
        )


def _right(words: Sequence[str], predicted: Sequence[str]) -> int:
    return sum(word == prediction for word, prediction in zip(words, predicted, strict=True))


def _blocks(layers: Sequence[int]) -> str:
    """Return the blocks by their numbers: "block 2", "blocks 1, 2 and 3"."""
    *first, last = (str(layer + 1) for layer in layers)
    return f"blocks {', '.join(first)} and {last}" if first else f"block {last}"


# Attention behind each word of a caption: the row that predicts it, and a test of whether it needs the picture.

MAX_WORDS = 200
"""Words that can be chosen one by one."""


def words(trace: Trace) -> None:
    """Draw the photo under the attention of the row that predicts a word, the words as choices, and a test of the
    picture's effect on them."""
    result = trace.result
    view = session.traced_view(trace)
    if view is None or not trace.attentions:
        return
    picture, below = st.columns([2, 3], gap="large")
    words_read = [*trace.words[1:], result["tokens"][0]][-MAX_WORDS:]
    names = [*words_read[:-1], f"next: {words_read[-1]}"]
    known = result.get("pointing") or [{"layer": trace.attentions[-1].layer}]
    with below:
        place = st.pills(
            f"Show the attention behind this word{' of your text' if session.user_input().text else ''}",
            range(1, len(words_read) + 1),
            default=min(3, len(words_read)),
            required=True,
            wrap=True,
            format_func=lambda place: literal(predictions.label_token(names[place - 1], place)),
        )
        details = st.expander("Which attention this is")
        which = details.segmented_control(
            "By the attention of",
            range(len(known)),
            default=0,
            required=True,
            format_func=lambda i: _attention(known[i]),
        )
    layer, head, measured = known[which]["layer"], known[which].get("head"), known[which].get("share")
    shares = head_effects.region(trace, place, layer, head)
    caption = (
        f"In the row that predicts “{words_read[place - 1]}”, {_attention(known[which])} attends most to patch "
        f"{int(shares.argmax()) + 1}; {percent(float(shares.sum()))} of the row’s attention goes to the "
        "picture."
    )
    with picture:
        st.header("Attention behind the word")
        components.drawing(tensors.spotlight(view.photo, view.crop, shares.numpy(), caption), "spotlight")
        st.caption(plain(caption))
    query = next(segment.start for segment in trace.segments if segment.name == "text") + place - 1
    ran = f"trace.attention(layer={layer}, query={query}" + ("" if head is None else f", head={head}") + ")"
    caption = (
        f"This is the attention of {_attention(known[which])} in this run, `{ran}`: the row of "
        f"“{trace.words[place - 1]}”, the token before, which predicts the word. In Python, all counts from 0."
    )
    if measured is not None:
        caption += (
            f" This was measured on other scenes, for words of colour and shape. In {percent(measured)} of "
            "the cases, the patch with the largest weight lies on the object that the word names."
        )
    details.caption(plain(caption))
    if session.user_input().kind != "trace":
        with below:
            show_image_ablation(place, names, layer, len(trace.attentions))


def _attention(record) -> str:
    head = record.get("head")
    return f"block {record['layer'] + 1}, " + ("the mean of its heads" if head is None else f"head {head + 1}")


KINDS = ("classes", "sentences", "next", "caption")
"""Kinds of results that are one of several choices."""
CHEAP = 2e9
"""FLOPs of a run up to which the lens is computed without asking."""
DOING = "Reading the answer after every block"


def has_lens(trace: Trace) -> bool:
    """Return whether a run may have a lens: it has blocks, and an answer that is one choice."""
    blocks = any(step.layer is not None for step in trace.steps)
    return blocks and trace.result.get("kind") in KINDS and session.user_input().kind != "trace"


@st.fragment
def show_lens(trace: Trace) -> None:
    """Draw the most probable answer after every block, and over the patches where the head reads one token."""
    key = f"lens of {trace.model}"
    if trace.flops > CHEAP and not st.session_state.get(key):
        if not st.button("Read the answer after every block", icon=":material/visibility:"):
            st.caption("This runs the model once more.")
            return
        st.session_state[key] = True
    lens = _answers(trace)
    if isinstance(lens, str):
        st.caption(texts.plain(f"The answer can’t be read before the last block: {lens}."))
        return
    components.drawing(of(trace, "lens", lambda: _chart(lens)), "lens")
    st.markdown(texts.plain(_describe(lens)))
    _over_photo(trace, lens)
    st.latex(lens.latex)
    over = " Over the photo, the norm and the head read the patches instead of that token."
    st.caption(
        texts.plain(
            "The model’s own last norm and head are applied to the residual stream X after every block (nostalgebraist "
            f"2020, “the logit lens”). On the last block, this equation is {lens.proof.verdict} like any line of this "
            "run. In the model, the head reads the last block alone: what it reads earlier is not an answer "
            f"that the model gives.{over if lens.answers[-1].patches is not None else ''}"
        )
    )


def _answers(trace: Trace) -> LensAnswers | str:
    request = mask_controls.MaskRequest.now().with_text_of(trace)
    make_arguments, known = session.inputs, session.options()

    def run() -> LensAnswers:
        from tracer.attention.lens_answers import lens_answers

        def again(model, inputs) -> LensAnswers:
            arguments = make_arguments(model, request.chosen, known)
            run = model.trace(**arguments, keep=tracing.AT_HAND, prove="later")
            return lens_answers(model, inputs, run, part)

        part = (parts(trace) or ("",))[0]
        try:
            return request.of(lens_answers, trace, part)
        except ValueError as error:
            if "was not kept" not in str(error):
                raise
        return request.of(again)

    return mask_controls.once("lens", request, (), partial(result_or_reason, run), DOING)


def _chart(lens: LensAnswers) -> str:
    """Draw the most probable answer after every block as bars."""
    rows = []
    for depth in lens.answers:
        colour = stage_colour("head") if depth.answer == lens.answers[-1].answer else OTHER_COLOR
        tooltip = f"{_depth(depth)}: {_short(depth.answer)} {depth.probability:.4f}"
        number = f"{_short(depth.answer)} {percent(depth.probability)}"
        rows.append(Bar(_depth(depth), [BarPart(depth.probability, colour, tooltip)], number))
    summary = "; ".join(f"{row.name}: {row.number}" for row in rows)
    ticks = {at / 4: f"{25 * at}\N{NO-BREAK SPACE}%" for at in range(5)}
    keys = [(stage_colour("head"), "the answer of the run"), (OTHER_COLOR, "another answer")]
    axes = ("read", "probability of the most probable answer")
    return bars(rows, ticks, axes, summary, "The answer as it forms", keys)


def _depth(depth: LensAnswer) -> str:
    return "before block 1" if depth.layer is None else f"after block {depth.layer + 1}"


def _short(name: str) -> str:
    return shorten(str(visible_token(name)), 40)


def _describe(lens: LensAnswers) -> str:
    """Return since when the answer stands, computed from the depths on screen."""
    *_, last = lens.answers
    answer = _short(last.answer)
    since = len(lens.answers)
    while since and lens.answers[since - 1].answer == last.answer:
        since -= 1
    if since == 0:
        return f"The run’s answer, “{answer}”, is the most probable one everywhere, even before block 1."
    before, first = lens.answers[since - 1], lens.answers[since]
    later = "" if first is last else " and after every later block"
    earlier = [_depth(depth) for depth in lens.answers[:since] if depth.answer == last.answer]
    lost = f" It was so {' and '.join(earlier)} already, and was lost again." if earlier else ""
    return (
        f"The run’s answer, “{answer}”, is the most probable one {_depth(first)}{later}. "
        f"{_depth(before).capitalize()}, the most probable is “{_short(before.answer)}”, and “{answer}” has "
        f"a probability of {percent(before.final)}.{lost}"
    )


def _over_photo(trace: Trace, lens: LensAnswers) -> None:
    """Draw over the photo how probable the head finds the answer at each patch."""
    view = session.traced_view(trace)
    if view is None or lens.answers[-1].patches is None:
        return
    numbers = range(len(lens.answers))
    at = st.select_slider(
        "Read each patch", numbers, numbers[-1], format_func=lambda at: _depth(lens.answers[at]), key="lens depth"
    )
    drawing, summary = of(trace, ("lens photo", at), lambda: _photo_map(trace, view, lens, at))
    left, _ = st.columns([2, 3])
    with left:
        components.drawing(drawing, "lens photo")
    st.caption(texts.plain(f"{summary} Lighter patches have more."))


def _photo_map(trace: Trace, view: PhotoView, lens: LensAnswers, at: int) -> tuple[str, str]:
    """Draw the probability of the run's answer at each patch, as the head reads it at a depth; with a summary."""
    answer, shares = _short(lens.answers[-1].answer), lens.answers[at].patches
    assert shares is not None  # of one depth where of another
    patches = places(trace, (parts(trace) or ("",))[0])
    grid = attention_maps.on_grid(patches, shares, view.rows, view.columns)
    best = int(grid.argmax())
    summary = (
        f"{_depth(lens.answers[at]).capitalize()}, the head gives “{answer}” the largest probability at patch "
        f"{best + 1}: {percent(float(grid.max()))}. The mean over patches is {percent(float(grid.mean()))}."
    )
    return tensors.spotlight(view.photo, view.crop, grid, summary, f"for “{answer}”"), summary
