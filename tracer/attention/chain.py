"""From queries and keys to attention weights, by the chain of ops that the model itself ran on the scores."""

from __future__ import annotations

import torch

from tracer.quoting import quoted

SCORES = "scores"
"""Stands in a link's arguments for the scores themselves."""

HIDDEN = -1e4
"""Scores and additive masks from here down hide their key: models write -∞, the lowest number of their dtype, or
-10,000."""

_RUN = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "masked_fill": torch.masked_fill,
    "where": torch.where,
    "tanh": torch.tanh,
    "clamp": torch.clamp,
}


def hides(link: tuple[str, tuple], get) -> bool:
    """Whether a link of the chain hides keys from queries; a bias that is added or taken off and hides none is no mask.

    `get(key)` gives the tensors that the link names.
    """
    name, arguments = link
    if name in ("causal", "masked_fill", "where"):
        return True
    found = [get(argument) for argument in arguments if isinstance(argument, str) and argument != SCORES]
    low = {"add": 1, "sub": -1}.get(name)
    return low is not None and any(tensor is not None and bool((low * tensor <= HIDDEN).any()) for tensor in found)


def picked(tensor: torch.Tensor, rows) -> torch.Tensor:
    """The chosen rows of `[..., S, d]`; those of a `range` cost no copy."""
    if isinstance(rows, range):
        rows = slice(rows.start, rows.stop, rows.step)
    return tensor[..., rows, :]


def scores_rows(q, k, chain, rows, get) -> torch.Tensor:
    """Scores as they enter the softmax, for chosen query rows: `[..., len(rows), S_k]`.

    `q` is `[..., S_q, d_k]`, `k` is `[..., S_k, d_k]` (fewer key heads than query heads are repeated, Ainslie et
    al. 2023); `get(key)` gives the tensors that the chain names. RuntimeError for a link that isn't known.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if q.dim() > 3 and k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scores = picked(q, rows) @ k.transpose(-2, -1)
    for name, arguments in chain:
        if name == "causal":
            later = torch.arange(keys, device=q.device) > torch.as_tensor(rows, device=q.device)[:, None]
            scores = scores.masked_fill(later, arguments[0])
            continue
        if name not in _RUN:
            raise RuntimeError(f"{quoted(name)} is not an op that can be replayed on scores")
        given = [_argument(a, scores, rows, queries, get) for a in arguments]
        shapes = [one.shape for one in given if isinstance(one, torch.Tensor)]
        if torch.broadcast_shapes(*shapes).numel() != scores.numel():  # before it takes memory
            raise RuntimeError(f"{quoted(name)} does not give one number for each score")
        scores = _RUN[name](*given)
    return scores


def softmax_rows(q, k, chain, rows, get) -> torch.Tensor:
    """Attention weights for chosen query rows: `[..., len(rows), S_k]`; a fully masked row is all zeros."""
    return scores_rows(q, k, chain, rows, get).softmax(dim=-1).nan_to_num(0.0)


def _argument(value, scores, rows, queries, get):
    if value == SCORES:
        return scores
    if not isinstance(value, str):
        return value
    tensor = get(value)
    if tensor is None:
        raise RuntimeError(f"the tensor {quoted(value)} was not kept")
    if tensor.dim() >= 2 and tensor.shape[-2] == queries > 1:
        tensor = picked(tensor, rows)
    if tensor.dim() == 3 and scores.dim() == 4 and tensor.shape[0] == scores.shape[0] * scores.shape[1]:
        tensor = tensor.reshape(*scores.shape[:2], *tensor.shape[1:])
    return tensor
