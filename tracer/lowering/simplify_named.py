"""Rewrite rules that replace formulas spelled out in several calls by the one node that papers use for them."""

from __future__ import annotations

from sympy import oo

from tracer.expr import Node, Tensor
from tracer.expr.function_call import Scalar
from tracer.expr.layout.arange import Arange
from tracer.expr.layout.concat_stack_pad import Concat, Full, Triu
from tracer.expr.layout.gather_scatter import Slice
from tracer.expr.layout.image_grids import Unfold
from tracer.expr.layout.mask_tokens import Repeat
from tracer.expr.layout.projection_layouts import ExpandLeading, FlattenKernel, IsContiguous, PositionIds, Squeeze
from tracer.expr.layout.rearrange import Rearrange
from tracer.expr.math.algebra import Plus, Product, Times, Transposed
from tracer.expr.math.comparisons import Compare, Where
from tracer.expr.math.cumulative import CumSum
from tracer.expr.math.reductions import AllOf
from tracer.expr.nn.attention_masks import CausalMask
from tracer.expr.nn.conv import Convolution
from tracer.expr.nn.rope import Angles, RepeatKV
from tracer.expr.nn.token_embedding import ConcatTokens
from tracer.lowering.simplify_positions import POSITION_RULES

TOLERANCE = 1e-6
"""Largest relative difference of a number and the constant that it stands for."""


def simplify(node: Node, shape: tuple = ()) -> Node:
    """Return a node rewritten to its named form, if it has one; `shape` is that of a line, or ()."""
    for rule in (*NAME_RULES, *POSITION_RULES):
        if (named := rule(node)) is not None:
            return named
    return _causal(node, shape) or node


def _is(node: Node, value: float) -> bool:
    """Return whether a node is that number."""
    return (
        isinstance(node, Scalar) and node.value.is_number and abs(float(node.value) - value) <= TOLERANCE * abs(value)
    )


def _angles(node: Node) -> Node | None:
    """Return `[p ⊙ θ , p ⊙ θ]` with positions p as a column, or None."""
    if not (isinstance(node, Concat) and len(node.operands) == 2 and node.get("axis") == node.get("rank") - 1):
        return None
    left, right = node.operands
    if left != right or not (isinstance(left, Times) and isinstance(left.args[0], Rearrange)):
        return None
    places, frequencies = left.args[0].args[0], left.args[1]
    column = left.args[0].get("left") == ((), (0,)) and left.args[0].get("right") == ((), (0,), ())
    plain = isinstance(frequencies, Tensor) and len(frequencies.shape) == 1
    return Angles(places, frequencies) if column and plain else None


def _places(node: Node) -> Node | None:
    """Return `0, 1, …` as a row, or None."""
    if isinstance(node, Rearrange) and isinstance(node.args[0], Arange) and node.get("right") == ((), (0,)):
        return PositionIds(node.args[0].args[0])
    return None


def _is_contiguous(node: Node) -> Node | None:
    """Return whether positions are consecutive, from a cumulative sum of steps other than 1 that ends with 0; or
    None."""
    if not (isinstance(node, AllOf) and isinstance(node.operands[0], Compare) and _is(node.operands[0].args[1], 0)):
        return None
    sums = [inner for inner in node.atoms(CumSum) if isinstance(inner.operands[0], Compare)]
    if len(sums) != 1 or not _is(sums[0].operands[0].args[1], 1) or node.operands[0].get("sign") != "=":
        return None
    joined = [inner for inner in node.atoms(Concat) if _row(inner.operands[-1]) is not None]
    picked = [inner for inner in node.atoms(Slice) if inner.args[0] in joined]
    if len(joined) != 1 or len(picked) != 2 or {_row(joined[0].operands[-1])} != node.atoms(Tensor):
        return None
    return IsContiguous(_row(joined[0].operands[-1]))


def _row(node: Node) -> Tensor | None:
    """Return the tensor that a node is, or that each of its rows repeats; or None."""
    if not (isinstance(node, Rearrange) and isinstance(node.args[0], Tensor)):
        return node if isinstance(node, Tensor) else None
    left, right = ([side for side in node.get(name) if side] for name in ("left", "right"))
    return node.args[0] if right[-1:] == left[-1:] else None


def _patches(node: Node) -> Node | None:
    """Return a convolution of disjoint square patches as patches times the kernels as a matrix, or None."""
    if not (isinstance(node, Rearrange) and isinstance(node.args[0], Convolution)):
        return None
    lowered = node.args[0]
    image, kernels, *bias = lowered.operands
    if not isinstance(kernels, Tensor) or len(kernels.shape) != 4 or lowered.get("groups") != 1:
        return None
    side, width = kernels.shape[2:]
    batch, channels, rows, columns = node.get("left")
    tokens = node.get("right") == (batch, (*rows, *columns), channels)
    if side != width or not tokens or any(isinstance(stride, int) for stride in lowered.get("stride")):
        return None
    product = Product(Unfold(image, side), FlattenKernel(kernels))
    return Plus(product, *bias) if bias else product


def _in_front(node: Node) -> Node | None:
    """Return a parameter token, `[1, 1, D]` or `[D]`, prepended to each sequence of a batch; or None."""
    if not (isinstance(node, Concat) and node.get("rank") == 3 and node.get("axis") == 1 and len(node.operands) == 2):
        return None
    token, sequence = node.operands
    if not (isinstance(token, Rearrange) and isinstance(token.args[0], Tensor) and token.get("repeated")):
        return None
    left, right, (batch, *more) = token.get("left"), token.get("right"), token.get("repeated")
    if more or right[0] != (batch,) or not token.args[0].key.startswith("parameter"):
        return None
    if right[1:] == ((), *left):
        return ConcatTokens(token.args[0], sequence)
    return ConcatTokens(Squeeze(token.args[0], 2), sequence) if right[1:] == left[1:] and left[:2] == ((), ()) else None


def _every(node: Node) -> Node | None:
    """Return one vector repeated as every token of each sequence, or None."""
    if not (isinstance(node, Rearrange) and isinstance(node.args[0], Tensor) and len(node.get("right")) == 3):
        return None
    left, right, repeated = node.get("left"), node.get("right"), node.get("repeated")
    ones = len(left) - 1
    if len(repeated) != 2 or set(right[:2]) != {(entry,) for entry in repeated} or left != (*[()] * ones, *right[2:]):
        return None
    token = Squeeze(node.args[0], ones) if ones else node.args[0]
    return Repeat(token, *(node.sizes[side[0]] for side in right[:2]))


def _repeat_kv(node: Node) -> Node | None:
    """Return each head repeated for the queries that share it, or None."""
    if not (isinstance(node, Rearrange) and len(node.get("repeated")) == 1 and len(node.get("right")) == 4):
        return None
    left, right, (copy,) = node.get("left"), node.get("right"), node.get("repeated")
    if len(left) != 4 or right[0] != left[0] or right[1] != (*left[1], copy) or len(left[1]) != 1:
        return None
    repeated = RepeatKV(node.args[0], node.sizes[left[1][0]] * node.sizes[copy])
    return repeated if right[2:] == left[2:] else Transposed(repeated) if right[2:] == left[:1:-1] else None


def _causal(node: Node, shape: tuple) -> Node | None:
    """Return the causal mask: 0 for keys up to the query, a lowest number elsewhere, `[…, T, T]`; or None."""
    if isinstance(node, Triu) and node.get("diagonal") == 1 and isinstance(node.operands[0], Full):
        value, square = node.operands[0].operands[0], node.operands[0].get("shape")
        hidden = isinstance(value, Scalar) and value.value == -oo and len(square) == 2 and square[0] == square[1]
        return CausalMask(square[0]) if hidden else None
    if not (isinstance(node, Where) and len(shape) > 1):
        return None
    condition, zero, lowest = node.args
    if isinstance(condition, Rearrange):
        before, after = (condition.get(side)[-2:] for side in ("left", "right"))
        if before == after and all(len(axis) == 1 for axis in after):  # the same for each of a batch
            condition = condition.args[0]
    if not isinstance(condition, Compare):
        return None
    key, query = condition.args[:2]
    if not all(isinstance(index, Rearrange) and isinstance(index.args[0], Arange) for index in (key, query)):
        return None
    zero = zero.args[0] if isinstance(zero, Full) else zero
    ordered = condition.get("sign") == r"\le" and key.get("right")[-1] == query.get("right")[-2] == (0,)
    length = key.args[0].args[0]
    if not (ordered and key.args[0] == query.args[0] and zero == Scalar(0) and isinstance(lowest, Scalar)):
        return None
    mask = CausalMask(length, *([] if lowest.value.is_infinite else [float(lowest.value)]))
    return ExpandLeading(mask, *shape[:-2]) if len(shape) > 2 else mask


NAME_RULES = (_angles, _places, _is_contiguous, _patches, _in_front, _repeat_kv, _every)
