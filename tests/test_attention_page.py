"""The Attention page without a browser: what it gets to draw from, and what it says around it."""

from streamlit.testing.v1 import AppTest
from test_app import picture, upload
from test_maps import unpacked
from test_models_in_app import chosen

from tracer.figures import maps


def test_the_claims_of_the_texts_are_measured_live_for_the_vit():
    heading = "What the texts say of attention, in numbers"
    at = chosen("vit", "pages/attention.py")
    first = next(element.value for element in at.markdown if "soft dictionary lookup" in element.value)
    assert heading in [element.value for element in at.subheader] and "equivariant, and not invariant" in first
    assert "“Vision Transformer - Basics”" in first and "note 00" not in first
    assert "with all scores × 10 and" in first and "% of the largest score" in first
    upload(at, picture(seed=5), "mine.jpg")
    assert next(element.value for element in at.markdown if "soft dictionary lookup" in element.value) != first
    assert heading not in [element.value for element in chosen("nanogpt", "pages/attention.py").subheader]


def drawn(at: AppTest) -> dict:
    """The header of what the browser gets to draw attention from."""
    (data,) = [part.proto.bytes for part in at.get("bidi_component") if part.proto.component_name == "attention_map"]
    return unpacked(data)[0]


def test_each_tower_has_its_own_attention_over_the_photo_or_its_tokens():
    at = chosen("mae", "pages/attention.py")
    visible = list(at.session_state["held"][2].result["visible"])
    assert at.segmented_control[0].options == ["encoder", "decoder"]
    shown = drawn(at)
    assert (shown["part"], shown["queries"], shown["photo"]) == ("encoder", len(visible), [64, 64])
    assert [patch for patch, token in enumerate(shown["tokens"]) if token is not None] == visible
    assert sorted([*visible, *shown["unseen"]]) == list(range(64))
    at.segmented_control[0].set_value("decoder").run()
    assert not at.exception and drawn(at)["part"] == "decoder" and drawn(at)["tokens"] == list(range(64))
    assert drawn(at)["unseen"] == shown["unseen"]
    at = chosen("clip", "pages/attention.py")
    assert drawn(at)["part"] == "image" and "photo" in drawn(at)
    assert at.title[0].value == "What does a patch attend to?"
    at.segmented_control[0].set_value("text").run()
    assert not at.exception and drawn(at)["part"] == "text" and drawn(at)["kind"] == "causal"
    assert at.title[0].value == "What does a token attend to?"


def test_maps_too_many_for_one_message_are_sent_block_by_block(monkeypatch):
    monkeypatch.setattr(maps, "MAX_BYTES", 4 * 65 * 65 * 4)
    shown = drawn(chosen("vit", "pages/attention.py"))
    assert (shown["layers"], shown["choices"], shown["views"]) == ([5], [0, 1, 2, 3, 4, 5], ["0", "1", "2", "3"])
    assert shown["rollout"]


def test_of_random_weights_the_attention_page_says_so_above_the_map():
    at = chosen("vit-note", "pages/attention.py")
    (said,) = [element.value for element in at.main.info]
    assert said.startswith("These weights are random numbers that learned nothing")
    assert drawn(at)["heads"] == 1
    assert not chosen("vit", "pages/attention.py").main.info
