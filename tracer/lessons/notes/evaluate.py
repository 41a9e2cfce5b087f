"""Evaluation of a note on its runs: for each statement the op that ran, the measurement, and a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tracer.lessons.notes.claims import CLAIMS, Measurement, attention, structure
from tracer.lessons.notes.lookup import look
from tracer.lessons.notes.measurement import Provider
from tracer.lessons.notes.statements import Finding, StatementRow, Verdict
from tracer.record import Trace
from tracer.spec.spec import Model
from tracer.utils.job_queue import tell

VERDICT_ORDER: tuple[Verdict, ...] = ("not", "sense", "holds", "elsewhere")


class StatementResult(NamedTuple):
    """A statement, and all of its results."""

    row: StatementRow
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """Worst verdict of the results."""
        return min((finding.verdict for finding in self.findings), key=VERDICT_ORDER.index)

    @property
    def slips(self) -> tuple[str, ...]:
        """Differences between the note and the run, a sentence each."""
        told = (finding.slip for finding in self.findings if finding.slip and finding.verdict != "holds")
        return tuple(dict.fromkeys(told))


def results(wanted: Sequence[StatementRow], run: Provider) -> tuple[StatementResult, ...]:
    """Return the results of statements, looked up in the runs that `run` returns."""
    looked_up = []
    for at, row in enumerate(wanted):
        tell(at, len(wanted), "statement")
        looked_up.append(result(row, run))
    return tuple(looked_up)


def result(row: StatementRow, run: Provider) -> StatementResult:
    """Return the results of one statement."""
    return StatementResult(row, tuple(look(row, place, run) for place in row.where))


# Claims that are measured on any model, in the order on screen, with the words of the notes.


class ClaimCard(NamedTuple):
    """A claim, the words of a note, and the names of its measurements."""

    title: str
    says: str
    claims: tuple[str, ...]


CARDS = (
    ClaimCard(
        "Attention as a soft lookup",
        "Note 002: “a *soft* key–value database lookup”. A plain one finds the key that equals the query; a soft one "
        "compares the query with every key and returns a mixture of all values.",
        ("soft_lookup", "mixture"),
    ),
    ClaimCard(
        "Attention without positions, and the order of its tokens",
        "Note 001: attention “is permutation-invariant: shuffling the rows of $Z$ produces the same result.”",
        ("order",),
    ),
    ClaimCard(
        "One matrix for queries and keys, or two",
        "Note 001: with one matrix, “token $i$ attends to $j$ exactly as much as $j$ attends to $i$”; with two it need "
        "not be so.",
        ("symmetric", "asymmetric"),
    ),
    ClaimCard(
        "The spread of products, and $d_k$",
        "Note 001: “without scaling the variance grows as $d_k$”; dividing by $\\sqrt{d_k}$ brings "
        "it “back to $O(1)$”.",
        ("spread",),
    ),
    ClaimCard(
        "Large scores and their gradients",
        "Note 002, from the 2017 paper: “pushing the softmax function into regions where it has extremely small "
        "gradients.”",
        ("gradients",),
    ),
    ClaimCard(
        "Who may attend to whom",
        "Note 002: a mask is optional, and matters for autoregressive models, where no token may see "
        "what comes after it.",
        ("whom",),
    ),
    ClaimCard(
        "How far attention looks",
        "Note 001: “the relevance of a patch often depends on context far away”.",
        ("far",),
    ),
    ClaimCard(
        "Comparing, and passing on",
        "Note 001: raw tokens could attend too; with $W_V$ apart from $W_Q$ and $W_K$ attention is routed by one "
        "criterion while something else is passed forward.",
        ("routing", "raw", "comparison"),
    ),
    ClaimCard(
        "What heads look at",
        "Note 002: each head has a subspace of its own, and different heads “look at” different representations.",
        ("heads_are_columns", "heads_differ", "merged"),
    ),
    ClaimCard(
        "What a norm bounds",
        "Note 001: without it, dot products “grow in an uncontrolled way”.",
        ("bound",),
    ),
    ClaimCard(
        "What γ and β undo",
        "Note 001: “the network can undo the normalization if needed”.",
        ("undo",),
    ),
    ClaimCard(
        "What the MLP mixes",
        "Note 001 and note 004: it is applied “independently” to each; attention mixes, the MLP refines.",
        ("mlp_alone", "complementary"),
    ),
    ClaimCard(
        "A block as a correction to the identity",
        "Note 001: “the attention block only needs to learn a correction to the identity”.",
        ("correction",),
    ),
    ClaimCard(
        "The residual as a gradient highway",
        "Note 001: “gradients flow directly through the addition”.",
        ("highway",),
    ),
)
"""The cards in order."""

Lines = Mapping[str, Sequence[float]]
"""Numbers by block, under their names."""


def _far(model: Model, trace: Trace) -> Lines:
    distances = attention.distances(trace)
    return {"mean distance": distances, "shared evenly": [attention.even_distance(trace)] * len(distances)}


def _correction(model: Model, trace: Trace) -> Lines:
    attention, mlp = zip(*structure.corrections(trace), strict=True)
    return {"‖O‖/‖X‖, attention": attention, "‖F‖/‖X′‖, MLP": mlp}


def _highway(model: Model, trace: Trace) -> Lines:
    whole, branches, without = zip(*structure.highways(model, trace), strict=True)
    return {"with the sums": whole, "through the branches alone": branches, "run without the sums": without}


CHARTS: Mapping[str, Callable[[Model, Trace], Lines]] = {
    "far": _far,
    "correction": _correction,
    "highway": _highway,
}
"""The chart of a claim, block by block."""


class Measurements(NamedTuple):
    """Measurement of each claim, or the reason why it does not apply to the model; and the numbers of the drawn
    ones."""

    claims: Mapping[str, Measurement | str]
    curves: Mapping[str, Lines]


def measure_cards(model: Model, trace: Trace, names: Iterable[str] | None = None) -> Measurements:
    """Return the measurements of these claims on one run, by default those of all cards."""
    cards: dict[str, Measurement | str] = {}
    curves: dict[str, Lines] = {}
    for name in names or (name for card in CARDS for name in card.claims):
        try:
            cards[name] = CLAIMS[name](model, trace)
            if name in CHARTS:
                curves[name] = CHARTS[name](model, trace)
        except ValueError as error:
            cards[name] = str(error)
    return Measurements(cards, curves)
