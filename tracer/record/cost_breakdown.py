"""Cost of each module and each step of a run, as numbers and as formulas over the sizes.

A fused attention op costs as much as its two products: that of queries and keys belongs to the scores, which the op
never holds, and that of weights and values to its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from tracer.record import ModuleRecord, Op, Step, TensorRecord, Trace
from tracer.symbols import cost
from tracer.symbols.notation import parse

UNKNOWN_SIZE = "?"


class Cost(NamedTuple):
    """Elements of parameters and FLOPs, each with its formula, `"?"` where it is not known in symbols; `counted` is
    true if no op among them is left out."""

    params: int
    params_symbolic: str
    flops: int
    flops_symbolic: str
    counted: bool = True


def of_module(trace: Trace, module: ModuleRecord) -> Cost:
    """Return the cost of one call of a module: all parameters that its ops read, each once, and the FLOPs of these
    ops."""
    beneath = trace.ops[module.first : module.last]
    read: dict[str, TensorRecord] = {}
    for op in beneath:
        read |= {
            tensor.maker: tensor for tensor in op.inputs if tensor.maker in op.parameters and tensor.maker not in read
        }
    shapes = tuple(tensor.symbolic if tensor.symbolic is not None else (UNKNOWN_SIZE,) for tensor in read.values())
    return _cost(module.params, cost.elements(shapes), beneath)


def of_step(trace: Trace, step: Step) -> Cost:
    """Return the cost of one step: the ops that it covers; of a fused op, the part that belongs to it."""
    ops = [trace.ops[index] for index in step.ops if index < len(trace.ops)]
    fused = {later.inside for later in trace.steps if later.inside is not None}
    if step.inside is None and not fused.intersection(step.ops):
        return _cost(sum(op.params for op in ops), _sum(op.params_symbolic for op in ops), ops)
    if (scores := _scores_op(trace, step, fused)) is not None:
        of_scores = [trace.ops[scores]]
        rest = of_scores if step.inside is not None else [op for op in ops if op.index != scores]
        rest = rest if step.inside is None or step.product is not None else []
        read = ops if step.inside is None else ()
        return _cost(sum(op.params for op in read), _sum(op.params_symbolic for op in read), rest)
    mine = [parts(trace, op).get(step.id, (0, "0")) for op in (fused & {*step.ops, step.inside})]
    rest = [op for op in ops if op.index not in fused]
    plain = _cost(sum(op.params for op in ops), _sum(op.params_symbolic for op in ops), rest)
    return plain._replace(
        flops=plain.flops + sum(flops for flops, _ in mine),
        flops_symbolic=_sum([plain.flops_symbolic, *(formula for _, formula in mine)]),
    )


def _scores_op(trace: Trace, step: Step, fused: set[int]) -> int | None:
    """Return the op that multiplies queries and keys, where PyTorch ran a single attention call of the code as several
    ops: all of them belong to the step of its result. None where one op computed it."""
    owners = [step] if step.inside is None else [later for later in trace.steps if step.inside in later.ops]
    inside = {step.inside} if step.inside is not None else fused.intersection(step.ops)
    scores = [later for later in trace.steps if later.inside in inside and later.product is not None]
    if len(owners) != 1 or len(scores) != 1:
        return None
    products = [index for index in owners[0].ops if trace.ops[index].flops]
    size = prod(scores[0].shape)
    before = [index for index in products if index not in inside and prod(trace.ops[index].outputs[0].shape) == size]
    return before[0] if len(products) == 2 and len(before) == 1 else None


def parts(trace: Trace, index: int) -> dict[str, tuple[int, str]]:
    """Return the FLOPs of a fused op by the steps inside it and the one that owns it: a number and a formula each. All
    go to the owner where the products that the steps name do not add up to the cost of the op."""
    op, inside = trace.ops[index], [step for step in trace.steps if step.inside == index]
    owner = op.step or ""
    whole = {owner: (op.flops or 0, op.flops_symbolic)}
    operands = [tensor for tensor in op.inputs if len(tensor.shape) == 4][:3]
    products = [step for step in inside if step.product is not None]
    if len(products) != 1 or len(operands) != 3 or not op.flops:
        return whole
    scores, (queries, keys, values) = products[0], operands
    costs = {
        scores.id: _product(scores.shape, scores.symbolic, queries),
        owner: _product((*queries.shape[:-1], keys.shape[-2]), _rows(queries, keys), values),
    }
    if sum(flops for flops, _ in costs.values()) != op.flops:
        return whole
    if _sum(formula for _, formula in costs.values()) != _sum([op.flops_symbolic]):
        costs = {id: (flops, UNKNOWN_SIZE) for id, (flops, _) in costs.items()}
    return costs


def _rows(queries: TensorRecord, keys: TensorRecord) -> tuple[str, ...]:
    """Return the sizes of the weights in symbols."""
    if queries.symbolic is None or keys.symbolic is None:
        return (UNKNOWN_SIZE,)
    return (*queries.symbolic[:-1], keys.symbolic[-2])


def _product(shape: Sequence[int], symbolic: tuple[str, ...], right: TensorRecord) -> tuple[int, str]:
    """Return the cost of a matrix product whose other sizes are `shape`: 2 FLOPs for each pair of numbers."""
    flops = 2 * prod(shape) * right.shape[-1]
    width = UNKNOWN_SIZE if right.symbolic is None else right.symbolic[-1]
    formula = cost.elements((("2", *symbolic, width),))
    return flops, formula


def _cost(params: int, params_symbolic: str, ops: Sequence[Op]) -> Cost:
    counted = [op.flops for op in ops if op.flops is not None]
    formula = _sum(op.flops_symbolic for op in ops if op.flops is not None)
    return Cost(params, params_symbolic, sum(counted), formula, len(counted) == len(ops))


def _sum(formulas: Iterable[str]) -> str:
    return _sum_cached(tuple(formula for formula in formulas if formula != "0"))


@lru_cache(maxsize=4096)
def _sum_cached(formulas: tuple[str, ...]) -> str:
    """Return the sum of formulas, in one normal form."""
    if UNKNOWN_SIZE in formulas:
        return UNKNOWN_SIZE
    return str(sum(map(parse, formulas), parse("0")).factor()) if formulas else "0"
