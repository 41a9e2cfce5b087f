"""Findings in words, for the command line and for messages of checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracer.diagnostics.findings import rule_of, sources
from tracer.record import Finding, Trace

RECORDED_NOTE = "These findings are recorded in the file, and were not checked here."
MAX_SOURCE_LINES = 2
"""Lines of code that one finding is shown with."""


def place(finding: Finding, trace: Trace) -> str:
    """Return the location of a finding: its step, and the lines of code with their file."""
    code = [f"{source.file}:{source.line} `{source.text}`" for source in sources(finding, trace)]
    more = f" and {len(code) - MAX_SOURCE_LINES} more" if len(code) > MAX_SOURCE_LINES else ""
    where = [f"step {finding.step}"] if finding.step else []
    return ", ".join([*where, *code[:MAX_SOURCE_LINES]]) + more


def sentence(finding: Finding, trace: Trace) -> str:
    """Return a finding as one line: the rule, the place, what was measured, the repair, and where the rule is
    described."""
    where = place(finding, trace)
    rule = rule_of(finding.kind)
    see = ""
    if rule is not None:
        see = f" See {rule.document}" + (
            f", and the page {rule.lesson.capitalize()} of the app." if rule.lesson else "."
        )
    at = f" at {where}" if where else ""
    ending = f" On purpose: {finding.intent}" if finding.intent else f" {finding.fix}"
    return f"{finding.kind}{at}: {finding.message}{ending}{see}"


def report(trace: Trace) -> Iterator[str]:
    """Yield the lines about likely mistakes in the model's code, none where there are none."""
    if not trace.findings:
        return
    yield f"What looks like a mistake in the model's code ({_count(trace.findings)}):"
    if trace.reread is not None and trace.diagnosis is not None:
        yield RECORDED_NOTE
    for finding in trace.findings:
        yield f"- {sentence(finding, trace)}"


def _count(findings: Iterable[Finding]) -> str:
    count = len(list(findings))
    return f"{count} finding{'s' if count != 1 else ''}"
