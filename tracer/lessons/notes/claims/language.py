"""Notes' claims on text: ids, embeddings, the next token and the loss."""

from __future__ import annotations

from math import log

import torch
import torch.nn.functional as F

from tracer.attention import masks, weights
from tracer.attention.textbook_claims import terms
from tracer.inputs.model_inputs import samples
from tracer.lessons.notes.claims.attention import BlockAttention
from tracer.lessons.notes.measurement import Measurement, at_step, close, of_model, off, tensor_of, verdict_of
from tracer.record import Trace
from tracer.spec.spec import Model, build_seeded
from tracer.utils.text import percent, scientific

NEIGHBOURS = 3
"""Neighbours of a row that are named."""


def ids(model: Model, trace: Trace) -> torch.Tensor:
    """Return the ids that were looked up, `[T]`: the rows of E that equal the embedded tokens, bit for bit."""
    table = getattr(model.net, "tokens", None)
    known = {step.id for step in trace.steps}
    embedded = next((trace.value(id) for id in ("words", "embedding") if id in known), None)
    if table is None or embedded is None:
        raise ValueError(f"{model.name} looks up no tokens")
    same = (embedded[0][:, None] == table.weight).all(-1)
    if not same.any(-1).all():
        raise ValueError(f"{model.name} does not take rows of its table as they are")
    return same.int().argmax(-1)


def ids_from_zero(model: Model, trace: Trace) -> Measurement:
    """Measure the ids of this run, and the ids that the table refuses."""
    token_ids, V = ids(model, trace), model.net.tokens.num_embeddings
    shown = ", ".join(
        f"{word!r}: {int(token_id)}" for word, token_id in list(zip(trace.words, token_ids, strict=False))[:4]
    )
    refused = []
    for id in (0, V - 1, V):
        try:
            model.net.tokens(torch.tensor([id], device=model.device))
        except IndexError:
            refused.append(id)
    return Measurement(
        f"{len(token_ids)} tokens of this run, and the table of {V} rows",
        f"{shown} …; this run takes {int(token_ids.min())} to {int(token_ids.max())}; "
        f"the ids 0 and {V - 1} are rows of E",
        f"The id {V} is {'refused' if V in refused else 'taken, too'}",
        verdict_of(refused == [V] and int(token_ids.max()) < V),
        *of_model(model),
    )


def lookup_table(model: Model, trace: Trace) -> Measurement:
    """Measure the lookup from text to tokens to ids to rows of the table."""
    token_ids, E = ids(model, trace), model.net.tokens.weight.detach()
    known = {step.id for step in trace.steps}
    ran = next(tensor_of(trace, id)[0] for id in ("words", "embedding") if id in known)
    same, shifted = (int((E[at] == ran).all(-1).sum()) for at in (token_ids, (token_ids + 1) % len(E)))
    return Measurement(
        f"{len(token_ids)} pieces, {len(set(map(int, token_ids)))} different ids, a table of {len(E)} rows",
        f"for {same} of {len(token_ids)} pieces, what was looked up is the row of that number, bit for bit",
        f"For {shifted} of them, it is the row after that",
        verdict_of(same == len(token_ids) > shifted),
        "tokens",
    )


def next_token(model: Model, trace: Trace) -> Measurement:
    """Measure the softmax of the logits."""
    logits = trace.value("logits")
    if logits is None or "V" not in trace.step("logits").symbolic:
        raise ValueError(f"{model.name} has no logits over a vocabulary")
    shares, V = logits.softmax(-1), logits.shape[-1]
    error, best = float((shares.sum(-1) - 1).abs().max()), float(shares[0, -1].max())
    sums = logits.sum(-1)
    return Measurement(
        f"{shares.shape[1]} rows of {V} numbers",
        f"each sums to 1 within {scientific(error)}; the likeliest next token has {percent(best)}",
        f"Shared evenly, it would have {percent(1 / V)}; the logits themselves sum to between {float(sums.min()):.3g} "
        f"and {float(sums.max()):.3g}",
        verdict_of(close(error) and best > 1.01 / V),
        *of_model(model),
    )


def distributions(model: Model, trace: Trace) -> Measurement:
    """Measure whether the output rows are distributions."""
    rows, logits = trace.value("probabilities"), trace.value("logits")
    if rows is None or logits is None:
        raise ValueError(f"{model.name} gives no probabilities")
    error, least = float((rows.sum(-1) - 1).abs().max()), float(rows.min())
    sums = logits.sum(-1)
    return Measurement(
        f"{rows.shape[1]} rows of {rows.shape[2]} numbers",
        f"each sums to 1 within {scientific(error)}, the smallest number is {least:.2g}",
        f"The logits before the softmax sum to between {float(sums.min()):.3g} and {float(sums.max()):.3g}",
        verdict_of(close(error) and least >= 0),
        *at_step("probabilities"),
    )


def losses(model: Model, trace: Trace) -> tuple[torch.Tensor, float]:
    """Return -log p of each next token, `[T - 1]`, in nats; and the mean if targets were not shifted."""
    token_ids, logits = ids(model, trace), trace.value("logits")
    if logits is None or logits.shape[1] != len(token_ids) or logits.shape[-1] != model.net.tokens.num_embeddings:
        raise ValueError(f"{model.name} does not predict the next token at each")
    return F.cross_entropy(logits[0, :-1], token_ids[1:], reduction="none"), float(
        F.cross_entropy(logits[0], token_ids)
    )


def _nats(value: float) -> str:
    """Return a loss with three decimals, or as a power of ten if these would all be 0."""
    return f"{value:.3f}" if value >= 5e-4 or not value else scientific(value)


def loss(model: Model, trace: Trace) -> Measurement:
    """Measure the cross-entropy of this run's own text, targets shifted by one."""
    shifted, unshifted = losses(model, trace)
    mean, V = float(shifted.mean()), model.net.tokens.num_embeddings
    result = f"{_nats(mean)} nats on average, from {_nats(float(shifted.min()))} to {_nats(float(shifted.max()))}"
    if N := next((segment.stop for segment in trace.segments if segment.name == "image"), 0):
        result += f"; the {N} positions of the picture have no target"
    return Measurement(
        f"−log p of the next token, over {len(shifted)} targets",
        result,
        f"With equal probabilities, it would be ln V = {log(V):.3f}; without the shift, {unshifted:.3f}",
        verdict_of(mean < min(log(V), unshifted)),
        "loss",
        (("model", model.name),),
    )


def nearest(model: Model, tokens: tuple[str, ...]) -> dict[str, list[tuple[str, float]]]:
    """Return the rows of E with the largest cosine to those of some tokens."""
    vocabulary = model.card.get("vocabulary") or model.spec.vocabulary if model.card else model.spec.vocabulary
    E = F.normalize(model.net.tokens.weight.detach(), dim=-1)
    neighbours = {}
    for token in tokens:
        if token in vocabulary:
            at = list(vocabulary).index(token)
            best = (E @ E[at]).topk(NEIGHBOURS + 1)
            near = [(vocabulary[int(i)], float(c)) for c, i in zip(*best, strict=True) if int(i) != at]
            neighbours[token] = near[:NEIGHBOURS]
    return neighbours


def neighbours(model: Model, trace: Trace) -> Measurement:
    """Measure the nearest rows of the learned table: letters of both cases, and vowels."""
    vowels = "aeiou"
    near_vowels = nearest(model, (*vowels, "A", "."))
    hits = sum(near[0] in vowels for vowel in vowels for near in near_vowels.get(vowel, []))
    of = sum(len(near_vowels.get(vowel, [])) for vowel in vowels)
    listed = "; ".join(
        f"near “{token}”: {', '.join(repr(letter) for letter, _ in near)}" for token, near in near_vowels.items()
    )
    chance = (len(vowels) - 1) / (model.net.tokens.num_embeddings - 1)
    return Measurement(
        f"rows of E, the {NEIGHBOURS} with the largest cosine",
        f"{listed}. Of the neighbours of lower-case vowels {hits} of {of} are lower-case vowels",
        f"By chance, it would be {percent(chance)}, that is {chance * of:.2g} of {of}",
        verdict_of(hits > 2 * chance * of),
        *at_step("embedding"),
    )


def positions_learned(model: Model, trace: Trace) -> Measurement:
    """Measure how far training moved the positions from their start."""
    return _training_distance(model, "positions", "position")


def _training_distance(model: Model, name: str, step: str) -> Measurement:
    """Measure the distance of a parameter from its seeded random start, and its growth."""
    start, again = (
        dict(build_seeded(model.spec.net, {**model.sizes, **model.options}).named_parameters())[name].detach()
        for _ in range(2)
    )
    now = dict(model.net.named_parameters())[name].detach().cpu()
    moved, longer = float((now - start).norm() / now.norm()), float(now.norm() / start.norm())
    untrained = float((again - start).norm() / start.norm())
    return Measurement(
        f"`{name}`, its length, beside the random numbers that the same code starts from",
        f"it is {longer:.1f} times as long; the difference is {percent(moved)} of its length",
        f"Drawn again and not trained, it would be off by {percent(untrained)}",
        verdict_of(moved > max(1e-3, untrained)),
        *at_step(step),
    )


def learned(model: Model, trace: Trace) -> Measurement:
    """Measure how far training moved the embedding from its start."""
    return _training_distance(model, "embedding.weight", "embedding")


def four_terms(model: Model, trace: Trace) -> Measurement:
    """Measure the four terms of the scores, and their sum."""
    parts, scores = terms(model, trace), tensor_of(trace, "block1.attention.scores")
    total = sum(parts.values())
    error, least = off(total, scores), min(off(total - term, scores) for term in parts.values())
    return Measurement(
        f"block 1, all {scores.shape[1]} heads, the largest of each term",
        "; ".join(f"{name} up to {float(term.abs().max()):.3g}" for name, term in parts.items())
        + f". Their sum is what ran, to within {scientific(error)}",
        f"Without any one of them, the sum is off by at least {percent(least)} of the largest score",
        verdict_of(close(error) and not close(least)),
        *at_step("block1.attention.scores"),
    )


CROSS, PLACES = ("content–position", "position–content"), ("position–position",)
"""Terms of content against place, and the one of places alone."""


def cross_terms(model: Model, trace: Trace) -> Measurement:
    """Measure the effect of the two cross terms on the weights.

    It is the number of queries with another maximum without them, beside that without the term of positions alone.
    """
    parts, scores = terms(model, trace), tensor_of(trace, "block1.attention.scores")
    weights = scores.softmax(-1)

    def without(names: tuple[str, ...]) -> tuple[float, float]:
        left = (scores - sum(parts[name] for name in names)).softmax(-1)
        elsewhere = float((left.argmax(-1) != weights.argmax(-1)).float().mean())
        return elsewhere, float((left - weights).abs().sum(-1).mean()) / 2

    (rotated, moved), (placed, shifted) = without(CROSS), without(PLACES)
    share = float(sum(parts[name] for name in CROSS).square().sum() / scores.square().sum())
    return Measurement(
        f"block 1, all {scores.shape[1]} heads and {scores.shape[-2]} queries; the terms left out of the scores",
        f"without the two cross terms {percent(rotated)} of the queries look elsewhere most, and {percent(moved)} of "
        f"the weight moves; their squares are {percent(share)} of the scores' squares",
        f"Without position–position {percent(placed)} look elsewhere most, and {percent(shifted)} of the weight moves",
        "holds" if rotated > placed else "sense" if rotated > 0 or moved > 0.01 else "not",
        *at_step("block1.attention.scores"),
    )


def any_sequence(model: Model, trace: Trace) -> Measurement:
    """Measure whether the blocks take any number of tokens that are not text."""
    inside = BlockAttention(model, trace)
    T, D = inside.entering.shape[1:]
    block = model.net.get_submodule(inside.block)
    random = torch.Generator().manual_seed(0)

    @torch.no_grad()
    def runs(count: int, width: int) -> bool:
        try:
            return block(torch.randn(1, count, width, generator=random)).shape[1:] == (count, width)
        except RuntimeError:
            return False

    same, wider = runs(T + 3, D) and runs(4 * T, D), runs(T, D + 1)
    return Measurement(
        f"block 1, tokens of {D} numbers",
        f"it ran {T} tokens of text; from {T + 3} and from {4 * T} random ones, as a series or patches would be, it "
        f"makes {'as many' if same else 'none'}",
        f"Tokens of {D + 1} numbers are {'taken, too' if wider else 'refused'}",
        verdict_of(same and not wider),
        "tokens",
    )


def writes(model: Model, trace: Trace) -> Measurement:
    """Measure whether the output depends on the picture and on the words before."""
    photos = list(samples(model.spec.samples).values())[:2]
    with torch.no_grad():
        ran, second = (model.net(*model.inputs(image=photo())) for photo in photos)
        same = model.net(*model.inputs(image=photos[0]()))
    moved, again = off(second, ran), off(same, ran)
    return Measurement(
        f"a picture and “{' '.join(trace.words)}” go in, the logits of {ran.shape[-1]} words come out",
        f"another picture changes them by up to {percent(moved)} of the largest",
        f"The same picture once more changes them by {again:g}",
        verdict_of(not close(moved) and close(again)),
        *of_model(model),
    )


def one_format(model: Model, trace: Trace) -> Measurement:
    """Measure patches and words as tokens of one width, through the same parameters."""
    patches, words = trace.step("position"), trace.step("text_position")
    both = trace.step("block1.mlp.hidden").shape[-2]
    count = sum(parameter.numel() for name, parameter in model.net.named_parameters() if name.startswith("block"))
    N, T = patches.shape[-2], words.shape[-2]
    return Measurement(
        "every block, the rows that the matrix of its MLP reads at once",
        f"{N} patches and {T} words, all of {words.shape[-1]} numbers, {both} rows through the same {count:,} "
        "parameters",
        f"With separate layers, {N} rows would go through these, and {T} rows through as many parameters again",
        verdict_of(patches.shape[-1] == words.shape[-1] and both == N + T),
        *at_step("sequence"),
    )


def image_first(model: Model, trace: Trace) -> Measurement:
    """Measure the order of the segments, and the part of the other that the first one sees."""
    named = {segment.name: segment for segment in trace.segments}
    image, text = named["image"], named["text"]
    cells = masks.visible(trace).float()
    forth, back = (
        float(cells[..., a.start : a.stop, b.start : b.stop].mean()) for a, b in ((text, image), (image, text))
    )
    return Measurement(
        "block 1, the order of the tokens and the mask",
        f"patches are tokens {image.start} to {image.stop - 1}, words {text.start} to {text.stop - 1}; words see "
        f"{percent(forth)} of the patches",
        f"What comes first sees less: patches see {percent(back)} of the words",
        verdict_of(image.stop == text.start and forth == 1 and back < 1),
        "mask",
    )


def text_sees(model: Model, trace: Trace) -> Measurement:
    """Measure the weight of words on the picture, and of patches on words."""
    named = {segment.name: slice(segment.start, segment.stop) for segment in trace.segments}
    maps = weights(trace, 0)
    picture, back = maps[..., named["text"], named["image"]], maps[..., named["image"], named["text"]]
    own = maps[..., named["text"], named["text"]]
    N = picture.shape[-1]
    even = sum(N / (N + at + 1) for at in range(picture.shape[-2])) / picture.shape[-2]
    so = float(picture.min()) > 0 and float(back.max()) == 0 and float(own.triu(1).max()) == 0
    return Measurement(
        f"block 1, all {maps.shape[1]} heads, mean over the words",
        f"words give patches {percent(float(picture.sum(-1).mean()))} of their weight, every patch some; patches give "
        f"words {float(back.max()):g}; no word gives a later one any: {float(own.triu(1).max()):g}",
        f"Shared evenly over what they see, words would give patches {percent(even)}",
        verdict_of(so),
        "mask",
    )
