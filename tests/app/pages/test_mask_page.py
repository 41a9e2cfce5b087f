"""Mask page: the mask is named, tokens are named alike, both proofs agree, and known results aren't computed again."""

import re

import pytest
import torch
from streamlit.testing.v1 import AppTest

import tracer
import tracer.attention.masks
from pages.jobs import run_cache
from pages.sections import mask_controls
from tests.app.test_app import text, visit
from tests.app.test_models_in_app import open_model
from tests.support.messages import component_bytes, of_page
from tests.support.sweeping import cases
from tracer import models
from tracer.attention import masks
from tracer.inputs.model_inputs import samples
from tracer.utils.text import scientific

OPEN_SENTENCE = "Nothing is masked, so every output may change, and every one did."
CLOSED_SENTENCE = "The mask predicts exactly these positions."


def verdicts(at: AppTest) -> list[str]:
    return [element.value for element in at.success]


def mask_header(at: AppTest) -> dict:
    """Return the header of the page's mask data."""
    return of_page(component_bytes(at, "mask"))[1]


def subheaders(at: AppTest) -> list[str]:
    return [element.value for element in at.header]


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [("nanogpt", "causal", CLOSED_SENTENCE), ("vit-text", "causal", CLOSED_SENTENCE), ("vit", "none", OPEN_SENTENCE)],
)
def test_the_mask_page_names_the_mask_and_both_proofs_agree(model, kind, said):
    at = open_model(model, "pages/mask.py")
    assert subheaders(at)[0] == f"The mask of this run: {kind}"
    assert verdicts(at) == [said]


TOWERS = ("clip", "image", "none"), ("clip", "text", "causal"), ("mae", "encoder", "none"), ("mae", "decoder", "none")


@pytest.mark.parametrize(("model", "tower", "kind"), cases(TOWERS, (TOWERS[1], TOWERS[3])))
def test_both_proofs_agree_on_each_tower(model, tower, kind):
    at = open_model(model, "pages/mask.py")
    at.segmented_control[0].set_value(tower).run()
    assert not at.exception and subheaders(at)[0] == f"The mask of this run: {kind}"
    assert verdicts(at) == [CLOSED_SENTENCE if kind == "causal" else OPEN_SENTENCE]
    assert f"Outputs of the {tower} tower that changed: token" in text(at)


def test_a_patch_that_the_encoder_never_saw_moves_nothing():
    at = open_model("mae", "pages/mask.py")
    at.segmented_control[0].set_value("decoder").run()
    seen = set(at.session_state["visitor"].run().result["visible"])
    at.main.select_slider[0].set_value(next(patch for patch in range(64) if patch not in seen)).run()
    assert not at.exception and verdicts(at) == ["So no output may change, and none did."]
    assert "that changed: none" in text(at)


def test_no_verdict_speaks_of_a_mask_where_no_pair_is_closed():
    (said,) = verdicts(
        open_model("transformer", "pages/mask.py")
    )  # its weights are so sharp that some tokens stand still
    assert "the mask" not in said and said.startswith("Nothing is masked. Tokens 4 to 5")


def test_why_tokens_stood_still_is_measured_in_the_run(monkeypatch):
    at = open_model("transformer", "pages/mask.py")
    trace, token = at.session_state["visitor"].run(), at.main.select_slider[0].value
    model, (said,) = models.load("transformer"), verdicts(at)
    still = sorted(set(range(16)) - set(masks.influence(model, model.inputs(), token).leaving))
    weights = trace.attention(0)[0]  # of the one block: before it, only the token itself has moved
    assert f"at most {scientific(float(weights[:, still, token].max()))} of their attention" in said
    assert said.endswith("In float32, 1 plus that number is 1.")
    monkeypatch.setattr(tracer.attention.masks, "largest_share", lambda *a, **k: 1e-6)  # enough to be seen
    (said,) = verdicts(open_model("transformer", "pages/mask.py"))
    assert said.endswith("could change too, but did not.")


@pytest.mark.parametrize(
    ("model", "mask", "given", "said"),
    [
        (
            "transformer",
            None,
            None,
            "trained with the bidirectional one. Compared with it, 15 of 16 tokens see fewer",
        ),
        (
            "nanogpt",
            None,
            "KING",
            "trained with the causal one. Compared with it, 3 of 4 tokens see more under the bidirectional mask.",
        ),
        ("nanogpt", "bidirectional", "K", "each token sees the same ones under the bidirectional mask."),
        ("vit-text", None, None, "63 of 75 tokens see more under the prefix mask; 74 of 75 tokens see more"),
    ],
)
def test_what_tokens_see_beside_training_is_counted(model, mask, given, said):
    at = open_model(model, "pages/mask.py")
    if given:
        at.text_area[0].set_value(given).run()
    if mask:
        at.segmented_control[0].set_value(mask).run()
    assert not at.exception and said in text(at) and "never saw" not in text(at)


@pytest.mark.parametrize("mask", ["causal", "prefix"])
def test_the_text_of_the_run_is_read_under_every_mask(mask):
    """Under another mask, the model would generate a caption of another length."""
    sample = next(iter(samples("scenes").values()))
    run = tracer.load("vit-text", mask=mask).trace(image=sample(), prove=False)
    counts = re.findall(r"of (\d+) tokens see", text(visit("mask", model="vit-text", mask=mask)))
    assert len(counts) == 2 and set(counts) == {str(run.attentions[0].queries)}


def test_masks_are_compared_on_the_tokens_that_both_have():
    open_, causal, shift = torch.ones(4, 4).bool(), torch.ones(5, 5).tril().bool(), torch.eye(4).roll(1, 1).bool()
    assert mask_controls._against(open_, causal) == "3 of 4 tokens see more"
    assert mask_controls._against(causal, open_) == "3 of 4 tokens see fewer"
    assert mask_controls._against(shift, torch.eye(4).bool()) == "4 of 4 tokens see others"
    assert mask_controls._against(shift, causal) == "1 of 4 tokens see fewer and 3 of 4 tokens see others"
    assert mask_controls._against(causal[:3, :3], causal) == "each token sees the same ones"


def test_the_notice_claims_no_other_answer():
    at = open_model("transformer", "pages/mask.py")
    at.text_area[0].set_value("a" * 16).run()
    before = at.session_state["visitor"].run().result["tokens"]
    at.segmented_control[0].set_value("causal").run()
    assert at.session_state["visitor"].run().result["tokens"] == before
    assert at.warning[0].value == (
        "The mask is **causal**, but the weights were trained with the **bidirectional** mask: the answer may differ."
    )
    assert "; trained with mask=bidirectional, run here with mask=causal." in text(at)


def test_what_rows_of_weights_keep_to_is_measured(monkeypatch):
    at = open_model("nanogpt", "pages/mask.py")
    off = masks.rows(at.session_state["visitor"].run()).off
    said = f"the sum of a row differs from 1 by at most {scientific(off)}, and"
    assert 0 < off < 1e-6 and said in mask_header(at)["kept"]["0"]
    monkeypatch.setattr(masks, "rows", lambda *a, **k: masks.RowSums(0.25, 0.5))
    at.text_area[0].set_value("A text that no other test draws").run()  # what is drawn stays in the cache
    said = mask_header(at)["kept"]["0"]
    assert "differs from 1 by at most 2.5 × 10⁻¹, and the largest weight of a closed key is 5.0 × 10⁻¹." in said


def test_another_mask_is_chosen_and_verified_too():
    at = open_model("vit-text", "pages/mask.py")
    at.segmented_control[0].set_value("prefix").run()
    assert not at.exception
    assert subheaders(at)[0] == "The mask of this run: prefix"
    assert at.success and not at.error
    at.switch_page("pages/trace.py").run()
    assert not at.exception


@pytest.mark.parametrize("model", cases(("nanogpt", "transformer", "vit-text"), ("transformer", "vit-text")))
def test_what_each_mask_changes_is_said_of_this_input(model):
    at = open_model(model, "pages/mask.py")
    table = next(frame.value for frame in at.table if "what the model answers" in frame.value)
    masks = list(models.spec_of(model).options["mask"])
    assert list(table["mask"]) == masks == at.segmented_control[0].options
    assert list(table["open pairs of tokens"])[masks.index("bidirectional")] == "100.0\u00a0%"
    assert len(set(table["what the model answers"])) > 1
    at.segmented_control[0].set_value("bidirectional").run()
    assert not at.exception and subheaders(at)[0] == "The mask of this run: bidirectional"
    assert at.success and not at.error and "they were trained" in text(at)


def test_a_model_without_a_mask_says_so_and_shows_no_closed_keys():
    at = open_model("vit", "pages/mask.py")
    assert "every token may attend to every token" in at.info[0].value and "closed key" not in text(at)
    assert "By segment" not in subheaders(at)
    closed = open_model("nanogpt", "pages/mask.py")
    assert not closed.info and mask_header(closed)["kept"]["0"].endswith("the largest weight of a closed key is 0.")
    assert mask_header(closed)["alt"].startswith("Mask (causal) of ") and not mask_header(at)["always"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("*.attention.scores=causal()", "itself in every block: the answer does not depend on the photo."),
        ("block1.attention.scores=causal()", "itself: in this block, nothing of the other tokens reaches it."),
        ("*.attention.scores=causal();patches=shuffle(0)", "itself in every block: through attention, nothing"),
    ],
)
def test_a_causal_mask_that_leaves_cls_only_itself_is_told(change, said):
    assert f"CLS is the first token, so this mask leaves it only {said}" in text(
        visit("mask", model="vit", change=change)
    )


def test_what_text_needs_a_mask_for_is_told_of_patches_without_one_and_of_nothing_else():
    at = visit("mask", model="vit")
    assert "must not see the word that it predicts" in text(at) and "leaves it only itself" not in text(at)
    assert "must not see the word that it predicts" not in text(visit("mask", model="nanogpt"))


def test_a_mask_that_a_change_does_not_fit_says_so_in_its_row():
    at = visit("mask", model="nanogpt", change="block1.attention.scores=bidirectional()")
    assert subheaders(at)[0] == "The mask of this run: bidirectional"
    table = next(table.value for table in at.table if "mask" in table.value.columns)
    causal, bidirectional = table.to_dict("records")
    assert causal["open pairs of tokens"] == "100.0\xa0%" and bidirectional["open pairs of tokens"] == "–"
    assert "its equation has no mask" in bidirectional["what the model answers"]
    assert "they were trained with" not in text(at)


def test_a_tower_without_a_mask_is_not_taken_for_the_whole_model():
    at = open_model("clip", "pages/mask.py")
    assert at.info[0].value == "This tower has no mask: every token may attend to every token."
    at.segmented_control[0].set_value("text").run()
    assert not at.info
    assert not [button for button in at.main.button if "causal" in button.label]


def test_a_model_without_a_mask_leads_to_one_that_has_one():
    at = open_model("vit", "pages/mask.py")
    assert at.info[0].value.startswith("This model has no mask")
    next(button for button in at.main.button if button.label == "See a causal mask: choose nanogpt").click().run()
    assert not at.info and not at.exception and subheaders(at)[0] == "The mask of this run: causal"


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_the_mask_of_one_token_is_not_given_a_kind(mask):
    at = open_model("nanogpt", "pages/mask.py")
    at.text_area[0].set_value("a").run()
    at.segmented_control[0].set_value(mask).run()
    assert not at.exception and subheaders(at)[0] == "The mask of this run: one open cell"
    assert "only one token, so a causal mask and no mask are the same" in at.info[0].value
    assert (mask_header(at)["queries"], mask_header(at)["keys"]) == (1, 1)
    at.text_area[0].set_value("ab").run()
    assert not at.info and subheaders(at)[0] == f"The mask of this run: {mask}"


def test_what_parts_segments_is_there_only_where_there_are_several():
    one, two = open_model("nanogpt", "pages/mask.py"), open_model("vit-text", "pages/mask.py")
    assert "By segment" not in subheaders(one) and len(mask_header(one)["segments"]) == 1
    assert "By segment" in subheaders(two) and len(mask_header(two)["segments"]) == 2


@pytest.mark.parametrize("model", ["vit", "clip", "nanogpt", "vit-text"])
def test_both_sliders_begin_with_the_same_token_under_one_name(model):
    at = open_model(model, "pages/mask.py")
    (change,), sent = at.main.select_slider, mask_header(at)
    assert sent["start"] == change.value
    name = sent["names"][change.value]
    assert name.startswith(f"{change.value + 1}: ") or name.endswith(f" (token {change.value + 1})")
    assert set(change.options) <= set(sent["names"])
    assert f"Changed: **{name}**" in text(at)


def test_what_was_run_for_a_sample_is_not_run_again(monkeypatch):
    for store in run_cache._results.values():
        store.clear()
    ran = []
    for name in ("change_and_compare", "predict_under_mask"):
        real = getattr(tracer.attention.masks, name)
        monkeypatch.setattr(
            tracer.attention.masks, name, lambda *a, _real=real, _name=name, **k: ran.append(_name) or _real(*a, **k)
        )
    at = open_model("nanogpt", "pages/mask.py")
    assert sorted(ran) == ["change_and_compare", "predict_under_mask"]
    ran.clear()
    open_model("nanogpt", "pages/mask.py")  # another visitor
    assert ran == []
    at.main.select_slider[0].set_value(3).run()  # another token is changed: only the changed input runs
    assert not at.exception and ran == ["change_and_compare"] and "tokens 4 to 28" in text(at)
    ran.clear()
    at.segmented_control[0].set_value("bidirectional").run()  # what was said under the first mask is known
    assert not at.exception and "predict_under_mask" not in ran


def test_a_visitors_own_text_is_run_once_and_kept_from_others(monkeypatch):
    ran, real = [], tracer.attention.masks.predict_under_mask
    monkeypatch.setattr(tracer.attention.masks, "predict_under_mask", lambda *a: ran.append(1) or real(*a))
    at = open_model("nanogpt", "pages/mask.py")
    ran.clear()
    at.text_area[0].set_value("To be, or not").run()
    assert not at.exception and ran == [1]
    other = open_model("nanogpt", "pages/mask.py")
    other.text_area[0].set_value("To be, or not").run()
    assert not other.exception and ran == [1, 1]
