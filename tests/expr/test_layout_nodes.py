"""Layouts, places and brackets: patterns against einops' own reading of them, nested expressions against the reader."""

import random

import numpy as np
import pytest
import sympy
import torch

from tracer.expr import (
    GELU,
    Absolute,
    And,
    Compare,
    Concat,
    Convolution,
    Cosine,
    Div,
    Einsum,
    Exp,
    Expm1,
    Floor,
    Lerp,
    LogSoftmax,
    Maximum,
    Mean,
    Minus,
    Negative,
    Node,
    Not,
    Or,
    Over,
    Plus,
    Power,
    Product,
    Rearrange,
    Remainder,
    RMSNormOver,
    Scalar,
    Scaled,
    Sigmoid,
    Slice,
    Softmax,
    Sum,
    Tensor,
    Times,
    Transposed,
    Where,
    execute,
    infer,
    latex,
)
from tracer.latex_reader.evaluator import evaluate
from tracer.latex_reader.parser import UnreadableLatex, read
from tracer.symbols import notation
from tracer.symbols.notation import symbol

B, S, h, d_k, N, C, H, W = map(symbol, ("B", "S", "h", "d_k", "N", "C", "H", "W"))
SIZES = {"B": 2, "S": 5, "h": 3, "d_k": 4, "N": 6, "C": 7, "H": 8, "W": 9}
FULL_SLICE = (None, None, None)


def size(expression) -> float:
    return float(sympy.sympify(expression).subs({symbol(name): value for name, value in SIZES.items()}))


def tensor(*shape, name: str = r"\mathbf{X}") -> tuple[Tensor, torch.Tensor]:
    shape = tuple(map(sympy.sympify, shape))
    numbers = torch.Generator().manual_seed(len(name) + len(shape))
    return Tensor(name, shape, name), torch.randn([int(size(one)) for one in shape], generator=numbers).double()


def agree(node: Node, values: dict[str, torch.Tensor], expected: torch.Tensor | None = None) -> None:
    """Return a node's value, its shape, and the value of its LaTeX."""
    made = execute(node, lambda leaf: values[leaf.key], size)
    if expected is not None:
        assert made.equal(expected)
    assert tuple(map(size, infer(node))) == tuple(made.shape)
    sizes = {notation.latex(symbol(name)): np.asarray(value) for name, value in SIZES.items()}
    arrays = {name: value.numpy() for name, value in values.items()}
    line = read(rf"\mathbf{{Z}} = {latex(node)}", {r"\mathbf{Z}", *sizes, *arrays})
    told = evaluate(line, lambda name: sizes[name] if name in sizes else arrays[name], tuple(made.shape))
    assert np.allclose(told * 1.0, made.double().numpy(), rtol=1e-9, atol=1e-9, equal_nan=True), latex(node)


LAYOUTS = {
    r"{\mathbf{X}}_{[B\,S\,(h\,d_k) \to B\,h\,S\,d_k]}": (
        (B, S, h * d_k),
        ((B, S, h, d_k), ((0,), (1,), (2, 3)), ((0,), (2,), (1,), (3,))),
        lambda x: x.unflatten(-1, (3, 4)).transpose(1, 2),
    ),
    r"{\mathbf{X}}_{[B\,h\,S\,d_k \to B\,S\,(h\,d_k)]}": (
        (B, h, S, d_k),
        ((B, h, S, d_k), ((0,), (1,), (2,), (3,)), ((0,), (2,), (1, 3))),
        lambda x: x.transpose(1, 2).flatten(2),
    ),
    r"{\mathbf{X}}_{[B\,S \to B\,1\,1\,S]}": (
        (B, S),
        ((B, S), ((0,), (1,)), ((0,), (), (), (1,))),
        lambda x: x[:, None, None],
    ),
    r"{\mathbf{X}}_{[B\,h\,S \to B\,(h\,2)\,S]}": (
        (B, h, S),
        ((B, h, S, 2), ((0,), (1,), (2,)), ((0,), (1, 3), (2,)), (3,)),
        lambda x: x.repeat_interleave(2, 1),
    ),
    r"{\mathbf{X}}_{[S\,S' \to S'\,S]}": ((S, S), ((S, S), ((0,), (1,)), ((1,), (0,))), lambda x: x.T),
    r"{\mathbf{X}}_{[B\,\left(N + 1\right) \to (B\,\left(N + 1\right))]}": (
        (B, N + 1),
        ((B, N + 1), ((0,), (1,)), ((0, 1),)),
        lambda x: x.flatten(),
    ),
    r"{\mathbf{X}}_{[1\,S \to S\,B]}": (
        (1, S),
        ((1, S, B), ((0,), (1,)), ((1,), (2,)), (2,)),
        lambda x: x[0, :, None].expand(5, 2),
    ),
    r"{\mathbf{X}}_{[B\,C\,(2\,\left(\frac{H}{2}\right))\,W \to B\,(C\,2)\,\left(\frac{H}{2}\right)\,W]}": (
        (B, C, H, W),
        ((B, C, 2, H / 2, W), ((0,), (1,), (2, 3), (4,)), ((0,), (1, 2), (3,), (4,))),
        lambda x: x.unflatten(2, (2, 4)).flatten(1, 2),
    ),
}


@pytest.mark.parametrize("printed", LAYOUTS)
def test_layouts(printed):
    shape, pattern, plain = LAYOUTS[printed]
    x, value = tensor(*shape)
    node = Rearrange(x, *pattern)
    assert latex(node) == printed
    agree(node, {x.key: value}, plain(value))
    assert node.func(*node.args) == node


INDEXED_CASES = {
    r"{\mathbf{X}}_{[:,\,0,\,:]}": ((FULL_SLICE, 0, FULL_SLICE), lambda x: x[:, 0]),
    r"{\mathbf{X}}_{[0,\,:,\,:]}": ((0, FULL_SLICE, FULL_SLICE), lambda x: x[0]),
    r"{\mathbf{X}}_{[\ldots,\,2:4]}": ((FULL_SLICE, FULL_SLICE, (2, 4, None)), lambda x: x[..., 2:4]),
    r"{\mathbf{X}}_{[\ldots,\,:d_k]}": ((FULL_SLICE, FULL_SLICE, (None, d_k, None)), lambda x: x[..., :4]),
    r"{\mathbf{X}}_{[:,\,1:,\,0]}": ((FULL_SLICE, (1, None, None), 0), lambda x: x[:, 1:, 0]),
    r"{\mathbf{X}}_{[:,\,-1,\,:]}": ((FULL_SLICE, -1, FULL_SLICE), lambda x: x[:, -1]),
    r"{\mathbf{X}}_{[\ldots,\,::2]}": ((FULL_SLICE, FULL_SLICE, (None, None, 2)), lambda x: x[..., ::2]),
    r"{\mathbf{X}}_{[:,\,1:-1,\,1::3]}": ((FULL_SLICE, (1, -1, None), (1, None, 3)), lambda x: x[:, 1:-1, 1::3]),
}


@pytest.mark.parametrize("printed", INDEXED_CASES)
def test_places(printed):
    x, value = tensor(B, S, h * d_k)
    entries, plain = INDEXED_CASES[printed]
    node = Slice(x, entries)
    assert latex(node) == printed
    agree(node, {x.key: value}, plain(value))
    assert node.func(*node.args) == node


def test_a_place_in_a_vector_is_no_row():
    x, value = tensor(S)
    assert latex(Slice(x, (2,))) == r"{\mathbf{X}}_{[\ldots,\,2]}"
    agree(Slice(x, (2,)), {x.key: value}, value[2])


@pytest.mark.parametrize(
    ("printed", "said"),
    {
        r"{\mathbf{X}}_{[B\,S \to S]}": "lost",
        r"{\mathbf{X}}_{[S\,B \to B\,S]}": "lays out",
        r"{\mathbf{X}}_{[B\,S \to B\,S\,S]}": "twice",
        r"{\mathbf{X}}_{[:,\,9]}": "of 5",
        r"{\mathbf{X}}_{[0,\,0,\,0]}": "3 places",
        r"\operatorname{mean}_{C}\left(\mathbf{X}\right)": "no axis of 7",
        r"\operatorname{median}\left(\mathbf{X}\right)": "median",
        r"\left[\,\sum_{k} {\mathbf{X}}_{ij}\,\right]_{ij}": "indices",
    }.items(),
)
def test_what_can_not_be_is_refused(printed, said):
    names = {r"\mathbf{Z}", r"\mathbf{X}", *SIZES}
    with pytest.raises(UnreadableLatex, match=said):
        line = read(rf"\mathbf{{Z}} = {printed}", names)
        evaluate(line, lambda name: np.ones((2, 5)) if "X" in name else np.asarray(SIZES[name]), (2, 5))


def test_equal_sizes_are_told_apart():
    x, value = tensor(h, S, S)
    assert latex(Mean(x, axes=(1,), labels=None)) == r"\operatorname{mean}_{\text{axis }1}\left(\mathbf{X}\right)"
    agree(Mean(x, axes=(1,), labels=None), {x.key: value})
    agree(Sum(x, axes=(2,), labels=(S,), keep=True), {x.key: value})


ONE = [Negative, Exp, Expm1, Absolute, Cosine, Sigmoid, Softmax, LogSoftmax, Transposed, GELU, Floor, Not]
TWO = [Plus, Plus, Minus, Minus, Times, Times, Product, Product, Div, Remainder, Maximum, And, Or]


def grown(depth: int, draw: random.Random, leaves: list[Tensor]) -> Node:
    """Return an expression of square matrices."""
    if not depth:
        return draw.choice([*leaves, *leaves, *leaves, Scalar(2), Scalar(-0.5)])

    def inner() -> Node:
        return grown(draw.randrange(depth), draw, leaves)

    def matrix() -> Node:
        found = inner()
        return found if infer(found) else draw.choice(leaves)

    match draw.randrange(12):
        case 0 | 1 | 2:
            return draw.choice(ONE)(matrix())
        case 3:
            return Scaled(Scalar(draw.choice([2, -3, 0.25, sympy.sqrt(S)])), matrix())
        case 4:
            return Over(matrix(), sympy.sqrt(S))
        case 5:
            made = [Where(Compare(inner(), inner(), sign=draw.choice([r"\le", "=", r"\ne"])), matrix(), matrix())]
            made += [
                Power(Absolute(matrix()), Scalar(draw.choice([2, 3, 0.5]))),
                Where(draw.choice([And, Or])(matrix(), matrix()), matrix(), inner()),
            ]
            return draw.choice(made)
        case 6:
            made = [
                Lerp(matrix(), matrix(), inner()),
                RMSNormOver(matrix(), eps=1e-3),
                Mean(matrix(), axes=(1,), keep=True),
            ]
            return draw.choice(made)
        case 7:
            return Einsum(matrix(), matrix(), axes="ij,kj->ik")
    return draw.choice(TWO)(matrix(), matrix())


@pytest.mark.parametrize("seed", range(300))
def test_nested_expressions_are_read_as_they_run(seed):
    draw = random.Random(seed)
    made = [tensor(S, S, name=rf"\mathbf{{{'XYV'[i]}}}") for i in range(3)]
    values = {leaf.key: value + 0.1 * i for i, (leaf, value) in enumerate(made)}
    agree(grown(4, draw, [leaf for leaf, _ in made]), values)


def test_vectors_beside_a_convolution_lie_along_channels_only_in_its_own_sum():
    image, x = tensor(B, C, H, W)
    kernels, w = tensor(C, C, 3, 3, name=r"\mathbf{W}")
    bias, b = tensor(C, name=r"\mathbf{b}")
    last, v = tensor(W, name=r"\mathbf{v}")
    values = {image.key: x, kernels.key: w, bias.key: b, last.key: v}
    same = {"stride": (1, 1), "before": (1, 1), "after": (1, 1), "dilation": (1, 1), "groups": 1}
    for made in (Convolution(image, kernels, bias, **same), Convolution(image, kernels, **same)):
        for node in (Plus(made, last), Plus(last, made), Minus(made, last), Minus(last, made), Plus(made, image), made):
            agree(node, values)
    pair = Concat(Convolution(image, kernels, bias, **same), image, axis=1, rank=4)
    agree(pair, values)
