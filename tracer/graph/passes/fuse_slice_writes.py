"""Fuse writes into all slices of one tensor, `y[:, 0] = …`, `y[:, 1] = …`, into one `stack`."""

from __future__ import annotations

import torch

from tracer.capture.composite_calls import Call, Layout, Ref
from tracer.graph.dataflow import Graph
from tracer.ops import FACTORIES, base, takes_shape

FEWEST = 2
"""Smallest number of slices of such a tensor."""


def fuse_slice_writes(graph: Graph) -> Graph:
    """Return the graph with all writes into the slices of one tensor as one `stack` of the written values."""
    writes = (index for index, call in enumerate(graph.calls) if call.name == "overwrite")
    return graph.replace([match for index in writes if (match := _match_writes(graph, index)) is not None])


def _match_writes(graph: Graph, index: int) -> tuple[set[int], list[Call]] | None:
    """Return the writes that end with this one, and their replacement.

    Return None if they leave a slice unwritten, or if anything else uses the unfinished tensor.
    """
    last = graph.calls[index]
    into, axis = last.arguments["into"], _written_axis(last)
    if axis is None or into.shape[axis] < FEWEST:
        return None
    parts: dict[int, Ref] = {}
    group: set[int] = set()
    count = into.shape[axis]
    backwards = last.arguments["part"].offset == into.offset
    for number in range(count) if backwards else reversed(range(count)):
        call = graph.calls[index]
        source = _written_value(graph, call, group)
        at = call.arguments["part"].offset - into.offset
        if (
            source is None
            or call.arguments["into"] != into
            or at != number * into.stride[axis]
            or _written_axis(call) != axis
        ):
            return None
        parts[number] = source
        group.add(index)
        before = graph.producer.get(call.arguments["old"].key)
        if len(parts) < count and (before is None or graph.calls[before].name != "overwrite"):
            return None
        index = before if before is not None else -1
    for write in sorted(group)[:-1]:
        if any(taker not in group for ref in graph.calls[write].outputs for taker in graph.users.get(ref.key, ())):
            return None
    group = graph.with_exclusive_producers(group, lambda call: base(call.name) in FACTORIES or takes_shape(call.name))
    func, inner = torch.ops.aten.stack.default, tuple(graph.calls[write] for write in sorted(group))
    arguments = {"tensors": tuple(parts[number] for number in range(count)), "dim": axis}
    return group, [last._replace(func=func, name="stack", arguments=arguments, inner=inner)]


def _written_axis(call: Call) -> int | None:
    """Return the axis along which a write covers one index; None if there is none."""
    into, part = call.arguments["into"], call.arguments["part"]
    for axis in range(len(into.shape)):
        rest = (*into.shape[:axis], *into.shape[axis + 1 :]), (*into.stride[:axis], *into.stride[axis + 1 :])
        if Layout(*rest, part.offset) == part:
            return axis
    return None


def _written_value(graph: Graph, call: Call, group: set[int]) -> Ref | None:
    """Return the value that is written unchanged, and add its copy and the written slice to the group."""
    copy = graph.producer.get(call.arguments["new"].key)
    if copy is None or base(graph.calls[copy].name) != "copy":
        return None
    source, part = graph.calls[copy].arguments["src"], graph.calls[copy].arguments["self"]
    picked = graph.producer.get(part.key)
    if picked is None or (source.shape, source.dtype) != (part.shape, part.dtype):
        return None
    if len(graph.users[part.key]) != 1 or len(graph.users[call.arguments["new"].key]) != 1:
        return None
    group |= {copy, picked}
    return source
