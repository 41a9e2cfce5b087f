"""Printed lines on runs that they were not derived from: other inputs, other weights, other sizes."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tracer
from pages.ui import texts
from tracer.latex_reader.evaluator import deviation, fill_threshold
from tracer.record.steps import CHANGED_SUFFIX
from tracer.shapes.variation import other_values, other_weights
from tracer.tracing import counterfactual

SYMBOLS = {"B": 0, "T": 1}


class Block(nn.Module):
    """A residual block whose gains are 1 and whose biases are 0."""

    def __init__(self):
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(6), nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 6))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Blocks(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Scaled(nn.Module):
    """A layer whose result a model scales."""

    def __init__(self, change):
        super().__init__()
        self.q, self.change = nn.Linear(8, 8), change

    def forward(self, x):
        return self.change(self.q(x))


@pytest.fixture(scope="module")
def nanogpt():
    return tracer.load("nanogpt")


def trace_module(module, *args, **options):
    torch.manual_seed(0)
    with torch.no_grad():
        return tracer.trace(module.eval(), *args, **options)


def test_the_lines_of_any_module_hold_on_three_other_runs():
    module = Blocks()
    before = copy.deepcopy(module.state_dict())
    run = trace_module(module, torch.randn(2, 5, 6), symbols=SYMBOLS)
    checked = run.check()
    assert {(step.verdict, step.checked, step.replayed) for step in checked.steps} == {("verified", 3, "")}
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert {step.checked for step in run.steps} == {0}, "a trace is frozen: what was checked is in the new one"


def test_without_symbols_the_runs_are_at_the_same_sizes():
    assert {step.checked for step in trace_module(Blocks(), torch.randn(2, 5, 6)).check().steps} == {3}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [(r" \odot \boldsymbol{\gamma}_{1}^{(1)}", ""), (r" + \boldsymbol{\beta}_{1}^{(1)}", ""), ("10^{-5}", "10^{-6}")],
)
def test_what_the_run_itself_hides_is_found(right, wrong):
    run = trace_module(Blocks(), torch.randn(2, 5, 6), symbols=SYMBOLS)
    line = run.steps[0]
    assert right in line.latex
    steps = (replace(line, latex=line.latex.replace(right, wrong)), *run.steps[1:])
    changed = replace(run, steps=steps).check()
    assert [step.id for step in changed.steps if step.verdict == "refuted"] == [line.id]
    assert changed.steps[0].replayed.startswith("It does not hold on another run, with other ")


@pytest.mark.parametrize(
    ("latex", "symbolic", "said"),
    [
        (r"2\,\mathbf{x}_{[:5]}", ("B", "T", "6"), "with other sizes: it has no value there, since it gives"),
        (r"2\,\mathbf{x}", ("B", "5", "6"), "with other sizes: its shape is ["),
        (r"2\,\mathbf{x}", ("B", "?", "6"), ""),
    ],
)
def test_a_run_without_a_value_or_with_another_shape_refutes_a_line(latex, symbolic, said):
    run = tracer.trace(lambda x: x * 2, torch.randn(2, 5, 6), symbols=SYMBOLS)
    step = replace(run.steps[0], latex=rf"\mathbf{{Z}} = {latex}", symbolic=symbolic)
    (checked,) = replace(run, steps=(step,)).check().steps
    assert said in checked.replayed and checked.verdict == ("refuted" if said else "verified")


def test_a_tensor_that_is_missing_refutes_nothing():
    run = tracer.trace(lambda x: (x * 2).sin(), torch.randn(2, 5, 6), symbols=SYMBOLS)
    outcome = counterfactual._predict_line(run.steps[0], None, SimpleNamespace(precision={}), None, lambda key: None)
    assert outcome == counterfactual.Outcome()


class ByDtype(nn.Module):
    """A module whose code depends on the dtype."""

    def forward(self, x):
        return x * (2 if x.dtype == torch.float32 else 3) + torch.finfo(x.dtype).eps


class Autocast(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x)


@pytest.mark.parametrize("module", [ByDtype(), Autocast(6, 6)])
def test_where_the_code_does_something_else_in_float64_runs_have_the_precision_of_the_model(module):
    checked = trace_module(module, torch.randn(2, 5, 6), symbols=SYMBOLS).check()
    assert {(step.verdict, step.checked) for step in checked.steps} == {("verified", 3)}
    assert all("in float64 its code does something else" in note for note in checked.notes) and checked.notes


def test_a_wrong_line_is_refuted_in_the_precision_of_the_model_too():
    run = trace_module(ByDtype(), torch.randn(2, 5, 6), symbols=SYMBOLS)
    wrong = replace(run.steps[0], latex=run.steps[0].latex.replace("2", "2.001", 1))
    assert wrong.latex != run.steps[0].latex
    assert replace(run, steps=(wrong,)).check().steps[0].refuted


def test_a_cast_that_float64_needs_besides_is_no_other_code():
    class Norm(nn.Module):
        def forward(self, x):
            return x / x.float().pow(2).mean(-1, keepdim=True).sqrt()

    run = trace_module(Norm(), torch.randn(2, 5, 6), symbols=SYMBOLS).check()
    assert not run.notes and {step.checked for step in run.steps} == {3}


def test_all_results_of_one_call_are_checked():
    def forward(x):
        return torch.stack([part * (n + 1) for n, part in enumerate(x.unbind(1))], 1)

    steps = tracer.trace(forward, torch.randn(2, 3, 6)).check().steps
    assert len(steps) == 4 and {(step.verdict, step.checked) for step in steps} == {("verified", 3)}


@pytest.mark.parametrize("fill", [-1e4, -1e9, -1e20, -1e30])
def test_a_large_number_of_a_mask_hides_no_wrong_scores(fill):
    class Scores(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x):
            scores = self.query(x) @ self.key(x).mT / 2
            return scores.masked_fill(torch.ones_like(scores[0]).triu(1).bool(), fill)

    trace = trace_module(Scores(), torch.randn(2, 5, 8), symbols=SYMBOLS)
    scores = next(step for step in trace.steps if r"{2}" in step.latex)
    assert trace.check().step(scores.id).checked == 3
    wrong = replace(scores, latex=scores.latex.replace(r"{2}", r"{2.0001}"))
    steps = tuple(wrong if step is scores else step for step in trace.steps)
    assert replace(trace, steps=steps).check().step(scores.id).refuted


def test_a_number_that_is_a_result_of_the_input_is_no_law():
    run = trace_module(Scaled(lambda y: y / y.abs().max().item()), torch.randn(1, 5, 8), symbols=SYMBOLS)
    last = run.check().steps[-1]
    assert not (last.verdict == "verified" and last.checked), last


def test_a_model_that_does_not_run_with_other_numbers_says_so():
    def picky(y):
        if float(y.sum()) != total:
            raise RuntimeError("only this very input will do\nand more")
        return y * 2

    total, module, x = 0.0, Scaled(lambda y: y), torch.randn(1, 5, 8)
    with torch.no_grad():
        total = float(module(x).sum())
    module.change = picky
    steps = trace_module(module, x).check().steps
    assert {step.checked for step in steps} == {0} and {step.verdict for step in steps} == {"verified"}
    assert {step.replayed for step in steps} == {
        "It was not checked on other runs: the model does not run there (only this very input will do)."
    }


def test_a_run_in_another_precision_says_so():
    def single(y):
        if y.dtype != torch.float32:
            raise RuntimeError("only in single precision")
        return y * 2

    checked = trace_module(Scaled(single), torch.randn(1, 5, 8)).check()
    assert {step.checked for step in checked.steps} == {3}
    assert [note.split(",")[0] for note in checked.notes] == ["With other inputs", "With other weights and inputs"]
    assert all("in float64 it does not run (only in single precision)" in note for note in checked.notes)


class Picky(nn.Linear):
    """A layer that runs only with its original weights."""

    known = None

    def forward(self, x):
        if not torch.equal(self.weight.float(), self.known):
            raise RuntimeError("these weights alone")
        return super().forward(x)


def test_a_line_that_was_checked_on_fewer_runs_says_why():
    module = Picky(8, 8)
    Picky.known = module.weight.detach().clone()
    checked = trace_module(module, torch.randn(1, 5, 8)).check()
    said = "With other weights, no line was checked: the model does not run there (these weights alone)."
    assert {(step.checked, step.replayed) for step in checked.steps} == {(1, said)} and said in checked.notes
    assert texts.proof(checked.steps[-1]).startswith("**Verified on this run and 1 other.** ")
    assert texts.proof(checked.steps[-1]).endswith(said)


def test_of_a_large_model_one_block_of_each_kind_is_run(monkeypatch):
    monkeypatch.setattr(counterfactual, "LARGE_BYTES", 100)
    steps = trace_module(Blocks(), torch.randn(2, 5, 6)).check().steps
    by_layer = {layer: {(s.checked, s.replayed) for s in steps if s.layer == layer} for layer in (0, 1, 2, None)}
    assert by_layer[0] == by_layer[None] == {(3, "")}
    assert by_layer[1] == by_layer[2] == {(0, counterfactual.BLOCKS_NOTE)}
    assert not any(step.unseen for step in steps if step.layer in (1, 2)), "nothing has been looked for"


def test_a_model_that_is_too_large_as_a_whole_is_checked_on_one_block_of_each_kind(monkeypatch):
    run = trace_module(Blocks(6), torch.randn(2, 5, 6))
    whole = counterfactual.check(run)
    assert {step.checked for step in whole.steps} == {3}
    flops, size = run.flops, counterfactual._cost(run, ())[0]
    for bound, value in (("MOST_FLOPS", flops - 1), ("MOST_FLOPS", flops // 4), ("MOST_BYTES", size // 3)):
        with monkeypatch.context() as small:
            small.setattr(counterfactual, bound, value)
            checked = counterfactual.check(run)
        assert not checked.replay.shortened and counterfactual.too_large(checked) == ""
        said = {
            layer: {(s.checked, s.replayed) for s in checked.steps if s.layer == layer} for layer in (0, 1, 5, None)
        }
        assert said[0] == said[None] == {(3, "")} and said[1] == said[5] == {(0, counterfactual.BLOCKS_NOTE)}
    monkeypatch.setattr(counterfactual, "MOST_FLOPS", flops // 8)
    assert "more than is done unasked" in counterfactual.too_large(run)


def test_a_function_is_run_on_other_inputs():
    steps = traced_function().check().steps
    assert {step.checked for step in steps} == {3}


def traced_function():
    weight = torch.randn(8, 8)
    return tracer.trace(lambda x: torch.relu(x @ weight), torch.randn(2, 5, 8))


def test_without_its_model_nothing_is_checked(tmp_path):
    run = trace_module(Blocks(1), torch.randn(2, 5, 6))
    with pytest.raises(ValueError, match="can't be checked on other runs: its model is no longer there"):
        replace(run, replay=None).check()
    assert copy.deepcopy(run).replay is None


def test_other_numbers():
    draw = torch.Generator().manual_seed(0)
    ones, zeros = other_weights(torch.ones(50), draw, True), other_weights(torch.zeros(50), draw, True)
    assert ones.dtype == torch.float64 and (ones > 0).all() and len(ones.unique()) == 50 and zeros.all()
    weight = torch.randn(40, 30)
    other = other_weights(weight, draw, False)
    assert other.dtype == weight.dtype and not torch.allclose(other, weight) and 0.8 < other.std() / weight.std() < 1.3
    ids = torch.tensor([[5, 9, 9, 2], [1, 1, 7, 0]])
    assert torch.equal(other_values(ids, draw, True).sort().values, ids.sort().values)
    for kept in (torch.arange(6)[None], torch.tensor([[1, 1, 0]]), torch.tensor([0.0, 1.0]), torch.tensor([True])):
        assert torch.equal(other_values(kept, draw, True), kept)
    mask = torch.tensor([[0.0, -torch.inf], [0.0, 0.0]])
    assert torch.equal(other_values(mask, draw, True), mask.double())
    wave = torch.randn(5, 4, dtype=torch.complex64)
    assert other_values(wave, draw).dtype == torch.complex64 and (other_values(wave, draw) != wave).all()
    flags, alone = other_values(torch.tensor([True]), draw, free=1), other_values(torch.tensor(3), draw, free=1)
    assert not flags.any() and alone == 2
    assert (other_values(ids, draw, free=1) < 9).all() and other_values(torch.ones(9), draw, free=1).sum() < 9
    image = torch.rand(3, 8, 8)
    other = other_values(image, draw, True)
    assert not torch.equal(other, image.double()) and image.min() <= other.min() and other.max() <= image.max()


def test_what_is_undefined_as_a_whole_number_is_not_compared():
    import numpy as np

    ran = np.array([3, np.iinfo(np.int64).min])
    assert deviation(np.array([3.0, -np.inf]), ran).tolist() == [0, 0]
    assert deviation(np.array([4.0, -np.inf]), ran)[0] > 0


@pytest.mark.parametrize(
    "ran, threshold",
    [
        ([0.5, -3, -1e9, -2e9], 2e8),
        ([0.5, -3, -1e9, -1e20], 1e8),
        ([-3, -1e9, float("-inf"), float("nan")], 1e8),
        ([0, -1e9], 1e8),
        ([-1e9, -1e9], 1e30),
        ([0, -900, float("-inf")], 1e30),
        ([-1e5, -1e3, -10], 1e30),
        ([0.5, 1e9], 1e30),
        ([], 1e30),
    ],
)
def test_numbers_that_stand_for_infinities(ran, threshold):
    import numpy as np

    assert fill_threshold(np.array(ran)) == threshold


def test_a_model_that_does_not_run_at_other_sizes_says_so():
    """A check is lost there, and nothing else would say it."""
    with torch.no_grad():
        trace = tracer.trace(torch.nn.Linear(4, 4), torch.randn(2, 3, 4), symbols={"B": 0, "T": 1})
    assert trace.check().notes == trace.notes
    vocabulary, probes = trace.replay.solution.way

    def broken(sizes):
        raise ValueError("no room for that")

    solution = replace(trace.replay.solution, way=(replace(vocabulary, build=broken), probes))
    checked = replace(trace, replay=replace(trace.replay, solution=solution)).check()
    assert "At other sizes, no line was checked" in checked.notes[-1] and "no room for that" in checked.notes[-1]
    assert all(step.checked == 3 for step in checked.steps)


def test_only_the_lines_of_these_steps_are_checked():
    run = trace_module(Blocks(1), torch.randn(2, 5, 6))
    last = run.steps[-1].id
    checked = run.check(last)
    assert [step.checked for step in checked.steps] == [3 * (step.id == last) for step in run.steps]
    assert checked.step(last) == run.check().step(last)
    with pytest.raises(KeyError, match="no step 'nowhere'"):
        run.check("nowhere")


@pytest.mark.parametrize(
    "change",
    ["block1.attention.weights=drop_heads(1)", "block2.attention.scores=unscale", "*.attention.scores=window(3)"],
)
def test_a_changed_run_takes_over_the_checks_of_lines_that_the_change_leaves_alone(nanogpt, change, monkeypatch):
    plain = counterfactual.results(counterfactual.check(nanogpt.trace()))
    run = nanogpt.trace(change=tracer.changes.parse_all([change]))
    whole, names = counterfactual.check(run), []
    real = counterfactual.Replay.check
    monkeypatch.setattr(counterfactual.Replay, "check", lambda *args: names.append(args[3]) or real(*args))
    shared = counterfactual.check(run, plain)
    (fresh,) = names
    for alone, together in zip(whole.steps, shared.steps, strict=True):
        note = alone.replayed if alone.id in fresh else counterfactual.OF_PLAIN_RUNS
        assert together == replace(alone, replayed=note) and alone.checked == 3
    changed = {step.id for step in run.steps if step.id.endswith(CHANGED_SUFFIX)}
    assert changed < fresh and len(fresh) <= 2 * len(changed), "the changed lines, and those that read them"


def test_a_line_that_is_computed_by_other_ops_is_checked_itself(nanogpt):
    plain = counterfactual.results(counterfactual.check(nanogpt.trace()))
    run = nanogpt.trace(change=tracer.changes.parse_all(["block1.attention.weights=drop_heads(1)"]))
    wrong = {id: check._replace(refuted=True, replayed="wrong") for id, check in plain.items()}
    assert not any(step.refuted for step in counterfactual.check(run, wrong).steps), "refuted lines are checked"
    other = {id: check._replace(ops=(), unseen=("X",)) for id, check in plain.items()}
    assert not any(step.unseen for step in counterfactual.check(run, other).steps)
    same = {id: check._replace(unseen=("X",)) for id, check in plain.items()}
    assert any(step.unseen for step in counterfactual.check(run, same).steps)


@pytest.mark.parametrize("symbols", [SYMBOLS, None])
def test_lines_are_checked_on_a_run_of_each_kind(symbols):
    """Where no size is named, a third run with other weights stands for the one at other sizes."""
    run = trace_module(Blocks(), torch.randn(2, 5, 6), symbols=symbols)
    labels = [other.label for other in run.replay.runs()]
    assert labels == [
        "other inputs",
        "other weights and inputs",
        "other sizes" if symbols else "other weights and inputs",
    ]
    sizes = [other.sizes for other in run.replay.runs()]
    assert sizes[0] == sizes[1] == run.replay.sizes and (sizes[2] != sizes[0]) is bool(symbols)
