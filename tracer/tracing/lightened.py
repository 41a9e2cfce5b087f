"""A run made lighter: proven with every tensor at hand, kept with fewer."""

from __future__ import annotations

from dataclasses import replace

from tracer.record import Trace


def lightened(trace: Trace, cap: int) -> Trace:
    """The same run with at most `cap` bytes of the tensors of its steps, the first ones; all else is as it was.

    Queries, keys and masks of attention, and the photo, stay: what is shown of them is computed when it is asked for.
    """
    trace = trace.prove()
    kept, total = dict(trace.values), 0
    asked = {key for record in trace.attentions for key in (record.q, record.k)}
    asked |= {key for record in trace.attentions for _, given in record.chain for key in given if isinstance(key, str)}
    asked |= {trace.picture.value} if trace.picture else set()
    for step in trace.steps:
        value = kept.get(step.value)
        if value is None or step.value in asked:
            continue
        total += value.nbytes
        if total > cap:
            del kept[step.value]
    return replace(trace, values=kept, later=None)
