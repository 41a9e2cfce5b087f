"""Relation of two tensors, and of two printed equations."""

from dataclasses import replace

import pytest
import torch

from tests.support.handmade import sample
from tracer.comparison import Relation, TensorRelation, compare_answers, compare_outputs, compare_tensors
from tracer.comparison.equations import EquationComparison, EquationRelation
from tracer.record import Name, Symbol, Trace

X = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("other", "relation"),
    [
        (X.clone(), Relation.IDENTICAL),
        (X[None].clone(), Relation.IDENTICAL),
        (X + 1e-7, Relation.ROUNDING),
        (X.double(), Relation.ROUNDING),
        (X.half(), Relation.ROUNDING),
        (X + 1e-3, Relation.DIFFERENT),
        (X[[1, 2, 0]], Relation.PERMUTED),
        (X[..., [4, 3, 0, 1, 2]] + 1e-7, Relation.PERMUTED),
        (X.transpose(1, 2), Relation.PERMUTED),
        (X[:2], Relation.SHAPES),
        (X.flip(0).flip(1), Relation.DIFFERENT),
        (X.masked_fill(X > 1, torch.nan), Relation.DIFFERENT),
        (X.masked_fill(X > 1, torch.inf), Relation.DIFFERENT),
        (torch.empty(3, 4, 5, device="meta"), Relation.MISSING),
        (None, Relation.MISSING),
    ],
)
def test_the_relation_of_two_tensors(other, relation):
    assert compare_tensors(X, other).relation is relation


def test_the_permuted_axis_counts_those_that_are_left_out():
    assert compare_tensors(X[None], X[None][:, :, [3, 0, 1, 2]]).note == "axis 2 in another order"
    assert compare_tensors(X[None], X[None].transpose(1, 3)).note == "the last 3 axes in the order 2, 1, 0"


def test_the_difference_is_the_largest_one():
    values = compare_tensors(X, X.index_put((torch.tensor(0), torch.tensor(1), torch.tensor(2)), torch.tensor(9.0)))
    assert values.difference == pytest.approx(abs(9 - X[0, 1, 2].item()))
    assert values.relative == pytest.approx(values.difference / X.abs().max().item())


def test_lowest_numbers_of_a_mask_stand_for_infinities():
    mask = torch.full((3, 3), -torch.inf).triu(1)
    assert compare_tensors(mask, mask.clamp(torch.finfo(torch.float32).min)).relation is Relation.ROUNDING
    assert compare_tensors(mask, mask.T).relation.differs


def test_whole_numbers_have_to_be_the_same():
    assert compare_tensors(torch.tensor([1, 2**24]), torch.tensor([1, 2**24 + 1])).relation is Relation.DIFFERENT
    assert compare_tensors(torch.tensor([True, False]), torch.tensor([1.0, 0.0])).relation is Relation.ROUNDING


def test_outputs_are_compared_tensor_by_tensor():
    assert compare_outputs({"x": X, "y": (X,)}, {"x": X, "y": (X + 1,)}).relation is Relation.DIFFERENT
    assert compare_outputs((X, X), X).note == "2 and 1 tensors"
    assert compare_outputs(None, None).relation is Relation.MISSING


def test_what_is_no_tensor_is_compared_or_named():
    assert compare_outputs(("cat", X), ("dog", X)) == TensorRelation(Relation.DIFFERENT, note="'cat' and 'dog'")
    assert compare_outputs(("cat", X), ("cat", X)).relation is Relation.IDENTICAL
    assert compare_outputs((1.0, X), (1.0 + 1e-7, X)).relation is Relation.ROUNDING
    assert (
        compare_outputs((1, X), (2, X)).relation is compare_outputs((1.0, X), (1.1, X)).relation is Relation.DIFFERENT
    )
    assert compare_outputs((1, X), X).note == "1 and 0 other values"
    unknown = compare_outputs((object(), X), (object(), X))
    assert unknown.note == "object can't be compared" and unknown.relation is Relation.IDENTICAL


SIZES = (Symbol("D", "", 12), Symbol("h", "", 3), Symbol("d_k", "", 4, "D/h"))


def book(latex: str, path: str) -> Trace:
    """Return a run of one line, whose letters stand for parameters of a module at `path`."""
    names = tuple(Name(rf"\mathbf{{{letter}}}", f"parameter {path}.{letter}") for letter in "ABC")
    step = replace(sample().steps[0], symbol=r"\mathbf{Y}", latex=rf"\mathbf{{Y}} = {latex}", names=names)
    return replace(sample(), steps=(step,), symbols=SIZES)


def relation(one: str, two: str, path: str = "net") -> EquationRelation:
    """Return the relation of two equations of aligned lines, of models whose parameters are at `net` and `path`."""
    letters = {letter: rf"\mathbf{{{letter}}}" for letter in "ABC"}
    one, two = ("".join(letters.get(sign, sign) for sign in text) for text in (one, two))
    a, b = book(one, "net"), book(two, path)
    return EquationComparison(a, b, [(a.steps[0], b.steps[0])]).relation(a.steps[0], b.steps[0])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("A + B", "B + A"),
        (r"A + \left(B + C\right)", "B + A + C"),
        (r"A \odot B", r"B \odot A"),
        (r"\frac{A\,B}{2}", r"0.5 \cdot A\,B"),
        (r"\frac{A\,B}{\sqrt{d_k}}", r"A\,\frac{B}{\sqrt{\frac{D}{h}}}"),
        (r"-\left(-A\right)", "A"),
        (r"\left(A\,B\right)^{\top}", r"{B}^{\top}\,{A}^{\top}"),
        (r"\left(A\,B\right)\,C", r"A\,\left(B\,C\right)"),
    ],
)
def test_the_same_mathematics_in_another_spelling(one, two):
    assert relation(one, two) is EquationRelation.RESPELLED
    assert relation(one, one) is EquationRelation.SAME
    assert relation(one, two, "model") is not EquationRelation.DIFFERENT


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (r"A\,B", r"B\,A"),
        ("A + B", "A - B"),
        ("A", "B"),
        ("A + A", "A + B"),
        (r"\frac{A}{\sqrt{d_k}}", r"\frac{A}{\sqrt{D}}"),
        (r"\operatorname{ReLU}\left(A\right)", r"\operatorname{GELU}\left(A\right)"),
        (r"A\,B + C", r"A\,\left(B + C\right)"),
        (r"A + 10^{-5}", r"A + 10^{-6}"),
    ],
)
def test_another_equation_is_different(one, two):
    assert relation(one, two) is EquationRelation.DIFFERENT


def test_parameters_of_two_models_stand_for_each_other_always_alike():
    assert relation("A + B", "A + C", "model") is EquationRelation.RESPELLED
    assert relation("A + A", "A + B", "model") is EquationRelation.DIFFERENT
    assert relation("A + B", "A + A", "model") is EquationRelation.DIFFERENT


def test_what_the_reader_does_not_know_is_not_judged():
    assert relation("A", r"\wp(A)") is EquationRelation.UNREAD


def test_answers_have_the_probabilities_of_both():
    a = {"kind": "classes", "classes": ["cat", "dog"], "probabilities": [0.9, 0.1]}
    b = {"kind": "next", "tokens": ["dog", "cow"], "probabilities": [0.7, 0.3]}
    answers = compare_answers(a, b)
    assert (answers.a, answers.b, answers.same) == ("cat", "dog", False)
    assert answers.shares == (("cat", 0.9, None), ("dog", 0.1, 0.7), ("cow", None, 0.3))
    first, second = (
        {"kind": "classes", "classes": list(shares), "probabilities": list(shares.values())}
        for shares in ({"cat": 0.6, "dog": 0.4}, {"cat": 0.1, "cow": 0.9})
    )
    assert [name for name, *_ in compare_answers(first, second).shares] == [
        "cow",
        "cat",
        "dog",
    ]  # by the larger of both
    assert compare_answers(a, a).same and compare_answers({}, a) is None
    assert compare_answers({"kind": "classes"}, a) is None
    said = {"kind": "tokens", "tokens": list("abc"), "probabilities": [1, 1, 1]}
    assert compare_answers(said, said).a == "abc"
