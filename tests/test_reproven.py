"""Saved runs: the lines of a file are proven again from its tensors, and no proof in it is believed."""

import time
from dataclasses import replace

import pytest
import safetensors.torch
import torch
from test_storage import rewritten

import tracer
from pages.shared import texts
from tracer import models
from tracer.record import storage
from tracer.record.reader.worker import outcomes
from tracer.record.storage import proofs


@pytest.fixture(scope="module")
def trace():
    with torch.no_grad():
        return tracer.load("nanogpt").trace(text="To be")


@pytest.fixture(scope="module")
def data(trace) -> bytes:
    return storage.to_bytes(trace)


def changed(data: bytes, id: str, **fields) -> tracer.Trace:
    def change(saved):
        step = next(step for step in saved["steps"] if step["id"] == id)
        step |= {name: value(step[name]) if callable(value) else value for name, value in fields.items()}

    return tracer.open(rewritten(data, change))


@pytest.mark.parametrize("name", models.names())
def test_every_line_of_our_models_is_proven_again(name):
    spec = models.spec_of(name)
    sizes = {size: value for size, value in spec.probes[0].items() if size in spec.sizes} if name == "vit-note" else {}
    opened = tracer.open(storage.to_bytes(tracer.load(name, **sizes).trace()))
    assert {step.verdict for step in opened.steps} == {"proven"}
    assert {step.checked for step in opened.steps} == {0}


def test_a_forged_file_opens_with_its_lines_disproven(data):
    def forge(saved):
        for step in saved["steps"]:
            step["latex"] = step["latex"].replace(r"}{\sqrt{d_k}} + ", "}{d_k} - ")
            step["latex"] = step["latex"].replace(r"\operatorname{softmax}", r"\operatorname{ReLU}")

    opened = tracer.open(rewritten(data, forge))
    wrong = {step.id for step in opened.steps if step.verdict == "disproven"}
    assert wrong == {s.id for s in opened.steps if s.id.endswith(("attention.scores", "attention.weights"))}
    assert all(opened.step(id).wrong is not None for id in wrong)


@pytest.mark.parametrize(
    "claim",
    [{"error": 0.0, "margin": 0.0}, {"checked": 3}, {"recorded": True}, {"refuted": False}, {"dtype": "bfloat16"}],
)
def test_no_proof_in_a_file_is_believed(data, claim):
    twice = {"latex": lambda latex: latex + r" + \mathbf{X}^{(0)}"}
    step = changed(data, "block1.attention.residual", **twice, **claim).step("block1.attention.residual")
    assert step.verdict == "disproven" and step.checked == 0 and step.dtype == "float32"


def test_what_the_file_lacks_is_recorded(data):
    tensors = {k: v for k, v in safetensors.torch.load(data).items() if "parameter" not in k}

    def without(saved):
        for name in [name for name in saved["values"] if name.startswith("parameter ")]:
            del saved["values"][name]

    bare = rewritten(data, without)
    header = int.from_bytes(bare[:8], "little")
    assert header and tensors
    opened = tracer.open(bare)
    verdicts = {step.id: step.verdict for step in opened.steps}
    assert verdicts["block1.attention.weights"] == "proven" and verdicts["block1.mlp.hidden"] == "recorded"
    said = texts.proof(opened.step("block1.mlp.hidden"))
    assert said.startswith("Recorded in the file, not checked here: ") and "was not kept" in said


def test_a_line_that_says_itself_is_no_proof(data):
    id = "block1.attention.weights"
    opened = changed(data, id, latex=lambda latex: latex.partition("=")[0] + "=" + latex.partition("=")[0])
    assert opened.step(id).verdict == "recorded" and "by itself" in opened.step(id).replayed


def test_a_hostile_line_costs_little(data, monkeypatch):
    huge = r"\operatorname{repeat}_{65535}\left(\operatorname{repeat}_{65535}\left(\mathbf{X}^{(0)}\right)\right)"
    id = "block1.attention.residual"
    began = time.monotonic()
    opened = changed(data, id, latex=lambda latex: latex.partition("=")[0] + "= " + huge)
    assert opened.step(id).verdict in ("recorded", "disproven") and opened.step("embedding").verdict == "proven"
    monkeypatch.setattr(proofs, "SECONDS", 0.01)
    assert {step.verdict for step in tracer.open(data).steps} == {"recorded"}
    assert time.monotonic() - began < 120


def test_proofs_of_a_file_can_wait(data):
    opened = tracer.open(data, prove="later")
    assert {step.verdict for step in opened.steps} == {"pending"}
    assert {step.verdict for step in opened.prove().steps} == {"proven"}


def test_each_line_may_name_what_stands_before_it_alone():
    import numpy as np

    step = {"symbol": "A", "shape": (2,), "recomputed": False, "tolerance": 1e-5, "names": [["x", "input x", False]]}
    steps = [step | {"id": "a", "latex": "A = B"}, step | {"id": "b", "symbol": "B", "latex": "B = A + x"}]
    arrays = {"input x": np.ones(2), "step a": np.ones(2), "step b": np.full(2, 2.0)}
    first, second = outcomes({"steps": steps, "sizes": {}}, arrays)
    assert "expected a tensor or a size" in first["reason"] and second["margin"] == 0


def test_what_was_saved_twice_stays_proven(data, trace):
    again = tracer.open(storage.to_bytes(replace(tracer.open(data))))
    assert {step.verdict for step in again.steps} == {"proven"}
