"""Relation of two tensors: bit by bit, up to rounding, up to a permutation, or by their difference."""

from __future__ import annotations

from enum import StrEnum
from itertools import permutations
from math import inf, isnan
from typing import NamedTuple

import torch

from tracer.record.latex_reader.operands import INFINITY_THRESHOLD, deviation, fill_threshold
from tracer.record.steps import dtype_name, tolerance
from tracer.utils.internals.torch_internals import tree_leaves
from tracer.utils.tensor_diff import Difference, identical

MOST_AXES = 6
"""Axes of a tensor whose orders are tried: of more there are too many."""


class Relation(StrEnum):
    """How the values of two tensors relate."""

    ALONE = "only in one run"
    MISSING = "not kept"
    IDENTICAL = "equal bit by bit"
    ROUNDING = "equal up to rounding"
    PERMUTED = "equal up to a permutation"
    DIFFERENT = "different"
    SHAPES = "different shapes"

    @property
    def equal(self) -> bool:
        """True if the values are the same up to rounding."""
        return self in (Relation.IDENTICAL, Relation.ROUNDING)

    @property
    def differs(self) -> bool:
        """True if both values exist and differ by more than rounding."""
        return self in (Relation.PERMUTED, Relation.DIFFERENT, Relation.SHAPES)


class TensorRelation(NamedTuple):
    """Relation of two tensors: max|b - a| (`difference`), the same as a share of max|a| (`relative`), None where
    there are no two numbers to subtract; and, in words, the permutation or the reason (`note`)."""

    relation: Relation
    difference: float | None = None
    relative: float | None = None
    note: str = ""


def compare_tensors(a: torch.Tensor | None, b: torch.Tensor | None) -> TensorRelation:
    """Return the relation of two tensors. Leading axes of length 1 are left out.

    Numbers are equal up to rounding where they differ by at most `tracer.record.tolerance` of the largest that stands
    for no infinity, by the less precise of both dtypes. Whole numbers have to be the same.
    """
    if a is None or b is None or a.is_meta or b.is_meta:
        missing = [name for name, tensor in (("a", a), ("b", b)) if tensor is None or tensor.is_meta]
        return TensorRelation(Relation.MISSING, note=f"not kept in {' and '.join(missing)}")
    rank = a.dim()
    a, b = _squeeze(a.detach()), _squeeze(b.detach())
    if identical(a, b):
        return TensorRelation(Relation.IDENTICAL, 0.0, 0.0)
    most = max(tolerance(dtype_name(tensor.dtype)) for tensor in (a, b))
    a, b = _comparable(a, b)
    if a.shape != b.shape:
        order = _order_of_axes(a, b, most)
        return (
            TensorRelation(Relation.PERMUTED, note=f"the last {a.dim()} axes in the order {order}")
            if order
            else TensorRelation(Relation.SHAPES)
        )
    difference, relative = distance(a, b)
    if relative <= most:
        return TensorRelation(Relation.ROUNDING, difference, relative)
    axis = _permuted_axis(a, b, most)
    if axis is not None:
        return TensorRelation(Relation.PERMUTED, difference, relative, f"axis {axis + rank - a.dim()} in another order")
    return TensorRelation(Relation.DIFFERENT, difference, relative)


def compare_outputs(a: object, b: object) -> TensorRelation:
    """Return the relation of everything that two forwards returned, tensor by tensor: of the pair that differs most."""
    first, second = ([leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)] for output in (a, b))
    if len(first) != len(second):
        return TensorRelation(Relation.SHAPES, note=f"{len(first)} and {len(second)} tensors")
    comparisons = [compare_tensors(*pair) for pair in zip(first, second, strict=True)]
    order = list(Relation)
    return max(
        comparisons,
        key=lambda values: (order.index(values.relation), values.relative or 0),
        default=TensorRelation(Relation.MISSING),
    )


def distance(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Return max|b - a|, and the same as a share of max|a|. Equal infinities count 0, and so do cells that are NaN in
    both; of masks, the lowest number of a dtype counts as -∞. A number of a mask in `a` that stands for -∞ is compared
    with itself, and no other with it."""
    between = Difference(b, a)
    reference = a.numpy(force=True)
    if between.largest < INFINITY_THRESHOLD and fill_threshold(reference) == INFINITY_THRESHOLD:
        return between.largest, between.relative()
    same = (a == b) | (a.isnan() & b.isnan())
    if not a.is_complex():
        same |= (a < -INFINITY_THRESHOLD) & (b < -INFINITY_THRESHOLD)
    difference = Difference(b.masked_fill(same, 0), a.masked_fill(same, 0)).largest
    relative = float(deviation(b.numpy(force=True), reference, lowest=True).max(initial=0))
    return (inf if isnan(difference) else difference), (inf if isnan(relative) else relative)


def _squeeze(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor without leading axes of length 1."""
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor if tensor.layout is torch.strided else tensor.to_dense()
    while tensor.dim() and tensor.shape[0] == 1:
        tensor = tensor[0]
    return tensor


def _comparable(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two tensors in one dtype that holds the numbers of both: float32 at least."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    if not all(tensor.is_floating_point() or tensor.is_complex() for tensor in (a, b)):
        dtype = torch.promote_types(dtype, torch.float64)
    return a.to(dtype), b.to(dtype)


def _permuted_axis(a: torch.Tensor, b: torch.Tensor, most: float) -> int | None:
    """Return the axis along which the slices of two tensors are the same in another order; None if there is none.

    Slices are put in the order of a signature, their product with fixed random numbers; then they are compared.
    """
    if a.is_complex() or not _may_be_permuted(a, b, most):
        return None
    for axis in range(a.dim()):
        if a.shape[axis] < 2:
            continue
        left, right = a.movedim(axis, 0), b.movedim(axis, 0)
        weights = torch.rand(left[0].numel(), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        order, right_order = ((matrix.flatten(1).double() @ weights).argsort() for matrix in (left, right))
        if distance(left[order], right[right_order])[1] <= most:
            return axis
    return None


def _order_of_axes(a: torch.Tensor, b: torch.Tensor, most: float) -> str:
    """Return the order in which the axes of `a` are those of `b`, such as "0, 2, 1"; "" if there is none."""
    if sorted(a.shape) != sorted(b.shape) or a.dim() > MOST_AXES or a.is_complex() or not _may_be_permuted(a, b, most):
        return ""
    for order in permutations(range(a.dim())):
        moved = a.permute(order)
        if moved.shape == b.shape and distance(moved, b)[1] <= most:
            return ", ".join(map(str, order))
    return ""


def _may_be_permuted(a: torch.Tensor, b: torch.Tensor, most: float) -> bool:
    """Return whether two tensors may hold the same numbers: their minima and maxima are the same, and finite."""
    if not a.numel():
        return False
    (least, largest), (lowest, highest) = ([end.item() for end in tensor.aminmax()] for tensor in (a, b))
    scale = max(abs(least), abs(largest))
    return scale < inf and max(abs(least - lowest), abs(largest - highest)) <= most * scale
