"""Attention whose queries, keys, values or mask do not fit."""

from __future__ import annotations

from torch import Tensor, nn

from tracer.capture.dispatch_modes import FailedCall
from tracer.diagnostics.failures.scene import Clash, Scene, argument


def scaled_dot_product(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that queries and keys are equally wide, keys and values equally long, and the mask is S_q × S_k."""
    q, k, v = argument(call, 0, "query"), argument(call, 1, "key"), argument(call, 2, "value")
    mask = argument(call, 3, "attn_mask")
    if not all(isinstance(x, Tensor) and x.dim() >= 2 for x in (q, k, v)):
        return None
    names = [scene.name(x, role) for x, role in ((q, "the queries"), (k, "the keys"), (v, "the values"))]
    if q.shape[-1] != k.shape[-1]:
        message = f"{names[0]} {scene.shape(q)} and {names[1]} {scene.shape(k)} differ in their width, the last axis."
        return Clash("attention", message, {id(q): (-1,), id(k): (-1,)}, (q, k, v))
    if k.shape[-2] != v.shape[-2]:
        message = (
            f"{names[1]} {scene.shape(k)} and {names[2]} {scene.shape(v)} differ in their length, the last axis "
            "but one."
        )
        return Clash("attention", message, {id(k): (-2,), id(v): (-2,)}, (q, k, v))
    if isinstance(mask, Tensor):
        return _mask(scene, mask, (*q.shape[:-1], k.shape[-2]), (q, k, mask), scene.size(q, -2), scene.size(k, -2))
    if len({x.shape[:-2] for x in (q, k, v)}) > 1:
        message = (
            "Batch and heads differ: "
            f"{', '.join(f'{name} is {scene.shape(x)}' for name, x in zip(names, (q, k, v), strict=True))}."
        )
        axes = {id(x): tuple(range(x.dim() - 2)) for x in (q, k, v)}
        return Clash("attention", message, axes, (q, k, v))
    return None


def _mask(
    scene: Scene, mask: Tensor, scores: tuple[int, ...], shown: tuple[Tensor, ...], rows: str, columns: str
) -> Clash | None:
    axes = [-a for a in range(1, mask.dim() + 1) if a > len(scores) or mask.shape[-a] not in (1, scores[-a])]
    name = scene.name(mask, "the mask")
    if not axes:
        return None
    message = (
        f"{name} {scene.shape(mask)} = {list(mask.shape)} has to fit the scores {list(scores)}, {rows} queries by "
        f"{columns} keys."
    )
    return Clash("mask", message, {id(mask): tuple(axes)}, shown)


def multi_head(scene: Scene, call: FailedCall) -> Clash | None:
    """Find a width of the queries that is not the layer's, or a mask with other axes than it takes."""
    q, k = argument(call, 0, "query"), argument(call, 1, "key")
    width, heads = argument(call, 3, "embed_dim_to_check"), argument(call, 4, "num_heads")
    if not (isinstance(q, Tensor) and isinstance(k, Tensor)) or q.dim() not in (2, 3):
        return None
    layer = f"`{scene.path}`" if scene.path else "the layer"
    if q.shape[-1] != width:
        message = (
            f"{layer} is {width} wide, and its queries {scene.name(q, '')} {scene.shape(q)} are {scene.size(q, -1)}."
        )
        return Clash("attention", message, {id(q): (-1,)}, (q, k))
    module = scene.module
    if isinstance(module, nn.MultiheadAttention) and k.shape[-1] != module.kdim:
        keys = scene.name(k, "the keys")
        message = f"{layer} takes keys of width {module.kdim}, and {keys} {scene.shape(k)} has {scene.size(k, -1)}."
        return Clash("attention", message, {id(k): (-1,)}, (q, k))
    order = "[T, B, D]" if isinstance(module, nn.MultiheadAttention) and not module.batch_first else "[B, T, D]"
    batch = q.shape[1] if q.dim() == 3 else 1
    padding, mask = call.kwargs.get("key_padding_mask"), call.kwargs.get("attn_mask")
    if isinstance(padding, Tensor):
        wanted = (batch, k.shape[0]) if q.dim() == 3 else (k.shape[0],)
        if tuple(padding.shape) != wanted:
            message = (
                f"{layer} takes {order}, batch_first={getattr(module, 'batch_first', False)}: with its keys, that is "
                f"{wanted[0]} samples of {k.shape[0]} tokens, and the padding mask is {list(padding.shape)}."
            )
            return Clash("mask", message, {id(padding): tuple(range(padding.dim()))}, (q, padding))
    if isinstance(mask, Tensor):
        rows, columns = q.shape[0], k.shape[0]
        allowed = {(rows, columns), (batch * int(heads or 1), rows, columns)}
        if tuple(mask.shape) not in allowed:
            message = (
                f"{layer} takes {order}, batch_first={getattr(module, 'batch_first', False)}: its scores are {rows} "
                f"queries by {columns} keys, and the mask is {scene.shape(mask)} = {list(mask.shape)}."
            )
            return Clash("mask", message, {id(mask): tuple(range(mask.dim()))}, (q, mask))
    return None


RULES = {"scaled_dot_product_attention": scaled_dot_product, "multi_head_attention_forward": multi_head}
