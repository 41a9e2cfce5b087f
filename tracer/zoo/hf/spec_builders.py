"""Construction of a `Spec` from a configuration of transformers: nets at other sizes, photos and texts as inputs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import reduce
from typing import Any

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.utils.error_text import quote
from tracer.utils.internals.transformers_internals import build_from_config

ATTENTION = ("sdpa", "eager")
"""The implementations of attention: PyTorch's fused kernel, or written out."""
EXPERTS = "batched_mm"
"""The implementation of experts that asks for no values: as many matrix products as tokens have experts."""
TEXT = "The quick brown fox jumps over the lazy dog."


def sizes_of(config, attributes: dict[str, str]) -> dict[str, int]:
    """Return the sizes of a configuration, by their symbols; `"text_config.hidden_size"` is that of an inner one."""
    return {symbol: int(reduce(getattr, name.split("."), config)) for symbol, name in attributes.items()}


def builder(
    config, architecture: Callable, attributes: dict[str, str], adjust: Callable = lambda config: None
) -> Callable[..., torch.nn.Module]:
    """Return `net(**sizes)`: the architecture with seeded random weights, its configuration changed to these sizes.

    `adjust(config)` brings what follows from the sizes into line.
    """

    def net(*, attention: str = ATTENTION[0], **sizes: int) -> torch.nn.Module:
        changed = copy.deepcopy(config)
        for symbol, value in sizes.items():
            *path, name = attributes[symbol].split(".")
            setattr(reduce(getattr, path, changed), name, value)
        adjust(changed)
        without_cache(changed)
        return build_from_config(architecture(changed), changed, attention)

    return net


def without_cache(config) -> None:
    """Turn off the cache of keys and values, which a single run does not need."""
    for part in (config, *(getattr(config, name, None) for name in config.sub_configs)):
        if part is not None:
            part.use_cache = False


def configure_valueless(net: torch.nn.Module) -> None:
    """Configure a net for runs without values, in place: it returns its cache of keys and values, without which
    transformers builds no mask on `meta`, and multiplies each token by the weights of its experts, where its own loop
    over experts reads which ones were chosen."""
    encodes = getattr(net.config, "is_encoder_decoder", False)  # an encoder of such a net keeps no cache
    for part in net.modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "use_cache") and (not encodes or part is net or getattr(config, "is_decoder", False)):
            config.use_cache = True
    if any(type(part).__name__.endswith("Experts") for part in net.modules()):
        net.set_experts_implementation(EXPERTS)


def tokenize(tokenizer, model, text: str | None, sizes: dict[str, int]) -> tuple[list[int], tuple[str, ...]]:
    """Return the T token numbers of a text, and their words; T cuts or repeats it. Raise ValueError for a text of
    more tokens than the model reads: none is cut silently."""
    own, text = text is None, TEXT if text is None else text
    numbers, words = tokens(tokenizer, text, model.sizes["V"])
    if not numbers:
        raise ValueError(f"the text {quote(text)} has no token, expected at least one")
    most = model.sizes.get("T_max", max(len(numbers), sizes.get("T", 0)))
    length = sizes.get("T", min(len(numbers), most) if own else len(numbers))
    if length > most:
        raise ValueError(f"T={length} tokens are too many: the model reads at most T_max={most}")
    repeats = length // len(numbers) + 1
    return (numbers * repeats)[:length], tuple((words * repeats)[:length])


def example(*args, **named) -> Inputs:
    """Return the tensors that forward takes, those by name too."""
    return Inputs(args, named=named)


def tokens(tokenizer, text: str, count: int) -> tuple[list[int], list[str]]:
    """Return token ids below `count` and their texts."""
    if tokenizer is None:
        data = text.encode("utf-8")
        return [byte % count for byte in data], [chr(byte) if byte < 128 else f"0x{byte:02x}" for byte in data]
    numbers = tokenizer(text)["input_ids"]
    return [number % count for number in numbers], [tokenizer.decode([number]).strip() or "␣" for number in numbers]
