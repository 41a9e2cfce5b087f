"""Model outputs below the film, each kind of result in its own form: whatever the film's answer does not show
already."""

from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

import numpy as np
import streamlit as st

from pages import components
from pages.jobs.render_cache import chart, of
from pages.sections.overview import caption_attention, generation
from pages.sections.what_if import before_after
from pages.state import session
from pages.ui import data_tables
from pages.ui.texts import has_random_weights, plain
from tracer.figures.payload_budget import ROWS
from tracer.figures.predictions import class_bars, model_output
from tracer.inputs import images
from tracer.inputs.synthetic.scenes import VOCABULARY
from tracer.record import Trace
from tracer.utils.error_text import shorten

BYTES = (
    "This model has no tokenizer here{why}. The {count} bytes of the text are used as token ids, and the answer is a "
    "token id without a text."
)


def show(trace: Trace, filmed: bool) -> None:
    """Show the result of a run; where it is `filmed`, without the parts that the film shows. A result of an unknown
    kind is skipped; one that a file stores wrongly is reported."""
    if form := FORMS.get(kind(trace)):
        with _as_recorded():
            form(trace.result, trace, filmed)


def kind(trace: Trace) -> str:
    """Return the kind of a run's result, a key of `FORMS` if it is known."""
    return str(trace.result.get("kind"))


@contextmanager
def _as_recorded():
    """Report a malformed result: it comes from an uploaded file, whose results nobody checked."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, MemoryError):
        st.caption("The answer recorded in this run can’t be read.")


def result_text(trace: Trace) -> str:
    """Return the text of a run."""
    return shorten(("" if all(len(word) == 1 for word in trace.words) else " ").join(trace.words), FREE_TEXT)


def further_views(trace: Trace, filmed: bool) -> dict[str, Callable[[], None]]:
    """Return further views of a result by name, each drawn when called; `filmed` if the page begins with a film."""
    if kind(trace) == "reconstruction":
        return {"What it draws": partial(_draw_reconstruction, trace)}
    if kind(trace) == "labels" and filmed:  # else the map is in place of the film
        return {"The class of every pixel": partial(_draw_labels, trace)}
    if kind(trace) != "caption":
        return {}
    writes = {} if session.user_input().kind == "trace" else {"Watch it write": partial(_write_caption, trace)}
    return {"Behind each word": partial(_behind, trace), **writes}


FREE_TEXT = 100_000
"""Letters of a text that is shown; of a longer one the beginning and the end."""
MAX_FEW_CLASSES = 20
"""Classes that are so few that most of what there is to see is none of them."""


def _bars(trace: Trace, title: str, names, shares, axis: str, what: str, count: int | None, filmed: bool) -> None:
    """Draw the likeliest classes as bars where the film does not, or those of both runs of a change; `what` names them
    in the plural, `count` is the number of classes of the model."""
    ranked = class_bars.ranking([shorten(model_output.visible_token(name)) for name in names], shares)
    first, most = [name for name, _ in ranked], [share for _, share in ranked]
    if trace.changes and session.user_input().kind != "trace":
        st.header(plain(shorten(title, 200)))
        before_after.answer(session.plain_trace(), trace, "bars")
    elif not filmed:
        st.header(plain(shorten(title, 200)))
        components.drawing(of(trace, ("bars", axis), lambda: class_bars.bars(first, most, axis=axis)), "bars")
    st.caption(plain(class_bars.caption(shares, what, count, None if filmed else class_bars.TOP)))


def _classes(result, trace, filmed) -> None:
    names, shares = result["classes"], result["probabilities"]
    best = class_bars.ranking(names, shares)[0][0]
    title = "What random weights say" if has_random_weights(trace) else "The answer"
    _bars(trace, f"{title}: {best}", names, shares, "class", "classes", len(names), filmed)
    if 1 < len(names) <= MAX_FEW_CLASSES and not has_random_weights(trace):
        st.caption(f"It knows only {len(names)} classes and must pick one of them, whatever you show it.")
    chosen = session.user_input()
    if chosen.kind == "sample" and images.shows_none(chosen.name, names):
        st.caption("This photo shows none of the classes that the model knows, but the model must choose one of them.")


def _vocabulary(trace: Trace) -> int | None:
    """Return the size of the vocabulary: a result holds the likeliest tokens only."""
    return next((size.value for size in trace.symbols if size.name == "V"), None)


def _next(result, trace, filmed) -> None:
    first, unit = class_bars.ranking(result["tokens"], result["probabilities"])[0][0], result.get("unit", "character")
    bare = result.get("stand_in") == "bytes"
    if bare:
        why = ", because the name of a family has none" if has_random_weights(trace) else ""
        st.info(BYTES.format(why=why, count=len(result["text"])), icon=":material/abc:")
    shown_token = first if bare else repr(model_output.visible_token(first))
    title = f"Most probable next: {shown_token}"
    _bars(
        trace, title, result["tokens"], result["probabilities"], f"next {unit}", f"{unit}s", _vocabulary(trace), filmed
    )
    if unit == "character":
        generation.show(trace, unit)


def _tokens(result, trace, filmed) -> None:
    unit, between = result.get("unit", "token"), " " if "unit" in result else ""  # characters stand without spaces
    if not filmed:
        source, answer = (shorten(between.join(result[name]), FREE_TEXT) for name in ("text", "tokens"))
        st.header("The answer")
        st.code(f"{source}\n→\n{answer}", language=None)
    if result.get("stand_in") == "bytes":
        st.info(BYTES.format(why="", count=len(result["text"])), icon=":material/abc:")
    answer = f"The answer is the most probable {shorten(str(unit))} at each position."
    if (pad := result.get("pad")) and pad in result["text"]:
        answer += f" A text that is too short is padded with “{pad}”."
    place = int(np.argmin(result["probabilities"]))
    least = f"“{model_output.visible_token(result['tokens'][place])}” at position {place + 1}"
    answer += f" The least certain, {least}, has a probability of {class_bars.percent(result['probabilities'][place])}."
    st.caption(plain(answer))
    with st.expander("Each position and its probability"):
        data_tables.show(
            {
                "position": list(range(1, len(result["tokens"][:ROWS]) + 1)),
                "in": [model_output.visible_token(token) for token in result["text"][:ROWS]],
                "out": [model_output.visible_token(token) for token in result["tokens"][:ROWS]],
                "probability": [class_bars.percent(share) for share in result["probabilities"][:ROWS]],
            },
            alt="The most probable token at each position",
        )


def _caption(result, trace, filmed) -> None:
    if not filmed:
        st.header(plain(f"The caption: {result['caption'] or '(none)'}"))
    if result["tokens"][0] != VOCABULARY[1]:
        title = f"Then comes: {result['tokens'][0]}"
        _bars(
            trace, title, result["tokens"], result["probabilities"], "next word", "tokens", _vocabulary(trace), filmed
        )
        return
    if all(record.mask == "none" for record in trace.attentions):
        st.caption("Without a mask, each word is predicted from the picture and all words, also those that come later.")
    else:
        st.caption("Each word is predicted from the picture and the words before it.")


def _behind(trace: Trace) -> None:
    with _as_recorded():
        caption_attention.words(trace)


def _write_caption(trace: Trace) -> None:
    generation.show(trace, "word", again="the caption", end=VOCABULARY[1])


def _sentences(result, trace, filmed) -> None:
    best = class_bars.ranking(result["sentences"], result["probabilities"])[0][0]
    title, count = f"The answer: {best}", len(result["sentences"])
    _bars(trace, title, result["sentences"], result["probabilities"], "sentence", "sentences", count, filmed)
    if count == 1:
        st.caption("There is only one sentence to choose from: a softmax over one choice is always 100 %.")


def _labels(result, trace, filmed) -> None:
    if not filmed:
        _draw_labels(trace)


def _draw_labels(trace: Trace) -> None:
    """Draw the label map over the photo."""
    with _as_recorded():
        _label_map(trace.result, trace)


def _label_map(result, trace) -> None:
    shares = {name: share for name, share in zip(result["classes"], result["shares"], strict=True) if share}
    shares_text = ", ".join(f"{name} {class_bars.percent(share)}" for name, share in shares.items())
    view = session.traced_view(trace)
    opacity = st.slider("How much of the photo the labels cover", 0, 100, 100, format="%d %%") if view else 100
    draw = partial(model_output.label_map, result["labels"], result["classes"], view and view.image, opacity / 100)
    chart(trace, ("labels", opacity), draw, alt=f"Label map over the photo: {shares_text}")


def _reconstruction(result, trace, filmed) -> None:
    error = np.asarray(result["anomaly"], dtype=float)
    row, column = np.unravel_index(int(error.argmax()), error.shape)
    st.header(f"Hardest to predict: row {row + 1}, column {column + 1}")
    most = float(error.max())
    sentence = f"The patch in row {row + 1}, column {column + 1} is the hardest to predict from the others."
    draw = partial(model_output.panel, error, "error in grey levels of 255", "patch", (0, most))
    chart(trace, "error", draw, alt=f"The prediction error, patch by patch. {sentence}")
    st.caption(
        "The prediction error, patch by patch: every patch was hidden in turn and predicted from others, in separate "
        f"runs that are not traced. The scale ends at the largest error of this picture, {most:.3g} grey levels. Even "
        "a flawless surface has a brightest patch, so one bright patch alone is not a defect."
    )


def _draw_reconstruction(trace: Trace) -> None:
    """Draw the input and the output of a model that reconstructs."""
    with _as_recorded():
        _panels(trace.result, trace)


def _panels(result, trace) -> None:
    pixels = np.asarray(result["pixels"], dtype=float).mean(axis=-1)
    count, dark, light = np.asarray(result["anomaly"]).shape, float(pixels.min()), float(pixels.max())
    panels, view = {}, session.traced_view(trace)
    if view is not None:
        panels["What the encoder sees"] = (
            model_output.visible(np.asarray(view.image.convert("L")), result["visible"], *count),
            "Patches that are hidden from the encoder are plain blue-grey, as on the Attention page. The contrast is "
            "the same as in the predicted picture.",
        )
    panels["The predicted picture"] = (
        pixels,
        "Patches that the encoder saw are copied from the photo; the others are predicted. The contrast is stretched: "
        f"black is grey level {dark:.0f} of 255, white is {light:.0f}.",
    )
    for place, (name, (values, about)) in zip(st.columns(2), panels.items(), strict=False):
        with place:
            st.markdown(f"**{name}**")
            draw = partial(model_output.panel, values, ends=(dark, light))
            chart(trace, ("panel", name), draw, alt=f"{name}. {about}")
            st.caption(about)
    st.caption(
        f"In the traced run, the encoder saw {len(result['visible'])} of {np.prod(count)} patches, and the decoder "
        "predicted the others."
    )


def _embedding(result, trace, filmed) -> None:
    *_, tokens, width = (int(size) for size in result["shape"])
    whose = f"each of {tokens:,} tokens" if len(result["shape"]) > 2 else "the whole input"
    st.header("What comes out")
    st.markdown(
        f"One vector of {width:,} numbers for {whose}, of mean length {float(result['norm']):.3g}. This model has no "
        "head, so it gives no answer by itself. Other programs compare its vectors, or train a head on them."
    )


def _none(result, trace, filmed) -> None:
    st.header("No answer")
    lacks = list(result["lacks"])
    missing = ", ".join(shorten(str(name)) for name in lacks[:4]) + (
        f" and {len(lacks) - 4} others" if len(lacks) > 4 else ""
    )
    st.markdown(
        plain(
            f"The files of this checkpoint lack {missing}. Seeded random numbers take their place, so the output of "
            "the head means nothing and is not shown."
        )
    )


def _tensors(result, trace, filmed) -> None:
    shapes = list(result["shapes"].items())
    st.header("What comes out")
    listing = "".join(f"\n- {shorten(str(name))}: {shorten(str(shape))}" for name, shape in shapes[:12])
    st.markdown(plain(f"The output consists of tensors that this page cannot draw. Their shapes:{listing}"))
    if len(shapes) > 12:
        st.caption(f"and {len(shapes) - 12} others")


FORMS: dict[str, Callable] = {
    "none": _none,
    "classes": _classes,
    "next": _next,
    "tokens": _tokens,
    "caption": _caption,
    "sentences": _sentences,
    "labels": _labels,
    "reconstruction": _reconstruction,
    "embedding": _embedding,
    "tensors": _tensors,
}
