"""Text written in the app: greedy or drawn, and each token leads to the run that it was read from."""

import tracer
from tests.app.test_app import text
from tests.app.test_models_in_app import open_model
from tracer.spec import decoding


def write(at, count):
    next(slider for slider in at.main.slider if slider.label in ("Characters", "Words")).set_value(count).run()
    next(button for button in at.main.button if button.label.startswith("Write the ")).click().run()
    assert not at.exception and not at.error and "can’t be read" not in text(at)
    return at


def likeliest(at):
    """Text model that always writes the most probable token."""
    next(slider for slider in at.main.slider if slider.label == "Temperature").set_value(0).run()
    return at


def steps(at):
    return next(group for group in at.main.button_group if group.label.startswith("Choose a "))


def test_a_chosen_character_shows_the_run_that_it_was_read_from_on_all_pages():
    at = write(likeliest(open_model("nanogpt")), 8)
    tokens = at.session_state["visitor"].writing.tokens
    model = tracer.load("nanogpt")
    start = "".join(model.inputs().words)
    assert tokens == list(decoding.write(model, start, 8))
    assert "".join(tokens).strip() in [element.value.strip() for element in at.code]
    steps(at).set_value(5).run()
    assert not at.exception and "character 6 of 8" in text(at)
    ran = at.session_state["visitor"].run()
    assert "".join(ran.words) == start + "".join(tokens[:5]) and ran.result["tokens"][0] == tokens[5]
    assert at.sidebar.text_area[0].value == start + "".join(tokens[:5])
    at.switch_page("pages/trace.py").run()
    assert at.session_state["visitor"].run() is ran and ran.steps[3].error is not None
    at.switch_page("pages/overview.py").run()
    assert steps(at).value == 5
    next(button for button in at.button if button.label == "Back to the sample").click().run()
    assert "character 1 of 8" in text(at)


def test_drawn_text_follows_the_seed_and_the_temperature():
    at = open_model("nanogpt")
    next(slider for slider in at.main.slider if slider.label == "Temperature").set_value(1.5).run()
    found = []
    for seed in (3, 3, 4):
        at.main.number_input[0].set_value(seed).run()
        found.append(write(at, 12).session_state["visitor"].writing.tokens)
    assert found[0] == found[1] != found[2]


def test_a_caption_is_written_word_by_word_up_to_its_end():
    at = open_model("vit-text")
    words = next(slider for slider in at.main.slider if slider.label == "Words")
    assert words.max == 17 and "Write the caption again" in [button.label for button in at.main.button]
    at = write(at, 17)
    tokens = at.session_state["visitor"].writing.tokens
    assert tokens[:4] == ["a", "large", "red", "circle"] and tokens[-1] == "<end>" and len(tokens) == 11
    assert "word 1 of 11" not in text(at)  # the run on screen is that of the whole caption
    for place, words in ((0, ("<begin>",)), (3, ("<begin>", "a", "large", "red"))):
        steps(at).set_value(place).run()
        assert not at.exception and f"word {place + 1} of 11" in text(at)
        ran = at.session_state["visitor"].run()
        assert ran.words == words and ran.result["tokens"][0] == tokens[place]
    words = next(slider for slider in at.main.slider if slider.label == "Words")
    assert words.max == 14 and "Write the next 14 words" in [button.label for button in at.main.button]


def test_a_finished_text_says_so():
    at = open_model("vit-text")
    assert "is complete" not in text(at)
    at.sidebar.text_area[0].set_value("a large red circle left of a small blue square").run()
    assert r"This text is complete: the next token is \<end>." in text(at)
    assert not next(button for button in at.main.button if button.label.startswith("Write the ")).disabled
    at = likeliest(at)
    assert next(button for button in at.main.button if button.label.startswith("Write the ")).disabled


def test_another_text_or_model_leaves_what_was_written():
    at = write(open_model("nanogpt"), 3)
    at.sidebar.text_area[0].set_value("KING").run()
    assert not any(group.label.startswith("Choose a ") for group in at.main.button_group)
    at.sidebar.selectbox[0].set_value("vit-text").run()
    assert not any(group.label.startswith("Choose a ") for group in at.main.button_group)
