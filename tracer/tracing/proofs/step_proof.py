"""Proof of a step: its equation executed on the traced operands, compared with the traced tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, isnan
from typing import Any, NamedTuple

import sympy
import torch

from tracer.capture.tensors.tensor_store import TensorStore
from tracer.expr import Node, ShapeError, Tensor, execute, infer, tensors
from tracer.expr.error_bounds import FACTOR, HALVES, BoundedValue, Rounding, count, evaluate, exact_dtype, limits
from tracer.expr.function_call import dense
from tracer.expr.node import vanishes
from tracer.record import Step
from tracer.shapes import UNKNOWN, base_form, value_of
from tracer.symbols.notation import parse, symbol
from tracer.textbook.steps import DerivedStep, Line
from tracer.utils.devices import to_cpu
from tracer.utils.error_text import describe_error
from tracer.utils.tensor_diff import Difference, first_beyond


class Proof(NamedTuple):
    """Outcome of executing an equation: the error, the largest share of a cell's rounding bound, and the first
    wrong cell; or None and a note on why it was not executed."""

    error: float | None
    note: str = ""
    wrong: tuple[int, ...] | None = None
    margin: float | None = None


def relative_error(computed: torch.Tensor, traced: torch.Tensor) -> float:
    """Return max|computed - traced| / max|traced| over finite values; equal infinities count 0, 0 against 0 is 0."""
    return difference(computed, traced).relative()


def difference(computed: torch.Tensor, traced: torch.Tensor) -> Difference:
    """Return the deviation of a tensor from the traced one. Raise ShapeError if it has another shape."""
    if computed.shape != traced.shape:
        raise ShapeError(f"the equation gives shape {tuple(computed.shape)}, the run {tuple(traced.shape)}")
    return Difference(computed, traced)


VALUELESS = "not executed: on the device 'meta' tensors have no values; trace with prove=False to ask for none"


def prove(step: DerivedStep, value: Values, sizes: dict[str, int]) -> Proof:
    """Execute the step's equation in float64 on traced operands, and compare it cell by cell with the traced tensor."""
    line = step.line
    if line.of_input:
        return Proof(None, "not executed: it would hold for this input alone")
    try:
        for tensor in (line.tensor, *tensors(line.equation)):
            if value(tensor.key) is None:
                return Proof(None, f"not executed: {value.why(tensor.key)}")
        if value.tensor(line.tensor.key).is_meta:
            return Proof(None, VALUELESS)
        return compare(step, value, sizes)[0]
    except Exception as error:  # whatever is wrong with one line, all others are proven
        return Proof(None, f"not executed: {describe_error(error)}")


WAYS = {"fast": (False, False), "careful": (False, True), "coarse": (True, True)}
"""How bounds are computed, from the cheapest on: each is asked where the one before calls a cell wrong."""


def compare(step: DerivedStep, value: Any, sizes: dict[str, int]) -> tuple[Proof, torch.Tensor | None]:
    """Return the proof of a step whose tensors are available, and the bound of each cell, None without bounds.

    Cells that are NaN in the equation and in the run alike are not compared, nor are those whose number is beyond the
    range of the dtype on the way.
    """
    equation, traced = step.line.equation, value.tensor(step.line.tensor.key)
    fused = any(value.fused_equation(tensor.key) for tensor in tensors(equation))
    for coarse, careful in WAYS.values():
        if coarse and (traced.dtype not in HALVES or len(step.ops) < count(equation) + 2):
            break
        computed, allowed = compute_bounds(equation, value, sizes, traced.dtype, coarse, careful)
        if not careful and hides(computed, allowed):
            continue
        proof = _compare(
            equation,
            computed,
            allowed,
            traced,
            lambda expression: execute_exactly(expression, value, sizes),
            careful,
            fused,
        )
        if proof.margin is None or proof.margin <= 1:
            break
    return proof, allowed


def hides(computed: torch.Tensor, bound: torch.Tensor | None) -> bool:
    """Return whether a number's bound is infinite or NaN: it was beyond float32, in which bounds are computed at
    first."""
    if bound is None or not bound.numel() or bound.amax() < inf:
        return False
    return bool((~bound.isfinite() & computed.isfinite()).any())


CAST = torch.float64, torch.float32
"""Where an operand and the result have these dtypes, all is rounded as in the second: the cast is not printed."""


def compute_bounds(
    equation: Node, value: Values, sizes: dict[str, int], dtype: torch.dtype, coarse: bool, careful: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the value of an equation in float64, and the rounding bound of each cell of a tensor of `dtype`."""

    def size(expression: sympy.Expr) -> float:
        return value_of(str(expression), sizes)

    with torch.no_grad():
        leaf = _Leaf(value, size, dtype, coarse, careful)
        bounded = evaluate(equation, leaf, size, coarse, careful).rounded_to(dtype, careful)
    return bounded.value, None if bounded.bound is None else bounded.bound * FACTOR


class _Leaf:
    """Tensors of an equation, including those that a fused op never held, from their own equations. Not a closure: one
    that refers to itself would hold the tensors of the run until they are collected."""

    def __init__(self, values: Values, size: Callable, dtype: torch.dtype, coarse: bool, careful: bool):
        self.values, self.size, self.dtype, self.coarse, self.careful = values, size, dtype, coarse, careful

    def __call__(self, tensor: Tensor) -> torch.Tensor | BoundedValue:
        inside = self.values.fused_equation(tensor.key)
        if inside:
            return evaluate(inside, self, self.size, self.coarse, self.careful)
        value = self.values.tensor(tensor.key)
        if (value.dtype, self.dtype) != CAST:
            return value
        return BoundedValue(value, Rounding(self.dtype, self.coarse, self.careful).rounding(value), self.dtype)


def _compare(equation: Node, computed, allowed, traced, executed, careful: bool, fused: bool) -> Proof:
    computed, traced = map(dense, (computed, traced))
    computed, traced = (tensor.double() if tensor.dtype == torch.bool else tensor for tensor in (computed, traced))
    apart, notes = difference(computed, traced), []
    error = apart.relative()
    settled = equation.ties(computed, traced, executed) if error else None
    if settled is not None and (ties := int((settled != computed).sum())):
        notes.append(f"{ties:,} of {computed.numel():,} places are of equal numbers, of which any may come first.")
        computed, apart = settled, difference(settled, traced)
        error = apart.relative()
    if careful and allowed is not None:
        allowed = allowed.masked_fill(_out_of_range(computed, traced), 0)
    shares, left = apart.shares(allowed), None
    if fused and isnan(error) and (empty := computed.isnan() & (traced == 0)).any():
        notes.append(f"{int(empty.sum()):,} of {empty.numel():,} cells {EMPTY_ROWS_NOTE}.")
        if empty.all():
            return Proof(None, " ".join(["not executed:", *notes]))
        computed, shares = computed.masked_fill(empty, 0), shares.masked_fill(empty, 0)
        error = relative_error(computed, traced)
    if isnan(error) and (undefined := computed.isnan() & traced.isnan()).any():
        notes.append(f"{int(undefined.sum()):,} of {undefined.numel():,} cells {NAN}.")
        left = undefined
    if careful and allowed is not None and (beyond := ~allowed.isfinite() & (shares != 0)).any():
        beyond &= computed.isnan() <= traced.isnan()  # a bound of what is undefined says nothing
        if beyond.any():
            notes.append(f"{int(beyond.sum()):,} of {beyond.numel():,} cells {OVERFLOW_NOTE}.")
            left = beyond if left is None else left | beyond
    if left is not None:
        if left.all():
            return Proof(None, " ".join(["not executed:", *notes]))
        shares = shares.masked_fill(left, 0)
        error = relative_error(computed.masked_fill(left, 0), traced.masked_fill(left, 0))
    margin = float(shares.max()) if shares.numel() else 0.0
    return Proof(error, " ".join(notes), first_beyond(shares) if margin > 1 else None, margin)


def _out_of_range(computed: torch.Tensor, traced: torch.Tensor) -> torch.Tensor:
    """Return where an equation ends beyond the range of the dtype, and the run does not."""
    of = limits(traced.dtype)
    return traced.isfinite() & computed.isfinite() & (computed.abs() > of.max * (1 + of.eps))


EMPTY_ROWS_NOTE = (
    "are of queries that may look at nothing: the kernel gives 0 for them, where a softmax is undefined, and they are "
    "not compared"
)
NAN = "are NaN, in the equation and in the run alike, and not compared"
OVERFLOW_NOTE = "go beyond the range of the dtype on the way, and are not compared"


def apply_proof(step: Step, proof: Proof) -> Step:
    """Return a step with the outcome of executing its equation."""
    note = " ".join(filter(None, (step.note, proof.note)))
    return replace(step, error=proof.error, margin=proof.margin, wrong=proof.wrong, note=note, pending=False)


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module by all their paths."""
    return dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())


def stacks(path: str) -> list[str]:
    """Return the paths of stacks that a parameter may be a part of: with a `*` instead of a number."""
    parts = path.split(".")
    return [".".join([*parts[:n], "*", *parts[n + 1 :]]) for n, part in enumerate(parts) if part.isdecimal()]


def weight(weights: Mapping[str, torch.Tensor], path: str) -> torch.Tensor | None:
    """Return a parameter by its path; those that match a `*` as one tensor, in the order of their numbers."""
    if "*" not in path:
        return weights.get(path)
    matching = {name: tensor for name, tensor in weights.items() if path in stacks(name)}
    place = path.split(".").index("*")
    return torch.stack([matching[name] for name in sorted(matching, key=lambda name: int(name.split(".")[place]))])


class Values:
    """Tensors of a run by their keys in equations: `values(key)`, or None if one was not kept.

    What a fused op never held is recomputed from its line's equation, in float64; the last two of those are held, since
    scores and weights are asked for more than once, and are large.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        values: TensorStore | Mapping,
        steps: Sequence[DerivedStep],
        lines: Sequence[Line],
        sizes,
    ):
        self._store, self._sizes = values, sizes
        self._places = {step.line.id: step.value for step in steps if step.line.place}
        self._fused = {line.id: line.equation for line in lines if line.place is None}
        self._recomputed: dict[str, torch.Tensor | None] = {}
        self._parameters: dict[str, torch.Tensor | None] = {}
        self._weights = weights(module)

    def __call__(self, key: str) -> torch.Tensor | None:
        if key in self._fused:
            return self._inside(key)
        if (own_key := self.key(key)) is not None:
            return self._store.get(own_key)
        if key not in self._parameters:
            parameter = weight(self._weights, key.removeprefix("parameter "))
            self._parameters[key] = None if parameter is None else to_cpu(parameter.detach())
        return self._parameters[key]

    def key(self, name: str) -> str | None:
        """Return the run's key for the tensor of a line or of an input; None for any other."""
        if name in self._places or name.startswith(("input ", "constant ")):
            return self._places.get(name, name)
        return None

    def reads(self, line: Line) -> set[str]:
        """Return the keys of all tensors of the run that the proof of a line reads."""
        keys, waiting, visited = set(), [line.tensor.key, *(tensor.key for tensor in tensors(line.equation))], set()
        while waiting:
            if (name := waiting.pop()) in visited:
                continue
            visited.add(name)
            if (inner := self.fused_equation(name)) is not None:
                waiting += [tensor.key for tensor in tensors(inner)]
            elif (key := self.key(name)) is not None:
                keys.add(key)
        return keys

    def lacks(self, line: Line) -> bool:
        """Return whether a line is to be executed, and a tensor that its proof reads was not kept."""
        if line.place is None or line.of_input:
            return False
        return any(key not in self._store for key in self.reads(line))

    def tensor(self, key: str) -> torch.Tensor:
        """Return the tensor of that key. Raise LookupError with one sentence if there is none."""
        tensor = self(key)
        if tensor is None:
            raise LookupError(self.why(key))
        return tensor

    def why(self, key: str) -> str:
        """Return the reason why there is no tensor of that key."""
        name = key.removeprefix("parameter ")
        if (
            key in self._places
            or key in self._fused
            or key.startswith(("input ", "constant "))
            or name in self._weights
        ):
            return f"{key!r} was not kept (the cap on kept values was reached)"
        return f"the model has no such parameter: {name!r}"

    def fused_equation(self, key: str) -> Node | None:
        """Return the equation of a tensor that a fused op never held, or None for any other."""
        return self._fused.get(key)

    def _inside(self, key: str) -> torch.Tensor | None:
        if key not in self._recomputed:
            equation = self._fused[key]
            missing = any(self(tensor.key) is None for tensor in tensors(equation))
            recomputed = None if missing else execute_exactly(equation, self, self._sizes)
            while len(self._recomputed) > 1:
                del self._recomputed[next(iter(self._recomputed))]
            self._recomputed[key] = recomputed
        return self._recomputed[key]


def execute_exactly(equation: Node, value: Any, sizes: dict[str, int]) -> torch.Tensor:
    def exact(tensor: Tensor) -> torch.Tensor:
        operand = value.tensor(tensor.key)
        return operand.to(exact_dtype(operand.dtype))

    def size(expression: sympy.Expr) -> float:
        return value_of(str(expression), sizes)

    with torch.no_grad():
        return execute(equation, exact, size)


@lru_cache(maxsize=64)
def same_size(derived: tuple[tuple[str, str], ...]) -> Callable[[Any, Any], bool]:
    """Return a predicate of two equal symbolic sizes, from the equations of derived sizes: `same(D, h*d_k)`."""
    pairs = tuple((parse(name), parse(text)) for name, text in derived)

    @lru_cache(maxsize=4096)
    def same(a, b) -> bool:
        return a == b or vanishes(base_form(str(a), pairs) - base_form(str(b), pairs))

    return same


@lru_cache(maxsize=64)
def size_matcher(same: Callable[[Any, Any], bool], sizes: tuple[tuple[str, int], ...]) -> Callable[[Any, Any], bool]:
    """Return the predicate for derived lines. A size without a symbol is a number, and one that is rounded can be
    written in many ways: these fit any size of their value at this run."""
    values = {symbol(name): value for name, value in sizes}
    rounding = sympy.Min, sympy.Max, sympy.floor, sympy.ceiling

    @lru_cache(maxsize=4096)
    def fits(a, b) -> bool:
        a, b = sympy.sympify(a), sympy.sympify(b)
        if a == b:
            return True
        rounded = a.has(*rounding) or b.has(*rounding)
        if not rounded and same(a, b):
            return True
        return (rounded or a.is_Integer or b.is_Integer) and a.subs(values) == b.subs(values)

    return fits


@lru_cache(maxsize=64)
def run_size_matcher(sizes: tuple[tuple[str, int], ...]) -> Callable[[Any, Any], bool]:
    """Return a predicate of two sizes with the same value at this run."""
    values = {symbol(name): value for name, value in sizes}

    @lru_cache(maxsize=4096)
    def fits(a, b) -> bool:
        return a == b or sympy.sympify(a).subs(values) == sympy.sympify(b).subs(values)

    return fits


@lru_cache(maxsize=8192)
def proven_shape(line: Line, solved: tuple[str, ...] | None, same) -> tuple[tuple[str, ...], str]:
    """Return a step's symbolic shape in the terms of its equation, each size proven against the probed one.

    Returns the shape and a note. A size that the probes don't confirm is `"?"`.
    """
    named, stated = infer(line.equation, same), line.tensor.shape
    if len(named) != len(stated) or not all(map(same, named, stated)):
        raise ShapeError(f"step {line.id!r}: the equation gives {named}, its symbol is {stated}")
    if solved is None:
        return tuple(map(str, stated)), "the shape's symbols were not probed in this run"
    if len(solved) != len(stated):
        raise ShapeError(f"step {line.id!r}: the run's tensor has {len(solved)} axes, the equation {len(stated)}")
    confirmed = [probed != UNKNOWN and same(size, parse(probed)) for size, probed in zip(stated, solved, strict=True)]
    return tuple(str(size) if ok else UNKNOWN for size, ok in zip(stated, confirmed, strict=True)), ""
