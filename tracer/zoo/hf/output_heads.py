"""Class of a checkpoint in transformers, and the results of its head.

A checkpoint names its class (`config.architectures`), and a family lists the classes whose answer it knows. A weight
that a file lacks is a random number: no answer that depends on it is shown, and all are named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tracer.models.shared.predictions import class_probabilities, embedding, next_tokens, token_at_each_place
from tracer.textbook.claims import Claim
from tracer.textbook.claims import predicates as so
from tracer.textbook.explanations import WHY
from tracer.textbook.hints import Hint
from tracer.utils.error_text import quote

PREDICTION_LAYER = "*predictions.transform"
"""The layer before the scores of BERT and its kin."""
HINTS = (
    Hint(role="cls", module="*pooler", letter=r"\mathbf{x}_1", id="pooler.first", title="Take the first token"),
    Hint(role="first", module="*pooler", letter=r"\mathbf{x}_1", id="pooler.first", why=WHY["first"]),
    Hint(
        "*pooler.dense*",
        letter=r"\mathbf{y}",
        below="p",
        id="pooler.dense",
        title="Pool",
        why=WHY["pool"],
        stage="head",
    ),
    Hint(
        "*pooler.activation*", letter=r"\mathbf{z}", id="pooler.pooled", title="Squash", why=WHY["tanh"], stage="head"
    ),
    Hint(
        f"{PREDICTION_LAYER}.dense*",
        letter=r"\mathbf{Y}_c",
        below="c",
        id="cls.predictions.transform.dense",
        stage="head",
    ),
    Hint(f"{PREDICTION_LAYER}.dense*", title="Transform", why=WHY["transform"]),
    Hint(
        f"{PREDICTION_LAYER}.*act*",
        letter=r"\mathbf{G}_c",
        id="cls.predictions.transform.activation",
        stage="head",
        title="Activate",
    ),
    Hint(
        f"{PREDICTION_LAYER}.LayerNorm",
        letter=r"\mathbf{X}_f",
        below="c",
        id="cls.predictions.transform.norm",
        why=WHY["one scale"],
    ),
)
"""Hints for heads: a pooler is the first token through a linear map and a squashing function; some heads have one
more layer before the scores."""
SENTENCES = (
    Hint(role="types", title="Number the sentences", why=WHY["types"]),
    Hint(role="position", title="Add sentence and position", why=(*WHY["type"], *WHY["position"])),
    Hint(role="first norm", why=WHY["first norm"]),
)
"""Hints for embeddings with token types."""
STREAM = (
    Hint(module="model.multi_modal_projector*", stage="embedding", title="Into the width of the text"),
    Hint("model.eq", letter=r"\mathbf{m}", title="Which places are patches?", stage="embedding"),
    Hint("model.is_all_true", letter="c", title="Are they as many as the patches?", stage="embedding"),
    Hint(
        "model.masked_scatter",
        id="stream",
        title="One stream",
        why=(
            Claim(
                "Places of the text that stand for patches get the patches' tokens: from here on they are one stream.",
                so.without(so.rearranges),
            ),
        ),
        stage="embedding",
    ),
)
"""Hints for the concatenation of patches and words."""
UNUSED_PREFIX = "pooler."
"""Parameters that vectors of tokens do not depend on, by name."""


def class_of(config, known: Mapping[str, Callable]) -> str:
    """Return the name of a configuration's class: the family's first if it names none.

    `known` are the family's classes and their answers. ValueError for a class that is not among them.
    """
    name = next(iter(config.architectures or known))
    if name not in known:
        raise ValueError(
            f"its class is {quote(name)}, whose head has no answer here; known of this family: {', '.join(known)}. "
            "tracer.trace(module, …) records it all the same"
        )
    return name


def answers(config, known: Mapping[str, Callable], tokenizer=None) -> Callable:
    """Return `result(model, inputs, output)` of a configuration's class."""
    sentence = known[class_of(config, known)]

    def result(model, inputs, output) -> dict:
        lacks = (model.card or {}).get("lacks", ())
        if sentence is vectors:
            lacks = [name for name in lacks if UNUSED_PREFIX not in name]
        return {"kind": "none", "lacks": list(lacks)} if lacks else sentence(model, inputs, output, tokenizer)

    return result


def vectors(model, inputs, output, tokenizer) -> dict:
    """Return the output `[B, S, D]` of a model without a head as its result."""
    return embedding(model, inputs, output)


def classes(model, inputs, output, tokenizer) -> dict:
    """Return the classes and their probabilities, from `logits` `[B, K]`."""
    return class_probabilities(model, inputs, output["logits"])


def decode_next_tokens(model, inputs, output, tokenizer) -> dict:
    """Return the most probable next tokens, from `logits` `[B, T, V]`; without a tokenizer they are ids, and the text
    is split into bytes, as `stand_in` notes."""
    prediction = next_tokens(model, inputs, output["logits"])
    if tokenizer is None:
        return prediction | {"stand_in": "bytes"}
    best = output["logits"][0, -1].topk(len(prediction["tokens"])).indices.tolist()
    return prediction | {"tokens": [tokenizer.decode([number]) for number in best]}


def each_place(model, inputs, output, tokenizer) -> dict:
    """Return the most probable token at every position, from `logits` `[B, T, V]`; for a text with a mask, at the
    masked ones."""
    shares = output["logits"].softmax(-1)
    prediction = token_at_each_place(model, inputs, shares) | {"unit": "token"}
    if tokenizer is None:
        return prediction | {"stand_in": "bytes"}
    return prediction | {"tokens": [tokenizer.decode([number]) for number in shares[0].argmax(-1).tolist()]}


def labels(model, inputs, output, tokenizer) -> dict:
    """Return the most probable class of every token, from `logits` `[B, T, K]`."""
    shares = output["logits"][0].softmax(-1).max(-1)
    names = (model.card or {}).get("classes") or [f"class {i}" for i in range(output["logits"].shape[-1])]
    tokens = [names[number] for number in shares.indices.tolist()]
    prediction = {"text": list(inputs.words), "tokens": tokens, "probabilities": shares.values.tolist()}
    return {"kind": "tokens", "unit": "class", **prediction}
