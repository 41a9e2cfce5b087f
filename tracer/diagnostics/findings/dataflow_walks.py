"""Walks along the graph of a run: an axis followed to the sum over it, factors collected on the way back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tracer.capture.composite_calls import Call, Ref
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import IndexMapCache, contiguous_strides
from tracer.ops import MATMULS, POINTWISE, base

MAX_CALLS = 16
"""Calls that an axis is followed through."""


class AxisSum(NamedTuple):
    """Call that sums over an axis of data derived from a value, and the axis that it sums over: the one that was
    followed, or another one of the same tensor. `between` are the calls on the path."""

    call: int
    operand: Ref
    axis: int
    softmax_axis: int
    between: tuple[int, ...]


class AxisWalk:
    """A walk from values forward through layouts and element-wise ops, to where an axis is summed over."""

    def __init__(self, graph: Graph):
        self.graph, self._maps = graph, IndexMapCache()

    def sums(self, key: str, axis: int) -> Iterator[AxisSum]:
        """Yield the sums that an axis of a value goes into, each with its summands: a product with other data, or
        element-wise weights and a sum."""
        waiting: list[tuple[str, int, tuple[int, ...], bool]] = [(key, axis, (), False)]
        visited: set[str] = set()
        while waiting:
            key, axis, between, weighted = waiting.pop(0)
            if key in visited or len(between) > MAX_CALLS:
                continue
            visited.add(key)
            for index in self.graph.live_users[key]:
                call = self.graph.calls[index]
                name = base(call.name)
                if name in MATMULS:
                    if (summed := self._product(index, key)) is not None:
                        yield AxisSum(index, self.graph.ref[key], summed, axis, between)
                elif name in ("sum", "mean") and weighted:
                    dims = call.arguments.get("dim")
                    dims = [dims] if isinstance(dims, int) else list(dims or ())
                    if dims:
                        rank = len(self.graph.shape(key))
                        summed = axis if axis in [dim % rank for dim in dims] else dims[0] % rank
                        yield AxisSum(index, self.graph.ref[key], summed, axis, between)
                elif (then := self._follow(index, key, axis)) is not None:
                    out, axis_then, multiplied = then
                    waiting.append((out, axis_then, (*between, index), weighted or multiplied))

    def _product(self, index: int, key: str) -> int | None:
        """Return the axis of an operand over which a product with other data sums; None for one with parameters."""
        graph, call = self.graph, self.graph.calls[index]
        others = [ref for ref in graph.inputs[index] if ref.key != key]
        if not others or any(graph.root(ref.key).startswith("parameter ") for ref in others):
            return None
        if any(graph.depends[ref.key] != "x" for ref in others):
            return None
        rank = len(graph.shape(key))
        if base(call.name) == "einsum":
            return _einsum_axis(call, key)
        operands = [value for value in call.arguments.values() if isinstance(value, Ref)]
        position = [ref.key for ref in operands].index(key) - (len(operands) - 2)
        if position < 0:  # what is added to the product
            return None
        return rank - 1 if position == 0 else max(rank - 2, 0)

    def _follow(self, index: int, key: str, axis: int) -> tuple[str, int, bool] | None:
        """Return the result of a call on this value, the position of the axis in it, and whether it was multiplied by
        other data; None where the axis is lost."""
        graph, call = self.graph, self.graph.calls[index]
        if not call.outputs:
            return None
        out, shape = call.outputs[0], graph.shape(key)
        if graph.kind[index] == "layout" and graph.source(out.key) == key:
            steps = self._maps.of(shape, [(call, 0)])
            stride, size = contiguous_strides(shape)[axis], shape[axis]
            for there in range(len(out.shape)):
                if out.shape[there] == size and size > 1:
                    along = steps.along(there)
                    if (along - along[0] == stride * np.arange(size)).all():
                        return out.key, there, False
            return None
        if graph.kind[index] == "same" or base(call.name) in POINTWISE or base(call.name) in ("dropout", "div"):
            there = axis + len(out.shape) - len(shape)
            if there < 0 or out.shape[there] != shape[axis]:
                return None
            data = any(ref.key != key and graph.depends[ref.key] == "x" for ref in graph.inputs[index])
            return out.key, there, base(call.name) == "mul" and data
        return None


def _einsum_axis(call: Call, key: str) -> int | None:
    """Return the axis of an operand that an Einstein sum contracts; None where there is none, or several."""
    inputs, arrow, output = call.arguments["equation"].replace(" ", "").partition("->")
    if not arrow or "..." in inputs:
        return None
    letters = inputs.split(",")
    for operand, ref in zip(letters, call.arguments["tensors"], strict=False):
        if ref.key == key:
            summed = [axis for axis, letter in enumerate(operand) if letter not in output]
            return summed[0] if len(summed) == 1 else None
    return None


def path_back(graph: Graph, key: str, target: str, most: int = 60) -> list[int] | None:
    """Return the calls from a value back to another that it was computed from, the last first; None if there is no
    path of at most that many."""
    parent: dict[str, tuple[str, int]] = {}
    waiting, visited = [key], {key}
    while waiting:
        at = waiting.pop(0)
        if at == target:
            path = []
            while at != key:
                at, index = parent[at]
                path.append(index)
            return path[::-1]
        index = graph.producer.get(at)
        if index is None or len(visited) > most:
            continue
        for ref in graph.inputs[index]:
            if ref.key not in visited:
                visited.add(ref.key)
                parent[ref.key] = at, index
                waiting.append(ref.key)
    return None
