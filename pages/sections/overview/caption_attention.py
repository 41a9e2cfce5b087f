"""Attention behind each word of a caption: the row that predicts it, and a test of whether it needs the picture."""

import streamlit as st

from pages import components
from pages.sections.overview import image_ablation
from pages.state import session
from pages.ui.texts import literal, plain
from tracer.figures.predictions import class_bars, model_output
from tracer.figures.tensors import image_patches
from tracer.record import Trace

MAX_WORDS = 200
"""Words that can be chosen one by one."""


def words(trace: Trace) -> None:
    """Draw the photo under the attention of the row that predicts a word, the words as choices, and a test of the
    picture's effect on them."""
    result = trace.result
    view = session.traced_view(trace)
    if view is None or not trace.attentions:
        return
    from tracer.attention.image_regions import region

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
            format_func=lambda place: literal(model_output.label_token(names[place - 1], place)),
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
    shares = region(trace, place, layer, head)
    caption = (
        f"In the row that predicts “{words_read[place - 1]}”, {_attention(known[which])} attends most to patch "
        f"{int(shares.argmax()) + 1}; {class_bars.percent(float(shares.sum()))} of the row’s attention goes to the "
        "picture."
    )
    with picture:
        st.header("Attention behind the word")
        components.drawing(image_patches.spotlight(view.photo, view.crop, shares.numpy(), caption), "spotlight")
        st.caption(plain(caption))
    query = next(segment.start for segment in trace.segments if segment.name == "text") + place - 1
    ran = f"trace.attention(layer={layer}, query={query}" + ("" if head is None else f", head={head}") + ")"
    caption = (
        f"This is the attention of {_attention(known[which])} in this run, `{ran}`: the row of "
        f"“{trace.words[place - 1]}”, the token before, which predicts the word. In Python, all counts from 0."
    )
    if measured is not None:
        caption += (
            f" This was measured on other scenes, for words of colour and shape. In {class_bars.percent(measured)} of "
            "the cases, the patch with the largest weight lies on the object that the word names."
        )
    details.caption(plain(caption))
    if session.user_input().kind != "trace":
        with below:
            image_ablation.show(place, names, layer, len(trace.attentions))


def _attention(record) -> str:
    head = record.get("head")
    return f"block {record['layer'] + 1}, " + ("the mean of its heads" if head is None else f"head {head + 1}")
