"""Picture masked from the words in some blocks: the computation of the test on screen."""

from dataclasses import replace

import pytest
import torch

import tracer
from tests.app.test_app import text
from tests.app.test_models_in_app import open_model
from tracer.attention.masks import close_picture
from tracer.inputs.model_inputs import samples

SMALL = {"H": 8, "W": 12, "P": 4, "V": 17, "T_max": 9, "D": 12, "h": 2, "d_ff": 10, "L": 3}


@pytest.fixture(scope="module")
def captions():
    model = tracer.load("vit-text")
    return model, model.inputs()


def test_nothing_closed_changes_nothing(captions):
    found = close_picture(*captions, ())
    assert found.open == found.closed and found.best == found.instead
    assert len(found.words) == len(found.open) == captions[1][1].shape[1]


def test_the_words_are_those_of_the_text_and_the_next(captions):
    model, inputs = captions
    found, trace = close_picture(model, inputs, (0,)), model.trace()
    assert found.words == (*trace.words[1:], trace.result["tokens"][0])
    assert found.open[-1] == pytest.approx(trace.result["probabilities"][0], abs=1e-6)
    shares = trace.output[0].softmax(-1)
    assert found.open[:-1] == pytest.approx([float(shares[i, t]) for i, t in enumerate(inputs[1][0, 1:])], abs=1e-6)


def test_with_every_block_closed_the_picture_makes_no_difference():
    model = tracer.load("vit-text", **SMALL)
    inputs = model.inputs()
    other = model.inputs()
    other = replace(other, tensors=(other[0].flip(-1) + 1, other[1]))
    assert close_picture(model, inputs, ()).open != close_picture(model, other, ()).open
    one, two = (close_picture(model, given, range(3)) for given in (inputs, other))
    assert one.closed[:-1] == two.closed[:-1]


def test_the_model_that_others_run_stays_as_it_is(captions):
    model, inputs = captions
    before = model.net(*inputs)
    blocks = dict(model.net.named_modules())
    close_picture(model, inputs, (0, 1, 2, 3))
    assert dict(model.net.named_modules()) == blocks and torch.equal(model.net(*inputs), before)


def test_the_early_blocks_are_those_that_count(captions):
    """Compare early blocks with the last one, whose attention is hardly where the words were read from: the reason for
    the test on screen."""
    model, _ = captions
    late = early = total = 0
    for photo in samples("scenes").values():
        inputs = model.inputs(image=photo())
        for layers in ((3,), (0, 1, 2)):
            found = close_picture(model, inputs, layers)
            right = sum(word == said for word, said in zip(found.words, found.instead, strict=True))
            late, early = late + right * (layers == (3,)), early + right * (layers != (3,))
        total += len(found.words)
    assert early < late <= total


@pytest.mark.parametrize(("name", "layer", "said"), [("vit", 0, "no picture and text"), ("vit-text", 4, "0 to 3")])
def test_what_cannot_be_closed_is_refused_in_a_sentence(name, layer, said):
    model = tracer.load(name)
    with pytest.raises(ValueError, match=said):
        close_picture(model, model.inputs(), (layer,))


def test_the_visitor_closes_the_picture_and_reads_what_becomes_of_the_word():
    at = open_model("vit-text")
    blocks = next(
        group for group in at.main.button_group if group.label == "Close the picture to the words in these blocks"
    )
    assert blocks.options == ["block 1", "block 2", "block 3", "block 4"] and blocks.value == [3]
    assert "with it closed in block 4" in text(at)
    blocks.set_value([0, 1, 2]).run()
    assert not at.exception and "with it closed in blocks 1, 2 and 3" in text(at)
    found = close_picture(
        at_model := tracer.load("vit-text"),
        at_model.inputs(image=at.session_state["visitor"].user_input.photo),
        (0, 1, 2),
    )
    right = sum(word == said for word, said in zip(found.words, found.instead, strict=True))
    assert f"{right} with it closed" in text(at)
    next(group for group in at.main.button_group if group.label == blocks.label).set_value([]).run()
    assert not at.exception and "with it closed" not in text(at)
