"""Each independent check finds its kind of mistake: an honest run, and copies of it with one thing wrong each."""

import math
import re
from copy import copy
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

import tracer
from tests.support.drawing import drawn_alike
from tests.support.sweeping import cases
from tracer import shapes
from tracer.inputs.images import Crop
from tracer.tracing import proofs
from tracer.verify import checks
from tracer.verify.checks import attention, run

SIZES = {"H": 12, "W": 8, "P": 4, "D": 6, "h": 2, "d_ff": 10, "L": 2, "K": 3}


@pytest.fixture(scope="module")
def model():
    return tracer.load("vit", **SIZES)


@pytest.fixture(scope="module")
def trace(model):
    return model.trace()


SLOW = "undescribed_module", "proof_sensitivity"
"""Checks that take half of the time, and read of a trace only that it ran."""


def find_problems(model, trace, slow: bool = False) -> list[str]:
    """Return the problems that the checks report; the slow ones only on request."""
    chosen = {name: check for name, check in checks.checks().items() if slow or name not in SLOW}
    with torch.no_grad(), patch.object(checks, "checks", lambda: chosen):
        return list(checks.problems(model, model.inputs(), trace))


def only(name: str, problems: list[str]) -> bool:
    return bool(problems) and all(problem.startswith(f"{name}: ") for problem in problems)


def test_an_honest_run_has_no_problem(model, trace):
    assert find_problems(model, trace, slow=True) == []
    own = {"predictions", "flops_and_params", "mask_by_perturbation", "patch_positions", "attention_weights"}
    assert own <= checks.checks().keys()


OPTIONS = (
    ("vit-text", {"mask": "prefix", "types": True, "tied": False, "bias": False}),
    ("transformer", {"positions": "relative", "mask": "causal", "L": 2}),
    ("nanogpt", {"gelu": "tanh", "mask": "bidirectional", "tied": False, "D": 24, "h": 3, "L": 2}),
)


@pytest.mark.parametrize(("name", "sizes"), cases(OPTIONS, (OPTIONS[1],)))
def test_options_have_no_problem_either(name, sizes):
    model = tracer.load(name, **sizes)
    assert find_problems(model, model.trace(), slow=True) == []


def test_equations_that_any_proof_lets_pass(monkeypatch):
    """A book of twice what runs has to be refuted."""
    model = tracer.load("vit", **SIZES)
    trace = model.trace()
    later = type(model.trace(prove="later").later)
    monkeypatch.setattr(
        later, "_prove_kept", lambda self, step, *given: replace(step, error=0.0, margin=0.0, pending=False)
    )
    problems = find_problems(model, trace, slow=True)
    assert (
        only("proof_sensitivity", problems) and "twice the equation of step 'patches' is called verified" in problems[0]
    )


def test_a_softmax_of_half_the_logits(model, trace):
    half = (trace.output[0] / 2).softmax(-1).tolist()
    assert only("predictions", find_problems(model, replace(trace, result={**trace.result, "probabilities": half})))


def test_the_attention_of_another_layer(model, trace):
    first, second = trace.attentions
    swapped = (replace(first, q=second.q, k=second.k), replace(second, q=first.q, k=first.k))
    problems = find_problems(model, replace(trace, attentions=swapped))
    assert all(
        problem.startswith(("attention_weights: ", "explanation_numbers: ", "changed_scores: ")) for problem in problems
    )  # whose queries are they?
    assert any("head 1 is not the one that ran" in problem for problem in problems)


@pytest.mark.parametrize("letters", ["QK", "VK"])
def test_letters_of_attention_that_are_exchanged(model, trace, letters):
    exchanged = {f"{{{a}}}": f"{{{b}}}" for a, b in (letters, letters[::-1])}
    steps = tuple(
        replace(step, symbol=re.sub("|".join(exchanged), lambda found: exchanged[found[0]], step.symbol))
        for step in trace.steps
    )
    problems = find_problems(model, replace(trace, steps=steps))
    key = f"qkv_letters: step 'block1.attention.key', called \\mathbf{{{letters[0]}}}^{{(1)}}, holds the numbers"
    assert any(problem.startswith(key) for problem in problems)


def test_the_number_of_another_block(model, trace):
    steps = tuple(replace(step, layer=None if step.layer is None else step.layer + 1) for step in trace.steps)
    problems = find_problems(model, replace(trace, steps=steps))
    assert "qkv_letters: step 'block1.norm1' is in layer 1, its path says 0" in problems


@pytest.mark.parametrize(
    "reads", [lambda reads: reads[1:], lambda reads: (*reads, "position"), lambda reads: reads + reads[:1]]
)
def test_a_step_that_reads_what_its_line_does_not(model, trace, reads):
    steps = tuple(
        replace(step, reads=reads(step.reads)) if step.id == "block2.attention.scores" else step for step in trace.steps
    )
    (problem,) = run.check_reads(SimpleNamespace(trace=replace(trace, steps=steps)))
    assert problem.startswith("step 'block2.attention.scores' is said to read [")
    assert problem.endswith("its line has ['block2.attention.key', 'block2.attention.query']")


def test_a_product_whose_sides_do_not_meet(model, trace):
    step = next(step for step in trace.steps if step.id == "block1.mlp.hidden")
    left, right, result = step.product
    turned = replace(right, symbolic=right.symbolic[::-1], shape=right.shape[::-1])
    wrong = replace(step, product=(left, turned, result))
    steps = tuple(wrong if one is step else one for one in trace.steps)
    problems = find_problems(model, replace(trace, steps=steps))
    assert only("matmul_figures", problems) and "[7 × 6] times [10 × 6], which gives no [7 × 10]" in problems[0]
    turned = replace(result, symbolic=result.symbolic[::-1])
    wrong = replace(step, product=(left, right, turned))
    problems = find_problems(model, replace(trace, steps=tuple(wrong if one is step else one for one in trace.steps)))
    assert only("matmul_figures", problems) and "with d_ff = 7" in problems[0]


@pytest.mark.parametrize("wrong", ["reversed", "without the residual"])
def test_rollout(model, trace, monkeypatch, wrong):
    def rollout(trace, *, part=None, start=0, steps=False):
        product, every = None, []
        for layer in range(start, 2):
            mean = trace.attention(layer, part=part).mean(dim=1)
            mixed = mean if wrong != "reversed" else (mean + torch.eye(mean.shape[-1])) / 2
            product = mixed if product is None else product @ mixed if wrong == "reversed" else mixed @ product
            every.append(product)
        return torch.stack(every) if steps else product

    monkeypatch.setattr(attention, "rollout", rollout)
    assert only("attention_weights", find_problems(model, trace))


def test_a_crop_that_is_one_pixel_off(model, trace, monkeypatch):
    left, *rest = trace.picture.crop
    assert only(
        "patch_positions", find_problems(model, replace(trace, picture=replace(trace.picture, crop=(left + 1, *rest))))
    )
    monkeypatch.setattr(Crop, "box", property(lambda crop: (crop.left, crop.top, crop.right, crop.bottom)))
    monkeypatch.setattr("tracer.verify.checks.outputs.patch_boxes", shift_boxes)
    assert any("pixels off their place" in problem for problem in find_problems(model, trace))


def shift_boxes(crop, rows, columns):
    from tracer.inputs.images import patch_boxes

    return [(left + 1, top, right + 1, bottom) for left, top, right, bottom in patch_boxes(crop, rows, columns)]


def test_tokens_that_are_the_wrong_patch(model, trace):
    assert only("patch_positions", find_problems(model, replace(trace, picture=replace(trace.picture, first=0))))


def test_a_mask_that_is_not_the_one_that_ran(model, trace, monkeypatch):
    def closed_mask(trace, layer=0, *, head=0, part=None):
        cells = torch.ones(7, 7, dtype=torch.bool)
        cells[2, 3] = False
        return cells

    monkeypatch.setattr(attention, "visible", closed_mask)
    problems = find_problems(model, trace)
    assert only("mask_by_perturbation", problems)
    assert "mask_by_perturbation: layer 0 lets query 2 see token 3: False, but its output moves: True" in problems


def test_formulas_that_hold_at_this_run_only(model, trace):
    tokens = next(symbol.value for symbol in trace.symbols if symbol.name == "N") + 1
    for name in ("params_symbolic", "flops_symbolic"):
        formula = getattr(trace, name).replace("(N + 1)", f"({tokens})")
        assert only("flops_and_params", find_problems(model, replace(trace, **{name: formula})))


def test_a_shape_that_holds_at_this_run_only(model, trace):
    op = trace.ops[-1]
    wrong = replace(op, outputs=(replace(op.outputs[0], symbolic=("B", "h + 1")),))
    assert only("shapes_at_other_sizes", find_problems(model, replace(trace, ops=(*trace.ops[:-1], wrong))))


def test_meanings_that_are_exchanged(model, trace):
    width, hidden = (next(s for s in trace.symbols if s.name == name) for name in ("D", "d_ff"))
    exchanged = {width: replace(width, meaning=hidden.meaning), hidden: replace(hidden, meaning=width.meaning)}
    assert only(
        "symbol_meanings",
        find_problems(model, replace(trace, symbols=tuple(exchanged.get(s, s) for s in trace.symbols))),
    )


@pytest.mark.parametrize(
    ("true", "false"), [("between -0.17", "between -0.10"), ("has two matrices", "has three matrices")]
)
def test_a_wrong_number_in_a_sentence(model, trace, true, false):
    steps = tuple(replace(step, why=step.why.replace(true, false)) for step in trace.steps)
    assert steps != trace.steps
    assert only("explanation_numbers", find_problems(model, replace(trace, steps=steps)))


def test_a_tolerance_that_lets_everything_pass(model, trace, monkeypatch):
    monkeypatch.setattr(proofs, "FACTOR", 1e9)
    assert only("proof_sensitivity", find_problems(model, trace, slow=True))


@pytest.mark.sweep
def test_names_of_classes_that_are_exchanged():
    model = tracer.load("vit")
    names = list(model.card["classes"])
    i, j = names.index("frog"), names.index("ship")
    changed = [*names[:i], "ship", *names[i + 1 : j], "frog", *names[j + 1 :]]
    wrong = copy(model)  # which has the lines that were derived before
    wrong.card = {**model.card, "classes": changed}
    assert only("class_names", find_problems(wrong, wrong.trace()))


def test_an_anomaly_in_other_units():
    model = tracer.load("mae", H=16, W=24, P=4, D=8, h=2, d_ff=12, L=1, L_dec=1)
    trace = model.trace()
    assert find_problems(model, trace) == []
    for wrong in (lambda x: x * x / 255,):
        levels = [[wrong(level) for level in row] for row in trace.result["anomaly"]]
        assert only("anomaly_maps", find_problems(model, replace(trace, result={**trace.result, "anomaly": levels})))


@pytest.mark.sweep
def test_similarities_of_photo_and_sentences():
    model = tracer.load("clip", D=24, h=2, d_ff=16, L=1, D_e=8)
    trace = model.trace()
    assert find_problems(model, trace) == []
    shares = trace.result["probabilities"]
    hotter = torch.tensor([math.log(share) * 2 for share in shares]).softmax(-1).tolist()
    assert only("predictions", find_problems(model, replace(trace, result={**trace.result, "probabilities": hotter})))


WRONG = {
    "shapes.test_floor_division": ("to_ceilings", lambda formula: formula),
    "shapes.test_solver": (
        "Solver",
        lambda names, derived, runs, fresh=None: shapes.Solver(names, derived, runs),
    ),
    "shapes.test_op_size_rules": ("apply_size_rules", lambda op, inputs, others=(): {}),
    "capture.test_score_replay": ("windows", lambda trace, record: 1),
    "capture.test_hidden_keys": ("is_windowed", lambda cells: True),
    "shapes.test_probing": ("probe_flops", lambda recording, sizes: 0.0),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_test_of_small_modules_finds_what_is_wrong(name, monkeypatch):
    module = import_module(f"tests.{name}")
    monkeypatch.setattr(module, *WRONG[name])
    with drawn_alike():
        assert any(list(problems()) for problems in module.CHECKS)


def test_a_summary_that_is_not_the_files(model, trace, monkeypatch):
    monkeypatch.setattr(tracer.models, "summary", lambda name: "A model.")
    assert only("spec_literals", find_problems(model, trace))


@pytest.mark.sweep
def test_a_picture_that_is_not_closed(monkeypatch):
    from tracer.verify.checks import attention

    model = tracer.load("vit-text", H=12, W=8, P=4, D=6, h=2, d_ff=10, L=2, V=19)
    trace = model.trace()
    assert find_problems(model, trace) == []
    real = attention.close_picture
    monkeypatch.setattr(attention, "close_picture", lambda model, inputs, layers: real(model, inputs, ()))
    assert only("ablation", find_problems(model, trace))
