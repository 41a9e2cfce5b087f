"""Rounding bounds of each cell: no right line is red, and a wrong one is, whatever other cells hold."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tracer
from tracer import serialization
from tracer.expr import GELU, GELUTanh, Over, Product, ReLU, Scalar, Tensor
from tracer.expr.error_bounds import FACTOR, Rounding, attach, evaluate

FLOATS = torch.float64, torch.float32, torch.float16, torch.bfloat16


class Function(nn.Module):
    """A forward of a function of the module and its input."""

    def __init__(self, forward, **modules):
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self.function = forward

    def forward(self, x):
        return self.function(self, x)


def trace_function(forward, x, **modules):
    """Return the run of such a module in the dtype of x."""
    module = Function(forward, **modules)
    with torch.no_grad():
        return tracer.trace(module.to(x.dtype) if x.is_floating_point() else module, x)


def changed_verdicts(trace, change):
    """Return the verdicts of the lines whose equations `change` replaces, by their titles."""
    lines = {step.line.id: step.line for step in trace.later.derived_steps}
    wrong = {id for id, line in lines.items() if change(line) != line.equation}
    steps = trace.later.rewrite(change)(trace.steps)
    assert wrong
    return {steps[id].verdict for id in wrong}


def attention(lowest):
    def forward(module, x):
        scores = module.q(x) @ module.k(x).transpose(-1, -2) / x.shape[-1] ** 0.5
        mask = torch.full((x.shape[1],) * 2, lowest, dtype=x.dtype).triu(1)
        return (scores + mask).softmax(-1) @ x

    return forward


def drop_root(line):
    """Return the equation without its division by a root."""
    return line.equation.replace(lambda node: isinstance(node, Over), lambda node: node.args[0])


@pytest.mark.parametrize(
    ("dtype", "lowest"),
    [
        (torch.float32, -1e4),
        (torch.float32, -1e9),
        (torch.float32, torch.finfo(torch.float32).min),
        (torch.float32, -torch.inf),
        (torch.bfloat16, -1e9),
        (torch.float16, -65504.0),
    ],
)
def test_no_mask_hides_the_scores(dtype, lowest):
    torch.manual_seed(0)
    x = torch.randn(1, 5, 16).to(dtype)
    trace = trace_function(attention(lowest), x, q=nn.Linear(16, 16), k=nn.Linear(16, 16))
    assert {step.verdict for step in trace.steps} == {"verified"}
    assert changed_verdicts(trace, drop_root) == {"refuted"}


@pytest.mark.parametrize("dtype", FLOATS[1:])
@pytest.mark.parametrize("activation", [ReLU, GELUTanh])
def test_another_activation_is_told_in_every_dtype(dtype, activation):
    torch.manual_seed(0)
    x = torch.randn(1, 50, 16).to(dtype)
    x[0, 0, 0] = 8
    trace = trace_function(lambda module, x: nn.functional.gelu(x) * 1.0, x)
    assert {step.verdict for step in trace.steps} == {"verified"}
    change = {GELU: lambda node: activation(*node.args)}
    assert changed_verdicts(
        trace, lambda line: line.equation.replace(lambda node: type(node) in change, change[GELU])
    ) == {"refuted"}


RIGHT = {
    "layer norm": (lambda m, x: m.norm(x * 300), {"norm": nn.LayerNorm(16)}),
    "softmax": (lambda m, x: (x * 30).softmax(-1), {}),
    "log softmax": (lambda m, x: (x * 30).log_softmax(-1), {}),
    "hand-written GELU": (lambda m, x: x * 0.5 * (1 + torch.erf(x / 2**0.5)), {}),
    "hand-written norm": (lambda m, x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt(), {}),
    "cancellation": (lambda m, x: m.map(x).sum(1) - m.map(x).sum(1) + m.map(x).mean(1), {"map": nn.Linear(16, 16)}),
    "powers": (lambda m, x: (x.abs() + 0.1) ** 2.5 - x**3, {}),
    "waves": (lambda m, x: (x * 50).sin() * x.cos() + x.tanh() - x.sigmoid().log(), {}),
    "running sum": (lambda m, x: x.cumsum(-1), {}),
    "equal terms": (lambda m, x: (x * 0 + 1).softmax(1).transpose(1, 2) @ (x * 0 + 0.1), {}),
    "convolution": (lambda m, x: m.conv(x.transpose(1, 2)), {"conv": nn.Conv1d(16, 8, 3, padding=1)}),
    "encoder layer": (lambda m, x: m.block(x), {"block": nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", RIGHT)
def test_no_right_line_is_red(name, dtype):
    torch.manual_seed(0)
    forward, modules = RIGHT[name]
    trace = trace_function(forward, torch.randn(2, 7, 16).to(dtype), **modules)
    assert {step.verdict for step in trace.steps} <= {"verified", "recomputed"}, [
        (step.latex, step.margin, step.note) for step in trace.steps if step.verdict == "refuted"
    ]


MASK = torch.rand(2, 7, 16, generator=torch.Generator().manual_seed(0)) > 0.5
CONSTANTS = {
    "bounded above": lambda x: x.clamp(max=0.4),
    "bounded": lambda x: x.clamp(-0.3, 0.3),
    "chosen": lambda x: torch.where(x > 0.1, x, 0.3),
    "masked": lambda x: x.masked_fill(MASK, 0.3),
    "filled": lambda x: torch.maximum(x, torch.full_like(x, 0.3)),
    "constant": lambda x: torch.full_like(x, 0.3),
    "constant in a product": lambda x: torch.full((2, 5, 7), 0.3, dtype=x.dtype) @ x,
    "less": lambda x: 0.3 - x.clamp(max=0.3),
    "compared": lambda x: (x.clamp(max=0.4) == 0.4) * 2.0,
    "padded": lambda x: nn.functional.pad(x, (1, 1), value=0.3),
    "written": lambda x: x.index_fill(1, torch.tensor([1]), 0.3),
    "a tensor without axes": lambda x: torch.maximum(x, torch.tensor(0.3)),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONSTANTS)
def test_a_number_rounds_to_the_dtype_of_the_run(name, dtype):
    """0.4 is not a number of float32: what a tensor holds of it is another one, and no line is wrong for that."""
    torch.manual_seed(0)
    trace = trace_function(lambda module, x: CONSTANTS[name](x), torch.randn(2, 7, 16).to(dtype))
    assert {step.verdict for step in trace.steps} == {"verified"}, [(step.latex, step.note) for step in trace.steps]


@pytest.mark.parametrize("dtype", FLOATS)
def test_another_number_is_told(dtype):
    """No more than the rounding of the number is allowed: eight roundings further is another number."""
    torch.manual_seed(0)
    near = 0.4 * (1 + 8 * torch.finfo(dtype).eps)
    trace = trace_function(lambda module, x: x.clamp(max=0.4), torch.randn(2, 7, 16).to(dtype))

    def change(line):
        return line.equation.replace(lambda node: isinstance(node, Scalar), lambda node: Scalar(near))

    assert {step.verdict for step in trace.steps} == {"verified"}
    assert changed_verdicts(trace, change) == {"refuted"}


class Cast(nn.Module):
    """A softmax in float32 within a model of another dtype, as in libraries."""

    def __init__(self):
        super().__init__()
        self.q = nn.Linear(16, 16)

    def forward(self, x):
        scores = self.q(x) @ x.transpose(1, 2)
        return scores.softmax(-1, dtype=torch.float32).to(x.dtype) @ x


class Autocast(nn.Module):
    """A linear map in bfloat16 whose weights are float32."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(16, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.map(x).relu() + 1


@pytest.mark.parametrize(
    ("module", "x", "text"),
    [
        (Function(lambda module, x: x.half().float() * 2), torch.randn(1, 5, 16), r"\operatorname{float16}\left("),
        (Cast().bfloat16(), torch.randn(1, 5, 16).bfloat16(), r"\operatorname{bfloat16}\left(\mathbf{A}\right)\,"),
        (Autocast(), torch.randn(1, 5, 16), r"\operatorname{bfloat16}\left(\mathbf{W}"),
    ],
)
def test_a_cast_that_rounds_is_part_of_the_line(module, x, text):
    with torch.no_grad():
        trace = tracer.trace(module, x, symbols={"B": 0, "T": 1})
    assert {step.verdict for step in trace.steps} == {"verified"}
    assert any(text in step.latex for step in trace.steps), [step.latex for step in trace.steps]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_numbers_are_verified(dtype):
    torch.manual_seed(0)
    x = torch.randn(3, 5, dtype=dtype)
    trace = trace_function(lambda module, x: (x * x.conj() + 2 * x) @ x.transpose(0, 1), x)
    assert {step.verdict for step in trace.steps} == {"verified"}
    assert changed_verdicts(trace, lambda line: line.equation + line.equation) == {"refuted"}


def test_numbers_at_the_ends_of_the_range():
    torch.manual_seed(0)
    x = torch.randn(1, 5, 16)
    small = trace_function(lambda module, x: module.lin(x * 1e-42) * 1e3, x, lin=nn.Linear(16, 16, bias=False))
    assert {step.verdict for step in small.steps} == {"verified"}
    large = trace_function(lambda module, x: module.norm(x * 1e20), x, norm=nn.LayerNorm(16))
    assert [step.verdict for step in large.steps] == ["verified", "not executed"]
    assert "beyond the range" in large.steps[1].note


def test_a_product_is_off_by_no_more_than_its_terms_explain():
    """1e8 and -1e8 leave nothing of 1: the bound is that of the terms, not of the result."""
    left, right = torch.tensor([[1e8, 1.0, -1e8]]), torch.ones(3, 1)
    values = {"a": left, "b": right}
    made = evaluate(Product(Tensor("a", (1, 3), "a"), Tensor("b", (3, 1), "b")), lambda one: values[one.key], float)
    assert made.value.item() == 1.0 and made.dtype == torch.float32
    assert made.bound.item() * FACTOR == pytest.approx(FACTOR * 2.0**-24 * 2e8, rel=1e-3)


@pytest.mark.parametrize("fill", [False, True])
def test_a_choice_that_rounding_may_turn_is_off_by_what_lies_between(fill):
    """Of 3 and 10, chosen where x > 1: only where x is 1 within its bound may it be the other number, 7 away."""
    x, low, high = torch.tensor([0.0, 1.0, 2.0]), torch.full((3,), 3.0), torch.full((3,), 10.0)
    attach(x, torch.full((3,), 1e-6))
    attach(low, torch.full((3,), 0.25))
    with Rounding(torch.float32):
        above = x > 1
        made = low.masked_fill(above, 10.0) if fill else torch.where(above, high, low)
    assert made.tolist() == [3.0, 3.0, 10.0]
    assert made.bound.tolist() == [0.25, 7.25, 0.0]


def test_a_choice_of_exact_numbers_by_an_exact_mask_is_exact():
    with Rounding(torch.float32):
        made = torch.where(torch.tensor([True, False]), torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    assert made.tolist() == [1.0, 4.0] and not hasattr(made, "bound")


def test_one_wrong_cell_among_large_ones_is_found():
    torch.manual_seed(0)
    x = torch.randn(4, 6) * torch.tensor([1e6, 1, 1, 1, 1, 1])
    trace = trace_function(lambda module, x: x * 2, x)
    step = trace.steps[0]
    value = trace.later.values().tensor(step.id)
    value[2, 3] *= 1.0001
    again = trace.later([replace(step)])[step.id]
    assert again.verdict == "refuted" and again.wrong == (2, 3) and again.error < 1e-8


def looking_at_nothing(way, fused=True):
    """Attention in which the third query may look at nothing; by hand, its softmax is NaN in the run, too."""
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    mask[2] = False

    def forward(module, x):
        if not fused:
            return (x @ x.mT).masked_fill(~mask, -torch.inf).softmax(-1) @ x
        with sdpa_kernel(way):
            return nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], mask)[:, 0]

    return forward


@pytest.mark.parametrize("way", (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION))
def test_the_zeros_of_a_query_that_may_look_at_nothing_are_no_mistake(way):
    torch.manual_seed(0)
    x = torch.randn(1, 5, 8)
    trace = trace_function(looking_at_nothing(way), x)
    assert not trace.output[0, 2].any()
    step = next(step for step in trace.steps if "look at nothing" in step.note)
    assert step.verdict == "verified" and "8 of 40 cells" in step.note
    checked, opened = trace.check().step(step.id), tracer.open(serialization.to_bytes(trace)).step(step.id)
    assert (checked.verdict, checked.checked) == ("verified", 3) and opened.verdict == "verified"
    value = trace.later.values().tensor(step.id)
    value.view(-1, 8)[2, 1] = 0.5
    assert trace.later([step])[step.id].verdict == "refuted", "a kernel that gives no 0 there"


def test_a_softmax_of_nothing_by_hand_is_nan_and_not_compared():
    torch.manual_seed(0)
    trace = trace_function(looking_at_nothing(None, fused=False), torch.randn(1, 5, 8))
    last = trace.steps[-1]
    assert last.verdict == "verified" and "8 of 40 cells are NaN, in the equation and in the run alike" in last.note


def test_a_batch_norm_far_from_zero_is_off_by_what_its_kernel_cancels():
    norm = nn.BatchNorm1d(8)
    norm.running_mean.fill_(40)
    norm.running_var.fill_(0.01)
    trace = tracer.trace(nn.Sequential(norm).eval(), 40 + 0.1 * torch.randn(64, 8), symbols={"B": 0})
    assert [step.verdict for step in trace.steps] == ["verified"]
