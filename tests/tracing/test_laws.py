"""A proven line predicts runs at sizes that it was not derived from, or says that it holds at those of its run."""

import math

import pytest
import torch
from torch.nn import functional

import tracer
from tests.support.laws import broken_laws
from tracer.graph.value_shapes import HERE

LENGTHS = 5, 8, 12, 17, 20, 31


def written(entry, change):
    def forward(x):
        y = x.clone()
        change(y[:, entry(x.shape[1])])
        return y

    return forward


def summed(x):
    total = 0
    for i in range(x.shape[1] // 3):
        total = total + x[:, 3 * i] * (i + 1)
    return total


def widened(x):
    doubled = x * 2
    more = doubled + 1
    return more if x.shape[1] > 10 else doubled


def table(x):
    return x + torch.tensor([math.sin(i) for i in range(x.shape[1])])[:, None]


LAWS = {
    "of a list": (lambda x: x.unbind(1)[x.shape[1] // 2] * 2, r"\left\lfloor \frac{T}{2} \right\rfloor\,]"),
    "last of a list": (lambda x: x.unbind(1)[-1] * 2, r"[\,T - 1\,]"),
    "next to last of a list": (lambda x: x.unbind(1)[-2] * 2, r"[\,T - 2\,]"),
    "last": (written(lambda n: -1, lambda part: part.add_(1)), r"T - 1,\,:] \gets"),
    "before the last": (written(lambda n: slice(-3, -1), lambda part: part.mul_(2)), r"T - 3:T - 1,\,:] \gets"),
    "half": (
        written(lambda n: n // 2, lambda part: part.add_(1)),
        r"\left\lfloor \frac{T}{2} \right\rfloor,\,:] \gets",
    ),
    "second half": (written(lambda n: slice(n // 2, None), lambda part: part.zero_()), r"\right\rfloor:T,\,:] \gets"),
    "every other": (written(lambda n: slice(1, None, 2), lambda part: part.add_(1)), r"1::2,\,:] \gets"),
    "every other from the middle": (lambda x: x[:, x.shape[1] // 2 :: 2].sum(1), r"\right\rfloor::2"),
}
HELD = {
    "a comparison of the batch": lambda x: x + (x.shape[0] == 4),
    "terms": summed,
    "joined": lambda x: torch.cat([x[:, 3 * i] for i in range(x.shape[1] // 3)], -1),
    "returned": widened,
    "a word": lambda x: functional.gelu(x, approximate="tanh" if x.shape[1] > 10 else "none"),
    "three quarters": lambda x: x[:, : x.shape[1] * 3 // 4],
    "strides": lambda x: x.flatten(1)[:, :: x.shape[1]],
    "the rest of a split": lambda x: x.split(4, 1)[-1],
    "a third of a split": lambda x: x.split(2, 1)[x.shape[1] // 3],
    "a threshold below": lambda x: x * (2 if x.shape[1] > 8 else 3),
    "another branch below": lambda x: x.exp() if x.shape[1] > 8 else x.sin(),
    "a comparison below": lambda x: x + (x.shape[1] > 8),
    "a limit": lambda x: x * min(x.shape[1], 6),
    "a limit of a slice": lambda x: x[:, :6],
    "a precision": lambda x: x.to(torch.float64 if x.shape[1] > 10 else torch.float16),
    "a table": table,
    "a constant": lambda x: x * torch.tensor(math.sqrt(x.shape[1]) + 1),
    "another op": lambda x: x.sum(1) if x.shape[1] % 3 == 0 else x.mean(1),
}


def derive(function):
    torch.manual_seed(0)
    trace = tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    assert {step.verdict for step in trace.steps} == {"proven"}
    assert broken_laws(trace, [(torch.randn(3, length, 16), {"B": 3, "T": length}) for length in LENGTHS]) == {}
    return trace


@pytest.mark.parametrize("name", LAWS)
def test_a_line_has_its_places_in_sizes(name):
    function, printed = LAWS[name]
    steps = derive(function).steps
    assert any(printed in step.latex for step in steps)
    assert not any(step.note for step in steps)


@pytest.mark.parametrize("name", HELD)
def test_a_line_that_is_another_one_elsewhere_says_so(name):
    trace = derive(HELD[name])
    assert HERE in trace.step(trace.returned[0].step).note


def test_an_axis_without_a_formula_is_named_by_its_place():
    steps = derive(lambda x: x[:, : x.shape[1] * 3 // 4].sum(1)).steps
    assert r"\operatorname{sum}_{\text{axis }1}" in steps[-1].latex


def test_a_model_that_takes_no_small_sizes_keeps_its_symbols():
    def long(x):
        if x.shape[1] < 7:
            raise ValueError("too short")
        return x * 2

    trace = tracer.trace(long, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    assert trace.steps[0].symbolic == ("B", "T", "16") and not trace.steps[0].note


def test_numbers_that_a_comparison_chooses_are_proven():
    trace = tracer.trace(lambda x: x[x.sum(-1) > 0].mean(0), torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    assert trace.steps[-1].verdict == "proven"
