"""Hiding the most attended patches, beside as many in the centre and at random."""

import numpy as np
import pytest
import torch

import tracer
from tracer.attention import head_effects


def test_patches_are_ranked_by_the_attention_of_cls_in_the_last_block(plain):
    row = plain.attention(5)[0].mean(0)[0, 1:]
    assert list(head_effects.rank_by_attention(plain)) == row.argsort(descending=True).tolist()


def test_the_centre_comes_first():
    assert sorted(head_effects.nearest_to_centre(4, 4)[:4]) == [5, 6, 9, 10]


def test_hiding_is_the_same_as_painting_the_input(vit, plain):
    found = head_effects.hide_attended(vit, plain, 16, "mean")
    (pixels,) = vit.inputs()
    hidden = torch.zeros(64, dtype=torch.bool)
    hidden[list(head_effects.rank_by_attention(plain)[:16])] = True
    mask = hidden.view(8, 8).repeat_interleave(4, 0).repeat_interleave(4, 1)
    painted = torch.where(mask, pixels.mean((-2, -1), keepdim=True), pixels)
    with torch.no_grad():
        shares = vit.net(painted).softmax(-1)[0]
    place = plain.result["classes"].index(found.answer)
    assert found.attended == pytest.approx(float(shares[place]), abs=1e-5)
    assert found.plain == pytest.approx(max(plain.result["probabilities"]))
    assert len(found.random) == head_effects.SEEDS and np.std(found.random) > 0


@pytest.mark.parametrize("count", [0, 64])
def test_as_many_patches_as_there_are_can_not_be_hidden(vit, plain, count):
    with pytest.raises(ValueError, match=f"{count} patches can't be hidden, expected 1 to 63"):
        head_effects.hide_attended(vit, plain, count)


def test_a_model_of_text_hides_no_patches():
    model = tracer.load("nanogpt")
    with pytest.raises(ValueError, match="models that name the class of a photo"):
        head_effects.hide_attended(model, model.trace(prove=False), 4)
