"""Mismatches in a failed call, by the function of PyTorch that was called, in a sentence with both shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.capture.modes import FailedCall
from tracer.capture.tensors import indexed_axes, is_mask
from tracer.diagnostics.failures.trials import Clash, Scene, argument
from tracer.record import dtype_name
from tracer.utils.errors import reason

DEVICE, LOSS, DTYPE, FUNCTION = range(4)
"""The order in which the rules of a call are asked: a loss knows better than its error which dtypes it takes."""

Check = Callable[[Scene, FailedCall], Clash | None]


class ClashRule(NamedTuple):
    """A rule on the failed calls of some functions, of all where it names none: its rank, and its check, which returns
    what does not fit, None for nothing."""

    functions: frozenset[str]
    rank: int
    check: Check


RULES: list[ClashRule] = []
"""All rules, in the order of their definitions."""


def clash(*functions: str, rank: int = FUNCTION) -> Callable[[Check], Check]:
    """Register a check of the failed calls of these functions, or of all."""

    def register(check: Check) -> Check:
        RULES.append(ClashRule(frozenset(functions), rank, check))
        return check

    return register


def clash_of(scene: Scene) -> Clash | None:
    """Return the mismatch in the failed call; None where its kind is not known."""
    call = scene.call
    if call is None:
        return None
    rules = (rule for rule in RULES if not rule.functions or call.name in rule.functions)
    found = (rule.check(scene, call) for rule in sorted(rules, key=lambda rule: rule.rank))
    return next(filter(None, found), None)


# Attention whose queries, keys, values or mask do not fit.


@clash("scaled_dot_product_attention")
def scaled_dot_product(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that queries and keys are equally wide, keys and values equally long, and the mask is S_q × S_k."""
    q, k, v = argument(call, 0, "query"), argument(call, 1, "key"), argument(call, 2, "value")
    mask = argument(call, 3, "attn_mask")
    if not all(isinstance(x, Tensor) and x.dim() >= 2 for x in (q, k, v)):
        return None
    names = [scene.name(x, role) for x, role in ((q, "the queries"), (k, "the keys"), (v, "the values"))]
    if q.shape[-1] != k.shape[-1]:
        message = f"{names[0]} {scene.shape(q)} and {names[1]} {scene.shape(k)} differ in their width, the last axis."
        return Clash("attention", message, {id(q): (-1,), id(k): (-1,)}, (q, k, v))
    if k.shape[-2] != v.shape[-2]:
        message = (
            f"{names[1]} {scene.shape(k)} and {names[2]} {scene.shape(v)} differ in their length, the last axis "
            "but one."
        )
        return Clash("attention", message, {id(k): (-2,), id(v): (-2,)}, (q, k, v))
    if isinstance(mask, Tensor):
        return _mask(scene, mask, (*q.shape[:-1], k.shape[-2]), (q, k, mask), scene.size(q, -2), scene.size(k, -2))
    if len({x.shape[:-2] for x in (q, k, v)}) > 1:
        message = (
            "Batch and heads differ: "
            f"{', '.join(f'{name} is {scene.shape(x)}' for name, x in zip(names, (q, k, v), strict=True))}."
        )
        axes = {id(x): tuple(range(x.dim() - 2)) for x in (q, k, v)}
        return Clash("attention", message, axes, (q, k, v))
    return None


def _mask(
    scene: Scene, mask: Tensor, scores: tuple[int, ...], shown: tuple[Tensor, ...], rows: str, columns: str
) -> Clash | None:
    axes = [-a for a in range(1, mask.dim() + 1) if a > len(scores) or mask.shape[-a] not in (1, scores[-a])]
    name = scene.name(mask, "the mask")
    if not axes:
        return None
    message = (
        f"{name} {scene.shape(mask)} = {list(mask.shape)} has to fit the scores {list(scores)}, {rows} queries by "
        f"{columns} keys."
    )
    return Clash("mask", message, {id(mask): tuple(axes)}, shown)


@clash("multi_head_attention_forward")
def multi_head(scene: Scene, call: FailedCall) -> Clash | None:
    """Find a width of the queries that is not the layer's, or a mask with other axes than it takes."""
    q, k = argument(call, 0, "query"), argument(call, 1, "key")
    width, heads = argument(call, 3, "embed_dim_to_check"), argument(call, 4, "num_heads")
    if not (isinstance(q, Tensor) and isinstance(k, Tensor)) or q.dim() not in (2, 3):
        return None
    layer = scene.layer("the layer")
    if q.shape[-1] != width:
        message = f"{layer} is {width} wide, and its queries {scene.label(q, '')} are {scene.size(q, -1)}."
        return Clash("attention", message, {id(q): (-1,)}, (q, k))
    module = scene.module
    if isinstance(module, nn.MultiheadAttention) and k.shape[-1] != module.kdim:
        keys = scene.name(k, "the keys")
        message = f"{layer} takes keys of width {module.kdim}, and {keys} {scene.shape(k)} has {scene.size(k, -1)}."
        return Clash("attention", message, {id(k): (-1,)}, (q, k))
    order = "[T, B, D]" if isinstance(module, nn.MultiheadAttention) and not module.batch_first else "[B, T, D]"
    batch = q.shape[1] if q.dim() == 3 else 1
    padding, mask = call.kwargs.get("key_padding_mask"), call.kwargs.get("attn_mask")
    if isinstance(padding, Tensor):
        wanted = (batch, k.shape[0]) if q.dim() == 3 else (k.shape[0],)
        if tuple(padding.shape) != wanted:
            message = (
                f"{layer} takes {order}, batch_first={getattr(module, 'batch_first', False)}: with its keys, that is "
                f"{wanted[0]} samples of {k.shape[0]} tokens, and the padding mask is {list(padding.shape)}."
            )
            return Clash("mask", message, {id(padding): tuple(range(padding.dim()))}, (q, padding))
    if isinstance(mask, Tensor):
        rows, columns = q.shape[0], k.shape[0]
        allowed = {(rows, columns), (batch * int(heads or 1), rows, columns)}
        if tuple(mask.shape) not in allowed:
            message = (
                f"{layer} takes {order}, batch_first={getattr(module, 'batch_first', False)}: its scores are {rows} "
                f"queries by {columns} keys, and the mask is {scene.shape(mask)} = {list(mask.shape)}."
            )
            return Clash("mask", message, {id(mask): tuple(range(mask.dim()))}, (q, mask))
    return None


# Shapes that do not fit: tensors that are joined, broadcast, viewed or expanded, and axes that are not there.

STRIDES = "view size is not compatible"
"""What PyTorch says of a view of a tensor whose memory is in another order."""
IN_PLACE = frozenset("iadd isub imul idiv itruediv add_ sub_ mul_ div_ copy_ masked_fill_".split())
ARITHMETIC = (
    "add sub mul div truediv floordiv pow radd rsub rmul rtruediv rdiv iadd isub imul itruediv idiv add_ sub_ mul_ div_"
    " maximum minimum where masked_fill masked_fill_ eq ne lt le gt ge and or xor logical_and logical_or logical_xor"
    " lerp addcmul addcdiv atan2 fmod remainder copy_ hypot bitwise_and bitwise_or rand ror rpow iand ior"
).split()
AXES = (
    "permute transpose swapaxes movedim softmax log_softmax sum mean max min amax amin argmax argmin std var norm"
    " cumsum cumprod unsqueeze squeeze flatten select narrow split chunk size flip roll sort topk logsumexp size unbind"
).split()


@clash("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack")
def cat(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that tensors that are joined along an axis are equally long along all others."""
    tensors = argument(call, 0, "tensors")
    if not isinstance(tensors, (list, tuple)) or not all(isinstance(x, Tensor) for x in tensors) or not tensors:
        return None
    first, names = tensors[0], [scene.name(x, f"tensor {n + 1}") for n, x in enumerate(tensors)]
    stacked = call.name in ("stack", "hstack", "vstack", "dstack")
    dim = argument(call, 1, "dim", call.kwargs.get("axis", 0))
    for name, tensor in zip(names[1:], tensors[1:], strict=True):
        if tensor.dim() != first.dim():
            message = (
                f"`{call.name}` joins tensors with equally many axes: {names[0]} is {scene.shape(first)} and {name} is "
                f"{scene.shape(tensor)}."
            )
            return Clash("join", message, {id(tensor): tuple(range(tensor.dim()))}, tuple(tensors))
        along = dim % first.dim() if isinstance(dim, int) and first.dim() and not stacked else None
        axes = [a for a in range(first.dim()) if a != along and first.shape[a] != tensor.shape[a]]
        if axes:
            where = "all axes" if stacked else f"all axes but axis {dim}"
            message = (
                f"`{call.name}` needs tensors that are equally long along {where}: {names[0]} is {scene.shape(first)} "
                f"and {name} is {scene.shape(tensor)}, and axis {axes[0]} is {scene.size(first, axes[0])} in the first "
                f"and {scene.size(tensor, axes[0])} in the other."
            )
            return Clash("join", message, {id(first): tuple(axes), id(tensor): tuple(axes)}, tuple(tensors))
    return None


@clash(*ARITHMETIC)
def broadcast(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that axes that meet, counted from the last, are equally long, or one of them is 1."""
    tensors = [x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor)]
    for number, a in enumerate(tensors):
        for b in tensors[number + 1 :]:
            axes = _clashing_axes(a, b)
            into = call.name in IN_PLACE and number == 0
            if into and not axes and (b.dim() > a.dim() or any(_longer(a, b))):
                message = f"The result is written into {scene.label(a, 'the first')}, which is smaller than it."
                return Clash("broadcast", message, {id(a): tuple(range(a.dim()))}, (a, b))
            if axes:
                left, right = scene.name(a, "the first"), scene.name(b, "the second")
                message = (
                    f"{left} {scene.shape(a)} meets {right} {scene.shape(b)}: counted from the last, axis "
                    f"{-axes[0]} is "
                    f"{scene.size(a, axes[0])} in one and {scene.size(b, axes[0])} in the other, and neither is 1."
                )
                return Clash("broadcast", message, {id(a): axes, id(b): axes}, (a, b))
    return None


def _clashing_axes(a: Tensor, b: Tensor, first: int = 1) -> tuple[int, ...]:
    """Return the axes from `first` on, counted from the last, that can't be broadcast."""
    meeting = range(first, min(a.dim(), b.dim()) + 1)
    lengths = {-axis: {a.shape[-axis], b.shape[-axis]} - {1} for axis in meeting}
    return tuple(axis for axis, different in lengths.items() if len(different) > 1)


def _longer(a: Tensor, b: Tensor):
    return [b.shape[-axis] > a.shape[-axis] for axis in range(1, min(a.dim(), b.dim()) + 1)]


def wanted_shape(call: FailedCall) -> tuple[int, ...] | None:
    """Return the shape that a view is to have."""
    rest: Any = call.args[1:] or tuple(call.kwargs.values())
    if len(rest) == 1 and isinstance(rest[0], (list, tuple)):
        rest = tuple(rest[0])
    return rest if all(isinstance(size, int) for size in rest) else None


@clash("view", "reshape", "view_as", "reshape_as", "unflatten")
def view(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that a view has as many numbers as the tensor, in the order of its memory."""
    x, shape = call.args[0] if call.args else None, wanted_shape(call)
    if not isinstance(x, Tensor) or shape is None:
        return None
    name = scene.name(x, "the tensor")
    fixed = prod(size for size in shape if size != -1)
    if STRIDES in str(call.error):
        strides = [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]
        lies = (
            "is a part of a larger tensor, as after a slice or a split, whose numbers do not lie side by side"
            if strides == sorted(strides, reverse=True)
            else "does not lie in memory in the order of its axes, as after a transpose"
        )
        message = f"{name} {scene.shape(x)} {lies}, so {list(shape)} is no view of it."
        return Clash("view", message, {}, (x,))
    if fixed <= 0 or (x.numel() % fixed if -1 in shape else x.numel() != fixed):
        if -1 in shape:
            message = (
                f"{name} {scene.shape(x)} = {list(x.shape)} has {x.numel()} numbers, which {fixed} does not "
                f"divide: {list(shape)} is no shape for it."
            )
        else:
            message = (
                f"{name} {scene.shape(x)} = {list(x.shape)} has {x.numel()} numbers, and {list(shape)} has {fixed}."
            )
        last = [axis for axis in range(x.dim()) if x.shape[axis] not in shape]
        return Clash("view", message, {id(x): tuple(last)}, (x,))
    return None


@clash("expand", "expand_as", "broadcast_to")
def expand(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that only axes of length 1 are expanded."""
    x, shape = call.args[0] if call.args else None, wanted_shape(call)
    if not isinstance(x, Tensor) or shape is None:
        return None
    name = scene.name(x, "the tensor")
    if len(shape) < x.dim():
        message = f"{name} {scene.shape(x)} has {x.dim()} axes, and `{call.name}` names {len(shape)}."
        return Clash("expand", message, {}, (x,))
    for axis in range(1, x.dim() + 1):
        if x.shape[-axis] not in (1, shape[-axis]) and shape[-axis] != -1:
            message = (
                f"Only axes of length 1 can be expanded: {name} {scene.shape(x)} has {scene.size(x, -axis)} where "
                f"{list(shape)} has {shape[-axis]}."
            )
            return Clash("expand", message, {id(x): (-axis,)}, (x,))
    return None


@clash(*AXES)
def axis_range(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that an axis exists."""
    x = call.args[0] if call.args else None
    match = re.search(r"got (-?\d+)\)", str(call.error))
    if isinstance(x, Tensor) and match and "Dimension out of range" in str(call.error):
        message = (
            f"`{call.name}` is to take axis {match[1]}, and {scene.label(x, 'the tensor')} has "
            f"{x.dim()} axes, 0 to {x.dim() - 1}."
        )
        return Clash("axis", message, {}, (x,))
    order = wanted_shape(call) if call.name == "permute" else None
    if isinstance(x, Tensor) and order is not None and len(order) != x.dim():
        message = f"`permute` names {len(order)} axes, and {scene.label(x, 'the tensor')} has {x.dim()}."
        return Clash("axis", message, {}, (x,))
    return None


# Rows and cells that do not exist: embeddings, indices, slices.


@clash("embedding")
def embedding(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that each id is a row of the table."""
    ids, table = argument(call, 0, "input"), argument(call, 1, "weight")
    if isinstance(ids, Tensor) and isinstance(table, Tensor):
        if ids.is_floating_point() or ids.is_complex():
            message = (
                f"{scene.name(ids, 'the input')} is {dtype_name(ids.dtype)}, and the rows of an embedding are looked "
                "up by whole numbers."
            )
            return Clash("dtype", message, {}, (ids, table))
        return _out_of_range(scene, ids, table, 0, table, f"the table `{scene.path}`" if scene.path else "the table")
    return None


def _wrong_index(indices: Tensor, count: int) -> int | None:
    """Return the least or the largest of some whole numbers that is no place among so many; None where all are."""
    if indices.is_meta or not indices.numel():
        return None
    least = int(indices.min())
    wrong = least if least < 0 else int(indices.max())
    return None if 0 <= wrong < count else wrong


def _out_of_range(scene: Scene, ids: Tensor, holder: Tensor, axis: int, marked: Tensor, what: str) -> Clash | None:
    rows = holder.shape[axis]
    if ids.is_floating_point() or (wrong := _wrong_index(ids, rows)) is None:
        return None
    message = (
        f"{scene.label(ids, 'the index')} holds {wrong}, and {what} has "
        f"{scene.size(holder, axis)} rows, 0 to {rows - 1}."
    )
    return Clash("range", message, {id(marked): (axis,)}, (ids, holder))


@clash("gather", "index_select", "scatter", "scatter_", "take_along_dim")
def gather(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that each index is a position of the axis."""
    x, dim, index = argument(call, 0, "input"), argument(call, 1, "dim"), argument(call, 2, "index")
    if not (isinstance(x, Tensor) and isinstance(dim, int) and isinstance(index, Tensor)):
        return None
    axis = dim % max(1, x.dim())
    if index.dim() != x.dim() and call.name == "gather":
        message = (
            f"`gather` takes an index with as many axes as the tensor, and one cell for each of its numbers: "
            f"{scene.label(x, 'the tensor')} has {x.dim()} axes, and {scene.label(index, 'the index')} has "
            f"{index.dim()}."
        )
        return Clash("gather", message, {id(index): tuple(range(index.dim()))}, (x, index))
    what = f"axis {axis} of {scene.name(x, 'the tensor')}"
    return _out_of_range(scene, index, x, axis, x, what)


@clash("getitem", "setitem")
def getitem(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that each index of `x[…]` is a position of its axis, and that there are no more indices than axes."""
    x, key = argument(call, 0, "self"), argument(call, 1, "key")
    if not isinstance(x, Tensor):
        return None
    name = scene.name(x, "the tensor")
    keys: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
    taken = [item for item in keys if item is not None and item is not Ellipsis]
    if len(taken) > x.dim():
        message = f"{name} {scene.shape(x)} has {x.dim()} axes, and {len(taken)} indices are given."
        return Clash("index", message, {}, (x,))
    axes = indexed_axes(keys, x.dim())
    for item, axis in axes:
        if isinstance(item, bool):
            continue
        if isinstance(item, int) and not -x.shape[axis] <= item < x.shape[axis]:
            message = (
                f"There is no place {item} along axis {axis} of {name} {scene.shape(x)}: it has "
                f"{scene.size(x, axis)}, 0 to {x.shape[axis] - 1}."
            )
            return Clash("index", message, {id(x): (axis,)}, (x,))
        rows = isinstance(item, Tensor) and item.dtype not in (torch.bool, torch.uint8)
        if rows and (clash := _out_of_range(scene, item, x, axis, x, f"axis {axis} of {name}")):
            return clash
        if is_mask(item) and item.shape != x.shape[axis : axis + item.dim()]:
            mask = scene.name(item, "the mask")
            message = (
                f"{mask} {scene.shape(item)} chooses cells of {name} {scene.shape(x)}, whose axes are of other lengths."
            )
            return Clash("mask", message, {id(item): tuple(range(item.dim()))}, (x, item))
    indices = [item for item in taken if isinstance(item, Tensor)]
    if len(indices) > 1:
        shapes = " and ".join(scene.label(item, "an index") for item in indices)
        return Clash("index", f"Indices of one `[…]` are broadcast together: {shapes}.", {}, (x, *indices))
    return None


# Losses whose targets do not fit: their shape, their dtype, their range.


@clash("cross_entropy", "nll_loss", "nll_loss_nd", "cross_entropy_loss", rank=LOSS)
def cross_entropy(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that axis 1 of the scores has the classes, and that the target has the other axes and class indices."""
    x, target = argument(call, 0, "input"), argument(call, 1, "target")
    if not (isinstance(x, Tensor) and isinstance(target, Tensor)) or x.dim() == 0:
        return None
    scores, labels = scene.name(x, "the scores"), scene.name(target, "the target")
    axis = 1 if x.dim() > 1 else 0
    rest = (*x.shape[:axis], *x.shape[axis + 1 :])
    if target.is_floating_point():
        if tuple(target.shape) == tuple(x.shape) and call.name == "cross_entropy":
            return None
        kind = dtype_name(target.dtype)
        message = (
            f"{labels} {scene.shape(target)} is {kind}: a target holds numbers of classes, as whole numbers, or "
            f"has the shape of the scores, {scene.shape(x)}."
        )
        return Clash("loss", message, {}, (x, target))
    if tuple(target.shape) != rest:
        wanted = [scene.size(x, a).partition(" = ")[0] for a in range(x.dim()) if a != axis]
        message = (
            f"Classes are axis {axis} of the scores: {scores} {scene.shape(x)} needs a target of shape "
            f"[{', '.join(wanted)}], and {labels} is {scene.shape(target)}."
        )
        return Clash("loss", message, {id(x): (axis,), id(target): tuple(range(target.dim()))}, (x, target))
    if target.dtype not in (torch.int64, torch.uint8):
        message = f"{labels} is {dtype_name(target.dtype)}, and the numbers of classes have to be int64."
        return Clash("dtype", message, {}, (x, target))
    used = target if target.is_meta else target[target != argument(call, 4, "ignore_index", -100)]
    if (wrong := _wrong_index(used, x.shape[axis])) is None:
        return None
    message = (
        f"{labels} holds the class {wrong}, and {scores} {scene.shape(x)} has {scene.size(x, axis)} classes, 0 "
        f"to {x.shape[axis] - 1}."
    )
    return Clash("range", message, {id(x): (axis,)}, (x, target))


@clash(
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    rank=LOSS,
)
def same_shape(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the input and the target of these losses have one shape and one dtype."""
    x, target = argument(call, 0, "input"), argument(call, 1, "target")
    if not (isinstance(x, Tensor) and isinstance(target, Tensor)):
        return None
    scores, labels = scene.name(x, "the input"), scene.name(target, "the target")
    if tuple(x.shape) != tuple(target.shape):
        message = (
            f"`{call.name}` compares cell by cell: {scores} is {scene.shape(x)} and {labels} is {scene.shape(target)}."
        )
        axes = {id(x): tuple(range(x.dim())), id(target): tuple(range(target.dim()))}
        return Clash("loss", message, axes, (x, target))
    if not target.is_floating_point():
        kinds = [dtype_name(tensor.dtype) for tensor in (target, x)]
        message = f"{labels} is {kinds[0]}, and `{call.name}` takes targets of {kinds[1]}."
        return Clash("dtype", message, {}, (x, target))
    if (
        call.name == "binary_cross_entropy"
        and not x.is_meta
        and x.numel()
        and (float(x.min()) < 0 or float(x.max()) > 1)
    ):
        message = (
            f"`binary_cross_entropy` takes probabilities, from 0 to 1, and {scores} goes from {float(x.min()):.3g} "
            f"to {float(x.max()):.3g}."
        )
        return Clash("loss", message, {}, (x, target))
    return None


# Norms whose size differs from that of their input.


@clash("layer_norm", "rms_norm")
def layer_norm(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the last axes of the input are those that the norm was built for."""
    x, shape = argument(call, 0, "input"), argument(call, 1, "normalized_shape")
    if not isinstance(x, Tensor) or shape is None:
        return None
    wanted = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    if tuple(x.shape[x.dim() - len(wanted) :]) == wanted:
        return None
    layer = scene.layer(f"`{call.name}`") if scene.is_module_call else f"`{call.name}`"
    message = (
        f"{layer} normalises over the last {'axis' if len(wanted) == 1 else f'{len(wanted)} axes'}, of "
        f"{', '.join(map(str, wanted))} numbers, and {scene.label(x, 'its input')} ends in "
        f"{', '.join(scene.size(x, axis) for axis in range(-min(len(wanted), x.dim()), 0))}."
    )
    return Clash("norm", message, {id(x): tuple(range(-len(wanted), 0))}, (x,))


@clash("batch_norm", "instance_norm")
def batch_norm(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the channels of the input, axis 1, are those of the norm."""
    x, module = argument(call, 0, "input"), scene.module
    mean = argument(call, 1, "running_mean")
    size = getattr(module, "num_features", None) or (mean.shape[0] if isinstance(mean, Tensor) else None)
    if not isinstance(x, Tensor) or size is None or x.dim() < 2:
        return None
    if x.shape[1] == size:
        if x.numel() // max(1, size) == 1:
            message = (
                "In training, a norm over the batch needs more than one number for each channel: "
                f"{scene.name(x, 'its input')} is {scene.shape(x)}."
            )
            return Clash("norm", message, {id(x): (0,)}, (x,))
        return None
    return _channels(scene, x, size)


def _channels(scene: Scene, x: Tensor, size: int) -> Clash:
    """Describe how the channels of the input of a norm differ from its own."""
    layer, label = scene.layer("the norm"), scene.label(x, "its input")
    message = f"{layer} has {size} channels, and {label} has {scene.size(x, 1)} along axis 1."
    return Clash("norm", message, {id(x): (1,)}, (x,))


@clash("group_norm")
def group_norm(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the channels of the input, axis 1, are those of the norm, in equal groups."""
    x, groups = argument(call, 0, "input"), argument(call, 1, "num_groups")
    module, weight = scene.module, argument(call, 2, "weight")
    size = (
        module.num_channels
        if isinstance(module, nn.GroupNorm)
        else weight.shape[0]
        if isinstance(weight, Tensor)
        else None
    )
    if not isinstance(x, Tensor) or x.dim() < 2:
        return None
    if size is not None and x.shape[1] != size:
        return _channels(scene, x, size)
    if isinstance(groups, int) and x.shape[1] % groups:
        message = f"{groups} groups do not divide the {scene.size(x, 1)} channels of {scene.label(x, 'its input')}."
        return Clash("norm", message, {id(x): (1,)}, (x,))
    return None


# Products that do not fit: matrices, linear layers, convolutions, `einsum`, recurrent layers.


@clash("matmul", "rmatmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addbmm")
def matmul(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the last axis of the first factor is as long as the last but one of the second."""
    a, b = argument(call, 0, "input"), argument(call, 1, "other", call.kwargs.get("mat2", call.kwargs.get("tensor2")))
    if call.name in ("addmm", "baddbmm", "addbmm"):
        a, b = argument(call, 1, "mat1"), argument(call, 2, "mat2")
    if call.name == "rmatmul":
        a, b = b, a
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return None
    left, right = scene.name(a, "the first factor"), scene.name(b, "the second factor")
    wanted = {"mm": 2, "bmm": 3, "baddbmm": 3}.get(call.name)
    for tensor, name in ((a, left), (b, right)):
        if tensor.dim() == 0 or (wanted is not None and tensor.dim() != wanted):
            axes = f"{wanted} axes" if wanted else "one axis or more"
            message = f"`{call.name}` takes tensors of {axes}, and {name} is {scene.shape(tensor)}."
            return Clash("product", message, {id(tensor): tuple(range(tensor.dim()))}, (a, b))
    inner = -2 if b.dim() > 1 else -1
    if a.shape[-1] != b.shape[inner]:
        message = (
            f"A product sums over the last axis of {left}, which is {scene.size(a, -1)} long, and over the "
            f"{'last but one' if inner == -2 else 'only'} of {right}, which is {scene.size(b, inner)} long: "
            f"{scene.shape(a)} meets {scene.shape(b)}."
        )
        return Clash("product", message, {id(a): (-1, inner)} if a is b else {id(a): (-1,), id(b): (inner,)}, (a, b))
    axes_before = _clashing_axes(a, b, 3)
    if call.name == "bmm" and a.shape[0] != b.shape[0]:
        axes_before = (0,)
    if not axes_before:
        return None
    message = (
        f"The matrices fit, but not the axes before them: {left} is {scene.shape(a)} and {right} is {scene.shape(b)}."
    )
    return Clash("product", message, {id(a): axes_before, id(b): axes_before}, (a, b))


@clash("linear")
def linear(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the last axis of the input is as long as the second of the weight."""
    x, weight = argument(call, 0, "input"), argument(call, 1, "weight")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)) or x.dim() == 0 or weight.dim() != 2:
        return None
    if x.shape[-1] == weight.shape[1]:
        return None
    layer = scene.layer("the layer") if scene.is_module_call else "the layer"
    message = (
        f"{layer} is Linear({_size(scene, weight, 1)}, {_size(scene, weight, 0)}): it takes {scene.size(weight, 1)} "
        f"numbers along the last axis, and {scene.label(x, 'its input')} has {scene.size(x, -1)}."
    )
    return Clash("product", message, {id(x): (-1,), id(weight): (1,)}, (x, weight))


def _size(scene: Scene, tensor: Tensor, axis: int) -> str:
    return scene.size(tensor, axis).partition(" = ")[0]


@clash(*(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)))
def conv(scene: Scene, call: FailedCall) -> Clash | None:
    """Compare the channels of the input with those of the weight; the input has a batch, channels and positions."""
    x, weight = argument(call, 0, "input"), argument(call, 1, "weight")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        return None
    groups = argument(call, 6, "groups", 1)
    transposed = "transpose" in call.name
    channels = weight.shape[0] if transposed else weight.shape[1] * (groups if isinstance(groups, int) else 1)
    places = weight.dim() - 2
    name, layer = scene.name(x, "its input"), scene.layer(f"`{call.name}`")
    if x.dim() not in (places + 1, places + 2):
        order = ", ".join(("B", "C", "D", "H", "W")[:2] + ("D", "H", "W")[3 - places :])
        message = f"{layer} takes [{order}], {places + 2} axes, and {name} is {scene.shape(x)}, {x.dim()} axes."
        return Clash("convolution", message, {id(x): tuple(range(x.dim()))}, (x, weight))
    axis = x.dim() - places - 1
    if x.shape[axis] != channels:
        message = (
            f"{layer} takes {channels} channels along axis {axis}, and {name} {scene.shape(x)} has "
            f"{scene.size(x, axis)} there."
        )
        return Clash("convolution", message, {id(x): (axis,), id(weight): (0 if transposed else 1,)}, (x, weight))
    small = [x.dim() - places + i for i in range(places) if x.shape[axis + 1 + i] < weight.shape[2 + i]]
    if small:
        message = f"The kernel of {layer}, {list(weight.shape[2:])}, is larger than {name}, {scene.shape(x)}."
        return Clash("convolution", message, {id(x): tuple(small)}, (x, weight))
    return None


@clash("lstm", "gru", "rnn_tanh", "rnn_relu")
def recurrent(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the last axis of the input is the input size of the layer."""
    module, x = scene.module, argument(call, 0, "input")
    if not isinstance(module, nn.RNNBase) or not isinstance(x, Tensor) or x.shape[-1] == module.input_size:
        return None
    message = (
        f"`{scene.path}` takes {module.input_size} numbers along the last axis, and "
        f"{scene.label(x, 'its input')} has {scene.size(x, -1)}."
    )
    return Clash("product", message, {id(x): (-1,)}, (x,))


class Subscripts(NamedTuple):
    """Letters of an `einsum`: of each operand, and of the result, None where they are left out."""

    operands: tuple[str, ...]
    result: str | None


def subscripts(equation: str) -> Subscripts:
    """Return the letters of an equation such as `bhqd,bhkd->bhqk`."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    return Subscripts(tuple(left.split(",")), right if arrow else None)


def einsum_operands(call: FailedCall) -> tuple[str, list[Tensor]] | None:
    """Return the equation and the tensors of an `einsum`."""
    equation, *rest = call.args or ("",)
    operands = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    if not isinstance(equation, str) or not all(isinstance(x, Tensor) for x in operands):
        return None
    return equation, operands


def letter_places(letters: Subscripts, operands: list[Tensor]) -> dict[str, list[tuple[int, int]]]:
    """Return the positions of each letter: (operand, axis)."""
    places: dict[str, list[tuple[int, int]]] = {}
    for number, (text, tensor) in enumerate(zip(letters.operands, operands, strict=False)):
        if "." in text or len(text) != tensor.dim():
            continue
        for axis, letter in enumerate(text):
            places.setdefault(letter, []).append((number, axis))
    return places


@clash("einsum")
def einsum(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that each letter has one size, and each operand a letter for each axis."""
    known = einsum_operands(call)
    if known is None:
        return None
    equation, operands = known
    letters = subscripts(equation)
    names = [scene.name(tensor, f"operand {number + 1}") for number, tensor in enumerate(operands)]
    if len(letters.operands) != len(operands):
        message = f"`{equation}` names {len(letters.operands)} operands, and there are {len(operands)}."
        return Clash("einsum", message, {}, tuple(operands))
    for text, tensor, name in zip(letters.operands, operands, names, strict=True):
        if "." not in text and len(text) != tensor.dim():
            message = (
                f"`{text}` in `{equation}` has {len(text)} letters, and {name} {scene.shape(tensor)} has "
                f"{tensor.dim()} axes."
            )
            return Clash("einsum", message, {id(tensor): tuple(range(tensor.dim()))}, tuple(operands))
    for letter, places in letter_places(letters, operands).items():
        sizes = {operands[number].shape[axis] for number, axis in places} - {1}
        if len(sizes) > 1:
            stated = " and ".join(f"{scene.size(operands[n], axis)} in {names[n]}" for n, axis in places)
            message = f"The letter `{letter}` of `{equation}` stands for axes of two lengths: {stated}."
            axes: dict[int, tuple[int, ...]] = {}
            for number, axis in places:
                axes[id(operands[number])] = (*axes.get(id(operands[number]), ()), axis)
            return Clash("einsum", message, axes, tuple(operands))
    if letters.result is not None and (unknown := set(letters.result) - set("".join(letters.operands)) - {"."}):
        message = f"The result of `{equation}` has the letter `{min(unknown)}`, which no operand has."
        return Clash("einsum", message, {}, tuple(operands))
    return None


# Devices and dtypes, of any call.

DTYPES = re.compile(
    r"scalar type|same dtype|to have the same dtype|same type|Input type|not implemented for '|must be .*(Long|Int)"
    r"|Expected floating point|expected m1 and m2|dtype|can't be cast|Found dtype|only Tensors of floating"
    r"|on a bool tensor|with a bool tensor"
)
DEVICES = re.compile(r"same device|is on (cpu|cuda|mps|meta)|devices?, |device type|device meta")


@clash(rank=DEVICE)
def device(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that all tensors of a call are on one device, where its error names devices."""
    if len({tensor.device for tensor in scene.tensors}) < 2 or not DEVICES.search(str(scene.error)):
        return None
    places = [f"{scene.name(x, 'a tensor')} is on {str(x.device)!r}" for x in _one_each(scene.tensors, "device")]
    message = f"All tensors of a call have to be on one device: {' and '.join(places)}."
    return Clash("device", message, {}, tuple(scene.tensors))


@clash(rank=DTYPE)
def dtype(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that all tensors of a call have one dtype, and one that it takes, where its error names dtypes."""
    tensors = scene.tensors
    if not tensors or not DTYPES.search(str(scene.error)):
        return None
    names = [f"{scene.name(x, 'a tensor')} is {dtype_name(x.dtype)}" for x in _one_each(tensors, "dtype")]
    what = call_name(scene)
    if len(names) == 1:
        wanted = reason(scene.error).rstrip(".")
        return Clash("dtype", f"{what} does not take this dtype: {names[0]} ({wanted}).", {}, tuple(tensors))
    return Clash("dtype", f"{what} needs tensors of one dtype: {' and '.join(names)}.", {}, tuple(tensors))


def call_name(scene: Scene) -> str:
    """Return the failed call in words: "`self.fc` (Linear)", or "`matmul`"."""
    if scene.is_module_call and isinstance(scene.module, nn.Module):
        return f"`{scene.path or type(scene.module).__name__}` ({type(scene.module).__name__})"
    return f"`{scene.call.name}`" if scene.call else "the call"


def _one_each(tensors: list[Tensor], attribute: str) -> list[Tensor]:
    firsts: dict[object, Tensor] = {}
    for tensor in tensors:
        firsts.setdefault(getattr(tensor, attribute), tensor)
    return list(firsts.values())
