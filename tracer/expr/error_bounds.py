"""Running error analysis: the value of an expression in float64, with a bound on the rounding error of each cell.

While the nodes of an expression run, every function of PyTorch that they call adds to the bound of its result what the
bounds of its operands amount to, to first order, and one rounding of its own: u·|result|, or u·Σ|terms| where it adds
up (Wilkinson 1963; Higham, Accuracy and Stability of Numerical Algorithms, sections 2.2, 3.1 and 3.3). u is the unit
roundoff of the dtype in which the model computed. Traced operands are exact: they are the very numbers of the run.

Worst cases grow with the number n of terms, as γ_n = nu / (1 - nu); roundings that are as often up as down grow with
√n, and kernels add in blocks (Higham and Mary 2019). So the bound leaves n out, and `FACTOR` covers what is left: the
largest error seen is 0.54·ε·Σ|terms| of a product, 1.0·ε·(|x| + |μ|)/σ of a layer norm, 2.9·ε·p·(|s - max| + 1) of a
softmax and 11.3·ε·|x|/2 of an exact GELU, whose 1 + erf cancels; ε is 2u.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from math import frexp, pi, sqrt
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from tracer.expr.node import Node, Tensor

FACTOR = 16
"""The allowed error in units of the bound's u. 16 u are 8 ε."""
ONCE = 3
"""The same of the dtypes whose kernels round nothing but their results: each is off by at most u."""
HALVES = torch.float16, torch.bfloat16
"""Dtypes whose kernels compute in float32 and round their result once."""

QUANTIZED = torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4
"""Dtypes of quantized tensors, which only functions of their own take."""


class BoundedValue(NamedTuple):
    """Value of an expression, the bound of each cell's error (None where it is exact), and the dtype in which the model
    had it; None where no operand determines one."""

    value: torch.Tensor
    bound: torch.Tensor | None = None
    dtype: torch.dtype | None = None

    def convert(self, dtype: torch.dtype | None, careful: bool) -> BoundedValue:
        """Add the loss of a Python number, or of a tensor without axes, as it is converted to `dtype`."""
        if dtype is None or dtype == self.dtype or not fractional(self.value):
            return self
        return self._replace(bound=total(self.bound, conversion(self.value, dtype, precision(careful))))

    def rounded_to(self, dtype: torch.dtype, careful: bool) -> BoundedValue:
        """Add one more rounding where the run holds the value in a narrower dtype than its operands have."""
        if self.dtype is None and self.bound is None:
            return self.convert(dtype, careful)
        if not fractional(self.value) or limits(dtype).eps <= limits(self.dtype).eps:
            return self
        more = Rounding(dtype, coarse=True, careful=careful).rounding(self.value)
        return BoundedValue(self.value, total(self.bound, more), dtype)


def evaluate(
    node: Node,
    value: Callable[[Tensor], torch.Tensor | BoundedValue],
    size,
    coarse: bool = False,
    careful: bool = False,
) -> BoundedValue:
    """Return the value of an expression and the bound of its error. `value(tensor)` gives each tensor as the run had
    it, or what `evaluate` returned for one that no run held.

    With `coarse` several kernels computed each node, and each of them rounded; else one did, which computed in float32
    at least. With `careful` the bounds are in float64, and know the range of the dtype: numbers that round to
    subnormal ones, and those that overflow, whose bound is infinite.
    """
    if isinstance(node, Tensor):
        bounded = value(node)
        if not isinstance(bounded, BoundedValue):
            bounded = BoundedValue(
                bounded.to(exact_dtype(bounded.dtype)), None, bounded.dtype if fractional(bounded) else None
            )
        if not node.transposed:
            return bounded
        value, bound = (None if item is None else item.transpose(-2, -1) for item in bounded[:2])
        return bounded._replace(value=value, bound=bound)
    operands = [evaluate(operand, value, size, coarse, careful) for operand in node.operands]
    among = common(operands)
    operands, dtype = [operand.convert(among, careful) for operand in operands], node.dtype or among
    return Rounding(dtype, coarse, careful).result(node, size, operands)._replace(dtype=dtype)


def exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which equations run: one twice as wide for numbers with a fraction, the widest for whole
    numbers, which wrap in others, and its own for quantized ones."""
    if dtype in QUANTIZED:
        return dtype
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else torch.bool if dtype == torch.bool else torch.int64


def count(node: Node) -> int:
    """Return the number of nodes of an expression that compute something."""
    return 0 if isinstance(node, Tensor) else 1 + sum(map(count, node.operands))


def common(operands) -> torch.dtype | None:
    """Return the dtype to which PyTorch promotes operands; one without axes does not change that of the others."""
    for wide in (True, False):
        dtypes = [
            operand.dtype for operand in operands if operand.dtype is not None and bool(operand.value.dim()) is wide
        ]
        if dtypes:
            return reduce(torch.promote_types, dtypes)
    return None


def precision(careful: bool) -> torch.dtype:
    """Return the dtype of bounds."""
    return torch.float64 if careful else torch.float32


def conversion(value: torch.Tensor, dtype: torch.dtype, kind: torch.dtype) -> torch.Tensor | None:
    """Return a bound in `kind` on the error of rounding numbers to a dtype; None if it holds them all."""
    if not (dtype.is_floating_point or dtype.is_complex) or (value.is_complex() and not dtype.is_complex):
        return None
    dtype = dtype if value.is_complex() else dtype.to_real()
    lost = (value.to(dtype).to(value.dtype) - value).abs().nan_to_num(nan=0.0, posinf=0.0)
    return (lost * (2 / FACTOR)).to(kind) if bool(lost.any()) else None  # twice, as the bound is rounded, too


def limits(dtype: torch.dtype | None) -> torch.finfo:
    """Return the limits of a dtype, of float32 if it has no fractions."""
    return torch.finfo(dtype if dtype is not None and (dtype.is_floating_point or dtype.is_complex) else torch.float32)


def unit(within: torch.finfo) -> float:
    """Return the unit roundoff u of a dtype, or a share of it if at most `ONCE` of `FACTOR` are allowed."""
    return within.eps / 2 * (ONCE / FACTOR if within.dtype in ("float16", "bfloat16") else 1)


class Rounding(TorchFunctionMode):
    """A mode in which the functions of PyTorch attach to each result, as `bound`, a bound of its error in units of
    1."""

    def __init__(self, dtype: torch.dtype | None, coarse: bool = False, careful: bool = False):
        super().__init__()
        self.dtype, self.careful = dtype, careful
        self.within = limits(torch.float32 if dtype in HALVES and not coarse else dtype)
        self.unit = unit(self.within)
        self.kind = precision(careful)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        if name in EXACT_FUNCTIONS:
            return func(*args, **kwargs)
        if rule := WRITES.get(name):
            rule(self, *args, **kwargs)
            return func(*args, **kwargs)
        output, rule = func(*args, **kwargs), RULES.get(name)
        if name in MOVES:
            if any(bound_of(cell) is not None for cell in flat(args)):
                places = args[1:] if name in CHOOSES else ()
                if any(bool((bound > 0).any()) for cell in flat(places) if (bound := bound_of(cell)) is not None):
                    raise ValueError(TIE_PROBLEM)
                moved = func(*self.bounds(args[: len(args) - len(places)]), *places, **kwargs)
                for cell, bound in zip(flat(output), flat(moved), strict=True):
                    attach(cell, bound)
        elif rule and isinstance(output, torch.Tensor):
            attach(output, rule(self, func, output, *args, **kwargs))
        else:
            for cell in flat(output):
                if fractional(cell) and cell.layout is torch.strided:
                    attach(cell, self.unknown(cell, *flat((*args, *kwargs.values()))))
        return output

    def result(self, node: Node, size, operands: list[BoundedValue]) -> BoundedValue:
        """Return a node's value and bound from those of its operands."""
        run = partial(node.run, size)
        values, bounds = [operand.value for operand in operands], [operand.bound for operand in operands]
        if node.multilinear:
            output = run(*values)
            bound = self.of_terms(run, output, values, bounds, node.multilinear)
        elif node.additive and len(operands) == 2:
            output = run(*values)
            bound = total(*bounds, self.rounding(output))
        elif not self.careful and node.analysed and not any(bound is not None for bound in bounds):
            output = run(*values)
            bound = node.errors(output.to(self.kind), *(value.to(self.kind) for value in values)).mul_(self.unit)
        else:
            among = zip(values, bounds, strict=True)
            bare = [value if bound is None else value.view_as(value) for value, bound in among]
            for tensor, bound in zip(bare, bounds, strict=True):
                attach(tensor, bound)
            with self:
                output = run(*bare)
            bound = bound_of(output)
        if bound is not None and (node.dtype or self.within.eps != limits(self.dtype).eps):  # cast, or computed wider
            self.within, self.unit = limits(self.dtype), unit(limits(self.dtype))
            bound = total(bound, self.rounding(output))
        return BoundedValue(output, bound)

    def of_terms(self, func, output: torch.Tensor, operands, bounds, factors: int) -> torch.Tensor | None:
        """u·Σ|terms|, and for each operand with a bound the sum of that times the rest of each term. The first operands
        are the `factors` of each term, and the others are added."""
        if not fractional(output):
            return None
        sizes = [self.size(operand) for operand in operands]
        summed = self.contributions(output, sizes, func)
        for place, bound in enumerate(bounds):
            if bound is not None:
                apart = range(factors, len(sizes)) if place < factors else (0,)
                rest = [torch.zeros_like(x) if i in apart else x for i, x in enumerate(sizes)]
                summed = summed + func(*rest[:place], bound, *rest[place + 1 :])
        return summed

    def contributions(self, output: torch.Tensor, sizes: list[torch.Tensor], func) -> torch.Tensor:
        """u·Σ|terms| of a sum of products. In careful mode twice that, and the effect of roundings in one direction, as
        they happen where many of n terms are equal: u·n/2 of the sum."""
        bound = func(*sizes) * self.unit
        if not self.careful:
            return bound
        count = func(*(torch.ones_like(size) for size in sizes))
        return 2 * bound + total(count * self.rounding(output) / (2 * FACTOR), count * self.least)  # type: ignore[operator]

    @property
    def least(self) -> float:
        """Smallest positive number of the dtype of the computation."""
        return self.within.smallest_normal * self.within.eps

    def size(self, x) -> torch.Tensor:
        """Return the absolute values of a tensor or a number in the dtype of bounds."""
        if not isinstance(x, torch.Tensor):
            return torch.tensor(abs(x), dtype=self.kind)
        return x.abs().to(self.kind) if x.is_complex() or x.dtype == self.kind else x.to(self.kind).abs_()

    def rounding(self, output: torch.Tensor, times: float = 1) -> torch.Tensor | None:
        """u times a result: the effect of one rounding on it; `times` for functions that are not correctly rounded."""
        if not fractional(output):
            return None
        size = self.size(output)
        if not self.careful:
            return size.mul_(self.unit * times)
        bound = (size * (self.unit * times) + self.least).nan_to_num(nan=0.0, posinf=0.0)
        return bound.masked_fill((size > self.within.max) & size.isfinite(), torch.inf)

    def bound(self, x) -> torch.Tensor | None:
        """Return the bound of an operand: for a Python number, its error in the dtype of the run."""
        if isinstance(x, float):
            return conversion(torch.tensor(x, dtype=torch.float64), self.dtype or torch.float32, self.kind)
        return bound_of(x)

    def bounds(self, arguments) -> Any:
        """Arguments of a function with the bounds of tensors in their places; indices and sizes stay."""
        if isinstance(arguments, (tuple, list)):
            return type(arguments)(self.bounds(argument) for argument in arguments)
        if not isinstance(arguments, torch.Tensor):
            return arguments
        bound = bound_of(arguments)
        if bound is not None:
            return bound
        return torch.zeros(arguments.shape, dtype=self.kind) if fractional(arguments) else arguments

    def unknown(self, output: torch.Tensor, *operands: torch.Tensor) -> torch.Tensor:
        """Bound for a function without a rule: the largest relative error of an operand, and `FACTOR` roundings, of the
        largest value."""
        share = self.unit * FACTOR
        for operand in operands:
            if (bound := bound_of(operand)) is not None and bound.numel():
                share += float(bound.max()) / max(float(operand.abs().max()), self.within.tiny)
        finite = self.size(output).nan_to_num(nan=0.0, posinf=0.0)
        return (finite.max() * share if finite.numel() else finite).expand(output.shape)


def fractional(x: torch.Tensor) -> bool:
    """Return whether a tensor's numbers may be rounded."""
    return x.is_floating_point() or x.is_complex()


def flat(arguments) -> list[torch.Tensor]:
    """Return the tensors among nested arguments in their order."""
    if isinstance(arguments, torch.Tensor):
        return [arguments]
    return [item for argument in arguments for item in flat(argument)] if isinstance(arguments, (tuple, list)) else []


def bound_of(x) -> torch.Tensor | None:
    """Return the bound of a result, or None."""
    return getattr(x, "bound", None) if isinstance(x, torch.Tensor) else None


def attach(output: torch.Tensor, bound: torch.Tensor | None) -> None:
    """Set the bound of a result."""
    if bound is not None:
        output.bound = bound if bound.shape == output.shape else bound.expand(output.shape)  # type: ignore[attr-defined]


def total(*bounds: torch.Tensor | None) -> torch.Tensor | None:
    """Return the sum of the bounds that are not None."""
    summed = None
    for bound in bounds:
        summed = bound if summed is None else summed if bound is None else summed + bound
    return summed


# What the functions do

EXACT_FUNCTIONS = frozenset(
    """shape dtype device ndim dim size numel __len__ is_floating_point is_complex stride layout tolist item __float__
    __int__ __bool__ __index__ tensor zeros ones empty full arange zeros_like ones_like empty_like result_type
    promote_types broadcast_shapes argmax argmin nonzero unique isfinite isinf isnan one_hot long int
    requires_grad is_inference""".split()
)
"""Functions that ask a tensor for something exact, or make numbers of nothing."""
MOVES = frozenset(
    """__getitem__ reshape view view_as transpose T mT H mH swapaxes permute movedim flatten unflatten unsqueeze squeeze
    expand broadcast_to broadcast_tensors index_select gather unbind chunk split cat concat stack flip roll repeat
    repeat_interleave unfold select narrow contiguous clone diagonal tensor_split tile take_along_dim""".split()
)
"""Functions that move numbers."""
CHOOSES = frozenset("__getitem__ index_select gather take_along_dim".split())
"""Those whose further arguments say which, and are not numbers that move."""
TIE_PROBLEM = "which numbers are chosen hangs on two that are too near to each other to be told apart"
Rule = Callable[..., torch.Tensor | None]
RULES: dict[str, Rule] = {}
"""The bound of a function's result: `rule(rounding, function, result, *arguments)`, None where it is exact."""
WRITES: dict[str, Callable[..., None]] = {}
"""The rules of in-place functions: each changes the bound of its first argument, before it runs."""


def of(*names: str, table: dict[str, Any] = RULES) -> Callable[[Rule], Rule]:
    """Register a function as the rule of PyTorch functions, by their names."""

    def declare(rule):
        table.update(dict.fromkeys(names, rule))
        return rule

    return declare


@of("to", "type", "double", "float", "neg", "real", "imag", "conj", "resolve_conj", "bool", "clamp", "relu")
@of("__invert__")
def copy_bound(r: Rounding, func, output, x, *arguments, **settings) -> torch.Tensor | None:
    """Return the operand's bound: nothing is rounded, and no difference grows."""
    return bound_of(x)


@of("abs")
def abs_bound(r: Rounding, func, output, x) -> torch.Tensor | None:
    """Return the operand's bound; the length of a complex number is rounded, too."""
    return total(bound_of(x), r.rounding(output, 2) if x.is_complex() else None)


@of("add", "sub", "__rsub__")
def sum_bound(r: Rounding, func, output, a, b) -> torch.Tensor | None:
    """Return the bound of `a + b`: both bounds and u·|a + b|."""
    return total(r.bound(a), r.bound(b), r.rounding(output))


@of("mul")
def product_bound(r: Rounding, func, output, a, b) -> torch.Tensor | None:
    """`ab`: |b| times the bound of a, |a| times that of b, and u·|ab|."""
    first, second = bound_of(a), bound_of(b)
    first = None if first is None else first * r.size(b)
    second = None if second is None else second * r.size(a)
    return total(first, second, None if shifts(a) or shifts(b) else r.rounding(output))


def shifts(x) -> bool:
    """Return whether x is a power of two or 0, for which products and quotients are exact."""
    return isinstance(x, (int, float)) and (x == 0 or abs(frexp(x)[0]) == 0.5)


@of("div", "true_divide")
def quotient_bound(r: Rounding, func, output, a, b) -> torch.Tensor | None:
    """Return the bound of `a / b`: (bound(a) + |a / b| bound(b)) / |b| and u·|a / b|. A whole quotient of whole
    numbers is exact."""
    first, second = bound_of(a), bound_of(b)
    bound = total(first, None if second is None else second * r.size(output))
    bound = None if bound is None else bound / r.size(b)
    whole = not any(
        isinstance(operand, float) or (isinstance(operand, torch.Tensor) and fractional(operand)) for operand in (a, b)
    )
    exact = shifts(b) or (whole and bool((output == output.floor()).all()))
    return total(bound, None if exact else r.rounding(output))


@of("__rdiv__")
def reversed_quotient_bound(r: Rounding, func, output, b, a) -> torch.Tensor | None:
    """Return the bound of `a / b` for a number a."""
    return quotient_bound(r, func, output, a, b)


@of("pow")
def power_bound(r: Rounding, func, output, base, exponent) -> torch.Tensor | None:
    """`aⁿ`: |n aⁿ⁻¹| times the bound of a, |aⁿ log a| times that of n, and a rounding for each of up to 16 factors."""
    first, second = bound_of(base), bound_of(exponent)
    if not fractional(output) or (isinstance(exponent, (int, float)) and exponent == 1):
        return first
    kind = torch.complex128 if output.is_complex() else torch.float64
    base, exponent = (torch.as_tensor(operand, dtype=kind) for operand in (base, exponent))
    bound = r.rounding(output) * (1 + r.size(exponent).clamp(max=16))
    if first is not None:
        bound = bound + first * r.size(exponent * base ** (exponent - 1))
    if second is not None:
        bound = bound + (second * r.size(output) * r.size(base.abs().log())).nan_to_num(nan=0.0, posinf=torch.inf)
    return bound


@of("__rpow__")
def reversed_power_bound(r: Rounding, func, output, exponent, base) -> torch.Tensor | None:
    """`aⁿ` of a number a."""
    return power_bound(r, func, output, base, exponent)


@of("sum", "mean", "cumsum", "diff")
def reduction_bound(r: Rounding, func, output, x, *arguments, **settings) -> torch.Tensor | None:
    """Return the sum of the bounds and u·Σ|terms|; infinite, in careful mode, where Σ|terms| is beyond the range."""
    bound = total(bound_of(x), r.size(x).mul_(r.unit) if fractional(x) else None)
    if bound is None:
        return None
    if func.__name__ == "diff":
        return bound[..., 1:] + bound[..., :-1]
    summed = func(bound, *arguments, **settings)
    return (
        summed.masked_fill(func(r.size(x), *arguments, **settings) > r.within.max, torch.inf) if r.careful else summed
    )


@of("bincount")
def bincount_bound(r: Rounding, func, output, places, values, count) -> torch.Tensor | None:
    """Return the bound of a sum for each index."""
    terms = total(bound_of(values), r.size(values) * (r.unit))
    return None if terms is None else torch.bincount(places, terms.double(), count).to(r.kind)


@of("matmul")
def matmul_bound(r: Rounding, func, output, left, right) -> torch.Tensor | None:
    """u·Σ|terms|, and for each factor the sum of its bound times the other factor."""
    return r.of_terms(func, output, (left, right), map(bound_of, (left, right)), 2)


@of("einsum")
def einsum_bound(r: Rounding, func, output, axes: str, *factors) -> torch.Tensor | None:
    """Return the bound of a matrix product over other axes."""
    return r.of_terms(partial(func, axes), output, factors, map(bound_of, factors), len(factors))


@of("amax", "amin")
def extremum_bound(r: Rounding, func, output, x, *arguments, **settings) -> torch.Tensor | None:
    """Return the largest change of the extremum, if each number moves within its bound."""
    if (bound := bound_of(x)) is None:
        return None
    bound = bound.masked_fill(x.isinf(), 0)
    ends = (func(x + sign * bound, *arguments, **settings) for sign in (1, -1))
    return reduce(torch.maximum, (r.size(end - output) for end in ends))


@of("maximum", "minimum")
def elementwise_extremum_bound(r: Rounding, func, output, a, b) -> torch.Tensor | None:
    """Return the larger of both bounds."""
    first, second = r.bound(a), r.bound(b)
    return second if first is None else first if second is None else torch.maximum(first, second)


@of("where")
def where_bound(r: Rounding, func, output, mask, a, b) -> torch.Tensor | None:
    """Return the bound of the selected number, plus |a - b| if the condition may be wrong within its own bound."""
    bounds = [r.bound(operand) for operand in (a, b)]
    bound = None
    if any(operand is not None for operand in bounds):
        none = torch.zeros((), dtype=r.kind)
        bound = torch.where(mask, *(none if operand is None else operand for operand in bounds))
    if (open := bound_of(mask)) is not None:
        bound = total(bound, torch.where(open > 0, r.size(torch.as_tensor(a) - b), 0))
    return bound


@of("masked_fill")
def masked_fill_bound(r: Rounding, func, output, x, mask, value) -> torch.Tensor | None:
    """Return the bound of `where`."""
    return where_bound(r, func, output, mask, value, x)


@of("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "eq", "ne", "lt", "le", "gt", "ge")
def comparison_bound(r: Rounding, func, output, a, b) -> torch.Tensor | None:
    """1 where the operands are too near to each other for their bounds to tell."""
    near = total(r.bound(a), r.bound(b))
    return None if near is None else ((r.size(a - b) <= FACTOR * near) & (near > 0)).to(r.kind)


@of("__and__", "__or__", "__xor__", "logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or")
def logical_bound(r: Rounding, func, output, a, b) -> torch.Tensor | None:
    """1 where an operand is not told."""
    return total(bound_of(a), bound_of(b))


@of("remainder")
def remainder_bound(r: Rounding, func, output, x, divisor: int) -> torch.Tensor | None:
    """Return the operand's bound, and the divisor where the operand may be beyond a multiple of it."""
    if (bound := bound_of(x)) is None:
        return None
    first, last = ((x + sign * FACTOR * bound).div(divisor).floor() for sign in (-1, 1))
    return bound + (first != last) * divisor


@of("floor", "ceil", "round", "trunc", "sign")
def step_bound(r: Rounding, func, output, x) -> torch.Tensor | None:
    """Return the jump of the result, if the operand moves within its bound."""
    if (bound := bound_of(x)) is None:
        return None
    return r.size(func(x + FACTOR * bound) - func(x - FACTOR * bound))


@of("sqrt")
def sqrt_bound(r: Rounding, func, output, x) -> torch.Tensor | None:
    """`√x`: the bound over 2√x, and no more than its own root; u·√x."""
    if (bound := bound_of(x)) is None:
        return r.rounding(output)
    return total(
        torch.minimum(bound / (2 * r.size(output)), bound.sqrt()).nan_to_num(nan=0.0, posinf=torch.inf),
        r.rounding(output),
    )


@of("rsqrt")
def rsqrt_bound(r: Rounding, func, output, x) -> torch.Tensor | None:
    """`1/√x`: the bound over 2·x·√x, and u/√x."""
    bound = bound_of(x)
    return total(None if bound is None else bound * r.size(output) ** 3 / 2, r.rounding(output, 2))


@of("exp", "exp2", "expm1")
def exp_bound(r: Rounding, func, output, x) -> torch.Tensor | None:
    """`eˣ`: eˣ (e^d - 1) for a bound d, and 2u·eˣ; what is 0 stays so."""
    bound = bound_of(x)
    if bound is not None:
        power = r.size(x.exp())
        bound = (power * bound.expm1()).masked_fill(power == 0, 0)
    return total(bound, r.rounding(output, 2))


@of("log")
def log_bound(r: Rounding, func, output, x) -> torch.Tensor | None:
    """`log x`: -log(1 - d/x) for a bound d, and 2u·|log x|."""
    bound = bound_of(x)
    return total(None if bound is None else -(-bound / r.size(x)).clamp(min=-1).log1p(), r.rounding(output, 2))


def smooth(derivative: Callable[[torch.Tensor, torch.Tensor], Any]) -> Rule:
    """Return the rule of a function with this derivative, of operand and result: |f'(x)| times the bound, 2u·|f(x)|."""

    def rule(r: Rounding, func, output, x):
        bound = bound_of(x)
        return total(None if bound is None else bound * r.size(derivative(x, output)), r.rounding(output, 2))

    return rule


RULES |= {
    "log1p": smooth(lambda x, y: 1 / (1 + x)),
    "erf": smooth(lambda x, y: 2 / sqrt(pi) * (-x * x).exp()),
    "tanh": smooth(lambda x, y: 1 - y * y),
    "sigmoid": smooth(lambda x, y: y * (1 - y)),
    "sin": smooth(lambda x, y: x.cos()),
    "cos": smooth(lambda x, y: x.sin()),
    "atan": smooth(lambda x, y: 1 / (1 + x * x)),
    "reciprocal": smooth(lambda x, y: y * y),
}


@of("atan2")
def atan2_bound(r: Rounding, func, output, y, x) -> torch.Tensor | None:
    """`atan2(y, x)`: the bounds over the length of (x, y), and 2u of the angle."""
    bound = total(bound_of(x), bound_of(y))
    return total(None if bound is None else bound / r.size(torch.hypot(x, y)), r.rounding(output, 2))


def room(r: Rounding, x: torch.Tensor) -> torch.Tensor:
    """Return the bound of a tensor that is written into."""
    if (bound := bound_of(x)) is None:
        attach(x, bound := torch.zeros(x.shape, dtype=r.kind))
    return bound


@of("__setitem__", table=WRITES)
def put(r: Rounding, x, places, values) -> None:
    """Write the bounds of the written values at the same indices."""
    if bound_of(values) is not None or bound_of(x) is not None:
        room(r, x)[places] = 0 if (bound := bound_of(values)) is None else bound


@of("index_add_", table=WRITES)
def put_more(r: Rounding, x, axis, places, values) -> None:
    """Add the bounds of the added values and u times the result."""
    room(r, x).index_add_(axis, places, total(bound_of(values), r.size(values) * (r.unit)))
