"""Shapes that do not fit: tensors that are joined, broadcast, viewed or expanded, and axes that are not there."""

from __future__ import annotations

import re
from math import prod
from typing import Any

from torch import Tensor

from tracer.capture.dispatch_modes import FailedCall
from tracer.diagnostics.failures.scene import Clash, Scene, argument

STRIDES = "view size is not compatible"
"""What PyTorch says of a view of a tensor whose memory is in another order."""


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


def broadcast(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that axes that meet, counted from the last, are equally long, or one of them is 1."""
    tensors = [x for x in (*call.args, *call.kwargs.values()) if isinstance(x, Tensor)]
    for number, a in enumerate(tensors):
        for b in tensors[number + 1 :]:
            axes = [
                -axis
                for axis in range(1, min(a.dim(), b.dim()) + 1)
                if a.shape[-axis] != b.shape[-axis] and 1 not in (a.shape[-axis], b.shape[-axis])
            ]
            into = call.name in IN_PLACE and number == 0
            if into and not axes and (b.dim() > a.dim() or any(_longer(a, b))):
                message = (
                    f"The result is written into {scene.name(a, 'the first')} {scene.shape(a)}, which is smaller "
                    "than it."
                )
                return Clash("broadcast", message, {id(a): tuple(range(a.dim()))}, (a, b))
            if axes:
                left, right = scene.name(a, "the first"), scene.name(b, "the second")
                message = (
                    f"{left} {scene.shape(a)} meets {right} {scene.shape(b)}: counted from the last, axis "
                    f"{-axes[0]} is "
                    f"{scene.size(a, axes[0])} in one and {scene.size(b, axes[0])} in the other, and neither is 1."
                )
                return Clash("broadcast", message, {id(a): tuple(axes), id(b): tuple(axes)}, (a, b))
    return None


def _longer(a: Tensor, b: Tensor):
    return [b.shape[-axis] > a.shape[-axis] for axis in range(1, min(a.dim(), b.dim()) + 1)]


def wanted_shape(call: FailedCall) -> tuple[int, ...] | None:
    """Return the shape that a view is to have."""
    rest: Any = call.args[1:] or tuple(call.kwargs.values())
    if len(rest) == 1 and isinstance(rest[0], (list, tuple)):
        rest = tuple(rest[0])
    return rest if all(isinstance(size, int) for size in rest) else None


def view(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that a view has as many numbers as the tensor, in the order of its memory."""
    x, shape = call.args[0] if call.args else None, wanted_shape(call)
    if not isinstance(x, Tensor) or shape is None:
        return None
    name = scene.name(x, "the tensor")
    fixed = prod(size for size in shape if size != -1)
    if STRIDES in str(call.error):
        message = (
            f"{name} {scene.shape(x)} does not lie in memory in the order of its axes, as after a transpose, so "
            f"{list(shape)} is no view of it."
        )
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


def axis_range(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that an axis exists."""
    x = call.args[0] if call.args else None
    match = re.search(r"got (-?\d+)\)", str(call.error))
    if isinstance(x, Tensor) and match and "Dimension out of range" in str(call.error):
        message = (
            f"`{call.name}` is to take axis {match[1]}, and {scene.name(x, 'the tensor')} {scene.shape(x)} has "
            f"{x.dim()} axes, 0 to {x.dim() - 1}."
        )
        return Clash("axis", message, {}, (x,))
    order = wanted_shape(call) if call.name == "permute" else None
    if isinstance(x, Tensor) and order is not None and len(order) != x.dim():
        message = (
            f"`permute` names {len(order)} axes, and {scene.name(x, 'the tensor')} {scene.shape(x)} has {x.dim()}."
        )
        return Clash("axis", message, {}, (x,))
    return None


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

RULES = {
    **dict.fromkeys(AXES, axis_range),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack"), cat),
    **dict.fromkeys(ARITHMETIC, broadcast),
    **dict.fromkeys(("view", "reshape", "view_as", "reshape_as", "unflatten"), view),
    **dict.fromkeys(("expand", "expand_as", "broadcast_to"), expand),
}
