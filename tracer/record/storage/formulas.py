"""Formulas and equations out of a stranger's file: read only if reading them, or showing them, can do no harm."""

from __future__ import annotations

import re

from tracer.common.quoting import quoted
from tracer.record import Symbol
from tracer.symbols import formula

UNKNOWN = "?"
IN_ALL = 8000
"""Letters of all different formulas of a file together; ours have fewer than a thousand."""
LATEX = 2000
"""Letters of an equation; the longest of ours has 240."""
NESTED = 16
"""Braces within each other in an equation."""
# commands that read, write or define, or that leave the page: no equation needs them
FORBIDDEN = re.compile(
    r"\\(input|include\w*|openin|openout|read|write\w*|immediate|[egx]?def|let|catcode|csname|expandafter|loop|repeat"
    r"|special|directlua|new\w+|renew\w+|providecommand|usepackage|href|url|html\w*|verb\w*|begingroup|endgroup)"
    r"(?![A-Za-z])|\\(begin|end)\{(?!\w?matrix|cases|aligned|array)|\^\^"
)


class Formulas:
    """The formulas of one file: each is read and computed once, and all together are no longer than `IN_ALL`.

    Nothing here asks sympy: a formula is a value to compare first, which `formula` bounds before it computes it.
    What passed is then shown, and sympy brings no form of it to numbers of more than `formula.BITS` bits.
    """

    def __init__(self, symbols: tuple[Symbol, ...]):
        self.sizes = {symbol.name: symbol.value for symbol in symbols}
        self.known: dict[str, int] = {}
        self.letters = 0

    def value(self, text: str) -> int:
        """The value of a formula at the sizes of the run. ValueError where it has none, or the file has too many."""
        if text not in self.known:
            self.letters += len(text)
            if self.letters > IN_ALL:
                raise ValueError(f"its formulas have more than {IN_ALL:,} letters, {quoted(text)} among them")
            found = formula.value(text, self.sizes)
            if found.denominator != 1:
                raise ValueError(f"{quoted(text)} is no whole number at these sizes")
            self.known[text] = int(found)
        return self.known[text]


def mathematics(latex: str, where: str) -> None:
    """ValueError unless the LaTeX is short, has matching braces and no command that could read, write or define."""
    if len(latex) > LATEX:
        raise ValueError(f"{where}: expected LaTeX of at most {LATEX:,} letters, got {len(latex):,}")
    bare = re.sub(r"\\.", "", latex)
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        if not 0 <= depth <= NESTED:
            break
    if depth:
        raise ValueError(f"{where}: expected LaTeX with matching braces, at most {NESTED} within each other")
    if set(bare) & set("$%#~"):
        raise ValueError(f"{where}: expected LaTeX for mathematics, without $, %, # and ~")
    found = FORBIDDEN.search(latex)
    if found:
        raise ValueError(f"{where}: expected LaTeX for mathematics, got {quoted(found.group())}")
