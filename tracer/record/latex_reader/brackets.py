r"""Brackets of printed equations: round, square, bars, and the entries below a tensor.

`{x}_{[…]}` are places, an entry for each axis (`:`, `n`, `a:b`, `a:b:c`, `M = 1`), where `\ldots` are all axes that no
entry is for; `{x}_{[…] \gets v}` has v there. `{x}_{[B\,(h\,d) \to B\,h\,d]}` is a layout: axes one after the other,
those in brackets as one, each name a size, with primes where two have one name.
"""

from __future__ import annotations

from tracer.record.latex_reader.function_grammar import RELATIONS
from tracer.record.latex_reader.lexer import Rules, Tree, UnreadableLatex

PAIRS = {r"\lfloor": ("floor", (r"\rfloor",)), r"\lceil": ("ceil", (r"\rceil",)), "|": ("abs", ("|",))}


class BracketRules(Rules):
    """Grammar rules of brackets; `sum` and `primary` are those of the whole grammar."""

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
        trees = [self.sum()]
        while self.take(","):
            trees.append(self.sum())
        if large:
            self.expect(r"\right")
        self.expect(")")
        return tuple(trees)

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
            letters = []
            while not self.take("}"):
                letters.append(self.index())
            return ("named", tuple(letters), first)
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
        entries = [self.entry()]
        while self.take(","):
            entries.append(self.entry())
        self.expect("]")
        if self.take(r"\gets"):
            how = self.take("+")
            tree = ("put", whole, tuple(entries), how, self.sum())
        elif len(entries) == 1 and entries[0][0] == "at":
            tree = ("rows", whole, entries[0][1])
        elif len(entries) == 1 and entries[0][0] == "span" and not entries[0][3]:
            tree = ("slice", whole, "rows", *entries[0][1:3])
        elif len(entries) == 2 and entries[0] == ("rest",) and entries[1][0] == "span" and not entries[1][3]:
            tree = ("slice", whole, "columns", *entries[1][1:3])
        else:
            tree = ("pick", whole, tuple(entries))
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
        axes = []
        while not self.take(end):
            if self.take("("):
                group = []
                while not self.take(")"):
                    group.append(self.atom())
                axes.append(tuple(group))
            else:
                axes.append((self.atom(),))
        return tuple(axes)

    def atom(self) -> Tree:
        """Return `(size, primes)`."""
        size, primes = self.primary(), 0
        while self.take("'"):
            primes += 1
        return (size, primes)
