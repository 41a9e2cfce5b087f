r"""A loop over time as one line, `\mathbf{h}_{t} = \mathbf{A}_{t} \odot \mathbf{h}_{t-1} + \mathbf{B}_{t}`, for each t.

In such a line `x_t` is the part of x at t along the axis that t runs over, counted from 0. Where a state is carried on,
the line says what it starts from. It is executed turn by turn, each on the state that the run had before it.
"""

from __future__ import annotations

import sympy
import torch

from tracer.equations.call import COMMA, encoded
from tracer.equations.node import Node, Tensor, below, execute, infer

TURN = "turn "
"""The keys of the operands of one turn: `turn 0`, `turn 1` … in order."""
TURNED = "turned "
"""The same of a matrix `[in, out]`, that the model keeps as `[out, in]`."""
WHOLE, NOW, BEFORE, START = 0, 1, 2, 3
"""What a turn has of an operand: all of it, its part at t, its part at t - 1, or that only in the first turn."""


class Turns(Node):
    """`Turns(body, length, axis, places, *operands)`: what `body` gives at each t, along `axis`; `places` says for each
    operand what a turn has of it, along which axis, and for what is carried on which operand it starts from."""

    def __new__(cls, body: Node, length, axis: int, places, *operands: Node):
        return super().__new__(cls, body, sympy.sympify(length), sympy.Integer(axis), encoded(tuple(places)), *operands)

    @property
    def operands(self):
        return self.args[4:]

    @property
    def body(self) -> Node:
        """One turn."""
        return self.args[0]

    @property
    def places(self) -> tuple[tuple[int, int, int], ...]:
        """(what, axis, start) for each operand."""
        return tuple((int(what), int(axis), int(start)) for what, axis, start in self.args[3])

    @property
    def cells(self) -> str:  # type: ignore[override] # what others say once for all
        """What stands below the name of what is made."""
        return "t"

    def _latex(self, printer):
        said = rf"{printer._print(self.body)} \quad\text{{for }}t < {printer._print(self.args[1])}"
        starts = [
            rf"{below(printer._print(operand), '-1')} = {printer._print(self.operands[start])}"
            for operand, (what, _, start) in zip(self.operands, self.places, strict=True)
            if what == BEFORE
        ]
        return said + (rf"\text{{ from }}{COMMA.join(starts)}" if starts else "")

    def infer(self, same, *shapes):
        made, axis = list(infer(self.body, same)), int(self.args[2])
        return (*made[:axis], self.args[1], *made[axis:])

    def run(self, size, *tensors):
        made = []
        for t in range(int(size(self.args[1]))):
            parts = {f"{key}{n}": self._part(t, n, tensors) for n in range(len(tensors)) for key in (TURN, TURNED)}
            made.append(execute(self.body, lambda tensor, parts=parts: parts[tensor.key], size))
        shape = torch.broadcast_shapes(*(one.shape for one in made))
        return torch.stack([one.expand(shape) for one in made], int(self.args[2]))

    def _part(self, t: int, number: int, tensors):
        what, axis, start = self.places[number]
        tensor = tensors[number]
        if what == NOW:
            return tensor.select(axis, t)
        if what == BEFORE:
            return tensor.select(axis, t - 1) if t else tensors[start].to(tensor.dtype)
        return tensor


def turn(text: str, number: int, what: int, shape: tuple, turned: bool = False) -> Tensor:
    """The placeholder for what a turn has of an operand, which is printed as `text`."""
    name = {NOW: below(text, "t"), BEFORE: below(text, "t-1")}.get(what, text)
    return Tensor(name, shape, f"{TURNED if turned else TURN}{number}")
