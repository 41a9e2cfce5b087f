"""One number of a run, followed back through the equations to pixels and weights."""

import copy
import itertools
import math
import random
import re
from dataclasses import FrozenInstanceError, replace

import pytest
import torch

import tracer
from tracer.expr import execute, tensors
from tracer.latex_reader.evaluator import evaluate
from tracer.latex_reader.parser import read
from tracer.tracing import provenance as provenance_walk
from tracer.tracing.provenance import RecomputedValues

SCORES = "block1.attention.scores"
VIT = {"H": 12, "W": 8, "P": 4, "D": 6, "h": 2, "d_ff": 10, "L": 1, "K": 3}
GPT = {"D": 6, "h": 2, "d_ff": 10, "L": 2}


@pytest.fixture(scope="module")
def vit():
    return tracer.load("vit", **VIT)


@pytest.fixture(scope="module")
def trace(vit):
    return vit.trace()


@pytest.fixture(scope="module")
def runs(trace):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, 2), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten())
    return {
        "vit": trace,
        "nanogpt": tracer.load("nanogpt", **GPT).trace(text="to be or not"),
        "a layer of PyTorch's": tracer.trace(layer, torch.randn(1, 5, 8), symbols={"B": 0, "T": 1}),
        "a convolution": tracer.trace(net.eval(), torch.randn(2, 3, 9, 7), symbols={"B": 0}),
    }


NAMES = ("vit", "nanogpt", "a layer of PyTorch's", "a convolution")


def some(shape, count: int, seed: str):
    draw = random.Random(seed)
    return [tuple(draw.randrange(n) for n in shape) for _ in range(count)]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_computed_is_what_ran_and_shares_add_up_to_it(runs, name):
    trace = runs[name]
    assert trace.steps
    for step in trace.steps:
        for index in some(step.shape, 3, step.id):
            cell = trace.cell(step.id, index)
            assert cell.computed == pytest.approx(cell.value, rel=1e-4, abs=1e-5), (step.id, index)
            shares = [number.share for numbers in cell.terms.values() for number in numbers if number.counted]
            if cell.terms and None not in shares and math.isfinite(cell.computed):
                assert sum(shares) == pytest.approx(cell.computed, rel=1e-9, abs=1e-9), (step.id, index)


@pytest.mark.parametrize("name", NAMES)
def test_terms_are_what_the_equation_has_gradients_for(runs, name):
    trace = runs[name]
    value = trace.later.values(provenance_walk.RecomputedValues)
    for step in trace.steps:
        equation = value.equations[step.id]
        (index,) = some(step.shape, 1, step.id)
        named = {one.key: value(one.key) for one in tensors(equation)}
        exact = {k: x.double().requires_grad_() if x.is_floating_point() else x for k, x in named.items()}
        made = execute(equation, lambda one, exact=exact: exact[one.key], value.size)
        wanted = {key: x for key, x in exact.items() if x.requires_grad}
        if not made.requires_grad or not math.isfinite(made[index].item()):
            continue
        grads = torch.autograd.grad(made[index], list(wanted.values()), allow_unused=True)
        terms = trace.cell(step.id, index).terms
        for key, grad in zip(wanted, grads, strict=True):
            moved = set() if grad is None else set(map(tuple, grad.nonzero().tolist()))
            assert moved <= {number.index for number in terms.get(key, ())}, (step.id, key)


def test_a_score_is_the_products_of_a_query_and_a_key(trace):
    cell = trace.cell(SCORES, (0, 1, 5, 2))
    q, k = trace.value("block1.attention.query")[0, 1, 5], trace.value("block1.attention.key")[0, 1, 2]
    queries, keys = cell.terms["block1.attention.query"], cell.terms["block1.attention.key"]
    assert list(cell.terms) == ["block1.attention.query", "block1.attention.key"]
    assert [number.index for number in queries] == [(0, 1, 5, i) for i in range(3)]
    assert [number.index for number in keys] == [(0, 1, 2, i) for i in range(3)]
    products = pytest.approx((q * k / 3**0.5).tolist(), rel=1e-5)
    assert [number.share for number in queries] == products and [number.share for number in keys] == products
    assert all(number.counted for number in queries) and not any(number.counted for number in keys)
    assert cell.value == trace.value(SCORES)[0, 1, 5, 2].item() and cell.latex == trace.step(SCORES).latex


def test_a_weight_is_its_share_of_the_row(trace):
    row = trace.value("block1.attention.weights")[0, 0, 3]
    numbers = trace.cell("block1.attention.weights", (0, 0, 3, 4)).terms[SCORES]
    assert [number.share for number in numbers] == pytest.approx(row.tolist(), rel=1e-5)
    assert [number.counted for number in numbers] == [number.index[-1] == 4 for number in numbers]


def test_the_number_of_a_parameter_stands_where_the_module_keeps_it(vit, trace):
    cell = trace.cell("logits", (0, 2))
    weights = cell.terms["parameter head.weight"]
    assert [number.index for number in weights] == [(2, i) for i in range(6)]
    assert [number.value for number in weights] == vit.net.head.weight[2].tolist()


def test_the_way_goes_back_to_a_pixel(vit, trace):
    cell, way = trace.cell(SCORES, (0, 0, 3, 1)), []
    while cell.terms:
        way.append(cell.id)
        cell = cell.back(next(iter(cell.terms)))
    assert way[:3] == [SCORES, "block1.attention.query", "block1.norm1"] and way[-1] == "patches"
    assert cell.id == "input image" and cell.value == vit.inputs()[0][cell.index].item()
    with pytest.raises(ValueError, match="was not made of 'patches': the way ends there"):
        cell.back("patches")


def test_back_takes_what_contributed_most_or_what_is_asked_for(trace):
    cell = trace.cell("block1.attention.query", (0, 1, 2, 0))
    numbers = cell.terms["block1.norm1"]
    assert cell.back("block1.norm1").index == max(numbers, key=lambda number: abs(number.share)).index
    assert cell.back("block1.norm1", (0, 2, 4)) == trace.cell("block1.norm1", (0, 2, 4))
    with pytest.raises(ValueError, match=r"was not made of 'logits': it was made of 'block1.norm1', 'parameter"):
        cell.back("logits")
    with pytest.raises(ValueError, match=r"was not made of \(0, 3, 4\) of 'block1.norm1'; the first .* is \(0, 2, 0\)"):
        cell.back("block1.norm1", (0, 3, 4))
    normed = trace.cell("block1.norm1", (0, 2, 4))
    assert normed.back("position").index == (0, 2, 4), "not the largest of the row, which is in μ and σ only"


def test_a_cell_is_plain_and_frozen(trace):
    cell = trace.cell("cls", (0, -1))
    assert cell.index == (0, 5) and isinstance(cell.value, float) and cell == copy.copy(cell)
    with pytest.raises(FrozenInstanceError):
        cell.value = 1


@pytest.mark.parametrize("index", [(0, 2, 7, 0), (0, 0, 0), 3, "abcd", (0, 0, 0, 0.5), (0, 0, -8, 0), None])
def test_an_index_that_the_tensor_lacks_is_quoted(trace, index):
    with pytest.raises(ValueError) as caught:
        trace.cell(SCORES, index)
    assert str(caught.value) == (f"{index!r} is not a cell of '{SCORES}', expected 4 whole numbers up to (0, 1, 6, 6)")


def test_an_unknown_id_is_quoted(trace):
    with pytest.raises(KeyError, match="no step 'block9'"):
        trace.cell("block9", (0,))
    with pytest.raises(KeyError, match="no 'parameter block9' in this run: the model has no such parameter"):
        trace.cell("parameter block9", (0,))


def test_a_run_without_its_equations_says_so(vit, trace, tmp_path):
    trace.save(tmp_path / "run.safetensors")
    opened = tracer.open(tmp_path / "run.safetensors")
    for run in (opened, copy.deepcopy(trace), vit.trace(prove=False), replace(trace, later=None)):
        with pytest.raises(ValueError, match="the equations of this run are not at hand"):
            run.cell("cls", (0, 0))


@pytest.mark.parametrize("name", ["vit", "nanogpt"])
def test_what_was_not_kept_is_computed_again(runs, name):
    model = tracer.load(name, **{"vit": VIT, "nanogpt": GPT}[name])
    given = {"text": "to be or not"} if name == "nanogpt" else {}
    kept, bare = runs[name], model.trace(keep=0, **given)
    again = 0
    for step in bare.steps:
        (index,) = some(step.shape, 1, step.id)
        cell, other = bare.cell(step.id, index), kept.cell(step.id, index)
        assert cell.value == pytest.approx(other.value, rel=1e-4, abs=1e-5)
        assert {key: len(numbers) for key, numbers in cell.terms.items()} == {
            key: len(numbers) for key, numbers in other.terms.items()
        }
        again += "did not keep this tensor: its number is computed again" in cell.note
    assert again > len(bare.steps) / 2


def test_the_equations_are_there_before_they_are_verified_and_after(vit):
    later = vit.trace(prove="later")
    assert later.cell(SCORES, (0, 0, 1, 2)) == later.prove().cell(SCORES, (0, 0, 1, 2))


def test_weights_that_are_rewritten_after_the_run_are_not_shown_as_its(vit):
    model = replace(vit, net=copy.deepcopy(vit.net))
    trace = model.trace()
    with torch.no_grad():
        model.net.head.weight.mul_(2)
    cell = trace.cell("logits", (0, 1))
    assert cell.note == "Not followed: 'parameter head.weight' has changed since the run."
    assert cell.value == trace.value("logits")[0, 1].item() and not cell.terms and cell.computed is None
    assert trace.cell("norm", (0, 1, 1)).terms


@pytest.mark.parametrize(("count", "kept"), [(2**14, True), (2**14 + 1, False)])
def test_few_token_ids_of_an_input_are_kept(count, kept):
    run = tracer.trace(torch.nn.Embedding(3, 2), torch.zeros(1, count, dtype=torch.long))
    assert ("input input" in run.values) == kept


def test_more_numbers_than_are_listed_are_said_without_shares(trace, monkeypatch):
    context = "block1.attention.context", (0, 1, 2)
    monkeypatch.setattr(provenance_walk, "MAX_TERMS", 50)
    assert not trace.cell(*context).note
    said = "What each number contributed is not listed: they are more than {}."
    for most, numbers in ((20, 7), (13, 0)):
        monkeypatch.setattr(provenance_walk, "MAX_TERMS", most)
        cell = trace.cell(*context)
        assert cell.note == said.format(most) and cell.computed == pytest.approx(cell.value, rel=1e-4)
        assert [len(found) for found in cell.terms.values()] == [numbers, numbers][: len(cell.terms)]
        assert all(number.share is None for found in cell.terms.values() for number in found)
        assert bool(cell.terms) == bool(numbers)


def test_a_number_that_stands_in_the_equation_ends_the_way_too():
    class Shifted(torch.nn.Module):
        def forward(self, x):
            return (x + 1.5).relu()

    trace = tracer.trace(Shifted(), torch.randn(2, 3), symbols={"B": 0})
    cell = next(found for step in trace.steps if len((found := trace.cell(step.id, (1, 2))).terms) > 1)
    (number,) = [key for key in cell.terms if key.startswith("number ")]
    assert cell.back(number).value == 1.5 and not cell.back(number).terms


BRACE = re.compile(r"\\underbrace\{(.*?)\}_\{\d+\\text\{ more\}\}")
"""The others of a long sum: one number, and how many they are."""


def sums_up(filled: str) -> float:
    """Return the value of a filled equation, by the independent reader of printed equations."""
    without = BRACE.sub(lambda match: rf"\left({match[1]}\right)", filled).replace(r"\infty", "10^{400}")
    return float(evaluate(read(f"x = {without}", {"x"}), {}.__getitem__, ()))


@pytest.mark.parametrize("name", NAMES)
def test_the_filled_equation_adds_up_to_the_cell(runs, name):
    """Parse and compute an equation printed with four digits per number: it is the cell within that rounding."""
    trace = runs[name]
    for step in trace.steps:
        for index in some(step.shape, 2, step.id):
            cell = trace.cell(step.id, index)
            size = sum(abs(n.share) for ns in cell.terms.values() for n in ns if n.counted and n.share) or 1
            if math.isfinite(cell.value):
                assert sums_up(cell.numeric_latex) == pytest.approx(cell.value, abs=3e-3 * max(size, abs(cell.value)))
            else:
                assert sums_up(cell.numeric_latex) < -1e300


def test_a_filled_equation_keeps_the_form_of_its_line(trace):
    score = trace.cell(SCORES, (0, 1, 5, 2)).numeric_latex
    assert score.startswith(r"\frac{") and score.endswith(r"}{\sqrt{3}}") and score.count(r"\cdot") == 3
    assert trace.cell("block1.mlp.activation", (0, 1, 5)).numeric_latex.startswith(r"\operatorname{GELU}\left(")
    weight = trace.cell("block1.attention.weights", (0, 0, 3, 4)).numeric_latex
    assert weight.count("e^{") == 5 and r"\underbrace{" in weight and r"_{3\text{ more}}" in weight


def taken_by(trace, id: str, index) -> dict[str, set]:
    """Return the cells of each line that change when one number of a tensor does, by the equations."""
    value = trace.later.values(RecomputedValues)
    moved: dict[str, set] = {}
    for step in trace.steps:
        equation = value.equations[step.id]
        keys = {tensor.key for tensor in tensors(equation)}
        if id not in keys:
            continue
        held = {key: value(key).clone() for key in keys}
        marked = held | {id: held[id].clone()}
        marked[id][index] = torch.nan if marked[id].is_floating_point() else (marked[id][index] + 1) % 5
        before, after = (
            execute(equation, lambda tensor, of=of: of[tensor.key], value.size).nan_to_num(7e9) for of in (held, marked)
        )
        moved[step.id] = set(map(tuple, (before != after).nonzero().tolist()))
    return {id: cells for id, cells in moved.items() if cells}


@pytest.mark.parametrize("name", NAMES)
def test_the_users_of_a_number_are_the_cells_that_are_spoiled_with_it(runs, name):
    trace = runs[name]
    named = {name.of for step in trace.steps for name in step.names} | {step.id for step in trace.steps}
    for key in sorted(named):
        value = trace.later.values(RecomputedValues)(key)
        if value is None or not value.ndim or not value.is_floating_point() or value.isinf().any():
            continue
        for index in some(value.shape, 1, key):
            users = trace.cell(key, index).users()
            read = {user.step: set(itertools.product(*user.axes)) for user in users}
            spoiled = taken_by(trace, key, index)
            assert all(user.exact for user in users) and read.keys() >= spoiled.keys()
            for step, cells in spoiled.items():
                assert cells <= read[step], (key, index, step)
            for user in users:  # and each is made of it, as the way back says
                at = next(iter(read[user.step]))
                assert trace.cell(user.step, at).terms[key], (key, index, user.step)


def test_a_pixel_is_read_by_one_cell_of_one_patch(vit, trace):
    (patch,) = trace.cell("input image", (0, 1, 5, 6)).users()
    assert patch.step == "patches" and patch.exact and patch.axes == ((0,), (3,), (4 * 3 + 2 * 3 + 1,))
    (embedding,) = trace.cell("patches", (0, 3, 19)).users()
    assert embedding.step == "embedding" and embedding.axes == ((0,), (3,), tuple(range(6)))
    assert not trace.cell("logits", (0, 1)).users()


def test_a_key_that_the_mask_closes_is_read_by_its_own_scores_alone(runs):
    """The scores of all queries are computed with it, and only then closed."""
    trace = runs["nanogpt"]
    (scores,) = trace.cell("block1.attention.key", (0, 1, 9, 0)).users()
    assert scores.axes == ((0,), (1,), tuple(range(trace.step(SCORES).shape[2])), (9,))
