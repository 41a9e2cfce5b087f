"""Rearrangements by their names in textbooks: split heads, merged heads, transpose, rows, columns, patches, or a
pattern."""

from __future__ import annotations

from typing import Any

import sympy

from tracer.expr import Node
from tracer.expr.layout.gather_scatter import Slice
from tracer.expr.layout.image_grids import Fold, Grid, RowsFrom, Unfold, WindowPartition, WindowReverse
from tracer.expr.layout.projection_layouts import Columns, TransposeBatchSeq
from tracer.expr.layout.rearrange import Rearrange
from tracer.expr.layout.split_heads import MergeHeads, SplitHeads
from tracer.expr.math.algebra import Row, Transposed
from tracer.expr.nn.rope import RepeatKV
from tracer.expr.nn.token_embedding import Patches, Rows
from tracer.graph.index_maps import RearrangePattern
from tracer.graph.value_shapes import Shapes
from tracer.symbols.notation import symbol

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
