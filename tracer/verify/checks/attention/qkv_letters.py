"""Letters of queries, keys and values: each must match the operand of the scores.

The record of an attention says what the code multiplied as queries and as keys; the textbook's letters come from the
derivation. Where a tensor with a letter holds the very numbers of one of the two, the letter has to be its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from tracer.record import Step
from tracer.verify.checks.reference_run import PlainRun

LETTER = re.compile(r"\\mathbf\{([QKV])\}")


def problems(run: PlainRun) -> Iterator[str]:
    """Compare every step named Q, K or V with the queries and keys of each attention, and a block's number with the one
    in its path."""
    trace = run.trace
    for step in trace.steps:
        block = re.search(r"\bblock(\d+)\.", step.id)
        if block and step.layer != int(block[1]) - 1:
            yield f"step {step.id!r} is in layer {step.layer}, its path says {int(block[1]) - 1}"
        letter, value = LETTER.match(step.symbol), trace.value(step)
        if not letter or value is None:
            continue
        for record in trace.attentions:
            q, k = trace.values.get(record.q), trace.values.get(record.k)
            if q is None or k is None or hold_same_numbers(q, k):
                continue
            for name, operand in (("Q", q), ("K", k)):
                if hold_same_numbers(value, operand) and letter[1] != name:
                    yield f"{_label(step)} holds the numbers that attention {record.layer} took as {name}"


def hold_same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors hold the same numbers in the same order, or transposed, whatever the layout of their
    batch."""
    return a.numel() == b.numel() and any(x.reshape(-1).equal(b.reshape(-1)) for x in (a, a.mT if a.ndim > 1 else a))


def _label(step: Step) -> str:
    return f"step {step.id!r}, called {step.symbol},"
