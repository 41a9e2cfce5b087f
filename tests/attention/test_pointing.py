"""Pointing of words: a net with known attention, and a scene with a known object."""

import pytest
import torch

import tracer
from tracer import models
from tracer.attention.head_effects import region
from tracer.inputs import synthetic
from tracer.inputs.synthetic import SHAPES
from tracer.models.training.evaluation import pointing


class Pointing(torch.nn.Module):
    """Stand-in for a net whose last word row of attention is known: all on one patch."""

    N, P = 16, 16

    def __init__(self, patch: int):
        super().__init__()
        self.patch = patch

    def forward(self, image, tokens):
        B, S = len(image), 16 + tokens.shape[1]
        q = torch.ones(B, 1, S, 1)
        k = torch.zeros(B, 1, S, 1)
        k[:, :, self.patch] = 9
        return (q @ k.transpose(-2, -1)).softmax(-1) @ k


def test_pointing_is_counted_by_hand():
    """One large circle in the middle of the picture overlaps the four patches in the middle, not the corner."""
    middle = synthetic.Scene((synthetic.SceneObject("circle", "red", "large", 32.0, 32.0, 10.0),))
    for patch, share in ((5, 1.0), (0, 0.0)):
        figures = pointing(Pointing(patch), [synthetic.gather([middle] * 2)])
        assert figures["pointing, mean over heads"] == {"layer": 0, "share": share}
        assert figures["pointing of the word itself, best head"] == {"layer": 0, "head": 0, "share": share}
        assert figures["pointing by chance"] == 0.25


def test_a_region_is_the_row_of_the_token_before():
    model = tracer.load("vit-text")
    trace = model.trace(prove=False)
    first = trace.segments[1].start
    for place in (1, 4, len(trace.words)):
        row = trace.attention(layer=2, head=1, query=first + place - 1)[0]
        assert torch.equal(region(trace, place, 2, 1).flatten(), row[:first])
    mean = trace.attention(layer=1)[0, :, first + 2, :first].mean(0)
    assert torch.allclose(region(trace, 3, 1).flatten(), mean)
    for place in (0, len(trace.words) + 1):
        with pytest.raises(ValueError, match=f"place={place} is outside this run's text, expected 1 to"):
            region(trace, place, 0)
    with pytest.raises(ValueError, match="no picture and text in one sequence"):
        region(tracer.load("nanogpt", L=1).trace(prove=False), 1, 0)


def test_colour_and_shape_words_of_the_sample_point_at_their_object():
    """By the attentions that the card names, and that the result carries."""
    trace, scene = tracer.load("vit-text").trace(prove=False), synthetic.sample_scene()
    card = models.card("vit-text")
    assert trace.result["pointing"] == [card["pointing, best head"], card["pointing, mean over heads"]]
    for found in trace.result["pointing"]:
        for place, (word, number) in enumerate(scene.mentions, start=1):
            if word in (*synthetic.COLOURS, *SHAPES):
                shares = region(trace, place, found["layer"], found.get("head"))
                row, column = divmod(int(shares.argmax()), 8)
                x0, y0, x1, y1 = scene.things[number].box
                assert column * 8 < x1 and column * 8 + 8 > x0 and row * 8 < y1 and row * 8 + 8 > y0, word


def test_what_was_measured_under_one_mask_is_not_said_of_another():
    assert tracer.load("vit-text", mask="prefix").trace(prove=False).result["pointing"] == []
    assert tracer.load("vit-text", D=24, h=2).trace(prove=False).result["pointing"] == []
