"""The proof of each step: on the run, on other runs, and how much it would notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from functools import lru_cache
from math import inf, isnan
from typing import Any, NamedTuple

import sympy
import torch

from tracer.capture import Recording, record
from tracer.capture.tensors import TensorStore, address, output_tensors, parts, same_outputs
from tracer.expr import Node, ShapeError, Tensor, execute, infer, tensors
from tracer.expr.error_bounds import (
    FACTOR,
    HALVES,
    BoundedValue,
    Rounding,
    count,
    evaluate,
    exact_dtype,
    fractional,
    limits,
)
from tracer.expr.function_call import dense
from tracer.expr.node import vanishes
from tracer.record import Step, Trace
from tracer.shapes import UNKNOWN, base_form, value_of
from tracer.symbols.notation import parse, symbol
from tracer.textbook.derivation import DerivedStep, Line, opaque
from tracer.utils.devices import to_cpu
from tracer.utils.errors import describe_error
from tracer.utils.job_queue import doing, tell
from tracer.utils.torch_internals import write_count
from tracer.utils.torch_state import Difference, first_beyond

# Proof of a step: its equation executed on the traced operands, compared with the traced tensor.


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
    except Exception as error:  # whatever is wrong with one line, all others are verified
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
    size = size_at(sizes)
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


class KeyedTensors:
    """Tensors of a run by their keys in equations: `tensors(key)`, or None if there is none."""

    _fused: dict[str, Node]
    """The equations of tensors that a fused op never held."""

    def __call__(self, key: str) -> torch.Tensor | None:
        raise NotImplementedError

    def why(self, key: str) -> str:
        """Return the reason why there is no tensor of that key."""
        return key

    def tensor(self, key: str) -> torch.Tensor:
        """Return the tensor of that key. Raise LookupError with the reason if there is none."""
        tensor = self(key)
        if tensor is None:
            raise LookupError(self.why(key))
        return tensor

    def fused_equation(self, key: str) -> Node | None:
        """Return the equation of a tensor that a fused op never held, or None for any other."""
        return self._fused.get(key)


class Values(KeyedTensors):
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

    def why(self, key: str) -> str:
        """Return the reason why there is no tensor of that key."""
        name = key.removeprefix("parameter ")
        if key in self._fused or self.key(key) is not None or name in self._weights:
            return f"{key!r} was not kept (the cap on kept values was reached)"
        return f"the model has no such parameter: {name!r}"

    def _inside(self, key: str) -> torch.Tensor | None:
        if key not in self._recomputed:
            equation = self._fused[key]
            missing = any(self(tensor.key) is None for tensor in tensors(equation))
            recomputed = None if missing else execute_exactly(equation, self, self._sizes)
            while len(self._recomputed) > 1:
                del self._recomputed[next(iter(self._recomputed))]
            self._recomputed[key] = recomputed
        return self._recomputed[key]


def size_at(sizes: dict[str, int]) -> Callable[[Any], float]:
    """Return the function that gives the value of each size of a run."""
    return lambda expression: value_of(str(expression), sizes)


def execute_exactly(equation: Node, value: Any, sizes: dict[str, int]) -> torch.Tensor:
    def exact(tensor: Tensor) -> torch.Tensor:
        operand = value.tensor(tensor.key)
        return operand.to(exact_dtype(operand.dtype))

    with torch.no_grad():
        return execute(equation, exact, size_at(sizes))


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
def verified_shape(line: Line, solved: tuple[str, ...] | None, same) -> tuple[tuple[str, ...], str]:
    """Return a step's symbolic shape in the terms of its equation, each size verified against the probed one.

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


# Proofs in bounded memory: a second run that holds each tensor until the last line that needs it is verified.
#
# The lines of a run are known only after it, and a large run's tensors do not fit the cap on kept values. So the module
# runs again, the same way; each line is verified as soon as its operands and its result have been computed, and what no
# later line needs is let go. The proofs count only if the second run did what the first did, bit by bit.

NOT_THE_SAME = "not executed: a tensor of it was not kept, and the model did not run again the same way"
RERUN_NOTE = "not executed: a tensor of it was not kept, and the model did not run again ({})"


class Rerun:
    """Recipe to run a module again, and to check that it did the same."""

    def __init__(self, module: torch.nn.Module, recording: Recording, sizes: dict[str, int]):
        self._module, self._arguments, self._sizes = module, recording.arguments, sizes
        self._calls = recording.calls
        self._output = [tensor for _, tensor in output_tensors(recording.output)]
        self._grad = recording.grad

    def missing_lines(self, lines: Iterable[DerivedStep], values: Values) -> list[str]:
        """Return the ids of the lines with a tensor that was not kept; none if tensors have no values to compare."""
        if any(tensor.is_meta for tensor in self._output):
            return []
        return [line.line.id for line in lines if not opaque(line.line) and values.lacks(line.line)]

    def prove(self, chosen: Iterable[str], lines: Sequence[DerivedStep]) -> dict[str, Proof]:
        """Return the proofs of the lines of these ids, of all `lines` of the run, by id."""
        chosen = set(chosen)
        waiting = [line for line in lines if line.line.id in chosen]
        if not waiting:
            return {}
        args, kwargs = self._arguments
        with ThreadPoolExecutor(1) as thread, torch.set_grad_enabled(self._grad), doing("Verifying in a second run"):
            thread.submit(int).result()  # a thread that starts while the module runs would count as the module's
            window = _Window(self._module, waiting, lines, self._sizes, thread)
            try:
                again = record(self._module, args, kwargs, attention=False, calls=True, store=window)
            except Exception as error:  # the module's own
                return dict.fromkeys(chosen, Proof(None, RERUN_NOTE.format(describe_error(error))))
        if not self._same(again):
            return dict.fromkeys(chosen, Proof(None, NOT_THE_SAME))
        return window.proofs

    def _same(self, again: Recording) -> bool:
        """Return whether a run called the same ops, and returned the same bits."""
        if again.calls is None or self._calls is None or again.calls.signature != self._calls.signature:
            return False
        return same_outputs(again.output, self._output)


class _Window(TensorStore):
    """Tensors that lines still need; each line is verified once they all exist."""

    def __init__(
        self, module, waiting: Sequence[DerivedStep], lines: Sequence[DerivedStep], sizes, thread: ThreadPoolExecutor
    ):
        super().__init__(1)
        self.proofs: dict[str, Proof] = {}
        self._values = Values(module, self, lines, [line.line for line in lines], sizes)
        self._sizes, self._thread, self._count = sizes, thread, len(waiting)
        self._needs = {
            line.line.id: {part for key in self._values.reads(line.line) for part in parts(key)} for line in waiting
        }
        self._lines = {line.line.id: line for line in waiting}
        self._missing = {id: len(keys) for id, keys in self._needs.items()}
        self._uses = Counter(key for keys in self._needs.values() for key in keys)
        self._takers: dict[str, list[str]] = {}
        for id, keys in self._needs.items():
            for key in keys:
                self._takers.setdefault(key, []).append(id)

    def offer(self, key: str, tensor: torch.Tensor, *, needed: bool = False) -> None:
        if key not in self._uses or key in self._tensors:
            return
        super().offer(key, tensor, needed=True)
        for id in self._takers.pop(key, ()):
            self._missing[id] -= 1
            if not self._missing[id]:
                self._prove(id)

    def _prove(self, id: str) -> None:
        """Prove a line in a thread of its own, where no mode of this run is on."""
        self.proofs[id] = self._thread.submit(prove, self._lines[id], self._values, self._sizes).result()
        tell(len(self.proofs), self._count, "step")
        for key in self._needs[id]:
            self._uses[key] -= 1
            if not self._uses[key]:
                self._release(key)

    def _release(self, key: str) -> None:
        tensor = self._tensors.pop(key, None)
        storage = address(tensor) if tensor is not None else None
        if storage in self._storages:
            self._storages[storage].remove(key)
            if not self._storages[storage]:
                del self._storages[storage]


# Deferred proofs, and the operands of cells: queries that a trace sends to its run while the model exists.


class QueriedRun(NamedTuple):
    """What queries need of a run: the module, the tensors, the steps with their equations, and the sizes."""

    module: torch.nn.Module
    values: Mapping[str, torch.Tensor]
    steps: Sequence[DerivedStep]
    sizes: dict[str, int]


class DeferredProofs:
    """Deferred queries of a run: pending proofs, and the operands of its cells.

    It holds the model, the equations and the tensors that these need, while a trace has it. `values` has the traced
    tensors, the inputs as `input NAME` and what nothing of the run made as `constant N`; nothing rewrites these.
    """

    def __init__(
        self,
        run: QueriedRun,
        rerun: Rerun | None = None,
        named: frozenset[int] = frozenset(),
        respell: Callable[[frozenset[int]], Trace] | None = None,
    ):
        self.run, self._rerun = run, rerun
        self.derived_steps, self.sizes = run.steps, run.sizes
        self._named, self._respell = named, respell
        self._derived_steps = {step.line.id: step for step in run.steps}
        self._states = {name: _state(tensor) for name, tensor in weights(run.module).items()}

    def rewrite(self, change: Callable[[Line], Node]) -> DeferredProofs:
        """Return the same run, with the equations that `change` returns for its lines."""
        steps = [step._replace(line=replace(step.line, equation=change(step.line))) for step in self.run.steps]
        return DeferredProofs(self.run._replace(steps=steps), self._rerun)

    def __call__(self, steps: Iterable[Step]) -> dict[str, Step]:
        """Return these steps with their proofs, by id."""
        steps, value, sizes, changed = list(steps), self.values(), self.run.sizes, self.rewritten()
        proofs = {}
        if self._rerun and not changed:
            lacking = self._rerun.missing_lines((self._derived_steps[step.id] for step in steps), value)
            proofs = self._rerun.prove(lacking, self.derived_steps)
        return {
            step.id: apply_proof(step, proofs[step.id])
            if step.id in proofs
            else self._prove_kept(step, value, sizes, changed)
            for step in steps
        }

    def spell(self, steps: Iterable[Step]) -> Trace | None:
        """Return the run as its code has it where the proofs of these steps refute the names of formulas, `named` by
        their ops; None where they refute none. Its own steps are still to be verified."""
        refuted = {op for step in steps if step.verdict == "refuted" for op in self._derived_steps[step.id].ops}
        return self._respell(self._named & refuted) if self._respell and self._named & refuted else None

    def values(self, kind: Callable[..., Any] | None = None) -> Any:
        """Return the tensors of the run by their keys, as `Values` or another `kind`."""
        module, values, steps, sizes = self.run
        return (kind or Values)(module, values, steps, [step.line for step in steps], sizes)

    def rewritten(self) -> set[str]:
        """Return the keys of parameters and buffers that have changed since the run."""
        now = {name: _state(tensor) for name, tensor in weights(self.run.module).items()}
        changed = {name for name, state in self._states.items() if now.get(name) != state}
        changed |= {stack for name in changed for stack in stacks(name)}
        return {f"parameter {name}" for name in changed}

    def _prove_kept(self, step: Step, value: Values, sizes, changed: set[str]) -> Step:
        derived_step = self._derived_steps[step.id]
        reads = {tensor.key for tensor in tensors(derived_step.line.equation)}
        reads |= {
            tensor.key for key in reads if (equation := value.fused_equation(key)) for tensor in tensors(equation)
        }
        if rewritten := sorted(reads & changed):
            proof = Proof(None, f"not executed: {rewritten[0]!r} has changed since the run")
        else:
            proof = prove(derived_step, value, sizes)
        return apply_proof(step, proof)


def _state(tensor: torch.Tensor) -> tuple[int, int]:
    """Return a key that changes once somebody has written into a tensor, or has replaced it."""
    return tensor.data_ptr() if tensor.layout is torch.strided else id(tensor), write_count(tensor)


# Power of a proof: the operands of a line that can be knocked out without the comparison noticing.
#
# A residual whose branch is scaled by 1e-6 looks the same without it, and a gain of ones the same in another order.
# Such operands are looked for in the traced run first, and what is not seen there in runs with other weights and
# inputs.


def zero(x: torch.Tensor) -> torch.Tensor:
    """Return zeros: the operand omitted from a sum."""
    return torch.zeros_like(x)


def roll(x: torch.Tensor) -> torch.Tensor:
    """Permute the operand: by one position along its last axis of more than one; a single number grows by half."""
    axis = next((axis for axis in reversed(range(x.dim())) if x.shape[axis] > 1), None)
    return x * 1.5 if axis is None else x.roll(1, axis)


def replace_by_ones(x: torch.Tensor) -> torch.Tensor:
    """Return ones: the operand omitted from a product."""
    return torch.ones_like(x)


PERTURBATIONS = zero, roll, replace_by_ones
"""What is done to an operand; a comparison that sees it notices each of these."""


class ChangedValues:
    """Values of a run, with one operand changed."""

    def __init__(self, value: Any, key: str, change: Callable[[torch.Tensor], torch.Tensor]):
        self._value, self._key, self._change = value, key, change

    def tensor(self, key: str) -> torch.Tensor:
        """Return the tensor of that key, changed if it is the operand."""
        tensor = self._value.tensor(key)
        return self._change(tensor) if key == self._key else tensor


class ProbeValues(KeyedTensors):
    """Tensors of another run by the keys of equations, as `Values` are of the traced one.

    `line` is a line that was rounded to a lower `precision` on the way: its tensor has that dtype.
    """

    def __init__(self, tensor: Callable[[str], torch.Tensor | None], places: dict[str, str | None], fused, sizes):
        self._tensor, self._places, self._fused, self._sizes = tensor, places, fused, sizes
        self._line = self._precision = ""

    def in_precision(self, line: str, precision: str) -> ProbeValues:
        """Return the same tensors for a line that was computed in a lower precision, such as `float32`."""
        values = copy(self)
        values._line, values._precision = line, precision
        return values

    def __call__(self, key: str) -> torch.Tensor | None:
        if key in self._fused:
            known = all(self(tensor.key) is not None for tensor in tensors(self._fused[key]))
            return execute_exactly(self._fused[key], self, self._sizes) if known else None
        place = self._places.get(key, key)
        value = None if place is None else self._tensor(place)
        if value is not None and key == self._line and value.dtype == torch.float64:
            return value.to(getattr(torch, self._precision))
        return value


def unseen(
    step: DerivedStep, value: Values | ProbeValues, sizes: dict[str, int], keys: Iterable[str] | None = None
) -> dict[str, bool]:
    """Return the keys of operands, of all or of these, that the comparison of a step with a run does not see: each can
    be zeroed, rolled by one, or replaced by ones, and no cell exceeds its tolerance.

    With each is whether that is only so for changes that leave it as it is, such as the order of equal numbers. All
    of them are returned where the run does not have the tensors, or the line does not hold there.
    """
    tell()
    equation = step.line.equation
    chosen = tuple(dict.fromkeys(tensor.key for tensor in tensors(equation)) if keys is None else keys)
    try:
        traced = value.tensor(step.line.tensor.key)
        proof, allowed = compare(step, value, sizes)
        if proof.margin is None or not proof.margin <= 1:
            return dict.fromkeys(chosen, False)
        operands = {key: value.tensor(key) for key in chosen}
        hidden = {
            key: _hidden_changes(equation, value, sizes, key, traced, allowed)
            for key, operand in operands.items()
            if fractional(operand) and operand.numel()
        }
        return {
            key: len(changes) < len(PERTURBATIONS)
            and all(torch.equal(change(operands[key]), operands[key]) for change in changes)
            for key, changes in hidden.items()
            if changes
        }
    except (LookupError, RuntimeError, TypeError, ValueError):
        return dict.fromkeys(chosen, False)


def unseen_in_run(later: DeferredProofs, steps: Iterable[Step]) -> dict[str, dict[str, bool]]:
    """Return the operands of each verified step, as `unseen` does, that its proof does not see in the traced run."""
    derived_steps, value = {step.line.id: step for step in later.derived_steps}, later.values()
    with torch.no_grad():
        return {
            step.id: unseen(derived_steps[step.id], value, later.sizes) for step in steps if step.verdict == "verified"
        }


def _hidden_changes(
    equation: Node, value, sizes: dict[str, int], key: str, traced: torch.Tensor, allowed
) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """Return the ways to knock an operand out that make no cell wrong."""
    hidden: list[Callable[[torch.Tensor], torch.Tensor]] = []
    for change in PERTURBATIONS if traced.numel() else ():
        try:
            output = execute_exactly(equation, ChangedValues(value, key, change), sizes)
            output = output.double() if output.dtype == torch.bool else output
            if output.shape == traced.shape and Difference(output, traced).shares(allowed).max() <= 1:
                hidden.append(change)
        except (RuntimeError, IndexError, TypeError, ValueError):  # the operand is not one that can be exchanged
            continue
    return hidden
