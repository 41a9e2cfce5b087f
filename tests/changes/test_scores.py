"""Scores computed again without their mask or their scale, wherever a model's code has these."""

import pytest
import sympy
import torch
from torch import nn

import tracer
from tests.support.loaded_models import load, load_tiny
from tests.support.sweeping import cases
from tracer.expr import Tensor as Node
from tracer.record import split_id
from tracer.tracing import records

SIZE = 5
CAUSAL = torch.ones(SIZE, SIZE).tril().bool()


class Attention(nn.Module):
    """Attention with three heads, whose mask and scale stand where `style` says; `[B, T, D]` in and out."""

    def __init__(self, style):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(3, SIZE, SIZE))
        self.register_buffer("mask", CAUSAL)
        self.register_buffer("float_mask", torch.zeros(SIZE, SIZE).masked_fill(~CAUSAL, -torch.inf))
        self.style = style

    def scores(self, q, k):
        """Return the scores without mask and scale, for comparison."""
        return q @ k.mT + (self.bias if self.style == "bias" else 0)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (3, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attend = nn.functional.scaled_dot_product_attention
        match self.style:
            case "flag":
                return attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
            case "scale":
                return attend(q, k, v, self.mask, scale=0.3).transpose(1, 2).flatten(2)
            case "float mask":
                return attend(q, k, v, self.float_mask).transpose(1, 2).flatten(2)
            case "query":
                scores = (0.3 * q) @ k.mT
            case "line":
                scores = (self.query(x) * 0.3).unflatten(-1, (3, 4)).transpose(1, 2) @ k.mT
            case "both":
                scores = (q * 0.6) @ (k * 0.5).mT
            case "bias":
                scores = q @ k.mT / 2 + self.bias
            case _:
                scores = q @ k.mT / 2
        weights = scores.masked_fill(~self.mask, torch.finfo(x.dtype).min).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


STYLES = ("flag", "scale", "float mask", "query", "line", "both", "bias", "quotient")


def run(style, change):
    """Return a changed run, and its scores without mask and scale."""
    torch.manual_seed(0)
    net, x = Attention(style), torch.randn(1, SIZE, 12)
    with torch.no_grad():
        trace = tracer.trace(net, x, symbols={"B": 0}, change={"attention.scores": change})
        q, k = (layer(x).unflatten(-1, (3, 4)).transpose(1, 2) for layer in (net.query, net.key))
        return trace, net.scores(q, k), net


@pytest.mark.parametrize("style", STYLES)
def test_the_scale_is_taken_away_wherever_it_stands(style):
    trace, scores, _ = run(style, "unscale")
    expected = scores.masked_fill(~CAUSAL, -torch.inf).softmax(-1)
    torch.testing.assert_close(trace.attention(0), expected, rtol=1e-4, atol=1e-5)
    assert {step.verdict for step in trace.steps} == {"verified"}


@pytest.mark.parametrize("style", STYLES)
def test_a_closed_mask_is_opened_wherever_it_is_added(style):
    trace, scores, net = run(style, "bidirectional")
    factor = 0.3 if style in ("scale", "query", "line", "both") else 0.5
    expected = ((scores - net.bias) * factor + net.bias if style == "bias" else scores * factor).softmax(-1)
    torch.testing.assert_close(trace.attention(0), expected, rtol=1e-4, atol=1e-5)
    assert {step.verdict for step in trace.steps} == {"verified"}


MASKED_MODELS = "nanogpt", "vit-text", "hf:gpt2", "hf:llama", "hf:bloom", "hf:falcon", "hf:mpt", "hf:codegen"
OPENING_CHANGES = ["bidirectional", "prefix(3)", "open(4;1,2)", ["bidirectional", "window(2)"]]
ALL_PAIRS = [(name, change) for name in MASKED_MODELS for change in OPENING_CHANGES]
QUICK_PAIRS = [("hf:gpt2", change) for change in OPENING_CHANGES]


@pytest.mark.parametrize(("name", "change"), cases(ALL_PAIRS, QUICK_PAIRS))
def test_masks_of_models_are_opened(name, change):
    model = load(name)
    trace = model.trace(change={"*.attention.scores": change})
    assert {step.verdict for step in trace.steps} <= {"verified", "recomputed"}
    size = trace.attentions[0].queries
    row, column = torch.arange(size)[:, None], torch.arange(size)
    causal = column <= row
    visible = {
        "bidirectional": torch.ones(size, size).bool(),
        "prefix(3)": causal | (column < 3),
        "open(4;1,2)": causal | (column == 4) & ((row == 1) | (row == 2)),
    }.get(str(change), (column - row).abs() < 2)
    for layer in range(len(trace.attentions)):
        assert torch.equal(trace.attention(layer)[0, 0] > 0, visible)
    assert not any(step.recomputed for step in trace.steps if split_id(step.id)[1] == "weights")


def test_sizes_that_no_operand_has_alone_are_read_from_the_lines_before():
    trace = tracer.load("hf:codegen").trace(change={"*.attention.scores": "unscale"})
    assert {step.verdict for step in trace.steps} <= {"verified", "recomputed"}


def test_a_size_follows_from_a_length_that_has_it_in_a_linear_formula():
    n, m, h, d = sympy.symbols("N M H D")
    tensor = Node("x", (n + 1, 2 * d, m**2, sympy.floor(h / 2), n + h, sympy.Integer(3)), "")
    assert records._known_sizes(tensor) == {n, d}
    trace = load_tiny("hf:vit_mae").trace(change={"vit.layers.0.attention.scores": "unscale"}, prove=False)
    assert "\\sqrt{d_k}" not in trace.step("vit.layers.0.attention.weights").latex


def test_scores_without_a_mask_or_a_scale_say_so(vit):
    t5 = load("hf:t5")
    with pytest.raises(ValueError, match="can't be changed by bidirectional: its equation has no mask, so every query"):
        vit.with_changes({"block1.attention.scores": "bidirectional"})
    with pytest.raises(ValueError, match="can't be changed by unscale: they are not divided by √d_k"):
        t5.with_changes({"encoder.block.0.attention.scores": "unscale"})


def test_a_mask_that_is_an_input_is_opened_and_scores_that_read_another_input_are_not():
    class Given(Attention):
        def forward(self, x, given):
            q, k, v = (layer(x).unflatten(-1, (3, 4)).transpose(1, 2) for layer in (self.query, self.key, self.value))
            return ((q @ k.mT / 2 + given).masked_fill(~self.mask, -torch.inf).softmax(-1) @ v).sum(1)

    torch.manual_seed(0)
    net, x = nn.MultiheadAttention(12, 3, batch_first=True).eval(), torch.randn(1, SIZE, 12)
    with torch.no_grad():
        trace = tracer.trace(net, x, x, x, attn_mask=~CAUSAL, change={"attention.scores": "bidirectional"})
        torch.testing.assert_close(trace.output[0], net(x, x, x)[0])
        with pytest.raises(ValueError, match="its equation reads 'input given', which is no line and no parameter"):
            tracer.trace(Given(""), x, torch.randn(SIZE, SIZE), change={"attention.scores": "bidirectional"})
