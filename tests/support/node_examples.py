"""A small example of each node of equations, with operands drawn at random, for tests that hold for all of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from tracer import expr as e
from tracer.expr import Node, Tensor

FULL_SLICE = (None, None, None)


class Example(NamedTuple):
    """A node over placeholders, and the generator of each of its operands.

    `exact`: what it reads of its operands is what gradients are not zero for, no more.
    """

    node: Node
    draws: tuple[Callable[[], torch.Tensor], ...]
    exact: bool = True


def real(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape, dtype=torch.float64)


def positive(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(shape, dtype=torch.float64) + 0.5


def whole(high: int, *shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randint(high, shape)


def truth(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(shape) < 0.5


def different(count: int, of: int, rows: int) -> Callable[[], torch.Tensor]:
    """Return numbers below `of`, none twice in a row."""
    return lambda: torch.stack([torch.randperm(of)[:count] for _ in range(rows)])


def complexes(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(shape, dtype=torch.complex128)


def constant(value) -> Callable[[], torch.Tensor]:
    return lambda: torch.tensor(value)


OPERANDS = tuple(Tensor(letter, (), letter) for letter in "abcdefgh")
X, Y, Z, V, U, *_ = OPERANDS


def _example(node: Node, *draws, exact: bool = True) -> Example:
    return Example(node, draws, exact)


def _elementwise():
    for name in (
        "GELU GELUTanh Tanh SiLU Sigmoid LogSigmoid Exp Expm1 Erf Tangent ArcTangent HyperbolicSine HyperbolicCosine "
        "Mish SELU Absolute Negative Cosine Sine"
    ).split():
        yield _example(getattr(e, name)(X), real(2, 3))
    for name in "Log Log2 Log10 Log1p Root".split():
        yield _example(getattr(e, name)(X), positive(2, 3))
    for name in "ReLU ReLU6 HardSigmoid HardSwish Floor Ceiling Round Truncated Sign Bool Not".split():
        yield _example(getattr(e, name)(X), real(2, 3), exact=False)
    for dtype in ("bfloat16", "float16"):
        yield _example(e.Cast(X, to=dtype), real(2, 3), exact=False)
    for dtype in ("int8", "uint8"):
        yield _example(e.Wrapped(e.Scaled(e.Scalar(150), X), to=dtype, whole=False), real(2, 3), exact=False)
    yield _example(e.Softplus(X, beta=2, threshold=20), real(2, 3))
    yield _example(e.LeakyReLU(X, slope=0.1), real(2, 3))
    yield _example(e.ELU(X, alpha=1.5, scale=1, input_scale=1), real(2, 3))
    yield _example(e.SoftShrink(X, edge=0.3), real(2, 3), exact=False)
    yield _example(e.HardShrink(X, edge=0.3), real(2, 3), exact=False)
    yield _example(e.PReLU(X, Y), real(2, 3, 4), real(3), exact=False)
    yield _example(e.PReLU(X, Y), real(2, 3, 4), real(1), exact=False)
    yield _example(e.NanToNum(X, nan=0, above=1e9, below=-1e9), real(2, 3), exact=False)
    yield _example(e.Plus(X, Y, Z), real(2, 3, 4), real(3, 1), real(4))
    yield _example(e.Minus(X, Y), real(2, 3), real(3))
    yield _example(e.Times(X, Y), real(2, 1, 4), real(3, 1))
    yield _example(e.Over(X, 7), real(2, 3))
    yield _example(e.Div(X, Y), real(2, 3), positive(3))
    yield _example(e.Scaled(X, Y), real(), real(2, 3))
    yield _example(e.Power(X, Y), positive(2, 3), real())
    yield _example(e.Remainder(X, Y), real(2, 3), positive(3), exact=False)
    yield _example(e.Minimum(X, Y), real(2, 3), real(2, 3), exact=False)
    yield _example(e.Maximum(X, Y), real(2, 3), real(2, 3), exact=False)
    yield _example(e.ArcTangent2(X, Y), real(2, 3), real(2, 3))
    yield _example(e.Lerp(X, Y, Z), real(2, 3), real(2, 3), real())
    yield _example(e.ScaledBy(X, Y), real(), real(2, 3))
    for name in ("And", "Or", "Xor"):
        yield _example(getattr(e, name)(X, Y), truth(2, 3), truth(3), exact=False)
    yield _example(e.Compare(X, Y, sign=r"\le"), real(2, 3), real(3), exact=False)
    yield _example(e.Where(X, Y, Z), truth(2, 3), real(2, 3), real(3), exact=False)
    yield _example(e.CellCases(X, Y, Z), truth(2, 3), real(2, 3), real(3), exact=False)
    yield _example(e.Provided(X, Y), real(3, 3), constant(1.0), exact=False)
    yield _example(e.Real(X), complexes(2, 3), exact=False)
    yield _example(e.Imaginary(X), complexes(2, 3), exact=False)
    yield _example(e.Conjugate(X), complexes(2, 3), exact=False)
    yield _example(e.Polar(X, Y), positive(2, 3), real(2, 3), exact=False)
    yield _example(e.Pairs(X), real(2, 3, 2), exact=False)
    yield _example(e.RealAndImaginary(X), complexes(2, 3), exact=False)


def _layouts():
    yield _example(e.Transposed(X), real(2, 3, 4))
    yield _example(e.Row(X, 1), real(2, 3, 4))
    yield _example(e.SplitHeads(X, 3), real(2, 4, 6))
    yield _example(e.SplitHeads(X, 3), real(2, 2, 4, 6))
    yield _example(e.MergeHeads(X), real(2, 3, 4, 2))
    yield _example(e.FlattenKernel(X), real(4, 3, 2, 2))
    yield _example(e.Columns(X, 2, 5), real(2, 3, 6))
    yield _example(e.TransposeBatchSeq(X, 2, 3), real(2, 3, 4))
    yield _example(e.Squeeze(X, 2), real(1, 1, 4))
    yield _example(e.ExpandLeading(X, 2, 1), real(3, 4))
    yield _example(e.Rearrange(X, (2, 5, 3, 4), ((0,), (1,), (2, 3)), ((0,), (2,), (1,), (3,))), real(2, 5, 12))
    yield _example(e.Rearrange(X, (2, 3, 4, 5), ((0, 1), (2,)), ((3,), (2, 0), (1,)), (3,)), real(6, 4))
    yield _example(e.Patches(X, 2), real(2, 3, 4, 6))
    yield _example(e.Unfold(X, 2), real(2, 3, 4, 6))
    yield _example(e.Fold(X, 2), real(2, 3, 2, 12))
    yield _example(e.Grid(X, 2, 3), real(2, 6, 4))
    yield _example(e.WindowPartition(X, 2), real(2, 4, 6, 3))
    yield _example(e.WindowReverse(X, 4, 6), real(12, 4, 3))
    yield _example(e.RowsFrom(X, 2), real(2, 5, 3))
    yield _example(e.Rows(X, 3), real(5, 2))
    yield _example(e.Rows(X, 3), real(2, 5, 3))
    yield _example(e.Repeat(X, 2, 3), real(4))
    yield _example(e.RepeatKV(X, 6), real(2, 3, 4, 2))
    yield _example(e.ConcatTokens(X, Y), real(3), real(2, 4, 3))
    yield _example(e.ConcatTokens(X, Y), real(2, 4, 3), real(1, 2, 3))
    yield _example(e.Concat(X, Y, Z, axis=1, rank=3), real(2, 1, 3), real(2, 4, 3), real(2, 2, 3))
    yield _example(e.Stack(X, Y, axis=1), real(2, 3), real(2, 3))
    yield _example(e.Stack(X, Y, axis=0), real(), real())
    for mode in (None, "reflect", "replicate", "circular"):
        yield _example(e.Pad(X, pads=(2, 1, 1, -1), mode=mode, value=None), real(2, 4, 5))
    yield _example(e.Full(X, shape=(2, 3, 4)), real(3, 1))
    yield _example(e.Plus(X, e.Full(e.Scalar(1), shape=(3, 4))), real(3, 4))
    yield _example(e.Tril(X, diagonal=1), real(2, 4, 5))
    yield _example(e.Triu(X, diagonal=-1), real(2, 4, 5))
    yield _example(e.Flip(X, axes=(0, 2), labels=None), real(2, 4, 5))
    yield _example(e.Roll(X, shifts=(2, -1), axes=(1, 2), labels=None), real(2, 4, 5))
    yield _example(e.Slice(X, ((1, None, 2), 2, FULL_SLICE, (-2, None, None))), real(2, 4, 3, 5))


def _sums():
    yield _example(e.Product(X, Y), real(2, 3, 4, 5), real(3, 5, 2))
    yield _example(e.Einsum(X, Y, axes="bik,bjk->bij"), real(2, 3, 4), real(2, 5, 4))
    yield _example(e.Einsum(X, Y, axes="ik,jk->"), real(3, 4), real(5, 4))
    yield _example(e.Einsum(X, Y, axes="ik,->ik"), real(3, 4), real())
    yield _example(e.Einsum(X, Y, axes="ik,jk->ij"), real(3, 1), real(5, 1))
    yield _example(e.Einsum(X, axes="ij->ji"), real(3, 4))
    yield _example(e.Einsum(X, axes="ii->i"), real(3, 3))
    yield _example(e.Einsum(X, Y, Z, axes="i,ij,j->i"), real(3), real(3, 4), real(4))
    yield _example(e.Outer(X, Y), real(3), real(4))
    yield _example(e.ColumnProduct(X, Y), real(2, 3, 4), real(4))
    yield _example(e.RowProduct(X, Y), real(4), real(4, 3))
    yield _example(e.Dot(X, Y), real(4), real(4))
    yield _example(e.GroupedProduct(X, Y, Z), real(5, 2), real(3, 2, 4), constant([2, 2, 4]))
    expert = e.Product(Tensor("x", (5, 2), "expert token"), Tensor("w", (2, 4), "expert 0"))
    routes = constant([[0, 1], [2, 0], [1, 2], [0, 2], [1, 0]])
    yield _example(e.Experts(expert, X, Y, Z, V), real(5, 2), real(5, 2), routes, real(3, 2, 4), exact=False)
    yield _example(e.AllExperts(expert, 3, X, Y, Z), real(5, 2), real(5, 3), real(3, 2, 4), exact=False)
    body = e.Plus(Tensor("x", (2,), "iteration 0"), Tensor("y", (2,), "iteration 1"))
    turns = e.Scan(body, 3, 0, (False, False), [(1, 0, 0), (2, 0, 2), (3, 0, 0)], X, Y, Z)
    yield _example(turns, real(3, 2), real(3, 2), real(2), exact=False)
    body = e.Plus(Tensor("x", (1, 2), "iteration 0"), Tensor("y", (1, 2), "iteration 1"))
    turns = e.Scan(body, 3, 0, (True, True), [(4, 0, 0), (2, 0, 2), (3, 0, 0)], X, Y, Z)
    yield _example(turns, real(3, 2), real(3, 2), real(2), exact=False)
    wide = {"before": (1, 2), "after": (2, 0), "stride": (2, 1), "dilation": (1, 2)}
    yield _example(e.Convolution(X, Y, Z, groups=2, **wide), real(2, 4, 7, 6), real(6, 2, 3, 2), real(6))
    one = {"before": (1,), "after": (1,), "stride": (2,), "dilation": (1,), "groups": 1}
    yield _example(e.Convolution(X, Y, **one), real(3, 7), real(4, 3, 3))
    wide = {"stride": (2, 1), "padding": (1, 0), "extra": (1, 0), "dilation": (1, 2)}
    yield _example(e.TransposedConvolution(X, Y, Z, groups=2, **wide), real(2, 4, 4, 3), real(4, 3, 3, 2), real(6))
    one = {"stride": (3,), "padding": (1,), "extra": (0,), "dilation": (1,), "groups": 1}
    yield _example(e.TransposedConvolution(X, Y, **one), real(2, 4), real(2, 3, 2))
    square = {"window": (3, 2), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
    yield _example(e.WindowColumns(X, **square), real(2, 3, 5, 6), exact=False)
    yield _example(e.WindowSums(X, sizes=(5, 6), **square), real(2, 18, 12), exact=False)
    pool = {"window": (3, 2), "stride": (2, 2), "padding": (1, 0), "dilation": (1, 1), "up": False}
    yield _example(e.MaxPool(X, **pool), real(2, 6, 5), exact=False)
    yield _example(e.MaxPool(X, **pool | {"dilation": (2, 1)}), real(2, 8, 5), exact=False)
    yield _example(e.AveragePool(X, bare=True, divisor=None, **pool), real(2, 6, 5))
    yield _example(e.AveragePool(X, bare=False, divisor=None, **pool), real(2, 6, 5))
    yield _example(e.AdaptiveAverage(X, sizes=(3, 2)), real(2, 7, 5))
    yield _example(e.AdaptiveMax(X, sizes=(3, 2)), real(2, 7, 5), exact=False)
    for how, corners in (("nearest", False), ("linear", True), ("cubic", False)):
        yield _example(e.Interpolate(X, sizes=(5, 3), how=how, corners=corners, ratios=None), real(2, 4, 6))


def _rows():
    yield _example(e.Softmax(X), real(2, 3, 4))
    yield _example(e.SoftmaxAlong(X, axes=(1,), labels=None), real(2, 3, 4))
    yield _example(e.LogSoftmax(X, axes=(1,), labels=None), real(2, 3, 4))
    yield _example(e.LayerNorm(1e-5, X, Y, Z), real(2, 3, 4), real(4), real(4))
    yield _example(e.LayerNorm(1e-5, X, Y), real(2, 3, 4), real(4))
    yield _example(e.RMSNorm(1e-5, X, Y), real(2, 3, 4), real(4))
    yield _example(e.UnitLength(X), real(2, 4))
    running = {"eps": 1e-5, "affine": "weight bias", "wide": True}
    yield _example(e.BatchNorm(X, Y, Z, V, U, **running), real(2, 3, 4), real(3), positive(3), real(3), real(3))
    given = {"eps": 1e-5, "affine": "weight bias"}
    yield _example(e.GroupNorm(X, Y, Z, groups=2, **given), real(2, 4, 3), real(4), real(4))
    yield _example(e.ChannelNorm(X, Y, axes=(2,), labels=None, eps=1e-5, affine="weight"), real(2, 3, 4), real(3))
    yield _example(e.LayerNormOver(X, Y, Z, axes=(1, 2), labels=None, **given), real(2, 3, 4), real(3, 4), real(3, 4))
    yield _example(e.LayerNormOver(X, axes=None, labels=None, eps=1e-5, affine=None), real(2, 3, 4))
    less = {"axes": None, "labels": None, "eps": 1e-3, "affine": "weight bias", "count": 4}
    for how, centred in (("inside", True), ("outside", True), ("clamped", False)):
        other = e.DeviationNorm(X, Y, Z, how=how, centred=centred, less=int(centred), **less)
        yield _example(other, real(2, 3, 4), real(4), real(4))
    yield _example(e.RMSNormOver(X, Y, axes=None, labels=None, eps=1e-5, affine="weight"), real(2, 3, 4), real(4))
    over = {"axes": (0, 2), "labels": None, "keep": False}
    for name in ("Mean", "Sum", "Prod", "LogSumExp"):
        yield _example(getattr(e, name)(X, **over), real(2, 3, 4))
    yield _example(e.Mean(X, axes=(1,), labels=None, keep=True), real(2, 3, 4))
    for name in ("Max", "Min", "ArgMax", "ArgMin", "AnyOf", "AllOf", "CountNonzero"):
        axes = over if "Arg" not in name else {**over, "axes": (1,)}
        yield _example(getattr(e, name)(X, **axes), real(2, 3, 4), exact=False)
    yield _example(e.Variance(X, less=1, **over), real(2, 3, 4))
    yield _example(e.Std(X, less=0, **over), real(2, 3, 4))
    yield _example(e.Norm(X, p=2, usual=False, **over), real(2, 3, 4))
    yield _example(e.CumSum(X, axes=(1,), labels=None), real(2, 3, 4))
    yield _example(e.CumProd(X, axes=(1,), labels=None), real(2, 3, 4))
    yield _example(e.GLU(X, axes=(1,), labels=None), real(2, 6, 3))
    yield _example(e.Sort(X, down=True, axes=(1,), labels=None), real(2, 4, 3), exact=False)
    yield _example(e.ArgSort(X, down=False, axes=None, labels=None), real(2, 4), exact=False)
    yield _example(e.TopK(X, k=2, down=True, axes=(1,), labels=None), real(2, 4, 3), exact=False)
    yield _example(e.ArgTopK(X, k=2, down=True, axes=None, labels=None), real(2, 4), exact=False)


def _losses():
    for reduction in ("mean", "sum", "none"):
        settings = {"reduction": reduction, "ignore": None}
        likelihood = e.NegativeLogLikelihood(X, Y, sizes=(3,), **settings)
        yield _example(likelihood, real(3, 4), whole(4, 3), exact=False)
        weighted = e.NegativeLogLikelihood(X, Y, Z, sizes=(2, 3), **settings)
        yield _example(weighted, real(2, 4, 3), whole(4, 2, 3), positive(4), exact=False)
    left_out = e.NegativeLogLikelihood(X, Y, reduction="mean", ignore=1, sizes=(3,))
    yield _example(left_out, real(3, 4), constant([0, 1, 3]), exact=False)


def _places():
    yield _example(e.Lookup(X, Y), real(7, 3), whole(7, 2, 4))
    yield _example(e.Take(X, Y), real(2, 5, 3), different(2, 5, 2))
    yield _example(e.Put(X, Y, Z), real(2, 5, 3), different(2, 5, 2), real(2, 2, 3), exact=False)
    yield _example(e.FirstOf(X, 2), whole(4, 2, 5), exact=False)
    yield _example(e.RowsAt(X, Y), real(2, 5, 3), whole(5, 2))
    yield _example(e.AtDistance(X, Y), real(2, 4, 6), whole(6, 4, 4))
    yield _example(e.SumsByDistance(X, Y, 3), real(2, 4, 4), whole(3, 4, 4), exact=False)
    yield _example(e.Index(X, Y, entries=(None, "t", None), result=None), real(2, 5, 3), whole(5, 4))
    yield _example(e.Index(X, Y, Z, entries=("t", "t", None), result=None), real(4, 5, 3), whole(4, 2, 1), whole(5, 3))
    yield _example(e.Index(X, Y, Z, entries=("t", None, "t"), result=None), real(4, 5, 3), whole(4, 2), whole(3, 2))
    yield _example(e.Index(X, Y, entries=((1, None, None), "t"), result=(3, 2)), real(4, 5), whole(5, 2))
    mask = [True, False, True, True]
    yield _example(e.Index(X, Y, entries=("m", None), result=(3, 2)), real(4, 2), constant(mask), exact=False)
    yield _example(e.Nonzero(X, count=3), constant(mask), exact=False)
    yield _example(e.Linspace(X, Y, count=5), real(), real(), exact=False)
    yield _example(
        e.IndexPut(X, Y, Z, entries=(None, "t"), add=False), real(2, 5), real(2, 2), constant([1, 3]), exact=False
    )
    yield _example(e.Gather(X, Y, axes=(1,), labels=None), real(2, 5, 3), whole(5, 2, 4, 3))
    yield _example(
        e.Scatter(X, Y, Z, how=None, axes=(1,), labels=None), real(2, 5), different(3, 5, 2), real(2, 3), exact=False
    )
    yield _example(e.MaskedScatter(X, Y, Z), real(2, 3), truth(2, 3), real(6), exact=False)
    yield _example(e.OneHot(X, classes=4), whole(4, 2, 3), exact=False)
    yield _example(e.IsContiguous(X), whole(2, 1, 4), exact=False)
    yield _example(e.Angles(X, Y), real(1, 5), real(3))
    yield _example(e.ApplyRotary(X, Y, Z), real(2, 3, 4, 6), real(1, 4, 6), real(1, 4, 6))
    yield _example(e.RotateHalf(X), real(2, 4, 6))
    yield _example(e.RotateEveryTwo(X), real(2, 4, 6))
    for name, gates, states in (("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 1)):
        for back, last in ((False, None), (True, None), (False, 0)):
            more = {"relu": False} if name == "RNN" else {}
            weights = real(gates * 3, 2), real(gates * 3, 3), real(gates * 3), real(gates * 3)
            node = getattr(e, name)(*OPERANDS[: 5 + states], back=back, last=last, **more)
            yield _example(node, real(4, 2, 2), *[real(2, 3)] * states, *weights, exact=False)
    for last in (None, 0, 1):
        weights = real(16, 2), real(16, 3), real(16), real(16), real(3, 4)
        node = e.LSTM(*OPERANDS[:8], last=last)
        yield _example(node, real(5, 2, 2), real(2, 3), real(2, 4), *weights, exact=False)
    kernel = e.Kernel.of("aten.tanh.default", {"self": X}, 0, (2, 3))
    yield _example(kernel, real(2, 3), exact=False)


def _constants():
    for node in (
        e.CausalMask(4),
        e.Triangle(4, 1, 0),
        e.CausalMaskBetween(3, 5),
        e.PrefixMask(4, 2),
        e.Sinusoids(4, 6),
        e.Sinusoids(4, 6, base=500, over=4, first=1),
        e.Sinusoids(4, 6, halves=True),
        e.Distances(4, 2),
        e.PositionIds(4),
        e.Identity(4, 4),
        e.Identity(2, 3),
    ):
        yield _example(node)
    for node in (e.Arange(4), e.ArangeFrom(4, 1, 1), e.ArangeFrom(3, 5, -2), e.Scalar(0.5), e.Head(1)):
        yield _example(node)


def examples() -> dict[str, Example]:
    """Return all examples, by the names of their classes; a class with several has them numbered."""
    found: dict[str, Example] = {}
    for group in (_elementwise, _layouts, _sums, _rows, _losses, _places, _constants):
        for example in group():
            name, number = type(example.node).__name__, 1
            while (key := name if number == 1 else f"{name} {number}") in found:
                number += 1
            found[key] = example
    return found
