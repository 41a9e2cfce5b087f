"""`verify` finds every kind of lie: one honest model, and copies of its trace with one thing changed each."""

import re
from copy import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import tracer
from tests.support.sweeping import cases
from tracer import verify
from tracer.inputs.model_inputs import Inputs
from tracer.verify import checks

KEYS = ["model", "ops", "dims", "solved", "equations", "verified", "max_error", "coverage", "identical", "opened_error"]
SIZES = {"H": 12, "W": 8, "P": 4, "D": 6, "h": 2, "d_ff": 10, "L": 1, "K": 3}


@pytest.fixture(scope="module")
def model():
    return tracer.load("vit", **SIZES)


@pytest.fixture(scope="module")
def trace(model):
    return model.trace(primitives=True)


def verify_trace(model, trace, net=None) -> tuple[dict, list[str]]:
    """Return the report, and its failures, on a model that shows `trace` for its run."""
    liar = replace(model, net=net) if net else copy(model)  # which has the lines that were derived before
    liar.name = "liar"
    liar.trace = lambda *, primitives, keep: trace
    report = verify.report(liar)
    return report, verify.failures(report)


def first(records, chosen, **changes):
    """Return records with the first that `chosen` accepts changed."""
    index = next(i for i, record in enumerate(records) if chosen(record))
    return (*records[:index], replace(records[index], **changes), *records[index + 1 :])


def test_an_honest_model_has_exactly_the_promised_keys(model, trace):
    report, failed = verify_trace(model, trace)
    assert failed == [] and list(report) == KEYS
    assert (
        report["dims"] == report["solved"] == sum(len(x.shape) for op in trace.ops for x in (*op.inputs, *op.outputs))
    )
    assert report["equations"] == report["verified"] == len(trace.steps)
    assert 0 < report["max_error"] <= 1e-5 and report["coverage"] == 1 and report["identical"] is True


def test_a_model_whose_values_are_beyond_what_a_trace_keeps_is_verified_whole(model, monkeypatch):
    monkeypatch.setattr("tracer.tracing.KEEP", 1000)
    run = model.trace()
    assert any(run.value(step) is None for step in run.steps)
    assert {step.verdict for step in run.steps} == {"verified"}
    report = verify.report(model)
    assert report["verified"] == report["equations"] > 0


def test_a_size_that_is_not_solved(model, trace):
    op = trace.ops[3]
    unsolved = replace(op.outputs[0], symbolic=("?",) * len(op.outputs[0].shape))
    report, failed = verify_trace(
        model, replace(trace, ops=(*trace.ops[:3], replace(op, outputs=(unsolved,)), *trace.ops[4:]))
    )
    assert report["solved"] == report["dims"] - len(unsolved.shape)
    assert failed[0] == f"liar: {len(unsolved.shape)} of {report['dims']} dimensions are not solved"
    assert len(failed) == 2 and "the first of them is in op 3" in failed[1] and "vit.py:" in failed[1]


def test_a_size_that_is_solved_wrongly(model, trace):
    op = trace.ops[3]
    wrong = replace(op.outputs[0], symbolic=("K",) * len(op.outputs[0].shape))
    _, failed = verify_trace(model, replace(trace, ops=(*trace.ops[:3], replace(op, outputs=(wrong,)), *trace.ops[4:])))
    assert failed and all(re.search(r"op 3 \(\w+\): K is 3 at this run, expected \d+", line) for line in failed)


def test_an_equation_that_is_wrong(model, trace):
    for error, shown in ((0.5, "0.5"), (float("nan"), "nan"), (float("inf"), "inf")):
        report, failed = verify_trace(
            model, replace(trace, steps=first(trace.steps, lambda step: True, error=error, margin=2e4))
        )
        assert report["verified"] == report["equations"] - 1
        assert failed == [
            f"liar: 1 of {report['equations']} equations are not verified",
            f"liar: step 'patches' is off by {shown}, 2e+04 times what rounding explains",
        ]


def test_an_equation_that_was_not_executed(model, trace):
    steps = first(trace.steps, lambda step: True, error=None, margin=None, note="not executed: 'x' was not kept")
    report, failed = verify_trace(model, replace(trace, steps=steps))
    assert report["verified"] == report["equations"] - 1
    assert failed[1:] == ["liar: step 'patches' is not verified: not executed: 'x' was not kept"]


def test_a_recomputed_step_is_no_equation(model, trace):
    report, failed = verify_trace(
        model,
        replace(
            trace, steps=first(trace.steps, lambda step: True, error=None, margin=None, recomputed=True, note="inside")
        ),
    )
    assert failed == [] and report["equations"] == len(trace.steps) - 1


def test_an_op_outside_of_every_step(model, trace):
    _, failed = verify_trace(model, replace(trace, ops=first(trace.ops, lambda op: op.flops > 0, step=None)))
    assert any("the steps cover 9" in said for said in failed)


def test_an_output_that_differs_in_one_bit(model, trace):
    changed = trace.output.clone()
    changed[0, 0] = torch.nextafter(changed[0, 0], changed[0, 0] + 1)
    report, failed = verify_trace(model, replace(trace, output=changed))
    assert report["identical"] is False
    assert failed == [
        "liar: the traced output is not bit-equal to the untraced one",
        "liar: returned_tensors: no step has what forward returns, float32 [1, 3]",
    ]


@pytest.mark.parametrize("name", cases(("params", "flops"), ()))
def test_parameters_and_flops_that_are_wrong(model, trace, name):
    number = getattr(trace, name)
    _, failed = verify_trace(model, replace(trace, **{name: number + 1}))
    assert failed[0] == f"liar: {number + 1} {name} counted, expected {number}"
    _, failed = verify_trace(model, replace(trace, **{f"{name}_symbolic": "D + K"}))
    assert failed[0] == f"liar: the formula of {name}, D + K, gives 9, expected {number}"
    _, failed = verify_trace(model, replace(trace, **{f"{name}_symbolic": "D + unheard"}))
    assert "unheard" in failed[0]


def test_attention_that_does_not_sum_to_one(model, trace):
    record = trace.attentions[0]
    values = {**trace.values, record.q: torch.full_like(trace.values[record.q], float("nan"))}
    _, failed = verify_trace(model, replace(trace, values=values))
    assert "attention of layer 0: its rows sum to 1 only within" in failed[0]


def test_attention_that_can_not_be_recovered(model, trace):
    records = first(trace.attentions, lambda record: True, problem="the scores were not found")
    lost, *claims = verify_trace(model, replace(trace, attentions=records))[1]
    assert lost == "liar: attention of layer 0: the scores were not found"
    own = "liar: explanation_numbers: "  # nothing is left to measure
    assert claims and all(claim.startswith(own) for claim in claims)


def test_primitives_that_do_not_give_what_their_op_gave(model, trace):
    for error in (0.5, float("nan")):
        opened = first(trace.decompositions, lambda one: one.error is not None, error=error)
        _, failed = verify_trace(model, replace(trace, decompositions=opened))
        assert len(failed) == 1 and re.search(
            rf"op \d+ \(\w+\): its primitives differ from it by {error:.1e}", failed[0]
        )


def test_a_size_of_a_primitive_that_is_not_solved(model, trace):
    chosen = next(one for one in trace.decompositions if len(one.primitives) > 1)
    last = chosen.primitives[-1]
    unsolved = replace(last.outputs[0], symbolic=("?",) * len(last.outputs[0].shape))
    changed = (*chosen.primitives[:-1], replace(last, outputs=(unsolved,)))
    opened = first(trace.decompositions, lambda one: one is chosen, primitives=changed)
    _, failed = verify_trace(model, replace(trace, decompositions=opened))
    assert len(failed) == 1 and failed[0].endswith("dimensions of its primitives are not solved")


class Fused(torch.nn.Module):
    """PyTorch's own encoder layer, which takes a fused path of its own when nothing watches."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x)


def test_the_fast_path_is_compared_with_the_opened_one(monkeypatch):
    models_alone = {"changed_values", "changed_scores", "effects_of_heads"}  # this model can only be traced
    rest = {name: check for name, check in checks.checks().items() if name not in models_alone}
    monkeypatch.setattr(checks, "checks", lambda: rest)
    torch.manual_seed(0)
    net, x = Fused().eval(), torch.randn(2, 5, 8)
    model = SimpleNamespace(
        name="fused",
        net=net,
        spec=SimpleNamespace(whole=False, probes=()),
        inputs=lambda: Inputs((x,)),
        trace=lambda **asked: tracer.trace(net, x, symbols={"B": 0, "T": 1}, **asked),
    )
    with torch.no_grad():
        report = verify.report(model)
    assert report["identical"] is True and 0 < report["opened_error"] < 1e-5


def test_reports_as_text():
    good = dict(zip(KEYS, ["vit", 333, 2287, 2287, 91, 91, 6.5e-7, 1.0, True, None], strict=True))
    bad = {**good, "model": "liar", "identical": False, "opened_error": 0.5}
    assert verify.text([good]) == (
        "model  ops  dims  solved  equations  verified  max_error  coverage  identical  opened_error\n"
        "vit    333  2287  2287    91         91        6.5e-07    1         yes        –\n"
        "\n"
        "Everything is verified."
    )
    assert verify.text([good, bad]).splitlines()[-2:] == [
        "liar: the traced output is not bit-equal to the untraced one",
        "liar: the opened fast path differs by 0.5, expected at most 0.0001",
    ]


def test_unknown_models_are_refused():
    with pytest.raises(ValueError, match="'vut'"):
        verify.verify("vut")
