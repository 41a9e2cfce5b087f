"""Statements of the notes about a model, looked up and measured again on this run; some of the numbers in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tracer.lessons.notes import claims, lookup
from tracer.lessons.notes.claims.measurement import tensor_of
from tracer.lessons.notes.reference_runs import RUNS
from tracer.lessons.notes.statements import rows
from tracer.utils.note_titles import TITLES
from tracer.verify.checks.reference_run import PlainRun, array

FACTORS = (1000, 100, 10)
"""What scores are multiplied by where gradients of the softmax are measured."""


def problems(run: PlainRun) -> Iterator[str]:
    """Yield statements that do not hold as claimed; only at the sizes and options that the notes are read at."""
    name, model, trace = run.model.name, run.model, run.trace
    if not _of_notes(run):
        return
    for row in (row for note in TITLES for row in rows(note) if row.run == name):
        for place in (place for place in row.where if not place.startswith(("claim ", "slip "))):
            if lookup.look(row, place, lambda _: (model, trace)).verdict == "not":
                yield f"note {row.note}, statement {row.number}: {place} is not as it says"
    for claim in (
        claim_name for claim_name in claims.CLAIMS if name in {row.run for row in claims.statements(claim_name)}
    ):
        measured = claims.CLAIMS[claim](model, trace)
        if measured.verdict != claims.DIFFERS.get(claim, "holds"):
            yield f"the claim {claim} is “{measured.verdict}” on this run: {measured.text}"
        for number in NUMBERS.get(claim, lambda run: ())(run):
            if number not in measured.text:
                yield f"the claim {claim} does not say {number}, which NumPy makes of this run: {measured.text}"


def _of_notes(run: PlainRun) -> bool:
    """Return whether a run of the notes is of this model, at its own sizes and first options, with its own weights."""
    known, model = RUNS.get(run.model.name), run.model
    if known is None or known.model != model.name or not known.shipped:
        return False
    first = all(model.options[name] == choices[0] for name, choices in model.spec.options.items())
    return first and model.sizes == (model.card or {}).get("sizes", model.spec.sizes)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


def _far(run: PlainRun) -> list[str]:
    """Check the mean distance in every block, and that of even attention, cell by cell of the grid."""
    picture = run.trace.picture
    if picture is None:
        return []
    at = np.stack(np.divmod(np.arange(picture.rows * picture.columns), picture.columns), 1)
    apart = np.sqrt(((at[:, None] - at[None]) ** 2).sum(-1))
    maps = [each.reshape(-1, *each.shape[-2:]).mean(0)[picture.first :, picture.first :] for each in run.softmaxes]
    return [f"{(each * apart).sum() / each.sum():.2f}" for each in maps] + [f"would be {apart.mean():.2f}"]


def _soft_lookup(run: PlainRun) -> list[str]:
    weights = run.softmaxes[0]
    return [f"gets {_percent(weights.max(-1).mean())}", f"gets {_percent((1 / (weights > 0).sum(-1)).mean())}"]


def _heads_differ(run: PlainRun) -> list[str]:
    weights = run.softmaxes[0].reshape(-1, *run.softmaxes[0].shape[-2:])
    pairs = [(i, j) for i in range(len(weights)) for j in range(i)]
    return [f"put {_percent(np.mean([np.abs(weights[i] - weights[j]).sum(-1).mean() / 2 for i, j in pairs]))}"]


def _gradients(run: PlainRun) -> list[str]:
    """Check the norm of diag(a) − aaᵀ, of rows a whose logarithms are multiplied, which scales the scores."""
    scores = np.log(run.softmaxes[0].reshape(-1, run.softmaxes[0].shape[-1]))
    width = next(step.shape[-1] for step in run.trace.steps if step.id == "block1.attention.query")

    def norm(factor: float) -> str:
        powers = np.exp(factor * (scores - scores.max(-1, keepdims=True)))
        rows = powers / powers.sum(-1, keepdims=True)
        return f"{np.mean([np.linalg.norm(np.diag(row) - np.outer(row, row)) for row in rows]):.2g}"

    return [f"{norm(1)} at this run's scores", f"{norm(np.sqrt(width))} without its"] + [
        f"{norm(factor)} at × {factor:,}" for factor in FACTORS
    ]


def _cross_terms(run: PlainRun) -> list[str]:
    """Check queries and keys of contents and of positions, by the parameters themselves."""
    content, both = (array(tensor_of(run.trace, id))[0] for id in ("embedding", "position"))
    parameters = {name: array(value) for name, value in run.model.net.named_parameters()}
    h = run.model.sizes["h"]

    def parts(name: str) -> list[np.ndarray]:
        W, bias = parameters[f"block1.attention.{name}.weight"], parameters.get(f"block1.attention.{name}.bias", 0)
        return [
            rows.reshape(len(content), h, -1).swapaxes(0, 1) for rows in (content @ W.T + bias, (both - content) @ W.T)
        ]

    queries, keys = parts("query"), parts("key")
    terms = [[q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) for k in keys] for q in queries]
    total = sum(terms[0]) + sum(terms[1])

    def elsewhere(left_out: np.ndarray) -> str:
        return _percent((np.argmax(total - left_out, -1) != np.argmax(total, -1)).mean())

    cross = terms[0][1] + terms[1][0]
    share = _percent((cross**2).sum() / (total**2).sum())
    return [f"cross terms {elsewhere(cross)}", f"squares are {share}", f"position {elsewhere(terms[1][1])}"]


NUMBERS: dict[str, Callable[[PlainRun], list[str]]] = {
    "far": _far,
    "soft_lookup": _soft_lookup,
    "heads_differ": _heads_differ,
    "gradients": _gradients,
    "cross_terms": _cross_terms,
}
"""What the text of a claim has to hold, of numbers that are computed here by other code."""
