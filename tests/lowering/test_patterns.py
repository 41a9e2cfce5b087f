"""Formulas with gaps: what they match, what fills them, and how rearrangements are named."""

import math
import re

import pytest
import sympy
import torch

from tracer.expr import (
    Arange,
    Compare,
    Concat,
    Div,
    Grid,
    MergeHeads,
    Minus,
    Plus,
    Rearrange,
    Root,
    Scalar,
    SplitHeads,
    Tensor,
    Times,
    WindowReverse,
    execute,
    latex,
)
from tracer.lowering.patterns import OneOf, Rule, Wild, match, match_axes, rewrite
from tracer.lowering.rewrites import REARRANGEMENTS, name_rearrangement, simplify
from tracer.symbols.notation import symbol

B, T, D, h, P = map(symbol, ("B", "T", "D", "h", "P"))
X, Y = (Tensor(rf"\mathbf{{{name}}}", (B, T, D), f"step {name}") for name in "XY")
ANYTHING, OTHER = Wild("x"), Wild("y")


def test_gaps_hold_nodes_sizes_and_settings():
    assert match(Div(ANYTHING, Root(OTHER)), Div(X, Root(Y))) == {"x": X, "y": Y}
    assert match(Arange(Wild("n")), Arange(T)) == {"n": T}
    assert match(Compare(ANYTHING, Scalar(0), sign=Wild("sign")), Compare(X, Scalar(0), sign="<")) == {
        "x": X,
        "sign": "<",
    }


@pytest.mark.parametrize(
    ("pattern", "node"),
    [
        (Div(ANYTHING, ANYTHING), Div(X, Y)),
        (Div(ANYTHING, Root(OTHER)), Div(X, Y)),
        (Div(Wild("x", Times), OTHER), Div(X, Y)),
        (Plus(ANYTHING, OTHER), Plus(X, Y, X)),
        (Compare(ANYTHING, OTHER, sign=">"), Compare(X, Y, sign="<")),
        (OneOf(Times(ANYTHING, OTHER), Plus(ANYTHING, OTHER)), Div(X, Y)),
    ],
)
def test_what_differs_does_not_match(pattern, node):
    assert match(pattern, node) is None


def test_a_setting_that_is_left_out_may_be_anything():
    joined = Concat(X, X, axis=2, rank=3)
    assert match(Concat(ANYTHING, ANYTHING, axis=2), joined) == {"x": X}
    assert match(Concat(ANYTHING, ANYTHING, axis=1), joined) is None


def test_a_gap_without_a_name_holds_anything_and_is_not_kept():
    assert match(Div(Wild(), Wild()), Div(X, Y)) == {}


def test_the_first_alternative_that_fits_the_whole_counts():
    pattern = Times(OneOf(Root(ANYTHING), ANYTHING), ANYTHING)
    assert match(pattern, Times(X, X)) == {"x": X}
    assert match(pattern, Times(Root(X), X)) == {"x": X}


def test_the_first_rule_with_a_replacement_counts():
    rules = [Rule(Plus(ANYTHING, OTHER), lambda x, y: None), Rule(Plus(ANYTHING, ANYTHING), lambda x: x)]
    assert rewrite(rules, Plus(X, X)) == X
    assert rewrite(rules, Plus(X, Y)) is None and rewrite(rules, X) is None


def test_letters_are_factors_and_capitals_are_axes():
    assert match_axes("... S (h d) -> ... h S d", ((0,), (1, 2), (3, 4)), ((0,), (3,), (1, 2), (4,))) == {
        "...": ((0,),),
        "S": (1, 2),
        "h": 3,
        "d": 4,
    }
    assert match_axes("s (h d) -> s h d", ((1, 2), (3, 4)), ((1, 2), (3,), (4,))) is None, "two factors of one letter"
    assert match_axes("s d -> d s", ((0,), (1,)), ((0,), (1,))) is None
    assert match_axes("s d -> d s", ((2,), (0,), (1,)), ((2,), (1,), (0,))) is None, "no dots, and an axis in front"
    assert match_axes("... D -> b t D", ((), (0,)), ((1,), (2,), (0,))) == {"...": ((),), "D": (0,), "b": 1, "t": 2}


@pytest.mark.parametrize(
    ("sizes", "left", "right", "named"),
    [
        ((B, T, h, D), ((0,), (1,), (2, 3)), ((0,), (2,), (1,), (3,)), SplitHeads(X, h)),
        ((B, T, h, D), ((0,), (2,), (1,), (3,)), ((0,), (1,), (2, 3)), MergeHeads(X, h)),
        ((B, T, P, h, P, D), ((0, 1, 3), (2, 4), (5,)), ((0,), (1, 2), (3, 4), (5,)), WindowReverse(X, T * P, h * P)),
        ((B, T, P, h, D, D), ((0, 1, 3), (2, 4), (5,)), ((0,), (1, 2), (3, 4), (5,)), None),
        ((B, T, h, D), ((0,), (1, 2), (3,)), ((0,), (1,), (2,), (3,)), None),
    ],
)
def test_a_rearrangement_has_the_name_of_its_axes_and_sizes(sizes, left, right, named):
    """Windows are square, and a grid has the height and the width of a picture."""
    assert name_rearrangement(X, sizes, left, right) == named
    grid = name_rearrangement(X, (B, symbol("H"), symbol("W"), D), ((0,), (1, 2), (3,)), ((0,), (1,), (2,), (3,)))
    assert grid == Grid(X, symbol("H"), symbol("W"))


SMALL = {"b": 2, "c": 3, "d": 3, "D": 2, "h": 2, "k": 2, "p": 2, "q": 3, "r": 2, "s": 4, "S": 3}
"""A size for each letter of a pattern of axes."""


@pytest.mark.parametrize("rule", REARRANGEMENTS, ids=lambda rule: rule.axes)
def test_a_named_rearrangement_computes_what_its_axes_say(rule):
    sides = [re.findall(r"\([^)]*\)|\w+", side) for side in rule.axes.split(" -> ")]
    axes = [[name.strip("()").split() for name in side] for side in sides]
    letters = [name for axis in axes[0] for name in axis]
    sizes = [SMALL[name[0]] for name in letters]
    places = [tuple(tuple(map(letters.index, axis)) for axis in side) for side in axes]
    shape = tuple(math.prod(sizes[place] for place in axis) for axis in places[0])
    tensor, values = Tensor("X", shape, "step x"), torch.arange(float(math.prod(shape))).reshape(shape)
    node = rule.node.xreplace({Wild("x"): tensor} | {Wild(name): sympy.Integer(size) for name, size in SMALL.items()})
    spelled = Rearrange(tensor, sizes, *places)
    assert execute(node, lambda _: values, float).equal(execute(spelled, lambda _: values, float))


def channels(name: str, right=((0,), (), ())):
    """Return a vector over the channels of a picture."""
    return Rearrange(Tensor(name, (D,), f"parameter {name}"), (D,), ((0,),), right)


@pytest.mark.parametrize(("right", "named"), [(((0,), (), ()), True), (((), (0,), ()), False)])
def test_a_frozen_norm_is_named_where_its_vectors_are_of_channels(right, named):
    image = Tensor("X", (B, D, T, T), "input x")
    gamma, beta, mean, variance = (channels(name, right) for name in "gbmv")
    scale = Div(gamma, Root(Plus(variance, Scalar(1e-5))))
    spelled = Plus(Times(image, scale), Minus(beta, Times(mean, scale)))
    assert (simplify(spelled) != spelled) == named, latex(simplify(spelled))
