"""Many photos on Attention: the sample photos, and a survey file, whose photos open as runs of their own."""

import json
import re

import numpy as np
import pytest

import tracer
from pages.state import session
from tests.app.pages.test_all_heads_in_app import markup
from tests.app.test_app import open_page, text, upload, visit
from tracer import survey
from tracer.attention.head_effects import head_effects
from tracer.figures.attention_maps import with_sign
from tracer.inputs.model_inputs import samples
from tracer.survey.rows import PhotoRows


@pytest.fixture(scope="module")
def rows():
    """Return rows of two sample photos under other names, and the text of the weights."""
    model, photos = tracer.load("vit"), samples("photos")
    measured = PhotoRows(model)
    return [
        row for name in ("deer", "cat") for row in measured.measure(photos[name](), f"{name}.jpg", name)
    ], model.weights


def file(rows, weights: str = "w") -> bytes:
    return survey.encode(rows, json.dumps({"model": "vit", "weights": weights}))


def numbers(at) -> dict[tuple[int, int], str]:
    """Return the number of each head, by its indices; on screen blocks and heads count from 1."""
    cells = re.findall(r'title="Block (\d+), head (\d+): (\S+) points', markup(at, "heads"))
    return {(int(block) - 1, int(head) - 1): number for block, head, number in cells}


def with_survey(data: bytes, name: str = "rows.parquet", model: str = "vit"):
    at = visit("attention", over="survey", model=model)
    next(each for each in at.file_uploader if each.label == "A survey").set_value((name, data, "")).run()
    assert not at.exception
    return at


def press_first(at):
    next(button for button in at.main.button if button.label.startswith("Open ")).click().run()
    assert not at.exception and not at.error
    return at


def test_the_sample_photos_have_the_mean_of_their_effects():
    at = visit("attention", model="segmenter", over="samples", cell="3.1")
    model, photos = tracer.load("segmenter"), [photo() for photo in samples("scenes").values()]
    changes = [head_effects(model, model.inputs(photo), model.trace(photo, prove=False)).change for photo in photos]
    mean = np.mean(changes, axis=0)
    shown = numbers(at)
    assert len(shown) == mean.size
    for cell, number in shown.items():
        assert float(number.replace("−", "-")) == pytest.approx(mean[cell], abs=0.02)
    assert 'aria-pressed="true"' in re.search(r'<button[^>]*title="Block 3, head 2:[^>]*>', markup(at, "heads"))[0]
    at.segmented_control(key="place statistic").set_value("spread").run()
    spread = numbers(at)[2, 1]
    assert float(spread) == pytest.approx(np.std(changes, axis=0)[2, 1], abs=0.02)
    last = list(samples("scenes"))[int(np.argmin([change[2, 1] for change in changes]))]
    press_first(at)
    assert at.session_state["visitor"].user_input.name == last
    assert (at.query_params["block"], at.query_params["head"]) == ("3", "1") and "over" not in at.query_params


def test_a_photo_of_a_survey_is_a_click_from_its_own_run(rows):
    measured, weights = rows
    at = with_survey(file(measured, weights))
    assert ": 2 photos, measured on vit" in text(at) and not at.error
    change = np.array([row["change"] for row in measured if row["row"] == "head"]).reshape(2, 6, 4)
    assert numbers(at) == {cell: with_sign(change.mean(0)[cell], 2) for cell in np.ndindex(6, 4)}
    row, head = np.unravel_index(np.abs(change.mean(0)).argmax(), (6, 4))
    press_first(at)
    least = ("deer.jpg", "cat.jpg")[int(change[:, row, head].argmin())]
    user_input = at.session_state["visitor"].user_input
    assert (user_input.name, user_input.photo.size) == (
        least,
        (32, 32),
    ) and "The survey recorded the same effects" in text(at)
    assert at.query_params["head"] == str(head)


def test_a_survey_that_says_otherwise_than_the_run_is_named(rows):
    measured = [row | {"change": row["change"] + 3} if row.get("head") == 1 else row for row in rows[0]]
    at = press_first(with_survey(file(measured), model="segmenter"))
    assert at.session_state["visitor"].model == "vit" and {"block", "head"} <= at.query_params.keys()
    assert "The survey recorded different effects on this photo: they differ by at most 3 points" in at.warning[0].value


def test_a_survey_is_opened_from_any_page(rows):
    at = upload(open_page(), file(rows[0]), "mine.parquet")
    assert at.title[0].value == "What does a patch attend to?" and r"mine\.parquet: 2 photos" in text(at)
    at = with_survey(b"hello", "words.parquet")
    reason = "'words.parquet' is not a survey: it is neither a Parquet nor an Arrow file"
    assert at.error[0].value == f"{reason}. {session.STAYS}"


def test_markup_of_a_survey_is_shown_as_it_is(rows):
    sign = "<img src=x>[a](http://b)"
    measured = [row | {"photo": sign + row["photo"], "label": sign, "answer": sign} for row in rows[0]]
    bad = {"photo": sign, "row": "unreadable", "problem": sign}
    at = with_survey(file([*measured, bad], sign), sign + ".parquet")
    drawn = [part.proto.json for part in at.get("bidi_component") if part.proto.component_name == "drawing"]
    assert any("&lt;img src=x&gt;" in markup for markup in drawn) and "<img src=x>" not in "".join(drawn)
    assert not re.search(r"(?<!\\)(<img|\[a\]|http:)", text(at)) and text(at).count(r"\<img src\=x\>") >= 3
