"""Attention weights from their softmax on: through the ops on them, to the op that multiplies values by them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tracer.capture.attention.axis_tracking import Atom, Axes, axes_after, leaves
from tracer.capture.attention.score_path import ScoreReader
from tracer.capture.op_schema import PRODUCTS, OpKind
from tracer.ops import SHAPE_ONLY, ops_with

MOVEMENTS = ops_with("movement")


class AttentionWeights(NamedTuple):
    """Weights of a softmax: its op, the axes (None if they are lost), which of their atoms are keys, queries and
    heads, whether they were `read` back to queries and keys, the ops that changed them, whether they were broadcast
    over values, and the other softmaxes that they are a sum with."""

    softmax: int
    axes: Axes | None
    keys: tuple[Atom, ...]
    queries: tuple[Atom, ...]
    heads: tuple[Atom, ...]
    read: bool
    changed: tuple[str, ...] = ()
    spread: bool = False
    beside: tuple[int, ...] = ()


class ConsumedWeights(NamedTuple):
    """Weights that an op multiplied values by, and the axes of its output; None if they are lost."""

    weights: AttentionWeights
    axes: Axes | None


class WeightTracker:
    """Weights of one run that have not been applied to values yet, by their op."""

    def __init__(self, reader: ScoreReader):
        self._reader = reader
        self._weights: dict[int, AttentionWeights] = {}

    def begin(self, weights: AttentionWeights) -> None:
        """Record a softmax."""
        self._weights[weights.softmax] = weights

    def end(self, softmaxes) -> None:
        """Drop softmaxes that have been applied to values."""
        self._weights = {op: weights for op, weights in self._weights.items() if weights.softmax not in softmaxes}

    def clear(self) -> None:
        self._weights.clear()

    def see(self, index: int, facts: OpKind, name: str, inputs: tuple, result) -> ConsumedWeights | None:
        """Follow weights through an op that has run; return them if it multiplied values by them."""
        tracked = self._weights
        operands = [(order, tracked[maker]) for order, (_, _, maker) in enumerate(inputs) if maker in tracked]
        if not operands or name in SHAPE_ONLY:
            return None
        result = result[0] if isinstance(result, (list, tuple)) and result else result
        if not isinstance(result, torch.Tensor) or not result.is_floating_point():
            return None
        (order, weights), shape = operands[0], tuple(result.shape)
        operand_shape, axes = inputs[order][0], weights.axes
        if facts.attention in ("product", "mixing") or name == "linear":
            return self._product(index, name, inputs, order, weights, shape)
        if facts.layout:
            axes = None if axes is None else axes_after(name, self._reader.settings.get(index, ()), axes, shape)
            tracked[index] = weights._replace(axes=axes)
        elif name in MOVEMENTS:
            tracked[index] = weights._replace(axes=None)
        elif name == "mul" and result.numel() > torch.Size(operand_shape).numel():
            tracked[index] = weights._replace(axes=_spread(axes, shape), spread=True)
        elif name == "sum" and weights.spread:
            return self._sum(index, weights)
        elif result.numel() == torch.Size(operand_shape).numel():
            stochastic = name == "native_dropout" or any(self._is_dropout(maker) for _, _, maker in inputs)
            changed = () if name in ("exp", "bernoulli") else ("dropout",) if stochastic else (name,)
            others = {weights_too.softmax for _, weights_too in operands} | set(weights.beside)
            tracked[index] = weights._replace(
                axes=axes if shape == operand_shape else None,
                changed=weights.changed + changed,
                beside=tuple(sorted(others - {weights.softmax})) if name in ("add", "sub") else weights.beside,
            )
        return None

    def _product(
        self, index: int, name: str, inputs: tuple, order: int, weights: AttentionWeights, shape
    ) -> ConsumedWeights | None:
        """Follow weights through a product: one over the keys applies them to values; one over the heads mixes them."""
        first, axes = 0 if name == "linear" else len(inputs) - 2, weights.axes
        if order < first:  # it is added to a product
            return None
        left = order == first
        inner = None if axes is None else leaves(axes[-1 if left else -2])
        new = (Atom(shape[-1 if left else -2]),)
        output_axes = None if axes is None else (*axes[:-1], new) if left else (*axes[:-2], new, axes[-1])
        if inner is None or any(atom.is_part_of(weights.keys) for atom in inner) or not (inner or weights.keys):
            # a linear map of weights, such as of a gate, takes no values
            learned = self._reader.is_learned(inputs[2 * first + 1 - order][2])
            return ConsumedWeights(weights, output_axes) if name in PRODUCTS and (weights.read or not learned) else None
        self._weights[index] = weights._replace(axes=output_axes, changed=(*weights.changed, "heads mixed"))
        return None

    def _sum(self, index: int, weights: AttentionWeights) -> ConsumedWeights | None:
        """Return the weights of a sum over the keys of weights times values, a product written out; only if the weights
        were read, since other softmaxes distribute things among branches."""
        axes, settings = weights.axes or (), self._reader.settings.get(index, ())
        summed = [axes[axis] for axis in (settings[0] if settings and axes else ()) or ()]
        keys = any(atom.is_part_of(weights.keys) for axis in summed for atom in leaves(axis))
        return ConsumedWeights(weights, None) if keys and weights.read else None

    def _is_dropout(self, maker) -> bool:
        """Return whether a tensor holds the random zeros of dropout."""
        for _ in range(2):
            if not isinstance(maker, int) or not self._reader.ops[maker].inputs:
                return False
            if self._reader.ops[maker].name == "bernoulli_":
                return True
            maker = self._reader.ops[maker].inputs[0][2]
        return False


def _spread(axes: Axes | None, shape: tuple[int, ...]) -> Axes | None:
    """Return the axes of a tensor that is broadcast to a shape."""
    if axes is None:
        return None
    axes = ((),) * (len(shape) - len(axes)) + axes
    return tuple(axis or ((Atom(size),) if size > 1 else ()) for axis, size in zip(axes, shape, strict=True))
