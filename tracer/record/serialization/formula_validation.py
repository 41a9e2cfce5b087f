"""Formulas of a stranger's file: read only if reading or showing them can do no harm."""

from __future__ import annotations

from tracer.record import Symbol
from tracer.symbols import formula_parser
from tracer.utils.error_text import quote

UNKNOWN = "?"
IN_ALL = 8000
"""Letters of all different formulas of a file together; ours have fewer than a thousand."""


class Formulas:
    """Formulas of one file: each is read and computed once, and all together are no longer than `IN_ALL`.

    Nothing here asks sympy: a formula is a value to compare first, which `formula` bounds before it computes it.
    What passed is then shown, and sympy brings no form of it to numbers of more than `formula.BITS` bits.
    """

    def __init__(self, symbols: tuple[Symbol, ...]):
        self.sizes = {symbol.name: symbol.value for symbol in symbols}
        self.known: dict[str, int] = {}
        self.letters = 0

    def value(self, text: str) -> int:
        """Return the value of a formula at the sizes of the run. Raise ValueError if it has none, or the file has too
        many."""
        if text not in self.known:
            self.letters += len(text)
            if self.letters > IN_ALL:
                raise ValueError(f"its formulas have more than {IN_ALL:,} letters, {quote(text)} among them")
            result = formula_parser.value(text, self.sizes)
            if result.denominator != 1:
                raise ValueError(f"{quote(text)} is not a whole number at these sizes")
            self.known[text] = int(result)
        return self.known[text]
