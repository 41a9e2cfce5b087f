"""Rules on residual sums: one that adds another stream than its branch read, one too many, and one too few."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.capture.calls import Call
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
    """True if the branch begins with a norm of the stream that it reads."""
    attends: bool
    """True if the branch contains an attention."""


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


# Residual sums that add a stream twice, and those that one block lacks.

MOST_SUMMANDS = 6
"""Summands of one sum of several terms that are looked at."""


class DoubleSum(NamedTuple):
    """A sum that adds a stream to a sum that has it already: the call, and how many other summands depend on it."""

    call: Call
    others: int


def double_sums(run: RunView) -> Iterator[DoubleSum]:
    """Yield the sums of a stream and of a sum that has the stream as a summand, beside a branch that read it."""
    graph = run.graph
    for index in graph.computing_calls():
        call, operands = graph.calls[index], graph.data(index)
        if call.op.name != "add" or len(operands) != 2 or operands[0].shape != operands[1].shape:
            continue
        if len(operands[0].shape) < 3 or call.arguments.get("alpha", 1) != 1:
            continue
        first, second = (graph.root(ref.key) for ref in operands)
        for stream, total in ((first, second), (second, first)):
            summands = _summands(graph, total, stream)
            after = graph.descendants(stream)
            others = [key for key in summands if key != stream and key in after]
            if stream in summands and len(summands) > 1 and others:
                yield DoubleSum(call, len(others))
                break


def _summands(graph: Graph, key: str, stream: str) -> list[str]:
    """Return the roots of the summands of a sum of tensors of one shape, of which `stream` is looked at as a whole; the
    value itself where it is no sum."""
    summands: list[str] = []
    waiting = [key]
    while waiting and len(summands) + len(waiting) < MOST_SUMMANDS:
        index = graph.producer.get(at := waiting.pop())
        call = None if index is None or at == stream else graph.calls[index]
        plain = call is not None and call.op.name == "add" and call.arguments.get("alpha", 1) == 1
        if index is not None and plain and _is_sum(graph, index, graph.shape(key)):
            waiting += [graph.root(ref.key) for ref in graph.data(index)]
        else:
            summands.append(at)
    return summands


@rule(
    "residual twice",
    double_sums,
    "This sum adds a stream to a sum that has it as a summand already: the stream goes on with a factor of 2, and"
    " grows by it in each block.",
    "Add the stream once: where a block returns `x + f(x)`, its caller writes `x = block(x)`.",
)
def find_double(run: RunView, double: DoubleSum) -> Evidence:
    """Find a residual sum around a residual sum of the same stream."""
    return Evidence(double.call)


class MissingSum(NamedTuple):
    """A branch whose result goes on without the stream that it read: the last call of it, and how that is known."""

    call: Call
    known: str


def missing_sums(run: RunView) -> Iterator[MissingSum]:
    """Yield the blocks of a list with a residual sum less than each of the others, and feed-forward parts behind the
    residual sum of an attention whose result has none."""
    sums = residuals(run)
    found = list(_unlike_siblings(run, sums))
    yield from found
    if not found:
        yield from _bare_branches(run, sums)


def _unlike_siblings(run: RunView, sums: list[Residual]) -> Iterator[MissingSum]:
    graph = run.graph
    starts: dict[str, dict[int, int]] = {}
    for index, call in enumerate(graph.calls):
        parts = call.module.split(".")
        for place, part in enumerate(parts):
            if part.isdecimal():
                starts.setdefault(".".join(parts[:place]), {}).setdefault(int(part), index)
    for path, first in starts.items():
        order = sorted(first, key=lambda number: first[number])
        if len(order) < 3 or order != sorted(order):
            continue
        bounds = [first[number] for number in order]
        counts, linear = [], []
        for begin, end in zip(bounds, [*bounds[1:], len(graph.calls)], strict=True):
            counts.append(sum(begin <= residual.call < end for residual in sums))
            linear.append(sum("linear" in call.op.traits for call in graph.calls[begin:end]))
        few, most = min(counts), max(counts)
        inner = linear[:-1]  # a head may follow the last one
        if most - few != 1 or counts.count(few) != 1 or not few or len({*inner}) != 1:
            continue
        at = counts.index(few)
        known = (
            f"Block {order[at]} of `{path}` has {few} residual sum{'s' if few > 1 else ''}, and each of the other"
            f" {len(order) - 1} has {most}."
        )
        last = bounds[at + 1] - 1 if at + 1 < len(bounds) else len(graph.calls) - 1
        lacking = next(
            (index for index in range(bounds[at], last + 1) if _ends_branch(graph, index)), bounds[at]
        )  # the branch whose result nothing adds
        yield MissingSum(graph.calls[lacking], known)


def _ends_branch(graph: Graph, index: int) -> bool:
    """Return whether the result of a linear map is read by no sum."""
    call = graph.calls[index]
    if "linear" not in call.op.traits or len(call.outputs[0].shape) < 3:
        return False
    if call.outputs[0].shape[-1] > graph.inputs[index][0].shape[-1]:
        return False
    users = [graph.calls[user].op.traits for user in graph.consumers.get(call.outputs[0].key, ())]
    return bool(users) and all(traits & {"norm", "linear"} for traits in users)


def _bare_branches(run: RunView, sums: list[Residual]) -> Iterator[MissingSum]:
    """Yield the feed-forward parts behind a norm of the sum of an attention, that sum read by nothing else."""
    graph = run.graph
    for residual in sums:
        call = graph.calls[residual.call]
        stream = call.outputs[0]
        users = graph.consumers.get(graph.root(stream.key), [])
        if not (residual.attends and residual.normed) or len(users) != 1 or stream.key in graph.returned:
            continue
        norm = graph.calls[users[0]]
        if "norm" not in norm.op.traits or norm.module.rpartition(".")[0] != call.module:
            continue
        widths, at = [], users[0]
        while len(widths) < 2:
            after = graph.consumers.get(graph.calls[at].outputs[0].key, [])
            if len(after) != 1:
                break
            at = after[0]
            if "linear" in graph.calls[at].op.traits:
                widths.append(graph.calls[at].outputs[0].shape[-1])
            elif not graph.calls[at].op.traits & {"activation", "pointwise", "arithmetic", "dropout"}:
                break
        if len(widths) == 2 and widths[0] > widths[1] == stream.shape[-1]:
            known = "Attention has a residual sum, and the feed-forward part behind it has none."
            yield MissingSum(graph.calls[at], known)


@rule(
    "residual missing",
    missing_sums,
    "{known} The result of this branch goes on alone: from here on, the stream goes on without what was there before.",
    "Add the stream that the branch read: `x = x + mlp(norm(x))`.",
)
def find_missing(run: RunView, missing: MissingSum) -> Evidence:
    """Find a branch whose result goes on without the stream.

    Source: He et al. 2016, equation 1.
    """
    return Evidence(missing.call, known=missing.known)


# Branches whose results are added at other places of the stream than those that they were computed for.

REARRANGEMENTS = frozenset(("roll", "flip", "index", "index_select", "gather", "take_along_dim"))
"""Calls that put each number of a tensor at another place."""
PLACES = 8
"""Places of a stream that are tried."""
MOVED = 1e-9
"""Difference of float64, as a share of the largest number, from which on a place has moved."""
ROLL_BACK = (
    "Roll back by the opposite number before the sum: `torch.roll(h, shifts=(s, s), dims=(1, 2))` after one by -s."
)
PUT_BACK = (
    "Bring the results back into the order of the stream before the sum: undo each flip, sort, window and exchange of"
    " axes, the last one first."
)


class Displacement(NamedTuple):
    """A residual sum whose branch does not depend on the stream at its own place: the sum, the last call that
    rearranges places, None for none, and at how many of the places that were tried."""

    call: Call
    last: Call | None
    wrong: int
    tried: int


def displacements(run: RunView) -> Iterator[Displacement]:
    """Yield the residual sums of attentions whose branches, in second runs with other numbers at one place of the
    stream, change elsewhere alone at many places."""
    graph, lines = run.graph, set()
    for residual in residuals(run) if not run.draws else ():
        call = graph.calls[residual.call]
        source = run.trace.ops[call.first].source if call.first < len(run.trace.ops) else None
        line = (source.file, source.line) if source else (call.module, residual.call)
        if residual.read != residual.skip or not residual.attends or line in lines:
            continue
        lines.add(line)
        branch = next((ref.key for ref in graph.data(residual.call) if graph.root(ref.key) != residual.skip), None)
        if branch is None or (wrong := _misplaced(run, residual.skip, branch)) is None or 3 * wrong[0] <= wrong[1]:
            continue
        after = graph.descendants(residual.skip)
        between = [graph.call_of(key) for key in graph.ancestors([branch]) if key in after and key != residual.skip]
        moves = [each for each in between if each.op.name in REARRANGEMENTS]
        yield Displacement(call, max(moves, key=lambda each: each.first, default=None), *wrong)


def _misplaced(run: RunView, stream: str, branch: str) -> tuple[int, int] | None:
    """Return at how many places of a stream, of how many that were tried, its numbers do not reach the same place of a
    branch; None where that can't be computed."""
    shape, graph = run.graph.shape(stream), run.graph
    count = prod(shape[:-1])
    if graph.shape(branch) != shape or count < 2 or not _has_features_last(graph, stream, branch):
        return None
    wrong, places = 0, sorted({int((number + 0.5) * count / PLACES) for number in range(PLACES)})
    values = run.value(stream)
    if values is None:
        return None
    noise = torch.randn(shape[-1], generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    draws = []
    for place in places:
        other = values.double().clone().reshape(count, shape[-1])
        other[place] += noise
        draws.append(other.reshape(shape))
    results = run.results(stream, [values.double(), *draws], [branch])
    if results is None:
        return None
    before, *others = (result[0].reshape(count, shape[-1]) for result in results)
    least = MOVED * float(before.abs().max())
    moved = [(other - before).abs().amax(dim=-1) > least for other in others]
    wrong = sum(not bool(cells[place]) and bool(cells.any()) for cells, place in zip(moved, places, strict=True))
    return wrong, len(places)


def _has_features_last(graph: Graph, stream: str, branch: str) -> bool:
    """Return whether a norm or a linear map of a branch is over the last axis of its stream."""
    width, after = graph.shape(stream)[-1], graph.descendants(stream)
    for key in graph.ancestors([branch]):
        index = graph.producer.get(key)
        call = None if index is None or key not in after else graph.calls[index]
        if index is None or call is None or call.op.name == "batch_norm":
            continue
        if call.op.traits & {"norm", "linear"} and graph.data(index)[0].shape[-1] == width:
            return True
    return False


@rule(
    "residual place",
    displacements,
    "What this sum adds was computed for other places of the stream: in {wrong} of {tried} second runs, other numbers"
    " at one place of it change the branch at other places, and not at this one.",
    "{repair}",
    runs_again=True,
    compares=True,
    explained_by=("axes mixed", "axis order", "mask corner", "mask reversed", "samples mixed", "attention over heads"),
)
def find_displacement(run: RunView, displacement: Displacement) -> Evidence:
    """Find a branch that reads each place of the stream for another place than that where its result is added.

    Source: He et al. 2016, equation 1.
    """
    call, last, wrong, tried = displacement
    repair = ROLL_BACK if last is not None and last.op.name == "roll" else PUT_BACK
    return Evidence(*([last] if last else []), call, wrong=wrong, tried=tried, repair=repair)
