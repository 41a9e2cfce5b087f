"""Saved runs: the lines of a file are verified again from its tensors, and no proof in it is believed."""

import time
from dataclasses import replace

import pytest
import safetensors.torch
import torch

import tracer
from pages.ui import texts
from tests.serialization.test_serialization import rewritten
from tests.support.sweeping import cases
from tracer import models, serialization
from tracer.latex_reader.proof_worker import outcomes
from tracer.serialization import proof_on_opening


@pytest.fixture(scope="module")
def trace():
    with torch.no_grad():
        return tracer.load("nanogpt").trace(text="To be")


@pytest.fixture(scope="module")
def data(trace) -> bytes:
    return serialization.to_bytes(trace)


def open_changed(data: bytes, id: str, **fields) -> tracer.Trace:
    def change(saved):
        step = next(step for step in saved["steps"] if step["id"] == id)
        step |= {name: value(step[name]) if callable(value) else value for name, value in fields.items()}

    return tracer.open(rewritten(data, change))


@pytest.mark.parametrize("name", cases(models.names(), ("vit", "transformer")))
def test_every_line_of_our_models_is_verified_again(name):
    spec = models.spec_of(name)
    sizes = {size: value for size, value in spec.probes[0].items() if size in spec.sizes} if name == "vit-note" else {}
    opened = tracer.open(serialization.to_bytes(tracer.load(name, **sizes).trace()))
    assert {step.verdict for step in opened.steps} == {"verified"}
    assert {step.checked for step in opened.steps} == {0}


def test_a_forged_file_opens_with_its_lines_refuted(data):
    def forge(saved):
        for step in saved["steps"]:
            step["latex"] = step["latex"].replace(r"}{\sqrt{d_k}} + ", "}{d_k} - ")
            step["latex"] = step["latex"].replace(r"\operatorname{softmax}", r"\operatorname{ReLU}")

    opened = tracer.open(rewritten(data, forge))
    wrong = {step.id for step in opened.steps if step.verdict == "refuted"}
    assert wrong == {s.id for s in opened.steps if s.id.endswith(("attention.scores", "attention.weights"))}
    assert all(opened.step(id).wrong is not None for id in wrong)


@pytest.mark.parametrize(
    "claim",
    [{"error": 0.0, "margin": 0.0}, {"checked": 3}, {"recorded": True}, {"refuted": False}, {"dtype": "bfloat16"}],
)
def test_no_proof_in_a_file_is_believed(data, claim):
    twice = {"latex": lambda latex: latex + r" + \mathbf{X}^{(0)}"}
    step = open_changed(data, "block1.attention.residual", **twice, **claim).step("block1.attention.residual")
    assert step.verdict == "refuted" and step.checked == 0 and step.dtype == "float32"


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
    assert verdicts["block1.attention.weights"] == "verified" and verdicts["block1.mlp.hidden"] == "recorded"
    said = texts.proof(opened.step("block1.mlp.hidden"))
    assert said.startswith("Recorded in the file, not checked here: ") and "was not kept" in said


def test_a_line_that_says_itself_is_no_proof(data):
    id = "block1.attention.weights"
    opened = open_changed(data, id, latex=lambda latex: latex.partition("=")[0] + "=" + latex.partition("=")[0])
    assert opened.step(id).verdict == "recorded" and "by itself" in opened.step(id).replayed


def test_a_hostile_line_costs_little(data, monkeypatch):
    huge = r"\operatorname{repeat}_{65535}\left(\operatorname{repeat}_{65535}\left(\mathbf{X}^{(0)}\right)\right)"
    id = "block1.attention.residual"
    began = time.monotonic()
    opened = open_changed(data, id, latex=lambda latex: latex.partition("=")[0] + "= " + huge)
    assert opened.step(id).verdict in ("recorded", "refuted") and opened.step("embedding").verdict == "verified"
    monkeypatch.setattr(proof_on_opening, "SECONDS", 0.01)
    assert {step.verdict for step in tracer.open(data).steps} == {"recorded"}
    assert time.monotonic() - began < 120


def test_proofs_of_a_file_can_wait(data):
    opened = tracer.open(data, prove="later")
    assert {step.verdict for step in opened.steps} == {"pending"}
    assert {step.verdict for step in opened.prove().steps} == {"verified"}


def test_each_line_may_name_what_stands_before_it_alone():
    import numpy as np

    step = {
        "symbol": "A",
        "shape": (2,),
        "recomputed": False,
        "tolerance": 1e-5,
        "dtype": "float32",
        "names": [["x", "input x", False]],
    }
    steps = [step | {"id": "a", "latex": "A = B"}, step | {"id": "b", "symbol": "B", "latex": "B = A + x"}]
    arrays = {"input x": np.ones(2), "step a": np.ones(2), "step b": np.full(2, 2.0)}
    first, second = outcomes({"steps": steps, "sizes": {}}, arrays)
    assert "expected a tensor or a size" in first["reason"] and second["margin"] == 0


def test_what_was_saved_twice_stays_verified(data, trace):
    again = tracer.open(serialization.to_bytes(replace(tracer.open(data))))
    assert {step.verdict for step in again.steps} == {"verified"}


class Masked(torch.nn.Module):
    """Attention with a mask of large numbers in place of infinities."""

    def __init__(self, low):
        super().__init__()
        self.low, self.q, self.k = low, torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, x):
        mask = torch.full((x.shape[1],) * 2, self.low, dtype=x.dtype).triu(1)
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / x.shape[-1] ** 0.5 + mask
        return scores.softmax(-1) @ x


LOW = (torch.float32, -1e4), (torch.float32, -1e9), (torch.float16, -65504.0), (torch.bfloat16, -1e9)


@pytest.mark.parametrize(("dtype", "low"), cases(LOW, LOW[1:3]), ids=str)
def test_a_large_number_of_a_mask_hides_no_forged_score(dtype, low):
    torch.manual_seed(0)
    with torch.no_grad():
        run = tracer.trace(Masked(low).to(dtype), torch.randn(1, 5, 16).to(dtype), symbols={"B": 0, "T": 1})
    saved = serialization.to_bytes(run)
    assert {step.verdict for step in tracer.open(saved).steps} == {"verified"}

    def forge(latex):
        return latex.replace(r"\frac{\mathbf{Q}\,{\mathbf{K}}^{\top}}{4}", r"\mathbf{Q}\,{\mathbf{K}}^{\top}")

    opened = open_changed(saved, "attention.scores", latex=forge)
    assert [step.id for step in opened.steps if step.verdict == "refuted"] == ["attention.scores"]


def test_a_small_cell_is_judged_by_its_own_terms():
    """Columns that are a thousand times as large hide no cell that is off by a thousandth of itself."""
    import numpy as np

    x = np.linspace(1, 2, 12).reshape(3, 4) * [1e3, 1e3, 1e3, 1]
    ran = 2 * x
    ran[1, 3] *= 1.001
    step = {"id": "a", "symbol": "A", "shape": (3, 4), "recomputed": False, "tolerance": 1e-5, "dtype": "float32"}
    step |= {"latex": "A = 2 x", "names": [["x", "input x", False]]}
    (said,) = outcomes({"steps": [step], "sizes": {}}, {"input x": x, "step a": ran})
    assert said["error"] < 1e-5 and said["wrong"] == [1, 3] and said["margin"] > 1
    (said,) = outcomes({"steps": [step], "sizes": {}}, {"input x": x, "step a": (2 * x).astype(np.float32)})
    assert said["margin"] < 1


def test_what_holds_for_one_input_alone_is_recorded():
    with torch.no_grad():
        run = tracer.trace(lambda x: x / x.abs().max().item(), torch.randn(2, 5))
    last = tracer.open(serialization.to_bytes(run)).steps[-1]
    assert last.verdict == "recorded" and "it holds for one input alone" in last.replayed


@pytest.mark.parametrize("edited", [("B", "T", "6"), ("T", "B", "6"), ("B", "4", "6"), ("T", "T", "6")])
@pytest.mark.parametrize("with_op", [False, True])
def test_a_shape_that_was_edited_to_one_of_the_same_numbers_is_not_verified(edited, with_op):
    """The op that made a tensor says its shape, and so does the op that reads it."""
    module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.LayerNorm(6))
    run = tracer.trace(module, torch.randn(4, 4, 6), symbols={"B": 0, "T": 1})
    at = int(run.steps[0].value.partition(".")[0])
    (made,) = run.ops[at].outputs
    assert made.symbolic == ("B", "T", "6")
    steps, ops = (replace(run.steps[0], symbolic=edited), *run.steps[1:]), run.ops
    if with_op:
        ops = (*ops[:at], replace(ops[at], outputs=(replace(made, symbolic=edited),)), *ops[at + 1 :])
    first, *others = tracer.open(serialization.to_bytes(replace(run, steps=steps, ops=ops))).steps
    assert first.verdict == ("verified" if edited == made.symbolic else "recorded")
    assert {step.verdict for step in others} == {"verified"}
