"""Rules on residual sums: one that adds another stream than the one that its branch read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tracer.diagnostics.findings.run_view import Evidence, rule
from tracer.graph.dataflow import Graph
from tracer.ops import NORMS

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


FARTHEST = 120
"""Calls that a branch of a block may have."""


class Residual(NamedTuple):
    """A sum of a stream and the result of a branch that read it: the call, the key of the stream that is added, that of
    the stream that the branch reads, and whether each is the result of a norm."""

    call: int
    skip: str
    read: str
    normed: bool
    """Whether the branch begins with a norm of the stream that it reads."""
    attends: bool
    """Whether the branch contains an attention."""


class ResidualSum(NamedTuple):
    """A residual sum, the one whose result its branch reads, None for none, the one before the norm whose result it
    adds, None for none, and its norm."""

    residual: Residual
    earlier: Residual | None
    normed: Residual | None


NORMED = (
    "This sum adds the result of a norm, and the sum before it adds the stream itself: from here on, the stream goes on"
    " without what was there before the norm."
)
SKIPPED = (
    "The branch reads the sum of the line before, and what is added to it is the stream from before that sum, which no"
    " other call reads: what attention added is in no residual sum."
)


def residual_sums(run: RunView) -> Iterator[ResidualSum]:
    """Yield the residual sums of a run, with those that they come from."""
    graph = run.graph
    sums = residuals(run)
    results = {graph.calls[residual.call].outputs[0].key: residual for residual in sums}
    for residual in sums:
        norm = graph.producing_call(graph.root(residual.skip))
        before = ""
        if norm is not None and "norm" in norm.op.traits:
            before = graph.root(next(iter(norm.arguments.values())).key)
        alone = before in results and len(graph.live_users[before]) <= 1
        yield ResidualSum(residual, results.get(residual.read), results[before] if alone else None)


@rule(
    "residual skip",
    residual_sums,
    "{what}",
    "{repair}",
)
def find_skip(run: RunView, sums: ResidualSum) -> Evidence | None:
    """Find a residual sum that skips a residual sum, or that adds the result of a norm where the one before adds the
    stream itself.

    Source: He et al. 2016, equation 1; Xiong et al. 2020, figure 1.
    """
    graph, (residual, earlier, normed) = run.graph, sums
    call = graph.calls[residual.call]
    if residual.skip != residual.read:
        if earlier is None or not earlier.attends or residual.skip != earlier.skip:
            return None
        if any(user >= residual.call for user in graph.live_users[residual.read]):
            return None
        repair = "Add the stream that the branch reads: `x = x + attention(norm1(x))`, then `x = x + mlp(norm2(x))`."
        return Evidence(call, what=SKIPPED, repair=repair)
    if residual.normed or normed is None or not normed.normed or normed.skip != normed.read:
        return None
    if graph.calls[normed.call].module != call.module:
        return None  # the norm at the end of a stack
    return Evidence(call, what=NORMED, repair="Norm inside of the branch alone: `x = x + mlp(norm2(x))`.")


def residuals(run: RunView) -> list[Residual]:
    """Return the sums of a run in which one operand was computed from the other, or from the same stream."""
    graph, attentions = run.graph, {site.result for site in run.sites}
    sums = []
    for index in graph.computing_calls():
        call = graph.calls[index]
        operands = graph.data(index)
        if call.op.name != "add" or len(operands) != 2 or operands[0].shape != operands[1].shape:
            continue
        if len(operands[0].shape) < 3 or call.outputs[0].shape != operands[0].shape:
            continue
        first, second = (graph.root(ref.key) for ref in operands)
        for skip, branch in ((first, second), (second, first)):
            reading = _reads(graph, branch, skip, attentions)
            if reading is not None:
                sums.append(Residual(index, skip, *reading))
                break
    return sums


def _reads(graph: Graph, branch: str, skip: str, attentions: set[str]) -> tuple[str, bool, bool] | None:
    """Return the stream that a branch reads, whether it begins with its norm, and whether it attends; None if the
    branch was not computed from the stream that is added."""
    shape, waiting, visited, attends = graph.shape(skip), [branch], {branch}, False
    read, normed = None, False
    while waiting and len(visited) < FARTHEST:
        key = waiting.pop(0)
        attends = attends or key in attentions
        index = graph.producer.get(key)
        if index is None:
            continue
        name = graph.calls[index].op.name
        if key != branch and (key == skip or (name == "add" and _is_sum(graph, index, shape))):
            read = read or key
            continue
        if name in NORMS and key != branch and read is None:
            before = graph.root(next(iter(graph.calls[index].arguments.values())).key)
            if key == skip:
                read = key
                continue
            if graph.shape(before) == shape:
                read, normed = before, True
                continue
        for ref in graph.inputs[index]:
            root = graph.root(ref.key)
            if root not in visited and graph.depends[root] == "x":
                visited.add(root)
                waiting.append(root)
    if read is None:
        return (skip, False, attends) if skip in visited else None
    return (read, normed, attends) if read == skip or _comes_from(graph, read, skip) else None


def _is_sum(graph: Graph, index: int, shape: tuple[int, ...]) -> bool:
    operands = graph.data(index)
    return len(operands) == 2 and all(ref.shape == shape for ref in operands)


def _comes_from(graph: Graph, key: str, operand: str) -> bool:
    """Return whether a sum has another stream as an operand."""
    index = graph.producer.get(key)
    return index is not None and operand in {graph.root(ref.key) for ref in graph.inputs[index]}
