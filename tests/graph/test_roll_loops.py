"""Loops over time are one line each, verified step by step, in symbols for any length."""

import pytest
import torch
from torch import nn

import tracer
from tracer.inputs.model_inputs import Inputs
from tracer.verify import surveys
from tracer.verify.checks import printed


class Elman(nn.Module):
    """A recurrent net that somebody wrote with a loop."""

    def __init__(self):
        super().__init__()
        self.enter, self.stay = nn.Linear(5, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        h, made = x.new_zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.enter(x[:, t]) + self.stay(h))
            made.append(h)
        return torch.stack(made, 1)


class Selective(nn.Module):
    """Scan of a state-space model; its output is not its state."""

    def __init__(self):
        super().__init__()
        self.step, self.out = nn.Linear(5, 5), nn.Linear(5, 3)
        self.rates = nn.Parameter(torch.rand(5, 3))

    def forward(self, x):
        width = nn.functional.softplus(self.step(x))
        stays = torch.exp(-width[..., None] * self.rates)
        enters = (width * x)[..., None] * torch.ones(3)
        h, made = torch.zeros(x.shape[0], 5, 3), []
        for t in range(x.shape[1]):
            h = stays[:, t] * h + enters[:, t]
            made.append(h.sum(-1))
        return self.out(torch.stack(made, 1)), h


class Gated(nn.Module):
    """Two states that need each other."""

    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(9, 8)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]):
            gate, new = self.cell(torch.cat([x[:, t], h], -1)).chunk(2, -1)
            c = c * gate.sigmoid() + new
            h = torch.tanh(c)
        return h


class Written(nn.Module):
    """Results that are written into a tensor slice by slice, from a first slice that something else uses too."""

    def __init__(self):
        super().__init__()
        self.enter, self.stay, self.out = nn.Linear(5, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3)

    def forward(self, x):
        x = self.enter(x)
        h, made = torch.zeros_like(x[:, 0]), torch.zeros_like(x)
        for t in range(x.shape[1]):
            h = torch.tanh(x[:, t] + self.stay(h))
            made[:, t] = 2 * h
        return self.out(made)


class Backwards(Elman):
    """A loop from the last slice to the first; its results are put in order in the end."""

    def forward(self, x):
        h, made = x.new_zeros(x.shape[0], 4), []
        for t in reversed(range(x.shape[1])):
            h = torch.tanh(self.enter(x[:, t]) + self.stay(h))
            made.append(h)
        return torch.stack(made[::-1], 1), h


class Unordered(Elman):
    """A loop whose results stay in the order of computation."""

    def forward(self, x):
        h, made = x.new_zeros(x.shape[0], 4), []
        for t in range(x.shape[1] - 1, -1, -1):
            h = torch.tanh(self.enter(x[:, t]) + self.stay(h))
            made.append(h)
        return torch.stack(made, 1)


class WrittenBackwards(Elman):
    def forward(self, x):
        h, made = x.new_zeros(x.shape[0], 4), x.new_zeros(*x.shape[:2], 4)
        for t in reversed(range(x.shape[1])):
            h = torch.tanh(self.enter(x[:, t]) + self.stay(h))
            made[:, t] = h
        return 2 * made


class BothWays(Elman):
    """Two loops over the same slices."""

    def forward(self, x):
        h, forth = x.new_zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            h = torch.tanh(self.enter(x[:, t]) + self.stay(h))
            forth.append(h)
        h, back = x.new_zeros(x.shape[0], 4), []
        for t in reversed(range(x.shape[1])):
            h = torch.tanh(self.enter(x[:, t]) - self.stay(h))
            back.insert(0, h)
        return torch.cat([torch.stack(forth, 1), torch.stack(back, 1)], -1)


class Sliced(Gated):
    """Slices that keep their axis, and two states of which none is collected."""

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 1, 4)
        for t in range(x.shape[1]):
            gate, new = self.cell(torch.cat([x[:, t : t + 1], h], -1)).chunk(2, -1)
            c = c * gate.sigmoid() + new
            h = torch.tanh(c)
        return h


class SlicedBackwards(Elman):
    """A loop from the last slice to the first, from a state that is not zero."""

    def forward(self, x):
        h, made = torch.tanh(self.enter(x[:, 0:1])), []
        for t in reversed(range(x.shape[1])):
            h = torch.tanh(self.enter(x[:, t : t + 1]) + self.stay(h))
            made.append(h)
        return torch.cat(made[::-1], 1)


class Cells(nn.Module):
    """A cell of PyTorch's, of which PyTorch runs parts in place, and a result read from its state."""

    def __init__(self):
        super().__init__()
        self.cell, self.out = nn.LSTMCell(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 4)
        made = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            made.append(self.out(h))
        return torch.stack(made, 1)


OTHER_WAYS = {
    Cells: r"\mathbf{c}_{t} = \operatorname{LSTM}_{\text{last cell}}",
    Backwards: r"\mathbf{h}_{t+1}\,\mathbf{W}_{\text{stay}}\right) \quad\text{for }t < T\text{ back from }\mathbf{h}",
    Unordered: r"\tanh\left(\mathbf{x}_{T - 1 - t}\,\mathbf{W}_{\text{enter}}",
    WrittenBackwards: r"\text{ back from }\mathbf{h}_{T} = 0",
    BothWays: r"{\mathbf{h}_{2}}_{t+1}\,\mathbf{W}_{\text{stay}}\right)",
    Sliced: r"\mathbf{c}_{t-1} \odot \sigma\left({{\mathbf{a}_{\text{cell}}}_{t}}_{[\ldots,\,0:4]}\right)",
    SlicedBackwards: r"\text{ back from }\mathbf{h}_{T} = {\tanh\left(\mathbf{Y}",
}
"""Loops that run backwards, or over slices, with what one of their lines says."""


def run(net, x):
    surveys.perturb_parameters(net)
    with torch.no_grad():
        return tracer.trace(net, x, symbols={"B": 0, "T": 1})


@pytest.mark.parametrize("net", [Elman, Selective, Gated, Written, *OTHER_WAYS])
def test_a_loop_is_a_line_that_is_verified_and_read(net):
    torch.manual_seed(0)
    net, x = net().eval(), torch.randn(2, 9, 5)
    found = run(net, x)
    assert {step.verdict for step in found.steps} == {"verified"}
    loops = [step for step in found.steps if r"\text{for }t < T" in step.latex]
    assert 1 <= len(loops) <= 3 and len(found.steps) < 9
    assert all(size != "?" for op in found.ops for one in (*op.inputs, *op.outputs) for size in one.symbolic)
    assert found.coverage == 1
    assert dict(printed.differences(found, net, Inputs((x,)))) == {}
    assert any(OTHER_WAYS.get(type(net), "") in step.latex for step in loops)


def test_a_state_space_has_its_letters():
    torch.manual_seed(0)
    found = run(Selective().eval(), torch.randn(2, 9, 5))
    said = {step.title: step.latex for step in found.steps}
    assert said["Recurrence"].startswith(
        r"\mathbf{h}_{t} = \bar{\mathbf{A}}_{t} \odot \mathbf{h}_{t-1} + \bar{\mathbf{B}}_{t} \quad\text{for }t < T"
    )
    assert said["Step in time"].startswith(r"\boldsymbol{\Delta} = \operatorname{softplus}")


def test_the_proof_notices_a_wrong_turn(monkeypatch):
    from tracer.expr import Scan

    part = Scan._part
    monkeypatch.setattr(Scan, "_part", lambda self, t, number, tensors: part(self, min(t, 7), number, tensors))
    torch.manual_seed(0)
    assert "refuted" in {step.verdict for step in run(Elman().eval(), torch.randn(2, 9, 5)).steps}


def test_layers_with_one_set_of_weights_are_no_loop_over_time():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(4, 4)

        def forward(self, x):
            for _ in range(4):
                x = x + torch.tanh(self.block(x))
            return x

    assert not [step for step in run(Shared().eval(), torch.randn(2, 3, 4)).steps if "for }t" in step.latex]


class Gates(nn.Module):
    """An LSTM by hand: all gates of a step are one sum of two products (Hochreiter and Schmidhuber 1997)."""

    def __init__(self):
        super().__init__()
        self.enter, self.stay = nn.Linear(5, 16), nn.Linear(4, 16)

    def forward(self, x):
        h, c, made = torch.zeros(x.shape[0], 4), torch.zeros(x.shape[0], 4), []
        for t in range(x.shape[1]):
            i, f, g, o = (self.enter(x[:, t]) + self.stay(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            made.append(h)
        return torch.stack(made, 1)


def test_what_all_gates_are_parts_of_is_a_line_of_its_own():
    found = run(Gates().eval(), torch.randn(2, 7, 5))
    assert {step.verdict for step in found.steps} == {"verified"} and found.coverage == 1
    packed, cell, state = found.steps
    assert [step.latex.count(r"\mathbf{W}_{\text{stay}}") for step in found.steps] == [1, 0, 0]
    assert (packed.id, packed.title) == ("gates", "Pre-activations of the gates")
    assert packed.symbolic == ("T", "B", "16") and cell.latex.startswith(r"\mathbf{c}_{t} = ")
    assert cell.latex.count(r"\mathbf{a}_{t}") == 3 and state.latex.count(r"\mathbf{a}_{t}") == 1
