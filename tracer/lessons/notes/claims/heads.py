"""What the notes claim of heads: whose columns they are, what they share, how their results become one."""

from __future__ import annotations

import torch

from tracer.attention import weights
from tracer.figures.classes import percent
from tracer.figures.labels import scientific, shape_numbers
from tracer.lessons.notes.claims.inside import Inside
from tracer.lessons.notes.claims.measured import Measured, close, off
from tracer.models.shared.model import Model
from tracer.record import Trace


def heads_are_columns(model: Model, trace: Trace) -> Measured:
    """Whether each head's queries, keys and values come of d_k columns of the one matrix."""
    inside, worst = Inside(model, trace), 0.0
    with torch.no_grad():
        for name in ("query", "key", "value"):
            linear, made = inside.linear(name), inside.own(name)
            d_k = made.shape[-1]
            for head in range(made.shape[1]):
                columns = slice(head * d_k, (head + 1) * d_k)
                own = inside.entering @ linear.weight.T[:, columns] + (
                    0 if linear.bias is None else linear.bias[columns]
                )
                worst = max(worst, off(own, made[:, head]))
    said = f"each head is {d_k} columns of the one matrix, to within {scientific(worst)}"
    return Measured(said, "holds" if close(worst) else "not", "trace", (("step", f"{inside.path}.query"),))


def side_by_side(model: Model, trace: Trace) -> Measured:
    """The heads' own products, all at once."""
    inside = Inside(model, trace)
    q = inside.own("query")
    said = (
        f"{q.shape[1]} heads at once: queries {shape_numbers(tuple(q.shape))}, scores "
        f"{shape_numbers(tuple(inside.own('scores').shape))}"
    )
    return Measured(said, "holds", "attention")


def heads_differ(model: Model, trace: Trace) -> Measured:
    """How differently two heads share out their weight: total variation, 0 for the same, 1 for nothing in common."""
    maps = weights(trace, 0)
    if maps.shape[1] < 2:
        raise ValueError(f"{model.name} has one head")
    apart = (maps[:, :, None] - maps[:, None]).abs().sum(-1) / 2
    pairs = torch.triu_indices(maps.shape[1], maps.shape[1], 1)
    mean = float(apart[:, pairs[0], pairs[1]].mean())
    said = f"two heads of the first block put {percent(mean)} of their weight in different places, on average"
    return Measured(said, "holds" if mean > 1e-3 else "not", "attention")


def merged(model: Model, trace: Trace) -> Measured:
    """Whether the output is the sum of what each head sends through its rows of W_O."""
    inside = Inside(model, trace)
    context, output = inside.value(f"{inside.path}.context"), inside.value(f"{inside.path}.output")
    linear, h = inside.linear("output"), inside.own("query").shape[1]
    with torch.no_grad():
        parts = [part @ rows.T for part, rows in zip(context.chunk(h, -1), linear.weight.chunk(h, 1), strict=True)]
        error = off(sum(parts) + (0 if linear.bias is None else linear.bias), output)
    said = (
        f"the output is the sum of its heads ({h}), each through its own rows of $W_O$, to within {scientific(error)}"
    )
    return Measured(said, "holds" if close(error) else "not", "trace", (("step", f"{inside.path}.output"),))
