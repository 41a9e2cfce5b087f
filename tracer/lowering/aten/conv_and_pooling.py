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
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given


def each(value, count: int) -> tuple[int, ...]:
    """Return one number for each axis; a single one is repeated."""
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * count if len(value) == 1 else value


def _groups(given: Given, channels: int):
    """Return the number of groups; a size, if each channel of the input is a group."""
    axis = given.rank("input") - given.rank("weight") + 1
    alone = given.number("groups") == channels > 1
    return given.shape("input")[axis] if alone else given["groups"]


def _operands(given: Given) -> list[Node]:
    return [given["input"], given["weight"], *([given["bias"]] if given.has("bias") else [])]


@of("conv1d", "conv2d", "conv3d")
def convolution(given: Given) -> Node:
    kernel, count = given.numeric("weight")[2:], given.rank("weight") - 2
    dilation = each(given["dilation"], count)
    if given["padding"] == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        before = tuple(n // 2 for n in total)
        after = tuple(n - n // 2 for n in total)
    else:
        before = after = each(0 if given["padding"] == "valid" else given["padding"], count)
    channels = given.numeric("weight")[1] * given.number("groups")
    whole = each(given.number("stride"), count) == tuple(kernel) and not any(before) and set(dilation) <= {1}
    sides = given.numeric("input")[-count:]
    whole = whole and not any(side % k for side, k in zip(sides, kernel, strict=True))  # else the last are left out
    stride = given.shape("weight")[2:] if whole else each(given["stride"], count)
    settings = {"stride": stride, "before": before, "after": after, "dilation": dilation}
    return Convolution(*_operands(given), groups=_groups(given, channels), **settings)


@of("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed(given: Given) -> Node:
    count = given.rank("weight") - 2
    fields = {"stride": "stride", "padding": "padding", "extra": "output_padding", "dilation": "dilation"}
    settings = {field: each(given[name], count) for field, name in fields.items()}
    return TransposedConvolution(*_operands(given), groups=_groups(given, given.numeric("weight")[0]), **settings)


@of("convolution", "_convolution")
def either(given: Given) -> Node | None:
    return transposed(given) if given["transposed"] else convolution(given)


def _window(given: Given) -> dict:
    fields = {"window": "kernel_size", "stride": "stride", "padding": "padding", "dilation": "dilation"}
    return {field: each(given.number(name), 2) for field, name in fields.items()}


@of("im2col")
def columns(given: Given) -> Node:
    return WindowColumns(given["self"], **_window(given))


@of("col2im")
def sums_of_columns(given: Given) -> Node:
    return WindowSums(given["self"], **_window(given), sizes=given.result[-2:])


AXES = ("1d", "2d", "3d")


def _count(given: Given) -> int:
    name = given.func._schema.name
    return next(int(axes[0]) for axes in AXES if axes in name)


def _windows(given: Given) -> dict:
    count = _count(given)
    window = each(given["kernel_size"], count)
    stride = each(given["stride"], count) if given.get("stride") else window
    dilation = each(given.get("dilation", 1), count)
    padding = each(given["padding"], count)
    return {"window": window, "stride": stride, "padding": padding, "dilation": dilation, "up": given["ceil_mode"]}


@of(*(f"max_pool{axes}{more}" for axes in AXES for more in ("", "_with_indices")))
def max_pool(given: Given) -> Node | None:
    return None if given.position else MaxPool(given["self"], **_windows(given))


@of(*(f"avg_pool{axes}" for axes in AXES))
def average_pool(given: Given) -> Node:
    settings = {"bare": not given["count_include_pad"], "divisor": given.get("divisor_override")}
    return AveragePool(given["self"], **_windows(given), **settings)


@of(*(f"{name}adaptive_avg_pool{axes}" for axes in AXES for name in ("", "_")[: 1 + (axes != "1d")]))
def adaptive_average(given: Given) -> Node:
    return AdaptiveAverage(given["self"], sizes=given.result[-_count(given) :])


@of(*(f"adaptive_max_pool{axes}" for axes in AXES))
def adaptive_max(given: Given) -> Node | None:
    return None if given.position else AdaptiveMax(given["self"], sizes=given.result[-_count(given) :])


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


@of(*HOW)
def resize(given: Given) -> Node:
    how, count = HOW[given.func._schema.name.split("::")[1]], _count(given)
    factors = given.get("scale_factors")
    if factors is None:
        names = {1: ("scales",), 2: ("scales_h", "scales_w"), 3: ("scales_d", "scales_h", "scales_w")}[count]
        factors = [given.get(name) for name in names]
    sizes = zip(given.numeric(given.first)[-count:], given.result_numeric[-count:], factors, strict=True)
    ratios = [n / m if not factor else 1 / factor for n, m, factor in sizes]
    usual = [n / m for n, m in zip(given.numeric(given.first)[-count:], given.result_numeric[-count:], strict=True)]
    corners = bool(given.get("align_corners", False))
    other = None if corners or ratios == usual else ratios
    return Interpolate(given[given.first], sizes=given.result[-count:], how=how, corners=corners, ratios=other)
