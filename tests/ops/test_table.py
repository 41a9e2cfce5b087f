"""Table of ops: an entry describes its op, and every op that has a formula has an entry."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tracer import ops
from tracer.lowering import aten
from tracer.ops import OPS, ORDER, SENTENCES, TRAITS
from tracer.shapes.alignment import READERS

OURS = {
    *("channel_norm", "deviation_norm", "experts", "label_entropy", "overwrite", "rope", "sinusoids", "triangle"),
    *("unit_length", "vector_cosine"),
}
"""Calls that a rewriting pass puts in the place of several, or the recorder in the place of a write."""
PARTS = {"reflection", "replication", "interpolate", "concatenate", "numpy_T", "normal", "uniform"}
"""Names of functions in Python, and of what several ops have in common."""


def test_no_op_has_two_entries():
    assert len({op.name for op in OPS}) == len(OPS)


def test_every_op_with_a_formula_has_an_entry():
    assert {ops.base(name) for name in aten.names()} <= {op.name for op in OPS}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_entry_says_what_is_known(op):
    assert op.category in ORDER
    assert op.traits <= TRAITS.keys()
    assert op.size_rule in {"", "merge", *READERS}
    assert op.name in OURS | PARTS or _overloads(op.name), f"PyTorch has no op {op.name!r}"


@pytest.mark.parametrize("op", [op for op in OPS if op.formulas or op.operands], ids=lambda op: op.name)
def test_the_arguments_of_an_entry_are_arguments_of_the_op(op):
    names = {argument.name for overload in _overloads(op.name) for argument in overload.arguments}
    assert set(op.operands) <= names
    assert names & op.formulas or not op.formulas


def test_what_no_entry_has_computes():
    assert ops.category("an_op_of_tomorrow") == "Other"
    assert not ops.is_layout("an_op_of_tomorrow")
    assert ops.category("_scaled_dot_product_of_tomorrow") == "Fused"


def _overloads(name: str) -> list:
    """Return the schemas of an op, also of its form in place."""
    return [
        schema for packet in (name, f"{name}_") for schema in torch._C._jit_get_schemas_for_operator(f"aten::{packet}")
    ]


MEANINGS = {
    "Sum": lambda x, y: x + y,
    "Difference": lambda x, y: x - y,
    "Element-wise product": lambda x, y: x * y,
    "Element-wise quotient": lambda x, y: x / y,
    "Power": lambda x, y: x**y,
    "Element-wise maximum": lambda x, y: np.maximum(x, y),
    "Element-wise minimum": lambda x, y: np.minimum(x, y),
    "Integer division": lambda x, y: x // y,
    "Angle": lambda y, x: np.arctan2(y, x),
    "Equal": lambda x, y: x == y,
    "Not equal": lambda x, y: x != y,
    "Less than": lambda x, y: x < y,
    "Less or equal": lambda x, y: x <= y,
    "Greater than": lambda x, y: x > y,
    "Greater or equal": lambda x, y: x >= y,
    "Matrix product": lambda x, y: x @ y,
    "Outer product": lambda x, y: x[:, None] * y,
    "Dot product": lambda x, y: (x * y).sum(),
    "Exponential": lambda x: np.exp(x),
    "Logarithm": lambda x: np.log(x),
    "Square root": lambda x: np.sqrt(x),
    "Reciprocal": lambda x: 1 / x,
    "Reciprocal square root": lambda x: 1 / np.sqrt(x),
    "Square": lambda x: x * x,
    "Negative": lambda x: -x,
    "Absolute value": lambda x: np.where(x < 0, -x, x),
    "Floor": lambda x: x // 1,
    "Ceiling": lambda x: -(-x // 1),
    "ReLU": lambda x: np.where(x > 0, x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
}
"""What a title says of an op, in NumPy."""
SIGNED_TITLES = {
    "Negative",
    "Absolute value",
    "Floor",
    "Ceiling",
    "ReLU",
    "Sigmoid",
    "Tanh",
    "SiLU",
    "Integer division",
}
"""Titles that are tried with negative numbers, too."""
SHAPES = {
    "mm": [(3, 4), (4, 5)],
    "bmm": [(2, 3, 4), (2, 4, 5)],
    "dot": [(5,), (5,)],
    "inner": [(5,), (5,)],
    "vdot": [(5,), (5,)],
    "ger": [(3,), (4,)],
    "outer": [(3,), (4,)],
}
"""Shapes of the operands of ops that are not element-wise."""
REVERSED_OPS = {"rsub"}
"""Ops whose second operand comes first."""
LOOSER_OPS = {"baddbmm"}
"""Ops that compute something more than the title says."""
OPS_WITH_MEANING = [
    op for op in OPS if op.title in MEANINGS and op.name not in LOOSER_OPS and hasattr(torch.ops.aten, op.name)
]


@pytest.mark.parametrize("op", OPS_WITH_MEANING, ids=lambda op: op.name)
def test_a_title_says_what_the_op_computes(op):
    meaning, generator = MEANINGS[op.title], torch.Generator().manual_seed(0)
    shapes = SHAPES.get(op.name, [(4, 4)] * meaning.__code__.co_argcount)
    operands = [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.1 for shape in shapes]
    operands = [4 * x - 2 for x in operands] if op.title in SIGNED_TITLES else operands
    operands[-1].view(-1)[0] = operands[0].view(-1)[0]  # equal numbers, too
    computed = getattr(torch.ops.aten, op.name)(*operands).numpy()
    expected = np.asarray(meaning(*[x.numpy() for x in operands][:: -1 if op.name in REVERSED_OPS else 1]))
    assert computed.shape == expected.shape and np.allclose(computed, expected, rtol=1e-12)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_each_op_is_described_in_one_sentence(op):
    said = ops.sentence(op.name)
    assert said.endswith(".") and said.count(". ") == 0 and said[0].isupper() and len(said) < 120


def test_what_is_described_is_in_the_table():
    known = {op.name for op in OPS} | {op.title for op in OPS} | TRAITS.keys() | set(ORDER)
    assert SENTENCES.keys() <= known
    assert ops.sentence("_scaled_dot_product_of_tomorrow") == SENTENCES["scaled_dot_product_attention"]
    assert ops.sentence("an_op_of_tomorrow") == SENTENCES["Other"]


DESCRIBED = {
    "erf": lambda x: np.vectorize(math.erf)(x),
    "log1p": lambda x: np.log(1 + x),
    "sin": np.sin,
    "cos": np.cos,
    "exp2": lambda x: 2.0**x,
    "var_mean": lambda x: (x.var(ddof=1), x.mean()),
    "std_mean": lambda x: (x.std(ddof=1), x.mean()),
    "mean": lambda x: sum(x.flat) / x.size,
    "cumsum": lambda x: np.stack([x[: at + 1].sum(0) for at in range(len(x))]),
    "argmax": lambda x: np.array([max(range(len(row)), key=row.__getitem__) for row in x]),
    "softmax": lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True),
    "log_softmax": lambda x: np.log(np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "triu": lambda x: np.array([[x[i, j] if j >= i else 0 for j in range(x.shape[1])] for i in range(len(x))]),
    "tril": lambda x: np.array([[x[i, j] if j <= i else 0 for j in range(x.shape[1])] for i in range(len(x))]),
    "t": lambda x: x.T,
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "flip": lambda x: x[::-1],
    "roll": lambda x: np.concatenate([x[-1:], x[:-1]]),
}
"""Meaning, in NumPy, of sentences by name, and of those of titles that are tried nowhere else."""
ARGUMENTS = {
    "cumsum": (0,),
    "argmax": (-1,),
    "softmax": (-1,),
    "log_softmax": (-1,),
    "flip": ([0],),
    "roll": ([1], [0]),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_an_op_does_what_is_said_of_it(name):
    x = torch.tensor([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75]], dtype=torch.float64)
    x = x.abs() if name == "log1p" else x
    ran = getattr(torch.ops.aten, name)(x, *ARGUMENTS.get(name, ()))
    said = DESCRIBED[name](x.numpy())
    pairs = zip(ran, said, strict=True) if isinstance(ran, tuple) else [(ran, said)]
    for own, expected in pairs:
        np.testing.assert_allclose(own.numpy(), expected, atol=1e-12)
