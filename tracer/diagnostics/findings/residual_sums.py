"""Residual sums that add another stream than the one that the branch read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from tracer.diagnostics.findings.rule import Finding, Rule
from tracer.graph.attention_sites import find_attention_sites
from tracer.graph.dataflow import Graph
from tracer.ops import NORMS, base

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


def find_skips(run: RunView) -> Iterator[Finding]:
    """Yield residual sums that skip a residual sum, and those that add the result of a norm where others of the same
    model add the stream itself.

    Source: He et al. 2016, equation 1; Xiong et al. 2020, figure 1.
    """
    graph = run.graph
    if graph is None:
        return
    sums = residuals(graph)
    results = {graph.calls[residual.call].outputs[0].key: residual for residual in sums}
    for residual in sums:
        earlier = results.get(residual.read)
        if earlier is None or residual.skip == residual.read:
            continue
        lost = not [user for user in graph.live_users[residual.read] if not _inside(graph, user, residual)]
        if earlier.attends and residual.skip == earlier.skip and lost:
            yield _finding(
                run,
                residual,
                "The branch reads the sum of the line before, and what is added to it is the stream from before that"
                " sum, which no other call reads: what attention added is in no residual sum.",
                "Add the stream that the branch reads: `x = x + attention(norm1(x))`, then `x = x + mlp(norm2(x))`.",
            )
    plain = [residual for residual in sums if residual.normed and residual.skip == residual.read]
    for residual in sums:
        norm = graph.producing_call(graph.root(residual.skip))
        if norm is None or base(norm.name) not in NORMS or residual.skip != residual.read or residual.normed:
            continue
        before = graph.root(next(iter(norm.arguments.values())).key)
        earlier = results.get(before)
        if earlier is None or earlier not in plain or len(graph.live_users[before]) > 1:
            continue
        yield _finding(
            run,
            residual,
            "This sum adds the result of a norm, and the sum before it adds the stream itself: from here on, the stream"
            " goes on without what was there before the norm.",
            "Norm inside of the branch alone: `x = x + mlp(norm2(x))`.",
        )


def residuals(graph: Graph) -> list[Residual]:
    """Return the sums of a run in which one operand was computed from the other, or from the same stream."""
    attentions = {site.result for site in find_attention_sites(graph)}
    sums = []
    for index in graph.computing_calls():
        call = graph.calls[index]
        operands = [ref for ref in graph.inputs[index] if graph.depends[ref.key] == "x"]
        if base(call.name) != "add" or len(operands) != 2 or operands[0].shape != operands[1].shape:
            continue
        if len(operands[0].shape) < 3 or call.outputs[0].shape != operands[0].shape:
            continue
        first, second = (_origin(graph, ref.key) for ref in operands)
        for skip, branch in ((first, second), (second, first)):
            reading = _reads(graph, branch, skip, attentions)
            if reading is not None:
                sums.append(Residual(index, skip, *reading))
                break
    return sums


def _origin(graph: Graph, key: str) -> str:
    """Return a value without the layouts and identities, such as dropout, that led to it."""
    return graph.root(key)


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
        name = base(graph.calls[index].name)
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
    operands = [ref for ref in graph.inputs[index] if graph.depends[ref.key] == "x"]
    return len(operands) == 2 and all(ref.shape == shape for ref in operands)


def _comes_from(graph: Graph, key: str, operand: str) -> bool:
    """Return whether a sum has another stream as an operand."""
    index = graph.producer.get(key)
    return index is not None and operand in {graph.root(ref.key) for ref in graph.inputs[index]}


def _inside(graph: Graph, user: int, residual: Residual) -> bool:
    """Return whether a call belongs to the branch of a residual sum."""
    return user < residual.call


def _finding(run: RunView, residual: Residual, message: str, fix: str) -> Finding:
    assert run.graph is not None
    call = run.graph.calls[residual.call]
    return Finding("residual skip", run.step(call.last - 1), tuple(range(call.first, call.last)), message, fix)


RULES = (Rule("residual skip", find_skips),)
