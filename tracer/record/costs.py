"""What a run costs: by step, as a function of a size, and in its key-value cache."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple

import sympy

from tracer.ops import is_layout
from tracer.record import ModuleRecord, Op, Step, TensorRecord, Trace
from tracer.symbols import cost, formula_parser
from tracer.symbols.notation import parse, symbol

# Cost of each module and each step of a run, as numbers and as formulas over the sizes.
#
# A fused attention op costs as much as its two products: that of queries and keys belongs to the scores, which the op
# never holds, and that of weights and values to its output.

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
    return _cost(module.params, cost.elements(tuple(map(_sizes, read.values()))), beneath)


def cost_of_step(trace: Trace, step: Step) -> Cost:
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
    mine = [parts_of_step(trace, op).get(step.id, (0, "0")) for op in (fused & {*step.ops, step.inside})]
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


def parts_of_step(trace: Trace, index: int) -> dict[str, tuple[int, str]]:
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
        owner: _product((*queries.shape[:-1], keys.shape[-2]), (*_sizes(queries)[:-1], _sizes(keys)[-2]), values),
    }
    if sum(flops for flops, _ in costs.values()) != op.flops:
        return whole
    if _sum(formula for _, formula in costs.values()) != _sum([op.flops_symbolic]):
        costs = {id: (flops, UNKNOWN_SIZE) for id, (flops, _) in costs.items()}
    return costs


def _sizes(tensor: TensorRecord) -> tuple[str, ...]:
    """Return the sizes of a tensor in symbols; an unknown one at least where it has none."""
    return (UNKNOWN_SIZE,) * max(1, len(tensor.shape)) if tensor.symbolic is None else tensor.symbolic


def _product(shape: Sequence[int], symbolic: tuple[str, ...], right: TensorRecord) -> tuple[int, str]:
    """Return the cost of a matrix product whose other sizes are `shape`: 2 FLOPs for each pair of numbers."""
    return 2 * prod(shape) * right.shape[-1], cost.elements((("2", *symbolic, _sizes(right)[-1]),))


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


# Cache that a run returned: keys and values of its tokens, or anything else that a model keeps for the next token.
#
# Its tensors are found in what forward returned. Their sizes are those that were solved for the steps that computed
# them.

NAMES = re.compile(r"(past_key_values|cache_params|past_buckets_states|mems|cache)\b.*")
"""The names under which models return what they keep for the next token."""
CACHE_OUTPUT = re.compile(r"\[1\]\[(\d+)\]\[[01]\]")
"""The places of keys and values in what a decoder returns that reads from a cache."""
T_PAST = "T_past"
"""The size of the cache that a run reads."""
KEYS = "block1.attention.key"
"""The line of our own decoders that computes the keys of the first block."""
BLOCK = re.compile(r"\[(\d+)\]")


class CachedTensor(NamedTuple):
    """A tensor of a cache: its position in forward's output, the block that it belongs to, the step that computed it,
    its shape, in symbols too, and its dtype."""

    name: str
    block: int
    step: str
    shape: tuple[int, ...]
    symbolic: tuple[str, ...]
    dtype: str


def cached_tensors(trace: Trace) -> tuple[CachedTensor, ...]:
    """Return the tensors of the cache that a run returned; none for a model that keeps none."""
    steps = {step.id: step for step in trace.steps}
    reads = any(size.name == T_PAST for size in trace.symbols)
    tensors = []
    for returned in trace.returned:
        appended = CACHE_OUTPUT.fullmatch(returned.name) if reads else None
        if appended or NAMES.fullmatch(returned.name):
            number, step = appended or BLOCK.search(returned.name), steps.get(returned.step)
            unknown = (UNKNOWN_SIZE,) * len(returned.shape)
            solved = step.symbolic if step is not None and step.shape == returned.shape else unknown
            block = int(number[1]) if number else 0
            tensors.append(CachedTensor(returned.name, block, returned.step, returned.shape, solved, returned.dtype))
    return tuple(tensors)


def cache_elements(trace: Trace) -> tuple[int, str]:
    """Return the number of elements of a run's cache, and its formula; `"?"` where a size is not solved."""
    tensors = cached_tensors(trace)
    blocks = {tensor.block for tensor in tensors}
    depths = {size.value: size.name for size in reversed(trace.symbols) if size.name.startswith("L")}
    depth = {"": (depths[len(blocks)], len(blocks))} if len(blocks) in depths else {}
    formulas = [(cost.elements((tensor.symbolic,)), "", tensor.block) for tensor in tensors]
    return sum(prod(tensor.shape) for tensor in tensors), cost.total(formulas, depth)


def elements_of_whole(whole: Trace, cached: Trace) -> str:
    """Return the number of elements of the cache that holds every token of a run, as a formula.

    `whole` is that run, of one of our own decoders, and `cached` the run that reads its last token after a cache.
    """
    length, formula = parse(whole.step(KEYS).symbolic[-2]), parse(cache_elements(cached)[1])
    return str(sympy.factor(formula.subs(symbol(T_PAST), length - symbol("T"))))


# Cost of a model at sizes that were not run: the formulas of one run, evaluated at other numbers.
#
# Sources: 2 FLOPs for each multiply-add; the parts are those of Kaplan et al. 2020, table 1.

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
        return {name: getattr(self, name) for name in ("params", "flops", "tensors", "weights", "cache")}

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
            moved = full | {other: round(full[other] * value / full[name]) for other in _with(name, full)}
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
        flops = cost_of_step(trace, step).flops_symbolic
        if flops != "0":
            costs.setdefault(_part(trace, step), []).append((flops, tower, step.layer))
        elements = cost.elements((step.symbolic,))
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
        cache_elements(trace)[1],
    )


class PartCost(NamedTuple):
    """Cost of a part of a model: elements of its parameters, FLOPs, and elements of the tensors that its steps
    make, masks included, each as a number and as a formula, `"?"` where it is not known in symbols. What a fused op
    never holds, such as its scores, is not among these."""

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
        params, params_symbolic, flops, flops_symbolic, _ = cost_of_step(trace, step)
        shapes = _tensor_shapes(trace, step)
        elements = sum(prod(shape) for shape, _ in shapes), cost.elements(tuple(symbolic for _, symbolic in shapes))
        counts = (params, params_symbolic), (flops, flops_symbolic), elements
        costs.setdefault(_part_of_costs(trace, step), []).append((counts, (_tower(step), step.layer)))
    rows = []
    for part in (part for part in PARTS if part in costs):
        totals: list[Any] = []
        for number in range(3):  # parameters, FLOPs, elements
            formulas = [(counts[number][1], *place) for counts, place in costs[part]]
            totals += sum(counts[number][0] for counts, _ in costs[part]), cost.total(formulas, depths)
        rows.append(PartCost(part, *totals))
    cached, formula = cache_elements(trace)
    return (*rows, *([PartCost(CACHE, 0, "0", 0, "0", cached, formula)] if cached else []))


def _tensor_shapes(trace: Trace, step: Step) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Return the shapes of the tensors that a step makes, as numbers and in symbols: its own, unless a fused op never
    holds it, and the masks that its ops make on the way, such as one of padding for all heads and queries."""
    held = step.inside is None or "attention" not in trace.ops[step.inside].op
    shapes = [(step.shape, step.symbolic)] if held else []
    masks: set[int | str] = set()
    for op in (trace.ops[index] for index in step.ops):
        large = [tensor.maker for tensor in op.inputs if tensor.shape]
        output = op.outputs[0] if op.outputs else None
        if output is None or not (output.dtype == "bool" or (large and masks.issuperset(large))):
            continue
        masks.add(op.index)
        own = output.dtype == step.dtype and prod(output.shape) == prod(step.shape)
        if len(output.shape) > 1 and not own and not is_layout(op.op):
            shapes.append((output.shape, _sizes(output)))
    return shapes


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
