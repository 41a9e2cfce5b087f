"""Every row of the five notes is reproduced by a run, or is a slip that a run shows."""

import math
import re
from collections import Counter

import notes
import pytest
import test_note_003
import torch
from note_checks import CHECKS, run

from tracer import models
from tracer.symbols import notation

ROWS = notes.rows()
COUNTS = {"000": 111, "001": 58, "002": 43, "003": 92, "004": 84}
"""Rows of each note, counted in the texts: table rows, items of step lists, displayed formulas."""


def test_no_row_of_the_notes_is_left_out():
    assert Counter(row.note for row in ROWS) == COUNTS
    assert not [row for row in ROWS if not row.where]


def test_every_slip_is_named_by_a_row_and_shown_by_a_test():
    named = {place.removeprefix("slip ") for row in ROWS for place in row.where if place.startswith("slip ")}
    assert named == notes.SLIPS.keys()
    tests = [*globals(), *vars(test_note_003)]
    shown = {name.removeprefix("test_slip_") for name in tests if name.startswith("test_slip_")}
    assert shown == notes.SLIPS.keys()
    assert all(sentence.endswith(".") and len(sentence) < 120 for sentence in notes.SLIPS.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.note} {row.section}: {row.text}"[:60])
def test_row(row):
    for place in row.where:
        kind, *words = place.split()
        CHECKS[kind](row, *words)


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


def test_no_size_means_two_things():
    assert len(set(notation.MEANINGS.values())) == len(notation.MEANINGS)
    jargon = re.compile(r"\b(logits|embedding|residual|projection|stream|table|axis|dimension)\b")
    assert not [meaning for meaning in notation.MEANINGS.values() if jargon.search(meaning) or len(meaning) > 90]


WAYS = [*models.names(), "transformer-relative", "nanogpt-separate", "vit-b-16"]


@pytest.mark.parametrize("name", WAYS)
def test_a_size_and_a_tensor_of_one_letter_are_told_apart(name):
    """A bold letter that is a size's too is known for what it is, and the steps of the run say the same."""
    trace = run(name)[1]
    sizes = [size.name for size in trace.symbols]
    told = notation.namesakes(sizes, [step.latex for step in trace.steps])
    for size in sizes:
        using = [step for step in trace.steps if rf"\mathbf{{{size}}}" in step.latex]
        assert (size in told) == bool(using), size
        made = [step for step in using if step.symbol.startswith(rf"\mathbf{{{size}}}")]
        if made:
            assert all(told[size] in (step.title.lower(), step.id) for step in made), size
        elif using and size != "W":  # weights of many names
            assert all(told[size] in step.title.lower() for step in using), size


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
