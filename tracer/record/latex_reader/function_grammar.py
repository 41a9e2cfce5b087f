r"""Words of printed equations, with their subscripts and bracketed operands; cases, comparisons and sums.

Below a word stand settings with commas between them: sizes (the axes that it is of), numbers (several with × between
them), each perhaps with a sign or a text in front, `\downarrow 2` or `\text{pad }1`, or such a sign alone. `D \to 1`
says that an axis stays, with size 1.
"""

from __future__ import annotations

from tracer.record.latex_reader.lexer import Rules, Tree, UnreadableLatex
from tracer.utils.error_text import quote

RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "≤", r"\ge": "≥", r"\ne": "≠"}
FUNCTIONS = {
    r"\min": "min",
    r"\max": "max",
    r"\sin": "sin",
    r"\cos": "cos",
    r"\tan": "tan",
    r"\tanh": "tanh",
    r"\sinh": "sinh",
    r"\cosh": "cosh",
    r"\arctan": "arctan",
    r"\log": "log",
    r"\ln": "log",
}
DTYPE_MAXIMA = {
    r"\text{float32}": (2 - 2.0**-23) * 2.0**127,
    r"\text{bfloat16}": (2 - 2.0**-7) * 2.0**127,
    r"\text{float64}": (2 - 2.0**-52) * 2.0**1023,
}
"""The largest numbers of their kinds (IEEE 754; bfloat16 has float32's exponents and 7 digits behind the point)."""
SIZED_WORDS = ("heads", "concat", "repeat", "fold", "windows")
"""Words that a size stands below."""
PLAIN_WORDS = ("softmax", "GELU", "ReLU", "SiLU", "mean", "unroll", r"rotate\_half", r"rotate\_every\_two")
"""Words that nothing needs to stand below."""
SIGNS = (r"\downarrow", r"\uparrow", r"\to")
"""Signs that a setting begins with."""


class FunctionRules(Rules):
    """Grammar rules of words; `sum`, `term`, `factor`, `braces`, `index` and `group` are those of the whole
    grammar."""

    def function(self, name: str) -> Tree:
        r"""Return `("min", a, b)`, `("cos", x)`; `\min\left\{ j : a = b \right\}` is `("first", j, relation)`."""
        if name == "min" and self.follows(r"\left", r"\{"):
            index = self.index()
            self.expect(":")
            condition = self.relation()
            self.expect(r"\right", r"\}")
            return ("first", index, condition)
        if self.next == "_":
            return ("word", name, self.subscript(), self.rounds() if name != "log" else (self.argument(),))
        if name in ("min", "max"):
            operands = self.rounds()
            if len(operands) != 2:
                self.fail("two numbers")
            return (name, *operands)
        return (name, self.argument())

    def argument(self) -> Tree:
        """Parse the argument of a function: an expression in brackets, or a factor."""
        return self.round() if self.signs[self.at : self.at + 2] == (r"\left", "(") else self.factor()

    def word(self, name: str) -> Tree:
        """Return `("softmax", x)`; settings come after the word: `("heads", h, x)`; of words in general `("word", name,
        settings, operands)`."""
        if name == "GELU" and self.follows("_", "{", r"\tanh", "}"):
            return ("GELU by tanh", self.round())
        if name in ("grid", "unwindow"):
            self.expect("_", "{")
            rows = self.sum()
            self.expect(r"\times")
            columns = self.braces()
            return (name, rows, columns, self.round())
        if name in SIZED_WORDS:
            self.expect("_", "{")
            return (name, self.braces(), self.round())
        if name in PLAIN_WORDS and self.next != "_":
            return (name, self.round())
        return ("word", name, self.subscript(), self.rounds())

    def full(self) -> Tree:
        r"""Return `("word", "full", shape, (number,))` of `\mathbf{0}_{B \times N}`."""
        self.expect("{")
        number = self.primary()
        self.expect("}")
        return ("word", "full", self.subscript(), (number,))

    def identity(self) -> Tree:
        r"""`("word", "identity", shape, ())` of `\mathbb{I}_{T}`."""
        for sign in "{I}":
            self.expect(sign)
        return ("word", "identity", self.subscript(), ())

    def largest(self) -> Tree:
        r"""Return `("number", 3.4…e38)` of `\text{max}_{\text{float32}}`."""
        self.expect("_", "{")
        kind = self.take(*DTYPE_MAXIMA)
        self.expect("}")
        return ("number", DTYPE_MAXIMA[kind]) if kind else self.fail("a kind of number")

    def subscript(self) -> tuple[Tree, ...]:
        """Parse settings, each `(sign, values, stays)`."""
        settings = []
        if self.take("_"):
            if not self.take("{"):
                return (("", (self.primary(),), False),)
            settings.append(self.setting())
            while self.take(","):
                settings.append(self.setting())
            self.expect("}")
        return tuple(settings)

    def setting(self) -> Tree:
        sign, values = "", []
        sign = (
            self.take(self.next)[len(r"\text{") : -1].strip() if self.next.startswith(r"\text{") else self.take(*SIGNS)
        )
        if self.next not in (",", "}"):
            values.append(self.sum())
            while self.take(r"\times"):
                values.append(self.sum())
        return (sign, tuple(values), self.follows(r"\to", "1"))

    def star(self, left: Tree) -> Tree:
        """Return `("convolve", transposed, settings, kernels, x)`."""
        back = self.follows("^", "{", r"\top", "}")
        return ("convolve", back, self.subscript(), left, self.factor())

    def deviation(self) -> Tree:
        r"""Parse `\sigma^2` as the variance, `\sigma` alone as the sigmoid."""
        if not self.follows("^", "2"):
            return ("word", "sigmoid", (), self.rounds())
        return ("word", "variance", self.subscript(), self.rounds()) if self.next == "_" else ("variance", self.round())

    def average(self) -> Tree:
        return ("word", "mu", self.subscript(), self.rounds()) if self.next == "_" else ("mean", self.round())

    def unfold(self) -> Tree:
        r"""Return `("unfold", order, side, image)` of `\mathcal{U}^{\mathrm{hwc}}_{P}\left(image\right)`."""
        self.expect("{", "U", "}", "^", "{", r"\mathrm", "{")
        order = ""
        while len(order) < 3 and self.next.isalpha():
            order += self.take(self.next)
        self.expect("}", "}", "_", "{")
        return ("unfold", order, self.braces(), self.round())

    def cases(self) -> Tree:
        """Return `("cases", (value, condition), …)`; a condition is a tuple of relations, one of which holds; () is
        else."""
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
        conditions = [self.relation()]
        while self.take(r"\text{ or }"):
            conditions.append(self.relation())
        return tuple(conditions)

    def relation(self) -> Tree:
        """Return `("≤", a, b)`."""
        left, sign = self.sum(), self.take(*RELATIONS)
        if not sign:
            self.fail("a comparison")
        return (RELATIONS[sign], left, self.sum())

    def sum_over(self) -> Tree:
        """Return `("sum over", (j, k), relation, term)`, or `("sum of", (j, k), term)` if only indices are below; with
        a tensor of numbers below, or `e < E`, `("experts", e, numbers, shares, term)`, whose shares are the factor in
        front; with sizes below, `("sum of axes", sizes, term)`."""
        self.expect("_", "{")
        start = self.at
        if self.name() or self.next[:1].isdigit():
            self.at = start
            sizes = [self.sum()]
            while self.take(","):
                sizes.append(self.sum())
            if not self.take("}"):
                self.fail("an index")
            return ("sum of axes", tuple(sizes), self.term())
        letters, numbers = [self.index()], ()
        if self.take("<"):
            numbers = ("counting", ("+", self.sum(), ("-", ("number", 1.0))))
            self.expect("}")
        elif self.take(r"\in"):
            numbers = self.braces()
        if numbers:
            shares = self.factor()
            if shares[0] != "cells" or shares[2] != (("index", letters[0]),):
                self.fail("shares")
            return ("experts", letters[0], numbers, shares[1], self.round())
        while self.next not in (":", "}"):
            letters.append(self.index())
        if self.take("}"):
            return ("sum of", tuple(letters), self.term())
        self.expect(":")
        condition = self.relation()
        self.expect("}")
        return ("sum over", tuple(letters), condition, self.term())


def require_word(name: str, words) -> str:
    """Return a word of the grammar. Raise UnreadableLatex, which quotes it, for any other."""
    if name not in words:
        raise UnreadableLatex(f"expected a function that the grammar has, got {quote(name)}")
    return name
