"""Four terms of a score: maps on one scale, their sum, and its distance from the run."""

import numpy as np
import pytest

from tests.app.test_app import visit
from tests.app.test_models_in_app import open_model
from tests.app.test_stepping import page_payload
from tracer.figures import attention_charts

TERMS = {"a": np.array([[1.0, 2], [3, 4]]), "b": np.array([[-5.0, 0], [0, 1]])}


def test_every_term_the_sum_and_the_scores_are_on_one_scale():
    scores = np.array([[-4.0, -np.inf], [3, 6]])
    terms = attention_charts.build_terms({name: term[None] for name, term in TERMS.items()}, scores[None])
    assert terms["names"] == ["a", "b", "their sum", "the scores that ran"]
    maps = terms["cells"][0]
    assert maps[2].tolist() == [[-4, 2], [3, 5]] and np.isneginf(maps[3, 0, 1])  # hidden by a mask
    assert terms["edges"] == [6] and terms["largest"] == ["a"] and terms["which"] == [0]
    assert attention_charts.difference(TERMS, scores) == pytest.approx(1 / 6)
    many = attention_charts.build_terms({"a": np.ones((12, 200, 200))}, np.ones((12, 200, 200)), head=3)
    assert many["which"] == [3] and many["heads"] == 12


@pytest.mark.parametrize(("model", "shown"), [("transformer", True), ("nanogpt", False), ("vit", False)])
def test_the_four_terms_stand_beside_the_scores_that_have_them(model, shown):
    at = open_model(model, "pages/trace.py")
    assert not at.exception and not at.error
    found = page_payload(at)[1]["details"]["block1.attention.scores"].get("terms")
    assert bool(found) == shown
    if shown:
        assert "position–position" in found["names"] and "10⁻⁷" in found["error"]
        assert len(found["largest"]) == found["heads"] > 1


@pytest.mark.parametrize(("line", "shown"), [("embedding", True), ("block1.attention.query", False)])
def test_of_changed_scores_the_terms_are_shown_where_they_add_up(line, shown):
    at = visit("trace", model="transformer", step="block1.attention.scores", change=f"{line}=scale(2)")
    details = page_payload(at)[1]["details"]["block1.attention.scores"]
    assert ("terms" in details) == shown
