"""Card on Trace: the known findings of a run, and nothing where there are none."""

from dataclasses import replace

from streamlit.testing.v1 import AppTest

from tests.diagnostics.test_pairs import trace_of
from tracer.record import Finding, Trace


def card(trace: Trace) -> AppTest:
    """Return the card's drawing of a run."""

    def page(trace):
        from pages.sections import trace as findings_card

        findings_card.show_findings(trace)

    return AppTest.from_function(page, args=(trace,)).run()


def test_a_run_without_known_findings_has_no_card():
    assert not card(trace_of("MergedHeads", False).diagnose()).markdown
    assert not card(trace_of("MergedHeads", True)).markdown  # nobody asked for them yet


def test_each_finding_has_its_rule_its_line_and_its_repair():
    drawn = card(trace_of("MergedHeads", True).diagnose())
    assert not drawn.exception and "1 finding" in drawn.markdown[0].value
    assert drawn.warning[0].value.startswith("**Axes mixed** at step")
    assert "`.transpose(1, 2)`" in drawn.warning[0].value and "# wrong" in drawn.code[0].value
    assert "docs/findings.md#axes-mixed" in drawn.caption[0].value


def test_what_a_file_says_is_shown_as_recorded_and_as_text(tmp_path):
    import tracer

    trace = trace_of("MergedHeads", True)
    foreign = Finding("axes mixed", "", (), "[a](b) <b>bold</b> `code`", "**x**")
    replace(trace, diagnosis=(foreign,)).save(tmp_path / "run.safetensors")
    drawn = card(tracer.open(tmp_path / "run.safetensors"))
    assert "recorded in the file" in drawn.markdown[0].value
    assert r"\[a\](b) \<b" in drawn.warning[0].value
    assert "`code`" in drawn.warning[0].value and r"\*\*x\*\*" in drawn.warning[0].value


def test_acknowledged_findings_are_left_out():
    trace = trace_of("MergedHeads", True).diagnose()
    meant = tuple(replace(finding, intent="a test") for finding in trace.diagnosis)
    assert not card(replace(trace, diagnosis=meant)).markdown
