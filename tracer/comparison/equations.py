"""Relation of two printed equations: the same text, the same mathematics in another spelling, or different.

The reader of printed lines turns both into trees. Sums and chains of products are flattened, and factors without a
tensor become one number. Then both trees have to be the same, up to the order of terms and of element-wise factors,
with the letters of the one in place of those of the other: a step's letter stands for the step that it is aligned with,
a parameter's for one parameter of the other model, always the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from hashlib import blake2b

from tracer.latex_reader import parser
from tracer.latex_reader.parser import Tree, UnreadableLatex
from tracer.record.steps import Step
from tracer.record.trace import Trace
from tracer.symbols import notation

MOST_TERMS = 8
"""Terms of a sum, or factors, that are matched in any order."""
DIGITS = 12
"""Significant digits to which two numbers are the same."""


class EquationRelation(StrEnum):
    """How two equations relate."""

    SAME = "same text"
    RESPELLED = "same mathematics"
    DIFFERENT = "different"
    UNREAD = "not read"


class CanonicalTextbook:
    """Printed lines of a run as canonical trees; `referents` maps the id of each line to its name in both runs."""

    def __init__(self, trace: Trace, referents: Mapping[str, str]):
        self._trace, self._referents = trace, referents

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Meanings of the letters that no step computes: "parameter head.weight", "input image"."""
        return frozenset(name.of for step in self._trace.steps for name in step.names)

    @cached_property
    def _letters(self) -> frozenset[str]:
        symbols = {name.symbol for step in self._trace.steps for name in step.names}
        return frozenset(symbols | {step.symbol for step in self._trace.steps} | self._sizes.keys())

    @cached_property
    def _steps(self) -> dict[str, str]:
        """Lines that the letters of steps stand for."""
        return {step.symbol: self._referents[step.id] for step in reversed(self._trace.steps)}

    @cached_property
    def _sizes(self) -> dict[str, float]:
        """Stand-in numbers for the letters of sizes: derived sizes are computed from those of the others."""
        values = {size.name: _stand_in(size.name) for size in self._trace.symbols}
        for size in self._trace.symbols:
            if size.equals:
                formula = notation.parse(size.equals)
                known = {letter: values[str(letter)] for letter in formula.free_symbols if str(letter) in values}
                if len(known) == len(formula.free_symbols):
                    values[size.name] = float(formula.subs(known))
        return {notation.latex(name): value for name, value in values.items()}

    def tree(self, step: Step) -> Tree:
        """Return the canonical tree of a line. Raise UnreadableLatex for one outside the reader's grammar."""
        line = parser.read(step.latex, self._letters)
        names = {name.symbol: ("given", name.of, name.transposed) for name in step.names}
        tree = ("line", line.right, line.since or (), line.turns or ())
        return _canonical(self._resolve(tree, names, {}))

    def _resolve(self, tree, names: Mapping[str, Tree], indices: dict[str, int]):
        """Return a tree with letters replaced by their referents, and indices numbered in order of occurrence."""
        if not isinstance(tree, tuple) or not tree:
            return tree
        if tree[0] == "index":
            return "index", indices.setdefault(tree[1], len(indices))
        if tree[0] == "name":
            name = tree[1]
            if name in names:
                return names[name]
            return ("number", self._sizes[name]) if name in self._sizes else ("step", self._steps.get(name, name))
        return tuple(self._resolve(part, names, indices) for part in tree)


Bindings = tuple[dict[Tree, Tree], dict[Tree, Tree]]
"""The parameter of the other model that each parameter stands for, forth and back."""


class EquationComparison:
    """Comparison of the equations of two runs whose lines are aligned."""

    def __init__(self, a: Trace, b: Trace, pairs: Sequence[tuple[Step | None, Step | None]]):
        self._a = CanonicalTextbook(a, _referents(pairs, "a"))
        self._b = CanonicalTextbook(b, _referents([(right, left) for left, right in pairs], "b"))
        self._bindings: Bindings = {}, {}

    def relation(self, left: Step, right: Step) -> EquationRelation:
        """Return the relation of the equations of two aligned lines."""
        if left.latex == right.latex and left.names == right.names:
            return EquationRelation.SAME
        try:
            bindings = self._unify(self._a.tree(left), self._b.tree(right), self._bindings)
        except (UnreadableLatex, KeyError, ValueError, RecursionError):
            return EquationRelation.UNREAD if left.latex != right.latex else EquationRelation.SAME
        if bindings is None:
            return EquationRelation.DIFFERENT
        self._bindings = bindings
        return EquationRelation.SAME if left.latex == right.latex else EquationRelation.RESPELLED

    def _unify(self, left, right, bindings: Bindings) -> Bindings | None:
        """Return the bindings with which two trees are the same; None where no parameters of one model in place of
        those of the other make them so."""
        if not (isinstance(left, tuple) and isinstance(right, tuple)):
            return bindings if left == right else None
        if left[:1] == right[:1] == ("given",):
            return self._bind(left, right, bindings)
        if len(left) != len(right) or left[:1] != right[:1]:
            return None
        if left[:1] in (("+",), ("times",)) and len(left) <= MOST_TERMS:
            return self._unify_any_order(left[1:], right[1:], bindings)
        unified: Bindings | None = bindings
        for branch, counterpart in zip(left, right, strict=True):
            if unified is not None:
                unified = self._unify(branch, counterpart, unified)
        return unified

    def _unify_any_order(self, left: Tree, right: Tree, bindings: Bindings) -> Bindings | None:
        """Return the bindings for terms whose order is free."""
        if not left:
            return bindings
        for place, term in enumerate(right):
            unified = self._unify(left[0], term, bindings)
            if unified is not None:
                unified = self._unify_any_order(left[1:], (*right[:place], *right[place + 1 :]), unified)
            if unified is not None:
                return unified
        return None

    def _bind(self, left: Tree, right: Tree, bindings: Bindings) -> Bindings | None:
        if left[1] in self._b.parameters or right[1] in self._a.parameters:
            return bindings if left == right else None
        forth, back = bindings
        if left in forth or right in back:
            return bindings if forth.get(left) == right else None
        return {**forth, left: right}, {**back, right: left}


def _referents(pairs: Sequence[tuple[Step | None, Step | None]], run: str) -> dict[str, str]:
    """Return the name in both runs of each line that comes first in its pair."""
    lines = [(step.id, place, other) for place, (step, other) in enumerate(pairs) if step]
    return {id: f"pair {place}" if other else f"{run} {id}" for id, place, other in lines}


def _canonical(tree):
    """Return the canonical form of a tree, the same for all its spellings."""
    if not isinstance(tree, tuple) or not tree or tree[0] in ("index", "step", "given"):
        return tree
    kind, *parts = tree
    parts = [_canonical(part) for part in parts]
    if (value := _scalar(kind, parts)) is not None:
        return "number", value
    if kind == "+":
        terms = [term for part in parts for term in (part[1:] if part[0] == "+" else (part,))]
        return ("+", *terms)
    if kind == "-":
        return _scale(-1.0, parts[0])
    if kind == "over" and _is_number(parts[1]) and parts[1][1]:
        return _scale(1 / parts[1][1], parts[0])
    if kind in ("product", "times"):
        return _product(kind, parts)
    if kind == "transposed":
        return _transpose(parts[0])
    return (kind, *parts)


def _product(kind: str, parts: list[Tree]) -> Tree:
    """Return a chain of products of one kind, with its numbers in front."""
    factor, factors = 1.0, []
    for part in parts:
        if part[0] == "scaled":
            factor, part = factor * part[1], part[2]
        if _is_number(part):
            factor *= part[1]
        else:
            factors += part[1:] if part[0] == kind else (part,)
    return _scale(factor, factors[0] if len(factors) == 1 else (kind, *factors))


def _transpose(tree: Tree) -> Tree:
    if tree[0] == "transposed":
        return tree[1]
    if tree[0] == "scaled":
        return _scale(tree[1], _transpose(tree[2]))
    if tree[0] == "product":
        return ("product", *(_transpose(factor) for factor in reversed(tree[1:])))
    return "transposed", tree


def _scale(factor: float, tree: Tree) -> Tree:
    if tree[0] == "scaled":
        factor, tree = factor * tree[1], tree[2]
    factor = _round(factor)
    return tree if factor == 1 else ("scaled", factor, tree)


def _is_number(tree) -> bool:
    return isinstance(tree, tuple) and tree[:1] == ("number",) and isinstance(tree[1], float)


def _scalar(kind: str, parts: list) -> float | None:
    """Return the value of an expression of numbers alone, None for any other."""
    if kind == "number":
        return _round(parts[0]) if isinstance(parts[0], int | float) else None
    if kind not in SCALARS or not parts or not all(map(_is_number, parts)):
        return None
    try:
        return _round(SCALARS[kind](*(part[1] for part in parts)))
    except (ArithmeticError, TypeError, ValueError):
        return None


SCALARS: Mapping[str, Callable[..., float]] = {
    "+": lambda *terms: sum(terms),
    "-": lambda x: -x,
    "product": lambda x, y: x * y,
    "times": lambda x, y: x * y,
    "over": lambda x, y: x / y,
    "root": math.sqrt,
    "power": lambda x, y: x**y,
    "cell power": lambda x, y: x**y,
}


def _round(value: float) -> float:
    """Return a number to `DIGITS` significant digits."""
    return float(f"{value:.{DIGITS - 1}e}")


def _stand_in(name: str) -> float:
    """Return a number between 1 and 2 that depends on a size's name alone."""
    return 1 + int.from_bytes(blake2b(name.encode(), digest_size=6).digest()) / 2**48
