"""Entries of the table of ops."""

from __future__ import annotations

from typing import NamedTuple

MATRIX, BINARY, UNARY, REDUCTION = "Matrix Multiply", "Elementwise Binary", "Elementwise Unary", "Reduction"
FUSED_OP, CONSTANT = "Fused", "Constant"
RESHAPE, TRANSPOSE, MEMORY, INDEXING, OTHER_OP = "Reshape", "Transpose", "Memory", "Indexing", "Other"

ORDER = (MATRIX, BINARY, UNARY, REDUCTION, FUSED_OP, OTHER_OP, RESHAPE, TRANSPOSE, MEMORY, INDEXING, CONSTANT)
"""Categories in the order in which they are shown."""
COMPUTING = (MATRIX, BINARY, UNARY, REDUCTION, FUSED_OP, OTHER_OP)
"""The categories of arithmetic; the rest moves data, or creates constants."""

TRAITS = {
    # layouts: they only move numbers, as one pattern of axes
    "layout": "moves numbers, as one pattern of axes",
    "reshape": "keeps the order of the elements and groups axes anew",
    "squeeze": "inserts or removes axes of size 1",
    "transpose": "exchanges axes",
    "expand": "repeats numbers without a copy",
    "repeat": "repeats numbers",
    "slice": "takes a range of an axis",
    "select": "takes one index of an axis",
    "split": "deals an axis out to several tensors",
    # ops that return the numbers they take, perhaps in another dtype
    "identity": "returns the numbers it takes, perhaps in another dtype",
    "alias": "returns the same memory",
    "copy": "returns a copy in the same dtype",
    "cast": "may change the dtype",
    "dropout": "drops numbers while training",
    # joining, picking, writing
    "pad": "adds numbers around a tensor",
    "concat": "joins tensors along an axis",
    "stack": "joins tensors along a new axis",
    "lookup": "looks entries up by their numbers",
    "movement": "carries numbers to other places, in ways that are not followed axis by axis",
    "overwrite": "writes into a part of a tensor",
    "scatter-reduce": "adds up what goes to one place",
    "anchor": "a line of the textbook has at most one: product, convolution, norm, softmax, pooling or table",
    "line": "a line of the textbook, although of no computing category: it chooses, joins, repeats or draws",
    # ops that create tensors
    "uninitialised": "takes memory, whatever it holds",
    "factory": "creates numbers of nothing",
    "shape-only": "takes the shape of a tensor and none of its numbers",
    "shape-arguments": "its numbers are sizes and axes, which the shapes of its results say already",
    "data-dependent": "numbers or sizes follow from values",
    # arithmetic
    "matmul": "multiplies matrices",
    "linear": "a linear map of each token alone",
    "convolution": "a convolution",
    "projection": "a linear map that projects: a matrix, or a convolution of patches",
    "attention": "fused attention",
    "softmax": "a softmax",
    "log-softmax": "the logarithm of a softmax",
    "norm": "a norm",
    "recurrent": "a recurrent layer",
    "arithmetic": "arithmetic cell by cell",
    "activation": "an activation function by its name",
    "pointwise": "cell by cell, as activations are composed of",
    "exponential": "raises to a power",
    "broadcast": "its operands are aligned at their last axes, so axes of size 1 in front may be left out",
    "compare": "compares, or keeps a triangle: masks are built so, biases are not",
    "mask-builder": "applies a mask, or builds one",
    "score": "may stand between QKᵀ and the softmax, cell by cell",
    "reduce": "reduces an axis to one number",
    "loss": "says how far a prediction is from its target",
    "ambiguous": "has several right results, which differ in their signs",
    "leaves-out": "leaves out what is labelled by `ignore_index`",
    "argreduce": "says where the extreme of an axis stands",
}
"""The traits that an op may have."""


class Op(NamedTuple):
    """Everything that is known of an op besides its formula.

    `title` names a line of the textbook that is this op and has no role. `traits` are words of `TRAITS`, divided by
    spaces. `formulas` are the arguments whose numbers may be formulas of sizes in an equation. `size_rule` names the
    rule of `tracer.shapes.op_size_rules` by which its arguments give the sizes of its results. `operands` are
    the arguments of a linear map: what is mapped, and the matrix.
    """

    name: str
    category: str = OTHER_OP
    title: str = ""
    traits: str = ""
    formulas: str = ""
    size_rule: str = ""
    operands: str = ""
