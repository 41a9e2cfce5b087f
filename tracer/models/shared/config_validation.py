"""Checks of a net's sizes and options before building it takes time or memory."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from tracer.shapes.shadow_module import TooLarge, on_meta
from tracer.symbols.notation import MEANINGS, parse
from tracer.utils.error_text import quote, quoted_setting
from tracer.utils.limits import limits
from tracer.utils.thread_local_rng import seeded_draws

if TYPE_CHECKING:
    from tracer.models.shared.spec import Spec

DEEPEST = 256
"""The most blocks that a net is built with: building takes time even where it takes no memory."""


def check_config(spec: Spec, name: str, options: dict) -> None:
    """Raise ValueError with one sentence for a size or option that the model does not take.

    These are a size that the model lacks, that is derived or of the input's, a value that is not a positive integer,
    and an option that is not allowed.
    """
    for symbol, value in options.items():
        if symbol in spec.options:
            if value not in spec.options[symbol]:
                allowed = " or ".join(map(repr, spec.options[symbol]))
                raise ValueError(
                    f"{quoted_setting(symbol, value)} is not a choice of {quote(name)}, expected {allowed}"
                )
        elif symbol in spec.runs:
            raise ValueError(f"{symbol} is not a size of the weights but of the input: give it to inputs or trace")
        elif symbol in spec.derived or symbol == "S":
            equals = spec.derived.get(symbol)
            of = [size for size in spec.sizes if equals and size in _names(equals)]
            how = f" ({symbol} = {equals.replace('**', '^')}): set {' or '.join(of)} instead" if equals else ""
            raise ValueError(
                f"{quoted_setting(symbol, value)} can't be set, since {symbol} is derived{how or ' from the others'}"
            )
        elif symbol not in spec.sizes:
            known = MEANINGS.get(symbol)
            what = f"has no size {quote(symbol)} ({known})" if known else f"has no size {quote(symbol)}"
            raise ValueError(f"{quote(name)} {what}; its sizes are {', '.join(spec.sizes)}")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{quoted_setting(symbol, value)} is not a size, expected a whole number of at least 1")
        elif symbol.startswith("L") and value > DEEPEST:
            raise ValueError(f"{symbol}={value:,} blocks are too many: at most {DEEPEST} are built")


def check_memory(spec: Spec, name: str, config: dict) -> None:
    """Raise `TooLarge` with one sentence, before anything is built or downloaded, for a model beyond the limits.

    These are the number of blocks, and the size of the float32 weights that the operator allows (`TRACER_MODEL_GB`).
    """
    for symbol, size in config.items():
        if symbol.startswith("L") and size > DEEPEST:
            raise TooLarge(f"{quote(name)} has {symbol}={size:,} blocks; at most {DEEPEST} are built")
    check_count(name, sum(map(prod, shapes(spec, config).values())))


def check_count(name: str, count: int) -> None:
    """Raise `TooLarge` for more float32 parameters than the operator allows (`TRACER_MODEL_GB`)."""
    limit = limits().model_gb
    if count * 4 > limit * 2**30:
        raise TooLarge(
            f"{quote(name)} at these sizes has {count:,} parameters, {count * 4 / 2**30:,.0f} GB; at most {limit:g} "
            "GB are allowed (TRACER_MODEL_GB sets the limit)"
        )


def shapes(spec: Spec, config: dict) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the net's parameters at these sizes and options, built on `meta` without memory.

    Raise `TooLarge` in one sentence for more parameters than can be counted.
    """
    with seeded_draws(0):
        net = on_meta(lambda: spec.net(**config))
    return {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}


def _names(text: str) -> set[str]:
    return {str(free_symbol) for free_symbol in parse(text).free_symbols}
