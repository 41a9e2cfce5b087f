"""A model on the device `meta`: shapes, symbols and costs at any size, checked against runs with values."""

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tracer
from tests.support.sweeping import cases
from tracer import models
from tracer.record import costs
from tracer.spec.spec import META

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16384,
    "intermediate_size": 53248,
    "num_hidden_layers": 126,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
"""The configuration of Llama-3.1-405B."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with the configuration of Llama-3.1-405B alone."""
    path = tmp_path_factory.mktemp("llama-405b")
    (path / "config.json").write_text(json.dumps(LLAMA))
    return f"hf:{path}"


@pytest.fixture(scope="module")
def large(folder):
    """Two blocks of it: 10.6 billion parameters."""
    return tracer.load(folder, values=False, L=2)


@pytest.fixture(scope="module")
def prefill(large):
    return large.trace(values=False, T=8192)


@pytest.fixture(scope="module")
def decode(large):
    return large.trace(values=False, T=1, T_past=8191)


def test_a_deep_run_has_the_sizes_of_a_run_with_values():
    real = tracer.load("nanogpt", L=6).trace(prove=False)
    empty = tracer.load("nanogpt", L=6, values=False).trace(values=False)
    assert [op.op for op in empty.ops] == [op.op for op in real.ops]
    for mine, theirs in zip(empty.ops, real.ops, strict=True):
        assert [(x.shape, x.symbolic) for x in (*mine.inputs, *mine.outputs)] == [
            (x.shape, x.symbolic) for x in (*theirs.inputs, *theirs.outputs)
        ]
    assert [(step.id, step.latex, step.symbolic, step.shape) for step in empty.steps] == [
        (step.id, step.latex, step.symbolic, step.shape) for step in real.steps
    ]
    assert (empty.params_symbolic, empty.flops_symbolic) == (real.params_symbolic, real.flops_symbolic)


@pytest.mark.parametrize("name", cases(models.names(), ("vit", "transformer")))
def test_every_model_runs_without_values_as_with_them(name):
    model = tracer.load(name)
    real, empty = model.trace(prove=False), model.trace(values=False)
    assert [(step.symbolic, step.shape) for step in empty.steps] == [(step.symbolic, step.shape) for step in real.steps]
    assert (empty.params, empty.flops, empty.flops_symbolic) == (real.params, real.flops, real.flops_symbolic)
    assert model.net is not None and not next(model.net.parameters()).is_meta


def test_nothing_that_was_not_executed_is_green(prefill):
    assert {step.verdict for step in prefill.steps} == {"not executed"}
    verified = [step for step in prefill.steps if step.note.endswith("verified on 2 blocks of width 96.")]
    assert len(verified) > 0.8 * len(prefill.steps)
    assert any(
        note.startswith("shapes at this size; equations verified on 2 blocks of width 96") for note in prefill.notes
    )


def test_a_line_that_the_twin_refutes_is_not_said_to_be_verified(monkeypatch):
    from tracer.expr.norms import LayerNorm

    right = LayerNorm.run
    monkeypatch.setattr(LayerNorm, "run", lambda self, *values: right(self, *values) * 1.01)
    trace = tracer.load("nanogpt", values=False).trace(values=False)
    norms = [step for step in trace.steps if step.stage == "norm"]
    assert norms and not any("verified" in step.note for step in norms)
    assert any("verified" in step.note for step in trace.steps)


def test_no_weights_are_made(large, prefill):
    assert large.device == META and all(parameter.is_meta for parameter in large.net.parameters())
    assert prefill.params == sum(parameter.numel() for parameter in large.net.parameters()) == 10_578_116_608
    assert not prefill.values and prefill.weights.startswith("no weights")
    with pytest.raises(ValueError, match="has no weights here, only shapes: expected values=False"):
        large.trace(T=4)


def test_the_cache_is_that_of_the_run(prefill, decode):
    count, formula = costs.cache_elements(prefill)
    assert formula == "2*B*L*T*d_k*h_kv" and count == 2 * 2 * 8192 * 128 * 8
    assert {tensor.symbolic for tensor in costs.cached_tensors(prefill)} == {("B", "h_kv", "T", "d_k")}
    count, formula = costs.cache_elements(decode)
    assert formula == "2*B*L*d_k*h_kv*(T + T_past)" and count == 2 * 2 * 8192 * 128 * 8


def test_one_token_costs_what_its_products_cost(decode):
    D, d_ff, h, h_kv, d_k, V, S = 16384, 53248, 128, 8, 128, 128256, 8192
    block = 2 * D * (2 * h * d_k + 2 * h_kv * d_k + 3 * d_ff) + 4 * h * d_k * S
    assert decode.flops == 2 * block + 2 * D * V
    assert "?" not in decode.flops_symbolic and "T_past" in decode.flops_symbolic


@pytest.mark.parametrize("trace", ["prefill", "decode"])
def test_the_parts_add_up(request, trace):
    run = request.getfixturevalue(trace)
    parts = costs.parts(run)
    at = {size.name: size.value for size in run.symbols}
    assert sum(part.params for part in parts) == run.params and sum(part.flops for part in parts) == run.flops
    assert next(part.flops for part in parts if part.part == costs.SCORES) > 0
    for part in parts:
        for number, formula in ((part.params, part.params_symbolic), (part.flops, part.flops_symbolic)):
            assert costs.evaluate(formula, at) == number
        assert costs.evaluate(part.numbers_symbolic, at) == part.numbers


FAMILIES = ("llama", "gpt2", "mixtral", "deepseek_v3", "bert", "vit", "t5", "mamba", "qwen3_moe", "gemma2")


@pytest.mark.parametrize("family", cases(FAMILIES, ("mixtral",)))
def test_flops_are_those_of_the_counter(family):
    model = tracer.load(f"hf:{family}", values=False)
    trace = model.trace(values=False)
    inputs = model.inputs()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output = model.net(*inputs, **inputs.named)
    assert trace.flops == pytest.approx(counter.get_total_flops(), rel=1e-3)
    at = {size.name: size.value for size in trace.symbols}
    assert costs.evaluate(trace.flops_symbolic, at) == trace.flops
    count, formula = costs.cache_elements(trace)
    assert costs.evaluate(formula, at) == count == _cache_size(output)


def _cache_size(output) -> int:
    """Return the number of elements of a cache, counted on transformers' own objects."""
    cache = output.get("past_key_values")
    caches = [getattr(cache, f"{kind}_attention_cache", None) for kind in ("self", "cross")]
    layers = [layer for part in (caches if any(caches) else [cache]) if part is not None for layer in part.layers]
    if (states := output.get("cache_params")) is not None:
        groups = [group for layer in states.layers for group in (layer.conv_states, layer.recurrent_states)]
        tensors = [tensor for group in groups for tensor in (group.values() if isinstance(group, dict) else group)]
        return sum(tensor.numel() for tensor in tensors)
    return sum(layer.keys.numel() + layer.values.numel() for layer in layers)


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("hf:bert", {"T_past": 5}, "'hf:bert' writes no text, so it keeps no cache of keys and values"),
        ("vit", {"T_past": 5}, "'vit' writes no text, so it keeps no cache of keys and values"),
        ("nanogpt", {"T_past": 500}, "T=501 tokens are too many: the model reads at most T_max=128"),
        ("nanogpt", {"S": 3}, "S=3 is not a size of this input; B and T can be given"),
        ("hf:llava", {}, "'hf:llava' does not run at B=1, T=44 without values: it asks for the values of tensors"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(name, sizes, message):
    with pytest.raises(ValueError) as caught:
        tracer.load(name, values=False).trace(values=False, **sizes)
    assert str(caught.value).startswith(message) and "\n" not in str(caught.value)


def test_a_configuration_that_nobody_knows_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_family"}))
    with pytest.raises(ValueError, match=r"the configuration of 'hf:.*' can't be read"):
        tracer.load(f"hf:{tmp_path}", values=False)


def test_a_configuration_alone_runs_with_random_weights_where_they_fit(tmp_path):
    small = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | small | {"num_hidden_layers": 2, "vocab_size": 300}))
    model = tracer.load(f"hf:{tmp_path}")
    assert "holds a configuration, and no weights" in model.weights
    assert model.trace(T=5).step("logits").verdict == "verified"


@pytest.mark.sweep
def test_all_126_blocks_are_traced(folder):
    model = tracer.load(folder)
    trace = model.trace(values=False, T=8192)
    assert trace.params == 405_853_388_800 and len(trace.ops) > 12_000
    assert max(step.layer for step in trace.steps if step.layer is not None) == 125
    assert not any("?" in (x.symbolic or ()) for op in trace.ops for x in (*op.inputs, *op.outputs))
