"""One more token with a cache and without: the same logits, and the arithmetic and the memory of both, as formulas.

The formulas are those of the two runs: of the whole text, and of its last token after the keys and values of the rest.
Source: Shazeer 2019, Fast Transformer Decoding, section 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from tracer.models.shared.decoding import T_PAST
from tracer.record import Trace, tolerance
from tracer.symbols.notation import parse, symbol

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
