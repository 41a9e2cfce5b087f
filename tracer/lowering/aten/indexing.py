"""Lowerings of indexing, scatter, concatenation, padding and flips."""

from __future__ import annotations

import torch

from tracer.expr import (
    Concat,
    ConcatTokens,
    Div,
    Flip,
    Gather,
    Index,
    IndexPut,
    Lookup,
    MaskedScatter,
    Minus,
    Node,
    Norm,
    Pad,
    Put,
    Rearrange,
    Roll,
    Scalar,
    Scatter,
    Slice,
    Stack,
    Take,
    Tensor,
    Times,
    Tril,
    Triu,
)
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given
from tracer.lowering.scalar_operands import filled, operand

WHOLE = (None, None, None)


@of("embedding")
def embedding(given: Given) -> Node:
    return Lookup(given["weight"], given["indices"])


def _one_axis(given: Given, entry) -> tuple:
    rank = given.rank("self")
    return tuple(entry if axis == given["dim"] % rank else None for axis in range(rank))


@of("index_select")
def index_select(given: Given) -> Node | None:
    return Index(given["self"], given["index"], entries=_one_axis(given, "t")) if given.rank("self") else None


def _entries(given: Given) -> tuple[list[Node], tuple]:
    """Return the index tensors of an `index`, and the entry at each axis."""
    places, entries, axes = [], [], 0
    for place, shape, dtype in zip(given["indices"], given.numeric("indices"), given.dtype("indices"), strict=True):
        mask = dtype in (torch.bool, torch.uint8)
        entries.append(None if place is None else "m" if mask else "t")
        places += [] if place is None else [place]
        axes += len(shape) if mask else 1
    return places, (*entries, *[None] * (given.rank("self") - axes))


@of("index", "_unsafe_index")
def index(given: Given) -> Node:
    places, entries = _entries(given)
    return Index(given["self"], *places, entries=entries, result=given.result)


@of("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(given: Given) -> Node:
    places, entries = _entries(given)
    return IndexPut(given["self"], given["values"], *places, entries=entries, add=given["accumulate"])


@of("masked_select")
def masked_select(given: Given) -> Node | None:
    if given.numeric("self") != given.numeric("mask"):
        return None
    return Index(given["self"], given["mask"], entries=("m",), result=given.result)


@of("gather", "take_along_dim")
def gather(given: Given) -> Node | None:
    name = "index" if "index" in given.arguments else "indices"
    if given.get("dim") is None or not given.rank("self"):
        return None
    if given.func._schema.name.endswith("take_along_dim"):
        sizes = zip(given.numeric("self"), given.numeric(name), strict=True)
        if any(a != b for axis, (a, b) in enumerate(sizes) if axis != given["dim"] % given.rank("self")):
            return None
    if (tokens := _tokens(given, name)) is not None:
        return Take(given["self"], tokens)
    return Gather(given["self"], given[name], **given.named("self", (given["dim"] % given.rank("self"),)))


def _tokens(given: Given, name: str) -> Node | None:
    """Return the token ids, `[B, n]`, that an index repeats for each feature, `[B, n, D]`; else None."""
    index, width = given[name], given.shape("self")[-1:]
    if given.rank("self") != 3 or given["dim"] % 3 != 1 or not isinstance(index, Rearrange):
        return None
    left, right, repeated = (index.get(side) for side in ("left", "right", "repeated"))
    whole = len(repeated) == 1 and len(left) == 2 and right == (*left, repeated) and given.shape(name)[-1:] == width
    return index.args[0] if whole else None


HOW = {"sum": "add", "add": "add", "prod": "prod", "multiply": "prod", "amax": "amax", "amin": "amin", None: None}


@of("scatter", "scatter_add", "scatter_reduce")
def scatter(given: Given) -> Node | None:
    how = "add" if given.func._schema.name.startswith("aten::scatter_add") else given.get("reduce")
    if how not in HOW or not given.get("include_self", True) or not given.rank("self"):
        return None
    values = operand(given, "src" if "src" in given.arguments else "value")
    named = all(isinstance(one, Tensor) for one in (given["self"], values))
    if named and HOW[how] is None and (tokens := _tokens(given, "index")) is not None:
        return Put(given["self"], tokens, values)
    axis = given.named("self", (given["dim"] % given.rank("self"),))
    return Scatter(given["self"], given["index"], values, how=HOW[how], **axis)


@of("index_add", "index_copy")
def index_add(given: Given) -> Node | None:
    add = given.func._schema.name.startswith("aten::index_add")
    if not given.rank("self") or given.get("alpha", 1) != 1:
        return None
    return IndexPut(given["self"], given["source"], given["index"], entries=_one_axis(given, "t"), add=add)


@of("index_fill")
def index_fill(given: Given) -> Node | None:
    if not given.rank("self"):
        return None
    return IndexPut(given["self"], operand(given, "value"), given["index"], entries=_one_axis(given, "t"))


@of("masked_scatter")
def masked_scatter(given: Given) -> Node:
    return MaskedScatter(given["self"], given["mask"], given["source"])


@of("slice_scatter")
def slice_scatter(given: Given) -> Node:
    n = given.numeric("self")[given["dim"] % given.rank("self")]
    start, stop = given["start"] or 0, given["end"]
    start, stop = start or None, None if stop is None or stop >= n else stop
    entry = start, stop, given["step"] if given["step"] != 1 else None
    return IndexPut(given["self"], given["src"], entries=_one_axis(given, entry))


@of("select_scatter")
def select_scatter(given: Given) -> Node:
    return IndexPut(given["self"], given["src"], entries=_one_axis(given, given["index"]))


@of("cat", "concat", "concatenate")
def cat(given: Given) -> Node | None:
    """Lower a concatenation, without empty tensors of one axis: PyTorch skips them."""
    shapes = given.numeric("tensors")
    tensors = [x for x, shape in zip(given["tensors"], shapes, strict=True) if shape != (0,)]
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    rank = len(given.result_numeric)
    axis = given["dim"] % rank
    if len(tensors) == 2 and axis == rank - 2 and (vector := _repeated(tensors[0])):
        return ConcatTokens(vector, tensors[1])
    return Concat(*tensors, axis=axis, rank=rank)


def _repeated(node: Node) -> Node | None:
    """Return the vector that is prepended to each sequence of a batch, `[D]` as `[B, 1, D]`; or None."""
    if not isinstance(node, Rearrange) or len(node.get("left")) != 1 or len(node.get("right")) < 3:
        return None
    *lead, one, last = node.get("right")
    return (
        node.operands[0]
        if last == node.get("left")[0] and not one and all(set(side) <= set(node.get("repeated")) for side in lead)
        else None
    )


@of("stack")
def stack(given: Given) -> Node:
    return Stack(*given["tensors"], axis=given["dim"] % len(given.result_numeric))


MODES = {"constant": None, "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


@of("constant_pad_nd", "pad")
def pad(given: Given) -> Node:
    return Pad(given["self"], pads=given["pad"], mode=MODES[given.get("mode", "constant")], value=given["value"] or 0)


@of(*(f"{mode}_pad{axes}d" for mode in ("reflection", "replication") for axes in (1, 2, 3)))
def pad_mode(given: Given) -> Node:
    mode = "reflect" if "reflection" in given.func._schema.name else "replicate"
    return Pad(given["self"], pads=given["padding"], mode=mode)


@of("tril")
def tril(given: Given) -> Node:
    return Tril(given["self"], diagonal=given["diagonal"])


@of("triu")
def triu(given: Given) -> Node:
    return Triu(given["self"], diagonal=given["diagonal"])


@of("copy", "fill", "zero", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
def full(given: Given) -> Node:
    """Lower a constant tensor, or one tensor that has the shape already or is broadcast to it."""
    name = given.func._schema.name
    source = next((key for key in ("src", "value", "fill_value") if key in given.arguments), None)
    if source and isinstance(given[source], Node) and given.numeric(source) == given.result_numeric:
        return given[source]
    value = operand(given, source) if source else Scalar(1 if "ones" in name else 0)
    return filled(given, value)


@of("diff")
def diff(given: Given) -> Node | None:
    if given["n"] != 1:
        return None
    rank = given.rank("self")
    parts = [given[name] for name in ("prepend", "self", "append") if given.has(name)]
    x = Concat(*parts, axis=given["dim"] % rank, rank=rank) if len(parts) > 1 else parts[0]
    later, earlier = (_one_axis(given, (*ends, None)) for ends in ((1, None), (None, -1)))
    return Minus(*(Slice(x, [WHOLE if e is None else e for e in entries]) for entries in (later, earlier)))


@of("_weight_norm", "_weight_norm_interface")
def weight_norm(given: Given) -> Node | None:
    """Lower `g ⊙ v / ‖v‖`, the norm over all axes but one (Salimans and Kingma 2016)."""
    if given.position:
        return None
    rank = given.rank("v")
    axes = given.named("v", [axis for axis in range(rank) if axis != given["dim"] % rank])
    return Times(given["g"], Div(given["v"], Norm(given["v"], p=2, keep=True, usual=False, **axes)))


@of("flip")
def flip(given: Given) -> Node:
    return Flip(given["self"], **given.named("self", given.axes("self", given["dims"])))


@of("roll")
def roll(given: Given) -> Node | None:
    rank, shifts = given.rank("self"), given["shifts"]
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    dims = given["dims"]
    dims = (dims,) if isinstance(dims, int) else tuple(dims) or ((0,) if rank == 1 else ())
    if not dims or len({axis % rank for axis in dims}) < len(dims):
        return None
    order = sorted(zip((axis % rank for axis in dims), shifts, strict=True))
    axes = given.named("self", [axis for axis, _ in order])
    if rank == 4 and axes["axes"] == (1, 2):  # rows and columns of a grid need no word
        axes["labels"] = ()
    return Roll(given["self"], shifts=tuple(shift for _, shift in order), **axes)
