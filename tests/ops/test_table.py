"""The table of ops: what an entry says is of the op, and every op that has a formula has an entry."""

from __future__ import annotations

import pytest
import torch

from tracer import ops
from tracer.lowering import aten
from tracer.ops.schema import ORDER, TRAITS
from tracer.ops.table import OPS
from tracer.shapes.op_size_rules import READERS

OURS = {"channel_norm", "deviation_norm", "experts", "overwrite", "rope", "sinusoids", "unit_length"}
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
    assert set(op.traits.split()) <= TRAITS.keys()
    assert op.size_rule in {"", "merge", *READERS}
    assert op.name in OURS | PARTS or _overloads(op.name), f"PyTorch has no op {op.name!r}"


@pytest.mark.parametrize("op", [op for op in OPS if op.formulas or op.operands], ids=lambda op: op.name)
def test_the_arguments_of_an_entry_are_arguments_of_the_op(op):
    names = {argument.name for overload in _overloads(op.name) for argument in overload.arguments}
    assert set(op.operands.split()) <= names
    assert names.intersection(op.formulas.split()) or not op.formulas


def test_what_no_entry_has_computes():
    assert ops.category("an_op_of_tomorrow") == "Other"
    assert not ops.is_layout("an_op_of_tomorrow")
    assert ops.category("_scaled_dot_product_of_tomorrow") == "Fused"


def _overloads(name: str) -> list:
    """The schemas of an op, also of its form in place."""
    return [
        schema for packet in (name, f"{name}_") for schema in torch._C._jit_get_schemas_for_operator(f"aten::{packet}")
    ]
