"""Findings: things that run and are probably mistakes. Each rule is one entry with its check on the run.

The files of this folder register their rules by `run_view.rule`, and are found by themselves. A rule's evidence comes
from the run: its graph, its symbols, its masks, or a second run. Names alone never accuse."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

from tracer.diagnostics.findings.comparable_runs import ComparableRun, comparable
from tracer.diagnostics.findings.run_view import RULES, Rule, RunView
from tracer.record import Finding, Source, Trace
from tracer.utils.errors import describe_error
from tracer.utils.lazy_import import import_folder

__all__ = ["Rule", "find", "rule_of", "rules", "sources"]


PURPOSE = re.compile(r"#\s*tracer:\s*(?P<kind>[a-z ]+?) on purpose[,:;.\s]*(?P<reason>.*)")
"""The comment with which a line of code acknowledges a finding: `# tracer: axes mixed on purpose, REASON`."""
NO_REASON = "The code says that it is on purpose."


@cache
def rules() -> tuple[Rule, ...]:
    """Return all rules, in the order of the document: those that need nothing but the record first."""
    import_folder(__name__)
    return tuple(sorted(RULES.values(), key=lambda rule: (rule.runs_again, rule.kind)))


def rule_of(kind: str) -> Rule | None:
    """Return the rule of that name, None for an unknown one."""
    rules()
    return RULES.get(kind)


def find(trace: Trace) -> tuple[Finding, ...]:
    """Return all findings of a run, in the order of its ops; those that somebody acknowledged have an `intent`.

    A run that was changed has none: what it does is not what its code says. Rules that run the model again are left out
    where it is no longer there, or too large.
    """
    if trace.changes:
        return ()
    view = RunView(trace)
    run = comparable(view)
    every = [finding for rule in rules() for finding in _apply(rule, view, run)]
    findings = (_acknowledge(finding, view) for finding in _merge(_causes(every), trace))
    return tuple(sorted(findings, key=lambda finding: finding.ops[:1] or (-1,)))


def _causes(findings: list[Finding]) -> Iterator[Finding]:
    """Yield the findings that no other one explains."""
    kinds = {finding.kind for finding in findings}
    return (finding for finding in findings if kinds.isdisjoint(RULES[finding.kind].explained_by))


def _apply(rule: Rule, view: RunView, run: ComparableRun) -> list[Finding]:
    """Return the findings of one rule; none, with a warning in the log, where it fails on a stranger's model."""
    if rule.runs_again and not view.repeatable:
        return []
    try:
        return list(run.findings(rule, view) if rule.compares or rule.names_axes else rule.findings(view))
    except Exception as error:
        logging.getLogger(__name__).warning(
            "the rule %r could not be applied to %s: %s", rule.kind, view.trace.model, describe_error(error)
        )
        return []


def _merge(findings: Iterable[Finding], trace: Trace) -> Iterator[Finding]:
    """Yield findings; merge those of one rule and one line of code, such as that of all blocks."""
    groups: dict[tuple, list[Finding]] = {}
    for finding in findings:
        source = trace.ops[finding.ops[0]].source if finding.ops else None
        place = (source.file, source.line) if source else finding.ops
        groups.setdefault((finding.kind, place, finding.fix), []).append(finding)
    for first, *others in groups.values():
        if not others:
            yield first
            continue
        ops = tuple(sorted({op for finding in (first, *others) for op in finding.ops}))
        message = f"{first.message} The same line does so {len(others) + 1} times in this run."
        yield replace(first, ops=ops, message=message)


def _acknowledge(finding: Finding, view: RunView) -> Finding:
    """Return a finding with the reason why it is on purpose, if a hint or the code itself has one."""
    if finding.intent:
        return finding
    for source in sources(finding, view.trace):
        if (match := PURPOSE.search(source.text)) and match["kind"] == finding.kind:
            return replace(finding, intent=match["reason"] or NO_REASON)
    return replace(finding, intent=view.intent(finding))


def sources(finding: Finding, trace: Trace) -> tuple[Source, ...]:
    """Return the lines of code of a finding, each once, in the order in which they ran."""
    return tuple(dict.fromkeys(source for op in finding.ops if (source := trace.ops[op].source) is not None))


# Findings in words, for the command line and for messages of checks.

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
