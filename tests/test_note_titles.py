"""The names of the texts behind the project."""

from tracer.common.notes import spelled


def test_a_note_is_called_by_its_title():
    assert spelled("(He et al. 2022; note 001)") == "(He et al. 2022; the note “Vision Transformers”)"
    assert spelled("note 000, part I") == "the note “Transformer and ViT dataflow notation”, part I"
    assert spelled("note 999, footnote 001x") == "note 999, footnote 001x"
