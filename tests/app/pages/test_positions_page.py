"""Positions page: every kind, its pictures within bounds, its texts, and its parameters in the address."""

import time

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from pages.sections import position_encodings
from tests.app.test_app import text, visit
from tests.lessons.test_positions import KINDS
from tests.support.messages import unpack
from tests.support.sweeping import cases
from tracer.figures import envelope
from tracer.figures.tensors import Panel, build_panels
from tracer.lessons.notes.statements import rows


def panels(at: AppTest) -> list[list[dict]]:
    """Return the texts of each group of panels on its pictures."""
    found = [part.proto.bytes for part in at.get("bidi_component") if part.proto.component_name == "panels"]
    return [unpack(data)["panels"] for data in found]


@pytest.mark.parametrize("kind", cases(KINDS, ("sinusoidal", "alibi")))
def test_every_kind_has_its_pictures_its_terms_and_its_lines(kind):
    at = visit("positions", kind=kind, causal="on", length="8", width="16", heads="2", head="1")
    table, terms, order = panels(at)
    added = kind in ("sinusoidal", "learned")
    assert len(table) == (1 if kind == "alibi" else 2) and len(terms) == (6 if added else 4)
    assert terms[-1]["title"] == "the scores S that ran" and len({tuple(panel["ends"]) for panel in terms}) == 1
    assert order[0]["cells"].shape == (4, 8)
    said = text(at)
    verified = said.count("verified on this run and 3 others, largest difference")
    assert (
        verified >= 2
        and "refuted" not in said
        and f"**{verified}** lines, of which **{verified}** are verified" in said
    )
    assert at.main.expander[0].label == "Their equations, shapes and verdicts"
    alone = "The score, with the same token at every position, depends on the distance i − j **alone**"
    assert (alone in said) == (not added)
    found = at.table[0].value
    assert list(found["outputs"]) == ["permuted with the tokens", *["not the same: the order mattered"] * 3]


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ({"model": "vit"}, "learned"),
        ({"model": "nanogpt"}, "learned"),
        ({"model": "llama"}, "rotary"),
        ({"model": "transformer"}, "sinusoidal"),
        ({"model": "transformer", "positions": "relative"}, "relative"),
        ({"model": "llama", "kind": "alibi"}, "alibi"),
    ],
)
def test_it_begins_with_the_positions_of_the_model_that_is_chosen(address, kind, monkeypatch):
    monkeypatch.setattr(position_encodings, "lesson", lambda kind, sizes, head: None)
    assert visit("positions", **address).main.button_group[0].value == kind


def test_slips_are_told_where_they_matter():
    assert "adds all kinds of positions to X; relative ones are not added there" in text(
        visit("positions", kind="relative")
    )
    said = text(visit("positions", kind="sinusoidal"))
    assert "multiplies embeddings by √D before this sum" in said and "list of 65 rows" in said


@pytest.mark.sweep
def test_the_table_on_the_grid_is_that_of_the_model_on_screen():
    at = visit("positions", model="vit-text")
    assert "the positions of vit-text" in "".join(header.value for header in at.header) and "list of 64 rows" in text(
        at
    )
    assert "the positions of vit" in "".join(header.value for header in visit("positions", model="nanogpt").header)


def test_a_place_that_is_none_is_quoted_and_another_number_of_heads_begins_with_the_first():
    at = visit("positions", kind="waves", length="7", head="3")
    assert ["'waves'" in at.warning[0].value, "'7'" in at.warning[1].value] == [True, True]
    heads = next(slider for slider in at.select_slider if slider.label == "Heads h")
    heads.set_value(2).run()
    assert not at.exception and len(at.warning) == 2
    assert at.query_params["head"] in ("0", ["0"]) and at.query_params["heads"] in ("2", ["2"])


def test_what_is_drawn_is_kept_for_all():
    at = visit("positions", kind="rotary")
    began = time.process_time()
    at.run()
    assert time.process_time() - began < 1  # of a second, the test's own reading of the page included


def test_panels_share_a_scale_or_have_their_own():
    sent = build_panels(
        [Panel("a", np.array([[1.0, 3]]), "r", "c"), Panel("b", np.array([[1.0, -np.inf]]), "r", "c", edge=4)]
    )
    first, second = unpack(envelope.pack(sent))["panels"]
    assert (first["ends"], first["scale"], second["ends"], second["scale"]) == (
        [1, 3],
        "sequential",
        [-4, 4],
        "diverging",
    )
    assert first["first"] == [1, 1]  # rows and columns count from 1 on screen
    assert (first["cells"].tolist(), second["cells"].tolist()) == ([[1, 3]], [[1, -np.inf]])
    assert sent["colours"].keys() == {"sequential", "diverging"}  # no other is drawn in


def test_statements_of_the_notes_lead_to_kinds_that_are_there():
    places = [place.split()[2:] for row in rows("004") for place in row.where if place.startswith("page positions")]
    assert [place[0].removeprefix("kind=") for place in places] == ["sinusoidal", "learned", "relative", "sinusoidal"]
