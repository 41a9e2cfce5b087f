"""A short text in a batch with a longer one: the side of the padding, and whether the answer changes."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import signature
from typing import Any, NamedTuple

import torch

from tracer.models.shared.decoding import split_inputs
from tracer.models.shared.spec import Model
from tracer.record import tolerance

PAD = 0
"""The token that fills the short text."""


class PaddedAnswer(NamedTuple):
    """Answer to the short text in a batch: the largest difference of its last logits from those of the text alone.

    With `masked`, `attention_mask` says which tokens are padding; with `placed`, `position_ids` count from the first
    real token. `allowed` is what rounding explains, `token` the number of the most probable next token, and
    `probability` its probability, 0 to 1.
    """

    side: str
    masked: bool
    placed: bool
    difference: float
    allowed: float
    token: int
    probability: float

    @property
    def moves(self) -> bool:
        """True if the padding changes the answer by more than rounding."""
        return self.difference > self.allowed


@torch.no_grad()
def compare_sides(model: Model, text: str | None = None, image=None) -> list[PaddedAnswer]:
    """Return the answers to the first half of a text beside the whole text, padded on the right and on the left.

    Models of transformers also run with `attention_mask`, which says what is padding, and with `position_ids`. Raise
    ValueError for a text of a single token.
    """
    inputs = model.inputs(image=image, text=text)
    before, tokens = split_inputs(inputs)
    tokens, length = tokens[:1], tokens.shape[1] // 2
    if not length:
        raise ValueError("the text has T=1 token, expected 2 or more: its first half is padded")
    short = tokens[:, :length]
    net: Any = model.net
    foreign = hasattr(net, "config")  # a model of transformers
    ways = [(False, False)]
    if foreign:
        ways += [(True, False), *([(True, True)] if "position_ids" in signature(net.forward).parameters else [])]

    def run(batch: torch.Tensor, padding: torch.Tensor, masked: bool, placed: bool) -> torch.Tensor:
        """Return the logits of a batch, `[B, T, V]`."""
        if not foreign:
            return net(*(tensor[:1].expand(len(batch), *tensor.shape[1:]) for tensor in before), batch)
        named = {"position_ids": (padding.cumsum(1) - 1).clamp(min=0)} if placed else {}
        return net(input_ids=batch, attention_mask=padding if masked else torch.ones_like(batch), **named).logits

    alone = run(short, torch.ones_like(short), False, False)[0, -1]
    return [
        _compare(side, masked, placed, alone, run(batch, padding, masked, placed)[1, last])
        for side, batch, last, padding in _batches(tokens, short)
        for masked, placed in ways
    ]


def _batches(tokens: torch.Tensor, short: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, int, torch.Tensor]]:
    """Yield the batch of both texts for each side, `[2, T]`, the position of the short one's last token, and the
    mask."""
    filler = torch.full((1, tokens.shape[1] - short.shape[1]), PAD)
    for side, parts, last in (("right", (short, filler), short.shape[1] - 1), ("left", (filler, short), -1)):
        real = torch.cat([torch.ones_like(part) if part is short else torch.zeros_like(part) for part in parts], dim=1)
        mask = torch.cat([torch.ones_like(tokens), real])
        yield side, torch.cat([tokens, torch.cat(parts, dim=1)]), last, mask


def _compare(side: str, masked: bool, placed: bool, alone: torch.Tensor, padded: torch.Tensor) -> PaddedAnswer:
    shares = padded.softmax(-1)
    allowed = tolerance("float32") * max(1.0, float(alone.abs().max()))
    difference = float((padded - alone).abs().max())
    return PaddedAnswer(side, masked, placed, difference, allowed, int(shares.argmax()), float(shares.max()))
