"""Errata of the notes except those of note 003: the run's own version."""

import math

import pytest
import torch

from tests.support.note_runs import run
from tracer.lessons.notes import errata


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
    assert "longer one" in trace.step("position").note


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


def test_slip_linear_head():
    assert isinstance(run("vit")[0].net.head, torch.nn.Linear)


def test_slip_no_upsampling():
    """Each score of a pixel is one number of its patch's cell."""
    model, trace = run("segmenter")
    cells, pixels = trace.value("cells"), trace.value("logits")
    P, K = model.net.P, model.net.K
    assert torch.equal(pixels[0, P + 1, 2 * P + 3], cells[0, 1, 2].view(P, P, K)[1, 3])


def test_slip_single_multi():
    model, trace = run("transformer")
    own = trace.value("position")[0] @ model.net.block1.attention.query.weight.T[:, 4:8]
    assert torch.allclose(own, trace.value("block1.attention.query")[0, 1], atol=1e-5)


def test_slip_byte_pairs():
    """A byte has 256 values; the vocabulary of GPT-2 is 50,257 large."""
    from tracer.zoo.hf.hub import import_transformers

    assert 256 + 50_000 + 1 == 50_257
    assert (
        "16 bytes of “reverse this one” to 5 pieces" in errata.SLIPS["byte_pairs"].measure(run, "transformer").sentence
    )
    assert import_transformers().GPT2Config().vocab_size == 50_257


def test_slip_tubelets():
    """Statements of papers, which no run shows."""
    assert "Arnab et al. 2021" in errata.SLIPS["tubelets"].measure(run, "transformer").sentence


def test_slip_ts2vec():
    assert "Yue et al. 2022" in errata.SLIPS["ts2vec"].measure(run, "transformer").sentence


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
    from tests.lessons import test_claims

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
    assert run("vit-note")[0].net.embedding.weight.shape == (768, 768)


def test_slip_columns():
    """Query i is row i: it alone decides row i of the weights."""
    trace = run("vit")[1]
    q, k = trace.value("block1.attention.query"), trace.value("block1.attention.key")
    row = (q[..., 4, :] @ k[0, :, :, :].transpose(-2, -1)[None] / math.sqrt(q.shape[-1])).diagonal(dim1=1, dim2=2)
    assert torch.allclose(row.transpose(1, 2).softmax(-1), trace.attention(0, query=4), atol=1e-5)


def test_slip_thirds():
    model, trace = run("segmenter-note")
    assert model.net.block1.attention.d_k == 768 // 12 != 768 // 3
    assert trace.step("block1.attention.context").symbolic[-1] in ("d_k*h", "D")


def test_slip_last_norm_left_out():
    assert run("vit")[1].step("norm").ops


def test_slip_heads_undefined():
    trace = run("transformer")[1]
    assert trace.step("block1.attention.query").shape[1] == 3
    assert "defining H" in trace.step("block1.attention.context").note


def test_slip_references():
    """Targets of the links, by their identifiers, and the authors whom the note names."""
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
