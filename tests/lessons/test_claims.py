"""Notes' claims about attention, in numbers: some of it on shipped and seeded models, none of it by assertion."""

from dataclasses import replace
from functools import cache
from math import sqrt

import pytest
import torch

import tracer
from tracer import models
from tracer.attention import textbook_claims
from tracer.attention.textbook_claims import terms
from tracer.inputs import synthetic
from tracer.lessons.notes import evaluate as CARDS
from tracer.lessons.notes.claims import attention, structure, vision
from tracer.spec.results import anomaly_map
from tracer.utils.text import percent

BOOK = {"circle": 1.0, "square": 2.0, "triangle": 3.0, "diamond": 4.0}


@cache
def vit():
    model = tracer.load("vit", H=12, W=20, P=4, D=12, h=3, d_ff=23, K=7, L=2)
    return model, model.trace()


def test_soft_lookup():
    """Note 002: a dictionary that finds what was meant, although the query is misspelt."""
    shares, value = textbook_claims.lookup(BOOK, "sqare")
    assert max(shares, key=shares.get) == "square" and sum(shares.values()) == pytest.approx(1)
    assert value == pytest.approx(sum(shares[key] * BOOK[key] for key in BOOK))
    assert textbook_claims.lookup(BOOK, "triangel", sharpness=500)[1] == pytest.approx(3, abs=1e-6)
    shares, value = textbook_claims.lookup(BOOK, "circle", sharpness=1e-9)  # nothing is compared: the mean of all
    assert value == pytest.approx(2.5)
    with pytest.raises(ValueError, match="'x' can't be looked up: the book is empty"):
        textbook_claims.lookup({}, "x")


def test_a_context_is_a_weighted_sum():
    """Each head of the ViT is such a lookup: its context is a row of shares times its values."""
    _, trace = vit()
    q, k, v = (trace.value(f"block1.attention.{name}")[0] for name in ("query", "key", "value"))
    context = trace.value("block1.attention.context")[0].unflatten(-1, (3, -1))
    for head in range(3):
        weights, mixed = textbook_claims.soft_lookup(q[head], k[head], v[head])
        assert torch.allclose(weights, trace.attention(0, head)[0], atol=1e-6)
        assert torch.allclose(mixed, context[:, head], atol=1e-6)
        assert (mixed <= v[head].amax(0) + 1e-6).all() and (mixed >= v[head].amin(0) - 1e-6).all()


def test_heads_are_columns():
    """W_Q of a head is a stretch of d_k columns of the one matrix that makes all heads' queries."""
    model, trace = vit()
    x = trace.value("block1.norm1")[0]
    for name in ("query", "key", "value"):
        linear = model.net.block1.attention.get_submodule(name)
        for head in range(3):
            columns = slice(4 * head, 4 * head + 4)
            own = x @ linear.weight.T[:, columns] + linear.bias[columns]
            assert torch.allclose(own, trace.value(f"block1.attention.{name}")[0, head], atol=1e-5)


def test_a_shared_projection_has_symmetric_scores():
    """Note 001: with one projection i meets j as j meets i; but after the softmax they attend unequally."""
    tokens = vit()[1].value("block1.norm1")[0]
    projection = vit()[0].net.block1.attention.query.weight.detach().T[:, :4]
    scores, weights = textbook_claims.shared_projection(tokens, projection)
    assert textbook_claims.asymmetry(scores) < 1e-6
    assert textbook_claims.asymmetry(weights) > 1e-3
    assert textbook_claims.asymmetry(vit()[1].value("block1.attention.scores")) > 1e-2  # two projections


def test_attention_is_equivariant():
    """Note 001: without positions, shuffled tokens give shuffled results, not the same ones."""
    model, _ = vit()
    random = torch.Generator().manual_seed(0)
    tokens, order = torch.randn(1, 16, 12, generator=random), torch.randperm(16, generator=random)
    for function in (model.net.block1.attention, model.net.block1):
        equivariant, invariant = textbook_claims.shuffle_effect(function, tokens, order)
        assert equivariant < 1e-5 and invariant > 1e-2
    position = torch.randn(16, 12, generator=random)
    assert textbook_claims.shuffle_effect(lambda x: model.net.block1.attention(x + position), tokens, order)[0] > 1e-2
    only_class = textbook_claims.shuffle_effect(
        lambda x: model.net.block1(x)[:, :1].expand_as(x), tokens, _keeping_cls(order)
    )
    assert only_class[1] < 1e-5  # what is read at one token does not change when the others are shuffled


def _keeping_cls(order):
    return torch.cat([torch.tensor([0]), order[order != 0]])


def test_raw_tokens_attend():
    """Note 001: softmax(ZZᵀ/√D) Z is a valid operation, and like attends to like."""
    tokens = torch.tensor([[3.0, 0.0, 0.1], [3.0, 0.1, 0.0], [0.0, 3.0, 0.0]])
    weights, mixed = textbook_claims.soft_lookup(tokens, tokens, tokens)
    assert torch.allclose(weights.sum(-1), torch.ones(3)) and mixed.shape == tokens.shape
    assert weights[0, 1] > 10 * weights[0, 2]


def test_values_have_no_say_in_the_weights():
    """Note 001: with W_V apart from W_Q and W_K, what is passed on can change while the routing stays."""
    model = tracer.load("vit", H=12, W=20, P=4, D=12, h=3, d_ff=23, K=7, L=2)
    with torch.no_grad():
        model.net.block1.attention.value.weight.mul_(-2)
    changed, before = model.trace(), vit()[1]
    assert torch.equal(changed.attention(0), before.attention(0))
    assert not torch.allclose(changed.value("block1.attention.context"), before.value("block1.attention.context"))


def test_the_scale_keeps_the_variance():
    """Notes 001 and 002: unscaled, dot products spread as √d_k, and the softmax of such scores stops learning."""
    for width in (4, 64, 256):
        assert textbook_claims.spread(width, scaled=True) == pytest.approx(1, rel=0.1)
        assert textbook_claims.spread(width, scaled=False) == pytest.approx(sqrt(width), rel=0.1)
    scores = torch.linspace(-2, 2, 9, dtype=torch.float64)
    slopes = []
    for factor in (1, 64):
        at = (scores * factor).requires_grad_()
        at.softmax(0)[-1].backward()
        slopes.append(at.grad.abs().max())
    assert slopes[1] < 1e-6 < 0.1 < slopes[0]


def test_the_vit_has_no_mask():
    assert {attention.mask for attention in vit()[1].attentions} == {"none"}
    assert vit()[1].attention(0).min() > 0


def test_a_strided_convolution_embeds_the_same():
    """Note 000 II: unfold and project, or a convolution with kernel = stride = P and the same numbers."""
    model = tracer.load("vit-text", H=12, W=20, P=4, V=17, T_max=11, D=14, h=1, d_ff=23, L=1)
    trace, image = model.trace(), model.inputs()[0]
    weight = model.net.patches.weight.unflatten(1, (3, 4, 4))
    embedded = torch.nn.functional.conv2d(image, weight, model.net.patches.bias, stride=4).flatten(2).mT
    assert torch.allclose(trace.value("embedding"), embedded, atol=1e-5)


def test_scores_fall_into_four_terms():
    """Note 004: content and position of the query against content and position of the key, which add up."""
    model = tracer.load("transformer", D=12, h=3, d_ff=23, L=1)
    trace = model.trace()
    found, scores = terms(model, trace), trace.value("block1.attention.scores")
    assert len(found) == 4 and all(term.abs().max() > 0 for term in found.values())
    assert (sum(found.values()) - scores).abs().max() <= 1e-5 * scores.abs().max()


def test_a_defect_is_badly_predicted():
    """Note 001: what does not follow from the rest of the surface is the anomaly."""
    if models.card("mae") is None:
        pytest.skip("the masked autoencoder has no shipped weights")
    model = tracer.load("mae")
    clean = synthetic.surface("stripes", 7)
    marred, mask = synthetic.damage(clean, 3, "scratch")
    found = [_levels(model, pixels) for pixels in (clean, marred)]
    covered = torch.from_numpy(synthetic.patch_mask(mask, 8))
    assert found[1][covered].mean() > 2 * found[0][covered].mean()
    assert found[1][covered].mean() > 2 * found[1][~covered].mean()


def _levels(model, pixels):
    from PIL import Image

    return anomaly_map(model.net, model.inputs(Image.fromarray(pixels))[0])[0]


def test_the_claims_are_measured_on_the_run():
    """Each number once more, by other means."""
    model, trace = vit()
    found = CARDS.measure_cards(model, trace)
    assert {name for card in CARDS.CARDS for name in card.claims} == found.claims.keys()
    best = float(trace.attention(0).amax(-1).mean())
    assert f"gets {percent(best)} of the weight" in found.claims["soft_lookup"].result
    uneven = textbook_claims.asymmetry(trace.value("block1.attention.scores"))
    assert f"differ by {percent(uneven)}" in found.claims["asymmetric"].result
    assert [found.claims[name].verdict for name in ("order", "symmetric", "mlp_alone", "mixture", "undo")] == [
        "not", "sense", "holds", "holds", "sense",
    ]  # fmt: skip
    added = trace.value("block2.mlp.output").norm(dim=-1) / trace.value("block2.attention.residual").norm(dim=-1)
    assert found.curves["correction"]["‖F‖/‖X′‖, MLP"][1] == pytest.approx(float(added.mean()))
    weights, total = trace.attention(1)[0].mean(0)[1:, 1:], 0.0
    for i in range(15):
        for j in range(15):
            total += float(weights[i, j]) * sqrt((i // 5 - j // 5) ** 2 + (i % 5 - j % 5) ** 2)
    assert found.curves["far"]["mean distance"][1] == pytest.approx(total / float(weights.sum()), rel=1e-5)


def test_gradients_of_a_softmax_are_those_of_autograd():
    scores = torch.randn(3, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    jacobians = [torch.autograd.functional.jacobian(lambda row: row.softmax(0), 5 * row).norm() for row in scores]
    assert attention.slopes(scores, 5) == pytest.approx(float(torch.stack(jacobians).mean()))


def test_the_residual_sums_are_left_out_of_the_backward_pass():
    """Of one block, by hand."""
    model = tracer.load("vit", H=12, W=20, P=4, D=12, h=3, d_ff=23, K=7, L=1)
    trace = model.trace()
    x, block = trace.value("position").clone().requires_grad_(), model.net.block1
    branch = block.attention(block.norm1(x))
    ways = block(x), block.mlp(block.norm2(x.detach() + branch)), block.mlp(block.norm2(branch))
    for at, y in enumerate(ways):
        shares = []
        for seed in range(structure.DIRECTIONS):
            towards = torch.randn(y.shape, generator=torch.Generator().manual_seed(seed))
            (arrives,) = torch.autograd.grad((y * towards).sum(), x, retain_graph=True)
            shares.append(float(arrives.norm() / towards.norm()))
        assert structure.highways(model, trace)[0][at] == pytest.approx(sum(shares) / len(shares))


def test_a_claim_that_is_not_about_a_model_says_so():
    model = tracer.load("transformer", D=12, h=3, d_ff=23, L=1)
    trace = model.trace()
    found = CARDS.measure_cards(model, trace).claims
    assert found["highway"] == "the blocks of transformer are not pre-norm blocks, so their sums can't be left out"
    assert found["order"].verdict == "not" and found["soft_lookup"].verdict == "holds"
    with pytest.raises(ValueError, match="transformer attends to no whole grid of patches"):
        vision.fields(trace)
    net = torch.nn.Linear(3, 3)
    with pytest.raises(ValueError, match="vit has no attention 1"):
        attention.order(vit()[0], tracer.trace(net, torch.zeros(1, 3)))


@pytest.mark.parametrize("claim", [vision.convolution, vision.cls_constant, vision.only_cls])
def test_a_claim_on_tensors_that_were_not_kept_says_so(claim):
    model, trace = vit()
    with pytest.raises(ValueError, match="the run of vit kept no "):
        claim(model, replace(trace, values={}))


def test_a_masked_model_sees_the_order_by_its_mask():
    model = tracer.load("nanogpt", L=1, D=12, h=3, d_ff=20)
    found = CARDS.measure_cards(model, model.trace()).claims
    assert found["order"].verdict == "not" and found["order"].result.endswith("through its mask")
    assert "has a mask" in found["asymmetric"] and found["mlp_alone"].verdict == "holds"


def test_one_head_is_measured_too():
    model = tracer.load("vit-note", H=32, W=32, D=24, d_k=8, d_ff=20)
    found = CARDS.measure_cards(model, model.trace()).claims
    assert found["mixture"].verdict == "holds" and found["heads_differ"] == "vit-note has one head"


def test_a_convolution_grows_by_its_kernel():
    fields = vision.fields(vit()[1])
    assert [int(one.sum()) for one in fields.convolution] == [9, 15]
    assert fields.convolution.shape == (2, 3, 5) and fields.attention.shape == (3, 5)
    middle = 1 + 1 * 5 + 2
    assert fields.attention[0, 0] == pytest.approx(float(vit()[1].attention(0, query=middle)[0].mean(0)[1]))


def test_a_second_picture_changes_batch_norm_alone():
    model, trace = vit()
    beside = vision.beside(model, trace)
    assert torch.equal(beside.alone[0], beside.together[0]) and beside.layer == 0 < beside.batch
    tokens = trace.value("position")[0]
    spread = tokens.std(0, unbiased=False)
    by_hand = (tokens - tokens.mean(0)) / (spread.square() + 1e-5).sqrt()
    assert torch.allclose(beside.alone[1], by_hand, atol=1e-4)


def test_measurements_are_sentences():
    model, trace = vit()
    said = attention.spread(model, trace).text
    assert said.startswith("Measured on random vectors, and on the scores of block 1") and said.endswith(".")
    assert "a standard deviation of" in said and "a variance of" in said and "spread" not in said
    assert "there is no mask, and 100.0\u00a0% of the pairs are open" in attention.whom(model, trace).text
