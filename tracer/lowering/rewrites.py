"""Rewrites of equations: layouts merged, positions simplified, functions named."""

from __future__ import annotations

from typing import Any

import sympy
from sympy import oo

from tracer.capture.calls import Call, CallLog, Ref
from tracer.expr import Node, Scan, Tensor, infer, latex
from tracer.expr.arithmetic import (
    And,
    Compare,
    Div,
    Exp,
    Maximum,
    Minimum,
    Minus,
    Plus,
    Product,
    Root,
    Row,
    Times,
    Transposed,
    Where,
)
from tracer.expr.convolutions import Convolution
from tracer.expr.embeddings import (
    Angles,
    AtDistance,
    ConcatTokens,
    Distances,
    FirstOf,
    Patches,
    RepeatKV,
    Rows,
    RowsAt,
    ScaledBy,
    SumsByDistance,
)
from tracer.expr.function_call import Scalar, tight
from tracer.expr.images import Fold, Grid, RowsFrom, Unfold, WindowPartition, WindowReverse
from tracer.expr.indexing import CausalMask, Concat, Full, Gather, Index, PrefixMask, Repeat, Scatter, Slice, Triu
from tracer.expr.norms import BatchNorm
from tracer.expr.rearrangements import (
    Arange,
    Columns,
    ExpandLeading,
    FlattenKernel,
    IsContiguous,
    MergeHeads,
    PositionIds,
    Rearrange,
    SplitHeads,
    Squeeze,
    TransposeBatchSeq,
)
from tracer.expr.recurrence import CARRY, INIT, INVARIANT, PARTS, placeholder
from tracer.expr.reductions import AllOf, ArgMax, CumSum
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import RearrangePattern
from tracer.graph.value_shapes import Shapes
from tracer.lowering.aten import has_lowering
from tracer.symbols.notation import SizePrinter, symbol

# Lowering of a rolled loop over time: its body is lowered like any other calls.


class NoSteps:
    """A step selection for a subgraph, such as the body of a loop: no value in it is a step."""

    def __init__(self, graph: Graph):
        self.named, self.ends, self._graph = {}, {}, graph

    def named_root(self, key: str) -> str:
        return self._graph.root(key)


def lower_loop(writer, call: Call) -> Node:
    """Lower the call of a rolled loop to a `Scan`."""
    body = call.arguments["body"]
    values = [writer.value(ref.key) for ref in call.arguments["operands"]]
    own = writer.inner_tensor(call.outputs[0].key)
    length = writer.shapes.of(call.outputs[0].key)[body.axis]
    operands, places, parts = [], [], {}
    whole = {ref.key: node for ref, node in zip(call.arguments["operands"], values, strict=True)}
    for key, what, axis, of, start in body.places:
        operand = own if of == body.own else whole[of]
        matrix = what == INVARIANT and isinstance(operand, Tensor) and _is_matrix(key, body)
        if matrix:
            operand = Tensor(operand.name, operand.shape[::-1], operand.key, transposed=True)
        operands.append(operand)
        places.append((what, axis, start))
        shape = own.shape if of == body.own else writer.shapes.of(of)
        if what in PARTS or what == CARRY:
            shape = (*shape[:axis], *([1] if body.keepdim else []), *shape[axis + 1 :])
        text = latex(operand) if isinstance(operand, Tensor) else f"{{{tight(operand, SizePrinter())}}}"
        shape = shape[::-1] if matrix else shape
        parts[key] = placeholder(text, len(operands) - 1, what, shape, length, matrix, body.back)
    first = len(operands)
    operands += [_initial_state(writer.value(ref.key), body) for ref in call.arguments["initial"]]
    places = [(what, axis, first + start if what == CARRY else 0) for what, axis, start in places]
    places += [(INIT, 0, 0)] * (len(operands) - first)
    return Scan(_lower_body(writer, body, parts), length, body.axis, (body.back, body.keepdim), places, *operands)


def _initial_state(node: Node, body) -> Node:
    """Return the initial state, arranged like its slices; a constant state as its number."""
    if isinstance(node, Full) and isinstance(node.operands[0], Scalar):
        return node.operands[0]
    rank = len(infer(node)) if body.keepdim else 0
    return Slice(node, tuple(0 if axis == body.axis else (None, None, None) for axis in range(rank))) if rank else node


def _is_matrix(key: str, body) -> bool:
    """Return whether a parameter is only used as the weight of linear maps."""
    uses = {(call.name, name) for call in body.calls for name, ref in call.arguments.items() if _is(ref, key)}
    return key.startswith("parameter ") and uses == {("linear", "weight")}


def _is(value, key: str) -> bool:
    return isinstance(value, Ref) and value.key == key


def _lower_body(writer, body, parts: dict[str, Tensor]) -> Node:
    """Lower one iteration, with these placeholders for its operands."""
    outputs = tuple(ref for call in body.calls for ref in call.outputs if ref.key == body.key)
    graph = Graph.of(CallLog(entries=list(body.calls), outputs=outputs), has_lowering)
    return writer.for_subgraph(graph, NoSteps(graph), parts).value(body.key)


# Rearrangements by their names in textbooks: split heads, merged heads, transpose, rows, columns, patches, or a
# pattern.

H, W = symbol("H"), symbol("W")


class RearrangePrinter:
    """Lowering of rearrangement patterns, with symbolic sizes."""

    def __init__(self, shapes: Shapes):
        self._shapes = shapes

    def node(self, node: Node, pattern: RearrangePattern, chain, before: tuple, after: tuple, loose: bool) -> Node:
        """Return `node`, of the shape `before`, rearranged by the pattern to the shape `after`.

        `chain` are the values in between. With `loose`, leading axes of size 1 are left out.
        """
        node, before = self._take_first_rows(node, pattern, chain, before, after)
        node, pattern, before = self._take_slices(node, pattern, chain, before, after)
        return self._split_and_merge(node, pattern, chain, before, after, loose)

    def _take_first_rows(
        self, node: Node, pattern: RearrangePattern, chain, before: tuple, after: tuple
    ) -> tuple[Node, tuple]:
        """Return the first rows of a table if these are all of them in this run: `P[:T]` for T = T_max."""
        if len(before) < 2 or len(before) != len(after) or pattern.left != pattern.right or any(pattern.slices):
            return node, before
        changed = [axis for axis, pair in enumerate(zip(before, after, strict=True)) if not self._shapes.same(*pair)]
        if changed != [len(before) - 2] or not self._shapes.starts_at_zero(chain):
            return node, before
        return Rows(node, after[-2]), (*before[:-2], *after[-2:])

    def _take_slices(
        self, node: Node, pattern: RearrangePattern, chain, before: tuple, result: tuple
    ) -> tuple[Node, RearrangePattern, tuple]:
        """Return the slices that a pattern takes of each axis.

        An axis of which one index is left is dropped, unless the result has another axis of size 1.
        """
        if not any(pattern.slices):
            return node, pattern, before
        ones = sum(not side and size == 1 for side, size in zip(pattern.right, result, strict=True))
        ranges: list[Any] = []
        after, left = [], []
        used: set[str] = set()
        for axis, (size, span, side) in enumerate(zip(before, pattern.slices, pattern.left, strict=True)):
            if span is None:
                ranges.append((None, None, None))
            elif not side and not ones and not self._keeps_axis(chain, span, axis, pattern, result):
                ranges.append(self.index(chain, span, axis, used))
                continue
            else:
                entry, size = self.bounds(chain, span, axis, used, size, pattern, side, result)
                ranges.append(entry)
            after.append(size)
            left.append(side)
        sliced = [k for k, slice_entry in enumerate(pattern.slices) if slice_entry]
        if sliced == [len(before) - 1] and len(before) > 1 and isinstance(ranges[-1], tuple) and ranges[-1][2] == 1:
            node = Columns(node, ranges[-1][0], ranges[-1][1])
        elif sliced == [len(before) - 2] and not isinstance(ranges[-2], tuple):
            node = Row(node, ranges[-2])
        elif sliced == [len(before) - 2] and ranges[-2][0] in (None, 0) and ranges[-2][2] == 1:
            node = Rows(node, ranges[-2][1])
        elif sliced == [len(before) - 2] and ranges[-2][1] == before[-2] and ranges[-2][2] == 1:
            node = RowsFrom(node, ranges[-2][0])
        else:
            node = Slice(node, tuple(ranges))
        return node, pattern._replace(left=tuple(left), slices=(None,) * len(left)), tuple(after)

    def _keeps_axis(self, chain, span: tuple[int, int, int], axis: int, pattern: RearrangePattern, result) -> bool:
        """Return whether a slice of one index has that length in this run alone: its length is a size of the result."""
        bounds = self._slice_bounds(chain, *span, axis, set())
        length = bounds and sympy.expand(bounds[1] - bounds[0])
        sides = zip(pattern.right, result, strict=True)
        return length not in (None, 1) and any(not side and self._shapes.same(size, length) for side, size in sides)

    def index(self, chain, span: tuple[int, int, int], axis: int, used: set[str]) -> int | sympy.Expr:
        """Return the single index that is selected from an axis."""
        known = self._slice_bounds(chain, *span, axis, used)
        place = known[0] if known else sympy.Integer(span[0])
        if not known:
            self._shapes.remark_moving(chain, span[:1])
        return int(place) if place.is_Integer else place

    def bounds(
        self,
        chain,
        span: tuple[int, int, int],
        axis: int,
        used: set[str],
        size,
        pattern: RearrangePattern,
        side,
        after,
    ) -> tuple[tuple, sympy.Expr]:
        """Return the slice that is taken of an axis as (start, stop, step), and its length."""
        start, stop, step = span
        lengths = self.lengths(pattern, side, after)
        known = self._slice_bounds(chain, start, stop, step, axis, used)
        if step != 1 and stop + step > self._shapes.number(size):  # every so many of all from the first on
            count = len(range(start, stop, step))
            fitting = (length for length in lengths if self._shapes.number(length) == count)
            if not known:
                self._shapes.remark_moving(chain, (start,))
            first = known[0] if known else sympy.Integer(start)
            return (first if first != 0 else None, None, step), next(fitting, sympy.Integer(count))
        first, last = known or self.edges(start, stop, size, lengths, step)
        if not known:
            self._shapes.remark_moving(
                chain, [number for number, end in zip(span, (first, last), strict=False) if end.is_Integer]
            )
        return (first, last, step), sympy.ceiling((last - first) / step) if step != 1 else last - first

    def lengths(self, pattern: RearrangePattern, side: tuple, result: tuple) -> list[sympy.Expr]:
        """Return sizes of the result that the factors of one axis can have together."""
        own = [
            self._shapes.without_units(size)
            for size, parts in zip(result, pattern.right, strict=True)
            if parts and set(parts) <= set(side)
        ]
        return [*own, *([sympy.prod(own)] if len(own) > 1 else [])]

    def _slice_bounds(
        self, chain, start: int, stop: int, step: int, axis: int, used_calls: set[str]
    ) -> tuple[sympy.Expr, sympy.Expr] | None:
        """Return the symbolic bounds of a slice from the call in a chain that takes it; None if there is none.

        Of several calls, the one with the same axis is used. It is added to `used_calls`, and not used again.
        """
        bounds = {}
        for key in chain:
            call = self._shapes.producer(key)
            if call is None or key in used_calls or "dim" not in call.arguments:
                continue
            output = next((i for i, ref in enumerate(call.outputs) if ref.key == key), 0)
            if (edges := self._shapes.slice_bounds(call, output, (start, stop), step)) is not None:
                rank = len(call.arguments["self"].shape) if "self" in call.arguments else 0
                bounds[key] = edges, rank and call.arguments["dim"] % rank == axis
        if not bounds:
            return None
        key = next((key for key, (_, same) in bounds.items() if same), next(iter(bounds)))
        used_calls.add(key)
        return bounds[key][0]

    def edges(
        self, start: int, stop: int, size: sympy.Expr, lengths: list[sympy.Expr], step: int
    ) -> tuple[sympy.Expr, sympy.Expr]:
        """Return the bounds of a slice that no single call takes, symbolic if its length is one of the sizes."""
        whole = self._shapes.number(size)
        length = stop - start
        if step == 1 and not size.is_Integer and 0 < length < whole and not whole % length and not start % length:
            part = sympy.cancel(size * length / whole)
            if part.is_Symbol:
                return start // length * part, stop // length * part
        if length == 1 and stop == whole and start:
            return size - 1, size
        own = [side for side in lengths if not side.is_Integer]
        for side in own:
            side = sympy.cancel(side)
            if side.is_Integer or step != 1 or not side.free_symbols:
                continue
            try:
                value = self._shapes.number(side)
            except ValueError:
                continue
            if value == length and value > 1 and start % value == 0:
                return sympy.Integer(start // value) * side, sympy.Integer(start // value + 1) * side
            if value == length and value > 1 and stop == whole:
                return size - side, size
        if stop == whole and start < 4:
            return sympy.Integer(start), size
        if stop == whole and not size.is_Integer:
            return size - length, size
        return sympy.Integer(start), sympy.Integer(stop)

    def _split_and_merge(
        self, node: Node, pattern: RearrangePattern, chain, before: tuple, after: tuple, loose: bool
    ) -> Node:
        """Split, permute and merge axes."""
        if (known := _repeat_single_head(node, pattern, before, after)) is not None:
            return known
        sizes, left, right, repeated = self._shapes.factor_sizes(pattern, chain, before, after)
        if repeated and loose and (shorter := _broadcast(left, right, repeated, sizes)) is not None:
            right, repeated = shorter
        if loose:
            while right and not right[0] and len(right) > 1:
                right = right[1:]
        if left == right and not repeated:
            return node
        if not repeated:
            trimmed = tuple(side for side in left if side)
            whole = all(left[len(left) - len(right) :])
            if loose and len(left) <= len(after) and trimmed == tuple(right) and whole:
                return node
            is_transposed = len(left) > 1 and right == (*left[:-2], left[-1], left[-2])
            if is_transposed and all(len(side) < 2 for side in left[-2:]):
                return Transposed(node)
            for known in (_match_heads, _match_patches, _match_grid, _match_fold, _match_windows):
                if (recognised := known(node, sizes, left, right)) is not None:
                    return recognised
        self._shapes.remark_unsolved(chain, sizes)
        return Rearrange(node, sizes, left, right, repeated)


def _match_heads(node: Node, sizes, left, right) -> Node | None:
    """Return the width split into heads, heads merged, or None."""
    if len(left) == len(right) - 1 and len(left) >= 2 and len(left[-1]) == 2:
        h, d = left[-1]
        if right == (*left[:-2], (h,), left[-2], (d,)):
            return SplitHeads(node, sizes[h])
        if right == (*left[:-2], (h,), (d,), left[-2]):
            return Transposed(SplitHeads(node, sizes[h]))
        if len(left) == 3 and right == (left[1], (h,), left[0], (d,)) and all(len(side) == 1 for side in left[:2]):
            return SplitHeads(TransposeBatchSeq(node, *(sizes[part] for side in left[:2] for part in side)), sizes[h])
    if len(left) == len(right) + 1 and len(left) >= 3 and len(right[-1]) == 2:
        h, d = right[-1]
        if left == (*right[:-2], (h,), right[-2], (d,)):
            return MergeHeads(node, sizes[h])
    if len(left) == 3 and tuple(right) == (left[1], left[0], left[2]) and all(len(side) == 1 for side in left):
        return TransposeBatchSeq(node, sizes[left[0][0]], sizes[left[1][0]])
    return None


def _repeat_single_head(node: Node, pattern: RearrangePattern, before: tuple, after: tuple) -> Node | None:
    """Return keys or values of one head, repeated for all queries, if only symbols show the axis of heads; or None."""
    left, right = pattern.left, pattern.right
    if len(before) != 4 or len(right) != 4 or left[1] or before[1].is_Integer or len(pattern.repeated) != 1:
        return None
    if right[0] != left[0] or right[1] != tuple(pattern.repeated):
        return None
    if right[2:] == left[2:]:
        return RepeatKV(node, after[1])
    return Transposed(RepeatKV(node, after[1])) if right[2:] == left[:1:-1] else None


def _match_patches(node: Node, sizes, left, right) -> Node | None:
    """Return an image `[B, C, H, W]` cut into square patches, in one of two orders of channels; or None."""
    if len(left) != 4 or len(right) != 3 or [len(side) for side in left] != [1, 1, 2, 2] or right[0] != left[0]:
        return None
    (channel,), (row, y), (column, x) = left[1:]
    if right[1] != (row, column) or sizes[y] != sizes[x]:
        return None
    kinds: dict[tuple, type[Node]] = {(channel, y, x): Unfold, (y, x, channel): Patches}
    return kinds[right[2]](node, sizes[y]) if right[2] in kinds else None


def _match_grid(node: Node, sizes, left, right) -> Node | None:
    """Return a sequence of patches, `[…, N, D]`, as the rows of a grid; or None."""
    if len(right) != len(left) + 1 or len(left) < 2 or len(left[-2]) != 2:
        return None
    row, column = left[-2]
    if right != (*left[:-2], (row,), (column,), left[-1]) or not (sizes[row].has(H) and sizes[column].has(W)):
        return None
    return Grid(node, sizes[row], sizes[column])


def _match_fold(node: Node, sizes, left, right) -> Node | None:
    """Return a grid, `[…, H/P, W/P, P²K]`, folded to pixels; or None."""
    if len(left) != len(right) or len(left) < 3 or [len(side) for side in left[-3:]] != [1, 1, 3]:
        return None
    (row,), (column,), (y, x, kind) = left[-3:]
    if sizes[y] != sizes[x] or right != (*left[:-3], (row, y), (column, x), (kind,)):
        return None
    return Fold(node, sizes[y])


def _match_windows(node: Node, sizes, left, right) -> Node | None:
    """Return a grid `[B, n, m, D]` cut into square windows as a batch of sequences, or merged again; or None."""
    whole, parts = (left, right) if len(left) == 4 else (right, left)
    if [len(side) for side in whole] != [1, 2, 2, 1] or len(parts) != 3:
        return None
    batch, (row, y), (column, x), width = whole
    if tuple(parts) != ((*batch, row, column), (y, x), width) or sizes[y] != sizes[x]:
        return None
    return (
        WindowPartition(node, sizes[y])
        if whole is left
        else WindowReverse(node, sizes[row] * sizes[y], sizes[column] * sizes[x])
    )


def _broadcast(left, right, repeated, sizes):
    """Return the axes of the result without those that broadcasting repeats; None if it does not repeat them all."""
    right = list(right)
    while right and right[0] and all(part in repeated for part in right[0]):
        right.pop(0)
    shown = []
    for side in right:
        if any(part in repeated for part in side):
            if not all(part in repeated for part in side):
                return None
            shown.append(())
        else:
            shown.append(side)
    return tuple(shown), ()


# Rewrite rules for formulas of positions: distances between tokens, gathers at one position of each sequence,
# masks.


def _position_row(node: Node):
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
    if (
        not isinstance(least, Scalar)
        or least.value != -most.value
        or _position_row(key) is None
        or _position_row(key) != _column(query)
    ):
        return None
    return Distances(_position_row(key), most.value)


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
    length = _position_row(key)
    if signs != (">", r"\ge") or length is None or not length == _column(query) == _position_row(same):
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


# Rewrite rules that replace formulas spelled out in several calls by the one node that papers use for them.

TOLERANCE = 1e-6
"""Largest relative difference of a number and the constant that it stands for."""


def simplify(node: Node, shape: tuple = ()) -> Node:
    """Return a node rewritten to its named form, if it has one; `shape` is that of a line, or ()."""
    for rule in (*NAME_RULES, *POSITION_RULES):
        if (named := rule(node)) is not None:
            return named
    return _causal(node, shape) or node


def _is_named(node: Node, value: float) -> bool:
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
    if not (
        isinstance(node, AllOf) and isinstance(node.operands[0], Compare) and _is_named(node.operands[0].args[1], 0)
    ):
        return None
    sums = [inner for inner in node.atoms(CumSum) if isinstance(inner.operands[0], Compare)]
    if len(sums) != 1 or not _is_named(sums[0].operands[0].args[1], 1) or node.operands[0].get("sign") != "=":
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
