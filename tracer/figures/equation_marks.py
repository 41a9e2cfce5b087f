r"""Two equations with the parts that differ marked: `\textcolor` around each, in both."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from difflib import SequenceMatcher

from tracer.record.latex_reader.lexer import TokenCursor

MARK = "#d8486b"
"""The colour of a part that differs; a page replaces it by its own."""
OPENING_BRACKETS, CLOSING_BRACKETS = {"{", r"\left", r"\begin"}, {"}", r"\right", r"\end"}
SCRIPTS = {"^", "_"}
UNMARKABLE_SIGNS = (r"\begin", "&", r"\\", r"\text")
"""Signs of an equation of several lines, or of words, that no colour can go around."""
COMMANDS = frozenset(
    r"\frac \sqrt \mathbf \mathrm \boldsymbol \mathcal \mathbb \check \tilde \hat \bar \left \right".split()
)
"""Commands whose argument, or bracket, comes behind them."""


def mark_differences(a: str, b: str, names: Collection[str]) -> tuple[str, str]:
    """Return two lines of LaTeX with their differences in colour; `names` are the letters of tensors, each taken whole.

    A part that no colour can go around stays as it is.
    """
    if a == b:
        return a, b
    first, second = _units(a, names), _units(b, names)
    codes = SequenceMatcher(a=first, b=second, autojunk=False).get_opcodes()
    parts = [(code[1:3], code[3:5]) for code in codes if code[0] != "equal"]
    return _mark_parts(first, [part[0] for part in parts]), _mark_parts(second, [part[1] for part in parts])


def _units(latex: str, names: Collection[str]) -> list[str]:
    """Return the letters of tensors, and the other signs, of a line."""
    signs, spans = TokenCursor(latex, names), []
    while signs.next:
        if name := signs.name():
            spans.append(name)
        else:
            spans.append(signs.next)
            signs.at += 1
    return spans


def _mark_parts(units: Sequence[str], parts: Sequence[tuple[int, int]]) -> str:
    """Return a line with a colour around these parts of it, widened to what a colour can enclose."""
    ends: dict[int, int] = {}
    for start, stop in parts:
        if start < stop and (span := _widen(units, start, stop)):
            ends[span[0]] = max(span[1], ends.get(span[0], 0))
    return "".join(_colour(units, ends))


def _widen(units: Sequence[str], start: int, stop: int) -> tuple[int, int] | None:
    """Return the smallest part around this one whose brackets are balanced; None where there is none."""
    for wide in range(len(units)):
        for before in range(wide + 1):
            low, high = start - before, stop + wide - before
            if low >= 0 and high <= len(units) and _whole(units, low, high):
                return low, high
    return None


def _whole(units: Sequence[str], low: int, high: int) -> bool:
    inside, before, after = units[low:high], units[low - 1] if low else "", units[high] if high < len(units) else ""
    if (
        any(sign.startswith(UNMARKABLE_SIGNS) for sign in inside)
        or inside[0] in SCRIPTS
        or inside[-1] in SCRIPTS | COMMANDS
    ):
        return False
    if before in SCRIPTS | COMMANDS or (before == "}" and inside[0] == "{") or (after == "{" and inside[-1] == "}"):
        return False
    depth = 0
    for sign in inside:
        depth += (sign in OPENING_BRACKETS) - (sign in CLOSING_BRACKETS)
        if depth < 0:
            return False
    return depth == 0


def _colour(units: Sequence[str], ends: dict[int, int]) -> Iterator[str]:
    stop = 0
    for at, sign in enumerate(units):
        if at in ends and at >= stop:
            stop = ends[at]
            yield rf"\textcolor{{{MARK}}}{{"
        yield sign + (" " if sign.startswith("\\") and sign[-1].isalpha() else "")
        if at + 1 == stop:
            yield "}"
