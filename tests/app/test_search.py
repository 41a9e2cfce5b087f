"""Index of the search without a browser: its entries, and the position that each of its addresses shows."""

import re
from urllib.parse import parse_qsl

import pytest

from pages.sections import note_statements, search
from pages.state import url_state
from pages.state.view import View
from tests.app.test_app import text, visit
from tests.support.note_runs import run
from tracer.changes.options import options
from tracer.lessons.notes.statements import rows, sections


def entries_of(monkeypatch, model: str, **address: str) -> list[dict]:
    """Return the index of a run, searched at an address."""
    with monkeypatch.context() as patch:
        patch.setattr(url_state, "view_of", lambda page: View(model, place=address if page == "notes" else {}))
        return search.search_entries(run(model)[1])


def place_of(entry: dict) -> dict[str, str]:
    return dict(parse_qsl(entry["to"].partition("?")[2]))


@pytest.mark.parametrize("model", ["vit", "nanogpt"])
def test_each_statement_of_the_search_is_on_the_page_that_opens_with_a_mark(monkeypatch, model):
    before = {"note": "claims", "claim": "whom", "of": "vit", "statement": "002.17"}
    found = [entry for entry in entries_of(monkeypatch, model, **before) if entry["kind"] == "statement"]
    texts = {(note, search._plain(row.text)) for note in ("000", "001", "002", "003", "004") for row in rows(note)}
    assert len(found) >= len(texts) > 400
    for entry in found:
        place = place_of(entry)
        note, number = place["statement"].split(".")
        (row,) = (row for row in rows(note) if row.number == int(number))
        assert search._plain(row.text) in entry["title"]
        if place["note"] == "claims":
            quotes = note_statements.quote_statements(place["claim"], place["of"], (note, int(number)))
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
    at = visit("notes", **{name: value for name, value in place_of(entry).items() if name != "model"})
    assert not at.warning
    (marked,) = (part.value for part in at.markdown if note_statements.MARK in part.value)
    assert "statement 38.* causality matters for autoregressive models" in marked.partition(note_statements.MARK)[2]
    at.main.selectbox[1].set_value(at.main.selectbox[1].options[0]).run()
    assert not at.exception and "statement" not in at.query_params and note_statements.MARK not in text(at)


def test_a_statement_of_a_section_is_marked_in_that_section():
    row = rows("002")[0]
    at = visit("notes", note="002", section="1", statement="002.1")
    assert sections("002").index(row.section) == 0
    (said,) = (part.value for part in at.markdown if note_statements.MARK in part.value)
    assert row.text in said.partition(note_statements.MARK)[2].partition("\n\n")[0]


EXPERIMENTS = {
    ("vit", "shuffle the patches"): ("./", "patches=shuffle(0)"),
    ("vit", "hide patches"): ("./", "image=hide("),
    ("vit", "is attention an explanation"): ("./", ""),
    ("vit", "causal mask try"): ("mask", "*.attention.scores=causal()"),
    ("vit", "no sqrt d_k"): ("attention", "block1.attention.scores=unscale"),
    ("vit", "switch a head off"): ("attention", "block1.attention.weights=drop_heads(0)"),
    ("nanogpt", "no sqrt d_k"): ("attention", "block1.attention.scores=unscale"),
    ("nanogpt", "shuffle tokens"): ("./", "embedding=shuffle(0)"),
}


@pytest.mark.parametrize("model", ["vit", "nanogpt"])
def test_experiments_are_found_by_a_learners_words_and_lead_to_the_run_with_the_change(monkeypatch, model):
    tried = [entry for entry in entries_of(monkeypatch, model) if entry["kind"] == "what if"]
    for (of, words), (page, change) in EXPERIMENTS.items():
        if of == model:
            (first, *_) = (entry for entry in tried if set(words.split()) - set("is an a".split()) <= words_in(entry))
            assert first["to"].partition("?")[0] == page and place_of(first).get("change", "").startswith(change)
    changes = [place_of(entry)["change"] for entry in tried if "change" in place_of(entry)]
    known = {option.text for option in options(run(model)[1])}
    assert len(set(changes)) == len(changes) and len(known & set(changes)) > len(known) / 3
    assert ("image=hide(" in " ".join(changes)) == (model == "vit")


def test_the_comparison_of_hidden_patches_opens_by_its_address():
    at = visit("overview", panel="hiding")
    assert not at.exception and "panel" not in at.query_params
    (table,) = (table.value for table in at.table if "16 patches hidden" in table.value.columns)
    assert list(table["16 patches hidden"])[:3] == ["none", "most attended", "in the centre"]


def words_in(entry: dict) -> set[str]:
    return set(re.findall(r"\w+", f"{entry['title']} {entry['words']}".lower()))


def test_an_experiment_keeps_the_changes_of_the_run_and_a_saved_run_has_none(monkeypatch):
    monkeypatch.setattr(url_state, "view_of", lambda page: View(changes=("position=off",)))
    trace = run("vit")[1]
    found = [entry["to"] for entry in search.search_entries(trace) if entry["title"] == "No division by √d_k (block 2)"]
    assert dict(parse_qsl(found[0].partition("?")[2]))["change"] == "position=off;block2.attention.scores=unscale"
    assert not [entry for entry in search.search_entries(trace, runs_again=False) if entry["kind"] == "what if"]


def test_a_statement_of_symbols_has_a_title_in_words_first_and_no_signs_of_latex(monkeypatch):
    titles = [entry["title"] for entry in entries_of(monkeypatch, "vit") if entry["kind"] == "statement"]
    assert "Scaled dot-product attention with causal mask: S = QKᵀ/√D + M ∈ ℝ^(B×S×S)" in titles
    assert not [title for title in titles if re.search(r"[\\{}$⊤]|frac|\bsqrt|mathbb", title)]
    assert all(re.search("[A-Za-z]{3}", title) for title in titles)
