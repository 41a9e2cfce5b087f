"""Guards: the comparisons of sizes that the code of a forward makes, such as `T > 8`, and sizes at which each has
another outcome, where a run shows what the code does there.

The term is that of PyTorch's compiler (`torch.fx.experimental.symbolic_shapes`), which takes a trace to be valid only
where its guards hold.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from tracer.capture.tensors.logged_sizes import Comparison, Read, Term
from tracer.shapes.solver import names_of, value_of

FARTHEST = 8
"""Factor of the largest of each size so far up to which it may grow in another run."""
MAX_GROWTH = 4
"""Factor of the largest run so far, as the product of its sizes, up to which another run may grow."""


class Guard(NamedTuple):
    """A comparison of two terms of formulas."""

    compare: Callable[[float, float], bool]
    left: Term
    right: Term

    @classmethod
    def of(cls, comparison: Comparison, formulas: Mapping[int, str]) -> Guard | None:
        """Return a comparison of a run with the formulas of its numbers; None where a number has none."""
        with suppress(KeyError):
            compare, left, right = comparison
            return cls(compare, _with_formulas(left, formulas), _with_formulas(right, formulas))
        return None

    def outcome(self, sizes: Mapping[str, int]) -> bool | None:
        """Return the outcome of the comparison at these sizes; None where its terms have no value."""
        return self.outcome_of(self.compare, sizes)

    def outcome_of(self, compare: Callable[[float, float], bool], sizes: Mapping[str, int]) -> bool | None:
        """Return the outcome of another comparison of the same terms."""
        with suppress(ArithmeticError, ValueError, KeyError):
            return bool(compare(*(_evaluate(term, sizes) for term in (self.left, self.right))))
        return None

    def is_at_edge(self, sizes: Mapping[str, int]) -> bool:
        """Return whether both terms are equal at these sizes: `<` often chooses the same there."""
        return self.outcome_of(operator.eq, sizes) is True

    def is_single(self, sizes: Mapping[str, int]) -> bool:
        """Return whether all compared sizes are 1 at these sizes: a mask that is chosen often hides nothing there."""
        return all(value_of(formula, dict(sizes)) == 1 for formula in self.formulas())

    def formulas(self) -> set[str]:
        """Return the formulas of the sizes that are compared."""
        return {str(leaf.size) for leaf in _leaves((self.left, self.right)) if isinstance(leaf, Read)}

    def numbers(self) -> set[int]:
        """Return the whole numbers that are compared, or that sizes are computed with."""
        return {
            int(leaf)
            for leaf in _leaves((self.left, self.right))
            if isinstance(leaf, (int, float)) and leaf == leaf // 1
        }


UNREACHED_NOTE = "the code compares {} with {}: runs at such sizes are too large to be tried"
"""The note of comparisons that come out alike at all sizes that were tried."""


def note_unreached(guards: Iterable[Guard]) -> str:
    """Return a note on guards that have the same outcome in all runs; "" for none."""
    compared: dict[str, set[int]] = {}
    for guard in guards:
        compared.setdefault(" and ".join(sorted(guard.formulas())), set()).add(max(guard.numbers(), default=0))
    return "; ".join(
        UNREACHED_NOTE.format(sizes, ", ".join(f"{number:,}" for number in sorted(numbers)))
        for sizes, numbers in compared.items()
    )


def _leaves(term: Term) -> Iterator[Read | float]:
    if isinstance(term, tuple) and not isinstance(term, Read):
        yield from chain.from_iterable(map(_leaves, term))
    elif not callable(term):
        yield term


def _with_formulas(term: Term, formulas: Mapping[int, str]) -> Term:
    if isinstance(term, Read):
        return Read(formulas[int(term.size)])
    return tuple(_with_formulas(part, formulas) for part in term) if isinstance(term, tuple) else term


def _evaluate(term: Term, sizes: Mapping[str, int]) -> float:
    if isinstance(term, Read):
        return int(value_of(str(term.size), dict(sizes)))
    if isinstance(term, tuple):
        return term[0](*(_evaluate(part, sizes) for part in term[1:]))
    return term


def _doubt(guard: Guard, sizes: Mapping[str, int]) -> int:
    """Return how little a run at these sizes shows of the code beyond a guard: 0 where that shows, 1 at the edge, and 2
    where all compared sizes are 1."""
    return 1 if guard.is_at_edge(sizes) else 2 * guard.is_single(sizes)


class Trials:
    """Choice of sizes at which guards have another outcome than in all runs so far.

    `runs` are the sizes of these runs, the traced one first, derived ones included, and `names` the sizes that can be
    chosen; `complete` adds the derived ones, whose formulas are `derived`.
    """

    def __init__(
        self,
        runs: Iterable[dict[str, int]],
        names: Collection[str],
        complete: Callable[[dict], dict],
        derived: dict[str, str],
    ):
        self._runs, self._names, self._complete = list(runs), tuple(names), complete
        self._derived = derived
        self._start = min(self._runs, key=self._cost)
        self._largest = {name: max(run[name] for run in self._runs) for name in names}
        self._units = {name: math.gcd(*(run[name] for run in self._runs)) for name in names}
        self._most = max(map(self._cost, self._runs))

    def _cost(self, run: Mapping[str, int]) -> int:
        return math.prod(run[name] for name in self._names)

    def add(self, sizes: dict[str, int]) -> None:
        """Add a run."""
        self._runs.append(self._complete(sizes))

    def sizes(self, guard: Guard) -> dict[str, int] | None:
        """Return the nearest sizes at which a guard has another outcome than in all runs so far, beyond the edge and
        above 1 if there are any; empty if there are none, or a run was there, and None if all would be too large."""
        start = {name: self._start[name] for name in self._names}
        outcome = guard.outcome(self._runs[0])
        known = {_doubt(guard, run) for run in self._runs if guard.outcome(run) not in (outcome, None)}
        if 0 in known:
            return {}
        flips = [
            (_doubt(guard, self._complete(at)), abs(math.log(at[name] / start[name])), self._is_near(at, name), at)
            for name in self._sources(guard)
            for number in self._numbers(name, guard)
            if guard.outcome(self._complete(at := {**start, name: number})) not in (outcome, None)
        ]
        flips = [flip for flip in flips if flip[0] not in known]
        if not flips:
            return {}
        near = [(doubt, distance, at) for doubt, distance, is_near, at in flips if is_near]
        if not near:
            return {} if known else None
        return min(near, key=lambda choice: choice[:2])[2]

    def _sources(self, guard: Guard) -> list[str]:
        """Return the sizes that can be chosen and that the terms of a guard depend on, possibly through derived
        ones."""
        sources = {name for formula in guard.formulas() for name in names_of(formula)}
        for name, formula in reversed(self._derived.items()):  # each is computed from those before it
            if name in sources:
                sources.update(names_of(formula))
        return [name for name in self._names if name in sources]

    def _is_near(self, at: dict[str, int], name: str) -> bool:
        return self._cost(at) <= MAX_GROWTH * self._most and at[name] <= FARTHEST * self._largest[name]

    def _numbers(self, name: str, guard: Guard) -> Iterator[int]:
        """Yield sizes to try, multiples of the greatest common divisor of those of all runs."""
        unit, numbers = self._units[name], guard.numbers()
        near = {number + offset for number in numbers for offset in (-1, 0, 1)}
        near |= {number * unit for number in near} | {-(-number // unit) * unit for number in near}
        tried = {*range(unit, 2 * self._largest[name] + 1, unit), *near}
        return (number for number in sorted(tried) if number >= 1 and number % unit == 0)
