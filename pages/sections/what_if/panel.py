"""Panel "What if?" beside a picture: the possible changes here, and their effect on the answer.

It is drawn only while it is open, so a page without changes costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from pages.sections.what_if import before_after, controls, hidden_patches
from pages.state import session
from pages.state.visitor import HIDING, visitor
from tracer.attention import layers
from tracer.record import AttentionRecord, Step, Trace

KEY = "what if"
FACTORS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)
"""The factors of a slider."""
TOP_CLASSES = 2
"""Classes whose bars the panel draws."""
HEADS = 16
"""Heads of a block that are offered each; of more, the one on screen."""


def show(offer: Callable[[Trace], None]) -> None:
    """Draw the button that opens the panel; `offer(trace)` draws the possible changes of the run without changes.
    Nothing for a saved run, which can't be run again."""
    if session.user_input().kind == "trace":
        return
    if visitor().panel == HIDING:
        visitor().panel = ""
        st.session_state[KEY] = st.session_state[hidden_patches.COMPARED] = True
    with st.container(key="what-if"):
        panel = st.popover("What if?", icon=":material/science:", key=KEY, on_change="rerun", width="content")
    if not panel.open:
        return
    plain = session.plain_trace()
    with panel:
        offer(plain)
        trace = session.trace()
        if trace.changes:
            before_after.answer(plain, trace, "panel answer", TOP_CLASSES)
            st.button(
                "Undo the changes", key="undo in panel", icon=":material/undo:", on_click=session.change, args=((),)
            )
        else:
            st.caption("Choose a change: the model runs again with it, and the page shows both runs.")


def blocks(plain: Trace) -> None:
    """Offer the whole parts of a model: positions, and the attention, MLP, norms and residual connections of a
    block."""
    from tracer.changes import options  # torch, which pages start without

    controls.toggles("Whole model", options.of_model(plain))
    hidden_patches.show(plain)
    if known := options.blocks(plain):
        block = st.selectbox("Block", list(known), format_func=known.__getitem__, key="what if block")
        controls.toggles("In this block", options.of_block(plain, block))
    if not known and plain.steps:
        last = plain.steps[-1]
        line(plain, last)


def attention(plain: Trace, layer: int, part: str | None, head: str | None = None) -> None:
    """Offer the changes of the attention on screen: of one head, by its number in the address, and of all."""
    from tracer.changes import options  # torch, which pages start without

    record = layers(plain, part)[layer]
    title = _title(record)
    number = int(head) if head is not None and head.isdecimal() and int(head) < record.heads else None
    offered = list(options.of_attention(plain, record, number))
    controls.toggles(title, offered)
    if weights := options.attention_lines(plain, record).get("weights"):
        heads = [each for index in range(record.heads) for each in options.of_attention(plain, record, index)]
        off = [option for option in heads if option.line == weights.id and option.change.name == "drop_heads"]
        if number is None and 1 < len(off) <= HEADS:
            controls.toggles("Heads that are off", off)
    if scores := options.attention_lines(plain, record).get("scores"):
        factors = FACTORS if record.mask == "none" else FACTORS[1:]  # 0 times a closed cell, −∞, is not a number
        controls.slider("Multiply the scores by 1 / temperature", scores, factors, offered)


def _title(record: AttentionRecord) -> str:
    return f"{record.part} attention of block {record.layer + 1}".strip().capitalize()


def line(plain: Trace, step: Step) -> None:
    """Offer the changes of one line of the textbook."""
    from tracer.changes import options  # torch, which pages start without

    offered = list(options.of_step(plain, step))
    if not offered:
        st.caption("The value of this step can’t be changed by itself: it is not a tensor of floating-point numbers.")
        return
    where = options.block_title(plain, step)
    controls.toggles(f"{where}: {step.title}" if where else step.title, offered)
    controls.slider("Multiply its numbers by", step, FACTORS, offered)
