"""Lowerings of ops that select, join, write and make tensors."""

from __future__ import annotations

from math import inf

import sympy
import torch

from tracer.capture.score_path import MASKED_SCORE
from tracer.expr import (
    Concat,
    ConcatTokens,
    Div,
    Full,
    Gather,
    Index,
    IndexPut,
    Minus,
    Node,
    Norm,
    Pad,
    Put,
    Rearrange,
    Roll,
    Scatter,
    Slice,
    Stack,
    Take,
    Tensor,
    Times,
    Transposed,
    Tril,
    Triu,
)
from tracer.expr.embeddings import Sinusoids
from tracer.expr.function_call import Scalar
from tracer.expr.indexing import FULL_SLICE, CausalMask, Triangle
from tracer.expr.rearrangements import Arange, ArangeFrom, ExpandLeading, Identity, Nonzero
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall, convert, fill, int_or, operand
from tracer.ops import UNINITIALISED_OPS

# Lowerings of indexing, scatter, concatenation, padding and shifts.


def _one_axis(call: BoundCall, entry) -> tuple:
    rank = call.rank("self")
    return tuple(entry if axis == call["dim"] % rank else None for axis in range(rank))


@register_lowering("index_select")
def index_select(call: BoundCall) -> Node | None:
    return Index(call["self"], call["index"], entries=_one_axis(call, "t")) if call.rank("self") else None


def _entries(call: BoundCall) -> tuple[list[Node], tuple]:
    """Return the index tensors of an `index`, and the entry at each axis."""
    places, entries, axes = [], [], 0
    for place, shape, dtype in zip(call["indices"], call.numeric("indices"), call.dtype("indices"), strict=True):
        mask = dtype in (torch.bool, torch.uint8)
        entries.append(None if place is None else "m" if mask else "t")
        places += [] if place is None else [place]
        axes += len(shape) if mask else 1
    return places, (*entries, *[None] * (call.rank("self") - axes))


@register_lowering("index", "_unsafe_index")
def index(call: BoundCall) -> Node:
    places, entries = _entries(call)
    return Index(call["self"], *places, entries=entries, result=call.result)


@register_lowering("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(call: BoundCall) -> Node:
    places, entries = _entries(call)
    return IndexPut(call["self"], call["values"], *places, entries=entries, add=call["accumulate"])


@register_lowering("masked_select")
def masked_select(call: BoundCall) -> Node | None:
    if call.numeric("self") != call.numeric("mask"):
        return None
    return Index(call["self"], call["mask"], entries=("m",), result=call.result)


@register_lowering("gather", "take_along_dim")
def gather(call: BoundCall) -> Node | None:
    name = "index" if "index" in call.arguments else "indices"
    if call.get("dim") is None or not call.rank("self"):
        return None
    if call.op_name.endswith("take_along_dim"):
        sizes = zip(call.numeric("self"), call.numeric(name), strict=True)
        if any(a != b for axis, (a, b) in enumerate(sizes) if axis != call["dim"] % call.rank("self")):
            return None
    if (tokens := _tokens(call, name)) is not None:
        return Take(call["self"], tokens)
    return Gather(call["self"], call[name], **call.axis_labels("self", (call["dim"] % call.rank("self"),)))


def _tokens(call: BoundCall, name: str) -> Node | None:
    """Return the token ids, `[B, n]`, that an index repeats for each feature, `[B, n, D]`; else None."""
    index, width = call[name], call.shape("self")[-1:]
    if call.rank("self") != 3 or call["dim"] % 3 != 1 or not isinstance(index, Rearrange):
        return None
    left, right, repeated = (index.get(side) for side in ("left", "right", "repeated"))
    whole = len(repeated) == 1 and len(left) == 2 and right == (*left, repeated) and call.shape(name)[-1:] == width
    return index.args[0] if whole else None


HOW = {"sum": "add", "add": "add", "prod": "prod", "multiply": "prod", "amax": "amax", "amin": "amin", None: None}


@register_lowering("scatter", "scatter_add", "scatter_reduce")
def scatter(call: BoundCall) -> Node | None:
    how = "add" if call.op_name.startswith("aten::scatter_add") else call.get("reduce")
    if how not in HOW or not call.get("include_self", True) or not call.rank("self"):
        return None
    values = operand(call, "src" if "src" in call.arguments else "value")
    named = all(isinstance(side, Tensor) for side in (call["self"], values))
    if named and HOW[how] is None and (tokens := _tokens(call, "index")) is not None:
        return Put(call["self"], tokens, values)
    axis = call.axis_labels("self", (call["dim"] % call.rank("self"),))
    return Scatter(call["self"], call["index"], values, how=HOW[how], **axis)


@register_lowering("index_add", "index_copy")
def index_add(call: BoundCall) -> Node | None:
    add = call.op_name.startswith("aten::index_add")
    if not call.rank("self") or call.get("alpha", 1) != 1:
        return None
    return IndexPut(call["self"], call["source"], call["index"], entries=_one_axis(call, "t"), add=add)


@register_lowering("index_fill")
def index_fill(call: BoundCall) -> Node | None:
    if not call.rank("self"):
        return None
    return IndexPut(call["self"], operand(call, "value"), call["index"], entries=_one_axis(call, "t"))


@register_lowering("slice_scatter")
def slice_scatter(call: BoundCall) -> Node:
    n = call.numeric("self")[call["dim"] % call.rank("self")]
    start, stop = call["start"] or 0, call["end"]
    start, stop = start or None, None if stop is None or stop >= n else stop
    entry = start, stop, call["step"] if call["step"] != 1 else None
    return IndexPut(call["self"], call["src"], entries=_one_axis(call, entry))


@register_lowering("select_scatter")
def select_scatter(call: BoundCall) -> Node:
    return IndexPut(call["self"], call["src"], entries=_one_axis(call, call["index"]))


@register_lowering("cat", "concat", "concatenate")
def cat(call: BoundCall) -> Node | None:
    """Lower a concatenation, without empty tensors of one axis: PyTorch skips them."""
    shapes = call.numeric("tensors")
    tensors = [x for x, shape in zip(call["tensors"], shapes, strict=True) if shape != (0,)]
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    rank = len(call.result_numeric)
    axis = call["dim"] % rank
    if len(tensors) == 2 and axis == rank - 2 and (vector := _prepended_vector(tensors[0])):
        return ConcatTokens(vector, tensors[1])
    return Concat(*tensors, axis=axis, rank=rank)


def _prepended_vector(node: Node) -> Node | None:
    """Return the vector that is prepended to each sequence of a batch, `[D]` as `[B, 1, D]`; or None."""
    if not isinstance(node, Rearrange) or len(node.get("left")) != 1 or len(node.get("right")) < 3:
        return None
    *lead, unit, last = node.get("right")
    return (
        node.operands[0]
        if last == node.get("left")[0] and not unit and all(set(side) <= set(node.get("repeated")) for side in lead)
        else None
    )


@register_lowering("stack")
def stack(call: BoundCall) -> Node:
    return Stack(*call["tensors"], axis=call["dim"] % len(call.result_numeric))


MODES = {"constant": None, "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


@register_lowering("constant_pad_nd", "pad")
def pad(call: BoundCall) -> Node:
    return Pad(call["self"], pads=call["pad"], mode=MODES[call.get("mode", "constant")], value=call["value"] or 0)


@register_lowering("copy", "fill", "zero", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
@register_lowering("zeros", "ones", "_efficientzerotensor", *UNINITIALISED_OPS)
def full(call: BoundCall) -> Node:
    """Lower a constant tensor, or one tensor that has the shape already or is broadcast to it; `empty` is as `zeros`,
    since every element of it is written later."""
    name = call.op_name
    source = next((key for key in ("src", "value", "fill_value") if key in call.arguments), None)
    tensor = convert(call, source, call.result_dtype) if source and isinstance(call[source], Node) else None
    if source and tensor is not None and call.numeric(source) == call.result_numeric:
        return tensor
    value = tensor or (operand(call, source) if source else Scalar(1 if "ones" in name else 0))
    return fill(call, value)


@register_lowering("diff")
def diff(call: BoundCall) -> Node | None:
    if call["n"] != 1:
        return None
    rank = call.rank("self")
    parts = [call[name] for name in ("prepend", "self", "append") if call.has(name)]
    x = Concat(*parts, axis=call["dim"] % rank, rank=rank) if len(parts) > 1 else parts[0]
    later, earlier = (_one_axis(call, (*ends, None)) for ends in ((1, None), (None, -1)))
    return Minus(*(Slice(x, [FULL_SLICE if e is None else e for e in entries]) for entries in (later, earlier)))


@register_lowering("_weight_norm", "_weight_norm_interface")
def weight_norm(call: BoundCall) -> Node | None:
    """Lower `g ⊙ v / ‖v‖`, the norm over all axes but one (Salimans and Kingma 2016)."""
    rank = call.rank("v")
    axes = call.axis_labels("v", [axis for axis in range(rank) if axis != call["dim"] % rank])
    return Times(call["g"], Div(call["v"], Norm(call["v"], p=2, keep=True, usual=False, **axes)))


@register_lowering("roll")
def roll(call: BoundCall) -> Node | None:
    rank, shifts = call.rank("self"), call["shifts"]
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    dims = call["dims"]
    dims = (dims,) if isinstance(dims, int) else tuple(dims) or ((0,) if rank == 1 else ())
    if not dims or len({axis % rank for axis in dims}) < len(dims):
        return None
    order = sorted(zip((axis % rank for axis in dims), shifts, strict=True))
    axes = call.axis_labels("self", [axis for axis, _ in order])
    if rank == 4 and axes["axes"] == (1, 2):  # rows and columns of a grid need no word
        axes["labels"] = ()
    return Roll(call["self"], shifts=tuple(shift for _, shift in order), **axes)


# Lowerings of factories: ranges, constant tensors, the identity, and indices.


@register_lowering("arange")
def arange(call: BoundCall) -> Node | None:
    """Lower `arange` from 0 in steps of 1, or from another integer or size in other steps; else keep the kernel."""
    start, step = (int_or(call.get(name, usual)) for name, usual in (("start", 0), ("step", 1)))
    if start == 0 and step == 1 and call.result_numeric[0] == call["end"]:
        return Arange(call.result[0])
    whole = all(isinstance(bound, (int, sympy.Expr)) for bound in (start, step))
    few = call.result_numeric[0] > 1 and call.result[0].is_Integer  # all of them are printed
    counted = isinstance(start, sympy.Expr) and not start.is_Integer and step == 1
    return ArangeFrom(call.result[0], start, step) if whole and (few or counted or call.result_numeric[0] > 2) else None


@register_lowering("triangle")
def lower_triangle(call: BoundCall) -> Node:
    """Lower a square with one number up to its diagonal and another behind it: a causal mask, if it is added."""
    (*lead, length), kept, rest = call.result[:-1], call["kept"], call["rest"]
    added = kept == 0 and rest <= MASKED_SCORE
    mask = CausalMask(length, *([] if rest == -inf else [rest])) if added else Triangle(length, kept, rest)
    return ExpandLeading(mask, *lead) if lead else mask


@register_lowering("sinusoids")
def sinusoids(call: BoundCall) -> Node:
    """Lower a table of sinusoids, `[T, D]`, with the leading axes of size 1 of the code."""
    length, width = call.result[-2:]
    over = width if call["steps"] == call.result_numeric[-1] // 2 else width - 2
    settings = {name: call[name] for name in ("base", "halves", "first")}
    table, ones = Sinusoids(length, width, over=over, **settings), len(call.result) - 2
    return Rearrange(table, (length, width), [(0,), (1,)], [*[()] * ones, (0,), (1,)]) if ones else table


@register_lowering("full")
def full_of(call: BoundCall) -> Node:
    return fill(call, Scalar(call["fill_value"]))


@register_lowering("eye")
def identity(call: BoundCall) -> Node:
    return Identity(*call.result)


@register_lowering("triu_indices", "tril_indices")
def triangle(call: BoundCall) -> Node:
    """Lower the indices of a triangle, as two rows: those of the elements that it keeps of a matrix of ones."""
    kind = Triu if "triu" in call.op_name else Tril
    ones = Full(Scalar(1), shape=(call["row"], call["col"]))
    return Transposed(Nonzero(kind(ones, diagonal=call["offset"]), count=call.result[1]))
