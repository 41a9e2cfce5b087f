"""Attention page without a browser: the data that it draws from, and the texts around it."""

from streamlit.testing.v1 import AppTest

from tests.app.test_models_in_app import open_model
from tests.support.messages import component_bytes, of_page
from tracer.figures import attention_maps


def test_the_claims_are_one_link_away():
    at = open_model("nanogpt", "pages/attention.py")
    links = [element.proto for element in at.get("page_link")]
    assert any(link.query_string == "model=nanogpt&note=claims" for link in links)


def map_header(at: AppTest) -> dict:
    """Return the header of the browser's attention data."""
    return of_page(component_bytes(at, "attention_map"))[1]


def test_each_tower_has_its_own_attention_over_the_photo_or_its_tokens():
    at = open_model("mae", "pages/attention.py")
    visible = list(at.session_state["visitor"].run().result["visible"])
    assert at.segmented_control[0].options == ["encoder", "decoder"]
    shown = map_header(at)
    assert (shown["part"], shown["queries"], shown["photo"]) == ("encoder", len(visible), [64, 64])
    assert [patch for patch, token in enumerate(shown["tokens"]) if token is not None] == visible
    assert sorted([*visible, *shown["unseen"]]) == list(range(64))
    at.segmented_control[0].set_value("decoder").run()
    assert not at.exception and map_header(at)["part"] == "decoder" and map_header(at)["tokens"] == list(range(64))
    assert map_header(at)["unseen"] == shown["unseen"]
    at = open_model("clip", "pages/attention.py")
    assert map_header(at)["part"] == "image" and "photo" in map_header(at)
    assert at.title[0].value == "What does a patch attend to?"
    at.segmented_control[0].set_value("text").run()
    assert not at.exception and map_header(at)["part"] == "text" and map_header(at)["kind"] == "causal"
    assert at.title[0].value == "What does a token attend to?"


def test_maps_too_many_for_one_message_are_sent_block_by_block(monkeypatch):
    monkeypatch.setattr(attention_maps, "MAX_BYTES", 4 * 65 * 65 * 4)
    shown = map_header(open_model("vit", "pages/attention.py"))
    assert (shown["layers"], shown["choices"], shown["views"]) == ([5], [0, 1, 2, 3, 4, 5], ["0", "1", "2", "3"])
    assert shown["rollout"].shape == (65, 65)


def test_of_random_weights_the_attention_page_says_so_above_the_map():
    at = open_model("vit-note", "pages/attention.py")
    band, said = [element.value for element in at.main.info]
    assert band.startswith("**Random weights:** no trained weights exist for vit-note.")
    assert said.startswith("With random weights, which token gets more attention is a matter of chance.")
    assert map_header(at)["heads"] == 1
    assert not open_model("vit", "pages/attention.py").main.info


def test_attention_of_any_length_has_a_map_of_one_query(monkeypatch):
    monkeypatch.setattr(attention_maps, "ONE_VIEW", 1000)  # as a run of more tokens than one message takes
    at = open_model("vit", "pages/attention.py")
    assert not at.exception
    assert "shows one query at a time" in at.info[0].value and "65 queries × 65 keys" in at.info[0].value
    trace = at.session_state["visitor"].run()
    weights = trace.attention(layer=5, query=0)[0].mean(0)
    most = int(weights.argmax())
    listed = next(each.value for each in at.main.markdown if each.value.startswith("- patch"))
    assert listed.startswith(f"- patch {most} ") and f"{100 * weights[most]:.1f}" in listed
    at.main.selectbox[1].set_value("2").run()
    assert not at.exception and trace.attention(layer=5, head=2, query=0)[0].argmax() > 0
