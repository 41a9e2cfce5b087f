"""ViT: its steps on the photo that is loaded first."""

import ast
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tracer
from tests.support.plain_block import plain_block
from tracer import models
from tracer.inputs.images import SAMPLES, sample_photo
from tracer.models import vit
from tracer.spec import blocks
from tracer.symbols.notation import parse
from tracer.tracing.proofs import same_size


@pytest.fixture(scope="module")
def model():
    return tracer.load("vit")


@pytest.fixture(scope="module")
def trace(model):
    return model.trace()


@pytest.mark.parametrize("name", [name for name in SAMPLES if name in models.card("vit")["classes"]])
def test_each_sample_of_its_classes_is_told_rightly(model, name):
    with torch.no_grad():
        scores = model.net(*model.inputs(image=sample_photo(name)))
    assert model.card["classes"][int(scores.argmax())] == name


def test_the_first_sample_is_told_with_ease(trace):
    scores = dict(zip(trace.result["classes"], trace.result["probabilities"], strict=True))
    assert scores[SAMPLES[0]] > 0.8
    assert sum(scores.values()) == pytest.approx(1)


def test_all_is_verified(trace):
    assert trace.coverage == 1
    assert {step.verdict for step in trace.steps} == {"verified"}
    assert not any("?" in step.symbolic for step in trace.steps)
    assert trace.notes == ()


def test_the_result_of_a_product_is_named_after_the_step_only_where_it_is_the_step(trace):
    names = {step.id: step.product[2].symbol for step in trace.steps if step.product}
    assert names["block1.attention.scores"] == r"\mathbf{Q}^{(1)}\,{\mathbf{K}^{(1)}}^{\top}"
    own = tracer.load("transformer").trace().step("block1.attention.output")  # without a bias
    assert own.product[2].symbol == own.symbol


def test_output_equals_the_plain_forward(model, trace):
    with torch.no_grad():
        assert torch.equal(trace.output, model.net(*model.inputs()))


def test_values_equal_a_plain_recomputation(model, trace):
    """By hand, with torch.nn.functional, from the same weights."""
    p, (image,) = dict(model.net.named_parameters()), model.inputs()
    patches = F.unfold(image, 4, stride=4).transpose(1, 2).unflatten(2, (3, 16)).transpose(2, 3).flatten(2)
    assert torch.equal(trace.value("patches"), patches)
    x = F.linear(patches, p["embedding.weight"], p["embedding.bias"])
    x = torch.cat([p["cls"].expand(1, 1, -1), x], 1) + p["position"]
    assert torch.allclose(trace.value("position"), x, atol=1e-5)
    for layer in range(1, 7):
        block = f"block{layer}"
        x = plain_block(x, p, block, 4)
        assert torch.allclose(trace.value(f"{block}.mlp.residual"), x, atol=1e-4)
        assert torch.allclose(trace.value(f"{block}.attention.weights"), trace.attention(layer - 1), atol=1e-6)


def test_a_strided_convolution_with_reordered_weights_embeds_the_same(model, trace):
    """Dosovitskiy's code embeds by a convolution, whose weights are channels-first; ours are channels-last."""
    weight = model.net.embedding.weight.unflatten(1, (4, 4, 3)).permute(0, 3, 1, 2)
    embedded = F.conv2d(model.inputs()[0], weight, model.net.embedding.bias, stride=4).flatten(2).transpose(1, 2)
    assert torch.allclose(trace.value("embedding"), embedded, atol=1e-5)


def test_steps_of_a_block_appear_once_per_block_with_its_number(trace):
    for layer in range(6):
        steps = [step for step in trace.steps if step.layer == layer]
        assert len(steps) == 14 and all(f"({layer + 1})" in step.symbol for step in steps)
        assert [step.id.split(".", 1)[1] for step in steps] == [
            step.id.split(".", 1)[1] for step in trace.steps if step.layer == 0
        ]
    outside = [step.id for step in trace.steps if step.layer is None]
    assert outside == ["patches", "embedding", "sequence", "position", "norm", "cls", "logits"]


def test_each_step_says_why_in_two_or_three_sentences(trace):
    for step in trace.steps:
        assert 2 <= len(re.findall(r"[.?](?= |$)", step.why)) <= 4, step.id
        assert len(step.why) < 300


def test_other_sizes_run_with_seeded_random_weights():
    model = tracer.load("vit", D=64, h=2, H=24, W=40, L=2)
    assert model.weights == "seeded random weights" and model.sizes["D"] == 64
    trace = model.trace()
    assert trace.steps[0].shape == (1, 60, 48) and trace.picture.rows == 6 and trace.picture.columns == 10
    assert trace.coverage == 1 and {step.verdict for step in trace.steps} == {"verified"}
    assert torch.equal(trace.output, tracer.load("vit", D=64, h=2, H=24, W=40, L=2).trace().output)


def test_a_batch_repeats_the_input(model, trace):
    four = model.trace(batch=4)
    assert four.output.shape == (4, 10)
    assert torch.allclose(four.output, trace.output.expand(4, 10), atol=1e-5)
    assert {step.verdict for step in four.steps} == {"verified"}


REFUSED_SIZES = [
    ({"N": 5}, r"N=5 can't be set, since N is derived \(N = H\*W/P\^2\): set H or W or P instead"),
    ({"S": 5}, "S=5 can't be set"),
    ({"d_k": 5}, r"d_k = D/h\): set D or h"),
    ({"B": 5}, "B is not a size of the weights but of the input"),
    ({"T": 5}, r"'vit' has no size 'T' \(text length in tokens\); its sizes are H, W, C"),
    ({"D": 100, "h": 3}, "D=100 is not divisible by h=3"),
    ({"H": 30}, "H=30, W=32 don't fit P=4"),
    ({"D": 0}, "D=0 is not a size"),
    ({"D": "64"}, "D='64' is not a size"),
    ({"L": 10**6}, "L=1,000,000 blocks are too many: at most 256 are built"),
    ({"D": 2**20}, r"has [\d,]+ parameters, [\d,]+ GB; at most 8 GB are allowed"),
]


@pytest.mark.parametrize(("sizes", "message"), REFUSED_SIZES, ids=lambda value: str(value)[:20])
def test_sizes_that_do_not_fit_are_refused_in_one_sentence(sizes, message):
    with pytest.raises(ValueError, match=message) as caught:
        tracer.load("vit", **sizes)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(ValueError, match="no model 'vitt'; did you mean 'vit'"):
        tracer.load("vitt")


def test_weights_from_a_file(tmp_path, model):
    from safetensors.torch import save_file

    save_file(model.net.state_dict(), tmp_path / "same.safetensors")
    again = tracer.load("vit", weights=tmp_path / "same.safetensors")
    assert torch.equal(again.trace().output, model.trace().output)
    assert again.trace().result["classes"][0] == "class 0"  # those of the shipped weights are not known of others
    with pytest.raises(ValueError, match=r"don't fit: 'cls' is \[128\] there, and \[64\] at these sizes"):
        tracer.load("vit", weights=tmp_path / "same.safetensors", D=64, h=2)
    (tmp_path / "broken.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        tracer.load("vit", weights=tmp_path / "broken.safetensors")
    with pytest.raises(ValueError, match=r"'lost\.safetensors' can't be read"):
        tracer.load("vit", weights="lost.safetensors")


def test_text_is_refused_in_words(model):
    with pytest.raises(ValueError, match="'vit' takes image, but was given a text"):
        model.trace(text="a cat")


def test_the_picture_keeps_the_photo_and_its_crop(trace):
    photo = sample_photo()
    assert tuple(trace.values["photo"].shape) == (photo.height, photo.width, 3)
    left, top, right, bottom = trace.picture.crop
    assert bottom - top == right - left == photo.height and left == (photo.width - photo.height) / 2
    assert trace.picture.first == 1 and [s.name for s in trace.segments] == ["CLS", "image"]


def test_names_and_cards_are_read_without_torch():
    import subprocess
    import sys

    code = "import sys, tracer.models as m; m.describe(); m.card('vit'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", [vit.__file__, blocks.__file__], ids=["vit", "blocks"])
def test_shape_comments_are_what_the_trace_solved(path, trace):
    """Each comment equals, as a formula, the last tensor that its line made; S stands for N+1."""
    first_block = [op for op in trace.ops if not re.match(r"block[2-9]", op.module)]
    checked, lines = 0, {op.source.line for op in trace.ops if path.endswith(op.source.file)}
    for line, text, comment in shape_comments(path, lines):
        made = [op for op in first_block if op.source.line == line and path.endswith(op.source.file)]
        if "get_submodule(name)(x)" in text:  # the block's ops have lines of their own
            made = [op for op in first_block if op.module.startswith("block1")]
        if not made:
            assert any(word in text for word in ("mask", "kept", "cache")), f"{path}:{line} did not run"
            continue
        said, solved = comment.replace("S", "N+1").split(", "), made[-1].outputs[0].symbolic
        assert len(said) == len(solved), f"{path}:{line} says [{comment}], the run {solved}"
        assert all(map(SAME, map(formula, said), map(formula, solved))), f"{path}:{line}: [{comment}] is {solved}"
        checked += 1
    assert checked >= 8


SAME = same_size((("N", "H*W/P**2"), ("d_k", "D/h")))


def formula(text):
    return parse(text.replace("P²C", "P**2*C").replace("·", "*"))


def shape_comments(path, ran: set[int]):
    """Return (line number, line, shape) of every line that ends in a comment such as `# [B, N+1, D]`, of each forward
    of which lines ran."""
    source = Path(path).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name == "forward"
            and ran & {*range(node.lineno, node.end_lineno)}
        ):
            for number in range(node.lineno, node.end_lineno + 1):
                text = source.splitlines()[number - 1]
                if found := re.search(r"#\s*\[(.+?)\]\s*$", text):
                    yield number, text, found.group(1)


def test_shipped_weights_are_small_and_their_card_is_complete():
    card = models.card("vit")
    assert (models.WEIGHTS / "vit.safetensors").stat().st_size <= 8 * 2**20
    assert {"sizes", "classes", "data", "steps", "accuracy", "date", "command"} <= card.keys()
    assert card["accuracy"] >= 0.70
