"""Segmenter: step 10 of note 001, verified, and a recipe that learns."""

import pytest
import torch
import torch.nn.functional as F

import tracer
from tests.support.verified import assert_comments, assert_learns, assert_verified
from tracer import models
from tracer.inputs.synthetic import CLASSES, sample_scene, scene
from tracer.models import segmenter, training
from tracer.spec import blocks

TINY = {"P": 16, "D": 12, "h": 2, "d_ff": 20, "L": 1}


@pytest.fixture(scope="module")
def model():
    return tracer.load("segmenter")


@pytest.fixture(scope="module")
def trace(model):
    return assert_verified(model)


def test_shape_comments_are_what_the_trace_solved(trace):
    derived = {"N": "H*W/P**2", "d_k": "D/h"}
    assert assert_comments(segmenter, trace, derived) >= 11
    assert assert_comments(blocks, trace, derived, part="block1", S="N + 1") >= 8


@pytest.mark.parametrize(
    "sizes",
    [
        {"H": 40, "W": 24, "P": 4, "C": 1, "D": 20, "h": 5, "d_ff": 31, "L": 2, "K": 3},
        {"H": 30, "W": 20, "P": 10, "D": 14, "h": 1, "d_ff": 9, "L": 1, "K": 11},
    ],
)
def test_all_is_verified_at_other_sizes_and_batches(sizes):
    trace = assert_verified(tracer.load("segmenter", **sizes), batch=3)
    assert trace.output.shape == (3, sizes["H"], sizes["W"], sizes["K"])
    assert not any(op.note for op in trace.ops)


def test_numbers_of_the_note():
    """Note 001, step 10: 196 × 768 to 14 × 14 × 768 to 224 × 224 × K, with its own sizes elsewhere."""
    trace = tracer.load("segmenter", H=224, W=224, P=16, D=768, h=12, d_ff=3072, L=1, K=10).trace(prove=False)
    shapes = {step.id: step.shape for step in trace.steps}
    assert shapes["tokens"] == (1, 196, 768)
    assert shapes["grid"] == (1, 14, 14, 768)
    assert shapes["logits"] == (1, 224, 224, 10)


def test_values_equal_a_plain_recomputation(model, trace):
    """The decoder by hand: pixel shuffle puts each token's scores where its patch was cut from."""
    tokens = trace.value("norm")[:, 1:]
    assert torch.equal(trace.value("tokens"), tokens)
    assert torch.equal(trace.value("grid")[0, 2, 3], tokens[0, 2 * 8 + 3])
    cells = F.linear(tokens, model.net.decoder.weight, model.net.decoder.bias)  # [B, N, P²K]
    planes = cells.unflatten(2, (64, 6)).transpose(2, 3).flatten(2).transpose(1, 2).unflatten(2, (8, 8))
    assert torch.allclose(trace.output, F.pixel_shuffle(planes, 8).permute(0, 2, 3, 1), atol=1e-5)


def test_the_decoder_belongs_to_steps_of_its_own_and_the_rest_is_the_vit(trace):
    assert [step.id for step in trace.steps if step.stage == "decoder"] == ["tokens", "grid", "cells", "logits"]
    vit = tracer.load("vit", H=64, W=64, P=8, D=96, h=4, d_ff=384, L=3, K=6).trace(prove=False)
    shared = [(step.id, step.latex, step.why) for step in vit.steps if step.id not in ("cls", "logits")]
    assert [(step.id, step.latex, step.why) for step in trace.steps[:-4]] == shared


def test_where_note_and_run_differ_is_said(trace):
    assert "no value is interpolated" in trace.step("logits").note and "lightweight" in trace.step("cells").note


def test_the_result_is_a_class_for_every_pixel(model, trace, tmp_path):
    result = trace.result
    assert result["kind"] == "labels" and len(result["labels"]) == 64 == len(result["labels"][0])
    assert torch.equal(torch.tensor(result["labels"]), trace.output[0].argmax(-1))
    assert sum(result["shares"]) == pytest.approx(1) and len(result["shares"]) == len(result["classes"]) == 6
    trace.save(tmp_path / "run.safetensors")
    assert tracer.open(tmp_path / "run.safetensors").result == result
    assert trace.picture.first == 1 and (trace.picture.rows, trace.picture.columns) == (8, 8)
    assert [segment.name for segment in trace.segments] == ["CLS", "image"]


def test_any_scene_and_size_can_be_given(model):
    picture = scene(4).image().resize((90, 70))
    assert model.trace(image=picture, prove=False).output.shape == (1, 64, 64, 6)


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"H": 30}, "H=30, W=64 don't fit P=8"),
        ({"h": 5}, "D=96 is not divisible by h=5"),
        ({"N": 5}, "N=5 can't be set"),
        ({"T": 5}, "'segmenter' has no size 'T'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_in_one_sentence(sizes, words):
    with pytest.raises(ValueError, match=words) as raised:
        tracer.load("segmenter", **sizes)
    assert "\n" not in str(raised.value)


def test_the_recipe_learns_and_is_seeded(tmp_path):
    sizes = segmenter.SPEC.sizes | TINY
    settings = {"sizes": sizes, "batch": 4, "count": 24, "tests": 20, "warmup": 2, "rate": 1e-2, "bf16": False}
    made, net, card = assert_learns("segmenter", tmp_path, settings)
    assert card["classes"] == list(CLASSES) and card["sizes"] == sizes and 0 < card["iou"] < 1
    scored = made.score(net, made.read(None, "test"))
    assert scored == {key: card[key] for key in ("iou", "iou by class", "scenes")}


def test_intersection_over_union_is_counted_by_hand():
    """A net that says background everywhere, and one that knows."""
    made = training.recipe("segmenter", tests=100)
    drawn = made.read(None, "test")
    labels = torch.from_numpy(drawn.classes()).long()
    truth = iter(labels.split(100))

    def knows(pixels):
        return F.one_hot(next(truth), 6)

    assert made.score(knows, drawn)["iou"] == 1
    blind = made.score(lambda pixels: torch.eye(6)[0].expand(len(pixels), 64, 64, 6), drawn)
    assert blind["iou by class"]["background"] == pytest.approx((labels == 0).double().mean().item(), abs=1e-4)
    assert blind["iou by class"]["star"] == 0


@pytest.mark.parametrize(
    ("sizes", "words"),
    [({"K": 7}, "K=7: pixels of scenes have K = 6"), ({"H": 32}, r"scenes are drawn with H = W = 64 and C = 3")],
)
def test_recipes_refuse_sizes_that_scenes_do_not_have(sizes, words):
    with pytest.raises(ValueError, match=words):
        training.recipe("segmenter", sizes=segmenter.SPEC.sizes | sizes)


def test_shipped_weights_find_the_shapes(model, trace):
    card = models.card("segmenter")
    assert (models.WEIGHTS / "segmenter.safetensors").stat().st_size <= 3 * 2**20
    assert {"sizes", "classes", "data", "steps", "iou", "iou by class", "date", "command"} <= card.keys()
    assert card["iou"] >= 0.7
    assert trace.result["classes"] == list(CLASSES)
    found, true = torch.tensor(trace.result["labels"]), torch.from_numpy(sample_scene().classes())
    for number in (CLASSES.index("circle"), CLASSES.index("square")):
        both, either = ((found == number) & (true == number)).sum(), ((found == number) | (true == number)).sum()
        assert both / either >= 0.7
