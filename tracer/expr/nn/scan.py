r"""A loop over time as one line, `\mathbf{h}_{t} = \mathbf{A}_{t} \odot \mathbf{h}_{t-1} + \mathbf{B}_{t}`, for each t.

In such a line `x_t` is the part of x at t along the axis that t runs over, counted from 0. Where a state is carried on,
the line says what it starts from. It is executed one iteration at a time, each on the state that the run had before it.
A loop that goes from the last part to the first has its states from t + 1, and one over the parts in another order than
that of its results has `x_{T-1-t}`.
"""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import COMMA, encode
from tracer.expr.node import Node, Shape, Tensor, execute, infer, latex, with_subscript

OPERAND = "iteration "
"""The keys of the operands of one iteration: `iteration 0`, `iteration 1` … in order."""
TRANSPOSED_OPERAND = "transposed "
"""The same of a matrix `[in, out]`, that the model keeps as `[out, in]`."""
INVARIANT, FORWARD_SLICE, CARRY, INIT, BACKWARD_SLICE = 0, 1, 2, 3, 4
"""The kinds of operands of an iteration: all of the operand, its part at t, that of the previous iteration, that
only in the first iteration, or its part as far from the end as t is from the start."""
PARTS = FORWARD_SLICE, BACKWARD_SLICE
"""The kinds of operands that are sequences and not carried on."""


class Scan(Node):
    """`Scan(body, length, axis, (back, keepdim), places, *operands)`: the results of `body` at each t, along `axis`.

    `places` has for each operand the part that an iteration reads, the axis of that part, and the operand that a
    carried state starts from. `back`: t goes from the last index to the first. `keepdim`: the parts keep their axis, of
    size 1.
    """

    def __new__(cls, body: Node, length, axis: int, way, places, *operands: Node):
        axis, way, places = sympy.Integer(axis), encode(tuple(map(int, way))), encode(tuple(places))
        return super().__new__(cls, body, sympy.sympify(length), axis, way, places, *operands)

    @property
    def operands(self) -> tuple[Node, ...]:
        return self.args[5:]

    @property
    def back(self) -> bool:
        """Return whether t runs from the last index to the first."""
        return bool(self.args[3][0])

    @property
    def keeps_axis(self) -> bool:
        """Return whether the parts of an iteration keep their axis."""
        return bool(self.args[3][1])

    @property
    def body(self) -> Node:
        """Body of one iteration."""
        return self.args[0]

    @property
    def places(self) -> tuple[tuple[int, int, int], ...]:
        """(what, axis, start) for each operand."""
        return tuple((int(what), int(axis), int(start)) for what, axis, start in self.args[4])

    @property
    def cells(self) -> str:  # type: ignore[override] # what others say once for all
        """Return the index below the name of the result."""
        return "t"

    def _latex(self, printer) -> str:
        recurrence = rf"{printer._print(self.body)} \quad\text{{for }}t < {printer._print(self.args[1])}"
        first = printer._print(self.args[1]) if self.back else "-1"
        starts = [
            rf"{with_subscript(printer._print(operand), first)} = {printer._print(self.operands[start])}"
            for operand, (what, _, start) in zip(self.operands, self.places, strict=True)
            if what == CARRY
        ]
        way = "back from" if self.back else "from"
        return recurrence + (rf"\text{{ {way} }}{COMMA.join(starts)}" if starts else "")

    def infer(self, same, *shapes) -> Shape:
        body_shape, axis = list(infer(self.body, same)), int(self.args[2])
        return (*body_shape[:axis], self.args[1], *body_shape[axis + self.keeps_axis :])

    def run(self, size, *tensors) -> torch.Tensor:
        length, axis = int(size(self.args[1])), int(self.args[2])
        outputs = []
        for t in range(length):
            parts = {
                f"{key}{n}": self._part(t, n, tensors)
                for n in range(len(tensors))
                for key in (OPERAND, TRANSPOSED_OPERAND)
            }
            outputs.append(execute(self.body, lambda tensor, parts=parts: parts[tensor.key], size))
        shape = torch.broadcast_shapes(*(output.shape for output in outputs))
        outputs = [output.expand(shape) for output in outputs]
        return torch.cat(outputs, axis) if self.keeps_axis else torch.stack(outputs, axis)

    def _part(self, t: int, number: int, tensors):
        what, axis, start = self.places[number]
        tensor = tensors[number]
        if what == CARRY:
            t += 1 if self.back else -1
            if not 0 <= t < tensor.shape[axis]:
                first = tensors[start].to(tensor.dtype).expand(tensor.select(axis, 0).shape)
                return first.unsqueeze(axis) if self.keeps_axis else first
        elif what == BACKWARD_SLICE:
            t = tensor.shape[axis] - 1 - t
        elif what != FORWARD_SLICE:
            return tensor
        return tensor.narrow(axis, t, 1) if self.keeps_axis else tensor.select(axis, t)


def placeholder(
    text: str, number: int, what: int, shape: tuple, length, transposed: bool = False, back: bool = False
) -> Tensor:
    """Return the placeholder for an operand's part in one iteration, printed as `text`."""
    indices = {FORWARD_SLICE: "t", CARRY: "t+1" if back else "t-1", BACKWARD_SLICE: f"{latex(length - 1)} - t"}
    name = with_subscript(text, indices[what]) if what in indices else text
    return Tensor(name, shape, f"{TRANSPOSED_OPERAND if transposed else OPERAND}{number}")
