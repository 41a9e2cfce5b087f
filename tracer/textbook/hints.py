"""What a person adds to a derived textbook: a letter, a title, the reason for a line, where it is from.

Hints stand beside the model that they are for, 10 to 40 lines of them. A book without any is complete, only drier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import cast

from tracer.textbook.claims import Claim, Context, Explanation, Why, explain

GIVEN = "parameter ", "input "


@dataclass(frozen=True)
class Hint:
    r"""What is said of the lines that fit `at`, `role` and `module`, patterns with `*`; what is "" stays as derived.

    `at` is the line's id without hints (`"*.attention.scores"`), `role` what it is (`"S masked"`, see
    `Roles.detail`), `module` the path of the module that runs it. `letter` is the symbol without the block's number
    (`r"\mathbf{X}_t"`), `below` stands below the line's matrix and bias, `id` replaces the id behind the block's
    path, and `source` names a paper with its section or equation. `why` are claims: one that does not hold of the run
    is not shown, and `verify` fails; a plain text explains in general. So it is with `note`, which says how texts and
    the run differ; of its claims those that do not hold are not shown. Of several hints that fit, the later ones count.

    `apart` names calls directly in `module`, such as `"add"` or `"slice"`: what they make has a line of its own, even
    where it would be read inside another. At `"parameter PATH"` or `"input NAME"` a hint gives the letter of what the
    run was given.
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

    def fits(self, at: str, role: str, module: str) -> bool:
        """Whether it is said of this line."""
        given = (at, self.at), (role, self.role), (module, self.module)
        return all(fnmatchcase(found, pattern) for found, pattern in given)

    def says(self) -> bool:
        """Whether it says anything of lines."""
        return not self.at.startswith(GIVEN) and any(getattr(self, name) for name in SAID)

    def reason(self, derived: Why, context: Context) -> Explanation:
        """Why the line is there, in its own words or as derived, and which paper says so."""
        own = (Claim(self.why),) if isinstance(self.why, str) else self.why
        found = explain(own or derived, context, strict=bool(own))
        source = f"Source: {self.source}." if self.source else ""
        return found._replace(text=" ".join(filter(None, (found.text, source))))

    def remark(self, context: Context) -> str:
        """How texts differ from this line; what the run contradicts is left out."""
        claims = () if isinstance(self.note, str) else cast(tuple[Claim, ...], self.note)
        return self.note if isinstance(self.note, str) else " ".join(filter(None, (one.of(context) for one in claims)))


SAID = tuple(field.name for field in fields(Hint) if field.name not in ("at", "role", "module", "apart"))
"""What a hint may say of a line."""


class Hints:
    """The hints of one model, and which of them fitted a line of this book."""

    def __init__(self, hints: Iterable[Hint] = ()):
        self._hints = tuple(hints)
        self.fitted: set[Hint] = set()

    def of(self, at: str, role: str = "", module: str = "") -> Hint:
        """All that is said of a line, as one hint."""
        found = [hint for hint in self._hints if hint.fits(at, role, module) and hint.says()]
        self.fitted.update(found)
        said = {name: value for hint in found for name in SAID if (value := getattr(hint, name))}
        return Hint(at, role, module, **said)

    def letter(self, given: str) -> str:
        """The letter of a parameter or an input, by its key; "" where nobody says one."""
        found = [hint for hint in self._hints if hint.at.startswith(GIVEN) and fnmatchcase(given, hint.at)]
        self.fitted.update(found)
        return found[-1].letter if found else ""

    def apart(self, call: str, module: str) -> bool:
        """Whether what a call makes has a line of its own by what people say."""
        found = [hint for hint in self._hints if hint.apart == call and fnmatchcase(module, hint.module)]
        self.fitted.update(found)
        return bool(found)


def idle(hints: Sequence[Hint], books: Iterable) -> list[Hint]:
    """The hints that fitted no line of these books: a test fails for them, a run does not."""
    fitted = set().union(*(book.fitted for book in books))
    return [hint for hint in hints if hint not in fitted]
