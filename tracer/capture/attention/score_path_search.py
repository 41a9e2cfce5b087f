"""The path from the input of a softmax back to the queries and keys of its scores.

The way back goes through ops that lay scores out anew, and through what the model did to them, which becomes the chain
of the record.
"""

from __future__ import annotations

import torch

from tracer.capture.attention.axis_tracking import (
    RANGES,
    REDUCTIONS,
    SELECTS,
    Atom,
    Axes,
    axes_before,
    axes_of,
    leaves,
    reshape_axes,
    size_of,
)
from tracer.capture.attention.score_path import Call, Lost, Scores, Step, Way
from tracer.capture.op_schema import PRODUCTS, PROJECTIONS
from tracer.capture.tensors.producers import CONSTANT
from tracer.ops import CONVOLUTIONS, OVERWRITES

DEPTH = 64
"""How many ops a search goes back at most."""
NO_PRODUCT = "its scores could not be followed back to a product of queries and keys: they come from {origin}"


class Reader:
    """A reader of scores, from the ops of a run as seen, their arguments, and the recent calls that may compute
    scores."""

    def __init__(self, ops: list, given: dict[int, tuple], recent: dict[int, Call], batch):
        self.ops, self.given, self.recent, self.batch = ops, given, recent, batch

    def origin(self, maker) -> int | str:
        """Walk back through ops that only lay out their first input."""
        while isinstance(maker, int) and maker not in self.recent and (op := self.ops[maker]).layout and op.inputs:
            maker = op.inputs[0][2]
        return maker

    def is_learned(self, maker) -> bool:
        """Return whether a tensor is a parameter or buffer, after any layout ops."""
        origin = self.origin(maker)
        return isinstance(origin, str) and origin != CONSTANT and not origin.startswith("input ")

    def read(self, shape: tuple[int, ...], maker, axis: int) -> Scores:
        """Return the scores of this shape from op `maker`, for a softmax over `axis`. Raise `Lost` if that fails."""
        found = self._path(shape, maker, 0)
        if found is None:
            origin = self.origin(maker)
            origin = self.ops[origin].name.rstrip("_") if isinstance(origin, int) else f"the {origin}"
            raise Lost(NO_PRODUCT.format(origin=origin))
        way = Way(self, *found)
        return way.arrange(axis, shape)

    def _path(self, shape, maker, depth: int) -> tuple[Call, list[Step]] | None:
        """Return the product that scores come from, and the steps from it, in order."""
        if not isinstance(maker, int) or depth > DEPTH:
            return None
        call = self.recent.get(maker)
        if call is not None and call.name in PROJECTIONS:
            mixed = self._through_mixing(call, shape, depth)
            plain = (call.name in PRODUCTS and call.kwargs.get("alpha", 1) == 1) or call.name == "baddbmm"
            return mixed or ((call, []) if plain else None)
        op = self.ops[maker]
        if call is not None:
            for order, (given, _, source) in enumerate(call.inputs):
                if found := self._path(given, source, depth + 1):
                    found[1].append(Step(maker, call, order, shape))
                    return found
            return None
        if not op.inputs:
            return None
        given, _, source = op.inputs[0]
        if op.name.rstrip("_") in OVERWRITES:
            if op.name == "copy_" and given == shape and len(op.inputs) > 1:  # all of it is written anew
                given, _, source = op.inputs[1]
            while given != shape and isinstance(source, int) and self.ops[source].name in RANGES | SELECTS:
                given, _, source = self.ops[source].inputs[0]
            if given != shape:
                return None
        elif not op.layout:
            return None
        found = self._path(given, source, depth + 1)
        if found:
            found[1].append(Step(maker, None, 0, shape))
        return found

    def _through_mixing(self, call: Call, shape, depth: int) -> tuple[Call, list[Step]] | None:
        """Return the path through a product that only mixes the heads of scores, by a matrix of parameters."""
        first = len(call.inputs) - 2  # before the operands, a bias
        for operand in (0, 1):
            given, _, source = call.inputs[first + operand]
            if (
                not self.is_learned(call.inputs[first + 1 - operand][2])
                or (found := self._path(given, source, depth + 1)) is None
            ):
                continue
            product, steps = found
            try:
                way = Way(self, product, steps)
            except Lost:
                continue
            inner = leaves(way.axes[-1 if operand == 0 else -2])
            if inner and all(atom.within(way.batch) for atom in inner):
                steps.append(Step(call.index, call, first + operand, shape))
                return product, steps
        return None

    def features(self, axes: Axes, maker) -> tuple[Atom, ...] | None:
        """Return the atoms of a tensor, of these axes, that are features: outputs of its projection, and not positions
        of its input. None if no projection is found."""
        for _ in range(DEPTH):
            if not isinstance(maker, int) or not (op := self.ops[maker]).inputs:
                return None
            name, shape = op.name.rstrip("_"), op.outputs[0][0]
            sizes = [size_of(leaves(axis)) for axis in axes]
            if name not in RANGES and sizes != list(shape) and (axes := reshape_axes(axes, shape)) is None:
                return None
            if name in PROJECTIONS:
                first = len(op.inputs) - 2 if name != "linear" else 0
                return axes[-2 if name in PRODUCTS and self.is_learned(op.inputs[first][2]) else -1]
            given, _, source = op.inputs[0]
            if name in CONVOLUTIONS:
                if op.inputs[1][0][1] > 1 or given[1] != shape[1] or given[1] == 1:
                    return axes[1]
                axes = (axes[0], axes[1], *axes_of(given[2:]))  # each channel on its own
            elif op.layout and name not in ("copy",):
                axes = axes_before(name, self.given.get(maker, ()), axes, given)
            elif name == "cat":
                given, _, source = max(op.inputs, key=lambda one: torch.Size(one[0]).numel())
                axes = axes_before(name, (), axes, given) if len(given) == len(axes) else None
            elif (same := next((one for one in op.inputs if one[0] == shape), None)) is not None:
                source = same[2]
            elif name in REDUCTIONS:
                axes = axes_before(name, self.given.get(maker, ()), axes, given)
            else:
                return None
            if axes is None:
                return None
            maker = source
        return None
