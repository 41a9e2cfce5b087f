"""Passes over the graph of a run: each takes a graph and returns a rewritten graph."""

from __future__ import annotations

from functools import partial

from tracer.graph.dataflow import Graph
from tracer.graph.passes.idioms import recognize_idioms
from tracer.graph.passes.loops import cancel_unbinds, fuse_slice_writes, roll_loops
from tracer.graph.passes.mixtures import fuse_moe


def run_passes(graph: Graph, numbers: dict[str, float], spelled: frozenset[int]) -> tuple[Graph, set[int]]:
    """Return the graph after all passes, in order, and the ops of the calls that were recognised as a named function.

    `numbers` are the constants of the code by their keys. The ops `spelled` are written as in the code.
    """
    named: set[int] = set()
    recognize = partial(recognize_idioms, numbers=numbers, spelled=spelled, named=named)
    for run in (fuse_slice_writes, cancel_unbinds, recognize, fuse_moe, roll_loops):
        graph = run(graph)
    return graph, named
