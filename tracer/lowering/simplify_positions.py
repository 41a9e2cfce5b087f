"""Rewrite rules for formulas of positions: distances between tokens, gathers at one position of each sequence,
masks."""

from __future__ import annotations

from sympy import oo

from tracer.expr import Node, Tensor
from tracer.expr.function_call import Scalar
from tracer.expr.layout.arange import Arange
from tracer.expr.layout.concat_stack_pad import Full
from tracer.expr.layout.gather_scatter import Gather, Index, Scatter
from tracer.expr.layout.projection_layouts import PositionIds
from tracer.expr.layout.rearrange import Rearrange
from tracer.expr.math.algebra import Plus, Times, Transposed
from tracer.expr.math.arithmetic import Div, Maximum, Minimum, Minus
from tracer.expr.math.comparisons import And, Compare, Where
from tracer.expr.math.elementwise import Exp, Root
from tracer.expr.math.reductions import ArgMax
from tracer.expr.nn.attention_masks import PrefixMask
from tracer.expr.nn.embeddings import FirstOf, RowsAt, ScaledBy
from tracer.expr.nn.other_norms import BatchNorm
from tracer.expr.nn.position_encodings import AtDistance, Distances, SumsByDistance


def _row(node: Node):
    """Return the length of an arange as a row or `[n]`; None for any other node."""
    if isinstance(node, Rearrange) and isinstance(node.args[0], Arange) and node.get("right") == ((), (0,)):
        return node.args[0].args[0]
    return node.args[0] if isinstance(node, Arange | PositionIds) else None


def _column(node: Node):
    """Return the length of an arange as a column; None for any other node."""
    if isinstance(node, Rearrange) and isinstance(node.args[0], Arange) and node.get("right") == ((0,), ()):
        return node.args[0].args[0]
    return None


def _distances(node: Node) -> Node | None:
    """Return the clipped distances `min(max(j - i, -R), R) + R`, or None."""
    if not (isinstance(node, Plus) and isinstance(node.args[0], Minimum) and isinstance(node.args[1], Scalar)):
        return None
    inner, most = node.args[0].operands
    if not (isinstance(inner, Maximum) and isinstance(inner.operands[0], Minus) and node.args[1] == most):
        return None
    apart, least = inner.operands
    key, query = apart.operands
    if not isinstance(least, Scalar) or least.value != -most.value or _row(key) is None or _row(key) != _column(query):
        return None
    return Distances(_row(key), most.value)


def _of_pairs(node: Node) -> Tensor | None:
    """Return a matrix `[S, S]` that is repeated over all leading axes, or None."""
    if not (isinstance(node, Rearrange) and isinstance(node.args[0], Tensor)):
        return None
    left, (*lead, row, column) = node.get("left"), node.get("right")
    alike = all(set(side) <= set(node.get("repeated")) for side in lead)
    return node.args[0] if alike and left == (row, column) and all(len(side) == 1 for side in left) else None


def _last_axis(node: Node, rank: int) -> bool:
    return tuple(node.get("axes")) == (rank - 1,)


def _at_distance(node: Node) -> Node | None:
    """Return the gather of one number for each distance at the distance of each pair, or None."""
    if not isinstance(node, Gather) or (distances := _of_pairs(node.operands[1])) is None:
        return None
    return AtDistance(node.operands[0], distances) if _last_axis(node, len(node.operands[1].get("right"))) else None


def _by_distance(node: Node) -> Node | None:
    """Return the sum of each query's numbers by distance, scattered into zeros; or None."""
    if not isinstance(node, Scatter) or node.get("how") != "add":
        return None
    start, index, values = node.operands
    nothing = isinstance(start, Full) and start.operands[0] == Scalar(0)
    if not nothing or (distances := _of_pairs(index)) is None or not _last_axis(node, len(index.get("right"))):
        return None
    return SumsByDistance(values, distances, start.get("shape")[-1])


def _first_of(node: Node) -> Node | None:
    """Return the position of the first token equal to a number, an argmax of comparisons; or None."""
    if not isinstance(node, ArgMax) or not isinstance(node.operands[0], Compare):
        return None
    compared = node.operands[0]
    tokens, number = compared.operands
    plain = isinstance(tokens, Tensor) and len(tokens.shape) == 2 and isinstance(number, Scalar)
    if not plain or compared.get("sign") != "=" or not number.value.is_Integer or tuple(node.get("axes")) != (1,):
        return None
    return None if node.get("keep") else FirstOf(tokens, number.value)


def _rows_at(node: Node) -> Node | None:
    """Return one token of each sequence, or None."""
    if not isinstance(node, Index) or tuple(node.get("entries")) != ("t", "t", None):
        return None
    tokens, each, places = node.operands
    counted = isinstance(tokens, Tensor) and isinstance(each, Arange) and each.args[0] == tokens.shape[0]
    return RowsAt(tokens, places) if counted else None


def _scaled_by(node: Node) -> Node | None:
    """Return the exponential of a scalar parameter times a tensor, or None."""
    if not isinstance(node, Times):
        return None
    for power, x in (node.operands, node.operands[::-1]):
        single = isinstance(power, Exp) and isinstance(power.operands[0], Tensor) and power.operands[0].shape == ()
        if single and isinstance(x, Tensor | Transposed):
            return ScaledBy(power.operands[0], x)
    return None


def _prefix(node: Node) -> Node | None:
    """Return the prefix mask: 0 for keys up to the query or in the prefix, else -∞; or None."""
    if not (isinstance(node, Where) and isinstance(node.args[0], And) and node.args[1] == Scalar(-oo)):
        return None
    later, behind = node.args[0].operands
    zero = node.args[2].operands[0] if isinstance(node.args[2], Full) else node.args[2]
    if not (isinstance(later, Compare) and isinstance(behind, Compare) and zero == Scalar(0)):
        return None
    (key, query), (same, prefix) = later.operands, behind.operands
    signs = later.get("sign"), behind.get("sign")
    length = _row(key)
    if signs != (">", r"\ge") or length is None or not length == _column(query) == _row(same):
        return None
    return PrefixMask(length, prefix.value) if isinstance(prefix, Scalar) else None


def _of_channels(node: Node, rank: int) -> Tensor | None:
    """Return a vector over channels, broadcast along the axis after the batch; or None."""
    if not (isinstance(node, Rearrange) and isinstance(node.args[0], Tensor) and node.get("left") == ((0,),)):
        return None
    right = node.get("right")
    along = right == ((0,), *[()] * (rank - 2)) or right == ((), (0,), *[()] * (rank - 2))
    return node.args[0] if along and not node.get("repeated") else None


def _frozen_norm(node: Node) -> Node | None:
    """Return a batch norm with constant statistics, or None.

    It is spelled `x ⊙ s + (β - μ ⊙ s)` with `s = γ / √(σ² + ε)`.
    """
    if not (isinstance(node, Plus) and len(node.operands) == 2):
        return None
    scaled, shift = node.operands
    if not (isinstance(scaled, Times) and isinstance(shift, Minus) and isinstance(shift.operands[1], Times)):
        return None
    (x, scale), (mean, again) = scaled.operands, shift.operands[1].operands
    root = scale.operands[1] if isinstance(scale, Div) else None
    inside = root.operands[0] if isinstance(root, Root) else None
    if scale != again or not (isinstance(x, Tensor) and isinstance(inside, Plus) and len(inside.operands) == 2):
        return None
    variance, eps = inside.operands
    operands = (mean, variance, scale.operands[0], shift.operands[0])
    vectors = [_of_channels(vector, len(x.shape)) for vector in operands]
    if not isinstance(eps, Scalar) or not eps.value.is_number or None in vectors:
        return None
    return BatchNorm(x, *vectors, eps=float(eps.value), affine="weight bias", wide=len(x.shape) > 2)


POSITION_RULES = (_distances, _at_distance, _by_distance, _first_of, _rows_at, _scaled_by, _prefix, _frozen_norm)
