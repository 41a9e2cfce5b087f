"""Positions of tokens: rows of a table that two tokens share, and a class token that is read at another position."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from tracer.capture.composite_calls import Call, Ref
from tracer.diagnostics.findings.attention_masks import is_causal
from tracer.diagnostics.findings.rule import Finding, Rule
from tracer.graph.dataflow import Graph
from tracer.ops import base

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView

LOOKUPS = {"embedding": ("weight", "indices"), "index_select": ("self", "index"), "index": ("self", "indices")}
MIN_TOKENS = 3
"""Tokens from which on positions can be told from chance."""


def find_shared(run: RunView) -> Iterator[Finding]:
    """Yield position tables from which several tokens read the same row, since positions were clamped or restart."""
    graph = run.graph
    if graph is None:
        return
    for index, call in enumerate(graph.calls):
        names = LOOKUPS.get(base(call.name))
        if names is None or not graph.is_live(index):
            continue
        table, places = (call.arguments.get(name) for name in names)
        places = places[0] if isinstance(places, tuple) and len(places) == 1 else places
        if not isinstance(table, Ref) or not isinstance(places, Ref) or graph.depends[places.key] != "c":
            continue
        if not _added_to_tokens(graph, call.outputs[0]):
            continue
        numbers = run.value(places.key)
        if numbers is None or numbers.is_floating_point() or numbers.dtype == torch.bool:
            continue
        rows = numbers.reshape(-1, numbers.shape[-1])[0].tolist() if numbers.dim() else []
        if len(rows) < MIN_TOKENS or rows[1] - rows[0] != 1 or len(set(rows)) == len(rows):
            continue
        shared = max(set(rows), key=rows.count)
        count, size = rows.count(shared), table.shape[0]
        first = next(place for place, row in enumerate(rows) if row in rows[:place])
        yield Finding(
            "position shared",
            run.step(call.last - 1),
            tuple(range(call.first, call.last)),
            f"{len(rows)} tokens read rows of a table of {size} positions, and from token {first} on they read rows"
            f" that others have, too: row {shared} is read {count} times. The table is too short for this text, and the"
            " code hides it.",
            "Refuse longer texts, or make the table as long as the longest: positions that two tokens share can't be"
            " told apart.",
        )


def _added_to_tokens(graph: Graph, rows: Ref) -> bool:
    """Return whether rows of a table are added to a stream of as many tokens."""
    waiting, visited = [rows.key], {rows.key}
    while waiting and len(visited) < 8:
        key = waiting.pop()
        for index in graph.live_users[key]:
            call = graph.calls[index]
            if base(call.name) == "add":
                others = [ref for ref in graph.inputs[index] if ref.key != key and graph.depends[ref.key] == "x"]
                if any(len(ref.shape) > 2 and ref.shape[-2:] == rows.shape[-2:] for ref in others):
                    return True
            elif graph.kind[index] in ("layout", "same") and call.outputs and call.outputs[0].key not in visited:
                visited.add(call.outputs[0].key)
                waiting.append(call.outputs[0].key)
    return False


def find_class_token(run: RunView) -> Iterator[Finding]:
    """Yield answers that are read from a single token other than the learned one that was inserted into the
    sequence."""
    graph = run.graph
    if graph is None:
        return
    for index, call in enumerate(graph.calls):
        placed = _learned_tokens(graph, index)
        if placed is None:
            continue
        axis, places, length = placed
        after = _descendants(graph, call.outputs[0].key)
        reads = [
            (position, read)
            for number, read in enumerate(graph.calls)
            if number > index and (position := _single_read(graph, number, axis, length, after)) is not None
        ]
        if not reads or any(position in places for position, _ in reads) or is_causal(run):
            continue
        position, read = reads[-1]
        if not _leads_out(graph, read.outputs[0].key):
            continue
        yield Finding(
            "class token",
            run.step(read.last - 1),
            (*range(call.first, call.last), *range(read.first, read.last)),
            f"A learned token is put at place {min(places)} of {length} tokens, and one token is read at place"
            f" {position}, where a token of the input lies. No answer is read at place {min(places)}.",
            f"Read the token where it was put: `[:, {min(places) if min(places) == 0 else -1}]`.",
        )


def _learned_tokens(graph: Graph, index: int) -> tuple[int, set[int], int] | None:
    """Return the axis, the positions and the length of a sequence that a call concatenates from single learned tokens
    and those of the input; None for any other call."""
    call = graph.calls[index]
    if base(call.name) not in ("cat", "concat", "concatenate") or not graph.is_live(index):
        return None
    operands, axis = call.arguments.get("tensors"), call.arguments.get("dim", 0)
    if not isinstance(operands, tuple) or not isinstance(axis, int) or len(call.outputs[0].shape) != 3:
        return None
    axis %= 3
    if axis == 2 or not any(graph.depends[ref.key] == "x" and ref.shape[axis] > 1 for ref in operands):
        return None
    places, start = set(), 0
    for ref in operands:
        if graph.depends[ref.key] == "p":
            if ref.shape[axis] != 1:
                return None
            places.add(start)
        start += ref.shape[axis]
    return (axis, places, start) if places else None


def _descendants(graph: Graph, key: str) -> set[str]:
    keys, waiting = {key}, [key]
    while waiting:
        for index in graph.users.get(waiting.pop(), ()):
            for ref in graph.calls[index].outputs:
                if ref.key not in keys:
                    keys.add(ref.key)
                    waiting.append(ref.key)
    return keys


def _single_read(graph: Graph, number: int, axis: int, length: int, after: set[str]) -> int | None:
    """Return the position from which a call takes one token out of a sequence; None for any other call."""
    call: Call = graph.calls[number]
    name, source = base(call.name), call.arguments.get("self")
    if not isinstance(source, Ref) or source.key not in after or len(source.shape) != 3:
        return None
    if source.shape[axis] != length or not graph.is_live(number):
        return None
    dim = call.arguments.get("dim", 0)
    if not isinstance(dim, int) or dim % 3 != axis:
        return None
    if name == "select":
        place = call.arguments.get("index")
        return place % length if isinstance(place, int) else None
    if name in ("slice", "narrow") and call.outputs[0].shape[axis] == 1 and length > 1:
        place = call.arguments.get("start") or 0
        return place % length if isinstance(place, int) else None
    return None


def _leads_out(graph: Graph, key: str) -> bool:
    """Return whether an output depends on a value."""
    return bool(_descendants(graph, key) & graph.returned)


RULES = (
    Rule("position shared", find_shared, "positions", runs_again=True),
    Rule("class token", find_class_token),
)
