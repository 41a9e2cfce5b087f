"""Measurement of a claim on a run."""

from __future__ import annotations

from typing import NamedTuple

import torch

from tracer.lessons.notes.finding import Verdict
from tracer.record import Trace, tolerance


class Measurement(NamedTuple):
    """A measured claim.

    It has its scope and measure; the numbers; the baseline or the counterfactual of the comparison, a sentence; the
    verdict that follows; and the page that shows it. Texts are markdown.
    """

    scope: str
    result: str
    baseline: str
    verdict: Verdict
    page: str = ""
    place: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """Scope, result and baseline as sentences in one line."""
        return f"Measured on {self.scope}: {self.result}. {self.baseline.rstrip('.')}."


def tensor_of(trace: Trace, id: str) -> torch.Tensor:
    """Return the tensor of a step.

    Raise ValueError, in a sentence, for a run without such a step, or without its tensor.
    """
    value = next((trace.value(step) for step in trace.steps if step.id == id), None)
    if value is None:
        raise ValueError(f"the run of {trace.model} kept no {id}")
    return value


def off(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return max|a - b| / max|b|; 0 if both are 0."""
    largest = float(b.abs().max())
    apart = float((a - b).abs().max())
    return apart / largest if largest else apart


def close(error: float) -> bool:
    """Return whether a difference is only rounding: at most the tolerance of a proven equation."""
    return error <= tolerance("float32")


def verdict_of(holds: bool) -> Verdict:
    """Return the verdict of a claim that either holds or does not."""
    return "holds" if holds else "not"
