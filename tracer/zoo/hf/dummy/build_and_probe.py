"""Opening of a configuration of transformers: its class, its smallest size that runs, and its inputs."""

from __future__ import annotations

import copy
from contextlib import suppress
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from tracer.utils.error_text import quote, reason
from tracer.utils.internals.torch_internals import DispatchMode
from tracer.utils.internals.transformers_internals import build_from_config, has_auto_class, supports_sdpa
from tracer.utils.thread_local_rng import seeded_draws
from tracer.zoo import NoModel
from tracer.zoo.hf import auto_classes, patch_positions
from tracer.zoo.hf.dummy import fill_config, find_inputs, input_signatures, tiny_config
from tracer.zoo.hf.spec_builders import without_cache

MAX_PARAMETERS = 350_000_000
"""Parameters of a net that is built to see what its forward takes."""
CLASSES, MAX_RESIZED = 3, 6
"""Classes of a configuration that are tried, and how many of the nets that did not run get inputs of other sizes."""


class OpenedModel(NamedTuple):
    """An opened configuration: its class, the configuration as built, the feed of forward, whether it is a small
    one, the implementations of attention, the tokens before the patches (`patch_positions.patches_start`),
    whether its positions fit photos of any size, and the modules of the photo tower and of the text model."""

    architecture: Any
    config: Any
    feed: input_signatures.Feed
    small: bool = False
    attentions: tuple[str, ...] = ()
    start: int | None = None
    resizes: bool = False
    towers: tuple[str, ...] = ()


def family(config) -> OpenedModel:
    """Return a small model of a family. Raise ValueError if none runs."""
    known = auto_classes.classes(config)
    if not known:
        raise NoModel(f"transformers has no model for {quote(config.model_type)}, only its configuration")
    try:
        return _first([(architecture, _part(config, architecture)) for architecture in known[:CLASSES]])
    except ValueError as error:
        if isinstance(error, NoModel) or has_auto_class(config.model_type):
            raise
        raise NoModel(f"no Auto class opens {quote(config.model_type)}, and it does not run alone: {error}") from error


def _part(config, architecture: Any):
    """Return the inner configuration that a class takes; the whole one if there is none."""
    return next(
        (part for part in tiny_config.parts(config) if isinstance(part, architecture.config_class or ())), config
    )


def checkpoint(config) -> OpenedModel:
    """Return the model of a checkpoint's configuration; its inputs are searched on a small copy of it."""
    opened = _first([(architecture, config) for architecture in auto_classes.classes(config)[:CLASSES]])
    return opened._replace(config=config, small=False)


def _first(candidates: list[tuple[Any, object]]) -> OpenedModel:
    """Return the first class that runs at a small configuration of it. Raise ValueError if none does."""
    reasons: dict[type, str] = {}
    tried: dict[Any, list[dict]] = {architecture: [] for architecture, _ in candidates}
    fit = [
        (architecture, config)
        for architecture, config in candidates
        if next(input_signatures.feeds(architecture), None) is not None
    ]
    unfed: list[tuple[Any, object]] = []
    for level in tiny_config.LEVELS if fit else ():
        for architecture, config in fit:
            try:
                less = tiny_config.small(config, level)
                if (known := less.to_dict()) in tried[architecture]:
                    continue
                tried[architecture].append(known)
                built = _build(architecture, less)
                unfed.append((architecture, less))
                return _describe(architecture, less, *_build_and_feed(architecture, less, built))
            except TooManyParameters as error:
                reasons.setdefault(architecture, str(error))
            except Exception as error:  # a net that is none, or a configuration that has its sizes by layers
                if level == tiny_config.FILLED_LEVEL and architecture in reasons:
                    continue
                reasons[architecture] = reason(error) if isinstance(error, ValueError) else _unbuilt(less, error)
    for architecture, less in unfed[:MAX_RESIZED]:
        with suppress(ValueError):  # what was said of it before is what it is about
            built = _build(architecture, less)
            return _describe(architecture, less, built, find_inputs.find_inputs(built, less, resize=True))
    if not fit:
        architecture, _ = candidates[0]
        if architecture.forward is torch.nn.Module.forward:
            raise NoModel(f"{architecture.__name__} has no forward of its own, expected a model that can be run")
        takes = ", ".join(input_signatures.parameters(architecture))
        raise ValueError(
            f"the forward of {architecture.__name__} takes {takes}, expected a text, photo or sound among them"
        )
    architecture, _ = fit[0]
    raise ValueError(f"no {architecture.__name__} runs here, neither a small one nor its own: {reasons[architecture]}")


def _build(architecture: type, config) -> torch.nn.Module:
    """Build the net of a configuration, and fill in the attributes that its code reads as None."""
    for _ in range(fill_config.MAX_ROUNDS):
        try:
            return _build_within_limit(architecture, config)
        except (AttributeError, TypeError) as error:  # None, or nothing, in the place of a number
            if not fill_config.fill_missing(config, error):
                raise
    return _build_within_limit(architecture, config)


def _build_and_feed(
    architecture: type, config, built: torch.nn.Module
) -> tuple[torch.nn.Module, input_signatures.Feed]:
    """Return the net and its feed, rebuilt if its code reads attributes that its configuration lacks."""
    for _ in range(fill_config.MAX_ROUNDS):
        try:
            return built, find_inputs.find_inputs(built, config)
        except find_inputs.NoInputsFound as unfed:
            if unfed.error is None or not fill_config.fill_missing(config):
                raise
            built = _build(architecture, config)
    return built, find_inputs.find_inputs(built, config)


def _unbuilt(config, error: Exception) -> str:
    """Return why a net can't be built, in a sentence where its code raises one of Python's own errors."""
    if isinstance(error, ImportError):
        return f"it needs what is not installed: {reason(error)}"
    if name := fill_config.missing_attribute(config, error):
        return f"it can't be built, since the family's own configuration leaves {quote(name)} open"
    return f"it can't be built: {type(error).__name__}: {reason(error)}"


class TooManyParameters(ValueError):
    """Error for a net that is too large to be built only to inspect its forward."""


def _build_within_limit(architecture: type, config) -> torch.nn.Module:
    """Build the net of a configuration. Raise `TooManyParameters` before memory is allocated if it has more than
    `MAX_PARAMETERS`: it is built on `meta` first."""
    count, mine = 0, get_ident()

    def check_count(module, name, parameter) -> None:
        nonlocal count
        if get_ident() == mine and parameter is not None:
            count += parameter.numel()
            if count > MAX_PARAMETERS:
                raise TooManyParameters(
                    f"it has more than {MAX_PARAMETERS:,} parameters at the smallest sizes that were found"
                )

    counting = register_module_parameter_registration_hook(check_count)
    try:
        with torch.device("meta"), suppress(RuntimeError, NotImplementedError):  # some read numbers as they are built
            net(architecture, config)
    finally:
        counting.remove()
    with _Middle():
        return net(architecture, config)


class _Middle(DispatchMode):
    """A mode that draws normal numbers evenly within a standard deviation: truncated ones are drawn again and again
    until none is cut off, which takes most of the time of building a large net."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is not torch.ops.aten.normal_.default:
            return func(*args, **(kwargs or {}))
        mean = args[1] if len(args) > 1 else 0.0
        deviation = args[2] if len(args) > 2 else 1.0
        return args[0].uniform_(mean - deviation, mean + deviation, **(kwargs or {}))


def _describe(architecture: type, config, built: torch.nn.Module, feed: input_signatures.Feed) -> OpenedModel:
    feed = feed._replace(ways=(*feed.ways, *filter(None, [input_signatures.PROCESSOR_OUTPUTS.get(config.model_type)])))
    start = patch_positions.patches_start(built, config, feed)
    resizes = any(map(patch_positions.resizes, built.modules()))
    return OpenedModel(
        architecture,
        config,
        feed,
        small=True,
        attentions=_attentions(built),
        start=start,
        resizes=resizes,
        towers=_towers(built),
    )


def _towers(built: torch.nn.Module) -> tuple[str, ...]:
    """Return the outermost modules that take the inner configurations for photos and texts."""
    inner = [getattr(built.config, name, None) for name in ("vision_config", "text_config")]
    named = [(path, getattr(module, "config", None)) for path, module in built.named_modules()]
    paths = [next((path for path, config in named if config is inner_config is not None), "") for inner_config in inner]
    return tuple(paths) if all(paths) else ()


def _attentions(built: torch.nn.Module) -> tuple[str, ...]:
    """Return the implementations of attention that all parts of a net support, the library's own choice first."""
    return ("sdpa", "eager") if supports_sdpa(built) else ()


def net(architecture: Any, config, attention: str | None = None) -> torch.nn.Module:
    config = copy.deepcopy(config)
    without_cache(config)
    if architecture.__name__.endswith("SequenceClassification") and getattr(config, "pad_token_id", 0) is None:
        config.pad_token_id = 0  # what fills short texts up, which a classifier of several texts must know
    with seeded_draws(0):
        return build_from_config(architecture, config, attention).eval()
