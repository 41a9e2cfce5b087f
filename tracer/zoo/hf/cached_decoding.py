"""Decoders of transformers that read tokens after a cache of keys and values.

The library's cache is an object that grows in place. Here keys and values are inputs and outputs, so that each is a
tensor of the run, and the same run can be made again.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from tracer.inputs.model_inputs import Inputs
from tracer.models.shared.blocks import Past
from tracer.models.shared.decoding import HINTS, T_PAST, past_hints, prepare
from tracer.shapes.input_axes import named_axes
from tracer.utils.error_text import quote, reason
from tracer.zoo.hf.output_heads import decode_next_tokens

WRITERS = ("CausalLM", "LMHeadModel")
"""Ends of the names of classes that write text."""


class ReadsFromCache:
    """Forward of a decoder that takes new tokens, `[B, T]`, and the keys and values of those before, `past`.

    It returns the logits `[B, T, V]`, and the keys and values of all tokens, `[B, h, T_past + T, d_k]` for each block.
    """

    config: Any

    def forward(self, tokens: torch.Tensor, past: Past) -> tuple[torch.Tensor, Past]:
        """Run the decoder with a cache of the library that holds `past`."""
        cache = open_cache(self.config, past)
        run: Any = super()
        output = run.forward(input_ids=tokens, past_key_values=cache, use_cache=True)
        return output.logits, tuple((layer.keys, layer.values) for layer in output.past_key_values.layers)


def open_cache(config: Any, past: Past) -> Any:
    """Return a cache of transformers with these keys and values; an empty one for none.

    A layer whose mask is a sliding window caches all tokens, too: the mask closes those outside. Raise ValueError for
    a decoder with layers of another kind, such as states.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer  # not a requirement

    for layer in DynamicCache(config=config).layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise ValueError(f"its cache has layers of the kind {quote(type(layer).__name__)}, not of keys and values")
    cache = DynamicCache()
    for keys, values in past:
        layer = DynamicLayer()
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        layer.keys, layer.values = keys, values
        cache.layers.append(layer)
    return cache


def reading_from_cache(net: nn.Module) -> nn.Module:
    """Return a copy of a decoder that shares its parts and reads tokens after a cache."""
    kind = type(net)
    copied = copy.copy(net)
    copied.__class__ = type(f"{kind.__name__}FromCache", (ReadsFromCache, kind), {})
    return copied


def with_cache(tokenizer: Any, model: Any) -> Any:
    """Return a model of transformers that reads the last tokens of a text after a cache of the others.

    Raise ValueError in one sentence for a model that does not write, or keeps no such cache.
    """
    kind, spec = type(model.net), model.spec
    if not kind.__name__.endswith(WRITERS) or spec.takes != ("text",):
        raise ValueError(f"{quote(model.name)} writes no text, so it keeps no cache of keys and values")
    net = reading_from_cache(model.net)
    try:
        with torch.no_grad():
            blocks = len(net(torch.zeros(1, 1, dtype=torch.long, device=model.device), ())[1])
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{quote(model.name)} can't read from a cache: {reason(error)}") from error

    def ways(model: Any, inputs: Inputs, recording) -> Any:
        axes = {"B": 0, "T": ("tokens", 1), T_PAST: ("past.*", 2)}
        return named_axes(model.net, inputs.tensors, inputs.named, recording, axes, None)[1]

    fields: dict[str, Any] = {
        "hints": (*spec.hints, *HINTS, *past_hints(blocks)),
        "runs": ("B", "T", T_PAST),
        "derived": {},
        "prepare": partial(prepare, spec.prepare),
        "ways": ways,
        "result": lambda model, inputs, output: decode_next_tokens(model, inputs, {"logits": output[0]}, tokenizer),
    }
    return replace(model, net=net, spec=replace(spec, **fields, decoder=None), _solutions={})
