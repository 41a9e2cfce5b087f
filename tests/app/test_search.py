"""The index of the search without a browser: what is listed, and the place that each of its addresses shows."""

from urllib.parse import parse_qsl

import pytest

from pages.sections.lessons import claim_cards, note_statements
from pages.sections.search import index
from pages.state import url_state
from tests.app.test_app import text, visited
from tests.support.note_runs import run
from tracer.lessons.notes.statements import rows, sections


def entries_of(monkeypatch, model: str, **address: str) -> list[dict]:
    """The index of a run, searched at an address."""
    with monkeypatch.context() as patch:
        patch.setattr(url_state, "of", lambda page: {"model": model, **(address if page == "notes" else {})})
        return index.entries(run(model)[1])


def place_of(entry: dict) -> dict[str, str]:
    return dict(parse_qsl(entry["to"].partition("?")[2]))


@pytest.mark.parametrize("model", ["vit", "nanogpt"])
def test_each_statement_of_the_search_is_on_the_page_that_opens_with_a_mark(monkeypatch, model):
    before = {"note": "claims", "claim": "whom", "of": "vit", "statement": "002.17"}
    found = [entry for entry in entries_of(monkeypatch, model, **before) if entry["kind"] == "statement"]
    texts = {(note, index._plain(row.text)) for note in ("000", "001", "002", "003", "004") for row in rows(note)}
    assert len(found) >= len(texts) > 400
    for entry in found:
        place = place_of(entry)
        note, number = place["statement"].split(".")
        (row,) = (row for row in rows(note) if row.number == int(number))
        assert index._plain(row.text) in entry["title"]
        if place["note"] == "claims":
            quotes = claim_cards.quote_statements(place["claim"], place["of"], (note, int(number)))
            (marked,) = (quote for quote in quotes if note_statements.MARK in quote)
            assert row.text in marked
        else:
            assert place["note"] == note and sections(note)[int(place["section"]) - 1] == row.section
            assert not {"claim", "of"} & place.keys()


def test_the_statement_that_was_chosen_is_marked_on_its_page(monkeypatch):
    (entry,) = (
        entry
        for entry in entries_of(monkeypatch, "vit")
        if entry["title"] == "causality matters for autoregressive models, so they mask"
    )
    at = visited("notes", **{name: value for name, value in place_of(entry).items() if name != "model"})
    assert not at.warning
    (marked,) = (part.value for part in at.markdown if note_statements.MARK in part.value)
    assert "statement 38.* causality matters for autoregressive models" in marked.partition(note_statements.MARK)[2]
    at.main.selectbox[1].set_value(at.main.selectbox[1].options[0]).run()
    assert not at.exception and "statement" not in at.query_params and note_statements.MARK not in text(at)


def test_a_statement_of_a_section_is_marked_in_that_section():
    row = rows("002")[0]
    at = visited("notes", note="002", section="1", statement="002.1")
    assert sections("002").index(row.section) == 0
    (said,) = (part.value for part in at.markdown if note_statements.MARK in part.value)
    assert row.text in said.partition(note_statements.MARK)[2].partition("\n\n")[0]
