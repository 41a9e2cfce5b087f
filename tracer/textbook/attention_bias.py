"""What is added to the scores of attention and hides nothing: a learned bias for each distance, or ALiBi."""

from __future__ import annotations

from tracer.graph.dataflow import Graph
from tracer.ops import COMPARES, LOOKUPS, base, having

POWERS = having("exponential")
"""What slopes that halve from head to head are made by."""


def bias(graph: Graph, key: str) -> str:
    """The role of a line that is added to scores: "bias" where it was learned (Raffel et al. 2020), "ALiBi" where it is
    a slope for each head times places that are counted (Press et al. 2022); "" for anything else."""
    if graph.depends[key] == "x" or not graph.ref[key].dtype.is_floating_point:
        return ""
    names = _above(graph, key)
    if names & COMPARES:
        return ""
    if graph.depends[key] == "p":
        return "bias" if names & LOOKUPS else ""
    return "ALiBi" if names >= {"arange", "mul"} and names & POWERS else ""


def _above(graph: Graph, key: str) -> set[str]:
    """The names of the calls that a line was made by, up to where it looks something up."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting = [key]
    while waiting:
        index = graph.producer.get(waiting.pop())
        if index is None or index in seen:
            continue
        seen.add(index)
        name = base(graph.calls[index].name)
        found.add(name)
        if name not in LOOKUPS:
            waiting += [ref.key for ref in graph.inputs[index]]
    return found
