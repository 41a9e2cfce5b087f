"""Fuse dense mixtures of experts: every expert runs, and the results are summed by gate (Jacobs et al. 1991).

The gates have a column for each expert. They multiply the results one after the other, as in a loop over modules, or at
once, if the results are stacked or computed by one batched product.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from tracer.capture.composite_calls import Call, Ref
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import index_map
from tracer.graph.passes.expert_body import FLAT, MULTIPLIES, ExpertMatcher, NoMatch
from tracer.graph.passes.expert_tree import same_structure
from tracer.ops import FACTORIES, IDENTITIES, JOINS, LAYOUTS, POINTWISE, SQUEEZES, base, takes_shape

MIN_EXPERTS, MAX_EXPERTS = 2, 64
"""Smallest and largest number of experts."""
MAX_CALLS = 2000
"""Largest number of calls in such a mixture."""
SUMS = frozenset(("add", "sum", "einsum", "matmul", "bmm", "mm", "select", *FLAT, *SQUEEZES))
"""Calls that can compute the weighted sum of the experts' results, or reshape it."""
EXPERT_CALLS = MULTIPLIES | POINTWISE | LAYOUTS | IDENTITIES
"""Calls that an expert can consist of."""


def find_dense_moe(graph: Graph) -> Iterator[tuple[set[int], tuple[Ref, dict]]]:
    """Yield the calls of each such mixture, with the result and the arguments of the call that replaces them."""
    counts = _expert_counts(graph)
    for index in reversed(range(len(graph.calls)) if counts else ()):
        call = graph.calls[index]
        gates = call.outputs[0] if call.outputs else None
        if gates is None or len(gates.shape) < 2 or gates.shape[-1] not in counts or not gates.dtype.is_floating_point:
            continue
        if graph.producer.get(gates.key) == index and base(call.name) not in LAYOUTS | IDENTITIES | FACTORIES:
            try:
                yield _DenseMoE(graph, gates).match()
            except NoMatch:
                continue


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

    def match(self) -> tuple[set[int], tuple[Ref, dict]]:
        """Return the calls of the mixture, its result, and the arguments of the call that replaces it."""
        result, outputs = self._find_result()
        self.token = self._common_input(outputs) if len(outputs) > 1 else ""
        self.ups = self._trace_first_operand(outputs[0])
        self.token = self.token or self.ups[-1]
        body = self._match(outputs[0])
        if not self.weights or not all(same_structure(body, self._match(output)) for output in outputs[1:]):
            raise NoMatch
        x, whole = self._find_tokens(result), self._collect_calls(result)
        result, whole = self._with_reshapes(result, whole)
        members = tuple(self.members.get(output.key, output.key) for output in self.weights)
        arguments = {"x": x, "gates": self.gates, "chosen": None, "weights": tuple(self.weights), "body": body}
        return whole, (result, arguments | {"members": members})

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
        name, operands = base(call.name), self.graph.inputs[self.graph.producer[key]]
        if name in FACTORIES or (takes_shape(name) and "zeros" in name):
            return {}
        if name in FLAT | SQUEEZES or (name == "select" and prod(operands[0].shape) == prod(call.outputs[0].shape)):
            return self._match_sum(operands[0].key, depth + 1)
        if name == "add" and call.arguments.get("alpha", 1) == 1:
            rest = [
                argument
                for argument in call.arguments.values()
                if not isinstance(argument, Ref) and argument not in (0, 1)
            ]
            parts = [self._match_sum(ref.key, depth + 1) for ref in operands]
            merged = {number: value for part in parts for number, value in part.items()}
            if rest or len(merged) < sum(map(len, parts)):
                raise NoMatch
            return merged
        if name == "mul" and len(operands) == 2:
            return self._match_gated(operands)
        if name == "sum" and len(dims := tuple(call.arguments.get("dim") or ())) == 1:
            product = self.graph.producing_call(operands[0].key)
            if product is not None and base(product.name) == "mul" and not call.arguments.get("keepdim"):
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
        return (
            index_map(self.gates.shape, chain[::-1]).table()
            if self._collect_layouts(key, self.gates.key, chain)
            else None
        )

    def _collect_layouts(self, key: str, top: str, chain: list[tuple[Call, int]]) -> bool:
        """Return whether a value is a layout of another; append the layouts to `chain`, the last one first."""
        while key != top:
            call = self.graph.producing_call(key)
            if call is None or base(call.name) not in LAYOUTS | IDENTITIES or len(chain) > 40:
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
        while (call := self.graph.producing_call(key)) is not None and base(call.name) in LAYOUTS | IDENTITIES:
            self._collect_layouts(key, self.graph.inputs[self.graph.producer[key]][0].key, chain)
            key = self.graph.inputs[self.graph.producer[key]][0].key
        joined = call is not None and (base(call.name) == "stack" or base(call.name) in JOINS)
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
        left, _, after = call.arguments["equation"].replace(" ", "").replace("...", "@").partition("->")
        names, operands = left.split(","), call.arguments["tensors"]
        for (operand, its), (beside, others) in (
            ((operands[0], names[0]), (operands[1], names[1])),
            ((operands[1], names[1]), (operands[0], names[0])),
        ):
            places = self._gate_indices(operand.key)
            if places is None or places.shape != self.gates.shape or (np.diff(places.reshape(-1)) != 1).any():
                continue
            letter = its[-1]
            if letter not in after and after[:-1] == its[:-1] and others.replace(letter, "") == after:
                axis = others.index(letter) - len(others) + len(beside.shape)
                return self._match_stack(beside, axis)
        raise NoMatch

    def _is_transposed(self, call: Call, weight: Ref) -> bool:
        """Return whether an einsum takes its weight with the last two axes transposed."""
        left, _, after = call.arguments["equation"].replace(" ", "").replace("...", "@").partition("->")
        names, operands = left.split(","), call.arguments["tensors"]
        if len(operands) != 2 or not weight.key.startswith("parameter "):
            raise NoMatch
        number = next(number for number, ref in enumerate(operands) if ref.key == weight.key)
        its, others = names[number], names[1 - number]
        for transposed, (within, out) in enumerate((its[1:], its[:0:-1])):
            if within == others[-1] and within not in after and after[-1] == out and its[0] in after:
                return bool(transposed)
        raise NoMatch

    def _common_input(self, outputs: list[str]) -> str:
        """Return the common input of all experts: the latest value that each result was computed from."""
        above = [self._ancestors(output) for output in outputs]
        shared = set.intersection(*map(set, above)) - {self.gates.key}
        if not shared:
            raise NoMatch
        return max(shared, key=lambda key: self.graph.producer.get(key, -1))

    def _ancestors(self, key: str) -> dict[str, None]:
        """Return the values that one was computed from, by calls that an expert can contain."""
        ancestors: dict[str, None] = {}
        waiting = [key]
        while waiting and len(ancestors) < MAX_CALLS:
            at = waiting.pop()
            if at in ancestors or at.startswith("parameter "):
                continue
            ancestors[at] = None
            index = self.graph.producer.get(at)
            if index is not None and self.graph.name(index) in EXPERT_CALLS:
                waiting += [ref.key for ref in self.graph.inputs[index]]
        return ancestors

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
        indices: set[int] = set()
        waiting = [result.key]
        while waiting:
            key = waiting.pop()
            index = self.graph.producer.get(key)
            if index is None or index in indices or key in (self.gates.key, self.token, *self.ups):
                continue
            indices.add(index)
            waiting += [ref.key for ref in self.graph.inputs[index]]
        for index in indices:
            for ref in self.graph.calls[index].outputs:
                others = set(self.graph.users.get(ref.key, ())) - indices
                if ref.key != result.key and (others or ref.key in self.graph.returned):
                    raise NoMatch
        return indices
