"""Meaning of verified: a wrong equation is red on the pages, named by `verify`, and never counted."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import sympy
import torch
from streamlit.testing.v1 import AppTest
from torch import nn

import tracer
from pages.state import page_registry
from tests.app.test_stepping import page_payload
from tracer import tracing, verify
from tracer.capture.tensors import TensorStore
from tracer.export import render
from tracer.expr import ArgTopK, Tensor
from tracer.textbook.derivation import DerivedStep, Line, StepOrigin, derive
from tracer.tracing.proofs import Values, prove
from tracer.utils.torch_state import Difference, first_beyond, identical, relative_difference

SCORES = "block1.attention.scores"
SIZES = {"H": 12, "W": 8, "P": 4, "D": 6, "h": 2, "d_ff": 10, "L": 1, "K": 3}


@contextmanager
def tell_lie(id, lie):
    """Replace the equation of the line of this id by the result of `lie`, as a context."""

    def lying(*given):
        book = derive(*given)
        found = [
            step._replace(line=replace(step.line, equation=lie(step.line))) if step.line.id == id else step
            for step in book.steps
        ]
        return replace(book, steps=found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "derive", lying)
        yield


@contextmanager
def forgotten():
    """Have textbooks omit the division of the scores by √d_k, as a context."""
    with tell_lie(SCORES, lambda line: line.equation.operands[0]):
        yield


@pytest.fixture(scope="module")
def trace():
    """Return the run of a ViT with such a textbook."""
    with forgotten():  # and not while the app runs its samples, which all tests of this process share
        return tracer.load("vit", **SIZES).trace()


def test_a_wrong_equation_is_refuted_and_says_where(trace):
    step = trace.step(SCORES)
    assert r"\sqrt" not in step.latex
    assert step.verdict == "refuted" and step.error > 0.1 and step.margin > 1e4
    assert step.wrong == (0, 0, 0, 0)
    assert {other.verdict for other in trace.steps if other is not step} == {"verified"}


def test_verify_names_it():
    with forgotten():
        report = verify.report(tracer.load("vit", **SIZES))
    assert report["verified"] == report["equations"] - 1
    failed = verify.failures(report)
    assert any(
        f"step {SCORES!r} is off by 0." in line and "first wrong cell is [0, 0, 0, 0]" in line for line in failed
    )


@pytest.mark.parametrize("form", ["table", "markdown", "latex", "html"])
def test_every_view_says_so(trace, form):
    assert render(trace, format=form).count("REFUTED") == 1


def test_a_saved_run_keeps_the_verdict(trace, tmp_path):
    trace.save(tmp_path / "run.safetensors")
    again = tracer.open(tmp_path / "run.safetensors")
    assert [(step.verdict, step.wrong) for step in again.steps] == [(step.verdict, step.wrong) for step in trace.steps]


def test_pages_show_it_in_red(trace, tmp_path):
    trace.save(tmp_path / "run.safetensors")
    at = AppTest.from_file(str(page_registry.PAGES.parent / "app.py"), default_timeout=120).run()
    at.file_uploader[0].set_value(("run.safetensors", (tmp_path / "run.safetensors").read_bytes(), "")).run()
    assert len(at.error) == 1 and at.error[0].value.startswith("1 of the equations does not give what")
    verified = next(metric for metric in at.metric if metric.label == "equations verified")
    assert verified.value == f"{len(trace.steps) - 1} of {len(trace.steps)}"
    at.query_params["step"] = SCORES
    at.switch_page("pages/trace.py").run()
    facts, header = page_payload(at)
    shown = header["details"][SCORES]
    assert facts["step"] == SCORES and shown["verdict"] == "refuted" and shown["proof"][0] == ["bold", "Refuted."]
    assert "The first wrong cell is [0, 0, 0, 0]." in shown["proof"][1][1]
    assert {one["verdict"] for id, one in header["details"].items() if id != SCORES} == {"verified"}


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [(0.0, "verified"), (1.0, "verified"), (1.01, "refuted"), (float("nan"), "refuted"), (None, "not executed")],
)
def test_the_margin_decides_alone(margin, verdict):
    assert tracer.record.verdict(margin) == verdict


@pytest.mark.parametrize(
    ("error", "dtype", "verdict"),
    [
        (9e-6, "float32", "verified"),
        (2e-5, "float32", "refuted"),
        (float("nan"), "float32", "refuted"),
        (2e-2, "bfloat16", "verified"),
        (1e-9, "float64", "refuted"),
        (0.0, "int64", "verified"),
        (1e-9, "int64", "refuted"),
        (None, "float32", "not executed"),
    ],
)
def test_the_tolerance_comes_from_the_dtype(error, dtype, verdict):
    assert tracer.record.verdict_within(error, dtype) == verdict


def proof(computed: list[float], traced: list[float]):
    """Return the proof of `Y = X` for tensors of these values."""
    kept, found = TensorStore(1 << 20), []
    for op, (name, numbers) in enumerate({"x": computed, "y": traced}.items()):
        kept.offer(f"{op}.0", torch.tensor(numbers))
        made = Tensor(name, (sympy.Symbol("T"),), name)
        line = Line(name, "norm", "", made, found[0].line.tensor if found else made, StepOrigin("m"), "")
        found.append(DerivedStep(line, op, ()))
    return prove(found[1], Values(torch.nn.Module(), kept, found, [step.line for step in found], {}), {})


def test_nan_on_both_sides_is_equal_and_told():
    nan = float("nan")
    found = proof([1.0, nan, 3.0], [1.0, nan, 3.0])
    assert found.error == found.margin == 0 and found.wrong is None and found.note.startswith("1 of 3 cells are NaN")
    assert proof([1.0, nan, 3.0], [1.0, 2.0, 3.0]).wrong == (1,)
    assert proof([1.0, 2.0, 3.0], [1.0, nan, 3.0]).wrong == (1,)


def test_nothing_but_nan_proves_nothing():
    nan = float("nan")
    found = proof([nan, nan], [nan, nan])
    assert found.error is None and found.margin is None
    assert found.note.startswith("not executed: 2 of 2 cells are NaN, in the equation and in the run alike")


class Best(torch.nn.Module):
    """Indices of the largest numbers, the last of them shifted by one where `moved`."""

    def __init__(self, moved=0):
        super().__init__()
        self.moved = moved

    def forward(self, x):
        return (x * 2).topk(5).indices


def test_places_of_equal_numbers_may_come_in_any_order(monkeypatch):
    equal = (torch.arange(40) % 3).float().expand(2, -1)  # 13 are the largest, and PyTorch takes some five of them
    run = tracer.trace(Best(), equal)
    best = run.steps[-1]
    assert best.verdict == "verified" and "places are of equal numbers" in best.note
    whole = ArgTopK.order
    monkeypatch.setattr(ArgTopK, "order", lambda self, x: whole(self, -x))
    assert tracer.trace(Best(), equal).steps[-1].verdict == "refuted"


@pytest.mark.parametrize("given", [[[0, 0, 2]], [[0, 1, 4]], [[2, 0, 3]]])
def test_places_that_are_named_twice_or_of_other_numbers_are_wrong(given):
    x = torch.tensor([[5.0, 5.0, 5.0, 1.0]])
    node = ArgTopK(Tensor("x", (1, 4), "x"), k=3, down=True, axes=None, labels=None)
    found = torch.tensor([[0, 1, 2]])
    settled = node.ties(found, torch.tensor(given), lambda operand: x)
    assert settled is None or not torch.equal(settled, torch.tensor(given))


def test_the_first_wrong_cell_in_reading_order():
    reference = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    allowed, infinite = torch.full((2, 2), 4e-5), torch.full((2,), float("inf"))
    assert first_beyond(Difference(reference, reference).shares(None)) is None
    assert first_beyond(Difference(reference + torch.tensor([[0, 1e-9], [0.5, 1.0]]), reference).shares(allowed)) == (
        1,
        0,
    )
    assert first_beyond(Difference(infinite, torch.tensor([float("inf"), 1.0])).shares(infinite)) == (1,)


def test_the_lowest_number_of_a_mask_hides_no_other():
    """Some libraries add the lowest number of float32 for -∞: beside it no score would differ from any other."""
    lowest = torch.finfo(torch.float32).min
    ran = torch.tensor([2.0, 4.0, lowest]).double()
    assert relative_difference(torch.tensor([2.0, 3.0, lowest]).double(), ran) == 0.25
    assert relative_difference(torch.tensor([2.0, 4.0, lowest / 2]).double(), ran) == 0.5
    assert relative_difference(ran, ran) == 0.0
    mask = torch.tensor([0.0, lowest]).double()
    assert relative_difference(mask, mask.masked_fill(mask == 0, 1)) == 1.0
    assert relative_difference(mask + torch.tensor([1e-9, 0]), mask) == float("inf")


def test_a_misspelt_parameter_is_no_parameter():
    with tell_lie("logits", lambda line: Tensor("W", line.tensor.shape, "parameter head.wieght")):
        note = tracer.load("vit", **SIZES).trace().steps[-1].note
    assert "the model has no such parameter: 'head.wieght'" in note and "kept" not in note


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0]).double(), False),
        (torch.zeros(0, 2), torch.zeros(2, 0), False),
        (torch.zeros(2, 0), torch.zeros(2, 0), True),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), True),
        (torch.eye(3).to_sparse(), torch.eye(3).to_sparse(), True),
        (torch.eye(3).to_sparse(), torch.eye(3), False),
        (torch.ones(2, 3).mT, torch.ones(3, 2), True),
        (torch.tensor(True), torch.tensor(False), False),
    ],
)
def test_tensors_are_identical_bit_by_bit(one, other, same):
    assert identical(one, other) is same


class Fused(nn.Module):
    """Attention in one fused call, with dropout while training, as nanoGPT has it."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(12, 36)

    def forward(self, x):
        q, k, v = (part.view(2, 5, 3, 4).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        share = 0.1 if self.training else 0.0
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=share).transpose(1, 2)


def test_dropout_of_fused_attention_is_printed_and_not_executed():
    run = tracer.trace(Fused().train(), torch.randn(2, 5, 12))
    context = run.step("attention.context")
    assert r"\operatorname{dropout}\left(\mathbf{A}\right)\,\mathbf{V}" in context.latex
    assert context.verdict == "not executed" and "random" in context.note
    inside = [step for step in run.steps if step.inside is not None]
    assert {step.verdict for step in inside} == {"recomputed"} and len(inside) == 3
    assert all("nothing verifies it" in step.note for step in inside)
    without = tracer.trace(Fused().eval(), torch.randn(2, 5, 12))
    assert without.step("attention.context").verdict == "verified"
    assert all("verified with what follows" in step.note for step in without.steps if step.inside is not None)


def test_nothing_is_recomputed_without_values():
    with torch.device("meta"):
        run = tracer.trace(Fused().eval(), torch.zeros(2, 5, 12))
    assert {step.verdict for step in run.steps} == {"not executed"}
    assert not any("recomputed" in step.note for step in run.steps)
