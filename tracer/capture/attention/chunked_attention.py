"""Pieces of a layer whose attention runs in several: single heads, segments of queries, or of the batch.

Pieces are attentions of which none reads what another made, and whose contexts one op puts side by side. Laid together
they are one attention, where their sizes and what was done to their scores allow; else one sentence says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from tracer.capture.attention.axis_tracking import Atom, Axes, axes_after, leaves
from tracer.capture.attention.score_ops import ScoreOpChains
from tracer.capture.attention.score_replay import SCORES
from tracer.record import AttentionRecord

CHUNKS_PROBLEM = "its attention ran in {count} pieces that don't make up one matrix of queries and keys"


class AttentionOutput(NamedTuple):
    """Output of an attention, after layout ops: its record, its module, its axes, and their atoms that are queries
    or features."""

    record: int
    module: str
    axes: Axes | None
    queries: tuple[Atom, ...]
    features: tuple[Atom, ...]


class ChunkMerger:
    """Outputs of a run's attentions, followed to the op that concatenates several."""

    def __init__(self, ops: list, settings: dict[int, tuple]):
        self._ops, self._settings = ops, settings
        self._levels: list[int] = []
        self._contexts: dict[int, AttentionOutput] = {}
        self._level: dict[int, int] = {}
        self._groups: list[tuple[str, list[int]]] = []

    def see(self, index: int, name: str, layout: bool, inputs: tuple) -> None:
        """Inspect one op that has run and return the number of consecutive attentions that its inputs came through."""
        levels, contexts, level, any_context = self._levels, self._contexts, 0, False
        for _, _, maker in inputs:  # a plain loop: every op of a run comes here
            if type(maker) is int:
                level = max(level, levels[maker])
                any_context = any_context or maker in contexts
        levels.append(level)
        if not any_context:
            return
        operands = [(order, contexts[maker]) for order, (_, _, maker) in enumerate(inputs) if maker in contexts]
        first = operands[0][1]
        if name in ("cat", "stack") or (name == "copy" and len(operands) > 1):
            self._join(index, name, [context for _, context in operands], inputs)
            self._contexts[index] = first
        elif (name == "add" and self._ops[index].module == first.module) or name in ("copy", "slice", "select"):
            self._contexts[index] = first  # a sum of products with parts of the values, or a part of the context
        elif layout:
            shape = self._ops[index].outputs[0][0]
            axes = None if first.axes is None else axes_after(name, self._settings.get(index, ()), first.axes, shape)
            self._contexts[index] = first._replace(axes=axes)

    def begin(self, index: int, record: int, axes: Axes | None, queries=(), features=()) -> None:
        """Record that op `index` computed the output of an attention."""
        self._level[record] = self._levels[index]
        self._levels[index] += 1
        self._contexts[index] = AttentionOutput(record, self._ops[index].module, axes, tuple(queries), tuple(features))

    def group_heads(self, records: list[int]) -> None:
        """Record that one product applied the sum of these attentions to values: they are heads of one layer."""
        for record in records[1:]:
            self._level[record] = self._level[records[0]]
        if len(records) > 1:
            self._groups.append(("heads", records))

    def _join(self, index: int, name: str, contexts: list[AttentionOutput], inputs: tuple) -> None:
        records = list(dict.fromkeys(context.record for context in contexts))
        if len(records) < 2 or len({self._level[record] for record in records}) > 1:
            return
        kind = "heads" if name == "stack" else ""
        if name == "copy":  # into a slice, of which the axis that is short says where
            kind = self._kind(contexts[-1], self._short(inputs))
        elif name == "cat":
            kind = self._kind(contexts[0], next(iter(self._settings.get(index, ())), 0))
        if kind == "heads" and name != "stack" and contexts[-1].axes is not None and len(contexts[-1].axes) == 3:
            axis = self._short(inputs) if name == "copy" else next(iter(self._settings.get(index, ())), 0)
            kind = "batch and heads" if axis in (0, -3) else kind
        known = next((group for group in self._groups if set(group[1]) & set(records)), None)
        if known is None:
            self._groups.append((kind, records))
        else:
            known[1].extend(record for record in records if record not in known[1])

    def _short(self, inputs: tuple) -> int | None:
        maker = inputs[0][2]
        if not isinstance(maker, int) or not self._ops[maker].inputs:
            return None
        whole, part = self._ops[maker].inputs[0][0], inputs[0][0]
        if len(whole) != len(part):
            return next(iter(self._settings.get(maker, ())), None)
        return next((i for i, (size, part_size) in enumerate(zip(whole, part, strict=True)) if size != part_size), None)

    @staticmethod
    def _kind(context: AttentionOutput, axis: int | None) -> str:
        """Return the kind of the axis along which outputs are concatenated."""
        if context.axes is None or axis is None or not -len(context.axes) <= axis < len(context.axes):
            return ""
        own = leaves(context.axes[axis])
        if any(atom.is_part_of(leaves(context.queries)) for atom in own):
            return "queries"
        if any(atom.is_part_of(leaves(context.features)) for atom in own):
            return "heads"
        return "batch" if own or axis in (0, -len(context.axes)) else "heads"

    def merge(
        self, records: list[AttentionRecord], get: Callable, chains: ScoreOpChains, batch: int
    ) -> list[AttentionRecord]:
        """Return the records, one for each layer, counted from 0; the run's inputs have a batch of this size."""
        merged: dict[int, AttentionRecord] = {}
        absorbed: set[int] = set()
        for kind, numbers in self._groups:
            numbers = sorted(numbers)
            merged[numbers[0]] = _together([records[number] for number in numbers], kind, get, chains, batch)
            absorbed.update(numbers[1:])
        remaining = [merged.get(number, record) for number, record in enumerate(records) if number not in absorbed]
        return [piece if piece.layer == layer else replace(piece, layer=layer) for layer, piece in enumerate(remaining)]


def _together(pieces: list[AttentionRecord], kind: str, get, chains: ScoreOpChains, batch: int) -> AttentionRecord:
    """Merge several pieces into one record; without weights, and with the reason, if they do not form one."""
    first, count = pieces[0], len(pieces)
    lost = replace(first, q="", k="", chain=(), problem=CHUNKS_PROBLEM.format(count=count))
    if problem := next((piece.problem for piece in pieces if piece.problem), ""):
        return replace(lost, problem=f"its attention ran in {count} pieces, one of which is lost: {problem}")
    alike = {(len(piece.chain), piece.after, piece.over) for piece in pieces}
    q, k = [get(piece.q) for piece in pieces], [get(piece.k) for piece in pieces]
    if not kind or len(alike) > 1 or min(q[0].dim(), k[0].dim()) < 4:
        return lost
    same = all(keys.shape == k[0].shape and torch.equal(keys, k[0]) for keys in k[1:])
    axis = {"queries": -2, "heads": -3, "batch and heads": -3, "batch": 0}[kind]
    try:
        links = [_link([piece.chain[i] for piece in pieces], axis, q, get) for i in range(len(first.chain))]
        queries = torch.cat(q, axis)
        keys = k[0] if kind == "queries" and same else torch.cat(k if kind == "queries" else _alike(q, k), axis)
        if kind == "queries" and not same:  # stretches that see only themselves
            if any(name not in ("mul", "div", "causal") for name, _ in links):
                return lost
            links.append(("pieces", tuple(size for piece in pieces for size in (piece.queries, piece.keys))))
    except (RuntimeError, ValueError):
        return lost
    if kind == "batch and heads" and queries.shape[:-3].numel() == 1 and queries.shape[-3] % batch == 0:
        count = queries.shape[-3]
        queries, keys = _split_batch(queries, count, batch), _split_batch(keys, count, batch)
        links = [
            (
                name,
                tuple(
                    _split_batch(argument, count, batch) if isinstance(argument, torch.Tensor) else argument
                    for argument in arguments
                ),
            )
            for name, arguments in links
        ]
    chain = tuple(chains.link(*link, queries.shape[-2], keys.shape[-2]) for link in links)
    return replace(
        first,
        heads=queries.shape[-3],
        queries=queries.shape[-2],
        keys=keys.shape[-2],
        q=chains.keep(queries, "q"),
        k=chains.keep(keys, "k"),
        chain=chain,
        mask=chains.mask_kind(chain),
    )


def _split_batch(tensor: torch.Tensor, count: int, batch: int) -> torch.Tensor:
    """Return heads that are folded into the batch, `[1, B·h, …]`, as `[B, h, …]`."""
    if tensor.dim() < 3 or tensor.shape[-3] != count:
        return tensor
    return tensor.reshape(batch, count // batch, *tensor.shape[-2:])


def _alike(q: list[torch.Tensor], k: list[torch.Tensor]) -> list[torch.Tensor]:
    """Repeat keys until they have as many heads as the queries."""
    return [
        keys.repeat_interleave(queries.shape[-3] // keys.shape[-3], dim=-3) for queries, keys in zip(q, k, strict=True)
    ]


def _link(links: list[tuple[str, tuple]], axis: int, q: list[torch.Tensor], get) -> tuple[str, tuple]:
    """Merge the same link of all pieces, their tensors concatenated; raise ValueError if they differ in more than
    these."""
    name, arguments = links[0]
    if any(link[0] != name or len(link[1]) != len(arguments) for link in links):
        raise ValueError(name)
    joined = []
    for position, value in enumerate(arguments):
        values = [link[1][position] for link in links]
        if isinstance(value, str) and value != SCORES and len(set(values)) > 1 and name != "heads":
            tensors = [get(entry) for entry in values]
            if any(tensor is None or tensor.dim() < -axis for tensor in tensors):
                raise ValueError(name)
            if all(torch.equal(tensors[0], tensor) for tensor in tensors[1:]) and tensors[0].shape[axis] == 1:
                value = values[0]
            else:
                sizes = [queries.shape[axis] for queries in q]
                shapes = [list(tensor.shape) for tensor in tensors]
                for shape, size in zip(shapes, sizes, strict=True):
                    shape[axis] = size
                wide = [tensor.expand(shape) for tensor, shape in zip(tensors, shapes, strict=True)]
                value = torch.cat(wide, axis)
        elif any(entry != value for entry in values):
            raise ValueError(name)
        joined.append(value)
    return name, tuple(joined)
