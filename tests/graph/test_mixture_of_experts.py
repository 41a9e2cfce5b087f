"""Mixtures of experts: one step, however the library computes them, with its router and gates before it."""

import pytest
import torch
from torch import nn

import tracer
from tracer.inputs.model_inputs import Inputs
from tracer.ops import is_layout
from tracer.verify import surveys
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


class Expert(nn.Module):
    def __init__(self, bend=nn.functional.silu):
        super().__init__()
        self.gate, self.up, self.down, self.bend = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8), bend

    def forward(self, x):
        return self.down(self.bend(self.gate(x)) * self.up(x))


class Listed(nn.Module):
    """Experts that are modules of a list, each given the tokens that chose it; those that none chose don't run."""

    def __init__(self, *bends):
        super().__init__()
        self.router, self.experts = nn.Linear(8, 5, bias=False), nn.ModuleList(map(Expert, bends))

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        gates, chosen = self.router(rows).topk(2)
        gates, made = gates.softmax(-1), torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            tokens, places = torch.where(chosen == number)
            if len(tokens):
                made[tokens] += gates[tokens, places, None] * expert(rows[tokens])
        return x + made.view_as(x)


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
    surveys.perturb_parameters(net)
    with torch.no_grad():
        run = tracer.trace(net, x, symbols={"B": 0, "T": 1})
    assert {step.verdict for step in run.steps} == {"verified"}
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


@pytest.mark.parametrize("tokens", [3, 14])
def test_experts_in_a_list_are_one_sum_over_those_chosen(tokens):
    torch.manual_seed(0)
    net, x = Listed(*[nn.functional.silu] * 5).eval(), torch.randn(1, tokens, 8)
    surveys.perturb_parameters(net)
    with torch.no_grad():
        run = tracer.trace(net, x, symbols={"T": 1})
        chosen = set(net.router(x).topk(2).indices.flatten().tolist())
    assert (len(chosen) < 5) == (tokens == 3)  # also where some experts did not run at all
    assert {step.verdict for step in run.steps} == {"verified"} and run.coverage == 1
    assert not [step.note for step in run.steps if step.note]
    (mixture,) = [step for step in run.steps if step.title == "Mixture of experts"]
    assert mixture.symbolic == ("1", "T", "8")
    assert r"{\mathbf{W}_{1}}_{[e,\,:,\,:]} + {\mathbf{b}_{1}}_{[e,\,:]}" in mixture.latex
    assert {name.of for name in mixture.names} >= {"parameter experts.*.gate.weight", "parameter experts.*.down.bias"}
    assert dict(printed.differences(run, net, Inputs((x,)))) == {}
    cell = run.cell(mixture.id, (0, 1, 3))
    assert cell.computed == pytest.approx(cell.value, abs=1e-5)
    with torch.no_grad():
        net.experts[min(chosen)].up.weight += 1
    assert "experts.*.up.weight' has changed" in run.cell(mixture.id, (0, 1, 3)).note


def test_an_expert_may_hold_numbers():
    class Scaled(Looped):
        """An activation that is written out, with a number that could be the root of a size."""

        def forward(self, x, chosen, gates, up, down):
            made = torch.zeros_like(x)
            for expert in range(len(up)):
                tokens, places = torch.where(chosen == expert)
                gate, more = nn.functional.linear(x[tokens], up[expert]).chunk(2, -1)
                found = nn.functional.linear(gate * torch.sigmoid(1.702 * gate) * more, down[expert])
                made.index_add_(0, tokens, found * gates[tokens, places, None])
            return made

    torch.manual_seed(0)
    with torch.no_grad():
        run = tracer.trace(Mixture(Scaled()).eval(), torch.randn(2, 6, 8), symbols={"B": 0, "T": 1})
    (mixture,) = [step for step in run.steps if step.title == "Mixture of experts"]
    assert "1.702" in mixture.latex and mixture.verdict == "verified"


def test_experts_that_differ_are_no_sum():
    torch.manual_seed(0)
    net = Listed(*[nn.functional.silu] * 4, torch.tanh).eval()
    with torch.no_grad():
        run = tracer.trace(net, torch.randn(1, 14, 8))
    assert "Mixture of experts" not in {step.title for step in run.steps}
    assert "refuted" not in {step.verdict for step in run.steps}


class Weighted(nn.Module):
    """Mixture in which all experts run, and `mix(experts, x, shares)` adds their results, each by its share of the
    token."""

    def __init__(self, mix, *bends):
        super().__init__()
        self.mix, self.router = mix, nn.Linear(8, 5)
        self.experts = nn.ModuleList(map(Expert, bends or [nn.functional.silu] * 5))

    def forward(self, x):
        return x + self.mix(self.experts, x, self.router(x).softmax(-1))


class Parts(Weighted):
    """Mixture with one product for all experts, whose weights have a part for each."""

    def __init__(self, mix):
        super().__init__(mix)
        self.experts = nn.ParameterList([torch.randn(5, 8, 12), torch.randn(5, 12, 8)])


def in_place(experts, x, shares):
    made = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        made += expert(x) * shares[..., number : number + 1]
    return made


def multiply_by_einsum(experts, x, shares):
    hidden = torch.einsum("btd,edf->btef", x, experts[0]).relu()
    return torch.einsum("bte,bted->btd", shares, torch.einsum("btef,efd->bted", hidden, experts[1]))


DENSE_MIXTURES = {
    "one after the other": (Weighted, lambda f, x, g: sum(g[..., e, None] * one(x) for e, one in enumerate(f))),
    "in place": (Weighted, in_place),
    "stacked": (Weighted, lambda f, x, g: (torch.stack([one(x) for one in f], -2) * g[..., None]).sum(-2)),
    "by a product": (Weighted, lambda f, x, g: (torch.stack([one(x) for one in f], -1) @ g[..., None])[..., 0]),
    "joined": (Weighted, lambda f, x, g: (g[:, :, None] @ torch.cat([one(x)[:, :, None] for one in f], 2)).squeeze(2)),
    "named axes": (Parts, multiply_by_einsum),
    "in a batch": (Parts, lambda f, x, g: (((x[:, None] @ f[0]).relu() @ f[1]) * g.mT[..., None]).sum(1)),
}


@pytest.mark.parametrize("how", DENSE_MIXTURES)
def test_a_mixture_of_which_all_experts_run_is_a_sum_over_all(how):
    torch.manual_seed(0)
    kind, mix = DENSE_MIXTURES[how]
    net, x = kind(mix).eval(), torch.randn(2, 6, 8)
    surveys.perturb_parameters(net)
    with torch.no_grad():
        run = tracer.trace(net, x, symbols={"B": 0, "T": 1})
    assert {step.verdict for step in run.steps} == {"verified"} and run.coverage == 1
    assert [step.title for step in run.steps] == ["Scores of the experts", "Gates", "Mixture of experts", "Output"]
    mixture = run.steps[2]
    assert mixture.symbolic == ("B", "T", "8") and not mixture.note
    assert mixture.latex.startswith(r"\mathbf{F} = \sum_{e < 5} \mathbf{g}_{e}\,\left(")
    assert dict(printed.differences(run, net, Inputs((x,)))) == {}
    cell = run.cell(mixture.id, (0, 1, 3))
    assert cell.computed == pytest.approx(cell.value, rel=1e-5, abs=1e-5)


def test_shares_that_do_not_fit_their_experts_make_no_sum():
    crossed = Weighted(lambda f, x, g: sum(g[..., 4 - e // 2, None] * one(x) for e, one in enumerate(f)))
    unlike = Weighted(DENSE_MIXTURES["stacked"][1], *[nn.functional.silu] * 4, torch.tanh)
    for net in (crossed, unlike):
        with torch.no_grad():
            run = tracer.trace(net.eval(), torch.randn(2, 6, 8))
        assert "Mixture of experts" not in {step.title for step in run.steps}
        assert "refuted" not in {step.verdict for step in run.steps} and run.coverage == 1


def test_the_proof_of_a_mixture_notices_its_gates(monkeypatch):
    from tracer.expr import Experts

    whole = Experts.run
    monkeypatch.setattr(Experts, "run", lambda self, size, x, g, *rest: whole(self, size, x, g.flip(-1), *rest))
    torch.manual_seed(0)
    with torch.no_grad():
        run = tracer.trace(Mixture(Grouped()).eval(), torch.randn(2, 6, 8))
    assert [step.title for step in run.steps if step.verdict == "refuted"] == ["Mixture of experts"]


class Visited(nn.Module):
    """Experts that are visited one after the other, the chosen ones alone; routed before tokens are rows, or after."""

    def __init__(self, rows_first: bool):
        super().__init__()
        self.rows_first, self.gate = rows_first, nn.Linear(8, 4, bias=False)
        self.up, self.down = (
            nn.ModuleList(nn.Linear(*sizes, bias=False) for _ in range(4)) for sizes in ((8, 12), (12, 8))
        )

    def forward(self, x):
        rows = x.reshape(-1, 8)
        scores, chosen = torch.topk(self.gate(rows if self.rows_first else x), 2, -1)
        gates, made = scores.softmax(-1).reshape(-1, 2), torch.zeros_like(rows)
        chosen = chosen.reshape(-1, 2)
        for expert in torch.unique(chosen):
            mask, number = chosen == expert, int(expert)
            if not mask.any():
                continue
            tokens = mask.any(-1).nonzero(as_tuple=False).squeeze(-1)
            output = self.down[number](torch.relu(self.up[number](rows.index_select(0, tokens))))
            slot = mask.index_select(0, tokens).int().argmax(-1, keepdim=True)
            made.index_add_(0, tokens, output * gates.index_select(0, tokens).gather(-1, slot))
        return made.reshape(x.shape)


@pytest.mark.parametrize("rows_first", [True, False])
@pytest.mark.parametrize("tokens", [5, 7])
def test_experts_that_are_visited_by_number_are_one_sum(rows_first, tokens):
    torch.manual_seed(0)
    net, x = Visited(rows_first).eval(), torch.randn(1, tokens, 8)
    with torch.no_grad():
        run = tracer.trace(net, x, symbols={"T": 1})
        assert (len(net.gate(x).topk(2).indices.unique()) < 4) == (tokens == 7)
    assert len(run.steps) <= 7 and {step.verdict for step in run.steps} == {"verified"}
    assert r"\sum_{e \in" in run.steps[-1].latex and run.steps[-1].symbolic == ("1", "T", "8")
    assert not any("?" in step.symbolic for step in run.steps)
