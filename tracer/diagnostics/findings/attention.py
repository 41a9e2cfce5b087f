"""Rules on attention: its masks and its weights."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import isclose, prod, sqrt
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.attention.masks import hidden_rows, open_cells
from tracer.capture.calls import Call, Ref
from tracer.capture.score_path import MASKED_SCORE
from tracer.diagnostics.findings.dataflow_walks import AxisSum, AxisWalk, path_back
from tracer.diagnostics.findings.run_view import Finding, Rule
from tracer.graph.attention_sites import AttentionSite, find_attention_sites
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import IndexMapCache
from tracer.ops import ATTENTION, LINEAR, MATMULS, NORMS, PROJECTIONS, SOFTMAXES, base
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


MASK_RULES = (
    Rule("mask empty row", find_empty_rows, "mask"),
    Rule("mask reversed", find_reversed, "mask"),
    Rule("mask corner", find_corners, "mask"),
    Rule("padding attended", find_padding, "mask"),
    Rule("padding mask reversed", lambda run: (), "mask"),
)


# Attention weights: the axis that they sum to 1 over, the scale of their scores, and masks that come too late.

FACTOR_TOLERANCE = 1e-3
"""Largest relative difference of a factor from the one that it is taken for."""
LEAK_THRESHOLD = 1e-6
"""Weight from which on a key that should be hidden was seen."""
AROUND = 24
"""Calls that a scale is looked for in, before queries and keys are multiplied."""


def find_axes(run: RunView) -> Iterator[Finding]:
    """Yield each softmax whose result is then summed over another axis than the one over which it adds up to 1."""
    graph = run.graph
    if graph is None:
        return
    walk = AxisWalk(graph)
    for index in graph.computing_calls():
        call = graph.calls[index]
        axis = call.arguments.get("dim") if base(call.name) in SOFTMAXES else None
        if not isinstance(axis, int) or not call.outputs[0].shape:
            continue
        weights = call.outputs[0]
        axis %= len(weights.shape)
        if weights.shape[axis] == 1:
            continue
        sums = [end for end in walk.sums(weights.key, axis) if not _is_renormalised(graph, end)]
        if not sums or any(end.axis == end.softmax_axis for end in sums):
            continue
        end = sums[0]
        ops = (*range(call.first, call.last), *range(graph.calls[end.call].first, graph.calls[end.call].last))
        over = _axis_text(run, weights, axis)
        summed = _axis_text(run, end.operand, end.axis)
        message = (
            f"The softmax adds up to 1 over axis {axis} ({over}), and the result is then summed over another axis"
            f" ({summed}).{_measured_sums(run, end)}"
        )
        fix = "Take the softmax over the axis that is summed over next: `dim=-1` for weights of shape [queries, keys]."
        yield Finding("softmax axis", run.step(ops[0]), ops, message, fix)


def _is_renormalised(graph: Graph, end: AxisSum) -> bool:
    """Return whether weights are divided by their own sum on the way, as in slot attention (Locatello et al. 2020)."""
    for index in end.between:
        call = graph.calls[index]
        if base(call.name) != "div":
            continue
        for ref in graph.inputs[index][1:]:
            key = ref.key
            for _ in range(4):  # a small number may be added to the sum
                producer = graph.producing_call(graph.root(key))
                if producer is None:
                    break
                if base(producer.name) in ("sum", "norm", "linalg_vector_norm", "amax"):
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


def find_scales(run: RunView) -> Iterator[Finding]:
    r"""Yield attentions whose scores are not divided by the root of the width of a head.

    The factor is collected from the product back to the projections of queries and keys, and forward to the softmax.
    One that is none of the known mistakes is the model's own choice (Vaswani et al. 2017, section 3.2.1).
    """
    graph = run.graph
    if graph is None:
        return
    for site in find_attention_sites(graph):
        if site.linear:
            continue
        factor, width = _factor(graph, site), graph.shape(site.q)[-1]
        if factor is None or width < 2:
            continue
        shape = graph.shape(site.q)
        heads = shape[-3] if len(shape) == 4 else 1
        wrong = _wrong_scale(factor, width, heads, graph.shape(site.k)[-1 if site.fused else -2])
        if wrong is None:
            continue
        call = graph.calls[site.call]
        yield Finding(
            "scores scale",
            run.step(call.last - 1),
            tuple(range(call.first, call.last)),
            f"{wrong} The factor between the projections of queries and keys and the softmax is {factor:.6g}, and"
            f" 1/√d_k is {1 / sqrt(width):.6g} for heads of width {width}.",
            f"Multiply the scores by {'`q.size(-1) ** -0.5`'}, the width of one head, once.",
        )


def _wrong_scale(factor: float, width: int, heads: int, keys: int) -> str | None:
    """Describe a factor other than 1/√d_k; None for the right one, and for one that is no known mistake."""

    def alike(value: float) -> bool:
        return isclose(factor, value, rel_tol=FACTOR_TOLERANCE)

    if alike(width**-0.5):
        return None
    if alike(1):
        return "The scores are not scaled, so the softmax saturates as heads get wider."
    if alike(width**0.5):
        return "The scores are multiplied by √d_k where they are to be divided by it."
    if heads > 1 and alike((heads * width) ** -0.5):
        return "The scores are divided by √D, the root of the width of all heads, instead of that of one head."
    if alike(1 / width):
        return "The scores are divided by d_k itself: they are scaled twice, or the root is missing."
    return None


def _factor(graph: Graph, site: AttentionSite) -> float | None:
    """Return the constant factor of scores over the product of projected queries and keys; None if there is none, such
    as with learned scales, norms, and queries that no projection made."""
    factors = [_before(graph, site.q), _before(graph, site.k)]
    call = graph.calls[site.call]
    if base(call.name) == ATTENTION:
        scale = call.arguments.get("scale")
        factors.append(scale if isinstance(scale, (int, float)) else graph.shape(site.q)[-1] ** -0.5)
    else:
        alpha = call.arguments.get("alpha", 1)
        factors.append(alpha if isinstance(alpha, (int, float)) else None)
        product = call.outputs[0].key
        softmax = graph.calls[graph.producer[site.weights or ""]]
        scores = next(iter(softmax.arguments.values())).key
        path = path_back(graph, scores, product)
        for index in path if path is not None else [-1]:
            factors.append(_constant(graph, index) if index >= 0 else None)
    result = 1.0
    for factor in factors:
        if factor is None:
            return None
        result *= factor
    return result


def _constant(graph: Graph, index: int) -> float | None:
    """Return the factor that a call multiplies scores by: 1 for layouts and what is added; None for anything else."""
    call = graph.calls[index]
    name = base(call.name)
    if graph.kind[index] in ("layout", "same") or name in ("add", "sub", "masked_fill", "where", "clamp", "dropout"):
        return 1.0
    if name in ("mul", "div"):
        number = _number(graph, call.arguments.get("other"))
        if number is None and isinstance(call.arguments.get("self"), Ref):
            number = _number(graph, call.arguments["self"]) if name == "mul" else None
        if not number:
            return None
        return number if name == "mul" else 1 / number
    return None


def _number(graph: Graph, value) -> float | None:
    """Return a Python number; a tensor of one cell that the run computed has no known value."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _before(graph: Graph, key: str) -> float | None:
    """Return the constant factor between a projection and this operand of the scores; None if something else than
    constants, layouts and rotations stands between, or no projection comes before."""
    factor = 1.0
    for _ in range(AROUND):
        index = graph.producer.get(key)
        if index is None:
            return None
        call = graph.calls[index]
        name = base(call.name)
        if name in PROJECTIONS or name in LINEAR:
            data = [ref for ref in graph.inputs[index] if graph.depends[ref.key] == "x"]
            return factor if len(data) == 1 else None
        if name in NORMS or name in SOFTMAXES or name in MATMULS:
            return None
        if name == "cat" or (name == "add" and _rotation(graph, index)):
            key = _data(graph, index)
            continue
        if name == "add":  # a bias; anything that depends on the input is another stream
            data = [ref for ref in graph.inputs[index] if graph.depends[ref.key] == "x"]
            if len(data) != 1:
                return None
            key = data[0].key
            continue
        if name == "mul" and _turns(graph, call):
            key = _data(graph, index)
            continue
        constant = _constant(graph, index)
        if constant is None:
            return None
        factor *= constant
        key = _data(graph, index)
    return None


def _rotation(graph: Graph, index: int) -> bool:
    """Return whether a sum is that of a rotation: two products of the same data with constants (Su et al. 2021)."""
    calls = [graph.producing_call(graph.root(ref.key)) for ref in graph.inputs[index]]
    return len(calls) == 2 and all(call is not None and base(call.name) == "mul" for call in calls)


def _turns(graph: Graph, call: Call) -> bool:
    """Return whether a product is one with a table of constants, as of cosines, that varies by position."""
    tensors = [value for value in call.arguments.values() if isinstance(value, Ref)]
    constants = [ref for ref in tensors if graph.depends[ref.key] != "p" and not _floats_of_data(graph, ref.key)]
    return len(tensors) == 2 and len(constants) == 1 and max(constants[0].shape, default=1) > 1


def _floats_of_data(graph: Graph, key: str) -> bool:
    """Return whether a value depends on floats that were inputs of the run, or on a table that ids index."""
    if graph.depends[key] != "x":
        return False
    index = graph.producer.get(key)
    visited: set[int] = set()
    waiting = [index]
    while waiting:
        index = waiting.pop()
        if index is None or index in visited:
            continue
        visited.add(index)
        if base(graph.calls[index].name) in PROJECTIONS or base(graph.calls[index].name) == "embedding":
            return True
        waiting += [graph.producer.get(ref.key) for ref in graph.inputs[index]]
    return False


def _data(graph: Graph, index: int) -> str:
    """Return the operand of a call that depends on the input, the first of several."""
    refs = graph.inputs[index]
    return next((ref.key for ref in refs if graph.depends[ref.key] == "x"), refs[0].key)


def find_inner(run: RunView) -> Iterator[Finding]:
    """Yield attentions whose queries and keys are the heads of one token, and not its tokens: queries `[B, T, h, d_k]`
    were not transposed."""
    graph = run.graph
    if graph is None:
        return
    maps = IndexMapCache()
    for site in find_attention_sites(graph):
        call, shape = graph.calls[site.call], graph.shape(site.q)
        if site.linear or base(call.name) == "einsum":  # which names its axes
            continue
        if not all(_within_token(graph, maps, key) for key in (site.q, site.k)):
            continue
        yield Finding(
            "attention over heads",
            run.step(call.last - 1),
            tuple(range(call.first, call.last)),
            f"Queries and keys are `{list(shape)}`, and both of the last two axes are parts of one token's projection:"
            f" each token attends to its own {shape[-2]} heads, and to no other token.",
            "Exchange the axes of tokens and heads before: `.transpose(1, 2)` of `[B, T, h, d_k]`.",
        )


def _within_token(graph: Graph, maps: IndexMapCache, key: str) -> bool:
    """Return whether the last two axes of queries or keys are both parts of the last axis of a projection of several
    tokens."""
    root, shape = graph.root(key), graph.shape(key)
    before = graph.shape(root)
    call = graph.producing_call(root)
    if call is None or base(call.name) not in LINEAR or len(before) < 3 or len(shape) < 4 or before[-2] < 2:
        return False
    chain = [(graph.calls[graph.producer[at]], _position(graph, at)) for at in graph.chain(key, root)]
    places = maps.of(before, chain)
    if shape[-2] < 2:
        return False
    rank = len(shape)
    return all(int(abs(along - along[0]).max()) < before[-1] for along in map(places.along, (rank - 2, rank - 1)))


def _position(graph: Graph, key: str) -> int:
    return [ref.key for ref in graph.calls[graph.producer[key]].outputs].index(key)


def find_late_masks(run: RunView) -> Iterator[Finding]:
    """Yield masks that are applied to weights after the softmax, where hidden keys already had a weight."""
    graph = run.graph
    if graph is None:
        return
    walk = AxisWalk(graph)
    for site in find_attention_sites(graph):
        if site.weights is None or site.linear:
            continue
        rank = len(graph.shape(site.weights))
        for end in walk.sums(site.weights, rank - 1):
            for position, index in enumerate(end.between):
                if _is_renormalised(graph, end._replace(between=end.between[position:])):
                    continue
                yield from _late_mask(run, site, index)


def _late_mask(run: RunView, site: AttentionSite, index: int) -> Iterator[Finding]:
    graph = run.graph
    assert graph is not None and site.weights is not None
    call = graph.calls[index]
    name = base(call.name)
    if name not in ("add", "sub", "mul", "masked_fill", "where") or not call.outputs:
        return
    weights, out = run.value(site.weights), run.value(call.outputs[0].key)
    if weights is None or out is None or out.shape != weights.shape or not _is_mask(run, index, weights.shape):
        return
    hidden = (out <= MASKED_SCORE) if name in ("add", "sub") else ((out == 0) | (out <= MASKED_SCORE))
    leaks = weights[hidden & (weights > LEAK_THRESHOLD)]
    if not len(leaks):
        return
    sums = out.double().masked_fill(out.isinf(), 0).sum(dim=-1)
    low = out.double().min()
    softmax = graph.calls[graph.producer[site.weights]]
    text = (
        f"their lowest number is then {low:.3g}"
        if low < 0
        else f"their rows then add up to between {sums.min():.3g} and {sums.max():.3g}"
    )
    yield Finding(
        "mask after softmax",
        run.step(call.last - 1),
        (*range(softmax.first, softmax.last), *range(call.first, call.last)),
        f"A mask is applied to the attention weights after the softmax, when {len(leaks)} keys that it hides had a"
        f" weight already, the largest {leaks.max():.3g}; {text}.",
        "Apply the mask to the scores, before the softmax: `scores.masked_fill(hidden, float('-inf'))`.",
    )


def _is_mask(run: RunView, index: int, shape: torch.Size) -> bool:
    """Return whether a call takes a mask besides weights: one number for each query and key, with only two distinct
    values."""
    graph = run.graph
    assert graph is not None
    for ref in graph.inputs[index]:
        mask = run.value(ref.key)
        if mask is None or mask.dim() < 2 or mask.shape[-1] != shape[-1] or mask.shape == ():
            continue
        if mask.shape[-2] not in (1, shape[-2]) or graph.depends[ref.key] == "p":
            continue
        kinds = mask.unique()
        if len(kinds) == 2 and (mask.dtype == torch.bool or bool(kinds[0] <= MASKED_SCORE) or kinds.tolist() == [0, 1]):
            return True
    return False


WEIGHT_RULES = (
    Rule("attention over heads", find_inner, "notes"),
    Rule("softmax axis", find_axes, "notes"),
    Rule("scores scale", find_scales, "notes"),
    Rule("mask after softmax", find_late_masks, "mask", runs_again=True),
)

RULES = (*MASK_RULES, *WEIGHT_RULES)
