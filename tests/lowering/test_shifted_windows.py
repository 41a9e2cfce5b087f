"""Windows of a grid, shifted or not, are one word of the line that maps them (Liu et al. 2021)."""

import pytest
import torch
from torch import nn

import tracer
from tracer.inputs.model_inputs import Inputs
from tracer.verify.checks import printed


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
        weights = (0.5 * q @ k.transpose(-2, -1)).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """Attention within windows of 2 by 2, of a grid that may be shifted and, as libraries do, padded by nothing."""

    def __init__(self, shift, flat):
        super().__init__()
        self.norm, self.attn, self.shift, self.flat = nn.LayerNorm(8), Attention(), shift, flat

    def forward(self, x):
        b, h, w, d = x.shape
        y = self.norm(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = nn.functional.pad(y, (0, 0, 0, -w % 2, 0, -h % 2))
        y = y.view(b, h // 2, 2, w // 2, 2, d).permute(0, 1, 3, 2, 4, 5)
        y = y.reshape(-1, 4, d) if self.flat else y.reshape(-1, 2, 2, d).view(-1, 4, d)
        y = self.attn(y).view(-1, h // 2, w // 2, 2, 2, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, d)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        return x + y


@pytest.mark.parametrize("flat", [True, False])
def test_shifted_windows_stand_in_one_line(flat):
    torch.manual_seed(0)
    net, x = nn.Sequential(Block(0, flat), Block(1, flat)).eval(), torch.randn(2, 4, 6, 8)
    with torch.no_grad():
        run = tracer.trace(net, x, symbols={"B": 0, "H": 1, "W": 2})
    assert {step.verdict for step in run.steps} == {"verified"} and run.coverage == 1
    assert dict(printed.differences(run, net, Inputs((x,)))) == {}
    said = {step.id: step.latex for step in run.steps}
    start = r"\mathbf{QKV}^{(%d)} = \operatorname{windows}_{2}\left("
    assert said["0.attention.packed"].startswith(start % 1 + r"\tilde{\mathbf{X}}^{(1)}\right)\,\mathbf{W}")
    assert said["1.attention.packed"].startswith(
        start % 2 + r"\operatorname{roll}_{-1 \times -1}\left(\tilde{\mathbf{X}}^{(2)}\right)\right)\,\mathbf{W}"
    )
    assert r"\operatorname{unwindow}_{H \times W}\left(\mathbf{H}^{(2)}\right)" in said["1.attention.output"]
    assert said["1.attention.residual"].endswith(r"\operatorname{roll}_{1 \times 1}\left(\mathbf{O}^{(2)}\right)")
    assert run.step("1.attention.packed").symbolic == ("B*H*W/4", "4", "24")
