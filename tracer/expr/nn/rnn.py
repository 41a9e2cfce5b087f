r"""Recurrent layers, one step after the other: `\operatorname{LSTM}\left(X, h, c, W, U, b, d\right)`.

x is `[T, B, D]`; W `[n·H, D]` and U `[n·H, H]` hold the matrices of n gates one under the other, b and d their biases.
"""

from __future__ import annotations

import torch

from tracer.expr.function_call import _FunctionCall
from tracer.expr.index_sets import IndexSet, shape_of
from tracer.expr.node import Shape, ShapeError


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
