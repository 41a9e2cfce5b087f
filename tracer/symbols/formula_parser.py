"""Grammar of formulas over sizes, and their exact values: names, whole numbers, `+ - * / **`, `sqrt`, `log`,
`floor`, `ceiling`, brackets.

A formula may come out of a stranger's file, so its cost is bounded before anything is computed. Reading takes time in
proportion to its letters. No number in it, in its value or in any form that sympy brings it to has more than `BITS`
bits, since sizes of products, sums of fractions and powers at most add up, and they are added up here beforehand.
Python's own parser is not asked: it takes any program, and threads that parse at once fail in it (CPython 3.11).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil, floor, isqrt

from tracer.utils.errors import quote

LETTERS = 1000
"""Letters of a formula; the longest of our models, with costs that differ from block to block, has a fifth."""
DEPTH = 16
"""Brackets and signs within each other."""
POWER = 16
"""The highest exponent, and the highest product of exponents of powers within each other."""
BITS = 1024
"""Of the largest number that a formula may lead to; a size has 63, and one more stands for each name."""
SIZE = 63
"""Bits of a number that is written down, and of the size that a name stands for."""

CALLS = ("sqrt", "log", "floor", "ceiling")
"""What may stand before a bracket."""

Tree = int | str | tuple
"""A number, a name, or an operator before its operands: `("+", a, b, …)`, `("*", …)`, `("**", a, 2)`,
`("-", a)`, `("sqrt", a)`, `("log", a)`, `("floor", a)`, `("ceiling", a)`; a quotient is a product with
`("**", b, -1)`, and the exponent of a root is a fraction."""

_TOKEN = re.compile(r"[0-9]+|[A-Za-z_][A-Za-z0-9_]*|\*\*|[-+*/()]")


class _Reader:
    """A recursive-descent parser of one text, with one method for each rule of the grammar."""

    def __init__(self, text: str):
        self.tokens = [*_TOKEN.findall(text), ""]
        if "".join(self.tokens) != "".join(text.split()):  # there is something between the tokens
            raise ValueError
        self.at = self.depth = 0

    def take(self, *wanted: str) -> str:
        """Consume and return the next token if it is one of these, else return ""."""
        token = self.tokens[self.at]
        if token not in wanted:
            return ""
        self.at += 1
        return token

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            raise ValueError

    def whole(self) -> Tree:
        tree = self.nested(self.sum)
        if self.tokens[self.at]:
            raise ValueError
        return tree

    def nested(self, rule: Callable[[], Tree]) -> Tree:
        """Apply a rule one level deeper."""
        self.depth += 1
        if self.depth > DEPTH:
            raise ValueError
        tree = rule()
        self.depth -= 1
        return tree

    def sum(self) -> Tree:
        terms = [self.product()]
        while sign := self.take("+", "-"):
            term = self.product()
            terms.append(term if sign == "+" else ("-", term))
        return terms[0] if len(terms) == 1 else ("+", *terms)

    def product(self) -> Tree:
        factors = [self.unary()]
        while sign := self.take("*", "/"):
            factor = self.unary()
            factors.append(factor if sign == "*" else ("**", factor, -1))
        return factors[0] if len(factors) == 1 else ("*", *factors)

    def unary(self) -> Tree:
        return ("-", self.nested(self.unary)) if self.take("-") else self.power()

    def power(self) -> Tree:
        base = self.atom()
        if not self.take("**"):
            return base
        bracket = self.take("(")
        sign = -1 if self.take("-") else 1
        exponent: Fraction | int = self.exponent()
        if bracket:
            if self.take("/"):
                exponent = Fraction(exponent, self.exponent() or 1)
            self.expect(")")
        if self.tokens[self.at] == "**":
            raise ValueError
        return ("**", base, sign * (int(exponent) if exponent == int(exponent) else exponent))

    def exponent(self) -> int:
        token = self.tokens[self.at]
        self.at += 1
        if not token.isdecimal() or len(token) > 2:
            raise ValueError
        return int(token)

    def atom(self) -> Tree:
        token = self.tokens[self.at]
        self.at += 1
        if token == "(":
            tree = self.nested(self.sum)
            self.expect(")")
            return tree
        if token in CALLS and self.take("("):
            tree = (token, self.nested(self.sum))
            if token in ("floor", "ceiling") and _has_root(tree):
                raise ValueError
            self.expect(")")
            return tree
        if token.isdecimal() and len(token) <= len(str(2**SIZE)):
            return int(token)
        if token[:1].isalpha() or token[:1] == "_":
            return token
        raise ValueError


@lru_cache(maxsize=4096)
def read(text: str) -> Tree:
    """Parse a formula to a tree. Raise ValueError with one sentence for any other text, or for one that is too
    large."""
    if len(text) > LETTERS:
        raise ValueError(f"{quote(text)} has {len(text):,} letters, expected a formula of at most {LETTERS:,}")
    try:
        tree = _Reader(text).whole()
    except ValueError:
        what = "names, whole numbers of 63 bits, + - * /, ** and a short number, sqrt, log, floor, ceiling, brackets"
        raise ValueError(f"{quote(text)} is not a formula over sizes: {what}") from None
    if _power(tree) > POWER:
        raise ValueError(f"{quote(text)} has a power above {POWER}")
    if bits(tree, 1) > BITS:
        raise ValueError(f"{quote(text)} leads to numbers of more than {BITS:,} bits")
    return tree


def _operands(tree: Tree) -> tuple:
    """Return the operands of an operator, without an exponent; none of a number or a name."""
    return () if not isinstance(tree, tuple) else tree[1:2] if tree[0] == "**" else tree[1:]


def _has_root(tree: Tree) -> bool:
    """Return whether a root or a logarithm is in a formula: rounding it could take any number of its digits."""
    root = isinstance(tree, tuple) and (tree[0] in ("sqrt", "log") or isinstance(tree[-1], Fraction))
    return root or any(map(_has_root, _operands(tree)))


def _power(tree: Tree) -> int:
    """Return the highest product of exponents of nested powers."""
    inner = max(map(_power, _operands(tree)), default=1)
    return inner * max(1, abs(tree[2])) if isinstance(tree, tuple) and tree[0] == "**" else inner


def bits(tree: Tree, size: int = SIZE) -> int:
    """Return the maximum bits of numerators, denominators and radicands of a formula, however it is rewritten without
    expanding a power of a sum, where each name is a number of `size` bits."""
    if isinstance(tree, int):
        return max(1, tree.bit_length())
    if isinstance(tree, str):
        return size
    if tree[0] == "**":
        return ceil(max(1, abs(tree[2]))) * bits(tree[1], size)
    carried = len(tree) - 2 if tree[0] == "+" else tree[0] in ("floor", "ceiling")
    return sum(bits(operand, size) for operand in tree[1:]) + carried


def names(tree: Tree) -> set[str]:
    """Return the names in a formula."""
    return {tree} if isinstance(tree, str) else set().union(*map(names, _operands(tree)))


def value(text: str, sizes: Mapping[str, int] | Mapping[str, Fraction]) -> Fraction:
    """Return the exact value of a formula at these sizes.

    Raise ValueError in one sentence for a name that is not a size, a division by zero, a root that is not rational, and
    for an intermediate number of more than `BITS` bits.
    """

    def root(number: int) -> int:
        if number < 0 or isqrt(number) ** 2 != number:
            raise ValueError(f"{quote(text)} has a root that is not a whole number")
        return isqrt(number)

    def small(number: Fraction) -> Fraction:
        if max(number.numerator.bit_length(), number.denominator.bit_length()) > BITS:
            raise ValueError(f"{quote(text)} leads to numbers of more than {BITS:,} bits")
        return number

    def at(tree: Tree) -> Fraction:
        if isinstance(tree, int):
            return Fraction(tree)
        if isinstance(tree, str):
            if tree not in sizes:
                raise ValueError(f"{quote(text)} has {quote(tree)}, which is none of its sizes")
            return Fraction(sizes[tree])
        if tree[0] == "**":
            base = at(tree[1])
            if not isinstance(tree[2], int):
                raise ValueError(f"{quote(text)} has a root that is not a whole number")
            if max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(tree[2]) > BITS:
                raise ValueError(f"{quote(text)} leads to numbers of more than {BITS:,} bits")
            return base ** tree[2]
        first, *rest = map(at, tree[1:])
        match tree[0]:
            case "-":
                return -first
            case "sqrt":
                return Fraction(root(first.numerator), root(first.denominator))
            case "log":
                raise ValueError(f"{quote(text)} has a logarithm, which is not a fraction")
            case "floor":
                return Fraction(floor(first))
            case "ceiling":
                return Fraction(ceil(first))
        for term in rest:
            first = small(first + term if tree[0] == "+" else first * term)
        return first

    try:
        return at(read(text))
    except ZeroDivisionError:
        raise ValueError(f"{quote(text)} divides by zero") from None
