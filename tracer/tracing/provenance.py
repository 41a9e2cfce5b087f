"""One number followed back to the numbers that it was computed from."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from math import exp, isfinite, prod
from types import MappingProxyType
from typing import NamedTuple

import sympy
import torch
from sympy.core.symbol import Str

from tracer.expr import Node, Tensor, execute, latex, tensors
from tracer.expr.arithmetic import Plus, Softmax, Times
from tracer.expr.error_bounds import exact_dtype
from tracer.expr.index_sets import (
    MAX_TERMS,
    Copies,
    Elementwise,
    IndexSet,
    Linear,
    Term,
    TooMany,
    plain,
)
from tracer.expr.norms import LayerNorm, RMSNorm
from tracer.record.trace import Cell, Number, Trace, User, operand_cell
from tracer.symbols.axes import normalise_axis
from tracer.textbook.derivation import SOURCE_PREFIXES
from tracer.tracing.proofs import Values, size_at
from tracer.utils.errors import quote
from tracer.utils.text import latex_number

# Walk from a cell of an equation to the numbers that the equation names, through the nodes between.


class RecomputedValues(Values):
    """Tensors of a run by their keys. One that was not kept is recomputed by the equations that lead to it."""

    HELD = 2

    def __init__(self, module, values, steps, lines, sizes):
        super().__init__(module, values, steps, lines, sizes)
        self.size, self.equations = size_at(sizes), {line.id: line.equation for line in lines}
        self._again: dict[str, torch.Tensor | None] = {}

    def __call__(self, key: str) -> torch.Tensor | None:
        tensor = self._hold(key)
        if tensor is None and key in self.equations:
            if key not in self._again:
                known = {key: tensor for key, tensor in self._again.items() if tensor is not None}
                recomputed = self.recompute([key], known).get(key)
                while len(self._again) >= self.HELD:
                    del self._again[next(iter(self._again))]
                self._again[key] = recomputed
            return self._again[key]
        return tensor

    def _hold(self, key: str) -> torch.Tensor | None:
        return None if self.fused_equation(key) is not None else super().__call__(key)

    def _unkept(self, keys, again=()) -> set[str]:
        """Return those of these steps that were not kept, with all their operands that were not kept, or are in
        `again`."""
        needed, ahead = set(), list(keys)
        while ahead:
            key = ahead.pop()
            if key not in needed and key not in again and key in self.equations and self._hold(key) is None:
                needed.add(key)
                ahead += [tensor.key for tensor in tensors(self.equations[key])]
        return needed

    def sources(self, keys) -> set[str]:
        """Return these keys, and those of all tensors that are read to recompute what was not kept of them."""
        unkept = self._unkept(keys)
        return {*keys, *(tensor.key for key in unkept for tensor in tensors(self.equations[key]))}

    def recompute(
        self, keys: Collection[str], known: Mapping[str, torch.Tensor] = MappingProxyType({})
    ) -> dict[str, torch.Tensor]:
        """Return those of these tensors that were not kept, from one pass over the equations that lead to them.

        A tensor that is missing on the way leaves out what is made of it. `known` are some that were recomputed before.
        """
        held, out = dict(known), {}
        needed = self._unkept(keys, known)
        order = [id for id in self.equations if id in needed]  # in which they ran
        reads = {id: {tensor.key for tensor in tensors(self.equations[id])} for id in order}
        last = {key: id for id in order for key in reads[id]}

        def exact(tensor: Tensor) -> torch.Tensor:
            operand = held[tensor.key] if tensor.key in held else self._hold(tensor.key)
            if operand is None:
                raise LookupError(tensor.key)
            return operand.to(exact_dtype(operand.dtype))

        with torch.no_grad():
            for id in order:
                try:
                    held[id] = execute(self.equations[id], exact, self.size)
                except LookupError:
                    continue
                if id in keys:
                    out[id] = held[id]
                for key in reads[id]:
                    if last[key] == id:
                        held.pop(key, None)
        return out


class Leaf(NamedTuple):
    """A number under its key, in the terms of a whole equation."""

    key: str
    index: tuple[int, ...]  # type: ignore[assignment]
    value: float | complex
    share: float | complex | None
    factor: float | complex | None
    counted: bool


class ProvenanceWalk:
    """Walk from a cell of an equation to the cells of the tensors that it names, through the nodes between."""

    def __init__(self, equation: Node, value: RecomputedValues):
        self.equation, self.size, self._value = equation, value.size, value
        self._tensors: dict[Node, torch.Tensor] = {}
        self._leaves: dict[tuple[Node, tuple[int, ...]], list[Leaf]] = {}
        self._count = 0

    def tensor(self, node: Node) -> torch.Tensor:
        """Return the value of a part of the equation, in float64."""
        if node not in self._tensors:
            if isinstance(node, Tensor):
                tensor = self._value.tensor(node.key)
                tensor = tensor.to(exact_dtype(tensor.dtype))
                result = tensor.transpose(-2, -1) if node.transposed else tensor
            else:
                with torch.no_grad():
                    result = node.run(self.size, *map(self.tensor, node.operands))
            self._tensors[node] = result
        return self._tensors[node]

    def terms(self, node: Node, index: tuple[int, ...]) -> list[Term]:
        with torch.no_grad():
            return node.contributions(self.size, index, *map(self.tensor, node.operands))

    def compute(self, index: tuple[int, ...]) -> float | complex:
        """Return the cell as the sum of its terms; if these do not add up, execute the equation."""
        try:
            shares = [] if isinstance(self.equation, Tensor) else self._shares(index)
        except TooMany:
            shares = []
        return sum(shares) if shares and None not in shares else plain(self.tensor(self.equation)[index])

    def _shares(self, index) -> list:
        return [term.share for term in self.terms(self.equation, index) if term.counted]

    def numbers(self, node: Node, index: tuple[int, ...]) -> list[Leaf]:
        """Return the operands of a cell of a part of the equation. Raise TooMany for more than are listed."""
        if isinstance(node, Tensor) or not node.operands:
            number = plain(self.tensor(node)[index])
            return [Leaf(*_place(node, index), number, number, 1.0, True)]
        if (node, index) not in self._leaves:
            operands, numbers = node.operands, []
            for term in self.terms(node, index):
                operand = operands[term.operand]
                if isinstance(operand, Tensor):
                    numbers.append(
                        Leaf(*_place(operand, term.index), term.value, term.share, term.factor, term.counted)
                    )
                else:
                    numbers += _through(term, self.numbers(operand, term.index))
            self._count += len(numbers)
            if self._count > MAX_TERMS:
                raise TooMany(f"they are more than {MAX_TERMS:,}")
            self._leaves[node, index] = numbers
        return self._leaves[node, index]

    def read(self, node: Node, index: tuple[int, ...]) -> list[Leaf] | None:
        """Return all numbers that a cell reads, as sets along axes, without shares; None if they are too many."""
        cells_read: dict[Tensor, IndexSet] = {}

        def follow(node: Node, cells: IndexSet) -> None:
            if isinstance(node, Tensor):
                cells_read[node] = cells_read[node] | cells if node in cells_read else cells
                return
            operands = [self.tensor(operand) for operand in node.operands]
            for operand, read in zip(node.operands, node.dependencies(self.size, cells, *operands), strict=True):
                follow(operand, read)

        follow(node, IndexSet.single(self.tensor(node).shape, index))
        if sum(cells.count for cells in cells_read.values()) > MAX_TERMS:
            return None
        return [
            Leaf(*_place(tensor, at), plain(self.tensor(tensor)[at]), None, None, True)
            for tensor, cells in cells_read.items()
            for at in cells
        ]


def _through(term: Term, inner: list[Leaf]) -> list[Leaf]:
    """Scale the contributions to a term's cell to those of the whole cell: by its factor, or in proportion."""
    if term.factor == 1 and term.counted:
        return inner
    factor = term.factor
    if factor is not None:
        by = factor
    elif term.share is not None and term.value and isfinite(abs(term.value)):
        by = term.share / term.value
    else:
        by = 0.0 if term.share == 0 else None
    return [
        Leaf(
            leaf.key,
            leaf.index,
            leaf.value,
            None if by is None or leaf.share is None else leaf.share * by if by else 0.0,
            None if factor is None or leaf.factor is None else leaf.factor * factor,
            leaf.counted and term.counted,
        )
        for leaf in inner
    ]


def _place(node: Node, index: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return the key of a number's tensor, and its index there."""
    if not isinstance(node, Tensor):
        return f"number {latex(node)}", index
    return node.key, _stored(node, index)


def _stored(tensor: Tensor, index: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of a cell in the layout that the run keeps, or of one of that in the equation's."""
    return (*index[:-2], index[-1], index[-2]) if tensor.transposed else index


# Cells that read one number, in the lines whose equations name its tensor.

MAX_CELLS = 64
"""Cells of a set that are asked one by one whether they read the number."""


def users(cell: Cell) -> tuple[User, ...]:
    """Return, for each line that reads this cell, the cells of it that do."""
    trace: Trace = cell.trace
    value = trace.later.values(RecomputedValues) if trace.later else None
    if value is None:
        return ()
    readers = []
    for step in trace.steps:
        equation = value.equations.get(step.id)
        if equation is None or cell.id not in {tensor.key for tensor in tensors(equation)}:
            continue
        if any(value(tensor.key) is None for tensor in tensors(equation)):
            continue
        cells, exact = _Reading(ProvenanceWalk(equation, value), cell).cells(step.shape)
        if cells.count:
            readers.append(User(step.id, tuple(tuple(axis) for axis in cells.axes), exact))
    return tuple(readers)


class _Reading:
    """Query for the cells of one equation that read one cell of a tensor that it names."""

    def __init__(self, walk: ProvenanceWalk, cell: Cell):
        self.walk, self.cell = walk, cell

    def reads(self, cells: IndexSet) -> bool:
        """Return whether any of these cells of the result reads the cell, by sets along axes."""
        return self._reads(self.walk.equation, cells)

    def _reads(self, node: Node, cells: IndexSet) -> bool:
        if isinstance(node, Tensor):
            return node.key == self.cell.id and _stored(node, self.cell.index) in cells
        if cells.axes is None or self.cell.id not in {tensor.key for tensor in tensors(node)}:
            return False
        operands = [self.walk.tensor(operand) for operand in node.operands]
        read = node.dependencies(self.walk.size, cells, *operands)
        return any(self._reads(operand, part) for operand, part in zip(node.operands, read, strict=True))

    def cells(self, shape: tuple[int, ...]) -> tuple[IndexSet, bool]:
        """Return the smallest product of indices along the axes that holds all cells that read the number, and whether
        each tested cell of it does."""
        everything = IndexSet.all(shape)
        if not self.reads(everything):
            return IndexSet.none(shape), True
        axes = list(everything.axes)
        for axis in range(len(shape)):
            axes[axis] = normalise_axis(self._places(axes, shape, axis, range(shape[axis])))
        cells = IndexSet.of(shape, axes)
        return cells, all(self.reads(IndexSet.single(shape, index)) for index in _sample(cells))

    def _places(self, axes: list, shape: tuple[int, ...], axis: int, places: range) -> Iterator[int]:
        """Yield the indices along one axis at which some cell reads the number, by bisection."""
        if not self.reads(IndexSet.of(shape, [*axes[:axis], places, *axes[axis + 1 :]])):
            return
        if len(places) == 1:
            yield places[0]
            return
        middle = len(places) // 2
        for half in (places[:middle], places[middle:]):
            yield from self._places(axes, shape, axis, half)


def _sample(cells: IndexSet) -> Iterator[tuple[int, ...]]:
    """Yield all cells of a small set, else some of them."""
    if cells.count <= MAX_CELLS:
        yield from cells
        return
    draw = random.Random(prod(map(len, cells.axes)))
    yield from product(*({axis[0]: None, axis[-1]: None} for axis in cells.axes[-4:])) if len(cells.axes) <= 4 else ()
    for _ in range(MAX_CELLS):
        yield tuple(draw.choice(axis) for axis in cells.axes)


# Equation of one cell with the numbers of the run in place of its letters.
#
# The shape of the equation stays: sums, fractions and functions are printed as the nodes print them. A sum over an axis
# shows its largest terms, and the others as one number below a brace.

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


class _Filling:
    """Walk from the cell of an equation to the numbers that are printed for it."""

    def __init__(self, walk: ProvenanceWalk):
        self.walk = walk

    def node(self, node: Node, index: tuple[int, ...]) -> str:
        """Return a part of the equation, at one of its cells, with numbers."""
        try:
            return self._fill(node, index)
        except TooMany:
            return self._number(node, index)

    def _number(self, node: Node, index: tuple[int, ...]) -> str:
        return latex_number(plain(self.walk.tensor(node)[index]))

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
            return _sum([(share, latex_number(share)) for share in shares])
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
        return argument.subs({letter: int(self.walk.size(letter)) for letter in letters}) if letters else argument

    def _softmax(self, node: Node, index: tuple[int, ...]) -> str:
        """Return `e^{x_j} / (e^{x_1} + …)`. Above 50 the largest is subtracted from all, so that no power overflows."""
        terms = [(float(term.value.real), term.counted) for term in self.walk.terms(node, index)]
        largest = max(score for score, _ in terms)
        base = largest if isfinite(largest) and abs(largest) > 50 else 0.0
        own, powers = "", []
        for score, _ in sorted(terms, key=lambda term: not term[1]):  # its own first
            power = rf"e^{{{latex_number(score - base)}}}"
            own = own or power
            powers.append((exp(score - base), power))
        return rf"\frac{{{own}}}{{{_sum(powers, first=1)}}}"

    def _norm(self, node: Node, index: tuple[int, ...]) -> str:
        r"""Return `(x - μ) / √(σ² + ε) · γ + β` with its numbers, or `x / √(mean + ε) · γ`."""
        x, *vectors = node.operands
        row = self.walk.tensor(x)[index[:-1]]
        epsilon = f" + {latex_number(float(node.args[0]))}" if node.args[0] else ""
        at = self.node(x, index)
        if isinstance(node, LayerNorm):
            mean = _bracket_negative(latex_number(float(row.mean())))
            above, square = f"{at} - {mean}", float(row.var(correction=0))
        else:
            above, square = at, float((row * row).mean())
        text = rf"\frac{{{above}}}{{\sqrt{{{latex_number(square)}{epsilon}}}}}"
        tensors = map(self.walk.tensor, vectors)
        numbers = [latex_number(plain(vector[index[len(index) - vector.ndim :]])) for vector in tensors]
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
        return latex_number(value)
    return rf"{latex_number(value)} \cdot {_bracket_negative(latex_number(factor))}"


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
    others = rf"\underbrace{{{latex_number(rest)}}}_{{{len(terms) - PRINTED_TERMS}\text{{ more}}}}"
    return _join_terms([*(terms[place][1] for place in order[:PRINTED_TERMS]), others])


def _join_terms(texts: list[str]) -> str:
    text = texts[0] if texts else "0"
    for term in texts[1:]:
        text += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
    return text


# One number of a run, traced back: its operands, and the contribution of each.

GONE_PROBLEM = (
    "the equations of this run are not at hand, so no cell can be followed: it was opened from a file, copied or made "
    "with prove=False; run the model again"
)


def cell(trace: Trace, id: str, index) -> Cell:
    """Return the cell at `index` of the tensor of step `id`, or of an `input x` or `parameter w`, with its operands.

    Places count from 0, or from the end where they are negative. KeyError quotes an unknown id; ValueError quotes an
    index that the tensor does not have, and says so where the equations of the run are not at hand.
    """
    step = None if isinstance(id, str) and id.startswith(SOURCE_PREFIXES) else trace.step(id)
    if trace.later is None:
        raise ValueError(GONE_PROBLEM)
    value = trace.later.values(RecomputedValues)
    if step is None:
        tensor = value(id)
        if tensor is None:
            raise KeyError(f"no {quote(id)} in this run: {value.why(id)}")
        at = _check_index(id, index, tuple(tensor.shape))
        return Cell(id, at, plain(tensor[at]), trace=trace)
    at = _check_index(id, index, step.shape)
    notes = []
    tensor = trace.value(step)
    if tensor is None and (tensor := value(id)) is not None:
        why = "A fused op never held" if step.recomputed else "The run did not keep"
        notes.append(f"{why} this tensor: its number is computed again, from the equations.")
    equation = value.equations[id]
    missing = _missing(equation, value, trace.later.rewritten())
    if tensor is None:
        raise ValueError(f"{quote(id)} was not kept, and can't be computed again: {missing}")
    number = plain(tensor[at])
    if missing:
        return Cell(id, at, number, None, step.latex, {}, " ".join([*notes, f"Not followed: {missing}."]), trace=trace)
    walk = ProvenanceWalk(equation, value)
    try:
        parts = walk.numbers(equation, at)
    except TooMany as error:
        parts = walk.read(equation, at) or []
        notes.append(f"What each number contributed is not listed: {error}.")
    return Cell(
        id,
        at,
        number,
        walk.compute(at),
        step.latex,
        _group(parts),
        " ".join(notes),
        numeric_latex=_Filling(walk).node(equation, at),
        symbols={tensor.key: tensor.name for tensor in tensors(equation)},
        trace=trace,
    )


def _check_index(id: str, index, shape: tuple[int, ...]) -> tuple[int, ...]:
    at = operand_cell(index)
    if at is None or len(at) != len(shape) or any(not -n <= i < n for i, n in zip(at, shape, strict=True)):
        last = tuple(n - 1 for n in shape)
        raise ValueError(
            f"{quote(index)} is not a cell of {quote(id)}, expected {len(shape)} whole numbers up to {last}"
        )
    return tuple(i % n for i, n in zip(at, shape, strict=True))


def _missing(equation: Node, value: RecomputedValues, rewritten: set[str]) -> str:
    """Return why an equation can't be executed on the numbers of the run, in a sentence without its full stop."""
    keys = [tensor.key for tensor in tensors(equation)]
    if changed := sorted(rewritten & value.sources(keys)):
        return f"{quote(changed[0])} has changed since the run"
    lost = next((key for key in keys if value(key) is None), None)
    return value.why(lost) if lost else ""


def _group(leaves: list[Leaf]) -> dict[str, tuple[Number, ...]]:
    """Group the numbers by their tensors; add up the contributions of a repeated one."""
    groups: dict[str, dict[tuple[int, ...], Number]] = {}
    for leaf in leaves:
        numbers = groups.setdefault(leaf.key, {})
        number = Number(leaf.index, leaf.value, leaf.share, leaf.counted)
        numbers[leaf.index] = _both(numbers[leaf.index], number) if leaf.index in numbers else number
    return {key: tuple(numbers[at] for at in sorted(numbers)) for key, numbers in groups.items()}


def _both(a: Number, b: Number) -> Number:
    if a.counted != b.counted:
        return a if a.counted else b
    if a.share is None or b.share is None:
        return a._replace(share=None)
    return a._replace(share=a.share + b.share)
