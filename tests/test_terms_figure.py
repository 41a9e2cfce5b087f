"""The four terms of a score: maps on one scale, their sum, and how far it is from what ran."""

import numpy as np
import pytest
from test_models_in_app import chosen

from tracer.figures import terms

TERMS = {"a": np.array([[1.0, 2], [3, 4]]), "b": np.array([[-5.0, 0], [0, 1]])}


def test_every_term_the_sum_and_the_scores_are_on_one_scale():
    scores = np.array([[-4.0, -np.inf], [3, 6]])
    figure = terms.maps(TERMS, scores)
    assert [title.text for title in figure.layout.annotations] == ["a", "b", "their sum", "the scores that ran"]
    assert np.asarray(figure.data[2].z).tolist() == [[-4, 2], [3, 5]]
    assert np.isnan(np.asarray(figure.data[3].z)[0, 1])  # hidden by a mask
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-6, 6)
    assert {data.coloraxis for data in figure.data} == {"coloraxis"}
    assert terms.difference(TERMS, scores) == pytest.approx(1 / 6)


def at_scores(model):
    at = chosen(model, "pages/trace.py")
    at.main.selectbox[0].select("Block 1").run()
    at.main.radio[0].set_value("block1.attention.scores").run()
    assert not at.exception and not at.error
    return at


@pytest.mark.parametrize(("model", "shown"), [("transformer", True), ("nanogpt", False), ("vit", False)])
def test_the_four_terms_stand_beside_the_scores_that_have_them(model, shown):
    at = at_scores(model)
    assert ("The same scores as four terms" in [heading.value for heading in at.subheader]) == shown
    captions = [caption.value for caption in at.caption if "the sum differs" in caption.value]
    assert len(captions) == shown
    if shown:
        assert "position–position" in captions[0] and "10⁻⁷" in captions[0]
        next(slider for slider in at.main.slider if slider.label == "Head").set_value(1).run()
        assert any(caption.value.startswith("Head 1") for caption in at.caption)
