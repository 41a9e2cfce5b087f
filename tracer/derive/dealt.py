"""Tensors that a run takes apart and puts together again as they were: `cat(unbind(x))` moves nothing."""

from __future__ import annotations

import torch

from tracer.derive.composed import Flow, replaced
from tracer.ops import JOINS, SPLITS, base
from tracer.recorder.calls import Call, Calls, Ref


def rejoined(made: list[Call], calls: Calls) -> list[Call]:
    """The calls of a run with each join of all parts of one tensor, in order, as one layout of that tensor."""
    if not any(base(call.name) in JOINS for call in made):
        return made
    flow = Flow(made, calls)
    groups = [found for index in range(len(made)) if (found := _whole(flow, index)) is not None]
    return replaced(made, groups) if groups else made


def _whole(flow: Flow, index: int) -> tuple[set[int], Call] | None:
    """The two calls, and the one in their place; None where anything else takes a part, or where one is left out."""
    join = flow.calls[index]
    parts: tuple[Ref, ...] = tuple(join.arguments.get("tensors", ())) if flow.name(index) in JOINS else ()
    deal = flow.maker.get(parts[0].key) if parts else None
    if deal is None or flow.name(deal) not in SPLITS | {"unbind"} or flow.calls[deal].outputs != parts:
        return None
    if any(flow.takers[part.key] != [index] or part.key in flow.outputs for part in parts):
        return None
    call = flow.calls[deal]
    whole, axis = call.arguments["self"], call.arguments.get("dim", 0)
    axis %= len(whole.shape)
    if join.arguments.get("dim", 0) % len(parts[0].shape) != axis:
        return None
    func, name, arguments = torch.ops.aten.alias.default, "alias", {"self": whole}
    if flow.name(deal) == "unbind":
        func, name = torch.ops.aten.flatten.using_ints, "flatten"
        arguments |= {"start_dim": axis, "end_dim": axis + 1}
    return {deal, index}, join._replace(func=func, name=name, arguments=arguments, inner=(call, join))
