r"""Grammar of the printed equations: LaTeX to a tree, without any knowledge of how it is run.

A line is `name = expression`, or `name_{ij} = expression` where the right side says one cell, or `{name}_{[j]} = …`
where it says one row. Behind it may stand `\text{since } a = b`, and for what is made turn by turn
`\text{for }t < T`, with what states start from: `\text{ from }{h}_{-1} = 0`. A tree is a tuple, its first entry
says what it is; every method of `_Reader` shows what it makes.

Only the names that are given are names: of tensors and of sizes, each by the LaTeX that it is printed as, the longest
first. A lower letter that is not a name is an index.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from tracer.record.latex_reader.brackets import PAIRS, BracketRules
from tracer.record.latex_reader.function_grammar import FUNCTIONS, FunctionRules
from tracer.record.latex_reader.lexer import Tree, UnreadableLatex


class Line(NamedTuple):
    """One printed line: the name on the left with the indices of its cells or of its rows, the right side, and the two
    sides of its `since` condition."""

    name: str
    cells: tuple[str, ...]
    rows: tuple[str, ...]
    right: Tree
    since: tuple[Tree, Tree] | None
    turns: tuple[str, Tree, tuple[Tree, ...], bool] | None = None


BEGIN = tuple(
    r"{ \frac \sqrt \infty \pi \mathrm \sum \begin \mathbf \mathbb \text{max} \mathcal \mu \sigma \lnot".split()
)
"""Signs that a factor begins with, besides names, numbers, letters, words and brackets."""
OPENING_BRACKETS = ("(", "[", r"\lVert", r"\langle", *PAIRS)
"""What an opening bracket may be."""
INFIX = {r"\odot": "times", "/": "over", r"\bmod": "remainder", r"\land": "and", r"\lor": "or", r"\oplus": "either"}
"""Signs between two factors."""


def read(latex: str, names: Collection[str]) -> Line:
    """Return the tree of a printed line. Raise UnreadableLatex, in a sentence that quotes where, for anything outside
    the grammar."""
    return _Reader(latex, names).line()


class _Reader(FunctionRules, BracketRules):
    """A recursive-descent parser of one line, with one method for each rule of the grammar."""

    def line(self) -> Line:
        left = self.factor()
        cells = rows = ()
        if left[0] == "cells":
            left, cells = left[1], self.letters(left[2])
        elif left[0] == "rows":
            left, rows = left[1], self.letters((left[2],))
        if left[0] != "name":
            raise UnreadableLatex("expected the name of a tensor on the left")
        self.expect("=")
        right, since = self.sum(), None
        if self.take(r"\text{since }"):
            condition = self.relation()
            if condition[0] != "=":
                self.fail("=")
            since = condition[1:]
        turns = self.turns() if self.take(r"\text{for }") else None
        if self.next:
            self.fail("the end")
        return Line(left[1], cells, rows, right, since, turns)

    def turns(self) -> tuple[str, Tree, tuple[Tree, ...], bool]:
        """Return the index that runs, its count, the start values, `(name, value)` each, and whether it runs
        backwards."""
        letter = self.index()
        self.expect("<")
        count, starts = self.sum(), []
        back = bool(self.take(r"\text{ back from }"))
        if back or self.take(r"\text{ from }"):
            first = count if back else ("-", ("number", 1.0))
            while True:
                tree = self.factor()
                if tree[0] != "cells" or tree[2] != (first,):
                    self.fail("what a state starts from")
                self.expect("=")
                starts.append((tree[1], self.sum()))
                if not self.take(","):
                    break
        return letter, count, tuple(starts), back

    def letters(self, indices: tuple[Tree, ...]) -> tuple[str, ...]:
        if not all(index[0] == "index" for index in indices) or len(set(indices)) < len(indices):
            raise UnreadableLatex("expected an index for each place on the left, and none that is written like a size")
        return tuple(index[1] for index in indices)

    def index(self) -> str:
        tree = self.primary()
        if tree[0] != "index":
            self.at -= 1
            self.fail("an index")
        return tree[1]

    def sum(self) -> Tree:
        """Return `("+", a, b, …)`; a difference is a sum with `("-", b)`. In one that begins with a convolution vectors
        lie along the channels: `("by channel", sum)`."""
        terms = [("-", self.term()) if self.take("-") else self.term()]
        while sign := self.take("+", "-"):
            terms.append(self.term() if sign == "+" else ("-", self.term()))
        if len(terms) == 1:
            return terms[0]
        return ("by channel", ("+", *terms)) if terms[0][0] == "convolve" else ("+", *terms)

    def term(self) -> Tree:
        r"""Return `("product", a, b)` of adjacent factors, `("times", a, b)` of `a \odot b`, and so on with the other
        signs between factors, from left to right."""
        tree = self.factor()
        while True:
            if sign := self.take(*INFIX):
                tree = (INFIX[sign], tree, self.factor())
            elif self.take(r"\star"):
                tree = self.star(tree)
            elif self.take(r"\cdot") or self.begins():
                tree = ("product", tree, self.factor())
            else:
                return tree

    def begins(self) -> bool:
        """Return whether a factor comes next."""
        sign = self.next
        if sign == r"\left":
            return self.signs[self.at + 1] in OPENING_BRACKETS
        known = sign in self.names or sign in FUNCTIONS or sign in BEGIN
        return known or sign[:1].isalnum() or sign.startswith(r"\operatorname")

    def factor(self) -> Tree:
        r"""Parse a primary with its superscripts and subscripts: `("transposed", x)`, `("power", x, n)`, `("swapped",
        x, a, b)`, `("by channel", x)`, `("cells", x, (i, j))`, and the results of `part`."""
        tree = self.primary()
        while True:
            if self.follows("^", "{", r"\top", "}"):
                tree = ("transposed", tree)
            elif self.take("^"):
                kind, exponent = "cell power" if self.next == "{" else "power", self.group()
                tree = ("swapped", tree, *exponent[1:]) if exponent[0] == "swap" else (kind, tree, exponent)
            elif self.follows("_", "{", "["):
                tree = self.part(tree)
            elif self.follows("_", "{", r"\text{by channel}", "}"):
                tree = ("by channel", tree)
            elif self.take("_"):
                tree = ("cells", tree, self.indices())
            elif self.follows(r"\left", "["):
                tree = ("rows", tree, self.sum())
                self.expect(r"\right", "]")
            else:
                return tree

    def group(self) -> Tree:
        """Parse a superscript: one sign, or a sum in braces, or two sizes with an arrow between them."""
        if not self.take("{"):
            return self.primary()
        tree = self.sum()
        if self.take(r"\leftrightarrow"):
            tree = ("swap", tree, self.sum())
        self.expect("}")
        return tree

    def indices(self) -> tuple[Tree, ...]:
        """Parse the indices below a tensor: letters side by side, or sums with commas between them."""
        if not self.take("{"):
            return (self.primary(),)
        several = self.signs[self.at : self.signs.index("}", self.at)]
        if len(several) > 1 and all(sign.isalpha() and len(sign) == 1 for sign in several):
            trees = [self.primary() for _ in several]
        else:
            trees = [self.sum()]
            while self.take(","):
                trees.append(self.sum())
        self.expect("}")
        return tuple(trees)

    def primary(self) -> Tree:
        """Parse a name, a number, an index, a bracket, or a function call."""
        if name := self.name():
            return ("name", name)
        sign = self.next
        self.at += 1
        if sign[:1].isdigit():
            return ("number", float(sign))
        if sign == "e" and self.follows("^", "{"):
            power = self.sum()
            self.expect("}")
            return ("exp", power)
        if len(sign) == 1 and sign.islower():
            return ("index", sign)
        if sign in FUNCTIONS:
            return self.function(FUNCTIONS[sign])
        if sign.startswith(r"\operatorname"):
            return self.word(sign[len(r"\operatorname{") : -1])
        known = {
            "{": self.braces,
            r"\infty": lambda: ("number", float("inf")),
            r"\pi": lambda: ("number", math.pi),
            r"\mathrm": self.imaginary,
            r"\frac": self.fraction,
            r"\sqrt": self.root,
            r"\lnot": lambda: ("not", self.factor()),
            r"\mu": self.average,
            r"\sigma": self.deviation,
            r"\mathbf": self.full,
            r"\mathbb": self.identity,
            r"\text{max}": self.largest,
            r"\mathcal": self.unfold,
            r"\begin": self.cases,
            r"\sum": self.sum_over,
            r"\left": self.brackets,
        }
        if sign not in known:
            self.at -= 1
            self.fail("a tensor or a size that the page names")
        return known[sign]()

    def imaginary(self) -> Tree:
        r"""Parse the imaginary unit, `\mathrm{i}`."""
        for sign in "{i}":
            self.expect(sign)
        return ("number", 1j)

    def root(self) -> Tree:
        r"""Parse `\sqrt{x}` and `\sqrt[4]{x}`."""
        if not self.take("["):
            return ("root", self.group())
        degree = self.sum()
        self.expect("]")
        return ("power", self.group(), ("over", ("number", 1.0), degree))

    def fraction(self) -> Tree:
        self.expect("{")
        above = self.braces()
        self.expect("{")
        return ("over", above, self.braces())
