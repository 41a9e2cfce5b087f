"""Each measured claim of the notes leads to a card that shows the same numbers."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

import pytest

from tests.app.test_app import text, visit
from tests.support.sweeping import cases
from tracer.export.rows import NOTE_TITLES
from tracer.lessons.notes import claims
from tracer.lessons.notes.statements import rows

LINE = re.compile(r"(Measured on .*) \[→\xa0This claim, measured on ([\w-]+)\]\(notes\?([^)]*)\)")
"""A measured claim in a statement of a note."""


@pytest.mark.parametrize("note", cases(NOTE_TITLES, ("004",)))
def test_a_measured_claim_is_shown_where_its_link_leads(note):
    found = LINE.findall(text(visit("notes", note=note)))
    made = [place for row in rows(note) for place in row.where if place.startswith("claim ")]
    assert len(found) == len(made)
    for measured, run, asked in dict.fromkeys(found):
        place = dict(parse_qsl(asked))
        assert place["of"] == run
        page = text(visit("notes", **place))
        assert measured in page, (place, measured)
        assert all(row.text in page for row in claims.statements(place["claim"]) if row.run == run)


def test_a_claim_that_there_is_not_is_quoted():
    page = visit("notes", note="claims", of="vit", claim="farther")
    assert "This page has no claim 'farther', expected one from" in page.warning[0].value
