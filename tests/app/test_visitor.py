"""State that pages keep of a visitor: one typed class, and widget keys that are named there."""

import ast
import weakref
from pathlib import Path

import pytest
from PIL import Image

from pages.state import visitor
from pages.state.visitor import Key, UserInput, Visitor

PAGES = sorted(path for path in (Path(__file__).resolve().parents[2] / "pages").rglob("*.py"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_page_names_a_key_of_the_session_itself(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("session_state"):
            assert not isinstance(node.slice, (ast.Constant, ast.JoinedStr)), ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "st.session_state.get":
            assert not isinstance(node.args[0], (ast.Constant, ast.JoinedStr)), ast.unparse(node)


@pytest.fixture
def state(monkeypatch) -> dict:
    state: dict = {}
    monkeypatch.setattr(visitor.st, "session_state", state)
    return state


def test_a_session_has_one_visitor(state):
    assert visitor.new() and visitor.visitor() is visitor.visitor()
    assert visitor.model_name() == visitor.FIRST_MODEL and not visitor.new()


def test_a_choice_takes_a_refusal_away_and_an_own_photo_is_kept(state):
    now, photo = Visitor(refusal="no"), UserInput("photo", "a.png", Image.new("RGB", (2, 2)), own=True)
    now.choose(photo)
    now.choose(UserInput("sample", "horse"))
    assert (now.user_input.name, now.own, now.refusal) == ("horse", photo, "")


def test_a_model_is_asked_for_agreed_to_and_shown(state):
    now, cost = Visitor(), object()
    now.ask(cost)
    now.stay("too large")
    assert state[Key.MODEL] == "vit" and now.refusal == "too large" and now.pending_cost is cost
    now.agree("timm:x", "download")
    assert now.pending_cost is None and now.consents == {"timm:x": "download"} and state[Key.MODEL] == "timm:x"
    now.show("timm:x")
    assert (now.model, now.refusal) == ("timm:x", "")


def test_what_was_made_of_a_run_is_of_that_run_alone():
    now, run, other = Visitor(), type("Run", (), {})(), type("Run", (), {})()
    now.remember("paths", run, "both")
    assert now.recall("paths", run) == "both" and now.recall("paths", other) is None
    del run
    assert now.recall("paths", other) is None


def test_what_was_found_of_an_input_is_gone_with_it():
    now, first, second = Visitor(), UserInput("sample", "a"), UserInput("sample", "b")
    now.results_of("masked", first)["key"] = 1
    assert now.results_of("masked", first) == {"key": 1} and now.results_of("masked", second) == {}


def test_a_photo_that_was_left_is_held_by_nothing_that_was_made_of_it(state):
    now, photo = Visitor(), UserInput("photo", "a.png", Image.new("RGB", (2, 2)))
    left, run = weakref.ref(photo), type("Run", (), {})()
    now.choose(photo)
    now.hold(photo, ("vit", ()), run)
    now.results_of("moved", photo)["token"] = 1
    assert now.current.user_input() is photo and now.results_of("moved", photo)
    now.choose(UserInput("sample", "horse"))
    del photo
    assert left() is None and now.run() is run


def test_options_are_sorted_and_of_each_model():
    now = Visitor()
    now.option("nanogpt", "mask", "causal")
    now.option("nanogpt", "gelu", "exact")
    assert now.options == {"nanogpt": (("gelu", "exact"), ("mask", "causal"))}


def test_a_place_is_said_as_addresses_say_it():
    now = Visitor(step="logits", op=7)
    assert (now.place("step"), now.place("op")) == ("logits", "7")
    now.leave("op")
    now.leave("zoom")
    assert (now.place("step"), now.place("op")) == ("logits", None)
