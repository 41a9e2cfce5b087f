"""Lesson on writing: the choice of a token, the costs and savings of a cache, and the effects of padding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from hypothesis.extra.numpy import arrays

import tracer
from tests.support import sampling
from tests.support.sweeping import cases
from tracer.figures.predictions import ticks
from tracer.lessons import writing
from tracer.spec.decoding import fill_cache


def test_the_ticks_of_a_logarithmic_axis_are_few_and_lie_on_it():
    assert ticks(1_650_000, 92_000_000) == [2_000_000, 5_000_000, 10**7, 2 * 10**7, 5 * 10**7]
    assert ticks(3, 10**9) == [10**power for power in range(1, 10)]


LOGITS = arrays(np.float64, some.integers(1, 30), elements=some.floats(-20, 20))


@given(LOGITS, some.floats(0.05, 3), some.integers(1, 40), some.floats(0.05, 1))
def test_the_tokens_that_can_be_drawn_are_the_fewest_that_top_k_and_top_p_leave(logits, temperature, k, p):
    shares, softmax = sampling.probabilities(logits, temperature, k, p), sampling.probabilities(logits, temperature, k)
    kept = np.flatnonzero(shares)
    assert shares.sum() == pytest.approx(1)
    assert len(kept) <= k
    assert softmax[kept].sum() >= p - 1e-6
    assert len(kept) == 1 or np.sort(softmax[kept])[1:].sum() < p + 1e-6  # one fewer would not be enough
    assert shares[kept] == pytest.approx(softmax[kept] / softmax[kept].sum())


def test_without_settings_it_is_the_softmax_and_at_temperature_0_the_largest_logit():
    logits = torch.randn(20, generator=torch.Generator().manual_seed(0)).double()
    assert sampling.probabilities(logits.numpy(), 1.0) == pytest.approx(logits.softmax(-1).numpy())
    assert sampling.probabilities(logits.numpy(), 0)[int(logits.argmax())] == 1


def test_a_number_falls_on_each_token_as_often_as_its_probability_says():
    shares = np.array([0.1, 0.0, 0.6, 0.3])
    drawn = [sampling.draw(shares, u) for u in (np.arange(1000) + 0.5) / 1000]
    assert np.bincount(drawn, minlength=4).tolist() == [100, 0, 600, 300]
    assert sampling.draw(shares, 1.0) == 0


@pytest.mark.parametrize("settings", [(-1, None, 1), (1, 0, 1), (1, None, 0), (1, None, 1.5)])
def test_settings_that_can_not_be_are_refused(settings):
    with pytest.raises(ValueError, match="are not possible, expected a temperature from 0"):
        sampling.probabilities(np.zeros(3), *settings)


@pytest.mark.parametrize("name", cases(("nanogpt", "vit-text"), ("nanogpt",)))
def test_the_formulas_of_a_cache_give_the_flops_and_bytes_of_runs_at_other_lengths(name):
    model = tracer.load(name)
    costs = writing.costs(model.trace(prove=False), model.trace(cache=True, prove=False))
    assert costs.same
    for length in (3, 9):
        whole = model.trace(prove=False, T=length)
        inputs = model.decoder.inputs(T_past=costs.sizes.get("N", 0) + length - 1)
        cached = model.trace(cache=True, prove=False, T_past=costs.sizes.get("N", 0) + length - 1)
        assert costs.flops(length) == (whole.flops, cached.flops)
        past = sum(tensor.nbytes for pair in inputs.named["past"] for tensor in pair)
        assert costs.bytes(length) == past * whole.attentions[0].keys / (whole.attentions[0].keys - 1)


def test_a_text_that_is_read_token_by_token_goes_on_as_the_whole_model_says():
    model = tracer.load("nanogpt")
    tokens = model.inputs(text="To be")[0]
    logits, past = fill_cache(model.decoder, (), tokens)
    for _ in range(12):
        token = logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, token], dim=1)
        with torch.no_grad():
            logits, past = model.decoder.net(token, past=past)
    whole = model.net(tokens)
    assert whole[0, 4:-1].argmax(-1).tolist() == tokens[0, 5:].tolist()
    assert torch.allclose(whole[0, -1], logits[0, -1], atol=1e-4)


def test_padding_on_the_left_moves_the_answer_of_a_model_without_a_mask_for_it():
    right, left = writing.compare_sides(tracer.load("nanogpt"))
    assert not right.moves and left.moves and left.difference > 0.1


def test_a_mask_and_positions_undo_padding_on_the_left():
    pytest.importorskip("transformers")
    answers = writing.compare_sides(tracer.load("hf:gpt2"), "The cat sat on the mat")
    moved = {(answer.side, answer.masked, answer.placed) for answer in answers if answer.moves}
    assert moved == {("left", False, False), ("left", True, False)}  # its learned positions would start at the padding
    with pytest.raises(ValueError, match="the text has T=1 token, expected 2 or more"):
        writing.compare_sides(tracer.load("nanogpt"), "a")
