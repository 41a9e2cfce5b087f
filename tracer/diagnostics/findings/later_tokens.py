"""A rule on what the answer at a token reads of later ones, measured by runs with other ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.capture import Recording
from tracer.diagnostics.findings.batches import STATISTICS
from tracer.diagnostics.findings.continuations import Continuation, continuations
from tracer.diagnostics.findings.run_view import Evidence, rule
from tracer.diagnostics.findings.second_runs import (
    OUTPUT_TOLERANCE,
    Deviation,
    first_deviation,
    output_difference,
    relative_difference,
    run_with_other_tokens,
)
from tracer.ops import ATTENTION, CONCATENATIONS, CONVOLUTIONS, MATMULS, NORMS, PADS, RECURRENT, base
from tracer.record import Op, TensorRecord

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


# Later tokens: of a model that predicts the next one, no earlier output may depend on them.

HIDE_LATER = "Hide later tokens in every attention: `is_causal=True`, or a mask of `torch.ones(T, T).tril()`."
PAD_LEFT = "Pad the beginning alone: `F.pad(x, (kernel - 1, 0))`, and no padding in the convolution."
NORM_TOKEN = (
    "Norm and average over the features of one token (`dim=-1`), or over the tokens up to it:"
    " `x.cumsum(1) / torch.arange(1, T + 1)[:, None]`."
)
SHIFT_RIGHT = "Move tokens to the right, so that each reads the one before it: `F.pad(x, (0, 0, 1, 0))[:, :-1]`."
READ_FORWARD = "Read the text in one direction: `bidirectional=False`."
FROM_EARLIER = "Compute the answer at a token from this token and those before it."


class Leak(NamedTuple):
    """A text that a model continues, how far what it predicts moves with later tokens, the first op whose result moves,
    and the position of the first token that was changed."""

    text: Continuation
    share: float
    op: Op | None
    first: int


def leaks(run: RunView) -> Iterator[Leak]:
    """Yield the texts where an answer moves with a later token."""
    for text in continuations(run):
        if (leak := _find_leak(run, text)) is not None:
            yield leak


def _find_leak(run: RunView, text: Continuation) -> Leak | None:
    """Return the leak of a text; None if no earlier answer moves.

    Two runs change the tokens from a position on, and from the next one, so that blocks of any length are cut once.
    """
    half = text.length // 2
    for first in sorted({max(half, 1), min(half + 1, text.length - 1)}):
        changed = run_with_other_tokens(run, text.name, text.axis, first)
        if changed is None:
            return None

        def deviation(
            record: TensorRecord,
            one: torch.Tensor,
            another: torch.Tensor,
            rows: int = first - text.start - text.shift + 1,
        ) -> float:
            axes = text.axes(record)
            if len(axes) != 1 or rows < 1 or one.shape != another.shape:
                return 0.0
            return relative_difference(one.narrow(axes[0], 0, rows), another.narrow(axes[0], 0, rows))

        leak = _compare(run, text, changed, deviation, first)
        if leak is not None:
            return leak
    return None


def _compare(run: RunView, text: Continuation, changed: Recording, deviation: Deviation, first: int) -> Leak | None:
    if not text.logits:
        difference = output_difference(run, run.values, changed, deviation)
        return None if difference is None else Leak(text, difference.share, difference.op, first)
    record = run.record(text.logits)
    before, after = (recording.store.get(text.logits) for recording in (run.values, changed))
    if before is None or after is None or record is None or not run.has_same_ops(changed):
        return None
    share = deviation(record, before, after)
    if share <= OUTPUT_TOLERANCE:
        return None
    return Leak(text, share, first_deviation(run, run.values, changed, deviation, [text.logits]), first)


@rule(
    "label leak",
    leaks,
    "{known} A second run has other tokens in `{name}` from token {first} on, and the answer at {place} moves by"
    " {share:.2g} of the largest value: {verdict}{where}",
    "{repair}",
    lesson="mask",
    runs_again=True,
    explained_by=(
        "mask reversed",
        "mask after softmax",
        "mask without effect",
        "softmax axis",
        "axes mixed",
        "result dropped",
    ),
)
def find_leak(run: RunView, leak: Leak) -> Evidence | None:
    """Find an answer at a token that moves when only later tokens change."""
    op = leak.op
    makers = [] if op is None else _moved_makers(run, op)
    if run.trains and any("batch_norm" in near.op for near in (*makers, *([op] if op else []))):
        return None
    rows = leak.first - leak.text.start - leak.text.shift + 1
    return Evidence(
        *(near.index for near in makers),
        *([op.index] if op else []),
        known=leak.text.known,
        verdict=leak.text.verdict,
        name=leak.text.name,
        first=leak.first,
        place="token 0" if rows == 1 else f"tokens 0 to {rows - 1}",
        share=leak.share,
        where=f" It begins with the operation {op.op} in {op.module or 'the model itself'}." if op else "",
        repair=FROM_EARLIER if op is None else _leak_repair(run, op, makers),
    )


def _moved_makers(run: RunView, op: Op) -> list[Op]:
    """Return the ops that computed the operands of an op by statistics, which have no axis of tokens any more."""
    makers = [run.trace.ops[tensor.maker] for tensor in op.inputs if isinstance(tensor.maker, int)]
    return [near for near in makers if base(near.op) in STATISTICS]


def _leak_repair(run: RunView, op: Op, makers: list[Op]) -> str:
    """Return the repair that fits the first op whose result moves."""
    name = base(op.op)
    around = {call.op.name for call in run.graph.calls if call.first <= op.index < call.last}
    results = {site.result for site in run.sites}
    attends = any(
        ref.key in results for call in run.graph.calls if call.first <= op.index < call.last for ref in call.outputs
    )
    names = {name, *around}
    if attends or ATTENTION in names or any("attention" in each for each in names):
        return HIDE_LATER
    if names & CONVOLUTIONS:
        return PAD_LEFT
    if names & NORMS or names & STATISTICS or makers:
        return NORM_TOKEN
    if names & RECURRENT or any(word in name for word in ("rnn", "lstm", "gru")):
        return READ_FORWARD
    if names & (CONCATENATIONS | PADS) or name in ("roll", "slice", "narrow", "index", "copy", "constant_pad_nd"):
        return SHIFT_RIGHT
    return HIDE_LATER if names & MATMULS else FROM_EARLIER
