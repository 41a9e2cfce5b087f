"""Rounded quotients of sizes, `⌊(H − 1)/2⌋ + 1`, in a normal form in which they can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm

import sympy

from tracer.symbols.notation import parse


def floor_divide(size: str, offset: int, by: int) -> str:
    """Return ⌊(size + offset)/by⌋ as a formula, rounded only once: ⌊(⌊H/2⌋ + 1)/2⌋ is ⌊(H + 2)/4⌋."""
    number, rest = (normalise_floors(parse(size)) + offset).as_coeff_Add()
    inside = rest.args[0] if isinstance(rest, sympy.floor) else rest
    return str(normalise_floors(sympy.floor(sympy.expand((inside + number) / by))))


def normalise_floors(expression: sympy.Expr) -> sympy.Expr:
    """Return the expression with every rounded quotient as ⌊x/k + f⌋ + n, with 0 ≤ f < 1.

    This form is unique, since x is an integer.
    """

    def form(inside) -> sympy.Expr:
        constant, rest = sympy.expand(inside).as_coeff_Add()
        terms = rest.as_coefficients_dict()
        if any(map(_is_divided_by_size, terms)):
            return sympy.floor(inside)
        over = _common_denominator(terms)
        added = int(sympy.floor(constant * over))
        (term, factor), *others = terms.items()
        if not others and isinstance(term, sympy.floor) and factor == sympy.Rational(1, over):
            return form((term.args[0] + added) / over)
        whole, left = divmod(added, over)
        return sympy.floor(rest + sympy.Rational(left, over)) + whole

    def up(floor_term) -> sympy.Expr:
        """Rewrite ⌈x/k⌉ as ⌊(x + k − 1)/k⌋."""
        inside = sympy.expand(floor_term.args[0])
        terms = inside.as_coefficients_dict()
        if any(map(_is_divided_by_size, terms)):
            return floor_term
        over = _common_denominator(terms)
        return form(inside + sympy.Rational(over - 1, over))

    if not expression.has(sympy.floor, sympy.ceiling):
        return expression
    written = expression.replace(lambda part: isinstance(part, sympy.ceiling), up)
    return written.replace(lambda part: isinstance(part, sympy.floor), lambda part: form(part.args[0]))


def _is_divided_by_size(term: sympy.Expr) -> bool:
    """Return whether a term is divided by a size, not by a number."""
    return term.as_numer_denom()[1] != 1


def _common_denominator(terms: Mapping[sympy.Expr, sympy.Rational]) -> int:
    """Return the common denominator of these fractions: 6 for T/2 + B/3."""
    return lcm(*(int(factor.q) for factor in terms.values()))


def to_ceilings(expression: sympy.Expr) -> sympy.Expr:
    """Return the expression in its usual form: ⌊x/k + (k − 1)/k⌋ as ⌈x/k⌉."""

    def read(floor_term) -> sympy.Expr:
        part, rest = floor_term.args[0].as_coeff_Add()
        over = _common_denominator(rest.as_coefficients_dict())
        return sympy.ceiling(rest) if over > 1 and part == sympy.Rational(over - 1, over) else floor_term

    return normalise_floors(expression).replace(lambda part: isinstance(part, sympy.floor), read)
