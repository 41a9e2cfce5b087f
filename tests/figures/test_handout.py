"""A run as a handout: all of it in one file, verified, and nothing that runs or loads."""

import html
import re

import pytest

import tracer
from tests.support.handmade import sample
from tests.support.sweeping import cases
from tracer.cli import main
from tracer.figures import handout


@pytest.mark.parametrize("name", cases(("vit", "nanogpt", "clip"), ("vit", "nanogpt")))
def test_a_handout_has_photo_answer_maps_equations_shapes_and_verdicts(name):
    trace = tracer.load(name).trace()
    page = handout.render(trace)
    assert page.startswith("<!doctype html>") and page.endswith("</html>\n")
    assert not re.search(r"<script|<link|(?:src|href)=\"(?!data:)|url\(", page)
    assert ("What went in" in page) and "What came out" in page and "How it is verified" in page
    assert page.count("<figure>") >= len(trace.attentions)
    assert f"{sum(step.verdict == 'verified' for step in trace.steps)} verified" in page
    said = html.unescape(page)
    for step in trace.steps:
        assert step.title in said and str(list(step.shape)) in said, step.id
    if trace.picture is not None:
        assert page.count("data:image/jpeg") > 1


def test_what_a_strangers_run_says_is_text():
    bad = "<script>x</script>"
    run = sample()
    page = handout.render(sample(model=bad, weights=bad, words=(bad,), result={"classes": ["a"], "probabilities": 3}))
    assert bad not in page and "can’t be read" in page and run.steps[0].title in page


def test_the_command_writes_a_handout_of_a_model_and_of_a_saved_run(tmp_path, capsys):
    model, saved, again = tmp_path / "a.html", tmp_path / "a.safetensors", tmp_path / "b.html"
    assert main(["handout", "nanogpt", "--out", str(model)]) == 0
    assert main(["trace", "nanogpt", "--out", str(saved)]) == 0
    assert main(["handout", str(saved), "--out", str(again)]) == 0
    assert "A run of nanogpt" in model.read_text() and "A run of nanogpt" in again.read_text()
    capsys.readouterr()
    assert main(["handout", "vit", "--text", "To be"]) == 2
    assert "'vit' takes no text" in capsys.readouterr().err
    assert main(["handout", str(saved), "--text", "To be"]) == 2
    assert "a saved run has its input" in capsys.readouterr().err
