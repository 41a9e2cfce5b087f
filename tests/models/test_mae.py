"""Masked autoencoder: its run is verified, the hidden stays hidden, and its anomaly map finds defects."""

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
from tracer.models import mae, training
from tracer.models.training.recipes.mae import auroc, normalise
from tracer.spec import results

DERIVED_SIZES = {"N": "H*W/P**2", "d_k": "D/h"}
SMALL = {"H": 12, "W": 20, "P": 4, "D": 16, "h": 2, "d_ff": 24, "L": 2, "L_dec": 1}


@pytest.fixture(scope="module")
def model():
    return tracer.load("mae", D=48, d_ff=96)


@pytest.fixture(scope="module")
def trace(model):
    return assert_verified(model)


REQUESTED_SIZES = [{}, {"B": 3}, {"N_v": 1}, {"N_v": 15, "seed": 3}, {"N_v": 4, "B": 2}]


@pytest.mark.parametrize("given", cases(REQUESTED_SIZES, (REQUESTED_SIZES[2], REQUESTED_SIZES[4])), ids=str)
@pytest.mark.parametrize("sizes", [SMALL, SMALL | {"C": 3, "L": 1, "L_dec": 3}], ids=["grey", "colour"])
def test_all_is_verified(sizes, given):
    assert_verified(tracer.load("mae", **sizes), **given)


def test_values_equal_a_plain_recomputation(model, trace):
    """By hand, with torch.nn.functional and the argsort of the paper, from the same weights."""
    p, (image, visible) = dict(model.net.named_parameters()), model.inputs()

    def tower(x, part, count):
        for layer in range(1, count + 1):
            x = plain_block(x, p, f"{part}.block{layer}", 4)
        return F.layer_norm(x, x.shape[-1:], p[f"{part}.norm.weight"], p[f"{part}.norm.bias"], 1e-6)

    patches = F.unfold(image, 8, stride=8).transpose(1, 2)  # one channel: its order does not matter
    x = F.linear(patches, p["embedding.weight"], p["embedding.bias"]) + p["position"]
    x = tower(x[:, visible[0]], "encoder", 4)
    assert torch.allclose(trace.value("encoder.norm"), x, atol=1e-5)
    x = F.linear(x, p["bridge.weight"], p["bridge.bias"])
    hidden = torch.tensor([i for i in range(64) if i not in visible[0].tolist()])
    restore = torch.cat([visible[0], hidden]).argsort()
    x = torch.cat([x, p["mask_token"].expand(1, len(hidden), -1)], 1)[:, restore] + p["decoder_position"]
    x = tower(x, "decoder", 2)
    assert torch.allclose(trace.output, F.linear(x, p["prediction.weight"], p["prediction.bias"]), atol=1e-4)


def test_hidden_patches_change_nothing(model):
    image, visible = model.inputs()
    hidden = next(i for i in range(64) if i not in visible[0].tolist())
    row, column = divmod(hidden, 8)
    other = image.clone()
    other[..., row * 8 : row * 8 + 8, column * 8 : column * 8 + 8] += 1
    with torch.no_grad():
        assert torch.equal(model.net(image, visible), model.net(other, visible))


def test_the_order_of_the_list_changes_nothing(model):
    """The encoder is permutation-equivariant, and the decoder puts every token back to its place."""
    image, visible = model.inputs()
    with torch.no_grad():
        assert torch.allclose(model.net(image, visible), model.net(image, visible.flip(1)), atol=1e-5)


def test_towers_have_attention_of_their_own(trace):
    assert [(a.part, a.layer) for a in trace.attentions] == [
        *(("encoder", i) for i in range(4)),
        ("decoder", 0),
        ("decoder", 1),
    ]
    assert trace.attention(0, part="encoder").shape == (1, 4, 32, 32)
    assert trace.attention(1, part="decoder").shape == (1, 4, 64, 64)
    assert torch.allclose(
        trace.attention(1, part="decoder"), trace.value("decoder.block2.attention.weights"), atol=1e-6
    )
    assert [s.name for s in segments(trace, "encoder")] == ["visible"]
    assert [(s.name, s.stop) for s in segments(trace, "decoder")] == [("image", 64)]
    assert "L_dec*(" in trace.params_symbolic and "L_dec*(" in trace.flops_symbolic


def test_the_same_seed_hides_the_same_patches(model):
    first, again, other = (model.inputs(seed=seed, N_v=10)[1] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert len(set(first[0].tolist())) == 10 and first[0].tolist() == sorted(first[0].tolist())


def test_shape_comments_are_true(trace):
    assert assert_comments(mae, trace, DERIVED_SIZES, part="encoder", S="N_v") >= 1
    assert assert_comments(mae, trace, DERIVED_SIZES, part="decoder", S="N") >= 1
    outside = assert_comments(mae, trace, DERIVED_SIZES, S="N")
    assert outside >= 12


def test_complementary_masks_hide_every_patch_once():
    for rows, columns in ((8, 8), (3, 5), (1, 7), (2, 1)):
        hidden = torch.cat(results.complementary(rows, columns))
        assert sorted(hidden.tolist()) == list(range(rows * columns))
    assert results.complementary(1, 1) == []


def test_patches_and_images_are_each_others_inverse(model, trace):
    image = torch.randn(2, 3, 8, 12)
    assert torch.equal(results.image_of(results.patches_of(image, 4), 2, 3, 4), image)
    assert torch.equal(trace.value("patches"), results.patches_of(model.inputs()[0], 8))


def test_the_result_is_plain_data(trace, model):
    result = trace.result
    assert result["kind"] == "reconstruction" and result["visible"] == model.inputs()[1][0].tolist()
    assert len(result["pixels"]) == 64 and len(result["pixels"][0][0]) == 1
    assert (
        0
        <= min(v[0] for row in result["pixels"] for v in row)
        <= max(v[0] for row in result["pixels"] for v in row)
        <= 255
    )
    assert len(result["anomaly"]) == len(result["anomaly"][0]) == 8
    shown = (model.inputs()[0][0, 0] * 0.2 + 0.5) * 255
    first = result["visible"][0]
    top, left = divmod(first, 8)
    assert result["pixels"][top * 8][left * 8][0] == pytest.approx(shown[top * 8, left * 8].item(), abs=0.51)


REFUSED_SIZES = [
    ({"H": 30}, "H=30, W=64 don't fit P=8"),
    ({"D": 50}, "D=50 is not divisible by h=4"),
    ({"N": 5}, r"N=5 can't be set, since N is derived"),
    ({"N_v": 5}, "N_v is not a size of the weights but of the input"),
]


@pytest.mark.parametrize(("sizes", "message"), REFUSED_SIZES, ids=str)
def test_sizes_that_do_not_fit_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        tracer.load("mae", **sizes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"N_v": 65}, "N_v=65 patches can't be visible: there are N=64"),
        ({"N_v": 0}, "N_v=0 can't run, expected a whole number of at least 1"),
        ({"seed": -1}, "seed=-1 can't run, expected a whole number of at least 0"),
        ({"text": "a cat"}, "'mae' takes image, but was given a text"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_are_refused(model, given, message):
    with pytest.raises(ValueError, match=message):
        model.trace(**given)


TINY = {
    "sizes": {"H": 16, "W": 16, "C": 1, "P": 4, "D": 16, "h": 2, "d_ff": 32, "L": 1, "L_dec": 1},
    "batch": 16,
    "count": 64,
    "tests": 4,
    "warmup": 2,
}


@pytest.mark.sweep
def test_the_recipe_learns_and_is_seeded(tmp_path):
    from safetensors.torch import load_file

    recipe = training.recipe("mae", **TINY)
    data = recipe.read(None, "train")
    batch = list(recipe.batch_of(data, torch.arange(60), torch.Generator().manual_seed(0)))
    before, _ = recipe.loss(recipe.build(0), batch)
    files = [training.train("mae", out=tmp_path / f"{i}.safetensors", epochs=6, **TINY) for i in range(2)]
    first, second = map(load_file, files)
    assert all(torch.equal(first[name], second[name]) for name in first)
    net = recipe.build(0)
    net.load_state_dict(first)
    after, _ = recipe.loss(net, batch)
    assert after < 0.8 * before
    figures = training.score("mae", weights=files[0])
    assert {"auroc_drawn", "auroc_brick", "auroc_grass", "auroc_gravel", "surfaces"} < figures.keys()


def test_a_surface_to_train_on_is_never_one_to_test_on():
    recipe = training.recipe("mae", **TINY)
    seen, unseen = recipe.read(None, "train"), recipe.read(None, "test")
    assert not seen.defects.any() and unseen.defects.any(dim=1).all()
    known = {bytes(pixels.numpy()) for part in (seen, recipe.read(None, "validation")) for pixels in part.pixels}
    clean = [synthetic.surface(name, seed, size=16) for name in ("drawn", "brick") for seed in range(10_000, 10_004)]
    assert not known & {bytes(pixels) for pixels in clean}


def test_auroc_counts_pairs_in_the_right_order():
    scores, labels = torch.tensor([3.0, 1.0, 2.0, 2.0, 0.0]), torch.tensor([True, False, True, False, False])
    assert auroc(scores, labels) == pytest.approx((3 + 2.5) / 6)
    assert auroc(torch.ones(4), torch.tensor([True, False, False, True])) == 0.5
    with pytest.raises(ValueError, match="0 positives and 2 negatives"):
        auroc(torch.ones(2), torch.zeros(2, dtype=torch.bool))


def test_a_perfect_prediction_has_no_anomaly():
    class Copy(torch.nn.Module):
        P = 4

        def forward(self, image, visible):
            return results.patches_of(image, 4)

    image = normalise(torch.from_numpy(synthetic.surface("weave", 0, size=16).copy())[None, None])
    assert results.anomaly_map(Copy(), image).abs().max() == 0


def test_doubted_patches_are_hidden_from_all():
    """In a later round, what was predicted worst is no longer used to predict the rest."""
    seen = []

    class Asked(torch.nn.Module):
        P = 4

        def forward(self, image, visible):
            seen.append(visible)
            return results.patches_of(image, 4)

    image, doubt = torch.randn(2, 1, 16, 16), torch.zeros(2, 16)
    doubt[0, 5] = doubt[1, 9] = 1
    results.predict_hidden(Asked(), image)
    assert [tuple(visible.shape) for visible in seen] == [(4 * 2, 12)], "four masks, each of both images, in one run"
    seen.clear()
    results.predict_hidden(Asked(), image, doubt)
    assert [tuple(visible.shape) for visible in seen] == [(4 * 2, 10)]
    (visible,) = seen
    assert not (visible[::2] == 5).any() and not (visible[1::2] == 9).any()


def test_masks_that_hide_more_patches_are_run_apart():
    net, image = tracer.load("mae", **TINY["sizes"] | {"H": 12, "W": 20}).net, torch.randn(1, 1, 12, 20)
    predicted = results.predict_hidden(net, image)
    for hidden in results.complementary(3, 5):
        visible = torch.tensor([[patch for patch in range(15) if patch not in hidden.tolist()]])
        with torch.no_grad():
            alone = net(image, visible)[:, hidden]
        torch.testing.assert_close(predicted[:, hidden], alone, rtol=1e-5, atol=1e-5)


def test_recipes_of_other_sizes_are_refused_in_words():
    with pytest.raises(ValueError, match="expected square surfaces in grey"):
        training.recipe("mae", sizes=TINY["sizes"] | {"C": 3})
    with pytest.raises(ValueError, match="expected H, W, C"):
        training.recipe("mae", sizes={"D": 3})


def test_shipped_weights_reach_their_target():
    card = models.card("mae")
    if card is None:
        pytest.skip("the masked autoencoder has no shipped weights")
    assert (models.WEIGHTS / "mae.safetensors").stat().st_size <= 4 * 2**20
    assert {"sizes", "data", "measure", "steps", "date", "command", "auroc_grass", "auroc_gravel"} <= card.keys()
    assert min(card["auroc_drawn"], card["auroc_brick"]) >= 0.90
    assert_verified(tracer.load("mae"))
