"""Losses whose targets do not fit: their shape, their dtype, their range."""

from __future__ import annotations

from torch import Tensor

from tracer.capture.dispatch_modes import FailedCall
from tracer.diagnostics.failures.scene import Clash, Scene, argument


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
        kind = str(target.dtype).removeprefix("torch.")
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
    if "int64" not in str(target.dtype) and "uint8" not in str(target.dtype):
        kind = str(target.dtype).removeprefix("torch.")
        return Clash("dtype", f"{labels} is {kind}, and the numbers of classes have to be int64.", {}, (x, target))
    if not target.is_meta and target.numel():
        ignored = argument(call, 4, "ignore_index", -100)
        used = target[target != ignored]
        if used.numel() and (int(used.min()) < 0 or int(used.max()) >= x.shape[axis]):
            wrong = int(used.min()) if int(used.min()) < 0 else int(used.max())
            message = (
                f"{labels} holds the class {wrong}, and {scores} {scene.shape(x)} has {scene.size(x, axis)} classes, 0 "
                f"to {x.shape[axis] - 1}."
            )
            return Clash("range", message, {id(x): (axis,)}, (x, target))
    return None


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
        kind = str(target.dtype).removeprefix("torch.")
        return Clash(
            "dtype",
            f"{labels} is {kind}, and `{call.name}` takes targets of {str(x.dtype).removeprefix('torch.')}.",
            {},
            (x, target),
        )
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


RULES = {
    **dict.fromkeys(("cross_entropy", "nll_loss", "nll_loss_nd", "cross_entropy_loss"), cross_entropy),
    **dict.fromkeys(
        (
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
        ),
        same_shape,
    ),
}
