"""Functions that a model spells out, recognised by their formula."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, product
from math import prod
from typing import Any, NamedTuple

import torch

from tracer.capture.calls import Call, Ref, refs
from tracer.expr.embeddings import HALVES, NEIGHBOURS
from tracer.expr.norms import INSIDE_ROOT, OUTSIDE_ROOT, ROOT_FLOOR
from tracer.graph.dataflow import CannotReplay, Graph, SyntheticOp, einsum_letters, loses_precision, replay
from tracer.ops import FACTORIES, IDENTITIES, LAYOUTS, RESHAPES, TRANSPOSES, ops_with, schema
from tracer.utils.cache import Cache
from tracer.utils.torch_internals import default_arguments, function_schema

# Named functions that a group of calls can compute, each compared with it on random numbers.

aten = torch.ops.aten

TOLERANCE = 1e-7
"""Largest relative difference of two results: constants in code have the digits of a float32."""
CELLS = 2**16
"""Number of elements that a region runs on, if it can be made smaller."""
MOST_CELLS = 2**22
"""Largest number of elements that a region runs on."""
SMALL_SIZES = (3, 5, 7, 11)
"""Smaller sizes for a large region, along axes that do not matter."""
LARGEST_CONSTANT = 1e6
"""Largest constant of the code beside which a function is compared."""
LARGEST_EPS = 0.1
"""Largest number that counts as the epsilon of a division."""
FARTHEST, LARGEST_BASE, LARGEST_TABLE = 3, 1e9, 2**23
"""Largest first position, largest base and largest number of elements of a table of sinusoids."""

POINTWISE = frozenset(
    """add sub rsub mul div true_divide neg pow square sqrt rsqrt reciprocal exp exp2 expm1 log log1p log2 sigmoid tanh
    erf erfc special_erf special_erfc special_expit special_ndtr softplus logaddexp log_sigmoid relu clamp clamp_min
    clamp_max maximum minimum abs where gt ge lt le masked_fill addcmul addcdiv lerp relu6 hardtanh sinh cosh
    log_sigmoid_forward""".split()
)
REDUCTIONS = frozenset(
    """sum mean amax max var std var_mean std_mean norm linalg_vector_norm linalg_norm logsumexp softmax _softmax
    log_softmax _log_softmax frobenius_norm einsum rms_norm layer_norm""".split()
)
COMPUTES = POINTWISE | REDUCTIONS
NONLINEAR_FUNCTIONS = frozenset(
    "exp exp2 expm1 sigmoid tanh erf erfc special_erf special_erfc special_expit special_ndtr softplus "
    "logaddexp log_sigmoid sinh cosh".split()
)
"""Functions that an activation is composed of."""
HINGES = frozenset("where maximum max relu relu6 hardtanh clamp clamp_min abs gt ge lt le masked_fill".split())
"""Piecewise linear functions."""
ROOTS = frozenset(
    "rms_norm layer_norm sqrt rsqrt pow std std_mean norm linalg_vector_norm linalg_norm frobenius_norm".split()
)
"""Calls that can compute a standard deviation."""
EXPONENTIALS = frozenset("exp exp2 pow logsumexp softmax _softmax log_softmax _log_softmax".split())
"""Calls that can compute a softmax."""


class Placeholder(NamedTuple):
    """A placeholder for input `number` of a region among a call's arguments; `vector`: before it was broadcast."""

    number: int
    vector: bool = False


X = Placeholder(0)


class NamedCall(NamedTuple):
    """A call that replaces a region: its op, and its arguments."""

    func: Any
    arguments: dict[str, Any]


class Trial:
    """A region that runs on random numbers; a large one at smaller sizes."""

    def __init__(self, calls: list[Call], inputs: tuple[Ref, ...], end: Ref, numbers: dict[str, float]):
        self.calls, self.inputs, self._end = calls, inputs, end
        self._numbers = {key: torch.tensor(value, dtype=torch.float64) for key, value in numbers.items()}
        self.names = {call.op.name for call in self.calls}
        self.shape, self.end = inputs[0].shape if inputs else (), end.shape
        self.axes = self._reduced_axes()
        self.by_axis = self.names <= COMPUTES | IDENTITIES and prod(self.shape) > CELLS
        """Whether it has no layouts, and so may be tried with any sizes along the axes that do not matter."""
        self.smaller = self._smaller_sizes()

    @property
    def has_tables(self) -> bool:
        """True if it computes values of more than one element without its inputs, such as a mask."""
        known = {ref.key for ref in self.inputs}
        tables = False
        for call in self.calls:
            if any(ref.key in known for ref in refs(call.arguments)):
                known |= {ref.key for ref in call.outputs}
            else:
                tables |= any(prod(ref.shape) > 1 for ref in call.outputs)
        return tables

    def _reduced_axes(self) -> tuple[int, ...]:
        """Return the axes, from 0, along which its calls reduce."""
        rank, axes = len(self.shape), set()
        for call in self.calls:
            if call.op.name == "einsum":
                (letters, *_), output = einsum_letters(call)
                axes.update(i for i, letter in enumerate(letters) if len(letters) == rank and letter not in output)
            elif "normalized_shape" in call.arguments:
                axes.update(range(rank - len(call.arguments["normalized_shape"]), rank))
            elif call.op.name in REDUCTIONS and "other" not in call.arguments:
                dim = call.arguments.get("dim")
                dims = (dim,) if isinstance(dim, int) else dim or range(rank)
                axes.update(reduced % rank for reduced in dims if rank)
        return tuple(sorted(axes))

    def _smaller_sizes(self) -> dict[int, int]:
        """Return a smaller size for each size that does not matter; empty if the sizes of the run are small."""
        matter = {self.shape[axis] for axis in (*self.axes, -1)} if self.shape else set()
        matter |= {self.shape[1]} if len(self.shape) > 2 and self.names & RESHAPES else set()  # channels, in groups
        smaller, count = {}, prod(self.shape)
        if self.by_axis or "overwrite" in self.names:
            return smaller
        for size, few in zip(sorted(set(self.shape) - matter, reverse=True), SMALL_SIZES, strict=False):
            if count > CELLS and size > few:
                smaller[size], count = few, count // size * few
        return smaller

    def _shrink(self, value):
        """Return a size, or several, as they are in the trial."""
        if isinstance(value, tuple) and not isinstance(value, Ref):
            return tuple(map(self._shrink, value))
        return self.smaller.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value

    @property
    def is_pointwise(self) -> bool:
        """True if it can be a pointwise function."""
        alone = len(self.inputs) == 1 and self.end == self.shape
        return alone and self.names <= POINTWISE | IDENTITIES | {"zeros_like", "ones_like", "full_like"}

    def draw(self, number: int) -> torch.Tensor:
        """Return random numbers for one input of the region. Raise Unplayable if it is too large, or not of numbers."""
        ref = self.inputs[number]
        shape, behind = self._shrink(ref.shape), len(self.shape) - len(ref.shape)
        if self.by_axis:
            shape = tuple(n if axis + behind in self.axes else min(n, SMALL_SIZES[0]) for axis, n in enumerate(shape))
        if ref.dtype == torch.int64 and number and prod(shape) <= MOST_CELLS:  # labels
            return torch.randint(self._shrink(self.shape[-1]), shape, generator=torch.Generator().manual_seed(number))
        if prod(shape) > MOST_CELLS or not (ref.dtype.is_floating_point or ref.dtype.is_complex):
            raise CannotReplay(f"{ref} is too large to be run again, or holds no numbers with a fraction")
        dtype = torch.complex128 if ref.dtype.is_complex else torch.float64
        return torch.randn(shape, generator=torch.Generator().manual_seed(number), dtype=dtype)

    def run(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Run the region on these inputs and return its result."""
        values = {ref.key: value for ref, value in zip(self.inputs, inputs, strict=True)}
        return replay(map(self._shrink_call, self.calls), self._numbers | values)[self._end.key]

    def _shrink_call(self, call: Call) -> Call:
        """Return a call with the sizes of the trial."""
        if not self.smaller or "layout" not in call.op.traits:
            return call
        return call._replace(arguments={name: self._shrink(value) for name, value in call.arguments.items()})

    def beside_constants(self) -> torch.Tensor:
        """Return numbers on both sides of the code's constants, where a function can change its definition."""
        values = (value for call in self.calls for value in call.arguments.values())
        named = {float(value) for value in values if type(value) in (int, float) and abs(value) <= LARGEST_CONSTANT}
        beside = product(sorted(named), (-1, 1), (-1, -0.01, 0.01, 1))
        return torch.tensor([sign * value + distance for value, sign, distance in beside]).double()

    def epsilons(self, count: int) -> Iterator[float]:
        """Yield candidates for the epsilon of a norm over `count` elements, from small constants of the calls; and
        0."""
        yield 0.0
        for value in (value for call in self.calls for value in call.arguments.values()):
            if isinstance(value, float) and 0 < value <= LARGEST_EPS:
                yield from (value, value**2, value / count, value / count**0.5)


def _is_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two results are equal up to rounding."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE / 10, equal_nan=True)


def _is_close_where_finite(computed: torch.Tensor, named: torch.Tensor) -> bool:
    """Return whether a function equals a named one wherever its spelling does not overflow."""
    finite = computed.isfinite()
    return computed.shape == named.shape and bool(finite[:257].all()) and _is_close(computed[finite], named[finite])


def recognise(trial: Trial) -> NamedCall | None:
    """Return the call of a named function that equals a region; None if no known one does."""
    for known in FUNCTIONS if trial.inputs else TABLES:
        try:
            if (named := known(trial)) is not None:
                return named
        except (RuntimeError, TypeError, ValueError, IndexError):  # it does not run on those numbers
            continue
    return None


ACTIVATIONS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (aten.relu.default, {}),
    *(
        (func, default_arguments(func))
        for func in (getattr(aten, name).default for name in sorted(ops_with("spelled")))
    ),
    (aten.gelu.default, {"approximate": "tanh"}),
)
"""Functions of each number by itself, with the arguments behind it."""
FAR_INPUTS = (12.0, 15.0, 20.5, 33.0, 51.0, 88.0, 101.0, 300.0, 1e3, 1e4)
TEST_INPUTS = torch.cat(
    [torch.linspace(-9, 9, 257, dtype=torch.float64) + 0.01, *(torch.tensor([-x, x]).double() for x in FAR_INPUTS)]
)
"""Inputs that tell the activations apart."""
SOFTMAX_OFFSETS = (0.0, 40.0)
"""Offset of the inputs of a softmax: a constant added to its sum of exponentials shows if these are small."""


def _match_activation(trial: Trial) -> NamedCall | None:
    """Return the call of a pointwise activation, or of a leaky ReLU, whose slope is fitted; or None."""
    if not trial.is_pointwise or not trial.names & (NONLINEAR_FUNCTIONS | HINGES) or trial.names == {"relu"}:
        return None
    x = torch.cat([TEST_INPUTS, trial.beside_constants()])
    computed = trial.run(x)
    for func, settings in ACTIVATIONS:
        if _is_close_where_finite(computed, func(x, **settings)):
            return NamedCall(func, {function_schema(func).arguments[0].name: X, **settings})
    if not trial.names & HINGES:
        return None
    slope = -float(trial.run(-torch.ones(1, dtype=torch.float64))[0])
    leaky = 0 < slope < 1 and _is_close(computed, aten.leaky_relu.default(x, slope))
    return NamedCall(aten.leaky_relu.default, {"self": X, "negative_slope": round(slope, 12)}) if leaky else None


def _match_softmax(trial: Trial) -> NamedCall | None:
    """Return the call of a softmax along one axis, of its logarithm, or of log-sum-exp; or None."""
    if len(trial.axes) != 1 or len(trial.inputs) > 1 or not trial.names & EXPONENTIALS:
        return None
    (axis,), x = trial.axes, trial.draw(0) * 3
    if x.shape[axis] == 1 or trial.has_tables:  # it is 1, whatever it is of; a mask may hide nothing at these sizes
        return None
    computed = trial.run(x)
    if trial.end == trial.shape:
        for func in (aten.softmax.int, aten.log_softmax.int):
            if all(_is_close(trial.run(x - less), func(x - less, axis)) for less in SOFTMAX_OFFSETS):
                return NamedCall(func, {"self": X, "dim": axis, "dtype": None})
        return None
    keeps = len(trial.end) == len(trial.shape)
    same = _is_close(computed, aten.logsumexp.default(x, [axis], keeps))
    return NamedCall(aten.logsumexp.default, {"self": X, "dim": (axis,), "keepdim": keeps}) if same else None


def _match_glu(trial: Trial) -> NamedCall | None:
    """Return the call of a gated linear unit: one half of an axis, times the sigmoid of the other; or None."""
    halved = [axis for axis, size in enumerate(trial.shape) if trial.end[axis : axis + 1] == (size // 2,) and size > 1]
    if len(trial.inputs) > 1 or len(trial.end) != len(trial.shape) or not trial.names & NONLINEAR_FUNCTIONS:
        return None
    x = trial.draw(0) * 3
    for axis in halved:
        if x.shape[axis] % 2 == 0 and _is_close(trial.run(x), aten.glu.default(x, axis)):
            return NamedCall(aten.glu.default, {"self": X, "dim": axis})
    return None


def _match_pooling(trial: Trial) -> NamedCall | None:
    """Return the call of an average pooling of disjoint windows of a picture; or None."""
    if len(trial.inputs) > 1 or len(trial.shape) != 4 or len(trial.end) != 4 or not trial.names & {"mean", "sum"}:
        return None
    ratios = [divmod(before, after) if after else (0, 1) for before, after in zip(trial.shape, trial.end, strict=True)]
    (*lead, rows, columns), rest = [ratio for ratio, _ in ratios], [rest for _, rest in ratios]
    if lead != [1, 1] or rows * columns == 1 or any(rest) or not trial.names & RESHAPES:
        return None
    x, windows = trial.draw(0), [rows, columns]
    if not _is_close(trial.run(x), aten.avg_pool2d.default(x, windows)):
        return None
    settings = default_arguments(aten.avg_pool2d.default) | {"kernel_size": tuple(windows), "stride": tuple(windows)}
    return NamedCall(aten.avg_pool2d.default, {"self": X, **settings, "padding": (0, 0)})


class Norm(NamedTuple):
    """A norm, by what it subtracts and what it divides by."""

    centred: bool
    less: int = 0
    """How many fewer numbers than there are the sum of squares is divided by."""
    how: str = INSIDE_ROOT
    """Where ε is: added to the variance, to its root, or the least that the root may be."""
    mean: bool = True
    """Whether squares are divided by their number at all."""

    def run(self, x: torch.Tensor, axes: tuple[int, ...], eps: float) -> torch.Tensor:
        """Return `(x - μ) / √(σ² + ε)`."""
        x = x - x.mean(axes, keepdim=True) if self.centred else x
        count = prod(x.shape[axis] for axis in axes) - self.less if self.mean else 1
        variance = (x * x).sum(axes, keepdim=True) / count
        if self.how == INSIDE_ROOT:
            return x / (variance + eps).sqrt()
        return x / (variance.sqrt() + eps if self.how == OUTSIDE_ROOT else variance.sqrt().clamp(min=eps))

    def call(self, trial: Trial, eps: float, gamma: Placeholder | None, beta: Placeholder | None) -> NamedCall | None:
        """Return its call; None if it has none with that γ and β."""
        axes, usual = trial.axes, self.less == 0 and self.how == INSIDE_ROOT
        arguments: dict[str, Any] = {"input": X, "weight": gamma, "bias": beta, "eps": eps}
        if axes != (*range(len(trial.shape) - len(axes), len(trial.shape)),):
            if axes != (1,) or not self.centred or not usual:
                return None
            vectors = {name: arguments[name] and arguments[name]._replace(vector=True) for name in AFFINE}
            return NamedCall(CHANNELS, arguments | vectors | {"dims": axes})
        if not self.mean:
            return NamedCall(UNIT, {"input": X}) if len(axes) == 1 and gamma == beta is None and not eps else None
        arguments["normalized_shape"] = trial.shape[-len(axes) :]
        if usual and self.centred:
            return NamedCall(aten.layer_norm.default, arguments)
        if usual and beta is None:
            del arguments["bias"]
            return NamedCall(aten.rms_norm.default, arguments)
        settings = {"centred": self.centred, "less": self.less, "how": self.how}
        return NamedCall(DEVIATION, arguments | settings)


AFFINE = "weight", "bias"
DEVIATION = SyntheticOp(
    "deviation_norm", ("input", "normalized_shape", "weight", "bias", "eps", "centred", "less", "how")
)
UNIT = SyntheticOp("unit_length", ("input",))
CHANNELS = SyntheticOp("channel_norm", ("input", "weight", "bias", "eps", "dims"))
NORMS = (
    Norm(False),
    Norm(True),
    Norm(True, 1),
    Norm(False, mean=False),
    *(
        Norm(centred, less, how)
        for how in (OUTSIDE_ROOT, ROOT_FLOOR)
        for centred, less in ((False, 0), (True, 0), (True, 1))
    ),
)
SCALES = (1.0, 1e-2, 1e-4, 1e-6, 0.0)
"""Scales of the inputs of a norm: small ones show what is added to the variance."""


def _match_norm(trial: Trial) -> NamedCall | None:
    """Return the call of a layer norm or an RMS norm over the last axes, with or without γ and β; or None."""
    axes, beside = trial.axes, trial.inputs[1:]
    count = prod(trial.shape[axis] for axis in axes)
    if count < 3 or trial.end != trial.shape or not trial.names & ROOTS or len(beside) > 2:
        return None
    along = [
        tuple(size if axis in axes else 1 for axis, size in enumerate(trial.shape))[-len(ref.shape) :] for ref in beside
    ]
    if any(ref.shape != shape and prod(ref.shape) != 1 for ref, shape in zip(beside, along, strict=True)):
        return None
    vectors = [trial.draw(1 + place) for place in range(len(beside))]
    x, computed = trial.draw(0), {}
    for eps, norm, (gamma, beta) in product(dict.fromkeys(trial.epsilons(count)), NORMS, PLACES[len(beside)]):
        for scale in (*SCALES, eps, eps**0.5):
            if scale not in computed:
                computed[scale] = trial.run(x * scale, *vectors)
            normed = norm.run(x * scale, axes, eps)
            normed = normed if gamma is None else normed * vectors[gamma]
            if not _is_close(computed[scale], normed if beta is None else normed + vectors[beta]):
                break
        else:
            places = (None if vector is None else Placeholder(1 + vector) for vector in (gamma, beta))
            if (named := norm.call(trial, eps, *places)) is not None:
                return named
    return None


PLACES = ([(None, None)], [(0, None), (None, 0)], [(0, 1), (1, 0)])
"""Which of so many vectors may be γ and β."""


def _match_norm_of_channels(trial: Trial) -> NamedCall | None:
    """Return the call of a batch norm by its own statistics, or of a group norm, with or without γ and β; or None."""
    beside, rank = trial.inputs[1:], len(trial.shape)
    if rank < 2 or trial.end != trial.shape or not trial.names & ROOTS or len(beside) > 2:
        return None
    channels = trial.shape[1]
    column = (channels, *[1] * (rank - 2))
    if any(ref.shape not in (column, (1, *column)) for ref in beside):
        return None
    places = [axis for axis in range(rank) if axis != 1]
    grouped = trial.names & RESHAPES and rank > 2
    known: list[tuple[Any, int | None]] = [(BATCH, None)] if trial.axes == tuple(places) else []
    known += [(GROUPS, groups) for groups in range(1, channels) if grouped and channels % groups == 0]
    vectors = [trial.draw(1 + place) for place in range(len(beside))]
    x, count = trial.draw(0), prod(trial.shape) // channels
    computed = {scale: trial.run(x * scale, *vectors) for scale in SCALES}
    for (func, groups), eps, (gamma, beta) in product(known, dict.fromkeys(trial.epsilons(count)), PLACES[len(beside)]):
        weights = [None if place is None else vectors[place].flatten() for place in (gamma, beta)]
        for scale in SCALES:
            if func is BATCH:
                normed = func(x * scale, *weights, None, None, True, 0.0, eps, False)
            else:
                normed = func(x * scale, groups, *weights, eps, False)
            if not _is_close(computed[scale], normed):
                break
        else:
            held = (None if place is None else Placeholder(1 + place, vector=True) for place in (gamma, beta))
            arguments = {"input": X, "num_groups": groups} | dict(zip(AFFINE, held, strict=True)) | {"eps": eps}
            own = {"running_mean": None, "running_var": None, "training": True} if func is BATCH else {}
            return NamedCall(func, arguments | own)
    return None


BATCH, GROUPS = aten.batch_norm.default, aten.group_norm.default


# Functions of two values.

COSINE = SyntheticOp("vector_cosine", ("x1", "x2"))
LABELS = SyntheticOp("label_entropy", ("self", "target", "label_smoothing"))


def _match_error(trial: Trial) -> NamedCall | None:
    """Return the call of the mean squared or absolute error of two values; or None."""
    if len(trial.inputs) != 2 or trial.end or trial.inputs[1].shape != trial.shape:
        return None
    x, y = trial.draw(0), trial.draw(1)
    for func in (aten.mse_loss.default, aten.l1_loss.default):
        for reduction in (1, 2):
            if _is_close(trial.run(x, y), func(x, y, reduction)):
                return NamedCall(func, {"self": X, "target": Placeholder(1), "reduction": reduction})
    return None


def _match_cosine(trial: Trial) -> NamedCall | None:
    """Return the call of the cosine of the angle between two vectors, along the last axis; or None."""
    if len(trial.inputs) != 2 or trial.end != trial.shape[:-1] or trial.inputs[1].shape != trial.shape:
        return None
    x, y = trial.draw(0), trial.draw(1)
    lengths = x.norm(dim=-1) * y.norm(dim=-1)
    same = not trial.axes or trial.axes == (len(trial.shape) - 1,)
    tiny = all(_is_close(trial.run(x * scale, y), trial.run(x, y)) for scale in (1e-4, 1e-9))
    if not (same and tiny and _is_close(trial.run(x, y), (x * y).sum(-1) / lengths)):
        return None
    return NamedCall(COSINE, {"x1": X, "x2": Placeholder(1)})


def _match_entropy(trial: Trial) -> NamedCall | None:
    """Return the call of the mean cross-entropy of labels along the last axis, which may be smoothed; or None."""
    if len(trial.inputs) != 2 or trial.end or not trial.shape or trial.inputs[1].shape != trial.shape[:-1]:
        return None
    if trial.inputs[1].dtype != torch.int64:
        return None
    x, labels = trial.draw(0) * 3, trial.draw(1)
    logs = x.log_softmax(-1)
    hard, soft = -logs.gather(-1, labels[..., None]).mean(), -logs.mean()
    shares = {0.0} | {value for call in trial.calls for value in call.arguments.values() if isinstance(value, float)}
    for share in sorted(share for share in shares if 0 <= share < 1):
        if _is_close(trial.run(x, labels), (1 - share) * hard + share * soft):
            return NamedCall(LABELS, {"self": X, "target": Placeholder(1), "label_smoothing": share})
    return None


ROPE = SyntheticOp("rope", ("x", "cosine", "sine", "pairs"))
COMPLEX, OF_ANGLES = (SyntheticOp("rope", ("x", name, "pairs")) for name in ("table", "angles"))


def rotate_pairs(x: torch.Tensor, pairs: str) -> torch.Tensor:
    """Return each pair (a, b) as (-b, a): of the two halves of the last axis, or of neighbours."""
    first, second = x.chunk(2, -1) if pairs == HALVES else (x[..., ::2], x[..., 1::2])
    return torch.cat([-second, first], -1) if pairs == HALVES else torch.stack([-second, first], -1).flatten(-2)


def _match_rotary(trial: Trial) -> NamedCall | None:
    """Return the call of rotary positions, `x ⊙ cos + rotate(x) ⊙ sin`, with tables as wide as x or half as wide; or
    None."""
    tables, width = trial.inputs[1:], trial.shape[-1] if trial.shape else 1
    wide = {ref.shape[-1:] for ref in tables}
    if len(wide) != 1 or width % 2 or trial.end != trial.shape or not wide <= {(width,), (width // 2,)}:
        return None
    x, *factors = (trial.draw(number) for number in range(len(trial.inputs)))
    computed, half = trial.run(x, *factors), wide == {(width // 2,)}
    if len(tables) == 2:
        func, names, (cosine, sine) = ROPE, ("cosine", "sine"), factors
    elif factors[0].is_complex():
        func, names, cosine, sine = COMPLEX, ("table",), factors[0].real, factors[0].imag
    else:
        func, names, cosine, sine = OF_ANGLES, ("angles",), factors[0].cos(), factors[0].sin()
    alike = (NEIGHBOURS, HALVES) if trial.names & {"stack", "view_as_complex", "complex"} else (HALVES, NEIGHBOURS)
    for pairs in alike:  # one pair alone is of both
        tall = [expand_pairs(table, pairs) if half else table for table in (cosine, sine)]
        if _is_close(computed, x * tall[0] + rotate_pairs(x, pairs) * tall[1]):
            placeholders = {name: Placeholder(1 + number) for number, name in enumerate(names)}
            return NamedCall(func, {"x": X, **placeholders, "pairs": pairs})
    return None


def expand_pairs(table: torch.Tensor, pairs: str) -> torch.Tensor:
    """Return a table with one number for each pair, expanded to both elements of the pairs."""
    return torch.cat([table, table], -1) if pairs == HALVES else table.repeat_interleave(2, -1)


TRIANGLE = SyntheticOp("triangle", ("kept", "rest"))
OTHER_LENGTH = 7
"""How much longer a square is made to see whether it is a triangle at any length."""


def _lengthen_square(value, length: int, new: int):
    """Return an argument in which a length is another one."""
    if isinstance(value, tuple) and not isinstance(value, Ref):
        return tuple(_lengthen_square(item, length, new) for item in value)
    return new if isinstance(value, int) and not isinstance(value, bool) and value == length else value


def _match_triangle(trial: Trial) -> NamedCall | None:
    """Return the call of a square with one number up to its diagonal and another behind it, at two lengths; or None."""
    if len(trial.end) < 2 or trial.end[-1] != trial.end[-2]:
        return None
    length, given = trial.end[-1], trial.calls
    found = set()
    for new in (length, 2 * length + OTHER_LENGTH):
        trial.calls = [
            call._replace(
                arguments={name: _lengthen_square(value, length, new) for name, value in call.arguments.items()}
            )
            for call in given
        ]
        try:
            square = trial.run().double()
        finally:
            trial.calls = given
        if square.numel() != new * new:
            return None
        square = square.reshape(new, new)
        kept, rest = float(square[0, 0]), float(square[0, -1])
        places = torch.arange(new)
        triangle = torch.where(places <= places[:, None], kept, rest)
        if kept == rest or not torch.equal(square, triangle.double()):
            return None
        found.add((kept, rest))
    if len(found) != 1 or not all(value == value for value in found.pop()):
        return None
    return NamedCall(TRIANGLE, {"kept": kept, "rest": rest})


SINUSOIDS = SyntheticOp("sinusoids", ("base", "halves", "steps", "first"))


def _lengthen(call: Call, length: int) -> Call:
    """Return a call that counts one position, changed so that it counts several."""
    start, step = call.arguments.get("start", 0), call.arguments.get("step", 1)
    alone = call.op.name == "arange" and call.outputs[0].shape == (1,)
    return call._replace(arguments=call.arguments | {"end": start + length * step}) if alone else call


def _match_sinusoids(trial: Trial) -> NamedCall | None:
    """Return the call of sinusoidal positions, `sin` and `cos` of `i / b^(k/steps)`; or None.

    They are interleaved, or in two halves. b and the first i are fitted.
    """
    length, width = trial.end[-2:]
    if width < 4 or width % 2 or prod(trial.end) > LARGEST_TABLE:
        return None
    if length == 1:  # one place says nothing of rates
        length, trial.calls = 3, [_lengthen(call, 3) for call in trial.calls]
    computed, pairs = trial.run().reshape(length, width), width // 2
    for halves in (False, True):
        sines, cosines = (computed[:, :pairs], computed[:, pairs:]) if halves else (computed[:, ::2], computed[:, 1::2])
        first = torch.atan2(sines[0, 0], cosines[0, 0]).round()
        rates = torch.atan2(sines, cosines)[1] - torch.atan2(sines, cosines)[0]
        angles = (torch.arange(length)[:, None] + first) * rates
        if 0 <= first <= FARTHEST and torch.allclose(angles.sin(), sines) and torch.allclose(angles.cos(), cosines):
            for steps in (pairs, pairs - 1):
                base = float(rates[1]) ** -steps
                spaced = round(base) ** (-torch.arange(pairs, dtype=computed.dtype) / steps)
                if base < LARGEST_BASE and round(base) > 1 and torch.allclose(rates, spaced, rtol=TOLERANCE):
                    return NamedCall(
                        SINUSOIDS, {"base": round(base), "halves": halves, "steps": steps, "first": int(first)}
                    )
    return None


FUNCTIONS = (
    _match_activation,
    _match_softmax,
    _match_norm,
    _match_rotary,
    _match_glu,
    _match_pooling,
    _match_norm_of_channels,
    _match_error,
    _match_cosine,
    _match_entropy,
)
"""Matchers of functions of values."""
TABLES = _match_triangle, _match_sinusoids
"""Matchers of constants."""


# Idiom recognition: calls that together compute a named function are replaced by one call of it.
#
# A region with one input (a single-entry region) runs again in float64 on random numbers, beside the functions that its
# ops suggest. The function with the same results replaces the region, with parameters fitted to them, however the
# author spelled it. The proof on the numbers of the run follows later, as for every line.

MAX_CALLS, MAX_TABLE_CALLS, MAX_OPERANDS = 40, 400, 5
"""How many calls an idiom has at most, how many those that make a table of nothing, and how many values it is tried to
be a function of."""
CACHE_SIZE = 4096
"""How many decisions are held: the blocks of a model ask for the same ones."""

ROTATES = frozenset("cat concat stack view_as_real".split())
"""Calls that a rotary position ends with, perhaps before a layout."""
ROTATIONS = ROTATES | frozenset(
    "add sub mul neg addcmul view_as_complex complex real imag roll flip overwrite copy empty_like zeros_like "
    "matmul einsum".split()
)
"""Calls that a rotation of pairs consists of."""
MULTIPLIES = frozenset("mul addcmul matmul einsum".split())
TURNS = frozenset("cos sin polar exp".split())
"""Calls that make its tables of angles."""
COUNTS = TURNS | {"arange", "linspace"}
"""Calls that compute tables and are not part of a function."""
PAIRS = ROTATES | frozenset("overwrite roll flip".split())
"""Calls that bring the two numbers of a pair together."""
ENDS_ROTATION = ROTATES | frozenset("add sub addcmul overwrite".split())
HIDES = ops_with("mask-builder", "score")
"""Calls that apply a mask."""
ENDS_TABLE = ROTATES | RESHAPES | frozenset("overwrite where add mul sin cos index_put scatter copy".split())
"""Calls that a table of sines and cosines ends with."""


PICKS = frozenset("gather one_hot nll_loss_nd cross_entropy_loss".split())
"""Calls that choose the number of a label."""
ENDS_PAIR = frozenset("mean sum div neg mul add sub nll_loss_nd".split())
"""Calls that a loss or a similarity ends with."""
HINTS = (
    NONLINEAR_FUNCTIONS
    | HINGES
    | ROOTS
    | ROTATES
    | {"masked_fill", "tril", "triu", "log", "mean", "gather", "nll_loss_nd", "sum"}
)
"""Calls of which no idiom has none."""


class Region(NamedTuple):
    """Calls, by their indices, that compute the value `end` from the values `inputs`.

    The first of `inputs` is the argument of the function. Parameters or tables follow.
    """

    calls: tuple[int, ...]
    inputs: tuple[Ref, ...]
    end: Ref
    constants: tuple[int, ...] = ()
    """The calls before them that take nothing, or shapes alone."""


class _Run(NamedTuple):
    """Graph of a run, and its constants without axes as numbers, by their keys."""

    graph: Graph
    numbers: dict[str, float]


_decisions = Cache(CACHE_SIZE)


def recognize_idioms(
    graph: Graph,
    numbers: dict[str, float],
    spelled: frozenset[int],
    named: set[int],
    moving: frozenset[int] = frozenset(),
) -> Graph:
    """Return the graph with each region that computes a named function as one call.

    Regions that end in ops of `spelled`, or have one that is `moving`, stay. The ops of replaced regions are added to
    `named`. `numbers` are the scalar constants by their keys.
    """
    run = _Run(graph, numbers)
    varies = {key for key, of in graph.depends.items() if of == "x"}
    replaced_calls: set[int] = set()
    groups: list[tuple[set[int], list[Call]]] = []
    for index in reversed(range(len(graph.calls))):
        if index in replaced_calls or graph.calls[index].last - 1 in spelled:
            continue
        tables = [*_find_tables(run, varies, index), *_find_masks(run, varies, index)]
        regions = [*tables, *reversed([*_find_regions(run, varies, index)]), *_find_rotations(run, varies, index)]
        regions += _find_pairs(run, varies, index)
        for region in regions:
            if moving and any(not moving.isdisjoint(_ops(graph.calls[i])) for i in region.calls):
                continue
            if replaced_calls.isdisjoint(region.calls) and (named_call := _recognise_region(run, region)) is not None:
                group = _with_constants(graph, region, named_call)
                groups.append((group, [_build_call(graph, region, named_call, group)]))
                named.add(graph.calls[index].last - 1)
                replaced_calls |= group
                break
    return graph.replace(groups)


def _ops(call: Call) -> range:
    return range(call.first, call.last)


def look_up_one_hots(graph: Graph) -> Graph:
    """Return the graph with each product of one-hot rows and a matrix as a look-up of its rows, that of a linear layer
    with the transposed matrix too."""
    groups: list[tuple[set[int], list[Call]]] = []
    for index, call in enumerate(graph.calls):
        linear = call.op.name == "linear"
        product = linear or ("matmul" in call.op.traits and call.op.name != "einsum")
        if not product or len(graph.inputs[index]) != 2:
            continue
        rows, matrix = graph.inputs[index]
        group, at = {index}, rows.key
        if linear:  # its weight has a row for each output
            turn = graph.producer.get(matrix.key)
            if turn is None or not _is_transpose(graph.calls[turn]):
                continue
            group.add(turn)
            matrix = graph.inputs[turn][0]
        while graph.producing_call(at) is not None and graph.name(graph.producer[at]) in IDENTITIES:
            group.add(graph.producer[at])
            at = graph.inputs[graph.producer[at]][0].key
        source = graph.producer.get(at)
        if source is None or graph.name(source) != "one_hot" or len(matrix.shape) != 2:
            continue
        group.add(source)
        inner = {ref.key for one in group - {index} for ref in graph.calls[one].outputs}
        if any(not group.issuperset(graph.users.get(key, ())) or key in graph.returned for key in inner):
            continue
        func = aten.embedding.default
        arguments = {"weight": matrix, "indices": graph.inputs[source][0]} | {
            name: value for name, value in default_arguments(func).items() if name not in ("weight", "indices")
        }
        calls = tuple(graph.calls[one] for one in sorted(group))
        groups.append(
            (
                group,
                [call._replace(func=func, op=schema("embedding"), name="embedding", arguments=arguments, inner=calls)],
            )
        )
    return graph.replace(groups)


def _is_transpose(call: Call) -> bool:
    """Return whether a call exchanges the two axes of a matrix."""
    return call.op.name in TRANSPOSES and len(call.outputs[0].shape) == 2


def take_largest_of_sort(graph: Graph) -> Graph:
    """Return the graph with each sort of which only the first k are read as a top-k."""
    groups: list[tuple[set[int], list[Call]]] = []
    for index, call in enumerate(graph.calls):
        if call.op.name != "sort" or len(call.outputs) != 2 or not graph.inputs[index]:
            continue
        (x,), dim = graph.inputs[index], call.arguments.get("dim", -1)
        slices = {number: graph.users.get(ref.key, []) for number, ref in enumerate(call.outputs)}
        users = [user for found in slices.values() for user in found]
        if (
            not users
            or any(len(found) > 1 for found in slices.values())
            or any(map(graph.returned.__contains__, (ref.key for ref in call.outputs)))
        ):
            continue
        shapes = {graph.calls[user].outputs[0].shape for user in users}
        if len(shapes) > 1 or not all(_takes_first(graph.calls[user], dim, len(x.shape)) for user in users):
            continue
        outputs = tuple(
            graph.calls[slices[number][0]].outputs[0] if slices[number] else ref
            for number, ref in enumerate(call.outputs)
        )
        func, group = aten.topk.default, {index, *users}
        arguments = {
            "self": x,
            "k": shapes.pop()[dim],
            "dim": dim,
            "largest": call.arguments["descending"],
            "sorted": True,
        }
        calls = tuple(graph.calls[one] for one in sorted(group))
        groups.append(
            (
                group,
                [
                    calls[-1]._replace(
                        func=func, op=schema("topk"), name="topk", arguments=arguments, outputs=outputs, inner=calls
                    )
                ],
            )
        )
    return graph.replace(groups)


def _takes_first(call: Call, dim: int, rank: int) -> bool:
    """Return whether a call takes the first entries along an axis."""
    arguments = call.arguments
    if call.op.name != "slice" or arguments.get("dim", 0) % rank != dim % rank:
        return False
    return not arguments.get("start") and arguments.get("step", 1) == 1


def _find_regions(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """Yield the regions with one input that end with a call, smallest first; values without inputs count as
    constants."""
    end = run.graph.calls[last].outputs
    if run.graph.name(last) not in COMPUTES or len(end) != 1:
        return
    if not end[0].dtype.is_floating_point or end[0].key not in varies:
        return
    beside: dict[str, Ref] = {}
    for region, waiting in _grow_upwards(run, last, COMPUTES | LAYOUTS, lambda key: key in varies, beside):
        if len(waiting) > 1 or not waiting or not waiting[0].dtype.is_floating_point:
            continue
        built = _build_region(run, region, [waiting[0], *beside.values()], end[0])
        several = sum(run.graph.name(index) in COMPUTES for index in region) + len(built.constants) > 1
        if several or _can_hinge(run, last) or _can_pool(run, last, region):
            yield built


def _can_pool(run: _Run, last: int, region: list[int]) -> bool:
    """Return whether a mean of a reshaped value can be a pooling."""
    return run.graph.name(last) == "mean" and not RESHAPES.isdisjoint(map(run.graph.name, region))


def _can_hinge(run: _Run, index: int) -> bool:
    """Return whether a call alone can be a ReLU: the larger one of a value and 0."""
    values = run.graph.calls[index].arguments.values()
    numbers = [run.numbers.get(value.key) if isinstance(value, Ref) else value for value in values]
    return run.graph.name(index) in HINGES - {"relu", "relu6"} and 0 in [
        n for n in numbers if isinstance(n, int | float)
    ]


def _find_pairs(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """Yield the regions that reduce two values to fewer numbers, such as a loss."""
    end, beside = run.graph.calls[last].outputs, dict[str, Ref]()
    if run.graph.name(last) not in ENDS_PAIR or len(end) != 1 or end[0].key not in varies:
        return
    may, order = COMPUTES | LAYOUTS | PICKS, {ref.key: number for number, ref in enumerate(run.graph.placeholders)}
    for region, waiting in _grow_upwards(run, last, may, lambda key: key in varies, beside):
        names = {run.graph.name(index) for index in region}
        if len(waiting) != 2 or not names & REDUCTIONS | PICKS & names:
            continue
        x, y = sorted(waiting, key=lambda ref: (not ref.dtype.is_floating_point, order.get(ref.key, len(order))))
        if x.dtype.is_floating_point and prod(end[0].shape) < prod(x.shape) and len(region) > 1:
            built = _build_region(run, region, [x, y, *beside.values()], end[0])
            yield built


def _build_region(run: _Run, calls: list[int], inputs: list[Ref], end: Ref) -> Region:
    """Return the region of these calls, which also computes its constants."""
    constants: set[int] = set()
    open_ = []
    for ref in inputs:
        closed = _constant_calls(run, ref.key)
        if closed is None or len(closed) > MAX_CALLS or COUNTS & {run.graph.name(index) for index in closed}:
            open_.append(ref)
        else:
            constants |= closed
    return Region(tuple(sorted(calls)), tuple(open_), end, tuple(sorted(constants)))


def _constant_calls(run: _Run, key: str) -> set[int] | None:
    """Return the calls that compute a value from numbers and shapes alone; None if it has other inputs."""
    indices: set[int] = set()
    for above in run.graph.ancestors([key], lambda at: not run.graph.call_of(at).op.takes_shape):
        if (index := run.graph.producer.get(above)) is not None:
            indices.add(index)
        elif above not in run.numbers:
            return None
    return indices


def _find_rotations(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """Yield the regions that can rotate pairs: of a tensor and two tables, or one of complex numbers or angles."""
    call = run.graph.calls[last]
    source = run.graph.producing_call(run.graph.inputs[last][0].key) if run.graph.inputs[last] else None
    joins = source is not None and source.op.name in ROTATES | {"matmul", "einsum", "squeeze"}
    if run.graph.name(last) not in ENDS_ROTATION and not (run.graph.name(last) in RESHAPES and joins):
        return
    (end,) = call.outputs[:1]
    stored: dict[str, Ref] = {}
    ways = (
        _grow_upwards(run, last, ROTATIONS | LAYOUTS, lambda key: True, {}),
        _grow_upwards(run, last, ROTATIONS | LAYOUTS | TURNS, lambda key: True, {}),  # of the angles of tables
        _grow_upwards(run, last, ROTATIONS | LAYOUTS, lambda key: key in varies, stored),  # of rows of stored tables
    )
    for region, waiting in chain.from_iterable(ways):
        waiting = [*waiting, *(ref for ref in stored.values() if ref not in waiting)]
        names = {run.graph.name(index) for index in region}
        if not (MULTIPLIES & names and PAIRS & names) or len(waiting) > MAX_OPERANDS:
            continue
        built = _build_region(run, region, waiting, end)
        if len(built.inputs) not in (2, 3):
            continue
        for x in (ref for ref in built.inputs if ref.shape == end.shape and ref.dtype.is_floating_point):
            tables = tuple(ref for ref in built.inputs if ref is not x)
            for order in (tables, tables[::-1])[: len(tables)]:
                yield built._replace(inputs=(x, *order))


def _find_tables(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """Yield the regions that compute a table of sines and cosines from constants."""
    call = run.graph.calls[last]
    if not call.outputs or call.outputs[0].key in varies or run.graph.name(last) not in ENDS_TABLE:
        return
    end = call.outputs[0]
    if len(end.shape) < 2 or prod(end.shape[:-2]) != 1 or not end.dtype.is_floating_point:
        return
    closed = _constant_calls(run, end.key)
    if closed and len(closed) <= MAX_TABLE_CALLS and {"sin", "cos"} & {run.graph.name(index) for index in closed}:
        yield Region((last,), (), end, tuple(sorted(closed - {last})))


def _find_masks(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """Yield the region that computes a constant square, which something that depends on the inputs reads."""
    graph, end = run.graph, run.graph.calls[last].outputs[:1]
    if not end or end[0].key in varies or len(end[0].shape) < 2 or graph.name(last) in FACTORIES:
        return
    *lead, rows, columns = end[0].shape
    if rows != columns or rows < 2 or prod(lead) != 1 or prod(end[0].shape) > MOST_CELLS:
        return
    users = [graph.calls[index] for index in graph.consumers[graph.root(end[0].key)]]
    if not any(call.op.name in HIDES and call.outputs[0].key in varies for call in users):
        return
    closed = _constant_calls(run, end[0].key)
    if closed and len(closed) <= MAX_CALLS:
        yield Region((last,), (), end[0], tuple(sorted(closed - {last})))


def _grow_upwards(
    run: _Run, last: int, may: frozenset[str], follows: Callable[[str], bool], beside: dict[str, Ref]
) -> Iterator[tuple[list[int], list[Ref]]]:
    """Yield ever larger sets of calls, upwards from one, and their inputs.

    A producer joins if `may` allows it and nothing else uses its value. Inputs that are not followed go to `beside`.
    """
    region: list[int] = []
    waiting = {ref.key: ref for ref in run.graph.calls[last].outputs}
    while waiting and len(region) < MAX_CALLS:
        able = [key for key in waiting if _can_join(run.graph, run.graph.producer.get(key), region, last, may)]
        if not able:
            return
        index = max(run.graph.producer[key] for key in able)
        region.append(index)
        for ref in run.graph.calls[index].outputs:
            waiting.pop(ref.key, None)
        for ref in run.graph.inputs[index]:
            if ref.key not in run.numbers and not run.graph.calls[index].op.takes_shape:
                (waiting if follows(ref.key) else beside)[ref.key] = ref
        yield region, list(waiting.values())


def _can_join(graph: Graph, index: int | None, region: list[int], last: int, may: frozenset[str]) -> bool:
    """Return whether a call can be part of an idiom, and nothing outside its region uses its value."""
    if index is None:
        return False
    call, name = graph.calls[index], graph.name(index)
    drops = name in IDENTITIES and call.arguments.get("train") and call.arguments.get("p")
    if name not in may | IDENTITIES or drops:
        return False
    if any(loses_precision(ref.dtype, output.dtype) for ref in graph.inputs[index] for output in call.outputs):
        return False
    return index == last or all(
        ref.key not in graph.returned and all(taker in region for taker in graph.users.get(ref.key, ()))
        for ref in call.outputs
    )


def _recognise_region(run: _Run, region: Region) -> NamedCall | None:
    """Return the call that computes the same as a region; None if no known one does."""
    local: dict[str, object] = {ref.key: Placeholder(number) for number, ref in enumerate(region.inputs)}
    signature: list[object] = [tuple((ref.shape, ref.dtype) for ref in region.inputs)]
    local |= {key: ("number", number) for key, number in run.numbers.items()}
    calls = [run.graph.calls[index] for index in sorted({*region.calls, *region.constants})]
    for call in calls:
        local.update({ref.key: len(local) for ref in call.outputs if ref.key not in local})
        signature.append((str(call.func), repr([_signature(value, local) for value in call.arguments.values()])))
    key = tuple(signature)
    decision = _decisions.get(key)
    if decision is None:
        decision = (recognise(Trial(calls, region.inputs, region.end, run.numbers)),)
        _decisions.put(key, decision)
    return decision[0]


def _signature(value, local: dict) -> object:
    """Return an argument with tensors replaced by placeholders of the region."""
    if isinstance(value, Ref):
        return local.get(value.key), value.shape
    return tuple(_signature(item, local) for item in value) if isinstance(value, tuple) else value


def _with_constants(graph: Graph, region: Region, named: NamedCall) -> set[int]:
    """Return a region with the calls that compute constants for it alone, except those that its replacement uses."""
    if not region.inputs:
        return graph.with_exclusive_producers({region.calls[-1]}, lambda call: True)
    taken = {
        graph.producer.get(_fill_placeholder(graph, region, argument).key)
        for argument in named.arguments.values()
        if isinstance(argument, Placeholder)
    }
    return graph.with_exclusive_producers(
        set(region.calls), lambda call: graph.producer.get(call.outputs[0].key) not in taken
    )


def _build_call(graph: Graph, region: Region, named: NamedCall, group: set[int]) -> Call:
    """Return the call that replaces a region."""
    arguments = {
        name: _fill_placeholder(graph, region, argument) if isinstance(argument, Placeholder) else argument
        for name, argument in named.arguments.items()
    }
    name = function_schema(named.func).name.split("::")[-1]
    inner = tuple(graph.calls[argument] for argument in sorted(group))
    last = graph.calls[region.calls[-1]]
    return last._replace(func=named.func, op=schema(name), name=name, arguments=arguments, inner=inner)


def _fill_placeholder(graph: Graph, region: Region, place: Placeholder) -> Ref:
    """Return the tensor of a placeholder; a vector, as before it was broadcast."""
    ref = region.inputs[place.number]
    while place.vector and len(ref.shape) > 1 and (index := graph.producer.get(ref.key)) is not None:
        if graph.name(index) not in LAYOUTS | IDENTITIES:
            break
        ref = graph.inputs[index][0]
    return ref
