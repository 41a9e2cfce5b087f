"""Each mistake is found at its line, and no correct twin is accused of anything."""

import pytest
import torch

import tracer
from tests.diagnostics.wrong_modules import PAIRS
from tests.support.sweeping import cases
from tracer.diagnostics.findings import rules, sources

EVERY_RUN = {pair.kind: name for name, pair in PAIRS.items()}.values()
"""One pair of each kind; the others are swept."""


def trace_of(name: str, wrong: bool):
    """Return the run of a wrong module or of its twin, in evaluation mode unless it says otherwise."""
    pair = PAIRS[name]
    torch.manual_seed(0)
    module = pair.build(wrong)
    module.train(getattr(module, "training_mode", False))
    with torch.no_grad():
        return tracer.trace(module, *pair.args(), symbols=pair.symbols)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("name", cases(PAIRS, EVERY_RUN))
def test_a_mistake_is_found_at_its_line(name):
    trace = trace_of(name, True)
    findings = [finding for finding in trace.findings if finding.kind == PAIRS[name].kind]
    assert findings, f"found only {[finding.kind for finding in trace.findings]}"
    lines = [source.text for finding in findings for source in sources(finding, trace)]
    assert any(line.endswith("# wrong") for line in lines), lines
    assert all(finding.message and finding.fix and finding.step for finding in findings)
    assert not trace.acknowledged_findings


@pytest.mark.parametrize("name", cases(PAIRS, EVERY_RUN))
def test_no_correct_twin_is_accused(name):
    trace = trace_of(name, False)
    assert [finding.message for finding in trace.findings] == []


def test_every_rule_has_a_pair():
    assert {pair.kind for pair in PAIRS.values()} == {rule.kind for rule in rules()}
