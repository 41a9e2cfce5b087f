"""A line says that it depends on values which left PyTorch as numbers of Python or NumPy."""

import numpy as np
import pytest
import torch
from torch import nn

import tracer
from tracer.textbook.conditions import DECIDED_NOTE, NUMBER_NOTE

MANY, DECIDED = (note.partition("`")[0] for note in (NUMBER_NOTE, DECIDED_NOTE))


def later(x):
    m = x.max().item()
    y = x.sin()
    if m > 50:
        return y * 2
    return y * 3


def peak(x):
    return x.abs().max().item()


def of_a_helper(x):
    m = peak(x)
    return x.cos() if m < 100 else x


def turns(x):
    for _ in range(int((x > -100).float().mean().item())):
        x = x * 2
    return x


def whole(x):
    same = torch.equal(x, x.abs())
    return x * 2 if same else x * 3


def near(x):
    same = torch.allclose(x, x.abs())
    return x * 2 if same else x * 3


def of_numpy(x):
    big = (x.detach().numpy() > 100).any()
    return x * 2 if big else x.cos()


def of_an_array(x):
    big = np.asarray(x.detach()).max() > 100
    return x * 2 if big else x.cos()


class Gate(nn.Module):
    """A module that branches by a parameter."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        gate = self.gate.item()
        return x.sin() if gate < 3 else x


BRANCHES = {
    later: "x.max().item()",
    of_a_helper: "x.abs().max().item()",
    turns: "(x > -100).float().mean().item()",
    whole: "torch.equal(x, x.abs())",
    near: "torch.allclose(x, x.abs())",
    of_numpy: "x.detach().numpy()",
    of_an_array: "np.asarray(x.detach())",
    Gate(): "self.gate.item()",
}


def chosen(x):
    m = float(np.abs(x.detach().numpy()).max())
    factor = 1.0 if m < 20 else m
    return torch.tanh(x / factor)


def bounded(x):
    m = max(abs(value) for value in x[:, 0, 0].tolist())
    return x.cos() * min(1.0, 20.0 / m)


def sliced(x):
    start = int((x > 100).sum())
    return x[:, start:] * 2


def looked_up(x):
    entry = int(x.abs().max().item() > 100)
    return x * [1.0, 2.0][entry]


def several(x):
    rows = x.abs().sum((0, 2)).clamp(max=0).int().tolist()
    return torch.stack([x[:, row] for row in rows], 1) * 2


NUMBERS = {
    chosen: "x.detach().numpy()",
    bounded: "x[:, 0, 0].tolist()",
    sliced: "int((x > 100).sum())",
    looked_up: "x.abs().max().item()",
}


def of_sizes(x):
    m = torch.ones_like(x).sum().item()
    return x * 2 if m > 0 else x


STEPS = torch.arange(3)


def of_a_constant(x):
    last = STEPS.max().item()
    return x * 2 if last > 0 else x


def printed(x):
    text = f"{x.mean().item():.2f}"
    y = x * 2
    print(text, end="")
    return y


def in_numbers(x):
    total = 0
    for value in x[0, 0, :2].tolist():
        total = total + value
    return x.cos() + total, x.sin() * 2


def trace(function, symbols=None):
    torch.manual_seed(0)
    return tracer.trace(function, torch.randn(4, 9, 16), symbols=symbols).check()


def name(function):
    return getattr(function, "__name__", type(function).__name__)


@pytest.mark.parametrize("function", BRANCHES, ids=name)
def test_a_line_names_the_values_that_decide_it(function):
    *before, last = trace(function, {"B": 0, "T": 1}).steps
    assert f"{DECIDED}`{BRANCHES[function]}`" in last.note and MANY not in last.note and last.verdict == "verified"
    assert not any(step.note for step in before)


@pytest.mark.parametrize("function", NUMBERS, ids=name)
def test_a_line_names_the_values_that_its_numbers_follow_from(function):
    *before, last = trace(function, {"B": 0, "T": 1}).steps
    assert f"{MANY}`{NUMBERS[function]}`" in last.note and DECIDED not in last.note and last.verdict == "verified"
    assert not any(step.note for step in before)


def written(x):
    least = x.min()
    if x.shape[-1] != 16:
        raise ValueError(f"the least is {least}")
    text = f"the least is {least}"
    return x * 2 if text else x


def looked_at(x):
    return nn.functional.one_hot((x[..., 0] > 0).long(), 2) * 2


def split(x):
    counts = [part.sum() for part in x.split([int(n) for n in STEPS + 2], 1)]
    return counts[0] * 2


def test_each_line_of_a_comprehension_names_the_list_of_its_numbers():
    first, *rows, last = trace(several, {"B": 0, "T": 1}).steps
    assert len(rows) == 9 and all(MANY in row.note for row in rows)
    assert MANY not in first.note and MANY not in last.note


@pytest.mark.parametrize("function", [of_sizes, of_a_constant, printed, written, looked_at, split], ids=name)
def test_values_that_decide_nothing_have_no_note(function):
    assert not any(note in step.note for step in trace(function, {"B": 0, "T": 1}).steps for note in (MANY, DECIDED))


def test_a_number_that_is_of_this_input_is_told_once():
    first, second = trace(in_numbers, {"B": 0, "T": 1}).steps
    assert "was computed from the values of this input" in first.note and "tolist" not in first.note
    assert not second.note


def test_a_run_that_takes_another_branch_refutes_nothing():
    def forward(x):
        m = x[0, 0, 0].item()
        if m > -1.2:
            x = x.abs()
        return x * 2

    step = trace(forward).steps[-1]
    assert step.verdict == "verified" and "takes another branch, and this line does not hold there" in step.replayed
