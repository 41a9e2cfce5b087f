"""Functions of each number on its own, written out from their definitions."""

from __future__ import annotations

from collections.abc import Callable
from math import log
from typing import Any

import torch

from tracer.expr.function_call import _FunctionCall, call_latex, setting_latex, tight
from tracer.expr.provenance_rules import Elementwise


class _UnaryFunction(Elementwise, _FunctionCall):
    """A function cell by cell, `compute(*operands, *settings)`. The operands stand in brackets behind the word, or a
    single one in place of the word's `%s`."""

    compute: Callable

    def subscripts(self, printer) -> list[str]:
        return [setting_latex(self.get(field), printer) for field in self.fields]

    def _latex(self, printer) -> str:
        return self.word % printer._print(self.args[0]) if "%s" in self.word else super()._latex(printer)

    def run(self, size, *operands) -> torch.Tensor:
        return self.compute(*operands, *map(self.get, self.fields))


class _Named(_UnaryFunction):
    r"""A function whose word stands in front of its operand without brackets, `\cos x`."""

    def _latex(self, printer) -> str:
        return f"{self.word} {tight(self.operands[0], printer)}"


def function(name: str, word: str, compute: Callable, meaning: str, base: Any = _UnaryFunction, **attributes) -> Any:
    """Return the node of that name below `base`: how it is printed, what it computes, and its docstring."""
    attributes |= {"__doc__": meaning, "__module__": compute.__module__, "word": word, "compute": staticmethod(compute)}
    return type(base)(name, (base,), attributes)


Sigmoid = function("Sigmoid", r"\sigma", lambda x: 1 / (1 + (-x).exp()), "`1 / (1 + e⁻ˣ)`.")
LogSigmoid = function(
    "LogSigmoid", r"\log\sigma", lambda x: x.clamp(max=0) - (-x.abs()).exp().log1p(), "`-log(1 + e⁻ˣ)`."
)
Log = function("Log", r"\log", lambda x: x.log(), "The natural logarithm.")
Log2 = function("Log2", r"\log_{2}", lambda x: x.log() / log(2), "The logarithm to base 2.")
Log10 = function("Log10", r"\log_{10}", lambda x: x.log() / log(10), "The logarithm to base 10.")
Exp = function("Exp", r"e^{%s}", lambda x: x.exp(), "`eˣ`.")
Expm1 = function("Expm1", r"e^{%s} - 1", lambda x: x.expm1(), "`eˣ - 1`.", needs_parens=True)
Root = function("Root", r"\sqrt{%s}", lambda x: x.sqrt(), "`√x`.")
Absolute = function("Absolute", r"\left|%s\right|", lambda x: x.abs(), "`|x|`.")
Floor = function(
    "Floor",
    r"\left\lfloor %s \right\rfloor",
    lambda x: x.floor(),
    "`⌊x⌋`, the largest whole number not above x.",
)
Ceiling = function(
    "Ceiling",
    r"\left\lceil %s \right\rceil",
    lambda x: x.ceil(),
    "`⌈x⌉`, the smallest whole number not below x.",
)
Round = function(
    "Round",
    r"\operatorname{round}",
    lambda x: x.round(),
    "The nearest whole number; of two equally near ones, the even one.",
)
Truncated = function(
    "Truncated",
    r"\operatorname{trunc}",
    lambda x: (x.sign() * x.abs().floor()).masked_fill(~x.isfinite(), -(2.0**63)),
    "The number without its decimals; NaN and infinite numbers become the lowest 64-bit integer.",
)
Sign = function("Sign", r"\operatorname{sign}", lambda x: (x > 0).double() - (x < 0).double(), "1, 0 or -1.")
Erf = function("Erf", r"\operatorname{erf}", lambda x: x.erf(), "The error function `2/√π ∫₀ˣ e^(-t²) dt`.")
Tangent = function("Tangent", r"\tan", lambda x: x.sin() / x.cos(), "`sin x / cos x`.")
ArcTangent = function(
    "ArcTangent", r"\arctan", lambda x: x.atan(), "The angle between -π/2 and π/2 whose tangent is x."
)
ArcTangent2 = function(
    "ArcTangent2",
    r"\operatorname{atan2}",
    lambda y, x: y.atan2(x),
    "The angle of the point (x, y), `ArcTangent2(y, x)`.",
)
HyperbolicSine = function("HyperbolicSine", r"\sinh", lambda x: (x.exp() - (-x).exp()) / 2, "`(eˣ - e⁻ˣ) / 2`.")
HyperbolicCosine = function("HyperbolicCosine", r"\cosh", lambda x: (x.exp() + (-x).exp()) / 2, "`(eˣ + e⁻ˣ) / 2`.")
Bool = function("Bool", r"\left[\,%s \ne 0\,\right]", lambda x: (x != 0).double(), "1 where a number is not 0, else 0.")


class Log1p(_UnaryFunction):
    """`log(1 + x)`."""

    def _latex(self, printer) -> str:
        return rf"\log\left(1 + {self.args[0].factor_latex(printer)}\right)"

    def run(self, size, x) -> torch.Tensor:
        return x.log1p()


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
