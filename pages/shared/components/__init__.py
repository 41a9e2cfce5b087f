"""Widgets that run in the browser: markup, style and script lie beside this file, and ask no server for anything."""

from functools import cache
from pathlib import Path

import streamlit as st

from tracer.figures import maps, pipeline
from tracer.record import Trace

_HERE = Path(__file__).parent


@cache
def _component(name: str, html: str = ""):
    """A component of that name out of its files."""
    read = {kind: (_HERE / f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("css", "js")}
    return st.components.v2.component(name, html=html or (_HERE / f"{name}.html").read_text(encoding="utf-8"), **read)


def attention_map(trace: Trace, layers: list[int], rollout=None, part: str | None = None) -> None:
    """The photo with its attention map; pointing, keys and choices are handled in the browser."""
    _component("attention_map")(key="attention_map", data=maps.pack(trace, layers, rollout, part))


def drawing(svg: str, key: str) -> None:
    """An SVG of `tracer.figures`, in the colours of the page."""
    _component("drawing", '<div class="slot"></div>')(key=key, data=svg)


def pipeline_map(trace: Trace) -> str | None:
    """The pipeline as a picture; returns the id of a step that was clicked."""
    component = _component("pipeline", '<div class="slot"></div>')
    return component(key="pipeline", data=pipeline.pipeline(trace), on_step_change=lambda: None).step


def operations_table(data: dict) -> str | None:
    """The table of `tracer.figures.operations_table`; returns the id of a row that was clicked."""
    component = _component("operations", '<div class="slot"></div>')
    return component(key="operations", data=data, on_row_change=lambda: None).row


def phone() -> None:
    """Closes the sidebar of a narrow screen when a page is chosen in it."""
    _component("phone", "<span></span>")(key="phone")


def copy_button(label: str, text: str, key: str) -> None:
    """A button that puts a text on the visitor's clipboard."""
    _component("copy", '<button type="button"></button>')(key=key, data={"label": label, "text": text}, width="content")
