r"""Pictures at another size: `\operatorname{resize}_{H \times W,\,\text{bilinear}}\left(\mathbf{X}\right)`."""

from __future__ import annotations

import sympy
import torch

from tracer.expr.function_call import _FunctionCall, decimal, setting_latex
from tracer.expr.index_sets import IndexSet, shape_of
from tracer.expr.node import Shape
from tracer.expr.provenance_rules import Linear


class Interpolate(Linear, _FunctionCall):
    """Last axes at other sizes: `sizes`, one for each; `how` is "nearest", "exact", "linear" or "cubic".

    Cell i of m lies over `(i + ½) n/m - ½` of n (at `i (n - 1)/(m - 1)` with `corners`); "nearest" takes cell ⌊i n/m⌋,
    "exact" ⌊(i + ½) n/m⌋.
    A cubic one has four neighbours and Keys' kernel with a = -¾ (Keys 1981). `ratios` are given instead of n/m.
    """

    alone = False

    word = r"\operatorname{resize}"
    fields = ("sizes", "how", "corners", "ratios")

    def subscripts(self, printer) -> list[str]:
        notes = [r" \times ".join(setting_latex(number, printer) for number in self.get("sizes"))]
        notes += [rf"\text{{{self.get('how')}}}"] + [r"\text{corners}"] * bool(self.get("corners"))
        ratios = self.get("ratios")
        return notes + ([r"\text{step }" + r" \times ".join(decimal(number) for number in ratios)] if ratios else [])

    def infer(self, same, shape) -> Shape:
        sizes = tuple(map(sympy.sympify, self.get("sizes")))
        return (*shape[: -len(sizes)], *sizes)

    def run(self, size, x) -> torch.Tensor:
        sizes = [length if isinstance(length, int) else round(float(size(length))) for length in self.get("sizes")]
        for place, m in enumerate(sizes):
            axis = place - len(sizes)
            ratio = self.get("ratios")[place] if self.get("ratios") else x.shape[axis] / m
            x = (x.movedim(axis, -1) @ self.weights(x.shape[axis], m, ratio)).movedim(-1, axis)
        return x

    def weights(self, n: int, m: int, ratio: float) -> torch.Tensor:
        """Return the weight of each of n cells in each of m, `[n, m]`."""
        i, how = torch.arange(m, dtype=torch.float64), self.get("how")
        if how in ("nearest", "exact"):
            cells = ((i + 0.5 * (how == "exact")) * ratio).floor().clamp(max=n - 1)
            return (torch.arange(n)[:, None] == cells).double()
        if self.get("corners"):
            at = i * ((n - 1) / (m - 1) if m > 1 else 0)
        else:
            at = (i + 0.5) * ratio - 0.5
            at = at.clamp(min=0) if how == "linear" else at
        first, matrix = at.floor(), torch.zeros(n, m, dtype=torch.float64)
        for step in (0, 1) if how == "linear" else (-1, 0, 1, 2):
            share = self.kernel((at - first - step).abs())
            cells = (first + step).clamp(0, n - 1).long()
            matrix += (torch.arange(n)[:, None] == cells) * share
        return matrix

    def kernel(self, away) -> torch.Tensor:
        if self.get("how") == "linear":
            return 1 - away
        a = -0.75
        near = (a + 2) * away**3 - (a + 3) * away**2 + 1
        far = a * (away**3 - 5 * away**2 + 8 * away - 4)
        return torch.where(away <= 1, near, far)

    def along(self, size, shape) -> list[torch.Tensor]:
        """Return, for each of the last axes, the weights of its cells in each cell of the result."""
        sizes = [length if isinstance(length, int) else round(float(size(length))) for length in self.get("sizes")]
        ratios = self.get("ratios") or [n / m for n, m in zip(shape[-len(sizes) :], sizes, strict=True)]
        return [self.weights(n, m, r) for n, m, r in zip(shape[-len(sizes) :], sizes, ratios, strict=True)]

    def _dependencies(self, size, cells, x) -> tuple[IndexSet, ...]:
        shape = shape_of(x)
        weights = self.along(size, shape)
        axes = [
            (weight[:, list(outputs)] != 0).any(1).nonzero().flatten().tolist()
            for outputs, weight in zip(cells.axes[-len(weights) :], weights, strict=True)
        ]
        return (IndexSet.of(shape, (*cells.axes[: -len(weights)], *axes)),)
