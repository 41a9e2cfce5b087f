"""Runs whose tokens a change may have moved: nothing of them lies on the photo, and a note says why."""

import pytest
import torch

from tracer.attention import places
from tracer.changes import changes_of, moves_tokens
from tracer.figures import attention_maps
from tracer.figures.film.storyboard import storyboard
from tracer.figures.handout import maps
from tracer.record import MOVED_TOKENS


@pytest.fixture(scope="module")
def shuffled_trace(vit):
    return vit.trace(change={"patches": "shuffle(0)"}, prove=False)


def test_a_run_of_shuffled_patches_is_not_laid_over_the_photo(shuffled_trace, plain):
    assert shuffled_trace.picture is None and not places(shuffled_trace) and MOVED_TOKENS in shuffled_trace.notes
    assert plain.picture is not None and MOVED_TOKENS not in plain.notes


def test_no_sentence_of_shuffled_patches_names_a_row_or_a_column_of_the_photo(shuffled_trace):
    names = attention_maps.names(shuffled_trace, "", shuffled_trace.attentions[0].keys)
    sentences = [beat.caption.sentence for beat in storyboard(shuffled_trace).beats]
    for sentence in (*names, *sentences, maps(shuffled_trace)):
        assert "row 1" not in sentence and ", column" not in sentence
    assert names[5] == "patch 5" and "the photo" not in maps(shuffled_trace)


@pytest.mark.parametrize(
    ("line", "change", "moved"),
    [
        ("position", "shuffle(1)", True),
        ("block1.residual1", ["scale(2)", "shuffle(0)"], True),
        ("patches", lambda x: x.flip(1), True),
        ("patches", torch.zeros(1), True),
        ("position", "shuffle_positions(0)", False),
        ("weights", "permute(0)", False),
        ("block1.attention.weights", "drop_heads(1)", False),
        ("parameter position", "shuffle(0)", False),
    ],
)
def test_tokens_move_with_an_order_that_is_drawn_and_with_what_is_not_known(line, change, moved):
    assert moves_tokens(changes_of({line: change})) is moved


def test_tokens_stay_with_another_run_whose_own_lie_on_the_photo(plain, shuffled_trace):
    assert not moves_tokens(changes_of({"patches": plain}))
    assert moves_tokens(changes_of({"patches": shuffled_trace}))
