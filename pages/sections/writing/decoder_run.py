"""Run on screen and the run that reads its last token after a cache, computed once for all who look at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pages.jobs import render_cache, run_cache, single_flight
from pages.state import session
from pages.state.next_token_run import next_token_run
from pages.state.visitor import UserInput, visitor
from pages.ui.texts import sentence
from tracer.record import Trace

if TYPE_CHECKING:
    from tracer.lessons.writing.cache_costs import CacheCosts
    from tracer.lessons.writing.padding import PaddedAnswer

DOING = "Reading the last token from a cache"
MAX_TEXTS = 64
"""Tokens whose texts the browser gets."""


class DecoderRun(NamedTuple):
    """A run of a whole text, `trace`, and of its last token after a cache, `cached`, with the costs of both.

    `logits` are those of the last token, float32 `[V]`, `names` the texts of the likeliest tokens by their numbers,
    `answers` those to its first half in a batch. `problem` says why there is no run with a cache.
    """

    trace: Trace
    logits: bytes
    names: Mapping[int, str]
    cached: Trace | None = None
    costs: CacheCosts | None = None
    answers: tuple[PaddedAnswer, ...] = ()
    problem: str = ""


def current() -> DecoderRun:
    """Return the run on screen if its model writes, else that of a model that does, on its sample."""
    run = next_token_run("Your model does not write text")
    return render_cache.of(run.trace, "decoder", lambda: single_flight.in_turn(lambda: _compute(*run), DOING))


def is_own() -> bool:
    """Return whether the run on screen is one that can be continued."""
    return visitor().instead == ""


def _compute(name: str, options: run_cache.Options, chosen: UserInput, trace: Trace) -> DecoderRun:
    """Return both runs; does not use the session."""
    from tracer.lessons.writing import cache_costs, padding  # these load torch
    from tracer.models.shared.predictions import token_names
    from tracer.tracing.proofs import counterfactual_budget

    model = run_cache.load(name, options)
    spell = model.spec.spell or token_names
    logits = cache_costs.last_logits(trace)
    best = logits.topk(min(MAX_TEXTS, len(logits))).indices.tolist()
    names = dict(zip(best, spell(model, best), strict=True))
    run = DecoderRun(trace, logits.numpy().tobytes(), names)
    inputs = session.inputs(model, chosen, options)
    try:
        cached = counterfactual_budget.check(model.trace(cache=True, **inputs))
        costs = cache_costs.costs(trace, cached)
        answers = tuple(padding.compare_sides(model, inputs.get("text"), inputs.get("image")))
    except ValueError as error:
        return run._replace(problem=sentence(str(error)))
    return run._replace(cached=cached, costs=costs, answers=answers)
