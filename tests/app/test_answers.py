"""Answer of each kind of model on the overview: captions word by word, sentences, label maps, reconstructions."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tests.app.test_app import film_of, text, upload
from tests.app.test_models_in_app import open_model
from tests.support.sweeping import cases
from tracer.figures import drawing


def test_each_word_of_the_caption_shows_where_it_looked():
    at = open_model("vit-text")
    words, which = at.main.button_group[0], at.main.button_group[1]
    assert words.options[:3] == ["a₁", "large₂", "red₃"] and words.options[-1] == r"next\: \<end\>₁₁"
    assert which.options == ["block 4, head 3", "block 4, the mean of its heads"]
    assert "In the row that predicts “red”, block 4, head 3 attends most to patch 19;" in text(at)
    assert "trace.attention(layer=3, query=66, head=2)" in text(at)
    words.set_value(4)
    which.set_value(1).run()
    assert not at.exception and "trace.attention(layer=3, query=67)" in text(at)
    at.main.button_group[0].set_value(7).run()  # the second "a"
    assert not at.exception and "query=70)" in text(at)
    at.main.button_group[0].set_value(11).run()
    assert not at.exception and "In the row that predicts “<end>”" in text(at)


def test_words_of_a_text_of_ones_own_are_not_taken_for_the_caption():
    at = open_model("vit-text")
    assert at.main.button_group[0].label == "Show the attention behind this word"
    at.text_area[0].set_value("a small blue star").run()
    words = at.main.button_group[0]
    assert not at.exception and words.label == "Show the attention behind this word of your text"
    assert words.options[:4] == ["a₁", "small₂", "blue₃", "star₄"]


def test_a_caption_comes_first_and_the_rest_of_it_stands_beside_the_whole_way():
    at = open_model("vit-text")
    assert [tab.label for tab in at.tabs] == [
        "The full path",
        "What the model sees",
        "The answer as it forms",
        "Behind each word",
        "Watch it write",
    ]
    last = film_of(at)["beats"][-1]
    assert last["title"] == "The caption" and last["sentence"].startswith("“a large red circle")
    assert at.main.header[0].value == "What to look at next"
    whole, _, _, behind, write = at.tabs
    assert "Each box is a step" in whole.caption[0].value
    assert "Attention behind the word" in [head.value for head in behind.header]
    assert "Does the word come from the picture? Test it" in [head.value for head in behind.header]
    assert [button.label for button in write.button] == ["Write the caption again"]
    assert [tab.label for tab in open_model("nanogpt").tabs] == ["The full path", "The answer as it forms"]


def test_a_caption_that_is_not_finished_is_shown_with_its_next_word():
    at = open_model("vit-text")
    assert not at.main.get("plotly_chart")
    at.text_area[0].set_value("a large red").run()
    assert "What comes next is “circle”" in film_of(at)["beats"][-1]["sentence"]


def test_a_saved_caption_has_its_next_word_and_nothing_to_write(tmp_path):
    at = open_model("vit-text")
    run = at.session_state["visitor"].run()
    run.save(path := tmp_path / "run.safetensors")
    upload(at, path.read_bytes(), "run.safetensors")
    assert [tab.label for tab in at.tabs] == ["The full path", "What the model sees", "Behind each word"]


NO_CAPTIONS = {"kind": "caption"}, {"kind": "caption", "caption": "a"}, {"kind": ["caption"]}


@pytest.mark.parametrize("result", cases(NO_CAPTIONS, NO_CAPTIONS[1:]))
def test_a_saved_caption_that_is_none_is_named(tmp_path, result):
    at = open_model("vit-text")
    replace(at.session_state["visitor"].run(), result=result).save(path := tmp_path / "run.safetensors")
    upload(at, path.read_bytes(), "run.safetensors")
    assert ("can’t be read" in text(at)) == (result["kind"] == "caption")
    assert "Each box is a step" in text(at)


def test_one_sentence_alone_is_said_to_win_always():
    at, said = open_model("clip"), "only one sentence to choose from: a softmax over one choice is always 100 %"
    assert said not in text(at)
    at.text_area[0].set_value("a green star").run()
    assert not at.exception and said in text(at)
    assert at.session_state["visitor"].run().result["probabilities"] == [1]


def test_the_label_map_lies_over_the_photo_and_can_be_seen_through():
    at = open_model("segmenter")
    chart = lambda: json.loads(at.main.get("plotly_chart")[0].proto.spec)  # noqa: E731
    assert chart()["data"][0]["opacity"] == 1 and len(chart()["layout"]["images"]) == 1
    assert any(entry["name"].startswith("circle") for entry in chart()["data"][1:])
    at.main.slider[0].set_value(0).run()
    assert not at.exception and chart()["data"][0]["opacity"] == 0


def test_without_a_film_the_label_map_is_drawn_once(monkeypatch):
    monkeypatch.setattr("pages.sections.answer.of_run", lambda trace: None)  # as of a damaged file
    at = open_model("segmenter")
    assert not at.exception
    assert len(at.main.slider) == 1


def test_the_overview_shows_which_patches_the_encoder_saw():
    at = open_model("mae")
    visible = at.session_state["visitor"].run().result["visible"]
    assert f"the encoder saw {len(visible)} of 64 patches" in text(at)
    titles = [element.value for element in at.main.markdown if element.value.startswith("**")]
    assert titles[1:3] == ["**What the encoder sees**", "**The predicted picture**"]  # after what goes for every model
    assert at.main.header[0].value.startswith("Hardest to predict: row ")
    charts = [json.loads(chart.proto.spec) for chart in at.main.get("plotly_chart")]
    units = [chart["layout"]["xaxis"]["title"]["text"] for chart in charts]
    assert units == ["patch column", "pixel column", "pixel column"]
    hidden = [[shape["fillcolor"] for shape in chart["layout"].get("shapes", [])] for chart in charts]
    assert hidden == [[], [drawing.MASK[0]], []]


@pytest.mark.parametrize("sample", ["scratch", "no defect"])
def test_a_prediction_error_is_shown_on_the_scale_that_is_said(sample):
    at = open_model("mae")
    at.pills[0].set_value(sample).run()
    result = at.session_state["visitor"].run().result
    most = max(map(max, result["anomaly"]))
    error, seen, drawn = (json.loads(chart.proto.spec)["data"][0] for chart in at.main.get("plotly_chart"))
    assert not at.exception and (error["zmin"], error["zmax"]) == (0, most)
    assert f"the largest error of this picture, {most:.3g} grey levels. Even a flawless surface has" in text(at)
    assert (seen["zmin"], seen["zmax"]) == (drawn["zmin"], drawn["zmax"])
    assert "The contrast is the same as in the predicted picture." in text(at)
    levels = np.mean(result["pixels"], axis=-1)
    assert f"black is grey level {levels.min():.0f} of 255, white is {levels.max():.0f}." in text(at)
