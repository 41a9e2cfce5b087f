"""Tensors that a run writes part by part, `y[:, 0] = …`, `y[:, 1] = …`: in a textbook, the parts are put together."""

from __future__ import annotations

import torch

from tracer.derive.composed import Flow, replaced
from tracer.ops import FACTORIES, base, takes_shape
from tracer.recorder.calls import Call, Calls, Layout, Ref

FEWEST = 2
"""Parts of what is taken for such a tensor."""


def written(made: list[Call], calls: Calls) -> list[Call]:
    """The calls of a run with all writes into the parts of one tensor as one `stack` of what was written."""
    if not any(call.name == "overwrite" for call in made):
        return made
    flow, groups = Flow(made, calls), []
    for index, call in enumerate(made):
        if call.name == "overwrite" and (found := _stacked(flow, index)) is not None:
            groups.append(found)
    return replaced(made, groups) if groups else made


def _stacked(flow: Flow, index: int) -> tuple[set[int], Call] | None:
    """The writes that end with this one, and the call in their place; None where they leave something as it was, or
    where anything else takes what was not whole yet."""
    last = flow.calls[index]
    into, axis = last.arguments["into"], _axis(last)
    if axis is None or into.shape[axis] < FEWEST:
        return None
    parts: dict[int, Ref] = {}
    group: set[int] = set()
    count = into.shape[axis]
    backwards = last.arguments["part"].offset == into.offset
    for number in range(count) if backwards else reversed(range(count)):
        call = flow.calls[index]
        source = _written(flow, call, group)
        at = call.arguments["part"].offset - into.offset
        if source is None or call.arguments["into"] != into or at != number * into.stride[axis] or _axis(call) != axis:
            return None
        parts[number] = source
        group.add(index)
        before = flow.maker.get(call.arguments["old"].key)
        if len(parts) < count and (before is None or flow.calls[before].name != "overwrite"):
            return None
        index = before if before is not None else -1
    for one in sorted(group)[:-1]:
        if any(taker not in group for ref in flow.calls[one].outputs for taker in flow.takers.get(ref.key, ())):
            return None
    group = flow.only_in(group, lambda call: base(call.name) in FACTORIES or takes_shape(call.name))
    func, inner = torch.ops.aten.stack.default, tuple(flow.calls[one] for one in sorted(group))
    arguments = {"tensors": tuple(parts[number] for number in range(count)), "dim": axis}
    return group, last._replace(func=func, name="stack", arguments=arguments, inner=inner)


def _axis(call: Call) -> int | None:
    """The axis of which a write takes one place."""
    into, part = call.arguments["into"], call.arguments["part"]
    for axis in range(len(into.shape)):
        rest = (*into.shape[:axis], *into.shape[axis + 1 :]), (*into.stride[:axis], *into.stride[axis + 1 :])
        if Layout(*rest, part.offset) == part:
            return axis
    return None


def _written(flow: Flow, call: Call, group: set[int]) -> Ref | None:
    """What a write puts there as it is; the copy, and the part that it is copied to, join the group."""
    copy = flow.maker.get(call.arguments["new"].key)
    if copy is None or base(flow.calls[copy].name) != "copy":
        return None
    source, part = flow.calls[copy].arguments["src"], flow.calls[copy].arguments["self"]
    picked = flow.maker.get(part.key)
    if picked is None or (source.shape, source.dtype) != (part.shape, part.dtype):
        return None
    if len(flow.takers[part.key]) != 1 or len(flow.takers[call.arguments["new"].key]) != 1:
        return None
    group |= {copy, picked}
    return source
