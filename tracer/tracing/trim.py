"""Trimmed runs: proven with every tensor available, kept with fewer."""

from __future__ import annotations

from dataclasses import replace

from tracer.record import Trace


def lighten(trace: Trace, cap: int) -> Trace:
    """Return the same run with at most `cap` bytes of the tensors of its steps, the first ones, and without references
    to the model; all else is unchanged.

    Queries, keys, masks and changed weights of attention, the photo and the inputs that lines name stay: what is shown
    of them is computed when it is asked for, and a saved run is proven from them.
    """
    trace = trace.prove()
    values, total = dict(trace.values), 0
    needed_keys = {key for record in trace.attentions for key in (record.q, record.k, record.weights, record.scores)}
    needed_keys |= {
        key for record in trace.attentions for _, arguments in record.chain for key in arguments if isinstance(key, str)
    }
    needed_keys |= {trace.picture.value} if trace.picture else set()
    for step in trace.steps:
        value = values.get(step.value)
        if value is None or step.value in needed_keys:
            continue
        total += value.nbytes
        if total > cap:
            del values[step.value]
    if trace.later is not None:
        value = trace.later.values()
        inputs = {name.of for step in trace.steps for name in step.names if name.of.startswith("input ")}
        values |= {key: tensor for key in inputs if (tensor := value(key)) is not None}
    return replace(trace, values=values, later=None, replay=None)
