"""Changes as part of a visitor's request: in links, on every page, beside the plain run, and taken back."""

import json
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

import app
from pages.jobs import run_cache
from pages.sections import what_if
from pages.state.view import split_changes
from tests.app.test_app import PAGES, SECONDS, text, upload, visit
from tests.app.test_server import picture
from tests.support.messages import component_bytes, of_page
from tests.support.sweeping import cases
from tracer import load
from tracer.attention import head_effects
from tracer.figures import drawing
from tracer.record import MOVED_TOKENS
from tracer.serialization import to_bytes
from tracer.utils.text import percent

HEAD = "block3.attention.weights=drop_heads(1)"
UNIFORM = "block2.attention.scores=zero"


def open_app(**address: str) -> AppTest:
    at = AppTest.from_file(app.__file__, default_timeout=SECONDS)
    for name, value in address.items():
        at.query_params[name] = value
    at.run()
    assert not at.exception
    return at


def run_of(at: AppTest):
    return at.session_state["visitor"].run()


def address(at: AppTest) -> dict:
    return {name: value if isinstance(value, str) else value[-1] for name, value in at.query_params.items()}


def test_a_link_names_the_changes_of_the_run():
    at = open_app(change=f"{HEAD};position=off")
    assert run_of(at).changes == (HEAD, "position=off")
    assert address(at)["change"] == f"{HEAD};position=off"


def test_a_change_may_hold_a_semicolon():
    closed = "block1.attention.scores=close(0,1;5,6)"
    assert run_of(open_app(change=f"{closed};position=off")).changes == (closed, "position=off")


def test_several_parameters_are_several_changes():
    at = open_app(change=[HEAD, "position=off"])
    assert run_of(at).changes == (HEAD, "position=off")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("block9.mlp.output=zero", "There is no line 'block9.mlp.output' to change; the nearest are"),
        ("block1.mlp.output=explode", "There is no change 'explode'"),
        ("block1.mlp.output", "'block1.mlp.output' is not a change of a line"),
        ("norm=drop_heads(1)", "'norm' has no axis of heads"),
        ("block1.mlp.output=take(sequence)", None),
        ("block1.mlp.output=take(block1.mlp.hidden)", "The change 'take(block1.mlp.hidden)' returned shape"),
        (f"{HEAD};" * 40, "are too long"),
    ],
)
def test_a_change_that_can_not_be_made_is_named_and_the_plain_run_is_shown(change, said):
    at = open_app(change=change)
    if said is None:
        assert run_of(at).changes == (change,) and not at.error
        return
    assert said in at.error[0].value and "The page shows the run without changes." in at.error[0].value
    assert run_of(at).changes == () and "change" not in address(at)


@pytest.mark.parametrize("model", cases(("vit", "nanogpt", "vit-text"), ("vit",)))
def test_every_page_of_a_changed_run_opens(model):
    for page in PAGES:
        at = visit(page.removeprefix("pages/").removesuffix(".py"), model=model, change=f"{HEAD};{UNIFORM}")
        assert run_of(at).changes == (HEAD, UNIFORM) and at.title, page
        assert "can’t be" not in text(at), page


PANELS = {
    "overview": ("No positions", "position=off"),
    "trace": ("Set to 0", "block2.mlp.output=zero"),
    "attention": ("Head 2 off", HEAD),
    "mask": ("Uniform attention", "block1.attention.scores=zero"),
}
"""On each page with a panel, a change that it offers first, and the text of that change."""


def open_panel(page: str, **address: str) -> AppTest:
    """Return the page with its panel open."""
    at = visit(page, **address)
    assert not at.main.pills  # nothing of the panel is drawn while it is closed
    at.session_state[what_if.KEY] = True
    at.run()
    assert not at.exception
    return at


def pills_with(at: AppTest, title: str):
    return next(pills for pills in at.main.pills if title in pills.options)


def press(at: AppTest, label: str) -> None:
    next(button for button in at.button if button.label.replace("\\", "") == label).click().run()
    assert not at.exception and not at.error


@pytest.mark.parametrize("page", cases(PANELS, ("overview", "attention")))
def test_the_panel_offers_what_is_on_screen_and_shows_both_runs(page):
    title, change = PANELS[page]
    at = open_panel(
        page, **{"attention": {"block": "3", "head": "1"}, "trace": {"step": "block2.mlp.output"}}.get(page, {})
    )
    pills = pills_with(at, title)
    pills.set_value([change]).run()
    assert not at.exception and not at.error and run_of(at).changes == (change,)
    assert address(at)["change"] == change and "Before and after the changes" in [head.value for head in at.header]
    press(at, "Undo the changes")
    assert run_of(at).changes == () and "change" not in address(at)
    assert "Before and after the changes" not in [head.value for head in at.header]


def test_each_change_has_a_chip_on_every_page_that_takes_it_back():
    at = open_app(change=f"{HEAD};{UNIFORM}")
    at.switch_page("pages/operations.py").run()
    assert "**This run is changed:**" in text(at)
    press(at, "Block 3: head 2 off")
    assert run_of(at).changes == (UNIFORM,)
    press(at, "Block 2: uniform attention")
    assert run_of(at).changes == () and "This run is changed" not in text(at)


def test_an_own_input_under_changes_is_run_once_with_and_once_without_them_and_only_where_both_are_shown(monkeypatch):
    begun, right = [], run_cache.given_beside
    monkeypatch.setattr(
        run_cache, "given_beside", lambda name, options, *more: begun.append(options) or right(name, options, *more)
    )
    made, given = [], run_cache._run_content
    monkeypatch.setattr(
        run_cache,
        "_run_content",
        lambda where, name, options, *more: made.append(options) or given(where, name, options, *more),
    )
    at = open_app(change=HEAD)
    upload(at, picture("PNG", (40, 30), 77), "own.png")
    assert begun == [()] and sorted(map(bool, made)) == [False, True]
    at.switch_page("pages/operations.py").run()
    upload(at, picture("PNG", (40, 30), 78), "other.png")
    assert "head 2 off" in at.button[0].label
    assert begun == [()] and made[2:] == [made[2]] and made[2]  # the changed run alone


def test_changes_that_leave_nothing_of_a_line_together_say_so():
    line = "block1.attention.weights"
    at = open_app(change=f"{line}=drop_heads(3);{line}=keep_heads(3)")
    assert "Together, these changes set all numbers of the attention weights of block 1 to 0." in text(at)
    for change in (f"{line}=drop_heads(3);{line}=keep_heads(2)", "block2.norm1=zero"):
        assert "Together, these changes" not in text(open_app(change=change))


def test_a_slider_replaces_its_own_factor_alone():
    at = open_panel("attention", block="1", change="block1.attention.scores=unscale;norm=scale(2)")
    slider = at.main.select_slider[0]
    assert slider.value == 1.0
    for factor in (0.5, 2.0):
        at.main.select_slider[0].set_value(factor).run()
        kept = "block1.attention.scores=unscale;norm=scale(2)"
        assert address(at)["change"] == f"{kept};block1.attention.scores=scale({factor:g})"
        assert "block1.attention.scores=unscale, scale" in run_of(at).changes[0]
    at.main.select_slider[0].set_value(1.0).run()
    assert run_of(at).changes == ("block1.attention.scores=unscale", "norm=scale(2)")


def test_the_answer_before_and_after_is_that_of_both_runs(vit):
    at = open_app(change="block1.mlp.output=zero")
    changed, plain = run_of(at), vit.trace(image=at.session_state["visitor"].user_input.photo)
    before, after = what_if.shares(plain.result), what_if.shares(changed.result)
    (drawn,) = [markup for markup in markups(at) if "before and after" in markup]
    first, share = drawing.ranking(*after)[0]
    old = dict(zip(*before, strict=True))[first]
    assert f"{percent(share)} {drawing.arrow(old, share)}" in drawn and percent(old) in drawn
    now = drawing.ranking(*before)[0][0]
    assert f"The answer changes from **{now}** to **{first}**." in text(at) or f"stays **{first}**" in text(at)


def markups(at: AppTest) -> list[str]:
    """Return the markup that the page drew."""
    return [json.loads(part.proto.json) for part in at.get("bidi_component") if part.proto.component_name == "drawing"]


def test_runs_of_one_photo_with_other_patches_hidden_share_the_check_of_their_lines():
    lines = [
        run_cache.of_lines(run_cache.with_changes((), split_changes(text)))
        for text in ("", "image=hide(1,mean)", "text=mask_words(1;0)", "image=hide(1,mean);norm=zero", "norm=zero",
                     "image=hide(1,removed)")
    ]  # fmt: skip
    assert lines[0] == lines[1] == lines[2] == () and lines[3] == lines[4] != () and lines[5] not in lines[:5]


def test_the_brush_names_what_is_hidden_and_what_that_does():
    at = open_app(change="position=off;image=hide(9,1,grey)")
    facts = brush_of(at)
    assert (facts["patches"], facts["fill"]) == ([1, 9], "grey")
    assert facts["fills"] == ["grey", "mean", "blur", "removed"] and facts["why"] == ""
    changed = run_of(at)
    percents = {name: percent(share) for name, share in zip(*what_if.shares(changed.result), strict=True)}
    assert all(percents[name] == after for name, _, (after, _), _ in facts["answer"]) and len(facts["answer"]) == 3
    assert facts["status"].startswith("All changes together: the answer ") and "*" not in facts["status"]
    assert Image.open(BytesIO(facts["photo"].tobytes())).size[0] > 100  # the photo without the change
    filled = np.asarray(Image.open(BytesIO(facts["pictures"]["grey"].tobytes())))
    assert abs(filled.astype(int) - 127).max() <= 3


def test_a_model_that_needs_all_its_patches_says_so():
    facts = brush_of(visit("attention", model="segmenter"))
    assert "removed" not in facts["fills"] and facts["why"].startswith("This model always runs on all of its patches")


def brush_of(at: AppTest) -> dict:
    """Return the browser's data for hiding patches."""
    return of_page(component_bytes(at, "film", "attention_map"))[0]["brush"]


def test_changes_stay_with_another_photo_and_with_other_sizes():
    at = open_app(change=HEAD, sample="dog")
    assert run_of(at).changes == (HEAD,) and address(at) == {"change": HEAD, "sample": "dog"}
    at = visit("overview", model="nanogpt", text="KING", change="block1.attention.weights=drop_heads(0)")
    assert run_of(at).changes and run_of(at).attentions[0].queries == 4
    assert not run_of(at).attention(0)[:, 0].any()


def test_a_saved_run_says_its_changes_and_can_not_be_changed(vit):
    ran = vit.trace(change={"position": "off"})
    at = upload(open_app(), to_bytes(ran), "run.safetensors")
    assert "**The saved run was changed:** No positions." in text(at)
    at.switch_page("pages/attention.py").run()
    assert not at.exception and not [one for one in at.button if one.label == "Undo the changes"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0.5, 0.62, "\u2191\xa012.0"),
        (0.62, 0.5, "\u2193\xa012.0"),
        (0.5, 0.5002, "hardly changed"),
        (0.5, 0.5, "unchanged"),
        (0.01149, 0.01151, "\u2191\xa00.1"),  # 1.1 % and 1.2 %
        (0.0004, 0.0005, "\u2191\xa00.01"),
        (0.01044, 0.0415, "\u2191\xa03.2"),  # 1.0 % and 4.2 %
        (0.998, 0.9996, "\u2191\xa00.2"),  # > 99.9 %
    ],
)
def test_arrows_say_percentage_points(before, after, said):
    assert drawing.arrow(before, after) == said


def test_the_panel_of_a_step_stands_above_the_step_where_it_has_room_to_open():
    at = open_app().switch_page("pages/trace.py").run()
    kinds = [node.type for node in at.main]
    assert "popover" in kinds and kinds.index("popover") < max(
        place for place, kind in enumerate(kinds) if kind == "bidi_component"
    ), kinds


def test_the_pages_say_why_attention_of_shuffled_patches_is_not_on_the_photo():
    at = open_app(change="patches=shuffle(0)")
    assert MOVED_TOKENS in [info.value.replace("\\", "") for info in at.info]
    at.switch_page("pages/attention.py").run()
    assert not at.exception and MOVED_TOKENS in [info.value.replace("\\", "") for info in at.info]
    assert "What does a token attend to?" in [title.value for title in at.title]


def test_what_stands_behind_a_pair_of_bars_has_room():
    """The words are as long as a bar, which leaves them more room than it leaves a number alone."""
    names = ["a", "b"]
    for shares in ([0.9, 0.1], [0.8, 0.2]):
        assert 'class="bars wordy"' in drawing.comparison((names, [0.9, 0.1]), (names, shares), "class")
    assert 'class="bars"' in drawing.class_bars(names, [0.9, 0.1])


def test_bars_of_tokens_that_only_one_run_names_say_so():
    ten = [f"class {number}" for number in range(10)]
    drawn = drawing.comparison((ten, [0.1] * 10), (ten, [0.19, *[0.09] * 9]), "class")
    assert all(f"{name}<" in drawn for name in ten)  # of few classes, all are there
    many = [f"class {number}" for number in range(11)]
    drawn = drawing.comparison((many, [1 / 11] * 11), (many, [1 / 11] * 11), "class")
    assert sum(f"{name}<" in drawn for name in many) <= drawing.TOP + 1
    drawn = drawing.comparison((["a", "b"], [0.9, 0.1]), (["a", "c"], [0.2, 0.8]), "token")
    assert drawn.count("not among the likeliest") >= 2 and "a 90.0" in drawn


def test_the_numbers_are_of_the_changed_lines_the_stream_and_the_last(vit):
    model = vit
    found = what_if.differences(model.trace(), model.trace(change={"block5.mlp.output": "scale(2)"}))
    titles = [title for title, _, _ in found]
    assert titles == [*(f"Block {block}, Residual sum" for block in (1, 2, 3, 4)), "Block 5, Contract, changed",
                      "Block 5, Residual sum", "Block 6, Residual sum", "Classify"]  # fmt: skip
    assert [difference for _, difference, _ in found[:4]] == ["0"] * 4 and found[4][2] == "100.0\xa0%"
    assert float(found[5][1]) > 0


def test_what_it_looked_at_is_hidden_beside_others(vit):
    at = open_panel("overview")
    hide = pills_with(at, "Most attended")
    attended = head_effects.rank_by_attention(vit.trace(image=at.session_state["visitor"].user_input.photo))
    change = f"image=hide({','.join(map(str, sorted(attended[:16])))},mean)"
    hide.set_value([change]).run()
    assert not at.exception and run_of(at).changes == (change,)
    assert "16 patches hidden (mean)" in [button.label.replace("\\", "") for button in at.button]
    at.main.toggle[0].set_value(True).run()
    assert not at.exception and not at.error and "± " in str(at.main.table[0].value)
    assert "“±” is the standard deviation over the random choices." in text(at)


def test_the_number_of_hidden_patches_follows_its_slider(vit):
    at = open_panel("overview")
    count = next(slider for slider in at.main.select_slider if slider.label == "Patches to hide")
    count.set_value(8).run()
    assert run_of(at).changes == ()  # nothing is hidden yet
    order = head_effects.rank_by_attention(vit.trace(image=at.session_state["visitor"].user_input.photo))
    texts = {number: f"image=hide({','.join(map(str, sorted(order[:number])))},mean)" for number in (8, 32)}
    pills_with(at, "Most attended").set_value([texts[8]]).run()
    assert run_of(at).changes == (texts[8],)
    next(slider for slider in at.main.select_slider if slider.label == "Patches to hide").set_value(32).run()
    assert not at.exception and run_of(at).changes == (texts[32],)
    assert pills_with(at, "Most attended").value == [texts[32]]


def test_patches_are_hidden_beside_the_other_changes_of_the_run(vit):
    at = open_panel("overview", change="block6.attention.scores=scale(8);image=hide(1,grey)")
    photo = at.session_state["visitor"].user_input.photo
    changed = vit.with_changes({"block6.attention.scores": "scale(8)"})
    trace = changed.trace(image=photo)
    attended = head_effects.rank_by_attention(trace)[:16]
    assert attended != head_effects.rank_by_attention(vit.trace(image=photo))[:16]
    at.main.toggle[0].set_value(True).run()
    table = at.main.table[0].value
    shares = np.array(trace.result["probabilities"])
    assert table.iloc[0, -1] == percent(shares.max())
    hidden = changed.trace(image=photo, change={"image": f"hide({','.join(map(str, attended))},mean)"})
    assert table.iloc[1, -1] == percent(hidden.result["probabilities"][shares.argmax()])


def test_the_change_of_pixels_is_told_by_their_number():
    before = np.zeros((4, 5), dtype=int)
    after = before.copy()
    assert what_if._of_pixels(before, after) == "No pixel changes its class."
    after[0, 0] = 2
    assert what_if._of_pixels(before, after) == "**5.0\xa0%** of the pixels change their class."


def test_the_concentration_of_the_mean_is_that_of_the_map_on_screen(vit):
    plain, trace = vit.trace(), vit.trace(change={"block6.attention.scores": "unscale"})
    told = what_if.concentration(*what_if._maps(plain, trace, 5, "", None))
    for run in (plain, trace):
        rows = run.attention(5)[0].mean(0).double()
        assert f"{float(-(rows * rows.log()).sum(-1).mean()):.2f}" in told
        assert percent(float(rows.amax(-1).mean())) in told


def test_hiding_the_centre_is_told_beside_hiding_the_most_attended():
    def compare_centre(plain: float, attended: float, central: float) -> str:
        return what_if.beside_centre(head_effects.HidingTest("cat", plain, attended, central, (0.5,)))

    assert compare_centre(0.833, 0.1, 0.152) == (
        "The centre costs almost as much: 68.1 percentage points, and the most attended patches 73.3."
    )
    assert "costs less: 13.3" in compare_centre(0.833, 0.1, 0.7) and "costs more: 73.3" in compare_centre(
        0.833, 0.7, 0.1
    )
    assert compare_centre(0.833, 0.9, 0.152) == (
        "With the centre hidden, the probability is 15.2\xa0%, and with the most attended patches hidden 90.0\xa0%."
    )


def test_runs_of_other_lengths_are_compared_on_the_tokens_that_both_have():
    model = load("nanogpt")
    short, long = model.trace(text="to be"), model.trace(text="to be or not")
    panels = what_if._attention_panels(long, "", what_if._maps(short, long, 0, "", None), 0)
    assert [panel.cells.shape for panel in panels] == [(5, 5)] * 3
    np.testing.assert_allclose(panels[2].cells, panels[1].cells - panels[0].cells)


def test_attention_that_concentrates_or_spreads_is_told_by_its_entropy():
    spread, single = np.full((2, 3, 4), 0.25), np.eye(4)[None, :3].repeat(2, 0)
    sentence = what_if.concentration(spread, single)
    assert sentence.startswith("Attention is more concentrated than before: the entropy of a row falls from 1.39 to")
    assert "goes from 25.0\u00a0% to 100.0\u00a0%" in sentence
    assert "more spread out" in what_if.concentration(single, spread)
    assert "as concentrated as before: the entropy of a row is 1.39" in what_if.concentration(spread, spread)
    assert "Not every row of these weights sums to 1" in what_if.concentration(spread, 0 * single)  # a head is off
    at = visit("attention", change="block1.attention.scores=unscale", block="1")
    assert any("Attention is more concentrated than before" in markdown.value for markdown in at.markdown)


def test_lines_of_a_change_that_are_left_out_are_counted():
    at = visit("mask", change="*.attention.scores=causal()")
    assert any(
        "These are the first 6 of 12 such lines; the page Trace has all of them." in caption.value
        for caption in at.caption
    )


@pytest.mark.parametrize(
    ("change", "block"), [(HEAD, 3), (UNIFORM, 2), (f"{HEAD};{UNIFORM}", 2), ("position=off", 1), ("image=hide(5)", 1)]
)
def test_the_mask_page_compares_the_first_block_that_is_changed(change, block):
    at = open_app(change=change).switch_page("pages/mask.py").run()
    assert not at.exception and any(f"Block {block}, head 1." in each.value for each in at.caption)
