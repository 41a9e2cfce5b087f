"""Video, sound, series and points on the page Tokens: drawings, texts and refusals."""

import json

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from tests.app.pages.test_tokens_page import visit
from tests.app.test_app import text
from tests.inputs.test_sounds import BAD, TONE, pcm
from tracer.inputs.audio import SYNTHETIC_SOUNDS, lesson
from tracer.inputs.synthetic import SERIES
from tracer.lessons.tokenization import points, series, sound


def own(at: AppTest, data: bytes) -> AppTest:
    """Return the page after a file was uploaded as one's own sound."""
    uploader = next(each for each in at.file_uploader if "WAV" in each.label)
    uploader.set_value(("secret.wav", data, "audio/wav")).run()
    assert not at.exception
    return at


@pytest.mark.parametrize(("kind", "way"), [("video", "tubelets"), ("series", "patches"), ("points", "codes")])
def test_each_kind_is_shown_with_what_texts_say_otherwise(kind, way):
    at = visit(kind=kind, way=way, token="7")
    said = text(at)
    assert not at.warning and not at.error and "refuted" not in said and "not executed" not in said
    assert "token 8" in said or "value 8" in said
    assert "Where the notes differ" in said and at.select_slider[0].value == 7


def test_the_facts_of_the_slips_are_those_of_the_run():
    assert "nine other sounds" in sound.SLIPS[0] and len(lesson()) == 9
    assert "six other clouds" in points.SLIPS[0]


def test_a_tubelet_holds_the_place_of_the_patch():
    said = text(visit(kind="video", token="66", tau="4"))
    assert "token 67 of n = 96 is one place of frame 6." in said
    assert "token 19 of n = 24 is that place in frames 5 to 8." in said


def test_a_sound_of_ones_own_is_heard_and_goes_into_no_address():
    at = visit(kind="sound", way="codes")
    chirp = sound.codes(SYNTHETIC_SOUNDS["chirp"](), 32)
    assert at.code[0].value == " ".join(map(str, chirp))
    own(at, pcm(np.tile(TONE, 2)))
    assert "The sound is your file" in text(at)
    assert len(at.code[0].value.split()) == (2 * len(TONE) - sound.WINDOW) // sound.HOP + 1
    assert "secret" not in json.dumps(dict(at.query_params)) and "refuted" not in text(at)
    for name in ("floats", "4 GB promised", "text"):
        data, refused = BAD[name]
        assert refused in own(at, data).warning[0].value and "n = 63" in text(at)


def test_what_bins_lose_is_said():
    said = text(visit(kind="series", series="one outlier", V="32"))
    found = series.loss(SERIES["one outlier"](), 32)
    assert f"off by up to {found.within:.2g}; half a bin is {found.half:.2g}." in said
    assert f"1 value lies beyond the last bin, off by up to {found.largest:.2g}." in said


def test_what_an_address_has_wrong_is_quoted():
    at = visit(kind="points", cloud="donut", token="999")
    assert "'donut', expected one from torus to cube" in at.warning[0].value
    assert "'999', expected one from 0 to 31" in at.warning[1].value
