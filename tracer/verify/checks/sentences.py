"""What explanations say, measured on the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import permutations, product
from math import erf, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from tracer.latex_reader.evaluator import Operands, evaluate
from tracer.latex_reader.parser import read
from tracer.record import INPUT, AttentionRecord, Step
from tracer.verify.checks import check
from tracer.verify.checks.printed import printed_operands
from tracer.verify.checks.reference_run import PlainRun, array, parameters_of

# Measures of the facts in sentences: on the tensors of steps, on parameters, on the recorder's records.

TOLERANCE = 1e-4
"""How far numbers may be from one another, as a share of the largest."""


class StepIndex:
    """Steps of a run: operands, users, and numbers."""

    def __init__(self, run: PlainRun):
        self.run, self.trace = run, run.trace
        self.sources = {
            id: [source for source in of if not source.startswith(INPUT)] for id, of in self.trace.producers.items()
        }
        self.parameters = dict(run.model.net.named_parameters(remove_duplicate=False))
        self.tensors = dict(run.model.net.named_buffers()) | self.parameters
        self.sizes = {size.name: size.value for size in self.trace.symbols}
        self._values: dict[str, np.ndarray | None] = {}

    @cached_property
    def inputs(self) -> dict[str, frozenset[str]]:
        """Inputs of the run that each step depends on, through all others."""
        inputs: dict[str, frozenset[str]] = {}
        for id, own in self.trace.producers.items():  # in the order in which they ran
            direct = frozenset(source for source in own if source.startswith(INPUT))
            inputs[id] = direct.union(*(inputs.get(source, frozenset()) for source in own))
        return inputs

    def value(self, id: str) -> np.ndarray | None:
        if id not in self._values:
            value = self.trace.value(id)
            self._values[id] = None if value is None else array(value)
        return self._values[id]

    @cached_property
    def operands(self) -> Operands:
        """Values of the run's printed names."""
        return printed_operands(self.trace, self.run.model.net, self.run.inputs)


class MeasuredLine(NamedTuple):
    """A step of a run, with its measures."""

    book: StepIndex
    step: Step

    @property
    def value(self) -> Any:
        """Tensor of the step; None if a fused op never held it."""
        return self.book.value(self.step.id)

    @property
    def sources(self) -> list[MeasuredLine]:
        return [self.near(self.book.trace.step(id)) for id in self.book.sources[self.step.id]]

    @property
    def users(self) -> list[MeasuredLine]:
        return [self.near(step) for step in self.book.trace.steps if self.step.id in self.book.sources[step.id]]

    @property
    def block(self) -> list[MeasuredLine]:
        """Steps of its block, itself among them."""
        return [self.near(step) for step in self.book.trace.steps if step.layer == self.step.layer]

    def near(self, step: Step) -> MeasuredLine:
        return MeasuredLine(self.book, step)

    def attention(self, record: AttentionRecord) -> np.ndarray:
        """Return the weights of an attention."""
        return array(self.book.trace.attention(record.layer, part=record.part or None))

    @property
    def operand_values(self) -> list[tuple[MeasuredLine, np.ndarray]]:
        """Operands of the step with their tensors, where they were held."""
        return [(source, value) for source in self.sources if (value := source.value) is not None]

    @property
    def operands(self) -> list[np.ndarray]:
        """Tensors of those operands."""
        return [value for _, value in self.operand_values]

    @property
    def parameters(self) -> list[str]:
        """Paths of the parameters and buffers that its equation names."""
        return parameters_of(self.step)

    def weights(self) -> list[str]:
        """Return the parameters that it depends on, through steps without inputs; whole numbers aside."""
        known = self.book.tensors
        paths = [path for path in self.parameters if path not in known or known[path].is_floating_point()]
        for source in self.sources:
            paths += source.weights() if not self.book.inputs[source.step.id] else []
        return paths

    def trainable(self, path: str) -> bool:
        parameters = [parameter for name, parameter in self.book.parameters.items() if fnmatchcase(name, path)]
        return bool(parameters) and all(parameter.requires_grad for parameter in parameters)

    @property
    def part(self) -> list[AttentionRecord]:
        """Attentions of its tower."""
        known = [record for record in self.book.trace.attentions if not record.problem]
        return [record for record in known if record.part and self.step.id.startswith(f"{record.part}.")] or known

    @property
    def records(self) -> list[AttentionRecord]:
        """Attentions that the step may belong to: those of its block."""
        inside = [record for record in self.part if record.op in self.step.ops or record.op == self.step.inside]
        return inside or [record for record in self.part if record.layer == self.step.layer] or self.part

    @property
    def heads(self) -> set[int]:
        return {record.heads for record in self.records}


def proportional(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    """Return whether two tensors have the same numbers in any order and layout, up to a common factor."""
    if a is None or b is None:
        return False
    small, large = sorted((array.ravel() for array in (a, b)), key=len)
    if not len(small) or len(large) % len(small):
        return False
    ends = [np.array([array.min(), array.max()]) for array in (small, large)]
    first, second = (np.abs(end).max() for end in ends)
    if not first or not second or not np.allclose(ends[0] / first, ends[1] / second, atol=TOLERANCE):
        return False  # without sorting large tensors, which takes long
    repeated = np.repeat(np.sort(small) / first, len(large) // len(small))
    return bool(np.allclose(repeated, np.sort(large) / second, atol=TOLERANCE))


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(np.allclose(a, b, atol=TOLERANCE * max(1e-9, np.abs(b).max(initial=0))))


def _recorded(line: MeasuredLine, what: str) -> list[np.ndarray]:
    """Return the queries "q" or the keys "k" of each attention of its block."""
    return [array(line.book.trace.values[getattr(record, what)]) for record in line.records]


def _is_recorded(line: MeasuredLine, what: str) -> bool:
    """Return whether its numbers are those of the queries "q" or keys "k" of an attention of its block, or their input
    before a norm or a rotation by position, of all features of a head or some."""
    lines = [line, *(user for user in line.users if not _has_matrix(user))]
    users = [user.value for near_line in lines for user in near_line.users]
    return any(
        any(proportional(value, tensor) for value in (line.value, *users))
        or any(_rotated_in_part(line.value, value, tensor) for value in users)
        for tensor in _recorded(line, what)
    )


queries, keys = partial(_is_recorded, what="q"), partial(_is_recorded, what="k")


def _has_matrix(line: MeasuredLine) -> bool:
    """Return whether the line's equation names a trained matrix, and not only vectors."""
    known = line.book.parameters
    return any("*" in path or path not in known or known[path].dim() > 1 for path in line.parameters)


def _rotated_in_part(whole: np.ndarray | None, rotated: np.ndarray | None, recorded: np.ndarray) -> bool:
    """Return whether the first or the last features of each head in `recorded` are those of `rotated`, and the others
    those of `whole`, unchanged."""
    features = recorded.shape[-1]
    if whole is None or rotated is None or whole.size % features or not 0 < rotated.shape[-1] < features:
        return False
    heads, width = whole.reshape(-1, features), rotated.shape[-1]
    return any(
        proportional(rotated, recorded[..., part]) and proportional(heads[:, rest], recorded[..., rest])
        for part, rest in (
            (slice(width), slice(width, None)),
            (slice(features - width, None), slice(features - width)),
        )
    )


def part_of_recorded(what: str) -> Callable[..., bool]:
    """Return a predicate: its numbers are the first or the last features of the recorded queries "q" or keys "k"."""

    def holds(line: MeasuredLine) -> bool:
        width = line.value.shape[-1]
        narrower = [tensor for tensor in _recorded(line, what) if width < tensor.shape[-1]]
        return any(
            proportional(line.value, part) for array in narrower for part in (array[..., :width], array[..., -width:])
        )

    return holds


def _mixtures(line: MeasuredLine, value: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the mixtures of values `[…, S_k, d]` by the weights of the attentions of its block."""
    for record in line.records:
        weights = line.attention(record)
        if value.ndim == 3:
            value = value[:, None]
        if value.ndim == 4 and value.shape[-2] == record.keys and len(value) in (1, len(weights)):
            grouped = np.repeat(value, max(1, record.heads // value.shape[1]), axis=1)
            yield weights @ grouped if grouped.shape[1] == record.heads else np.zeros(0)


def is_shown(line: MeasuredLine) -> bool:
    """Return whether its numbers are the attention of its block, as maps read it."""
    if line.value is None:
        return True
    return any(close(line.value.ravel(), line.attention(record).ravel()) for record in line.records)


def values(line: MeasuredLine) -> bool:
    """Return whether the mixture of its numbers by the weights is a context of its block."""
    own = line.value
    if own is None or own.ndim not in (3, 4):
        return True
    weighted = re.compile(rf"\\mathbf{{A}}[^\\]*(\\mathrm{{[^}}]*}}[^\\]*)?\\,{re.escape(line.step.symbol)}")
    return any(proportional(mixture, near.value) for mixture in _mixtures(line, own) for near in line.block) or any(
        weighted.search(near.step.latex) for near in line.block
    )


def mixture(line: MeasuredLine) -> bool:
    """Return whether it is a mixture of a tensor of its block by the weights."""
    others = [near.value for near in line.block if near.step.id != line.step.id]
    tensors = [value for value in others if value is not None and value.ndim in (3, 4)]
    return any(proportional(mixture_value, line.value) for value in tensors for mixture_value in _mixtures(line, value))


def tokenwise(line: MeasuredLine) -> bool:
    """Return whether replacing the first token changes nothing but the first row: the printed equation, parsed and
    evaluated again."""
    before, moved = _evaluate(line), []
    for source, value in line.operand_values:
        if value.ndim < 2 or value.shape[-2] != before.shape[-2]:
            continue
        changed = value.copy()
        changed[..., 0, :] += 1 + np.arange(changed.shape[-1]) % 3
        after = _evaluate_with(line, source, changed)
        moved.append(bool(np.allclose(before[..., 1:, :], after[..., 1:, :], rtol=0, atol=1e-9)))
    return all(moved)


def standard(line: MeasuredLine, mean: str, variance: str) -> bool:
    """Return whether each row, without γ and β, has that mean and variance."""
    rows = _without_gamma_beta(line)
    if rows is None:
        return False
    own = [value.var(axis=-1) for value in line.operands if value.shape == rows.shape]
    spread = rows.var(axis=-1)
    tiny = own[0] < 2e-3 if own else np.zeros(spread.shape, bool)
    centred = np.abs(rows.mean(axis=-1) - float(mean)).max() < 1e-2
    return bool(centred and (tiny | (np.abs(spread - float(variance)) < 1e-2)).all())


def _without_gamma_beta(line: MeasuredLine) -> np.ndarray | None:
    """Return its value without the γ and β of its names."""
    vectors = {name.symbol: line.book.parameters.get(name.of.removeprefix("parameter ")) for name in line.step.names}
    value = line.value
    for symbol, parameter in vectors.items():
        if parameter is not None and "beta" in symbol and value is not None:
            value = value - array(parameter)
    for symbol, parameter in vectors.items():
        if parameter is not None and "gamma" in symbol and value is not None:
            factor = array(parameter) + (f"{symbol} + 1" in line.step.latex)
            value = value / np.where(factor == 0, np.nan, factor)
    return None if value is None else value[..., np.isfinite(value).all((*range(value.ndim - 1),))]


def root_mean_square(line: MeasuredLine) -> bool:
    """Return whether it is its operand over the root of its mean square, each feature times one number for all
    tokens."""
    own = [value for value in line.operands if value.shape == line.value.shape]
    if not own:
        return False
    unit = own[0] / np.sqrt((own[0] ** 2).mean(-1, keepdims=True) + 1e-12)
    loud = (own[0] ** 2).mean(-1) > 2e-3  # ε counts beside smaller numbers
    factor = (line.value[loud] * unit[loud]).sum(0) / np.maximum((unit[loud] ** 2).sum(0), 1e-30)
    return bool(np.abs(unit[loud] * factor - line.value[loud]).max(initial=0) < 1e-2 * np.abs(line.value).max())


def sums_of_two(line: MeasuredLine, stage: str, same_as: str | None = None) -> bool:
    """Return whether the line is the sum of two operands, one of them of that stage and times a factor that the
    equation shows; a third, of two parallel branches, is added unchanged. The first operand is the step `same_as`, if
    that is named."""
    operands = [(operand, value) for operand, value in line.operand_values if value.shape == line.value.shape]
    return len(operands) in (2, 3) and any(
        b.step.stage == stage
        and same_as in (None, a.step.id)
        and _is_scaled(line, line.value - sum((more for _, more in rest), x), y, np.abs(x).max())
        for (a, x), (b, y), *rest in permutations(operands)
    )


SCRIPT = re.compile(r"[\^_]\{(?:[^{}]|\{[^{}]*\})*\}")
"""An index or exponent in LaTeX."""
FACTOR = re.compile(r"(\d+(?:\.\d+)?)\\,")
"""A number that multiplies what follows it in LaTeX."""


def _is_scaled(line: MeasuredLine, a: np.ndarray, b: np.ndarray, beside: float) -> bool:
    """Return whether `a` is `b` times a factor that the line's equation shows, up to the rounding of numbers so large
    `beside` it."""
    near = max(1e-3 * np.abs(a).max(), 1e-6 * beside)
    return any(np.abs(b * factor - a).max() <= near for factor in _factors(line, a.shape[-1]))


def _factors(line: MeasuredLine, features: int) -> list[np.ndarray]:
    """Return the factors in its equation: numbers, and parameters of one number or of one for each feature; 1 if there
    are none."""
    tensors = [line.book.tensors[path] for path in line.parameters if path in line.book.tensors]
    shown = [array(tensor).reshape(-1) for tensor in tensors if tensor.numel() in (1, features)]
    shown += [np.array(float(number)) for number in FACTOR.findall(SCRIPT.sub("", line.step.latex))]
    return shown or [np.ones(1)]


def adds(stage: str) -> Callable[..., bool]:
    return lambda line: sums_of_two(line, stage)


def straight(line: MeasuredLine) -> bool:
    """Return whether a later sum reads the line unchanged, or the line is such a sum itself and ends its block."""
    stages = ("attention", "mlp")
    later = any(sums_of_two(user, stage, line.step.id) for user in line.users for stage in stages)
    return later or (in_block(line) and any(sums_of_two(line, stage) for stage in stages))


def rows_sum_to(line: MeasuredLine, total: str) -> bool:
    weights = map(line.attention, line.records)
    return all(abs(rows.sum(axis=-1) - int(total)).max() < 1e-5 for rows in weights)


def spread(line: MeasuredLine, growth: str) -> bool:
    """Return whether the standard deviation of a random sum of d products grows as √d, and its scores are divided by
    it."""
    draws = np.random.default_rng(0).standard_normal((2, 4000, 64))
    few, many = ((draws[0] * draws[1])[:, :d].sum(axis=-1).std() for d in (16, 64))
    exponent = np.log(many / few) / np.log(4)
    d_k = {query.shape[-1] for query in _recorded(line, "q")}
    divides = all(r"\sqrt{d_" in line.step.latex or _has_root(line.step.latex, d) for d in d_k)
    return abs(exponent - {"√d_k": 0.5, "d_k": 1.0}[growth]) < 0.1 and divides


def _has_root(latex: str, d: int) -> bool:
    """Return whether √d is in an equation, also with a square factored out of it, as √12 is 2√3."""
    squares = (n for n in range(2, d) if d % n**2 == 0 and d > n**2)
    return rf"\sqrt{{{d}}}" in latex or any(rf"{n} \sqrt{{{d // n**2}}}" in latex for n in squares)


def hides(line: MeasuredLine, opened: str, closed: str) -> bool:
    """Return whether open cells have one number and closed ones another in the mask, and exactly 0 in the weights."""
    for record in line.records if line.step.layer is not None else line.part:
        weights = line.attention(record)
        ahead = np.triu(np.ones(weights.shape[-2:], bool), 1)
        if record.mask != "causal" or weights[..., ahead].any():
            return False
        fills = [link[1][0] for link in record.chain if link[0] == "causal"]
        if len(fills) != 1 or np.isinf(fills[0]) != (closed == "-∞"):
            return False
    return opened == "0"


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "GELU": lambda x: x * (1 + np.vectorize(erf, [float])(x / sqrt(2))) / 2,
    "This GELU, which is approximated with tanh,": lambda x: (
        x * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2
    ),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
}


def bends(line: MeasuredLine, name: str, low: str) -> bool:
    """Return whether the line's values are those of the function, and whether the minimum of that is `low`, which
    has two decimals."""
    least = ACTIVATIONS[name](np.linspace(-8, 0, 8001)).min() - float(low)
    return 0 <= least < 0.01 and any(close(line.value, ACTIVATIONS[name](x)) for x in _operands_of_function(line))


def _ends(value: np.ndarray, width: int) -> list[np.ndarray]:
    """Yield a tensor, or the first and the last features of a wider one: both halves of a gated MLP in one product."""
    return [value[..., :width], value[..., -width:]] if value.ndim and value.shape[-1] > width else [value]


def _operands_of_function(line: MeasuredLine) -> Iterator[np.ndarray]:
    """Return the operand that a pointwise function is applied to, or its first or last features."""
    return (part for part in _ends(line.operands[0], line.value.shape[-1]) if part.shape == line.value.shape)


def is_rectified(line: MeasuredLine) -> bool:
    return any(close(line.value, np.maximum(x, 0)) for x in _operands_of_function(line))


def weighs(line: MeasuredLine, mlp_matrices: str, mlp: str, attention_matrices: str, attention: str) -> bool:
    """Return whether the MLP and the attention of the block have that many matrices, by the modules that own them."""
    number = {"one matrix": 1, "two matrices": 2, "three matrices": 3, "four matrices": 4}
    own = line.parameters[0].rpartition(".")[0].rpartition(".")[0]
    counts: dict[str, dict[str, int]] = {"mlp": {}, "attention": {}}
    for near in line.block:
        for path in near.parameters if near.step.stage in counts else ():
            tensor = line.book.parameters.get(path)
            if tensor is not None and tensor.dim() == 2 and _together(path, own):
                counts[near.step.stage][path] = tensor.numel()
    by_kind = {"mlp": (mlp_matrices, mlp), "attention": (attention_matrices, attention)}
    return all(
        len(counts[kind]) == number[many] and sum(counts[kind].values()) == int(total.replace(",", ""))
        for kind, (many, total) in by_kind.items()
    )


def _together(path: str, own: str) -> bool:
    """Return whether two paths are of one block: they are the same up to the first number."""
    parts = own.split(".")
    end = next((place for place, part in enumerate(parts, 1) if any(map(str.isdigit, part))), 0)
    return path.split(".")[:end] == parts[:end]


def widens(line: MeasuredLine) -> bool:
    before = [value.shape[-1] for value in line.operands if value.ndim > 1]
    return bool(before) and line.value.shape[-1] > before[-1]


def is_trained(line: MeasuredLine) -> bool:
    return bool(line.weights()) and all(map(line.trainable, line.weights()))


def is_fixed(line: MeasuredLine) -> bool:
    return not any(map(line.trainable, line.weights()))


def causal(line: MeasuredLine) -> bool:
    return bool(line.part) and all(
        record.mask == "causal" or record.queries == record.keys == 1 for record in line.part
    )


def open_(line: MeasuredLine) -> bool:
    """Return whether in some head the first token reads another one."""
    for record in line.part:
        weights = line.attention(record)
        if not (weights[..., 0, 1:] > 0).any() or not (weights[..., 1:, 0] > 0).any():
            return False
    return bool(line.part)


def first_row(line: MeasuredLine) -> bool:
    return any(
        operand.ndim == line.value.ndim + 1 and close(operand[..., 0, :], line.value) for operand in line.operands
    )


def is_rearranged(line: MeasuredLine) -> bool:
    inputs = [array(tensor) for tensor in line.book.run.inputs if tensor.is_floating_point()]
    own = np.sort(line.value, axis=None)
    return any(
        len(own) == tensor.size and np.array_equal(np.sort(tensor, axis=None), own)
        for tensor in (*line.operands, *inputs)
    )


def patches(order: str) -> Callable[..., bool]:
    """Return a predicate: its rows are the squares of the picture, row by row, with their numbers in that order."""

    def holds(line: MeasuredLine) -> bool:
        (image,) = (array(tensor) for tensor in line.book.run.inputs if tensor.dim() == 4)
        side = line.book.sizes["P"]
        B, C, H, W = image.shape
        cut = image.reshape(B, C, H // side, side, W // side, side)
        axes = {"hwc": (0, 2, 4, 3, 5, 1), "chw": (0, 2, 4, 1, 3, 5)}[order]
        return close(line.value, cut.transpose(axes).reshape(B, -1, side * side * C))

    return holds


def is_rotated(line: MeasuredLine) -> bool:
    """Return whether each pair of numbers keeps its length, and some pair has changed. The row of its head may be
    beside those of keys and values, and may continue to features that stay unchanged."""
    alone = all(record.queries == 1 for record in line.records)  # the first position is turned by an angle of 0
    return any(
        _keeps_pairs(rows, line.value) and (alone or not close(rows, line.value))
        for rows in _rows(line)
        if rows.shape == line.value.shape
    )


def _keeps_pairs(before: np.ndarray, after: np.ndarray) -> bool:
    """Return whether the numbers i and i + d/2 of each row keep their joint length, or all neighbours do."""
    if before.shape[-1] % 2:
        return False
    half = before.shape[-1] // 2
    return any(
        close((after.reshape(split) ** 2).sum(axis), (before.reshape(split) ** 2).sum(axis))
        for split, axis in (((*before.shape[:-1], 2, half), -2), ((*before.shape[:-1], half, 2), -1))
    )


def _rows(line: MeasuredLine) -> Iterator[np.ndarray]:
    """Yield the line's operands, and as many first or last features of the heads in them as the line has, in both
    orders of heads and tokens."""
    width = line.value.shape[-1]
    tensors = [line.book.trace.values[key] for record in line.records for key in (record.q, record.k)]
    counts = {(tensor.shape[1], tensor.shape[-1]) for tensor in tensors}
    for operand in line.operands:
        yield operand
        for count, features in counts:
            for heads in _heads(operand, count, features):
                for part in (slice(width), slice(features - width, None)):
                    yield heads[..., part]
                    yield heads[..., part].swapaxes(1, 2)


def _heads(value: np.ndarray, count: int, features: int) -> Iterator[np.ndarray]:
    """Yield that many heads of that many features in a tensor: neighbours, or one part of each head in a packed
    product."""
    if value.ndim not in (3, 4) or value.shape[-1] % features:
        return
    if value.ndim == 4:
        yield from (value[..., start : start + features] for start in range(0, value.shape[-1], features))
    if value.ndim == 3 or value.shape[-1] == features:
        heads = value.reshape(*value.shape[:2], -1, features)
        for start in range(heads.shape[2] - count + 1):
            yield heads[:, :, start : start + count]
        if heads.shape[2] % count == 0:
            parts = heads.reshape(*heads.shape[:2], count, -1, features)
            yield from (parts[:, :, :, place] for place in range(parts.shape[3]))


def in_block(line: MeasuredLine) -> bool:
    """Return whether no later step is in its block."""
    ids = [near.step.id for near in line.block]
    return not any(_together(id, line.step.id) for id in ids[ids.index(line.step.id) + 1 :])


def next_block(line: MeasuredLine) -> bool:
    return any(user.step.layer not in (None, line.step.layer) for user in line.users)


def width(name: str) -> Callable[..., bool]:
    """Return a predicate: its last axis has that size."""
    return lambda line: line.step.shape[-1] == line.book.sizes[name]


def one_user_kind(*stages: str) -> Callable[..., bool]:
    return lambda line: bool(line.users) and {user.step.stage for user in line.users} <= {*stages}


def every(*measures: Callable[..., bool]) -> Callable[..., bool]:
    return lambda line: all(measure(line) for measure in measures)


def packs(line: MeasuredLine, count: str) -> bool:
    """Return whether it has as many numbers as queries, keys and values together, or as two of them."""
    sizes = (
        (values[record.q].numel(), values[record.k].numel())
        for record in line.records
        for values in [line.book.trace.values]
    )
    return any(line.value.size == queries + keys * (int(count) - 1) for queries, keys in sizes)


def some_heads(line: MeasuredLine) -> bool:
    return min(line.heads, default=0) > 1


def single_head(line: MeasuredLine) -> bool:
    return line.heads == {1}


def table_rows(line: MeasuredLine) -> bool:
    """Return whether each of its rows is one of a parameter."""
    rows = line.value.reshape(-1, line.value.shape[-1])
    tables = [array(line.book.parameters[path]) for path in line.parameters if path in line.book.parameters]
    return any((rows[:, None] == table).all(-1).any(-1).all() for table in tables if table.shape[-1] == rows.shape[-1])


def _fronts(line: MeasuredLine) -> Iterator[int]:
    """Yield the number of tokens in each parameter whose rows are the first tokens of the line."""
    width = line.value.shape[-1]
    tables = [array(line.book.parameters[path]) for path in line.parameters if path in line.book.parameters]
    for rows in (table.reshape(-1, width) for table in tables if table.size % width == 0):
        first = line.value[:, : len(rows)]
        if first.shape[1] == len(rows) and close(first, np.broadcast_to(rows, first.shape)):
            yield len(rows)


def shares_parameters(line: MeasuredLine) -> bool:
    others = [line.near(step) for step in line.book.trace.steps if step.id != line.step.id]
    return any({*line.parameters} & {*other.parameters} for other in others)


def unit_rows(line: MeasuredLine) -> bool:
    return close((line.value**2).sum(-1), np.ones(line.value.shape[:-1]))


def of_operands(function: Callable[..., np.ndarray]) -> Callable[..., bool]:
    """Return a predicate: a function of the line's operands has its value; of one that is wider, of its first or last
    features, those that no other operand reads. A single operand stands for several by both."""
    count = function.__code__.co_argcount

    def holds(line: MeasuredLine) -> bool:
        parts = [_unread(line, *operand) for operand in line.operand_values]
        parts = [[part] for part in parts[0]] if len(parts) == 1 < count else parts
        tries = (function(*chosen) for order in permutations(parts, count) for chosen in product(*order))
        return any(attempt.shape == line.value.shape and close(attempt, line.value) for attempt in tries)

    return holds


def either(*measures: Callable[..., bool]) -> Callable[..., bool]:
    """Return a predicate: one of these holds."""
    return lambda line: any(holds(line) for holds in measures)


def oscillates(start: int) -> Callable[..., bool]:
    """Return a predicate: from position to position each feature is a cosine (`start` 1) or a sine (0) of equal steps,
    since x(t + 1) + x(t - 1) = 2 cos(ω) x(t)."""

    def holds(line: MeasuredLine) -> bool:
        rows = line.value.reshape(-1, line.value.shape[-1])
        if len(rows) < 3 or not close(rows[0], np.full(rows[0].shape, float(start))):
            return False
        twice = 2 * rows[1] if start else rows[2] / rows[1]
        return close(rows[2:] + rows[:-2], twice * rows[1:-1])

    return holds


def _unread(line: MeasuredLine, source: MeasuredLine, value: np.ndarray) -> list[np.ndarray]:
    """Return an operand, or the first and the last features of a wider one, without those that another operand reads:
    the printed equation has another value once they are changed."""
    width = line.value.shape[-1]
    readers = [reader for reader in line.sources if source.step.id in line.book.sources[reader.step.id]]
    if not value.ndim or value.shape[-1] <= width or not readers:
        return _ends(value, width)
    unread = []
    for start in (0, value.shape[-1] - width):
        changed = value.copy()
        changed[..., start : start + width] += 1
        if all(np.array_equal(_evaluate(reader), _evaluate_with(reader, source, changed)) for reader in readers):
            unread.append(value[..., start : start + width])
    return unread


def _evaluate(line: MeasuredLine) -> np.ndarray:
    """Return the value of the printed equation of a step, parsed again."""
    return evaluate(read(line.step.latex, line.book.operands.names), line.book.operands, line.step.shape)


def _evaluate_with(line: MeasuredLine, source: MeasuredLine, value: np.ndarray) -> np.ndarray:
    """Return the value of the printed equation of a step for another value of a source."""
    computed = line.book.operands.computed
    computed[source.step.symbol] = value
    try:
        return _evaluate(line)
    finally:
        del computed[source.step.symbol]


def alibi_free(line: MeasuredLine) -> bool:
    """Return whether no step of its tower adds positions to tokens, and some rotates them."""
    titles = [step.title for step in line.book.trace.steps]
    return not any(title.startswith("Add positions") for title in titles) and "Rotate keys (RoPE)" in titles


def waves(line: MeasuredLine) -> bool:
    """Return whether the angle of a position grows less from pair to pair of numbers."""
    half = line.value[..., 1, : line.value.shape[-1] // 2].reshape(-1)
    return bool((np.diff(half) < 0).all()) and {user.step.title for user in line.users} <= {"Cosine", "Sine"}


def rotates(line: MeasuredLine) -> bool:
    """Return whether one matrix leads from every position to the next: least squares leave no residual."""
    rows = line.value.reshape(-1, line.value.shape[-1])
    solution, *_ = np.linalg.lstsq(rows[:-1], rows[1:], rcond=None)
    return not line.weights() and close(rows[:-1] @ solution, rows[1:])


def from_nothing(line: MeasuredLine) -> bool:
    return not line.book.inputs[line.step.id]


def cosines(line: MeasuredLine, low: str, high: str) -> bool:
    """Return whether an operand is within the bounds."""
    return any(
        value.min() >= float(low) - TOLERANCE and value.max() <= float(high) + TOLERANCE for value in line.operands
    )


def unit_products(line: MeasuredLine) -> bool:
    lengths = [np.sqrt((value**2).sum(-1)) for value in line.operands]
    return len(lengths) == 2 and all(close(length, np.ones(length.shape)) for length in lengths)


def one_end(line: MeasuredLine) -> bool:
    """Return whether the line is, for each text, the first position of the id that pads its end."""
    ids = next(array(tensor) for tensor in line.book.run.inputs if not tensor.is_floating_point())
    return close(line.value.reshape(-1), (ids == ids[:, -1:]).argmax(-1).astype(float))


def some_rows(line: MeasuredLine) -> bool:
    """Return whether each of its rows is one of its operand's."""
    width = line.value.shape[-1]
    rows = line.value.reshape(-1, width)
    tables = [operand.reshape(-1, width) for operand in line.operands if operand.shape[-1] == width]
    return any((np.abs(rows[:, None] - table).max(-1) < TOLERANCE).any(-1).all() for table in tables)


def more_rows(line: MeasuredLine) -> bool:
    """Return whether it ends with the rows of an operand that has fewer."""
    return any(
        operand.ndim == line.value.ndim
        and operand.shape[-2] < line.value.shape[-2]
        and close(line.value[..., -operand.shape[-2] :, :], operand)
        for operand in line.operands
    )


def rows_after_the_first(line: MeasuredLine) -> bool:
    """Return whether what it adds to its operand are rows that stand together in a parameter, and not at its start."""
    width = line.value.shape[-1]
    tables = [array(line.book.parameters[path]) for path in line.parameters if path in line.book.parameters]
    return any(
        close(line.value - operand, np.broadcast_to(rows, operand.shape))
        for operand in line.operands
        for table in (table.reshape(-1, width) for table in tables if table.shape[-1] == width)
        for start in range(1, len(table) - operand.shape[-2] + 1)
        for rows in [table[start : start + operand.shape[-2]]]
    )


def prefix(line: MeasuredLine) -> bool:
    """Return whether a token may look ahead among the first, and never among the last."""
    for record in line.part:
        weights = line.attention(record)
        if not weights[..., 0, 1].all() or weights[..., -2, -1].any():
            return False
    return bool(line.part)


def distances(line: MeasuredLine) -> bool:
    """Return whether each number is the distance from its row to its column, clipped and shifted."""
    reach, (i, j) = line.book.sizes["R"], np.indices(line.value.shape[-2:])
    return close(line.value, np.clip(j - i, -reach, reach).astype(float) + reach)


def shares_by_distance(line: MeasuredLine) -> bool:
    return bool(np.allclose(line.value.sum(-1), 1, atol=TOLERANCE))


def distinct(line: MeasuredLine) -> bool:
    """Return whether no other tensor of its attention has the same numbers, so that it has a projection of its own."""
    others = [near for near in line.block if near.step.stage == "attention" and near.step.id != line.step.id]
    return not any(
        proportional(line.value, near.value) for near in others if near.step.title in ("Queries", "Keys", "Values")
    )


def heads_are_joined(line: MeasuredLine) -> bool:
    """Return whether the mixtures of the heads are concatenated along its last axis."""
    for value in (near.value for near in line.block):
        for joined in _mixtures(line, value) if value is not None and value.ndim in (3, 4) else ():
            if joined.ndim == 4 and close(joined.swapaxes(1, 2).reshape(*joined.shape[::2], -1), line.value):
                return True
    return False


# Facts in sentences beside steps, each measured on the tensors of the run or recomputed.
#
# The predicates that decide which sentences are shown (`tracer.textbook.claims`) look at the graph; what is here looks
# at numbers, and knows nothing of roles or nodes. A sentence that states a fact and that nobody measures is a problem,
# too.


@check
def check_explanation_numbers(run: PlainRun) -> Iterator[str]:
    """Check that each explanation is the one that was evaluated, that its claims hold, and that known false claims do
    not."""
    derived = run.trace.later.derived_steps if run.trace.later else ()
    lines = {derived_step.line.id: derived_step.line for derived_step in derived}
    book = StepIndex(run)
    for step in run.trace.steps:
        if (line := lines.get(step.id)) is None:
            continue
        if line.why != step.why:
            yield f"step {step.id!r} shows “{step.why}”, but what was evaluated is “{line.why}”"
        for claim in line.refuted:
            yield f"step {step.id!r} is said to be what it is not: “{claim}”"
        for fact in line.facts:
            measure = MEASURES.get(fact.measure)
            if measure is None:
                yield f"“{fact.text}” states a fact that nobody measures"
            elif not measure(MeasuredLine(book, step), **fact.values):
                yield f"“{fact.text}” does not hold of step {step.id!r}"


MEASURES: dict[str, Callable[..., bool]] = {
    # norms
    "mean and variance": standard,
    "root mean square": root_mean_square,
    "one scale": lambda line: root_mean_square(line) or standard(line, "0", "1"),
    "trainable parameters": lambda line: all(map(line.trainable, line.parameters)),
    "some trainable parameter": lambda line: any(map(line.trainable, line.parameters)),
    "own parameters": lambda line: not shares_parameters(line),
    "shared parameters": shares_parameters,
    "read by the MLP alone": lambda line: (
        one_user_kind("mlp")(line) and all(len(source.users) > 1 for source in line.sources)
    ),
    "sum of all blocks": lambda line: any(
        sums_of_two(source, stage) for source in line.sources for stage in ("mlp", "norm")
    ),
    # queries, keys, values
    "queries of several heads": every(queries, some_heads),
    "queries of one head": every(queries, single_head),
    "queries without input": every(queries, from_nothing),
    "part of the queries": part_of_recorded("q"),
    "part of the keys": part_of_recorded("k"),
    "keys": keys,
    "values": values,
    "distinct": distinct,
    "columns of all heads": every(some_heads, width("d_k")),
    "width of one head": every(single_head, width("d_k")),
    "packed product": packs,
    # scores, weights, context
    "one score for each pair and head": every(
        some_heads,
        lambda line: line.step.shape[-3:] in [(record.heads, record.queries, record.keys) for record in line.records],
    ),
    "one score for each pair": lambda line: (
        line.step.shape[-2:] in [(record.queries, record.keys) for record in line.records]
    ),
    "spread of a sum": spread,
    "open and closed cells": hides,
    "causal": causal,
    "causal to width V": every(causal, width("V")),
    "prefix mask": prefix,
    "open attention": open_,
    "fused": lambda line: all(record.fused for record in line.records),
    "rows that sum to": rows_sum_to,
    "weights": lambda line: bool((line.value >= 0).all()) and close(line.value.sum(-1), np.ones(line.value.shape[:-1])),
    "mixture of values": mixture,
    "attention of the maps": is_shown,
    "heads side by side": every(some_heads, heads_are_joined),
    "one head": single_head,
    "one head of width d_k": every(single_head, width("d_k")),
    "shared keys and values": lambda line: any(
        array.shape[1] < record.heads or len({row.tobytes() for row in array[0]}) < record.heads
        for record in line.records
        for array in [line.book.trace.values[record.k].numpy()]
    ),
    "heads mixed": every(some_heads, is_trained, width("D")),
    "back to width D": every(single_head, width("D"), lambda line: line.operands[0].shape[-1] != line.value.shape[-1]),
    # sums
    "sum": lambda line: " + " in line.step.latex,
    "adds attention": adds("attention"),
    "adds the MLP": adds("mlp"),
    "changed operand": lambda line: any(source.step.id.endswith(".changed") for source in line.sources),
    "straight way back": straight,
    "read by norms alone": one_user_kind("norm"),
    "end of the block": in_block,
    "read by the next block": next_block,
    # products and functions
    "tokenwise": tokenwise,
    "wider tokens": every(tokenwise, widens),
    "trainable map": every(is_trained, tokenwise),
    "trainable to width K": every(is_trained, width("K")),
    **{f"width {size}": width(size) for size in ("D", "K", "V")},
    "activation": bends,
    "ReLU": is_rectified,
    "between two matrices": lambda line: (
        len(line.users) == len(line.sources) == 1 and {line.users[0].step.stage, line.sources[0].step.stage} == {"mlp"}
    ),
    "weights of the block": weighs,
    "one reader": lambda line: len(line.users) == 1,
    "product of two": of_operands(lambda a, b: a * b),
    "bounds": lambda line, low, high: (
        float(low) <= line.value.min() and line.value.max() <= float(high) and line.value.min() < 0 < line.value.max()
    ),
    "bounds of operands": cosines,
    # positions
    "trainable": is_trained,
    "fixed": is_fixed,
    "from nothing": from_nothing,
    "trainable from nothing": every(is_trained, from_nothing),
    "numbers from 0": lambda line: (
        from_nothing(line) and (line.value.reshape(-1, line.value.shape[-1]) == range(line.value.shape[-1])).all()
    ),
    "ones": lambda line: bool((line.value == 1).all()),
    "angles": waves,
    "cosines of angles": either(of_operands(lambda angle: np.cos(angle)), oscillates(1)),
    "sines of angles": either(of_operands(lambda angle: np.sin(angle)), oscillates(0)),
    "other than its operands": lambda line: not any(close(operand, line.value) for operand in line.operands),
    "rotated pairs": is_rotated,
    "one rotation for all positions": rotates,
    "positions by rotation alone": alibi_free,
    "distances": distances,
    "weights by distance": shares_by_distance,
    # pictures and tables
    "patches hwc": patches("hwc"),
    "patches chw": patches("chw"),
    "rearranged": is_rearranged,
    "convolution": lambda line: any("convolution" in line.book.trace.ops[index].op for index in line.step.ops),
    "one token in front": lambda line: 1 in _fronts(line),
    "tokens in front": lambda line: any(_fronts(line)),
    "rows of a table": table_rows,
    "rows of a trainable table": every(is_trained, table_rows),
    "all segments": lambda line: (
        line.step.shape[1] == sum(segment.stop - segment.start for segment in line.book.trace.segments)
    ),
    "every patch": lambda line: line.step.shape[1] == line.book.trace.picture.rows * line.book.trace.picture.columns,
    "first row": first_row,
    "some rows": some_rows,
    "fewer rows": lambda line: some_rows(line) and line.step.shape[1] < line.sources[0].step.shape[1],
    "more rows": more_rows,
    "rows after the first": rows_after_the_first,
    "tokens at their places": lambda line: some_rows(line) or len(line.operands) > 1,
    "several operands": lambda line: len(line.operands) > 1,
    "two axes": lambda line: line.value.ndim == 2,
    # results
    "sum of each row": lambda line, total: abs(line.value.sum(-1) - int(total)).max() < 1e-5,
    "first end token": one_end,
    "fewer tokens": lambda line: line.step.shape[-2:] != line.sources[0].step.shape[-2:],
    "unit rows": unit_rows,
    "unit products": unit_products,
}
"""Measures by the names that claims give them. Each gets a line, and the values that the sentence states."""
