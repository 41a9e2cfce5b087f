"""Signs of equations in plain words: those in a run's own equations, and no others."""

import json
import re
from pathlib import Path

import pytest

from tests.support.node_examples import examples
from tracer.expr.node import latex
from tracer.figures import equations

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def golden_signs(name: str) -> set[str]:
    steps = json.loads((GOLDEN / f"{name}.json").read_text())["steps"]
    return {sign for sign, _ in equations.signs(step["latex"] for step in steps)}


@pytest.mark.parametrize(
    ("name", "here", "not_here"),
    [
        ("vit", {r"\mathcal{U}_P", r"\operatorname{heads}_h", r"\operatorname{concat}_h"}, {r"\operatorname{ReLU}"}),
        ("nanogpt-tied", {r"\operatorname{heads}_h", r"\mathbf{X}^{\top}"}, {r"\mathcal{U}_P"}),
        ("transformer-learned", {r"\operatorname{ReLU}"}, {r"\operatorname{GELU}"}),
    ],
)
def test_the_signs_of_a_run_are_told_and_no_others(name, here, not_here):
    found = golden_signs(name)
    assert here <= found and not not_here & found


@pytest.mark.parametrize("name", sorted(set(examples()) - {"Kernel"}))  # which has the name of PyTorch's own op
def test_every_function_of_an_equation_is_told(name):
    written = latex(examples()[name].node)
    told = {said.partition("_")[0] for said in equations.FUNCTIONS}
    assert set(re.findall(r"\\operatorname\{(\w+)\}", written)) <= told


def test_functions_are_told_once():
    assert len({said.partition("_")[0] for said in equations.FUNCTIONS}) == len(equations.FUNCTIONS)
    assert equations.signs([r"\operatorname{argtop}_{2}(x)"]) == [
        (r"\operatorname{argtop}_k", "the indices of the k largest numbers")
    ]


def test_words_are_those_of_the_stages_of_a_run():
    assert [word for word, _ in equations.words(["convolution", "head"])] == ["feature map", "channel", "logits"]
    assert "query, key, value" in dict(equations.words(["attention", "norm"]))
