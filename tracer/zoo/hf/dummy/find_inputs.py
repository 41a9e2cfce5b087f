"""Search for inputs with which a net runs: inputs that its errors name as missing are added.

A forward that misses an input says so by its name, in the number of tokens that a picture takes, or by meeting None in
the place of what one of its parameters, or of those of its modules, would have been: then each of these is tried.
"""

from __future__ import annotations

import re
from collections import deque

import torch

from tracer.utils.error_text import reason
from tracer.utils.thread_local_rng import seeded_draws
from tracer.zoo.hf.dummy import resize_inputs
from tracer.zoo.hf.dummy.dummy_input_registry import KINDS, MAKERS, WIDTH, makers, placeholder
from tracer.zoo.hf.dummy.dummy_inputs import size
from tracer.zoo.hf.dummy.input_signatures import Feed, feeds, parameters, patches, usual

MAX_FEEDS = 24
"""Feeds that are tried of one net."""
MAX_TOKENS = 4096
"""Tokens that may stand in the place of a picture."""
TOKEN_COUNTS = re.compile(r"tokens:?\s*(?:tensor\()?\(?(\d+)\D+?(\d+)")
"""Error messages with the number of placeholder tokens in a text, and the number that a picture needs."""
ASIDE = ("attention_mask", "position_ids", "token_type_ids", "inputs_embeds", "labels", "return_loss")
"""Inputs that most forwards take and few need: tried last."""


class NoInputsFound(ValueError):
    """Error of a net that ran on none of the candidate inputs: the first candidate, and the net's message; `error` is
    the exception of its code."""

    def __init__(self, message: str, error: Exception | None):
        super().__init__(message)
        self.error = error


def find_inputs(net: torch.nn.Module, config, resize: bool = False) -> Feed:
    """Return the first feed with which a net runs; with `resize`, inputs may change to the sizes of its error
    messages. Raise `Unfed` if there is none."""
    architecture, message, first, tried = type(net), "", None, set()
    waiting, mended, later, known, sizes = feeds(architecture), deque(), deque(), {}, usual(config)
    while len(tried) < (2 * MAX_FEEDS if resize else MAX_FEEDS):
        feed = mended.popleft() if mended else next(waiting, None) or (later.popleft() if later else None)
        if feed is None:
            break
        feed = feed._replace(ways=(*feed.ways, *known.get(feed.names, ())))
        if feed in tried:
            continue
        tried.add(feed)
        try:
            inputs = feed.make(config, sizes)
        except Exception as error:  # whatever becomes of a way that is not for this configuration
            first, message = first or error, message or reason(error)
            continue
        try:
            with torch.no_grad(), seeded_draws(0):
                net(**inputs)
            return feed
        except Exception as error:  # whatever a library makes of inputs that it was not written for
            better, lacks = mends(feed, architecture, config, error)
            mended.extendleft(reversed(better))
            if not better and "None" in str(error):
                later.extend(guesses(feed, net))
            if better and lacks:
                known[feed.names] = better[0].ways[len(feed.ways) :]  # so do others of these names
            later.extend(resize_inputs.enlarge(feed, config, str(error)))
            if resize:
                (later.extendleft if feed.resized_axes else later.extend)(
                    resize_inputs.resize(feed, config, str(error))
                )
            first = first or error
            message = message or f"{architecture.__name__} was given {feed.names_in_words()}{_refusal(error, lacks)}"
    raise NoInputsFound(
        message or f"{architecture.__name__} was given nothing, expected a text, a photo or a sound", first
    )


def _refusal(error: Exception, lacks: list[str]) -> str:
    if lacks:
        return f", expected also {' or '.join(lacks)}"
    plain = isinstance(error, ValueError | RuntimeError | NotImplementedError | IndexError)
    return (
        f": {reason(error)}" if plain else f", which its code is not made for: {type(error).__name__}: {reason(error)}"
    )


def mends(feed: Feed, architecture: type, config, error: Exception) -> tuple[list[Feed], list[str]]:
    """Return repaired feeds after `error`, the likeliest first, and the names of the missing inputs."""
    message = str(error)
    if places := _places(feed, config, error):
        return places, []
    lacks = [name for name in parameters(architecture) if name not in feed.names]
    named = [name for name in lacks if re.search(rf"\b{name}\b", message)]
    named.sort(key=lambda name: (name == "inputs_embeds", -message.rindex(name)))  # what is missing is said last
    repairs = [(name, way) for name in named for way in range(len(makers(name)))]
    return [feed._replace(ways=(*feed.ways, repair)) for repair in repairs], named


def guesses(feed: Feed, net: torch.nn.Module) -> list[Feed]:
    """Return the feed with one more input of its forward, or, if that passes keyword arguments on, of the forwards
    of its modules."""
    own = parameters(type(net))
    within = (
        [type(part) for part in net.modules()] if any(guess.kind is guess.VAR_KEYWORD for guess in own.values()) else []
    )
    names = dict.fromkeys([*own, *(name for part in dict.fromkeys(within) for name in parameters(part))])
    lacks = [name for name in names if name not in feed.names and makers(name)]
    lacks.sort(key=lambda name: (name in ASIDE, name not in own, name not in MAKERS))
    return [feed._replace(ways=(*feed.ways, (name, 0))) for name in lacks]


def _places(feed: Feed, config, error: Exception) -> list[Feed]:
    """Return the feed with as many placeholder tokens of a picture or a sound as the error message asks for:
    vectors, or the numbers in them."""
    match = TOKEN_COUNTS.search(str(error))
    if match is None or "input_ids" not in feed.names:
        return []
    word = str(error).split()[0].lower()
    kinds = [kind for kind in ([word] if word in KINDS else KINDS) if placeholder(config, kind) is not None]
    numbers, width = int(match[2]), size(getattr(config, "text_config", config), *WIDTH, default=1)
    counts = [numbers // width] * (numbers % width == 0) + [numbers]
    counts = [count for count in dict.fromkeys(counts) if 0 < count <= MAX_TOKENS and count != feed.before]
    each = patches(config) if not feed.places and kinds[:1] == ["image"] and "pixel_values" in feed.names else 0
    return [
        feed._replace(places=tuple({**dict(feed.places), kinds[0]: count}.items()), each=count == each)
        for count in counts
        if kinds
    ]
