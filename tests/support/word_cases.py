"""Calls of PyTorch's ops at two sets of sizes, one or several for each word of `tracer.lowering.aten`."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from tracer.ops import NO_LABEL
from tracer.symbols.notation import parse

SIZES = (
    {"B": 2, "C": 6, "H": 11, "W": 13, "N": 5, "D": 8, "K": 3, "h": 4, "d_k": 7},
    {"B": 3, "C": 10, "H": 14, "W": 17, "N": 11, "D": 12, "K": 6, "h": 4, "d_k": 9},
)
"""All distinct, as in a probe; C and D are even, D is a multiple of h, C can be cut into groups of two."""


class T(NamedTuple):
    """A tensor of a call: its axes as `"B N 2*D"`, and the kind of its numbers: `real`, `positive`, `share` (between 0
    and 1), `truth`, `places N`, `distinct`, `order` (a permutation along the last axis), `ends N` (of runs that add up
    to N) or `complex`."""

    axes: str
    kind: str = "real"
    parameter: bool = False

    @property
    def symbolic(self) -> tuple:
        return tuple(map(parse, self.axes.split()))

    def numeric(self, sizes: dict[str, int]) -> tuple[int, ...]:
        return tuple(int(value(size, sizes)) for size in self.axes.split())

    def draw(self, sizes: dict[str, int], generator: torch.Generator) -> torch.Tensor:
        shape = self.numeric(sizes)
        kind, *of = self.kind.split()
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        match kind:
            case "share":
                return drawn.sigmoid()
            case "positive":
                return drawn.abs() + 0.1
            case "truth":
                return drawn > 0
            case "places":
                return torch.randint(0, value(of[0], sizes), shape, generator=generator)
            case "ends":
                return torch.arange(1, shape[0] + 1, dtype=torch.int32) * value(of[0], sizes) // shape[0]
            case "order":
                return torch.rand(shape, generator=generator).argsort(-1) if shape else torch.tensor(0)
            case "whole":
                return torch.randint(-9, 9, shape, generator=generator)
            case "complex":
                return torch.randn(shape, generator=generator, dtype=torch.complex128)
            case "gaps":
                return drawn.masked_fill(drawn > 1, math.inf).masked_fill(drawn < -1, math.nan)
        return drawn


def value(expression: str, sizes: dict[str, int]) -> float:
    return eval(expression, {}, dict(sizes))  # our own strings


def size(expression: str):
    """Return an argument that is a number of the current sizes: `size("K")`."""
    return Size(expression)


class Size(str):
    """A plain argument that depends on the sizes."""


class Case(NamedTuple):
    """One call: an op, its arguments, the requested output."""

    op: object
    arguments: dict
    position: int = 0
    single: bool = False
    """Whether the op has no float64: its own result is then that of float32, to five digits."""


_aten = torch.ops.aten
CASES: dict[str, list[Case]] = {}


def case(op, *arguments, position: int = 0, single: bool = False, **named) -> None:
    """Return a case with arguments by their positions in the schema, then by name."""
    schema = op._schema
    given = {argument.name: one for argument, one in zip(schema.arguments, arguments, strict=False)} | named
    CASES.setdefault(schema.name.removeprefix("aten::"), []).append(Case(op, given, position, single))


X, Y, V, IMAGE = T("B N D"), T("B N D"), T("D"), T("B C H W")
POSITIVE, TRUTH = T("B N D", "positive"), T("B N D", "truth")

# ---- products
case(_aten.linear.default, X, T("K D", parameter=True), T("K", parameter=True))
case(_aten.linear.default, X, T("K D", parameter=True))
case(_aten.linear.default, X, T("K D"), T("K"))
case(_aten.linear.default, V, T("K D"), T("K"))
case(_aten.matmul.default, T("B h N d_k"), T("B h d_k N"))
case(_aten.matmul.default, X, V)
case(_aten.matmul.default, V, T("D K"))
case(_aten.matmul.default, V, V)
case(_aten.mm.default, T("N D"), T("D K"))
case(_aten.bmm.default, X, T("B D K"))
case(_aten.mv.default, T("N D"), V)
case(_aten.dot.default, V, V)
case(_aten.vdot.default, V, V)
case(_aten.inner.default, V, V)
case(_aten.outer.default, V, T("N"))
case(_aten.ger.default, V, T("N"))
case(_aten.addmm.default, T("K"), T("N D"), T("D K"))
case(_aten.addmm.default, T("N K"), T("N D"), T("D K"), beta=0.5, alpha=-1)
case(_aten.addmv.default, T("N"), T("N D"), V)
case(_aten.baddbmm.default, T("B N K"), X, T("B D K"), beta=0, alpha=size("D**-0.5"))
case(_aten.baddbmm.default, T("B N K"), X, T("B D K"), beta=2, alpha=3)
case(_aten.einsum.default, "bnd,bmd->bnm", [X, T("B K D")])
case(_aten.einsum.default, "b h i d, b h j d -> b h i j", [T("B h N d_k"), T("B h K d_k")])
case(_aten.einsum.default, "...d,dk->...k", [X, T("D K")])
case(_aten.einsum.default, "bnd->", [X])
case(_aten.einsum.default, "nd,d", [T("N D"), V])
case(_aten.einsum.default, "bnd->dbn", [X])

case(_aten._grouped_mm.default, T("N D"), T("K D 4*C"), T("K", "ends N"), single=True)

# ---- convolutions
CONV = T("K C 3 3"), T("K")
case(_aten.conv2d.default, IMAGE, *CONV)
case(_aten.conv2d.default, IMAGE, *CONV, stride=[2, 2], padding=[1, 1])
case(_aten.conv2d.default, IMAGE, T("K C 3 2"), None, stride=[2, 1], padding=[1, 0], dilation=[1, 2])
case(_aten.conv2d.default, IMAGE, T("2*K C/2 3 3"), T("2*K"), groups=2)
case(_aten.conv2d.default, IMAGE, T("C 1 3 3"), T("C"), padding=[1], groups=size("C"))
case(_aten.conv2d.default, T("C H W"), *CONV)
case(_aten.conv2d.padding, IMAGE, T("K C 2 3"), T("K"), padding="same")
case(_aten.conv2d.padding, IMAGE, *CONV, padding="valid")
for _window in (([2, 2], [1, 1], [0, 0], [2, 2]), ([3, 2], [1, 1], [1, 0], [1, 1]), ([3, 3], [1, 2], [1, 1], [2, 3])):
    case(_aten.im2col.default, IMAGE, _window[0], _window[1], _window[2], _window[3])
case(_aten.im2col.default, T("C H W"), [3, 3], [1, 1], [1, 1], [1, 1])
case(_aten.col2im.default, T("B 4*C (N-1)*(D-1)"), [size("N"), size("D")], [2, 2], [1, 1], [0, 0], [1, 1])
case(_aten.col2im.default, T("B 4*C N*D"), [size("2*N"), size("2*D")], [2, 2], [1, 1], [0, 0], [2, 2])
case(_aten.col2im.default, T("B 9*C N*D"), [size("N"), size("D")], [3, 3], [1, 1], [1, 1], [1, 1])
case(_aten.col2im.default, T("9*C N*D"), [size("N"), size("D")], [3, 3], [2, 2], [2, 2], [1, 1])
case(_aten.conv1d.default, T("B C N"), T("K C 3"), T("K"), padding=[1])
case(_aten.conv3d.default, T("B C N H W"), T("K C 2 3 3"), T("K"), stride=[1, 2, 3])
case(_aten.conv_transpose2d.input, IMAGE, T("C K 3 3"), T("K"), stride=[2, 2], padding=[1, 1], output_padding=[1, 1])
case(_aten.conv_transpose2d.input, IMAGE, T("C K 3 2"), None, dilation=[2, 1])
case(_aten.conv_transpose2d.input, IMAGE, T("C K 2 2"), T("2*K"), stride=[2, 2], groups=2)
case(_aten.conv_transpose1d.default, T("B C N"), T("C K 4"), T("K"), stride=[2])
case(_aten.conv_transpose3d.input, T("B C K N N"), T("C D 2 2 2"), T("D"), stride=[2, 2, 2])
case(_aten.convolution.default, IMAGE, *CONV, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
case(_aten.convolution.default, IMAGE, T("C K 3 3"), None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)
case(_aten._convolution.default, IMAGE, *CONV, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, False, False, True, True)

# ---- norms
GAMMA, BETA, CHANNEL = T("D"), T("D"), T("C")
MEAN, VAR = T("C"), T("C", "positive")
case(_aten.layer_norm.default, X, [size("D")], GAMMA, BETA)
case(_aten.layer_norm.default, X, [size("D")], GAMMA, None, 1e-6)
case(_aten.layer_norm.default, X, [size("D")])
case(_aten.layer_norm.default, X, [size("D")], None, BETA)
case(_aten.layer_norm.default, IMAGE, [size("C"), size("H"), size("W")], T("C H W"), T("C H W"))
case(_aten.native_layer_norm.default, X, [size("D")], GAMMA, BETA, 1e-5)
case(_aten.rms_norm.default, X, [size("D")], GAMMA, 1e-6)
case(_aten.rms_norm.default, X, [size("D")])
case(_aten.rms_norm.default, X, [size("N"), size("D")], T("N D"), 1e-3)
case(_aten._fused_rms_norm.default, X, [size("D")], GAMMA, 1e-6)
case(_aten.batch_norm.default, IMAGE, CHANNEL, CHANNEL, MEAN, VAR, False, 0.1, 1e-5, False)
case(_aten.batch_norm.default, IMAGE, None, None, MEAN, VAR, False, 0.1, 1e-3, False)
case(_aten.batch_norm.default, IMAGE, CHANNEL, CHANNEL, None, None, True, 0.1, 1e-5, False)
case(_aten.batch_norm.default, T("B C"), CHANNEL, CHANNEL, MEAN, VAR, False, 0.1, 1e-5, False)
case(_aten.native_batch_norm.default, IMAGE, CHANNEL, CHANNEL, MEAN, VAR, False, 0.1, 1e-5)
case(_aten._native_batch_norm_legit_no_training.default, IMAGE, CHANNEL, CHANNEL, MEAN, VAR, 0.1, 1e-5)
case(_aten._native_batch_norm_legit.no_stats, IMAGE, CHANNEL, CHANNEL, True, 0.1, 1e-5)
case(_aten._batch_norm_no_update.default, IMAGE, CHANNEL, CHANNEL, MEAN, VAR, 0.1, 1e-5)
case(_aten.instance_norm.default, IMAGE, CHANNEL, CHANNEL, None, None, True, 0.1, 1e-5, False)
case(_aten.instance_norm.default, IMAGE, None, None, None, None, True, 0.1, 1e-5, False)
case(_aten.instance_norm.default, IMAGE, CHANNEL, CHANNEL, MEAN, VAR, False, 0.1, 1e-5, False)
case(_aten.group_norm.default, IMAGE, 2, CHANNEL, CHANNEL)
case(_aten.group_norm.default, T("B C N"), 2)
case(_aten.native_group_norm.default, IMAGE, CHANNEL, CHANNEL, size("B"), size("C"), size("H*W"), 2, 1e-5)

# ---- functions of each number
for _name in (
    "abs absolute atan arctan ceil cos cosh erf special_erf exp expm1 fix floor hardsigmoid hardswish log_sigmoid mish "
    "neg negative relu relu6 selu sgn sigmoid sign silu sin sinh special_expit tan tanh trunc round square deg2rad "
    "rad2deg positive"
).split():
    case(getattr(_aten, _name).default, X)
for _name in "log log10 log1p log2 sqrt rsqrt reciprocal".split():
    case(getattr(_aten, _name).default, POSITIVE)
case(_aten.log_sigmoid_forward.default, X)
case(_aten.logical_not.default, TRUTH)
case(_aten.logical_not.default, T("B N", "whole"))
case(_aten.bitwise_not.default, TRUTH)
case(_aten.gelu.default, X)
case(_aten.gelu.default, X, approximate="tanh")
case(_aten.leaky_relu.default, X, 0.2)
case(_aten.elu.default, X)
case(_aten.elu.default, X, 0.5)
case(_aten.elu.default, X, 0.5, 2, 3)
case(_aten.celu.default, X, 2.0)
case(_aten.prelu.default, IMAGE, T("C"))
case(_aten.prelu.default, X, T("1"))
case(_aten._prelu_kernel.default, X, T("1"))
case(_aten.softplus.default, X)
case(_aten.softplus.default, X, 2, 1)
case(_aten.softshrink.default, X, 0.3)
case(_aten.hardshrink.default, X, 0.3)
case(_aten.hardtanh.default, X)
case(_aten.hardtanh.default, X, 0, 6)
case(_aten.threshold.default, X, 0.1, -20)
case(_aten.nan_to_num.default, T("B N", "gaps"), 0.5, 9.0, -9.0)
case(_aten.softmax.int, X, -1)
case(_aten.softmax.int, X, 1)
case(_aten._softmax.default, X, 0, False)
case(_aten.log_softmax.int, X, -1)
case(_aten._log_softmax.default, X, 1, False)
case(_aten.glu.default, X)
case(_aten.glu.default, IMAGE, 1)
case(_aten.to.dtype, X, torch.int64)
case(_aten.to.dtype, X, torch.bool)
case(_aten._to_copy.default, X, dtype=torch.float64)
case(_aten._to_copy.default, TRUTH, dtype=torch.float64)
case(_aten.to.other, X, T("B", "places N"))
case(_aten.type_as.default, T("B N", "whole"), X)
case(_aten.clone.default, X)
case(_aten.contiguous.default, X)
case(_aten.alias.default, X)
case(_aten.detach.default, X)
case(_aten.lift_fresh.default, X)
case(_aten.lift_fresh_copy.default, X)
case(_aten.resolve_conj.default, X)
case(_aten.resolve_neg.default, X)
case(_aten.dropout.default, X, 0.5, False)
case(_aten.feature_dropout.default, X, 0.5, False)
case(_aten.alpha_dropout.default, X, 0.5, False)
case(_aten.native_dropout.default, X, 0.5, False)

# ---- arithmetic
for (
    _name
) in "add sub mul div maximum minimum fmax fmin atan2 arctan2 subtract multiply divide true_divide logaddexp".split():
    _op = getattr(_aten, _name)
    case(getattr(_op, "Tensor" if "Tensor" in _op.overloads() else "default"), X, V)
case(_aten.add.Tensor, X, Y, alpha=-1)
case(_aten.add.Tensor, X, Y, alpha=0.5)
case(_aten.add.Scalar, X, -2.5)
case(_aten.add.Scalar, T("B N", "whole"), 1)
case(_aten.sub.Tensor, X, Y, alpha=2)
case(_aten.sub.Scalar, X, 1e-5)
case(_aten.rsub.Tensor, X, Y)
case(_aten.rsub.Scalar, X, 1)
case(_aten.mul.Scalar, X, size("D**-0.5"))
case(_aten.mul.Scalar, X, size("D**0.5"))
case(_aten.mul.Scalar, X, -0.5)
case(_aten.mul.Scalar, X, -1)
case(_aten.mul.Tensor, X, T("B N 1"))
case(_aten.div.Scalar, X, size("D**0.5"))
case(_aten.div.Scalar, X, size("D**-0.5"))
case(_aten.div.Scalar, X, 3)
case(_aten.div.Tensor_mode, X, Y, rounding_mode="floor")
case(_aten.div.Tensor_mode, X, Y, rounding_mode="trunc")
case(_aten.div.Scalar_mode, T("N", "whole"), 2, rounding_mode="floor")
case(_aten.floor_divide.default, X, Y)
case(_aten.floor_divide.Scalar, T("N", "whole"), 3)
case(_aten.remainder.Tensor, X, V)
case(_aten.remainder.Scalar, T("N", "whole"), 3)
case(_aten.fmod.Tensor, X, V)
case(_aten.fmod.Scalar, X, 0.3)
for _exponent in (2, 3, 0.5, -0.5, -1, -2, 1.7):
    case(_aten.pow.Tensor_Scalar, POSITIVE, _exponent)
case(_aten.pow.Tensor_Tensor, POSITIVE, V)
case(_aten.pow.Scalar, 10000, V)
case(_aten.addcmul.default, X, Y, V)
case(_aten.addcmul.default, X, Y, V, value=0.1)
case(_aten.addcdiv.default, X, Y, T("D", "positive"), value=-0.1)
case(_aten.lerp.Scalar, X, Y, 0.3)
case(_aten.lerp.Tensor, X, Y, V)
case(_aten.clamp.default, X, -1, 1)
case(_aten.clamp.default, X, None, 0.5)
case(_aten.clamp.Tensor, X, V, None)
case(_aten.clip.default, X, -1.0, 1.0)
case(_aten.clamp_min.default, X, 1e-9)
case(_aten.clamp_max.default, X, 0)
for _name in "eq ne lt gt le ge not_equal less greater less_equal greater_equal".split():
    case(getattr(_aten, _name).Scalar, T("B N", "whole"), 0)
    case(getattr(_aten, _name).Tensor, T("B 1 N"), T("N 1"))
case(_aten.isnan.default, T("B N", "gaps"))
case(_aten.isinf.default, T("B N", "gaps"))
case(_aten.isfinite.default, T("B N", "gaps"))
for _name in "logical_and logical_or logical_xor".split():
    case(getattr(_aten, _name).default, TRUTH, T("N D", "truth"))
for _name in "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__ __iand__ __ior__ __ixor__".split():
    case(getattr(_aten, _name).Tensor, TRUTH, T("N D", "truth"))
case(_aten.where.self, TRUTH, X, V)
case(_aten.where.ScalarOther, TRUTH, X, -math.inf)
case(_aten.masked_fill.Scalar, X, T("N D", "truth"), -math.inf)
case(_aten.masked_fill.Scalar, X, TRUTH, -1e9)
case(_aten.masked_fill.Scalar, X, TRUTH, -3.4028234663852886e38)
case(_aten.masked_fill.Tensor, X, TRUTH, T(""))

# ---- along axes
for _name in "mean sum prod any all".split():
    case(getattr(_aten, _name).default, X)
for _name in "mean.dim sum.dim_IntList amax.default amin.default logsumexp.default linalg_vector_norm.default".split():
    _op = getattr(getattr(_aten, _name.split(".")[0]), _name.split(".")[1])
    for _dim, _keep in (([-1], True), ([1], False), ([2, 3], False), ([1], True), ([0, 2], True)):
        case(_op, IMAGE, dim=_dim, keepdim=_keep)
case(_aten.mean.dim, T("h N N"), [1])
case(_aten.mean.dim, T("B D D"), [1], True)
case(_aten.special_logsumexp.default, X, [1])
case(_aten.prod.dim_int, X, 1)
case(_aten.any.dim, TRUTH, 1)
case(_aten.all.dim, TRUTH, -1, True)
case(_aten.count_nonzero.dim_IntList, TRUTH, [1])
for _name in ("max", "min"):
    case(getattr(_aten, _name).default, X)
    case(getattr(_aten, _name).other, X, Y)
    case(getattr(_aten, _name).dim, X, 1)
    case(getattr(_aten, _name).dim, X, -1, True, position=1)
for _name in ("argmax", "argmin"):
    case(getattr(_aten, _name).default, X, -1)
    case(getattr(_aten, _name).default, X, 1, True)
    case(getattr(_aten, _name).default, X)
for _name in ("var", "std", "var_mean", "std_mean"):
    case(getattr(_aten, _name).correction, X, [1], correction=0)
    case(getattr(_aten, _name).correction, X, [-1], correction=1, keepdim=True)
    case(getattr(_aten, _name).dim, X, [0, 1])
case(_aten.var.default, X)
case(_aten.var_mean.correction, X, [1], correction=0, position=1)
case(_aten.norm.Scalar, X)
case(_aten.norm.ScalarOpt_dim, X, 2, [-1], True)
case(_aten.norm.ScalarOpt_dim, X, 1, [1])
case(_aten.linalg_vector_norm.default, X, math.inf, [1])
case(_aten.linalg_vector_norm.default, X, 3, [-1])
case(_aten.linalg_norm.default, X)
case(_aten.frobenius_norm.dim, X, [1, 2])
case(_aten.cumsum.default, X, 1)
case(_aten.cumsum.default, T("B N", "truth"), -1)
case(_aten.cumprod.default, X, -1)
for _position in (0, 1):
    case(_aten.topk.default, X, 2, position=_position)
    case(_aten.topk.default, X, 3, 1, False, position=_position)
for _position in (0, 1):
    case(_aten.sort.stable, X, stable=True, dim=1, position=_position)
case(_aten._is_all_true.default, T("B N", "truth"))
case(_aten._is_any_true.default, T("B N", "truth"))
case(_aten.arange.default, size("N"))
case(_aten.arange.start_step, 7, -5, -3)
case(_aten.eye.default, size("N"))
case(_aten.eye.m, size("N"), size("K"))
case(_aten.linspace.default, -1.5, size("N"), size("K"))
case(_aten.triu_indices.default, 5, 4, 1)
case(_aten.triu_indices.default, 3, 6)
case(_aten.tril_indices.default, 5, 4, -1)
case(_aten.tril_indices.default, 4, 4)
case(_aten.nonzero.default, T("3 4", "positive"))
case(_aten._efficientzerotensor.default, [size("B"), size("N")])
case(_aten.zeros.default, [size("B"), size("N")])
case(_aten.ones.default, [size("N")])
case(_aten.full.default, [size("B"), 2], 0.5)
case(_aten.argsort.stable, X, stable=True)
case(_aten.argsort.stable, X, stable=True, dim=0, descending=True)
case(_aten.one_hot.default, T("B N", "places K"), size("K"))

# ---- windows and sizes of pictures
for _axes, _image in (("1d", T("B C W")), ("2d", IMAGE), ("3d", T("B C N H W"))):
    _count = int(_axes[0])
    for _name in (f"max_pool{_axes}", f"avg_pool{_axes}"):
        case(getattr(_aten, _name).default, _image, [2] * _count)
        case(getattr(_aten, _name).default, _image, [3] * _count, [2] * _count, [1] * _count)
        case(getattr(_aten, _name).default, _image, [3] * _count, [2] * _count, [1] * _count, ceil_mode=True)
    case(getattr(_aten, f"adaptive_avg_pool{_axes}").default, _image, [3, 2, 1][:_count])
    case(getattr(_aten, f"adaptive_max_pool{_axes}").default, _image, [3, 2, 1][:_count])
case(_aten.max_pool2d.default, IMAGE, [3, 2], [2, 1], [1, 0], [1, 2])
case(_aten.max_pool2d.default, IMAGE, [2, 2], [1, 1], [0, 0], [2, 2])
case(_aten.max_pool2d_with_indices.default, IMAGE, [2, 2])
case(_aten.max_pool1d_with_indices.default, T("B C W"), [2])
case(_aten.max_pool3d_with_indices.default, T("B C N H W"), [2, 2, 2])
case(_aten.avg_pool2d.default, IMAGE, [3, 3], [2, 2], [1, 1], count_include_pad=False)
case(_aten.avg_pool2d.default, IMAGE, [3, 3], [2, 2], [1, 1], True, True, 5)
case(_aten._adaptive_avg_pool2d.default, IMAGE, [1, 1])
case(_aten._adaptive_avg_pool3d.default, T("B C N H W"), [1, 1, 1])
case(_aten.adaptive_avg_pool2d.default, IMAGE, [7, 5])
for _name, _image, _more in (
    ("upsample_nearest1d", T("B C W"), 0),
    ("upsample_nearest2d", IMAGE, 0),
    ("upsample_nearest3d", T("B C N H W"), 0),
    ("_upsample_nearest_exact1d", T("B C W"), 0),
    ("_upsample_nearest_exact2d", IMAGE, 0),
    ("_upsample_nearest_exact3d", T("B C N H W"), 0),
    ("upsample_linear1d", T("B C W"), 1),
    ("upsample_bilinear2d", IMAGE, 1),
    ("upsample_trilinear3d", T("B C N H W"), 1),
    ("upsample_bicubic2d", IMAGE, 1),
):
    _count = len(_image.axes.split()) - 2
    case(getattr(_aten, _name).default, _image, [7, 20, 9][:_count], *([False] * _more))
    if _more:
        case(getattr(_aten, _name).default, _image, [7, 20, 9][:_count], True)
case(_aten.upsample_bilinear2d.vec, IMAGE, None, False, [2.0, 2.0])
case(_aten.upsample_bilinear2d.vec, IMAGE, None, False, [1.7, 2.3])
case(_aten.upsample_nearest2d.vec, IMAGE, None, [2.0, 3.0])

# ---- places
TOKENS, ORDER = T("B K", "places N"), T("K", "order")
case(_aten.embedding.default, T("N D"), TOKENS)
case(_aten.index_select.default, X, 1, T("K", "places N"))
case(_aten.index_select.default, V, 0, T("K", "places D"))
case(_aten.index.Tensor, X, [None, T("K", "places N")])
case(_aten.index.Tensor, X, [T("B 1", "places B"), TOKENS])
case(_aten.index.Tensor, X, [T("K", "places B"), None, T("K", "places D")])
case(_aten.index.Tensor, X, [T("B N", "truth")])
case(_aten.index.Tensor, X, [T("B N D", "truth")])
case(_aten.index.Tensor, V, [T("K", "places D")])
case(_aten._unsafe_index.Tensor, X, [None, T("K", "places N")])
case(_aten.index_put.default, X, [None, T("K", "order")], T("B K D"))
case(_aten.index_put.default, X, [T("K", "places B"), T("K", "places N")], T("K D"), True)
case(_aten.index_put.default, X, [T("B N", "truth")], T(""))
case(_aten._unsafe_index_put.default, X, [T("B", "order"), T("B", "order")], T("B D"))
case(_aten._index_put_impl.default, X, [None, T("K", "order")], T("B K D"))
case(_aten.masked_select.default, X, TRUTH)
case(_aten.gather.default, X, 1, T("B K D", "places N"))
case(_aten.gather.default, X, 2, T("B N K", "places D"))
case(_aten.take_along_dim.default, X, T("B K D", "places N"), 1)
case(_aten.scatter.src, X, 1, T("B D N", "order"), T("B D N"))
case(_aten.scatter.value, X, 2, T("B N K", "places D"), 0.5)
case(_aten.scatter_add.default, X, 1, T("B K D", "places N"), T("B K D"))
case(_aten.scatter.reduce, X, 1, T("B K D", "places N"), T("B K D"), reduce="multiply")
case(_aten.scatter_reduce.two, X, 1, T("B K D", "places N"), T("B K D"), "amax")
case(_aten.index_add.default, X, 1, T("K", "places N"), T("B K D"))
case(_aten.index_copy.default, X, 1, T("K", "order"), T("B K D"))
case(_aten.index_fill.int_Scalar, X, 1, T("K", "places N"), -1)
case(_aten.masked_scatter.default, X, TRUTH, T("B N D"))
case(_aten.masked_scatter.default, X, T("B N 1", "truth"), T("B N D"))
case(_aten.slice_scatter.default, X, T("B 2 D"), 1, 1, 3)
case(_aten.slice_scatter.default, T("B 9 D"), T("B 3 D"), 1, 2, 9223372036854775807, 3)
case(_aten.select_scatter.default, X, T("B D"), 1, 0)
case(_aten.cat.default, [X, T("B K D")], 1)
case(_aten.cat.default, [X, T("B N K"), X], -1)
case(_aten.cat.default, [IMAGE, T("B K H W")], 1)
case(_aten.cat.default, [V, T("N")])
case(_aten.cat.default, [T("0"), X], 1)
case(_aten.concat.default, [X, T("B K D")], 1)
case(_aten.concatenate.default, [X, T("B K D")], 1)
case(_aten.stack.default, [X, Y])
case(_aten.stack.default, [X, Y, X], -1)
case(_aten.constant_pad_nd.default, IMAGE, [1, 2])
case(_aten.constant_pad_nd.default, IMAGE, [0, 1, -1, 2], 0.5)
case(_aten.pad.default, IMAGE, [1, 2, 3, 0], "reflect")
case(_aten.pad.default, IMAGE, [1, 2, 3, 0], "circular")
case(_aten.pad.default, IMAGE, [1, 2])
case(_aten.reflection_pad1d.default, T("B C W"), [1, 2])
case(_aten.reflection_pad2d.default, IMAGE, [1, 2, 3, 4])
case(_aten.reflection_pad3d.default, T("B C N H W"), [1, 2, 1, 1, 0, 1])
case(_aten.replication_pad1d.default, T("B C W"), [1, 2])
case(_aten.replication_pad2d.default, IMAGE, [1, 2, 3, 4])
case(_aten.replication_pad3d.default, T("B C N H W"), [1, 2, 1, 1, 0, 1])
case(_aten.tril.default, T("N N"))
case(_aten.tril.default, X, -1)
case(_aten.triu.default, T("N N"), 1)
case(_aten.flip.default, IMAGE, [2, 3])
case(_aten.flip.default, X, [1])
case(_aten.roll.default, IMAGE, [-3, 2], [2, 3])
case(_aten.roll.default, X, [1], [-2])
case(_aten.roll.default, IMAGE, [-3, 2], [1, 2])

# ---- complex numbers
case(_aten.view_as_complex.default, T("B N D 2"))
case(_aten.view_as_real.default, T("B N D", "complex"))
case(_aten.complex.default, X, Y)
case(_aten.polar.default, POSITIVE, X)
case(_aten.real.default, T("B N", "complex"))
case(_aten.imag.default, T("B N", "complex"))
for _name in ("conj", "_conj", "conj_physical"):
    case(getattr(_aten, _name).default, T("B N", "complex"))
case(_aten.mul.Tensor, T("B N", "complex"), T("N", "complex"))

# ---- constants
case(_aten.copy.default, X, T("B N D"))
case(_aten.copy.default, X, V)
case(_aten.fill.Scalar, X, 0.5)
case(_aten.fill.Tensor, X, T(""))
case(_aten.zero.default, X)
case(_aten.zeros_like.default, X)
case(_aten.ones_like.default, X)
case(_aten.full_like.default, X, -math.inf)
case(_aten.new_zeros.default, X, [size("N"), size("K")])
case(_aten.new_ones.default, X, [size("N"), size("K")])
case(_aten.new_full.default, X, [size("N"), size("K")], 7)
case(_aten.diff.default, X)
case(_aten.diff.default, X, 1, 1)
case(_aten.diff.default, T("B N"), 1, -1, T("B 1"))
case(_aten.diff.default, X, 1, 1, None, T("B K D"))
case(_aten._weight_norm.default, T("K C 3"), T("K 1 1"))
case(_aten._weight_norm_interface.default, T("K C 3"), T("K 1 1"))

# ---- recurrent layers
SEQUENCE = T("N B D")


def weights(gates: int, layers: int, ways: int, biases: bool) -> list[T]:
    found = []
    for layer in range(layers):
        width = "D" if not layer else f"{ways}*K"
        for _ in range(ways):
            found += [T(f"{gates}*K {width}"), T(f"{gates}*K K"), *[T(f"{gates}*K")] * (2 * biases)]
    return found


for _layers, _ways, _biases, _first in ((1, 1, True, False), (1, 2, True, True), (2, 2, False, False)):
    _state = T(f"{_layers * _ways} B K")
    _more = (_biases, _layers, 0.0, False, _ways == 2, _first)
    _given = T("B N D") if _first else SEQUENCE
    for _position in range(3):
        _four = weights(4, _layers, _ways, _biases)
        case(_aten.lstm.input, _given, [_state, _state], _four, *_more, position=_position)
    for _position in range(2):
        case(_aten.gru.input, _given, _state, weights(3, _layers, _ways, _biases), *_more, position=_position)
        case(_aten.rnn_tanh.input, _given, _state, weights(1, _layers, _ways, _biases), *_more, position=_position)
for _position in range(3):
    _projected = [T("4*C D"), T("4*C K"), T("4*C"), T("4*C"), T("K C")]
    _more = (True, 1, 0.0, False, False, False)
    case(_aten.lstm.input, SEQUENCE, [T("1 B K"), T("1 B C")], _projected, *_more, position=_position)
case(_aten.rnn_relu.input, SEQUENCE, T("1 B K"), weights(1, 1, 1, True), True, 1, 0.0, False, False, False)
CELL = T("B D"), T("B K")
case(_aten.lstm_cell.default, CELL[0], [CELL[1], CELL[1]], *weights(4, 1, 1, True))
case(_aten.lstm_cell.default, CELL[0], [CELL[1], CELL[1]], *weights(4, 1, 1, False), position=1)
case(_aten.gru_cell.default, *CELL, *weights(3, 1, 1, True))
case(_aten.rnn_tanh_cell.default, *CELL, *weights(1, 1, 1, True))
case(_aten.rnn_relu_cell.default, *CELL, *weights(1, 1, 1, False))

# ---- losses
LABELS, OF_LABELS = T("B", "places C"), T("B N", "places C")
LOGITS, DEEP, OF_CLASSES = T("B C"), T("B C N"), T("C", "positive")
for _reduction in (0, 1, 2):
    for _name in ("cross_entropy_loss", "nll_loss_nd", "nll_loss"):
        _op = getattr(_aten, _name).default
        case(_op, LOGITS, LABELS, reduction=_reduction, ignore_index=NO_LABEL)
        case(_op, LOGITS, LABELS, OF_CLASSES, reduction=_reduction, ignore_index=NO_LABEL)
    case(_aten.nll_loss_nd.default, T("B C N W"), T("B N W", "places C"), None, _reduction, NO_LABEL)
    case(_aten.cross_entropy_loss.default, DEEP, OF_LABELS, None, _reduction, NO_LABEL)
    case(_aten.cross_entropy_loss.default, LOGITS, T("B C", "positive"), None, _reduction)
    case(_aten.cross_entropy_loss.default, DEEP, T("B C N", "positive"), None, _reduction)
    case(_aten.nll_loss_forward.default, LOGITS, LABELS, None, _reduction, NO_LABEL)
    case(_aten.nll_loss2d.default, T("B C N W"), T("B N W", "places C"), OF_CLASSES, _reduction, NO_LABEL)
    case(_aten.nll_loss2d_forward.default, T("B C N W"), T("B N W", "places C"), None, _reduction, NO_LABEL)
    for _name in "mse_loss l1_loss huber_loss smooth_l1_loss binary_cross_entropy_with_logits".split():
        case(getattr(_aten, _name).default, X, Y, reduction=_reduction)
    case(_aten.huber_loss.default, X, Y, _reduction, 0.5)
    case(_aten.smooth_l1_loss.default, X, Y, _reduction, 0.5)
    case(_aten.binary_cross_entropy.default, T("B N", "share"), T("B N", "share"), None, _reduction)
    case(_aten.binary_cross_entropy.default, T("B N", "share"), T("B N", "share"), T("N"), _reduction)
    case(_aten.binary_cross_entropy_with_logits.default, X, Y, V, T("D", "positive"), _reduction)
for _reduction in (1, 2):
    for _weight in (None, OF_CLASSES):
        case(_aten.cross_entropy_loss.default, LOGITS, LABELS, _weight, _reduction, 1)
        case(_aten.cross_entropy_loss.default, DEEP, OF_LABELS, _weight, _reduction, 1)
    case(_aten.cross_entropy_loss.default, LOGITS, LABELS, None, _reduction, NO_LABEL, 0.1)
    case(_aten.cross_entropy_loss.default, DEEP, OF_LABELS, None, _reduction, NO_LABEL, 0.1)
case(_aten.cross_entropy_loss.default, T("C"), T("", "places C"), None, 1, NO_LABEL)
case(_aten.bilinear.default, T("B N D"), T("B N C"), T("K D C"), T("K"))
case(_aten.bilinear.default, T("B D"), T("B C"), T("K D C"), None)

KERNELS = (
    "_cdist_forward _ctc_loss _embedding_bag _fft_c2c _fft_c2r _fft_r2c _unique2 "
    "_upsample_bicubic2d_aa _upsample_bilinear2d_aa addbmm addr affine_grid_generator bernoulli bincount "
    "bucketize cdist cholesky cosine_similarity cross cummax cummin det digamma embedding_bag erfinv "
    "fractional_max_pool2d grid_sampler grid_sampler_2d histc inverse isclose isin kthvalue lgamma "
    "linalg_eigh linalg_inv_ex linalg_qr linalg_solve_ex linalg_svd logcumsumexp max_unpool2d median mode "
    "multinomial nansum pixel_shuffle polygamma quantile renorm repeat_interleave rrelu "
    "scaled_dot_product_attention searchsorted special_i0 take trace triangular_solve unfold "
    "unique_dim xlogy"
).split()
"""Ops that have no formula: they run as they are, or are layouts, or lines of their own."""
