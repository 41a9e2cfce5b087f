"""Operands that a proof does not see, in the traced run and in others."""

import pytest
import torch
from torch import nn

import tracer
from pages.ui import texts
from tracer.tracing.proofs import unseen_in_run


class Residual(nn.Module):
    """A branch that a factor scales to nothing beside the rest, and a norm with gains of ones."""

    def __init__(self, scale=1e-9):
        super().__init__()
        self.norm, self.map = nn.LayerNorm(6), nn.Linear(6, 6)
        self.gamma = nn.Parameter(torch.full((6,), scale))

    def forward(self, x):
        return self.norm(x) + self.gamma * self.map(x)


def trace_module(module):
    torch.manual_seed(0)
    with torch.no_grad():
        return tracer.trace(module, torch.randn(2, 5, 6), symbols={"B": 0, "T": 1}, prove=True)


def test_the_run_alone_hides_what_it_scales_to_nothing():
    trace = trace_module(Residual())
    found = unseen_in_run(trace.later, trace.steps)
    keys = {key for keys in found.values() for key in keys}
    assert {"parameter gamma", "parameter norm.weight", "parameter norm.bias"} <= keys
    seen = Residual()
    seen.gamma.data = torch.linspace(0.5, 1, 6)
    trace = trace_module(seen)
    assert not any(unseen_in_run(trace.later, trace.steps[-1:]).values())


def test_runs_with_other_weights_show_it():
    trace = trace_module(Residual())
    assert all(step.unseen == () for step in trace.steps), "nothing has been looked for"
    steps = trace.check().steps
    assert {step.verdict for step in steps} == {"verified"} and all(step.unseen == () for step in steps)


def test_what_no_run_shows_is_named():
    """A buffer is the same in all runs: a scale that it holds hides the branch in each of them."""

    class Fixed(Residual):
        def __init__(self):
            super().__init__()
            del self.gamma
            self.register_buffer("gamma", torch.full((6,), 1e-25))

    steps = trace_module(Fixed()).check().steps
    last = steps[-1]
    assert last.verdict == "verified" and len(last.unseen) == 2
    assert not any(step.unseen for step in steps[:-1])
    said = texts.unseen(last)
    assert "does not test" in said and all(f"${name}$" in said for name in last.unseen)


def test_a_factor_that_can_be_left_out_is_not_seen():
    """Without it all is the same: neither zeros in its place nor its cells in another order would say so."""

    class Near(nn.Module):
        def __init__(self):
            super().__init__()
            self.map = nn.Linear(6, 6)
            self.register_buffer("scale", 1 + 1e-9 * torch.arange(6.0).double())

        def forward(self, x):
            return self.map(x) * self.scale.float()

    last = trace_module(Near()).check().steps[-1]
    assert last.verdict == "verified" and len(last.unseen) == 1


class Upcast(nn.Module):
    """A norm that computes in float32 for any input, as in libraries, with gains of ones."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(6))

    def forward(self, x):
        wide = x.to(torch.float32)
        return self.gain * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def test_a_run_in_float64_shows_a_gain_of_a_norm_that_computes_in_float32():
    step = trace_module(Upcast()).check().steps[-1]
    assert (step.verdict, step.checked, step.unseen) == ("verified", 3, ())


@pytest.mark.parametrize("fixed", [True, False])
def test_a_zero_of_the_code_is_seen_and_one_that_weights_may_change_is_not(fixed):
    class Added(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("shift", torch.zeros(6))

        def forward(self, x):
            return x.exp() + (torch.tensor([0.0] * 6) if fixed else self.shift)

    step = trace_module(Added()).check().steps[-1]
    assert step.verdict == "verified" and len(step.unseen) == (not fixed)
