"""Measures of the facts in sentences: on the tensors of steps, on parameters, on the recorder's records."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import permutations
from math import erf, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from tracer.figures.graph import lanes
from tracer.record import AttentionRecord, Step
from tracer.record.latex_reader.evaluator import evaluate
from tracer.record.latex_reader.operands import Operands, names
from tracer.record.latex_reader.parser import read
from tracer.symbols import notation
from tracer.verify.checks.printed.printed_equations import Tensors
from tracer.verify.checks.reference_run import Run, array

NEAR = 1e-4
"""How far numbers may be from one another, as a share of the largest."""
PARAMETER = "parameter "


class Book:
    """The steps of a run: operands, users, and numbers."""

    def __init__(self, run: Run):
        self.run, self.trace = run, run.trace
        self.sources = {id: [one for one in of if not one.startswith(lanes.INPUT)] for id, of in self._all.items()}
        self.parameters = dict(run.model.net.named_parameters(remove_duplicate=False))
        self.buffers = dict(run.model.net.named_buffers())
        self._values: dict[str, np.ndarray | None] = {}

    @cached_property
    def _all(self) -> dict[str, tuple[str, ...]]:
        return lanes.sources(self.trace)

    def inputs(self, id: str) -> frozenset[str]:
        """Return the inputs of the run that a step depends on, through all others."""
        return self._inputs[id]

    @cached_property
    def _inputs(self) -> dict[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for id, own in self._all.items():  # in the order in which they ran
            given = frozenset(one for one in own if one.startswith(lanes.INPUT))
            found[id] = given.union(*(found.get(one, frozenset()) for one in own))
        return found

    def value(self, id: str) -> np.ndarray | None:
        if id not in self._values:
            found = self.trace.value(id)
            self._values[id] = None if found is None else array(found)
        return self._values[id]

    @cached_property
    def operands(self) -> Operands:
        """The values of the run's printed names."""
        table = {name: things[0] for name, things in names(self.trace.steps).items()}
        sizes = {notation.latex(size.name): size.value for size in self.trace.symbols}
        return Operands(table, sizes, Tensors(self.trace, self.run.model.net, self.run.inputs))


class Line(NamedTuple):
    """A step of such a book."""

    book: Book
    step: Step

    @property
    def value(self) -> Any:
        """The step's tensor; None if a fused op never held it."""
        return self.book.value(self.step.id)

    @property
    def sources(self) -> list[Step]:
        return [self.book.trace.step(id) for id in self.book.sources[self.step.id]]

    @property
    def users(self) -> list[Step]:
        return [step for step in self.book.trace.steps if self.step.id in self.book.sources[step.id]]

    @property
    def operands(self) -> list[np.ndarray]:
        """The tensors of the step's operands, as far as they were held."""
        return [value for one in self.sources if (value := self.book.value(one.id)) is not None]

    @property
    def parameters(self) -> list[str]:
        """The paths of the parameters and buffers that its equation names."""
        return [name.of.removeprefix(PARAMETER) for name in self.step.names if name.of.startswith(PARAMETER)]

    def weights(self, step: Step | None = None) -> list[str]:
        """Return the parameters that it depends on, through steps without inputs; whole numbers aside."""
        step = step or self.step
        found = [path for path in Line(self.book, step).parameters if self._floats(path)]
        for one in Line(self.book, step).sources:
            found += self.weights(one) if not self.book.inputs(one.id) else []
        return found

    def _floats(self, path: str) -> bool:
        tensor = self.book.parameters.get(path, self.book.buffers.get(path))
        return tensor is None or tensor.is_floating_point()

    def trainable(self, path: str) -> bool:
        front, star, back = path.partition("*")
        known = self.book.parameters
        found = [
            known[name] for name in known if name == path or (star and name.startswith(front) and name.endswith(back))
        ]
        return bool(found) and all(one.requires_grad for one in found)

    @property
    def part(self) -> list[AttentionRecord]:
        """The attentions of its tower."""
        known = [one for one in self.book.trace.attentions if not one.problem]
        return [one for one in known if one.part and self.step.id.startswith(f"{one.part}.")] or known

    @property
    def records(self) -> list[AttentionRecord]:
        """The attentions that it may be a part of: those of its block."""
        inside = [one for one in self.part if one.op in self.step.ops or one.op == self.step.inside]
        return inside or [one for one in self.part if one.layer == self.step.layer] or self.part

    @property
    def heads(self) -> set[int]:
        return {record.heads for record in self.records}


def alike(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Return whether two tensors have the same numbers in whatever order and layout, but for a common factor."""
    if a is None or b is None:
        return False
    small, large = sorted((np.sort(one, axis=None) for one in (a, b)), key=len)
    if not len(small) or len(large) % len(small) or not np.abs(small).max() or not np.abs(large).max():
        return False
    repeated = np.repeat(small, len(large) // len(small))
    return bool(np.allclose(repeated / np.abs(small).max(), large / np.abs(large).max(), atol=NEAR))


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, atol=NEAR * max(1e-9, np.abs(b).max(initial=0))))


def _is_recorded(line: Line, what: str) -> bool:
    """Return whether its numbers are those of the queries "q" or keys "k" of an attention of its block, or their input
    before a rotation by position, of all features of a head or some."""
    recorded = [array(line.book.trace.values[getattr(record, what)]) for record in line.records]
    users = [line.book.value(user.id) for user in line.users]
    return any(
        any(alike(value, tensor) for value in (line.value, *users))
        or any(_turned_in_part(line.value, value, tensor) for value in users)
        for tensor in recorded
    )


def _turned_in_part(whole: np.ndarray | None, turned: np.ndarray | None, recorded: np.ndarray) -> bool:
    """Return whether the first or the last features of each head in `recorded` are those of `turned`, and the others
    those of `whole`, unchanged."""
    features = recorded.shape[-1]
    if whole is None or turned is None or whole.size % features or not 0 < turned.shape[-1] < features:
        return False
    heads, width = whole.reshape(-1, features), turned.shape[-1]
    return any(
        alike(turned, recorded[..., part]) and alike(heads[:, rest], recorded[..., rest])
        for part, rest in (
            (slice(width), slice(width, None)),
            (slice(features - width, None), slice(features - width)),
        )
    )


def queries(line: Line, *_) -> bool:
    return _is_recorded(line, "q")


def keys(line: Line, *_) -> bool:
    return _is_recorded(line, "k")


def _mixtures(line: Line, value: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the mixtures of values `[…, S_k, d]` by the weights of the attentions of its block."""
    for record in line.records:
        weights = array(line.book.trace.attention(record.layer, part=record.part or None))
        if value.ndim == 3:
            value = value[:, None]
        if value.ndim == 4 and value.shape[-2] == record.keys:
            grouped = np.repeat(value, max(1, record.heads // value.shape[1]), axis=1)
            yield weights @ grouped if grouped.shape[1] == record.heads else np.zeros(0)


def values(line: Line, *_) -> bool:
    """Return whether the mixture of its numbers by the weights is a context of its block."""
    own = line.value
    if own is None or own.ndim not in (3, 4):
        return True
    steps = [step for step in line.book.trace.steps if step.layer == line.step.layer]
    weighted = re.compile(rf"\\mathbf{{A}}[^\\]*(\\mathrm{{[^}}]*}}[^\\]*)?\\,{re.escape(line.step.symbol)}")
    return any(alike(made, line.book.value(step.id)) for made in _mixtures(line, own) for step in steps) or any(
        weighted.search(step.latex) for step in steps
    )


def mixture(line: Line, *_) -> bool:
    """Return whether it is a mixture of a tensor of its block by the weights."""
    steps = [step for step in line.book.trace.steps if step.layer == line.step.layer and step.id != line.step.id]
    found = [value for step in steps if (value := line.book.value(step.id)) is not None and value.ndim in (3, 4)]
    return any(alike(made, line.value) for value in found for made in _mixtures(line, value))


def tokenwise(line: Line, *_) -> bool:
    """Return whether another first token changes nothing but the first: the printed equation, read and evaluated
    again."""
    tensors, moved = line.book.operands, []
    equation = read(line.step.latex, tensors.names)
    before = evaluate(equation, tensors, line.step.shape)
    for one in line.sources:
        value = line.book.value(one.id)
        if value is None or value.ndim < 2 or value.shape[-2] != before.shape[-2]:
            continue
        changed = value.copy()
        changed[..., 0, :] += 1 + np.arange(changed.shape[-1]) % 3
        tensors.computed[one.symbol] = changed
        try:
            after = evaluate(equation, tensors, line.step.shape)
        finally:
            del tensors.computed[one.symbol]
        moved.append(bool(np.allclose(before[..., 1:, :], after[..., 1:, :], rtol=0, atol=1e-9)))
    return all(moved)


def standard(line: Line, mean: str, variance: str) -> bool:
    """Return whether each row, without γ and β, has that mean and variance."""
    rows = _without_gamma_beta(line)
    if rows is None:
        return False
    own = [value.var(axis=-1) for value in line.operands if value.shape == rows.shape]
    spread = rows.var(axis=-1)
    tiny = own[0] < 2e-3 if own else np.zeros(spread.shape, bool)
    return bool(np.abs(rows.mean(axis=-1) - float(mean)).max() < 1e-2) and bool(
        (tiny | (np.abs(spread - float(variance)) < 1e-2)).all()
    )


def _without_gamma_beta(line: Line) -> np.ndarray | None:
    """Return its value without the γ and β of its names."""
    found = {name.symbol: line.book.parameters.get(name.of.removeprefix(PARAMETER)) for name in line.step.names}
    value = line.value
    for symbol, parameter in found.items():
        if parameter is not None and "beta" in symbol and value is not None:
            value = value - array(parameter)
    for symbol, parameter in found.items():
        if parameter is not None and "gamma" in symbol and value is not None:
            factor = array(parameter) + (f"{symbol} + 1" in line.step.latex)
            value = value / np.where(factor == 0, np.nan, factor)
    return (
        value
        if value is None or np.isfinite(value).all()
        else value[..., np.isfinite(value).all((*range(value.ndim - 1),))]
    )


def root_mean_square(line: Line, *_) -> bool:
    """Return whether it is its operand over the root of its mean square, each feature times one number for all
    tokens."""
    own = [value for value in line.operands if value.shape == line.value.shape]
    if not own:
        return False
    unit = own[0] / np.sqrt((own[0] ** 2).mean(-1, keepdims=True) + 1e-12)
    kept = (own[0] ** 2).mean(-1) > 2e-3  # ε counts beside smaller numbers
    factor = (line.value[kept] * unit[kept]).sum(0) / np.maximum((unit[kept] ** 2).sum(0), 1e-30)
    return bool(np.abs(unit[kept] * factor - line.value[kept]).max(initial=0) < 1e-2 * np.abs(line.value).max())


def sums_of_two(line: Line, stage: str) -> bool:
    """Return whether it is one of its operands plus another of that stage, each feature times one number; a third,
    of two parallel branches, is added unchanged."""
    values = [(one, value) for one in line.sources if (value := line.book.value(one.id)) is not None]
    values = [(one, value) for one, value in values if value.shape == line.value.shape]
    return any(
        b.stage == stage and _is_scaled(line.value - sum((more for _, more in rest), x), y, np.abs(x).max())
        for count in (2, 3)
        for (_, x), (b, y), *rest in permutations(values, count)
    )


def _is_scaled(a: np.ndarray, b: np.ndarray, beside: float) -> bool:
    """Return whether `a` is `b` times one number for each feature, but for the rounding of numbers so large `beside`
    it."""
    rows, others = a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1])
    factor = (rows * others).sum(0) / np.maximum((others**2).sum(0), 1e-30)
    return bool(np.abs(others * factor - rows).max() <= max(1e-3 * np.abs(rows).max(), 1e-6 * beside))


def _adds(stage: str) -> Callable[..., bool]:
    return lambda line, *_: sums_of_two(line, stage)


def straight(line: Line, *_) -> bool:
    """Return whether a later sum reads it unchanged, or it is such a sum itself and ends its block."""
    lines = [Line(line.book, user) for user in line.users] + [line] * in_block(line)
    return any(sums_of_two(one, stage) for one in lines for stage in ("attention", "mlp"))


def rows_sum_to(line: Line, total: str) -> bool:
    weights = [array(line.book.trace.attention(one.layer, part=one.part or None)) for one in line.records]
    return all(abs(rows.sum(axis=-1) - int(total)).max() < 1e-5 for rows in weights)


def spread(line: Line, grows: str) -> bool:
    """Return whether the spread of a random sum of d products grows so, and its scores are divided by it."""
    draws = np.random.default_rng(0).standard_normal((2, 4000, 64))
    few, many = ((draws[0] * draws[1])[:, :d].sum(axis=-1).std() for d in (16, 64))
    exponent = np.log(many / few) / np.log(4)
    d_k = {array(line.book.trace.values[record.q]).shape[-1] for record in line.records}
    divides = all(r"\sqrt{d_" in line.step.latex or _has_root(line.step.latex, d) for d in d_k)
    return abs(exponent - {"√d_k": 0.5, "d_k": 1.0}[grows]) < 0.1 and divides


def _has_root(latex: str, d: int) -> bool:
    """Return whether √d is in an equation, also with a square factored out of it, as √12 is 2√3."""
    squares = (n**2 for n in range(2, d) if d % n**2 == 0 and d > n**2)
    return rf"\sqrt{{{d}" in latex or any(rf"\sqrt{{{d // square}}}" in latex for square in squares)


def hides(line: Line, opened: str, closed: str) -> bool:
    """Return whether open cells have one number and closed ones another in its mask, and exactly 0 in the weights."""
    for record in line.records if line.step.layer is not None else line.part:
        weights = array(line.book.trace.attention(record.layer, part=record.part or None))
        ahead = np.triu(np.ones(weights.shape[-2:], bool), 1)
        if record.mask != "causal" or weights[..., ahead].any():
            return False
        fills = [link[1][0] for link in record.chain if link[0] == "causal"]
        if len(fills) != 1 or np.isinf(fills[0]) != (closed == "-∞"):
            return False
    return opened == "0"


X = np.linspace(-8, 0, 8001)
BENT = {
    "GELU": [x * (1 + erf(x / sqrt(2))) / 2 for x in X],
    "This GELU, an approximation by tanh,": X * (1 + np.tanh(sqrt(2 / pi) * (X + 0.044715 * X**3))) / 2,
    "SiLU": X / (1 + np.exp(-X)),
}


def bends(line: Line, name: str, bound: str) -> bool:
    """Return whether no value of the function is below the bound, which has two decimals, and none of the run."""
    least, y = min(BENT[name]) - float(bound), line.value
    return 0 <= least < 0.01 and any(
        y[x < 0].min(initial=0) >= float(bound) and bool((abs(y - x)[x > 6] < 0.01 * x[x > 6]).all())
        for x in _operands_of_function(line)
    )


def _ends(value: np.ndarray, width: int) -> list[np.ndarray]:
    """A tensor; of one that is wider, as two halves of a gated MLP in one product are, its first and last features."""
    return [value[..., :width], value[..., -width:]] if value.ndim and value.shape[-1] > width else [value]


def _operands_of_function(line: Line) -> Iterator[np.ndarray]:
    """The operand that a function of single numbers is taken of, or its first or last features."""
    return (part for part in _ends(line.operands[0], line.value.shape[-1]) if part.shape == line.value.shape)


def is_rectified(line: Line, *_) -> bool:
    return any(close(line.value, np.maximum(x, 0)) for x in _operands_of_function(line))


def weighs(line: Line, mlp_matrices: str, mlp: str, attention_matrices: str, attention: str) -> bool:
    """Return whether the MLP and the attention of its block name so many matrices, by the modules that own them."""
    number = {"one matrix": 1, "two matrices": 2, "three matrices": 3, "four matrices": 4}
    own = line.parameters[0].rpartition(".")[0].rpartition(".")[0]
    found: dict[str, dict[str, int]] = {"mlp": {}, "attention": {}}
    for step in line.book.trace.steps:
        if step.layer != line.step.layer or step.stage not in found:
            continue
        for path in Line(line.book, step).parameters:
            tensor = line.book.parameters.get(path)
            if tensor is not None and tensor.dim() == 2 and _together(path, own):
                found[step.stage][path] = tensor.numel()
    told = {"mlp": (mlp_matrices, mlp), "attention": (attention_matrices, attention)}
    return all(
        len(found[kind]) == number[many] and sum(found[kind].values()) == int(total.replace(",", ""))
        for kind, (many, total) in told.items()
    )


def _together(path: str, own: str) -> bool:
    """Return whether two paths are of one block: they are the same up to the first number."""
    parts = own.split(".")
    end = next((place for place, part in enumerate(parts, 1) if any(map(str.isdigit, part))), 0)
    return path.split(".")[:end] == parts[:end]


def by_last_axis(line: Line, wider: bool) -> bool:
    before = [value.shape[-1] for value in line.operands if value.ndim > 1]
    return bool(before) and (line.value.shape[-1] > before[-1] if wider else True)


def is_trained(line: Line, *_) -> bool:
    return bool(line.weights()) and all(map(line.trainable, line.weights()))


def is_fixed(line: Line, *_) -> bool:
    return not any(map(line.trainable, line.weights()))


def causal(line: Line, *_) -> bool:
    return bool(line.part) and all(one.mask == "causal" or one.queries == one.keys == 1 for one in line.part)


def open_(line: Line, *_) -> bool:
    """Return whether in some head the first token reads another one."""
    for record in line.part:
        weights = array(line.book.trace.attention(record.layer, part=record.part or None))
        if not (weights[..., 0, 1:] > 0).any() or not (weights[..., 1:, 0] > 0).any():
            return False
    return bool(line.part)


def first_row(line: Line, *_) -> bool:
    return any(one.ndim == line.value.ndim + 1 and close(one[..., 0, :], line.value) for one in line.operands)


def is_rearranged(line: Line, *_) -> bool:
    given = [array(one) for one in line.book.run.inputs if one.is_floating_point()]
    own = np.sort(line.value, axis=None)
    return any(
        len(own) == one.size and np.array_equal(np.sort(one, axis=None), own) for one in (*line.operands, *given)
    )


def patches(order: str) -> Callable[..., bool]:
    """Return a predicate: its rows are the squares of the picture, row by row, with their numbers in that order."""

    def holds(line: Line, *_) -> bool:
        (image,) = (array(one) for one in line.book.run.inputs if one.dim() == 4)
        side = next(size.value for size in line.book.trace.symbols if size.name == "P")
        B, C, H, W = image.shape
        cut = image.reshape(B, C, H // side, side, W // side, side)
        axes = {"hwc": (0, 2, 4, 3, 5, 1), "chw": (0, 2, 4, 1, 3, 5)}[order]
        return close(line.value, cut.transpose(axes).reshape(B, -1, side * side * C))

    return holds


def kept_lengths(line: Line, *_) -> bool:
    """Return whether each row is as long as before: rotated, not stretched. The row of its head may be
    beside those of keys and values, and may go on to features that stay as they are."""
    lengths = np.sqrt((line.value**2).sum(-1))
    return any(one.shape == line.value.shape and close(np.sqrt((one**2).sum(-1)), lengths) for one in _rows(line))


def _rows(line: Line) -> Iterator[np.ndarray]:
    """As many first or last features of each head in its operands as it has itself, in both orders of heads and
    tokens."""
    width = line.value.shape[-1]
    counts = {array(line.book.trace.values[one]).shape[1] for record in line.records for one in (record.q, record.k)}
    features = {array(line.book.trace.values[record.q]).shape[-1] for record in line.records}
    for one in line.operands:
        yield one
        dealt = [
            one.reshape(*one.shape[:2], heads, -1) for heads in counts if one.ndim == 3 and not one.shape[-1] % heads
        ]
        for rows in [one] if one.ndim == 4 else dealt:
            for start in {start for d in features for start in range(0, rows.shape[-1] - d + 1, d)}:
                for d in features:
                    for part in {start, start + d - width}:
                        cut = rows[..., part : part + width]
                        yield cut
                        yield cut.swapaxes(1, 2)


def in_block(line: Line, *_) -> bool:
    """Return whether no later step is in its block."""
    at = line.book.trace.steps.index(line.step)
    after = [one for one in line.book.trace.steps[at + 1 :] if one.layer == line.step.layer]
    return not any(_together(one.id, line.step.id) for one in after)


def next_block(line: Line, *_) -> bool:
    return any(user.layer not in (None, line.step.layer) for user in line.users)


def size(name: str) -> Callable[..., bool]:
    """Return a predicate: its last axis has that size."""
    return lambda line, *_: line.step.shape[-1] == {one.name: one.value for one in line.book.trace.symbols}[name]


def one_user_kind(*stages: str) -> Callable[..., bool]:
    return lambda line, *_: bool(line.users) and {user.stage for user in line.users} <= {*stages}


def every(*measures: Callable[..., bool]) -> Callable[..., bool]:
    return lambda line, *given: all(measure(line, *given) for measure in measures)


def some_heads(line: Line, *_) -> bool:
    return min(line.heads, default=0) > 1


def single_head(line: Line, *_) -> bool:
    return line.heads == {1}


def table_rows(line: Line, *_) -> bool:
    """Return whether each of its rows is one of a parameter."""
    rows = line.value.reshape(-1, line.value.shape[-1])
    tables = [array(line.book.parameters[path]) for path in line.parameters if path in line.book.parameters]
    return any((rows[:, None] == table).all(-1).any(-1).all() for table in tables if table.shape[-1] == rows.shape[-1])


def tied(line: Line, *_) -> bool:
    others = [step for step in line.book.trace.steps if step.id != line.step.id]
    return any({*line.parameters} & {*Line(line.book, step).parameters} for step in others)


def unit_rows(line: Line, *_) -> bool:
    return close((line.value**2).sum(-1), np.ones(line.value.shape[:-1]))


def of_operands(function: Callable[..., np.ndarray]) -> Callable[..., bool]:
    """Return a predicate: a function of its operands gives its value; of one that is wider, of its first or last
    features."""

    def holds(line: Line, *_) -> bool:
        given = [part for one in line.operands for part in _ends(one, line.value.shape[-1])]
        tries = (function(*order) for order in permutations(given, function.__code__.co_argcount))
        return any(made.shape == line.value.shape and close(made, line.value) for made in tries)

    return holds


def alibi_free(line: Line, *_) -> bool:
    """Return whether no step of its tower adds positions to tokens, and some rotates them."""
    titles = [step.title for step in line.book.trace.steps]
    return not any(title.startswith("Add positions") for title in titles) and "Rotate keys (RoPE)" in titles


def waves(line: Line, *_) -> bool:
    """Return whether the angle of a position grows less from pair to pair of numbers."""
    half = line.value[..., 1, : line.value.shape[-1] // 2].reshape(-1)
    return bool((np.diff(half) < 0).all()) and {user.title for user in line.users} <= {"Cosine", "Sine"}


def rotates(line: Line, *_) -> bool:
    """Return whether one matrix leads from every position to the next: least squares leave no rest."""
    rows = line.value.reshape(-1, line.value.shape[-1])
    found, *_ = np.linalg.lstsq(rows[:-1], rows[1:], rcond=None)
    return not line.weights() and close(rows[:-1] @ found, rows[1:])


def from_nothing(line: Line, *_) -> bool:
    return not line.book.inputs(line.step.id)


def cosines(line: Line, *given: str) -> bool:
    """Return whether its operands are between -1 and 1, or it is the product of vectors of length 1."""
    least, most = given or ("-1", "1")
    return any(value.min() >= float(least) - NEAR and value.max() <= float(most) + NEAR for value in line.operands)


def unit_products(line: Line, *_) -> bool:
    lengths = [np.sqrt((value**2).sum(-1)) for value in line.operands]
    return len(lengths) == 2 and all(close(one, np.ones(one.shape)) for one in lengths)


def one_end(line: Line, *_) -> bool:
    """Return whether it is, for each text, the first position of the id that pads its end."""
    ids = next(array(one) for one in line.book.run.inputs if not one.is_floating_point())
    return close(line.value.reshape(-1), (ids == ids[:, -1:]).argmax(-1).astype(float))


def some_rows(line: Line, *_) -> bool:
    """Return whether each of its rows is one of its operand's."""
    rows = line.value.reshape(-1, line.value.shape[-1])
    tables = [one.reshape(-1, one.shape[-1]) for one in line.operands if one.shape[-1] == rows.shape[-1]]
    return any((np.abs(rows[:, None] - table).max(-1) < NEAR).any(-1).all() for table in tables)


def prefix(line: Line, *_) -> bool:
    """Return whether a token may look ahead among the first, and never among the last."""
    for record in line.part:
        weights = array(line.book.trace.attention(record.layer, part=record.part or None))
        if not weights[..., 0, 1].all() or weights[..., -2, -1].any():
            return False
    return bool(line.part)


def distances(line: Line, *_) -> bool:
    """Return whether each number is the distance from its row to its column, clipped and shifted."""
    reach = next(one.value for one in line.book.trace.symbols if one.name == "R")
    i, j = np.indices(line.value.shape[-2:])
    return close(line.value, np.clip(j - i, -reach, reach).astype(float) + reach)


def shares_by_distance(line: Line, *_) -> bool:
    return bool(np.allclose(line.value.sum(-1), 1, atol=NEAR))


def distinct(line: Line, *_) -> bool:
    """Return whether no other tensor of its attention has the same numbers, so that it has a projection of its own."""
    own = [step for step in line.book.trace.steps if step.layer == line.step.layer and step.stage == "attention"]
    mine = line.value
    return not any(
        alike(mine, value)
        for step in own
        if step.id != line.step.id
        and step.title in ("Queries", "Keys", "Values")
        and (value := line.book.value(step.id)) is not None
    )


def heads_are_joined(line: Line, *_) -> bool:
    """Return whether the mixtures of the heads are concatenated along its last axis."""
    for step in line.book.trace.steps:
        value = line.book.value(step.id)
        if step.layer != line.step.layer or value is None or value.ndim not in (3, 4):
            continue
        for made in _mixtures(line, value):
            if made.ndim == 4 and close(
                made.swapaxes(1, 2).reshape(*line.value.shape[:0], made.shape[0], made.shape[2], -1), line.value
            ):
                return True
    return False
