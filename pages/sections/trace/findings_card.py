"""Likely mistakes in the code of the model that ran: a card above the steps, only where there is any."""

from __future__ import annotations

import streamlit as st

from pages.state import url_state
from pages.ui import texts
from tracer.record import Finding, Trace

MAX_FINDINGS = 4
"""Findings that the card shows; the others are counted."""
LESSONS = {"mask": "The mask of this run", "positions": "Positions", "loss": "The loss", "notes": "The notes"}


def show(trace: Trace) -> None:
    """Draw the known findings of a run that nobody acknowledged; nothing where there are none."""
    findings = [finding for finding in trace.diagnosis or () if not finding.intent]
    if not findings:
        return
    with st.container(border=True):
        count = f"{len(findings)} findings" if len(findings) > 1 else "1 finding"
        recorded = " They are recorded in the file, and were not checked here." if trace.reread is not None else ""
        st.markdown(f"**This looks like a mistake in the model's code** ({count}).{recorded}")
        for finding in findings[:MAX_FINDINGS]:
            _finding(finding, trace)
        if len(findings) > MAX_FINDINGS:
            st.caption(
                f"{len(findings) - MAX_FINDINGS} more: `trace.findings` in Python, `python -m tracer trace` in a shell."
            )


def _finding(finding: Finding, trace: Trace) -> None:
    from tracer.diagnostics.findings import rule_of, sources  # torch, which a page starts without

    rule = rule_of(finding.kind)
    lines = [f"{source.file}:{source.line}" for source in sources(finding, trace)]
    code = [source.text for source in sources(finding, trace)]
    where = f" at step {texts.escape(finding.step)}" if finding.step else ""
    title = f"**{texts.escape(finding.kind.capitalize())}**{where}."
    st.warning(f"{title} {_with_code(finding.message)}\n\n{_with_code(finding.fix)}", icon=":material/rule:")
    if code:
        st.code(
            "\n".join(f"{text}  # {line}" for text, line in zip(code[:2], lines[:2], strict=True)), language="python"
        )
    if rule is not None:
        st.caption(f"The rule: `{rule.document}`")
        if rule.lesson in LESSONS and finding.step in {step.id for step in trace.steps}:
            st.page_link(f"pages/{rule.lesson}.py", label=LESSONS[rule.lesson], query_params=url_state.of(rule.lesson))


def _with_code(text: str) -> str:
    """Return a sentence for markdown, in which text between backticks stays code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return texts.escape(text)
    return "".join(f"`{part}`" if number % 2 else texts.escape(part) for number, part in enumerate(parts))
