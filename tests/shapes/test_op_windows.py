"""Sizes of windows, slices and sums that follow from an op's own arguments, compared with runs at other sizes."""

from __future__ import annotations

import torch
from torch import nn

import tracer
from tests.support.drawing import drawn_alike
from tracer.shapes import UNKNOWN, value_of
from tracer.verify.checks.reference_run import tensors


class Windows(nn.Module):
    """A module of `[B, C, H, W]`; each output has sizes of another kind."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.mean, self.line = nn.AvgPool2d(2), nn.Conv1d(3, 4, 5, dilation=2)

    def forward(self, x) -> torch.Tensor:
        return [
            self.pool(self.conv(x)) + 0,
            self.mean(x) + 0,
            self.line(x.flatten(2)) + 0,
            x[:, :, 1:] + 0,
            x[:, :, :, ::2] + 0,
            torch.cat([x, x], dim=2) + 0,
            x.unfold(3, 4, 3) + 0,
            nn.functional.pad(x, (1, 2)) + 0,
        ]


def test_windows_slices_and_sums_are_solved_at_sizes_that_no_probe_had():
    """Compare the shapes that a trace solves with those of plain runs at sizes that no probe had."""
    net, found = Windows().eval(), []
    with drawn_alike():
        trace = tracer.trace(net, torch.randn(2, 3, 20, 27), symbols={"B": 0, "H": 2, "W": 3}, prove=False)
        made = [op.outputs[0].symbolic or () for op in trace.ops if op.op.startswith("add")]
        for sizes in ({"B": 3, "H": 71, "W": 66}, {"B": 5, "H": 68, "W": 79}):
            outputs = tensors(net(torch.randn(sizes["B"], 3, sizes["H"], sizes["W"])))
            for said, output in zip(made, outputs, strict=True):
                if UNKNOWN in said:
                    found.append(f"windows have the shape {list(said)}, expected a symbol for each size")
                elif [value_of(size, sizes) for size in said] != list(output.shape):
                    found.append(f"windows have the shape {list(said)}, and {tuple(output.shape)} at {sizes}")
    assert found == []
