"""CLIP: two towers that are verified, sentences of any length, and pairs that training never drew."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tracer
from tests.support.plain_block import plain_block
from tests.support.sweeping import cases
from tests.support.verified import assert_comments, assert_verified
from tracer import models
from tracer.attention import segments
from tracer.inputs import synthetic
from tracer.models import clip, training
from tracer.models.training.recipes import clip as recipe_of
from tracer.spec import preparation

DERIVED_SIZES = {"N": "H*W/P**2", "d_k": "D/h"}
SMALL = {"H": 12, "W": 20, "P": 4, "D": 16, "h": 2, "d_ff": 24, "L": 1, "D_e": 10}


@pytest.fixture(scope="module")
def model():
    return tracer.load("clip", D=48, d_ff=96, L=2)


@pytest.fixture(scope="module")
def trace(model):
    return assert_verified(model)


GIVEN: tuple[dict, ...] = {}, {"B": 3}, {"K": 1}, {"K": 7, "T": 9, "B": 2}, {"text": "a blue star"}


@pytest.mark.parametrize("given", cases(GIVEN, GIVEN[3:]), ids=str)
def test_all_is_verified(given):
    assert_verified(tracer.load("clip", **SMALL), **given)


def test_values_equal_a_plain_recomputation(model, trace):
    """By hand, with torch.nn.functional, from the same weights."""
    p, (image, tokens) = dict(model.net.named_parameters()), model.inputs()

    def tower(x, part, causal):
        for layer in (1, 2):
            x = plain_block(x, p, f"{part}.block{layer}", 4, causal)
        return F.layer_norm(x, x.shape[-1:], p[f"{part}.norm.weight"], p[f"{part}.norm.bias"], 1e-6)

    patches = F.unfold(image, 8, stride=8).transpose(1, 2).unflatten(2, (3, 64)).transpose(2, 3).flatten(2)
    x = F.linear(patches, p["image.embedding.weight"], p["image.embedding.bias"])
    x = torch.cat([p["image.cls"].expand(1, 1, -1), x], 1) + p["image.position"]
    x = F.normalize(tower(x, "image", causal=False)[:, 0] @ p["image.projection.weight"].T, dim=-1)
    y = p["text.tokens.weight"][tokens] + p["text.positions"][: tokens.shape[1]]
    ends = [row.index(1) for row in tokens.tolist()]
    y = tower(y, "text", causal=True)[range(len(ends)), ends] @ p["text.projection.weight"].T
    y = F.normalize(y, dim=-1)
    assert torch.allclose(trace.value("image.unit"), x, atol=1e-5)
    assert torch.allclose(trace.value("text.unit"), y, atol=1e-5)
    assert torch.allclose(trace.output, x @ y.T / 0.07, atol=1e-3)


def test_cosines_and_temperature(model, trace):
    cosines = trace.value("cosines")
    assert cosines.abs().max() <= 1 + 1e-6
    assert torch.allclose(trace.value("image.unit").norm(dim=-1), torch.ones(1), atol=1e-6)
    assert torch.allclose(trace.output, cosines * model.net.log_scale.exp(), atol=1e-5)


def test_what_stands_after_the_end_changes_nothing(model):
    image, tokens = model.inputs(T=5)
    longer = model.inputs(T=9)[1]
    assert longer.shape == (4, 9)
    other = longer.clone()
    other[:, 6:] = 7
    with torch.no_grad():
        assert torch.allclose(model.net(image, tokens), model.net(image, longer), atol=1e-4)
        assert torch.allclose(model.net(image, longer), model.net(image, other), atol=1e-4)


def test_a_sentence_scores_the_same_in_any_list(model):
    """Open vocabulary: the logit of a sentence does not depend on which others stand beside it."""
    one = model.trace(text="a green star").output
    many = model.trace(text="a red circle; a green star\na large blue cross left of a small red circle").output
    assert torch.allclose(one[:, 0], many[:, 1], atol=1e-4)


def test_towers_have_attention_of_their_own(trace):
    assert [(a.part, a.layer, a.mask) for a in trace.attentions] == [
        ("image", 0, "none"),
        ("image", 1, "none"),
        ("text", 0, "causal"),
        ("text", 1, "causal"),
    ]
    assert trace.attention(1, part="image").shape == (1, 4, 65, 65)
    assert trace.attention(1, part="text").shape == (4, 4, 5, 5)
    assert torch.allclose(trace.attention(1, part="text"), trace.value("text.block2.attention.weights"), atol=1e-6)
    assert [s.name for s in segments(trace)] == ["CLS", "image"]
    assert [(s.name, s.stop) for s in segments(trace, "text")] == [("text", 5)]


def test_shape_comments_are_true(trace):
    assert assert_comments(clip, trace, DERIVED_SIZES) >= 17


def test_the_result_is_plain_data(trace):
    result = trace.result
    assert result["kind"] == "sentences"
    assert result["sentences"] == ["a red circle", "a blue circle", "a red square", "a green star"]
    assert sum(result["probabilities"]) == pytest.approx(1)
    assert trace.words == ("<begin>", "a", "red", "circle", "<end>")


def test_sentences_are_listed_and_encoded():
    assert preparation.split_sentences(" a red circle ;\n\na blue star\n") == ["a red circle", "a blue star"]
    tokens = preparation.encode_sentences(["a red circle", "a"], synthetic.VOCABULARY)
    assert tokens.shape == (2, 5) and tokens[:, 0].tolist() == [0, 0] and tokens[1, 2:].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": "a pink circle"}, "'a pink circle' contains 'pink', which is not one of the 17 words"),
        ({"text": " ; "}, "has no sentence, expected at least one"),
        ({"text": "a " * 19}, "and its begin and end are T=21 tokens, too many: the model reads at most T_max=20"),
        ({"N": 3}, "N=3 is not a size of this input; B and K and T can be given"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_refused(model, given, message):
    with pytest.raises(ValueError, match=message):
        model.trace(**given)


def test_a_sentence_given_twice_is_compared_once(model):
    assert model.inputs(text="a red circle; a blue star\na red circle").sentences == ("a red circle", "a blue star")


def test_words_beyond_a_small_vocabulary_are_refused():
    with pytest.raises(ValueError, match="has words that this model, with V=5, does not know"):
        tracer.load("clip", **SMALL, V=5).inputs(text="a blue star")


REFUSED_SIZES = [
    ({"W": 30}, "H=64, W=30 don't fit P=8"),
    ({"D": 50}, "D=50 is not divisible by h=4"),
    ({"K": 5}, "K is not a size of the weights but of the input"),
]


@pytest.mark.parametrize(("sizes", "message"), REFUSED_SIZES, ids=str)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        tracer.load("clip", **sizes)


TINY = {
    "sizes": clip.SPEC.sizes | {"D": 32, "h": 2, "d_ff": 64, "L": 1},
    "batch": 24,
    "count": 240,
    "tests": 12,
    "warmup": 5,
}


def test_the_recipe_learns_and_is_seeded(tmp_path):
    from safetensors.torch import load_file

    recipe = training.recipe("clip", **TINY)
    batch = list(recipe.batch_of(recipe.read(None, "train"), torch.arange(24), torch.Generator().manual_seed(9)))
    before, _ = recipe.loss(recipe.build(0), batch)
    short = [training.train("clip", out=tmp_path / f"{i}.safetensors", epochs=1, **TINY) for i in range(2)]
    first, second = map(load_file, short)
    assert all(torch.equal(first[name], second[name]) for name in first)
    file = training.train("clip", out=tmp_path / "long.safetensors", epochs=4, **TINY)
    net = recipe.build(0)
    net.load_state_dict(load_file(file))
    after, _ = recipe.loss(net, batch)
    assert after < before - 0.3
    figures = training.score("clip", weights=file)
    assert {"accuracy_unseen_pairs", "accuracy_seen_pairs", "accuracy_colours_exchanged"} < figures.keys()


def test_pairs_that_are_held_out_are_never_drawn():
    recipe = training.recipe("clip", **TINY)
    data = recipe.read(None, "test")
    pairs = {(int(c), int(s)) for c, s in zip(data.new.colour[:, 0], data.new.shape[:, 0], strict=True)}
    assert all(shape == colour % 5 for colour, shape in pairs)
    drawn = synthetic.draw(np.random.default_rng(0), 500, counts=(1, 2), allowed=recipe_of.in_training)
    there = np.arange(3) < drawn.count[:, None]
    assert not (recipe_of.held_out(drawn.colour, drawn.shape) & there).any()
    held = [recipe_of.held_out(np.array(c), np.array(s)) for c in range(6) for s in range(5)]
    assert len(held) == len(recipe_of.PAIRS) == 30 and sum(held) == 6


def test_equal_captions_are_one_sentence():
    recipe = training.recipe("clip", **TINY)
    pixels, tokens, own = recipe.batch_of(None, torch.arange(64), torch.Generator().manual_seed(0))
    assert pixels.shape == (64, 3, 64, 64) and own.max() == len(tokens) - 1
    assert len(tokens.unique(dim=0)) == len(tokens) <= 64
    assert (
        recipe_of.without_sizes("a large red circle left of a small blue square")
        == "a red circle left of a blue square"
    )


def test_recipes_of_other_sizes_are_refused_in_words():
    with pytest.raises(ValueError, match="V=7: captions of scenes have V = 19 words"):
        training.recipe("clip", sizes=clip.SPEC.sizes | {"V": 7})


def test_shipped_weights_know_pairs_that_were_never_drawn():
    card = models.card("clip")
    if card is None:
        pytest.skip("CLIP has no shipped weights")
    assert (models.WEIGHTS / "clip.safetensors").stat().st_size <= 4 * 2**20
    assert {"sizes", "data", "measure", "never_drawn", "steps", "date", "command"} <= card.keys()
    assert card["accuracy_unseen_pairs"] >= 0.5  # by chance: 1 of 30
    assert assert_verified(tracer.load("clip")).result["sentences"]
