"""Attention weights from queries and keys, by the chain of ops that the model itself ran on the scores."""

from __future__ import annotations

import torch

from tracer.utils.error_text import quote

SCORES = "scores"
"""Stands in a link's arguments for the scores themselves."""

MASKED_SCORE = -1e4
"""Scores and additive masks from here down hide their key: models write -∞, the lowest number of their dtype, or
-10,000."""
PENALTY = 16.0
"""A score from which so much is taken off has a weight below 1.2e-7, the resolution of float32; Swin takes off 100."""

_REPLAY_FUNCTIONS = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "masked_fill": torch.masked_fill,
    "where": torch.where,
    "tanh": torch.tanh,
    "clamp": torch.clamp,
    "clamp_min": torch.clamp_min,
    "clamp_max": torch.clamp_max,
    "minimum": lambda scores, bound: torch.minimum(scores, torch.as_tensor(bound)),
    "maximum": lambda scores, bound: torch.maximum(scores, torch.as_tensor(bound)),
    "neg": torch.neg,
    "exp": torch.exp,
    "log": torch.log,
    "relu": torch.relu,
    "pow": torch.pow,
}


def closes(mask: torch.Tensor) -> torch.Tensor:
    """Return where an additive mask of scores, `[…, S_q, S_k]`, hides a key: bool of its shape.

    Where it is as low as `MASKED_SCORE`; and where it takes off `PENALTY` or more and nothing takes off between that
    and half of it, so that a bias that falls with the distance is no mask.
    """
    hidden = mask <= -PENALTY
    return mask <= MASKED_SCORE if bool(((mask <= -PENALTY / 2) & ~hidden).any()) else hidden


def is_windowed(closed: torch.Tensor) -> bool:
    """Return whether closed cells, bool `[…, S, S]`, are those between groups of tokens that see only themselves, as in
    shifted windows: some cell is closed, and not all tokens are alone."""
    groups = (~closed).flatten(0, -3) if closed.dim() > 2 else ~closed[None]
    if groups.shape[-1] != groups.shape[-2] or bool(groups.all()):
        return False
    size = groups.shape[-1]
    if bool((groups.sum(dim=(-1, -2)) == size).all()) or not bool(groups.diagonal(dim1=-2, dim2=-1).all()):
        return False
    # whoever sees another sees just what that one sees: the first that a token sees names its group
    first = groups.to(torch.uint8).argmax(dim=-1)
    return bool((groups == (first[..., :, None] == first[..., None, :])).all())


def hides(link: tuple[str, tuple], get) -> bool:
    """Return whether a link of the chain hides keys from queries; an additive bias that hides none is no mask.

    `get(key)` gives the tensors that the link names.
    """
    name, arguments = link
    if name in ("causal", "pieces"):
        return True
    if name in ("masked_fill", "where"):
        at = arguments[1 if name == "masked_fill" else 0]
        cells = get(at) if isinstance(at, str) else torch.tensor(at)  # of one cell
        closed = cells if cells is None or name == "masked_fill" or arguments[2] == SCORES else ~cells
        return closed is None or bool(closed.any())
    low = {"add": 1, "sub": -1}.get(name)
    if low is None:
        return False
    masks = [get(argument) for argument in arguments if isinstance(argument, str) and argument != SCORES]
    return any(
        tensor is not None and tensor.shape[-1:] != (1,) and bool(closes(low * tensor).any()) for tensor in masks
    )


def pick_rows(tensor: torch.Tensor, rows) -> torch.Tensor:
    """Return the chosen rows of `[..., S, d]`; those of a `range` cost no copy."""
    if isinstance(rows, range):
        rows = slice(rows.start, rows.stop, rows.step)
    return tensor[..., rows, :]


def scores_rows(q, k, chain, rows, get) -> torch.Tensor:
    """Return the scores as they enter the softmax, for chosen query rows: `[..., len(rows), S_k]`.

    `q` is `[..., S_q, d_k]`, `k` is `[..., S_k, d_k]` (fewer key heads than query heads are repeated, Ainslie et
    al. 2023); `get(key)` gives the tensors that the chain names. RuntimeError for a link that isn't known.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if q.dim() > 3 and k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scores = pick_rows(q, rows) @ k.transpose(-2, -1)
    for name, arguments in chain:
        if name == "causal":
            later = torch.arange(keys, device=q.device) > torch.as_tensor(rows, device=q.device)[:, None]
            scores = scores.masked_fill(later, arguments[0])
            continue
        if name == "pieces":
            scores = scores.masked_fill(_apart(arguments, rows, queries, keys, q.device), float("-inf"))
            continue
        if name not in _REPLAY_FUNCTIONS and name not in _LAYOUT_FUNCTIONS:
            raise RuntimeError(f"{quote(name)} is not an op that can be replayed on scores")
        if name in ("cat", "heads"):
            scores = _LAYOUT_FUNCTIONS[name](scores, arguments, rows, queries, get)
            continue
        operands = [_argument(a, scores, rows, queries, get) for a in arguments]
        shapes = [operand.shape for operand in operands if isinstance(operand, torch.Tensor)]
        if torch.broadcast_shapes(*shapes).numel() != scores.numel():  # before it takes memory
            raise RuntimeError(f"{quote(name)} does not give one number for each score")
        scores = _REPLAY_FUNCTIONS[name](*operands)
    return scores


def _apart(sizes, rows, queries: int, keys: int, device) -> torch.Tensor:
    """Return which keys are in another piece than the query, bool `[rows, S_k]`; `sizes` are the numbers of queries and
    keys of each piece in order."""
    own, theirs = sizes[::2], sizes[1::2]
    whole = all(isinstance(size, int) and size >= 0 for size in sizes) and (sum(own), sum(theirs)) == (queries, keys)
    if not whole:
        raise RuntimeError(f"'pieces' does not part {queries} queries and {keys} keys")
    numbers = [
        torch.arange(len(counts), device=device).repeat_interleave(torch.tensor(counts, device=device))
        for counts in (own, theirs)
    ]
    return numbers[0][torch.as_tensor(rows, device=device)][:, None] != numbers[1]


def softmax_columns(q, k, chain, rows, get) -> torch.Tensor:
    """Return the softmax of chosen query rows over all columns, also over those beside the keys, such as attention
    sinks; a fully masked row is all zeros. Numbers of 16 bits are summed in float32."""
    scores = scores_rows(q, k, chain, rows, get)
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    return scores.softmax(dim=-1).nan_to_num(0.0)


def softmax_rows(q, k, chain, rows, get) -> torch.Tensor:
    """Return attention weights for chosen query rows: `[..., len(rows), S_k]`; a fully masked row is all zeros."""
    return own_columns(softmax_columns(q, k, chain, rows, get), chain, k.shape[-2], get)


def own_columns(rows: torch.Tensor, chain, keys: int, get) -> torch.Tensor:
    """Return the columns of keys, for rows that have others beside them."""
    first = 0
    for name, arguments in chain:
        if name == "cat" and arguments[-1] == SCORES:
            first += get(arguments[0]).shape[-1]
    return rows[..., first : first + keys]


def sinks(chain) -> bool:
    """Return whether a part of each row goes to columns beside the keys, so that weights sum to less than 1."""
    return any(name == "cat" for name, _ in chain)


def _cat(scores, arguments, rows, queries, get) -> torch.Tensor:
    parts = [_argument(value, scores, rows, queries, get) for value in arguments]
    if len(parts) != 2 or not all(isinstance(part, torch.Tensor) for part in parts):
        raise RuntimeError("'cat' needs the scores and a kept tensor")
    parts = [part if part is scores else part.expand(*scores.shape[:-1], part.shape[-1]) for part in parts]
    if sum(part.shape[-1] for part in parts) > 2 * scores.shape[-1] + 64:
        raise RuntimeError("'cat' adds more columns than a row has keys")
    return torch.cat(parts, dim=-1)


def _heads(scores, arguments, rows, queries, get) -> torch.Tensor:
    matrix = get(arguments[1])  # [heads before, heads after]
    if matrix is None or matrix.dim() != 2 or matrix.shape[1] > 4 * matrix.shape[0]:
        raise RuntimeError("'heads' needs a matrix that mixes the heads")
    return torch.einsum("...hqk,hg->...gqk", scores, matrix)


_LAYOUT_FUNCTIONS = {"cat": _cat, "heads": _heads}


def _argument(value, scores, rows, queries, get):
    if value == SCORES:
        return scores
    if isinstance(value, bool):  # a mask of one cell
        return torch.tensor(value, device=scores.device)
    if not isinstance(value, str):
        return value
    tensor = get(value)
    if tensor is None:
        raise RuntimeError(f"the tensor {quote(value)} was not kept")
    if tensor.dim() >= 2 and tensor.shape[-2] == queries > 1:
        tensor = pick_rows(tensor, rows)
    if tensor.dim() == 3 and scores.dim() == 4 and tensor.shape[0] == scores.shape[0] * scores.shape[1]:
        tensor = tensor.reshape(*scores.shape[:2], *tensor.shape[1:])
    return tensor
