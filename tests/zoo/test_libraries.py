"""Models of libraries: verified at tiny sizes, attention equal to the library's own, refusals in one sentence."""

import json
import subprocess
import sys
from urllib.error import HTTPError, URLError

import numpy as np
import pytest
import torch

import tracer
from tests.cli.test_cli import refusal
from tests.support.loaded_models import load_tiny, run_tiny
from tests.support.sweeping import cases
from tracer import cli, models, verify, zoo
from tracer.attention import masks, parts
from tracer.figures import pipeline
from tracer.figures.mask_payload import labels
from tracer.utils.errors import reason

FAMILIES = [name for name in zoo.examples() if name.startswith("hf:")]
REQUIRED_MODELS = {"torchvision:vit_b_16", "timm:vit_base_patch16_rope_224", "hf:llama", "hf:paligemma"}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def tiny(name: str, **options):
    return tracer.load(name, **zoo.tiny(name), **options)


def test_all_libraries_are_installed_where_tests_run():
    assert set(zoo.examples()) >= REQUIRED_MODELS and set(zoo.libraries()) == {"torchvision", "timm", "hf"}


ALWAYS = ("torchvision:vit_b_16", "hf:llama")


@pytest.mark.parametrize("name", cases(zoo.examples(), ALWAYS))
def test_every_example_is_verified_at_tiny_sizes(name):
    report = verify.verify(name)
    assert verify.failures(report) == []
    assert report["solved"] == report["dims"] > 0 and report["identical"]
    assert report["coverage"] == 1 and report["verified"] == report["equations"] > 20


@pytest.mark.parametrize("name", cases(FAMILIES, ("hf:gpt2", "hf:clip")))
def test_attention_is_the_librarys_own(name):
    """Written out, the model gives its attentions away; fused, they are recovered from queries, keys and mask."""
    written = tiny(name, attention="eager")
    inputs = written.inputs()
    with torch.no_grad():
        said = written.net(*inputs, **inputs.named, output_attentions=True)
    own = {key: value for key, value in said.items() if key.endswith("attentions") and value}
    if not own:  # both towers in outputs of their own
        own = {key: said[key]["attentions"] for key in ("vision_model_output", "text_model_output")}
    for model in (written, tiny(name)):
        model.net.load_state_dict(written.net.state_dict())
        trace = model.trace()
        recovered = [trace.attention(layer, part=part) for part in parts(trace) for layer in range(_depth(trace, part))]
        assert not any(record.problem for record in trace.attentions)
        for theirs in (layer for layers in own.values() for layer in layers):
            assert any(ours.shape == theirs.shape and (ours - theirs).abs().max() < 1e-5 for ours in recovered)


def _depth(trace, part: str) -> int:
    return sum(record.part == part for record in trace.attentions)


@pytest.mark.sweep
@pytest.mark.parametrize("name", cases(("hf:vit", "hf:gpt2", "hf:bert", "hf:llama"), ("hf:llama",)))
def test_attention_written_out_is_covered_too(name):
    report = verify.report(load_tiny(name, attention="eager"))
    assert verify.failures(report) == [] and report["coverage"] == 1


RELATIVES = (
    "vit_small_patch32_224",
    "deit_tiny_patch16_224",
    "vit_base_patch16_clip_224",
    "vit_small_patch14_dinov2",
    "vit_small_patch14_reg4_dinov2",
    "vit_small_patch16_dinov3",
    "vit_so150m_patch16_reg4_gap_256",
    "eva02_tiny_patch14_224",
)


@pytest.mark.sweep
@pytest.mark.parametrize("name", cases(RELATIVES, RELATIVES[:1]))
def test_relatives_open_too_and_have_all_their_steps(name):
    report = verify.report(tiny(f"timm:{name}"))
    assert verify.failures(report) == [] and report["coverage"] == 1


def test_fused_attention_has_its_scores_and_weights_recomputed():
    trace = run_tiny("hf:gpt2")
    steps = {step.id: step for step in trace.steps}
    scores, weights = (steps[f"transformer.h.0.attention.{name}"] for name in ("scores", "weights"))
    for step in (scores, weights):
        assert step.recomputed and step.error is None and step.ops == () and not step.value
        assert step.symbolic == ("B", "h", "T", "T") and "fused" in step.note
    context = steps["transformer.h.0.attention.context"]
    assert not context.recomputed and context.error < 1e-5
    assert context.symbol == r"\mathbf{H}^{(1)}" and context.symbolic == ("B", "T", "d_k*h")


@pytest.mark.parametrize("name", ["hf:gpt2", "hf:llama"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_causal_mask_is_a_step_that_the_scores_take(name, attention):
    trace = run_tiny(name, attention=attention)
    mask = trace.step("mask")
    assert mask.recomputed == (attention == "sdpa") and mask.error == (None if mask.recomputed else 0)
    taken = trace.producers
    assert "one" in taken["mask"] and [id for id, ids in taken.items() if "one" in ids] == ["mask"]
    scores = [step.id for step in trace.steps if step.id.endswith("attention.scores")]
    assert [id for id, ids in taken.items() if "mask" in ids] == scores
    assert len(pipeline.lanes(trace.steps, taken)[0]) == 1
    assert ("fused op _scaled_dot_product" in mask.note) == mask.recomputed
    drawn = pipeline.pipeline(trace)
    assert "scalar" in drawn and "[]" not in drawn


RARE = ("hf:fuyu", "hf:llava", "hf:paligemma")
"""Models whose runs take longer, and whose masks are of a kind that others have, too."""
MASKS = (
    ("hf:bert", None, "bidirectional"),
    ("hf:gpt2", None, "causal"),
    ("hf:llama", None, "causal"),
    ("hf:fuyu", None, "causal"),
    ("hf:llava", "model.language_model", "causal"),
    ("hf:paligemma", "model.language_model", "prefix"),
    ("hf:paligemma", "model.vision_tower", "bidirectional"),
    ("torchvision:vit_b_16", None, "bidirectional"),
)


@pytest.mark.parametrize(("name", "part", "kind"), cases(MASKS, [case for case in MASKS if case[0] not in RARE]))
def test_masks_are_read_as_they_ran(name, part, kind):
    assert masks.kind(masks.visible(run_tiny(name), part=part)) == kind


@pytest.mark.sweep
def test_vit_b_16_has_the_cost_that_is_published():
    trace = tracer.load("torchvision:vit_b_16").trace(prove=False)
    assert trace.params == 86_567_656
    assert trace.flops == 2 * 17_563_828_224 and trace.coverage == 1


def test_random_weights_leave_no_zeros_that_a_library_starts_with():
    head = tiny("torchvision:vit_b_16").net.heads.head
    assert head.weight.any() and head.bias.any()


def test_where_weights_come_from_is_said():
    weights = tracer.load("torchvision:vit_b_32").weights
    assert "seeded random weights" in weights and "offline" in weights
    assert tiny("hf:bert").weights.startswith("a small configuration of the family with seeded random weights")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("torchvision:vit_b_15", ["'torchvision:vit_b_15'", "'torchvision:vit_b_16'"]),
        ("torchvison:vit_b_16", ["'torchvison'", "torchvision:vit_b_16"]),
        ("nothing:at-all", ["'nothing'", "torchvision:…", "hf:…"]),
        ("timm:vit_tiny_patch16_22", ["'timm:vit_tiny_patch16_22'", "'timm:vit_tiny_patch16_224'"]),
        ("hf:bertt", ["'hf:bertt'", "offline", "'hf:bert'"]),
        ("hf:some/model", ["'hf:some/model'", "offline", "gpt2"]),
        ("hf:/no/such/folder", ["'hf:/no/such/folder'", "config.json"]),
        ("hf:", ["'hf:'"]),
    ],
)
def test_an_unknown_name_is_refused_in_one_line(capsys, name, parts):
    line = refusal(capsys, "trace", name)
    assert all(part in line for part in parts), line


def test_a_model_too_large_is_refused_before_it_is_built(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACER_MODEL_GB", "0.2")
    line = refusal(capsys, "trace", "torchvision:vit_b_16")
    assert "86,567,656 parameters" in line and "at most 0.2 GB" in line


def test_a_configuration_too_large_for_weights_runs_without_values(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACER_MODEL_GB", "0.2")
    config = {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 8, "vocab_size": 32000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cli.main(["trace", f"hf:{tmp_path}"]) == 0
    output = capsys.readouterr()
    assert "no weights" in output.err and "4,836,171,776 parameters, 18 GB; at most 0.2 GB" in output.err
    assert "[1, 44, 8192]" in output.out
    assert cli.main(["trace", f"hf:{tmp_path}", "--level", "primitives"]) == 2
    assert "primitives=True needs values" in capsys.readouterr().err.splitlines()[-1]


def test_a_library_that_is_not_installed_is_named(capsys, monkeypatch):
    monkeypatch.setattr(zoo, "available", lambda prefix: False)
    assert "pip install timm" in refusal(capsys, "trace", "timm:vit_tiny_patch16_224")


def test_a_family_that_nobody_knows_is_told_apart(capsys, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_family"}))
    assert "no_such_family" in refusal(capsys, "trace", f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image": np.zeros((4, 4, 3), dtype=np.uint8)}, r"image=ndarray \[4, 4, 3\] uint8 .* expected a PIL image"),
        ({"image": torch.zeros(3, 4, 4)}, r"image=Tensor \[3, 4, 4\] float32 .* expected a PIL image"),
        ({"text": "a cat"}, "takes image, but was given a text"),
    ],
)
def test_a_wrong_input_is_explained(given, said):
    with pytest.raises(ValueError, match=said):
        tiny("hf:vit").trace(**given)


def test_the_visible_patches_of_a_masked_autoencoder_lie_where_its_own_shuffle_took_them_from():
    model = tiny("hf:vit_mae")
    run = model.trace(prove=False)
    places = next(segment.places for segment in run.segments if segment.name == "visible")
    shuffle = model.net(*model.inputs()).ids_restore[0].argsort().tolist()
    assert list(places) == run.result["visible"] == shuffle[: len(places)] != sorted(places)
    assert labels(run, "vit", 2)[1] == f"patch {places[0] + 1}"


def test_a_network_that_is_not_there_is_named_as_that():
    assert reason(URLError("no host")) == "no connection to the network: no host"
    assert reason(HTTPError("", 404, "Not Found", None, None)) == "HTTP Error 404: Not Found"


def test_a_model_without_attention_says_so_and_still_traces():
    with torch.no_grad():
        trace = tracer.trace(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), torch.randn(1, 3, 8, 8))
    assert [op.op for op in trace.ops] == ["convolution", "relu"]
    with pytest.raises(ValueError, match="no attention"):
        trace.attention(0)


def test_sizes_that_do_not_fit_are_refused_in_the_librarys_words(capsys):
    for name in ("torchvision:vit_b_16", "hf:bert", "timm:vit_tiny_patch16_224"):
        line = refusal(capsys, "trace", name, "--set", "D=65")
        assert "D=65" in line or "65" in line, line


def test_listing_models_imports_no_library():
    code = "import sys; from tracer import models; models.describe(); print([m for m in sys.modules if m in LIST])"
    code = code.replace("LIST", "('torch', 'torchvision', 'timm', 'transformers')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {model["name"] for model in models.describe()} >= {"vit", "torchvision:vit_b_16", "hf:gpt2"}
