"""Repetition of blocks: the solution of a net of few blocks, applied to the same net of many.

Blocks of one kind run the same code. A block's ops are compared by module, source line, name, rank and dtype, and each
solved size has to have the value that it has in the deep run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracer.capture import OpEvent, Recording
from tracer.shapes import Solution

FEWEST = 2
"""Blocks of a shallow net: a first, and a last one."""
BLOCK_NUMBER = re.compile(r"(.*?)(\d+)")


class _Segment(NamedTuple):
    """Ops of a block, and those up to the next one: `block` is the container of the block, "" for those before the
    first, and its number."""

    block: tuple[str, int]
    start: int
    signature: tuple


def repeated_modules(deep: Iterable[str], shallow: Iterable[str]) -> frozenset[str]:
    """Return the prefixes of the paths of blocks, `model.layers.`, from the paths of modules of two depths."""
    there = {*shallow}
    missing = [path for path in deep if path not in there]
    outermost = [path for path in missing if path.rpartition(".")[0] in {*there, ""}]
    return frozenset(match[1] for path in outermost if (match := BLOCK_NUMBER.fullmatch(path)))


def fewest_blocks(ops: Sequence[OpEvent], containers: frozenset[str]) -> int:
    """Return the smallest number of blocks, in each container, that has all kinds of blocks of this run."""
    by_container: dict[str, list[tuple]] = {}
    for segment in _segments(ops, containers):
        if segment.block[0]:
            by_container.setdefault(segment.block[0], []).append(segment.signature)
    counts = [FEWEST]
    for signatures in by_container.values():
        *inner, _ = signatures
        firsts = {signature: number for number, signature in reversed([*enumerate(inner)])}
        counts.append(max(firsts.values(), default=0) + 2)
    return max(counts)


def match_blocks(deep: Sequence[OpEvent], shallow: Sequence[OpEvent], containers: frozenset[str]) -> list[int] | None:
    """Return for each op of a deep run the same op of a shallow one; None where its block is of no kind there."""
    known: dict[tuple, int] = {}
    last: dict[str, _Segment] = {}
    for segment in _segments(shallow, containers):
        known.setdefault((segment.block[0], segment.signature), segment.start)
        last[segment.block[0]] = segment
    matches: list[int] = []
    segments = list(_segments(deep, containers))
    ends = {segment.block[0]: segment for segment in segments}
    for segment in segments:
        container = segment.block[0]
        if segment is ends[container] and container in last and last[container].signature == segment.signature:
            start = last[container].start  # what follows the last block is not what follows any other
        elif (start := known.get((container, segment.signature), -1)) < 0:
            return None
        matches += range(start, start + len(segment.signature))
    return matches


def extend(solution: Solution, deep: Recording, matches: Sequence[int], sizes: Mapping[str, int]) -> Solution | None:
    """Return the solution of a shallow run for a deep one of the same code; None where it does not predict each shape
    and number of the deep run."""
    places: dict[int, list[int]] = {}
    for i, j in enumerate(matches):
        places.setdefault(j, []).append(i)

    def translate(pairs: Iterable[tuple[int, int]]) -> frozenset[tuple[int, int]]:
        return frozenset((i, operand) for op, operand in pairs for i in places.get(op, ()))

    scalars = {}
    for call in deep.calls.entries if deep.calls else ():
        if call.first < len(matches):
            first = matches[call.first]
            solved = solution.scalars.get((call.name, first, first + call.last - call.first))
            if solved is not None:
                scalars[call.name, call.first, call.last] = solved
    extended = replace(
        solution,
        inputs=tuple(solution.inputs[j] for j in matches),
        outputs=tuple(solution.outputs[j] for j in matches),
        notes=tuple(solution.notes[j] for j in matches),
        parts=(),
        scalars=scalars,
        edges={i: edge for op, edge in solution.edges.items() for i in places.get(op, ())},
        value_dependent=translate(solution.value_dependent),
        diverging=translate(solution.diverging),
        size_dependent=translate(solution.size_dependent),
        called=tuple((i, note) for op, note in solution.called for i in places.get(op, ())),
        positions={(i, at): text for (op, at), text in solution.positions.items() for i in places.get(op, ())},
    )
    return extended if extended.predicts(deep, dict(sizes)) else None


def _segments(ops: Sequence[OpEvent], containers: frozenset[str]) -> Iterable[_Segment]:
    """Yield the ops before the first block, and each block with the ops up to the next."""
    pattern = re.compile(rf"({'|'.join(map(re.escape, sorted(containers)))})(\d+)(?=\.|$)") if containers else None
    block, start, signature = ("", 0), 0, []
    for i, op in enumerate(ops):
        match = pattern.match(op.module) if pattern else None
        here = (match[1], int(match[2])) if match else block
        if here != block:
            yield _Segment(block, start, tuple(signature))
            block, start, signature = here, i, []
        path = op.module[match.end() :] if match else op.module
        ranks = tuple((len(shape), dtype) for tensors in (op.inputs, op.outputs) for shape, dtype, _ in tensors)
        signature.append((bool(match), path, op.line, op.name, op.function, ranks))
    yield _Segment(block, start, tuple(signature))
