"""Film of a run for its page: packed once for all visitors, with the names of its beats."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import streamlit as st

from pages import components
from pages.jobs.render_cache import of
from pages.state.visitor import Key
from tracer.figures.film import block_film, message
from tracer.figures.film.storyboard import Storyboard, storyboard
from tracer.record import Trace

DAMAGE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""What a stranger's file may raise."""


class Reel(NamedTuple):
    """A film in the form sent to the browser: its bytes, the names of its beats in addresses, the number of tokens in
    each of its streams, a name of the run, and the beat of each step inside a block."""

    packed: bytes
    beats: list[str]
    tokens: list[int]
    run: str
    blocks: dict[str, str]

    def weight(self) -> int:
        """Return its size in bytes."""
        return len(self.packed)

    def queries(self, named: str) -> Sequence[int | str]:
        """Return the tokens that an address can name: those of the stream in `named`, such as "1.0", else of the
        first stream."""
        stream, point, _ = named.partition(".")
        if point and stream in map(str, range(len(self.tokens))):
            return [f"{stream}.{token}" for token in range(self.tokens[int(stream)])]
        return range(self.tokens[0] if self.tokens else 0)


def of_run(trace: Trace) -> Reel | None:
    """Return the film of a run; None for one without operations, or one whose file is damaged so that it has none."""
    return of(trace, "film", lambda: _pack(trace))


def _board(trace: Trace) -> Storyboard:
    """Return the beats of a run. They hold its tensors, so they are not cached: a run goes with its visitor."""
    return storyboard(trace, prove=False)


@st.fragment
def open_block(trace: Trace, reel: Reel) -> None:
    """Send the steps of the block that the browser opens, or that the address names, in a message of their own."""
    wanted = (st.session_state.get(Key.BLOCK_FILM) or {}).get("wanted")
    asked = str(wanted.get("beat")) if isinstance(wanted, Mapping) and wanted.get("run") == reel.run else ""
    beat = asked or reel.blocks.get(st.query_params.get("inside", ""), "")
    known = beat in reel.blocks.values()
    packed = of(trace, ("block film", beat), lambda: _pack_block(trace, beat, reel)) if known else b""
    components.block_film({"run": reel.run, "beat": beat if known else None}, packed)


def _pack_block(trace: Trace, beat: str, reel: Reel) -> bytes:
    """Return the message of a block, nothing where its file is damaged so that it has none."""
    try:
        return block_film.pack(_board(trace), beat, reel.beats)
    except DAMAGE_ERRORS:
        return b""


def _pack(trace: Trace) -> Reel | None:
    if not trace.ops:
        return None
    try:
        board = _board(trace)
        names = message.ids(board)
        tokens = [len(stream.lanes) for stream in board.streams]
        blocks = {
            step: name for name, beat in zip(names, board.beats, strict=True) if beat.number for step in beat.steps
        }
        return Reel(message.pack(board), names, tokens, secrets.token_hex(8), blocks)
    except DAMAGE_ERRORS:
        return None
