"""Python numbers, solved like dimensions: the argument of a call at all probes is a formula, a number, or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement
from math import exp, isfinite, log
from typing import NamedTuple

from tracer.capture.python_scalars import Scalars
from tracer.shapes.solver import UNKNOWN, Solver, value_of
from tracer.symbols.notation import parse

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
POWERS = (1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 0.25, -0.25)
POWER_FORMULAS = {0.5: "sqrt({})", -0.5: "1/sqrt({})", 0.25: "({})**(1/4)", -0.25: "({})**(-1/4)", 2.0: "({})**2"}

SLICES = ("slice", "select")
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

    def at(self, name: str, op: int) -> bool:
        """Return whether a call of that name ran an op."""
        return (name, op) in self._entries

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
    factors = [(_power(name, power), [value**power for value in values]) for name, values in atoms for power in POWERS]
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


def _power(name: str, power: float) -> str:
    return name if power == 1 else f"1/({name})" if power == -1 else POWER_FORMULAS.get(power, "1/({})**2").format(name)


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
    return all(
        abs(value_of(text, sizes) - value) <= TOLERANCE * abs(value)
        for sizes, value in zip(solver.runs, vector, strict=True)
    )


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
        if entry.name != "select":
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
