"""Poolings, and pictures at another size."""

from __future__ import annotations

from tracer.expr import AdaptiveAverage, AdaptiveMax, AveragePool, Interpolate, MaxPool, Node
from tracer.lowering.aten import of
from tracer.lowering.aten.conv import each
from tracer.lowering.call_arguments import Given

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
