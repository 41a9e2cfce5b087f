"""Nodes of arithmetic: sums, products, comparisons, and functions of each cell."""

from __future__ import annotations

from collections.abc import Callable
from math import log, pi, sqrt
from typing import Any

import sympy
import torch

from tracer.expr.function_call import _FunctionCall, _WithFields, call_latex, decimal, tight
from tracer.expr.index_sets import (
    Elementwise,
    ElementwiseProduct,
    Indexing,
    Layout,
    Linear,
    LinearSum,
    RowWise,
    SelectOne,
    Slices,
    SoftmaxShares,
    plain,
    real,
)
from tracer.expr.node import Node, Shape, ShapeError, broadcast

# Sums, products and quotients of tensors.


def beside(factors, printer) -> str:
    """Return factors side by side: `a ⊙ b` in brackets, and those with square brackets, which behind a name would be
    its rows."""
    texts = []
    for factor in factors:
        text = factor.factor_latex(printer)
        apart = isinstance(factor, Times) or (texts and text.startswith(r"\left["))
        texts.append(rf"\left({text}\right)" if apart else text)
    return r"\,".join(texts)


class Plus(LinearSum, Node):
    """`a + b`, element by element, broadcast from the last axis."""

    needs_parens = True
    additive = True

    def _latex(self, printer) -> str:
        return " + ".join(argument.summand(printer, place == 0) for place, argument in enumerate(self.args))

    def run(self, size, first, *rest) -> torch.Tensor:
        for term in rest:
            first = first + term
        return first


class Product(Linear, Node):
    """Matrix product of the last two axes; leading axes are batched."""

    reads = "... i k, ... k j -> ... i j"

    needs_parens_in_script = True
    multilinear = 2

    def _latex(self, printer) -> str:
        return beside(self.args, printer)

    def infer(self, same, left, right) -> Shape:
        if min(len(left), len(right)) < 2:
            raise ShapeError(f"{left} times {right}: expected matrices")
        if not same(left[-1], right[-2]):
            raise ShapeError(f"{left} times {right}: the inner sizes {left[-1]} and {right[-2]} differ")
        return (*broadcast(same, left[:-2], right[:-2]), left[-2], right[-1])

    def run(self, size, left, right) -> torch.Tensor:
        kind = torch.promote_types(left.dtype, right.dtype)
        return left.to(kind) @ right.to(kind) if left.dtype != right.dtype else left @ right


class Over(LinearSum, Node):
    r"""A tensor over a number made of sizes: `QKᵀ / √d_k`."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        return rf"\frac{{{printer._print(self.args[0])}}}{{{printer._print(self.args[1])}}}"

    def run(self, size, tensor) -> torch.Tensor:
        return real(tensor) / float(size(self.args[1]))


class Transposed(Layout, Node):
    """Last two axes exchanged."""

    reads = "... i j -> ... j i"

    def _latex(self, printer) -> str:
        return rf"{{{tight(self.args[0], printer)}}}^{{\top}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-2], shape[-1], shape[-2])

    def run(self, size, tensor) -> torch.Tensor:
        return tensor.transpose(-2, -1)


class Row(Indexing, Node):
    """One token of the sequence: `Row(X, 0)` is the CLS token, without the sequence axis."""

    def _latex(self, printer) -> str:
        return rf"{{{tight(self.args[0], printer)}}}_{{[\,{printer._print(self.args[1])}\,]}}"

    def infer(self, same, shape) -> Shape:
        return (*shape[:-2], shape[-1])

    def slices(self, size, shape) -> Slices:
        return (*[slice(None)] * (len(shape) - 2), int(size(self.args[1])), slice(None))


class Times(ElementwiseProduct, Node):
    """`a ⊙ b`, element by element."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        first, *rest = self.args
        return r" \odot ".join([first.factor_latex(printer), *(self._factor(argument, printer) for argument in rest)])

    def _factor(self, argument, printer):
        """Print a product behind the sign in brackets: `a ⊙ (b c)` is not `(a ⊙ b) c`."""
        text = printer._print(argument)
        closed = not argument.needs_parens and (
            isinstance(argument, Times) or not argument.needs_parens_in_script or text.startswith(r"\frac")
        )
        return text if closed else rf"\left({text}\right)"

    def run(self, size, left, right) -> torch.Tensor:
        return left * right


Node.operators.update({node.__name__: node for node in (Plus, Product, Over, Transposed)})


# Differences, quotients, powers and bounds of tensors, element by element.


class Minus(LinearSum, _WithFields):
    """`a - b`."""

    needs_parens = True

    def _latex(self, printer) -> str:
        left, right = self.operands
        return f"{left.summand(printer, True)} - {right.factor_latex(printer)}"

    def run(self, size, left, right) -> torch.Tensor:
        return left * 1 - right * 1  # bool tensors have no difference


class Negative(LinearSum, _WithFields):
    """`-x`."""

    needs_parens = True

    def _latex(self, printer) -> str:
        return f"-{self.args[0].factor_latex(printer)}"

    def run(self, size, x) -> torch.Tensor:
        return -x


class Div(Elementwise, _WithFields):
    """`a / b`."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        above, below = map(printer._print, self.operands)
        return rf"\frac{{{above}}}{{{below}}}"

    def run(self, size, above, below) -> torch.Tensor:
        return real(above) / below

    def shares(self, size, above, below) -> list[tuple]:
        quotient = plain(above / below)
        return [(quotient, plain(1 / below)), (quotient, None, False)]


class Scaled(ElementwiseProduct, _WithFields):
    """A number times a tensor: `Scaled(Scalar(2), X)`."""

    needs_parens_in_script = True
    counted = (1,)

    def _latex(self, printer) -> str:
        return beside(self.operands, printer)

    def run(self, size, factor, x) -> torch.Tensor:
        return factor * x


class Power(Elementwise, _WithFields):
    """`xⁿ`, each number by itself."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        base, exponent = self.operands
        return rf"{{{tight(base, printer)}}}^{{{printer._print(exponent)}}}"

    def run(self, size, base, exponent) -> torch.Tensor:
        whole = not any(operand.is_floating_point() or operand.is_complex() for operand in (base, exponent))
        return (base.double() if whole and (exponent < 0).any() else base) ** exponent


class Remainder(Elementwise, _WithFields):
    """`a - b⌊a/b⌋`."""

    needs_parens = True

    def _latex(self, printer) -> str:
        left, right = self.operands
        return rf"{left.factor_latex(printer)} \bmod {tight(right, printer)}"

    def run(self, size, left, right) -> torch.Tensor:
        return left - right * (left / right).floor()


class Lerp(Linear, Elementwise, _WithFields):
    """`a + t(b - a)`: `Lerp(a, b, t)`."""

    needs_parens = True
    counted = (0, 1)

    def _latex(self, printer) -> str:
        start, end, share = self.operands
        return (
            rf"{start.summand(printer, True)} + {share.factor_latex(printer)} \odot "
            rf"\left({end.summand(printer, True)} - {start.factor_latex(printer)}\right)"
        )

    def run(self, size, start, end, share) -> torch.Tensor:
        return start + share * (end - start)


class NanToNum(_WithFields):
    """NaN and infinities replaced by numbers: `NanToNum(x, nan=0, above=…, below=…)`."""

    fields = ("nan", "above", "below")

    def _latex(self, printer) -> str:
        return call_latex(
            r"\operatorname{finite}", [decimal(float(self.get(f))) for f in self.fields], [printer._print(self.args[0])]
        )

    def run(self, size, x) -> torch.Tensor:
        nan, above, below = (float(self.get(field)) for field in self.fields)
        x = torch.where(x == float("inf"), above, torch.where(x == -float("inf"), below, x))
        return torch.where(x != x, nan, x)


# Functions of each number on its own, written out from their definitions.


class _UnaryFunction(Elementwise, _FunctionCall):
    """A function cell by cell, `compute(*operands, *settings)`. The operands stand in brackets behind the word, or a
    single one in place of the word's `%s`."""

    compute: Callable

    def _latex(self, printer) -> str:
        return self.word % printer._print(self.args[0]) if "%s" in self.word else super()._latex(printer)

    def run(self, size, *operands) -> torch.Tensor:
        return self.compute(*operands, *map(self.get, self.fields))


class _Named(_UnaryFunction):
    r"""A function whose word stands in front of its operand without brackets, `\cos x`."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        return f"{self.word} {tight(self.operands[0], printer)}"


def function(name: str, word: str, compute: Callable, meaning: str, base: Any = _UnaryFunction, **attributes) -> Any:
    """Return the node of that name below `base`, where a line says it all: how it is printed, what it computes, and its
    docstring."""
    attributes |= {"__doc__": meaning, "__module__": compute.__module__, "word": word, "compute": staticmethod(compute)}
    return type(base)(name, (base,), attributes)


Sigmoid = function("Sigmoid", r"\sigma", lambda x: 1 / (1 + (-x).exp()), "`1 / (1 + e⁻ˣ)`.")
Log = function("Log", r"\log", lambda x: x.log(), "The natural logarithm.")
Log2 = function("Log2", r"\log_{2}", lambda x: x.log() / log(2), "The logarithm to base 2.")
Log10 = function("Log10", r"\log_{10}", lambda x: x.log() / log(10), "The logarithm to base 10.")
Exp = function("Exp", r"e^{%s}", lambda x: x.exp(), "`eˣ`.")
Expm1 = function("Expm1", r"e^{%s} - 1", lambda x: x.expm1(), "`eˣ - 1`.", needs_parens=True)
Root = function("Root", r"\sqrt{%s}", lambda x: x.sqrt(), "`√x`.")
Absolute = function("Absolute", r"\left|%s\right|", lambda x: x.abs(), "`|x|`.")
Sign = function("Sign", r"\operatorname{sign}", lambda x: (x > 0).double() - (x < 0).double(), "1, 0 or -1.")
Erf = function("Erf", r"\operatorname{erf}", lambda x: x.erf(), "The error function `2/√π ∫₀ˣ e^(-t²) dt`.")
Tangent = function("Tangent", r"\tan", lambda x: x.sin() / x.cos(), "`sin x / cos x`.")
HyperbolicSine = function("HyperbolicSine", r"\sinh", lambda x: (x.exp() - (-x).exp()) / 2, "`(eˣ - e⁻ˣ) / 2`.")
HyperbolicCosine = function("HyperbolicCosine", r"\cosh", lambda x: (x.exp() + (-x).exp()) / 2, "`(eˣ + e⁻ˣ) / 2`.")
Bool = function("Bool", r"\left[\,%s \ne 0\,\right]", lambda x: (x != 0).double(), "1 where a number is not 0, else 0.")


class LogSigmoid(_UnaryFunction):
    """`-log(1 + e⁻ˣ)`."""

    word = r"\log\sigma"
    compute = staticmethod(lambda x: x.clamp(max=0) - (-x.abs()).exp().log1p())


class Floor(_UnaryFunction):
    """`⌊x⌋`, the largest whole number not above x."""

    word = r"\left\lfloor %s \right\rfloor"
    compute = staticmethod(lambda x: x.floor())


class Ceiling(_UnaryFunction):
    """`⌈x⌉`, the smallest whole number not below x."""

    word = r"\left\lceil %s \right\rceil"
    compute = staticmethod(lambda x: x.ceil())


class Round(_UnaryFunction):
    """The nearest whole number; of two equally near ones, the even one."""

    word = r"\operatorname{round}"
    compute = staticmethod(lambda x: x.round())


class Truncated(_UnaryFunction):
    """The number without its decimals; NaN and infinite numbers become the lowest 64-bit integer."""

    word = r"\operatorname{trunc}"
    compute = staticmethod(lambda x: (x.sign() * x.abs().floor()).masked_fill(~x.isfinite(), -(2.0**63)))


class Wrapped(_UnaryFunction):
    r"""Number without its decimals that a dtype of few bits holds: modulo 2 to the number of its bits.
    `Wrapped(x, to="int8", whole=False)` is printed as `\operatorname{int8}(x)`; a `whole` number has no decimals."""

    fields = ("to", "whole")

    def _latex(self, printer) -> str:
        return call_latex(rf"\operatorname{{{self.get('to')}}}", [], [printer._print(self.args[0])])

    def run(self, size, x) -> torch.Tensor:
        room = torch.iinfo(getattr(torch, self.get("to")))
        x = x.double()
        whole = (x.round() if self.get("whole") else x.trunc()).to(torch.int64)
        return ((whole - room.min).remainder(2**room.bits) + room.min).double()


class ArcTangent(_UnaryFunction):
    """The angle between -π/2 and π/2 whose tangent is x."""

    word = r"\arctan"
    compute = staticmethod(lambda x: x.atan())


class ArcTangent2(_UnaryFunction):
    """The angle of the point (x, y), `ArcTangent2(y, x)`."""

    word = r"\operatorname{atan2}"
    compute = staticmethod(lambda y, x: y.atan2(x))


class Minimum(SelectOne, _UnaryFunction):
    """Smaller of two numbers."""

    word = r"\min"
    compute = staticmethod(lambda left, right: torch.where(left < right, left, right))


class Maximum(SelectOne, _UnaryFunction):
    """Larger of two numbers."""

    word = r"\max"
    compute = staticmethod(lambda left, right: torch.where(left > right, left, right))


class Log1p(_UnaryFunction):
    """`log(1 + x)`."""

    compute = staticmethod(lambda x: x.log1p())

    def _latex(self, printer) -> str:
        return rf"\log\left(1 + {self.args[0].factor_latex(printer)}\right)"


class Cast(_UnaryFunction):
    r"""Nearest number that a dtype holds: `Cast(x, to="float16")`, printed as `\operatorname{float16}(x)`."""

    fields = ("to",)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that the numbers are cast to."""
        return getattr(torch, self.get("to"))

    def _latex(self, printer) -> str:
        return call_latex(rf"\operatorname{{{self.get('to')}}}", [], [printer._print(self.args[0])])

    def run(self, size, x) -> torch.Tensor:
        return x.to(self.dtype).double()


# Comparisons, which are 1 where they hold and 0 elsewhere (Iverson's brackets), logic, and cases.


def holds(x) -> torch.Tensor:
    """Return where a tensor is not 0."""
    return x != 0


def condition(node: Node, printer) -> str:
    """Return the LaTeX of a node as condition: a comparison without its brackets, else `M = 1`."""
    return node.relation(printer) if isinstance(node, Compare) else f"{tight(node, printer)} = 1"


COMPARISONS = {"=": torch.eq, r"\ne": torch.ne, "<": torch.lt, ">": torch.gt, r"\le": torch.le, r"\ge": torch.ge}
"""The function of each sign."""


class Compare(Elementwise, _WithFields):
    r"""`[a ≤ b]`; `Compare(a, b, sign=r"\le")`."""

    fields = ("sign",)

    def relation(self, printer) -> str:
        left, right = map(printer._print, self.operands)
        return f"{left} {self.get('sign')} {right}"

    def _latex(self, printer) -> str:
        return rf"\left[\,{self.relation(printer)}\,\right]"

    def run(self, size, left, right) -> torch.Tensor:
        return COMPARISONS[self.get("sign")](left, right).double()


class _Logic(_UnaryFunction):
    needs_parens = True

    def _latex(self, printer) -> str:
        return f" {self.word} ".join(tight(operand, printer) for operand in self.operands)


class And(_Logic):
    """1 where both operands are not 0, else 0."""

    word = r"\land"
    compute = staticmethod(lambda a, b: (holds(a) & holds(b)).double())


class Or(_Logic):
    """1 where at least one of two operands is not 0, else 0."""

    word = r"\lor"
    compute = staticmethod(lambda a, b: (holds(a) | holds(b)).double())


class Xor(_Logic):
    """1 where exactly one of two operands is not 0, else 0."""

    word = r"\oplus"
    compute = staticmethod(lambda a, b: (holds(a) ^ holds(b)).double())


class Not(_Named):
    """1 where the operand is 0, else 0."""

    word = r"\lnot"
    compute = staticmethod(lambda x: (~holds(x)).double())


class Where(SelectOne, Node):
    """a where a condition holds, b elsewhere: `Where(m, a, b)`."""

    linear = counted = (1, 2)

    def _latex(self, printer) -> str:
        mask, then, otherwise = self.operands
        first = rf"{printer._print(then)} & {condition(mask, printer)}"
        return rf"\begin{{cases}} {first} \\ {printer._print(otherwise)} & \text{{else}} \end{{cases}}"

    def run(self, size, condition, then, otherwise) -> torch.Tensor:
        return torch.where(holds(condition), then, otherwise)


# Complex numbers, as some rotary codes rotate pairs: two numbers on the last axis are one.


class Pairs(_FunctionCall):
    """Pairs of the last axis as complex numbers: `[…, D, 2]` to `[…, D]`."""

    reads = "... k -> ..."

    word = r"\operatorname{complex}"

    def infer(self, same, shape) -> Shape:
        return shape[:-1]

    def run(self, size, x) -> torch.Tensor:
        return x[..., 0] + 1j * x[..., 1]


class RealAndImaginary(_FunctionCall):
    """Complex numbers as pairs of their two parts: `[…, D]` to `[…, D, 2]`."""

    reads = "... -> ... k"

    word = r"\operatorname{pairs}"

    def infer(self, same, shape) -> Shape:
        return (*shape, sympy.Integer(2))

    def run(self, size, x) -> torch.Tensor:
        return torch.stack([x.real, x.imag], -1)


class Polar(_UnaryFunction):
    """`r e^{iθ}`: the complex number of a length and an angle; `Polar(r, θ)`."""

    word = r"\operatorname{polar}"
    compute = staticmethod(lambda length, angle: length * angle.cos() + 1j * (length * angle.sin()))


Real = function("Real", r"\operatorname{Re}", lambda x: x.real if x.is_complex() else x, "The real part.")
Imaginary = function("Imaginary", r"\operatorname{Im}", lambda x: x.imag, "The imaginary part.")


class Conjugate(_UnaryFunction):
    """The complex conjugate: the imaginary part changes its sign."""

    word = r"\operatorname{conj}"
    compute = staticmethod(lambda x: x.real - 1j * x.imag if x.is_complex() else x)


# Activations, and the softmax over a row: each is written out from its definition, not called from a kernel.


def softmax(scores) -> torch.Tensor:
    """Return `exp(s_ij) / Σ_k exp(s_ik)` of each row, with its maximum subtracted."""
    powers = (scores - scores.amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


class Softmax(SoftmaxShares, RowWise, _UnaryFunction):
    """Row-wise `exp(s_ij) / Σ_k exp(s_ik)` (Bridle 1990)."""

    word = r"\operatorname{softmax}"
    compute = staticmethod(softmax)
    analysed = True

    def errors(self, output, scores) -> torch.Tensor:
        """Return the bound for `p = eᵈ/Σ`: p(|d| + 2) of the power, p Σ p(|d| + 3) of the sum, p of the quotient; 0
        stays 0."""
        far = (scores.amax(dim=-1, keepdim=True) - scores).add_(3)
        terms = (output * far).nan_to_num_(0.0, posinf=float("inf"))
        return terms.addcmul_(output, terms.sum(dim=-1, keepdim=True))


class GELU(_UnaryFunction):
    """The exact GELU `x · ½(1 + erf(x/√2))` (Hendrycks and Gimpel 2016, section 2)."""

    word = r"\operatorname{GELU}"
    compute = staticmethod(lambda x: x * (1 + (x / sqrt(2)).erf()) / 2)


class GELUTanh(_UnaryFunction):
    """The approximate GELU `½x(1 + tanh(√(2/π)(x + 0.044715x³)))` (Hendrycks and Gimpel 2016, section 2)."""

    word = r"\operatorname{GELU}_{\tanh}"
    compute = staticmethod(lambda x: x * (1 + (sqrt(2 / pi) * (x + 0.044715 * x**3)).tanh()) / 2)


ReLU = function("ReLU", r"\operatorname{ReLU}", lambda x: x.clamp(min=0), "`max(0, x)`.")
Tanh = function("Tanh", r"\tanh", lambda x: x.tanh(), "`(eˣ - e⁻ˣ) / (eˣ + e⁻ˣ)`.")
SiLU = function("SiLU", r"\operatorname{SiLU}", lambda x: x * x.sigmoid(), "`x · σ(x)` (Elfwing et al. 2018).")
ReLU6 = function("ReLU6", r"\operatorname{ReLU6}", lambda x: x.clamp(0, 6), "`min(max(x, 0), 6)` (Howard et al. 2017).")


class HardSigmoid(_UnaryFunction):
    """`ReLU6(x + 3) / 6` (Howard et al. 2019)."""

    word = r"\operatorname{HardSigmoid}"
    compute = staticmethod(lambda x: (x + 3).clamp(0, 6) / 6)


class HardSwish(_UnaryFunction):
    """`x · ReLU6(x + 3) / 6` (Howard et al. 2019, section 5.2)."""

    word = r"\operatorname{HardSwish}"
    compute = staticmethod(lambda x: x * (x + 3).clamp(0, 6) / 6)


class Mish(_UnaryFunction):
    """`x · tanh(log(1 + eˣ))` (Misra 2019)."""

    word = r"\operatorname{Mish}"
    compute = staticmethod(lambda x: x * (x.clamp(min=0) + (-x.abs()).exp().log1p()).tanh())


SCALE, ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717
"""λ and α of SELU."""


class SELU(_UnaryFunction):
    """`λ · ELU_α(x)` with λ = 1.0507… and α = 1.6732… (Klambauer et al. 2017)."""

    word = r"\operatorname{SELU}"
    compute = staticmethod(lambda x: SCALE * (x.clamp(min=0) + ALPHA * x.clamp(max=0).expm1()))


class LeakyReLU(_UnaryFunction):
    """x where it is above 0, else a fraction of it (Maas et al. 2013)."""

    word = r"\operatorname{LeakyReLU}"
    fields = ("slope",)
    compute = staticmethod(lambda x, slope: x.clamp(min=0) + slope * x.clamp(max=0))


class SoftShrink(_UnaryFunction):
    """x - λ where x is above λ, x + λ where x is below -λ, else 0."""

    word = r"\operatorname{SoftShrink}"
    fields = ("edge",)
    compute = staticmethod(lambda x, edge: (x - edge).clamp(min=0) + (x + edge).clamp(max=0))


class HardShrink(_UnaryFunction):
    """x where |x| is above λ, else 0."""

    word = r"\operatorname{HardShrink}"
    fields = ("edge",)
    compute = staticmethod(lambda x, edge: x * (x.abs() > edge))


class Softplus(_UnaryFunction):
    """`log(1 + e^{βx}) / β`, and x itself where βx is above the threshold."""

    word = r"\operatorname{softplus}"
    fields = ("beta", "threshold")

    def subscripts(self, printer) -> list[str]:
        return [] if (self.get("beta"), self.get("threshold")) == (1, 20) else super().subscripts(printer)

    def run(self, size, x) -> torch.Tensor:
        beta, y = self.get("beta"), x * self.get("beta")
        return torch.where(y > self.get("threshold"), x, (y.clamp(min=0) + (-y.abs()).exp().log1p()) / beta)


class ELU(_UnaryFunction):
    """x where it is above 0, else `α(e^{x/β} - 1)`, and all of it times a scale (Clevert et al. 2016)."""

    word = r"\operatorname{ELU}"
    fields = ("alpha", "scale", "input_scale")

    def subscripts(self, printer) -> list[str]:
        alpha, *scales = super().subscripts(printer)
        return [alpha, *scales] if scales != ["1", "1"] else [alpha] if alpha != "1" else []

    @staticmethod
    def compute(x, alpha, scale, inner) -> torch.Tensor:
        return scale * (x.clamp(min=0) + alpha * (inner * x.clamp(max=0)).expm1())


class PReLU(Elementwise, _FunctionCall):
    """x where it is above 0, else x times a learned number, of each channel or of all (He et al. 2015)."""

    reads = "b c ..., c -> b c ..."

    word = r"\operatorname{PReLU}"

    def infer(self, same, x, slopes) -> Shape:
        return x

    def run(self, size, x, slopes) -> torch.Tensor:
        if slopes.numel() > 1:
            slopes = slopes.reshape(-1, *(1,) * (x.dim() - 2))
        return x.clamp(min=0) + slopes * x.clamp(max=0)
