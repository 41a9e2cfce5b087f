"""Five kinds of positions for attention, on one model of the same sizes, weights and tokens."""

from collections.abc import Iterable
from typing import NamedTuple

from tracer.record import Step

NO_POSITIONS = "none"
"""No positions, the baseline of the others."""


class PositionKind(NamedTuple):
    """A kind of positions: name, title, paper, and sentences on how they enter and how scores split into terms."""

    name: str
    title: str
    paper: str
    says: str
    apart: str


_ADDED = (
    "Queries and keys are computed from token plus position, so each score is a sum of four products: content or "
    "position of the query times content or position of the key."
)

KINDS = (
    PositionKind(
        "sinusoidal",
        "Sinusoidal",
        "Vaswani et al. 2017, section 3.5",
        "Waves over the position, from fast to slow, are added to each token. None of this is learned.",
        _ADDED,
    ),
    PositionKind(
        "learned",
        "Learned",
        "Devlin et al. 2019, section 3",
        "A row of a table is added to the token. Training sets its numbers; here they are random.",
        _ADDED,
    ),
    PositionKind(
        "relative",
        "Relative",
        "Shaw et al. 2018, equations 3 to 5",
        "Each query also meets a vector for its distance to the key. Distances beyond R count as R.",
        "Nothing is added to the tokens, so no position meets a position. Each score is the match of the query with "
        "the key, plus its match with the vector for their distance.",
    ),
    PositionKind(
        "rotary",
        "Rotary",
        "Su et al. 2021, equation 34",
        "Queries and keys are rotated, one pair of numbers at a time, by angles that grow with the position.",
        "Nothing is added to the tokens, so the four products do not exist: the position rotates the content. Each "
        "pair of numbers contributes one part times the cosine of the angle between the two positions, and one part "
        "times its sine.",
    ),
    PositionKind(
        "alibi",
        "ALiBi",
        "Press et al. 2022, section 3",
        "A penalty grows with the distance, by a slope that differs from head to head. None of it is learned.",
        "Nothing is added to the tokens. Each score is the match of query and key, minus a penalty that does not "
        "depend on content.",
    ),
)
"""All kinds of positions, in the order of their papers; `encodings.py` has a class for each. A page is drawn from these
before torch is loaded."""


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
