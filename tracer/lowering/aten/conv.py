"""Convolutions and transposed ones, over one, two or three axes."""

from __future__ import annotations

from tracer.expr import Convolution, Node, TransposedConvolution, WindowColumns, WindowSums
from tracer.lowering.aten import of
from tracer.lowering.call_arguments import Given


def each(value, count: int) -> tuple[int, ...]:
    """One number for each axis; one that is given alone stands for all."""
    value = (value,) if isinstance(value, int) else tuple(value)
    return value * count if len(value) == 1 else value


def _groups(given: Given, channels: int):
    """The number of groups; a size, if each channel of the input is one."""
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
