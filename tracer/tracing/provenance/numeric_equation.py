r"""Equation of one cell with the numbers of the run in place of its letters.

The shape of the equation stays: sums, fractions and functions are printed as the nodes print them. A sum over an axis
shows its largest terms, and the others as one number below a brace.
"""

from __future__ import annotations

from math import exp, isfinite, isinf, isnan

import sympy
from sympy.core.symbol import Str

from tracer.expr import Node, Tensor, latex
from tracer.expr.index_sets import TooMany, plain
from tracer.expr.math.activations import Softmax
from tracer.expr.math.algebra import Plus, Times
from tracer.expr.nn.layer_norm import LayerNorm, RMSNorm
from tracer.expr.provenance_rules import Copies, Elementwise, Linear
from tracer.tracing.provenance.walk import ProvenanceWalk

PRINTED_TERMS = 4
"""Terms of a long sum that are printed one by one."""
DIGITS = 4
"""Significant digits of a printed number."""


class Numerals(Node):
    """A number, or a part of an equation with its numbers, in place of an operand: `Numerals(latex, brackets)`."""

    def __new__(cls, text: str, brackets: bool):
        return super().__new__(cls, Str(text), sympy.Integer(brackets))

    @property
    def needs_parens(self) -> bool:  # type: ignore[override]
        return bool(self.args[1])

    needs_parens_in_script = needs_parens  # type: ignore[assignment]

    def _latex(self, printer) -> str:
        return self.args[0].name

    def infer(self, same) -> tuple:
        return ()


def number_latex(value: float | complex, digits: int = DIGITS) -> str:
    r"""Return a number as LaTeX, `-1.25 \cdot 10^{-7}`, with that many significant digits; whole numbers have all."""
    if isinstance(value, complex):
        imaginary = number_latex(value.imag, digits)
        sign = "" if imaginary.startswith("-") else "+"
        return rf"{number_latex(value.real, digits)}{sign}{imaginary}\,\mathrm{{i}}"
    if isnan(value):
        return r"\mathrm{NaN}"
    if isinf(value):
        return r"-\infty" if value < 0 else r"\infty"
    if float(value).is_integer() and abs(value) < 1e9:
        return str(int(value))
    text, _, power = f"{value:.{digits}g}".partition("e")
    if text == "1" and power:
        return f"10^{{{int(power)}}}"
    return rf"{text} \cdot 10^{{{int(power)}}}" if power else text


def fill(walk: ProvenanceWalk, index: tuple[int, ...]) -> str:
    """Return the right side of the equation of one cell, as LaTeX with numbers."""
    return _Filling(walk).node(walk.equation, index)


class _Filling:
    """Walk from the cell of an equation to the numbers that are printed for it."""

    def __init__(self, walk: ProvenanceWalk):
        self.walk = walk
        self.sizes = walk.size

    def node(self, node: Node, index: tuple[int, ...]) -> str:
        """Return a part of the equation, at one of its cells, with numbers."""
        try:
            return self._fill(node, index)
        except TooMany:
            return self._number(node, index)

    def _number(self, node: Node, index: tuple[int, ...]) -> str:
        return number_latex(plain(self.walk.tensor(node)[index]))

    def _fill(self, node: Node, index: tuple[int, ...]) -> str:
        if isinstance(node, Tensor) or not node.operands:
            return self._number(node, index)
        if isinstance(node, Softmax):
            return self._softmax(node, index)
        if isinstance(node, LayerNorm | RMSNorm):
            return self._norm(node, index)
        terms = self.walk.terms(node, index)
        counted = [term for term in terms if term.counted]
        if isinstance(node, Copies) and len(counted) == 1:
            return self.node(node.operands[counted[0].operand], counted[0].index)
        if isinstance(node, Elementwise) and len(terms) == len(node.operands):
            return self._same(node, [self._operand(node, term.operand, term.index) for term in terms])
        if isinstance(node, Linear) and counted and all(term.factor is not None for term in counted):
            return _sum([(term.share, _product(term.value, term.factor)) for term in counted])
        shares = [term.share for term in counted if term.share is not None]
        if shares and len(shares) == len(counted):
            return _sum([(share, number_latex(share)) for share in shares])
        return self._number(node, index)

    def _operand(self, node: Node, operand: int, index: tuple[int, ...]) -> Numerals:
        text = self.node(node.operands[operand], index)
        return Numerals(text, text.startswith("-") or _is_sum(text))

    def _same(self, node: Node, operands: list[Numerals]) -> str:
        """Return the node printed with these operands, and sizes as numbers."""
        if isinstance(node, Times):
            return r" \cdot ".join(map(_factor, operands))
        if isinstance(node, Plus):
            return _join_terms([operand.args[0].name for operand in operands])
        following = iter(operands)
        return latex(node.func(*(next(following) if isinstance(a, Node) else self._value(a) for a in node.args)))

    def _value(self, argument):
        """Return an argument of a node with its sizes as numbers."""
        letters = getattr(argument, "free_symbols", ())
        return argument.subs({letter: int(self.sizes(letter)) for letter in letters}) if letters else argument

    def _softmax(self, node: Node, index: tuple[int, ...]) -> str:
        """Return `e^{x_j} / (e^{x_1} + …)`. Above 50 the largest is subtracted from all, so that no power overflows."""
        terms = [(float(term.value.real), term.counted) for term in self.walk.terms(node, index)]
        largest = max(score for score, _ in terms)
        base = largest if isfinite(largest) and abs(largest) > 50 else 0.0
        own, powers = "", []
        for score, _ in sorted(terms, key=lambda term: not term[1]):  # its own first
            power = rf"e^{{{number_latex(score - base)}}}"
            own = own or power
            powers.append((exp(score - base), power))
        return rf"\frac{{{own}}}{{{_sum(powers, first=1)}}}"

    def _norm(self, node: Node, index: tuple[int, ...]) -> str:
        r"""Return `(x - μ) / √(σ² + ε) · γ + β` with its numbers, or `x / √(mean + ε) · γ`."""
        x, *vectors = node.operands
        row = self.walk.tensor(x)[index[:-1]]
        epsilon = f" + {number_latex(float(node.args[0]))}" if node.args[0] else ""
        at = self.node(x, index)
        if isinstance(node, LayerNorm):
            mean = _bracket_negative(number_latex(float(row.mean())))
            above, square = f"{at} - {mean}", float(row.var(correction=0))
        else:
            above, square = at, float((row * row).mean())
        text = rf"\frac{{{above}}}{{\sqrt{{{number_latex(square)}{epsilon}}}}}"
        tensors = map(self.walk.tensor, vectors)
        numbers = [number_latex(plain(vector[index[len(index) - vector.ndim :]])) for vector in tensors]
        if numbers:
            text += rf" \cdot {_bracket_negative(numbers[0])}"
        return _join_terms([text, *numbers[1:]])


def _factor(operand: Numerals) -> str:
    text = operand.args[0].name
    return rf"\left({text}\right)" if operand.needs_parens else text


def _bracket_negative(text: str) -> str:
    """Return a number as it follows a sign: in brackets where it is negative."""
    return rf"\left({text}\right)" if text.startswith("-") else text


def _product(value, factor) -> str:
    """Return `a · b`, or the number alone where it is not multiplied."""
    if factor == 1:
        return number_latex(value)
    return rf"{number_latex(value)} \cdot {_bracket_negative(number_latex(factor))}"


def _is_sum(text: str) -> bool:
    """Return whether a text has a plus or minus sign outside all brackets."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter in "({") - (letter in ")}")
        if depth == 0 and place and letter in "+-" and text[place - 1] == " ":
            return True
    return False


def _sum(terms: list[tuple], first: int = 0) -> str:
    """Return the sum of terms, (number, text) each: the `first` ones, the largest, and all others as one number."""
    if len(terms) <= PRINTED_TERMS + 1:
        return _join_terms([text for _, text in terms])
    order = [*range(first), *sorted(range(first, len(terms)), key=lambda place: -abs(terms[place][0]))]
    rest = sum(terms[place][0] for place in order[PRINTED_TERMS:])
    others = rf"\underbrace{{{number_latex(rest)}}}_{{{len(terms) - PRINTED_TERMS}\text{{ more}}}}"
    return _join_terms([*(terms[place][1] for place in order[:PRINTED_TERMS]), others])


def _join_terms(texts: list[str]) -> str:
    text = texts[0] if texts else "0"
    for term in texts[1:]:
        text += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
    return text
