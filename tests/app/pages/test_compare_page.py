"""Compare page: each kind of second run, its address, and its refusals."""

from dataclasses import replace

import pytest

import tracer
from tests.app.test_app import text, visit
from tests.app.test_models_in_app import open_model
from tests.support.handmade import sample
from tests.support.messages import component_bytes, of_page


def comparison_header(at) -> dict:
    """Return the facts that the page sent of its comparison, and the header of its data."""
    return of_page(component_bytes(at, "comparison"))[1]


def test_another_sample_stands_beside_the_visitors_at_first():
    at = visit("compare")
    model = tracer.load("vit")
    comparison = tracer.compare(model.trace(), at.session_state["visitor"].run())
    assert comparison.equal  # the left one is the run on screen
    facts = comparison_header(at)
    assert facts["first"] == 0 and len(facts["rows"]) == len(comparison.rows)
    assert "**Left: vit**, horse" in text(at) and "**Right: vit**, dog" in text(at)


def test_the_same_run_with_a_change_opens_at_its_line():
    line = "block3.attention.weights"
    at = visit("compare", beside="change", line=line, other="drop_heads(1)")
    facts = comparison_header(at)
    assert facts["rows"][facts["first"]]["id"] == f"{line}.changed"
    assert "with Block 3: head 2 off" in text(at).replace("\\", "")


def test_a_changed_run_stands_beside_the_run_without_its_changes():
    line = "block3.attention.weights"
    at = visit("compare", change=f"{line}=drop_heads(1)")
    facts = comparison_header(at)
    assert (
        facts["rows"][facts["first"]]["id"] == f"{line}.changed" and facts["rows"][facts["first"]]["alone"] == "right"
    )
    at.segmented_control[0].set_value("sample").run()
    assert not at.error and all(not row["alone"] for row in comparison_header(at)["rows"])  # both with the change


@pytest.mark.parametrize("model", ["nanogpt", "clip"])
def test_another_model_and_another_text(model):
    at = open_model(model, "pages/compare.py")
    for kind in ("model", "change"):
        at.segmented_control[0].set_value(kind).run()
        assert not at.exception and not at.error
        assert comparison_header(at)["first"] >= 0
    if model == "nanogpt":
        at.segmented_control[0].set_value("text").run()
        assert "Type a text" in text(at)
        at.main.text_input[0].set_value("To be, or not").run()
        assert (
            not at.error and comparison_header(at)["first"] >= 0 and "**Right: nanogpt**, “To be, or not”" in text(at)
        )
        at.main.text_input[0].set_value("ж").run()
        assert len(at.error) == 1 and "ж" in at.error[0].value


def test_a_saved_run_is_compared_with_the_run_on_screen(tmp_path):
    tracer.load("vit").trace().save(tmp_path / "same.safetensors")
    at = visit("compare", beside="saved")
    assert "Open a saved run" in text(at)
    data = (tmp_path / "same.safetensors").read_bytes()
    at.main.file_uploader[0].set_value(("same.safetensors", data, "application/octet-stream")).run()
    assert not at.exception and not at.error
    facts = comparison_header(at)
    assert facts["first"] == -1 and {row["relation"] for row in facts["rows"]} == {"identical"}


def test_a_run_without_steps_says_so(tmp_path):
    ops = tuple(replace(op, step=None) for op in sample().ops)
    sample(steps=(), ops=ops, returned=()).save(tmp_path / "bare.safetensors")
    at = visit("compare", beside="saved")
    at.sidebar.file_uploader[0].set_value(("bare.safetensors", (tmp_path / "bare.safetensors").read_bytes(), "")).run()
    assert not at.exception and "saved without steps" in text(at)


@pytest.mark.parametrize(("name", "value"), [("beside", "moon"), ("other", "moon"), ("step", "moon")])
def test_an_address_that_names_nothing_here_is_quoted(name, value):
    at = visit("compare", **{name: value})
    assert f"This page has no {name} 'moon', expected" in text(at)
    assert comparison_header(at)["first"] == 0
