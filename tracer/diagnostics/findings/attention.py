"""Rules on attention: its masks and its weights."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, prod, sqrt
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.attention.masks import hidden_rows, open_cells
from tracer.capture.calls import Call, Ref
from tracer.capture.score_path import MASKED_SCORE
from tracer.diagnostics.findings.run_view import AxisSum, AxisWalk, Evidence, path_back, rule
from tracer.graph.attention_sites import AttentionSite
from tracer.graph.dataflow import Graph
from tracer.ops import ATTENTION, LINEAR, MATMULS, NORMS, PROJECTIONS, SOFTMAXES
from tracer.record import AttentionRecord

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


# Masks as they ran: rows that see nothing, reversed directions, corners, and padding.

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


def off_diagonal(run: RunView) -> int | None:
    """Return how many of the next tokens each token sees where a mask is a causal one with diagonals too many; None
    where no mask is."""
    for mask in masks(run):
        queries, keys = mask.open.shape[-2:]
        if mask.record.mask == "none" or queries != keys or queries < MIN_TOKENS:
            continue
        shown = mask.open.any(dim=0)
        for diagonals in range(1, queries - 1):
            if torch.equal(shown, torch.ones_like(shown).tril(diagonals)):
                return diagonals
    return None


def is_later(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is a mask of later tokens: of two numbers, with one on each side of its diagonal."""
    if tensor.is_meta or tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < MIN_TOKENS:
        return False
    if tensor.is_complex() or tensor.numel() > MAX_MASK_CELLS:
        return False
    cells = tensor.reshape(-1, *tensor.shape[-2:])[0]
    high = cells == cells[-1, 0]
    return not bool(cells[0, -1] == cells[-1, 0]) and any(
        torch.equal(high, torch.ones_like(high).tril(diagonal)) for diagonal in (0, -1)
    )


@rule(
    "mask empty row",
    masks,
    "Query {query} of sample {sample} may look at no key; there are {count} such rows of {rows}. {then}",
    "Let each query see at least itself, or leave rows of padding out of what is read later.",
    lesson="mask",
    explained_by=("padding attended", "padding mask reversed"),
)
def find_empty_row(run: RunView, mask: MaskCells) -> Evidence | None:
    """Find a query that may look at nothing, except one that is padding itself."""
    if mask.record.mask == "none":
        return None
    empty = ~mask.open.any(dim=-1)
    if mask.record.queries == mask.record.keys:
        empty &= mask.open.any(dim=-2)  # whom nobody sees is padding, and what it sees does not matter
    if not bool(empty.any()) or _future(mask) or not _is_read(run, mask.record, empty):
        return None
    sample, query = (int(i) for i in empty.nonzero()[0])
    then = (
        "Its scores are all lowered alike, so that it attends to every key, the hidden ones too."
        if bool(mask.finite[sample, query])
        else "Of such a row, the softmax is 0/0: fused attention gives zeros, written out it gives NaN."
    )
    count, rows = int(empty.sum()), empty.numel()
    return Evidence(mask.record.op, query=query, sample=sample, count=count, rows=rows, then=then)


@rule(
    "mask reversed",
    masks,
    "Every query sees all {count} later keys of the {tokens} tokens and none of the earlier ones: the mask hides the"
    " past and shows the future.{opposite}",
    "Say which way round the mask is: `scaled_dot_product_attention` reads True as visible, `nn.MultiheadAttention` and"
    " `masked_fill` read True as hidden. Invert it: `~mask`.",
    lesson="mask",
    explained_by=("softmax axis",),
)
def find_reversed(run: RunView, mask: MaskCells) -> Evidence | None:
    """Find a mask that hides the past and shows the future: a causal mask read the other way."""
    if not (count := _future(mask)):
        return None
    diagonal = bool(mask.open.all(dim=0).diagonal().any())
    opposite = "" if diagonal else " It is the exact opposite of a causal mask, cell by cell."
    return Evidence(mask.record.op, count=count, tokens=mask.record.queries, opposite=opposite)


def _is_read(run: RunView, record: AttentionRecord, rows: torch.Tensor) -> bool:
    """Return whether an output depends on these queries of an attention, `[B, S_q]`; True where that is not known."""
    site = run.site_of(record) if run.repeatable else None
    if site is None:
        return True
    shape = run.graph.shape(site.result)
    if len(shape) < 3 or shape[-2] != record.queries or prod(shape[:-2]) % len(rows):
        return True
    cells = rows[:, None, :, None].expand(-1, prod(shape[:-2]) // len(rows), -1, shape[-1])
    return run.moves_with(site.result, cells.reshape(shape))


def _future(mask: MaskCells) -> int:
    """Return the number of later keys that a mask shows if it hides all earlier ones; 0 if it does not."""
    cells = mask.open.all(dim=0)
    queries, keys = cells.shape
    if queries != keys or queries < MIN_TOKENS:
        return 0
    past, future = cells.tril(-1), cells.triu(1)
    count = queries * (queries - 1) // 2
    return count if not bool(past.any()) and int(future.sum()) >= count else 0


@rule(
    "mask corner",
    masks,
    "{queries} queries meet {keys} keys, and the causal mask is aligned at the first of both: the last query sees"
    " {seen} of {keys} keys. With a cache, queries are the last tokens, and the last query sees every key.",
    "Align it at the last query and key: `torch.ones(L, S, dtype=torch.bool).tril(diagonal=S - L)`, or"
    " `torch.nn.attention.bias.causal_lower_right(L, S)`.",
    lesson="mask",
)
def find_corner(run: RunView, mask: MaskCells) -> Evidence | None:
    """Find a causal mask of fewer queries than keys that is aligned at the first query and the first key."""
    queries, keys = mask.record.queries, mask.record.keys
    if not queries < keys or keys < MIN_TOKENS:
        return None
    if not bool((mask.open == torch.ones(queries, keys, dtype=torch.bool).tril()).all()):
        return None
    site = run.site_of(mask.record)
    if site is not None and run.reads_state([site.k]):
        return None  # places of a cache that are not written yet
    return Evidence(mask.record.op, queries=queries, keys=keys, seen=int(mask.open[0, -1].sum()))


class Padding(NamedTuple):
    """Tokens that are padding, bool `[B, T]`, how that is known, the name of the input that they are in, and those of
    that whole input: the model may read fewer of its tokens. `table` says that the table of ids knows it."""

    cells: torch.Tensor
    evidence: str
    name: str
    whole: torch.Tensor
    table: bool = False

    def place(self) -> str:
        """Return how padding is known and in how many samples it is, the beginning of a sentence."""
        count = int(self.cells.any(-1).sum())
        return f"Padding is {self.evidence} at the edge of {count} sample{'s' if count > 1 else ''}"


def paddings(run: RunView) -> Iterator[Padding]:
    """Yield the padding of a run, by its tokens: ids of the row of a table that stands for padding, ids that a mask of
    attention is made from, zeros that fill up some samples at the end, or what a mask of tokens leaves out."""
    lookups = (call for call in run.graph.calls if call.op.name == "embedding")
    tables = {run.graph.root(call.arguments["indices"].key) for call in lookups}
    for call in run.graph.calls:
        padding = None
        if call.op.name == "embedding":
            number = call.arguments.get("padding_idx", -1)
            padding = _id_padding(run, call.arguments["indices"].key, number, "the padding of its table")
            padding = None if padding is None else padding._replace(table=True)
        elif call.op.name in ID_TESTS and _is_mask_of_attention(run, call.outputs[0].key):
            ids, number = call.arguments.get("self"), call.arguments.get("other")
            if isinstance(ids, Ref) and run.graph.root(ids.key) in tables:
                padding = _id_padding(run, ids.key, number, "which a mask of attention is made from")
        if padding is not None and _fills(padding.cells):
            yield padding
    for name, tensor in run.inputs.items():
        if tensor.is_meta or tensor.dim() < 2 or f"input {name}" in tables:
            continue
        if tensor.is_floating_point() and tensor.dim() == 3:
            cells, evidence = edges((tensor == 0).all(dim=-1)), f"rows of zeros in `{name}`"
        elif (left_out := _left_out(run, name, tensor)) is not None:
            cells, evidence = left_out, f"what `{name}` leaves out"
        else:
            continue
        if _fills(cells):
            yield Padding(cells, evidence, name, cells)


ID_TESTS = ("eq", "ne")
"""Comparisons that tell the id of padding from the others."""


def _id_padding(run: RunView, key: str, number: object, role: str) -> Padding | None:
    """Return the cells of ids, at their edges, that hold the number of padding; None where no number stands for it."""
    root, places = run.places(key)
    name = root.removeprefix("input ")
    ids = run.inputs.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0 or ids is None or ids.is_meta:
        return None
    if ids.dim() != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        return None
    read = ids.flatten()[torch.from_numpy(places.table())] if len(places.shape) == 2 else ids
    return Padding(edges(read == number), f"id {number} of `{name}`, {role},", name, edges(ids == number))


def _is_mask_of_attention(run: RunView, key: str) -> bool:
    """Return whether a value reaches an attention, and neither its queries nor its keys."""
    after = run.graph.descendants(key)
    sites = [site for site in run.sites if site.result in after]
    return bool(sites) and not {sites[0].q, sites[0].k} & after


def _fills(cells: torch.Tensor) -> bool:
    """Return whether padding fills up some samples by more than one token, and none of them wholly."""
    counts = cells.sum(dim=-1)
    return bool(counts.any()) and bool((counts < cells.shape[-1]).all()) and int(counts.max()) > 1


def edges(cells: torch.Tensor) -> torch.Tensor:
    """Return the cells of a run of True at the beginning or at the end of each row."""
    after = cells.flip(-1).long().cumprod(-1).flip(-1)
    return (after + cells.long().cumprod(-1)) > 0


def _left_out(run: RunView, name: str, tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tokens that a mask leaves out; None for an input that is no mask for attention: such a one reaches
    attention, and neither queries nor keys."""
    cells = left_out_cells(tensor)
    return cells if cells is not None and _is_mask_of_attention(run, f"input {name}") else None


def left_out_cells(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the tokens that a tensor `[B, T]` of 0 and 1 leaves out at one end of some samples; None for any other."""
    if tensor.is_meta or tensor.dim() != 2 or tensor.is_complex() or not tensor.numel():
        return None
    if not bool(((tensor == 0) | (tensor == 1)).all()):
        return None
    for kept in (tensor[:, 0], tensor[:, -1]):
        cells = tensor != kept[0]
        if not bool((kept != kept[0]).any()) and _fills(cells) and torch.equal(edges(cells), cells):
            return cells
    return None


class LearnedTokens(NamedTuple):
    """A call that puts learned tokens among those of the input: the axis, the positions, the length of the result, and
    the number of learned tensors."""

    call: Call
    axis: int
    places: set[int]
    length: int
    tensors: int


def learned_tokens(graph: Graph, call: Call) -> LearnedTokens | None:
    """Return the learned tokens of a call that concatenates them and those of the input; None for any other call."""
    if call.op.name not in ("cat", "concat", "concatenate"):
        return None
    operands, axis = call.arguments.get("tensors"), call.arguments.get("dim", 0)
    if not isinstance(operands, tuple) or not isinstance(axis, int) or len(call.outputs[0].shape) != 3:
        return None
    axis %= 3
    if axis == 2 or not any(graph.depends[ref.key] == "x" and ref.shape[axis] > 1 for ref in operands):
        return None
    places, start = set(), 0
    learned = [graph.depends[ref.key] == "p" for ref in operands]
    for ref, own in zip(operands, learned, strict=True):
        if own:
            places.update(range(start, start + ref.shape[axis]))
        start += ref.shape[axis]
    return LearnedTokens(call, axis, places, start, sum(learned)) if places else None


class PaddedMask(NamedTuple):
    """A mask over tokens with padding: the pairs that it opens to tokens that are none, those of them whose key is
    padding, and whether these tokens see no other token besides. `padding` says how it is known, `cells` are the tokens
    of the whole input that are padding, `input` is its name, and `queries` are the subject of a sentence."""

    record: AttentionRecord
    padding: str
    pairs: int
    wrong: int
    alone: bool
    cells: torch.Tensor
    input: str
    queries: str


def padded_masks(run: RunView) -> Iterator[PaddedMask]:
    """Yield the masks over tokens with padding, where all that shows padding agrees."""
    known = tuple(paddings(run))
    for mask in masks(run) if known else ():
        record = mask.record
        known_keys = [*known, *_beside_learned_tokens(run, record, known)]
        fitting = [p for p in known_keys if p.cells.shape == (mask.open.shape[0], record.keys)]
        if record.queries != record.keys:
            alike = bool((mask.open == mask.open[:, :1]).all())  # else a mask may deal tokens out to queries
            fitting = [p for p in fitting if alike and _is_length_of_keys(run, record, p)]
        if not fitting or any(not torch.equal(fitting[0].cells, p.cells) for p in fitting):
            continue
        cells = fitting[0].cells
        pairs, itself = mask.open, torch.eye(record.queries, record.keys, dtype=torch.bool)
        if record.queries == record.keys:
            pairs, queries = pairs & ~cells[:, :, None], "Tokens that are none"
        else:
            itself, queries = torch.zeros_like(itself), "Queries"
        wrong, right = pairs & cells[:, None], pairs & ~cells[:, None]
        alone = not bool((right & ~itself).any())
        yield PaddedMask(
            record, f"{fitting[0].place()}.", int(pairs.sum()), int(wrong.sum()), alone, fitting[0].whole,
            fitting[0].name, queries,
        )  # fmt: skip


def _beside_learned_tokens(run: RunView, record: AttentionRecord, known: tuple[Padding, ...]) -> Iterator[Padding]:
    """Yield the padding of keys among which learned tokens, such as a class token, were put: these are no padding."""
    site = run.site_of(record)
    above = set() if site is None else {*run.graph.ancestors([site.k])}
    for call in run.graph.calls:
        tokens = learned_tokens(run.graph, call) if call.outputs and call.outputs[0].key in above else None
        if tokens is None or tokens.length != record.keys:
            continue
        places = [place for place in range(tokens.length) if place not in tokens.places]
        for padding in known:
            if padding.cells.shape[1] == len(places):
                cells = torch.zeros(len(padding.cells), tokens.length, dtype=torch.bool)
                cells[:, places] = padding.cells
                yield padding._replace(cells=cells)


def _is_length_of_keys(run: RunView, record: AttentionRecord, padding: Padding) -> bool:
    """Return whether the keys of an attention are as long as the input that has padding, in symbols."""
    site, ids = run.site_of(record), run.input_records.get(padding.name)
    keys = None if site is None else run.record(site.k)
    if keys is None or ids is None or not keys.symbolic or not ids.symbolic or "?" in ids.symbolic[1:2]:
        return False
    return len(keys.symbolic) > 1 and ids.symbolic[1] in keys.symbolic[-2:]


@rule(
    "padding attended",
    padded_masks,
    "{padding} {queries} attend to it, in {wrong} of {pairs} pairs that are open to them.",
    "Hide padding as keys: `key_padding_mask=ids == pad` of `nn.MultiheadAttention`, or `attn_mask=(ids != pad)[:,"
    " None, None, :]` of `scaled_dot_product_attention`. Beside a class token in front, the mask begins with a place"
    " for it: `F.pad(keep, (1, 0), value=True)`.",
    lesson="mask",
    explained_by=("mask without effect", "mask after softmax", "axis order", "result dropped"),
    names_axes=True,
)
def find_attended_padding(run: RunView, mask: PaddedMask) -> Evidence | None:
    """Find tokens other than padding that see padding."""
    return Evidence(mask.record.op, **mask._asdict()) if mask.wrong and not mask.alone else None


@rule(
    "padding mask reversed",
    padded_masks,
    "{padding} {queries} see padding alone ({wrong} pairs) and no other token: the padding mask is read the other way.",
    "Invert the mask: `key_padding_mask` of `nn.MultiheadAttention` is True where a key is padding.",
    lesson="mask",
    names_axes=True,
)
def find_reversed_padding(run: RunView, mask: PaddedMask) -> Evidence | None:
    """Find tokens other than padding that see padding alone."""
    return Evidence(mask.record.op, **mask._asdict()) if mask.wrong and mask.alone else None


# Attention weights: the axis that they sum to 1 over, the scale of their scores, and masks that come too late.

FACTOR_TOLERANCE = 1e-3
"""Largest relative difference of a factor from the one that it is taken for."""
LEAK_THRESHOLD = 1e-6
"""Weight from which on a key that should be hidden was seen."""
AROUND = 24
"""Calls that a scale is looked for in, before queries and keys are multiplied."""


UNSCALED = (
    "A learned bias of distances is added to the scores, as in T5, which leaves them unscaled and draws the first"
    " weights of its queries smaller instead (Raffel et al. 2020)."
)


class SoftmaxSum(NamedTuple):
    """A softmax, the axis over which it adds up to 1, and the sums that its result goes into as it is."""

    call: Call
    axis: int
    sums: list[AxisSum]


def softmax_sums(run: RunView) -> Iterator[SoftmaxSum]:
    """Yield each softmax over an axis of more than one number."""
    walk = AxisWalk(run)
    for index in run.graph.computing_calls():
        call = run.graph.calls[index]
        axis = call.arguments.get("dim") if "softmax" in call.op.traits else None
        if isinstance(axis, int) and call.outputs[0].shape and call.outputs[0].shape[axis] != 1:
            axis %= len(call.outputs[0].shape)
            ends = walk.sums(call.outputs[0].key, axis)
            yield SoftmaxSum(call, axis, [end for end in ends if not _is_renormalised(run.graph, end)])


@rule(
    "softmax axis",
    softmax_sums,
    "The softmax adds up to 1 over axis {over}, and the result is then summed over another axis ({summed}).{measured}",
    "Take the softmax over the axis that is summed over next: `dim=-1` for weights of shape [queries, keys].",
    lesson="notes",
)
def find_wrong_axis(run: RunView, softmax: SoftmaxSum) -> Evidence | None:
    """Find a softmax whose result is then summed over another axis than the one over which it adds up to 1."""
    call, axis, sums = softmax
    if not sums or any(end.axis == end.softmax_axis for end in sums):
        return None
    return Evidence(
        call,
        run.graph.calls[sums[0].call],
        at=call.first,
        over=f"{axis} ({_axis_text(run, call.outputs[0], axis)})",
        summed=_axis_text(run, sums[0].operand, sums[0].axis),
        measured=_measured_sums(run, sums[0]),
    )


def _is_renormalised(graph: Graph, end: AxisSum) -> bool:
    """Return whether weights are divided by their own sum on the way, as in slot attention (Locatello et al. 2020)."""
    for index in end.between:
        call = graph.calls[index]
        if call.op.name != "div":
            continue
        for ref in graph.inputs[index][1:]:
            key = ref.key
            for _ in range(4):  # a small number may be added to the sum
                producer = graph.producing_call(graph.root(key))
                if producer is None:
                    break
                if producer.op.name in ("sum", "norm", "linalg_vector_norm", "amax"):
                    return True
                key = graph.inputs[graph.producer[graph.root(key)]][0].key
    return False


def _measured_sums(run: RunView, end: AxisSum) -> str:
    """Return the range of the sums of weights along the summed axis."""
    weights = run.value(end.operand.key) if run.repeatable else None
    if weights is None or end.axis >= weights.dim():
        return ""
    sums = weights.double().sum(dim=end.axis)
    return f" In this run, the weights of one sum add up to between {sums.min():.3g} and {sums.max():.3g}."


def _axis_text(run: RunView, ref: Ref, axis: int) -> str:
    """Return the symbolic length of an axis of a value, or its number."""
    op, _, output = ref.key.partition(".")
    if op.isdecimal() and output.isdecimal():
        outputs = run.trace.ops[int(op)].outputs
        if int(output) < len(outputs) and outputs[int(output)].symbolic and len(outputs[int(output)].shape) > axis:
            return f"axis {axis}, {outputs[int(output)].symbolic[axis]}"  # type: ignore[index]
    return f"axis {axis}, {ref.shape[axis]}"


@rule(
    "scores scale",
    lambda run: run.sites,
    "{wrong} The factor between the projections of queries and keys and the softmax is {factor:.6g}, and 1/√d_k is"
    " {right:.6g} for heads of width {width}.",
    "Multiply the scores by `q.size(-1) ** -0.5`, the width of one head, once.",
    lesson="notes",
)
def find_wrong_scale(run: RunView, site: AttentionSite) -> Evidence | None:
    """Find scores that are not divided by the root of the width of a head.

    The factor is collected from the product back to the projections of queries and keys, and forward to the softmax.
    One that is none of the known mistakes is the model's own choice (Vaswani et al. 2017, section 3.2.1).
    """
    graph, shape = run.graph, run.graph.shape(site.q)
    factor, width = _factor(graph, site), shape[-1]
    if factor is None or width < 2:
        return None
    wrong = _wrong_scale(factor, width, shape[-3] if len(shape) == 4 else 1)
    if wrong is None:
        return None
    intent = UNSCALED if isclose(factor, 1) and any(_has_distance_bias(run, each) for each in run.sites) else ""
    return Evidence(
        graph.calls[site.call], intent=intent, wrong=wrong, factor=factor, right=1 / sqrt(width), width=width
    )


def _has_distance_bias(run: RunView, site: AttentionSite) -> bool:
    """Return whether rows of a learned table that no input chooses are added to the scores, as T5 does."""
    graph, product = run.graph, run.graph.calls[site.call]
    mask = product.arguments.get("attn_mask" if site.fused else "self")
    added = [mask.key] if isinstance(mask, Ref) and (site.fused or product.op.name == "baddbmm") else []
    if site.weights is not None:
        scores = graph.inputs[graph.producer[site.weights]][0].key
        path = path_back(graph, scores, product.outputs[0].key) or []
        added += [ref.key for index in path if graph.name(index) == "add" for ref in graph.inputs[index]]
    above = graph.ancestors(added, lambda key: not graph.call_of(key).op.is_heavy)
    calls = [call for key in above if (call := graph.producing_call(key)) is not None]
    return any(call.op.name == "embedding" and graph.depends[call.arguments["indices"].key] == "c" for call in calls)


def _wrong_scale(factor: float, width: int, heads: int) -> str | None:
    """Describe a factor other than 1/√d_k; None for the right one, and for one that is no known mistake."""

    def alike(value: float) -> bool:
        return isclose(factor, value, rel_tol=FACTOR_TOLERANCE)

    if alike(width**-0.5):
        return None
    if alike(1):
        return "The scores are not scaled, so the softmax saturates as heads get wider."
    if alike(width**0.5):
        return "The scores are multiplied by √d_k where they are to be divided by it."
    of_all_heads, twice = heads > 1 and alike((heads * width) ** -0.5), alike(1 / width)
    if of_all_heads and twice:
        return (
            "The scores are divided by d_k itself, which is √D here: they are scaled twice, or by the root of the width"
            " of all heads."
        )
    if of_all_heads:
        return "The scores are divided by √D, the root of the width of all heads, instead of that of one head."
    if twice:
        return "The scores are divided by d_k itself: they are scaled twice, or the root is missing."
    return None


def _factor(graph: Graph, site: AttentionSite) -> float | None:
    """Return the constant factor of scores over the product of projected queries and keys; None if there is none, such
    as with learned scales, norms, and queries that no projection made."""
    factors = [_before(graph, site.q), _before(graph, site.k)]
    call = graph.calls[site.call]
    if call.op.name == ATTENTION:
        scale = call.arguments.get("scale")
        factors.append(scale if isinstance(scale, (int, float)) else graph.shape(site.q)[-1] ** -0.5)
    else:
        alpha = call.arguments.get("alpha", 1)
        factors.append(alpha if isinstance(alpha, (int, float)) else None)
        product = call.outputs[0].key
        softmax = graph.calls[graph.producer[site.weights or ""]]
        scores = next(iter(softmax.arguments.values())).key
        path = path_back(graph, scores, product)
        factors += [None] if path is None else [_constant(graph, index) for index in path]
    known = [factor for factor in factors if factor is not None]
    return prod(known, start=1.0) if len(known) == len(factors) else None


def _constant(graph: Graph, index: int) -> float | None:
    """Return the factor that a call multiplies scores by: 1 for layouts and what is added; None for anything else."""
    call = graph.calls[index]
    name = call.op.name
    if graph.kind[index] in ("layout", "same") or name in ("add", "sub", "masked_fill", "where", "clamp", "dropout"):
        return 1.0
    if name in ("mul", "div"):
        number = call.arguments.get("other")  # a tensor of one cell that the run computed has no known value
        if not isinstance(number, (int, float)) or isinstance(number, bool) or not number:
            return None
        return float(number) if name == "mul" else 1 / number
    return None


def _before(graph: Graph, key: str) -> float | None:
    """Return the constant factor between a projection and this operand of the scores; None if something else than
    constants, layouts and rotations stands between, or no projection comes before."""
    factor = 1.0
    for _ in range(AROUND):
        index = graph.producer.get(key)
        if index is None:
            return None
        call = graph.calls[index]
        name = call.op.name
        if name in PROJECTIONS or name in LINEAR:
            return factor if len(graph.data(index)) == 1 else None
        if name in NORMS or name in SOFTMAXES or name in MATMULS:
            return None
        constant: float | None = 1.0
        if name == "add" and not _rotation(graph, index):  # a bias; what depends on the input is another stream
            constant = 1.0 if len(graph.data(index)) == 1 else None
        elif name not in ("cat", "add") and not (name == "mul" and _turns(graph, call)):
            constant = _constant(graph, index)
        if constant is None:
            return None
        factor *= constant
        key = [*graph.data(index), *graph.inputs[index]][0].key
    return None


def _rotation(graph: Graph, index: int) -> bool:
    """Return whether a sum is that of a rotation: two products of the same data with constants (Su et al. 2021)."""
    calls = [graph.producing_call(graph.root(ref.key)) for ref in graph.inputs[index]]
    return len(calls) == 2 and all(call is not None and call.op.name == "mul" for call in calls)


def _turns(graph: Graph, call: Call) -> bool:
    """Return whether a product is one with a table of constants, as of cosines, that varies by position."""
    tensors = [value for value in call.arguments.values() if isinstance(value, Ref)]
    constants = [ref for ref in tensors if graph.depends[ref.key] != "p" and not _floats_of_data(graph, ref.key)]
    return len(tensors) == 2 and len(constants) == 1 and max(constants[0].shape, default=1) > 1


def _floats_of_data(graph: Graph, key: str) -> bool:
    """Return whether a value depends on floats that were inputs of the run, or on a table that ids index."""
    if graph.depends[key] != "x":
        return False
    calls = filter(None, map(graph.producing_call, graph.ancestors([key])))
    return any("projection" in call.op.traits or call.op.name == "embedding" for call in calls)


@rule(
    "attention over heads",
    lambda run: run.sites,
    "Queries and keys are `{shape}`, and both of the last two axes are parts of one token's projection: each token"
    " attends to its own {heads} heads, and to no other token.",
    "Exchange the axes of tokens and heads before: `.transpose(1, 2)` of `[B, T, h, d_k]`.",
    lesson="notes",
)
def find_inner(run: RunView, site: AttentionSite) -> Evidence | None:
    """Find queries and keys that are the heads of one token, and not its tokens: queries `[B, T, h, d_k]` were not
    transposed."""
    call, shape = run.graph.calls[site.call], run.graph.shape(site.q)
    if call.op.name == "einsum" or not all(_within_token(run, key) for key in (site.q, site.k)):
        return None  # an einsum names its axes
    return Evidence(call, shape=list(shape), heads=shape[-2])


def _within_token(run: RunView, key: str) -> bool:
    """Return whether the last two axes of queries or keys are both parts of the last axis of a projection of several
    tokens."""
    graph, root, shape = run.graph, run.graph.root(key), run.graph.shape(key)
    before = graph.shape(root)
    call = graph.producing_call(root)
    if call is None or "linear" not in call.op.traits or len(before) < 3 or len(shape) < 4 or before[-2] < 2:
        return False
    if shape[-2] < 2:
        return False
    places, rank = run.places(key)[1], len(shape)
    return all(int(abs(along - along[0]).max()) < before[-1] for along in map(places.along, (rank - 2, rank - 1)))


class WeightedCall(NamedTuple):
    """A call between the weights of an attention and the sum that they are for: its site, and its number."""

    site: AttentionSite
    number: int


def weighted_calls(run: RunView) -> Iterator[WeightedCall]:
    """Yield the calls on attention weights after which these are not divided by their sum."""
    walk = AxisWalk(run)
    for site in run.sites:
        for end in walk.sums(site.weights, len(run.graph.shape(site.weights)) - 1) if site.weights else ():
            for position, index in enumerate(end.between):
                if not _is_renormalised(run.graph, end._replace(between=end.between[position:])):
                    yield WeightedCall(site, index)


@rule(
    "mask after softmax",
    weighted_calls,
    "A mask is applied to the attention weights after the softmax, when {count} keys that it hides had a weight"
    " already, the largest {largest:.3g}; {then}.",
    "Apply the mask to the scores, before the softmax: `scores.masked_fill(hidden, float('-inf'))`.",
    lesson="mask",
    runs_again=True,
)
def find_late_mask(run: RunView, weighted: WeightedCall) -> Evidence | None:
    """Find a mask that is applied to weights after the softmax, where hidden keys already had a weight."""
    call, key = run.graph.calls[weighted.number], weighted.site.weights or ""
    name = call.op.name
    if name not in ("add", "sub", "mul", "masked_fill", "where") or not call.outputs:
        return None
    weights, out = run.value(key), run.value(call.outputs[0].key)
    if (
        weights is None
        or out is None
        or out.shape != weights.shape
        or not _is_mask(run, weighted.number, weights.shape)
    ):
        return None
    hidden = (out <= MASKED_SCORE) if name in ("add", "sub") else ((out == 0) | (out <= MASKED_SCORE))
    leaks = weights[hidden & (weights > LEAK_THRESHOLD)]
    if not len(leaks):
        return None
    sums, low = out.double().masked_fill(out.isinf(), 0).sum(dim=-1), out.double().min()
    then = (
        f"their lowest number is then {low:.3g}"
        if low < 0
        else f"their rows then add up to between {sums.min():.3g} and {sums.max():.3g}"
    )
    return Evidence(run.graph.calls[run.graph.producer[key]], call, count=len(leaks), largest=leaks.max(), then=then)


def _is_mask(run: RunView, index: int, shape: torch.Size) -> bool:
    """Return whether a call takes a mask besides weights: one number for each query and key, with only two distinct
    values."""
    graph = run.graph
    for ref in graph.inputs[index]:
        mask = run.value(ref.key)
        if mask is None or mask.dim() < 2 or mask.shape[-1] != shape[-1] or mask.shape == ():
            continue
        if mask.shape[-2] not in (1, shape[-2]) or run.is_learned(ref.key):
            continue
        kinds = mask.unique()
        if len(kinds) == 2 and (mask.dtype == torch.bool or bool(kinds[0] <= MASKED_SCORE) or kinds.tolist() == [0, 1]):
            return True
    return False
