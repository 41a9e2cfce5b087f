"""Nodes that go along a sequence: recurrent networks and scans."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import COMMA, _FunctionCall, encode
from tracer.expr.index_sets import IndexSet, shape_of
from tracer.expr.node import Node, Shape, ShapeError, Tensor, execute, infer, latex, with_subscript

# Recurrent layers, one step after the other: `\operatorname{LSTM}\left(X, h, c, W, U, b, d\right)`.
#
# x is `[T, B, D]`; W `[n·H, D]` and U `[n·H, H]` hold the matrices of n gates one under the other, b and d their
# biases.


class _Recurrent(_FunctionCall):
    """`…(x, *states, W, U, b, d, back=…, last=…)`: `back` reads from the end to the start; `last` is None for the first
    state at each step, `[T, B, H]`, else which state it is at the end, `[B, H]`."""

    fields: tuple[str, ...] = ("back", "last")
    states = 1

    def subscripts(self, printer) -> list[str]:
        last = self.get("last")
        notes = [] if last is None else [r"\text{last}" if not last else r"\text{last cell}"]
        return [*([r"\text{back}"] if self.get("back") else []), *notes]

    def infer(self, same, x, *rest) -> Shape:
        state, (wide, narrow) = rest[0], (rest[self.states], rest[self.states + 1])
        if len(x) != 3 or not same(x[2], wide[1]) or not same(state[-1], narrow[1]):
            raise ShapeError(f"{x} and states {state} don't fit the weights {wide} and {narrow}")
        last = self.get("last")
        return (x[0], x[1], state[-1]) if last is None else (x[1], rest[last][-1])

    def run(self, size, x, *rest) -> torch.Tensor:
        rest = [step.to(x.dtype) for step in rest]
        states, weights, outputs = rest[: self.states], rest[self.states :], []
        steps = list(x.unbind(0))
        for step in reversed(steps) if self.get("back") else steps:
            states = self.step(step, states, *weights)
            outputs.append(states[0])
        if (last := self.get("last")) is not None:
            return states[last]
        return torch.stack(outputs[::-1] if self.get("back") else outputs)

    @staticmethod
    def gates(x, h, w, u, b=0, d=0) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ w.T + b, h @ u.T + d

    def _dependencies(self, size, cells, x, *rest) -> tuple[IndexSet, ...]:
        """Return the cells that are read: x at all steps up to the cell's, the states at its index in the batch, all
        weights."""
        x, *shapes = map(shape_of, (x, *rest))
        batch, times = cells.axes[-2], None
        if self.get("last") is None:
            output_times = cells.axes[0]
            times = range(output_times[0], x[0]) if self.get("back") else range(output_times[-1] + 1)
        states = (IndexSet.of(shape, (*(None,) * (len(shape) - 2), batch, None)) for shape in shapes[: self.states])
        return IndexSet.of(x, (times, batch, None)), *states, *map(IndexSet.all, shapes[self.states :])


class LSTM(_Recurrent):
    """`i, f, o = σ(…)`, `g = tanh(…)` of `W x + b + U h + d`; `c ← f ⊙ c + i ⊙ g`, `h ← o ⊙ tanh c` (Hochreiter and
    Schmidhuber 1997); the rows of W and U in the order i, f, g, o. With one more matrix R, `h ← R (o ⊙ tanh c)` (Sak et
    al. 2014)."""

    word = r"\operatorname{LSTM}"
    states = 2

    def step(self, x, states, *weights) -> tuple[torch.Tensor, ...]:
        h, c = states
        *weights, projection = (*weights, None) if len(weights) % 2 == 0 else weights
        i, f, g, o = sum(self.gates(x, h, *weights)).chunk(4, -1)
        c = c / (1 + (-f).exp()) + g.tanh() / (1 + (-i).exp())
        h = c.tanh() / (1 + (-o).exp())
        return h if projection is None else h @ projection.T, c


class GRU(_Recurrent):
    """`r, z = σ(…)`, `n = tanh(W x + b + r ⊙ (U h + d))`, `h ← (1 - z) ⊙ n + z ⊙ h` (Cho et al. 2014); the rows of W
    and U in the order r, z, n."""

    word = r"\operatorname{GRU}"

    def step(self, x, states, *weights) -> tuple[torch.Tensor, ...]:
        (h,) = states
        from_input, from_state = (part.chunk(3, -1) for part in self.gates(x, h, *weights))
        r, z = (1 / (1 + (-from_input[k] - from_state[k]).exp()) for k in (0, 1))
        return ((1 - z) * (from_input[2] + r * from_state[2]).tanh() + z * h,)


class RNN(_Recurrent):
    """`h ← tanh(W x + b + U h + d)` (Elman 1990); with `relu`, `max(0, …)`."""

    word = r"\operatorname{RNN}"
    fields = ("relu", "back", "last")

    def subscripts(self, printer) -> list[str]:
        return [*([r"\text{relu}"] if self.get("relu") else []), *super().subscripts(printer)]

    def step(self, x, states, *weights) -> tuple[torch.Tensor, ...]:
        preactivation = sum(self.gates(x, states[0], *weights))
        return (preactivation.clamp(min=0) if self.get("relu") else preactivation.tanh(),)


# A loop over time as one line, `\mathbf{h}_{t} = \mathbf{A}_{t} \odot \mathbf{h}_{t-1} + \mathbf{B}_{t}`, for each t.
#
# In such a line `x_t` is the part of x at t along the axis that t runs over, counted from 0. Where a state is carried
# on, the line says what it starts from. It is executed one iteration at a time, each on the state that the run had
# before it. A loop that goes from the last part to the first has its states from t + 1, and one over the parts in
# another order than that of its results has `x_{T-1-t}`.

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

    cells = "t"

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
