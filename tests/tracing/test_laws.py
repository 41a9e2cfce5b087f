"""A verified line predicts runs at sizes that it was not derived from, or says that it holds at those of its run."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

import tracer
from tests.support.laws import broken_laws
from tracer.graph.value_shapes import THIS_RUN_NOTE
from tracer.textbook.conditions import within_limits

LENGTHS = 1, 2, 3, 5, 8, 12, 16, 17, 20, 31, 70, 128


def write_entry(entry, change):
    def forward(x):
        y = x.clone()
        change(y[:, entry(x.shape[1])])
        return y

    return forward


def sum_columns(x):
    total = 0
    for i in range(x.shape[1] // 3):
        total = total + x[:, 3 * i] * (i + 1)
    return total


def widen(x):
    doubled = x * 2
    more = doubled + 1
    return more if x.shape[1] > 10 else doubled


def repeat(x, times):
    for _ in range(times):
        x = x.tanh()
    return x


def table(x):
    return x + torch.tensor([math.sin(i) for i in range(x.shape[1])])[:, None]


def take_or_first(x, table):
    try:
        return x + table[x.shape[1] + 5]
    except IndexError:
        return x + table[0]


def decay(x, limit, reset=False):
    h, states = torch.zeros(x.shape[0], 16), []
    for t in range(x.shape[1]):
        keep = (0.0 if t % limit == limit - 1 else 0.9) if reset else (0.9 if t < limit else 0.1)
        h = keep * h + x[:, t]
        states.append(h)
    return torch.stack(states, 1)


def scale(x, small):
    factor = 2 if small else 3
    return x * factor


def half(x):
    if x.pow(2).sum() < 1e7:
        return x / 2
    return x


def factor(x):
    if x.isnan().any():
        return 2
    return 3


def settle(x):
    for _ in range(9):
        before, x = x, x.tanh()
        done = (x - before).abs().max() < 0.2
        if done:
            break
    return x


def settle_by_count(x):
    for turn in range(9):
        x = x.tanh()
        if turn == 2:
            break
    return x


def double(x):
    if not (x > 100).any():
        return x * 2
    return x


def double_below(x):
    if not (x > 100).any() and x.mean() < 5:
        return x * 2
    return x


class FirstMean(torch.nn.Module):
    """A module that keeps the mean of its first input."""

    mean = None

    def __init__(self):
        super().__init__()
        self.enter = torch.nn.Linear(16, 4)

    def forward(self, x):
        entered = self.enter(x)
        if self.mean is None:
            self.mean = x.mean().detach()
        return entered - self.mean


def scale_by_length(x, n):
    return x * (2 if n < 100 else 3)


class ByLength(torch.nn.Module):
    """A module that hands a length to the one inside it."""

    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x, length=float(x.shape[1]))


class Inner(torch.nn.Module):
    """A module that decides by a number."""

    def forward(self, x, length):
        return x * (2 if length < 100 else 3)


class Capacity(torch.nn.Module):
    """An expert that takes at most 60 tokens."""

    def __init__(self):
        super().__init__()
        self.expert = torch.nn.Linear(16, 16)

    def forward(self, x):
        rows = x.flatten(0, 1)
        chosen = (rows.argmax(-1) < 9).nonzero().squeeze(1)[:60]
        filled = torch.zeros_like(rows)
        filled[chosen] = self.expert(rows[chosen])
        return filled


LAWS = {
    "the largest of all": (lambda x: (x / x.abs().amax()).round(), r"\max_{B"),
    "of a list": (lambda x: x.unbind(1)[x.shape[1] // 2] * 2, r"\left\lfloor \frac{T}{2} \right\rfloor\,]"),
    "last of a list": (lambda x: x.unbind(1)[-1] * 2, r"[\,T - 1\,]"),
    "next to last of a list": (lambda x: x.unbind(1)[-2] * 2, r"[\,T - 2\,]"),
    "last": (write_entry(lambda n: -1, lambda part: part.add_(1)), r"T - 1,\,:] \gets"),
    "before the last": (write_entry(lambda n: slice(-3, -1), lambda part: part.mul_(2)), r"T - 3:T - 1,\,:] \gets"),
    "half": (
        write_entry(lambda n: n // 2, lambda part: part.add_(1)),
        r"\left\lfloor \frac{T}{2} \right\rfloor,\,:] \gets",
    ),
    "second half": (
        write_entry(lambda n: slice(n // 2, None), lambda part: part.zero_()),
        r"\right\rfloor:T,\,:] \gets",
    ),
    "every other": (write_entry(lambda n: slice(1, None, 2), lambda part: part.add_(1)), r"1::2,\,:] \gets"),
    "every other from the middle": (lambda x: x[:, x.shape[1] // 2 :: 2].sum(1), r"\right\rfloor::2"),
}
HELD_CASES = {
    "a comparison of the batch": lambda x: x + (x.shape[0] == 4),
    "terms": sum_columns,
    "joined": lambda x: torch.cat([x[:, 3 * i] for i in range(x.shape[1] // 3)], -1),
    "returned": widen,
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
    "a threshold of three": lambda x: x.exp() if x.shape[1] > 3 else x.sin(),
    "a threshold of one": lambda x: x.exp() if x.shape[1] > 1 else x.sin(),
    "a threshold far above": lambda x: x.exp() if x.shape[1] < 100 else x.sin(),
    "a factor below": lambda x: x * max(x.shape[1], 2),
    "a factor above": lambda x: x * min(x.shape[1], 64),
    "the least index": lambda x: x[:, min(x.shape[1] - 1, 3)],
    "the largest of a few": lambda x: x.topk(min(4, x.shape[1]), 1)[0],
    "one size": lambda x: x * (2 if x.shape[1] == 16 else 3),
    "powers of two": lambda x: x * (2 if x.shape[1] & (x.shape[1] - 1) == 0 else 3),
    "multiples of seven": lambda x: x * (2 if x.shape[1] % 7 else 3),
    "bits": lambda x: x * x.shape[1].bit_length(),
    "a root": lambda x: x * math.isqrt(x.shape[1]),
    "a remainder of many": lambda x: functional.pad(x, (0, 0, 0, -x.shape[1] % 64)).sum(1),
    "a size of a size": lambda x: x * (2 if x.flatten(0, 1).size(0) // x.shape[0] > 3 else 3),
    "a threshold that is hidden": lambda x: x * (2 if math.sqrt(x.shape[1]) > 2.2 else 3),
    "a threshold above that is hidden": lambda x: x * (2 if math.sqrt(x.shape[1]) > 8 else 3),
    "a large batch": lambda x: x * (2 if x.size(0) < 60 else 3),
    "as many times as a limit": lambda x: repeat(x, min(x.shape[1], 3)),
    "a cast and back": lambda x: x.half().float() if x.shape[1] > 5 else x,
    "one of several chunks": lambda x: x.chunk(4, 1)[2],
    "another op": lambda x: x.sum(1) if x.shape[1] % 3 == 0 else x.mean(1),
    "a slice that takes all": lambda x: x[:, :100] * 2,
    "one part of a split": lambda x: torch.cat([part.softmax(1) for part in x.split(100, 1)], 1),
    "a step of a range": lambda x: torch.cat([x[:, i : i + 100].cumsum(1) for i in range(0, x.shape[1], 100)], 1),
    "an index that may not exist": lambda x: take_or_first(x, torch.ones(90, 16)),
    "all elements": lambda x: x * (2 if x.numel() > 100_000 else 3),
    "bytes": lambda x: x * (2 if x.nbytes > 400_000 else 3),
    "a plain number": lambda x: x * (2 if float(x.shape[1]) > 100.0 else 3),
    "a count": lambda x: x * (2 if len(x.unbind(1)) > 100 else 3),
    "axes of one": lambda x: x.squeeze() * 2,
    "far above": lambda x: x * (2 if x.shape[1] < 5000 else 3),
    "a number that another function takes": lambda x: scale_by_length(x, float(x.shape[1])),
    "a number that a module hands on": ByLength(),
    "a summand of nothing": lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-3 * (x.shape[1] > 150)),
    "a summand within a function": lambda x: (x.exp() + 1e-3 * (x.shape[1] > 150)).tanh(),
    "an axis that is another one without one": lambda x: x.mean(-1, keepdim=True).squeeze().softmax(0),
    "axes of one in its own line": lambda x: x.mean(-1, keepdim=True).exp().squeeze(),
    "an axis behind a rank that sizes decide": lambda x: functional.normalize(x.view([n for n in x.shape if n > 1])),
}
LIMITS = {
    "a logarithm": lambda x: x * max(1.0, math.log(x.shape[1], 100)),
    "a root": lambda x: x * (2 if int(x.shape[1] ** 0.5) > 9 else 3),
    "NumPy": lambda x: x * (2 if np.asarray(x.shape)[1] > 100 else 3),
    "a counter": lambda x: decay(x, 80),
    "a remainder of a counter": lambda x: decay(x, 85, reset=True),
}
WRAPS = {
    "positions": (lambda x: x + torch.arange(x.shape[1], dtype=torch.int8).float().sin()[:, None], "int8"),
    "positions that are cast": (lambda x: x + torch.arange(x.shape[1]).byte().float().sin()[:, None], "uint8"),
    "a cast": (lambda x: (x * 8).round().to(torch.int8).float() / 8, "int8"),
    "a cast of whole numbers": (lambda x: (x * 128).long().byte(), "uint8"),
    "a running count": (lambda x: x + (x < 9).to(torch.int8).cumsum(1, dtype=torch.int8).float(), "int8"),
    "a product": (lambda x: x + (t := torch.arange(x.shape[1]).short()).mul(t).mul(9).float()[:, None], "int16"),
    "a difference": (lambda x: (y := x.to(torch.uint8))[:, 1:] - y[:, :-1], "uint8"),
    "a sum in place": (lambda x: x.to(torch.int8).add_(100), "int8"),
    "a copy": (lambda x: torch.zeros(x.shape, dtype=torch.int8).copy_(x * 8), "int8"),
    "its own length": (lambda x: (x * 8).to(torch.int8).abs(), "int8"),
}
BRANCHES = {
    "an expression": (lambda x: x.clamp(-5, 5) if (x.abs() > 30).any() else x * 1.5, "`(x.abs() > 30).any()` is False"),
    "a name": (lambda x: scale(x, bool(x.abs().max() < 50)), "`bool(x.abs().max() < 50)` is True"),
    "an early return": (lambda x: half(x), "`x.pow(2).sum() < 10000000.0` is True"),
    "a number": (lambda x: x * 2 if x.abs().max().item() < 50 else x.tanh(), "`x.abs().max().item() < 50`"),
    "a helper": (lambda x: x * factor(x), "`x.isnan().any()` is False"),
    "a negation": (lambda x: double(x), "`not (x > 100).any()` is True"),
}
PARTS = {
    "a negation in a conjunction": (lambda x: double_below(x), "not (x > 100).any() and x.mean() < 5"),
    "a disjunction in a conjunction": (
        lambda x: x * 2 if ((x > 100).any() or x.mean() < 5) and x.max() < 99 else x * 3,
        "((x > 100).any() or x.mean() < 5) and x.max() < 99",
    ),
    "a range": (lambda x: x * 2 if -9 < x.min() < 9 else x, "-9 < x.min() < 9"),
}


class Modes(torch.nn.Module):
    """A module whose forward may ask for its mode."""

    def __init__(self, forward):
        super().__init__()
        self.run = forward

    def forward(self, x):
        return self.run(self, x)


def centre(self, x):
    return x - (x.mean(0) if self.training else 0.5)


def stop_at(self, x):
    h = x.exp()
    if h.dtype == torch.float16:
        h = h.clamp(max=100)
    return h * 2


def leave(self, x):
    if not torch.is_grad_enabled():
        return x * 2
    return x * 3


def refuse(self, x):
    if self.training:
        raise RuntimeError("it is not trained")
    return functional.dropout(x, 0.5, self.training) * 2


MODES = {
    "the flag": (centre, "self.training"),
    "a dtype": (stop_at, "h.dtype == torch.float16"),
    "gradients": (leave, "not torch.is_grad_enabled()"),
}


def derive(function):
    torch.manual_seed(0)
    trace = tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    assert {step.verdict for step in trace.steps} == {"verified"}
    sizes = [{"B": 3, "T": length} for length in LENGTHS] + [{"B": 1, "T": 6}, {"B": 64, "T": 7}]
    inputs = [(torch.randn(at["B"], at["T"], 16), at) for at in sizes]
    assert broken_laws(trace, [(x, at) for x, at in inputs if runs(function, x)]) == {}
    return trace


def runs(function, x):
    try:
        return isinstance(function(x), torch.Tensor)
    except (IndexError, RuntimeError, ValueError):  # a size that the function does not take
        return False


@pytest.mark.parametrize("name", LAWS)
def test_a_line_has_its_places_in_sizes(name):
    function, printed = LAWS[name]
    steps = derive(function).steps
    assert any(printed in step.latex for step in steps)
    assert not any(THIS_RUN_NOTE in step.note for step in steps)


@pytest.mark.parametrize("name", HELD_CASES)
def test_a_line_that_is_another_one_elsewhere_says_so(name):
    trace = derive(HELD_CASES[name])
    assert THIS_RUN_NOTE in trace.step(trace.returned[0].step).note


def test_a_comparison_that_is_too_large_to_be_tried_is_named():
    trace = tracer.trace(
        lambda x: x * (2 if x.shape[1] < 50_000 else 3), torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}
    )
    note = "the code compares T with 50,000: runs at such sizes are too large to be tried"
    assert trace.notes == (note,) and trace.steps[0].note == f"T{note[1:]}."


@pytest.mark.parametrize("name", LIMITS)
def test_a_line_says_up_to_which_size_a_plain_number_was_tried(name):
    trace = tracer.trace(LIMITS[name], torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    noted = [step for step in trace.steps if "It is so for" in step.note]
    assert noted and {step.verdict for step in trace.steps} == {"verified"}
    assert not any(within_limits(step.note, {"B": 1, "T": 150}) for step in noted)
    inputs = [(torch.randn(2, length, 16), {"B": 2, "T": length}) for length in (8, 64, 90, 150)]
    assert broken_laws(trace, inputs) == {}


@pytest.mark.parametrize("name", WRAPS)
def test_whole_numbers_of_few_bits_wrap_as_they_are_printed(name):
    function, dtype = WRAPS[name]
    trace = tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    assert {(step.verdict, step.checked, step.note) for step in trace.steps} == {("verified", 3, "")}
    assert any(rf"\operatorname{{{dtype}}}\left(" in step.latex for step in trace.steps)
    inputs = [(60 * torch.randn(2, length, 16), {"B": 2, "T": length}) for length in (8, 150, 300)]
    assert broken_laws(trace, inputs) == {}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.long() * 3 // 7,
        lambda x: (x > 0).byte().flip(1),
        lambda x: x.to(torch.int8).amax(1).short(),
        lambda x: x.to(torch.uint8)[:, :-1] // 4 * 0.5,
    ],
)
def test_whole_numbers_that_stay_within_their_bits_are_printed_as_they_are(function):
    steps = tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check().steps
    assert {(step.verdict, step.checked) for step in steps} == {("verified", 3)}
    assert steps[-1].latex.count("int") <= 1  # of the cast


def test_numbers_that_decide_nothing_are_no_limits():
    def forward(x):
        return torch.stack([x[:, t] / math.sqrt(t + 1) for t in range(x.shape[1])], 1) / math.log(x.shape[1] + 1)

    steps = tracer.trace(forward, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).steps
    assert not any("It is so for" in step.note for step in steps)


class Positions(torch.nn.Module):
    """A module that counts its positions in some dtype."""

    def __init__(self, dtype, width=8):
        super().__init__()
        self.rate, self.dtype = torch.nn.Parameter(torch.linspace(0.1, 0.8, width)), dtype

    def forward(self, x):
        return x + torch.cos(torch.arange(x.shape[1], dtype=self.dtype).float()[:, None] * self.rate)


def trace_positions(kind, dtype):
    def build(sizes):
        return kind(dtype, sizes["D"]), (torch.randn(sizes["B"], sizes["T"], sizes["D"]),)

    x, names = torch.randn(2, 12, 8), {"B": 0, "T": 1, "D": 2}
    return tracer.trace(kind(dtype), x, symbols=names, build=build).check()


@pytest.mark.parametrize(
    ("dtype", "note"),
    [
        (torch.bfloat16, "It counts up to 256: beyond, bfloat16 rounds whole numbers."),
        (torch.float16, "It counts up to 2048: beyond, float16 rounds whole numbers."),
        (torch.float32, ""),
    ],
)
def test_a_line_says_how_far_a_short_dtype_counts(dtype, note):
    step = trace_positions(Positions, dtype).steps[-1]
    assert (step.verdict, step.note) == ("verified", note)


class RoundedPositions(Positions):
    """A module that rounds its positions to a dtype."""

    def forward(self, x):
        return x + torch.cos(torch.arange(x.shape[1]).to(self.dtype).float()[:, None] * self.rate)


@pytest.mark.parametrize(("dtype", "verdict"), [(torch.bfloat16, "refuted"), (torch.float32, "verified")])
def test_a_length_is_tried_beyond_all_probes_where_a_width_is_named_behind_it(dtype, verdict):
    assert trace_positions(RoundedPositions, dtype).steps[-1].verdict == verdict


def test_a_short_dtype_that_counts_to_a_plain_number_has_no_limit():
    def forward(x):
        return x * torch.arange(16, dtype=torch.bfloat16)

    steps = tracer.trace(forward, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).steps
    assert not any("counts up to" in step.note for step in steps)


@pytest.mark.parametrize("name", BRANCHES)
def test_a_line_names_the_branch_that_values_chose(name):
    function, condition = BRANCHES[name]
    trace = tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    *before, last = trace.steps
    assert condition in last.note and last.verdict == "verified"
    assert not any("branch" in step.note for step in before)


def test_all_later_turns_of_a_loop_name_the_branch_that_ends_it():
    first, *later = tracer.trace(settle, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check().steps
    assert not first.note and len(later) > 3 and "`done` is" not in later[0].note
    assert all("`done` is False" in step.note for step in later[1:])


def test_a_loop_that_a_count_ends_depends_on_no_values():
    trace = tracer.trace(settle_by_count, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    assert not any(step.note for step in trace.steps)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_of_a_condition_does_not_tell_what_the_whole_was(name):
    function, condition = PARTS[name]
    step = tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).steps[-1]
    assert f"by the values in `{condition}`: by others" in step.note and f"`{condition}` is" not in step.note


@pytest.mark.parametrize("name", MODES)
def test_a_line_names_the_mode_that_decides_it(name):
    forward, condition = MODES[name]
    trace = tracer.trace(Modes(forward).eval(), torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    *before, last = trace.steps
    assert f"by `{condition}` of this run" in last.note and last.verdict == "verified"
    assert not any(step.note for step in before)


@pytest.mark.parametrize("module", [Modes(refuse), torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)])
def test_a_mode_that_decides_no_line_is_not_named(module):
    trace = tracer.trace(module.eval(), torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    assert not any("It is computed so by" in step.note for step in trace.steps)


def test_a_branch_that_returns_the_input_is_named_in_the_notes():
    def clip(x):
        return x * (500 / x.norm()) if x.norm() > 500 else x

    (note,) = tracer.trace(clip, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).notes
    assert "`x.norm() > 500` is False" in note


def add_where_any(x):
    y = x.sin()
    if (x > 100).any():
        y = y + x
    return y


def choose_where_any(x):
    y = x.sin()
    return y + x if (x > 100).any() else y


def warn_where_any(x):
    y = x.sin()
    if (x > 100).any():
        print("large")
    return y


@pytest.mark.parametrize("function", [add_where_any, choose_where_any])
def test_a_line_that_is_returned_names_the_branch_that_left_it_alone(function):
    trace = tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    notes = [step.note for step in trace.steps if "sin" in step.latex]
    assert len(notes) == 1 and "`(x > 100).any()` is False" in notes[0]


def test_a_branch_that_changes_no_result_is_not_named():
    trace = tracer.trace(warn_where_any, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    assert not any("branch" in step.note for step in trace.steps)


def test_a_module_that_keeps_state_is_called_twice():
    first, second = tracer.trace(FirstMean(), torch.randn(4, 9, 16) + 1, symbols={"B": 0, "T": 1}).check().steps
    assert "`mean` is read here" in second.note and "second call" in second.replayed and not first.note
    assert {first.verdict, second.verdict} == {"verified"} and first.checked == 3


def test_an_axis_that_one_name_alone_drops_is_no_condition():
    def forward(x):
        return functional.normalize(x.mean(-1, keepdim=True).squeeze(-1).softmax(0))

    steps = tracer.trace(forward, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check().steps
    assert {(step.note, step.checked) for step in steps} == {("", 3)}


def test_a_number_that_experts_are_compared_with_is_no_size():
    trace = tracer.trace(lambda x: x * (x.argmax(-1) == 3)[..., None], torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    assert not any(step.note for step in trace.steps)


def test_rows_that_values_choose_say_how_many_are_taken_at_most():
    trace = tracer.trace(Capacity(), torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    assert "refuted" not in {step.verdict for step in trace.steps}
    assert any("the code takes 60 at most" in step.note and "takes fewer" in step.replayed for step in trace.steps)


def test_a_sum_in_float16_says_how_far_its_numbers_go():
    trace = tracer.trace(
        lambda x: torch.ones(x.shape[1]).half().mul(600).sum() * x, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}
    ).check()
    (step,) = trace.steps
    assert step.verdict == "verified" and "65,504" in step.note and "65,504" in step.replayed


@pytest.mark.parametrize("function", [lambda x: x.half().float() * 2, lambda x: x.half().softmax(-1)])
def test_a_cast_to_float16_that_grows_nothing_has_no_note(function):
    trace = tracer.trace(function, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    assert {(step.note, step.checked) for step in trace.steps} == {("", 3)}


def test_a_slice_says_where_it_is_shorter():
    assert "an axis that is shorter than 2" in derive(lambda x: x[:, -2:] * 1.5).steps[0].note
    assert derive(lambda x: x[:, -1:] * 1.5).steps[0].note == ""


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


def test_numbers_that_a_comparison_chooses_are_verified():
    trace = tracer.trace(lambda x: x[x.sum(-1) > 0].mean(0), torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    assert trace.steps[-1].verdict == "verified"


def last_rows(x):
    return x.narrow(1, 0, min(x.shape[1], 128)) * 2


def test_a_slice_that_narrow_takes_says_at_which_sizes_it_holds():
    first, *_ = tracer.trace(last_rows, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check().steps
    assert THIS_RUN_NOTE in first.note and first.verdict == "verified"
    narrow = tracer.trace(lambda x: x.narrow(1, -3, 2) * 2, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check()
    assert (narrow.steps[0].latex, narrow.steps[0].note) == (r"\mathbf{Y} = {\mathbf{x}}_{[:,\,T - 3:T - 1,\,:]}", "")
    assert {step.checked for step in narrow.steps} == {3}


@pytest.mark.parametrize(
    ("place", "printed"), [(lambda t, T: t, "[\\,{n}\\,]"), (lambda t, T: T - 1 - t, "[\\,T - {m}\\,]")]
)
def test_the_turns_of_a_loop_count_from_where_its_code_counts(place, printed):
    def forward(x):
        return torch.stack([x[:, place(t, x.shape[1])] * (2 if t < 100 else 3) for t in range(x.shape[1])], 1)

    steps = tracer.trace(forward, torch.randn(4, 7, 5), symbols={"B": 0, "T": 1}).check().steps
    for n, step in enumerate(steps[:-1]):
        assert printed.format(n=n, m=n + 1) in step.latex and step.checked == 3 and not step.note


def test_a_size_that_the_input_decides_is_no_number_of_a_law():
    def forward(x):
        rows, tokens = (x[..., 0] > 0).nonzero(as_tuple=True)
        return x.index_put((rows, tokens), x[rows, tokens, 1][:, None] * x[rows, tokens])

    steps = tracer.trace(forward, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1}).check().steps
    assert {step.verdict for step in steps} <= {"verified", "not executed"} and "?" in {
        size for step in steps for size in step.symbolic
    }
    assert all(step.checked for step in steps if step.verdict == "verified")
