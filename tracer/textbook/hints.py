"""Hints that a person adds to a derived textbook: a letter, a title, an explanation, a source.

Hints are beside the model that they are for, 10 to 40 lines of them. A book without hints is complete, only drier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import cast

from tracer.textbook.claims import Claim, Context, Explanation, Why, explain

SOURCE_PREFIXES = "parameter ", "input "


@dataclass(frozen=True)
class Hint:
    r"""Labels for the lines that match `at`, `role` and `module`, patterns with `*`; "" keeps what was derived.

    `at` is the line's id without hints (`"*.attention.scores"`), `role` its role (`"S masked"`, see `Roles.detail`),
    `module` the path of the module that runs it. `letter` is the symbol without the block's number (`r"\mathbf{X}_t"`),
    `below` the subscript of the line's matrix and bias, `id` replaces the id after the block's path, and `source` names
    a paper with its section or equation. `why` are claims: one that does not hold of the run is not shown, and `verify`
    fails; a plain text explains in general. `note` is on differences between texts and the run; its claims that do not
    hold are not shown. Of several hints that match, the later ones count.

    `apart` names calls directly in `module`, such as `"add"` or `"slice"`, whose results get lines of their own instead
    of being inlined. `intent` acknowledges the findings of the rule `finding`: the reason why what looks like a mistake
    is on purpose. At `"parameter PATH"` or `"input NAME"` a hint sets the letter of a parameter or input.
    """

    at: str = "*"
    role: str = "*"
    module: str = "*"
    title: str = ""
    why: Why | str = ()
    note: Why | str = ()
    source: str = ""
    letter: str = ""
    below: str = ""
    stage: str = ""
    id: str = ""
    apart: str = ""
    finding: str = ""
    intent: str = ""

    def fits(self, at: str, role: str, module: str) -> bool:
        """Return whether the hint applies to this line."""
        conditions = (at, self.at), (role, self.role), (module, self.module)
        return all(fnmatchcase(value, pattern) for value, pattern in conditions)

    def says(self) -> bool:
        """Return whether the hint sets anything for lines."""
        return not self.at.startswith(SOURCE_PREFIXES) and any(getattr(self, name) for name in HINT_FIELDS)

    def reason(self, derived: Why, context: Context) -> Explanation:
        """Return the explanation of the line, from the hint or as derived, with its source."""
        own = (Claim(self.why),) if isinstance(self.why, str) else self.why
        explanation = explain(own or derived, context, strict=bool(own))
        source = f"Source: {self.source}." if self.source else ""
        return explanation._replace(text=" ".join(filter(None, (explanation.text, source))))

    def remark(self, context: Context) -> str:
        """Return the note on how texts differ from this line, without claims that the run contradicts."""
        claims = () if isinstance(self.note, str) else cast(tuple[Claim, ...], self.note)
        return (
            self.note if isinstance(self.note, str) else " ".join(filter(None, (claim.of(context) for claim in claims)))
        )


HINT_FIELDS = tuple(
    field.name for field in fields(Hint) if field.name not in ("at", "role", "module", "apart", "finding", "intent")
)
"""Fields that a hint can set for a line."""


class Hints:
    """Hints of one model, and those that matched a line of this book."""

    def __init__(self, hints: Iterable[Hint] = ()):
        self._hints = tuple(hints)
        self.matched_hints: set[Hint] = set()

    def of(self, at: str, role: str = "", module: str = "") -> Hint:
        """Return all hints for a line, merged into one."""
        matching = [hint for hint in self._hints if hint.fits(at, role, module) and hint.says()]
        self.matched_hints.update(matching)
        texts = {name: value for hint in matching for name in HINT_FIELDS if (value := getattr(hint, name))}
        return Hint(at, role, module, **texts)

    def letter(self, name: str) -> str:
        """Return the letter of a parameter or an input, by its key; "" if no hint sets one."""
        matching = [hint for hint in self._hints if hint.at.startswith(SOURCE_PREFIXES) and fnmatchcase(name, hint.at)]
        self.matched_hints.update(matching)
        return matching[-1].letter if matching else ""

    def separates(self, call: str, module: str) -> bool:
        """Return whether a hint assigns the result of a call a line of its own."""
        matching = [hint for hint in self._hints if hint.apart == call and fnmatchcase(module, hint.module)]
        self.matched_hints.update(matching)
        return bool(matching)


def idle(hints: Sequence[Hint], books: Iterable) -> list[Hint]:
    """Return the hints that matched no line of these books; a test fails for them, a run does not."""
    matched = set().union(*(book.matched_hints for book in books))
    return [hint for hint in hints if hint not in matched]
