"""Widgets that run in the browser: markup, style and script lie beside this file and load nothing from other hosts."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import streamlit as st

from pages.jobs.single_flight import of
from pages.state import browser_position
from pages.state.visitor import Key, visitor
from tracer.attention import layers as layers_of
from tracer.figures import attention_maps, mask_payload, pipeline, tensors
from tracer.figures import equations as equation_strip
from tracer.figures import film as saved_film
from tracer.figures import scripts as shared_scripts
from tracer.figures.drawing import tables
from tracer.figures.envelope import pack
from tracer.record import AttentionRecord, Step, Trace

_FOLDER = Path(__file__).parent
QR_PATH, CHECK_PATH = "/qr", "/check-status"
"""Where a browser requests a link as a QR code, and whether the check that a page waits for is done."""


_MAP_SCRIPTS = ("weights", "words", "habits", "colour", "controls", "photo", "telling")
MAP = (
    "place",
    "keys",
    "strip",
    "numbers",
    "bars",
    "heatmap",
    "photo",
    "cells",
    "brush",
    *(f"attention_map/{script}" for script in (*_MAP_SCRIPTS, "matrix", "main")),
)
"""The scripts of the attention map: what a browser gets as one."""
FILM = ("place", "keys", "controls", "brush", "film")
"""Those of the film, beside its player."""


_STEPPER_SCRIPTS = ("maths", "heat", "drawn", "list", "shown", "main")
STEPPER = (
    "place",
    "keys",
    "copying",
    "numbers",
    "heatmap",
    "cells",
    "equation",
    *(f"stepper/{name}" for name in _STEPPER_SCRIPTS),
)
"""Those of the stepper."""


COMPARISON = ("place", "numbers", "heatmap", "equation", "maths", "cells", "heat", "comparison")
"""Those of two runs side by side."""
SCALE = (
    "Each column is a step of the runs, in order. Its height is the largest difference as a share of the largest "
    "value on the left, on a logarithmic scale that begins at 10⁻⁸. A flat column means that the values are equal bit "
    "by bit. A striped column means that the shapes differ."
)


BASE = ("dom", "envelope")
"""Scripts that every component has."""


MAX_TOP_K = 100
"""The largest k of top-k."""


def _text(name: str) -> str:
    """Return the text of a file below this folder, such as `"bar.css"` or `"stepper/main.js"`."""
    (path,) = _FOLDER.rglob(name)
    return path.read_text(encoding="utf-8")


def _script(name: str) -> str:
    """Return a script that the film has, too, or one below this folder."""
    return shared_scripts.read(name) if name in shared_scripts.NAMES else _text(f"{name}.js")


def _markup(name: str) -> str:
    """Return the markup of a component, with each comment that names a file replaced by that file."""
    return re.sub(r"<!-- (\w+\.html) -->\n", lambda match: _text(match[1]), _text(f"{name}.html"))


@cache
def _component(
    name: str, html: str = "", scripts: tuple[str, ...] = (), styles: tuple[str, ...] = (), isolated: bool = True
):
    """Return a component of that name; `scripts` and `styles` list its files where there is not one of each.

    A component that is not `isolated` lies in the page itself, with its styles: KaTeX has its own there.
    """
    return st.components.v2.component(
        name,
        html=html or _markup(name),
        css="\n".join(_text(f"{file}.css") for file in styles or (name,)),
        js="\n".join(map(_script, (*BASE, *(scripts or (name,))))),
        isolate_styles=isolated,
    )


def style(file: Path) -> None:
    """Apply a style sheet to this page."""
    st.html(_rules(file))


@cache
def _rules(file: Path) -> str:
    return f"<style>{file.read_text(encoding='utf-8')}</style>"


def attention_map(
    trace: Trace,
    part: str | None = None,
    brush: Mapping | None = None,
    hide: Callable[[object], None] | None = None,
) -> str | None:
    """Draw attention over the photo and from token to token; the browser handles the pointer, keys and choices. Return
    the id of a step whose equation was chosen.

    Where not all blocks fit in one message, the browser asks for the block that is chosen. `brush` has the facts that
    the browser needs to hide patches of the photo; `hide` is called with what was hidden.
    """
    choices = attention_maps.blocks(trace, part)
    wanted = (st.session_state.get(Key.MAP) or {}).get("wanted")
    layers, views = attention_maps.portion(trace, choices, part, wanted)

    def pack_map() -> bytes:
        rollout = attention_maps.rollout(trace, choices, part)
        return pack(attention_maps.build(trace, layers, rollout, part, views=views, choices=choices))

    body = of(trace, ("attention", part, *layers, *views), pack_map)
    equations = of(trace, ("equations", part), lambda: _equations(trace, part, choices))
    steps = of(trace, ("weights", part), lambda: _weights_steps(trace, layers_of(trace, part), choices))
    facts = browser_position.facts(visitor()) | {"equations": equations, "steps": steps, "brush": brush}
    component = _component("attention_map", scripts=MAP, styles=("attention_map", "brush", "bars", "strip"))
    return component(
        key=Key.MAP,
        data=pack({"facts": facts, "body": body}),
        on_wanted_change=lambda: None,
        on_step_change=lambda: None,
        on_hidden_change=partial(_hide, Key.MAP, hide),
    ).step


def _hide(key: str, hide: Callable[[object], None] | None) -> None:
    """Hand over the patches that were hidden in the browser."""
    hidden = (st.session_state.get(key) or {}).get("hidden")
    if hide is not None and hidden is not None:
        hide(hidden)


def _equations(trace: Trace, part: str | None, shown: Sequence[int]) -> dict[int | str, str]:
    """Return the equation of the attention weights of each selectable block, and that of the rollout where there is
    one."""
    records = layers_of(trace, part)
    lines: dict[int | str, str] = {
        record.layer: equation_strip.of_attention(trace, record) for record in records if record.layer in shown
    }
    rollout = attention_maps.rollout(trace, shown, part)
    return lines if rollout is None else lines | {"rollout": equation_strip.of_rollout(trace, part, rollout)}


def _weights_steps(trace: Trace, records: Sequence[AttentionRecord], shown: Sequence[int]) -> dict[int, str]:
    """Return the step of the attention weights of each selectable block, "" where no step has their cells."""
    return {record.layer: equation_strip.weights_step(trace, record) for record in records if record.layer in shown}


def mask_map(trace: Trace, cells, layer: int, part: str, batch: int, **more) -> str | None:
    """Draw the mask bool `[S_q, S_k]` of a layer and its effect on the row of a query that is chosen in the browser.
    Where the rows do not all fit in one message, the browser asks for others. `more` goes to `mask_payload.build`.
    Return the id of a step whose equation was chosen."""
    state = st.session_state.get(Key.MASK_MAP) or {}
    wanted = None if mask_payload.fits(trace, layer, part) else state.get("wanted")

    def pack_mask() -> bytes:
        return pack(mask_payload.build(trace, cells, layer=layer, part=part, batch=batch, wanted=wanted, **more))

    body = of(trace, ("mask", part, layer, batch, tuple(more.items()), tuple(wanted or ())), pack_mask)
    lines = of(
        trace,
        ("equations", part, layer),
        lambda: equation_strip.of_attention(trace, layers_of(trace, part)[layer], "MSA"),
    )
    data = pack({"facts": browser_position.facts(visitor()) | {"equations": lines}, "body": body})
    component = _component(
        "mask",
        scripts=("place", "keys", "strip", "numbers", "heatmap", "cells", "mask"),
        styles=("mask", "strip"),
    )
    return component(key=Key.MASK_MAP, data=data, on_wanted_change=lambda: None, on_step_change=lambda: None).step


@cache
def _katex() -> str:
    """Return the path of Streamlit's own KaTeX, relative to the page; empty where this Streamlit has another one, and
    LaTeX is then displayed as text."""
    static = Path(st.__file__).parent / "static"
    return next((file.relative_to(static).as_posix() for file in static.glob("static/js/rehype-katex.*.js")), "")


def stepper(facts: dict, body: bytes) -> None:
    """Draw the steps of a run, `body` being the message of `sections.trace.build_payload`; `facts`: its identity, the
    visitor's position."""
    data = pack({"facts": facts | {"katex": _katex()}, "body": body})
    component = _component("stepper", scripts=STEPPER, styles=("buttons", "stepper"), isolated=False)
    component(key=Key.STEPPER, data=data, on_wanted_change=lambda: None)


NUMBER = ("place", "equation", "maths", "heatmap", "cells", "stepper/heat", "number")
"""The scripts of the panel that follows one number."""


def number(facts: dict) -> None:
    """Draw the panel that follows one number: `facts` hold the run's identity, the visitor's position, and the answer
    to the browser's request."""
    operands = facts.get("answer", {}).get("operands", ())
    colours = tables(picture["scale"] for picture in operands)
    data = pack({"facts": facts | {"katex": _katex()}, "colours": colours})
    component = _component("number", scripts=NUMBER, styles=("number",), isolated=False)
    component(key=Key.NUMBER, data=data, on_wanted_change=lambda: None)


def comparison(body: bytes, run: str, summary: str) -> None:
    """Draw two runs step by step from `comparison_payload.build`; `run` names the pair, and `summary` is the outcome in
    sentences."""
    facts = {"key": run, "summary": summary, "katex": _katex(), "scale": SCALE}
    data = pack({"facts": facts | browser_position.facts(visitor()), "body": body})
    component = _component("comparison", scripts=COMPARISON, styles=("buttons", "comparison"), isolated=False)
    component(key="comparison", data=data)


@cache
def _film_component():
    """Return the film's component: the player of saved films, with the additions of a page."""
    markup = saved_film.markup()
    for place, added in {"photo": "buttons_of_photo", "stage": "hiding", "proof": "open"}.items():
        markup = markup.replace(f"<!-- {place} -->", _markup(added))
    player = f"const player = (() => {{\n{saved_film.player()}\nreturn {{ mount, readFilm }};\n}})();"
    return st.components.v2.component(
        "film",
        html=markup,
        css="\n".join((saved_film.style(), *map(_text, ("brush.css", "bars.css", "film.css")))),
        js="\n".join((*map(_script, saved_film.SHARED), player, *map(_script, FILM))),
    )


def film(trace: Trace, body: bytes, run: str, brush: Mapping | None, hide: Callable[[object], None]) -> str | None:
    """Play the film of a run from `tracer.figures.film.message`; `run` names the run. Return the id of a step whose
    equation was chosen. `brush` and `hide` are those of `attention_map`."""
    facts = browser_position.facts(visitor()) | {"run": run, "brush": brush}
    return _film_component()(
        key=Key.FILM,
        data=pack({"facts": facts, "body": body}),
        on_step_change=lambda: None,
        on_hidden_change=partial(_hide, Key.FILM, hide),
    ).step


def block_film(facts: Mapping, body: bytes) -> None:
    """Hand an opened block to the film: `body` is from `tracer.figures.film.block_film`, and `facts` name the beat and
    the run."""
    component = _component("block_film", "<span hidden></span>", styles=("block_film",))
    component(key=Key.BLOCK_FILM, data=pack({"facts": facts, "body": body}), on_wanted_change=lambda: None)


def give(
    takes: Sequence[str], small: bool = False, text: str = "", write: Callable[[str], None] = lambda text: None
) -> None:
    """Draw buttons for the visitor's own photo or text, as the model `takes` them; `small` is the camera alone. `text`
    is the current text, and `write` is called with a new one."""
    data = {"photo": "image" in takes, "text": "text" in takes, "small": small, "typed": text}

    def take() -> None:
        write((st.session_state.get(Key.GIVE) or {}).get("text") or "")

    _component("give", scripts=("giving", "give"))(key=Key.GIVE, data=data, on_text_change=take)


def bar(pages: Sequence[Mapping[str, object]], takes: Sequence[str]) -> None:
    """Draw the bar at the bottom of a phone: `pages` with "title", "icon", "address" and "here", true for the current
    page, and what the model `takes`. On every screen it receives what is dropped on the page or pasted."""
    data = {"pages": pages, "photo": "image" in takes, "text": "text" in takes}
    _component("bar", scripts=("giving", "bar"))(key="bar", data=data)


def equations(trace: Trace, steps: Sequence[Step], key: str = "equations") -> str | None:
    """Draw the equations of these steps, a line each; return the id of one that was chosen. `key` names the widget."""
    lines = of(trace, ("lines", *(step.id for step in steps)), lambda: equation_strip.lines(steps))
    component = _component(
        "equations", '<div class="equations"></div>', scripts=("strip", "equations"), styles=("strip",)
    )
    return component(key=key, data=lines, on_step_change=lambda: None).step


def drawing(markup: str, key: str) -> None:
    """Draw an SVG or other markup of `tracer.figures`, in the colours of the page."""
    _component("drawing", '<div class="slot"></div>')(key=key, data=markup)


def head_grid(markup: str, choose: Callable[[int, int], None] | None = None, key: str = "heads") -> None:
    """Draw the table of `tracer.figures.attention_maps`; a click opens that head in the attention map, or calls
    `choose(layer, head)` where the table asks for it."""

    def take() -> None:
        layer, _, head = str((st.session_state.get(key) or {}).get("head") or "").partition(".")
        if choose and layer.isdecimal() and head.isdecimal():
            choose(int(layer), int(head))

    _component("heads", '<div class="slot"></div>')(key=key, data=markup, on_head_change=take)


def panels(owner: object, key: Hashable, make: Callable[[], Sequence[tensors.Panel]], name: str) -> None:
    """Draw matrices of an `owner` side by side, computed once; `name` makes their keys unique on the page."""
    data = of(owner, ("panels", key), lambda: pack(tensors.build_panels(make())))
    component = _component("panels", scripts=("numbers", "heatmap", "cells", "stepper/heat", "panels"))
    component(key=f"panels {name}", data=data)


def next_token(
    logits: np.ndarray, names: Mapping[int, str], write: Callable[[int], None], *, undoes: bool, writes: bool
) -> None:
    """Draw the probabilities of the next token from float32 logits, `[V]`, under settings that the browser changes.

    `names` are the texts of the likeliest tokens. `write` is called with the number of the token that is chosen, or -1
    to take the last one back; `writes` and `undoes` tell whether either is possible.
    """
    facts = {"names": names, "most": MAX_TOP_K, "writes": writes, "undoes": undoes}

    def take() -> None:
        token = (st.session_state.get(Key.NEXT_TOKEN) or {}).get("token")
        if isinstance(token, int):
            write(token)

    component = _component("next_token", scripts=("numbers", "next_token"))
    component(key=Key.NEXT_TOKEN, data=pack({"facts": facts, "logits": logits}), on_token_change=take)


def likeness(owner: object, make: Callable[[], dict]) -> None:
    """Draw the similarity of patch positions, from `tracer.figures.attention_charts.build_likeness`."""
    body = of(owner, "likeness", lambda: pack(make()))
    data = pack({"facts": browser_position.facts(visitor()), "body": body})
    scripts = ("place", "numbers", "heatmap", "cells", "stepper/heat", "likeness")
    _component("likeness", scripts=scripts)(key="likeness", data=data)


def pipeline_map(trace: Trace) -> str | None:
    """Draw the pipeline; return the id of a step that was clicked."""
    component = _component(
        "pipeline", '<div class="slot" data-figure="The full path"></div>', scripts=("strip", "pipeline")
    )
    return component(
        key="pipeline", data=of(trace, "pipeline", lambda: pipeline.pipeline(trace)), on_step_change=lambda: None
    ).step


def operations_table(data: dict) -> tuple[str, str | None] | None:
    """Draw the table of `tracer.figures.op_tables`; return the id of a clicked row, and the URL value for the
    modules that are unfolded then."""
    component = _component("operations", '<div class="slot"></div>', scripts=("place", "standing", "operations"))
    return component(
        key="operations", data=data | {"facts": browser_position.facts(visitor())}, on_row_change=lambda: None
    ).row


def tools(lacks: str, search: dict) -> None:
    """Draw the toolbar: the search, the link to the current screen (`lacks` names what it misses), the downloads, and
    the button to present. `search` has the name of the searched run, and its entries once they were requested."""
    scripts = ("keys", "copying", "saving/figure", "saving/tables", "saving/found", "search", "tools")
    component = _component("tools", scripts=scripts, styles=("tools", "search"))
    component(key=Key.TOOLS, data={"lacks": lacks, "code": QR_PATH, "search": search}, on_wanted_change=lambda: None)


def phone() -> None:
    """Close the sidebar of a narrow screen when a page is chosen in it or shows a message; submit a half-typed text
    before a link to a page is followed."""
    _component("phone", "<span></span>")(key="phone")


def links() -> None:
    """Open links in the texts of a page in the same tab, and restore the scroll position on the way back."""
    _component("links", "<span></span>", styles=("phone",))(key="links")


def fold_on_phones(owner: str, count: int) -> None:
    """Fold the `count` expanders of the statements on a phone; what was unfolded stays so when the `owner`, the note
    and its section, is shown again."""
    _component("fold", "<span></span>", styles=("phone",))(key="fold", data={"owner": owner, "count": count})


def announce(text: str) -> None:
    """Announce a text to screen readers each time that it changes."""
    _component("spoken", '<p role="status"></p>')(key="spoken", data=text)


def poll_check() -> None:
    """Poll until the check that the page waits for is done, then draw the page again."""
    data = {"path": CHECK_PATH, "token": browser_position.token(visitor())}
    _component("checked", "<span></span>", styles=("phone",))(key="checked", data=data, on_made_change=lambda: None)
