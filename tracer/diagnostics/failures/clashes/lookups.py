"""Rows and cells that do not exist: embeddings, indices, slices."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tracer.capture.dispatch_modes import FailedCall
from tracer.diagnostics.failures.scene import Clash, Scene, argument


def embedding(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that each id is a row of the table."""
    ids, table = argument(call, 0, "input"), argument(call, 1, "weight")
    if call.name == "embedding" and isinstance(ids, Tensor) and isinstance(table, Tensor):
        if ids.is_floating_point() or ids.is_complex():
            message = (
                f"{scene.name(ids, 'the input')} is {_dtype(ids)}, and the rows of an embedding are looked up by "
                "whole numbers."
            )
            return Clash("dtype", message, {}, (ids, table))
        return _out_of_range(scene, ids, table, 0, table, f"the table `{scene.path}`" if scene.path else "the table")
    return None


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _out_of_range(scene: Scene, ids: Tensor, holder: Tensor, axis: int, marked: Tensor, what: str) -> Clash | None:
    if ids.is_meta or not ids.numel() or ids.is_floating_point():
        return None
    least, largest, rows = int(ids.min()), int(ids.max()), holder.shape[axis]
    if least >= 0 and largest < rows:
        return None
    wrong = least if least < 0 else largest
    message = (
        f"{scene.name(ids, 'the index')} {scene.shape(ids)} holds {wrong}, and {what} has "
        f"{scene.size(holder, axis)} rows, 0 to {rows - 1}."
    )
    return Clash("range", message, {id(marked): (axis,)}, (ids, holder))


def gather(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that each index is a position of the axis."""
    x, dim, index = argument(call, 0, "input"), argument(call, 1, "dim"), argument(call, 2, "index")
    if not (isinstance(x, Tensor) and isinstance(dim, int) and isinstance(index, Tensor)):
        return None
    axis = dim % max(1, x.dim())
    what = f"axis {axis} of {scene.name(x, 'the tensor')}"
    return _out_of_range(scene, index, x, axis, x, what)


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
    axes = _axes_of(keys, x.dim())
    for item, axis in axes:
        if isinstance(item, bool):
            continue
        if isinstance(item, int) and not -x.shape[axis] <= item < x.shape[axis]:
            message = (
                f"There is no place {item} along axis {axis} of {name} {scene.shape(x)}: it has "
                f"{scene.size(x, axis)}, 0 to {x.shape[axis] - 1}."
            )
            return Clash("index", message, {id(x): (axis,)}, (x,))
        rows = isinstance(item, Tensor) and str(item.dtype) not in ("torch.bool", "torch.uint8")
        if rows and (clash := _out_of_range(scene, item, x, axis, x, f"axis {axis} of {name}")):
            return clash
        if (
            isinstance(item, Tensor)
            and str(item.dtype) == "torch.bool"
            and tuple(item.shape) != tuple(x.shape[axis : axis + item.dim()])
        ):
            mask = scene.name(item, "the mask")
            message = (
                f"{mask} {scene.shape(item)} chooses cells of {name} {scene.shape(x)}, whose axes are of other lengths."
            )
            return Clash("mask", message, {id(item): tuple(range(item.dim()))}, (x, item))
    indices = [item for item in taken if isinstance(item, Tensor)]
    if len(indices) > 1:
        shapes = " and ".join(f"{scene.name(item, 'an index')} {scene.shape(item)}" for item in indices)
        return Clash("index", f"Indices of one `[…]` are broadcast together: {shapes}.", {}, (x, *indices))
    return None


def _axes_of(keys: tuple[Any, ...], dim: int) -> list[tuple[Any, int]]:
    """Return the axis that each item of an index takes."""
    result, axis = [], 0
    width = sum(
        item.dim() if isinstance(item, Tensor) and str(item.dtype) == "torch.bool" else 1
        for item in keys
        if item is not None and item is not Ellipsis
    )
    for item in keys:
        if item is None:
            continue
        if item is Ellipsis:
            axis += dim - width
            continue
        if axis < dim:
            result.append((item, axis))
        axis += item.dim() if isinstance(item, Tensor) and str(item.dtype) == "torch.bool" else 1
    return result


RULES = {
    "embedding": embedding,
    **dict.fromkeys(("gather", "index_select", "scatter", "scatter_", "take_along_dim"), gather),
    **dict.fromkeys(("getitem", "setitem"), getitem),
}
