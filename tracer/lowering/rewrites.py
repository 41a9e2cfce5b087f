"""Rewrites of equations: layouts merged, positions simplified, functions named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
    Over,
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
from tracer.expr.function_call import Scalar, encode, tight
from tracer.expr.images import Fold, Grid, RowsFrom, Unfold, WindowColumns, WindowPartition, WindowReverse
from tracer.expr.indexing import (
    CausalMask,
    Concat,
    Full,
    Gather,
    Index,
    IndexPut,
    PrefixMask,
    Repeat,
    Scatter,
    Slice,
    Triu,
)
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
from tracer.lowering.patterns import OneOf, Rule, Wild, match, match_axes, rewrite
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
        matrix = matrix and not writer.names.has_two_layouts(key)
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
        if after[-2].is_Integer:
            self._shapes.remark_moving(chain, (int(after[-2]),))
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
            if (named := name_rearrangement(node, sizes, left, right)) is not None:
                return named
        self._shapes.remark_unsolved(chain, sizes)
        return Rearrange(node, sizes, left, right, repeated)


X = Wild("x")


class Rearrangement(NamedTuple):
    """A rearrangement with a name: its axes, and its node. Factors that differ in their digit have one size."""

    axes: str
    node: Node
    where: Callable[[dict[str, sympy.Expr]], bool] = lambda sizes: True


REARRANGEMENTS = (
    Rearrangement("... S (h d) -> ... h S d", SplitHeads(X, Wild("h"))),
    Rearrangement("... S (h d) -> ... h d S", Transposed(SplitHeads(X, Wild("h")))),
    Rearrangement("s b (h d) -> b h s d", SplitHeads(TransposeBatchSeq(X, Wild("s"), Wild("b")), Wild("h"))),
    Rearrangement("... h S d -> ... S (h d)", MergeHeads(X, Wild("h"))),
    Rearrangement("s b d -> b s d", TransposeBatchSeq(X, Wild("s"), Wild("b"))),
    Rearrangement("b c (r p1) (q p2) -> b (r q) (c p1 p2)", Unfold(X, Wild("p"))),
    Rearrangement("b c (r p1) (q p2) -> b (r q) (p1 p2 c)", Patches(X, Wild("p"))),
    Rearrangement(
        "... (r q) D -> ... r q D",
        Grid(X, Wild("r"), Wild("q")),
        lambda sizes: sizes["r"].has(H) and sizes["q"].has(W),
    ),
    Rearrangement("... r q (p1 p2 k) -> ... (r p1) (q p2) k", Fold(X, Wild("p"))),
    Rearrangement("b (r p1) (q p2) d -> (b r q) (p1 p2) d", WindowPartition(X, Wild("p"))),
    Rearrangement(
        "(b r q) (p1 p2) d -> b (r p1) (q p2) d",
        WindowReverse(X, Wild("r") * Wild("p"), Wild("q") * Wild("p")),
    ),
)


def name_rearrangement(node: Node, sizes, left, right) -> Node | None:
    """Return a rearrangement by its name, or None."""
    for rule in REARRANGEMENTS:
        if (captures := match_axes(rule.axes, left, right)) is None:
            continue
        parts = [(name[0], sizes[part]) for name, part in captures.items() if name.islower()]
        known = dict(parts)
        if all(known[name] == size for name, size in parts) and rule.where(known):
            return rule.node.xreplace({X: node} | {Wild(name): size for name, size in known.items()})
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


# Rewrite rules: formulas spelled out in several calls, and the one node that papers use for them.

RULES: list[Rule] = []


def rule(pattern: Node) -> Callable:
    """Register the function below as the replacement of what matches a pattern; earlier rules come first."""

    def register(replace: Callable[..., Node | None]) -> Callable[..., Node | None]:
        RULES.append(Rule(pattern, replace))
        return replace

    return register


def simplify(node: Node, shape: tuple = ()) -> Node:
    """Return a node rewritten to its named form, if it has one; `shape` is that of a line, or ()."""
    return rewrite(RULES, node) or _causal(node, shape) or node


def layout(x: Node, sizes=None, left=None, right=None, repeated=None) -> Rearrange:
    """Return the pattern of a rearrangement; what is left out may be anything."""
    return Rearrange(x, sizes, left, right, repeated)


N = Wild("n")
ROW = OneOf(layout(Arange(N), right=((), (0,))), Arange(N), PositionIds(N))
"""Positions as a row, or `[n]`."""
COLUMN = layout(Arange(N), right=((0,), ()))
"""Positions as a column."""
ZERO = OneOf(Scalar(0), Full(Scalar(0)))
"""0, or as many as are needed."""
SIDES = {side: Wild(side) for side in ("left", "right", "repeated")}
TOKENS, VALUES, AXES = Wild("tokens", Tensor), Wild("values"), Wild("axes")
HALF = Times(layout(Wild("places"), left=((), (0,)), right=((), (0,), ())), Wild("frequencies", Tensor))


@rule(Concat(HALF, HALF, axis=Wild("axis"), rank=Wild("rank")))
def _angles(places: Node, frequencies: Tensor, axis, rank) -> Node | None:
    """Return `[p ⊙ θ , p ⊙ θ]` with positions p as a column."""
    return Angles(places, frequencies) if axis == rank - 1 and len(frequencies.shape) == 1 else None


@rule(layout(Arange(N), right=((), (0,))))
def _places(n) -> Node:
    """Return `0, 1, …` as a row."""
    return PositionIds(n)


@rule(AllOf(Compare(X, Scalar(0), sign="=")))
def _is_contiguous(x: Node) -> Node | None:
    """Return whether positions are consecutive, from a cumulative sum of steps other than 1 that ends with 0."""
    sums = [inner for inner in x.atoms(CumSum) if isinstance(inner.operands[0], Compare)]
    if len(sums) != 1 or sums[0].operands[0].args[1] != Scalar(1):
        return None
    joined = [inner for inner in x.atoms(Concat) if _row(inner.operands[-1]) is not None]
    picked = [inner for inner in x.atoms(Slice) if inner.args[0] in joined]
    if len(joined) != 1 or len(picked) != 2 or {_row(joined[0].operands[-1])} != x.atoms(Tensor):
        return None
    return IsContiguous(_row(joined[0].operands[-1]))


def _row(node: Node) -> Tensor | None:
    """Return the tensor that a node is, or that each of its rows repeats; or None."""
    if not (isinstance(node, Rearrange) and isinstance(node.args[0], Tensor)):
        return node if isinstance(node, Tensor) else None
    left, right = ([side for side in node.get(name) if side] for name in ("left", "right"))
    return node.args[0] if right[-1:] == left[-1:] else None


WRITTEN = Slice(IndexPut(X, VALUES, entries=Wild("entries"), add=Wild("add")), Wild("entries"))


@rule(WRITTEN)
def _read_back(x: Node, values: Node, entries, add) -> Node | None:
    """Return what was written into some cells of a tensor, such as a cache, where the same cells are read."""
    cells = Slice(x, encode(entries))
    return values if not add and infer(values) == infer(cells) else None


@rule(Transposed(WRITTEN))
def _read_back_transposed(**written) -> Node | None:
    """Return what was written into some cells of a tensor, transposed, where the same cells are read so."""
    values = _read_back(**written)
    return values and values.T


@rule(Div(X, Root(Scalar(Wild("number")))))
def _over_root(x: Node, number: sympy.Expr) -> Node | None:
    """Return a quotient by the root of a number."""
    return Over(x, sympy.sqrt(number)) if number.is_Integer and number > 0 and x != Scalar(1) else None


KERNELS, STRIDE = (Wild("image"), Wild("kernels", Tensor)), Wild("stride")
CONVOLUTIONS = [Convolution(*KERNELS, *bias, stride=STRIDE, groups=1) for bias in ((), (Wild("bias"),))]


@rule(layout(OneOf(*CONVOLUTIONS), left=SIDES["left"], right=SIDES["right"]))
def _patches(image: Node, kernels: Tensor, stride, left, right, **bias: Node) -> Node | None:
    """Return a convolution of disjoint square patches as patches times the kernels as a matrix."""
    if len(kernels.shape) != 4 or any(isinstance(step, int) for step in stride):
        return None
    side, width = kernels.shape[2:]
    batch, channels, rows, columns = left
    if side != width or right != (batch, (*rows, *columns), channels):
        return None
    product = Product(Unfold(image, side), FlattenKernel(kernels))
    return Plus(product, *bias.values()) if bias else product


COLUMNS = WindowColumns(X, window=Wild("window"), stride=Wild("window"), padding=(0, 0), dilation=(1, 1))


@rule(Transposed(COLUMNS))
def _unfolded(x: Node, window) -> Node | None:
    """Return disjoint square windows of a picture, which `im2col` cuts out as columns, as patches."""
    side, width = window
    return Unfold(x, side) if side == width and isinstance(side, (int, sympy.Expr)) else None


@rule(Concat(layout(Wild("token", Tensor), **SIDES), Wild("sequence"), axis=1, rank=3))
def _in_front(token: Tensor, sequence: Node, left, right, repeated) -> Node | None:
    """Return a parameter token, `[1, 1, D]` or `[D]`, prepended to each sequence of a batch."""
    if len(repeated) != 1 or right[0] != repeated or not token.key.startswith("parameter"):
        return None
    if right[1:] == ((), *left):
        return ConcatTokens(token, sequence)
    return ConcatTokens(Squeeze(token, 2), sequence) if right[1:] == left[1:] and left[:2] == ((), ()) else None


@rule(layout(X, Wild("sizes"), **SIDES))
def _repeat_kv(x: Node, sizes, left, right, repeated) -> Node | None:
    """Return each head repeated for the queries that share it."""
    for axes in ("B h S D -> B (h r) S D", "B h S D -> B (h r) D S"):
        if (parts := match_axes(axes, left, right)) and repeated == (parts["r"],):
            heads = RepeatKV(x, sizes[parts["h"]] * sizes[parts["r"]])
            return heads if right[2:] == left[2:] else Transposed(heads)
    return None


@rule(layout(TOKENS, Wild("sizes"), **SIDES))
def _every(tokens: Tensor, sizes, left, right, repeated) -> Node | None:
    """Return one vector repeated as every token of each sequence."""
    parts = match_axes("... D -> b t D", left, right)
    if parts is None or any(parts["..."]) or {parts["b"], parts["t"]} != {*repeated}:
        return None
    ones = len(left) - 1
    return Repeat(Squeeze(tokens, ones) if ones else tokens, sizes[parts["b"]], sizes[parts["t"]])


LEAST, MOST = Scalar(Wild("least")), Scalar(Wild("most"))


@rule(Plus(Minimum(Maximum(Minus(ROW, COLUMN), LEAST), MOST), MOST))
def _distances(n, least: sympy.Expr, most: sympy.Expr) -> Node | None:
    """Return the clipped distances `min(max(j - i, -R), R) + R`."""
    return Distances(n, most) if least == -most else None


PAIRS = layout(Wild("distances", Tensor), **SIDES)


def _is_of_pairs(left, right, repeated, axes) -> bool:
    """Return whether a matrix `[S, S]` is repeated over all leading axes, and the axes are the last one."""
    *lead, row, column = right
    alike = all(set(side) <= set(repeated) for side in lead) and left == (row, column)
    return alike and all(len(side) == 1 for side in left) and axes == (len(right) - 1,)


@rule(Gather(VALUES, PAIRS, axes=AXES))
def _at_distance(values: Node, distances: Tensor, **sides) -> Node | None:
    """Return the gather of one number for each distance at the distance of each pair."""
    return AtDistance(values, distances) if _is_of_pairs(**sides) else None


@rule(Scatter(Full(Scalar(0), shape=Wild("shape")), PAIRS, VALUES, how="add", axes=AXES))
def _by_distance(values: Node, distances: Tensor, shape, **sides) -> Node | None:
    """Return the sum of each query's numbers by distance, scattered into zeros."""
    return SumsByDistance(values, distances, shape[-1]) if _is_of_pairs(**sides) else None


@rule(ArgMax(Compare(TOKENS, Scalar(Wild("number")), sign="="), axes=(1,), keep=Wild("keep")))
def _first_of(tokens: Tensor, number: sympy.Expr, keep) -> Node | None:
    """Return the position of the first token equal to a number, an argmax of comparisons."""
    return FirstOf(tokens, number) if len(tokens.shape) == 2 and number.is_Integer and not keep else None


@rule(Index(TOKENS, Arange(N), Wild("places"), entries=("t", "t", None)))
def _rows_at(tokens: Tensor, n, places: Node) -> Node | None:
    """Return one token of each sequence."""
    return RowsAt(tokens, places) if n == tokens.shape[0] else None


POWER, MATRIX = Exp(Wild("power", Tensor)), Wild("x", Tensor, Transposed)


@rule(OneOf(Times(POWER, MATRIX), Times(MATRIX, POWER)))
def _scaled_by(power: Tensor, x: Node) -> Node | None:
    """Return the exponential of a scalar parameter times a tensor."""
    return ScaledBy(power, x) if power.shape == () else None


LATER, IN_PREFIX = Compare(ROW, COLUMN, sign=">"), Compare(ROW, Scalar(Wild("prefix")), sign=r"\ge")


@rule(Where(And(LATER, IN_PREFIX), Scalar(-oo), ZERO))
def _prefix(n, prefix: sympy.Expr) -> Node:
    """Return the prefix mask: 0 for keys up to the query or in the prefix, else -∞."""
    return PrefixMask(n, prefix)


def _of_channels(node: Node, rank: int) -> Tensor | None:
    """Return a vector over channels, broadcast along the axis after the batch; or None."""
    captures = match(layout(Wild("vector", Tensor), left=((0,),), right=Wild("right"), repeated=()), node)
    spread = ((0,), *[()] * (rank - 2))
    return captures["vector"] if captures and captures["right"] in (spread, ((), *spread)) else None


SCALE = Div(Wild("gamma"), Root(Plus(Wild("variance"), Scalar(Wild("eps")))))


@rule(Plus(Times(Wild("x", Tensor), SCALE), Minus(Wild("beta"), Times(Wild("mean"), SCALE))))
def _frozen_norm(x: Tensor, mean: Node, variance: Node, gamma: Node, beta: Node, eps: sympy.Expr) -> Node | None:
    """Return a batch norm with constant statistics, spelled `x ⊙ s + (β - μ ⊙ s)` with `s = γ / √(σ² + ε)`."""
    vectors = [_of_channels(vector, len(x.shape)) for vector in (mean, variance, gamma, beta)]
    if not eps.is_number or None in vectors:
        return None
    return BatchNorm(x, *vectors, eps=float(eps), affine="weight bias", wide=len(x.shape) > 2)


@rule(Triu(Full(Scalar(-oo), shape=(N, N)), diagonal=1))
def _upper_triangle(n) -> Node:
    """Return the causal mask, kept of a square of -∞."""
    return CausalMask(n)


ORDERED = Compare(layout(Arange(N), right=Wild("key")), layout(Arange(N), right=Wild("query")), sign=r"\le")
CONDITION = OneOf(ORDERED, layout(ORDERED, left=SIDES["left"], right=SIDES["right"]))


def _causal(node: Node, shape: tuple) -> Node | None:
    """Return the causal mask: 0 for keys up to the query, a lowest number elsewhere, `[…, T, T]`; or None."""
    if len(shape) < 2 or (captures := match(Where(CONDITION, ZERO, Scalar(Wild("lowest"))), node)) is None:
        return None
    before, after = (captures.get(side, ())[-2:] for side in ("left", "right"))
    alike = before == after and all(len(axis) == 1 for axis in after)  # the same for each of a batch
    if not alike or not captures["key"][-1] == captures["query"][-2] == (0,):
        return None
    lowest = captures["lowest"]
    mask = CausalMask(captures["n"], *([] if lowest.is_infinite else [float(lowest)]))
    return ExpandLeading(mask, *shape[:-2]) if len(shape) > 2 else mask
