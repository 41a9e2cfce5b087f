"""Textbooks of models of libraries read the same at other sizes of the input."""

import pytest

from tests.support.sweeping import cases
from tracer.verify import surveys

pytest.importorskip("transformers")


NAMES = "hf:gpt2", "hf:bert", "hf:vit", "hf:llama", "hf:gptj", "hf:cohere"


@pytest.mark.parametrize("name", cases(NAMES, ("hf:bert",)))
def test_a_textbook_reads_the_same_at_other_sizes(name):
    found = surveys.compare(name)
    assert name in surveys.NAMES and found.runs == len(surveys.SIZES) and found.lines > 20
    assert found.differing == ()


def test_each_line_that_differs_is_said():
    one, two, three = (("", text, ("B",), "") for text in "xyz")
    said = dict(surveys._differences([one, two, three], [one, three]))
    assert said == {1: "only here: y"}
    assert dict(surveys._differences([one, two], [one, three])) == {1: "'y' / 'z'"}


def test_more_than_one_line_in_a_hundred_is_too_much():
    few, many = (surveys.TextbookComparison("a", 100, 4, ("it",) * count) for count in (1, 2))
    assert surveys.summary([few])[1] and not surveys.summary([many])[1]


def test_a_line_that_differs_for_a_listed_reason_is_counted_apart_and_a_stale_reason_fails(monkeypatch):
    known = surveys.Reason("a", "sum", "It sums.")
    monkeypatch.setattr(surveys, "REASONS", (known, surveys.Reason("b", "mean", "It is not a model of these.")))
    left, had = surveys.sorted_out("a", ["B = 2 and B = 1: sum", "a mean"])
    assert (left, had) == (("a mean",), (known,)) and surveys.sorted_out("b", ["sum"]) == (("sum",), ())
    said, enough = surveys.summary([surveys.TextbookComparison("a", 100, 4, left, reasons=had)])
    assert enough and "a: 1 more, for a reason: It sums." in said
    said, enough = surveys.summary([surveys.TextbookComparison("a", 100, 4)])
    assert not enough and "a: stale reason, no line differs so: It sums." in said


@pytest.mark.sweep
def test_a_model_of_a_list_of_photos_is_compared_at_the_sides_that_it_is_built_for(monkeypatch):
    sides = []
    monkeypatch.setattr(surveys, "_trace", lambda model, at: sides.append((model.sizes["H"], model.sizes["W"], at)))
    monkeypatch.setattr(surveys, "lines_of", lambda trace: [])
    monkeypatch.setattr(surveys, "perturb_parameters", lambda net: None)
    assert surveys.compare("torchvision:ssdlite320_mobilenet_v3_large").runs == 4
    assert sides == [(side, side, {}) for side in (320, 480, 640, 800)]
    monkeypatch.setattr(surveys, "_sizes", lambda model, number: {})
    assert surveys.compare("torchvision:ssdlite320_mobilenet_v3_large").reason == surveys.IN_A_LIST
