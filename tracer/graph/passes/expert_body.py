"""Matching of the MLP of one expert in the graph: its products, and the ops between them."""

from __future__ import annotations

from math import prod

from tracer.capture.composite_calls import Call, Ref
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import factor_index_map, index_map
from tracer.graph.list_parameters import ListParameter, list_parameter
from tracer.graph.passes.expert_tree import ColumnSlice, ExpertInput, ExpertWeight, MatMul, Pointwise
from tracer.ops import IDENTITIES, LINEAR, MATMULS, POINTWISE, RESHAPES, SQUEEZES, TRANSPOSES, base, takes_shape

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
        name = base(call.name)
        return (
            name in FLAT | SQUEEZES | TRANSPOSES
            or takes_shape(name)
            or not any(map(_has_tensor, call.arguments.values()))
        )

    def _trace_up(self, key: str) -> list[str]:
        """Return the values from a selected row or slice up to the tensor that it was selected from."""
        path = [key]
        while (call := self.graph.producing_call(path[-1])) is not None and len(path) < 40:
            name = base(call.name)
            moves = name in MOVES and (name != "index" or self._indexes_by_integers(call))
            if not moves:
                break
            first = next((ref for ref in self.graph.inputs[self.graph.producer[path[-1]]]), None)
            if first is None:
                break
            path.append(first.key)
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
            maker = self.graph.producer.get(top)
            outside = maker is None or maker not in whole
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

    def _match(self, key: str, depth: int = 0):
        """Return the expression tree from the token to a value. Raise NoMatch for unknown ops."""
        if depth > 40:
            raise NoMatch
        graph, call = self.graph, self.graph.producing_call(key)
        tops = self._trace_up(key)
        if self.token in tops:
            return ExpertInput()
        if call is None:
            raise NoMatch
        name, operands = base(call.name), graph.inputs[graph.producer[key]]
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
        if name not in POINTWISE:
            raise NoMatch
        arguments = {
            argument: self._match(value.key, depth + 1) if isinstance(value, Ref) else value
            for argument, value in call.arguments.items()
        }
        return Pointwise(call, arguments)

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
        if weight is None or left is None or base(call.name) in ("baddbmm", "addmm"):
            raise NoMatch
        ups = self._trace_up(weight.key)
        shape = self.graph.shapes[ups[-1]]
        single = len(shape) == 2 and self._list_parameter(ups[-1])
        if not single and (len(shape) != 3 or shape[0] != self.count):
            raise NoMatch
        if base(call.name) == "einsum":
            transposed = self._is_transposed(call, weight)
        else:
            transposed = base(call.name) == "linear" or (operands[0] is weight and base(call.name) in ("bmm", "matmul"))
        turns = sum(
            base(producer.name) in TRANSPOSES
            for key in ups[:-1]
            if (producer := self.graph.producing_call(key)) is not None
        )
        inner = self._match(left.key, depth + 1)  # weights are numbered in the order in which they are taken
        part = self._slice_of(ups[-1], transposed != bool(turns % 2))
        bias = None
        if base(call.name) == "linear" and isinstance(call.arguments.get("bias"), Ref):
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
