"""Comparison of two runs, line by line: values, equations, shapes, attention, answers.

Two inputs, two models, two saved runs, eager beside fused, before beside after a refactor, a run and the run with a
change: whatever was traced. `tracer.compare(a, b).first` is where they part."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from itertools import permutations
from math import inf, isnan
from numbers import Number
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracer.attention import layers, parts, weights
from tracer.comparison.equations import EquationComparison, EquationRelation
from tracer.comparison.rounding import RunEquations, rounding_shares
from tracer.export import to_html
from tracer.latex_reader.evaluator import INFINITY_THRESHOLD, deviation, fill_threshold
from tracer.record.steps import CHANGED_SUFFIX, Step, dtype_name, tolerance
from tracer.record.trace import Trace
from tracer.utils.errors import quote, require
from tracer.utils.text import scientific
from tracer.utils.torch_internals import tree_leaves
from tracer.utils.torch_state import Difference, identical

if TYPE_CHECKING:
    import pandas

__all__ = [
    "AnswerShare",
    "Answers",
    "Comparison",
    "EquationRelation",
    "LayerAttention",
    "LinePair",
    "Relation",
    "TensorRelation",
    "compare",
]


# Alignment of the lines of two runs: by id, else by their role in the block, else by their position.

StepPair = tuple[Step | None, Step | None]
"""A line of each run; None where the other run has none."""


def align(first: Sequence[Step], second: Sequence[Step]) -> list[StepPair]:
    """Return the lines of two runs in pairs, in the order of the first run; an unpaired line comes after its
    predecessor in its own run.

    Two models name their modules as they like, so lines without an equal id are the same where layer, stage and symbol
    are, or layer, stage and title; what is left between two aligned lines is paired by its shape. A line of a change is
    aligned by its id alone.
    """
    partner: dict[str, str] = {}
    for key in KEYS:
        _pair(partner, first, second, key, key)
    _pair(partner, first, second, *_place_keys(partner, first, second))
    return list(_in_order(partner, first, second))


Key = Callable[[Step], Hashable]
KEYS: tuple[Key, ...] = attrgetter("id"), attrgetter("layer", "stage", "symbol"), attrgetter("layer", "stage", "title")
"""What lines are paired by, the surest first."""


def _pair(partner: dict[str, str], first: Sequence[Step], second: Sequence[Step], key: Key, second_key: Key) -> None:
    """Add the lines with equal keys that have no partner yet, several of one key in their order."""
    taken, waiting = set(partner.values()), defaultdict(list)
    passed_over = () if key is KEYS[0] else CHANGED_SUFFIX
    for step in second:
        if step.id not in taken and not step.id.endswith(passed_over):
            waiting[second_key(step)].append(step.id)
    for step in first:
        if step.id not in partner and not step.id.endswith(passed_over) and waiting.get(key(step)):
            partner[step.id] = waiting[key(step)].pop(0)


def _place_keys(partner: dict[str, str], first: Sequence[Step], second: Sequence[Step]) -> tuple[Key, Key]:
    """Return keys of lines without a partner: the pair before them, their layer, stage and shape."""
    before = _line_before(first, partner)
    after = _line_before(second, {theirs: ours for ours, theirs in partner.items()})
    return (
        lambda step: (partner.get(before[step.id]), step.layer, step.stage, step.symbolic),
        lambda step: (after[step.id] or None, step.layer, step.stage, step.symbolic),
    )


def _line_before(steps: Sequence[Step], partner: dict[str, str]) -> dict[str, str]:
    """Return the last line with a partner before each line, "" where there is none."""
    before, last = {}, ""
    for step in steps:
        before[step.id] = last
        last = step.id if step.id in partner else last
    return before


def _in_order(partner: dict[str, str], first: Sequence[Step], second: Sequence[Step]) -> Iterator[StepPair]:
    theirs = {step.id: step for step in second}
    taken, alone, last = set(partner.values()), defaultdict(list), ""
    for step in second:
        if step.id in taken:
            last = step.id
        else:
            alone[last].append(step)
    yield from ((None, step) for step in alone[""])
    for step in first:
        partner_id = partner.get(step.id, "")
        yield step, theirs.get(partner_id)
        yield from ((None, step) for step in alone[partner_id] if partner_id)


# Answers of two runs: the first answer of each, and the probability of each name in both.

NAMES = {"classes": "classes", "next": "tokens", "caption": "tokens", "sentences": "sentences", "labels": "classes"}
"""By the kind of a result, the key of the names that have a probability, or a share of the picture, each."""
SHARES = {"labels": "shares"}
TEXTS = {"caption": "caption", "tokens": "tokens"}
"""By the kind of a result, the key of what it says as a whole."""


class AnswerShare(NamedTuple):
    """Probability of a name in both runs, 0 to 1; None where a run does not list it."""

    name: str
    a: float | None
    b: float | None


class Answers(NamedTuple):
    """Answers of two runs, and the probabilities of the names that they rank, the likeliest first."""

    a: str
    b: str
    shares: tuple[AnswerShare, ...] = ()

    @property
    def same(self) -> bool:
        """True if both runs answer the same."""
        return self.a == self.b


def compare_answers(a: Mapping[str, Any], b: Mapping[str, Any]) -> Answers | None:
    """Return the answers of two results (`Trace.result`); None where one of them has none in words, or can't be
    read."""
    try:
        first, second = _shares(a), _shares(b)
        texts = _answer_text(a, first), _answer_text(b, second)
    except (KeyError, TypeError, ValueError):  # the result of a file, whose fields nobody checked
        return None
    if None in texts:
        return None
    names = dict.fromkeys((*first, *second))
    ranked = sorted(names, key=lambda name: -max(first.get(name) or 0, second.get(name) or 0))
    shares = tuple(AnswerShare(name, first.get(name), second.get(name)) for name in ranked)
    return Answers(str(texts[0]), str(texts[1]), shares)


def _shares(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the probability of each name that a result ranks; of equal names the first."""
    kind = str(result.get("kind"))
    if kind not in NAMES:
        return {}
    pairs = zip(result[NAMES[kind]], result[SHARES.get(kind, "probabilities")], strict=True)
    return {str(name): float(share) for name, share in reversed(list(pairs))}


def _answer_text(result: Mapping[str, Any], shares: Mapping[str, float]) -> str | None:
    """Return the first answer of a result; None where it has none in words."""
    kind = str(result.get("kind"))
    if kind in TEXTS:
        answer = result[TEXTS[kind]]
        between = "" if all(len(part) == 1 for part in answer) else " "
        return answer if isinstance(answer, str) else between.join(answer)
    return max(shares, key=lambda name: shares[name]) if shares else None


# Relation of two tensors: bit by bit, up to rounding, up to a permutation, or by their difference.

MOST_AXES = 6
"""Axes of a tensor whose orders are tried: of more there are too many."""


class Relation(StrEnum):
    """How the values of two tensors relate."""

    ALONE = "only in one run"
    MISSING = "not kept"
    IDENTICAL = "equal bit by bit"
    ROUNDING = "equal up to rounding"
    PERMUTED = "equal up to a permutation"
    DIFFERENT = "different"
    SHAPES = "different shapes"

    @property
    def equal(self) -> bool:
        """True if the values are the same up to rounding."""
        return self in (Relation.IDENTICAL, Relation.ROUNDING)

    @property
    def differs(self) -> bool:
        """True if both values exist and differ by more than rounding."""
        return self in (Relation.PERMUTED, Relation.DIFFERENT, Relation.SHAPES)


class TensorRelation(NamedTuple):
    """Relation of two tensors: max|b - a| (`difference`), the same as a share of max|a| (`relative`), None where
    there are no two numbers to subtract; and, in words, the permutation or the reason (`note`)."""

    relation: Relation
    difference: float | None = None
    relative: float | None = None
    note: str = ""


def compare_tensors(
    a: torch.Tensor | None,
    b: torch.Tensor | None,
    shares: Callable[[torch.Tensor, torch.Tensor], torch.Tensor | None] = lambda a, b: None,
) -> TensorRelation:
    """Return the relation of two tensors. Leading axes of length 1 are left out.

    Numbers are equal up to rounding where they differ by at most `tracer.record.tolerance` of the largest that stands
    for no infinity, by the less precise of both dtypes, and no cell by more than its own rounding explains, where it
    is known: `shares` returns the difference of each cell as a share of that. Whole numbers have to be the same.
    """
    if a is None or b is None or a.is_meta or b.is_meta:
        missing = [name for name, tensor in (("a", a), ("b", b)) if tensor is None or tensor.is_meta]
        return TensorRelation(Relation.MISSING, note=f"not kept in {' and '.join(missing)}")
    rank, whole = a.dim(), (a.detach(), b.detach())
    a, b = map(_squeeze, whole)
    if identical(a, b):
        return TensorRelation(Relation.IDENTICAL, 0.0, 0.0)
    most = max(tolerance(dtype_name(tensor.dtype)) for tensor in (a, b))
    a, b = _comparable(a, b)
    if a.shape != b.shape:
        order = _order_of_axes(a, b, most)
        permuted = TensorRelation(Relation.PERMUTED, note=f"the last {a.dim()} axes in the order {order}")
        return permuted if order else TensorRelation(Relation.SHAPES)
    difference, relative = distance(a, b)
    if relative <= most:
        largest = 0.0 if (cells := shares(*whole)) is None or not cells.numel() else float(cells.max())
        if largest <= 1:
            return TensorRelation(Relation.ROUNDING, difference, relative)
        return TensorRelation(Relation.DIFFERENT, difference, relative, f"{largest:.3g} times what rounding explains")
    axis = _permuted_axis(a, b, most)
    if axis is not None:
        return TensorRelation(Relation.PERMUTED, difference, relative, f"axis {axis + rank - a.dim()} in another order")
    return TensorRelation(Relation.DIFFERENT, difference, relative)


def compare_outputs(
    a: object, b: object, compare: Callable[[int, torch.Tensor, torch.Tensor], TensorRelation] | None = None
) -> TensorRelation:
    """Return the relation of everything that two forwards returned, value by value: of the pair that differs most.

    `compare(place, a, b)` compares the tensors at a place among those that were returned. Text and numbers have to be
    the same, numbers with a fraction up to rounding to float32. What is of another kind is named as not compared.
    """
    first, second = ([leaf for leaf in tree_leaves(output) if leaf is not None] for output in (a, b))
    tensors = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves in (first, second)]
    if len(tensors[0]) != len(tensors[1]):
        return TensorRelation(Relation.SHAPES, note=f"{len(tensors[0])} and {len(tensors[1])} tensors")
    compared = compare or (lambda place, left, right: compare_tensors(left, right))
    comparisons = [compared(place, *pair) for place, pair in enumerate(zip(*tensors, strict=True))]
    others = [[leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)] for leaves in (first, second)]
    if len(others[0]) != len(others[1]):
        comparisons.append(TensorRelation(Relation.SHAPES, note=f"{len(others[0])} and {len(others[1])} other values"))
    comparisons += (_compare_values(*pair) for pair in zip(*others, strict=False))
    order = list(Relation)
    most = max(
        comparisons,
        key=lambda values: (order.index(values.relation), values.relative or 0),
        default=TensorRelation(Relation.MISSING),
    )
    unknown = dict.fromkeys(values.note for values in comparisons if values.relation is Relation.MISSING)
    return most._replace(note="; ".join(filter(None, dict.fromkeys((most.note, *unknown)))))


def _compare_values(a: object, b: object) -> TensorRelation:
    """Return the relation of two values that are no tensors."""
    if not all(isinstance(value, (str, bytes, Number)) for value in (a, b)):
        kinds = dict.fromkeys(type(value).__name__ for value in (a, b))
        return TensorRelation(Relation.MISSING, note=f"{' and '.join(kinds)} can't be compared")
    if type(a) is type(b) and (a == b or (a != a and b != b)):
        return TensorRelation(Relation.IDENTICAL, 0.0, 0.0)
    if all(isinstance(value, float) for value in (a, b)):
        tensors = (torch.tensor(value, dtype=torch.float64).float() for value in (a, b))
        return compare_tensors(*tensors)
    return TensorRelation(Relation.DIFFERENT, note=f"{quote(a)} and {quote(b)}")


def distance(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Return max|b - a|, and the same as a share of max|a|. Equal infinities count 0, and so do cells that are NaN in
    both; of masks, the lowest number of a dtype counts as -∞. A number of a mask in `a` that stands for -∞ is compared
    with itself, and no other with it."""
    between = Difference(b, a)
    reference = a.numpy(force=True)
    if between.largest < INFINITY_THRESHOLD and fill_threshold(reference) == INFINITY_THRESHOLD:
        return between.largest, between.relative()
    same = (a == b) | (a.isnan() & b.isnan())
    if not a.is_complex():
        same |= (a < -INFINITY_THRESHOLD) & (b < -INFINITY_THRESHOLD)
    difference = Difference(b.masked_fill(same, 0), a.masked_fill(same, 0)).largest
    relative = float(deviation(b.numpy(force=True), reference, lowest=True).max(initial=0))
    return (inf if isnan(difference) else difference), (inf if isnan(relative) else relative)


def _squeeze(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor without leading axes of length 1."""
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    while tensor.dim() and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor


def _comparable(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors in one dtype that holds the numbers of both: float32 at least."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    if not all(tensor.is_floating_point() or tensor.is_complex() for tensor in (a, b)):
        dtype = torch.promote_types(dtype, torch.float64)
    return a.to(dtype), b.to(dtype)


def _permuted_axis(a: torch.Tensor, b: torch.Tensor, most: float) -> int | None:
    """Return the axis along which the slices of two tensors are the same in another order; None if there is none.

    Slices are put in the order of a signature, their product with fixed random numbers; then they are compared.
    """
    if a.is_complex() or not _may_be_permuted(a, b, most):
        return None
    for axis in range(a.dim()):
        if a.shape[axis] < 2:
            continue
        left, right = a.movedim(axis, 0), b.movedim(axis, 0)
        weights = torch.rand(left[0].numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        order, right_order = ((matrix.flatten(1).double() @ weights).argsort() for matrix in (left, right))
        if distance(left[order], right[right_order])[1] <= most:
            return axis
    return None


def _order_of_axes(a: torch.Tensor, b: torch.Tensor, most: float) -> str:
    """Return the order in which the axes of `a` are those of `b`, such as "0, 2, 1"; "" if there is none."""
    if sorted(a.shape) != sorted(b.shape) or a.dim() > MOST_AXES or a.is_complex() or not _may_be_permuted(a, b, most):
        return ""
    for order in permutations(range(a.dim())):
        moved = a.permute(order)
        if moved.shape == b.shape and distance(moved, b)[1] <= most:
            return ", ".join(map(str, order))
    return ""


def _may_be_permuted(a: torch.Tensor, b: torch.Tensor, most: float) -> bool:
    """Return whether two tensors may hold the same numbers: their minima and maxima are the same, and finite."""
    if not a.numel():
        return False
    (least, largest), (lowest, highest) = ([end.item() for end in tensor.aminmax()] for tensor in (a, b))
    scale = max(abs(least), abs(largest))
    return scale < inf and max(abs(least - lowest), abs(largest - highest)) <= most * scale


# Outcome of comparing two runs.

MOST_WEIGHTS = 1 << 28
"""Attention weights of a layer that are compared: 1 GB in each run."""


@dataclass(frozen=True, slots=True)
class LinePair:
    """Two aligned lines, or a line of one run only: then the other is None, and so is `equations`.

    The value of a line that a change added is compared with that of the line that it changes, in the other run
    (`beside`).
    """

    a: Step | None
    b: Step | None
    values: TensorRelation
    equations: EquationRelation | None
    beside: Step | None = None

    @property
    def step(self) -> Step:
        """Line of the second run; of the first, where the second has none."""
        step = self.b or self.a
        assert step is not None
        return step

    @property
    def id(self) -> str:
        """Id of `step`."""
        return self.step.id

    @property
    def alone(self) -> bool:
        """True if only one run has this line."""
        return self.a is None or self.b is None

    @property
    def differs(self) -> bool:
        """True if the values differ by more than rounding; where a value was not kept, if the equations are not
        the same mathematics."""
        if self.values.relation is Relation.MISSING:
            return self.equations is EquationRelation.DIFFERENT
        return self.values.relation.differs

    @property
    def same_shape(self) -> bool:
        """True if both lines have the same shape, in numbers."""
        return not self.alone and self.a.shape == self.b.shape  # type: ignore[union-attr] # neither is None

    @property
    def same_symbols(self) -> bool:
        """True if both lines have the same shape, in symbols."""
        return not self.alone and self.a.symbolic == self.b.symbolic  # type: ignore[union-attr] # neither is None


@dataclass(frozen=True, repr=False)
class LayerAttention:
    """Attention weights of a layer of both runs; `part` is the tower of the first run, layers count from 0."""

    part: str
    layer: int
    a: Trace
    b: Trace
    part_of_b: str

    @property
    def towers(self) -> tuple[tuple[Trace, str], tuple[Trace, str]]:
        """Both runs, each with the name of its tower."""
        return (self.a, self.part), (self.b, self.part_of_b)

    @cached_property
    def values(self) -> TensorRelation:
        """Relation of the weights of the two runs; not computed where their sizes differ."""
        pair = [layers(*tower)[self.layer] for tower in self.towers]
        (heads, queries, keys), other = ((record.heads, record.queries, record.keys) for record in pair)
        if (heads, queries, keys) != other:
            return TensorRelation(Relation.SHAPES)
        if heads * queries * keys > MOST_WEIGHTS:
            many = f"{heads} × {queries:,} × {keys:,} weights are too many to compare"
            return TensorRelation(Relation.MISSING, note=many)
        try:
            return compare_tensors(*(weights(run, self.layer, part=part) for run, part in self.towers))
        except (ValueError, LookupError) as error:
            return TensorRelation(Relation.MISSING, note=str(error) if isinstance(error, ValueError) else "not kept")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two runs, line by line: `rows` in the order of the runs, and the tensors that forward returned (`output`)."""

    a: Trace
    b: Trace
    rows: tuple[LinePair, ...]
    output: TensorRelation

    @property
    def equal(self) -> bool:
        """True if the outputs, and all values that were kept in both runs, are equal up to rounding; False if there was
        nothing to compare."""
        values = [self.output, *(row.values for row in self.rows)]
        return any(value.relation.equal for value in values) and not (
            self.output.relation.differs or any(row.differs for row in self.rows)
        )

    @property
    def first(self) -> LinePair | None:
        """First line that differs; if only the outputs differ, the first line that one run lacks."""
        differing = next((row for row in self.rows if row.differs), None)
        if differing or self.equal:
            return differing
        return next((row for row in self.rows if row.alone), None)

    @cached_property
    def attention(self) -> tuple[LayerAttention, ...]:
        """Attention of each layer that both runs have."""
        return tuple(
            LayerAttention(part, layer, self.a, self.b, part_of_b)
            for part, part_of_b in zip(parts(self.a), parts(self.b), strict=False)
            for layer in range(min(len(layers(self.a, part)), len(layers(self.b, part_of_b))))
        )

    @cached_property
    def answers(self) -> Answers | None:
        """Answers of the two runs; None where one of them has no answer in words."""
        return compare_answers(self.a.result, self.b.result)

    def counts(self) -> dict[str, int]:
        """Count the rows of each relation of values, and the lines without a partner."""
        counts = Counter(str(row.values.relation) for row in self.rows if not row.alone)
        known = {str(relation): counts[str(relation)] for relation in Relation}
        for name, lacking in (("a", "b"), ("b", "a")):
            known[f"only in {name}"] = sum(getattr(row, lacking) is None for row in self.rows)
        return {name: count for name, count in known.items() if count}

    def records(self) -> list[dict[str, Any]]:
        """Return a dictionary for each row, keyed by `COLUMNS`."""
        return [{name: value(row) for name, value in COLUMNS.items()} for row in self.rows]

    def table(self) -> pandas.DataFrame:
        """Return the rows as a data frame. Raise ModuleNotFoundError with the package to install if pandas is
        missing."""
        frame = require("pandas", "comparison.table()").DataFrame(self.records(), columns=list(COLUMNS))
        return frame.astype({"layer": "Int64"})

    def _repr_html_(self) -> str:
        return _html(self)

    def __repr__(self) -> str:
        counted = ", ".join(f"{count} {what}" for what, count in self.counts().items())
        first = f"; the first difference is {self.first.id}" if self.first else ""
        return f"<Comparison of {self.a.model} and {self.b.model}: {counted}{first}>"


def _html(pairs: Comparison) -> str:
    """Return two runs, line by line, as one piece of HTML with the first difference above them."""
    first = f"The first difference: {pairs.first.id}." if pairs.first else "No line differs."
    counted = ", ".join(f"{count:,} {what}" for what, count in pairs.counts().items())
    names = f"<strong>{to_html.text(pairs.a.model)}</strong> (a) and <strong>{to_html.text(pairs.b.model)}</strong> (b)"
    lines = f"{first} Lines: {counted}." if counted else first
    head = f"<div>{names}</div>\n<div>{to_html.text(lines)}</div>\n"
    body = [
        (
            f"<td>{to_html.text(pair.step.title)}<br>{to_html.quiet(pair.id)}</td>",
            *(f"<td>{to_html.equation(line.latex) if line else ''}</td>" for line in (pair.a, pair.b)),
            f"<td>{to_html.text(pair.values.relation)}<br>{to_html.quiet(pair.values.note)}</td>",
            f'<td class="number">{"" if pair.values.relative is None else scientific(pair.values.relative)}</td>',
        )
        for pair in pairs.rows
    ]
    columns = ("step", "equation of a", "equation of b", "values", "relative difference")
    return to_html.page(head + to_html.table(columns, body))


COLUMNS: dict[str, Callable[[LinePair], Any]] = {
    "a": lambda row: row.a and row.a.id,
    "b": lambda row: row.b and row.b.id,
    "layer": attrgetter("step.layer"),
    "stage": attrgetter("step.stage"),
    "title": attrgetter("step.title"),
    "values": lambda row: str(row.values.relation),
    "difference": attrgetter("values.difference"),
    "relative": attrgetter("values.relative"),
    "equations": lambda row: row.equations and str(row.equations),
    "shape_a": lambda row: row.a and list(row.a.shape),
    "shape_b": lambda row: row.b and list(row.b.shape),
    "symbolic_a": lambda row: row.a and list(row.a.symbolic),
    "symbolic_b": lambda row: row.b and list(row.b.symbolic),
    "note": attrgetter("values.note"),
}
"""Columns of the table of lines, each with its value."""


def compare(a: Trace, b: Trace) -> Comparison:
    """Return the comparison of two runs. Raise ValueError for anything but a trace.

    Examples:
        >>> import tracer
        >>> model = tracer.load("vit")
        >>> off = model.trace(change={"block3.attention.weights": "drop_heads(1)"})
        >>> tracer.compare(model.trace(), off).first.id
        'block3.attention.weights.changed'
    """
    expected = "expected what tracer.trace, Model.trace or tracer.open returns"
    for run in (a, b):
        if not isinstance(run, Trace):
            raise ValueError(f"{quote(run)} is not a trace, {expected}")
    pairs = align(a.steps, b.steps)
    equations, first, second = EquationComparison(a, b, pairs), _Tensors(a), _Tensors(b)
    partner = {right.id: left for left, right in pairs if left and right}
    partner_in_b = {left.id: right for left, right in pairs if left and right}
    ids = {id: right.id for id, right in partner_in_b.items()}
    runs = RunEquations(a), RunEquations(b)

    def values(left: Step, right: Step) -> TensorRelation:
        if left.recomputed and right.recomputed:
            return TensorRelation(Relation.MISSING, note="inside a fused op in both runs")
        shares = partial(rounding_shares, (left, right), runs, ids, _are_alike)
        relation = compare_tensors(first(left), second(right), shares)
        if relation.relation is not Relation.ROUNDING or all(run.steps for run in runs):
            return relation
        differ = equations.relation(left, right) is EquationRelation.DIFFERENT
        return _without_bounds(relation, first(left), second(right), differ)

    def row(left: Step | None, right: Step | None) -> LinePair:
        if left and right:
            return LinePair(left, right, values(left, right), equations.relation(left, right))
        base = _original_line(right, partner) or _original_line(left, partner_in_b)
        if base is None:
            return LinePair(left, right, TensorRelation(Relation.ALONE, note=f"only in {'a' if left else 'b'}"), None)
        beside = values(left or base, right or base)
        return LinePair(left, right, beside._replace(note=beside.note or f"beside {base.id}"), None, base)

    rows = tuple(row(*pair) for pair in pairs)
    lines = {(pair.a.id, pair.b.id): pair.values for pair in rows if pair.a and pair.b}

    def returned(place: int, left: torch.Tensor, right: torch.Tensor) -> TensorRelation:
        """Compare returned tensors as the lines whose tensors they are."""
        steps = [run.returned[place].step if place < len(run.returned) else "" for run in (a, b)]
        line = lines.get((steps[0], steps[1]))
        return line if line and line.relation is not Relation.MISSING else compare_tensors(left, right)

    return Comparison(a, b, rows, compare_outputs(a.output, b.output, returned))


UNBOUNDED_NOTE = "compared by the largest number: a file has no bound for each cell"
"""Note on two values of which one is of a file, and so has no equation that gives the rounding of a cell."""


def _without_bounds(
    relation: TensorRelation, a: torch.Tensor | None, b: torch.Tensor | None, differ: bool
) -> TensorRelation:
    """Return the relation of two tensors that are equal by their largest number, where one of them is of a file: if
    their equations `differ`, each cell has to be equal by its own size."""
    if differ and a is not None and b is not None and a.numel():
        most = max(tolerance(dtype_name(tensor.dtype)) for tensor in (a, b))
        left, right = _comparable(_squeeze(a.detach()), _squeeze(b.detach()))
        own = torch.maximum(left.abs(), right.abs())
        share = float(((right - left).abs() / own.clamp(min=torch.finfo(own.dtype).tiny)).nan_to_num(0.0).max())
        if share > most:
            return relation._replace(relation=Relation.DIFFERENT, note=f"a cell differs by {share:.2g} of its size")
    return relation._replace(note=relation.note or UNBOUNDED_NOTE)


def _are_alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return compare_tensors(a, b).relation.equal


def _original_line(step: Step | None, partner: dict[str, Step]) -> Step | None:
    """Return the line of the other run that a changed line replaces; None for any other line."""
    return partner.get(step.id.removesuffix(CHANGED_SUFFIX)) if step and step.id.endswith(CHANGED_SUFFIX) else None


class _Tensors:
    """Values of a run's lines; those inside a fused op are recomputed while the model exists."""

    def __init__(self, trace: Trace):
        self._trace, self._recomputed = trace, trace.later and trace.later.values()

    def __call__(self, step: Step) -> torch.Tensor | None:
        value = self._trace.value(step)
        return self._recomputed(step.id) if value is None and step.recomputed and self._recomputed else value
