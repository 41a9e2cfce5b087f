"""Pending proofs: nothing calls them verified, and they are computed while the model exists."""

import copy
import json
import pickle
from dataclasses import replace

import pytest
import torch
from streamlit.testing.v1 import AppTest

import tracer
from pages.sections import trace as step_payload
from tests.app.test_stepping import page_payload
from tracer import verify
from tracer.export import render
from tracer.tracing.transfer import lighten

SCORES = "block1.attention.scores"
SIZES = {"H": 12, "W": 8, "P": 4, "D": 6, "h": 2, "d_ff": 10, "L": 1, "K": 3}


@pytest.fixture(scope="module")
def model():
    return tracer.load("vit", **SIZES)


@pytest.fixture
def trace(model):
    return model.trace(prove="later")


def test_nothing_is_executed_until_it_is_asked_for(trace):
    assert {(step.verdict, step.error) for step in trace.steps} == {("pending", None)}
    some = trace.prove([SCORES, "logits"])
    assert {step.id for step in some.steps if step.verdict == "verified"} == {SCORES, "logits"}
    assert {step.verdict for step in trace.steps} == {"pending"}, "a trace is frozen: the proofs are in the new one"
    assert some.prove("cls").step("cls").verdict == "verified" and some.later is not None


def test_any_module_is_verified_when_it_is_asked_for(model):
    image = torch.randn(1, 3, SIZES["H"], SIZES["W"])
    runs = {prove: tracer.trace(model.net, image, prove=prove) for prove in (True, False, "later")}
    verdicts = {prove: {step.verdict for step in run.steps} for prove, run in runs.items()}
    assert verdicts == {True: {"verified"}, False: {"not executed"}, "later": {"pending"}}
    assert {step.verdict for step in runs["later"].prove().steps} == {"verified"}
    assert all("prove=False" in step.note for step in runs[False].steps) and runs[False].later is None


def test_all_of_it_is_what_is_verified_at_once(model, trace):
    verified = trace.prove()
    assert [(s.id, s.verdict, s.error, s.note) for s in verified.steps] == [
        (s.id, s.verdict, s.error, s.note) for s in model.trace().steps
    ]
    assert verified.prove() is verified


def test_an_unknown_step_is_quoted(trace):
    with pytest.raises(KeyError, match="no step 'block9'"):
        trace.prove(["block9"])
    with pytest.raises(ValueError, match="prove='soon' was given, expected True, False or 'later'"):
        tracer.load("vit", **SIZES).trace(prove="soon")


def test_what_is_saved_pickled_or_copied_is_verified(trace, tmp_path):
    trace.save(tmp_path / "run.safetensors")
    opened = tracer.open(tmp_path / "run.safetensors")
    for found in (opened, pickle.loads(pickle.dumps(trace)), copy.deepcopy(trace), lighten(trace, 0)):
        assert {step.verdict for step in found.steps} == {"verified"} and found.later is None


def test_a_file_with_a_pending_proof_is_refused(trace, tmp_path):
    trace.save(tmp_path / "run.safetensors")
    data = (tmp_path / "run.safetensors").read_bytes()
    with pytest.raises(ValueError, match="expected a proof that is not still to come"):
        tracer.open(data.replace(rb"\"pending\": false", rb"\"pending\": true ", 1), name="run")


def test_without_its_model_nothing_is_verified(trace):
    with pytest.raises(ValueError, match="step 'patches' can't be verified: the model that ran is no longer there"):
        replace(trace, later=None).prove()


def test_weights_and_inputs_that_are_rewritten_after_the_run_make_nothing_red(model):
    model = replace(model, net=copy.deepcopy(model.net))
    inputs = model.inputs()
    trace = model.trace(prove="later")
    with torch.no_grad():
        model.net.head.weight.mul_(2)
    found = trace.prove()
    assert found.step("logits").verdict == "not executed"
    assert found.step("logits").note.endswith("not executed: 'parameter head.weight' has changed since the run")
    assert {step.verdict for step in found.steps if step.id != "logits"} == {"verified"}
    assert inputs[0].any()


def test_the_input_of_the_run_is_held(model, monkeypatch):
    held = model.inputs()
    monkeypatch.setattr(type(model), "inputs", lambda self, *given, **sizes: held)
    trace = model.trace(prove="later")
    held[0].zero_()
    assert trace.prove("patches").step("patches").verdict == "verified"


def test_verify_proves_all_and_never_counts_a_pending_one(model):
    report = verify.report(model)
    assert report["verified"] == report["equations"] == len(model.trace(prove=False).steps) == 21
    waiting = replace(model.trace().steps[0], error=None, margin=None, pending=True)
    assert [*verify._unverified([waiting])] == ["step 'patches' is not verified: pending"]


def test_every_view_says_so(trace):
    some = trace.prove(SCORES)
    for form in ("table", "markdown", "latex", "html"):
        assert render(some, format=form).count("pending") == len(some.steps) - 1
    shown = {step["id"]: step["verdict"] for step in json.loads(render(some, format="json"))["steps"]}
    assert shown.pop(SCORES) == "verified" and set(shown.values()) == {"pending"}


def test_a_page_shows_it_neither_green_nor_red(trace):
    facts = step_payload.detail(trace, trace.steps[0])
    assert facts["verdict"] == "pending"
    said = "Not verified yet: the equation of this step has not been executed on the traced tensors."
    assert facts["proof"] == [("text", said)]


def page():
    from pages.jobs.single_flight import of
    from pages.sections import trace as step_browser
    from tests.tracing.test_pending import REQUESTED_CELL, RUN

    of(RUN[0], "name", lambda: "this one")
    step_browser.st.session_state["stepper"] = {"wanted": REQUESTED_CELL}
    step_browser.browse(RUN[0], RUN[0].steps[0])


RUN, REQUESTED_CELL = [], {"run": "this one", "step": SCORES, "index": [], "prove": True}


def test_the_page_proves_a_block_when_it_is_shown(trace, monkeypatch):
    monkeypatch.setattr("tests.tracing.test_pending.RUN", [trace])
    found = {
        id: detail["verdict"] for id, detail in page_payload(AppTest.from_function(page).run())[1]["details"].items()
    }
    within = {step.id for step in trace.steps if step.layer == 0}
    assert {id for id, verdict in found.items() if verdict == "verified"} == within
    assert set(found.values()) == {"verified", "pending"}


def nearly_silu(x, weight):
    """Compute SiLU, up to numbers that no named formula is tried on."""
    return torch.where(x > 2e6, 0 * x, x * torch.sigmoid(x)) @ weight


@pytest.mark.parametrize("ids", [None, "logits"])
def test_a_name_that_the_numbers_refute_is_left_when_its_proof_comes(ids):
    x, weight = torch.tensor([[1.0, 2.0, 3e6], [3.0, 4.0, 5.0]]), torch.randn(3, 2)
    at_once, later = (tracer.trace(nearly_silu, x, weight, prove=prove) for prove in (True, "later"))
    assert [step.id for step in later.steps] == ["logits"] and "SiLU" in later.steps[0].latex
    verified = later.prove(ids)
    assert [(s.latex, s.verdict) for s in verified.steps] == [(s.latex, s.verdict) for s in at_once.steps]
    assert {step.verdict for step in verified.steps} == {"verified"} and verified.prove() is verified
    assert {op.step for op in verified.ops} == {step.id for step in verified.steps}
    assert verified.check().steps[0].checked
    fits = tracer.trace(nearly_silu, x.clamp(max=5), weight, prove="later").prove()
    assert [step.latex for step in fits.steps] == [later.steps[0].latex], "the name stays where the numbers bear it out"
