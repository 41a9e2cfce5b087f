"""Page of the notes without a browser: claims on any model, and their baselines."""

import re
import threading

import pytest
import streamlit as st

from pages.jobs import background_checks
from pages.sections import note_statements
from tests.app.test_app import text, visit
from tests.support.note_runs import run
from tracer.lessons.notes import evaluate, measurement
from tracer.lessons.notes.evaluate import StatementResult
from tracer.lessons.notes.statements import Finding, rows, sections
from tracer.symbols.letters import PrintedNames
from tracer.utils.job_queue import BACKGROUND


def test_claims_are_cards_on_any_model():
    at = visit("notes", note="claims", of="transformer")
    assert [header.value for header in at.header] == [card.title for card in evaluate.CARDS]
    said = text(at)
    assert "does not hold" in said and "does not apply to this model" in said and "note 00" not in said
    assert "99.6\u00a0% of the weight goes to “square”" in said
    at.main.text_input[0].set_value("dimond").run()
    assert "goes to “diamond”" in text(at)
    for word in ("", "  ", "🍕<b>", "x" * 40):
        at.main.text_input[0].set_value(word).run()
        assert not at.exception and "of the weight goes to" in text(at)
    at.select_slider[0].set_value(256).run()
    assert re.search(r"= 16\.00; divided by it (0\.9|1\.0)", text(at))


def test_what_attention_is_set_against_runs_beside_it():
    said = text(visit("notes", note="contrasts", of="segmenter"))
    assert "depends on 9, 25, 49, 64 of 64 places" in said and "change by 0 in layer norm" in said


def test_without_the_library_of_a_note_one_sentence_says_so(monkeypatch):
    monkeypatch.setattr("tracer.zoo.available", lambda prefix: False)
    monkeypatch.setattr("pages.jobs.run_cache._results", {"noted": note_statements.run_cache.Cache(4)})
    at = visit("notes", note="003")
    assert "needs the package torchvision, which is not installed: pip install torchvision" in at.info[0].value


def test_an_unknown_model_of_the_claims_is_quoted():
    at = visit("notes", note="claims", of="<b>")
    assert "This page has no of '\\<b>'" in at.warning[0].value


@pytest.mark.parametrize(("page", "place", "link"), [
    ("trace", {"model": "vit", "step": "block1.norm1"}, "[→\u00a0Trace of vit](trace?model=vit&step=block1.norm1)"),
    ("overview", {"model": "clip"}, "[→\u00a0Overview of clip](./?model=clip)"),
    ("", {}, ""),
    ("nowhere", {}, ""),
])  # fmt: skip
def test_a_link_leads_to_pages_that_are_there(page, place, link):
    assert note_statements.statement_link(Finding("", "", page=page, place=tuple(place.items())), "000").strip() == link


@pytest.mark.sweep
def test_what_runs_have_random_weights_is_said_and_once_for_a_note_of_one_model():
    assert note_statements._about("nanogpt", run) == note_statements._about("vit-note", run) == ""
    random = "A run of nanogpt with single = True, whose weights are random."
    assert note_statements._about("nanogpt-single", run) == random
    assert note_statements._about("vit-text-single", run) == "A run of vit-text with h = 1, whose weights are random."
    whole = {note_statements._about(name, run) for name in ("torchvision", "torchvision-standard")}
    assert whole == {"A run of torchvision:vit_b_16 with L = 1, B = 2, whose weights are random."}


@pytest.mark.sweep
def test_a_run_that_wrote_a_caption_of_another_length_says_why_its_sequence_is_as_long():
    provider = measurement.provider(measurement.at_hand)
    for name in ("vit-text-single", "vit-text-types"):
        lengths = [len(provider(one)[1].words) for one in (name, "vit-text")]
        said = note_statements._about(name, provider)
        assert [f"T = {T} and S = N + T = {64 + T}" in said for T in lengths] == [True, True]
        assert provider(name)[1].step("sequence").shape[1] == 64 + lengths[0] != 64 + lengths[1]
    assert note_statements._about("vit-text", provider) == ""


def test_what_stands_on_the_page_itself_has_no_link_and_a_control_is_named():
    here = Finding("", "", page="notes", place=(("note", "003"), ("section", "2")))
    assert note_statements.statement_link(here, "003") == "" and "note=003" in note_statements.statement_link(
        here, "004"
    )
    size = Finding("", "", page="trace", place=(("model", "vit"),), control="Symbols of this run")
    assert "Trace of vit, “Symbols of this run”](trace?model=vit)" in note_statements.statement_link(size, "002")


def test_a_model_that_is_not_offered_has_no_link(monkeypatch):
    monkeypatch.setenv("TRACER_HOSTED", "1")
    place = (("model", "torchvision:vit_b_16"),)
    assert note_statements.statement_link(Finding("", "", page="operations", place=place), "003") == ""


def test_another_note_leaves_the_claim_and_the_way_back_keeps_the_note():
    at = visit("notes", note="claims", of="vit", claim="misspelt")
    assert at.query_params == {"note": "claims", "of": "vit", "claim": "misspelt"}
    at.main.selectbox[0].set_value("contrasts").run()
    assert not at.exception and "claim" not in at.query_params and at.query_params["note"] == "contrasts"
    at.sidebar.selectbox[0].set_value("nanogpt").run()
    assert not at.exception and at.query_params["note"] == "contrasts"


def test_a_statement_stands_beside_its_run_in_the_letters_that_are_chosen():
    at = visit("notes", note="004", section="7", letters="004")
    said = text(at)
    assert r"\mathbf{S}^{(1)} = \frac{\mathbf{Q}^{(1)}\,{\mathbf{K}^{(1)}}^{\top}}{\sqrt{d_k}}" in said
    assert r"$[B,\ H,\ n,\ n]$" in said and "The statements keep the words of the note." in said
    assert "step=block1.attention.scores&letters=004" in said
    at.main.selectbox[2].set_value("ours").run()
    assert r"$[B,\ h,\ T,\ T]$" in text(at) and at.query_params["letters"] == "ours"


@pytest.mark.sweep
def test_notes_are_read_before_anybody_asks_but_none_of_a_librarys_model(monkeypatch):
    monkeypatch.setattr(background_checks, "stop_event", threading.Event())  # a server of another test may have ended
    read = []
    monkeypatch.setattr(
        note_statements, "_read", lambda *part: read.append(part) or note_statements.NoteResults((), "", {}, {})
    )
    monkeypatch.setattr("pages.jobs.run_cache._results", {"noted": note_statements.run_cache.Cache(128)})
    for note in note_statements.titles():
        note_statements.ahead(note)
    assert read == [(note, section) for note in ("000", "001", "002", "004") for section in sections(note)]
    count = len(read)
    assert note_statements.show_statements("000") == {} and len(read) == count


def test_statements_are_there_before_their_verdicts_and_those_on_screen_are_checked_first(monkeypatch):
    monkeypatch.setattr("pages.jobs.run_cache._results", {"noted": note_statements.run_cache.Cache(128)})
    names, asked = sections("004"), []
    statements = {row.section: row.text for row in rows("004")}

    def check(what, key, *others, rank):
        assert rank == BACKGROUND  # the runs of visitors go first
        asked.append(key[1])
        if len(asked) == 3:
            st.stop()
        row = next(row for row in rows("004") if row.section == key[1])
        card = note_statements.StatementCard(row, StatementResult(row, (Finding("measured", "it holds"),)))
        return note_statements.NoteResults((card,), "", {}, {row.run: PrintedNames((), {}, ())})

    monkeypatch.setattr(note_statements.run_cache, "shared_result", check)
    said = text(visit("notes", note="004", section="2"))
    assert asked == [names[1], names[0], names[2]]
    assert "it holds" in said and "not checked yet" not in said.partition("it holds")[2]
    asked.clear()
    said = text(visit("notes", note="004"))
    assert asked == list(names[:3])
    assert said.count("it holds") == 2 and statements[names[0]] not in said
    assert f"not checked yet] **{rows('004')[-1].number}** {rows('004')[-1].text}" in said


def test_what_a_note_that_is_read_ahead_lacks_is_said(monkeypatch):
    monkeypatch.setattr(background_checks, "stop_event", threading.Event())  # a server of another test may have ended

    def lacks(*part: str) -> note_statements.NoteResults:
        raise ValueError("weights are damaged")

    monkeypatch.setattr(note_statements, "_read", lacks)
    with pytest.raises(ValueError, match="weights are damaged"):
        note_statements.ahead("000")
