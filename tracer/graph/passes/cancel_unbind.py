"""Cancel splits that are joined again unchanged: `cat(unbind(x))` moves nothing."""

from __future__ import annotations

import torch

from tracer.capture.composite_calls import Call, Ref
from tracer.graph.dataflow import Graph
from tracer.ops import JOINS, SPLITS


def cancel_unbinds(graph: Graph) -> Graph:
    """Return the graph with each join of all parts of one tensor, in order, as one layout of that tensor."""
    return graph.replace(
        [match for index in range(len(graph.calls)) if (match := _match_rejoin(graph, index)) is not None]
    )


def _match_rejoin(graph: Graph, index: int) -> tuple[set[int], list[Call]] | None:
    """Return the two calls and their replacement; None if a part has another user or is left out."""
    join = graph.calls[index]
    parts: tuple[Ref, ...] = tuple(join.arguments.get("tensors", ())) if graph.name(index) in JOINS else ()
    deal = graph.producer.get(parts[0].key) if parts else None
    if deal is None or graph.name(deal) not in SPLITS | {"unbind"} or graph.calls[deal].outputs != parts:
        return None
    if any(graph.users[part.key] != [index] or part.key in graph.returned for part in parts):
        return None
    call = graph.calls[deal]
    whole, axis = call.arguments["self"], call.arguments.get("dim", 0)
    axis %= len(whole.shape)
    if join.arguments.get("dim", 0) % len(parts[0].shape) != axis:
        return None
    func, name, arguments = torch.ops.aten.alias.default, "alias", {"self": whole}
    if graph.name(deal) == "unbind":
        func, name = torch.ops.aten.flatten.using_ints, "flatten"
        arguments |= {"start_dim": axis, "end_dim": axis + 1}
    return {deal, index}, [join._replace(func=func, name=name, arguments=arguments, inner=(call, join))]
