"""Findings in words, for the command line and for messages of checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tracer.diagnostics.findings import rule_of, sources
from tracer.record import Finding, Trace

RECORDED = "These findings are recorded in the file, and were not checked here."
MOST = 2
"""Lines of code that one finding is shown with."""


def place(finding: Finding, trace: Trace) -> str:
    """Return where a finding is: its step, and the lines of code with their file."""
    code = [f"{source.file}:{source.line} `{source.text}`" for source in sources(finding, trace)]
    more = f" and {len(code) - MOST} more" if len(code) > MOST else ""
    where = [f"step {finding.step}"] if finding.step else []
    return ", ".join([*where, *code[:MOST]]) + more


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
    """Yield the lines about what looks like a mistake in the model's code, none where nothing does."""
    if not trace.findings:
        return
    yield f"What looks like a mistake in the model's code ({_count(trace.findings)}):"
    if trace.reread is not None and trace.diagnosis is not None:
        yield RECORDED
    for finding in trace.findings:
        yield f"- {sentence(finding, trace)}"


def _count(findings: Iterable[Finding]) -> str:
    count = len(list(findings))
    return f"{count} finding{'s' if count != 1 else ''}"
