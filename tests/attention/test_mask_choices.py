"""Every mask that a model supports: everything is verified under it, and both proofs of its visibility agree."""

import pytest
import torch

import tracer
from tests.support.sweeping import cases
from tracer import models, verify
from tracer.attention.masks import influence, kind, reach, visible

SOME = ("nanogpt", "bidirectional"), ("vit-text", "prefix"), ("transformer", "causal")
CHOICES = [(name, mask) for name in models.names() for mask in models.spec_of(name).options.get("mask", ())]


def test_the_choices_are_named_as_masks_are():
    assert {name for name, _ in CHOICES} == {"llama", "nanogpt", "transformer", "vit-text"}
    assert {mask for _, mask in CHOICES} == {"causal", "prefix", "bidirectional"}
    assert ("vit-text", "bidirectional") in CHOICES and ("vit-text", "prefix") in CHOICES


@pytest.mark.parametrize(("name", "mask"), cases(CHOICES, (("transformer", "bidirectional"),)))
def test_all_is_verified_under_every_mask(name, mask):
    assert verify.failures(verify.report(tracer.load(name, mask=mask))) == []


@pytest.mark.parametrize(("name", "mask"), cases(CHOICES, SOME))
def test_the_mask_that_ran_is_the_one_chosen_and_influence_agrees(name, mask):
    model = tracer.load(name, mask=mask, L=2)
    trace, inputs = model.trace(prove=False), model.inputs()
    cells = visible(trace)
    assert kind(cells) == mask and torch.equal(cells, visible(trace, 1))
    for token in (0, cells.shape[0] - 2):
        assert influence(model, inputs, token) == ((token,), reach(cells, token, 2))
