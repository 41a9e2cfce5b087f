"""Every model on every page, with the inputs it takes, its answer in its own form."""

import re

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

import app
from pages.state import session
from pages.state.view import FIRST_MODEL
from pages.state.visitor import Visitor
from pages.ui import screen, texts
from tests.app.test_app import PAGES, SECONDS, film_of, picture, text, upload
from tests.support.sweeping import cases
from tracer import models

TEXT = [name for name in models.names() if models.takes(name) == ("text",)]


def open_model(model: str, page: str = "pages/overview.py") -> AppTest:
    at = AppTest.from_file(app.__file__, default_timeout=SECONDS)
    at.session_state["model"] = model
    at.run()
    if page != "pages/overview.py":
        at.switch_page(page).run()
    assert not at.exception
    return at


def test_models_stand_in_the_order_in_which_they_are_taught():
    course = tuple(models.COURSE)
    assert models.names()[: len(course)] == course, "a model that COURSE names is gone"
    assert models.names()[0] == FIRST_MODEL
    assert open_model("nanogpt").sidebar.selectbox[0].options[: len(models.COURSE)] == list(models.COURSE)
    assert [model["name"] for model in models.describe()][: len(models.COURSE)] == list(models.COURSE)


@pytest.mark.parametrize("model", models.COURSE)
def test_what_goes_in_and_comes_out_is_said_shortly_and_as_the_model_takes_it(model):
    given, _, answer = models.in_and_out(model).partition(" → ")
    assert answer and len(given + answer) < 90
    assert not re.search("CLS|encoder|decoder|token|logits", given + answer)
    pictures = re.search("photo|scene|surface", given) is not None
    assert pictures == ("image" in models.takes(model))
    assert pictures or "text" in given


def test_a_model_that_the_course_does_not_have_stands_at_the_end(monkeypatch):
    assert models.in_course_order({"b", "a", "mae", "vit"}) == ("vit", "mae", "a", "b")
    assert set(models.names()) == set(models.in_course_order(models.names()))
    monkeypatch.setattr(models, "COURSE", {})
    assert models.in_and_out("vit") == models.summary("vit")


@pytest.mark.parametrize("model", cases(models.names(), ("vit-text", "segmenter")))
def test_every_model_opens_on_every_page(model):
    for page in PAGES:
        at = open_model(model, page)
        assert not at.error and at.title, page
        assert "can’t be read" not in text(at)


def test_a_text_of_ones_own_is_run_and_kept_on_all_pages():
    at = open_model("nanogpt")
    at.text_area[0].set_value("To be, or not").run()
    assert not at.exception and not at.error
    assert at.session_state["visitor"].run().words == tuple("To be, or not")
    at.switch_page("pages/mask.py").run()
    assert len(at.main.select_slider[0].options) == len("To be, or not")
    assert at.text_area[0].value == "To be, or not"


def test_a_text_that_the_model_cannot_read_is_refused_in_a_sentence():
    at = open_model("nanogpt")
    at.text_area[0].set_value("naïve").run()
    assert not at.exception
    assert len(at.error) == 1 and "'ï'" in at.error[0].value


@pytest.mark.parametrize("model", TEXT)
def test_a_photo_for_a_model_of_text_is_refused_and_nothing_is_lost(model):
    at = open_model(model)
    before = text(at)
    upload(at, picture(), "cat.jpg")
    assert f"{model} takes no photo" in at.error[0].value
    assert text(at).startswith(before[:40])


def test_samples_suit_the_model():
    assert open_model("mae").pills[0].options[0] == "scratch"
    assert open_model("segmenter").pills[0].options[0] == "scene"
    at = open_model("vit")
    at.selectbox[0].set_value("mae").run()
    assert not at.exception and at.pills[0].value == "scratch"


@pytest.mark.parametrize("model", ["vit", "vit-note"])
def test_a_sample_that_is_none_of_the_classes_is_said_to_be_none(model):
    at = open_model(model)
    assert "none of the classes" not in text(at)
    at.pills[0].set_value("astronaut").run()
    assert not at.exception
    assert ("This photo shows none of the classes that the model knows" in text(at)) == (model == "vit")


KINDS = {
    "sample": lambda at: at,
    "text": lambda at: at.text_area[0].set_value(TEXTS[at.session_state["model"]]).run() if at.text_area else at,
    "photo": lambda at: upload(at, picture(), "mine.jpg"),
}
TEXTS = {"nanogpt": "To be, or not", "transformer": "abc", "vit-text": "a large red circle", "clip": "a red circle"}


ALWAYS = {("vit", "photo"), ("nanogpt", "text"), ("vit-text", "sample")}


@pytest.mark.parametrize(
    ("first", "kind"), cases([(first, kind) for first in ("vit", "nanogpt", "vit-text") for kind in KINDS], ALWAYS)
)
def test_any_model_can_follow_any_other_and_what_was_given_comes_back(first, kind):
    at = KINDS[kind](open_model(first))
    given = at.session_state["visitor"].user_input
    for other in (*models.names(), first):
        at.selectbox[0].set_value(other).run()
        assert not at.exception, other
        assert not at.error or (kind == "photo" and "takes no photo" in at.error[0].value), other
    back = at.session_state["visitor"].user_input
    assert (back.kind, back.name, back.text) == (given.kind, given.name, given.text)
    assert not at.text_area or at.text_area[0].value == (given.text or "")


def test_a_widget_of_the_model_that_was_left_may_speak_late():
    at = open_model("nanogpt")
    at.selectbox[0].set_value("vit").run()
    at.pills[0].set_value("bird")
    at.selectbox[0].set_value("nanogpt").run()
    assert not at.exception and not at.error


@pytest.mark.parametrize("model", cases(("vit", "vit-text", "segmenter", "clip", "mae"), ("vit", "clip")))
def test_a_model_of_drawings_that_is_shown_a_photo_says_what_it_learned_from(model):
    said = f"{model} was {models.origin(model)}"
    at = open_model(model)
    assert not at.warning
    upload(at, picture(), "mine.jpg")
    drawn = "drawn" in models.card(model)["data"] or model == "mae"
    assert drawn == (model != "vit") and [said in warning.value for warning in at.warning] == [True] * drawn


def test_bold_letters_that_are_sizes_too_are_told_apart_in_the_legend():
    said = "\n\n".join(element.value for element in open_model("vit").sidebar.markdown)
    assert "Bold letters are tensors, not sizes: **H**, **W**, **P**, **K**." in said
    said = "\n\n".join(element.value for element in open_model("nanogpt").sidebar.markdown)
    assert "not sizes: **V**." in said


@pytest.mark.parametrize("model", cases(models.names(), ("vit-note", "nanogpt", "clip")))
def test_the_overview_says_of_every_model_what_it_is_and_what_it_learned(model):
    at = open_model(model)
    (said,) = [one.value for one in (*at.info, *at.markdown) if one.value.startswith(models.summary(model)[:30])]
    assert ("It has learned nothing" in said) == (models.card(model) is None)


def test_random_weights_are_said_before_anything_they_answer():
    at = open_model("vit-note")
    assert film_of(at)["beats"][-1]["title"].startswith("What random weights say: ")
    assert any("It has learned nothing" in element.value for element in at.info)


def test_the_legend_leaves_out_the_sizes_that_a_run_does_not_have():
    assert "reach" not in text(open_model("transformer"))
    run = models.load("transformer", positions="relative").trace()
    assert "R" in [size.name for size in run.symbols]


def test_the_least_certain_place_is_named_and_fill_tokens_only_where_they_are():
    at = open_model("transformer")
    assert "The least certain, “" in text(at) and "too short" not in text(at)
    at.sidebar.text_area[0].set_value("abc").run()
    assert "too short is padded with “·”" in text(at)


def test_what_goes_in_and_what_comes_out_stand_in_the_film():
    film = film_of(open_model("transformer"))
    assert "".join(mark for _, mark, *_ in film["streams"][0]["lanes"]) == "reverse␣this␣one"
    assert "".join(film["answer"]["tokens"]) == "eno␣siht␣esrever"


def test_the_address_carries_the_model_and_choosing_changes_it():
    at = AppTest.from_file(app.__file__, default_timeout=SECONDS)
    at.query_params["model"] = "nanogpt"
    at.run()
    assert not at.exception and at.sidebar.selectbox[0].value == "nanogpt"
    assert "".join(at.session_state["visitor"].run().words).startswith("ROMEO")
    at.selectbox[0].set_value("transformer").run()
    assert at.query_params["model"] in ("transformer", ["transformer"])


def test_a_bad_model_in_the_address_is_a_sentence():
    at = AppTest.from_file(app.__file__, default_timeout=SECONDS)
    at.query_params["model"] = "vitt"
    at.run()
    assert not at.exception and "did you mean 'vit'?" in at.error[0].value
    assert at.sidebar.selectbox[0].value == "vit" and at.title


def test_the_box_follows_a_saved_run_and_comes_back(tmp_path):
    at = open_model("transformer")
    at.session_state["visitor"].run().save(path := tmp_path / "run.safetensors")
    other = upload(open_model("segmenter"), path.read_bytes(), "run.safetensors")
    assert other.sidebar.selectbox[0].value == "transformer" and other.sidebar.selectbox[0].disabled
    next(button for button in other.button if button.label == "Back to the sample").click().run()
    assert not other.exception and other.sidebar.selectbox[0].value == "segmenter"


def test_what_a_text_holds_is_quoted_and_not_rendered():
    at = open_model("nanogpt")
    at.text_area[0].set_value("$x^2$ **md**").run()
    assert "could not be run on your text" in at.error[0].value and "Your text" in text(at)
    assert r"\$x^2\$ \*\*md\*\*" in at.error[0].value and "its own sample" not in text(at)


def test_another_mask_than_the_trained_one_is_said_on_every_page():
    at = open_model("nanogpt", "pages/mask.py")
    at.segmented_control[0].set_value("bidirectional").run()
    for page in PAGES:
        at.switch_page(page).run()
        assert not at.exception and "the weights were trained with the **causal** mask" in at.warning[0].value, page
    at.switch_page("pages/mask.py").run()
    next(button for button in at.button if button.label == "Back to causal").click().run()
    assert not at.exception and not at.warning and at.segmented_control[0].value == "causal"


def test_a_model_of_one_channel_is_shown_a_grey_picture():
    at = upload(open_model("mae"), picture(), "mine.jpg")
    assert "1 for grey" in text(at)
    seen = session.traced_view(at.session_state["visitor"].run())
    assert np.asarray(seen.photo).std(axis=-1).max() > 0 and np.asarray(seen.image).std(axis=-1).max() == 0


@pytest.mark.parametrize("model", [name for name in models.names() if models.card(name)])
def test_a_card_says_how_good_the_model_is_in_figures_of_its_own(model):
    card = models.card(model)
    named = re.findall(r"{([^}]*)}", card["says"])
    assert named and all(isinstance(card[name], (int, float)) for name in named)
    said = texts.card(card)
    assert "{" not in said
    first = card[named[0]]
    digits = (f"{first:,}",) if isinstance(first, int) else (f"{first:.1%}"[:-1], f"{first:.2%}"[:-1])
    assert any(figure in said for figure in digits)


def test_with_another_mask_the_measured_figure_is_not_claimed(monkeypatch):
    state = {"model": "nanogpt", "visitor": (now := Visitor(options={"nanogpt": (("mask", "bidirectional"),)}))}
    monkeypatch.setattr(session.st, "session_state", state)
    assert "loss" not in texts.card(screen.card())
    now.options.clear()
    assert "1.443" in texts.card(screen.card())
