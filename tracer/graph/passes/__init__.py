"""Passes over the graph of a run: each takes a graph and returns a rewritten graph.

A pass has a trigger: the ops of which its pattern has at least one. A graph without any of them does not enter it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tracer.graph.dataflow import Graph
from tracer.graph.passes.idioms import HINTS, recognize_idioms
from tracer.graph.passes.loops import SLICES, WRITES, cancel_unbinds, fuse_slice_writes, roll_loops
from tracer.graph.passes.mixtures import GATES, fuse_moe
from tracer.ops import JOINS


class Pass(NamedTuple):
    """A pass, and the condition on a graph to enter it."""

    run: Callable[[Graph], Graph]
    trigger: Callable[[Graph], bool]


def has_any(ops: frozenset[str]) -> Callable[[Graph], bool]:
    """Return the condition that a graph has a call of one of these ops."""
    return lambda graph: not ops.isdisjoint(graph.names)


def run_passes(graph: Graph, numbers: dict[str, float], spelled: frozenset[int]) -> tuple[Graph, set[int]]:
    """Return the graph after all passes, in order, and the ops of the calls that were recognised as a named function.

    `numbers` are the constants of the code by their keys. The ops `spelled` are written as in the code.
    """
    named: set[int] = set()
    recognize = partial(recognize_idioms, numbers=numbers, spelled=spelled, named=named)
    passes = (
        Pass(fuse_slice_writes, has_any(WRITES)),
        Pass(cancel_unbinds, has_any(JOINS)),
        Pass(recognize, has_any(HINTS)),
        Pass(fuse_moe, has_any(GATES)),
        Pass(roll_loops, has_any(SLICES)),
    )
    for run, is_triggered in passes:
        if is_triggered(graph):
            graph = run(graph)
    return graph, named
