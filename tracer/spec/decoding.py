"""Token by token: what a decoder writes next, with and without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import torch
from PIL.Image import Image

from tracer.expr import Slice
from tracer.expr.indexing import Concat
from tracer.inputs.model_inputs import Inputs
from tracer.inputs.synthetic import VOCABULARY
from tracer.spec.blocks import Past, past_length
from tracer.spec.preparation import words_of
from tracer.spec.results import next_tokens
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import WHY
from tracer.textbook.names import Hint
from tracer.utils.errors import quote

if TYPE_CHECKING:
    from tracer.spec.spec import Model


# Text generation token by token, greedy or sampled.

END = VOCABULARY[1]
"""The word that ends a caption."""


def write(
    model: Model,
    text: str,
    count: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    **sources,
) -> Iterator[str]:
    """Continue `text` by `count` tokens, or to the end of a sentence, and yield each: one forward, without a trace.

    The next token comes from the last row of the logits `[B, T, V]`, of which the model sees the last T_max tokens.
    `temperature` 0 takes the most probable token; else one is drawn, with `seed`, from `softmax(z / temperature)`,
    from the `top_k` most probable ones where that is given (Fan et al. 2018, section 5.1). `sources` goes to
    `model.inputs`: `image=`. ValueError in one sentence for settings that can't be.

    >>> import tracer
    >>> from tracer.spec.decoding import write
    >>> model = tracer.load("nanogpt", L=1, D=8, h=2, d_ff=16)
    >>> len(list(write(model, "To be", 3)))
    3
    """
    for name, value, least in (("count", count, 0), ("top_k", 1 if top_k is None else top_k, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={quote(value)} is not possible, expected a whole number of at least {least}")
    if not (isinstance(temperature, (int, float)) and isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature={quote(temperature)} is not possible, expected a number of at least 0")
    generator = torch.Generator().manual_seed(seed)
    vocabulary = words_of(model)

    def tokens(text: str) -> Iterator[str]:
        for _ in range(count):
            inputs = model.inputs(text=read_of(model, text), **sources)
            with torch.no_grad():
                logits = model.net(*inputs, **inputs.named).cpu()[0, -1, : len(vocabulary)]
            token = vocabulary[choose(logits, temperature, top_k, generator)]
            yield token
            if token == END:
                return
            text = join_tokens(vocabulary, text, [token])

    return tokens(text)


def room(model: Model, text: str) -> int | None:
    """Return the number of tokens that the model can still write after `text`.

    It is at most T_max for words, as the model reads all tokens before; None for characters, of which it drops the
    first.
    """
    if isinstance(words_of(model), str):
        return None
    return max(0, model.sizes["T_max"] - len(text.split()))


def read_of(model: Model, text: str) -> str:
    """Return the part of a growing text that the model reads: the last T_max characters, or all of a caption."""
    return text[-model.sizes["T_max"] :] if isinstance(words_of(model), str) else text


def join_tokens(vocabulary: Sequence[str], text: str, tokens: Sequence[str]) -> str:
    """Return a text and the tokens after it: characters follow each other, words have blanks between them."""
    return text + "".join(tokens) if isinstance(vocabulary, str) else " ".join([*text.split(), *tokens])


def choose(logits: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """Choose one token id from its logits `[V]`: the largest at temperature 0, else a random one."""
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], -inf)
    logits = (logits - logits.max()) / temperature
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


# Decoding from a cache: the last tokens of a text are read after the keys and values of all tokens before them.
#
# The run before it, which fills the cache, is called prefill. Source: Shazeer 2019, Fast Transformer Decoding, section
# 2.4.

T_PAST = "T_past"
"""The number of tokens in the cache."""
LENGTHS = (25, 34, 27)
"""Words in the cache of each probe."""
EXTRA_ROWS = 40
"""Rows that the position table of a probe has beyond those that the plain run needs."""

APPENDED = Claim(
    "Keys and values of the tokens before are in the cache. Only those of the new tokens are computed, and they are "
    "appended to the others.",
    so.has(Concat),
    "more rows",
)
NEW_TOKENS = Claim("Only the new tokens go through this matrix: the others did in earlier runs.")
LATER_ROWS = Claim("The rows of the table go on where the cache ends.", so.has(Slice), "rows after the first")
POSITIONS = "position", "position2"
"""Lines whose reasons are others where the first rows of the table belong to the tokens in the cache."""
HINTS = (
    *(
        Hint(
            at,
            why=(
                *WHY["position"][:1],
                Claim("The rows of the table go on where the cache ends.", so.has(Slice), "rows after the first"),
            ),
        )
        for at in POSITIONS
    ),
    Hint("*.attention.key", title="Append keys to the cache", why=APPENDED),
    Hint("*.attention.value", title="Append values to the cache", why=APPENDED),
    Hint(
        "*.rope", id="attention.rotated key", title="Rotate the new keys (RoPE)", letter=r"\mathbf{K}'_{\mathrm{new}}"
    ),
    *(
        Hint(
            at,
            id=f"attention.new {name}",
            title=f"{name.title()}s of the new tokens",
            letter=letter,
            below=below,
            why=NEW_TOKENS,
        )
        for name, below, letter, places in (
            ("key", "K", r"\mathbf{K}_{\mathrm{new}}", ("*.attention.key.linear", "*.k_proj.linear")),
            ("value", "V", r"\mathbf{V}_{\mathrm{new}}", ("*.attention.value.linear", "*.v_proj.linear")),
        )
        for at in places
    ),
)


def with_cache(model: Model, hints: Iterable[Hint] | None = None) -> Model:
    """Return a model of ours that reads the last tokens of a text after a cache of the others; `hints` are those of its
    lines, by default those of the model."""
    spec = model.spec

    def example(sizes: dict[str, int]) -> Inputs:
        *before, tokens = spec.example(sizes)
        past = tuple(tuple(torch.randn(shape) for _ in range(2)) for shape in cache_shapes(sizes))
        return Inputs((*(None for _ in before), tokens), named={"past": past})

    own = (
        replace(hint, why=(), note="") if hint.at in POSITIONS else hint
        for hint in (spec.hints if hints is None else hints)
    )
    patches = [probe.get("H", 0) * probe.get("W", 0) // probe.get("P", 1) ** 2 for probe in spec.probes]
    fields: dict[str, Any] = {
        "hints": (*own, *HINTS, *past_hints(len(model.net.blocks))),
        "runs": (*spec.runs, T_PAST),
        "names": (*spec.names, T_PAST, f"{T_PAST} + T"),
        "probes": tuple(
            {**probe, T_PAST: count + words, "T_max": probe["T_max"] + EXTRA_ROWS}
            for probe, count, words in zip(spec.probes, patches, LENGTHS, strict=False)
        ),
        "example": example,
        "prepare": partial(prepare, spec.prepare),
        "result": lambda model, inputs, output: next_tokens(model, inputs, output[0]),
    }
    return replace(model, spec=replace(spec, **fields, decoder=None), _solutions={})


def past_hints(blocks: int) -> Iterator[Hint]:
    """Yield the letters of the keys and values in the caches of so many blocks."""
    for layer in range(blocks):
        for place, letter in enumerate("KV"):
            above = rf"^{{({layer + 1})}}"
            yield Hint(f"input past.{layer}.{place}", letter=rf"\mathbf{{{letter}}}_{{\mathrm{{past}}}}{above}")


def cache_shapes(sizes: dict[str, int]) -> list[tuple[int, ...]]:
    """Return the shape of the keys, and of the values, of each block: `[B, h, T_past, d_k]`, h those of keys."""
    heads, width = sizes.get("h_kv", sizes["h"]), sizes["D"] // sizes["h"]
    return [(sizes["B"], heads, sizes.get(T_PAST, 0), width)] * sizes["L"]


def prepare(read: Callable[..., Inputs], model: Model, image: Image | None, text: str | None, options: dict) -> Inputs:
    """Return the last T tokens of a text, and the cached keys and values of the tokens before them, which a run
    computes.

    T is 1 where it is not one of the `options`. With T_past, the text is cut or repeated. Raise ValueError in one
    sentence for a text that leaves nothing to the cache.
    """
    own, T = {name: size for name, size in options.items() if name not in ("T", T_PAST)}, options.get("T", 1)
    patches = model.vocabulary.complete({**own, **model.sizes}).get("N", 0) if "image" in model.takes else 0
    if T_PAST in options:
        own["T"] = options[T_PAST] - patches + T
    inputs = read(model, image, text, own)
    before, tokens = split_inputs(inputs)
    if tokens.shape[1] <= T - bool(patches):
        raise ValueError(
            f"the text has T={tokens.shape[1]} tokens, expected {T + 1} or more: all but {T} of them fill the cache"
        )
    _, past = fill_cache(model, before, tokens[:, : tokens.shape[1] - T])
    sizes = {**inputs.sizes, "T": T, T_PAST: past_length(past)}
    tensors, named = (*(None for _ in before), tokens[:, tokens.shape[1] - T :]), {"past": past}
    return replace(inputs, tensors=tensors, named=named, sizes=sizes, photo=None, crop=None)


def split_inputs(inputs: Inputs) -> tuple[Sequence[torch.Tensor], torch.Tensor]:
    """Return the inputs before the text, a picture or nothing, and the token ids, `[B, T]`."""
    *before, tokens = inputs.tensors or (inputs.named["input_ids"],)
    return before, tokens


@torch.no_grad()
def fill_cache(model: Model, before: Sequence[torch.Tensor], tokens: torch.Tensor) -> tuple[torch.Tensor, Past]:
    """Return the logits of a decoder after a picture, if there is one `before`, and tokens `[B, T]`, and the keys and
    values of all blocks."""
    return model.net(*(tensor.to(model.device) for tensor in (*before, tokens)), past=())
