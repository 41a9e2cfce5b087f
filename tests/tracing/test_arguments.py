"""A line that holds for the arguments of its run says so: an order of keys, a number, strides, two equal sizes."""

import math

import pytest
import torch
from torch import nn

import tracer

SYMBOLS = {"B": 0, "T": 1}


class Fuse(nn.Module):
    """Two linear maps, taken by order or by key."""

    def __init__(self):
        super().__init__()
        self.maps = nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)})


class ByOrder(Fuse):
    def forward(self, parts):
        return sum(map_(part) for map_, part in zip(self.maps.values(), parts.values(), strict=True)).tanh()


class ByKey(Fuse):
    def forward(self, parts):
        return sum(self.maps[key](parts[key]) for key in ("a", "b")).tanh()


class NamedByOrder(Fuse):
    def forward(self, **parts):
        return sum(map_(part) for map_, part in zip(self.maps.values(), parts.values(), strict=True)).tanh()


class FirstOf(nn.Module):
    def forward(self, parts):
        return next(iter(parts.values())) * 2


class Stretch(nn.Module):
    """A module whose steps become smaller with the longest text so far."""

    def __init__(self):
        super().__init__()
        self.steps = torch.linspace(0, 1, 6)

    def forward(self, x):
        if x.shape[1] > 40:
            self.steps = torch.linspace(0, 0.5, 6)
        return x * self.steps


class Longest(nn.Module):
    """A module that counts, and computes nothing with it."""

    longest = 0

    def forward(self, x):
        if x.shape[1] > 40:
            self.longest = x.shape[1]
        return x.tanh() if self.longest > -1 else x


def mix(x, alpha):
    return alpha * x + (1 - (alpha or 0.5)) * x.tanh()


def add_constant(x, options):
    return x + torch.tensor(options["shift"])


def best(x, k):
    return x.topk(k, 1).values.mean(1)


def pass_by(x, unused):
    return x.tanh()


def power_of(x, settings):
    return x ** settings[1]


def write_view(x):
    h = x * 2
    h.reshape(x.shape[0], -1)[:, :6] = 0
    return h.sum(1)


def read_view(x):
    h = x * 2
    flat = h.flatten(1)
    h[:, 0] = 0
    return flat.sum(1)


def write_copy(x):
    flat = (x * 2).reshape(x.shape[0], -1)
    flat[:, :6] = 0
    return flat.sum(1)


def write_rows(x):
    h = x * 2
    h[:, 0] = 0
    return h.reshape(x.shape[0], -1).sum(1)


def attend(x, memory, offset):
    scores = x @ memory.transpose(1, 2) / math.sqrt(6)
    queries, keys = scores.shape[-2:]
    keep = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if offset else 0)
    return scores.masked_fill(~keep, -math.inf).softmax(-1) @ memory


def attend_at_the_end(x, memory):
    return attend(x, memory, offset=True)


def attend_at_the_start(x, memory):
    return attend(x, memory, offset=False)


def sum_start(x, memory):
    return (x[:, : memory.shape[1]] * 2).sum(1)


def attend_to_itself(x, mask):
    return (x @ x.transpose(1, 2)).masked_fill(mask[:, None] < 9, 0).softmax(-1) @ x


def run(function, *args, symbols=SYMBOLS, **kwargs):
    torch.manual_seed(0)
    trace = tracer.trace(function, *args, symbols=symbols, **kwargs).check()
    assert {step.verdict for step in trace.steps} == {"verified"} and not trace.notes
    return [step for step in trace.steps if "It is so" in step.note]


def parts():
    return {"a": torch.randn(3, 6), "b": torch.randn(3, 6)}


def test_a_line_names_the_order_of_keys_that_it_holds_for():
    noted = run(ByOrder(), parts(), symbols={"B": 0})
    assert len(noted) == 2 and all("keys of `parts` in this order" in step.note for step in noted)
    assert len(run(NamedByOrder(), **parts(), symbols=None)) == 2
    assert len(run(FirstOf(), {"a": torch.randn(3, 6), "b": torch.randn(3, 2)}, symbols=None)) == 1


def test_parts_that_are_taken_by_key_have_no_order():
    assert not run(ByKey(), parts(), symbols={"B": 0}) and not run(ByKey(), parts(), symbols=None)


@pytest.mark.parametrize(
    "function, argument, name, value",
    [
        (mix, 0.3, "alpha", "0.3"),
        (add_constant, {"shift": 0.5}, "options.shift", "0.5"),
        (best, 3, "k", "3"),
        (power_of, (1, 3), "settings.1", "3"),
    ],
)
def test_a_line_names_the_number_that_it_was_called_with(function, argument, name, value):
    noted = run(function, torch.rand(3, 5, 6), argument)
    assert noted and all(f"where `{name}` is {value}" in step.note for step in noted)
    assert run(function, torch.rand(3, 5, 6), argument, symbols=None)


@pytest.mark.parametrize("argument", [0.3, 2, True, "text", {"a": 1}])
def test_a_number_that_changes_nothing_is_not_named(argument):
    assert not run(pass_by, torch.randn(3, 5, 6), argument)


@pytest.mark.parametrize("function", [write_view, read_view])
def test_a_write_that_other_strides_keep_from_its_readers_is_named(function):
    (step,) = run(function, torch.randn(3, 5, 6))
    assert "for inputs with these strides" in step.note
    (step,) = run(function, torch.randn(3, 5, 6), symbols=None)
    assert "for inputs with these strides" in step.note


@pytest.mark.parametrize("function", [write_copy, write_rows])
def test_a_write_that_all_strides_let_through_is_not_named(function):
    assert not run(function, torch.randn(3, 5, 6))


def test_a_line_names_the_inputs_whose_sizes_it_takes_for_equal():
    inputs = torch.randn(2, 5, 6), torch.randn(2, 5, 6)
    (step,) = run(attend_at_the_end, *inputs)
    assert step.id == "mask" and "where `x` and `memory` have one T" in step.note
    (step,) = run(sum_start, *inputs)
    assert "where `x` and `memory` have one T" in step.note
    assert not run(attend_at_the_start, *inputs) and not run(attend_to_itself, inputs[0], torch.ones(2, 5))


def test_a_line_says_what_a_longer_call_before_would_change():
    module, before = Stretch(), torch.linspace(0, 1, 6)
    (step,) = run(module, torch.randn(3, 5, 6))
    assert "`steps` is read here" in step.note and "no call with" in step.note and torch.equal(module.steps, before)


def test_a_longer_call_before_that_changes_no_result_is_not_named():
    module = Longest()
    assert not run(module, torch.randn(3, 5, 6)) and module.longest == 0
