"""Moves that repair a mask: handed as one of another kind, without the keys of a cache, or inverted by arithmetic."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from tracer.diagnostics.failures.repair_calls import (
    Target,
    are_flags,
    functional_name,
    is_table,
    names_of,
    operand_move,
)
from tracer.diagnostics.failures.trials import Candidate, Clash, Scene, argument, move

mask_move = partial(move, edits="call")
PADDING = "key_padding_mask"
"""How the parameters of PyTorch's layers for padded keys end."""


@mask_move("mask", "refusal", cost=0.6)
def hand_the_mask_by_another_name(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a layer's call with its mask as the padding mask, of samples by keys, or with that as the other."""
    called = scene.site.modules[scene.site.own :]
    node = scene.site.node
    node = node.value if isinstance(node, (ast.Assign, ast.Return, ast.Expr)) else node
    if not called or not isinstance(node, ast.Call) or any(isinstance(a, ast.Starred) for a in node.args):
        return
    names = list(inspect.signature(called[0].forward).parameters)
    written = [*zip(names, node.args, strict=False), *((k.arg, k.value) for k in node.keywords if k.arg)]
    for place, (name, _) in enumerate(written):
        if name is None or not name.endswith("mask"):
            continue
        free = [other for other in names if other.endswith("mask") and other not in dict(written)]
        wanted = [other for other in free if other.endswith(PADDING) != name.endswith(PADDING)]
        for number, new in enumerate(sorted(wanted, key=lambda new: -_common(name, new))):
            texts = [scene.site.text_of(value) for _, value in written]
            arguments = texts[:place] if place < len(node.args) else texts[: len(node.args)]
            later = range(len(arguments), len(written))
            arguments += [f"{new if i == place else written[i][0]}={texts[i]}" for i in later]
            text = f"{scene.site.text_of(node.func)}({', '.join(arguments)})"
            yield Candidate(f"hand the mask as `{new}`", number / 20, (scene.edit(node, text),))


@operand_move("mask", "refusal", cost=0.6)
def fold_the_heads_of_a_mask(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield the mask of a layer for each head of each sample, the heads of one sample after the other, as the layer
    takes it: from a mask of each sample, of each head, or of both."""
    call, mask = scene.call, target.value
    if call is None or call.name != "multi_head_attention_forward" or not isinstance(mask, Tensor):
        return
    q, given, heads = argument(call, 0, "query"), argument(call, 16, "attn_mask"), argument(call, 4, "num_heads")
    if not isinstance(given, Tensor) or given.shape != mask.shape or q.dim() != 3 or mask.dim() not in (3, 4):
        return
    batch, atom = q.shape[1], target.atom
    times = _heads_text(scene, heads)
    if mask.dim() == 3 and mask.shape[0] == batch:
        yield f"{atom}.repeat_interleave({times}, dim=0)", 0.0
    if mask.dim() == 3 and mask.shape[0] == heads:
        others = [other for other in target.others if batch in other.value.shape and scene.maker(other.value) != ""]
        texts = [f"{other.atom}.size({list(other.value.shape).index(batch)})" for other in others]
        yield from ((f"{atom}.repeat({text}, 1, 1)", 0.1) for text in texts[:1])
    if mask.dim() == 4 and mask.shape[:2] == (batch, heads):
        yield f"{atom}.flatten(0, 1)", 0.0
    if mask.dim() == 4 and mask.shape[:2] == (batch, 1):
        yield f"{atom}.expand(-1, {times}, -1, -1).flatten(0, 1)", 0.0


def _heads_text(scene: Scene, heads: int) -> str:
    """Return the number of heads of the layer that the failed line calls, as code."""
    called, node = scene.site.modules[scene.site.own :], scene.node
    known = [name for name in names_of(scene, heads) if "head" in name]
    if known:
        return known[0]
    if called and hasattr(called[0], "num_heads") and isinstance(node, ast.Call):
        return f"{scene.site.text_of(node.func)}.num_heads"
    return str(heads)


def _common(name: str, other: str) -> int:
    """Return how many letters two names begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other)))


@operand_move("broadcast", "mask", "attention", cost=0.7)
def open_the_keys_before(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a square mask with open columns before it, for keys of a cache, which all queries may see."""
    functional, mask = functional_name(scene), target.value
    if not functional or not isinstance(mask, Tensor) or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2]:
        return
    if mask.dtype != torch.bool and not is_table(scene, mask) and not isinstance(scene.maker(mask), str):
        return  # numbers of tokens that were computed, such as those of a layer
    call = scene.call
    fused = call is not None and call.name == "scaled_dot_product_attention"
    queries = argument(call, 0, "query") if call is not None and fused else None
    for other in target.others:
        axis = -2 if fused else -1  # keys, of which scores have a column each
        if other.value.dim() < 2 or not other.value.shape[axis] > mask.shape[-1] > 1:
            continue
        rows = next((o.atom for o in target.others if o.value is queries), "") if fused else other.atom
        if rows and (fused or other.value.shape[-2] == mask.shape[-1]):
            opens = ", value=True" if mask.dtype == torch.bool and _opens(scene) else ""
            before = f"{other.atom}.size({axis}) - {rows}.size(-2)"
            yield f"{functional}.pad({target.operand.text}, ({before}, 0){opens})", 0.0


def _opens(scene: Scene) -> bool:
    """Return whether a flag of a mask opens a cell: it closes one where `masked_fill` writes."""
    name = scene.call.name if scene.call is not None else ""
    return name not in ("masked_fill", "masked_fill_")


@move("dtype", "refusal", cost=0.4, edits="call")
def invert_flags(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield `~mask` for `1 - mask` and `-mask` of flags, and `mask == 0` for `~mask` of whole numbers 0 and 1."""
    site = scene.site
    kinds: tuple[type[ast.BinOp | ast.UnaryOp], ...] = ast.BinOp, ast.UnaryOp
    for node in site.nodes_of_line(*kinds):
        value = node.right if isinstance(node, ast.BinOp) else node.operand
        operand = site.expression(value)
        if not isinstance(operand.value, Tensor):
            continue
        one = isinstance(node, ast.BinOp) and getattr(node.left, "value", None) == 1 and isinstance(node.op, ast.Sub)
        minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        if (one or minus) and operand.value.dtype == torch.bool:
            yield Candidate(f"invert the mask: `~{operand.atom}`", 0.0, (scene.edit(node, f"~{operand.atom}"),))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert) and are_flags(operand.value):
            text = f"({operand.atom} == 0)"
            yield Candidate(f"close where the mask is 0: `{text[1:-1]}`", 0.0, (scene.edit(node, text),))
