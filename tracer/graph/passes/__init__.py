"""Passes over the graph of a run: each takes a graph and returns a rewritten graph.

A pass has a trigger: the ops of which its pattern has at least one. A graph without any of them does not enter it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tracer.graph.dataflow import Graph
from tracer.graph.passes.idioms import HINTS, look_up_one_hots, recognize_idioms, take_largest_of_sort
from tracer.graph.passes.loops import SLICES, WRITES, cancel_unbinds, fuse_slice_writes, roll_loops
from tracer.graph.passes.mixtures import GATES, fuse_moe
from tracer.ops import JOINS


def run_passes(
    graph: Graph, numbers: dict[str, float], spelled: frozenset[int], moving: frozenset[int] = frozenset()
) -> tuple[Graph, set[int]]:
    """Return the graph after all passes, in order, and the ops of the calls that were recognised as a named function.

    `numbers` are the constants of the code by their keys. The ops `spelled` are written as in the code, and so are
    those whose numbers are `moving`: they are others in other runs, and have no formula.
    """
    named: set[int] = set()
    recognize = partial(recognize_idioms, numbers=numbers, spelled=spelled, named=named, moving=moving)
    passes: tuple[tuple[Callable[[Graph], Graph], frozenset[str]], ...] = (
        (fuse_slice_writes, WRITES),
        (cancel_unbinds, JOINS),
        (look_up_one_hots, frozenset(("one_hot",))),
        (take_largest_of_sort, frozenset(("sort",))),
        (recognize, HINTS),
        (fuse_moe, GATES),
        (roll_loops, SLICES),
    )
    for run, triggers in passes:
        if not triggers.isdisjoint(graph.names):
            graph = run(graph)
    return graph, named
