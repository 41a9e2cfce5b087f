"""Fuse top-k mixtures of experts into one call (Shazeer et al. 2017; Jiang et al. 2024).

Experts can run on groups of sorted tokens, on a batch of selected weights, or in a loop. A `topk` selects the experts.
The mixture is all that depends on its indices, up to the one value that the rest of the run uses. The expert is matched
from its products and the ops between them; the proof covers the whole sum.
"""

from __future__ import annotations

from math import prod

from tracer.capture.composite_calls import Call, Ref
from tracer.graph.dataflow import Graph
from tracer.graph.passes.expert_body import MULTIPLIES, ExpertMatcher, NoMatch
from tracer.graph.passes.expert_tree import MatMul, same_structure
from tracer.graph.passes.fuse_dense_moe import find_dense_moe
from tracer.graph.subgraph import SyntheticOp

SELECTION_CALLS = frozenset(("topk",))
FEWEST = 2
"""Smallest number of products in an expert."""
FUNC = SyntheticOp("experts", ("x", "gates", "chosen", "weights", "body", "members"))
MAX_CALLS = 4000
"""Largest number of calls in a mixture."""


def fuse_moe(graph: Graph) -> Graph:
    """Return the graph with each mixture of experts as one call."""
    groups: list[tuple[set[int], list[Call]]] = []
    taken: set[int] = set()
    for index in reversed(range(len(graph.calls))):
        if graph.name(index) in SELECTION_CALLS and len(graph.calls[index].outputs) == 2 and index not in taken:
            try:
                group, call = _TopKMoE(graph, index).match()
            except NoMatch:
                continue
            if not group & taken:
                groups.append((group, [call]))
                taken |= group
    for group, (result, arguments) in find_dense_moe(graph):
        if not group & taken:
            groups.append((group, [_experts_call(graph, group, max(group), result, arguments)]))
            taken |= group
    return graph.replace(groups)


def _experts_call(graph: Graph, group: set[int], last: int, result: Ref, arguments: dict) -> Call:
    """Return the call that replaces a group of calls."""
    call, ops = graph.calls[last], tuple(graph.calls[index] for index in sorted(group))
    return Call(FUNC, "experts", arguments, (result,), call.module, call.call, call.first, call.last, ops)


class _TopKMoE(ExpertMatcher):
    """Matcher for the mixture whose experts a `topk` selects."""

    def __init__(self, graph: Graph, index: int):
        self.topk, self.chosen = index, graph.calls[index].outputs[1]
        if len(self.chosen.shape) != 2:
            raise NoMatch
        super().__init__(graph, next(ref for ref in graph.inputs[index]).shape[-1], self.chosen.shape[0])

    def match(self) -> tuple[set[int], Call]:
        """Return the calls of the mixture, and their replacement."""
        region, result = self._find_region()
        products = [index for index in sorted(region) if self.graph.name(index) in MULTIPLIES]
        whole = self.graph.with_exclusive_producers(region, self._is_auxiliary)
        if len(products) < FEWEST:
            raise NoMatch
        self.token = self._find_token(products[0], whole)
        lasts = self._expert_results(products)
        body = self._match(lasts[0])
        if not all(same_structure(body, self._match(last)) for last in lasts[1:]):
            raise NoMatch
        gates = self._find_gates(whole)
        result, whole = self._with_reshapes(result, whole)
        if not isinstance(body, MatMul) or len(self.weights) < FEWEST:
            raise NoMatch
        x = self._find_tokens(result)
        arguments = {"x": x, "gates": gates, "chosen": self.chosen, "weights": tuple(self.weights), "body": body}
        arguments["members"] = tuple(self.members.get(weight.key, weight.key) for weight in self.weights)
        return whole, _experts_call(self.graph, whole, max(region), result, arguments)

    def _find_region(self) -> tuple[set[int], Ref]:
        """Return the calls that depend on the experts' indices, up to the one value that leaves them."""
        graph, region = self.graph, set()
        last_use = {key: takers[-1] for key, takers in graph.users.items()}
        open_values = {self.chosen.key}
        for index in range(self.topk + 1, min(len(graph.calls), self.topk + MAX_CALLS)):
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
        """Return the gates of the selected experts: the input of the mixture that has their shape."""
        gates = {}
        for index in sorted(whole):
            for ref in self.graph.inputs[index]:
                maker = self.graph.producer.get(ref.key)
                inside = maker is not None and maker in whole
                if ref.dtype.is_floating_point and not inside and ref.shape == self.chosen.shape:
                    gates[ref.key] = ref
        if len(gates) != 1:
            raise NoMatch
        return next(iter(gates.values()))
