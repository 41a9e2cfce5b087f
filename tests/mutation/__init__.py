"""Deliberate small mutations: the worth of `verify` is the number of them that it finds.

Each is applied alone, in a copy of the project. `handwritten/` has those that somebody thought of, by name, as rules on
the syntax tree (`rules.py`); `random_mutants.py` draws others from a seed; `runner.py` applies them and says which
check caught each.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the project, with `tracer/`, `pages/` and `tests/`."""


@lru_cache(maxsize=128)
def _read(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


class Mutant(NamedTuple):
    """A small change of one file of the project: `old`, which occurs there once, or at offset `at`, becomes `new`.

    `tests` are the browser tests that have to see it; without them, `verify` and the nearest tests do.
    """

    name: str
    file: str
    old: str
    new: str
    at: int = -1
    tests: tuple[str, ...] = ()

    def apply(self) -> str:
        """Return the file with the mutation. Raise ValueError where its text does not occur, or several times."""
        text, at = self.text(), self.at
        if at < 0:
            if text.count(self.old) != 1:
                count = text.count(self.old)
                raise ValueError(f"{self.name!r}: {self.old!r} stands {count} times in {self.file}, expected once")
            at = text.index(self.old)
        return text[:at] + self.new + text[at + len(self.old) :]

    def text(self) -> str:
        """Return the file unchanged."""
        return _read(self.file)

    @property
    def line(self) -> int:
        """Line on which the mutation begins, from 1."""
        at = self.at if self.at >= 0 else self.text().find(self.old)
        return self.text().count("\n", 0, at + len(self.old) - len(self.old.lstrip())) + 1
