"""The line of equations that stands by a picture."""

import re

import pytest

import tracer
from tracer.attention import layers, parts
from tracer.figures import strips


@pytest.fixture(scope="module")
def clip():
    return tracer.load("clip", H=16, W=16, P=8, D=8, h=2, d_ff=8, L=2, D_e=4).trace()


def steps(markup: str) -> list[str]:
    return re.findall('data-step="([^"]*)"', markup)


def test_each_tower_has_its_own_scores_weights_and_mask(clip):
    image, text = (layers(clip, part)[1] for part in parts(clip))
    assert steps(strips.of_attention(clip, image, "MSA")) == [
        "image.block2.attention.scores",
        "image.block2.attention.weights",
    ]
    assert steps(strips.of_attention(clip, text, "MSA")) == [
        "text.mask",
        "text.block2.attention.scores",
        "text.block2.attention.weights",
    ]
    assert steps(strips.of_attention(clip, text)) == ["text.block2.attention.weights"]


def test_a_line_has_the_equation_the_shape_twice_and_the_verdict(clip):
    step = clip.step("image.block1.attention.weights")
    line = strips.lines([step])
    assert "<math" in line and "softmax" in line and "= [1, 2, 5, 5]" in line
    assert "Attention weights: ✓ proven</button>" in line


def test_the_first_look_is_of_the_last_weights_and_the_answer(clip):
    assert [step.id for step in strips.answering(clip)] == ["text.block2.attention.weights", clip.steps[-1].id]
