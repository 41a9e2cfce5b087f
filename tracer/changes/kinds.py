"""Kinds of changes, as plain data: each becomes a function of the tensor once its line is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from math import isfinite
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from tracer.record import Trace, split_id
from tracer.symbols.axes import AxisFactor
from tracer.utils.errors import quote, shorten

HEAD_SIZES = ("h", "h_kv")
"""Sizes of axes of heads."""
PROJECTIONS = ("query", "key", "value")
"""Ends of the ids of lines that are split into heads, perhaps only later."""
SCORES = ("scores", "weights")
"""Ends of the ids of lines with queries and keys as their last axes, behind an axis of heads."""

MOST = 2**32
"""Seeds, lengths and distances are below it."""


class ScoreEquation(Protocol):
    """Scores that are recomputed in another way: called with the scores, and the values of what it `reads`."""

    @property
    def reads(self) -> tuple[str, ...]: ...

    def __call__(self, scores: Tensor, *values: Tensor) -> Tensor: ...


class TargetLine(NamedTuple):
    """Line of a change: its id, its symbolic and numeric shape, the lines in its equation, in order,
    its first and its last term if it is a sum ("" for a term that is no line of its shape), the line that it
    normalises ("" if it is no norm), and, of scores, these without their mask, and without their scale, or why they
    can't be computed. `token_sizes` are the sizes of the queries and keys of its attention, and `head_factor` says
    where its heads are if an axis has other factors, too, as in `[B·h, T, T]`."""

    id: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    operands: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()
    normalises: str = ""
    unmasked: ScoreEquation | str = ""
    unscaled: ScoreEquation | str = ""
    token_sizes: frozenset[str] = frozenset()
    head_factor: AxisFactor | None = None

    @property
    def end(self) -> str:
        """End of the id: what the line is in its attention."""
        return split_id(self.id)[1].rpartition(" ")[2]

    @property
    def head_axis(self) -> int | None:
        """Axis of heads; None if there is none, or if it isn't known which one it is."""
        if named := [self.symbolic.index(size) for size in HEAD_SIZES if size in self.symbolic]:
            return named[0]
        rank = len(self.shape)
        if self.end in SCORES:
            alone = rank == 3 and self.symbolic[0].isdecimal() and not self.symbolic[-1].isdecimal()  # no batch
            return rank - 3 if rank > 3 or alone else None
        if self.end not in PROJECTIONS or rank < 4:
            return None
        others = [axis for axis in (rank - 3, rank - 2) if self.symbolic[axis] not in self.token_sizes]
        return others[0] if len(others) == 1 else None

    @property
    def behind_heads(self) -> int | None:
        """Number of axes behind the one that heads lie along; None if there is none."""
        axis = self.head_factor.axis if self.head_axis is None and self.head_factor else self.head_axis
        return None if axis is None else len(self.shape) - 1 - axis

    @property
    def token_axes(self) -> tuple[int, ...]:
        """Axes of positions: rows and columns of a feature map, else the last but one, wherever heads do not say
        otherwise."""
        rank = len(self.shape)
        named = [axis for axis, size in enumerate(self.symbolic) if size in self.token_sizes]
        if self.end in PROJECTIONS and len(named) == 1:
            return (named[0],)
        if rank == 4 and self.head_axis is None:
            return 2, 3
        return (rank - 2,) if rank > 1 else (0,)

    @property
    def has_batch(self) -> bool:
        """Whether its first axis is the batch."""
        return self.symbolic[:1] == ("B",)


TensorFunction = Callable[..., Tensor]
"""A function from the value of a line, and from those of the lines that it reads, to the new value."""


@dataclass(frozen=True)
class Change:
    """Base class of changes. `name` is the name in texts, and the arguments are the fields, in order; `example` is
    such a text. `checks_sizes` is True for one that fits lines of some sizes only, and `moves_tokens` for one after
    which a row may be that of another token."""

    name: ClassVar[str] = ""
    example: ClassVar[str] = ""
    checks_sizes: ClassVar[bool] = False
    moves_tokens: ClassVar[bool] = False

    @classmethod
    def read(cls, arguments: str) -> Change:
        """Return the change with these arguments, as they stand between the brackets. Raise ValueError or TypeError if
        they do not fit."""
        return cls(*map(_read_number, split(arguments)))

    @property
    def parts(self) -> tuple[Change, ...]:
        """Changes that it consists of, in order: itself, unless it is several."""
        return (self,)

    def reads(self, line: TargetLine) -> tuple[str, ...]:
        """Return the ids of other lines whose values the change needs."""
        return ()

    def apply(self, line: TargetLine) -> TensorFunction:
        """Return the function that computes the new value. Raise ValueError if the line has none."""
        raise NotImplementedError

    def check_below(self, what: str, numbers: Iterable[int], size: int) -> None:
        """Raise ValueError if one of the numbers of what is counted is not below a size."""
        if (last := max(numbers)) >= size:
            raise ValueError(f"{shorten(str(self))}: there is no {what} {shorten(str(last))}, expected 0 to {size - 1}")

    @property
    def outline(self) -> str:
        """Key that determines the ops of the change and their sizes: two changes of one outline differ in numbers
        alone."""
        return str(self)

    def __str__(self) -> str:
        """Return the change as text, which `parse` reads: `scale(0.5)`."""
        arguments = ",".join(map(_plain, (getattr(self, field.name) for field in fields(self))))
        return f"{self.name}({arguments})" if arguments else self.name


def _plain(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if type(value) is float:
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value)


@dataclass(frozen=True)
class Zero(Change):
    """Every number becomes 0."""

    name: ClassVar[str] = "zero"

    def apply(self, line: TargetLine) -> TensorFunction:
        return torch.zeros_like


@dataclass(frozen=True)
class Scale(Change):
    """Every number is multiplied by a factor."""

    name: ClassVar[str] = "scale"
    example: ClassVar[str] = "scale(0.5)"
    factor: float

    def __post_init__(self):
        object.__setattr__(self, "factor", _number("factor", self.factor))

    @property
    def outline(self) -> str:
        return self.name

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_scale, factor=self.factor)


def _scale(x: Tensor, factor: float) -> Tensor:
    return x * factor


@dataclass(frozen=True)
class _Heads(Change):
    heads: tuple[int, ...]

    def __init__(self, heads: int | Iterable[int]):
        object.__setattr__(self, "heads", whole_numbers("head", heads))

    @classmethod
    def read(cls, arguments: str) -> Change:
        return cls(map(int, split(arguments)))

    @property
    def outline(self) -> str:
        return f"{self.name}, {len(self.heads)} times"

    def place(self, line: TargetLine) -> dict[str, Any]:
        """Return the axis of heads, and their place on it if it has other factors, too. Raise ValueError for a line
        without one, or with fewer heads."""
        if (axis := line.head_axis) is not None:
            self.check_below("head", self.heads, line.shape[axis])
            return {"axis": axis}
        if (factor := line.head_factor) is None:
            shape = ", ".join(line.symbolic)
            raise ValueError(f"{quote(line.id)} has no axis of heads: it is [{shape}], expected one as in [B, h, T, T]")
        self.check_below("head", self.heads, factor.size)
        return {"axis": factor.axis, "factor": factor}


class Drop(_Heads):
    """Numbers of these heads, counted from 0, become 0."""

    name: ClassVar[str] = "drop_heads"
    example: ClassVar[str] = "drop_heads(0,2)"

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_mask_heads, **self.place(line), heads=self.heads, dropped=True)


class Keep(_Heads):
    """Numbers of all heads but these become 0."""

    name: ClassVar[str] = "keep_heads"
    example: ClassVar[str] = "keep_heads(0,2)"

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_mask_heads, **self.place(line), heads=self.heads, dropped=False)


def _mask_heads(
    x: Tensor, axis: int, heads: tuple[int, ...], dropped: bool, factor: AxisFactor | None = None
) -> Tensor:
    """Return a tensor with some heads at 0; heads that it does not have are left out."""
    numbers = torch.arange(x.shape[axis], device=x.device)
    if factor is not None:
        apart = len(numbers) // factor.size if factor.inner is None else factor.inner
        numbers = numbers if apart == 1 else numbers // apart
        numbers = numbers if factor.inner is None else numbers % factor.size
    head_mask = None
    for head in heads:
        here = numbers != head if dropped else numbers == head
        head_mask = here if head_mask is None else head_mask & here if dropped else head_mask | here
    assert head_mask is not None
    return torch.where(head_mask.view(-1, *[1] * (x.dim() - axis - 1)), x, 0.0)


@dataclass(frozen=True)
class Mean(Change):
    """Every position gets the mean over all positions."""

    name: ClassVar[str] = "mean"

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_mean, axes=line.token_axes)


def _mean(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    _check_real(x, "mean")
    return x.mean(dim=axes, keepdim=True).expand_as(x) if x.dim() else x


def _check_real(x: Tensor, name: str) -> None:
    if not (x.is_floating_point() or x.is_complex()):
        raise ValueError(f"a line of {str(x.dtype).removeprefix('torch.')} can't be changed by {name}, expected floats")


@dataclass(frozen=True)
class Noise(Change):
    """Normal noise of this standard deviation is added, drawn from a seed, the same to every input of a batch."""

    name: ClassVar[str] = "noise"
    example: ClassVar[str] = "noise(0.1,7)"
    std: float
    seed: int = 0

    def __post_init__(self):
        object.__setattr__(self, "std", _number("std", self.std))
        check_count("seed", self.seed)

    @property
    def outline(self) -> str:
        return self.name

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_add_noise, std=self.std, seed=self.seed, batch_axes=int(line.has_batch))


def _add_noise(x: Tensor, std: float, seed: int, batch_axes: int) -> Tensor:
    _check_real(x, "noise")
    noise = np.random.default_rng(seed).standard_normal(tuple(x.shape[batch_axes:])) * std
    return x + _constant(np.asarray(noise), x)


@dataclass(frozen=True)
class Seeded(Change):
    """Base class of changes that are drawn from a seed alone."""

    seed: int = 0

    def __post_init__(self):
        check_count("seed", self.seed)


@dataclass(frozen=True)
class Shuffle(Seeded):
    """Permutation of the positions, drawn from a seed."""

    name: ClassVar[str] = "shuffle"
    example: ClassVar[str] = "shuffle(0)"
    moves_tokens: ClassVar[bool] = True

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_shuffle, axis=line.token_axes[-1], seed=self.seed)


@dataclass(frozen=True)
class ShufflePositions(Seeded):
    """A change that puts a line's position embeddings in another order, drawn from a seed."""

    name: ClassVar[str] = "shuffle_positions"
    example: ClassVar[str] = "shuffle_positions(0)"

    def reads(self, line: TargetLine) -> tuple[str, ...]:
        if not any(line.terms[:1]):
            raise ValueError(f"{quote(line.id)} adds no positions, expected a sum of tokens and positions")
        return line.terms[:1]

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_shuffle_positions, axis=line.token_axes[-1], seed=self.seed)


def _shuffle_positions(x: Tensor, tokens: Tensor, axis: int, seed: int) -> Tensor:
    return tokens + _shuffle(x - tokens, axis, seed)


@dataclass(frozen=True)
class _Recomputed(Change):
    """Base class of changes of scores that are recomputed without their mask."""

    def source(self, line: TargetLine) -> ScoreEquation:
        """Return the recomputation of the scores. Raise ValueError if they can't be."""
        _check_scores(self, line)
        equation = self.equation(line)
        if isinstance(equation, str):
            raise ValueError(f"{quote(line.id)} can't be changed by {self.name}: {equation}")
        return equation

    def equation(self, line: TargetLine) -> ScoreEquation | str:
        """Return the equation of the line by which its scores are recomputed, or why there is none."""
        return line.unmasked

    def reads(self, line: TargetLine) -> tuple[str, ...]:
        return self.source(line).reads

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_recompute, source=self.source(line))


@dataclass(frozen=True)
class Unscale(_Recomputed):
    """Scores are the products of queries and keys, divided by nothing: no √d_k, and no other factor, wherever the code
    multiplies by it. What is added to them stays."""

    name: ClassVar[str] = "unscale"

    def equation(self, line: TargetLine) -> ScoreEquation | str:
        return line.unscaled


def _recompute(scores: Tensor, *operands: Tensor, source: ScoreEquation) -> Tensor:
    return source(scores, *operands)


@dataclass(frozen=True)
class Bidirectional(_Recomputed):
    """Every query may look at every key: the scores have no mask."""

    name: ClassVar[str] = "bidirectional"


@dataclass(frozen=True)
class Prefix(_Recomputed):
    """Mask with the first keys open to all queries, and of the later ones those up to the query itself: scores of
    others become −∞ (Raffel et al. 2020, section 3.2.1)."""

    name: ClassVar[str] = "prefix"
    example: ClassVar[str] = "prefix(4)"
    length: int

    def __post_init__(self):
        object.__setattr__(self, "length", check_count("length", self.length))

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_prefix, length=self.length, source=self.source(line))


def _places(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of the queries, as a column, and of the keys of scores."""
    queries, keys = (torch.arange(size, device=scores.device) for size in scores.shape[-2:])
    return queries[:, None], keys


def _prefix(scores: Tensor, *operands: Tensor, length: int, source: ScoreEquation) -> Tensor:
    queries, keys = _places(scores)
    visible = (keys <= queries) | (keys < length)
    return torch.where(visible, source(scores, *operands), -torch.inf)


@dataclass(frozen=True)
class Causal(Change):
    """No query may look at a later key: the scores of these become −∞."""

    name: ClassVar[str] = "causal"

    def apply(self, line: TargetLine) -> TensorFunction:
        _check_scores(self, line)
        return _causal


def _causal(scores: Tensor) -> Tensor:
    queries, keys = _places(scores)
    return torch.where(keys <= queries, scores, -torch.inf)


@dataclass(frozen=True)
class Window(Change):
    """No query may look at a key that is as many places away, or more: the scores of these become −∞."""

    name: ClassVar[str] = "window"
    example: ClassVar[str] = "window(8)"
    places: int

    def __post_init__(self):
        object.__setattr__(self, "places", check_count("places", self.places))
        if not self.places:
            raise ValueError("places=0: a query may at least look at itself, expected 1 or more")

    def apply(self, line: TargetLine) -> TensorFunction:
        _check_scores(self, line)
        return partial(_window, places=self.places)


def _window(scores: Tensor, places: int) -> Tensor:
    queries, keys = _places(scores)
    return torch.where((queries - keys).abs() < places, scores, -torch.inf)


@dataclass(frozen=True)
class _Cells(Change):
    checks_sizes: ClassVar[bool] = True
    keys: tuple[int, ...]
    queries: tuple[int, ...]

    def __init__(self, keys: int | Iterable[int], queries: int | Iterable[int]):
        object.__setattr__(self, "keys", whole_numbers("key", keys))
        object.__setattr__(self, "queries", whole_numbers("query", queries))

    @classmethod
    def read(cls, arguments: str) -> Change:
        keys, _, queries = arguments.partition(";")
        return cls(map(int, split(keys)), map(int, split(queries)))

    def check(self, line: TargetLine) -> None:
        """Raise ValueError for a line that has no such keys and queries."""
        _check_scores(self, line)
        self.check_below("key", self.keys, line.shape[-1])
        self.check_below("query", self.queries, line.shape[-2])

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.keys))};{','.join(map(str, self.queries))})"


class Close(_Cells):
    """These keys are closed to these queries, both counted from 0: the scores between them become −∞."""

    name: ClassVar[str] = "close"
    example: ClassVar[str] = "close(0,1;5,6)"

    def apply(self, line: TargetLine) -> TensorFunction:
        self.check(line)
        return partial(_close, keys=self.keys, queries=self.queries)


class Open(_Cells, _Recomputed):
    """These keys are open to these queries, both counted from 0: the scores between them have no mask."""

    name: ClassVar[str] = "open"
    example: ClassVar[str] = "open(5,6;0,1)"

    def apply(self, line: TargetLine) -> TensorFunction:
        self.check(line)
        return partial(_open, keys=self.keys, queries=self.queries, source=self.source(line))


def _close(scores: Tensor, keys: tuple[int, ...], queries: tuple[int, ...]) -> Tensor:
    return torch.where(_cells(scores, keys, queries), -torch.inf, scores)


def _open(
    scores: Tensor, *operands: Tensor, keys: tuple[int, ...], queries: tuple[int, ...], source: ScoreEquation
) -> Tensor:
    return torch.where(_cells(scores, keys, queries), source(scores, *operands), scores)


def _cells(scores: Tensor, keys: tuple[int, ...], queries: tuple[int, ...]) -> Tensor:
    """Return the cells where some keys meet some queries; cells that do not exist at other sizes are left out."""
    rows, columns = scores.shape[-2:]
    cells = np.zeros((rows, columns), dtype=bool)
    cells[np.ix_([at for at in queries if at < rows], [at for at in keys if at < columns])] = True
    return torch.from_numpy(cells).to(scores.device)


def _check_scores(change: Change, line: TargetLine) -> None:
    if split_id(line.id)[1] != "scores":
        raise ValueError(f"{quote(line.id)} can't be changed by {change.name}, expected the scores of an attention")


def _shuffle(x: Tensor, axis: int, seed: int) -> Tensor:
    if not x.dim():
        raise ValueError("a line of a single number can't be changed by shuffle, expected positions")
    order = np.random.default_rng(seed).permutation(x.shape[axis])
    return x.index_select(axis, torch.from_numpy(order).to(x.device))


@dataclass(frozen=True)
class Replace(Change):
    """Replacement of the value by this tensor, or by that of the same line in another run, at the same sizes."""

    name: ClassVar[str] = "replace"
    checks_sizes: ClassVar[bool] = True
    source: Tensor | Trace = field(repr=False)

    @property
    def moves_tokens(self) -> bool:  # type: ignore[override] # nothing is known of a tensor
        return not isinstance(self.source, Trace) or self.source.picture is None

    def apply(self, line: TargetLine) -> TensorFunction:
        if not isinstance(self.source, (Trace, Tensor)):
            raise ValueError(
                f"source={quote(self.source)}, expected a tensor or a trace to replace {quote(line.id)} by"
            )
        value = self.source.value(line.id) if isinstance(self.source, Trace) else self.source
        if value is None:
            raise ValueError(f"the other run did not keep the value of {quote(line.id)}: trace it with a larger keep")
        if tuple(value.shape) != line.shape:
            raise ValueError(
                f"{quote(line.id)} has shape {list(line.shape)}, but was to be replaced by one of {list(value.shape)}"
            )
        return partial(_replace, value=value.detach())

    def __str__(self) -> str:
        return f"replace({'run' if isinstance(self.source, Trace) else 'tensor'})"


def _replace(x: Tensor, value: Tensor) -> Tensor:
    """Return the value; at other sizes, at which a model only runs to solve its sizes, as much of it as fits."""
    if value.shape == x.shape:
        return value.to(x.device, x.dtype)
    return _constant(np.resize(value.to("cpu", torch.float64).numpy(), tuple(x.shape)), x)


@dataclass(frozen=True)
class Take(Change):
    """Replacement of the value by that of another line of the same run, which was computed before."""

    name: ClassVar[str] = "take"
    example: ClassVar[str] = "take(position)"
    line: str

    @classmethod
    def read(cls, arguments: str) -> Change:
        return cls(*split(arguments))

    def reads(self, line: TargetLine) -> tuple[str, ...]:
        return (self.line,)

    def apply(self, line: TargetLine) -> TensorFunction:
        return _take


def _take(x: Tensor, source: Tensor) -> Tensor:
    return source


@dataclass(frozen=True)
class Off(Change):
    """Line without effect: a residual sum keeps its branch, a norm or added positions give what they took, and any
    other value becomes 0."""

    name: ClassVar[str] = "off"

    def reads(self, line: TargetLine) -> tuple[str, ...]:
        if line.normalises:
            return (line.normalises,)
        term = line.terms[-1 if line.id.endswith("residual") else 0] if line.terms else ""
        return (term,) if term else ()

    def apply(self, line: TargetLine) -> TensorFunction:
        return _take if self.reads(line) else torch.zeros_like


@dataclass(frozen=True)
class Function(Change):
    """Any function of the value. One without a name can be neither linked nor saved."""

    name: ClassVar[str] = "function"
    moves_tokens: ClassVar[bool] = True  # nothing is known of it
    function: Callable[[Tensor], Tensor]

    def apply(self, line: TargetLine) -> TensorFunction:
        return partial(_call, function=self.function)

    def __str__(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__).strip("<>")


def _call(x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(x.clone())  # it may write into what it is given


@dataclass(frozen=True)
class Several(Change):
    """Changes of one line, one after another."""

    changes: tuple[Change, ...]

    @property
    def parts(self) -> tuple[Change, ...]:
        return self.changes

    @property
    def checks_sizes(self) -> bool:  # type: ignore[override] # of those that it has
        return any(change.checks_sizes for change in self.changes)

    @property
    def moves_tokens(self) -> bool:  # type: ignore[override] # of those that it has
        return any(change.moves_tokens for change in self.changes)

    @property
    def outline(self) -> str:
        return ", ".join(change.outline for change in self.changes)

    def reads(self, line: TargetLine) -> tuple[str, ...]:
        return tuple(read for change in self.changes for read in change.reads(line))

    def apply(self, line: TargetLine) -> TensorFunction:
        applied = [(change.apply(line), len(change.reads(line))) for change in self.changes]
        return partial(_in_turn, applied=applied)

    def __str__(self) -> str:
        return ", ".join(map(str, self.changes))


def join_changes(changes: Sequence[Change]) -> Change:
    """Return changes of one line as one change."""
    return changes[0] if len(changes) == 1 else Several(tuple(changes))


def _in_turn(x: Tensor, *others: Tensor, applied: Sequence[tuple[TensorFunction, int]]) -> Tensor:
    for function, reads in applied:
        x, others = function(x, *others[:reads]), others[reads:]
    return x


def _constant(values: np.ndarray, like: Tensor) -> Tensor:
    """Return numbers as a tensor that no op of the run computed."""
    exact = {torch.float32: np.float32, torch.complex64: np.complex64}.get(like.dtype, np.float64)
    return torch.from_numpy(values.astype(exact)).to(like.device, like.dtype)


def split(arguments: str) -> list[str]:
    """Split the arguments in a text at its commas."""
    return [part.strip() for part in arguments.split(",") if part.strip()]


def whole_numbers(name: str, values: int | Iterable[int]) -> tuple[int, ...]:
    """Return whole numbers from 0, or one, in order, each once. Raise ValueError for others, or for none."""
    wanted = tuple(values) if isinstance(values, Iterable) else (values,)
    wanted = tuple(int(number) if isinstance(number, np.integer) else number for number in wanted)
    if not wanted or any(isinstance(number, bool) or not isinstance(number, int) or number < 0 for number in wanted):
        raise ValueError(f"{name}={quote(wanted)}, expected whole numbers of at least 0")
    return tuple(sorted(set(wanted)))


def check_count(name: str, value: Any) -> int:
    """Return a whole number of at least 0. Raise ValueError for anything else, or one that no tensor counts up to."""
    (number,) = whole_numbers(name, [value])
    if number >= MOST:
        raise ValueError(f"{name}={shorten(str(number))}, expected a whole number below {MOST}")
    return number


def _read_number(text: str) -> float:
    return int(text) if text.lstrip("+-").isdecimal() else float(text)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{name}={quote(value)}, expected a number")
    return float(value)
