"""Parts of training recipes: the order of examples, the augmentation of pictures, rates, optimizers, hidden patches."""

import pytest
import torch

import tracer
from tests.models.test_training import TINY
from tracer.models import training
from tracer.models.training import data, evaluation, train_loop
from tracer.models.training.recipes import vit


def test_augmented_images_keep_shape_and_differ_by_draw():
    pixels = torch.randint(0, 256, (5, 3, 8, 6), dtype=torch.uint8)

    def draw(seed):
        return data.augment(pixels, pad=2, hole=3, generator=torch.Generator().manual_seed(seed))

    assert draw(0).shape == pixels.shape
    assert draw(0).dtype == torch.uint8
    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


def test_the_seed_decides_the_order_of_the_examples():
    first, again, other = (train_loop.indices(100, 10, seed, 3) for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_learning_rate_rises_holds_and_falls_to_zero():
    factors = [train_loop.factor(step, 100, 10) for step in range(100)]
    assert factors[0] == 0.1
    assert set(factors[9:41]) == {1.0}
    assert factors[41:] == sorted(factors[41:], reverse=True)
    assert factors[-1] < 0.02


def test_an_epoch_takes_each_example_once():
    order = torch.cat([train_loop.indices(12, 4, 0, step) for step in range(3)])
    assert sorted(order.tolist()) == list(range(12))
    assert not torch.equal(order, torch.cat([train_loop.indices(12, 4, 0, step) for step in range(3, 6)]))


def test_mimetic_attention_starts_near_plus_and_minus_identity():
    attention = vit.Recipe(sizes=TINY["sizes"]).build(0).block1.attention
    products = attention.query.weight.T @ attention.key.weight, attention.value.weight.T @ attention.output.weight.T
    assert products[0].diagonal().mean() > 0.3
    assert products[1].diagonal().mean() < -0.2


@pytest.mark.parametrize("name", [name for name in training.names() if name != "llama"])
def test_matrices_of_blocks_go_to_muon_and_all_else_to_adamw(name):
    made = training.recipe(name)
    net = made.build(0)
    muon, adamw = made.optimizers(net)
    names = {id(parameter): key for key, parameter in net.named_parameters()}
    of = [[names[id(p)] for group in opt.param_groups for p in group["params"]] for opt in (muon, adamw)]
    assert sorted(of[0] + of[1]) == sorted(names.values())
    shapes = {key: parameter.ndim for key, parameter in net.named_parameters()}
    assert set(of[0]) == {key for key, ndim in shapes.items() if ndim == 2 and "block" in key}
    assert {group["lr"] for group in muon.param_groups} == {made.matrix_rate}
    for group in adamw.param_groups:
        if any(shapes[names[id(parameter)]] < 2 for parameter in group["params"]):
            assert group["weight_decay"] == 0 and group["lr"] == made.rate


def test_muon_in_float32_takes_the_steps_of_pytorchs_up_to_its_rounding():
    weights = [torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((6, 6), (6, 9), (9, 6))]
    copies = [[torch.nn.Parameter(weight.clone()) for weight in weights] for _ in range(2)]
    ours, pytorchs = train_loop.Float32Muon, torch.optim.Muon
    pairs = [(kind(own, lr=0.1, weight_decay=0.5), own) for kind, own in zip((ours, pytorchs), copies, strict=True)]
    for step in range(3):
        for optimizer, own in pairs:
            for parameter, weight in zip(own, weights, strict=True):
                parameter.grad = (step + 1) * weight.sin()
            optimizer.step()
    for mine, other, weight in zip(*copies, weights, strict=True):
        assert (mine - other).norm() < 0.02 * (mine - weight).norm()


def test_visible_patches_of_a_batch_are_half_or_all_in_their_order_and_cls_is_among_them():
    recipe = training.recipe("vit", sizes=TINY["sizes"] | {"H": 16, "W": 16})
    images = data.Images(torch.zeros(9, 3, 16, 16, dtype=torch.uint8), torch.arange(9))
    kinds = set()
    for seed in range(80):
        *_, kept, mines = recipe.batch_of(images, torch.arange(9), torch.Generator().manual_seed(seed))
        kinds.add((kept.shape[1], bool(mines)))
        assert (kept[:, 0] == 0).all() and (kept.diff(dim=1) > 0).all() and kept.max() <= 16
    assert kinds == {(9, False), (17, False), (17, True)}  # attention is mined over all patches


class ReadsOnePatch(torch.nn.Module):
    """A classifier of two classes by the mean of the second of four patches, 2 pixels high and wide."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(4.0))

    def forward(self, images):
        patch = images[:, :, :2, 2:].mean(dim=(1, 2, 3))
        return torch.stack([-patch, patch], dim=1) * self.scale


def test_mined_attention_learns_to_cover_what_the_answer_needs_and_weights_do_not_learn_to_fail():
    net, images, labels = ReadsOnePatch(), torch.ones(3, 1, 4, 4), torch.ones(3, dtype=torch.int64)
    scores = torch.tensor([0.1, 0.0, 0.05, 0.2]).repeat(3, 1).requires_grad_()
    losses = []
    for _ in range(200):
        losses.append(evaluation.attention_mining(net, images, labels, scores.softmax(dim=1), 2))
        losses[-1].backward()
        with torch.no_grad():
            scores -= scores.grad
        scores.grad = None
    assert net.scale.grad is None
    assert losses[0] > 0.9 and losses[-1] < 0.6  # without its patch, it guesses: 0.5
    assert (scores.argmax(dim=1) == 1).all()


def test_all_of_a_llama_goes_to_adamw_its_matrices_of_blocks_at_a_rate_of_their_own():
    made = training.recipe("llama", matrix_rate=2e-3)
    net = made.build(0)
    (adamw,) = made.optimizers(net)
    assert isinstance(adamw, torch.optim.AdamW)
    found = [(id(parameter), group) for group in adamw.param_groups for parameter in group["params"]]
    groups = dict(found)
    assert len(found) == len(groups) and groups.keys() == {id(parameter) for parameter in net.parameters()}
    assert made.matrix_rate != made.rate and made.decay > 0
    for key, parameter in net.named_parameters():
        matrix = parameter.ndim == 2
        assert groups[id(parameter)]["lr"] == (made.matrix_rate if matrix and "block" in key else made.rate), key
        assert groups[id(parameter)]["weight_decay"] == (made.decay if matrix else 0), key


def test_hiding_takes_the_quarter_that_is_attended_to_most_the_central_one_and_any():
    images, attention = torch.ones(2, 3, 8, 8), torch.rand(2, 16, generator=torch.Generator().manual_seed(1))
    images[:, :, :, 4:] = 3.0
    views = evaluation.hide_patches(images, attention, 2, torch.Generator().manual_seed(0))
    for ending, colour in (("", 0.0), ("_mean", 2.0)):
        hidden = {
            name: views[f"{name}_hidden{ending}"][:, 0, ::2, ::2].flatten(1) == colour
            for name in ("attended", "central", "any")
        }
        assert [set(rows.sum(dim=1).tolist()) for rows in hidden.values()] == [{4}, {4}, {4}]
        assert torch.equal(hidden["attended"], attention >= attention.sort(descending=True).values[:, 3:4])
        assert hidden["central"][0].nonzero().flatten().tolist() == [5, 6, 9, 10]
    assert len(views) == 6
    assert all(view.shape == images.shape and view[0, 0, 1, 1] == view[0, 0, 0, 0] for view in views.values())


def test_what_is_hidden_is_what_the_trace_shows_to_be_attended_to():
    model = tracer.load("vit", H=12, W=8, P=4, D=6, h=2, d_ff=10, L=2, K=3)
    trace = model.trace()
    with torch.no_grad(), evaluation.looking(model.net) as seen:
        model.net(*model.inputs())
    assert torch.allclose(seen[0], trace.attention(layer=1, query=0).mean(dim=1)[:, 1:], atol=1e-6)
