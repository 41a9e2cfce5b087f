"""Five kinds of positions for attention, on one model of the same sizes, weights and tokens.

Every file of `encodings/` is one. Their literals are read without importing torch, so that a page can be drawn before
it is loaded.
"""

from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from tracer.record import Step
from tracer.utils.files import read_literals

NO_POSITIONS = "none"
"""No positions, the baseline of the others."""


class PositionKind(NamedTuple):
    """A kind of positions: name, title, paper, and sentences on how they enter and how scores split into terms."""

    name: str
    title: str
    paper: str
    says: str
    apart: str


@cache
def all_kinds() -> tuple[PositionKind, ...]:
    """Return all kinds of positions, in the order of their papers."""
    known = []
    for path in files(f"{__name__}.encodings").iterdir():
        if path.name.endswith(".py") and "ORDER" in (facts := read_literals(path)):
            known.append((facts["ORDER"], path.name.removesuffix(".py"), facts))
    required = ("TITLE", "PAPER", "SAYS", "SCORE_NOTE")
    return tuple(
        PositionKind(name, *(facts[entry] for entry in required))
        for _, name, facts in sorted(known, key=lambda entry: entry[:2])
    )


def position_kind(steps: Iterable[Step]) -> str | None:
    """Return the kind of positions that the lines of a run show, or None."""
    equations = {step.id: step.latex for step in steps if step.stage == "position"}
    lines = " ".join(equations.values())
    signs = {
        "rotary": r"\operatorname{rotate\_half}" in lines,
        "alibi": bool({"alibi", "penalty"} & equations.keys()),
        "relative": "distances" in equations,
        "sinusoidal": r"\sin" in lines,
        "learned": any("position" in id and r"\mathbf{P}" in latex for id, latex in equations.items()),
    }
    return next((kind for kind, there in signs.items() if there), None)
