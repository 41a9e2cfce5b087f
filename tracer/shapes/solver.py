"""Solver for one dimension: the one formula over the sizes that fits every run, and predicts one more."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from itertools import combinations_with_replacement
from math import gcd

import sympy

from tracer.shapes.formulas.composite_formulas import find_composites
from tracer.shapes.formulas.floor_division import normalise_floors, to_ceilings
from tracer.symbols import formula_parser
from tracer.symbols.notation import parse

UNKNOWN = "?"
FACTORS = (1, 2, 3, 4)
"""Integer factors of packed tensors: `3·D` for queries, keys and values in one."""

SAMPLES = 60
"""Number of sizes at which two formulas are compared."""

MAX_LEARNED_SIZES = 40
"""Largest number of sizes learned from ops, such as `⌈H/2⌉`, that other formulas are built from."""


Units = tuple[tuple[str, int], ...]


class Solver:
    """Solver of dimensions over a vocabulary of sizes, from their values at several configurations.

    `vocabulary` lists formulas in order of preference (`"B"`, `"N"`, `"N + 1"` …). `derived` has formulas of some
    symbols (`{"N": "H*W/P**2"}`), so that an identity (D = h·d_k) is no ambiguity. Candidates are products of up to
    three sizes, their quotients and integer multiples. If none fits, `beyond` finds offsets, other multiples, sums, and
    rounded quotients. `configurations` are the values of all symbols in each run. `fresh` is a run that is not used to
    solve: the solution has to predict it.
    """

    def __init__(
        self,
        vocabulary: tuple[str, ...],
        derived: dict[str, str],
        configurations: list[dict[str, int]],
        fresh: dict[str, int] | None = None,
    ):
        self._derived = {parse(name): parse(text) for name, text in derived.items()}
        self._atoms = tuple(vocabulary)
        self._runs = [*configurations, fresh] if fresh else list(configurations)
        self._used = len(configurations)
        self._units = common_divisors(self._runs)
        values = [tuple(value_of(atom, sizes) for sizes in configurations) for atom in vocabulary]
        self._formulas: dict[tuple, list[str]] = {}
        self._answers: dict[tuple, str] = {}
        self.ambiguous: set[tuple] = set()
        self._whole: dict[tuple, str] = {}
        self._known = [
            (text, tuple(map(int, vector)))
            for text, vector in zip(vocabulary, values, strict=True)
            if all(v == int(v) for v in vector)
        ]
        self._most = len(self._known) + MAX_LEARNED_SIZES
        self._add_candidates(values)

    def _add_candidates(self, values: list[tuple]) -> None:
        """Add candidates by their values, simplest first: atoms, multiples, products of two, quotients, of three."""
        candidates, atoms = self._formulas, self._atoms

        def offer(vector, text):
            if all(v == int(v) for v in vector):
                candidates.setdefault(tuple(int(v) for v in vector), []).append(text)

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

    def solve(self, vector: tuple[int, ...], own: Sequence[str] = ()) -> str:
        """Return sympy's `str` of the one formula with these values, or `"?"` if there is none, or more than one.

        `vector` has one value for each configuration, and one for `fresh`. `own` are formulas from the arguments of the
        op that computed the dimension, one of which is right. If two ops have different ones, the runs are ambiguous:
        the values are added to `ambiguous`, and are `"?"` for ops without a formula of their own, unless the two differ
        only in a remainder that is 0.
        """
        answer = self._answers.get(vector)
        formula = next((text for text in own if self._fits(text, vector)), None) if own else None
        if formula is not None and self._candidates(vector):
            formula = None
        if formula is not None and len({*vector}) == 1:  # as a size that all runs have alike, and other axes, too
            return _factor(formula)
        if vector in self._whole:
            if answer is None:
                self._answers[vector] = self._remember(self._whole[vector], vector)
            return self._whole[vector]
        if formula is not None:
            if answer is None or answer == UNKNOWN:
                self._answers[vector] = self._remember(formula, vector)
            elif not self._are_equal([answer, formula]):
                self._mark_ambiguous(answer, formula, vector)
            return _factor(formula)
        if answer is None:
            answer = self._answers[vector] = self._solve(vector)
        return UNKNOWN if vector in self.ambiguous else answer

    def _mark_ambiguous(self, first: str, second: str, vector: tuple[int, ...]) -> None:
        """Mark two formulas of ops as ambiguous.

        If they differ only in rounding, and nothing is rounded at multiples of the sizes of the runs, both become the
        exact quotient.
        """
        exact = _drop_rounding(second)
        if self._are_equal([first, second, exact], self._units) and self._fits(exact, vector):
            self._whole[vector] = exact
        self.ambiguous.add(vector)

    def number(self, vector: tuple[int, ...]) -> str:
        """Return the listed size with these values, or minus one; `"?"` if there is none, or more than one."""
        if max(vector) < 0:
            size = self.number(tuple(-value for value in vector))
            return size if size == UNKNOWN else str(-parse(size))
        listed = self._candidates(vector)
        return _text(listed[0]) if listed and self._are_equal(listed) and self._fits(listed[0], vector) else UNKNOWN

    @property
    def runs(self) -> list[dict[str, int]]:
        """Sizes of all runs, the predicted one last."""
        return self._runs

    def varies(self, text: str) -> bool:
        """Return whether a formula has sizes that differ between runs, whatever its values."""
        names = () if text == UNKNOWN else parse(text).free_symbols
        return any(len({run.get(str(name)) for run in self._runs}) > 1 for name in names)

    def atoms(self) -> list[tuple[str, tuple[float, ...]]]:
        """Return the vocabulary's sizes with their values in all runs."""
        return [(atom, tuple(value_of(atom, sizes) for sizes in self._runs)) for atom in self._atoms]

    def reset(self) -> None:
        """Drop all answers, but not the ambiguous values."""
        self._answers.clear()
        del self._known[self._most - MAX_LEARNED_SIZES :]

    def _candidates(self, vector) -> list[str]:
        """Return the listed candidates; one that is a constant at all sizes does not count."""
        return [text for text in self._formulas.get(vector[: self._used], ()) if self.base(text).free_symbols]

    def _remember(self, candidate: str, vector) -> str:
        """Return the formula in its usual form, and use it in other formulas from now on."""
        answer = _factor(candidate)
        if len(self._known) < self._most and (vector not in self.ambiguous or vector in self._whole):
            self._known.append((answer, vector[: self._used]))
        return answer

    def _solve(self, vector) -> str:
        prefix, listed = vector[: self._used], self._candidates(vector)
        if len(set(prefix)) == 1:  # beside a literal, a size that no configuration changes: nothing tells them apart
            return UNKNOWN if listed or len(set(vector)) > 1 else str(vector[0])
        candidates = [text for text in listed or find_composites(prefix, self._known) if self._fits(text, vector)]
        if not candidates or not self._are_equal(candidates, self._units):
            return UNKNOWN
        wholes = {f"({text})" for text in self._whole.values()}
        exact = (text for text in candidates if any(whole in text for whole in wholes))
        return _text(candidates[0]) if listed else self._remember(next(exact, candidates[0]), vector)

    def _are_equal(self, candidates: list[str], units: Units = ()) -> bool:
        """Return whether all of these formulas are equal, with derived sizes expanded or as they are.

        With `units`, the divisors of the sizes in all runs, they are compared at multiples of these: there ⌊H/32⌋ is
        H/32.
        """
        first, *others = {self.base(text): text for text in candidates}.items()
        return all(
            equal_at(first[0], probe_sizes, units) or (bool(units) and equal_at(parse(first[1]), parse(text), units))
            for probe_sizes, text in others
        )

    def _fits(self, text: str, vector) -> bool:
        """Return whether a formula has these values in as many runs as there are values."""
        return all(value_of(text, sizes) == v for sizes, v in zip(self._runs, vector, strict=False))

    def base(self, text: str) -> sympy.Expr:
        """Return a formula in normal form, over the sizes that are not derived."""
        return base_form(text, tuple(self._derived.items()))


def common_divisors(runs: Sequence[dict[str, int]]) -> Units:
    """Return the greatest common divisor of each size over all runs."""
    names = (name for name in runs[0] if all(name in run for run in runs))
    return tuple((name, gcd(*(int(run[name]) for run in runs))) for name in names)


@lru_cache(maxsize=4096)
def equal_at(a: sympy.Expr, b: sympy.Expr, units: Units) -> bool:
    """Return whether two expressions have the same value at all sizes: T - ⌈T/2⌉ is ⌊T/2⌋.

    Only expressions that round can differ in form.
    """
    if not (a.has(sympy.floor) or b.has(sympy.floor)):
        return False
    names, texts = sorted(map(str, a.free_symbols | b.free_symbols)), (str(a), str(b))
    draw, unit = random.Random(0), dict(units)
    for _ in range(SAMPLES):
        sizes = {name: unit.get(name, 1) * draw.randrange(1, 1000) for name in names}
        if formula_parser.value(texts[0], sizes) != formula_parser.value(texts[1], sizes):
            return False
    return True


@lru_cache(maxsize=65536)
def base_form(text: str, derived: tuple) -> sympy.Expr:
    """Return a formula with every derived size replaced by its formula, expanded."""
    return normalise_floors(sympy.expand(parse(text).subs(derived, simultaneous=False).subs(derived)))


@lru_cache(maxsize=65536)
def _drop_rounding(text: str) -> str:
    """Return a formula without its rounding, `H/8` for `floor(H/8 + 1/2)`."""

    def inside(rounded) -> sympy.Expr:
        return rounded.args[0].as_coeff_Add()[1]

    return _factor(str(normalise_floors(parse(text)).replace(lambda part: isinstance(part, sympy.floor), inside)))


@lru_cache(maxsize=65536)
def _text(candidate: str) -> str:
    return str(parse(candidate))


@lru_cache(maxsize=65536)
def _factor(candidate: str) -> str:
    """Return a formula in its usual form: `3*B*(T - 1)`, `ceiling(T/2)`."""
    expression = to_ceilings(parse(candidate))
    return str(sympy.factor_terms(expression) if expression.is_Mul else expression)


@lru_cache(maxsize=65536)
def _compile(text: str):
    expression = parse(text)
    names = sorted(str(s) for s in expression.free_symbols)
    terms = [term.as_coeff_Mul()[0] for term in sympy.Add.make_args(expression)]
    roots = any(not power.exp.is_Integer for power in expression.atoms(sympy.Pow))
    roots = roots or expression.has(sympy.log)
    parts = [part for part in expression.atoms(sympy.floor, sympy.ceiling) if not part.has(sympy.log)]
    if roots and parts and all(power.exp.is_Integer for part in parts for power in part.atoms(sympy.Pow)):
        # what is rounded is exact, the root of it is not
        rest = expression.xreplace(whole := {part: sympy.Dummy() for part in parts})
        root, texts = sympy.lambdify([*map(parse, names), *whole.values()], rest, "math"), list(map(str, parts))

        def of(*values):
            sizes = dict(zip(names, values, strict=True))
            return root(*values, *(formula_parser.value(text, sizes) for text in texts))

        return names, of
    if (not roots and not all(number.is_Integer for number in terms)) or expression.has(
        sympy.floor, sympy.ceiling
    ):  # in floating point it may be rounded to its neighbour
        source = str(expression)  # what cancels is not a size of it
        return names, lambda *values: formula_parser.value(source, dict(zip(names, values, strict=True)))
    return names, sympy.lambdify([parse(name) for name in names], expression, "math")


def names_of(text: str) -> list[str]:
    """Return the names of the sizes in a formula."""
    return _compile(text)[0]


def value_of(text: str, sizes: dict[str, int]) -> float:
    """Return the value of a formula at these sizes. Raise KeyError with the name of a missing size."""
    names, function = _compile(text)
    return function(*(sizes[name] for name in names))


def evaluator(sizes: dict[str, int]) -> Callable[[str], float]:
    """Return `value_of` at these sizes, which computes each formula once."""
    return cache(lambda text: value_of(text, sizes))
