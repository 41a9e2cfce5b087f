"""Address of a page: it opens on the model and the input that it names, and is kept current."""

import string
from dataclasses import replace

import pytest
from hypothesis import given, strategies
from streamlit.testing.v1 import AppTest

import app
from pages.state.view import FIRST_MODEL, PLACES, View, option_names
from tests.app.test_app import SECONDS, visit

APP = app.__file__


@pytest.mark.parametrize(
    ("address", "sample", "said"),
    [
        ({"model": "vit", "sample": "bird"}, "bird", "bird"),
        ({"model": "nanogpt", "text": "To be, or not"}, "its own", "To be, or not"),
        ({"model": "vit", "text": "not for a model of photos"}, "horse", "horse"),
        ({"model": ""}, "horse", "horse"),
    ],
)
def test_an_address_opens_on_its_model_and_its_input(address, sample, said):
    at = AppTest.from_file(APP, default_timeout=SECONDS)
    for name, value in address.items():
        at.query_params[name] = value
    at.run()
    given = at.session_state["visitor"].user_input
    assert not at.exception and not at.error
    assert given.name == sample and said in (given.text or given.name)
    found = {name: value if isinstance(value, str) else value[0] for name, value in at.query_params.items()}
    kept = {name: found[name] for name in ("model", "sample", "text") if name in found}
    first = {"horse": {}, "its own": {"text": said}, "bird": {"sample": "bird"}}[sample]
    assert kept == {"model": address["model"] or "vit"} | first


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ({"sample": "zebra"}, "'zebra' is not a sample of vit, expected one of 'horse', 'dog'"),
        ({"model": "nanogpt", "sample": "zebra"}, "'zebra' is not a sample of nanogpt, expected none"),
        ({"model": "nanogpt", "text": "word " * 156}, "of the address has 780 characters, expected at most 500."),
        ({"model": "nanogpt", "text": "  "}, "'  ' contains only spaces"),
        (
            {"model": "nanogpt", "mask": "round"},
            "'round' is not a mask of nanogpt, expected one of 'causal', 'bidirectional'",
        ),
    ],
)
def test_an_input_that_is_none_is_named_and_the_sample_stays(address, said):
    at = AppTest.from_file(APP, default_timeout=SECONDS)
    for name, value in address.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception and said in at.error[0].value and at.session_state["visitor"].user_input.kind == "sample"


def test_a_photo_that_is_not_kept_is_named():
    at = AppTest.from_file(APP, default_timeout=SECONDS)
    at.query_params["file"] = "mine.png"
    at.run()
    assert "the photo 'mine.png', which a link cannot contain" in at.error[0].value


def test_the_first_model_and_the_place_on_another_page_are_not_in_an_address():
    at = AppTest.from_file(APP, default_timeout=SECONDS)
    at.query_params["step"] = "patches"
    at.run()
    assert not at.exception and dict(at.query_params) == {}


@pytest.mark.parametrize(("page", "name", "value"), [("trace", "step", "foo"), ("operations", "op", "9999")])
def test_a_step_that_the_run_lacks_is_named_and_nothing_is_lost(page, name, value):
    at = AppTest.from_file(APP, default_timeout=SECONDS).run()
    at.query_params[name] = value
    at.switch_page(f"pages/{page}.py")
    at.query_params[name] = value
    at.run()
    assert not at.exception and not at.error
    assert any(f"'{value}'" in box.value for box in at.warning)


def test_what_is_chosen_on_a_page_is_in_its_address_and_kept_on_the_way_to_others():
    at = AppTest.from_file(APP, default_timeout=SECONDS)
    at.query_params["model"], at.query_params["mask"] = "nanogpt", "bidirectional"
    at.switch_page("pages/mask.py").run()
    at.query_params["token"] = "3"
    at.run()
    said = lambda name: found if isinstance(found := at.query_params[name], str) else found[0]  # noqa: E731
    assert not at.exception and at.main.select_slider[0].value == 3 and said("mask") == "bidirectional"
    at.main.select_slider[0].set_value(2).run()
    assert said("token") == "2"
    at.switch_page("pages/trace.py").run()
    at.switch_page("pages/mask.py").run()
    assert at.main.select_slider[0].value == 2 and said("token") == "2"
    at.query_params["token"] = "777"
    at.run()
    assert "This page has no token '777', expected one from 0 to" in at.main.warning[-1].value


@pytest.mark.parametrize(
    ("page", "places", "expected"),
    [
        ("attention", {"head": "99"}, "0 to 3 or 'mean' or 'rollout'."),
        ("attention", {"block": "zz"}, "1 to 6."),
        ("attention", {"query": "65"}, "0 to 64."),
        ("attention", {"scale": "cubic"}, "'linear' or 'log'."),
        ("overview", {"query": "65"}, "0 to 64."),
        ("overview", {"query": "0.65"}, "0.0 to 0.64."),
        ("overview", {"inside": "block9.norm1"}, "one from block1.norm1 to block6.mlp.residual."),
        ("mask", {"query": "-1"}, "0 to 64."),
        ("mask", {"head": "4"}, "0 to 3."),
        ("mask", {"block": "7"}, "1 to 6."),
        ("operations", {"open": "block1"}, "numbers of modules from 0 to 18, such as 'modules_0-18'."),
        ("operations", {"open": "modules_19"}, "numbers of modules from 0 to 18, such as 'modules_0-18'."),
    ],
)
def test_a_wrong_place_in_an_address_is_quoted(page, places, expected):
    at = visit(page, **places)
    ((name, value),) = places.items()
    (said,) = [one.value for one in at.main.warning]
    assert said.startswith(f"This page has no {name.replace('inside', 'step')} '{value}', expected ") and said.endswith(
        expected
    )


def test_right_places_in_an_address_are_not_quoted():
    assert not visit("attention", head="rollout", block="6", query="64", scale="log").main.warning
    assert not visit("mask", query="64", head="3", block="6").main.warning
    assert not visit("operations", open="modules_0-3.18").main.warning
    assert not visit("operations", open="ops_99").main.warning  # of another zoom


WORDS = strategies.text(string.ascii_letters + " ,;=()&?", min_size=1, max_size=8)
CHANGES = strategies.sampled_from(("position=off", "block1.attention.weights=drop_heads(1;2)", "image=hide(5,grey)"))


@given(
    page=strategies.sampled_from(sorted(PLACES)),
    model=strategies.sampled_from((None, "vit", "nanogpt", "hf:bert")),
    named=strategies.dictionaries(strategies.sampled_from(("file", "sample", "text")), WORDS),
    changes=strategies.lists(CHANGES, unique=True),
    data=strategies.data(),
)
def test_a_view_is_read_as_it_was_written(page, model, named, changes, data):
    own = option_names(model or FIRST_MODEL)
    options = data.draw(strategies.dictionaries(strategies.sampled_from(own), WORDS)) if own else {}
    place = data.draw(strategies.dictionaries(strategies.sampled_from(PLACES[page]), WORDS)) if PLACES[page] else {}
    view = View(model=model, options=options, changes=tuple(changes), **named).at(page, place)
    url = view.to_url()
    assert View.from_url(page, {name: [value] for name, value in url.items()}) == view
    one_by_one = {name: [value] for name, value in url.items()} | ({"change": changes} if changes else {})
    assert View.from_url(page, one_by_one) == view
    other = replace(view, place={}, model=model or FIRST_MODEL)
    assert "V" not in view.options or page != "tokens"  # there it is the size of the lesson's own vocabulary
    assert view.is_same_run(other) and not view.is_same_run(replace(other, changes=("norm=zero",)))
