"""Equations: printed in reading order, refused where shapes don't fit, executed and compared with plain PyTorch."""

import pytest
import sympy
import torch
import torch.nn.functional as F

from tests.support.node_examples import examples
from tracer.expr import (
    GELU,
    ConcatTokens,
    LayerNorm,
    MergeHeads,
    Node,
    Patches,
    ReLU,
    Row,
    ShapeError,
    Softmax,
    SplitHeads,
    Tensor,
    execute,
    infer,
    latex,
    tensors,
    weight,
)
from tracer.symbols.notation import symbol
from tracer.textbook.derivation import DerivedStep, Line, StepOrigin, owners
from tracer.tracing.proofs import relative_error

EXAMPLES = examples()
B, S, D, h, d_k, P, C, H, W = map(symbol, ("B", "S", "D", "h", "d_k", "P", "C", "H", "W"))
SIZES = {"B": 2, "S": 5, "D": 12, "h": 3, "d_k": 4, "P": 2, "C": 3, "H": 4, "W": 6}
X = Tensor(r"\mathbf{X}", (B, S, D), "x")
Q = Tensor(r"\mathbf{Q}", (B, h, S, d_k), "q")
K = Tensor(r"\mathbf{K}", (B, h, S, d_k), "k")
V = Tensor(r"\mathbf{V}", (B, h, S, d_k), "v")
M = Tensor(r"\mathbf{M}", (S, S), "m")
A = Tensor(r"\mathbf{A}", (B, h, S, S), "a")
IMAGE = Tensor(r"\mathbf{X}", (B, C, H, W), "image")
CLS = Tensor(r"\mathbf{c}", (D,), "cls")
GAMMA, BETA = Tensor(r"\boldsymbol{\gamma}", (D,), "gamma"), Tensor(r"\boldsymbol{\beta}", (D,), "beta")
W_Q = weight(r"\mathbf{W}_Q", (D, h * d_k), "weight")


def patches(image):
    return F.unfold(image, 2, stride=2).transpose(1, 2).unflatten(2, (3, 4)).transpose(2, 3).flatten(2)


CASES = {
    "scores": (
        Q @ K.T / sympy.sqrt(d_k) + M,
        r"\frac{\mathbf{Q}\,{\mathbf{K}}^{\top}}{\sqrt{d_k}} + \mathbf{M}",
        (B, h, S, S),
        lambda v: torch.einsum("bhid,bhjd->bhij", v["q"], v["k"]) / 2 + v["m"],
    ),
    "softmax": (
        Softmax(A),
        r"\operatorname{softmax}\left(\mathbf{A}\right)",
        (B, h, S, S),
        lambda v: v["a"].softmax(-1),
    ),
    "context": (
        MergeHeads(A @ V),
        r"\operatorname{concat}_{h}\left(\mathbf{A}\,\mathbf{V}\right)",
        (B, S, h * d_k),
        lambda v: (v["a"] @ v["v"]).transpose(1, 2).reshape(2, 5, 12),
    ),
    "heads": (
        SplitHeads(X @ W_Q, h),
        r"\operatorname{heads}_{h}\left(\mathbf{X}\,\mathbf{W}_Q\right)",
        (B, h, S, d_k),
        lambda v: F.linear(v["x"], v["parameter weight"]).view(2, 5, 3, 4).transpose(1, 2),
    ),
    "layer norm": (
        LayerNorm(1e-6, X, GAMMA, BETA),
        r"\frac{\mathbf{X} - \mu(\mathbf{X})}{\sqrt{\sigma^2(\mathbf{X}) + 10^{-6}}} \odot \boldsymbol{\gamma} + "
        r"\boldsymbol{\beta}",
        (B, S, D),
        lambda v: F.layer_norm(v["x"], (12,), v["gamma"], v["beta"], 1e-6),
    ),
    "gelu": (GELU(X), r"\operatorname{GELU}\left(\mathbf{X}\right)", (B, S, D), lambda v: F.gelu(v["x"])),
    "relu": (ReLU(X), r"\operatorname{ReLU}\left(\mathbf{X}\right)", (B, S, D), lambda v: F.relu(v["x"])),
    "patches": (
        Patches(IMAGE, P),
        r"\mathcal{U}^{\mathrm{hwc}}_{P}\left(\mathbf{X}\right)",
        (B, H * W / P**2, P**2 * C),
        lambda v: patches(v["image"]),
    ),
    "concat": (
        ConcatTokens(CLS, X),
        r"\left[\mathbf{c}\ ;\ \mathbf{X}\right]",
        (B, S + 1, D),
        lambda v: torch.cat([v["cls"].expand(2, 1, 12), v["x"]], 1),
    ),
    "row": (Row(X, 0), r"{\mathbf{X}}_{[\,0\,]}", (B, D), lambda v: v["x"][:, 0]),
    "sum in a product": ((X + CLS) @ W_Q, r"\left(\mathbf{X} + \mathbf{c}\right)\,\mathbf{W}_Q", (B, S, h * d_k), None),
}


@pytest.fixture
def values():
    torch.manual_seed(0)
    shapes = {"x": (2, 5, 12), "q": (2, 3, 5, 4), "k": (2, 3, 5, 4), "v": (2, 3, 5, 4), "m": (5, 5), "a": (2, 3, 5, 5)}
    shapes |= {"image": (2, 3, 4, 6), "cls": (12,), "gamma": (12,), "beta": (12,), "parameter weight": (12, 12)}
    made = {key: torch.randn(shape, dtype=torch.float64) for key, shape in shapes.items()}
    made["m"] = made["m"].masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
    return made


@pytest.mark.parametrize("name", CASES)
def test_one_object_is_printed_checked_and_executed(name, values):
    node, printed, shape, expected = CASES[name]
    assert latex(node) == printed
    same = lambda a, b: sympy.simplify((a - b).subs(D, h * d_k)) == 0  # noqa: E731
    assert all(map(same, infer(node, same), shape))
    if expected:
        result = execute(node, lambda t: values[t.key], lambda e: e.subs({symbol(k): v for k, v in SIZES.items()}))
        assert result.shape == tuple(int(s.subs({symbol(k): v for k, v in SIZES.items()})) for s in shape)
        assert relative_error(result, expected(values)) < 1e-12


@pytest.mark.parametrize("wrong", [Q @ K, X @ X, X + Q, X + W_Q, ConcatTokens(X, Q)], ids=str)
def test_shapes_that_do_not_fit_are_refused(wrong):
    with pytest.raises(ShapeError):
        infer(wrong)


def test_named_tensors_come_in_reading_order_once():
    assert [t.key for t in tensors(Q @ K.T + M + M)] == ["q", "k", "m"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_node_is_printed(name):
    assert latex(EXAMPLES[name].node).count("{") == latex(EXAMPLES[name].node).count("}")


def test_equations_are_sympy_objects():
    equation = sympy.Eq(A, Softmax(Q @ K.T / sympy.sqrt(d_k)), evaluate=False)
    assert isinstance(equation.rhs, Node) and equation.rhs.has(sympy.sqrt(d_k))
    assert infer(equation.rhs.xreplace({d_k: sympy.Integer(4)}))[-1] == S


ERRORS = [
    ([1.0, 2.0], [1.0, 2.0], 0.0),
    ([1.0, 2.5], [1.0, 2.0], 0.25),
    ([0.0, 0.0], [0.0, 0.0], 0.0),
    ([float("-inf"), 2.0], [float("-inf"), 2.0], 0.0),
    ([float("-inf"), 2.0], [0.0, 2.0], float("inf")),
    ([float("nan"), 2.0], [1.0, 2.0], float("nan")),
]


@pytest.mark.parametrize(("computed", "traced", "expected"), ERRORS)
def test_error_is_the_largest_difference_over_the_largest_value(computed, traced, expected):
    error = relative_error(torch.tensor(computed), torch.tensor(traced))
    assert error == expected or (error != error and expected != expected)


def test_an_error_of_another_shape_is_no_number():
    with pytest.raises(ShapeError):
        relative_error(torch.zeros(2, 3), torch.zeros(3))


def test_an_op_in_two_steps_is_refused():
    class Seen:
        layout, name, inputs = False, "mm", ()

    def line(name):
        return Line(name, "mlp", "", X, X, StepOrigin("m"), "")

    with pytest.raises(ValueError, match=r"op 0 \(mm\) belongs to both 'a' and 'b'"):
        owners([DerivedStep(line("a"), 0, (0,)), DerivedStep(line("b"), 0, (0,))], [Seen])
