"""Signs of equations in plain words: those that stand in a run's own equations, and no others."""

import json
from pathlib import Path

import pytest

from tracer.figures import glossary

GOLDEN = Path(__file__).parent / "golden"


def shown(name: str) -> set[str]:
    steps = json.loads((GOLDEN / f"{name}.json").read_text())["steps"]
    return {sign for sign, _ in glossary.signs(step["latex"] for step in steps)}


@pytest.mark.parametrize(
    ("name", "here", "not_here"),
    [
        ("vit", {r"\mathcal{U}_P", r"\operatorname{heads}_h", r"\operatorname{concat}_h"}, {r"\operatorname{ReLU}"}),
        ("nanogpt-tied", {r"\operatorname{heads}_h", r"{}^{\top}"}, {r"\mathcal{U}_P"}),
        ("transformer-learned", {r"\operatorname{ReLU}"}, {r"\operatorname{GELU}"}),
    ],
)
def test_the_signs_of_a_run_are_told_and_no_others(name, here, not_here):
    found = shown(name)
    assert here <= found and not not_here & found
