"""One dimension, several runs: the one expression over the sizes that fits every run."""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement

import sympy

from tracer.notation import parse

UNKNOWN = "?"
FACTORS = (1, 2, 3, 4)
"""Whole-number factors that packed tensors have: `3·D` for queries, keys and values in one."""


class Solver:
    """Solves dimensions over a vocabulary of sizes, from their values at several configurations.

    `vocabulary` lists expressions in order of preference (`"B"`, `"N"`, `"N + 1"` …); `derived` says what some of
    their symbols equal (`{"N": "H*W/P**2"}`), so that an identity (D = h·d_k) is told from an ambiguity. Candidates
    are products of up to three of them, their quotients, and whole multiples. `configurations` gives the values
    of all symbols, one dictionary for each run.
    """

    def __init__(self, vocabulary: tuple[str, ...], derived: dict[str, str], configurations: list[dict[str, int]]):
        self._derived = {parse(name): parse(text) for name, text in derived.items()}
        self._atoms = tuple(vocabulary)
        values = [tuple(value_of(atom, sizes) for sizes in configurations) for atom in vocabulary]
        self._found: dict[tuple, list[str]] = {}
        self._answers: dict[tuple, str] = {}
        self._add(values)

    def _add(self, values: list[tuple]) -> None:
        """Candidates by their values, simplest first: atoms, multiples, products of two, quotients, of three."""
        found, atoms = self._found, self._atoms

        def offer(vector, text):
            if all(v == int(v) for v in vector):
                found.setdefault(tuple(int(v) for v in vector), []).append(text)

        each = range(len(atoms))
        for i in each:
            offer(values[i], f"({atoms[i]})")
        pairs = list(combinations_with_replacement(each, 2))
        for factor in FACTORS[1:]:
            for i in each:
                offer([factor * v for v in values[i]], f"{factor}*({atoms[i]})")
        for i, j in pairs:
            offer([a * b for a, b in zip(values[i], values[j], strict=True)], f"({atoms[i]})*({atoms[j]})")
        for i in each:
            for j in each:
                if i != j:
                    offer([a / b for a, b in zip(values[i], values[j], strict=True)], f"({atoms[i]})/({atoms[j]})")
        for i, j in pairs:
            for k in each:
                both = [a * b for a, b in zip(values[i], values[j], strict=True)]
                product = f"({atoms[i]})*({atoms[j]})"
                if k >= j:
                    offer([a * b for a, b in zip(both, values[k], strict=True)], f"{product}*({atoms[k]})")
                if k not in (i, j):
                    offer([a / b for a, b in zip(both, values[k], strict=True)], f"{product}/({atoms[k]})")

    def solve(self, vector: tuple[int, ...]) -> str:
        """sympy's `str` of the one expression with these values, or `"?"` if there is none, or there are two."""
        if vector not in self._answers:
            self._answers[vector] = self._solve(vector)
        return self._answers[vector]

    def _solve(self, vector):
        candidates = [text for text in self._found.get(vector, ()) if self.base(text).free_symbols]
        if not candidates:
            return str(vector[0]) if len(set(vector)) == 1 else UNKNOWN
        if len(set(vector)) == 1:  # a literal, or a size that no configuration changes: nothing tells them apart
            return UNKNOWN
        meanings = {self.base(text) for text in candidates}
        return _text(candidates[0]) if len(meanings) == 1 else UNKNOWN

    def base(self, text: str) -> sympy.Expr:
        """A formula over the sizes that aren't derived, in one normal form."""
        return base_form(text, tuple(self._derived.items()))


@lru_cache(maxsize=65536)
def base_form(text: str, derived: tuple) -> sympy.Expr:
    """A formula with every derived size replaced by what it equals, expanded."""
    return sympy.expand(parse(text).subs(derived, simultaneous=False).subs(derived))


@lru_cache(maxsize=65536)
def _text(candidate: str) -> str:
    return str(parse(candidate))


@lru_cache(maxsize=65536)
def _compiled(text: str):
    expression = parse(text)
    names = sorted(str(s) for s in expression.free_symbols)
    return names, sympy.lambdify([parse(name) for name in names], expression, "math")


def value_of(text: str, sizes: dict[str, int]) -> float:
    """The value of a formula at given sizes. KeyError names a size that is missing."""
    names, function = _compiled(text)
    return function(*(sizes[name] for name in names))
