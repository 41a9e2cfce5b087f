"""nanoGPT: verified under all its choices, its text written token by token, foreign checkpoints, its recipe."""

import json

import pytest
import torch
from safetensors.torch import load_file

import tracer
from tests.support.sweeping import cases
from tests.support.verified import assert_comments, assert_verified
from tracer import models
from tracer.models import nanogpt, training
from tracer.models.training.recipes.nanogpt import Recipe
from tracer.spec import blocks
from tracer.spec.decoding import read_of, write

SMALL = {"T_max": 11, "D": 12, "h": 3, "d_ff": 20, "L": 2}
CHOICES = [{}, {"bias": False}, {"tied": False}, {"tied": False, "bias": False}, {"gelu": "tanh"}, {"h": 1}]
CHOICES += [{"single": True}, {"mask": "bidirectional"}]


@pytest.fixture(scope="module")
def model():
    return tracer.load("nanogpt", **SMALL)


@pytest.fixture(scope="module")
def trace(model):
    return assert_verified(model)


@pytest.mark.parametrize("choice", cases(CHOICES, (CHOICES[0], CHOICES[-1])), ids=str)
def test_all_is_verified(choice):
    model = tracer.load("nanogpt", **SMALL | choice)
    for given in ({}, {"B": 3, "T": 7}):
        trace = assert_verified(model, **given)
        assert len(trace.attentions) == 2
        assert trace.attentions[0].mask == ("none" if "mask" in choice else "causal")


def test_one_head_is_as_wide_as_the_model_and_has_no_axis_and_no_biases():
    """Every line of section 1 of note 000, letter by letter but for the bold."""
    trace = tracer.load("nanogpt", **SMALL, single=True).trace()
    lines = {step.id.removeprefix("block1.attention."): step for step in trace.steps if step.layer == 0}
    assert [lines[name].latex.replace("^{(1)}", "").partition(" = ")[2] for name in ("query", "context", "output")] == [
        r"\tilde{\mathbf{X}}\,\mathbf{W}_{Q}",
        r"\mathbf{A}\,\mathbf{V}",
        r"\mathbf{H}\,\mathbf{W}_{O}",
    ]
    assert lines["scores"].latex.replace("^{(1)}", "").endswith(r"}{\sqrt{D}} + \mathbf{M}")
    assert {lines[name].symbolic for name in ("query", "key", "value", "context", "output")} == {("B", "T", "D")}
    assert {lines[name].symbolic for name in ("scores", "weights")} == {("B", "T", "T")}
    assert {"h", "d_k"}.isdisjoint(size.name for size in trace.symbols)


def test_one_token_is_verified_too(model):
    assert_verified(model, T=1)


def test_scores_are_over_the_root_of_what_they_sum_over_with_as_many_tokens(model):
    assert r"\sqrt{d_k}" in model.trace(T=4, prove=False).step("block1.attention.scores").latex


def test_shape_comments_are_what_the_trace_solved():
    trace = tracer.load("nanogpt", **SMALL, tied=False).trace()
    assert assert_comments(nanogpt, trace, {"d_k": "D/h"}) >= 4
    assert assert_comments(blocks, trace, {"d_k": "D/h"}, S="T") >= 10


def test_a_text_that_is_too_long_is_refused_and_not_cut(model):
    with pytest.raises(ValueError, match=r"'To be, or not' has T=13 tokens, too many: .* at most T_max=11"):
        model.trace(text="To be, or not")
    assert len(model.trace(text="To be, or n").words) == 11


def test_writing_goes_on_beyond_what_the_model_reads_at_once(model):
    tokens = list(write(model, "To be, or", 5))
    read = [read_of(model, "To be, or" + "".join(tokens[:count])) for count in range(5)]
    assert [len(text) for text in read] == [9, 10, 11, 11, 11] and read[-1].startswith(" be, or")


def test_no_token_sees_a_later_one(model):
    one, two = model.trace(text="To be, or"), model.trace(text="To be, to")
    assert torch.equal(one.output[:, :7], two.output[:, :7]) and not torch.equal(one.output[:, 7:], two.output[:, 7:])


def test_without_a_mask_every_token_sees_all_others_and_notes_say_so():
    model = tracer.load("nanogpt", mask="bidirectional")
    trace = model.trace(text="To be, or")
    assert "mask" not in {step.id for step in trace.steps} and trace.attention(0).min() > 0
    assert "none runs" in trace.step("block2.attention.scores").note
    assert trace.weights.endswith("; trained with mask=causal, run here with mask=bidirectional")


TINY = {"sizes": {"V": 65, "T_max": 8, "D": 16, "h": 2, "d_ff": 24, "L": 1}, "batch": 16, "warmup": 3}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "tinyshakespeare.txt").write_text("To be, or not to be, that is the question:\n" * 120)
    return folder


def test_the_recipe_learns_and_is_seeded(data, tmp_path):
    recipe = Recipe(**TINY)
    text = recipe.read(data, "test")
    before = recipe.score(recipe.build(0), text)["loss"]
    made = [
        training.train("nanogpt", data=data, out=tmp_path / f"{name}.safetensors", epochs=1, seed=seed, **TINY)
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    ]
    first, second, third = (load_file(file)["tokens.weight"] for file in made)
    assert torch.equal(first, second) and not torch.equal(first, third)
    card = json.loads(made[0].with_suffix(".json").read_text(encoding="utf-8"))
    assert card["loss"] < before - 0.3 and card["vocabulary"] == nanogpt.SHAKESPEARE
    figures = training.score("nanogpt", data=data, weights=made[0])
    assert figures == {"model": "nanogpt", "loss": card["loss"], "characters": len(text) * 8}


def test_the_score_is_the_mean_loss_of_every_character(data):
    recipe = Recipe(**TINY)
    net, text = recipe.build(0), recipe.read(data, "test")
    total, count = 0.0, 0
    with torch.no_grad():
        for start in range(0, len(text) * 8, 8):
            shares = net(text.numbers[None, start : start + 8]).log_softmax(-1)[0]
            total -= sum(float(shares[i, text.numbers[start + i + 1]]) for i in range(8))
            count += 8
    assert recipe.score(net, text) == {"loss": pytest.approx(total / count, abs=1e-4), "characters": count}
    assert len(text.numbers) - count <= 8 and count > 500


def test_the_parts_share_no_character_and_windows_stay_inside(data):
    recipe = Recipe(**TINY)
    train, test = recipe.read(data, "train"), recipe.read(data, "test")
    whole = (data / "tinyshakespeare.txt").read_text()
    decoded = "".join(nanogpt.SHAKESPEARE[number] for part in (train, test) for number in part.numbers)
    assert decoded == whole and len(train.numbers) == int(0.9 * len(whole))
    random = torch.Generator().manual_seed(0)
    numbers, wanted = recipe.batch_of(train, torch.arange(len(train)), random)
    assert numbers.shape == wanted.shape == (len(train), 8) and torch.equal(numbers[:, 1:], wanted[:, :-1])


def test_data_that_is_no_such_text_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"expected tinyshakespeare\.txt"):
        Recipe(**TINY).read(tmp_path, "train")
    (tmp_path / "tinyshakespeare.txt").write_text("Träume")
    with pytest.raises(ValueError, match="contains 'ä'"):
        Recipe(**TINY).read(tmp_path, "train")
    (tmp_path / "tinyshakespeare.txt").write_text("To be")
    with pytest.raises(ValueError, match="has 5 characters: expected at least 160"):
        Recipe(**TINY).read(tmp_path, "train")


def test_the_shipped_card_is_of_the_shipped_weights():
    card, file = models.card("nanogpt"), training.WEIGHTS_FOLDER / "nanogpt.safetensors"
    model = tracer.load("nanogpt")
    assert model.sizes == card["sizes"] and file.stat().st_size < 6_000_000 and card["loss"] <= 1.65
    assert sum(len(set(token)) for token in write(model, "ROMEO:\n", 3)) == 3
