"""Heads switched off, compared with a plain run in which their rows of the output projection are 0."""

from __future__ import annotations

from collections.abc import Iterator

from tracer.attention.head_effects import HeadSwitchboard, head_sites
from tracer.verify.checks.reference_run import PlainRun
from tracer.verify.checks.run.changed_values import TOLERANCE, heads_of, without_heads

HEADS = 2
"""Number of heads that are tried."""


def problems(run: PlainRun) -> Iterator[str]:
    """Yield a sentence for each head without which the output is not that of a plain run with its rows at 0."""
    if (weights := heads_of(run)) is None:
        return
    id, heads, parameter = weights
    step = run.trace.step(id)
    part = next(
        (record.part for record in run.trace.attentions if record.op in step.ops or record.op == step.inside), ""
    )
    try:
        switchboard = HeadSwitchboard(run.model, run.inputs, head_sites(run.trace, part or None))
    except ValueError:  # it has no weights that can be changed
        return
    switchboard.heads = tuple(head for head in switchboard.heads if head.layer == step.layer)[-HEADS:]
    probe = switchboard.probe(run.inputs)
    for head, output in zip(switchboard.heads, probe.outputs[1:], strict=True):
        expected = next(
            output for output in without_heads(run, parameter, heads, {head.head}) if output.is_floating_point()
        )
        if expected.shape[1:] != output.shape:
            continue
        error = float((output - expected[0]).abs().max())
        if not error <= 10 * TOLERANCE * float(expected.abs().max()):
            yield f"the output without head {head.head} of {id!r} differs from that without its rows, by {error}"
