"""How a configuration of transformers is opened: its class, its smallest size that runs, and what it is fed with."""

from __future__ import annotations

import copy
from contextlib import suppress
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from tracer.common.quoting import quoted, reason
from tracer.common.seeding import seeded_draws
from tracer.sources import NoModel, autos, feeds, fitting, small
from tracer.sources.configured import without_cache

LARGEST = 150_000_000
"""Parameters of a net that is built to see what its forward takes."""
CLASSES = 3
"""Classes of a configuration that are tried."""


class Found(NamedTuple):
    """How a configuration is opened: the class, the configuration as it is built, and what forward is fed with."""

    made: Any
    config: object
    feed: feeds.Feed
    small: bool = False


def family(config) -> Found:
    """A small model of a family. ValueError in one sentence where none was found that runs."""
    known = autos.classes(config)
    if not known:
        raise NoModel(f"transformers has no model for {quoted(config.model_type)}, only its configuration")
    fitted = [config if isinstance(config, made.config_class) else config.get_text_config() for made in known[:CLASSES]]
    made, less, feed = _first(list(zip(known, fitted, strict=False)))
    return Found(made, less, feed, small=True)


def checkpoint(config) -> Found:
    """The model of a checkpoint's configuration, whose inputs are found out on a small copy of it."""
    made, _, feed = _first([(made, config) for made in autos.classes(config)[:CLASSES]])
    return Found(made, config, feed)


def _first(candidates: list[tuple[Any, object]]) -> tuple[type, object, feeds.Feed]:
    """The first class that runs at a small configuration of it, that configuration, and what it is fed with. ValueError
    in one sentence where none does."""
    said: dict[type, str] = {}
    tried: dict[Any, list[dict]] = {made: [] for made, _ in candidates}
    fit = [(made, config) for made, config in candidates if next(feeds.feeds(made), None) is not None]
    for level in small.LEVELS if fit else ():
        for made, config in fit:
            try:
                less = small.small(config, level)
                if (known := less.to_dict()) in tried[made]:
                    continue
                tried[made].append(known)
                return made, less, fitting.fed(_bounded(made, less), less)
            except TooManyParameters as error:
                said.setdefault(made, str(error))
            except Exception as error:  # a net that is none, or a configuration that has its sizes by layers
                if level == small.FILLED and made in said:
                    continue
                plain = isinstance(error, ValueError)
                said[made] = reason(error) if plain else f"it can't be built ({type(error).__name__}: {reason(error)})"
    if not fit:
        made, _ = candidates[0]
        if made.forward is torch.nn.Module.forward:
            raise NoModel(f"{made.__name__} has no forward of its own, expected a model that can be run")
        takes = ", ".join(feeds.parameters(made))
        raise ValueError(f"the forward of {made.__name__} takes {takes}, expected a text, photo or sound among them")
    made, _ = fit[0]
    raise ValueError(f"no {made.__name__} runs here, neither a small one nor its own: {said[made]}")


class TooManyParameters(ValueError):
    """A net that is larger than what is built to see what its forward takes."""


def _bounded(made: type, config) -> torch.nn.Module:
    """The net of a configuration; `TooManyParameters`, before memory is taken for it, where it has more than `LARGEST`:
    it is built on `meta` first."""
    count, mine = 0, get_ident()

    def counted(module, name, parameter) -> None:
        nonlocal count
        if get_ident() == mine and parameter is not None:
            count += parameter.numel()
            if count > LARGEST:
                raise TooManyParameters(
                    f"it has more than {LARGEST:,} parameters at the smallest sizes that were found"
                )

    counting = register_module_parameter_registration_hook(counted)
    try:
        with torch.device("meta"), suppress(RuntimeError, NotImplementedError):  # some read numbers as they are built
            net(made, config)
    finally:
        counting.remove()
    return net(made, config)


def net(made: Any, config, attention: str | None = None) -> torch.nn.Module:
    config = copy.deepcopy(config)
    without_cache(config)
    with seeded_draws(0):
        return made._from_config(config, **({"attn_implementation": attention} if attention else {})).eval()
