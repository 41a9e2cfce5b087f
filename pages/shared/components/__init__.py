"""Widgets that run in the browser: markup, style and script lie beside this file, and ask no server for anything."""

from functools import cache
from pathlib import Path

import streamlit as st

from pages.shared.pictures import of
from pages.shared.visitor import Key
from tracer.figures import maps, pipeline
from tracer.record import Trace

_HERE = Path(__file__).parent


MAP = ("packed", "words", "colour", "photo", "matrix", "controls", "main")
"""The scripts of the attention map, in `attention_map/`: what a browser gets as one."""


@cache
def _component(name: str, html: str = "", scripts: tuple[str, ...] = ()):
    """A component of that name out of its files; of more than one script where `scripts` names those in its folder."""
    files = [_HERE / name / f"{script}.js" for script in scripts] or [_HERE / f"{name}.js"]
    return st.components.v2.component(
        name,
        html=html or (_HERE / f"{name}.html").read_text(encoding="utf-8"),
        css=(_HERE / f"{name}.css").read_text(encoding="utf-8"),
        js="\n".join(file.read_text(encoding="utf-8") for file in files),
    )


def style(file: Path) -> None:
    """The rules of a style sheet, for this page."""
    st.html(_rules(file))


@cache
def _rules(file: Path) -> str:
    return f"<style>{file.read_text(encoding='utf-8')}</style>"


def attention_map(trace: Trace, part: str | None = None) -> None:
    """Attention over the photo and from token to token; pointing, keys and choices are handled in the browser.

    Where not all blocks fit in one message, the browser asks for the one that is chosen.
    """
    choices = maps.blocks(trace, part)
    wanted = (st.session_state.get(Key.MAP) or {}).get("wanted")
    layers, views = maps.portion(trace, choices, part, wanted)

    def packed() -> bytes:
        return maps.pack(trace, layers, maps.rollout(trace, choices, part), part, views=views, choices=choices)

    data = of(trace, ("attention", part, *layers, *views), packed)
    _component("attention_map", scripts=MAP)(key=Key.MAP, data=data, on_wanted_change=lambda: None)


def drawing(svg: str, key: str) -> None:
    """An SVG of `tracer.figures`, in the colours of the page."""
    _component("drawing", '<div class="slot"></div>')(key=key, data=svg)


def pipeline_map(trace: Trace) -> str | None:
    """The pipeline as a picture; returns the id of a step that was clicked."""
    component = _component("pipeline", '<div class="slot"></div>')
    return component(
        key="pipeline", data=of(trace, "pipeline", lambda: pipeline.pipeline(trace)), on_step_change=lambda: None
    ).step


def operations_table(data: dict) -> str | None:
    """The table of `tracer.figures.operations_table`; returns the id of a row that was clicked."""
    component = _component("operations", '<div class="slot"></div>')
    return component(key="operations", data=data, on_row_change=lambda: None).row


def phone() -> None:
    """Closes the sidebar of a narrow screen when a page is chosen in it, or the page asks or refuses something; takes a
    text that is being typed before a link to a page is followed."""
    _component("phone", "<span></span>")(key="phone")


def copy_button(label: str, text: str, key: str) -> None:
    """A button that puts a text on the visitor's clipboard."""
    _component("copy", '<button type="button"></button>')(key=key, data={"label": label, "text": text}, width="content")
