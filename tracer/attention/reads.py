"""What a step of a run takes of others, by its ops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracer.record import Trace


def reads(trace: Trace, id: str) -> list[str]:
    """The ids of the other steps whose ops made what a step's ops took, in order; none where the run has no such step.

    >>> import tracer
    >>> reads(tracer.load("vit", L=1).trace(prove=False), "block1.attention.query")
    ['block1.norm1']
    """
    makers = {op.index: op.step for op in trace.ops}
    taken = [one.maker for op in trace.ops if op.step == id for one in op.inputs]
    found = dict.fromkeys(makers.get(maker) for maker in taken if isinstance(maker, int))
    return [step for step in found if step not in (None, id)]
