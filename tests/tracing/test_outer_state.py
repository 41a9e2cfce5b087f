"""A line names the state that its code reads outside of its module, and a trace puts that back."""

import functools
import itertools
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from random import random as draw
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import tracer

COUNTS, SEEN, CACHE = Counter(), [], {}
SCALES = {7: 0.5}
calls = 0
settings = SimpleNamespace(step=0)
shifts = itertools.chain([0] * 100, itertools.repeat(1))
chance = np.random.default_rng(0)
running = torch.zeros(16)


class Own:
    step = 0

    def __init__(self):
        self.n = 0


own = Own()


def of_a_counter(x):
    COUNTS["calls"] += 1
    return x * min(1.0, 70 / COUNTS["calls"])


def of_a_global(x):
    global calls
    calls += 1
    return x * 2 if calls < 70 else x


def of_a_list(x):
    SEEN.append(1)
    if len(SEEN) > 60:
        return x.tanh()
    return x.sigmoid()


def of_a_cache(x):
    if "mean" not in CACHE:
        CACHE["mean"] = x.mean()
    return x - CACHE["mean"]


def of_a_default(x, kept={}):  # noqa: B006
    if "mean" not in kept:
        kept["mean"] = x.mean()
    return x - kept["mean"]


def of_its_own_attribute(x):
    of_its_own_attribute.calls += 1
    return x * 2 if of_its_own_attribute.calls < 70 else x


of_its_own_attribute.calls = 0


def of_an_object(x):
    own.n += 1
    return x * 2 if own.n < 70 else x


def of_a_namespace(x):
    settings.step += 1
    return x * 2 if settings.step < 70 else x


def of_a_class(x):
    Own.step += 1
    return x * 2 if Own.step < 70 else x


def count():
    COUNTS["calls"] += 1
    return COUNTS["calls"]


def of_another_function(x):
    n = count()
    return x * 2 if n < 70 else x


@functools.lru_cache
def remember(n):
    COUNTS["calls"] += 1
    return COUNTS["calls"]


def of_a_cached_function(x):
    return x * 2 if remember(len(x.shape) + COUNTS["calls"]) < 70 else x


class Shy:
    """An object that refuses to be asked for what it has not."""

    def __getattr__(self, name):
        raise RuntimeError(name)


shy = Shy()


def of_an_object_that_refuses(x):
    return x * (2 if isinstance(shy, Shy) else 3)


def of_a_closure():
    n = 0

    def forward(x):
        nonlocal n
        n += 1
        return x * 2 if n < 70 else x

    return forward


def of_an_iterator(x):
    return x.roll(next(shifts), 1)


def of_a_generator_of_numbers(x):
    return x * 2 if chance.random() < 2 else x


def drawn(x):
    return x * 2 if random.random() < 2 else x


def drawn_by_a_name(x):
    return x * 2 if draw() < 2 else x


def drawn_by_numpy(x):
    return x + torch.from_numpy(np.random.randn(16)).float()


STATES = {
    of_a_counter: "COUNTS",
    of_a_global: "calls",
    of_a_list: "SEEN",
    of_a_cache: "CACHE",
    of_a_default: "kept",
    of_its_own_attribute: "calls",
    of_an_object: "n",
    of_a_namespace: "step",
    of_a_class: "step",
    of_another_function: "COUNTS",
    of_a_cached_function: "COUNTS",
    of_a_closure(): "n",
    of_an_iterator: "shifts",
    of_a_generator_of_numbers: "chance",
}
DRAWS = {drawn: "random", drawn_by_a_name: "draw", drawn_by_numpy: "np.random"}


class OfItsClass(nn.Module):
    """A module that counts its calls in its class."""

    step, kept = 0, {}

    def forward(self, x):
        type(self).step += 1
        self.kept[len(self.kept)] = 1
        type(self).last = self.step
        return x * 2 if self.step < 70 and len(self.kept) < 70 else x


def trace(function):
    return tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()


def everything():
    """Return all that the functions above change."""
    numbers = random.getstate(), str(np.random.get_state()), str(chance.bit_generator.state)
    kept = *map(dict, (COUNTS, CACHE, of_a_default.__defaults__[0], OfItsClass.kept)), [*SEEN]
    plain = calls, settings.step, own.n, Own.step, of_its_own_attribute.calls, OfItsClass.step, vars(OfItsClass).keys()
    return numbers, kept, plain, running.tolist()


@pytest.mark.parametrize("function", [*STATES, *DRAWS], ids=lambda function: function.__name__)
def test_a_line_names_the_state_around_its_code(function):
    before = everything()
    run = trace(function)
    name = STATES.get(function) or DRAWS[function]
    assert f"`{name}`" in run.steps[-1].note and {step.verdict for step in run.steps} == {"verified"}
    assert ("drew in this run" in run.steps[-1].note) == (function in DRAWS)
    assert everything() == before
    assert run.notes == ("`shifts` is an iterator, which nothing can put back: it is where the runs of this trace have "
                         "left it.",) * (name == "shifts")  # fmt: skip


def test_a_line_names_the_state_of_its_class():
    before = everything()
    (step,) = trace(OfItsClass()).steps
    assert "`step` is read here" in step.note and "`kept` is read here" in step.note and everything() == before


class Meter:
    """A counter of what it is shown, which writes into none of it."""

    def __init__(self):
        self.calls = 0

    def observe(self, shown):
        self.calls += 1


class Shuffles(nn.Module):
    """A module with a generator and lists of its own."""

    def __init__(self, forward):
        super().__init__()
        self.rng, self.seen, self.meter, self._forward = random.Random(7), [], Meter(), forward

    def forward(self, x):
        return self._forward(self, x)


def shuffle_a_list(module, x):
    order = list(range(16))
    module.rng.shuffle(order)
    return x[..., order] * 2


def shuffle_what_a_helper_takes(module, x):
    return shuffled(module, x, list(range(16))) * 2


def shuffled(module, x, order):
    module.rng.shuffle(order)
    return x[..., order]


def shuffle_by_the_module_of_python(module, x):
    order = list(range(16))
    random.shuffle(order)
    return x[..., order] * 2


@pytest.mark.parametrize(
    ("forward", "name"),
    [(shuffle_a_list, "rng"), (shuffle_what_a_helper_takes, "rng"), (shuffle_by_the_module_of_python, "random")],
)
def test_a_line_names_the_state_that_wrote_into_its_list(forward, name):
    (step,) = tracer.trace(Shuffles(forward), torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).steps
    assert f"`{name}`" in step.note


def keep_a_list(module, x):
    order = [*reversed(range(16))]
    module.seen.append(order)
    return x[..., order] * 2


def show_tensors(module, x):
    y = x.sin()
    module.meter.observe(y)
    module.meter.observe(x)
    return y * x


@pytest.mark.parametrize("forward", [keep_a_list, show_tensors])
def test_state_that_writes_into_no_argument_is_not_named(forward):
    run = tracer.trace(Shuffles(forward), torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    assert run.steps and not any("call" in step.note for step in run.steps)


def test_a_second_call_is_one_of_the_runs():
    *_, last = trace(of_a_cache).steps
    assert "second call" in last.replayed and last.checked < 3


def test_a_trace_that_fails_puts_back_what_is_outside():
    def fail(x):
        SEEN.append(x)
        raise KeyError("no entry")

    with pytest.raises(KeyError):
        trace(fail)
    assert not SEEN


def test_threads_put_it_back_together():
    before = everything()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: tracer.trace(of_a_counter, torch.randn(2, 5)), range(12)))
    assert everything() == before


def log(x):
    SEEN.append(x.mean())
    COUNTS["calls"] += 1
    COUNTS["sum"] += float(x.sum()) * 0
    return x * 2


def read_a_table(x):
    return x * SCALES.get(7, 1.0)


def draw_for_nothing(x):
    random.random()
    return x * 2


def write_in_place(x):
    running.add_(1)
    return x + running


class Keeps(nn.Module):
    """A module that keeps what it reads in the same call only."""

    def forward(self, x):
        self.kind = x.dtype
        y = x.double().tanh()
        return (y * 2).to(self.kind)


def shadow(x):
    COUNTS = x.shape[0]
    SEEN.append(COUNTS)
    return x * COUNTS


@pytest.mark.parametrize(
    "function", [log, read_a_table, write_in_place, shadow], ids=lambda function: function.__name__
)
def test_what_reads_no_state_has_no_note(function):
    before = everything()
    run = trace(function)
    assert not run.notes and not any("call" in step.note for step in run.steps) and everything() == before


def test_numbers_that_are_drawn_elsewhere_are_said_of_the_run():
    def forward(x):
        return x + len(str(__import__("random").random())) * 0

    assert ["another run may draw others" in note for note in trace(forward).notes] == [True]


def test_a_queue_is_left_alone():
    """What has no state that can be read is not looked into."""
    queue = SimpleQueue()

    def forward(x):
        queue.put(1)
        return x * 2

    assert not trace(forward).steps[0].note and queue.qsize() > 1
