r"""Lexer of printed lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import NoReturn

from tracer.utils.error_text import quote

Tree = tuple
"""A printed expression: the name of what is done, then its parts."""

_SIGN = re.compile(r"\\(?:text|operatorname)\{[^{}]*\}|\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\S")
_ROOM = {r"\,", r"\ ", r"\;", r"\quad"}


class UnreadableLatex(ValueError):
    """An equation outside the grammar, or without a value, in one sentence."""


def signs(latex: str) -> tuple[str, ...]:
    """Return the signs of a line of LaTeX, without spacing commands."""
    return tuple(sign for sign in _SIGN.findall(latex) if sign not in _ROOM)


@lru_cache(maxsize=8)
def by_first(names: frozenset[str]) -> dict[str, list[tuple[tuple[str, ...], str]]]:
    """Return names with their signs, by the first of them, the longest first."""
    groups: dict[str, list] = {}
    for name in names:
        groups.setdefault(signs(name)[0], []).append((signs(name), name))
    return {first: sorted(those, key=lambda entry: -len(entry[0])) for first, those in groups.items()}


class TokenCursor:
    """A cursor in a line, which peeks at the next signs and takes them. An unexpected sign raises UnreadableLatex,
    which quotes it."""

    def __init__(self, latex: str, names: Collection[str]):
        self.signs, self.names, self.at = (*signs(latex), ""), by_first(frozenset(names)), 0

    @property
    def next(self) -> str:
        return self.signs[self.at]

    def take(self, *wanted: str) -> str:
        """Take the next sign if it is one of these, else return ""."""
        if self.next not in wanted or not self.next:
            return ""
        self.at += 1
        return self.signs[self.at - 1]

    def name(self) -> str:
        """Take the longest name that comes next, or return ""."""
        return next((name for candidate, name in self.names.get(self.next, ()) if self.follows(*candidate)), "")

    def follows(self, *wanted: str) -> bool:
        """Take these signs and return whether they come next."""
        if self.signs[self.at : self.at + len(wanted)] != wanted:
            return False
        self.at += len(wanted)
        return True

    def expect(self, *wanted: str) -> None:
        if not self.follows(*wanted):
            self.fail("".join(wanted))

    def fail(self, expected: str) -> NoReturn:
        rest = "".join(self.signs[self.at : self.at + 12])
        raise UnreadableLatex(f"expected {expected} at {quote(rest)}" if rest else f"expected {expected} at its end")


class Rules(TokenCursor):
    """Rules that one part of the grammar needs of the others; `reading` has them all."""

    sum: Callable[[], Tree]
    term: Callable[[], Tree]
    factor: Callable[[], Tree]
    primary: Callable[[], Tree]
    index: Callable[[], str]
    round: Callable[[], Tree]
    rounds: Callable[[], tuple[Tree, ...]]
    braces: Callable[[], Tree]
    subscript: Callable[[], tuple[Tree, ...]]
