"""The grammar of printed equations: from LaTeX to a tree."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn

from tracer.utils.errors import quote

# Lexer of printed lines.

Tree = tuple
"""A printed expression: the name of what is done, then its parts."""

_SIGN = re.compile(r"\\(?:text|operatorname)\{[^{}]*\}|\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\S")
_ROOM = {r"\,", r"\ ", r"\;", r"\quad"}


class UnreadableLatex(ValueError):
    """An equation outside the grammar, or without a value, in one sentence."""


class Undefined(UnreadableLatex):
    """An equation without a value for these tensors and sizes, such as a product of shapes that don't fit."""


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

    def several(self, rule: Callable[[], Any], *separators: str) -> tuple:
        """Parse what a rule reads, once or more, with one of these signs between."""
        items = [rule()]
        while self.take(*separators):
            items.append(rule())
        return tuple(items)

    def until(self, end: str, rule: Callable[[], Any]) -> tuple:
        """Parse what a rule reads, as often as it comes before a sign, and take that."""
        items = []
        while not self.take(end):
            items.append(rule())
        return tuple(items)

    def fail(self, expected: str) -> NoReturn:
        rest = "".join(self.signs[self.at : self.at + 12])
        raise UnreadableLatex(f"expected {expected} at {quote(rest)}" if rest else f"expected {expected} at its end")


# Grammar of the printed equations: LaTeX to a tree, without any knowledge of how it is run.
#
# A line is `name = expression`, or `name_{ij} = expression` where the right side says one cell, or `{name}_{[j]} = …`
# where it says one row. Behind it may stand `\text{since } a = b`, and for what is made turn by turn
# `\text{for }t < T`, with what states start from: `\text{ from }{h}_{-1} = 0`. A tree is a tuple, its first entry
# says what it is; every method of `_Reader` shows what it makes.
#
# Only the names that are given are names: of tensors and of sizes, each by the LaTeX that it is printed as, the longest
# first. A lower letter that is not a name is an index.


RELATIONS = {"=": "=", "<": "<", ">": ">", r"\le": "≤", r"\ge": "≥", r"\ne": "≠"}
FUNCTIONS = {rf"\{name}": name for name in "min max sin cos tan tanh sinh cosh arctan log".split()} | {r"\ln": "log"}
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
HEAD = r"\text{head }"
"""What stands before the number of a head. Heads count from 1, all other indices from 0."""
SIGNS = (r"\downarrow", r"\uparrow", r"\to")
"""Signs that a setting begins with."""
PAIRS = {r"\lfloor": ("floor", (r"\rfloor",)), r"\lceil": ("ceil", (r"\rceil",)), "|": ("abs", ("|",))}


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


def require_word(name: str, words) -> str:
    """Return a word of the grammar. Raise UnreadableLatex, which quotes it, for any other."""
    if name not in words:
        raise UnreadableLatex(f"expected a function that the grammar has, got {quote(name)}")
    return name


class _Reader(TokenCursor):
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
        count, starts = self.sum(), ()
        back = bool(self.take(r"\text{ back from }"))
        if back or self.take(r"\text{ from }"):
            first = count if back else ("-", ("number", 1.0))
            starts = self.several(partial(self.start, first), ",")
        return letter, count, starts, back

    def start(self, first: Tree) -> Tree:
        """Return `(state, value)` of a state before the first turn, which has this index below."""
        tree = self.factor()
        if tree[0] != "cells" or tree[2] != (first,):
            self.fail("what a state starts from")
        self.expect("=")
        return (tree[1], self.sum())

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
        end = next(at for at in range(self.at, len(self.signs)) if self.signs[at] in ("}", ""))
        several = self.signs[self.at : end]
        if len(several) > 1 and all(sign.isalpha() and len(sign) == 1 for sign in several):
            trees = tuple(self.primary() for _ in several)
        else:
            trees = self.several(self.sum, ",")
        self.expect("}")
        return trees

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
            HEAD: self.head,
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
        self.expect(*"{i}")
        return ("number", 1j)

    def head(self) -> Tree:
        r"""Return the index of a head by its number, which counts from 1: `("number", 1.0)` of `\text{head }2`."""
        number = self.primary()
        if number[0] != "number" or number[1] < 1:
            self.fail("the number of a head, from 1,")
        return ("number", number[1] - 1)

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

    # Words of printed equations, with their subscripts and bracketed operands; cases, comparisons and sums.
    #
    # Below a word stand settings with commas between them: sizes (the axes that it is of), numbers (several with ×
    # between them), each perhaps with a sign or a text in front, `\downarrow 2` or `\text{pad }1`, or such a sign
    # alone. `D \to 1` says that an axis stays, with size 1.

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
        """Parse the argument of a function: an expression or a count in brackets, or a factor."""
        if not self.follows(r"\left", "("):
            return self.factor()
        self.at -= 1
        return self.brackets()

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
        self.expect(*"{I}")
        return ("word", "identity", self.subscript(), ())

    def largest(self) -> Tree:
        r"""Return `("number", 3.4…e38)` of `\text{max}_{\text{float32}}`."""
        self.expect("_", "{")
        kind = self.take(*DTYPE_MAXIMA)
        self.expect("}")
        return ("number", DTYPE_MAXIMA[kind]) if kind else self.fail("a kind of number")

    def subscript(self) -> tuple[Tree, ...]:
        """Parse settings, each `(sign, values, stays)`."""
        if not self.take("_"):
            return ()
        if not self.take("{"):
            return (("", (self.primary(),), False),)
        settings = self.several(self.setting, ",")
        self.expect("}")
        return settings

    def setting(self) -> Tree:
        words = self.next.startswith(r"\text{")
        sign = self.take(self.next)[len(r"\text{") : -1].strip() if words else self.take(*SIGNS)
        values = self.several(self.sum, r"\times") if self.next not in (",", "}") else ()
        return (sign, values, self.follows(r"\to", "1"))

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
        rows = self.several(self.case, r"\\")
        self.expect(r"\end", "{", *"cases", "}")
        return ("cases", *rows)

    def case(self) -> Tree:
        value = self.sum()
        self.expect("&")
        return (value, self.condition())

    def condition(self) -> tuple[Tree, ...]:
        return () if self.take(r"\text{else}") else self.several(self.relation, r"\text{ or }")

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
            sizes = self.several(self.sum, ",")
            if not self.take("}"):
                self.fail("an index")
            return ("sum of axes", sizes, self.term())
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

    # Brackets of printed equations: round, square, bars, and the entries below a tensor.
    #
    # `{x}_{[…]}` are places, an entry for each axis (`:`, `n`, `a:b`, `a:b:c`, `M = 1`), where `\ldots` are all axes
    # that no entry is for; `{x}_{[…] \gets v}` has v there. `{x}_{[B\,(h\,d) \to B\,h\,d]}` is a layout: axes one after
    # the other, those in brackets as one, each name a size, with primes where two have one name.

    def braces(self) -> Tree:
        tree = self.sum()
        self.expect("}")
        return tree

    def round(self) -> Tree:
        """Parse an expression in round brackets."""
        operands = self.rounds()
        if len(operands) != 1:
            self.fail("one operand")
        return operands[0]

    def rounds(self) -> tuple[Tree, ...]:
        """Parse a comma-separated list in round brackets."""
        large = self.take(r"\left")
        self.expect("(")
        trees = self.several(self.sum, ",")
        if large:
            self.expect(r"\right")
        self.expect(")")
        return trees

    def brackets(self) -> Tree:
        r"""Return `("counting", last)` of `(0, 1, …, last)`, `("counting from", a, b, last)`, `("norm", x)`, or the
        tree of square brackets."""
        if self.take(r"\lVert"):
            tree = self.sum()
            self.expect(r"\right", r"\rVert")
            if self.follows("_", "2"):
                return ("norm", tree)
            return ("word", "length", self.subscript(), (tree,))
        if self.take("["):
            return self.square()
        if self.take(r"\langle"):
            first = self.sum()
            self.expect(",")
            tree = ("dot", first, self.sum())
            self.expect(r"\right", r"\rangle")
            return tree
        if opened := self.take(*PAIRS):
            name, closing = PAIRS[opened]
            tree = (name, self.sum())
            self.expect(r"\right", *closing)
            return tree
        self.expect("(")
        counts = self.follows("0", ",", "1", ",", r"\ldots", ",")
        tree = ("counting", self.sum()) if counts else self.sum()
        if not counts and self.take(","):
            tree = self.progression(tree)
        self.expect(r"\right", ")")
        return ("+", tree) if tree[0] == "convolve" else tree

    def progression(self, first: Tree) -> Tree:
        r"""Return `("counting from", a, b, last)` of `(a, b, \ldots, last)`, `("listed", a, b, …)` of `(a, b, …)`."""
        terms = [first, self.sum()]
        while self.take(","):
            if self.take(r"\ldots"):
                self.expect(",")
                return ("counting from", *terms, self.sum()) if len(terms) == 2 else self.fail("a number")
            terms.append(self.sum())
        return ("listed", *terms)

    def square(self) -> Tree:
        r"""Return `("below", a, b)` of `[a ; b]`, `("beside", a, b)` of `[a , b]`, `("all alike", x, n)` of `[x ; … ;
        x]_n`, `("joined", settings, a, b)` of `[a ; b]_{\text{axis }1}`, `("for all", j, relation)` of `[a = b for all
        j]` and `("iverson", relation)` of `[a = b]`, which are 1 or 0, and `("named", (i, j), x)` of `[x]_{ij}`."""
        first = self.sum()
        if sign := self.take(*RELATIONS):
            condition = (RELATIONS[sign], first, self.sum())
            if self.follows(r"\right", "]"):
                return ("iverson", condition)
            self.expect(r"\text{ for all }")
            index = self.index()
            self.expect(r"\right", "]")
            return ("for all", index, condition)
        if self.follows(r"\right", "]", "_", "{"):
            return ("named", self.until("}", self.index), first)
        if self.follows(";", r"\dots", ";"):
            last = self.sum()
            self.expect(r"\right", "]", "_", "{")
            if last != first:
                raise UnreadableLatex("expected the same on both sides of the dots")
            return ("all alike", first, self.braces())
        sign, entries = self.take(";", ","), [first]
        entries.append(self.sum())
        while sign and self.take(sign):
            entries.append(self.sum())
        self.expect(r"\right", "]")
        if self.next == "_":
            return ("joined", self.subscript(), *entries)
        return ("below" if sign == ";" else "beside", *entries)

    def part(self, whole: Tree) -> Tree:
        """Parse the rest of `_{[…]}`, whose first two signs are taken. `[n]` is one row or several, `[:n]` and `[n:]`
        are rows up to and from n, `[…, a:b]` are columns; else `("pick", x, entries)`, `("put", x, entries, how,
        values)` or `("layout", x, left, right)`."""
        if self.laid_out():
            left = self.axes(r"\to")
            tree = ("layout", whole, left, self.axes("]"))
            self.expect("}")
            return tree
        entries = self.several(self.entry, ",")
        self.expect("]")
        if self.take(r"\gets"):
            how = self.take("+")
            tree = ("put", whole, entries, how, self.sum())
        elif len(entries) == 1 and entries[0][0] == "at":
            tree = ("rows", whole, entries[0][1])
        elif len(entries) == 1 and entries[0][0] == "span" and not entries[0][3]:
            tree = ("slice", whole, "rows", *entries[0][1:3])
        elif len(entries) == 2 and entries[0] == ("rest",) and entries[1][0] == "span" and not entries[1][3]:
            tree = ("slice", whole, "columns", *entries[1][1:3])
        else:
            tree = ("pick", whole, entries)
        self.expect("}")
        return tree

    def entry(self) -> Tree:
        """Return `("rest",)`, `("at", n)`, `("span", start, stop, step)` or `("mask", relation)`."""
        if self.take(r"\ldots"):
            return ("rest",)
        start = None if self.next == ":" else self.sum()
        if sign := self.take(*RELATIONS):
            return ("mask", (RELATIONS[sign], start, self.sum()))
        if not self.take(":"):
            return ("at", start)
        stop = None if self.next in (":", ",", "]") else self.sum()
        return ("span", start, stop, self.sum() if self.take(":") else None)

    def laid_out(self) -> bool:
        """Return whether an arrow comes before the bracket is closed."""
        depth = 0
        for sign in self.signs[self.at :]:
            depth += (sign == "[") - (sign == "]")
            if sign == r"\to" and not depth:
                return True
            if depth < 0:
                return False
        return False

    def axes(self, end: str) -> tuple[tuple, ...]:
        """Parse the axes of one side, each a tuple of its atoms."""
        return self.until(end, lambda: self.until(")", self.atom) if self.take("(") else (self.atom(),))

    def atom(self) -> Tree:
        """Return `(size, primes)`."""
        size, primes = self.primary(), 0
        while self.take("'"):
            primes += 1
        return (size, primes)
