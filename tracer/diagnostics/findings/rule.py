"""Interface of a rule, and of what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tracer.record import Finding

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView

__all__ = ["Finding", "Rule"]

DOCUMENT = "docs/findings.md"
"""Where each rule has a section."""


class Rule(NamedTuple):
    """A rule: its name, the function that applies it to a run, and the address of the page of the app that explains its
    subject, "" for none. One that `runs_again` needs the model, and values of a run besides those of the trace."""

    kind: str
    apply: Callable[[RunView], Iterable[Finding]]
    lesson: str = ""
    runs_again: bool = False

    @property
    def document(self) -> str:
        """Section about the rule: `docs/findings.md#axes-mixed`."""
        return f"{DOCUMENT}#{self.kind.replace(' ', '-')}"
