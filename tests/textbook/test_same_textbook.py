"""Textbook of a module, independent of the sizes and the values of the run that it is derived from."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer
from tests.support.self_attention import SelfAttention
from tracer.latex_reader.evaluator import evaluate
from tracer.latex_reader.parser import read

SIZES = ((1, 4), (2, 9), (4, 16), (3, 5))
"""Batch and length: of one input, squares, and sizes whose roots are numbers that code has in it."""


class Of(nn.Module):
    """A function of x `[B, T, 8]` and of a linear map."""

    def __init__(self, function):
        super().__init__()
        self.function, self.linear = function, nn.Linear(8, 8)

    def forward(self, x):
        return self.function(self.linear(x))


def attention(x, scale):
    return ((x @ x.transpose(-1, -2)) * scale).softmax(-1) @ x


SAME = {
    "a quarter": lambda x: x * 0.25,
    "a half of a branch": lambda x: x + 0.5 * torch.relu(x),
    "an exact GELU": lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
    "a temperature of two": lambda x: attention(x, 0.5),
    "a scale of eight": lambda x: attention(x, 8.0),
    "the root of a width": lambda x: attention(x, 8**-0.5),
    "the root of a length": lambda x: x * x.shape[1] ** -0.5,
    "the fourth root of a length": lambda x: x * x.shape[1] ** -0.25,
    "the logarithm of a length": lambda x: x * math.log(x.shape[1] + 1),
    "the mean by hand": lambda x: x.sum(1) / x.shape[1],
    "an unbiased mean": lambda x: x.sum(1) / (x.shape[1] - 1),
    "the square of a length": lambda x: x.sum(1) / x.shape[1] ** 2,
    "an eighth of a length": lambda x: x.clamp(max=x.shape[1] / 8),
    "the last token": lambda x: x[:, x.shape[1] - 1] * 2,
    "the last token, from behind": lambda x: x[:, -1] * 2,
    "the third token": lambda x: x[:, 2] * 2,
    "all but the first": lambda x: x[:, 1:] * 2,
    "all but the last": lambda x: x[:, : x.shape[1] - 1] * 2,
    "the first half": lambda x: x[..., :4] * 2,
    "a packed product": lambda x: torch.cat([part * 3 for part in x.chunk(2, -1)], -1),
    "rolled by half a length": lambda x: x.roll(x.shape[1] // 2, 1),
    "rolled by one": lambda x: x.roll(1, 1),
    "padded": lambda x: F.pad(x, (0, 0, 0, 3)),
    "padded to fours": lambda x: F.pad(x, (0, 0, 0, -x.shape[1] % 4)).exp(),
    "padded in front to threes": lambda x: F.pad(x, (0, 0, -x.shape[1] % 3, 0)).exp(),
    "padded to fours, one of them in front": lambda x: F.pad(x, (0, 0, 1, -(x.shape[1] + 1) % 4)).exp(),
    "all tokens padded to fours": lambda x: F.pad(x.flatten(0, 1), (0, 0, 0, -x[..., 0].numel() % 4)).exp(),
    "a power": lambda x: x**2 + 1,
    "a number near a root": lambda x: x / (8 + 1e-5) ** 0.5,
    "seven": lambda x: x + 7,
}
"""What code does with numbers, of which each line has to read the same at all sizes."""


def book(function, batch: int, length: int):
    """Return the textbook of a module at these sizes."""
    torch.manual_seed(0)
    module = Of(function)
    with torch.no_grad():
        run = tracer.trace(module, torch.randn(batch, length, 8), symbols={"B": 0, "T": 1})
    assert {step.verdict for step in run.steps} == {"verified"}, [(step.latex, step.note) for step in run.steps]
    return [(step.title, step.latex, step.symbolic, step.note) for step in run.steps]


@pytest.mark.parametrize("name", SAME)
def test_the_textbook_is_that_of_the_module(name):
    first, *others = (book(SAME[name], *sizes) for sizes in SIZES)
    assert others == [first] * len(others)


def test_a_padding_is_the_difference_of_two_sizes():
    padding = r"\operatorname{pad}_{0,\,0,\,0,\,4\,\left\lceil \frac{%s}{4} \right\rceil - %s}"
    for name, size in (("padded to fours", "T"), ("all tokens padded to fours", r"B\,T")):
        assert padding % (size, size) in book(SAME[name], 3, 5)[-1][1]


@pytest.mark.parametrize("limit", [0, 1])
def test_a_padding_without_a_formula_says_so_even_where_it_adds_nothing(limit):
    with torch.no_grad():
        padded = Of(lambda x: F.pad(x, (0, 0, limit, max(0, 6 - x.shape[1]))).softmax(1))
        run = tracer.trace(padded, torch.randn(2, 9, 8), symbols={"B": 0, "T": 1})
    assert "0 moves with the sizes, and no formula was found for it" in run.steps[-1].note


@pytest.mark.parametrize("name", ("the root of a length", "the logarithm of a length", "an unbiased mean"))
def test_numbers_of_sizes_are_formulas(name):
    said = {
        "the root of a length": r"\sqrt{T}",
        "the logarithm of a length": r"\log\left(T + 1\right)",
        "an unbiased mean": "{T - 1}",
    }
    assert said[name] in book(SAME[name], 2, 16)[-1][1]


def test_roots_and_logarithms_are_read_again():
    """Parse printed roots and logarithms with a reader that knows LaTeX alone: they are the numbers that ran."""
    values = {r"\mathbf{X}": np.arange(6.0).reshape(2, 3), "T": np.asarray(16)}
    line = read(
        r"\mathbf{Z} = \frac{\mathbf{X}}{\sqrt[4]{T}} + \log\left(T\right)\,\mathbf{X}", {r"\mathbf{Z}", *values}
    )
    made = evaluate(line, values.__getitem__, (2, 3))
    assert np.allclose(made, values[r"\mathbf{X}"] * (0.5 + math.log(16)), rtol=1e-14)


def place(x) -> int:
    """Return the index of the largest token of the first row: a number that the code reads."""
    return int(x[0].sum(-1).argmax())


def write_column(x):
    y = x * 2
    y[:, place(x)] = 0
    return y + 1


OF_INPUT = {
    "the largest": lambda x: x / x.abs().max().item(),
    "a mean": lambda x: x + float(x.mean()),
    "a count": lambda x: x * int((x > 0).sum()),
    "a number of a list": lambda x: x * x[0, 0].tolist()[0],
    "the place of the largest": lambda x: x[:, place(x)],
    "all to the largest": lambda x: x[:, : place(x) + 1] * 2,
    "narrowed to the largest": lambda x: x.narrow(1, 0, place(x) + 1) * 2,
    "rolled by a place": lambda x: x.roll(place(x) + 1, 1),
    "as many as are positive": lambda x: x.topk(int((x[0, 0] > 0).sum()) + 1, -1).values,
    "classes of the input": lambda x: F.one_hot((x[0, :, 0] > 0).long().cumsum(0)),
    "a way that values choose": lambda x: x * 2 if x.sum() > 0 else x * 3,
    "a write to a place": write_column,
}
SYMBOLS = {"with symbols": {"B": 0, "T": 1}, "without": None}


def run_of(function, symbols: str):
    torch.manual_seed(0)
    with torch.no_grad():
        return tracer.trace(Of(function), torch.randn(2, 5, 8), symbols=SYMBOLS[symbols])


@pytest.mark.parametrize("symbols", SYMBOLS)
@pytest.mark.parametrize("name", OF_INPUT)
def test_a_number_of_the_input_is_no_constant(name, symbols):
    last = run_of(OF_INPUT[name], symbols).steps[-1]
    assert last.verdict == "not executed" and "the values of" in last.note
    assert "it would hold for this input alone" in last.note


def test_without_symbols_plain_numbers_are_verified():
    for name, function in SAME.items():
        run = run_of(function, "without")
        assert {step.verdict for step in run.steps} == {"verified"} and not run.notes, name


def test_an_id_alone_is_an_input_and_no_constant():
    """A whole number of one cell, from which code takes a size or an index."""
    with torch.no_grad():
        run = tracer.trace(lambda x, n: x[:, : int(n)] * 2, torch.randn(2, 5), torch.tensor(3))
    assert run.steps[0].verdict == "not executed" and "3 was computed from" in run.steps[0].note


def test_what_runs_on_no_other_values_says_so():
    def strict(x):
        assert x[0, 0] == 7
        return x * 2

    with torch.no_grad():
        run = tracer.trace(strict, torch.full((2, 5), 7.0))
    assert run.steps[-1].verdict == "verified" and "were not looked for: the model does not run" in run.notes[-1]


def test_a_model_is_as_it_was_after_the_run_on_other_values():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            self.seen += x.sum()
            return x * 2

    module, x = Counts(), torch.randn(2, 3)
    before = torch.get_rng_state()
    tracer.trace(module, x)
    assert module.calls <= 1 and module.seen == 0 and torch.equal(before, torch.get_rng_state())


VALUE_SIZED_CASES = {
    "different values": lambda x: torch.unique(x.round()) * 2,
    "the positive ones": lambda x: x[x > 0] * 2,
    "the places of the positive ones": lambda x: (x > 0).nonzero() * 2,
}


@pytest.mark.parametrize("symbols", SYMBOLS)
@pytest.mark.parametrize("name", VALUE_SIZED_CASES)
def test_a_size_of_the_input_has_no_letter(name, symbols):
    step = run_of(VALUE_SIZED_CASES[name], symbols).steps[-1]
    assert "values of the input" in step.note and (symbols == "without" or step.symbolic[0] == "?")


def test_what_left_pytorch_is_no_constant():
    with torch.no_grad():
        square = Of(lambda x: x + torch.from_numpy(x.numpy() ** 2))
        moved = tracer.trace(square, torch.randn(2, 5, 8), symbols={"B": 0, "T": 1}).steps[-1]
        fixed = Of(lambda x: x + torch.arange(8.0).clone().detach().numpy().tolist()[3])
        plain = tracer.trace(fixed, torch.randn(2, 5, 8), symbols={"B": 0, "T": 1}).steps[-1]
    assert "was computed outside PyTorch" in moved.note and any(name.outside for name in moved.names)
    assert "outside" not in plain.note and plain.verdict == "verified"


def test_a_bound_in_the_code_is_said():
    with torch.no_grad():
        run = tracer.trace(Of(lambda x: x[:, -100:] * 2), torch.randn(2, 9, 8), symbols={"B": 0, "T": 1})
    assert any("takes 100 at most" in step.note for step in run.steps)


def test_a_size_that_cannot_be_changed_leaves_the_others():
    def narrow(x):
        assert x.shape[-1] == 8
        return x * 2

    with torch.no_grad():
        run = tracer.trace(Of(narrow), torch.randn(2, 9, 8), symbols={"B": 0, "T": 1, "D": 2})
        thirds = tracer.trace(
            Of(lambda x: x.view(len(x), -1, 3, 8).sum(2)), torch.randn(2, 9, 8), symbols={"B": 0, "T": 1}
        )
    assert run.steps[-1].symbolic == ("B", "T", "8") and "no symbols for D" in run.notes[0]
    assert thirds.steps[-1].symbolic == ("B", "T/3", "8")


def test_a_place_of_what_does_not_run_at_all_sizes_is_of_this_run():
    """A loop of as many turns as the values ask for: its first turns are in no probe as they are here."""

    class Grows(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.memory = nn.Embedding(7, 8), nn.GRU(8, 8, batch_first=True)

        def forward(self, ids):
            for _ in range(3):
                last = self.memory(self.embed(ids))[0][:, -1]
                ids = torch.cat([ids, last.argmax(-1, keepdim=True).clamp(max=6)], 1)
            return ids

    torch.manual_seed(0)
    with torch.no_grad():
        run = tracer.trace(Grows(), torch.randint(7, (2, 3)), symbols={"B": 0, "T": 1})
    assert run.check().steps and not any(step.verdict == "refuted" for step in run.check().steps)
    places = [step for step in run.steps if step.latex.endswith(r"_{[\,2\,]}")]
    assert places and all("It holds at the sizes of this run" in step.note for step in places)


class RepeatedHeads(nn.Module):
    """Keys of two heads, each repeated for two heads of queries."""

    def __init__(self):
        super().__init__()
        self.key = nn.Linear(6, 16)

    def forward(self, x):
        return 2 * self.key(x).unflatten(-1, (2, 8)).transpose(1, 2).repeat(1, 2, 1, 1)


def test_heads_are_repeated_so_many_times_at_a_batch_of_their_number_too():
    lines = {tracer.trace(RepeatedHeads(), torch.randn(B, 5, 6), symbols={"B": 0}).steps[-1].latex for B in (2, 3)}
    assert len(lines) == 1 and r"(2\,2')" in lines.pop()


@pytest.mark.parametrize("batch_first", [True, False])
def test_merged_axes_have_their_order_at_a_batch_of_one_too(batch_first):
    """PyTorch's attention has tokens before the batch, and heads beside it: an axis that a reshape splits."""
    for shape in (1, 5, 8), (2, 5, 8), (3, 1, 8):
        x = torch.randn(shape) if batch_first else torch.randn(shape).transpose(0, 1)
        run = tracer.trace(
            SelfAttention(batch_first).eval(), x, symbols={"B": 1 - batch_first, "T": int(batch_first)}
        ).check()
        assert {(step.verdict, step.checked) for step in run.steps} == {("verified", 3)}
        assert any(r"\to (T\,B)\,(2\,4)" in step.latex or r"\to T\,B\,(2\,4)" in step.latex for step in run.steps)


def mask_beyond(mask, longest=1, otherwise=lambda scores: scores):
    """Return attention whose mask is left out where there are no more than that many tokens."""

    def attend(x):
        scores, places = x @ x.transpose(-1, -2), torch.arange(x.shape[1])
        scores = mask(scores, places[:, None], places) if x.shape[1] > longest else otherwise(scores)
        return scores.softmax(-1) @ x

    return attend


def hide(scores, rows, columns):
    return scores.masked_fill(columns > rows, -1e9)


def fused_beyond(longest):
    """Return fused attention that is causal where there are more than that many tokens."""

    def attend(x):
        heads = x[:, None]
        return F.scaled_dot_product_attention(heads, heads, heads, is_causal=x.shape[1] > longest)[:, 0]

    return attend


def compare_twice(x):
    """Return attention whose mask is left out for two tokens, too, after another comparison that one token decides."""
    assert x.shape[1] > 1 or x.shape[1] == 1
    return mask_beyond(hide, longest=2)(x)


HIDES_NOTHING = {
    "a causal mask for all heads": mask_beyond(
        lambda scores, rows, columns: torch.where((rows >= columns)[None], scores, -1e9)
    ),
    "a causal mask of a fused attention": fused_beyond(1),
    "a causal mask": mask_beyond(lambda scores, rows, columns: torch.where(rows >= columns, scores, -1e9)),
    "a mask of what comes later": mask_beyond(hide),
    "what comes later, the other way": mask_beyond(
        lambda scores, rows, columns: torch.where(rows < columns, -1e9, scores)
    ),
}
HIDES = {
    "a token's own place": mask_beyond(lambda scores, rows, columns: torch.where(rows > columns, scores, -1e9)),
    "its own place, the other way": mask_beyond(
        lambda scores, rows, columns: scores.masked_fill(columns == rows, -1e9)
    ),
    "a second token": mask_beyond(hide, longest=2),
    "a second token, after the first": compare_twice,
    "a second token of a fused attention": fused_beyond(2),
    "other scores of a single token": mask_beyond(hide, otherwise=lambda scores: 2 * scores),
    "places that count from the end": mask_beyond(
        lambda scores, rows, columns: torch.where(rows - len(rows) + 5 >= columns, scores, -1e9)
    ),
}


@pytest.mark.parametrize("name", [*HIDES_NOTHING, *HIDES])
def test_a_mask_that_is_left_out_where_it_hides_nothing_is_no_other_path(name):
    with torch.no_grad():
        run = tracer.trace(Of({**HIDES_NOTHING, **HIDES}[name]), torch.randn(2, 5, 8), symbols={"B": 0, "T": 1})
    notes = " ".join(step.note for step in run.steps)
    assert ("the code takes another path" in notes) == (name in HIDES)
    assert all(step.verdict in ("verified", "recomputed") for step in run.steps)


@pytest.mark.parametrize(
    ("share", "symbolic"), [(1 / 4, "floor(T/4)"), (1.25 / 4, "?")], ids=["a quarter", "five sixteenths"]
)
def test_a_shape_that_is_solved_with_one_batch_says_so_and_holds_at_other_lengths(share, symbolic):
    """⌈T/3⌉ - 1 and ⌊5T/16⌋ are the same in the runs that a shape is solved from: a longer one tells them apart."""
    with torch.no_grad():
        first = Of(lambda x: x.reshape(-1, 8)[: int(share * x.shape[0] * x.shape[1])].softmax(0))
        run = tracer.trace(first, torch.randn(1, 4, 8), symbols={"B": 0, "T": 1})
    last = run.steps[-1]
    assert last.symbolic == (symbolic, "8")
    assert ("Its shape was solved with B held at 1" in last.note) == (symbolic != "?")
