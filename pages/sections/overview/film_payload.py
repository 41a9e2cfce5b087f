"""The film of a run for its page: packed once for all visitors, with the names of its beats."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from pages.jobs.render_cache import of
from tracer.figures.film import message
from tracer.figures.film.storyboard import storyboard
from tracer.record import Trace


class Reel(NamedTuple):
    """A film as the browser gets it: its bytes, the names of its beats in addresses, the number of tokens in each of
    its streams, and a name of the run."""

    packed: bytes
    beats: list[str]
    tokens: list[int]
    run: str

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


def _pack(trace: Trace) -> Reel | None:
    if not trace.ops:
        return None
    try:
        board = storyboard(trace, prove=False)
        tokens = [len(stream.lanes) for stream in board.streams]
        return Reel(message.pack(board), message.ids(board), tokens, secrets.token_hex(8))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):  # out of a stranger's file
        return None
