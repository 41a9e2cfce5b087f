"""Textbooks of models of libraries read the same at other sizes of the input."""

import pytest
from sweeping import cases

from tracer.verify import textbooks, zoo

pytest.importorskip("transformers")


NAMES = "hf:gpt2", "hf:bert", "hf:vit", "hf:llama", "hf:gptj", "hf:cohere"


@pytest.mark.parametrize("name", cases(NAMES, ("hf:gpt2",)))
def test_a_textbook_reads_the_same_at_other_sizes(name):
    found = textbooks.compare(name)
    assert name in zoo.NAMES and found.runs == len(textbooks.SIZES) and found.lines > 20
    assert found.differing == ()


def test_each_line_that_differs_is_said():
    one, two, three = (("", text, ("B",), "") for text in "xyz")
    said = dict(textbooks._differences([one, two, three], [one, three]))
    assert said == {1: "only here: y"}
    assert dict(textbooks._differences([one, two], [one, three])) == {1: "'y' / 'z'"}


def test_more_than_one_line_in_a_hundred_is_too_much():
    few, many = (textbooks.Compared("a", 100, 4, ("it",) * count) for count in (1, 2))
    assert textbooks.summary([few])[1] and not textbooks.summary([many])[1]
