"""Line of equations beside a picture."""

import re
from dataclasses import replace

import pytest

import tracer
from tracer import zoo
from tracer.attention import layers, parts
from tracer.figures import equations


@pytest.fixture(scope="module")
def clip():
    return tracer.load("clip", H=16, W=16, P=8, D=8, h=2, d_ff=8, L=2, D_e=4).trace()


def steps(markup: str) -> list[str]:
    return re.findall('data-step="([^"]*)"', markup)


def test_each_tower_has_its_own_scores_weights_and_mask(clip):
    image, text = (layers(clip, part)[1] for part in parts(clip))
    assert steps(equations.of_attention(clip, image, "MSA")) == [
        "image.block2.attention.scores",
        "image.block2.attention.weights",
    ]
    assert steps(equations.of_attention(clip, text, "MSA")) == [
        "text.mask",
        "text.block2.attention.scores",
        "text.block2.attention.weights",
    ]
    assert steps(equations.of_attention(clip, text)) == ["text.block2.attention.weights"]


def test_a_line_has_the_equation_the_shape_twice_and_the_verdict(clip):
    step = clip.step("image.block1.attention.weights")
    line = equations.lines([step])
    assert "<math" in line and "softmax" in line and "= [1, 2, 5, 5]" in line
    assert "Attention weights: ✓ verified on this run</button>" in line
    assert "Attention weights: ✓ verified on this run and 1 other</button>" in equations.lines(
        [replace(step, checked=1)]
    )


def test_an_attention_of_many_towers_in_one_has_its_own_weights():
    """The records of T5 count the decoder's blocks on, its steps begin anew: the op says which step it is."""
    trace = tracer.load("hf:t5", **zoo.tiny("hf:t5")).trace()
    lines = [steps(equations.of_attention(trace, record)) for record in trace.attentions]
    assert len(lines) > 2 and len({line for (line,) in lines}) == len(lines)


@pytest.mark.parametrize("change", ["weights=drop_heads(1)", "scores=unscale", "scores=zero", "query=zero"])
def test_the_lines_of_a_changed_attention_are_those_of_the_map_and_so_are_the_cells(change):
    model = tracer.load("vit", H=16, W=16, P=8, D=8, h=2, d_ff=8, L=2, K=3)
    line, _, text = change.partition("=")
    trace = model.trace(change={f"block2.attention.{line}": text})
    record, shown = trace.attentions[1], trace.attention(1)
    assert trace.value(equations.weights_step(trace, record)).equal(shown)
    expected = [f"block2.attention.{name}" for name in ("scores", "scores.changed", "weights", "weights.changed")]
    known = {step.id for step in trace.steps}
    assert steps(equations.of_attention(trace, record, "SA")) == [id for id in expected if id in known]
