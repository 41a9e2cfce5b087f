"""Claims: sentences about a run, each with a predicate that is evaluated on the run that shows it.

A `Why` is a sequence of claims. Each is shown where its predicate holds; of alternatives, a tuple in the place of a
claim, the first that holds. A claim without a predicate explains in general: it is worded so that no run can contradict
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tracer.textbook.claims.context import Context


@dataclass(frozen=True)
class Claim:
    """A sentence, and the predicate that says whether it holds of a line; `fill` gives the values of its fields, such
    as `{products}`, and None where they are unknown. An `optional` one may be false of a line: it is then left out."""

    text: str
    holds: Callable[[Context], bool] | None = None
    fill: Callable[[Context], dict | None] | None = None
    optional: bool = False

    @property
    def general(self) -> bool:
        """Whether it states nothing of the run."""
        return self.holds is None

    def of(self, context: Context) -> str:
        """The sentence as it is shown of a line; empty where it does not hold, or cannot be evaluated."""
        try:
            if self.holds is not None and not self.holds(context):
                return ""
            values = self.fill(context) if self.fill else {}
        except Exception:  # a form that no predicate foresaw: what cannot be evaluated is not shown
            return ""
        return "" if values is None else self.text.format(**values) if self.fill else self.text


Why = tuple["Claim | tuple[Claim, ...]", ...]


class Explanation(NamedTuple):
    """What is said of a line: the sentences together, those of them that state a fact, and the claims that were made of
    it and do not hold."""

    text: str = ""
    facts: tuple[str, ...] = ()
    refuted: tuple[str, ...] = ()


def explain(why: Why, context: Context, strict: bool = False) -> Explanation:
    """Evaluate a why on a line. Its first claim names what the line is, so it is refuted where that does not hold, and
    nothing is said; `strict`, as for what people say of one model, refutes each claim that does not hold."""
    shown, facts, refuted = [], [], []
    for number, entry in enumerate(why):
        alternatives = entry if isinstance(entry, tuple) else (entry,)
        claim, text = next(((one, text) for one in alternatives if (text := one.of(context))), (None, ""))
        if claim is None:
            if number == 0 or (strict and not any(one.optional for one in alternatives)):
                refuted.append(alternatives[0].text)
            if number == 0:
                break
            continue
        shown.append(text)
        if not claim.general:
            facts.append(text)
    return Explanation(" ".join(shown), tuple(facts), tuple(refuted))


def claims(why: Why) -> tuple[Claim, ...]:
    """All claims of a why, the alternatives too."""
    return tuple(claim for entry in why for claim in (entry if isinstance(entry, tuple) else (entry,)))
