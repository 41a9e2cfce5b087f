"""Mixtures of experts, recognised in their loops and gathers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from tracer.capture.calls import Call, Ref
from tracer.graph.dataflow import Graph, ListParameter, SyntheticOp, einsum_letters, list_parameter
from tracer.graph.index_maps import factor_index_map, index_map
from tracer.ops import (
    IDENTITIES,
    LAYOUTS,
    LINEAR,
    MATMULS,
    POINTWISE,
    RESHAPES,
    SQUEEZES,
    TRANSPOSES,
    schema,
)

# Expression tree of one expert: products with its own weights, and the ops between them.


@dataclass(frozen=True)
class ExpertTree:
    """Node of such a tree. Two experts of the same structure are equal, each with its own tensors."""


@dataclass(frozen=True)
class ExpertInput(ExpertTree):
    """Token that is an expert's input."""


@dataclass(frozen=True)
class ExpertWeight(ExpertTree):
    """An expert's slice of weight `number`, with its last two axes transposed if `transposed`."""

    number: int
    transposed: bool = False


@dataclass(frozen=True)
class ColumnSlice(ExpertTree):
    """A slice of the last axis of `of`: `start`, `stop`, `step`."""

    of: ExpertTree
    start: int
    stop: int
    step: int


@dataclass(frozen=True)
class Pointwise(ExpertTree):
    """A pointwise call of this name, with nodes of this tree among its arguments."""

    name: str
    arguments: dict[str, object]
    call: Call = field(compare=False)


@dataclass(frozen=True)
class MatMul(ExpertTree):
    """A node of this tree times a weight, with an optional bias."""

    left: ExpertTree
    weight: ExpertWeight
    bias: ExpertWeight | None = None


# Matching of the MLP of one expert in the graph: its products, and the ops between them.

MULTIPLIES = MATMULS | LINEAR | {"_grouped_mm"}
FLAT = RESHAPES | IDENTITIES
"""Calls that keep the rows, if the last axis stays."""
MOVES = FLAT | SQUEEZES | TRANSPOSES | {"index", "select", "index_select", "repeat_interleave", "expand"}
"""Calls that select, or change the layout."""


class NoMatch(Exception):
    """Raised if calls match no known mixture of experts."""


def _has_tensor(value) -> bool:
    """Return whether an argument is a tensor, or contains one."""
    return isinstance(value, Ref) or (isinstance(value, tuple) and any(map(_has_tensor, value)))


class ExpertMatcher:
    """Matcher for the MLPs of `count` experts over `rows` tokens.

    `token` is the value whose rows the experts get. `ups` are the values from the operand of the first product up to
    it.
    """

    def __init__(self, graph: Graph, count: int, rows: int):
        self.graph, self.count, self.rows = graph, count, rows
        self.token = ""
        self.ups: list[str] = []
        self.weights: list[Ref] = []
        self.transposed: dict[str, bool] = {}
        self.members: dict[str, str] = {}
        self.stacked: set[str] = set()

    @staticmethod
    def _is_auxiliary(call: Call) -> bool:
        """Return whether a call only changes the layout, or has no tensor as input."""
        name = call.op.name
        return (
            name in FLAT | SQUEEZES | TRANSPOSES
            or call.op.takes_shape
            or not any(map(_has_tensor, call.arguments.values()))
        )

    def _trace_up(self, key: str) -> list[str]:
        """Return the values from a selected row or slice up to the tensor that it was selected from."""
        path = [key]
        while (call := self.graph.producing_call(path[-1])) is not None and len(path) < 40:
            operands = self.graph.inputs[self.graph.producer[path[-1]]]
            moves = call.op.name in MOVES and (call.op.name != "index" or self._indexes_by_integers(call))
            if not moves or not operands:
                break
            path.append(operands[0].key)
        return path

    @staticmethod
    def _indexes_by_integers(call: Call) -> bool:
        indices = (index for index in call.arguments.get("indices", ()) if isinstance(index, Ref))
        return not any(index.dtype.is_floating_point for index in indices)

    def _find_token(self, product: int, whole: set[int]) -> str:
        """Return the value whose rows the experts get."""
        for ref in self.graph.inputs[product]:
            self.ups = self._trace_up(ref.key)
            top = self.ups[-1]
            outside = self.graph.producer.get(top) not in whole
            if outside and not top.startswith("parameter ") and ref.dtype.is_floating_point:
                return top
        raise NoMatch

    def _find_tokens(self, result: Ref) -> Ref:
        """Return the tokens in the shape of the mixture's result, except the last axis; or one row for each token."""
        for key in self.ups:
            shape = self.graph.shapes[key]
            if shape[:-1] == result.shape[:-1] and prod(shape[:-1]) == self.rows:
                return self.graph.ref[key]
        raise NoMatch

    def _arguments(self, x: Ref, gates: Ref, chosen: Ref | None, body: ExpertTree) -> dict[str, Any]:
        """Return the arguments of the call that replaces the mixture."""
        weights = tuple(self.weights)
        return {
            "x": x,
            "gates": gates,
            "chosen": chosen,
            "weights": weights,
            "body": body,
            "members": tuple(self.members.get(weight.key, weight.key) for weight in weights),
            "transposed": tuple(self.transposed[weight.key] for weight in weights),
        }

    def _experts_call(self, group: set[int], last: int, result: Ref, arguments: dict) -> Call:
        """Return the call that replaces a group of calls."""
        call, ops = self.graph.calls[last], tuple(self.graph.calls[index] for index in sorted(group))
        where = call.module, call.call, call.first, call.last
        return Call(FUNC, EXPERTS, EXPERTS.name, arguments, (result,), *where, ops)

    def _match(self, key: str, depth: int = 0) -> ExpertTree:
        """Return the expression tree from the token to a value. Raise NoMatch for unknown ops."""
        if depth > 40:
            raise NoMatch
        graph, call = self.graph, self.graph.producing_call(key)
        tops = self._trace_up(key)
        if self.token in tops:
            return ExpertInput()
        if call is None:
            raise NoMatch
        name, operands = call.op.name, graph.inputs[graph.producer[key]]
        if name in MULTIPLIES:
            return self._match_product(call, operands, depth)
        if name == "select" and prod(call.outputs[0].shape) == prod(operands[0].shape):
            return self._match(operands[0].key, depth + 1)
        if name in ("chunk", "split", "split_with_sizes", "slice", "narrow", "unbind", "select"):
            return self._match_columns(call, key, depth)
        if name in FLAT | SQUEEZES:
            return self._match(operands[0].key, depth + 1)
        if name == "add" and len(operands) == 2 and (bias := self._match_bias(operands[1])) is not None:
            inner = self._match(operands[0].key, depth + 1)
            if isinstance(inner, MatMul) and inner.bias is None:
                return MatMul(inner.left, inner.weight, bias)
        if "pointwise" not in call.op.traits:
            raise NoMatch
        arguments = {
            argument: self._match(value.key, depth + 1) if isinstance(value, Ref) else value
            for argument, value in call.arguments.items()
        }
        return Pointwise(call.name, arguments, call)

    def _match_bias(self, ref: Ref) -> ExpertWeight | None:
        top = self._trace_up(ref.key)[-1]
        shape = self.graph.shapes[top]
        if not top.startswith("parameter "):
            return None
        if len(shape) == 2 and shape[0] == self.count:
            self.stacked.add(top)
        return self._slice_of(top) if top in self.stacked or (len(shape) == 1 and self._list_parameter(top)) else None

    def _list_parameter(self, key: str) -> ListParameter | None:
        """Return the stack of parameters that a matrix or vector belongs to, if experts are modules in a list."""
        shape = self.graph.shapes[key]
        return list_parameter(self.graph, key, self.count) if len(shape) < 3 and key not in self.stacked else None

    def _find_weight(self, operands: list[Ref]) -> Ref | None:
        """Return the operand of a product that is a parameter."""
        return next((ref for ref in operands if self._trace_up(ref.key)[-1].startswith("parameter ")), None)

    def _slice_of(self, key: str, transposed: bool = False) -> ExpertWeight:
        shape, dtype = self.graph.shapes[key], self.graph.ref[key].dtype
        if (parameter := self._list_parameter(key)) is not None:
            self.members.setdefault(parameter.key, key)
            key, shape = parameter.key, (self.count, *shape)
        if key not in self.transposed:
            self.transposed[key] = transposed
            self.weights.append(Ref(key, shape, dtype))
        if self.transposed[key] != transposed:
            raise NoMatch
        return ExpertWeight([ref.key for ref in self.weights].index(key), transposed)

    def _match_product(self, call: Call, operand_refs, depth: int) -> MatMul:
        operands = [ref for ref in operand_refs if ref.dtype.is_floating_point]
        weight = self._find_weight(operands)
        left = next((ref for ref in operands if ref is not weight), None)
        if weight is None or left is None or call.op.name in ("baddbmm", "addmm"):
            raise NoMatch
        ups = self._trace_up(weight.key)
        shape = self.graph.shapes[ups[-1]]
        single = len(shape) == 2 and self._list_parameter(ups[-1])
        if not single and (len(shape) != 3 or shape[0] != self.count):
            raise NoMatch
        if call.op.name == "einsum":
            transposed = self._is_transposed(call, weight)
        else:
            transposed = call.op.name == "linear" or (operands[0] is weight and call.op.name in ("bmm", "matmul"))
        turns = sum("transpose" in self.graph.call_of(key).op.traits for key in ups[:-1])  # all but the top have a call
        inner = self._match(left.key, depth + 1)  # weights are numbered in the order in which they are taken
        part = self._slice_of(ups[-1], transposed != bool(turns % 2))
        bias = None
        if call.op.name == "linear" and isinstance(call.arguments.get("bias"), Ref):
            bias = self._match_bias(call.arguments["bias"])
            if bias is None:
                raise NoMatch
        return MatMul(inner, part, bias)

    def _is_transposed(self, call: Call, weight: Ref) -> bool:
        """Return whether an einsum takes its weight with the last two axes transposed. Raise NoMatch if it selects
        experts."""
        raise NoMatch

    def _match_columns(self, call: Call, key: str, depth: int):
        """Return the slice of the last axis that a call takes."""
        position = next(i for i, ref in enumerate(call.outputs) if ref.key == key)
        operand = next(iter(call.arguments.values()))
        pattern = factor_index_map(index_map(operand.shape, [(call, position)]), operand.shape)
        if pattern is None or any(pattern.slices[:-1]) or len(call.outputs[position].shape) != len(operand.shape):
            raise NoMatch
        inner = self._match(operand.key, depth + 1)
        return ColumnSlice(inner, *pattern.slices[-1]) if pattern.slices[-1] else inner

    def _with_reshapes(self, result: Ref, whole: set[int]) -> tuple[Ref, set[int]]:
        """Return the result after a chain of reshapes, and the calls with these reshapes added."""
        while True:
            takers = self.graph.users.get(result.key, [])
            if len(takers) != 1 or result.key in self.graph.returned or self.graph.name(takers[0]) not in FLAT:
                return result, whole
            call = self.graph.calls[takers[0]]
            if call.outputs[0].shape[-1] != result.shape[-1]:
                return result, whole
            result, whole = call.outputs[0], whole | {takers[0]}


# Fuse dense mixtures of experts: every expert runs, and the results are summed by gate (Jacobs et al. 1991).
#
# The gates have a column for each expert. They multiply the results one after the other, as in a loop over modules, or
# at once, if the results are stacked or computed by one batched product.

MIN_EXPERTS, MAX_EXPERTS = 2, 64
"""Smallest and largest number of experts."""
MAX_CALLS = 2000
"""Largest number of calls in such a mixture."""
SUMS = frozenset(("add", "sum", "einsum", "matmul", "bmm", "mm", "select", *FLAT, *SQUEEZES))
"""Calls that can compute the weighted sum of the experts' results, or reshape it."""
EXPERT_CALLS = MULTIPLIES | POINTWISE | LAYOUTS | IDENTITIES
"""Calls that an expert can consist of."""


def find_dense_moe(graph: Graph) -> Iterator[tuple[set[int], Call]]:
    """Yield the calls of each such mixture, and their replacement."""
    counts = _expert_counts(graph)
    for index in reversed(range(len(graph.calls)) if counts else ()):
        call = graph.calls[index]
        gates = call.outputs[0] if call.outputs else None
        if gates is None or len(gates.shape) < 2 or gates.shape[-1] not in counts or not gates.dtype.is_floating_point:
            continue
        if graph.producer.get(gates.key) == index and not call.op.traits & {"layout", "identity", "factory"}:
            with suppress(NoMatch):
                yield _DenseMoE(graph, gates).match()


def _expert_counts(graph: Graph) -> set[int]:
    """Return possible numbers of experts: lengths of module lists and of the first axis of parameters."""
    lists: dict[str, int] = {}
    counts = set()
    for key, shape in graph.shapes.items():
        if key.startswith("parameter "):
            counts |= {shape[0]} if len(shape) == 3 else set()
            parts = key.split(".")
            for place, part in enumerate(parts):
                if part.isdecimal():
                    around = ".".join(parts[:place])
                    lists[around] = max(lists.get(around, 0), int(part) + 1)
    return {count for count in counts | set(lists.values()) if MIN_EXPERTS <= count <= MAX_EXPERTS}


class _DenseMoE(ExpertMatcher):
    """Matcher for the mixture with the gates `gates`, `[…, E]`."""

    def __init__(self, graph: Graph, gates: Ref):
        super().__init__(graph, gates.shape[-1], prod(gates.shape[:-1]))
        self.gates = gates

    def match(self) -> tuple[set[int], Call]:
        """Return the calls of the mixture, and their replacement."""
        result, outputs = self._find_result()
        self.token = self._common_input(outputs) if len(outputs) > 1 else ""
        self.ups = self._trace_first_operand(outputs[0])
        self.token = self.token or self.ups[-1]
        body = self._match(outputs[0])
        if not self.weights or any(body != self._match(output) for output in outputs[1:]):
            raise NoMatch
        x, whole = self._find_tokens(result), self._collect_calls(result)
        result, whole = self._with_reshapes(result, whole)
        return whole, self._experts_call(whole, max(whole), result, self._arguments(x, self.gates, None, body))

    def _find_result(self) -> tuple[Ref, list[str]]:
        """Return the first value that all gates contribute to, and the result of each expert, or of all together."""
        known, start = {self.gates.key}, self.graph.producer[self.gates.key] + 1
        for index in range(start, min(len(self.graph.calls), start + MAX_CALLS)):
            call = self.graph.calls[index]
            if not call.outputs or not any(ref.key in known for ref in self.graph.inputs[index]):
                continue
            known |= {ref.key for ref in call.outputs}
            result = call.outputs[0]
            if self.graph.name(index) not in SUMS or result.shape[:-1] != self.gates.shape[:-1]:
                continue
            try:
                experts = self._match_sum(result.key)
            except NoMatch:
                continue
            if experts.keys() in ({None}, set(range(self.count))):
                return result, [experts[number] for number in sorted(experts, key=str)]
        raise NoMatch

    def _match_sum(self, key: str, depth: int = 0) -> dict[int | None, str]:
        """Return the terms of a sum by the expert's index; under None, the term of all experts together."""
        call = self.graph.producing_call(key)
        if call is None or depth > MAX_EXPERTS + 40:
            raise NoMatch
        name, operands = call.op.name, self.graph.inputs[self.graph.producer[key]]
        if "factory" in call.op.traits or (call.op.takes_shape and "zeros" in name):
            return {}
        if name in FLAT | SQUEEZES or (name == "select" and prod(operands[0].shape) == prod(call.outputs[0].shape)):
            return self._match_sum(operands[0].key, depth + 1)
        if name == "add" and call.arguments.get("alpha", 1) == 1:
            rest = [value for value in call.arguments.values() if not isinstance(value, Ref) and value not in (0, 1)]
            parts = [self._match_sum(ref.key, depth + 1) for ref in operands]
            merged = {number: value for part in parts for number, value in part.items()}
            if rest or len(merged) < sum(map(len, parts)):
                raise NoMatch
            return merged
        if name == "mul" and len(operands) == 2:
            return self._match_gated(operands)
        if name == "sum" and len(dims := tuple(call.arguments.get("dim") or ())) == 1:
            product = self.graph.producing_call(operands[0].key)
            if product is not None and product.op.name == "mul" and not call.arguments.get("keepdim"):
                places, values = self._split_gates(self.graph.inputs[self.graph.producer[operands[0].key]])
                axis = dims[0] % len(operands[0].shape)
                if self._expert_axis(places) == axis and len(values.shape) == places.ndim:
                    return self._match_stack(values, axis)
        if name in ("matmul", "bmm") and len(operands) == 2:
            places, values = self._split_gates(operands)
            row, column = (-2, -1) if values.key == operands[1].key else (-1, -2)
            if places.ndim == len(values.shape) == self._expert_axis(places) - column and places.shape[row] == 1:
                return self._match_stack(values, places.ndim + row)
        if name == "einsum" and len(operands) == 2:
            return self._match_einsum(call)
        raise NoMatch

    def _split_gates(self, operands: tuple[Ref, ...]) -> tuple[np.ndarray, Ref]:
        """Return the index map of the operand that is a layout of the gates, and the other operand."""
        for gates, values in (operands, operands[::-1]):
            if (places := self._gate_indices(gates.key)) is not None:
                return places, values
        raise NoMatch

    def _gate_indices(self, key: str) -> np.ndarray | None:
        """Return the index in the gates of each element of a value; None if it is not a layout of them."""
        chain: list[tuple[Call, int]] = []
        is_layout = self._collect_layouts(key, self.gates.key, chain)
        return index_map(self.gates.shape, chain[::-1]).table() if is_layout else None

    def _collect_layouts(self, key: str, top: str, chain: list[tuple[Call, int]]) -> bool:
        """Return whether a value is a layout of another; append the layouts to `chain`, the last one first."""
        while key != top:
            call = self.graph.producing_call(key)
            if call is None or not call.op.traits & {"layout", "identity"} or len(chain) > 40:
                return False
            chain.append((call, next(i for i, ref in enumerate(call.outputs) if ref.key == key)))
            key = self.graph.inputs[self.graph.producer[key]][0].key
        return True

    def _match_gated(self, operands: tuple[Ref, ...]) -> dict[int | None, str]:
        """Return the result of one expert, multiplied by its column of the gates."""
        places, values = self._split_gates(operands)
        number = int(places.flat[0]) % self.count
        column = np.arange(self.rows) * self.count + number
        if places.shape != (*self.gates.shape[:-1], 1) or (places.reshape(-1) != column).any():
            raise NoMatch
        return {number: values.key}

    def _expert_axis(self, places: np.ndarray) -> int:
        """Return the axis of the experts in a layout of all gates that keeps the order of tokens."""
        for axis, size in enumerate(places.shape):
            fits = size == self.count and places.size == self.rows * self.count
            if fits and (np.moveaxis(places, axis, -1).reshape(-1) == np.arange(places.size)).all():
                return axis
        raise NoMatch

    def _match_stack(self, stacked: Ref, axis: int) -> dict[int | None, str]:
        """Return the results of the experts that are stacked along an axis."""
        if stacked.shape[axis] != self.count:
            raise NoMatch
        chain: list[tuple[Call, int]] = []
        key: str = stacked.key
        while (call := self.graph.producing_call(key)) is not None and call.op.traits & {"layout", "identity"}:
            self._collect_layouts(key, self.graph.inputs[self.graph.producer[key]][0].key, chain)
            key = self.graph.inputs[self.graph.producer[key]][0].key
        joined = call is not None and (call.op.name == "stack" or "concat" in call.op.traits)
        if call is None or not joined:
            return {None: stacked.key}
        parts, shape = call.arguments["tensors"], self.graph.shapes[key]
        along = call.arguments.get("dim", 0) % len(shape)
        places = index_map(shape, chain[::-1]).table()
        numbers = np.moveaxis(places // prod(shape[along + 1 :]) % shape[along], axis, -1)
        indices = np.moveaxis(places, axis, -1)[..., 0].reshape(-1)
        in_order = (numbers == np.arange(self.count)).all() and (np.diff(indices) > 0).all()
        if len(parts) != self.count or shape[along] != self.count or not in_order:
            raise NoMatch
        return {number: part.key for number, part in enumerate(parts)}

    def _match_einsum(self, call: Call) -> dict[int | None, str]:
        """Return the results of the experts from an einsum such as `bte,bted->btd`."""
        names, after = einsum_letters(call)
        first, second, *_ = zip(call.arguments["tensors"], names, strict=True)
        for (operand, its), (beside, others) in ((first, second), (second, first)):
            places = self._gate_indices(operand.key)
            if places is None or places.shape != self.gates.shape or (np.diff(places.reshape(-1)) != 1).any():
                continue
            letter = its[-1]
            if letter not in after and after[:-1] == its[:-1] and others.replace(letter, "") == after:
                return self._match_stack(beside, others.index(letter))
        raise NoMatch

    def _is_transposed(self, call: Call, weight: Ref) -> bool:
        """Return whether an einsum takes its weight with the last two axes transposed."""
        (names, after), operands = einsum_letters(call), call.arguments["tensors"]
        if len(operands) != 2 or not weight.key.startswith("parameter "):
            raise NoMatch
        number = next(number for number, ref in enumerate(operands) if ref.key == weight.key)
        its, others = names[number], names[1 - number]
        for transposed, (within, out) in enumerate((tuple(its[1:]), tuple(its[:0:-1]))):
            if within == others[-1] and within not in after and after[-1] == out and its[0] in after:
                return bool(transposed)
        raise NoMatch

    def _common_input(self, outputs: list[str]) -> str:
        """Return the common input of all experts: the latest value that each result was computed from."""
        shared = set.intersection(*({*self._ancestors(output)} for output in outputs)) - {self.gates.key}
        if not shared:
            raise NoMatch
        return max(shared, key=lambda key: self.graph.producer.get(key, -1))

    def _ancestors(self, key: str) -> Iterator[str]:
        """Yield the values that one was computed from, by calls that an expert can contain."""
        above = self.graph.ancestors([key], lambda at: self.graph.call_of(at).op.name in EXPERT_CALLS)
        return islice((at for at in above if not at.startswith("parameter ")), MAX_CALLS)

    def _trace_first_operand(self, output: str) -> list[str]:
        """Return the values from the operand of an expert's first product up to the token."""
        for key in self._ancestors(output):
            index = self.graph.producer.get(key)
            if index is None or self.graph.name(index) not in MULTIPLIES:
                continue
            operands = [ref for ref in self.graph.inputs[index] if ref.dtype.is_floating_point]
            weight = self._find_weight(operands)
            left = next((ref for ref in operands if ref is not weight), None)
            if weight is None or left is None:
                continue
            ups = self._trace_up(left.key)
            if self.token in ups if self.token else prod(left.shape[:-1]) == self.rows:
                return ups
        raise NoMatch

    def _collect_calls(self, result: Ref) -> set[int]:
        """Return the calls from the token and the gates to the result. Raise NoMatch if anything else uses their
        values."""
        above = self.graph.ancestors([result.key], known=(self.gates.key, self.token, *self.ups))
        indices = {self.graph.producer[key] for key in above if key in self.graph.producer}
        for index in indices:
            for ref in self.graph.calls[index].outputs:
                others = set(self.graph.users.get(ref.key, ())) - indices
                if ref.key != result.key and (others or ref.key in self.graph.returned):
                    raise NoMatch
        return indices


# Fuse top-k mixtures of experts into one call (Shazeer et al. 2017; Jiang et al. 2024).
#
# Experts can run on groups of sorted tokens, on a batch of selected weights, or in a loop. A `topk` selects the
# experts. The mixture is all that depends on its indices, up to the one value that the rest of the run uses. The expert
# is matched from its products and the ops between them; the proof covers the whole sum.

SELECTION_CALLS = frozenset(("topk",))
GATES = SELECTION_CALLS | MATMULS | {"mul"}
"""Ops of which a mixture has one at least: it selects experts, or multiplies the output of each by its gate."""
FEWEST = 2
"""Smallest number of products in an expert."""
EXPERTS = schema("experts")
FUNC = SyntheticOp("experts", ("x", "gates", "chosen", "weights", "body", "members", "transposed"))
MAX_TOPK_CALLS = 4000
"""Largest number of calls in a mixture."""


def fuse_moe(graph: Graph) -> Graph:
    """Return the graph with each mixture of experts as one call."""
    groups: list[tuple[set[int], list[Call]]] = []
    taken: set[int] = set()
    for group, call in find_mixtures(graph, taken):
        if not group & taken:
            groups.append((group, [call]))
            taken |= group
    return graph.replace(groups)


def find_mixtures(graph: Graph, taken: set[int]) -> Iterator[tuple[set[int], Call]]:
    """Yield the calls of each mixture and their replacement: those whose experts a `topk` selects that is not `taken`,
    and then the dense ones."""
    for index in reversed(range(len(graph.calls))):
        if graph.name(index) in SELECTION_CALLS and len(graph.calls[index].outputs) == 2 and index not in taken:
            with suppress(NoMatch):
                yield _TopKMoE(graph, index).match()
    yield from find_dense_moe(graph)


class _TopKMoE(ExpertMatcher):
    """Matcher for the mixture whose experts a `topk` selects."""

    def __init__(self, graph: Graph, index: int):
        self.topk, self.chosen = index, self._rows_of(graph, graph.calls[index].outputs[1])
        super().__init__(graph, next(ref for ref in graph.inputs[index]).shape[-1], self.chosen.shape[0])

    @staticmethod
    def _rows_of(graph: Graph, chosen: Ref) -> Ref:
        """Return the experts with a row for each token: as they were selected, or the one reshape that all read."""
        rows = prod(chosen.shape[:-1]), chosen.shape[-1]
        readers = graph.users.get(chosen.key, [])
        if len(chosen.shape) != 2 and len(readers) == 1 and graph.name(readers[0]) in FLAT:
            chosen = graph.calls[readers[0]].outputs[0]
        if chosen.shape != rows:
            raise NoMatch
        return chosen

    def match(self) -> tuple[set[int], Call]:
        """Return the calls of the mixture, and their replacement."""
        region, result = self._find_region()
        products = [index for index in sorted(region) if self.graph.name(index) in MULTIPLIES]
        whole = self.graph.with_exclusive_producers(region, self._is_auxiliary) - {self.graph.producer[self.chosen.key]}
        if len(products) < FEWEST:
            raise NoMatch
        self.token = self._find_token(products[0], whole)
        lasts = self._expert_results(products)
        body = self._match(lasts[0])
        if any(body != self._match(last) for last in lasts[1:]):
            raise NoMatch
        gates = self._find_gates(whole)
        result, whole = self._with_reshapes(result, whole)
        if not isinstance(body, MatMul) or len(self.weights) < FEWEST:
            raise NoMatch
        arguments = self._arguments(self._find_tokens(result), gates, self.chosen, body)
        return whole, self._experts_call(whole, max(region), result, arguments)

    def _find_region(self) -> tuple[set[int], Ref]:
        """Return the calls that depend on the experts' indices, up to the one value that leaves them."""
        graph, region = self.graph, set()
        last_use = {key: takers[-1] for key, takers in graph.users.items()}
        open_values = {self.chosen.key}
        for index in range(self.topk + 1, min(len(graph.calls), self.topk + MAX_TOPK_CALLS)):
            call = graph.calls[index]
            if not any(ref.key in open_values for ref in graph.inputs[index]):
                continue
            if self._computes_gates(call):
                continue
            region.add(index)
            open_values |= {ref.key for ref in call.outputs}
            still = {
                key
                for key in open_values
                if key != self.chosen.key and (last_use.get(key, -1) > index or key in graph.returned)
            }
            products = sum(graph.name(call_index) in MULTIPLIES for call_index in region)
            if products >= FEWEST and len(still) == 1 and still <= {ref.key for ref in call.outputs}:
                result = graph.ref[still.pop()]
                whole = prod(result.shape[:-1]) == self.chosen.shape[0] and result.dtype.is_floating_point
                if whole and last_use.get(self.chosen.key, -1) <= index:
                    return region, result
        raise NoMatch

    def _computes_gates(self, call: Call) -> bool:
        """Return whether a call computes gates of the selected experts, which come before the mixture."""
        return bool(call.outputs) and all(
            ref.shape == self.chosen.shape and ref.dtype.is_floating_point for ref in call.outputs
        )

    def _expert_results(self, products: list[int]) -> list[str]:
        """Return the results of the experts: of the last product, or of each expert in a module list."""
        last = {}
        for index in products:
            call = self.graph.calls[index]
            weight = self._find_weight([ref for ref in self.graph.inputs[index] if ref.dtype.is_floating_point])
            parameter = weight and self._list_parameter(self._trace_up(weight.key)[-1])
            last[parameter and parameter.number] = call.outputs[0].key
        return list(last.values())

    def _find_gates(self, whole: set[int]) -> Ref:
        """Return the gates of the selected experts: the input of the mixture that has their shape. A reshape that gives
        them one is taken out of the `whole`."""
        gates, reshaped = {}, {}
        for index in sorted(whole):
            for ref in self.graph.inputs[index]:
                producer = self.graph.producer.get(ref.key)
                if ref.dtype.is_floating_point and ref.shape == self.chosen.shape:
                    if producer not in whole:
                        gates[ref.key] = ref
                    elif self._is_reshape(producer, whole):
                        reshaped[ref.key] = ref
        gates = gates or reshaped
        if len(gates) != 1:
            raise NoMatch
        (gate,) = gates.values()
        whole.discard(self.graph.producer.get(gate.key, -1))
        return gate

    def _is_reshape(self, index: int, whole: set[int]) -> bool:
        """Return whether a call reshapes a value from outside."""
        operands = self.graph.inputs[index]
        return self.graph.name(index) in FLAT and all(self.graph.producer.get(ref.key) not in whole for ref in operands)
