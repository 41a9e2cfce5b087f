"""Number of a run's step in a note."""

import pytest

from tests.app.test_app import text, visit
from tests.app.test_stepping import page_payload
from tests.support.note_runs import run
from tracer.figures import op_tables
from tracer.lessons.notes.measurement import RUNS, STANDARD
from tracer.lessons.notes.statements import model_of, number_steps, sections


def test_the_model_of_a_run_is_known_by_its_name():
    assert {name: model_of(name) for name in RUNS} == {name: run.model for name, run in RUNS.items()}
    assert model_of(STANDARD) == RUNS["torchvision"].model


@pytest.mark.parametrize(
    ("model", "step", "number"),
    [
        ("vit-note", "block1.attention.scores", "6b"),
        ("vit-note", "block1.norm2", "8"),
        ("segmenter", "grid", "10"),
        ("nanogpt", "block3.attention.weights", "I.1.3"),
        ("nanogpt", "embedding", ""),
        ("vit-text", "sequence", "II.0.3"),
        ("vit", "block2.attention.weights", "4"),
        ("transformer", "block1.norm1", "7"),
        ("torchvision:vit_b_16", "encoder.layers.encoder_layer_11.attention.packed", "2.1"),
    ],
)
def test_a_step_has_the_number_that_its_note_gives_it(model, step, number):
    assert number_steps(model).of(step) == number


def test_each_number_is_one_of_its_note_and_most_steps_have_one():
    for name in ("vit-note", "nanogpt", "vit-text", "transformer"):
        note, trace = number_steps(name), run(name)[1]
        begun = [title.removeprefix("Step ").split()[0].rstrip(".") for title in sections(note.note)]
        numbers = [note.of(step.id) for step in trace.steps]
        assert {number for number in numbers if number} <= {*begun, "2"}  # of a list that the note begins with
        assert sum(map(bool, numbers)) > 0.8 * len(numbers)


def test_a_model_of_no_note_has_none():
    assert number_steps("llama") is None and number_steps("torchvision:resnet18") is None
    table = op_tables.table(run("llama")[1], "steps")
    assert "in the note" not in [column["name"] for column in table["columns"]]


def test_the_pages_of_steps_name_them():
    at = visit("operations", model="vit-note", zoom="steps")
    assert "In the note: the number of the step in the note “Vision Transformers”." in text(at)
    table = op_tables.table(run("vit-note")[1], "steps", note_of=number_steps("vit-note").of)
    assert table["columns"][2]["name"] == "in the note"
    assert {row["id"]: row["cells"][2] for row in table["rows"]}["step block1.attention.weights"] == "6c"
    _, header = page_payload(visit("trace", model="vit-note"))
    assert header["details"]["block1.attention.context"]["noted"] == [
        ["text", "Step 6d in the note “Vision Transformers”."]
    ]
