"""Solver for one dimension: the one formula over the sizes that fits every run, and predicts one more."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations, combinations_with_replacement, permutations, product
from math import exp, gcd, isfinite, lcm, log
from operator import mul, truediv
from typing import NamedTuple

import sympy

from tracer.capture.logged_sizes import Scalars
from tracer.symbols import formula_parser
from tracer.symbols.notation import parse

# Formulas beyond products of named sizes: offsets, multiples, sums, and rounded quotients.
#
# No candidates are listed. The quotient of a dimension and a product of sizes determines which number is to be added to
# a size, or multiplied by it. So any whole number is possible, and it has to fit every run.

STRIDES = (2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 32)
"""Divisors of sizes that are tried if no op's arguments have one."""

MIN_VALUES = 3
"""Fewest different values of a size from which two numbers are determined."""

SEVERAL = 4
"""Fewest different values of a size if it is rounded, too."""

ROUNDING_FUNCTION = re.compile("floor|ceiling")

KnownFormulas = list[tuple[str, tuple[int, ...]]]
"""Sizes as (formula, values in the runs)."""


def find_composites(vector: tuple[int, ...], known: KnownFormulas) -> list[str]:
    """Return all formulas with these values that are a product of sizes times one of three forms.

    These are `m·x + c` for a product x of sizes, `⌊(a + c)/k⌋`, and `±a ± b + c` for two sizes. Those without a factor
    come first.
    """
    if min(vector) < 1:
        return []
    products = known + [
        (f"({a})*({b})", tuple(x * y for x, y in zip(first, second, strict=True)))
        for (a, first), (b, second) in combinations_with_replacement(known, 2)
    ]
    for rounds in (False, True):  # what needs no rounding is not rounded
        formulas = list(_find_unscaled(vector, known, products, rounds))
        for factor, values in products:
            if any(v % x for v, x in zip(vector, values, strict=True) if x) or 0 in values:
                continue
            rest = tuple(v // x for v, x in zip(vector, values, strict=True))
            if len(set(rest)) == 1:
                formulas.append(f"{rest[0]}*({factor})")
            else:
                formulas += [f"({factor})*({text})" for text in _find_unscaled(rest, known, products, rounds)]
        if formulas:
            return formulas
    return []


def _find_unscaled(vector, known: KnownFormulas, products: KnownFormulas, rounds: bool) -> Iterator[str]:
    """Yield formulas without a factor; with `rounds` also those that round."""
    if len(set(vector)) < MIN_VALUES:
        return
    for text, values in products:
        line = _fit_line(vector, values)
        if line is not None:
            m, c = line
            yield f"{m}*({text}) + {c}"
    yield from _find_quotients(vector, known, rounds)
    summed = (
        known
        if rounds and len(set(vector)) >= SEVERAL
        else [addend for addend in known if not ROUNDING_FUNCTION.search(addend[0])]
    )
    for (a, addend), (b, right) in combinations(summed, 2):
        for first, second in ((1, 1), (1, -1), (-1, 1)):
            left = {v - first * x - second * y for v, x, y in zip(vector, addend, right, strict=True)}
            if len(left) == 1:
                yield f"{first}*({a}) + {second}*({b}) + {left.pop()}"


def _find_quotients(vector, known: KnownFormulas, rounds: bool) -> Iterator[str]:
    """Yield quotients of a size and their multiples; rounded ones only if none is exact in every run.

    A module that takes other sizes runs at others, too.
    """
    exact = []
    for text, values in known:
        for stride in STRIDES:
            if len(set(values)) >= MIN_VALUES and all(v * stride == x for v, x in zip(vector, values, strict=True)):
                exact.append(f"({text})/{stride}")
    yield from exact
    if exact or not rounds:
        return
    common = gcd(*vector)
    for times in {1, common}:
        quotient = [v // times for v in vector]
        for text, values in known:
            if len(set(values)) < SEVERAL or len(set(quotient)) < SEVERAL:
                continue
            for stride in STRIDES:
                low = max(stride * q - x for q, x in zip(quotient, values, strict=True))
                high = min(stride * q - x for q, x in zip(quotient, values, strict=True)) + stride - 1
                yield from (f"{times}*floor((({text}) + {c})/{stride})" for c in range(low, high + 1))


def _fit_line(vector, values) -> tuple[int, int] | None:
    """Return integers m and c with vector = m·values + c; None if there are none, or too few values."""
    if len(set(values)) < MIN_VALUES:
        return None
    x, v = values[0], vector[0]
    differing = next(i for i, value in enumerate(values) if value != x)
    m, left = divmod(vector[differing] - v, values[differing] - x)
    if left or m == 0:
        return None
    c = v - m * x
    return (m, c) if all(m * x + c == v for v, x in zip(vector, values, strict=True)) else None


# Rounded quotients of sizes, `⌊(H − 1)/2⌋ + 1`, in a normal form in which they can be compared.


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
        self.runs = [*configurations, fresh] if fresh else list(configurations)
        """Sizes of all runs, the predicted one last."""
        self._used = len(configurations)
        self._units = common_divisors(self.runs)
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

        def offer(text: str, vector: Iterable[float]) -> None:
            vector = tuple(vector)
            if all(v == int(v) for v in vector):
                self._formulas.setdefault(tuple(map(int, vector)), []).append(text)

        atoms = [(f"({atom})", vector) for atom, vector in zip(self._atoms, values, strict=True)]
        pairs = [
            (i, j, f"{a}*{b}", tuple(map(mul, x, y)))
            for (i, (a, x)), (j, (b, y)) in combinations_with_replacement(enumerate(atoms), 2)
        ]
        for text, vector in atoms:
            offer(text, vector)
        for factor, (text, vector) in product(FACTORS[1:], atoms):
            offer(f"{factor}*{text}", (factor * v for v in vector))
        for _, _, text, vector in pairs:
            offer(text, vector)
        for (above, x), (below, y) in permutations(atoms, 2):
            offer(f"{above}/{below}", map(truediv, x, y))
        for (i, j, text, vector), (k, (atom, z)) in product(pairs, enumerate(atoms)):
            if k >= j:
                offer(f"{text}*{atom}", map(mul, vector, z))
            if k not in (i, j):
                offer(f"{text}/{atom}", map(truediv, vector, z))

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

    def varies(self, text: str) -> bool:
        """Return whether a formula has sizes that differ between runs, whatever its values."""
        names = () if text == UNKNOWN else parse(text).free_symbols
        return any(len({run.get(str(name)) for run in self.runs}) > 1 for name in names)

    def atoms(self) -> list[tuple[str, tuple[float, ...]]]:
        """Return the vocabulary's sizes with their values in all runs."""
        return [(atom, tuple(value_of(atom, sizes) for sizes in self.runs)) for atom in self._atoms]

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
        return all(value_of(text, sizes) == v for sizes, v in zip(self.runs, vector, strict=False))

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


# Python numbers, solved like dimensions: the argument of a call at all probes is a formula, a number, or neither.

DATA = "data"
"""In place of a formula, the mark of a number that depends on the values of the input."""
TOLERANCE = 1.2e-7
"""Largest relative difference of a float and its formula: some are rounded to float32."""
INTEGER_TOLERANCE = 1e-6
"""Largest relative difference of a power of a float and an integer."""
DENOMINATOR = 1024
"""Largest denominator and numerator of the factor of a formula."""
SLICE_END = 2**62
"""Smallest end of a slice that means no end."""
STEEPEST = 40
"""Largest number whose exponential is computed."""
POWERS = {1.0: "{}", -1.0: "1/({})", 0.5: "sqrt({})", -0.5: "1/sqrt({})", 2.0: "({})**2", -2.0: "1/({})**2"}
POWERS |= {0.25: "({})**(1/4)", -0.25: "({})**(-1/4)"}
"""Powers of sizes that are tried, with their formulas."""

SLICES = ("slice", "select", "narrow")
"""Calls that take a slice of an axis."""

PADS = ("pad", "constant_pad_nd")
"""Calls that pad the ends of axes: two numbers for each, of the last axis first."""

Key = tuple[str, int, int]
"""A call by its name and its ops, as a half-open range."""
Where = tuple[str, int]
"""A number of a call: the argument's name, and the index in a list, else 0."""


class SliceBounds(NamedTuple):
    """Bounds of a slice along an axis, counted from the front, as formulas.

    `reach` is the number in the code that can end it at larger sizes, or 0, and `least` the number of places that it
    takes of an axis that has as many in all runs, or 0.
    """

    start: str
    stop: str
    reach: int = 0
    least: int = 0


def flatten(entry: Scalars) -> dict[Where, int | float]:
    """Return the numbers of one call as a flat dictionary."""
    flat: dict[Where, int | float] = {}
    for name, value in entry.values.items():
        for place, item in enumerate(value if isinstance(value, tuple) else (value,)):
            flat[name, place] = item
    return flat


class CallIndex:
    """Calls of a probe by their ops and names; `places` are the indices of its ops in the recording."""

    def __init__(self, entries: Iterable[Scalars], places: Sequence[int]):
        self._entries: dict[tuple[str, int], Scalars] = {}
        self._places = places
        for entry in entries:
            for op in range(entry.first, entry.last):
                self._entries[entry.name, op] = entry

    def at(self, name: str, op: int) -> Scalars | None:
        """Return the call of that name that ran an op; None if there is none."""
        return self._entries.get((name, op))

    def of(self, entry: Scalars, match: Sequence[int | None]) -> Scalars | None:
        """Return the call that matches one of the run, whose ops have the indices in `match`; None if there is none."""
        for op in range(entry.first, min(entry.last, len(match))):
            if (same := match[op]) is not None:
                position = self._entries.get((entry.name, self._places[same]))
                if position is not None:
                    return position
        return None


def find_changing(entries: Sequence[Scalars | None]) -> Iterator[tuple[Where, tuple[int | float, ...]]]:
    """Yield the numbers of one call that differ between runs."""
    values = [flatten(entry) for entry in entries if entry is not None]
    if len(values) < len(entries):
        return
    for where in values[0]:
        if all(where in number for number in values):
            vector = tuple(number[where] for number in values)
            if any(value != vector[0] and (value == value or vector[0] == vector[0]) for value in vector):
                yield where, vector


def solve_number(solver: Solver, vector: tuple[int | float, ...]) -> str:
    """Return the formula that fits these values in all runs but the last, and predicts that one; else "?"."""
    if any(not isfinite(value) for value in vector):
        return UNKNOWN
    if all(value == int(value) for value in vector):
        whole = tuple(int(value) for value in vector)
        formula = solver.number(whole)
        if formula == UNKNOWN:
            formula = _solve_signed(lambda sizes: solver.solve(sizes), whole)
        return formula if formula != UNKNOWN else _solve_signed(lambda sizes: _solve_monomial(solver, sizes), vector)
    return _solve_signed(lambda sizes: _solve_float(solver, sizes), vector)


def _solve_signed(solve: Callable[[tuple], str], vector: tuple) -> str:
    """Solve a positive number, or a negative one with a minus; "?" for mixed signs."""
    if max(vector) < 0:
        negated = solve(tuple(-value for value in vector))
        return negated if negated == UNKNOWN else f"-({negated})"
    return solve(vector) if min(vector) > 0 else UNKNOWN


def _solve_float(solver: Solver, vector: tuple[float, ...]) -> str:
    """Return the formula of a float whose inverse, square, exponential or power is an integer, or a monomial."""
    tries: list[tuple[str, Callable[[float], float]]] = [
        ("1/({})", lambda v: 1 / v),
        ("sqrt({})", lambda v: v * v),
        ("1/sqrt({})", lambda v: 1 / (v * v)),
        ("log({})", lambda v: exp(v) if v < STEEPEST else 0.5),
        ("log({})/log(2)", lambda v: 2**v if v < STEEPEST else 0.5),
        ("log({})/log(10)", lambda v: 10**v if v < STEEPEST else 0.5),
    ]
    for text, inverse in tries:
        whole = _as_integers([inverse(value) for value in vector])
        if whole is None:
            continue
        formula = solver.solve(whole)
        if formula != UNKNOWN and fits(solver, scaled := text.format(formula), vector):
            return scaled
    return _solve_monomial(solver, vector)


def _as_integers(values: list[float]) -> tuple[int, ...] | None:
    """Convert these values to integers; None if one is not integral."""
    if any(abs(value - round(value)) > min(INTEGER_TOLERANCE * value, 0.01) or value < 0.9 for value in values):
        return None
    return tuple(map(round, values))


def _solve_monomial(solver: Solver, vector: tuple[float, ...]) -> str:
    """Return a rational number, or its root, times powers of one or two sizes, or times the logarithm of one; or
    "?"."""
    runs = len(vector)
    atoms = [(name, values) for name, values in solver.atoms() if len(values) == runs and min(values) > 0]
    atoms = [(name, values) for name, values in atoms if len({*values}) > 1]
    factors = [
        (formula.format(name), [value**power for value in values])
        for name, values in atoms
        for power, formula in POWERS.items()
    ]
    logs = [(f"log({name})", [log(value) for value in values]) for name, values in atoms if min(values) > 1]
    factors += logs + [
        (f"1/log({name})", [1 / value for value in values]) for (name, _), (_, values) in zip(atoms, logs, strict=False)
    ]
    for text, values in factors:
        if (formula := _scale_formula(vector, text, values)) is not None and fits(solver, formula, vector):
            return formula
    for (left, a), (right, b) in combinations_with_replacement(factors, 2):
        if abs(vector[1] * a[0] * b[0] - vector[0] * a[1] * b[1]) > INTEGER_TOLERANCE * vector[1] * a[0] * b[0]:
            continue
        formula = _scale_formula(vector, f"({left})*({right})", [x * y for x, y in zip(a, b, strict=True)])
        if formula is not None and fits(solver, formula, vector):
            return formula
    return UNKNOWN


def _scale_formula(vector, text: str, values: list[float]) -> str | None:
    """Return `c·text` if all values have the same factor c, a short fraction or the root of one; else None."""
    factor = vector[0] / values[0]
    if any(
        abs(value - factor * known) > INTEGER_TOLERANCE * value for value, known in zip(vector, values, strict=True)
    ):
        return None
    for pattern, number in ((f"{{}}*({text})", factor), (f"sqrt({{}})*({text})", factor * factor)):
        near = Fraction(number).limit_denominator(DENOMINATOR)
        if 0 < near.numerator <= DENOMINATOR and abs(float(near) - number) <= INTEGER_TOLERANCE * number:
            return pattern.format(f"({near})") if near != 1 else text
    return None


def fits(solver: Solver, text: str, vector) -> bool:
    """Return whether a formula has these values in all runs, up to float rounding, including the predicted run."""
    return all(is_near(value_of(text, sizes), value) for sizes, value in zip(solver.runs, vector, strict=True))


def is_near(value: float, number: float) -> bool:
    """Return whether two numbers are equal up to float rounding; infinities and NaN equal themselves."""
    if value != value or number != number:
        return value != value and number != number
    return value == number or abs(value - number) <= TOLERANCE * abs(number)


def solve_padding(
    solver: Solver, entries: Sequence[Scalars], solved: Mapping[Where, str], before: Sequence[str], after: Sequence[str]
) -> Iterator[tuple[Where, str]]:
    """Yield a formula of each unsolved padding: the growth of an axis, or its difference to the other end's padding.

    It is not fitted to the runs: both sizes of the axis are solved, and it has to hold in all of them.
    """
    values = [flatten(entry) for entry in entries]
    for (name, place), formula in solved.items():
        axis, opposite_end = -1 - place // 2, (name, place ^ 1)
        if formula != UNKNOWN or name != "pad" or UNKNOWN in (before[axis], after[axis]):
            continue
        text = f"{after[axis]} - ({before[axis]}) - ({solved.get(opposite_end, values[0][opposite_end])})"
        if UNKNOWN not in text and all(
            value_of(text, sizes) == numbers[name, place] for sizes, numbers in zip(solver.runs, values, strict=True)
        ):
            yield (name, place), str(parse(text))


def solve_slice(solver: Solver, entries: Sequence[Scalars], ops: Sequence, inputs) -> SliceBounds | None:
    """Return the bounds of the slice that a call takes of an axis; None if runs differ in kind.

    `ops` are the ops of the call in all runs, `inputs` the solved shapes of the inputs of the first.
    """
    starts, stops, sizes, reach, least = [], [], [], [], []
    for entry, op in zip(entries, ops, strict=True):
        shape = op.inputs[0][0]
        n = shape[entry.values["dim"] % len(shape)]
        if entry.name == "slice":
            start_value, end = entry.values.get("start", 0), entry.values.get("end", n)
            reach.append(-start_value if start_value < 0 and -start_value >= n else end if n <= end < SLICE_END else 0)
            least.append(max(number if 0 < number < n else -number for number in (start_value, end)))
        start, stop = clamp_slice(entry, n)
        starts.append(start)
        stops.append(stop)
        sizes.append(n)
    axis = entries[0].values["dim"] % len(ops[0].inputs[0][0])
    whole = inputs[0][axis] if inputs else UNKNOWN
    bound, fewest = (
        numbers[0] if numbers and len({*sizes}) > 1 and len({*numbers}) == 1 else 0 for numbers in (reach, least)
    )
    start, stop = (solve_bound(solver, tuple(number), tuple(sizes), whole) for number in (starts, stops))
    return SliceBounds(start, stop, bound, fewest)


def clamp_slice(entry: Scalars, n: int) -> tuple[int, int]:
    """Return the bounds of the slice that a call takes of an axis of size n, counted from the front."""
    if entry.name == "select":
        start = entry.values["index"] % n if n else 0
        return start, start + 1
    if entry.name == "narrow":
        start = entry.values["start"]
        return (start + n if start < 0 else start), (start + n if start < 0 else start) + entry.values["length"]
    start, end = (entry.values.get(name, default) for name, default in (("start", 0), ("end", n)))
    start = min(max(start + n, 0) if start < 0 else start, n)
    return start, max(start, min(max(end + n, start) if end < 0 else end, n))


def solve_bound(solver: Solver, vector: tuple[int, ...], sizes: tuple[int, ...], whole: str) -> str:
    """Return the formula of a position along axes of these sizes, whose formula is `whole`."""
    if len({*vector}) == 1:
        return str(vector[0])
    behind = {n - value for value, n in zip(vector, sizes, strict=True)}
    if whole != UNKNOWN and len(behind) == 1:
        return f"({whole}) - {behind.pop()}"
    return solve_number(solver, vector)
