"""Rules on what a batch mixes, and on positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tracer.capture import Recording
from tracer.capture.calls import Call, Ref
from tracer.diagnostics.findings.attention import LearnedTokens, is_causal, learned_tokens
from tracer.diagnostics.findings.run_view import Evidence, live_calls, rule
from tracer.diagnostics.findings.second_runs import (
    Difference,
    output_difference,
    relative_difference,
)
from tracer.graph.dataflow import Graph
from tracer.ops import NORMS, SOFTMAXES, base
from tracer.record import Op, TensorRecord
from tracer.shapes.variation import other_values
from tracer.symbols.notation import parse
from tracer.utils.errors import reason

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


# Samples of a batch that depend on each other, or on their position in it: verified by second runs.

BATCH = "B"
"""The symbol of the axis along which samples lie."""
BATCH_FIRST = (
    "Check which axis is the batch: `nn.MultiheadAttention`, `nn.Transformer…` and recurrent layers read `[T, B, D]`"
    " unless they are built with `batch_first=True`."
)
ALONG_BATCH = (
    "Add what depends on the position along the axis of tokens, not along that of the batch: a table for `[T, B, D]`"
    " does not fit `[B, T, D]`."
)
PUT_BACK = (
    "What was sorted over all samples has to be put back in its order, `y[torch.argsort(order)]`, before it is added or"
    " viewed as `[B, T, D]`."
)
ORDERS = frozenset(("sort", "argsort", "topk", "index", "gather"))
STATISTICS = frozenset(("mean", "var", "std", "var_mean", "std_mean", "sum", "amax", "linalg_vector_norm"))
RECURRENT = ("rnn", "lstm", "gru")


class BatchPair(NamedTuple):
    """Two runs of `samples` samples: the first sample is the same in both, or they have the samples in `reverse`."""

    first: Recording
    second: Recording
    samples: int
    reverse: bool


@rule(
    "samples mixed",
    lambda run: _two_batches(run),
    "The output of the first sample moves by {share:.2g} of its largest value when only the other {others}: a second"
    " run had the same first sample, and others beside it.{first}",
    "{repair}",
    runs_again=True,
    explained_by=("axis order", "broadcast to pairs"),
    names_axes=True,
)
def find_mixed(run: RunView, pair: BatchPair) -> Evidence | None:
    """Find the op from which on one sample's numbers change when only the other samples change."""
    difference = _compare(run, pair)
    if difference is None or (run.trains and difference.op and "batch_norm" in difference.op.op):
        return None
    others = "samples change" if pair.samples > 2 else "sample changes"
    return _evidence(difference, others=others, repair=_repair(run, difference.op))


@rule(
    "samples told apart",
    lambda run: () if run.draws or _remembers(run) else _two_batches(run, reverse=True),
    "A second run had the same samples in the reverse order, and its outputs are not those of the first in the reverse"
    " order: they differ by {share:.2g} of the largest value.{first}",
    "{repair}",
    runs_again=True,
    explained_by=("axis order",),
    names_axes=True,
)
def find_unequal(run: RunView, pair: BatchPair) -> Evidence | None:
    """Find the op from which on a sample's numbers depend on its position in the batch, where samples are not mixed."""
    if any(find_mixed(run, other) for other in _two_batches(run)) or (difference := _compare(run, pair)) is None:
        return None
    recurrent = difference.op and any(name in difference.op.op for name in RECURRENT)
    return _evidence(difference, repair=BATCH_FIRST if recurrent else ALONG_BATCH)


def _remembers(run: RunView) -> bool:
    """Return whether an output depends on what earlier runs left, which may be of each sample its own."""
    return run.reads_state(ref.key for ref in run.graph.outputs)


def _evidence(difference: Difference, **values: Any) -> Evidence:
    op = difference.op
    first = f" It begins with the operation {op.op} in {op.module or 'the model itself'}." if op else ""
    return Evidence(*([op.index] if op else []), share=difference.share, first=first, **values)


def _repair(run: RunView, op: Op | None) -> str:
    """Return the repair that fits the first op whose result changes, and the ops that computed its operands."""
    makers = [run.trace.ops[t.maker] for t in op.inputs if isinstance(t.maker, int)] if op else []
    names = {base(near.op) for near in (*makers, *([op] if op else []))}
    if any("batch_norm" in name for name in names):
        return (
            "Use `nn.LayerNorm`, which norms each token alone, or call `.eval()`, so that running statistics are used."
        )
    if base(op.op if op else "") in ORDERS:
        return PUT_BACK
    if base(op.op if op else "") in SOFTMAXES:
        return "Take the softmax over the keys: `dim=-1`."
    if names & (NORMS | STATISTICS):
        return "Norm and average over the axes of one sample alone, such as `dim=-1`."
    return BATCH_FIRST


def _two_batches(run: RunView, reverse: bool = False) -> Iterator[BatchPair]:
    """Yield two runs of at least two samples that differ in all but the first, if there are samples.

    In `reverse`, both have the same samples, the second from last to first.
    """
    axes = _batch_axes(run)
    if not axes:
        return
    count = max(2, *(run.inputs[name].shape[axis] for name, axis in axes.items()))
    pairs = (_batches(run, axes, count, reverse, turned) for turned in (False, True))
    batches = next(filter(None, pairs), None)
    if batches is None:
        return
    try:
        first, second = (run.run(batch) for batch in batches)
    except Exception as error:  # of a stranger's model, on other numbers or another batch
        run.problems.append(f"It could not be run on another batch ({reason(error)}).")
        return
    yield BatchPair(first, second, count, reverse)


def _batches(
    run: RunView, axes: dict[str, int], count: int, reverse: bool, turned: bool
) -> list[dict[int, torch.Tensor]] | None:
    """Return the inputs of two runs, None where they are alike. With `turned`, integers that rise in equal steps are
    taken for ids, and not for positions."""
    batches: list[dict[int, torch.Tensor]] = [{}, {}]
    differ = False
    for name, axis in axes.items():
        tensor = run.inputs[name].detach()
        sample = tensor.narrow(axis, 0, 1)
        others = [_other(tensor, axis, count, seed) for seed in (1, 2)]
        if turned and not tensor.is_floating_point() and torch.equal(*others):
            others[1] = others[1].roll(1, -1)
        if reverse:
            both = [torch.cat([sample, others[0]], dim=axis)] * 2
            both[1] = both[1].flip(axis)
        else:
            both = [torch.cat([sample, rest], dim=axis) for rest in others]
        differ = differ or not torch.equal(*both)
        for batch, values in zip(batches, both, strict=True):
            batch[id(run.inputs[name])] = values
    return batches if differ else None


def _other(tensor: torch.Tensor, axis: int, count: int, seed: int) -> torch.Tensor:
    """Return the other samples of a batch, with other values in the range of all."""
    size = tensor.shape[axis]
    rest = tensor.index_select(axis, torch.arange(1, count, device=tensor.device) % size)
    return other_values(rest.contiguous(), torch.Generator().manual_seed(seed))


def _batch_axes(run: RunView) -> dict[str, int]:
    """Return the axis of the batch of each input that has one."""
    symbolic = {name: record.symbolic or () for name, record in run.input_records.items()}
    return {name: sizes.index(BATCH) for name, sizes in symbolic.items() if BATCH in sizes}


def _batch_axis(tensor: TensorRecord) -> int | None:
    """Return the axis of a tensor along which samples lie: B, or the first if it is a multiple of B; None for none, and
    for a tensor that compares all samples with all others, as contrastive models do."""
    if tensor.symbolic is None or tensor.symbolic.count(BATCH) > 1:
        return None
    if BATCH in tensor.symbolic:
        return tensor.symbolic.index(BATCH)
    if (
        tensor.symbolic
        and tensor.symbolic[0] != "?"
        and BATCH in map(str, parse(tensor.symbolic[0]).as_ordered_factors())
    ):
        return 0
    return None


def _compare(run: RunView, pair: BatchPair) -> Difference | None:
    """Return how far the outputs of two runs deviate from the prediction; None if they do not, or their batch is not
    known."""

    def deviation(record: TensorRecord, first: torch.Tensor, second: torch.Tensor) -> float:
        axis = _batch_axis(record)
        return 0.0 if axis is None else _difference(first, second, axis, pair)

    return output_difference(run, pair.first, pair.second, deviation)


def _difference(first: torch.Tensor, second: torch.Tensor, axis: int, pair: BatchPair) -> float:
    """Return how far two tensors differ where they should not, as a share of the largest value.

    Of an axis of samples and more, such as B·T, it is not known which of the two comes first: the smaller difference
    counts.
    """
    if first.shape != second.shape or axis >= first.dim():
        return 0.0
    size = first.shape[axis]
    if size == pair.samples:
        arranged = [(first, second)]
    elif size % pair.samples:
        return 0.0
    else:
        parts = [tensor.unflatten(axis, (pair.samples, -1)) for tensor in (first, second)]
        swapped_parts = [
            tensor.unflatten(axis, (-1, pair.samples)).transpose(axis, axis + 1) for tensor in (first, second)
        ]
        arranged = [(parts[0], parts[1]), (swapped_parts[0], swapped_parts[1])]
    return min(_share(first, second, axis, pair.reverse) for first, second in arranged)


def _share(first: torch.Tensor, second: torch.Tensor, axis: int, reverse: bool) -> float:
    if reverse:
        return relative_difference(first, second.flip(axis))
    return relative_difference(first.select(axis, 0), second.select(axis, 0))


# Positions of tokens: rows of a table that two tokens share, and a class token that is read at another position.

LOOKUPS = {"embedding": ("weight", "indices"), "index_select": ("self", "index"), "index": ("self", "indices")}
MIN_TOKENS = 3
"""Tokens from which on positions can be told from chance."""


class Lookup(NamedTuple):
    """A call that reads rows of a table, the table, and the numbers of the rows."""

    call: Call
    table: Ref
    places: Ref


def position_lookups(run: RunView) -> Iterator[Lookup]:
    """Yield the calls that read rows of a table at places of no input, and whose result is added to tokens."""
    for call in live_calls(run):
        table, places = (call.arguments.get(name) for name in LOOKUPS.get(call.op.name, ("", "")))
        places = places[0] if isinstance(places, tuple) and len(places) == 1 else places
        if not isinstance(table, Ref) or not isinstance(places, Ref) or run.graph.depends[places.key] != "c":
            continue
        if _added_to_tokens(run.graph, call.outputs[0]):
            yield Lookup(call, table, places)


@rule(
    "position shared",
    position_lookups,
    "{tokens} tokens read rows of a table of {size} positions, and from token {first} on they read rows that others"
    " have, too: row {row} is read {count} times. The table is too short for this text, and the code hides it.",
    "Refuse longer texts, or make the table as long as the longest: positions that two tokens share can't be told"
    " apart.",
    lesson="positions",
    runs_again=True,
)
def find_shared(run: RunView, lookup: Lookup) -> Evidence | None:
    """Find rows of a table that several tokens read, since positions were clamped or restart."""
    numbers = run.value(lookup.places.key)
    if numbers is None or numbers.is_floating_point() or numbers.dtype == torch.bool:
        return None
    rows = numbers.reshape(-1, numbers.shape[-1])[0].tolist() if numbers.dim() else []
    if len(rows) < MIN_TOKENS or rows[1] - rows[0] != 1 or len(set(rows)) == len(rows):
        return None
    row = max(set(rows), key=rows.count)
    first = next(place for place, row in enumerate(rows) if row in rows[:place])
    size, count = lookup.table.shape[0], rows.count(row)
    return Evidence(lookup.call, tokens=len(rows), size=size, first=first, row=row, count=count)


def _added_to_tokens(graph: Graph, rows: Ref) -> bool:
    """Return whether rows of a table are added to a stream of as many tokens."""
    waiting, visited = [rows.key], {rows.key}
    while waiting and len(visited) < 8:
        key = waiting.pop()
        for index in graph.live_users[key]:
            call = graph.calls[index]
            if call.op.name == "add":
                others = [ref for ref in graph.data(index) if ref.key != key]
                if any(len(ref.shape) > 2 and ref.shape[-2:] == rows.shape[-2:] for ref in others):
                    return True
            elif graph.kind[index] in ("layout", "same") and call.outputs and call.outputs[0].key not in visited:
                visited.add(call.outputs[0].key)
                waiting.append(call.outputs[0].key)
    return False


@rule(
    "class token",
    lambda run: filter(None, (learned_tokens(run.graph, call) for call in live_calls(run))),
    "A learned token is put at place {put} of {length} tokens, and one token is read at place {read}, where a token of"
    " the input lies. No answer is read at place {put}.",
    "Read the token where it was put: `[:, {index}]`.",
)
def find_class_token(run: RunView, tokens: LearnedTokens) -> Evidence | None:
    """Find an answer that is read from a single token other than the learned one that was inserted into the
    sequence."""
    if len(tokens.places) != tokens.tensors:
        return None
    graph, put = run.graph, min(tokens.places)
    after = graph.descendants(tokens.call.outputs[0].key)
    reads = [
        (position, read) for read in live_calls(run) if (position := _single_read(read, tokens, after)) is not None
    ]
    if not reads or any(position in tokens.places for position, _ in reads) or is_causal(run):
        return None
    position, read = reads[-1]
    if not graph.descendants(read.outputs[0].key) & graph.returned:
        return None
    index = put if put == 0 else -1
    return Evidence(tokens.call, read, put=put, length=tokens.length, read=position, index=index)


def _single_read(call: Call, tokens: LearnedTokens, after: set[str]) -> int | None:
    """Return the position from which a call takes one token out of a sequence; None for any other call."""
    name, source, axis, length = call.op.name, call.arguments.get("self"), tokens.axis, tokens.length
    if not isinstance(source, Ref) or source.key not in after or len(source.shape) != 3:
        return None
    dim = call.arguments.get("dim", 0)
    if source.shape[axis] != length or not isinstance(dim, int) or dim % 3 != axis:
        return None
    if name == "select":
        place = call.arguments.get("index")
        return place % length if isinstance(place, int) else None
    if name in ("slice", "narrow") and call.outputs[0].shape[axis] == 1 and length > 1:
        place = call.arguments.get("start") or 0
        return place % length if isinstance(place, int) else None
    return None
