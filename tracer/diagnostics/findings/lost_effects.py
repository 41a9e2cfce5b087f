"""Rules on masks that hide nothing, and on results that a line computes and drops."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.capture.calls import Call, Ref
from tracer.capture.score_path import MASKED_SCORE
from tracer.diagnostics.findings.attention import LEAK_THRESHOLD, MIN_TOKENS
from tracer.diagnostics.findings.run_view import Evidence, path_back, rule
from tracer.graph.attention_sites import AttentionSite
from tracer.ops import ATTENTION
from tracer.utils import files

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


# Masks that hide nothing: what they leave out keeps a weight.

FILL = "Write -∞ in the place of hidden scores, before the softmax: `scores.masked_fill(hidden, float('-inf'))`."
FILL_FUSED = (
    "Give `attn_mask` as bool, True where a key is visible, or as numbers to be added: 0 where it is visible, -∞ where"
    " it is hidden."
)
KEEP_MASK = (
    "Combine masks as bool (`seen & near`), and write -∞ once, where the result is False: a product with 0 opens what"
    " was closed."
)
WRITE_INSIDE = "Write within the length of this text: the slice begins behind its end."
ADDED = "A mask of 0 and 1 is added to the scores, which raises visible keys by 1 and hides none."
MULTIPLIED = "The scores are multiplied by a mask of 0 and 1, and so a hidden key has the score 0, like any other."
LOWERED = "The mask lowers hidden scores by {low:.3g} alone."
FILLED = "Hidden scores become {low:.3g}, and visible ones lie between {least:.3g} and {most:.3g}."
NOTHING_WRITTEN = (
    "The line writes into 0 cells of a mask of {count}, and so the mask that is added to the scores is 0 everywhere: no"
    " key is hidden."
)
OPENED = (
    "{closed} cells of the mask are closed before this call and none after it, and that mask is added to the scores: no"
    " key is hidden."
)


class MaskUse(NamedTuple):
    """A call that applies a mask to scores: the mask, bool, True where it hides a key, and how it is meant to."""

    site: AttentionSite
    call: Call
    hidden: torch.Tensor
    how: str
    repair: str


class OpenMask(NamedTuple):
    """A call after which a mask on scores closes no cell, what it did, and the repair."""

    call: Call
    what: str
    repair: str


def ineffective_masks(run: RunView) -> Iterator[MaskUse | OpenMask]:
    """Yield the masks on scores of a run, and those that were opened on the way there."""
    for site in run.sites:
        for call, mask in _mask_operands(run, site):
            if (use := _read_use(run, site, call, mask)) is not None:
                yield use
            elif call.op.name in ("add", "sub", ATTENTION, "baddbmm"):
                yield from _open_masks(run, mask)


def _mask_operands(run: RunView, site: AttentionSite) -> Iterator[tuple[Call, Ref]]:
    """Yield the calls between queries, keys and softmax that take something besides the scores, with that operand."""
    graph, product = run.graph, run.graph.calls[site.call]
    if product.op.name == ATTENTION:
        if isinstance(mask := product.arguments.get("attn_mask"), Ref):
            yield product, mask
        return
    if product.op.name == "baddbmm" and isinstance(added := product.arguments.get("self"), Ref):
        yield product, added
    softmax = graph.producing_call(site.weights or "")
    if softmax is None:
        return
    path = path_back(graph, next(iter(softmax.arguments.values())).key, product.outputs[0].key) or []
    along = {product.outputs[0].key, *(ref.key for index in path for ref in graph.calls[index].outputs)}
    for index in path:
        for ref in graph.inputs[index]:
            if ref.key not in along:
                yield graph.calls[index], ref


def _read_use(run: RunView, site: AttentionSite, call: Call, operand: Ref) -> MaskUse | None:
    """Return what a call hides from queries with an operand; None for an operand that is no mask, or one that is
    learned."""
    name, values = call.op.name, run.value(operand.key)
    if values is None or values.is_complex() or run.is_learned(operand.key):
        return None
    if name == "masked_fill":
        return MaskUse(site, call, values.bool(), FILLED, FILL)
    if name == "where":
        taken = call.arguments.get("condition")
        if not isinstance(taken, Ref) or taken.key != operand.key:
            return None
        scores = call.arguments.get("self")
        on_path = isinstance(scores, Ref) and run.graph.shape(scores.key) == call.outputs[0].shape
        return MaskUse(site, call, ~values.bool() if on_path else values.bool(), FILLED, FILL)
    kinds = values.unique()
    if name not in ("add", "sub", "mul", ATTENTION, "baddbmm") or len(kinds) != 2 or values.shape[-1] == 1:
        return None
    if name == ATTENTION and values.dtype == torch.bool:
        return None
    low, high = (float(number) for number in kinds)
    if (low, high) == (0, 1) and name != "sub":
        repair = FILL_FUSED if name in (ATTENTION, "baddbmm") else FILL
        return MaskUse(site, call, values == 0, MULTIPLIED if name == "mul" else ADDED, repair)
    if name != "mul" and 0 in (low, high) and (high == 0) != (name == "sub"):
        return MaskUse(site, call, values != 0, LOWERED.format(low=max(-low, high)), FILL)
    return None


def _open_masks(run: RunView, mask: Ref) -> Iterator[OpenMask]:
    """Yield the call that opened all that a mask had closed, or that wrote its hidden cells nowhere."""
    graph, values = run.graph, run.value(mask.key)
    if values is None or not values.is_floating_point() or bool((values <= MASKED_SCORE).any()):
        return
    above = [*graph.ancestors([mask.key], lambda key: not graph.call_of(key).op.is_heavy)]
    for key in above:
        before = run.value(key)
        if (
            key == mask.key
            or before is None
            or not before.is_floating_point()
            or before.shape[-2:] != values.shape[-2:]
        ):
            continue
        closed = before <= MASKED_SCORE
        if not bool(closed.any()) or bool(closed.all()):
            continue
        for index in reversed(path_back(graph, mask.key, key) or []):
            after = run.value(graph.calls[index].outputs[0].key)
            if after is not None and not bool((after <= MASKED_SCORE).any()):
                yield OpenMask(graph.calls[index], OPENED.format(closed=int(closed.sum())), KEEP_MASK)
                return
    if bool(values.any()) or graph.depends[mask.key] != "c":
        return
    parts = [graph.calls[index].outputs[0].key for key in above for index in graph.users.get(key, ())]
    for part in parts:
        for index in graph.users.get(part, ()):
            if 0 in graph.shape(part) and _writes(graph.calls[index]):
                yield OpenMask(graph.calls[index], NOTHING_WRITTEN.format(count=values.numel()), WRITE_INSIDE)
                return


def _writes(call: Call) -> bool:
    """Return whether a call writes into its operand."""
    return call.name.split(".")[0].endswith("_")


@rule(
    "mask without effect",
    ineffective_masks,
    "{what}{leak}",
    "{repair}",
    lesson="mask",
    runs_again=True,
    explained_by=("softmax axis",),
)
def find_ineffective(run: RunView, use: MaskUse | OpenMask) -> Evidence | None:
    """Find a mask whose hidden keys keep a weight, next to keys that it shows."""
    if isinstance(use, OpenMask):
        return Evidence(use.call, what=use.what, leak="", repair=use.repair)
    weights = _weights(run, use.site)
    try:
        hidden = None if weights is None else use.hidden.expand(weights.shape)
    except RuntimeError:  # a mask of heads that are folded into the batch, or of other axes
        return None
    if weights is None or hidden is None or weights.shape[-1] < MIN_TOKENS:
        return None
    mixed = hidden & ~hidden.all(dim=-1, keepdim=True)
    leaking = weights[mixed & (weights > LEAK_THRESHOLD)]
    if not len(leaking):
        return None
    most, count = float(leaking.max()), int(mixed.sum())
    leak = f" In this run, {len(leaking)} of {count} hidden keys keep a weight, the largest {most:.3g}."
    return Evidence(use.call, what=_use_text(run, use), leak=leak, repair=use.repair)


def _weights(run: RunView, site: AttentionSite) -> torch.Tensor | None:
    """Return the weights of an attention, computed again where a fused call has none; None for shapes that differ."""
    if site.weights is not None:
        return run.value(site.weights)
    call = run.graph.calls[site.call]
    query, key = run.value(site.q), run.value(site.k)
    mask = run.value(call.arguments["attn_mask"].key) if isinstance(call.arguments.get("attn_mask"), Ref) else None
    if query is None or key is None or mask is None or query.shape[:-2] != key.shape[:-2]:
        return None
    scale = call.arguments.get("scale")
    scores = query @ key.mT * (scale if isinstance(scale, (int, float)) else query.shape[-1] ** -0.5)
    return (scores + mask).softmax(dim=-1)


def _use_text(run: RunView, use: MaskUse) -> str:
    """Return how a mask was applied, with the numbers of hidden and visible scores where it fills some in."""
    if use.how != FILLED:
        return use.how
    scores = run.value(use.call.outputs[0].key)
    if scores is None:
        return "Hidden scores are not low enough."
    hidden = use.hidden.expand(scores.shape)
    visible = scores[~hidden]
    return FILLED.format(low=float(scores[hidden].max()), least=float(visible.min()), most=float(visible.max()))


# Results that a line of code computes and drops.


class DroppedResult(NamedTuple):
    """A call whose result nothing reads, in a line of code that does nothing else."""

    call: Call
    name: str


def dropped_results(run: RunView) -> Iterator[DroppedResult]:
    """Yield the calls that depend on the input, whose result nothing reads, and that are a whole line of code."""
    graph = run.graph
    for call in graph.calls:
        results = [ref.key for ref in call.outputs]
        if not results or any(graph.users.get(key) or key in graph.returned for key in results):
            continue
        if call.name.split(".")[0] == "contiguous":  # a copy that changes no number
            continue
        if call.first >= len(run.trace.ops) or call.name == "overwrite" or graph.depends.get(results[0]) != "x":
            continue
        source = run.trace.ops[call.first].source
        name = _statement(source.text) if source else ""
        if not name:
            continue
        own = call.module.rpartition(".")[2]
        if name == own or (name.rstrip("_") == call.op.name and not _writes_outside(run, call)):
            yield DroppedResult(call, name)


def _statement(text: str) -> str:
    """Return the name of the method or module that a line of code calls, where it does nothing else; "" if it does."""
    try:
        body = files.parse(text).body
    except SyntaxError:
        return ""
    if len(body) != 1 or not isinstance(body[0], ast.Expr) or not isinstance(body[0].value, ast.Call):
        return ""
    function = body[0].value.func
    return function.attr if isinstance(function, ast.Attribute) else ""


def _writes_outside(run: RunView, call: Call) -> bool:
    """Return whether a call writes into a tensor that it did not get from another call."""
    if not _writes(call):
        return False
    target = next(iter(call.arguments.values()), None)
    return not isinstance(target, Ref) or run.graph.root(target.key) not in run.graph.producer


@rule(
    "result dropped",
    dropped_results,
    "The line computes {what} and drops it: no operation reads the result of `{name}`, and no output depends on it.",
    "{repair}",
)
def find_dropped(run: RunView, result: DroppedResult) -> Evidence:
    """Find a line whose only result is dropped, such as a call that returns a copy where it was meant to write."""
    call, name = result
    if name.endswith("_"):
        repair = f"`{name}` writes into a copy here: assign to the tensor itself, as in `x[mask] = value`."
    else:
        repair = f"Assign the result of `{name}(…)`: it changes nothing in place."
    shape = run.graph.shape(call.outputs[0].key)
    return Evidence(call, what=f"a tensor of shape {list(shape)}", name=name, repair=repair)
