"""Doubts about a repair that runs: what the findings say of the repaired run."""

from __future__ import annotations

from typing import Any

from torch import nn

from tracer.diagnostics import findings
from tracer.record import Finding
from tracer.tracing import trace

CONFUSIONS = frozenset(
    (
        "axes mixed",
        "samples mixed",
        "samples told apart",
        "softmax axis",
        "attention over heads",
        "mask reversed",
        "mask corner",
        "mask empty row",
        "padding mask reversed",
        "padding attended",
        "labels of another sample",
        "position shared",
    )
)
"""Findings that a repair may cause: it confuses axes, samples, or who may see whom."""


def doubts_of(module: nn.Module, args: tuple, kwargs: dict[str, Any], symbols: dict[str, Any]) -> tuple[str, ...]:
    """Return what the findings say of a repaired run, each a sentence."""
    run = trace(module, *args, symbols=symbols, prove="later", **kwargs)
    found = (finding for finding in findings.find(run) if finding.kind in CONFUSIONS and not finding.intent)
    return tuple(dict.fromkeys(map(doubt_text, found)))


def doubt_text(finding: Finding) -> str:
    """Return the finding of a repaired run as a sentence."""
    return f"The repaired run has the finding “{finding.kind}”: {finding.message}"
