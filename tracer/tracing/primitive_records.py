"""Primitives of a run as plain records, from the recorder's opened ops and the solved probes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tracer.capture.op_primitives import OpDecomposition
from tracer.record import Decomposition, Primitive, TensorRecord, dtype_name
from tracer.shapes import Solution


def decompositions(opened: Sequence[OpDecomposition], solution: Solution | None) -> tuple[Decomposition, ...]:
    """Return one record for each op of a run that was opened."""
    solved = solution.parts if solution else ()
    return tuple(
        Decomposition(i, _primitives(op.parts, solved[i] if solved else None), op.error, op.note)
        for i, op in enumerate(opened)
        if op is not None
    )


@lru_cache(maxsize=4096)  # the blocks of a model are alike
def _primitives(parts, solved) -> tuple[Primitive, ...]:
    shapes = solved or ((None, None),) * len(parts)
    return tuple(
        Primitive(part.name, part.within, _tensors(part.inputs, inputs), _tensors(part.outputs, outputs))
        for part, (inputs, outputs) in zip(parts, shapes, strict=True)
    )


def _tensors(tensors, symbolic) -> tuple[TensorRecord, ...]:
    return tuple(
        TensorRecord(shape, dtype_name(dtype), maker, symbolic[i] if symbolic else None)
        for i, (shape, dtype, maker) in enumerate(tensors)
    )
