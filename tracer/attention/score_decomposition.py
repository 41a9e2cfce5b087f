"""Scores of the first block as the sum of four terms: content and position against content and position."""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING

import torch

from tracer.attention.step_inputs import reads
from tracer.utils.error_text import quote

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model
    from tracer.record import Trace

TERMS = ("content–content", "content–position", "position–content", "position–position")
"""Of which part of the query's token, against which part of the key's token."""


def terms(model: Model, trace: Trace) -> dict[str, torch.Tensor]:
    """Return the four terms of `QKᵀ/√d_k` in block 1, by the names in `TERMS`: `[B, h, S, S]` each; their sum is the
    scores.

    Where the block reads `X_t + P`, its queries are `X_t W_Q + P W_Q`, and its keys likewise; biases, where there
    are any, count as content. A mask is not part of the sum. ValueError for a model whose first block reads
    something else, and where the trace did not keep the embeddings. Source: Ke et al. 2021, equation 6.
    """
    if "position" not in reads(trace, "block1.attention.query"):
        raise ValueError(
            f"the first block of {quote(model.name)} does not read tokens plus positions as they are, "
            f"so its scores don't fall into four terms"
        )
    content, both = (trace.value(trace.changed_step(id) or id) for id in ("embedding", "position"))
    if content is None or both is None:
        raise ValueError("the trace did not keep the embeddings, of which the four terms are made")
    attention = model.net.get_submodule("block1.attention")

    def parts(linear: torch.nn.Linear) -> list[torch.Tensor]:
        projected = linear(content), torch.nn.functional.linear(both - content, linear.weight)  # [B, S, h·d_k]
        return [
            part.unflatten(-1, (attention.h, attention.d_k)).transpose(1, 2) for part in projected
        ]  # [B, h, S, d_k]

    with torch.no_grad():
        queries, keys = parts(attention.query), parts(attention.key)
        products = [q @ k.transpose(-2, -1) / sqrt(attention.d_k) for q in queries for k in keys]
    return dict(zip(TERMS, products, strict=True))
