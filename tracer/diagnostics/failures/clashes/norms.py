"""Norms whose size differs from that of their input."""

from __future__ import annotations

from torch import Tensor, nn

from tracer.capture.dispatch_modes import FailedCall
from tracer.diagnostics.failures.scene import Clash, Scene, argument


def layer_norm(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the last axes of the input are those that the norm was built for."""
    x, shape = argument(call, 0, "input"), argument(call, 1, "normalized_shape")
    if not isinstance(x, Tensor) or shape is None:
        return None
    wanted = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    if tuple(x.shape[x.dim() - len(wanted) :]) == wanted:
        return None
    layer = f"`{scene.path}`" if scene.path and scene.is_module_call else f"`{call.name}`"
    message = (
        f"{layer} normalises over the last {'axis' if len(wanted) == 1 else f'{len(wanted)} axes'}, of "
        f"{', '.join(map(str, wanted))} numbers, and {scene.name(x, 'its input')} {scene.shape(x)} ends in "
        f"{', '.join(scene.size(x, axis) for axis in range(-min(len(wanted), x.dim()), 0))}."
    )
    return Clash("norm", message, {id(x): tuple(range(-len(wanted), 0))}, (x,))


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
    layer = f"`{scene.path}`" if scene.path else "the norm"
    message = (
        f"{layer} has {size} channels, and {scene.name(x, 'its input')} {scene.shape(x)} has {scene.size(x, 1)} "
        "along axis 1."
    )
    return Clash("norm", message, {id(x): (1,)}, (x,))


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
    layer = f"`{scene.path}`" if scene.path else "the norm"
    if size is not None and x.shape[1] != size:
        message = (
            f"{layer} has {size} channels, and {scene.name(x, 'its input')} {scene.shape(x)} has "
            f"{scene.size(x, 1)} along axis 1."
        )
        return Clash("norm", message, {id(x): (1,)}, (x,))
    if isinstance(groups, int) and x.shape[1] % groups:
        message = (
            f"{groups} groups do not divide the {scene.size(x, 1)} channels of {scene.name(x, 'its input')} "
            f"{scene.shape(x)}."
        )
        return Clash("norm", message, {id(x): (1,)}, (x,))
    return None


RULES = {
    **dict.fromkeys(("layer_norm", "rms_norm"), layer_norm),
    **dict.fromkeys(("batch_norm", "instance_norm"), batch_norm),
    "group_norm": group_norm,
}
