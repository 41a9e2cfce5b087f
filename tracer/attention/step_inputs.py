"""Steps that a step of a run reads, by its ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.record import Trace


def reads(trace: Trace, id: str) -> list[str]:
    """Return the ids of the other steps whose ops produced the inputs of a step's ops, in order; none if the run has no
    such step.

    >>> import tracer
    >>> reads(tracer.load("vit", L=1).trace(prove=False), "block1.attention.query")
    ['block1.norm1']
    """
    makers = {op.index: op.step for op in trace.ops}
    taken = [tensor.maker for op in trace.ops if op.step == id for tensor in op.inputs]
    steps = dict.fromkeys(makers.get(maker) for maker in taken if isinstance(maker, int))
    return [step for step in steps if step not in (None, id)]
