"""Transformer of note 004: verified with all positions and masks, its scores in four terms, strings reversed."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

import tracer
from tests.support.sweeping import cases
from tests.support.verified import assert_comments, assert_verified
from tracer import models
from tracer.attention.textbook_claims import TERMS, terms
from tracer.figures.attention_charts import difference
from tracer.models import training, transformer
from tracer.models.training.recipes.transformer import HELD_OUT, Recipe

POSITIONS, MASKS = ("sinusoidal", "learned", "relative"), ("bidirectional", "causal")
SMALL = {"V": 96, "T_max": 12, "D": 24, "h": 3, "d_ff": 20, "L": 2, "R": 4}


@pytest.fixture(scope="module")
def model():
    return tracer.load("transformer")


@pytest.fixture(scope="module")
def trace(model):
    return assert_verified(model)


@pytest.mark.parametrize("mask", cases(MASKS, MASKS[1:]))
@pytest.mark.parametrize("positions", POSITIONS)
def test_all_is_verified(positions, mask):
    model = tracer.load("transformer", **SMALL, positions=positions, mask=mask)
    for given in ({}, {"T": 7, "B": 3}):
        trace = assert_verified(model, **given)
        assert not any(record.problem for record in trace.attentions) and len(trace.attentions) == 2


@pytest.mark.parametrize("mask", cases(MASKS, MASKS[:1]))
@pytest.mark.parametrize("positions", POSITIONS)
def test_values_equal_a_plain_recomputation(positions, mask):
    """By hand, token by token where distances are concerned, from the same weights."""
    model = tracer.load("transformer", **SMALL, positions=positions, mask=mask)
    trace, p, (tokens,) = model.trace(), dict(model.net.named_parameters()), model.inputs()
    x, T, D, h, d_k, R = p["tokens.weight"][tokens], 12, 24, 3, 8, 4
    if positions == "sinusoidal":
        table = [
            [getattr(torch.tensor(i / 10000 ** (2 * (c // 2) / D)), ("sin", "cos")[c % 2])() for c in range(D)]
            for i in range(T)
        ]
        x = x + torch.tensor(table)
    elif positions == "learned":
        x = x + p["table"]
    for layer in (1, 2):
        b = f"block{layer}."
        q, k, v = (
            F.linear(x, p[f"{b}attention.{name}.weight"]).unflatten(2, (h, d_k)).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        keys, values = k[:, :, None].expand(1, h, T, T, d_k), v[:, :, None].expand(1, h, T, T, d_k)
        if positions == "relative":
            pairs = torch.tensor([[max(-R, min(R, j - i)) + R for j in range(T)] for i in range(T)])
            keys = keys + p[b + "attention.key_distances"][pairs]
            values = values + p[b + "attention.value_distances"][pairs]
        scores = (q[:, :, :, None] * keys).sum(-1) / d_k**0.5
        if mask == "causal":
            scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), float("-inf"))
        weights = scores.softmax(-1)
        assert torch.allclose(trace.value(b + "attention.weights"), weights, atol=1e-5)
        assert torch.allclose(trace.attention(layer - 1), weights, atol=1e-5)
        context = (weights[..., None] * values).sum(-2).transpose(1, 2).flatten(2)
        x = x + F.linear(context, p[b + "attention.output.weight"])
        x = F.layer_norm(x, (D,), p[b + "norm1.weight"], p[b + "norm1.bias"], 1e-5)
        hidden = F.linear(x, p[b + "mlp.expand.weight"], p[b + "mlp.expand.bias"]).clamp(min=0)
        x = x + F.linear(hidden, p[b + "mlp.contract.weight"], p[b + "mlp.contract.bias"])
        x = F.layer_norm(x, (D,), p[b + "norm2.weight"], p[b + "norm2.bias"], 1e-5)
        assert torch.allclose(trace.value(b + "norm2"), x, atol=1e-4)
    assert torch.allclose(trace.output, F.linear(x, p["head.weight"]).softmax(-1), atol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_one_token_is_verified_too(positions):
    assert_verified(tracer.load("transformer", **SMALL | {"L": 1}, positions=positions), T=1)


def test_a_row_of_probabilities_sums_to_one(trace):
    assert torch.allclose(trace.output.sum(-1), torch.ones(1, 16))
    assert trace.result["kind"] == "tokens" and len(trace.result["tokens"]) == 16


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_the_four_terms_add_up_to_the_scores(positions, mask):
    model = tracer.load("transformer", **SMALL, positions=positions, mask=mask)
    trace = model.trace(B=2)
    found = terms(model, trace)
    assert tuple(found) == TERMS and all(term.shape == (2, 3, 12, 12) for term in found.values())
    scores, seen = trace.value("block1.attention.scores"), torch.ones(12, 12).bool()
    if mask == "causal":
        seen = seen.tril()
    off = (sum(found.values()) - scores)[..., seen].abs().max() / scores[..., seen].abs().max()
    assert off <= 1e-5 and difference(found, scores) == pytest.approx(float(off), rel=1e-3)


def test_each_term_is_of_the_parts_that_it_names():
    """Content terms follow tokens and not places; the position term is the same for every string."""
    model = tracer.load("transformer", **SMALL)
    first, second = (terms(model, model.trace(text=text)) for text in ("0123456789ab", "ba9876543210"))
    assert torch.allclose(first["position–position"], second["position–position"], atol=1e-5)
    turned = first["content–content"].flip(-1, -2)
    assert torch.allclose(turned, second["content–content"], atol=1e-5)
    assert not torch.allclose(first["content–position"], second["content–position"], atol=1e-2)


def test_terms_need_tokens_plus_positions():
    for model in (tracer.load("transformer", **SMALL, positions="relative"), tracer.load("nanogpt", L=1, D=12, h=2)):
        with pytest.raises(ValueError, match="so its scores don't fall into four terms"):
            terms(model, model.trace())
    model = tracer.load("transformer", **SMALL)
    with pytest.raises(ValueError, match="did not keep the embeddings"):
        terms(model, model.trace(prove=False))


def test_terms_of_changed_tokens_are_those_that_the_block_reads_and_of_changed_queries_do_not_add_up():
    model = tracer.load("transformer", **SMALL)
    plain = terms(model, model.trace())
    trace = model.trace(change={"embedding": "scale(3)"})
    changed = terms(model, trace)
    assert torch.allclose(changed["position–position"], plain["position–position"], atol=1e-5)
    assert not torch.allclose(changed["content–position"], plain["content–position"], atol=1e-2)
    assert difference(changed, trace.value("block1.attention.scores")) <= 1e-5
    for line in ("query", "key"):
        trace = model.trace(change={f"block1.attention.{line}": "scale(3)"})
        assert difference(terms(model, trace), trace.value("block1.attention.scores")) > 0.1


def test_relative_scores_depend_on_distance_alone():
    """The same string, moved by one place: inside, scores move along; with learned places they don't."""
    strings = "abcdefghijk!", "!abcdefghijk"
    for positions, same in (("relative", True), ("learned", False)):
        model = tracer.load("transformer", **SMALL, positions=positions)
        one, two = (model.trace(text=text).value("block1.attention.scores") for text in strings)
        assert torch.allclose(one[..., :11, :11], two[..., 1:, 1:], atol=1e-5) is same


def test_shorter_texts_are_filled_up_with_blanks(model):
    inputs = model.inputs(text="stressed")
    assert inputs[0].shape == (1, 16) and "".join(inputs.words) == "stressed········"
    assert model.inputs(T=5)[0].shape == (1, 5)


REFUSED_SIZES = [
    ({"D": 30, "h": 4}, "D=30 is not divisible by h=4"),
    ({"D": 15, "h": 3}, "D=15 is odd"),
    ({"positions": "rotary"}, "positions='rotary' is not a choice of 'transformer'"),
    ({"d_k": 8}, "d_k=8 can't be set"),
    ({"T": 8}, "T is not a size of the weights but of the input"),
]


@pytest.mark.parametrize(("sizes", "message"), REFUSED_SIZES, ids=str)
def test_what_does_not_fit_is_refused_in_one_sentence(sizes, message):
    with pytest.raises(ValueError, match=message) as caught:
        tracer.load("transformer", **sizes)
    assert "\n" not in str(caught.value)


def test_inputs_that_do_not_fit_are_refused(model):
    with pytest.raises(ValueError, match="T=17 tokens are too many"):
        model.trace(T=17)
    with pytest.raises(ValueError, match="T=17 tokens are too many"):
        model.net(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(ValueError, match="'ä', which is not one of the 96 characters"):
        model.trace(text="Träne")
    with pytest.raises(ValueError, match=r"^'Träne' contains"):  # as it was typed, without what it is filled up with
        model.trace(text="Träne")
    with pytest.raises(ValueError, match=r"'a text of 17 char' has T=17 tokens, too many: .* at most T_max=16"):
        model.trace(text="a text of 17 char")
    with pytest.raises(ValueError, match="the text '' has no token"):
        model.trace(text="")


@pytest.mark.parametrize("positions", POSITIONS)
def test_shape_comments_are_what_the_trace_solved(positions):
    trace = tracer.load("transformer", **SMALL, positions=positions, mask="causal").trace()
    checked = assert_comments(transformer, trace, {"d_k": "D/h"}, S="T", D="D")
    assert checked >= {"sinusoidal": 8, "learned": 8, "relative": 14}[positions]


def test_each_note_stands_beside_a_step():
    """Of the run with absolute positions, or of the one with relative positions."""
    runs = [tracer.load("transformer", **SMALL, positions=positions).trace() for positions in POSITIONS[1:]]
    noted = {step.note for run in runs for step in run.steps}
    told = [hint.note for hint in transformer.HINTS if hint.note]
    first = [note if isinstance(note, str) else note[0].text for note in told]
    assert len(noted - {""}) == len(told) == 7 and all(any(text in note for note in noted) for text in first)


def test_log_of_a_mask_of_zeros_and_minus_infinity_is_of_no_use():
    """The slip: log 0 is -∞ and log -∞ is NaN, so note 004's S + log M would be neither anywhere."""
    logarithm = torch.tensor([0.0, float("-inf")]).log()
    assert logarithm[0] == float("-inf") and logarithm[1].isnan()


TINY = {"sizes": {**transformer.SPEC.sizes, "V": 9, "T_max": 4, "D": 16, "d_ff": 16, "h": 2}, "strings": 320}
TINY |= {"tests": 60, "batch": 16, "warmup": 2}


def test_the_recipe_learns_and_is_seeded(tmp_path):
    recipe = training.recipe("transformer", **TINY)
    tests = recipe.read(None, "test")
    batch = [tests.numbers, tests.numbers.flip(-1)]
    before, _ = recipe.loss(recipe.build(0), batch)
    made = [
        training.train("transformer", out=tmp_path / f"{name}.safetensors", epochs=1, seed=seed, **TINY)
        for name, seed in (("one", 0), ("two", 0), ("three", 1))
    ]
    first, second, third = (load_file(file)["head.weight"] for file in made)
    assert torch.equal(first, second) and not torch.equal(first, third)
    net = recipe.build(0)
    net.load_state_dict(load_file(made[0]))
    after, _ = recipe.loss(net, batch)
    assert after < before - 0.2
    card = json.loads(made[0].with_suffix(".json").read_text(encoding="utf-8"))
    assert card["options"] == {"positions": "sinusoidal", "mask": "bidirectional"} and card["strings"] == 60
    assert training.score("transformer", weights=made[0])["places"] == pytest.approx(card["places"], abs=0.2)


def test_no_test_string_is_ever_trained_on():
    recipe = Recipe(**TINY)
    held = torch.cat([recipe.read(None, part).numbers for part in ("validation", "test")])
    drawn, wanted = recipe.batch_of(recipe.read(None, "train"), torch.arange(500), torch.Generator().manual_seed(1))
    assert (held.sum(-1) % HELD_OUT == 0).all() and (drawn.sum(-1) % HELD_OUT != 0).all()
    assert len(held) == 120 and not torch.equal(held[:60], held[60:]) and torch.equal(wanted, drawn.flip(-1))
    assert {len(row[row > 0]) for row in drawn} == {1, 2, 3, 4}


def test_the_shipped_weights_reverse_strings_along_the_anti_diagonal(model, trace):
    assert models.card("transformer")["exact"] >= 0.99
    assert "".join(trace.result["tokens"]) == "eno siht esrever"
    reversed_text = "".join(model.trace(text="Hello, world!").result["tokens"])
    assert reversed_text == "···!dlrow ,olleH"
    assert torch.equal(trace.attention(0).mean(1).argmax(-1), torch.arange(16).flip(0)[None])
    found = terms(model, trace)
    assert found["position–position"].std() > 2 * max(found[name].std() for name in TERMS[:3])


def test_relative_positions_have_weights_of_their_own():
    """In one block they tell how far apart two characters are, not where they stand: few strings come out right."""
    model, card = (
        tracer.load("transformer", positions="relative"),
        models.card("transformer", {"positions": "relative"}),
    )
    assert model.weights == tracer.load("transformer").weights == f"trained on {card['data']}"
    assert "random" in tracer.load("transformer", positions="relative", D=12).weights
    strings = training.recipe("transformer", tests=400).read(None, "test").numbers
    with torch.no_grad():
        right = (model.net(strings).argmax(dim=-1) == strings.flip(-1)).all(dim=-1).double().mean().item()
    assert abs(right - card["exact"]) < 0.08 < models.card("transformer")["exact"] - card["exact"]
