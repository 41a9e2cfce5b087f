"""Findings as their users see them: plain data, acknowledged or not, in files and on the command line."""

import json
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tests.diagnostics.correct_modules import CORRECT
from tests.diagnostics.test_pairs import trace_of
from tests.diagnostics.wrong_modules import PAIRS, Heads, later, texts
from tracer import zoo
from tracer.cli import main
from tracer.diagnostics import findings
from tracer.diagnostics.findings import NO_REASON, rules
from tracer.diagnostics.findings.run_view import RunView
from tracer.textbook.names import Hint
from tracer.verify import report, small

DOCUMENT = Path(__file__).parents[2] / "docs" / "findings.md"


def merge(heads):
    return heads.reshape(heads.shape[0], -1, 12)


def merge_on_purpose(heads):
    return heads.reshape(heads.shape[0], -1, 12)  # tracer: axes mixed on purpose, it is a test


def merge_without_reason(heads):
    return heads.reshape(heads.shape[0], -1, 12)  # tracer: axes mixed on purpose


def merge_with_comment_of_another_rule(heads):
    return heads.reshape(heads.shape[0], -1, 12)  # tracer: mask corner on purpose, it is a test


HEADS = torch.randn(2, 3, 5, 4)


def test_a_finding_is_plain_data():
    (finding,) = tracer.trace(merge, HEADS).findings
    assert finding == type(finding)(finding.kind, finding.step, finding.ops, finding.message, finding.fix)
    assert (finding.kind, finding.intent) == ("axes mixed", "")
    assert "[2, 3, 5, 4] as [2, 5, 12]" in finding.message and ".transpose(1, 2)" in finding.fix
    with pytest.raises(AttributeError):
        finding.kind = "another"


def test_a_comment_in_the_code_acknowledges_one_rule():
    trace = tracer.trace(merge_on_purpose, HEADS)
    assert not trace.findings
    assert [finding.intent for finding in trace.acknowledged_findings] == ["it is a test"]
    assert tracer.trace(merge_without_reason, HEADS).acknowledged_findings[0].intent == NO_REASON
    assert tracer.trace(merge_with_comment_of_another_rule, HEADS).findings


def test_a_hint_acknowledges_where_it_fits():
    trace = tracer.trace(merge, HEADS)

    def findings_with(hint: Hint):
        return replace(trace, replay=replace(trace.replay, hints=(hint,))).findings

    assert not findings_with(Hint(finding="axes mixed", intent="it is a test"))
    assert findings_with(Hint(finding="mask corner", intent="it is a test"))
    assert findings_with(Hint("block9.*", finding="axes mixed", intent="it is a test"))


def test_symbols_tell_axes_of_one_length_apart():
    heads = torch.randn(2, 4, 4, 4)  # [B, h, T, d_k] with h = T: numbers alone can't tell
    assert not tracer.trace(lambda x: x.reshape(x.shape[0], x.shape[2], 16), heads).findings
    trace = tracer.trace(lambda x: x.reshape(x.shape[0], x.shape[2], 16), heads, symbols={"B": 0, "T": 2})
    assert [finding.kind for finding in trace.findings] == ["axes mixed"]


def test_lines_that_repeat_are_one_finding():
    class Stack(nn.Module):
        def forward(self, x):
            for _ in range(3):
                x = x.transpose(1, 2).reshape(x.shape)
            return x

    (finding,) = tracer.trace(Stack(), torch.randn(2, 3, 5), symbols={"B": 0, "T": 1, "D": 2}).findings
    assert len(finding.ops) == 3 and "3 times" in finding.message


def test_a_changed_run_has_none():
    plain = trace_of("MergedHeads", True)
    pair = PAIRS["MergedHeads"]
    change = {plain.steps[-1].id: tracer.changes.scale(2)}
    assert plain.findings and not tracer.trace(pair.build(True), *pair.args(), change=change).findings


def test_findings_are_saved_and_shown_as_recorded(tmp_path):
    trace = trace_of("BatchFirst", True).diagnose()
    trace.save(tmp_path / "run.safetensors")
    opened = tracer.open(tmp_path / "run.safetensors")
    assert opened.findings == trace.findings and [f.kind for f in opened.findings] == ["samples mixed"]
    assert findings.RECORDED_NOTE in list(findings.report(opened))
    assert findings.RECORDED_NOTE not in list(findings.report(trace))


def test_a_file_without_findings_is_read_anew_by_the_rules_that_need_no_model(tmp_path):
    tracer.trace(merge, HEADS).save(tmp_path / "run.safetensors")
    opened = tracer.open(tmp_path / "run.safetensors")
    assert opened.diagnosis is None and [finding.kind for finding in opened.findings] == ["axes mixed"]


def test_a_file_whose_finding_names_no_operation_is_refused(tmp_path):
    trace = tracer.trace(merge, HEADS).diagnose()
    stray = replace(trace, diagnosis=(replace(trace.diagnosis[0], ops=(99,)),))
    with pytest.raises(ValueError, match="ops among"):
        stray.save(tmp_path / "run.safetensors")


def test_every_rule_has_a_section_and_every_section_a_rule():
    text = DOCUMENT.read_text(encoding="utf-8")
    sections = re.findall(r"^### (.+)$", text.partition("## The rules")[2].partition("## What")[0], flags=re.MULTILINE)
    assert sorted(section.lower() for section in sections) == sorted(rule.kind for rule in rules())


def test_the_lesson_of_a_rule_is_a_page():
    pages = {path.stem for path in (DOCUMENT.parents[1] / "pages").glob("*.py")}
    assert {rule.lesson for rule in rules()} - {""} <= pages


@pytest.mark.parametrize("name", ["nanogpt", "vit"])
def test_our_models_have_none(name):
    assert tracer.load(name).trace().findings == ()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("hf:xlnet", {"axes mixed", "parameter unused"}),
        pytest.param("hf:longt5", {"mask empty row", "scores scale"}, marks=pytest.mark.sweep),
    ],
)
def test_skewed_positions_and_rows_of_padding_are_on_purpose(name, kinds):
    if not zoo.available("hf"):
        pytest.skip("transformers is not installed")
    trace = small(name).trace()
    assert trace.findings == ()
    assert kinds <= {finding.kind for finding in trace.acknowledged_findings}


def test_verify_fails_for_a_finding_that_nobody_acknowledged(monkeypatch):
    sizes = {"H": 12, "W": 8, "P": 4, "D": 12, "d_k": 5, "d_ff": 10, "L": 2}
    model, (finding,) = tracer.load("vit-note", **sizes), tracer.trace(merge, HEADS).findings
    assert "problems" not in report(model)
    monkeypatch.setattr("tracer.diagnostics.findings.find", lambda trace: (finding, replace(finding, intent="a test")))
    assert report(model)["problems"] == [findings.sentence(finding, model.trace())]


class WithLabels(nn.Module):
    """A language model of transformers and its loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, labels):
        return self.model(input_ids=input_ids, labels=labels, use_cache=False).loss


def test_labels_that_a_model_of_transformers_shifts_again_are_found():
    if not zoo.available("hf"):
        pytest.skip("transformers is not installed")
    model = small("hf:gpt2").net
    ids = torch.randint(1, model.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(0))
    for args, kinds in (
        ((ids, ids.clone()), []),
        ((ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), ["labels shifted"]),
    ):
        with torch.no_grad():
            trace = tracer.trace(WithLabels(model).eval(), *args, symbols={"B": 0, "T": 1})
        assert [finding.kind for finding in trace.findings] == kinds


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    code = """
        import torch
        from torch import nn

        class Merge(nn.Module):
            def forward(self, x):
                return x.reshape(x.shape[0], x.shape[2], -1)

        def factory(B=2, h=3, T=5):
            return Merge().eval(), torch.randn(B, h, T, 4)
    """
    (tmp_path / "heads_of_mine.py").write_text(textwrap.dedent(code))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return "heads_of_mine:factory"


def test_the_command_line_prints_them(own_module, capsys):
    assert main(["trace", "--module", own_module]) == 0
    out = capsys.readouterr().out
    assert "1 finding" in out and "heads_of_mine.py:7" in out and "docs/findings.md#axes-mixed" in out
    assert main(["trace", "--module", own_module, "--format", "json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["kind"] == "axes mixed" and finding["fix"]
    assert main(["trace", "--module", own_module.replace(":", ".py:")]) == 0
    assert "heads_of_mine.py:7" in capsys.readouterr().out
    assert main(["trace", "--module", "heads_of_yours.py:factory"]) == 2
    assert "there is no file 'heads_of_yours.py'" in capsys.readouterr().err
    assert main(["trace", "nanogpt", "--set", "T=8"]) == 0
    assert "finding" not in capsys.readouterr().out


@pytest.mark.parametrize("name", CORRECT)
def test_correct_code_that_looks_like_a_mistake_is_not_accused(name):
    torch.manual_seed(0)
    build, args, symbols = CORRECT[name]
    with torch.no_grad():
        trace = tracer.trace(build().eval(), *args(), symbols=symbols)
    assert [finding.message for finding in trace.findings] == []


class CausalByQueries(Heads):
    """A causal mask, and a softmax over the queries in the place of the keys."""

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = (q @ k.transpose(-2, -1) / 2).masked_fill(later(x), float("-inf"))
        return self.out(self.merge(F.softmax(scores, dim=-2) @ v))


def test_a_cause_stands_without_its_consequence():
    trace = tracer.trace(CausalByQueries(True).eval(), torch.randn(2, 6, 16), symbols={"B": 0, "T": 1})
    assert [finding.kind for finding in trace.findings] == ["softmax axis"]
    pair = PAIRS["MaskInAnotherOrderOfHeads"]
    trace = tracer.trace(pair.build(True).eval(), *pair.args(), symbols=pair.symbols)
    assert [finding.kind for finding in trace.findings] == ["axis order"]
    assert "repeat_interleave(4, 0)" in trace.findings[0].fix


def test_both_readings_of_a_scale_are_given_where_both_fit():
    """With 4 heads of width 4, √D is d_k."""
    (finding,) = trace_of("ScaledTwice", True).findings
    assert "scaled twice" in finding.message and "root of the width of all heads" in finding.message


def test_second_runs_have_the_gradients_of_the_run():
    with torch.no_grad():
        trace = tracer.trace(PAIRS["LabelsNotShifted"].build(False).eval(), *texts(), symbols={"B": 0, "T": 1})
    view = RunView(trace)
    assert view.has_same_ops(view.values)


def test_a_leak_begins_where_its_logits_are_computed():
    (finding,) = trace_of("MaskForgottenOfOneText", True).findings
    assert " in attention." in finding.message and "Hide later tokens" in finding.fix
