"""One of our models at other sizes and options than its defaults: what a run of it costs, and whether it runs here."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pages.jobs import run_cache
from tracer import models
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import amount

if TYPE_CHECKING:
    from tracer.record import costs as record_costs
    from tracer.record.costs import Scaling
else:  # imported when first used
    record_costs = lazy_import("tracer.record.costs")

FLOPS = 20e9
"""Of a run at sizes that a visitor chose, at most: about a second on two cores."""


NUMBERS = 60e6
"""Of all tensors of its textbook together, and of its parameters, at most: 240 MB each."""


DOING = "Deriving formulas from a run of the model"


MAX_SIZE = 10**9
"""Of a size that is put into a formula."""


def default_option(model: str, option: str) -> object:
    """Return the default of an option or a size of one of our models: the value that its weights were trained with. One
    input is run at once; None for the other sizes of an input."""
    try:
        trained = models.shipped_config(model)
    except ValueError:  # a damaged card, of which the page says so
        trained = {name: choices[0] for name, choices in models.spec_of(model).options.items()}
    return trained.get(option, 1 if option == "B" else None)


def chosen_sizes(model: str, options: run_cache.Options) -> dict[str, int]:
    """Return the sizes among the choices for a model."""
    known = sizes(model)
    return {name: value for name, value in options if name in known and isinstance(value, int)}


def sizes(model: str) -> tuple[str, ...]:
    """Return the selectable sizes of a model: those of its weights, then those of its input."""
    if model not in models.names():
        return ()
    spec = models.spec_of(model)
    return (*spec.sizes, *spec.runs)


def options_only(model: str, options: run_cache.Options) -> run_cache.Options:
    """Return the options alone, without sizes and changes: the formulas of a run with them hold for all its sizes."""
    known = sizes(model)
    return tuple((name, value) for name, value in run_cache.without_changes(options) if name not in known)


def scaling(model: str, options: run_cache.Options) -> Scaling:
    """Return the formulas of a model with these options, from a run at its default sizes, computed once for all
    visitors; those of the cache from the run that reads the last token after it, of a model that writes."""
    plain = options_only(model, options)
    return run_cache.shared_result("costs", (model, plain), lambda: _scaling(model, plain), DOING)


def _scaling(model: str, options: run_cache.Options) -> Scaling:
    from tracer.record.costs import scaling as formulas  # loads sympy

    loaded, run = run_cache.in_line(model, options)
    costs = formulas(run)
    if models.spec_of(model).decoder is None:
        return costs
    try:
        cached = loaded.trace(cache=True, prove=False)
    except ValueError:  # with a mask that looks ahead, keys of earlier tokens change with each new one
        return costs
    return replace(costs, cache=record_costs.elements_of_whole(run, cached))


def impossible(model: str, options: run_cache.Options, formulas: Scaling) -> str:
    """Return the reason why no such model can be built, however large, in a sentence; empty where one can."""
    try:
        models.check(model, run_cache.split_options(model, options)[0])
        full = formulas.complete(chosen_sizes(model, options))
    except ValueError as error:
        return f"{error}."
    if full.get("T", 0) > full.get("T_max", full.get("T", 0)):
        return f"T={full['T']:,} tokens are too many: the position table has T_max={full['T_max']:,} rows."
    return ""


def problem(model: str, options: run_cache.Options) -> str:
    """Return the reason why a model does not run here at these sizes, in a sentence; empty where it does."""
    if not (wanted := chosen_sizes(model, options)):
        return ""
    formulas = scaling(model, options)
    if wrong := impossible(model, options, formulas):
        return wrong
    numbers = formulas.numbers(wanted)
    for name, most, what in (
        ("params", NUMBERS, "parameters"),
        ("flops", FLOPS, "FLOPs"),
        ("tensors", NUMBERS, "numbers in its tensors"),
    ):
        count = numbers[name]
        if count is None or count > most:
            count_text = "more" if count is None else amount(count)
            limit = f"this server runs up to {amount(most)}"
            return f"This size would take {count_text} {what}; {limit}. The formulas still hold."
    return ""
