"""Semantics of PyTorch's ops: one table that recorder, probes, derivation and figures read.

A new op is one entry in `table.py`; its formula, if it has one, is a function in `tracer/lowering/aten/`.
"""

from __future__ import annotations

from functools import cache

from tracer.ops.schema import COMPUTING, FUSED_OP, ORDER, OTHER_OP, TRAITS, Op
from tracer.ops.table import OPS

__all__ = ["COMPUTING", "ORDER", "TRAITS", "Op", "base", "category", "is_layout", "ops_with", "schema"]

_SCHEMAS = {op.name: op for op in OPS}


@cache
def base(name: str) -> str:
    """Return the name of an op's computation, in place or not: `"aten::add_.Tensor"` and `"add_"` are `"add"`."""
    name = name.split("::")[-1].removeprefix("aten.").split(".")[0]
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def schema(name: str) -> Op:
    """Return the entry of an op, an empty one for an op that the table lacks."""
    return _SCHEMAS.get(name) or _SCHEMAS.get(base(name)) or Op(name)


def ops_with(*traits: str) -> frozenset[str]:
    """Return the names of all ops with one of these traits. Raise KeyError for a trait that no op has."""
    return frozenset().union(*(_BY_TRAIT[trait] for trait in traits))


def category(op: str) -> str:
    """Return the category of an operation or primitive by its name: `addmm` is a "Matrix Multiply".

    What does the work of several categories at once, such as a layer norm, a softmax or fused attention, is "Fused";
    what is not known is "Other". In-place operations (`add_`) count as what they compute. Note 003 counts softmax as
    elementwise, but each of its values depends on the whole row.
    """
    known = schema(op).category
    return FUSED_OP if known == OTHER_OP and base(op).startswith("_scaled_dot_product_") else known


@cache
def is_layout(op: str) -> bool:
    """Return whether an op or primitive only changes the layout of data, or creates a constant. All others belong to
    a step, and count as computing."""
    entry = schema(op)
    return entry.category not in COMPUTING and "line" not in entry.traits.split()


def title(call: str) -> str:
    """Return the title of a line that is one call, in words."""
    return schema(call).title or call.strip("_").replace("_", " ").capitalize() or "Rearrange"


def takes_shape(name: str) -> bool:
    """Return whether a call reads only the shape of a tensor, as `zeros_like` does."""
    return "_like" in name or "new_" in name


def _by_trait() -> dict[str, frozenset[str]]:
    ops: dict[str, set[str]] = {trait: set() for trait in TRAITS}
    for op in OPS:
        for trait in op.traits.split():
            ops[trait].add(op.name)
    return {trait: frozenset(names) for trait, names in ops.items()}


_BY_TRAIT = _by_trait()

RESHAPES = ops_with("reshape")
SQUEEZES = ops_with("squeeze")
TRANSPOSES = ops_with("transpose")
LAYOUTS = ops_with("layout")
NOOP_VIEWS = RESHAPES | ops_with("slice", "expand")
"""Layouts that change nothing where they return the shape that they take."""
IDENTITIES = ops_with("identity")
JOINS = ops_with("concat")
PADS = ops_with("pad")
FACTORIES = ops_with("factory")
MATMULS = ops_with("matmul")
LINEAR = ops_with("linear")
CONVOLUTIONS = ops_with("convolution")
PROJECTIONS = ops_with("projection")
SOFTMAXES = ops_with("softmax")
NORMS = ops_with("norm")
ARITHMETIC = ops_with("arithmetic")
ACTIVATIONS = ops_with("activation")
POINTWISE = ops_with("pointwise")
SPLITS = ops_with("split")
REPEATS = ops_with("expand", "repeat")
"""Layouts that may return more numbers than they take."""
LOOKUPS = ops_with("lookup")
COMPARES = ops_with("compare")
MASK_BUILDERS = ops_with("mask-builder")
ARGREDUCES = ops_with("argreduce")
SCATTER_REDUCES = ops_with("scatter-reduce")
UNINITIALISED_OPS = ops_with("uninitialised")
RECURRENT = ops_with("recurrent")
OVERWRITES = ops_with("overwrite")
CONCATENATIONS = ops_with("concat", "stack")
SHAPE_ONLY = ops_with("shape-only")
AMBIGUOUS = ops_with("ambiguous")
LEAVING_OUT = ops_with("leaves-out")
ANCHORS = ops_with("anchor")
NO_LABEL = -(2**63)
"""In the place of a label that is left out, where there is none: no label is this number."""
ATTENTION = "scaled_dot_product_attention"
"""The name of fused attention as code asks for it."""
