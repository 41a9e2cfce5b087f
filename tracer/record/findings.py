"""Likely mistakes in a model's code, as plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """A place where a model runs and probably does not do what was meant.

    Attributes:
        kind: The name of the rule, such as "axes mixed"; `docs/findings.md` has a section of that name.
        step: The id of the step where it shows, "" where no step has it.
        ops: The ops concerned, in order; their `source` are the lines of code.
        message: What was measured, and what follows from it.
        fix: The repair, as code where there is one.
        intent: Why it is on purpose, from a hint or a comment in the code; "" for a finding that nobody acknowledged.
    """

    kind: str
    step: str
    ops: tuple[int, ...]
    message: str
    fix: str
    intent: str = ""
