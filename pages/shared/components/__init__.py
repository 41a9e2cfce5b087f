"""Widgets that run in the browser: markup, style and script lie beside this file, and ask no server for anything."""

import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path

import streamlit as st

from pages.shared import qr, told
from pages.shared.pictures import of
from pages.shared.visitor import Key, visitor
from tracer.attention import layers as layers_of
from tracer.figures import maps, masks, pipeline, strips
from tracer.figures import panels as panes
from tracer.record import AttentionRecord, Step, Trace

_HERE = Path(__file__).parent


_DRAWN = ("packed", "words", "colour", "photo", "telling")
MAP = (
    "place",
    "keys",
    "strip",
    "headed",
    *(f"attention_map/{script}" for script in (*_DRAWN, "matrix", "controls", "main")),
)
"""The scripts of the attention map: what a browser gets as one."""
GLANCE = ("place", "headed", *(f"attention_map/{script}" for script in (*_DRAWN, "sentence", "glance")))
"""Those of the first look at it."""


_STEPPED = ("maths", "unpack", "heat", "drawn", "list", "shown", "main")
STEPPER = ("place", "keys", "copying", "headed", *(f"stepper/{script}" for script in _STEPPED))
"""Those of the stepper."""


@cache
def _component(
    name: str, html: str = "", scripts: tuple[str, ...] = (), styles: tuple[str, ...] = (), isolated: bool = True
):
    """A component of that name out of its files; `scripts` and `styles` are those to take where it is not one each.

    One that is not `isolated` lies in the page itself, with its styles: there KaTeX has its own.
    """

    def joined(files: tuple[str, ...], kind: str) -> str:
        return "\n".join((_HERE / f"{file}.{kind}").read_text(encoding="utf-8") for file in files or (name,))

    return st.components.v2.component(
        name,
        html=html or (_HERE / f"{name}.html").read_text(encoding="utf-8"),
        css=joined(styles, "css"),
        js=joined(scripts, "js"),
        isolate_styles=isolated,
    )


def style(file: Path) -> None:
    """The rules of a style sheet, for this page."""
    st.html(_rules(file))


@cache
def _rules(file: Path) -> str:
    return f"<style>{file.read_text(encoding='utf-8')}</style>"


def attention_map(trace: Trace, part: str | None = None) -> str | None:
    """Attention over the photo and from token to token; pointing, keys and choices are handled in the browser. Returns
    the id of a step whose equation was chosen.

    Where not all blocks fit in one message, the browser asks for the one that is chosen.
    """
    choices = maps.blocks(trace, part)
    wanted = (st.session_state.get(Key.MAP) or {}).get("wanted")
    layers, views = maps.portion(trace, choices, part, wanted)

    def packed() -> bytes:
        return maps.pack(trace, layers, maps.rollout(trace, choices, part), part, views=views, choices=choices)

    data = of(trace, ("attention", part, *layers, *views), packed)
    told_of = of(trace, ("equations", part), lambda: _equations(trace, layers_of(trace, part), choices))
    data = _under(told.facts(visitor()) | {"equations": told_of}, data)
    component = _component("attention_map", scripts=MAP, styles=("attention_map", "strip"))
    return component(key=Key.MAP, data=data, on_wanted_change=lambda: None, on_step_change=lambda: None).step


def _equations(trace: Trace, records: Sequence[AttentionRecord], shown: Sequence[int]) -> dict[int, str]:
    """The equation of the weights of each block that can be chosen."""
    return {record.layer: strips.of_attention(trace, record) for record in records if record.layer in shown}


def mask_map(trace: Trace, cells, layer: int, part: str, batch: int, **more) -> str | None:
    """The mask bool `[S_q, S_k]` of a layer, and what it does to the row of a query that is chosen in the browser; of a
    run whose rows do not all fit in one message, the browser asks for others. `more` goes to `masks.pack`. Returns the
    id of a step whose equation was chosen."""
    state = st.session_state.get(Key.MASK_MAP) or {}
    wanted = None if masks.fits(trace, layer, part) else state.get("wanted")

    def packed() -> bytes:
        return masks.pack(trace, cells, layer=layer, part=part, batch=batch, wanted=wanted, **more)

    data = of(trace, ("mask", part, layer, batch, tuple(more.items()), tuple(wanted or ())), packed)
    lines = of(
        trace, ("equations", part, layer), lambda: strips.of_attention(trace, layers_of(trace, part)[layer], "MSA")
    )
    data = _under(told.facts(visitor()) | {"equations": lines}, data)
    component = _component(
        "mask", scripts=("place", "keys", "strip", "headed", "stepper/unpack", "mask"), styles=("mask", "strip")
    )
    return component(key=Key.MASK_MAP, data=data, on_wanted_change=lambda: None, on_step_change=lambda: None).step


@cache
def _katex() -> str:
    """The address of the KaTeX that Streamlit itself shows equations with, from the page's folder; empty where this
    Streamlit has another, and LaTeX is shown as it is."""
    static = Path(st.__file__).parent / "static"
    return next((file.relative_to(static).as_posix() for file in static.glob("static/js/rehype-katex.*.js")), "")


def _under(facts: dict, packed: bytes) -> bytes:
    """What was packed, below facts of the visitor: the length of their JSON in four bytes, little end first, the JSON,
    then the rest, at a multiple of four."""
    text = json.dumps(facts).encode()
    text += b" " * (-len(text) % 4)
    return len(text).to_bytes(4, "little") + text + packed


def stepper(facts: dict, packed: bytes) -> None:
    """The steps of a run, as `stepping.packed` has them; `facts` say which run it is and where the visitor stands."""
    data = _under(facts | {"katex": _katex()}, packed)
    _component("stepper", scripts=STEPPER, isolated=False)(key=Key.STEPPER, data=data, on_wanted_change=lambda: None)


def glance(trace: Trace) -> bool:
    """One map over the photo and the words, that follows the pointer; whether the run has one to show."""
    if (data := of(trace, "glance", lambda: maps.glance(trace) or b"")) == b"":
        return False
    data = _under(told.facts(visitor()), data)
    _component("glance", scripts=GLANCE, styles=("attention_map", "glance"))(key="glance", data=data)
    return True


def give(
    takes: Sequence[str], small: bool = False, typed: str = "", write: Callable[[str], None] = lambda text: None
) -> None:
    """Buttons for one's own photo or text, as the model `takes` them; `small` is the camera alone. The text that was
    given is `typed`, and `write` is called with another one."""
    data = {"photo": "image" in takes, "text": "text" in takes, "small": small, "typed": typed}

    def taken() -> None:
        write((st.session_state.get(Key.GIVE) or {}).get("text") or "")

    _component("give", scripts=("giving", "give"))(key=Key.GIVE, data=data, on_text_change=taken)


def bar(pages: Sequence[Mapping[str, object]], takes: Sequence[str]) -> None:
    """The bar at the bottom of a phone: `pages` with "title", "icon", "address" and whether one is "here", and what the
    model `takes`. On every screen it hears what is dropped on the page or pasted."""
    data = {"pages": pages, "photo": "image" in takes, "text": "text" in takes}
    _component("bar", scripts=("giving", "bar"))(key="bar", data=data)


def equations(trace: Trace, steps: Sequence[Step]) -> str | None:
    """The equations of these steps, a line each; returns the id of one that was chosen."""
    lines = of(trace, ("lines", *(step.id for step in steps)), lambda: strips.lines(steps))
    component = _component(
        "equations", '<div class="equations short"></div>', scripts=("strip", "equations"), styles=("strip",)
    )
    return component(key="equations", data=lines, on_step_change=lambda: None).step


def drawing(markup: str, key: str) -> None:
    """An SVG or other markup of `tracer.figures`, in the colours of the page."""
    _component("drawing", '<div class="slot"></div>')(key=key, data=markup)


def panels(owner: object, key: Hashable, make: Callable[[], Sequence[panes.Panel]], name: str) -> None:
    """Matrices of an `owner` beside each other, made once; `name` tells them from others on the page."""
    data = of(owner, ("panels", key), lambda: panes.pack(make()))
    component = _component("panels", scripts=("headed", "stepper/unpack", "stepper/heat", "panels"))
    component(key=f"panels {name}", data=data)


def likeness(owner: object, make: Callable[[], bytes]) -> None:
    """How alike the positions of patches are, as `tracer.figures.positions.likeness` packs it."""
    data = _under(told.facts(visitor()), of(owner, "likeness", make))
    scripts = ("place", "headed", "stepper/unpack", "stepper/heat", "likeness")
    _component("likeness", scripts=scripts)(key="likeness", data=data)


def pipeline_map(trace: Trace) -> str | None:
    """The pipeline as a picture; returns the id of a step that was clicked."""
    component = _component("pipeline", '<div class="slot" data-figure="The whole way"></div>')
    return component(
        key="pipeline", data=of(trace, "pipeline", lambda: pipeline.pipeline(trace)), on_step_change=lambda: None
    ).step


def operations_table(data: dict) -> tuple[str, str | None] | None:
    """The table of `tracer.figures.operations_table`; returns the id of a row that was clicked, and what an address
    says of the modules that are unfolded then."""
    component = _component("operations", '<div class="slot"></div>', scripts=("place", "standing", "operations"))
    return component(key="operations", data=data | {"facts": told.facts(visitor())}, on_row_change=lambda: None).row


def tools(lacks: str) -> None:
    """The link to what is on screen, of which `lacks` says what is not in it; what of the page can be saved; and the
    way to present it."""
    scripts = ("keys", "copying", "saving/figure", "saving/tables", "saving/found", "tools")
    _component("tools", scripts=scripts)(key="tools", data={"lacks": lacks, "code": qr.PATH})


def phone() -> None:
    """Closes the sidebar of a narrow screen when a page is chosen in it, or the page asks or refuses something; takes a
    text that is being typed before a link to a page is followed."""
    _component("phone", "<span></span>")(key="phone")


def links() -> None:
    """Lets links in the texts of a page open in the same tab, and brings one who comes back to where the link was."""
    _component("links", "<span></span>", styles=("phone",))(key="links")


def spoken(text: str) -> None:
    """Says a text to those who do not see the page, each time that it is another one."""
    _component("spoken", '<p role="status"></p>')(key="spoken", data=text)


def checked(path: str) -> None:
    """Draws the page again as soon as the check of the lines that it waits for is made; asks for that at this path."""
    data = {"path": path, "token": told.token(visitor())}
    _component("checked", "<span></span>", styles=("phone",))(key="checked", data=data, on_made_change=lambda: None)


def copy_button(label: str, text: str, key: str) -> None:
    """A button that puts a text on the visitor's clipboard."""
    _component("copy", '<button type="button"></button>', scripts=("copying", "copy"))(
        key=key, data={"label": label, "text": text}, width="content"
    )
