"""Feeds a net until it runs: what it says that it lacks is given, too.

A forward that misses an input says so by its name, in the number of tokens that a picture takes, or not at all, where a
line of its code meets None in the place of what one of its parameters would have been.
"""

from __future__ import annotations

import re
from collections import deque
from inspect import getframeinfo
from linecache import getline
from types import TracebackType

import torch

from tracer.common.quoting import reason
from tracer.common.seeding import seeded_draws
from tracer.sources import sizing
from tracer.sources.completing import stopped
from tracer.sources.feeds import Feed, feeds, parameters, usual
from tracer.sources.makers import KINDS, makers, placeholder

MOST = 24
"""Feeds that are tried of one net."""
LONGEST = 4096
"""Tokens that may stand in the place of a picture."""
COUNTED = re.compile(r"tokens:?\s*(?:tensor\()?\(?(\d+)\D+?(\d+)")
"""How a net says how many places a text has for a picture, and how many it needs."""
CODE = "modeling_"
"""What the files of models are called."""
FEATURES = ("features", "image_hidden_states")
"""What nets call the vectors that stand in those places."""


class Unfed(ValueError):
    """Nothing that a net was given made it run: what it was given first, and what it said to that; `error` is what its
    code raised then."""

    def __init__(self, said: str, error: Exception | None):
        super().__init__(said)
        self.error = error


def fed(net: torch.nn.Module, config, resize: bool = False) -> Feed:
    """The first feed with which a net runs; with `resize`, inputs may be of the sizes that it says it expects.
    `Unfed` where none does."""
    made, said, first, seen = type(net), "", None, set()
    waiting, mended, later, known, sizes = feeds(made), deque(), deque(), {}, usual(config)
    while len(seen) < (2 * MOST if resize else MOST):
        feed = mended.popleft() if mended else next(waiting, None) or (later.popleft() if later else None)
        if feed is None:
            break
        feed = feed._replace(ways=(*feed.ways, *known.get(feed.names, ())))
        if feed in seen:
            continue
        seen.add(feed)
        try:
            given = feed.make(config, sizes)
        except Exception as error:  # whatever becomes of a way that is not for this configuration
            first, said = first or error, said or reason(error)
            continue
        try:
            with torch.no_grad(), seeded_draws(0):
                net(**given)
            return feed
        except Exception as error:  # whatever a library makes of inputs that it was not written for
            better, lacks = mends(feed, made, config, error)
            mended.extendleft(reversed(better))
            if better and lacks:
                known[feed.names] = better[0].ways[len(feed.ways) :]  # so do others of these names
            later.extend(sizing.grown(feed, config, str(error)))
            if resize:
                (later.extendleft if feed.sized else later.extend)(sizing.sized(feed, config, str(error)))
            first = first or error
            said = said or f"{made.__name__} was given {feed.given()}{_refused(error, lacks)}"
    raise Unfed(said or f"{made.__name__} was given nothing, expected a text, a photo or a sound", first)


def _refused(error: Exception, lacks: list[str]) -> str:
    if lacks:
        return f", expected also {' or '.join(lacks)}"
    plain = isinstance(error, ValueError | RuntimeError | NotImplementedError | IndexError)
    return f": {reason(error)}" if plain else f", which its code is not made for: it stops at {stopped(error)}"


def mends(feed: Feed, made: type, config, error: Exception) -> tuple[list[Feed], list[str]]:
    """Feeds that may run where this one raised `error`, the likeliest first, and the names of what it lacks."""
    said = str(error)
    if (places := _places(feed, config, error)) is not None:
        return [places], []
    lacks = [name for name in parameters(made) if name not in feed.names]
    named = [name for name in lacks if re.search(rf"\b{name}\b", said)]
    named.sort(key=lambda name: (name == "inputs_embeds", -said.rindex(name)))  # what is missing is said last
    if not named and "None" in said:
        hands_on = any(one.kind is one.VAR_KEYWORD for one in parameters(made).values())
        named = _met(error.__traceback__, lacks, hands_on)
    found = [(name, way) for name in named for way in range(len(makers(name)))]
    return [feed._replace(ways=(*feed.ways, one)) for one in found], named


def _places(feed: Feed, config, error: Exception) -> Feed | None:
    """The feed with as many tokens in the place of a picture or a sound as the net says that it needs."""
    found = COUNTED.search(str(error))
    if found is None or "input_ids" not in feed.names:
        return None
    word = str(error).split()[0].lower()
    kinds = [kind for kind in ([word] if word in KINDS else KINDS) if placeholder(config, kind) is not None]
    count = int(found[2]) if found[1] != found[2] and feed.before != int(found[2]) else 0
    count = _rows(error.__traceback__) or count
    if not kinds or not 0 < count <= LONGEST:
        return None
    return feed._replace(places=tuple({**dict(feed.places), kinds[0]: count}.items()))


def _rows(traceback: TracebackType | None) -> int:
    """How many vectors a net had for the places in a text when it met too few of them: those of the variable called
    features, as wide as the text's."""
    found = 0
    while traceback is not None:
        own = traceback.tb_frame.f_locals
        text = own.get("inputs_embeds")
        for name, value in own.items():
            if isinstance(text, torch.Tensor) and isinstance(value, torch.Tensor) and name.endswith(FEATURES):
                found = found if value.numel() % text.shape[-1] else value.numel() // text.shape[-1]
        traceback = traceback.tb_next
    return found


def _met(traceback: TracebackType | None, lacks: list[str], hands_on: bool) -> list[str]:
    """Which of these names are None in the expression that failed, in the innermost function that has one there; of a
    forward that hands on whatever it is given by name rather those that the first function within asks for and none
    above it names."""
    found: list[str] = []
    above: set[str] = set()
    while traceback is not None:
        place, frame = getframeinfo(traceback).positions, traceback.tb_frame
        first = (place and place.lineno) or traceback.tb_lineno
        last = (place and place.end_lineno) or first  # Python may run without the ends of expressions
        text = "".join(getline(frame.f_code.co_filename, line) for line in range(first, last + 1))
        own, code = frame.f_locals, frame.f_code
        names = [name for name in dict.fromkeys(re.findall(r"\w+", text)) if own.get(name, 0) is None]
        if hands_on and above and CODE in code.co_filename:
            asked = {*code.co_varnames[: code.co_argcount]} - above - {*lacks}
            if any(name in asked for name in names):
                return [name for name in names if name in asked]
        found = [name for name in names if name in lacks] or found
        above |= {*own, *re.findall(r"\w+", text)}
        traceback = traceback.tb_next
    return found
