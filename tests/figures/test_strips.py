"""The line of equations that stands by a picture."""

import json
import re

import numpy as np
import pytest

import tracer
from tracer import zoo
from tracer.attention import layers, parts
from tracer.figures import equation_strip
from tracer.figures.attention import attention_payload


@pytest.fixture(scope="module")
def clip():
    return tracer.load("clip", H=16, W=16, P=8, D=8, h=2, d_ff=8, L=2, D_e=4).trace()


def steps(markup: str) -> list[str]:
    return re.findall('data-step="([^"]*)"', markup)


def test_each_tower_has_its_own_scores_weights_and_mask(clip):
    image, text = (layers(clip, part)[1] for part in parts(clip))
    assert steps(equation_strip.of_attention(clip, image, "MSA")) == [
        "image.block2.attention.scores",
        "image.block2.attention.weights",
    ]
    assert steps(equation_strip.of_attention(clip, text, "MSA")) == [
        "text.mask",
        "text.block2.attention.scores",
        "text.block2.attention.weights",
    ]
    assert steps(equation_strip.of_attention(clip, text)) == ["text.block2.attention.weights"]


def test_a_line_has_the_equation_the_shape_twice_and_the_verdict(clip):
    step = clip.step("image.block1.attention.weights")
    line = equation_strip.lines([step])
    assert "<math" in line and "softmax" in line and "= [1, 2, 5, 5]" in line
    assert "Attention weights: ✓ proven</button>" in line


def test_the_first_look_has_the_equation_of_the_map_that_it_draws(clip):
    assert [step.id for step in equation_strip.answering(clip)] == ["image.block2.attention.weights", clip.steps[-1].id]


@pytest.mark.parametrize("name", ["vit", "clip", "mae", "vit-text", "nanogpt", "segmenter", "transformer"])
def test_the_equation_of_the_first_look_gives_the_weights_of_its_map(name):
    """The mean over the heads that the map packs is that of the tensor of the step whose equation is printed."""
    trace = tracer.load(name).trace()
    packed = attention_payload.glance(trace)
    (length,) = np.frombuffer(packed[:4], "<u4")
    head = json.loads(packed[4 : 4 + length])
    size = head["queries"] * head["keys"]
    drawn = np.frombuffer(packed[4 + length :], "<f4", size).reshape(head["queries"], head["keys"])
    step, answer = equation_strip.answering(trace)
    assert answer is trace.steps[-1]
    np.testing.assert_allclose(drawn, trace.value(step)[0].mean(0), atol=1e-6)


def test_an_attention_of_many_towers_in_one_has_its_own_weights():
    """The records of T5 count the decoder's blocks on, its steps begin anew: the op says which step it is."""
    trace = tracer.load("hf:t5", **zoo.tiny("hf:t5")).trace()
    lines = [steps(equation_strip.of_attention(trace, record)) for record in trace.attentions]
    assert len(lines) > 2 and len({line for (line,) in lines}) == len(lines)
