"""Kinds of positions on one model: the effect of each on scores, sums of their terms, and shuffled tokens."""

import numpy as np
import pytest
import torch

import tracer
from tracer.lessons import positions
from tracer.lessons.positions import experiments
from tracer.lessons.positions.experiments import grid, load
from tracer.record import tolerance

KINDS = [kind.name for kind in positions.KINDS]


@pytest.fixture(scope="module")
def at():
    """Return the measurements of each kind, cached."""
    found = {}

    def of(kind: str):
        if kind not in found:
            found[kind] = experiments.placement(kind, T=12, D=16, h=2)
        return found[kind]

    return of


def test_the_five_kinds_of_the_papers_are_found():
    assert KINDS == ["sinusoidal", "learned", "relative", "rotary", "alibi"]


@pytest.mark.parametrize("kind", KINDS)
def test_only_positions_differ(kind):
    """All other weights and the tokens are those of the model without positions."""
    plain, made = load(positions.NO_POSITIONS), load(kind)
    same = {name: value for name, value in made.net.state_dict().items() if not name.startswith("places.")}
    assert same.keys() == plain.net.state_dict().keys()
    assert all(value.equal(plain.net.state_dict()[name]) for name, value in same.items())
    assert made.inputs(T=9)[0].equal(plain.inputs(T=9)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_terms_add_up_to_the_scores_that_ran(kind, at):
    found = at(kind)
    assert found.error <= tolerance("float32")
    names = ["content–content", "content–position", "position–content", "position–position"]
    added = kind in ("sinusoidal", "learned")
    assert (list(found.terms) == names) == added
    assert np.allclose(sum(found.terms.values()), found.scores, atol=1e-5)
    assert all(np.abs(term).max() > 1e-4 for term in found.terms.values())


@pytest.mark.parametrize("kind", KINDS)
def test_scores_depend_on_the_distance_alone_where_positions_are_not_added(kind, at):
    spread = at(kind).curve.spread
    assert (spread < 1e-5) == (kind not in ("sinusoidal", "learned"))


def test_products_of_sines_depend_on_the_distance_alone_before_the_projections(at):
    """Vaswani et al. 2017: waves of i and j give cos((i - j)θ); the rows of a random table do not."""

    def spread(kind):
        return at(kind).product.spread

    assert spread("sinusoidal") < 1e-6 and spread("rotary") < 1e-6 and spread("learned") > 0.1
    half = 10000.0 ** -(np.arange(8) / 8)
    assert at("sinusoidal").similar[7, 3] == pytest.approx(np.cos(4 * half).sum(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_permute_with_tokens_only_without_positions_and_without_a_mask(kind, at):
    found = {(one.positions, one.mask): one.same for one in at(kind).shuffles}
    assert found == {
        (positions.NO_POSITIONS, "bidirectional"): True,
        (kind, "bidirectional"): False,
        (positions.NO_POSITIONS, "causal"): False,
        (kind, "causal"): False,
    }


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_line_is_verified_and_positions_have_some(kind, causal):
    trace = load(kind, mask="causal" if causal else "bidirectional", D=16, h=2).trace(T=8)  # d_k is T
    assert {step.verdict for step in trace.steps} == {"verified"} and trace.coverage == 1
    assert not any("?" in step.symbolic for step in trace.steps)
    lines = experiments.changed_steps(trace, "causal" if causal else "bidirectional")
    assert any(step.stage == "position" for step in lines) and len(lines) < len(trace.steps) - 4
    scores = trace.step("block1.attention.scores")
    assert r"\sqrt{d_k}" in scores.latex


def test_the_penalty_is_that_of_the_paper():
    """Press et al. 2022: eight heads have the slopes 1/2, 1/4 … 1/256."""
    net = load("alibi", D=32, h=8).net
    assert net.places.slopes.tolist() == [2.0**-n for n in range(1, 9)]
    assert net.places.between(4)[0][1, 0].tolist() == [0, 0.25, 0.5, 0.75]


def test_relative_positions_are_not_added_to_tokens():
    trace = load("relative").trace(T=8)
    assert "position" not in {step.id for step in trace.steps}
    assert "not added there" in trace.step("distances").note
    assert r"\mathbf{X}_t\,\mathbf{W}_{Q}" in trace.step("block1.attention.query").latex


def test_embeddings_are_not_multiplied_by_the_root_of_the_width():
    trace = load("sinusoidal").trace(T=8)
    step = trace.step("position")
    assert "by √D" in step.note and "sqrt" not in step.latex
    assert trace.value("position").allclose(trace.value("embedding") + trace.value("positions").float())


def test_the_code_keeps_a_longer_table_than_the_note():
    model = load("learned")
    assert len(model.net.places.rows) == 32 and "longer one" in model.trace(T=8).step("position").note


def test_heads_that_cannot_turn_pairs_are_refused():
    with pytest.raises(ValueError, match="D=12 does not fit h=4"):
        load("rotary", D=12, h=4)


def test_neighbours_in_the_picture_got_alike_positions_by_training():
    model = tracer.load("vit")
    found = grid(model.trace(prove=False), model.net)
    assert (found.rows, found.columns, found.length) == (8, 8, 65)
    rows = model.net.position.detach()
    expected = torch.cosine_similarity(rows[1 + 27], rows[1 + 35], dim=0)
    assert found.cosines[27, 35] == pytest.approx(float(expected), rel=1e-4)
    assert found.mean(1) > 0.8 > 0.6 > found.mean(found.farthest)
    random = tracer.load("vit", D=64)
    assert abs(grid(random.trace(prove=False), random.net).mean(1)) < 0.1


def test_two_dimensional_positions_are_a_list_of_rows():
    """Note 000 calls vit-text's 2D: the sum knows no rows and columns, as patches shuffled with their rows show."""
    model = tracer.load("vit-text", L=1, mask="prefix")
    image, tokens = model.inputs()
    table = model.net.image_positions
    trace = model.trace(prove=False)
    assert table.shape == (64, 96) and "2D" in trace.step("position").note and grid(trace, model.net).length == 64
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    cut = image.view(1, 3, 8, 8, 8, 8).permute(0, 2, 4, 1, 3, 5).reshape(1, 64, 3, 8, 8)[:, order]
    moved = cut.view(1, 8, 8, 3, 8, 8).permute(0, 3, 1, 4, 2, 5).reshape(image.shape)
    with torch.no_grad():
        plain = model.net(image, tokens)
        table.copy_(table[order])
        assert torch.allclose(model.net(moved, tokens), plain, atol=1e-4)


def test_a_run_without_a_grid_has_no_such_table():
    model = tracer.load("nanogpt", L=1)
    assert grid(model.trace(prove=False), model.net) is None


def test_a_distance_is_how_far_the_query_stands_after_the_key():
    i, j = np.mgrid[0:5, 0:5]
    curve = experiments.by_distance((i - j)[None].astype(float))
    assert curve.mean[0].tolist() == list(curve.distances) == list(range(-4, 5))
