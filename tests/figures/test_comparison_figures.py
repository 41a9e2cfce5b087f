"""Two runs packed for the browser: the differences are marked, and every sentence is of these runs."""

import pytest

import tracer
from tests.support.messages import unpack
from tracer.cli.commands import compare as compare_command
from tracer.figures.comparison_payload import build
from tracer.figures.equations import MARK, mark_differences
from tracer.latex_reader import parser

A, B, CHANGED = r"\mathbf{A}", r"\mathbf{B}", r"\check{\mathbf{A}}"
NAMES = (A, B, CHANGED, r"\mathbf{Y}", "d_k")


def replace_marks(text: str) -> str:
    """Return a text with «…» in place of the colour."""
    while (at := text.find(start := rf"\textcolor{{{MARK}}}{{")) >= 0:
        depth, end = 1, at + len(start)
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = f"{text[:at]}«{text[at + len(start) : end - 1]}»{text[end:]}"
    return text.replace(" ", "")


@pytest.mark.parametrize(
    ("a", "b", "first", "second"),
    [
        (A, A, A, A),
        (rf"{A} + 1", rf"{B} + 1", f"«{A}»+1", f"«{B}»+1"),
        (rf"{A}\,2", rf"{CHANGED}\,2", f"«{A}»2", f"«{CHANGED}»2"),
        (rf"\frac{{{A}}}{{\sqrt{{d_k}}}}", A, rf"«\frac{{{A}}}{{\sqrt{{d_k}}}}»", A),
        (rf"{A}^{{2}}", rf"{A}^{{3}}", rf"{A}^{{«2»}}", rf"{A}^{{«3»}}"),
        (rf"\operatorname{{GELU}}\left({A}\right)", rf"\operatorname{{ReLU}}\left({A}\right)",
         rf"«\operatorname{{GELU}}»\left({A}\right)", rf"«\operatorname{{ReLU}}»\left({A}\right)"),
    ],
)  # fmt: skip
def test_what_differs_is_marked_with_its_brackets_closed(a, b, first, second):
    found = tuple(map(replace_marks, mark_differences(a, b, NAMES)))
    assert found == (first, second)


@pytest.fixture(scope="module")
def model():
    return tracer.load("vit", H=8, W=8, P=4, D=8, h=2, d_ff=8, L=2, K=3)


@pytest.fixture(scope="module")
def plain(model):
    return model.trace()


def test_every_pair_of_steps_is_there_and_the_first_difference_is_named(model, plain):
    line = "block2.attention.weights"
    comparison = tracer.compare(plain, model.trace(change={line: "drop_heads(0)"}))
    payload = build(comparison)
    facts = unpack(payload.packed)
    assert [row["id"] for row in facts["rows"]] == [row.id for row in comparison.rows]
    first = facts["rows"][facts["first"]]
    assert first["id"] == f"{line}.changed" and first["alone"] == "right" and first["differs"]
    assert first["sides"][0]["id"] == line and "the step whose value it changes" in first["differences"][0]
    context = next(row for row in facts["rows"] if row["id"] == "block2.attention.context")
    assert MARK in context["sides"][0]["latex"] and MARK in context["sides"][1]["latex"]
    assert context["differences"][1] == "The equations differ mathematically."
    assert facts["maps"][context["map"]]["block"] == 2 and len(facts["maps"][0]["panels"]) == 3
    maps = {row["id"]: row["map"] for row in facts["rows"]}
    assert maps[f"{line}.changed"] == context["map"] and maps[line] is None  # the map is not that of the equal weights
    assert maps["block1.attention.weights"] == 0
    alone = sum(row.alone for row in comparison.rows)
    assert payload.summary[0].startswith(f"{len(plain.steps)} steps of both runs are aligned: ")
    assert payload.summary[-1] == f"{alone} step is on the right only."


def test_marked_equations_are_the_equations_without_the_marks(model, plain):
    comparison = tracer.compare(plain, model.trace(change={"block1.mlp.output": "zero"}))
    facts = unpack(build(comparison).packed)
    names = {name.symbol for step in plain.steps for name in step.names} | {step.symbol for step in comparison.b.steps}
    for row, drawn in zip(comparison.rows, facts["rows"], strict=True):
        for step, side in zip((row.a, row.b), drawn["sides"], strict=True):
            if step and MARK in side["latex"]:
                bare = replace_marks(side["latex"]).replace("«", "").replace("»", "")
                signs = [parser._Reader(text, names).signs for text in (bare, step.latex.replace(" ", ""))]
                assert "".join(signs[0]) == "".join(signs[1])


def test_runs_that_are_equal_say_so(model, plain):
    payload = build(tracer.compare(plain, model.trace()))
    count = len(plain.steps)
    assert payload.summary == (
        f"{count} steps of both runs are aligned: {count} are equal bit by bit.",
        f"All {count} equations are mathematically the same.",
    )
    facts = unpack(payload.packed)
    assert facts["first"] == -1 and {row["share"] for row in facts["rows"]} == {0.0}


def test_values_in_another_order_are_named_a_permutation_on_a_step_that_a_change_put_in_too(model, plain):
    comparison = tracer.compare(plain, model.trace(change={"patches": "shuffle(0)"}))
    rows = {row["id"]: row for row in unpack(build(comparison).packed)["rows"]}
    assert rows["patches.changed"]["differences"][0] == (
        "This step is on the right only: a change put it in. Compared with the step whose value it changes, its values "
        "are equal up to a permutation: axis 1 in another order."
    )
    after = next(row for row in rows.values() if row["relation"] == "permuted")
    assert after["differences"][0].startswith("The values are equal up to a permutation: axis 1 ")


def test_infinite_differences_are_said_in_words():
    model = tracer.load("nanogpt", D=8, h=2, d_ff=8, L=1)
    line = "block1.attention.scores"
    comparison = tracer.compare(model.trace(text="ROMEO"), model.trace(text="ROMEO", change={line: "zero"}))
    assert comparison.first.id == f"{line}.changed" and comparison.first.values.difference == float("inf")
    facts = unpack(build(comparison).packed)
    assert "some are infinite" in facts["rows"][facts["first"]]["differences"][0]
    assert "at most ∞" in compare_command.text(comparison)
