r"""The grammar of the equations that are printed: LaTeX to a tree, with nothing known of how it is run.

A line is `name = expression`, or `name_{ij} = expression` where the right side says one cell, or `{name}_{[j]} = …`
where it says one row. Behind it may stand `\text{since } a = b`. A tree is a tuple, its first entry says what it is;
every method of `_Reader` shows what it makes.

Only the names that are given are names: of tensors and of sizes, each by the LaTeX that it is printed as, the longest
first. A lower letter that is no name is an index.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tracer.checks.signs import Signs, Unread
from tracer.quoting import quoted

Tree = tuple


class Line(NamedTuple):
    """One printed line: the name on the left with the indices of its cells or of its rows, the right side, and the two
    sides of what it is only true since."""

    name: str
    cells: tuple[str, ...]
    rows: tuple[str, ...]
    right: Tree
    since: tuple[Tree, Tree] | None


RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "≤", r"\ge": "≥"}
FUNCTIONS = {r"\min": "min", r"\max": "max", r"\sin": "sin", r"\cos": "cos", r"\tanh": "tanh"}
BEGIN = ("{", r"\frac", r"\sqrt", r"\infty", r"\sum", r"\begin", r"\mathcal", r"\mu", r"\sigma")
"""Signs that a factor begins with, besides names, numbers, letters, words and brackets."""
SIZED = ("heads", "concat", "split", "unflatten", "repeat", "fold")
"""Words that a size stands below."""
PLAIN = ("softmax", "GELU", "ReLU", "SiLU", "mean", "unroll", "flatten", "turn")
"""Words that nothing stands below."""


def read(latex: str, names: Collection[str]) -> Line:
    """The tree of a printed line. Unread, in a sentence that quotes where, for anything that is not of the grammar."""
    return _Reader(latex, names).line()


class _Reader(Signs):
    """Reads one line from left to right, with one method for each rule of the grammar."""

    def line(self) -> Line:
        left = self.factor()
        cells = rows = ()
        if left[0] == "cells":
            left, cells = left[1], self.letters(left[2])
        elif left[0] == "rows":
            left, rows = left[1], self.letters((left[2],))
        if left[0] != "name":
            raise Unread("expected the name of a tensor on the left")
        self.expect("=")
        right, since = self.sum(), None
        if self.take(r"\text{since }"):
            said = self.relation()
            if said[0] != "=":
                self.fail("=")
            since = said[1:]
        if self.next:
            self.fail("the end")
        return Line(left[1], cells, rows, right, since)

    def letters(self, indices: tuple[Tree, ...]) -> tuple[str, ...]:
        if not all(index[0] == "index" for index in indices) or len(set(indices)) < len(indices):
            raise Unread("expected an index for each place on the left, and none that is written like a size")
        return tuple(index[1] for index in indices)

    def index(self) -> str:
        made = self.primary()
        if made[0] != "index":
            self.at -= 1
            self.fail("an index")
        return made[1]

    def sum(self) -> Tree:
        """`("+", a, b, …)`; a difference is a sum with `("-", b)`."""
        terms = [("-", self.term()) if self.take("-") else self.term()]
        while sign := self.take("+", "-"):
            terms.append(self.term() if sign == "+" else ("-", self.term()))
        return terms[0] if len(terms) == 1 else ("+", *terms)

    def term(self) -> Tree:
        r"""`("product", a, b)` of what stands side by side, `("times", a, b)` of `a \odot b`, `("over", a, b)` of
        `a / b`, from left to right."""
        made = self.factor()
        while True:
            if self.take(r"\odot"):
                made = ("times", made, self.factor())
            elif self.take("/"):
                made = ("over", made, self.factor())
            elif self.take(r"\cdot") or self.begins():
                made = ("product", made, self.factor())
            else:
                return made

    def begins(self) -> bool:
        """Whether a factor comes next."""
        sign = self.next
        if sign == r"\left":
            return self.signs[self.at + 1] in ("(", "[", r"\lVert")
        known = sign in self.names or sign in FUNCTIONS or sign in BEGIN
        return known or sign.isalnum() or sign.startswith(r"\operatorname")

    def factor(self) -> Tree:
        r"""A primary with what stands above and below it: `("transposed", x)`, `("power", x, n)`,
        `("swapped", x, a, b)`, `("rows", x, n)`, `("slice", x, "rows" or "columns", from, to)`,
        `("cells", x, (i, j))`."""
        made = self.primary()
        while True:
            if self.follows("^", "{", r"\top", "}"):
                made = ("transposed", made)
            elif self.take("^"):
                exponent = self.group()
                made = ("swapped", made, *exponent[1:]) if exponent[0] == "swap" else ("power", made, exponent)
            elif self.follows("_", "{", "["):
                made = self.part(made)
                self.expect("]", "}")
            elif self.take("_"):
                made = ("cells", made, self.indices())
            elif self.follows(r"\left", "["):
                made = ("rows", made, self.sum())
                self.expect(r"\right", "]")
            else:
                return made

    def group(self) -> Tree:
        """What stands above: one sign, or a sum in braces, or two sizes with an arrow between them."""
        if not self.take("{"):
            return self.primary()
        made = self.sum()
        if self.take(r"\leftrightarrow"):
            made = ("swap", made, self.sum())
        self.expect("}")
        return made

    def part(self, whole: Tree) -> Tree:
        """`[n]` is one row or several, `[:n]` and `[n:]` are rows up to and from n, `[…, a:b]` are columns."""
        axis = "rows"
        if self.follows(r"\ldots", ","):
            axis = "columns"
        start = None if self.next == ":" else self.sum()
        if not self.take(":"):
            if axis == "columns":
                self.fail(":")
            return ("rows", whole, start)
        return ("slice", whole, axis, start, None if self.next == "]" else self.sum())

    def indices(self) -> tuple[Tree, ...]:
        """What stands below a tensor to say which cell: letters side by side, or sums with commas between them."""
        if not self.take("{"):
            return (self.primary(),)
        several = self.signs[self.at : self.signs.index("}", self.at)]
        if len(several) > 1 and all(sign.isalpha() and len(sign) == 1 for sign in several):
            made = [self.primary() for _ in several]
        else:
            made = [self.sum()]
            while self.take(","):
                made.append(self.sum())
        self.expect("}")
        return tuple(made)

    def primary(self) -> Tree:
        """A name, a number, an index, something in brackets, or a function of something."""
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
            r"\frac": self.fraction,
            r"\sqrt": lambda: ("root", self.group()),
            r"\mu": lambda: ("mean", self.round()),
            r"\sigma": self.variance,
            r"\mathcal": self.unfold,
            r"\begin": self.cases,
            r"\sum": self.sum_over,
            r"\left": self.brackets,
        }
        if sign not in known:
            self.at -= 1
            self.fail("a tensor or a size that the page names")
        return known[sign]()

    def braces(self) -> Tree:
        made = self.sum()
        self.expect("}")
        return made

    def fraction(self) -> Tree:
        self.expect("{")
        above = self.braces()
        self.expect("{")
        return ("over", above, self.braces())

    def variance(self) -> Tree:
        self.expect("^", "2")
        return ("variance", self.round())

    def round(self) -> Tree:
        """Something in round brackets."""
        large = self.take(r"\left")
        self.expect("(")
        made = self.sum()
        if large:
            self.expect(r"\right")
        self.expect(")")
        return made

    def function(self, name: str) -> Tree:
        r"""`("min", a, b)`, `("cos", x)`; `\min\left\{ j : a = b \right\}` is `("first", j, relation)`."""
        if name == "min" and self.follows(r"\left", r"\{"):
            index = self.index()
            self.expect(":")
            said = self.relation()
            self.expect(r"\right", r"\}")
            return ("first", index, said)
        if name in ("min", "max"):
            self.expect(r"\left", "(")
            first = self.sum()
            self.expect(",")
            made = (name, first, self.sum())
            self.expect(r"\right", ")")
            return made
        return (name, self.round() if self.signs[self.at : self.at + 2] == (r"\left", "(") else self.factor())

    def word(self, name: str) -> Tree:
        """`("softmax", x)`; what stands below a word comes after it: `("heads", h, x)`."""
        if name == "GELU" and self.follows("_", "{", r"\tanh", "}"):
            return ("GELU by tanh", self.round())
        if name == "part":
            self.expect("_", "{", "[")
            index = self.sum()
            self.expect("]", "}")
            return ("part", index, self.round())
        if name == "grid":
            self.expect("_", "{")
            rows = self.sum()
            self.expect(r"\times")
            columns = self.braces()
            return ("grid", rows, columns, self.round())
        if name in SIZED:
            self.expect("_", "{")
            return (name, self.braces(), self.round())
        if name not in PLAIN:
            raise Unread(f"expected a function that the grammar has, got {quoted(name)}")
        return (name, self.round())

    def unfold(self) -> Tree:
        r"""`("unfold", order, side, image)` of `\mathcal{U}^{\mathrm{hwc}}_{P}\left(image\right)`."""
        self.expect("{", "U", "}", "^", "{", r"\mathrm", "{")
        order = ""
        while len(order) < 3 and self.next.isalpha():
            order += self.take(self.next)
        self.expect("}", "}", "_", "{")
        return ("unfold", order, self.braces(), self.round())

    def cases(self) -> Tree:
        """`("cases", (value, condition), …)`; a condition is a tuple of relations, one of which holds; () is else."""
        self.expect("{", *"cases", "}")
        rows = []
        while True:
            value = self.sum()
            self.expect("&")
            rows.append((value, self.condition()))
            if not self.take(r"\\"):
                break
        self.expect(r"\end", "{", *"cases", "}")
        return ("cases", *rows)

    def condition(self) -> tuple[Tree, ...]:
        if self.take(r"\text{else}"):
            return ()
        made = [self.relation()]
        while self.take(r"\text{ or }"):
            made.append(self.relation())
        return tuple(made)

    def relation(self) -> Tree:
        """`("≤", a, b)`."""
        left, sign = self.sum(), self.take(*RELATIONS)
        if not sign:
            self.fail("a comparison")
        return (RELATIONS[sign], left, self.sum())

    def sum_over(self) -> Tree:
        """`("sum over", j, relation, term)`."""
        self.expect("_", "{")
        index = self.index()
        self.expect(":")
        said = self.relation()
        self.expect("}")
        return ("sum over", index, said, self.term())

    def brackets(self) -> Tree:
        r"""`("counting", last)` of `(0, 1, …, last)`, `("norm", x)`, or what stands in square brackets."""
        if self.take(r"\lVert"):
            made = self.sum()
            self.expect(r"\right", r"\rVert", "_", "2")
            return ("norm", made)
        if self.take("["):
            return self.square()
        self.expect("(")
        counts = self.follows("0", ",", "1", ",", r"\ldots", ",")
        made = ("counting", self.sum()) if counts else self.sum()
        self.expect(r"\right", ")")
        return made

    def square(self) -> Tree:
        """`("below", a, b)` of `[a ; b]`, `("beside", a, b)` of `[a , b]`, `("all alike", x, n)` of `[x ; … ; x]_n`,
        and `("for all", j, relation)` of `[a = b for all j]`, which is 1 or 0."""
        first = self.sum()
        if sign := self.take(*RELATIONS):
            said = (RELATIONS[sign], first, self.sum())
            self.expect(r"\text{ for all }")
            index = self.index()
            self.expect(r"\right", "]")
            return ("for all", index, said)
        if self.follows(";", r"\dots", ";"):
            last = self.sum()
            self.expect(r"\right", "]", "_", "{")
            if last != first:
                raise Unread("expected the same on both sides of the dots")
            return ("all alike", first, self.braces())
        sign, made = self.take(";", ","), [first]
        made.append(self.sum())
        while sign and self.take(sign):
            made.append(self.sum())
        self.expect(r"\right", "]")
        return ("below" if sign == ";" else "beside", *made)
