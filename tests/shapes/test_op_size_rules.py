"""Sizes that ops derive from their arguments, against those of PyTorch at sizes of the checks' own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.drawing import drawn_alike
from tracer.capture import record
from tracer.ops import schema
from tracer.shapes.alignment import READERS, apply_size_rules
from tracer.verify.checks.run import at

SIZES = ((2, 29, 40), (3, 30, 55), (1, 31, 64), (4, 41, 47), (2, 52, 73), (5, 60, 58))
"""Of batch, height and width; at the first an op is recorded, at all of them it is run."""

OPS: dict[str, tuple[Callable[[Tensor], Tensor], set[int]]] = {
    "convolution": (nn.Conv2d(3, 4, 5, stride=9, padding=2), {2, 3}),
    "dilated convolution": (nn.Conv2d(3, 4, (3, 5), stride=(2, 11), padding=(4, 1), dilation=(5, 3)), {2, 3}),
    "transposed convolution": (nn.ConvTranspose2d(3, 4, (4, 3), (3, 5), (2, 1), (1, 3), dilation=(1, 2)), {2, 3}),
    "convolution of lines": (lambda x: F.conv1d(x[:, :, 0], torch.ones(2, 3, 4), stride=3, padding=1), {2}),
    "largest": (nn.MaxPool2d(3, 2, 1, dilation=3), {2, 3}),
    "largest of many": (lambda x: F.max_pool2d(x, (5, 4)), {2, 3}),
    "largest, without a batch": (lambda x: F.max_pool2d(x[0], (2, 3), (9, 10), (1, 0)), {1, 2}),
    "largest, rounded up": (nn.MaxPool2d((5, 1), 4, (2, 0), ceil_mode=True), {2, 3}),
    "largest of cubes": (lambda x: F.max_pool3d(x[:, None], (1, 3, 4), (1, 9, 2), (0, 1, 2)), {2, 3, 4}),
    "mean": (nn.AvgPool2d((3, 4), (10, 3), (1, 2)), {2, 3}),
    "mean, rounded up": (nn.AvgPool2d(2, 9, ceil_mode=True), {2, 3}),
    "slice": (lambda x: x[:, :, 1:-2], {2}),
    "steps": (lambda x: x[:, :, :, 2::9], {3}),
    "steps from the end": (lambda x: x[:, :, :, -19:-3:4], {3}),
    "first ones": (lambda x: x[:, :, :9], {2}),
    "axis from the end": (lambda x: torch.ops.aten.slice(x, -1, 3, 20, 4), {3}),
    "windows": (lambda x: x.unfold(3, 4, 9), {3}),
    "windows of the last axis but one": (lambda x: x.unfold(-2, 5, 2), {2}),
    "padding": (lambda x: F.pad(x, (1, 2)), {3}),
    "padding of two axes": (lambda x: F.pad(x, (-3, 1, 4, 8)), {2, 3}),
}
"""What takes `[B, 3, H, W]`, and which axes of what it gives follow from its arguments."""

TWO = {"largest, rounded up", "mean, rounded up"}
"""Those that say two sizes of each axis, one more and one less."""


def _check_sizes(name: str) -> Iterator[str]:
    run, axes = OPS[name]
    B, H, W = SIZES[0]
    ops = record(run if isinstance(run, nn.Module) else _Ran(run), (torch.ones(B, 3, H, W),), attention=False).ops
    op = [op for op in ops if schema(op.name).size_rule in READERS][-1]
    symbols = {B: "B", H: "H", W: "W"}
    given = [tuple(symbols.get(size, str(size)) for size in op.inputs[0][0])]
    given += [tuple(map(str, shape)) for shape, *_ in op.inputs[1:]]
    shapes = [tuple(run(torch.ones(b, 3, h, w)).shape) for b, h, w in SIZES]
    said = apply_size_rules(op, given)
    if said.keys() != axes:
        yield f"{name} says the sizes of axes {sorted(said)}, expected {sorted(axes)}"
        return
    for axis, formulas in said.items():
        values = [[at(str(text), {"B": b, "H": h, "W": w}) for text in formulas] for b, h, w in SIZES]
        right = [[value == shape[axis] for value in of] for of, shape in zip(values, shapes, strict=True)]
        if not all(map(any, right)) or not all(any(column) for column in zip(*right, strict=True)):
            ran = [shape[axis] for shape in shapes]
            yield f"{name} says of axis {axis} that it is {formulas}, {values} where {ran} ran"
        if len(formulas) != 1 + (name in TWO) or any(of != [of[0] - i for i in range(len(of))] for of in values):
            yield f"{name} says of axis {axis} that it is {formulas}"
    hidden = tuple("?" if size in ("H", "W") else size for size in given[0])
    if any("?" in text for texts in apply_size_rules(op, [hidden, *given[1:]]).values() for text in map(str, texts)):
        yield f"{name} says a size that follows from an unknown one"


class _Ran(nn.Module):
    """A function as a module."""

    def __init__(self, run: Callable[[Tensor], Tensor]):
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x)


CHECKS = [partial(_check_sizes, name) for name in OPS]


@pytest.mark.parametrize("problems", CHECKS, ids=OPS)
def test_an_op_says_the_sizes_that_ran(problems):
    with drawn_alike():
        assert list(problems()) == []
