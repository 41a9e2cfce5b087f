"""Saved runs of other architectures on the pages: shifted windows, channels, weights that were changed later."""

import pytest

from tests.app.test_app import film_of, open_page, text, upload
from tests.attention.test_attention_followed import drop_weights, with_sinks
from tests.attention.test_attention_followed import trace_attention as spelled
from tests.attention.test_attention_of_libraries import swin, timm, trace_net
from tests.support import handmade


def open_trace_on(trace, page, tmp_path):
    trace.save(path := tmp_path / "run.safetensors")
    at = upload(open_page(), path.read_bytes(), "run.safetensors")
    at.switch_page(f"pages/{page}.py").run()
    assert not at.exception and [error.value for error in at.error] == []
    return at


def test_the_mask_of_shifted_windows_is_shown_window_by_window(tmp_path):
    at = open_trace_on(trace_net(swin), "mask", tmp_path)
    assert at.main.header[0].value == "The mask of this run: none"  # of the first block
    assert at.main.info[0].value.startswith("This block has no mask: ")
    assert at.main.selectbox[0].options[:2] == ["block 1: no mask", "block 2: windows"]
    at.main.selectbox[0].set_value(2).run()
    assert not at.exception and at.main.header[0].value == "The mask of this run: windows"
    window = at.main.selectbox(key="place window")
    assert window.value == 1  # the first window in which something is closed; on screen they count from 1
    assert window.options[:2] == ["1", "2"]
    window.set_value(0).run()
    assert not at.exception and at.main.header[0].value == "The mask of this run: none"
    assert at.main.info[0].value.startswith("This window has no mask: ")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda: spelled(drop_weights)[0],
            "In block 1, the model changed the weights between the softmax and the product",
        ),
        (lambda: spelled(with_sinks)[0], "In block 1, a part of each row goes to no key (a sink)"),
        (
            lambda: trace_net(timm("xcit_nano_12_p16_224", img_size=64, embed_dim=16, depth=1, num_heads=4)),
            "In block 1, queries and keys are channels and not tokens.",
        ),
    ],
    ids=["dropout", "sinks", "channels"],
)
def test_what_is_special_about_the_attention_is_said_above_its_map(made, said, tmp_path):
    at = open_trace_on(made(), "attention", tmp_path)
    assert any(note.value.startswith(said) for note in at.info)


def test_channels_are_named_as_channels(tmp_path):
    from tracer.figures import attention_maps

    trace = trace_net(timm("xcit_nano_12_p16_224", img_size=64, embed_dim=16, depth=1, num_heads=4))
    assert attention_maps.build(trace, [0])["names"] == ["channel 1", "channel 2", "channel 3", "channel 4"]
    assert not any("channel" in name for name in attention_maps.build(trace, [1])["names"])
    with pytest.raises(ValueError, match="from channel to channel"):
        from tracer.attention import rollout

        rollout(trace)


def test_a_head_whose_weights_a_file_lacks_gives_no_answer_on_the_page(tmp_path):
    trace = handmade.sample(result={"kind": "none", "lacks": ["classifier.weight", "classifier.bias"]})
    at = open_trace_on(trace, "overview", tmp_path)
    assert "No answer" in [element.value for element in at.header]
    assert "lack classifier.weight, classifier.bias" in text(at)


def test_classes_of_words_are_shown_word_by_word(tmp_path):
    result = {"kind": "tokens", "unit": "class", "text": ["a", "cat"], "tokens": ["other", "animal"]}
    at = open_trace_on(handmade.sample(result={**result, "probabilities": [0.5, 0.75]}), "overview", tmp_path)
    assert film_of(at)["answer"]["tokens"] == ["other", "animal"]
    assert "The answer is the most probable class at each position. The least certain, “other” at position 1," in text(
        at
    )
