"""All heads at a glance on Attention, and the answer as it forms on Overview: as the library computes them."""

import json
import re

import numpy as np
import pytest

import tracer
from pages.sections.lens import _describe
from tests.app.test_models_in_app import open_model
from tracer.attention.head_effects import head_effects
from tracer.attention.lens_answers import LensAnswer, LensAnswers, lens_answers
from tracer.figures.attention_maps import Measure, grid, with_sign


def markup(at, name: str) -> str:
    (part,) = [part.proto.json for part in at.get("bidi_component") if part.proto.component_name == name]
    return json.loads(part)


def test_every_head_has_a_cell_with_its_effect():
    at = open_model("vit", "pages/attention.py")
    model = tracer.load("vit")
    trace = model.trace(prove=False)
    effects, answer = head_effects(model, model.inputs(), trace), max(trace.result["probabilities"])
    cells = re.findall(r"Block (\d), head (\d): ([^ ]+) points", markup(at, "heads"))
    assert len(cells) == 2 * effects.change.size  # as a title, and for screen readers
    for block, head, points in cells:
        assert points == with_sign(effects.change[int(block) - 1, int(head) - 1], 2)  # on screen from 1
    row, head = np.unravel_index(np.abs(effects.change).argmax(), effects.change.shape)
    (said,) = [text.value for text in at.markdown if text.value.startswith("With all heads, the answer “horse”")]
    assert f"Switching off head {head + 1} of block {row + 1}" in said and f"{answer:.1%}"[:-1] in said


@pytest.mark.parametrize("measure", ["entropy", "distance", "special"])
def test_other_measures_are_a_choice(measure):
    at = open_model("vit", "pages/attention.py")
    at.segmented_control(key="place measure").set_value(measure).run()
    assert not at.exception and at.query_params["measure"] == measure
    unit = {"entropy": "nats", "distance": "patch widths", "special": "%"}[measure]
    assert unit in markup(at, "heads")
    assert any(text.value.startswith("The largest value is") for text in at.markdown)


def test_the_grid_escapes_and_frames():
    measure = Measure("<b>", np.array([[1.0, -2.0], [np.nan, 0.0]]), with_sign, with_sign, signed=True)
    html = grid(measure, (0, 3), np.array([[False, True], [False, False]]))
    assert "<b>" not in html and html.count("data-head") == 3 and html.count("class=flips") == 1
    assert "Block 4, head 2: 0.0" in html and "−2.0" in html


@pytest.mark.parametrize("name", ["vit", "nanogpt"])
def test_the_answer_forms_as_the_lens_reads_it(name):
    model = tracer.load(name)
    trace = model.trace()
    found = lens_answers(model, model.inputs(), trace)
    at = open_model(name)
    last = found.answers[-1]
    assert last.probability == pytest.approx(max(trace.result["probabilities"]), rel=1e-4)
    (said,) = [text.value for text in at.markdown if text.value.startswith("The run’s answer, ")]
    assert f"“{last.answer}”" in said
    since = next(at for at in range(len(found.answers)) if all(a.answer == last.answer for a in found.answers[at:]))
    assert f"after block {since}" in said
    assert found.proof.verdict == "verified" and any(found.latex in formula.value for formula in at.latex)
    assert (found.answers[0].patches is not None) == (name == "vit")
    if name == "vit":
        place = int(found.answers[-1].patches[1:].argmax()) + 1  # CLS is the first token
        assert any(f"at patch {place}: " in caption.value for caption in at.caption)
        assert found.answers[3].patches[0] == pytest.approx(found.answers[3].final)


def test_an_answer_that_is_lost_again_on_the_way_is_told():
    answers = [LensAnswer(layer, word, 0.5, 0.1, None) for layer, word in enumerate("abcba", -1)]
    answers[0] = answers[0]._replace(layer=None)
    lens = LensAnswers(tuple(answers), "", None)
    assert _describe(lens).endswith("of 10.0\u00a0%. It was so before block 1 already, and was lost again.")


def test_a_model_whose_answer_is_no_choice_has_no_lens():
    model = tracer.load("mae")
    with pytest.raises(ValueError, match="is not one of several choices"):
        lens_answers(model, model.inputs(), model.trace(prove=False))
