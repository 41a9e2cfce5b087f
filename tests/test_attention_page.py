"""The Attention page without a browser: what it gets to draw from, and what it says around it."""

import re

from streamlit.testing.v1 import AppTest
from test_app import picture, upload
from test_maps import unpacked
from test_models_in_app import chosen

from pages.shared import claims as words
from tracer.attention.claims import SHARPNESS, Measured
from tracer.figures import maps

HEADING = "What the texts say of attention, and whether it holds here"


def said_of_claims(at: AppTest) -> list[str]:
    """The three claims as the page has them."""
    return [element.value for element in at.markdown if "*Holds here*" in element.value]


def test_the_claims_of_the_texts_are_measured_live_for_the_vit():
    at = chosen("vit", "pages/attention.py")
    lookup, symmetry, order = first = said_of_claims(at)
    assert HEADING in [element.value for element in at.header]
    assert "“Vision Transformer - Basics”" in lookup and "note 00" not in "".join(first)
    largest = at.session_state["visitor"].run().attention(0).amax(-1).mean()
    assert f"gets {100 * float(largest):.1f} % of the weight" in lookup and "if all 65 keys got the same" in lookup
    assert lookup.endswith("*Holds here*: **yes**.")
    assert symmetry.endswith("*Holds here*: for the scores, **yes**; for the attention weights, **no**.")
    assert "as “invariant” (nothing changes), **no**; as “equivariant”" in order and order.count("**yes**") == 2
    upload(at, picture(seed=5), "mine.jpg")
    assert all(now != before for now, before in zip(said_of_claims(at), first, strict=True))
    assert HEADING not in [element.value for element in chosen("nanogpt", "pages/attention.py").header]


def test_whether_a_claim_holds_follows_from_what_was_measured():
    none = Measured((0.5, 0.7, 0.9), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    far = Measured((1.0, 1.0, 1.0), 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)

    def verdicts(found: Measured) -> list[str]:
        texts = [
            words._lookup(found, dict(zip(SHARPNESS, found.lookup, strict=True)), 4),
            words._symmetry(found),
            words._order(found),
        ]
        return [re.findall(r"\*\*(yes|no)\*\*", text) for text in texts]

    assert verdicts(none) == [["yes"], ["yes", "yes"], ["yes", "yes", "no"]]
    assert verdicts(far) == [["no"], ["no", "no"], ["no", "no", "yes"]]
    assert verdicts(none._replace(mixture=1e-4)) == [["no"], ["yes", "yes"], ["yes", "yes", "no"]]
    assert "not equal, they differ by 10.0 %" in words._symmetry(far) and "equal, in every value" in words._symmetry(
        none
    )


def drawn(at: AppTest) -> dict:
    """The header of what the browser gets to draw attention from."""
    (data,) = [part.proto.bytes for part in at.get("bidi_component") if part.proto.component_name == "attention_map"]
    return unpacked(data[4 + int.from_bytes(data[:4], "little") :])[0]  # below the facts of the visitor


def test_each_tower_has_its_own_attention_over_the_photo_or_its_tokens():
    at = chosen("mae", "pages/attention.py")
    visible = list(at.session_state["visitor"].run().result["visible"])
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
    band, said = [element.value for element in at.main.info]
    assert band.startswith("**Random weights:** there are no trained ones of vit-note.")
    assert said.startswith("With random weights it is chance which token gets more than another.")
    assert drawn(at)["heads"] == 1
    assert not chosen("vit", "pages/attention.py").main.info
