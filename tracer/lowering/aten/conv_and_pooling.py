"""Lowerings of convolutions, transposed convolutions, poolings and image resizing."""

from __future__ import annotations

from tracer.expr import (
    AdaptiveAverage,
    AdaptiveMax,
    AveragePool,
    Convolution,
    Interpolate,
    MaxPool,
    Node,
    TransposedConvolution,
    WindowColumns,
    WindowSums,
)
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall


def per_axis(value, count: int) -> tuple[int, ...]:
    """Return one number for each axis; a single one is repeated."""
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * count if len(value) == 1 else value


def _groups(call: BoundCall, channels: int):
    """Return the number of groups; a size, if each channel of the input is a group."""
    axis = call.rank("input") - call.rank("weight") + 1
    alone = call.number("groups") == channels > 1
    return call.shape("input")[axis] if alone else call["groups"]


def _operands(call: BoundCall) -> list[Node]:
    return [call["input"], call["weight"], *([call["bias"]] if call.has("bias") else [])]


@register_lowering("conv1d", "conv2d", "conv3d")
def convolution(call: BoundCall) -> Node:
    kernel, count = call.numeric("weight")[2:], call.rank("weight") - 2
    dilation = per_axis(call["dilation"], count)
    if call["padding"] == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        before = tuple(n // 2 for n in total)
        after = tuple(n - n // 2 for n in total)
    else:
        before = after = per_axis(0 if call["padding"] == "valid" else call["padding"], count)
    channels = call.numeric("weight")[1] * call.number("groups")
    whole = per_axis(call.number("stride"), count) == tuple(kernel) and not any(before) and set(dilation) <= {1}
    sides = call.numeric("input")[-count:]
    whole = whole and not any(side % k for side, k in zip(sides, kernel, strict=True))  # else the last are left out
    stride = call.shape("weight")[2:] if whole else per_axis(call["stride"], count)
    settings = {"stride": stride, "before": before, "after": after, "dilation": dilation}
    return Convolution(*_operands(call), groups=_groups(call, channels), **settings)


@register_lowering("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(call: BoundCall) -> Node:
    count = call.rank("weight") - 2
    fields = {"stride": "stride", "padding": "padding", "extra": "output_padding", "dilation": "dilation"}
    settings = {field: per_axis(call[name], count) for field, name in fields.items()}
    return TransposedConvolution(*_operands(call), groups=_groups(call, call.numeric("weight")[0]), **settings)


@register_lowering("convolution", "_convolution")
def either(call: BoundCall) -> Node | None:
    return conv_transpose(call) if call["transposed"] else convolution(call)


def _window(call: BoundCall) -> dict:
    fields = {"window": "kernel_size", "stride": "stride", "padding": "padding", "dilation": "dilation"}
    return {field: per_axis(call.number(name), 2) for field, name in fields.items()}


@register_lowering("im2col")
def columns(call: BoundCall) -> Node:
    return WindowColumns(call["self"], **_window(call))


@register_lowering("col2im")
def sums_of_columns(call: BoundCall) -> Node:
    return WindowSums(call["self"], **_window(call), sizes=call.result[-2:])


AXES = ("1d", "2d", "3d")


def _count(call: BoundCall) -> int:
    name = call.op_name
    return next(int(axes[0]) for axes in AXES if axes in name)


def _windows(call: BoundCall) -> dict:
    count = _count(call)
    window = per_axis(call["kernel_size"], count)
    stride = per_axis(call["stride"], count) if call.get("stride") else window
    dilation = per_axis(call.get("dilation", 1), count)
    padding = per_axis(call["padding"], count)
    return {"window": window, "stride": stride, "padding": padding, "dilation": dilation, "up": call["ceil_mode"]}


@register_lowering(*(f"max_pool{axes}{more}" for axes in AXES for more in ("", "_with_indices")))
def max_pool(call: BoundCall) -> Node | None:
    return None if call.position else MaxPool(call["self"], **_windows(call))


@register_lowering(*(f"avg_pool{axes}" for axes in AXES))
def average_pool(call: BoundCall) -> Node:
    settings = {"bare": not call["count_include_pad"], "divisor": call.get("divisor_override")}
    return AveragePool(call["self"], **_windows(call), **settings)


@register_lowering(*(f"{name}adaptive_avg_pool{axes}" for axes in AXES for name in ("", "_")[: 1 + (axes != "1d")]))
def adaptive_average(call: BoundCall) -> Node:
    return AdaptiveAverage(call["self"], sizes=call.result[-_count(call) :])


@register_lowering(*(f"adaptive_max_pool{axes}" for axes in AXES))
def adaptive_max(call: BoundCall) -> Node | None:
    return None if call.position else AdaptiveMax(call["self"], sizes=call.result[-_count(call) :])


HOW = {
    "upsample_nearest1d": "nearest",
    "upsample_nearest2d": "nearest",
    "upsample_nearest3d": "nearest",
    "_upsample_nearest_exact1d": "exact",
    "_upsample_nearest_exact2d": "exact",
    "_upsample_nearest_exact3d": "exact",
    "upsample_linear1d": "linear",
    "upsample_bilinear2d": "linear",
    "upsample_trilinear3d": "linear",
    "upsample_bicubic2d": "cubic",
}


@register_lowering(*HOW)
def resize(call: BoundCall) -> Node:
    how, count = HOW[call.op_name.split("::")[1]], _count(call)
    factors = call.get("scale_factors")
    if factors is None:
        names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[count]
        factors = [call.get(name) for name in names]
    sizes = zip(call.numeric(call.first)[-count:], call.result_numeric[-count:], factors, strict=True)
    ratios = [n / m if not factor else 1 / factor for n, m, factor in sizes]
    usual = [n / m for n, m in zip(call.numeric(call.first)[-count:], call.result_numeric[-count:], strict=True)]
    corners = bool(call.get("align_corners", False))
    unusual = None if corners or ratios == usual else ratios
    return Interpolate(call[call.first], sizes=call.result[-count:], how=how, corners=corners, ratios=unusual)
