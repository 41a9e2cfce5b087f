"""Layouts that are lines: what an input is cut into, a part of a sequence, tokens as a grid, one vector as every token,
cells as pixels."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from tracer.graph.dataflow import Graph
from tracer.graph.module_tree import Places
from tracer.graph.value_shapes import Shapes
from tracer.ops import ANCHORS, RESHAPES, TRANSPOSES, base, takes_shape

if TYPE_CHECKING:
    from tracer.textbook.step_selection import Plan


def laid(plan: Plan, shapes: Shapes, places: Places, index: int) -> Iterator[str]:
    """Of what a call is given, the layouts of lines that have a line."""
    graph = plan.graph
    given = {ref.key for ref in graph.given}
    for ref in () if takes_shape(graph.calls[index].name) else graph.inputs[index]:
        root = plan.named_root(ref.key)
        if _same_tokens(plan, shapes, ref.key) and not places.numbers(graph.calls[index].module):
            yield ref.key
        if root == ref.key or ref.key in plan.named or graph.depends[ref.key] != "x":
            continue
        fewer = prod(ref.shape) < graph.count(root)
        if root in given:
            if ref.dtype.is_floating_point and graph.count(root) > 1 and _moves(graph, shapes, ref.key, root):
                yield ref.key
        elif root in plan.named and graph.within(graph.maker[root]) != graph.within(index):
            if fewer and len(ref.shape) < len(graph.shape(root)):
                yield ref.key
            elif base(graph.calls[index].name) in ANCHORS and not places.numbers(graph.calls[index].module):
                yield from _tokens(graph, root, ref.key)


def _moves(graph: Graph, shapes: Shapes, key: str, root: str) -> bool:
    """Whether a layout does more than put in or leave out axes of size 1, at any sizes."""
    after, before = (tuple(n for n in shapes.of(k) if n != 1) for k in (key, root))
    names = {base(graph.calls[graph.maker[k]].name) for k in graph.chain(key, root)}
    return after != before or bool(names & TRANSPOSES)


def _same_tokens(plan: Plan, shapes: Shapes, key: str) -> bool:
    """Whether a value is one vector of parameters as every token of a sequence, `[B, n, D]`."""
    graph, shape = plan.graph, shapes.of(key)
    root = graph.root(key)
    learned = root.startswith("parameter ") and graph.ref[root].dtype.is_floating_point
    single = [n for n in shapes.of(root) if n != 1] == [shape[-1]] if learned and len(shape) == 3 else False
    return single and root != key and shape[1] not in (1, plan.batch)


def _tokens(graph: Graph, root: str, key: str) -> Iterator[str]:
    """Some tokens of a sequence, `[B, n, D]` of `[B, S, D]`, and a sequence that is taken as a grid, `[B, n, m, D]`."""
    for before, after in pairwise([root, *graph.chain(key, root)]):
        old, new = graph.shape(before), graph.shape(after)
        if len(old) != 3 or old[0] != new[0] or old[-1] != new[-1]:
            continue
        split = base(graph.call_of(after).name) in RESHAPES and len(new) == 4 and new == graph.shape(key)
        if split or (len(new) == 3 and new[1] < old[1]):
            yield after


def folded(graph: Graph, shapes: Shapes, path: list[str]) -> bool:
    """Whether a chain of layouts lays the numbers of each token out over axes that it did not have: a cell as pixels.
    On the way, `path`, there are more axes than before and after, and the last one is split."""
    first, last = len(graph.shape(path[0])), len(graph.shape(path[-1]))
    split = next((key for key in path if len(graph.shape(key)) >= max(first, last) + 2), None)
    return split is not None and not shapes.same(shapes.of(split)[-1], shapes.of(path[0])[-1])
