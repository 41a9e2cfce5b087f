"""Proofs in bounded memory: lines that the cap on kept values leaves out are verified in a second run, or report why
not."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from torch import nn

import tracer
from tracer.tracing import proofs


class Deep(nn.Module):
    """Blocks that write in place, with a skip over two of them."""

    def __init__(self, depth: int = 8, width: int = 16):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        first = x
        for number, block in enumerate(self.blocks):
            x = block(x)
            x.relu_()
            x = x + first if number == 1 else x
        return x


class Counting(nn.Module):
    """A function with another result at every call, by a number that is not part of the module."""

    numbers = count(1)

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x) * next(Counting.numbers)


def _modules():
    return {
        "in place": (Deep(), torch.randn(2, 5, 16)),
        "recurrent": (nn.LSTM(6, 7, batch_first=True), torch.randn(2, 5, 6)),
        "fused attention": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(2, 5, 8)),
    }


@pytest.mark.parametrize("name", _modules())
@pytest.mark.parametrize("grad", [False, True])
def test_a_run_of_which_nothing_is_kept_is_verified_as_one_of_which_all_is(name, grad):
    module, x = _modules()[name]
    with torch.set_grad_enabled(grad):
        whole = tracer.trace(module, x, symbols={"B": 0, "T": 1}, keep=2**30)
        bare = tracer.trace(module, x, symbols={"B": 0, "T": 1}, keep=0)
    assert {step.verdict for step in bare.steps} <= {"verified", "recomputed"}
    assert [(step.id, step.error, step.margin, step.verdict) for step in bare.steps] == [
        (step.id, step.error, step.margin, step.verdict) for step in whole.steps
    ]


def test_proofs_that_are_pending_are_verified_in_a_second_run_too():
    module, x = _modules()["in place"]
    run = tracer.trace(module, x, symbols={"B": 0}, keep=0, prove="later")
    assert {step.verdict for step in run.steps} == {"pending"}
    assert {step.verdict for step in run.prove().steps} == {"verified"}


def test_a_model_that_does_not_run_again_the_same_way_is_not_verified():
    run = tracer.trace(Counting(), torch.randn(2, 4), symbols={"B": 0}, keep=0)
    assert {step.verdict for step in run.steps} == {"not executed"}
    assert any("did not run again the same way" in step.note for step in run.steps)


def test_a_wrong_line_is_refuted_in_the_second_run():
    module, x = _modules()["in place"]
    run = tracer.trace(module, x, symbols={"B": 0}, keep=0, prove="later")
    wrong = run.later.rewrite(lambda line: line.equation + line.equation)
    verdicts = {step.verdict for step in wrong(run.steps).values()}
    assert verdicts == {"refuted"}


def test_what_no_later_line_needs_is_let_go(monkeypatch):
    held, offer = [], proofs._Window.offer

    def noting(self, key, tensor, *, needed=False):
        offer(self, key, tensor, needed=needed)
        held.append(len(self._tensors))

    monkeypatch.setattr(proofs._Window, "offer", noting)
    run = tracer.trace(Deep(40), torch.randn(2, 5, 16), symbols={"B": 0}, keep=0)
    assert len(run.steps) > 40
    assert 0 < max(held) <= 4
    assert held[-1] == 0


def test_the_module_and_the_random_numbers_are_as_before():
    module, x = nn.Sequential(nn.BatchNorm1d(4), nn.Dropout()).train(), torch.randn(6, 4)
    before, state = {name: value.clone() for name, value in module.state_dict().items()}, torch.get_rng_state()
    run = tracer.trace(module, x, keep=0)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert "verified" in {step.verdict for step in run.steps}


class Loop(nn.Module):
    """A recurrence that is written out, whose states are kept one by one."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x):
        h = c = torch.zeros(x.shape[0], 4)
        states = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
            states.append(h)
        return torch.stack(states, 1)


@pytest.mark.parametrize("prove", [True, "later"])
def test_nothing_runs_again_where_all_was_kept(monkeypatch, prove):
    def again(*args, **kwargs):
        raise AssertionError("the module ran a second time")

    monkeypatch.setattr(proofs, "record", again)
    run = tracer.trace(Loop(), torch.randn(2, 5, 4), symbols={"B": 0, "T": 1}, prove=prove).prove()
    assert {step.verdict for step in run.steps} == {"verified"}


def test_tensors_without_values_are_not_computed_again():
    run = tracer.trace(nn.Linear(8, 4).to("meta"), torch.empty(2, 8, device="meta"), keep=0)
    assert {step.verdict for step in run.steps} == {"not executed"}
