"""What the notes claim of text: ids, embeddings, the next token and the loss."""

from __future__ import annotations

from math import log

import torch
import torch.nn.functional as F

from tracer.attention import weights
from tracer.attention.terms import terms
from tracer.figures.classes import percent
from tracer.figures.labels import scientific
from tracer.lessons.notes.claims.measured import Measured, close, off
from tracer.models.shared.model import Model, seeded
from tracer.record import Trace

SHOWN = 3
"""Neighbours of a row that are named."""


def ids(model: Model, trace: Trace) -> torch.Tensor:
    """The ids that were looked up, `[T]`: the rows of E that the embedded tokens are, bit for bit."""
    table = getattr(model.net, "tokens", None)
    known = {step.id for step in trace.steps}
    made = next((trace.value(id) for id in ("words", "embedding") if id in known), None)
    if table is None or made is None:
        raise ValueError(f"{model.name} looks up no tokens")
    same = (made[0][:, None] == table.weight).all(-1)
    if not same.any(-1).all():
        raise ValueError(f"{model.name} does not take rows of its table as they are")
    return same.int().argmax(-1)


def ids_from_zero(model: Model, trace: Trace) -> Measured:
    """The ids of this run, and how many there could be."""
    found, V = ids(model, trace), model.net.tokens.num_embeddings
    shown = ", ".join(f"{word!r}: {int(one)}" for word, one in list(zip(trace.words, found, strict=False))[:4])
    said = f"{shown} …; of the {V} rows of E, 0 to {V - 1}, this run takes {int(found.min())} to {int(found.max())}"
    return Measured(
        said, "holds" if int(found.min()) >= 0 and int(found.max()) < V else "not", "overview", (("model", model.name),)
    )


def lookup_table(model: Model, trace: Trace) -> Measured:
    """Text to pieces to ids to rows of the table."""
    found = ids(model, trace)
    said = (
        f"{len(found)} pieces, {len(set(map(int, found)))} different ids, each the number of one row of E "
        f"({model.net.tokens.num_embeddings} rows): what was looked up is that row, bit for bit"
    )
    return Measured(said, "holds", "tokens")


def next_token(model: Model, trace: Trace) -> Measured:
    """The softmax of the logits."""
    logits = trace.value("logits")
    if logits is None or "V" not in trace.step("logits").symbolic:
        raise ValueError(f"{model.name} has no logits over a vocabulary")
    made = logits.softmax(-1)
    error = float((made.sum(-1) - 1).abs().max())
    best = float(made[0, -1].max())
    said = (
        f"each of {made.shape[1]} rows of {made.shape[2]} sums to 1 within {scientific(error)}; the "
        f"likeliest next one has {percent(best)}"
    )
    return Measured(said, "holds" if close(error) else "not", "overview", (("model", model.name),))


def distributions(model: Model, trace: Trace) -> Measured:
    """Whether the rows that come out are distributions."""
    made = trace.value("probabilities")
    if made is None:
        raise ValueError(f"{model.name} gives no probabilities")
    error, least = float((made.sum(-1) - 1).abs().max()), float(made.min())
    said = f"{made.shape[1]} rows: each sums to 1 within {scientific(error)}, the smallest cell is {least:.2g}"
    return Measured(said, "holds" if close(error) and least >= 0 else "not", "trace", (("step", "probabilities"),))


def losses(model: Model, trace: Trace) -> tuple[torch.Tensor, float]:
    """-log p of each next token, `[T - 1]`, in nats; and the mean if targets were not shifted."""
    found, logits = ids(model, trace), trace.value("logits")
    if logits is None or logits.shape[1] != len(found) or logits.shape[-1] != model.net.tokens.num_embeddings:
        raise ValueError(f"{model.name} does not predict the next token at each")
    return F.cross_entropy(logits[0, :-1], found[1:], reduction="none"), float(F.cross_entropy(logits[0], found))


def loss(model: Model, trace: Trace) -> Measured:
    """The cross-entropy of this run's own text, targets shifted by one."""
    found, unshifted = losses(model, trace)
    mean, V = float(found.mean()), model.net.tokens.num_embeddings
    said = (
        f"-log p of the next token, over {len(found)} targets: {mean:.3f} nats on average, from {found.min():.3f} to "
        f"{found.max():.3f} (ln V = {log(V):.3f}); not shifted it would be {unshifted:.3f}"
    )
    if N := next((one.stop for one in trace.segments if one.name == "image"), 0):
        said += f"; the {N} positions of the picture have no target"
    return Measured(said, "holds" if mean < min(log(V), unshifted) else "not", "loss", (("model", model.name),))


def nearest(model: Model, tokens: tuple[str, ...]) -> dict[str, list[tuple[str, float]]]:
    """The rows of E with the largest cosine to those of some tokens."""
    vocabulary = model.card.get("vocabulary") or model.spec.vocabulary if model.card else model.spec.vocabulary
    E = F.normalize(model.net.tokens.weight.detach(), dim=-1)
    found = {}
    for token in tokens:
        if token in vocabulary:
            at = list(vocabulary).index(token)
            best = (E @ E[at]).topk(SHOWN + 1)
            near = [(vocabulary[int(i)], float(c)) for c, i in zip(*best, strict=True) if int(i) != at]
            found[token] = near[:SHOWN]
    return found


def neighbours(model: Model, trace: Trace) -> Measured:
    """What lies near to what in the learned table: letters of both cases, and vowels."""
    vowels = "aeiou"
    found = nearest(model, (*vowels, "A", "."))
    hits = sum(near[0] in vowels for vowel in vowels for near in found.get(vowel, []))
    of = sum(len(found.get(vowel, [])) for vowel in vowels)
    said = "; ".join(f"near “{token}”: {', '.join(repr(one) for one, _ in near)}" for token, near in found.items())
    chance = 4 / (model.net.tokens.num_embeddings - 1)
    said += f". Of the neighbours of vowels {hits} of {of} are vowels (by chance {percent(chance)})"
    return Measured(said, "holds" if hits > chance * of else "not", "trace", (("step", "embedding"),))


def positions_learned(model: Model, trace: Trace) -> Measured:
    """How far training moved the positions from where they began."""
    return _learned(model, "positions", "position")


def _learned(model: Model, name: str, step: str) -> Measured:
    """How far a parameter is from the seeded random start, and how much longer."""
    begun = dict(seeded(model.spec.net, {**model.sizes, **model.options}).named_parameters())[name].detach()
    now = dict(model.net.named_parameters())[name].detach()
    moved, longer = float((now - begun).norm() / now.norm()), float(now.norm() / begun.norm())
    said = (
        f"`{name}` is {longer:.1f} times as long as random numbers at the start; the difference is "
        f"{percent(moved)} of its length"
    )
    return Measured(said, "holds" if moved > 1e-3 else "not", "trace", (("step", step),))


def learned(model: Model, trace: Trace) -> Measured:
    """How far training moved the embedding from where it began."""
    return _learned(model, "embedding.weight", "embedding")


def four_terms(model: Model, trace: Trace) -> Measured:
    """The four terms of the scores, and whether they add up."""
    found, scores = terms(model, trace), trace.value("block1.attention.scores")
    error = off(sum(found.values()), scores)
    said = "; ".join(f"{name} up to {float(term.abs().max()):.3g}" for name, term in found.items())
    said += f". Their sum is what ran, to within {scientific(error)}"
    return Measured(said, "holds" if close(error) else "not", "trace", (("step", "block1.attention.scores"),))


def cross_terms(model: Model, trace: Trace) -> Measured:
    """How much of the scores depends on places: what is left of them without the terms that hold positions."""
    found, scores = terms(model, trace), trace.value("block1.attention.scores")
    content = found["content–content"]
    placed = scores - content
    share = float(placed.square().sum() / (placed.square().sum() + content.square().sum()))
    best = float((content.softmax(-1).argmax(-1) != weights(trace, 0).argmax(-1)).float().mean())
    said = (
        f"the three terms with positions hold {percent(share)} of the scores' squares; without them "
        f"{percent(best)} of the queries look elsewhere most"
    )
    return Measured(said, "holds" if share > 0 and best > 0 else "not", "trace", (("step", "block1.attention.scores"),))


def any_sequence(model: Model, trace: Trace) -> Measured:
    """What the tokens of this run are."""
    T = trace.step("position").shape[-2]
    return Measured(f"here {T} tokens of text; patches run on `vit`, time series on the page Tokens", "holds", "tokens")


def writes(model: Model, trace: Trace) -> Measured:
    """What the model has to say."""
    words, count = " ".join(trace.words), trace.step("logits").shape[-1]
    said = f"a picture and “{words}” go in, the logits of {count} words come out"
    return Measured(said, "holds", "overview", (("model", model.name),))


def one_format(model: Model, trace: Trace) -> Measured:
    """Patches and words as tokens of one width, through the same parameters."""
    patches, words = trace.step("position"), trace.step("text_position")
    count = sum(one.numel() for name, one in model.net.named_parameters() if name.startswith("block"))
    said = (
        f"{patches.shape[-2]} patches and {words.shape[-2]} words, all of {words.shape[-1]} numbers, "
        f"through the same {count:,} parameters"
    )
    return Measured(said, "holds" if patches.shape[-1] == words.shape[-1] else "not", "trace", (("step", "sequence"),))


def image_first(model: Model, trace: Trace) -> Measured:
    """In which order the segments stand."""
    named = {one.name: one for one in trace.segments}
    image, text = named["image"], named["text"]
    said = f"patches are tokens {image.start} to {image.stop - 1}, words {text.start} to {text.stop - 1}"
    return Measured(said, "holds" if image.stop == text.start else "not", "mask")


def text_sees(model: Model, trace: Trace) -> Measured:
    """How much of its weight a word gives to the picture, and a patch to words."""
    named = {one.name: slice(one.start, one.stop) for one in trace.segments}
    maps = weights(trace, 0)
    picture, back = maps[..., named["text"], named["image"]], maps[..., named["image"], named["text"]]
    own = maps[..., named["text"], named["text"]]
    said = (
        f"words give patches {percent(float(picture.sum(-1).mean()))} of their weight, every patch "
        "some; patches give words "
        f"{float(back.max()):g}; no word gives a later one any: {float(own.triu(1).max()):g}"
    )
    so = float(picture.min()) > 0 and float(back.max()) == 0 and float(own.triu(1).max()) == 0
    return Measured(said, "holds" if so else "not", "mask")
