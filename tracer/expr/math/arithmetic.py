"""Differences, quotients, powers and bounds of tensors, element by element."""

from __future__ import annotations

import torch

from tracer.expr.function_call import _FunctionCall, _WithFields, call_latex, decimal, tight
from tracer.expr.index_sets import plain, real
from tracer.expr.math.algebra import beside
from tracer.expr.node import Shape, broadcast
from tracer.expr.provenance_rules import Elementwise, ElementwiseProduct, Linear, LinearSum, SelectOne


class _Elementwise(Elementwise, _WithFields):
    def infer(self, same, *shapes) -> Shape:
        return broadcast(same, *shapes)


class Minus(LinearSum, _Elementwise):
    """`a - b`."""

    needs_parens = True

    def _latex(self, printer) -> str:
        left, right = self.operands
        return f"{left.summand(printer, True)} - {right.factor_latex(printer)}"

    def run(self, size, left, right) -> torch.Tensor:
        return left * 1 - right * 1  # bool tensors have no difference


class Negative(LinearSum, _Elementwise):
    """`-x`."""

    needs_parens = True

    def _latex(self, printer) -> str:
        return f"-{self.args[0].factor_latex(printer)}"

    def run(self, size, x) -> torch.Tensor:
        return -x


class Div(_Elementwise):
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


class Scaled(ElementwiseProduct, _Elementwise):
    """A number times a tensor: `Scaled(Scalar(2), X)`."""

    needs_parens_in_script = True
    counted = (1,)

    def _latex(self, printer) -> str:
        return beside(self.operands, printer)

    def run(self, size, factor, x) -> torch.Tensor:
        return factor * x


class Power(_Elementwise):
    """`xⁿ`, each number by itself."""

    needs_parens_in_script = True

    def _latex(self, printer) -> str:
        base, exponent = self.operands
        return rf"{{{tight(base, printer)}}}^{{{printer._print(exponent)}}}"

    def run(self, size, base, exponent) -> torch.Tensor:
        whole = not any(operand.is_floating_point() or operand.is_complex() for operand in (base, exponent))
        return (base.double() if whole and (exponent < 0).any() else base) ** exponent


class Remainder(_Elementwise):
    """`a - b⌊a/b⌋`."""

    needs_parens = True

    def _latex(self, printer) -> str:
        left, right = self.operands
        return rf"{left.factor_latex(printer)} \bmod {tight(right, printer)}"

    def run(self, size, left, right) -> torch.Tensor:
        return left - right * (left / right).floor()


class Minimum(SelectOne, _FunctionCall):
    """Smaller of two numbers."""

    word = r"\min"

    def run(self, size, left, right) -> torch.Tensor:
        return torch.where(left < right, left, right)


class Maximum(SelectOne, _FunctionCall):
    """Larger of two numbers."""

    word = r"\max"

    def run(self, size, left, right) -> torch.Tensor:
        return torch.where(left > right, left, right)


class Lerp(Linear, _Elementwise):
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

    def infer(self, same, shape) -> Shape:
        return shape

    def run(self, size, x) -> torch.Tensor:
        nan, above, below = (float(self.get(field)) for field in self.fields)
        x = torch.where(x == float("inf"), above, torch.where(x == -float("inf"), below, x))
        return torch.where(x != x, nan, x)
