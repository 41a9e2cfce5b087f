"""Claims: sentences about a run, each with a predicate that is evaluated on the run that shows it.

A `Why` is a sequence of claims, each shown if its predicate holds. Of alternatives, a tuple of claims, the first that
holds is shown. A claim without a predicate explains in general: no run can contradict it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tracer.textbook.claims.context import Context


@dataclass(frozen=True)
class Claim:
    """A sentence, and a predicate that returns whether it holds for a line.

    `fill` returns the values of its fields, such as `{products}`, or None if they are unknown. An `optional` claim that
    does not hold is left out, and not refuted.
    """

    text: str
    holds: Callable[[Context], bool] | None = None
    fill: Callable[[Context], dict | None] | None = None
    optional: bool = False

    @property
    def general(self) -> bool:
        """True if it states nothing about the run."""
        return self.holds is None

    def of(self, context: Context) -> str:
        """Return the sentence for a line; empty if it does not hold, or cannot be evaluated."""
        try:
            if self.holds is not None and not self.holds(context):
                return ""
            values = self.fill(context) if self.fill else {}
        except Exception:  # a form that no predicate foresaw: what cannot be evaluated is not shown
            return ""
        return "" if values is None else self.text.format(**values) if self.fill else self.text


Why = tuple["Claim | tuple[Claim, ...]", ...]


class Explanation(NamedTuple):
    """Explanation of a line: its sentences together, those that state a fact, and refuted claims."""

    text: str = ""
    facts: tuple[str, ...] = ()
    refuted: tuple[str, ...] = ()


def explain(why: Why, context: Context, strict: bool = False) -> Explanation:
    """Evaluate claims on a line.

    The first claim describes the line: if it does not hold, it is refuted, and nothing is shown. With `strict`, as for
    hints of one model, each claim that does not hold is refuted.
    """
    shown, facts, refuted = [], [], []
    for number, entry in enumerate(why):
        alternatives = entry if isinstance(entry, tuple) else (entry,)
        claim, text = next(
            ((alternative, text) for alternative in alternatives if (text := alternative.of(context))), (None, "")
        )
        if claim is None:
            if number == 0 or (strict and not any(alternative.optional for alternative in alternatives)):
                refuted.append(alternatives[0].text)
            if number == 0:
                break
            continue
        shown.append(text)
        if not claim.general:
            facts.append(text)
    return Explanation(" ".join(shown), tuple(facts), tuple(refuted))


def claims(why: Why) -> tuple[Claim, ...]:
    """Yield all claims of an explanation, alternatives included."""
    return tuple(claim for entry in why for claim in (entry if isinstance(entry, tuple) else (entry,)))
