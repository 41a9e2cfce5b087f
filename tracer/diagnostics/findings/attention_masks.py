"""Masks as they ran: rows that see nothing, reversed directions, corners, and padding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.attention.masks.inspection import hidden_rows, open_cells
from tracer.diagnostics.findings.rule import Finding, Rule
from tracer.ops import base
from tracer.record import AttentionRecord

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView

MAX_MASK_CELLS = 2**24
"""Cells of one attention's mask that are read."""
MIN_TOKENS = 3
"""Tokens from which on a direction can be told from chance."""
FILLS = (0, 1)
"""Ids that fill up a short text where no table of embeddings says which does."""


TRUE = torch.tensor(True)


class MaskCells(NamedTuple):
    """Mask of one attention: which keys each query sees, `[B, S_q, S_k]`, in the first head, and the queries from
    which it hides everything by finite numbers, `[B, S_q]`."""

    record: AttentionRecord
    open: torch.Tensor
    finite: torch.Tensor


def masks(run: RunView) -> Iterator[MaskCells]:
    """Yield the masks of the attentions over tokens that can be read."""
    for record in run.trace.attentions:
        if record.problem or record.over != "tokens" or record.queries * record.keys * record.heads > MAX_MASK_CELLS:
            continue
        if record.q not in run.trace.values or record.k not in run.trace.values:
            continue
        if record.mask == "none":
            samples = max(1, prod(run.trace.values[record.q].shape[:-2]) // record.heads)
            cells = TRUE.expand(samples, record.queries, record.keys)
            yield MaskCells(record, cells, ~cells[..., 0])
            continue
        try:
            cells, rows = open_cells(run.trace, record)[:, 0], hidden_rows(run.trace, record)[:, 0]
        except (KeyError, RuntimeError, ValueError):  # a tensor of its chain was not kept
            continue
        yield MaskCells(record, cells & ~rows[..., None], rows & cells.any(dim=-1))


def is_causal(run: RunView) -> bool:
    """Return whether an attention of the run shows no query a later key, with padding hidden or not."""
    if any(record.mask == "causal" for record in run.trace.attentions):
        return True
    square_masks = (
        mask for mask in masks(run) if mask.record.mask != "none" and mask.record.queries == mask.record.keys
    )
    return any(mask.record.queries >= MIN_TOKENS and not bool(mask.open.triu(1).any()) for mask in square_masks)


def find_empty_rows(run: RunView) -> Iterator[Finding]:
    """Yield masks with a query that may look at nothing, except queries that are padding themselves."""
    for mask in masks(run):
        if mask.record.mask == "none":
            continue
        empty = ~mask.open.any(dim=-1)
        if mask.record.queries == mask.record.keys:
            empty &= mask.open.any(dim=-2)  # whom nobody sees is padding, and what it sees does not matter
        if not bool(empty.any()) or _reversed_mask_text(mask):
            continue
        sample, query = (int(i) for i in empty.nonzero()[0])
        alike = bool(mask.finite[sample, query])
        then = (
            "Its scores are all lowered alike, so that it attends to every key, the hidden ones too."
            if alike
            else "Of such a row, the softmax is 0/0: fused attention gives zeros, written out it gives NaN."
        )
        yield _finding(
            run,
            mask,
            "mask empty row",
            f"Query {query} of sample {sample} may look at no key; there are {int(empty.sum())} such rows of"
            f" {empty.numel()}. {then}",
            "Let each query see at least itself, or leave rows of padding out of what is read later.",
        )


def find_reversed(run: RunView) -> Iterator[Finding]:
    """Yield masks that hide the past and show the future: a causal mask read the other way."""
    for mask in masks(run):
        if text := _reversed_mask_text(mask):
            yield _finding(
                run,
                mask,
                "mask reversed",
                text,
                "Say which way round the mask is: `scaled_dot_product_attention` reads True as visible,"
                " `nn.MultiheadAttention` and `masked_fill` read True as hidden. Invert it: `~mask`.",
            )


def _reversed_mask_text(mask: MaskCells) -> str:
    """Describe how a mask shows later keys and hides earlier ones; "" if it does not."""
    cells = mask.open.all(dim=0)
    queries, keys = cells.shape
    if queries != keys or queries < MIN_TOKENS:
        return ""
    past, future = cells.tril(-1), cells.triu(1)
    count = queries * (queries - 1) // 2
    if bool(past.any()) or int(future.sum()) < count:
        return ""
    same = "" if bool(cells.diagonal().any()) else " It is the exact opposite of a causal mask, cell by cell."
    return (
        f"Every query sees all {count} later keys of the {queries} tokens and none of the earlier ones: the mask hides"
        f" the past and shows the future.{same}"
    )


def find_corners(run: RunView) -> Iterator[Finding]:
    """Yield causal masks of fewer queries than keys that are aligned at the first query and the first key."""
    for mask in masks(run):
        queries, keys = mask.record.queries, mask.record.keys
        if not queries < keys or keys < MIN_TOKENS:
            continue
        top = torch.ones(queries, keys, dtype=torch.bool).tril()
        if not bool((mask.open == top).all()):
            continue
        yield _finding(
            run,
            mask,
            "mask corner",
            f"{queries} queries meet {keys} keys, and the causal mask is aligned at the first of both: the last query"
            f" sees {int(mask.open[0, -1].sum())} of {keys} keys. With a cache, queries are the last tokens, and the"
            " last query sees every key.",
            "Align it at the last query and key: `torch.ones(L, S, dtype=torch.bool).tril(diagonal=S - L)`, or"
            " `torch.nn.attention.bias.causal_lower_right(L, S)`.",
        )


class Padding(NamedTuple):
    """Tokens that are padding, bool `[B, T]`, and how that is known."""

    cells: torch.Tensor
    evidence: str


class PaddingSearch:
    """Padding of a run, by its tokens: ids of the row of a table that stands for padding, or zeros that fill up
    some samples at the end."""

    def __init__(self, run: RunView):
        self._run = run

    @cached_property
    def paddings(self) -> tuple[Padding, ...]:
        return tuple(self._search())

    def _search(self) -> Iterator[Padding]:
        run, graph = self._run, self._run.graph
        if graph is None:
            return
        named = {}
        for call in graph.calls:
            if base(call.name) == "embedding" and call.arguments["indices"].key.startswith("input "):
                key, number = call.arguments["indices"].key, call.arguments.get("padding_idx", -1)
                named[key] = max(number, named.get(key, -1)) if isinstance(number, int) else -1
        for name, tensor in run.inputs.items():
            if tensor.is_meta or tensor.dim() < 2:
                continue
            number = named.get(f"input {name}")
            if number is not None and tensor.dim() == 2:
                if number < 0:
                    continue
                cells, evidence = _edge(tensor == number), f"id {number} of `{name}`, the padding of its table,"
            elif tensor.is_floating_point() and tensor.dim() == 3:
                cells, evidence = _edge((tensor == 0).all(dim=-1)), f"rows of zeros in `{name}`"
            else:
                continue
            counts = cells.sum(dim=-1)
            if bool(counts.any()) and bool((counts < cells.shape[-1]).all()) and int(counts.max()) > 1:
                yield Padding(cells, evidence)


def _edge(cells: torch.Tensor) -> torch.Tensor:
    """Return the cells of a run of True at the beginning or at the end of each row."""
    after = cells.flip(-1).long().cumprod(-1).flip(-1)
    return (after + cells.long().cumprod(-1)) > 0


def find_padding(run: RunView) -> Iterator[Finding]:
    """Yield attentions in which tokens other than padding see padding, or see it alone."""
    paddings = PaddingSearch(run).paddings
    for mask in masks(run) if paddings else ():
        if mask.record.queries != mask.record.keys:
            continue
        fitting = [p for p in paddings if p.cells.shape == (mask.open.shape[0], mask.record.keys)]
        if len({p.evidence for p in fitting}) != 1:
            continue
        padding = fitting[0]
        real = ~padding.cells
        pairs = mask.open & real[:, :, None]
        wrong, right = pairs & padding.cells[:, None], pairs & real[:, None]
        if not bool(wrong.any()):
            continue
        alone = not bool((right & ~torch.eye(mask.record.keys, dtype=torch.bool)).any())
        facts = f"Padding is {padding.evidence} at the edge of {int(padding.cells.any(-1).sum())} samples."
        if alone:
            yield _finding(
                run,
                mask,
                "padding mask reversed",
                f"{facts} Tokens that are none see padding alone ({int(wrong.sum())} pairs) and no other token: the"
                " padding mask is read the other way.",
                "Invert the mask: `key_padding_mask` of `nn.MultiheadAttention` is True where a key is padding.",
            )
        else:
            yield _finding(
                run,
                mask,
                "padding attended",
                f"{facts} Tokens that are none attend to it, in {int(wrong.sum())} of {int(pairs.sum())} pairs that are"
                " open to them.",
                "Hide padding as keys: `key_padding_mask=ids == pad` of `nn.MultiheadAttention`, or"
                " `attn_mask=(ids != pad)[:, None, None, :]` of `scaled_dot_product_attention`.",
            )


def _finding(run: RunView, mask: MaskCells, kind: str, message: str, fix: str) -> Finding:
    op = run.trace.ops[mask.record.op]
    return Finding(kind, run.step(op.index), (op.index,), message, fix)


RULES = (
    Rule("mask empty row", find_empty_rows, "mask"),
    Rule("mask reversed", find_reversed, "mask"),
    Rule("mask corner", find_corners, "mask"),
    Rule("padding attended", find_padding, "mask"),
    Rule("padding mask reversed", lambda run: (), "mask"),
)
