"""Solutions of changed runs that are taken over from the plain run: equal to those that are solved anew, or refused."""

from dataclasses import fields, replace

import pytest
import torch

import tracer
from tests.support.loaded_models import load
from tracer import zoo
from tracer.changes import parse_all
from tracer.spec import spec
from tracer.textbook import derivation
from tracer.tracing import solve_first
from tracer.tracing.changed_runs import take_over_solution

CHANGES = {
    "vit": (
        "block2.norm1=zero",
        "block2.norm1=off",
        "patches=mean",
        "block1.mlp.output=noise(0.1, 3)",
        "block2.attention.weights=keep_heads(0)",
        "block3.attention.scores=scale(0.5)",
        "block2.attention.scores=causal",
        "block2.attention.scores=unscale",
        "*.attention.scores=unscale",
        "logits=scale(2)",
        "parameter position=zero",
    ),
    "nanogpt": (
        "block2.attention.weights=drop_heads(1)",
        "block1.mlp.hidden=zero",
        "block2.attention.scores=window(3)",
        "block2.attention.scores=unscale",
        "block2.attention.scores=bidirectional",
    ),
    "vit-text": ("block1.attention.scores=bidirectional",),
    "llama": ("block1.attention.scores=unscale",),
    "transformer": ("block1.attention.weights=mean", "block1.norm2=scale(2)", "block1.attention.scores=unscale"),
    "clip": ("text.block1.attention.output=zero", "image.block2.mlp.output=mean"),
}


@pytest.fixture(autouse=True)
def no_grad():
    """Record runs as models do: their ops are others with gradients."""
    with torch.no_grad():
        yield


def solved_both_ways(model, plain, changes):
    """Return the solution taken over from the plain run, and the one by runs at other sizes alone."""
    changed = model.with_changes(changes)
    inputs = changed.inputs()
    recording = changed._record(inputs, 0, False, False)
    sizes, probes = {**inputs.sizes, **changed.sizes}, [{**changed.sizes, **probe} for probe in changed.spec.probes]
    way = changed.vocabulary, probes
    return take_over_solution(plain, recording, sizes, *way), solve_first(recording, sizes, [way])[0]


def plain_solution(model):
    inputs = model.inputs()
    recording = model._record(inputs, 0, False, False)
    return model._solve(recording, {**inputs.sizes, **model.sizes}, inputs)[0]


@pytest.mark.parametrize(("name", "change"), [(name, change) for name, texts in CHANGES.items() for change in texts])
def test_a_solution_that_is_taken_over_is_the_one_that_is_solved_anew(name, change):
    model = load(name)
    taken_over, solved = solved_both_ways(model, plain_solution(model), parse_all((change,)))
    assert taken_over is not None
    differing = {
        field.name for field in fields(solved) if getattr(taken_over, field.name) != getattr(solved, field.name)
    }
    assert differing <= {"way"}


@pytest.mark.parametrize(
    ("name", "sizes", "line"), [("nanogpt", {"T": 7}, "position"), ("vit", {"B": 19}, "block1.norm2")]
)
def test_a_size_that_is_that_of_a_probe_is_no_number(name, sizes, line):
    """A size that is the same here and in the run that confirms looks like a number."""
    model = load(name)
    assert any(all(probe[size] == number for size, number in sizes.items()) for probe in model.spec.probes)
    run = model.trace(change={line: "mean"}, prove=False, **sizes)
    (symbol,), step = sizes, run.step(f"{line}.changed")
    assert symbol in step.symbolic and f"\\,{sizes[symbol]}\\," not in step.latex


def test_a_change_with_a_number_that_is_no_size_is_solved_anew():
    model = load("vit")
    change = {"block1.mlp.output": lambda value: value / value.shape[-1] ** 0.5}
    taken_over, solved = solved_both_ways(model, plain_solution(model), change)
    assert taken_over is None and "sqrt(D)" in str(solved.scalars)


def test_a_formula_that_holds_at_the_plain_run_only_is_not_taken_over():
    model = load("vit")
    plain = plain_solution(model)
    recording = model._record(model.inputs(), 0, False, False)
    op = next(i for i, op in enumerate(recording.ops) if op.name == "_softmax")
    numbers = tuple(str(size) for size in recording.ops[op].outputs[0][0])
    wrong = replace(plain, outputs=(*plain.outputs[:op], (numbers,), *plain.outputs[op + 1 :]))
    assert solved_both_ways(model, plain, parse_all(("block2.norm1=zero",)))[0] is not None
    assert solved_both_ways(model, wrong, parse_all(("block2.norm1=zero",)))[0] is None


def test_a_number_that_holds_at_the_plain_run_only_is_not_taken_over():
    model = load("vit")
    plain = plain_solution(model)
    key, where = next((key, where) for key, numbers in plain.scalars.items() for where in numbers)
    wrong = replace(plain, scalars={**plain.scalars, key: {where: f"2*({plain.scalars[key][where]})"}})
    assert solved_both_ways(model, wrong, parse_all(("block2.norm1=zero",)))[0] is None


def test_a_solution_with_a_held_size_is_not_taken_over():
    model = load("vit")
    plain = plain_solution(model)
    held = replace(plain, notes=("this op runs only at some sizes: solved with B held at 1", *plain.notes[1:]))
    assert solved_both_ways(model, held, parse_all(("block2.norm1=zero",)))[0] is None


def test_a_change_that_does_not_run_at_other_sizes_is_left_to_the_solver():
    def build(sizes):
        raise ValueError("no such head")

    model = load("vit")
    inputs = model.inputs()
    recording = model._record(inputs, 0, False, False)
    vocabulary = replace(model.vocabulary, build=build, recordings={})
    sizes, probes = {**inputs.sizes, **model.sizes}, [{**model.sizes, **probe} for probe in model.spec.probes]
    assert take_over_solution(plain_solution(model), recording, sizes, vocabulary, probes) is None
    assert take_over_solution(plain_solution(model), recording, sizes, model.vocabulary, probes) is not None


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nanogpt", "block1.mlp.output"),
        ("hf:gpt2", "transformer.h.0.mlp.output"),
        pytest.param("hf:gpt2", "transformer.h.0.attention.weights", marks=pytest.mark.sweep),  # inside fused attention
    ],
)
def test_changed_runs_take_it_over_and_have_the_textbook_that_is_solved_anew(name, line, monkeypatch):
    def changed_run():
        model = tracer.load(name, **(zoo.tiny(name) if ":" in name else {}))
        model.trace(prove=False)
        return model.trace(change={line: "zero"}, prove=False)

    taken = []
    monkeypatch.setattr(
        spec, "take_over_solution", lambda *arguments: taken.append(take_over_solution(*arguments)) or taken[-1]
    )
    run = changed_run()
    assert taken and taken[-1] is not None
    monkeypatch.setattr(spec, "take_over_solution", lambda *arguments: None)
    assert [(step.id, step.latex, step.symbolic) for step in changed_run().steps] == [
        (step.id, step.latex, step.symbolic) for step in run.steps
    ]


@pytest.mark.parametrize(("name", "line"), [("nanogpt", "block1"), ("hf:gpt2", "transformer.h.0")])
def test_changes_of_one_outline_are_checked_with_their_own_numbers(name, line):
    model = tracer.load(name, **(zoo.tiny(name) if ":" in name else {}))
    model.trace(prove=False)
    for head in (0, 1):  # the second run has the solution of the first
        run = model.trace(change={f"{line}.attention.weights": f"drop_heads({head})"}).check()
        assert not [step.id for step in run.steps if step.refuted]
        assert run.step(f"{line}.attention.weights.changed").checked == 3


@pytest.mark.parametrize(("name", "line"), [("nanogpt", "block1"), ("hf:gpt2", "transformer.h.0")])
def test_a_changed_run_derives_its_textbook_once(name, line, monkeypatch):
    model = tracer.load(name, **(zoo.tiny(name) if ":" in name else {}))
    change = {f"{line}.attention.weights": "drop_heads(1)"}
    model.trace()
    before = [(step.id, step.latex) for step in model.trace(change=change).steps]
    derived = []
    monkeypatch.setattr(derivation, "_derive", lambda *args: derived.append(args))
    assert [(step.id, step.latex) for step in model.trace(change=change).steps] == before
    assert not derived
