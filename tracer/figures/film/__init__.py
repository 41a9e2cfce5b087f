"""Run as a film: beats with a picture, a sentence, an equation and its proof, in one page that needs no server."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tracer.export import verdicts
from tracer.export.letters import letters_of
from tracer.export.to_html import text
from tracer.figures import envelope, scripts
from tracer.figures.film import message
from tracer.figures.film.storyboard import storyboard
from tracer.record import Trace
from tracer.record.steps import Film
from tracer.symbols.letters import OURS
from tracer.utils.errors import quote

# Player as a page: its scripts are modules in files, which are joined here into one, with the message inside.
#
# The page loads nothing and needs no server. `script` is the same player for a component of an app, whose message comes
# another way.

PLAYER = Path(__file__).parent / "player"
SHARED = ("dom", "envelope", "numbers", "bars", "heatmap", "photo", "cells", "equation")
"""Scripts of `tracer.figures.scripts`, each behind those that it imports."""
STAGE = tuple(
    f"stage/{name}" for name in ("colours", "pen", "layout", "input", "stream", "scene", "tensors", "pointing")
)
MODULES = ("film", *STAGE, "answer", "captions", "looks", "scrubber", "frames", "player")
"""Its own modules, each behind those that it imports."""
PAGE = """:root { color-scheme: light dark; }
html, body { margin: 0; height: 100%; }
h1 { position: absolute; width: 1px; height: 1px; margin: 0; overflow: hidden; clip-path: inset(50%); }
@page { margin: 12mm; }
@media print { :root { color-scheme: light; } html, body { height: auto; } h1 { display: none; } }
"""
"""Styles of a page that the film has to itself; its heading is for those who hear it."""


@cache
def script() -> str:
    """Return all modules as one script, which defines `mount(root, film)` and `readFilm(bytes)`."""
    return "\n".join((*map(scripts.read, SHARED), player()))


def player() -> str:
    """Return the film's own modules as one script, to be behind the shared ones."""
    return "\n".join(scripts.read(name, PLAYER) for name in MODULES)


@cache
def style() -> str:
    """Return the player's style sheet."""
    return (PLAYER / "player.css").read_text(encoding="utf-8")


@cache
def markup() -> str:
    """Return the player's markup."""
    return (PLAYER / "player.html").read_text(encoding="utf-8").replace("<!-- meaning -->", text(verdicts.MEANING))


def page(message: bytes, title: str) -> str:
    """Return the film as one HTML file that ends with a newline."""
    start = "mount(document.querySelector('.film'), readFilm(decode(document.querySelector('#message').textContent)), "
    start += "{ paper: 'film' });"
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>\n{PAGE}{style()}</style>\n<body>\n<main>\n<h1>{text(title)}</h1>\n{markup()}</main>\n"
        f'<script type="text/plain" id="message">{envelope.to_text(message)}</script>\n'
        f'<script>\n(() => {{\n"use strict";\n{script()}\n{start}\n}})();\n</script>\n</body>\n</html>\n'
    )


FILE = 650_000
"""Bytes of attention in a file, which need not travel with each visit to a page."""


def film(trace: Trace, letters: str = OURS) -> Film:
    """Return the film of a run, with equations and shapes in the letters of a text.

    ValueError for a run without operations, of which there is nothing to show, and for a text that has no letters.
    """
    names = letters_of(trace, letters)
    if not trace.ops:
        raise ValueError(f"a film needs a run with operations, and this trace of {quote(trace.model)} has none")
    return Film(
        trace.model, page(envelope.pack(message.build(storyboard(trace), FILE, names)), f"A run of {trace.model}")
    )
