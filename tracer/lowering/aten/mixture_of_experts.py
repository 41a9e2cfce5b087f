"""Lowering of a mixture of experts; the expert is lowered from a token and its weights."""

from __future__ import annotations

from typing import Any

from tracer.expr import AllExperts, Experts, Node, Plus, Slice, Tensor, infer, latex
from tracer.expr import Columns as Some
from tracer.expr import Product as Matrices
from tracer.expr.nn.mixture_of_experts import TOKEN, part
from tracer.graph.passes import expert_tree
from tracer.lowering.aten import node, register_lowering
from tracer.lowering.call_arguments import BoundCall


@register_lowering("experts")
def mixture(call: BoundCall) -> Node:
    transposed = expert_tree.find_transposed(call["body"])
    weights = [
        Tensor(tensor.name, (*tensor.shape[:-2], *tensor.shape[:-3:-1]), tensor.key, transposed=True)
        if transposed.get(number)
        else tensor
        for number, tensor in enumerate(call["weights"])
    ]
    x = call["x"]
    token = Tensor(x.name if isinstance(x, Tensor) else rf"{{{latex(x)}}}", call.shape("x"), TOKEN)
    body = _Body(call, token, [part(weight, number) for number, weight in enumerate(weights)])
    expert, gates, chosen = body.of(call["body"]), call["gates"], call["chosen"]
    if chosen is None:
        return AllExperts(expert, call.shape("gates")[-1], x, gates, *weights)
    return Experts(expert, x, gates, chosen, *weights)


class _Body:
    """Lowering of the expression tree of one expert."""

    def __init__(self, call: BoundCall, token: Tensor, parts: list[Tensor]):
        self.call, self.token, self.parts = call, token, parts

    def of(self, what) -> Node:
        """Return the node of a tree of an expert."""
        match what:
            case expert_tree.ExpertInput():
                return self.token
            case expert_tree.ExpertWeight(number):
                return self.parts[number]
            case expert_tree.MatMul(left, weight, bias):
                product = Matrices(self.of(left), self.of(weight))
                return Plus(product, self.of(bias)) if bias is not None else product
            case expert_tree.ColumnSlice(inner, start, stop, step):
                return self._lower_columns(self.of(inner), start, stop, step)
            case expert_tree.Pointwise(call, arguments):
                return self._lower_pointwise(call, arguments)
        raise TypeError(what)

    def _lower_columns(self, inner: Node, start: int, stop: int, step: int) -> Node:
        size = infer(inner)[-1]
        whole = self.call.size_value(size) or stop
        first, last = (size * n / whole if (size * n / whole).is_polynomial() else n for n in (start, stop))
        if step == 1:
            return Some(inner, first, last)
        rest = [(None, None, None)] * (len(infer(inner)) - 1)
        return Slice(inner, (*rest, (start or None, None, step)))

    def _numeric_shape(self, shape: tuple, ran: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape of all tokens in numbers; the last axis as in the run, on the tokens of one expert."""
        return (*(self.call.size_value(size) or 1 for size in shape[:-1]), *ran[-1:])

    def _lower_pointwise(self, call, arguments) -> Node:
        nodes: dict[str, Any] = {}
        shapes, numerics, dtypes = {}, {}, {}
        for name, value in arguments.items():
            if isinstance(
                value,
                (
                    expert_tree.ExpertInput,
                    expert_tree.ExpertWeight,
                    expert_tree.MatMul,
                    expert_tree.ColumnSlice,
                    expert_tree.Pointwise,
                ),
            ):
                nodes[name] = self.of(value)
                shapes[name], dtypes[name] = infer(nodes[name]), call.arguments[name].dtype
                numerics[name] = self._numeric_shape(shapes[name], call.arguments[name].shape)
            else:
                nodes[name] = list(value) if isinstance(value, tuple) else value
        shape = next(iter(shapes.values()))
        output_shape = self._numeric_shape(shape, call.outputs[0].shape)
        return node(BoundCall(call.func, nodes, shapes, numerics, dtypes, 0, shape, output_shape))
