"""Mistakes of tutorials, written apart from the rules: most are found at their line, and no correct twin is accused."""

import pytest
import torch

import tracer
from tests.diagnostics.tutorial_modules import MISSED_MISTAKES, TUTORIALS
from tracer.diagnostics.findings import sources


def trace_of(name: str, wrong: bool):
    """Return the run of a wrong module or of its twin, in evaluation mode."""
    tutorial = TUTORIALS[name]
    torch.manual_seed(0)
    module = tutorial.build(wrong).eval()
    with torch.no_grad():
        return tracer.trace(module, *tutorial.args(), symbols=tutorial.symbols)


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_mistake_is_found_at_its_line_or_listed_as_missed(name):
    trace = trace_of(name, True)
    lines = [source.text for finding in trace.findings for source in sources(finding, trace)]
    assert any(line.endswith("# wrong") for line in lines) == (name not in MISSED_MISTAKES), lines


@pytest.mark.parametrize("name", TUTORIALS)
def test_no_correct_twin_is_accused(name):
    assert [finding.message for finding in trace_of(name, False).findings] == []


def test_at_least_four_of_five_are_found():
    assert TUTORIALS.keys() > MISSED_MISTAKES and len(TUTORIALS) - len(MISSED_MISTAKES) >= 16
