"""Text generation token by token, greedy or sampled, with a trace at each token or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING

import torch

from tracer.inputs.synthetic.scenes import VOCABULARY
from tracer.utils.error_text import quote

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model
    from tracer.record import Trace

END = VOCABULARY[1]
"""The word that ends a caption."""


def generate(
    model: Model,
    text: str,
    count: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int = 0,
    **inputs,
) -> Iterator[tuple[str, Trace]]:
    """Continue `text` by `count` tokens, or to the end of a sentence, and yield each with the trace of its run.

    The next token comes from the last row of the logits `[B, T, V]`, of which the model sees the last T_max tokens.
    `temperature` 0 takes the most probable token; else one is drawn, with `seed`, from `softmax(z / temperature)`,
    from the `top_k` most probable ones where that is given (Fan et al. 2018, section 5.1). `inputs` goes to
    `model.trace`: `image=` or `prove=False`. ValueError in one sentence for settings that can't be.

    >>> import tracer
    >>> from tracer.models.shared.generate import generate
    >>> model = tracer.load("nanogpt", L=1, D=8, h=2, d_ff=16)
    >>> [len(trace.words) for token, trace in generate(model, "To be", 3)]
    [5, 6, 7]
    """

    def run(text: str) -> tuple[torch.Tensor, Trace]:
        trace = model.trace(text=text, **inputs)
        return trace.output, trace

    return _generate(run, model, text, count, _chooser(count, temperature, top_k, seed))


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
    """Yield the tokens of `generate` without their traces: one forward each, many times as fast.

    `sources` goes to `model.inputs`: `image=`.
    """

    @torch.no_grad()
    def run(text: str) -> tuple[torch.Tensor, None]:
        inputs = model.inputs(text=text, **sources)
        return model.net(*inputs, **inputs.named).cpu(), None

    generated = _generate(run, model, text, count, _chooser(count, temperature, top_k, seed))
    return (token for token, _ in generated)


def room(model: Model, text: str) -> int | None:
    """Return the number of tokens that the model can still write after `text`.

    It is at most T_max for words, as the model reads all tokens before; None for characters, of which it drops the
    first.
    """
    if isinstance(words_of(model), str):
        return None
    return max(0, model.sizes["T_max"] - len(text.split()))


def _chooser(count, temperature, top_k, seed) -> Callable[[torch.Tensor], int]:
    for name, value, least in (("count", count, 0), ("top_k", 1 if top_k is None else top_k, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={quote(value)} is not possible, expected a whole number of at least {least}")
    if not (isinstance(temperature, (int, float)) and isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature={quote(temperature)} is not possible, expected a number of at least 0")
    generator = torch.Generator().manual_seed(seed)
    return lambda logits: choose(logits, temperature, top_k, generator)


def _generate(run, model, text, count, chosen) -> Iterator[tuple]:
    vocabulary = words_of(model)
    for _ in range(count):
        output, trace = run(read_of(model, text))
        token = vocabulary[chosen(output[0, -1, : len(vocabulary)])]
        yield token, trace
        if token == END:
            return
        text = join_tokens(vocabulary, text, [token])


def words_of(model: Model) -> Sequence[str]:
    """Return the vocabulary of a model: a string of characters, or a list of words."""
    return (model.card or {}).get("vocabulary", model.spec.vocabulary)


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
