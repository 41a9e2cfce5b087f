r"""A word with settings below it and operands in brackets, `\operatorname{mean}_{H,\,W}\left(\mathbf{X}\right)`.

Most functions of tensors are printed that way; a class says its word, the names of its settings and what it computes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch
from sympy.core.symbol import Str
from sympy.logic.boolalg import BooleanAtom

from tracer.expr.node import Node, Shape
from tracer.utils.text import latex_power
from tracer.utils.torch_internals import split_arguments, tree_map_only

COMMA = r",\,"


def encode(value) -> sympy.Basic:
    """Encode a setting as a sympy object: a number, a bool, text, None, a size, or a tuple of these."""
    if value is None or isinstance(value, str):
        return Str(value or "")
    if isinstance(value, (tuple, list)):
        return sympy.Tuple(*map(encode, value))
    return sympy.sympify(value)


def decode(value: sympy.Basic) -> Any:
    """Decode a setting to its Python value; a size stays a sympy expression."""
    if isinstance(value, Str):
        return value.name or None
    if isinstance(value, BooleanAtom):
        return bool(value)
    if isinstance(value, sympy.Tuple):
        return tuple(map(decode, value))
    if isinstance(value, sympy.Integer):
        return int(value)
    return float(value) if value.is_number and not value.is_Rational else value


def decimal(value: complex) -> str:
    r"""Return a number as LaTeX with all its digits: `0.5`, `10^{-5}`, `3 \cdot 10^{-6}`, `-\infty`,
    `2\,\mathrm{i}`."""
    if isinstance(value, complex):
        imaginary = rf"{decimal(abs(value.imag))}\,\mathrm{{i}}" if abs(value.imag) != 1 else r"\mathrm{i}"
        sign = "-" if value.imag < 0 else "+" if value.real else ""
        return " ".join(filter(None, (decimal(value.real) if value.real else "", sign, imaginary)))
    if math.isnan(value):
        return r"\text{NaN}"
    if value < 0:
        return f"-{decimal(-value)}"
    if math.isinf(value):
        return r"\infty"
    if value == int(value) < 1e16:
        return str(int(value))
    digits, _, power = repr(float(value)).partition("e")
    if len(digits) > MAX_DIGITS and (exact := closed_form(value)):
        return exact
    return latex_power(digits, power) if power else digits


MAX_DIGITS = 12
"""Digits of a number that somebody wrote as it is, at most."""
MAX_RADICAND = 10**6
"""The largest whole number below a root, or in a logarithm."""


def closed_form(value: float) -> str:
    r"""Return a number as root, logarithm or multiple of π if it equals one to the last digits: `\sqrt{32}`,
    `8^{1/4}`, `\frac{\ln 10^{4}}{8}`; "" for any other."""
    square, times_pi = value * value, [rf"{n}\,\pi" if n > 1 else r"\pi" for n in range(5)]
    for n in range(1, 5):
        for below in range(1, 13):
            if _same(value, n * math.pi / below):
                return rf"\frac{{{times_pi[n]}}}{{{below}}}" if below > 1 else times_pi[n]
        if _same(square, n / math.pi):
            return rf"\sqrt{{\frac{{{n}}}{{\pi}}}}"
        if _same(square, n * math.pi):
            return rf"\sqrt{{{times_pi[n]}}}"
    roots = r"\sqrt{%s}", r"\frac{1}{\sqrt{%s}}", "%s^{1/4}", "%s^{-1/4}"
    for power, text in zip((2, -2, 4, -4), roots, strict=True):
        number = round(value**power) if 2 <= value**power < MAX_RADICAND else 0
        if math.isqrt(number) ** 2 < number and _same(value**power, number):
            return text % number
    power = round(math.exp(min(value, math.log(MAX_RADICAND))))
    if power > 1 and _same(value, math.log(power)):
        return _logarithm(power)
    for n, times in ((1, ""), (2, r"2\,")):
        below = n * math.log(BASE) / value
        if 1 < below < MAX_RADICAND and _same(below, round(below)):
            return rf"\frac{{{times}{_logarithm(BASE)}}}{{{round(below)}}}"
    return ""


BASE = 10000
"""The number whose powers are the wave lengths of positions (Vaswani et al. 2017)."""


def _same(value: float, exact: float) -> bool:
    """Return whether two numbers are equal up to a few roundings."""
    return abs(value - exact) <= 8 * sys.float_info.epsilon * abs(exact)


def _logarithm(number: int) -> str:
    """Return the LaTeX of the natural logarithm of a whole number."""
    power = round(math.log10(number))
    return rf"\ln 10^{{{power}}}" if number == 10**power and power > 1 else rf"\ln {number}"


DTYPE_MAXIMA = {
    torch.finfo(dtype).max: rf"\text{{max}}_{{\text{{{str(dtype).removeprefix('torch.')}}}}}"
    for dtype in (torch.float32, torch.bfloat16, torch.float64)
}
"""The largest numbers of their kinds, as they are printed: masks have them with a minus, in place of infinite ones."""


def setting_latex(value, printer) -> str:
    """Return a setting as LaTeX; several numbers with a sign between them, or a single one if all are equal."""
    if isinstance(value, tuple):
        same = len(set(value)) == 1
        return (
            setting_latex(value[0], printer)
            if same
            else r" \times ".join(setting_latex(item, printer) for item in value)
        )
    return decimal(value) if isinstance(value, (int, float)) else printer._print(value)


def whole(value, size) -> int:
    """Return the value of a setting that is a whole number or a size."""
    return value if isinstance(value, int) else round(float(size(value)))


def call_latex(word: str, settings, operands) -> str:
    r"""`\operatorname{word}_{settings}\left(operands\right)`."""
    below = rf"_{{{COMMA.join(settings)}}}" if settings else ""
    return rf"{word}{below}\left({COMMA.join(operands)}\right)"


def tight(node: Node, printer) -> str:
    """Return a node's LaTeX with a superscript or subscript to follow: in brackets unless it is atomic."""
    text = printer._print(node)
    return rf"\left({text}\right)" if node.needs_parens or node.needs_parens_in_script else text


class _WithFields(Node):
    """A node with settings behind its operands: those of `fields`, by name, None where one is absent."""

    fields: tuple[str, ...] = ()

    def __new__(cls, *args, **settings):
        if unknown := settings.keys() - set(cls.fields):
            raise TypeError(f"{cls.__name__} has no setting {unknown.pop()!r}, but {', '.join(cls.fields) or 'none'}")
        if cls.fields and (settings or not args or isinstance(args[-1], Node)):
            args = (*args, *(encode(settings.get(field)) for field in cls.fields))
        return super().__new__(cls, *args)

    def __getnewargs__(self):
        return self.args

    def get(self, field: str):
        """Return the value of a setting."""
        return decode(self.args[len(self.args) - len(self.fields) + self.fields.index(field)])


class _FunctionCall(_WithFields):
    """A function that is printed as its word."""

    word = ""

    def subscripts(self, printer) -> list[str]:
        """Return the settings that are printed below the word, in order: all, unless a subclass knows better."""
        return [setting_latex(self.get(field), printer) for field in self.fields]

    def _latex(self, printer) -> str:
        return call_latex(self.word, self.subscripts(printer), [printer._print(operand) for operand in self.operands])


def _number(value: sympy.Expr) -> complex:
    """Return a sympy number as Python number."""
    return complex(value) if value.is_extended_real is False else float(value)


class Scalar(Node):
    r"""A number, or a size: `Scalar(0.5)`, `Scalar(sqrt(D))`; no axes."""

    @property
    def needs_parens(self) -> bool:
        negative = self.value.is_Add or bool(self.value.is_extended_negative)
        return negative or (self.value.is_Float and decimal(float(self.value)).startswith(r"\ln"))

    @property
    def value(self) -> sympy.Expr:
        return self.args[0]

    def _latex(self, printer) -> str:
        if not self.value.is_number:
            return printer._print(self.value)
        number = _number(self.value)
        if isinstance(number, complex):
            return decimal(number)
        largest = DTYPE_MAXIMA.get(abs(number))
        return decimal(number) if largest is None else f"-{largest}" if number < 0 else largest

    def infer(self, same) -> Shape:
        return ()

    def run(self, size) -> torch.Tensor:
        value = _number(self.value) if self.value.is_number else float(size(self.value))
        if isinstance(value, complex):
            return torch.tensor(value, dtype=torch.complex128)
        whole = self.value.is_integer and abs(value) < 2**53
        return torch.tensor(int(value)) if whole else torch.tensor(value, dtype=torch.float64)


class Opaque(_WithFields):
    r"""A call that could not be written as an equation, by its name and its input tensors: `\operatorname{op}(x)`.

    It claims no more than that, and refuses to run. `Opaque(*operands, name=…, reason=…, result=…)`: `reason` says why
    in a few words, `result` is the shape that the call gave.
    """

    fields = ("name", "reason", "result")

    def _latex(self, printer) -> str:
        name = (self.get("name") or "op").strip("_").replace("_", r"\_")
        return call_latex(rf"\operatorname{{{name}}}", [], [printer._print(operand) for operand in self.operands])

    def infer(self, same, *shapes) -> Shape:
        return tuple(map(sympy.sympify, self.get("result")))

    @property
    def note(self) -> str:
        """Reason why there is nothing to execute."""
        return f"not executed: no equation could be written for it ({self.get('reason')})"

    def run(self, size, *tensors) -> torch.Tensor:
        raise ValueError(self.note)


def _name(constant) -> str:
    """Return the name of a dtype, or of another constant of PyTorch."""
    return str(constant).removeprefix("torch.")


def _single(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32 if it is in float64."""
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sparse or quantized tensor as a dense one."""
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


class Kernel(_WithFields):
    """An op without a formula: PyTorch's op by its name, on the operands and its other arguments.

    `Kernel.of(func, arguments, position, result)`; an equation with one proves less, and is marked so. With `single` it
    runs in float32, since another precision may lead to another of several right results. Operands that were whole
    numbers or bools in the run, by its `dtypes`, are so for the op, too: equations compute with fractions.
    """

    fields = ("name", "arguments", "position", "result", "single")

    @classmethod
    def of(
        cls,
        func,
        arguments: dict,
        position: int,
        result: tuple,
        single: bool = False,
        dtypes: Mapping[str, Any] = MappingProxyType({}),
    ) -> Kernel:
        """Build the node from `arguments` by their names: a node, a list of nodes, or any plain value; `result` is the
        shape of the result. `dtypes` are those of tensors by name, lists for lists of tensors."""
        operands: list[Node] = []

        def plain(value, dtype=None):
            if isinstance(value, Node):
                operands.append(value)
                exact = isinstance(dtype, torch.dtype) and not (dtype.is_floating_point or dtype.is_complex)
                return {"operand": len(operands) - 1} | ({"torch": _name(dtype)} if exact else {})
            if isinstance(value, (tuple, list)):
                several = dtype if isinstance(dtype, (tuple, list)) else [None] * len(value)
                return list(map(plain, value, several))
            if value is None or isinstance(value, (bool, int, float, str)):
                return value
            return {"torch": _name(value)}

        text = json.dumps({name: plain(value, dtypes.get(name)) for name, value in arguments.items()})
        return cls(*operands, name=str(func), arguments=text, position=position, result=tuple(result), single=single)

    def _latex(self, printer) -> str:
        name = self.get("name").split(".")[1].strip("_").replace("_", r"\_")
        operands = [printer._print(operand) for operand in self.operands] or self._numbers()
        return call_latex(rf"\operatorname{{{name}}}", [], operands)

    def _numbers(self) -> list[str]:
        """Return the numbers among the arguments of a call without tensors, in order."""
        arguments = json.loads(self.get("arguments"))
        values = (value for name, value in arguments.items() if name != "dtype")
        flat = (item for value in values for item in (value if isinstance(value, list) else [value]))
        return [decimal(item) for item in flat if isinstance(item, (int, float)) and not isinstance(item, bool)]

    infer = Opaque.infer

    def run(self, size, *tensors) -> torch.Tensor:
        space, name, overload = self.get("name").split(".")
        func = getattr(getattr(getattr(torch.ops, space), name), overload)
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ValueError("its numbers are random, so it is not run a second time")

        def real(value):
            if isinstance(value, list):
                return [real(item) for item in value]
            if not isinstance(value, dict):
                return value
            if "operand" in value:
                operand = tensors[value["operand"]]
                return operand.to(getattr(torch, value["torch"])) if "torch" in value else operand
            if value["torch"] in ("float16", "bfloat16", "float32"):
                return torch.float64
            constant = getattr(torch, value["torch"], None)
            return constant if isinstance(constant, (torch.dtype, torch.layout, torch.memory_format)) else None

        arguments = {name: real(value) for name, value in json.loads(self.get("arguments")).items()}
        positional, arguments = split_arguments(func, arguments)
        if self.get("single"):
            positional, arguments = tree_map_only(torch.Tensor, _single, (positional, arguments))
        try:
            output = func(*positional, **arguments)
        except RuntimeError:  # some kernels don't take float64
            positional, arguments = tree_map_only(torch.Tensor, _single, (positional, arguments))
            output = func(*positional, **arguments)
        return dense(output[self.get("position")] if isinstance(output, (tuple, list)) else output)
