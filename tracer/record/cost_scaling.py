"""Cost of a model at sizes that were not run: the formulas of one run, evaluated at other numbers.

Sources: 2 FLOPs for each multiply-add; the parts are those of Kaplan et al. 2020, table 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import sympy

from tracer.record import Step, Trace, cost_breakdown, key_value_cache
from tracer.symbols import cost, formula_parser
from tracer.symbols.notation import parse, symbol

PROJECTIONS, SCORES, WEIGHTED_SUM, MLP, NORMS, ENDS = (
    "Q, K, V and output projections",
    "QKᵀ",
    "Weighted sum of values",
    "MLP",
    "Norms and residual sums",
    "Embedding and head",
)
PARTS = (PROJECTIONS, SCORES, WEIGHTED_SUM, MLP, NORMS, ENDS)
"""The parts that the costs of a model fall to; the ends are what comes before the blocks and after them."""
CACHE = "Cache of keys and values"


@dataclass(frozen=True)
class Scaling:
    """Formulas over sizes: elements of `params`, `flops` of the whole and of its `parts`, the elements of all tensors
    of the textbook, `tensors`, and of the attention weights among them, `weights`, and of the `cache` that the run
    returned. `derived` holds the formulas of sizes that follow from others, `sizes` their values at the run. A formula
    is `"?"` where there is none."""

    params: str
    flops: str
    parts: Mapping[str, str]
    tensors: str
    weights: str
    derived: Mapping[str, str]
    sizes: Mapping[str, int]
    cache: str = "0"

    def complete(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return these sizes and those that follow from them; missing ones are as in the run. Raise ValueError in one
        sentence where one that follows is not a whole number."""
        full = {**self.sizes, **sizes}
        for name, equals in self.derived.items():
            size = formula_parser.value(equals, full)
            if size.denominator != 1:
                raise ValueError(f"{name} = {equals.replace('**', '^')} is not a whole number at these sizes")
            full[name] = int(size)
        return full

    def numbers(self, sizes: Mapping[str, int]) -> dict[str, int | None]:
        """Return all counts at these sizes, by name; None where there is no formula."""
        full = self.complete(sizes)
        return {name: evaluate(text, full) for name, text in self.formulas.items()}

    @cached_property
    def formulas(self) -> dict[str, str]:
        """Return the formula of each count."""
        counts = {"params": self.params, "flops": self.flops, "tensors": self.tensors, "weights": self.weights}
        return counts | {"cache": self.cache}

    @cached_property
    def length(self) -> str:
        """Return the size that a sequence grows with: tokens of text, else patches."""
        return "T" if "T" in self.sizes else "N"

    def along(self, name: str, values: Sequence[int], sizes: Mapping[str, int]) -> dict[str, list[int]]:
        """Return the FLOPs of each part as one size takes these values, and the others are as in `sizes`. Derived sizes
        follow; hidden or visible patches keep their share, and a hidden width its ratio."""
        full = self.complete(sizes)
        curves: dict[str, list[int]] = {part: [] for part in self.parts}
        for value in values:
            moved = full | {
                sizes_there: round(full[sizes_there] * value / full[name]) for sizes_there in _with(name, full)
            }
            moved[name] = value
            if name == "D" and "d_k" in self.derived:
                moved["d_k"] = value // full["h"]
            for part, text in self.parts.items():
                curves[part].append(evaluate(text, moved) or 0)
        return curves

    def crossover_length(self, sizes: Mapping[str, int]) -> float | None:
        """Return the length at which the two products of attention cost as much as the MLP, at the other sizes in
        `sizes`; None where they never do."""
        if not {SCORES, WEIGHTED_SUM, MLP} <= self.parts.keys():
            return None
        full = self.complete(sizes)
        length, moved = symbol(self.length), _with(self.length, full)
        known = {symbol(name): value for name, value in full.items() if name != self.length and name not in moved}
        known |= {symbol(name): sympy.Rational(full[name], full[self.length]) * length for name in moved}
        gap = parse(self.parts[SCORES]) + parse(self.parts[WEIGHTED_SUM]) - parse(self.parts[MLP])
        roots = sympy.Poly(sympy.expand(gap.subs(known)), length).real_roots()
        crossings = [float(root) for root in roots if root > 0]
        return max(crossings, default=None)

    def cache_overtakes_weights(self, sizes: Mapping[str, int]) -> float | None:
        """Return the length at which the cache holds as many numbers as the weights, at the other sizes in `sizes`.

        None where there is no cache that grows with the length."""
        full = self.complete(sizes)
        of_one, of_two = (evaluate(self.cache, full | {self.length: length}) for length in (1, 2))
        params = evaluate(self.params, full)
        if of_one is None or of_two is None or params is None or of_two <= of_one:
            return None
        return 1 + (params - of_one) / (of_two - of_one)


def _with(name: str, sizes: Mapping[str, int]) -> list[str]:
    """Return the sizes that grow with another one."""
    return [alias for alias in {"N": ("N_v", "N_h"), "D": ("d_ff",)}.get(name, ()) if alias in sizes]


def scaling(trace: Trace) -> Scaling:
    """Return the formulas of a run."""
    depths = _depths(trace)
    costs: dict[str, list[tuple[str, str, int | None]]] = {}
    activations, weights = [], []
    for step in trace.steps:
        tower = _tower(step)
        flops = cost_breakdown.of_step(trace, step).flops_symbolic
        if flops != "0":
            costs.setdefault(_part(trace, step), []).append((flops, tower, step.layer))
        elements = cost.elements((step.symbolic,)) if step.shape else "1"
        activations.append((elements, tower, step.layer))
        if step.symbol.startswith(r"\mathbf{A}"):
            weights.append((elements, tower, step.layer))
    return Scaling(
        trace.params_symbolic,
        trace.flops_symbolic,
        {part: cost.total(costs[part], depths) for part in PARTS if part in costs},
        cost.total(activations, depths),
        cost.total(weights, depths),
        {size.name: size.equals for size in trace.symbols if size.equals not in ("", str(size.value))},
        {size.name: size.value for size in trace.symbols},
        key_value_cache.elements(trace)[1],
    )


class PartCost(NamedTuple):
    """Cost of a part of a model: elements of its parameters, FLOPs, and elements of the tensors that its steps
    compute, each as a number and as a formula, `"?"` where it is not known in symbols."""

    part: str
    params: int
    params_symbolic: str
    flops: int
    flops_symbolic: str
    numbers: int
    numbers_symbolic: str


def parts(trace: Trace) -> tuple[PartCost, ...]:
    """Return the cost of a run by the parts of its blocks; the cache that it returned, if any, is the last."""
    depths, stages = _depths(trace), _stages(trace.steps)
    costs: dict[str, list] = {}
    for step, stage in zip(trace.steps, stages, strict=True):
        step = replace(step, stage=stage)
        of_step = cost_breakdown.of_step(trace, step)
        elements = cost.elements((step.symbolic,)) if step.shape else "1"
        place = (_tower(step), step.layer)
        costs.setdefault(_part_of_costs(trace, step), []).append((of_step, prod(step.shape), elements, place))
    rows = []
    for part in (part for part in PARTS if part in costs):
        of_part = costs[part]
        formulas = (
            cost.total([(formula(entry), *place) for *entry, place in of_part], depths)
            for formula in (
                lambda entry: entry[0].params_symbolic,
                lambda entry: entry[0].flops_symbolic,
                lambda entry: entry[2],
            )
        )
        params, flops, numbers = formulas
        rows.append(
            PartCost(
                part,
                sum(of_step.params for of_step, *_ in of_part),
                params,
                sum(of_step.flops for of_step, *_ in of_part),
                flops,
                sum(count for _, count, *_ in of_part),
                numbers,
            )
        )
    cached, formula = key_value_cache.elements(trace)
    return (*rows, *([PartCost(CACHE, 0, "0", 0, "0", cached, formula)] if cached else []))


def _stages(steps: Sequence[Step]) -> list[str]:
    """Return the stage of each step; in a block, one of no known stage is on the way to that of the next."""
    stages: list[str] = []
    for step in reversed(steps):
        known = step.layer is None or step.stage in ("attention", "mlp", "norm")
        stages.append(step.stage if known or not stages else stages[-1])
    return stages[::-1]


def _part_of_costs(trace: Trace, step: Step) -> str:
    """Return the part of the model that the parameters and tensors of a step belong to."""
    part = _part(trace, step)
    if step.layer is None or part == ENDS:
        return ENDS if step.layer is None else NORMS
    residual = step.stage == "norm" or re.search(r"\.residual\d*$|norm\d*$", step.id)
    return NORMS if residual else part


def count_elements(trace: Trace) -> int:
    """Return the number of elements of all tensors of the textbook, counted on the run."""
    return sum(prod(step.shape) for step in trace.steps)


def evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    """Return the value of a formula, or None where there is none."""
    try:
        return int(formula_parser.value(text, sizes))
    except ValueError:
        return None


def _part(trace: Trace, step: Step) -> str:
    """Return the part of the model that the FLOPs of a step belong to."""
    if step.layer is None:
        return ENDS
    if step.stage == "mlp":
        return MLP
    if any(trace.ops[op].parameters for op in step.ops):
        return PROJECTIONS if step.stage == "attention" else ENDS
    return SCORES if step.symbol.startswith(r"\mathbf{S}") else WEIGHTED_SUM


def _tower(step: Step) -> str:
    """Return the path of the tower that a step of a block is in, or ""."""
    return step.id.partition(".block")[0] if step.layer is not None and ".block" in step.id else ""


def _depths(trace: Trace) -> dict[str, tuple[str, int]]:
    """Return each tower's symbol for its number of blocks, and that number."""
    counts: dict[str, int] = {}
    for step in trace.steps:
        if step.layer is not None:
            counts[_tower(step)] = max(counts.get(_tower(step), 0), step.layer + 1)
    known = {size.name: size.value for size in trace.symbols if size.name.startswith("L")}
    return {
        tower: next(((name, count) for name, value in known.items() if value == count and _of(name, tower)), ("", 0))
        for tower, count in counts.items()
    }


def _of(name: str, tower: str) -> bool:
    """Return whether a number of blocks is that of a tower: `L_dec` of the decoder, `L` of any other."""
    ending = name.partition("_")[2]
    return tower.startswith(ending) if ending else not tower.startswith("decoder")
