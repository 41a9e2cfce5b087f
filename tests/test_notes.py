"""Every row of the five notes is reproduced by a run, or is a slip that a run shows."""

import math
from collections import Counter
from functools import cache

import notes
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tracer
from tracer.models.vit import SPEC
from tracer.probe import value_of
from tracer.prove import TOLERANCE

ROWS = notes.rows()
COUNTS = {"000": 111, "001": 58, "002": 43, "003": 92, "004": 84}
"""Rows of each note, counted in the texts: table rows, items of step lists, displayed formulas."""


@cache
def run(name):
    """The model of a named run, and its trace."""
    model, config, given = notes.RUNS[name]
    model = tracer.load(model, **config)
    return model, model.trace(**given)


def test_no_row_of_the_notes_is_left_out():
    assert Counter(row.note for row in ROWS) == COUNTS
    assert not [row for row in ROWS if not row.where]


def test_every_slip_is_named_by_a_row_and_shown_by_a_test():
    named = {place.removeprefix("slip ") for row in ROWS for place in row.where if place.startswith("slip ")}
    assert named == notes.SLIPS.keys()
    shown = {name.removeprefix("test_slip_") for name in globals() if name.startswith("test_slip_")}
    assert shown == notes.SLIPS.keys()
    assert all(sentence.endswith(".") and len(sentence) < 120 for sentence in notes.SLIPS.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.note} {row.section}: {row.text}"[:60])
def test_row(row):
    for place in row.where:
        kind, *words = place.split()
        CHECKS[kind](row, *words)


def fits(row, shape) -> bool:
    """Whether a shape is the row's, axes of size 1 left out, a weight `[out, in]` read as `[in, out]`."""
    _, trace = run(row.run)
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    said = [value_of(size, sizes) for size in row.shape.split()]
    said, shape = ([size for size in sizes if size != 1] for sizes in (said, shape))
    return shape == said


def step(row, name):
    found = run(row.run)[1].step(name)
    assert found.error is not None and found.error <= TOLERANCE
    assert "?" not in found.symbolic
    assert fits(row, found.shape), f"{name} is {found.shape}, {found.symbolic}"


def param(row, path):
    shape = run(row.run)[0].net.get_parameter(path).shape
    assert fits(row, shape) or fits(row, shape[::-1]), f"{path} is {tuple(shape)}"


def given(row, name):
    trace = run(row.run)[1]
    shapes = [tensor.shape for op in trace.ops for tensor in op.inputs if tensor.maker == f"input {name}"]
    assert shapes and fits(row, shapes[0])


def size(row, name):
    trace = run(row.run)[1]
    value = next(symbol.value for symbol in trace.symbols if symbol.name == name)
    assert not row.shape or value == int(row.shape)


def op(row, function, module):
    ran = [op for op in run(row.run)[1].ops if op.module == module and op.function == function]
    assert any(fits(row, op.outputs[0].shape) for op in ran), [op.outputs[0].shape for op in ran]


def prim(row, name, wanted):
    made = decomposed(name)
    assert any(found == wanted and fits(row, shape) for found, shape in made), made


def count(row, name):
    assert COUNTED[name](), name


def claim(row, name):
    import test_claims

    assert callable(getattr(test_claims, f"test_{name}", None)), f"test_claims.py has no test_{name}"


def option(row, name):
    assert len(run(row.run)[0].spec.options[name]) > 1


def open_(row, name):
    assert name in tracer.models.names()


def named(table):
    def check(row, name):
        assert len(table[name]) > 20

    return check


CHECKS = {
    "step": step,
    "param": param,
    "input": given,
    "size": size,
    "op": op,
    "prim": prim,
    "count": count,
    "claim": claim,
    "option": option,
    "open": open_,
    "slip": named(notes.SLIPS),
    "issue": named(notes.ISSUES),
    "outside": named(notes.OUTSIDE),
}


@cache
def decomposed(name):
    """The ops, as (name, shape), of PyTorch's own decomposition of an op of block 1 at the run's sizes."""
    from torch._decomp import decomposition_table

    class Seen(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.ops = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            made = func(*args, **(kwargs or {}))
            first = made[0] if isinstance(made, tuple) else made
            self.ops.append((func._schema.name.removeprefix("aten::"), tuple(first.shape)))
            return made

    x, gamma = torch.randn(1, 197, 768), torch.randn(768)
    function = decomposition_table[getattr(torch.ops.aten, name).default]
    with Seen() as seen:
        out = function(x, [768], gamma, gamma, 1e-6)[0]
    assert torch.allclose(out, torch.nn.functional.layer_norm(x, [768], gamma, gamma, 1e-6), atol=1e-5)
    return seen.ops


BASE = SPEC.sizes | {"H": 224, "W": 224, "P": 16, "D": 768, "h": 12, "d_ff": 3072, "L": 12, "K": 1000}


@cache
def parameters(prefix: str) -> int:
    """Parameters of B/16's modules under a path, counted on `meta`."""
    with torch.device("meta"):
        net = SPEC.net(**BASE)
    return sum(value.numel() for name, value in net.named_parameters() if name.startswith(prefix))


COUNTED = {
    "layers": lambda: parameters("block12.") == parameters("block1.") and parameters("block13.") == 0,
    "norms": lambda: parameters("block1.norm") == 3072 and parameters("norm") == 1536,
    "attention": lambda: parameters("block1.attention.") == 2_362_368,
    "mlp": lambda: parameters("block1.mlp.") == 4_722_432,
    "block": lambda: round(parameters("block1.") / 1e6, 1) == 7.1,
    "encoder": lambda: round(parameters("block") / 1e6) == 85,
}


# Slips: what the run has instead.


def test_slip_ids():
    model, _ = run("nanogpt")
    last = torch.tensor([[16]])
    model.net(last)
    with pytest.raises(IndexError):
        model.net(last + 1)


def test_slip_positions():
    model, trace = run("nanogpt")
    assert model.net.positions.shape[0] == 11 and trace.step("position").shape[1] == 7
    added = trace.value("position") - trace.value("embedding")
    assert (added - model.net.positions[:7]).abs().max() < 1e-6
    assert "longer table" in trace.step("position").note


def test_slip_letters():
    """In the run the two things of each letter have symbols of their own."""
    trace = run("nanogpt")[1]
    symbols = [step.symbol for step in trace.steps]
    assert len(set(symbols)) == len(symbols)
    assert trace.step("mask").symbol != trace.step("block1.mlp.output").symbol


def test_slip_b_vocab():
    model, trace = run("nanogpt-separate")
    assert model.net.head.bias.shape == (17,)
    assert r"\mathbf{b}_{\mathrm{vocab}}" in trace.step("logits").latex and trace.step("logits").note


def test_slip_patches_causal():
    trace = run("vit-text")[1]
    weights, patches = trace.attention(0), 15
    assert weights[:, :, :patches, :patches].triu(1).max() == 0 and weights[:, :, 1, :2].min() > 0
    assert weights[:, :, patches:, :patches].min() > 0 and weights[:, :, :patches, patches:].max() == 0


def test_slip_first_word():
    """The output at the first text position is the first of all, and it comes from the first token's place."""
    trace = run("vit-text")[1]
    assert trace.step("sequence").shape[1] - trace.step("text").shape[1] == 15
    assert torch.equal(trace.value("text"), trace.value("norm")[:, 15:])


def test_slip_add_and_norm():
    trace = run("vit-text")[1]
    summed = trace.step("block1.attention.residual")
    assert [trace.ops[i].op for i in summed.ops] == ["add"]


def test_slip_two_dimensions():
    model, _ = run("vit-text")
    assert model.net.image_positions.shape == (15, 14)


def test_slip_epsilon():
    model, trace = run("vit-note")
    x, norm = trace.value("position").double(), model.net.block1.norm1
    normed, eps = trace.value("block1.norm1").double(), 0.5
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    ran = (x - mean) / (variance + norm.eps).sqrt() * norm.weight + norm.bias
    assert (ran - normed).abs().max() < 1e-5
    assert not torch.allclose((x - mean) / (variance.sqrt() + eps), (x - mean) / (variance + eps).sqrt(), rtol=1e-2)
    assert "√(σ² + ε)" in trace.step("block1.norm1").note


def test_slip_invariant():
    assert "equivariant" in run("vit-note")[1].step("position").note


def test_slip_symmetric():
    import test_claims

    test_claims.test_a_shared_projection_has_symmetric_scores()


def test_slip_channels_last():
    model, trace = run("vit-note")
    (image,) = model.inputs()
    assert torch.equal(trace.value("patches")[0, 0, :3], image[0, :, 0, 0])


def test_slip_no_last_norm():
    ran = {op.module for op in run("vit-note")[1].ops if op.op == "native_layer_norm"}
    assert ran == {"block1.norm1", "block1.norm2"}


def test_slip_anomaly_in_pixels():
    assert run("mae")[1].step("prediction").note


def test_slip_higher():
    assert run("vit-b-16")[0].net.embedding.weight.shape == (768, 768)


def test_slip_columns():
    """Query i is row i: it alone decides row i of the weights."""
    trace = run("vit")[1]
    q, k = trace.value("block1.attention.query"), trace.value("block1.attention.key")
    row = (q[..., 4, :] @ k[0, :, :, :].transpose(-2, -1)[None] / math.sqrt(4)).diagonal(dim1=1, dim2=2)
    assert torch.allclose(row.transpose(1, 2).softmax(-1), trace.attention(0, query=4), atol=1e-5)


def test_slip_thirds():
    model, trace = run("vit-b-16")
    assert model.net.block1.attention.d_k == 768 // 12 != 768 // 3
    assert trace.step("block1.attention.context").symbolic[-1] in ("d_k*h", "D")


def test_slip_last_norm_left_out():
    assert run("vit")[1].step("norm").ops


def test_slip_positions_missing():
    assert [op for op in run("vit-b-16")[1].ops if "position" in op.parameters]


def test_slip_dropout():
    """Dropout in evaluation, as torchvision has it in every block, runs no op."""
    block = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.1)).eval()
    assert not [op for op in tracer.trace(block, torch.randn(1, 3)).ops if "dropout" in op.op]


def test_slip_seven_steps():
    ops = [name for name, _ in decomposed("native_layer_norm")]
    assert Counter(ops) == {"var_mean": 1, "add": 2, "rsqrt": 1, "sub": 1, "mul": 2}


def test_slip_view_mixes():
    """Read as (197, N·12, 64) without a transpose, the second image's numbers are in the first image's heads."""
    N, S, h, d_k = 2, 197, 12, 64
    image = torch.arange(N).view(N, 1, 1).expand(N, S, h * d_k).contiguous()
    wrong = image.view(S, N * h, d_k).transpose(0, 1)  # [N·h, S, d_k]
    right = image.transpose(0, 1).contiguous().view(S, N * h, d_k).transpose(0, 1)
    assert len(wrong[:h].unique()) == 2 and right[:h].unique().tolist() == [0]


def test_slip_exact_gelu():
    trace = run("vit-b-16")[1]
    assert not [op for op in trace.ops if op.op in ("tanh", "pow")]
    hidden, active = (trace.value(f"block1.mlp.{name}").double() for name in ("hidden", "activation"))
    exact = hidden * (1 + (hidden / math.sqrt(2)).erf()) / 2
    assert (active - exact).abs().max() < 1e-6
    assert (active - torch.nn.functional.gelu(hidden, approximate="tanh")).abs().max() > 1e-5


class EncoderBlock(torch.nn.Module):
    """The modules of torchvision's encoder block, with attention weights asked for."""

    def __init__(self, D: int = 12, h: int = 3, d_ff: int = 23):
        super().__init__()
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(D, eps=1e-6), torch.nn.LayerNorm(D, eps=1e-6)
        self.self_attention = torch.nn.MultiheadAttention(D, h, batch_first=True)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(D, d_ff), torch.nn.GELU(), torch.nn.Linear(d_ff, D))

    def forward(self, x):
        normed = self.ln_1(x)
        x = x + self.self_attention(normed, normed, normed, need_weights=True)[0]
        return x + self.mlp(self.ln_2(x))


@cache
def standard_path():
    """The ops of such a block."""
    with torch.no_grad():
        return [op.op for op in tracer.trace(EncoderBlock().eval(), torch.randn(2, 5, 12)).ops]


def test_slip_six_products():
    products = [op for op in standard_path() if op in ("addmm", "mm", "bmm", "baddbmm", "linear")]
    assert len(products) == 6


def test_slip_seven_unary():
    """Two layer norms with an rsqrt each, GELU and softmax; note 003's ten count the steps of the other GELU."""
    unary = [op for op in standard_path() if op in ("gelu", "_softmax", "tanh", "pow", "rsqrt")]
    assert unary == ["_softmax", "gelu"]
    assert [name for name, _ in decomposed("native_layer_norm")].count("rsqrt") == 1


def test_slip_four_means():
    assert standard_path().count("native_layer_norm") == 2
    assert [name for name, _ in decomposed("native_layer_norm")].count("var_mean") == 1


def test_slip_never_run():
    assert not {"chunk", "split", "div", "pow", "tanh"} & set(standard_path())


def test_slip_two_norms():
    assert parameters("block1.norm") == 2 * 2 * 768 == 3072


def test_slip_heads_undefined():
    trace = run("transformer")[1]
    assert trace.step("block1.attention.query").shape[1] == 3
    assert "what H is" in trace.step("block1.attention.context").note


def test_slip_references():
    """What the links lead to, by their identifiers, and whom the note names."""
    said = {"1508.06615": "Zhang et al., 2015", "P96-1041": "Brown et al., 1996"}
    papers = {"1508.06615": "Kim et al., 2016", "P96-1041": "Chen and Goodman, 1996"}
    assert all(said[link] != papers[link] for link in said)


def test_slip_no_root():
    model, trace = run("transformer")
    (tokens,) = model.inputs(T=7)
    assert torch.equal(trace.value("embedding"), model.net.tokens.weight[tokens])


def test_slip_relative_not_added():
    trace = run("transformer-relative")[1]
    assert "position" not in [step.id for step in trace.steps]
    assert "embedding" in [step.id for step in trace.steps] and trace.step("block1.attention.relative").layer == 0


def test_slip_log_mask():
    mask = torch.full((3, 3), -math.inf).triu(1)
    assert not mask.log().isfinite().any()
    weights = run("transformer-causal")[1].attention(0)
    assert weights.triu(1).max() == 0 and torch.allclose(weights.sum(-1), torch.ones(()), atol=1e-5)


def test_slip_key_rows():
    trace = run("transformer")[1]
    k = trace.value("block1.attention.key")
    assert k.shape[-2] == 7 and trace.value("block1.attention.scores").shape[-1] == 7
