"""Mixtures of experts: one step, however the library computes them, with what chooses and what weighs before it."""

import pytest
import torch
from torch import nn

import tracer
from tracer.inputs.given import Inputs
from tracer.recorder.ops import is_layout
from tracer.verify import zoo
from tracer.verify.checks import printed


class Grouped(nn.Module):
    """Tokens sorted by their experts, and one product for all of an expert's."""

    def forward(self, x, chosen, gates, up, down):
        k, flat = chosen.shape[-1], chosen.reshape(-1)
        order = torch.argsort(flat)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order))
        ends = torch.histc(flat.float(), bins=len(up), min=0, max=len(up) - 1).cumsum(0).int()
        made = torch._grouped_mm(x[order // k], up.transpose(-2, -1), offs=ends)
        gate, more = made.chunk(2, -1)
        made = torch._grouped_mm(nn.functional.silu(gate) * more, down.transpose(-2, -1), offs=ends)
        made = made * gates.reshape(-1)[order][:, None]
        return made[back].view(*chosen.shape, -1).sum(1)


class Batched(nn.Module):
    """Each token with weights of its own."""

    def forward(self, x, chosen, gates, up, down):
        k, flat = chosen.shape[-1], chosen.reshape(-1)
        gate, more = torch.bmm(up[flat], x.repeat_interleave(k, 0)[..., None])[..., 0].chunk(2, -1)
        made = torch.bmm(down[flat], (nn.functional.silu(gate) * more)[..., None])[..., 0]
        return (made * gates.reshape(-1)[:, None]).view(*chosen.shape, -1).sum(1)


class Looped(nn.Module):
    """One expert after the other, each with the tokens that chose it."""

    def forward(self, x, chosen, gates, up, down):
        made = torch.zeros_like(x)
        for expert in range(len(up)):
            tokens, places = torch.where(chosen == expert)
            gate, more = nn.functional.linear(x[tokens], up[expert]).chunk(2, -1)
            found = nn.functional.linear(nn.functional.silu(gate) * more, down[expert])
            made.index_add_(0, tokens, found * gates[tokens, places, None])
        return made


class Mixture(nn.Module):
    def __init__(self, experts):
        super().__init__()
        self.router, self.experts = nn.Linear(8, 5, bias=False), experts
        self.up, self.down = nn.Parameter(torch.randn(5, 24, 8)), nn.Parameter(torch.randn(5, 8, 12))

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        shares, chosen = self.router(rows).softmax(-1).topk(2)
        gates = shares / shares.sum(-1, keepdim=True)
        return x + self.experts(rows, chosen, gates, self.up, self.down).view_as(x)


@pytest.mark.parametrize("how", [Grouped, Batched, Looped])
def test_a_mixture_is_one_step(how):
    torch.manual_seed(0)
    net, x = Mixture(how()).eval(), torch.randn(2, 6, 8)
    zoo.moved(net)
    with torch.no_grad():
        run = tracer.trace(net, x, symbols={"B": 0, "T": 1})
    assert {step.verdict for step in run.steps} == {"proven"}
    assert all(op.step for op in run.ops if not is_layout(op.op))
    (mixture,) = [step for step in run.steps if step.title == "Mixture of experts"]
    assert mixture.latex.startswith(
        r"\mathbf{F} = \sum_{e \in \mathbf{e}} \mathbf{g}_{e}\,\left(\left(\operatorname{SiLU}"
    )
    assert mixture.symbolic == ("B", "T", "8")
    titles = [step.title for step in run.steps if step.stage == "experts"]
    assert titles[:3] == ["Scores of the experts", "Shares of the experts", "Shares of the chosen experts"]
    assert set(titles[3:]) == {"Chosen experts", "Gates"}
    given = Inputs((x,))
    assert dict(printed.differences(run, net, given)) == {}


def test_the_proof_of_a_mixture_notices_its_gates(monkeypatch):
    from tracer.equations import Experts

    whole = Experts.run
    monkeypatch.setattr(Experts, "run", lambda self, size, x, g, *rest: whole(self, size, x, g.flip(-1), *rest))
    torch.manual_seed(0)
    with torch.no_grad():
        run = tracer.trace(Mixture(Grouped()).eval(), torch.randn(2, 6, 8))
    assert [step.title for step in run.steps if step.verdict == "disproven"] == ["Mixture of experts"]
