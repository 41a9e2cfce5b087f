"""Text written token by token: what the cache saves, how the next token is drawn, what padding does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple

import sympy
import torch

from tracer.record import Trace, tolerance
from tracer.spec.decoding import T_PAST, split_inputs
from tracer.spec.spec import Model
from tracer.symbols.notation import parse, symbol

# One more token with a cache and without: the same logits, and the arithmetic and the memory of both, as formulas.
#
# The formulas are those of the two runs: of the whole text, and of its last token after the keys and values of the
# rest. Source: Shazeer 2019, Fast Transformer Decoding, section 2.4.

ITEM = 4
"""Bytes of a number in float32."""


@dataclass(frozen=True)
class CacheCosts:
    """A run of a whole text of T tokens beside the run that reads its last token after a cache.

    `difference` is the largest difference of their last logits, `[V]`, and `allowed` what rounding explains. `whole`,
    `cached` and `memory` are the FLOPs of both and the bytes of the cache after the token, as formulas.
    """

    difference: float
    allowed: float
    whole: str
    cached: str
    memory: str
    sizes: dict[str, int]

    @property
    def same(self) -> bool:
        """True if the logits are equal up to rounding."""
        return self.difference <= self.allowed

    def flops(self, length: int) -> tuple[int, int]:
        """Return the FLOPs of the token number `length` of the text, counted from 1: without a cache, and with one."""
        return _value(self.whole, self.sizes | {"T": length}), _value(self.cached, self._after(length))

    def bytes(self, length: int) -> int:
        """Return the bytes of the cache that holds a text of that many tokens, and the patches before it."""
        return _value(self.memory, self._after(length))

    def _after(self, length: int) -> dict[str, int]:
        """Return the sizes of the run that reads the last of that many tokens."""
        return self.sizes | {"T": 1, T_PAST: self.sizes.get("N", 0) + length - 1}


def costs(whole: Trace, cached: Trace) -> CacheCosts:
    """Return the costs of a run of a text, and of the run that reads its last token after a cache."""
    rows = [last_logits(trace) for trace in (whole, cached)]
    sizes = {size.name: size.value for trace in (whole, cached) for size in trace.symbols}
    shapes = cache_shapes(cached)
    grown = symbol(T_PAST), symbol(T_PAST) + symbol("T")
    tensors = [sympy.Mul(*map(parse, shape)).subs(*grown) for shape in shapes]
    alike = len(set(tensors)) == 1 and len(tensors) == 2 * sizes.get("L", 0)
    cells = 2 * symbol("L") * tensors[0] if alike else sympy.Add(*tensors)
    return CacheCosts(
        difference=float((rows[0] - rows[1]).abs().max()),
        allowed=tolerance("float32") * max(1.0, float(rows[0].abs().max())),
        whole=whole.flops_symbolic,
        cached=cached.flops_symbolic,
        memory=str(ITEM * cells),
        sizes={name: size for name, size in sizes.items() if name not in ("T", T_PAST)},
    )


def last_logits(trace: Trace) -> torch.Tensor:
    """Return the logits of the last token of a run, `[V]`: `logits[0, -1]`."""
    output: Any = trace.output
    logits = output[0] if isinstance(output, tuple) else output
    logits = logits if isinstance(logits, torch.Tensor) else logits["logits"]
    return logits[0, -1].float()


def cache_shapes(cached: Trace) -> Sequence[tuple[str, ...]]:
    """Return the symbolic shapes of the keys and values that a run took from its cache, in order."""
    operands = (operand for op in cached.ops for operand in op.inputs)
    named = {str(operand.maker): operand for operand in operands if str(operand.maker).startswith("input past.")}
    return [named[name].symbolic or tuple(map(str, named[name].shape)) for name in sorted(named)]


def _value(formula: str, sizes: dict[str, int]) -> int:
    """Return the value of a formula at these sizes."""
    expression = parse(formula)
    return int(expression.subs({name: sizes[str(name)] for name in expression.free_symbols}))


# A short text in a batch with a longer one: the side of the padding, and whether the answer changes.

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
