"""Names of the texts behind the project."""

import re

import pytest

import tracer
from tracer import export
from tracer.export.rows import with_titles


def test_a_note_is_called_by_its_title():
    assert with_titles("(He et al. 2022; note 001)") == "(He et al. 2022; the note “Vision Transformers”)"
    assert with_titles("note 000, part I") == "the note “Transformer and ViT dataflow notation”, part I"
    assert with_titles("note 999, footnote 001x") == "note 999, footnote 001x"


@pytest.mark.parametrize("format", ["html", "markdown"])
def test_a_view_calls_a_note_by_its_title(format):
    shown = export.render(tracer.load("vit-note").trace(prove=False), format=format)
    assert "note “Vision Transformers” divides by" in shown and not re.search(r"[Nn]ote \d{3}", shown)
