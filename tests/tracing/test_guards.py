"""One line that can't be written or verified is marked, and ends no trace: ops, shapes and attention are there."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tracer.textbook import derivation
from tracer.textbook.roles import Roles
from tracer.tracing import records as written


class Net(nn.Module):
    """A linear map, a sparse matrix, and a rule that forward follows."""

    def __init__(self, rule):
        super().__init__()
        self.q, self.rule = nn.Linear(8, 8), rule
        self.register_buffer("coo", torch.eye(5).to_sparse())
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # of its beta state
            self.register_buffer("csr", torch.eye(5).to_sparse_csr())

    def forward(self, x):
        return self.rule(self, x)


def run(rule, **more):
    torch.manual_seed(0)
    return tracer.trace(Net(rule), torch.randn(1, 5, 8), **more)


def descent(net, x):
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(net.q(x).tanh().sum(), x)
    return x - slope


def attend(net, x):
    q, k = net.q(x[:, :3]).view(1, 3, 2, 4), net.q(x).view(1, 5, 2, 4)
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, k, is_causal=True)


VERIFIED = {
    "fewer queries than keys": attend,
    "a complex factor": lambda net, x: net.q(x) * (0.5 + 2j),
    "a complex summand": lambda net, x: (torch.complex(x, x) * 1j - 2j).real,
    "vmap": lambda net, x: torch.func.vmap(lambda row: net.q(row).tanh())(x),
    "torch.func.grad": lambda net, x: torch.func.grad(lambda row: net.q(row).tanh().sum())(x),
    "autograd.grad": descent,
    "a sparse product": lambda net, x: torch.sparse.mm(net.coo, net.q(x[0])),
    "a product with a compressed matrix": lambda net, x: net.csr @ net.q(x[0]),
    "numbers alone": lambda net, x: net.q(x) @ torch.eye(8) + torch.linspace(0, 1, 8),
}
MARKED_CASES = {
    "not a number": (lambda net, x: net.q(x) * float("nan"), "are NaN"),
    "other bits": (lambda net, x: net.q(x).view(torch.int32), "the equation gives shape"),
    "random numbers": (lambda net, x: net.q(x) + torch.randn_like(x), "random"),
}


@pytest.mark.parametrize("rule", VERIFIED.values(), ids=VERIFIED)
def test_what_once_ended_a_trace_is_verified(rule):
    trace = run(rule)
    assert trace.coverage == 1 and not trace.notes
    assert [step.verdict for step in trace.steps if step.verdict not in ("verified", "recomputed")] == []


@pytest.mark.parametrize(("rule", "why"), MARKED_CASES.values(), ids=MARKED_CASES)
def test_what_cannot_be_verified_is_marked_and_all_else_is_there(rule, why):
    trace = run(rule)
    assert trace.coverage == 1 and trace.returned[0].step
    left = [step for step in trace.steps if step.verdict == "not executed"]
    assert left and all("not executed: " in step.note for step in left) and why in left[0].note
    assert trace.steps[0].verdict == "verified"


def test_a_causal_mask_of_fewer_queries_than_keys_has_the_shape_of_the_scores():
    trace = run(attend)
    mask = trace.step("mask")
    assert mask.shape == (3, 5) and r"j \le i" in mask.latex
    assert trace.steps[-1].verdict == "verified"


def test_calls_without_tensors_print_their_numbers():
    shown = " ".join(step.latex for step in run(VERIFIED["numbers alone"]).steps).replace(r"\left", "")
    assert r"\mathbb{I}_{8}" in shown and r"\operatorname{linspace}_{8}(0,\,1" in shown


def test_a_net_without_values_has_its_operations_and_says_how_to_ask_for_no_values():
    trace = tracer.trace(nn.Linear(8, 8).to("meta"), torch.randn(2, 8, device="meta"), symbols={"B": 0})
    assert [step.verdict for step in trace.steps] == ["not executed"]
    assert trace.steps[0].symbolic == ("B", "8") and "prove=False" in trace.steps[0].note


def broken(*args, **named):
    raise KeyError("unforeseen")


@pytest.mark.parametrize("layer", [nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()])
def test_a_mistake_in_derivation_leaves_operations_shapes_and_attention(monkeypatch, layer):
    monkeypatch.setattr(Roles, "_sums_and_norms", broken)
    trace = tracer.trace(layer, torch.randn(1, 5, 8), symbols={"B": 0, "T": 1})
    assert not trace.steps and trace.attention(0).shape == (1, 2, 5, 5)
    assert trace.ops[-1].outputs[0].symbolic == ("B", "T", "8")
    assert "its equations could not be derived (KeyError: 'unforeseen')" in trace.notes
    assert any("no step has what forward returns" in note for note in trace.notes)


@pytest.mark.parametrize("name", ["verified_shape", "_product", "_names", "statement"])
def test_a_mistake_in_writing_one_line_marks_that_line(monkeypatch, name):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 5, 8)
    known, target = getattr(written, name), tracer.trace(layer, x).later.derived_steps[-1].line

    def sometimes(line, *rest):
        wrong = target.equation in (getattr(line, "equation", None), *rest)
        return broken() if wrong else known(line, *rest)

    monkeypatch.setattr(written, name, sometimes)
    monkeypatch.setattr(written, "_write_steps", written._write_steps.__wrapped__)
    trace = tracer.trace(layer, x)
    assert [step.id for step in trace.steps if step.verdict == "not executed"] == [target.id]
    left = trace.step(target.id)
    assert "no equation could be written for it (KeyError: 'unforeseen')" in left.note and left.shape == (1, 5, 8)


def test_a_book_with_a_line_that_is_open_is_lent_to_no_run():
    book = derivation.Textbook(steps=[_open_line()])
    assert not derivation._anywhere(book)


def _open_line():
    trace = run(lambda net, x: net.q(x))
    found = trace.later.derived_steps[0]
    opened = written._opaque(found, trace.ops[found.op], "for a test")
    assert r"\operatorname{" in written.statement(opened.line.tensor, opened.line.equation)
    return opened
