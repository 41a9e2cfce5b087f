"""Lowering of a rolled loop over time: its body is lowered like any other calls."""

from __future__ import annotations

from tracer.capture.composite_calls import Call, CallLog, Ref
from tracer.expr import Node, Scan, Slice, Tensor, infer, latex
from tracer.expr.function_call import Scalar, tight
from tracer.expr.layout.concat_stack_pad import Full
from tracer.expr.nn.scan import CARRY, INIT, INVARIANT, PARTS, placeholder
from tracer.graph.dataflow import Graph
from tracer.lowering.aten import has_lowering
from tracer.symbols.notation import SizePrinter


class NoSteps:
    """A step selection for a subgraph, such as the body of a loop: no value in it is a step."""

    def __init__(self, graph: Graph):
        self.named, self.ends, self._graph = {}, {}, graph

    def named_root(self, key: str) -> str:
        return self._graph.root(key)


def lower_loop(writer, call: Call) -> Node:
    """Lower the call of a rolled loop to a `Scan`."""
    body = call.arguments["body"]
    values = [writer.value(ref.key) for ref in call.arguments["operands"]]
    own = writer.inner_tensor(call.outputs[0].key)
    length = writer.shapes.of(call.outputs[0].key)[body.axis]
    operands, places, parts = [], [], {}
    whole = {ref.key: node for ref, node in zip(call.arguments["operands"], values, strict=True)}
    for key, what, axis, of, start in body.places:
        operand = own if of == body.own else whole[of]
        matrix = what == INVARIANT and isinstance(operand, Tensor) and _is_matrix(key, body)
        if matrix:
            operand = Tensor(operand.name, operand.shape[::-1], operand.key, transposed=True)
        operands.append(operand)
        places.append((what, axis, start))
        shape = own.shape if of == body.own else writer.shapes.of(of)
        if what in PARTS or what == CARRY:
            shape = (*shape[:axis], *([1] if body.keepdim else []), *shape[axis + 1 :])
        text = latex(operand) if isinstance(operand, Tensor) else f"{{{tight(operand, SizePrinter())}}}"
        shape = shape[::-1] if matrix else shape
        parts[key] = placeholder(text, len(operands) - 1, what, shape, length, matrix, body.back)
    first = len(operands)
    operands += [_initial_state(writer.value(ref.key), body) for ref in call.arguments["initial"]]
    places = [(what, axis, first + start if what == CARRY else 0) for what, axis, start in places]
    places += [(INIT, 0, 0)] * (len(operands) - first)
    return Scan(_lower_body(writer, body, parts), length, body.axis, (body.back, body.keepdim), places, *operands)


def _initial_state(node: Node, body) -> Node:
    """Return the initial state, arranged like its slices; a constant state as its number."""
    if isinstance(node, Full) and isinstance(node.operands[0], Scalar):
        return node.operands[0]
    rank = len(infer(node)) if body.keepdim else 0
    return Slice(node, tuple(0 if axis == body.axis else (None, None, None) for axis in range(rank))) if rank else node


def _is_matrix(key: str, body) -> bool:
    """Return whether a parameter is only used as the weight of linear maps."""
    uses = {(call.name, name) for call in body.calls for name, ref in call.arguments.items() if _is(ref, key)}
    return key.startswith("parameter ") and uses == {("linear", "weight")}


def _is(value, key: str) -> bool:
    return isinstance(value, Ref) and value.key == key


def _lower_body(writer, body, parts: dict[str, Tensor]) -> Node:
    """Lower one iteration, with these placeholders for its operands."""
    outputs = tuple(ref for call in body.calls for ref in call.outputs if ref.key == body.key)
    graph = Graph.of(CallLog(entries=list(body.calls), outputs=outputs), has_lowering)
    return writer.for_subgraph(graph, NoSteps(graph), parts).value(body.key)
