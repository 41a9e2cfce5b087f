"""Decoding from a cache: the same logits as without, for less arithmetic; its lines are verified at other sizes."""

import re
from pathlib import Path

import pytest
import torch

import tracer
from tracer.spec import blocks
from tracer.tracing import counterfactual

OURS = "nanogpt", "llama", "vit-text"
FAMILIES = "hf:gpt2", "hf:llama", "hf:mistral", "hf:qwen3"


def last_row(output) -> torch.Tensor:
    """Return the logits of the last token, `[B, V]`, of a run with or without a cache."""
    logits = output[0] if isinstance(output, tuple) else output["logits"] if hasattr(output, "keys") else output
    return logits[:, -1]


@pytest.fixture(scope="module")
def cached_runs():
    """Return a checked run of each of our models that reads its last token after a cache."""
    return {name: counterfactual.check(tracer.load(name).trace(cache=True)) for name in OURS}


@pytest.mark.parametrize("name", OURS)
def test_the_last_token_after_a_cache_has_the_logits_of_the_whole_text(cached_runs, name):
    whole = tracer.load(name).trace(prove=False)
    assert torch.allclose(last_row(cached_runs[name].output), last_row(whole.output), atol=1e-4)
    assert cached_runs[name].flops * 8 < whole.flops


@pytest.mark.parametrize("name", OURS)
def test_its_lines_hold_on_other_runs_with_the_cache_as_a_size(cached_runs, name):
    trace = cached_runs[name]
    assert {step.verdict for step in trace.steps} == {"verified"}
    assert all(step.checked >= 2 and not step.note.startswith("It holds at the sizes") for step in trace.steps)
    key = trace.step("block1.attention.key")
    assert key.symbolic == ("B", "h_kv" if name == "llama" else "h", "T + T_past", "d_k")
    assert r"\mathbf{K}_{\mathrm{past}}^{(1)}\ ;\ \mathbf{K}_{\mathrm{new}}" in key.latex
    assert r"+ \mathbf{M}" in trace.step("block1.attention.scores").latex  # a row of zeros is a row of the mask, too


@pytest.mark.parametrize("name", OURS)
def test_the_cache_that_a_run_returns_is_the_one_that_it_took_and_one_column(cached_runs, name):
    model = tracer.load(name)
    inputs = model.decoder.inputs()
    _, now = model.net(*inputs, **inputs.named)
    for before, after in zip(inputs.named["past"], now, strict=True):
        for old, new in zip(before, after, strict=True):
            assert new.shape[2] == old.shape[2] + 1
            assert torch.equal(new[:, :, :-1], old)


def test_a_model_whose_earlier_tokens_look_ahead_keeps_no_cache():
    with pytest.raises(ValueError, match="mask='bidirectional' with a cache"):
        tracer.load("nanogpt", mask="bidirectional").trace(cache=True)


def test_positions_go_on_where_the_cache_ends(cached_runs):
    assert r"T_{\mathrm{past}} - N" in cached_runs["vit-text"].step("text_position").latex
    assert r"T_{\mathrm{past}}" in cached_runs["llama"].step("angles").latex
    assert r"{\mathbf{P}}_{[T_{\mathrm{past}}:" in cached_runs["nanogpt"].step("position").latex


def test_the_comment_on_the_line_that_appends_to_a_cache_is_what_the_run_solved(cached_runs):
    code = Path(blocks.__file__).read_text(encoding="utf-8")
    comment = re.search(r"cache\.append\(k, v\)  # \[(.+)\]$", code, re.MULTILINE)[1]
    appended = [op for op in cached_runs["nanogpt"].ops if op.op == "cat" and "self.keys" in op.source.text]
    assert comment.replace("S", "T").split(", ") == ["B", "h", "T_past+T", "d_k"]
    assert {op.outputs[0].symbolic for op in appended} == {("B", "h", "T + T_past", "d_k")}


def test_several_tokens_can_be_read_at_once(cached_runs):
    model = tracer.load("nanogpt")
    trace, whole = model.trace(cache=True, T=5), model.trace(prove=False)
    assert torch.allclose(trace.output[0], whole.output[:, -5:], atol=1e-4)
    equations = [step.latex for step in trace.steps]
    assert equations == [step.latex for step in cached_runs["nanogpt"].steps]


@pytest.mark.parametrize(
    "name", [*FAMILIES[:1], *(pytest.param(name, marks=pytest.mark.sweep) for name in FAMILIES[1:])]
)
def test_models_of_transformers_read_from_a_cache_too(name):
    pytest.importorskip("transformers")
    model = tracer.load(name)
    trace, whole = model.trace(text="The cat sat", cache=True), model.trace(text="The cat sat", prove=False)
    assert torch.allclose(last_row(trace.output), last_row(whole.output), atol=1e-4)
    assert {step.verdict for step in trace.steps} == {"verified", "recomputed"}  # fused attention leaves no scores
    assert any(step.symbolic[-2:-1] == ("T + T_past",) and "past" in step.latex for step in trace.steps)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("vit", None, "'vit' writes no text"),
        ("nanogpt", "a", "the text has T=1 tokens, expected 2 or more"),
        ("hf:mamba", None, "'hf:mamba' can't read from a cache: its cache has layers of the kind"),
        ("hf:bert", None, "'hf:bert' writes no text"),
    ],
)
def test_what_has_no_cache_is_refused_in_a_sentence(name, text, said):
    with pytest.raises(ValueError, match=said):
        tracer.load(name).trace(text=text, cache=True)


def test_a_change_with_a_cache_is_refused():
    with pytest.raises(ValueError, match=r"'zero'.* with a cache: its keys and values are those"):
        tracer.load("nanogpt").trace(cache=True, change={"block1.mlp.output": "zero"})
