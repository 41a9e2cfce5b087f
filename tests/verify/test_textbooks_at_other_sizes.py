"""Textbooks of models of libraries read the same at other sizes of the input."""

import pytest

from tests.support.sweeping import cases
from tracer.verify import same_textbook, survey_zoo

pytest.importorskip("transformers")


NAMES = "hf:gpt2", "hf:bert", "hf:vit", "hf:llama", "hf:gptj", "hf:cohere"


@pytest.mark.parametrize("name", cases(NAMES, ("hf:gpt2",)))
def test_a_textbook_reads_the_same_at_other_sizes(name):
    found = same_textbook.compare(name)
    assert name in survey_zoo.NAMES and found.runs == len(same_textbook.SIZES) and found.lines > 20
    assert found.differing == ()


def test_each_line_that_differs_is_said():
    one, two, three = (("", text, ("B",), "") for text in "xyz")
    said = dict(same_textbook._differences([one, two, three], [one, three]))
    assert said == {1: "only here: y"}
    assert dict(same_textbook._differences([one, two], [one, three])) == {1: "'y' / 'z'"}


def test_more_than_one_line_in_a_hundred_is_too_much():
    few, many = (same_textbook.TextbookComparison("a", 100, 4, ("it",) * count) for count in (1, 2))
    assert same_textbook.summary([few])[1] and not same_textbook.summary([many])[1]


def test_a_line_that_differs_for_a_listed_reason_is_counted_apart_and_a_stale_reason_fails(monkeypatch):
    known = same_textbook.Reason("a", "sum", "It sums.")
    monkeypatch.setattr(
        same_textbook, "REASONS", (known, same_textbook.Reason("b", "mean", "It is not a model of these."))
    )
    left, had = same_textbook.sorted_out("a", ["B = 2 and B = 1: sum", "a mean"])
    assert (left, had) == (("a mean",), (known,)) and same_textbook.sorted_out("b", ["sum"]) == (("sum",), ())
    said, enough = same_textbook.summary([same_textbook.TextbookComparison("a", 100, 4, left, reasons=had)])
    assert enough and "a: 1 more, for a reason: It sums." in said
    said, enough = same_textbook.summary([same_textbook.TextbookComparison("a", 100, 4)])
    assert not enough and "a: stale reason, no line differs so: It sums." in said


@pytest.mark.sweep
def test_a_model_of_a_list_of_photos_is_compared_at_the_sides_that_it_is_built_for(monkeypatch):
    sides = []
    monkeypatch.setattr(
        same_textbook, "_trace", lambda model, at: sides.append((model.sizes["H"], model.sizes["W"], at))
    )
    monkeypatch.setattr(same_textbook, "lines_of", lambda trace: [])
    monkeypatch.setattr(same_textbook, "perturb_parameters", lambda net: None)
    assert same_textbook.compare("torchvision:ssdlite320_mobilenet_v3_large").runs == 4
    assert sides == [(side, side, {}) for side in (320, 480, 640, 800)]
    monkeypatch.setattr(same_textbook, "_sizes", lambda model, number: {})
    assert same_textbook.compare("torchvision:ssdlite320_mobilenet_v3_large").reason == same_textbook.IN_A_LIST
