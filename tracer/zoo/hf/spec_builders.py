"""What a model of transformers answers, and where its patches are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch

from tracer.spec.results import class_names, next_tokens, token_at_each_place
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import WHY
from tracer.textbook.names import Hint
from tracer.utils.errors import quote
from tracer.utils.torch_state import seeded_draws
from tracer.utils.transformers_internals import build_from_config
from tracer.zoo.hf.dummy_inputs import Feed, parameters, usual
from tracer.zoo.hf.tiny_config import at, attributes, number

# Class of a checkpoint in transformers, and the results of its head.
#
# A checkpoint names its class (`config.architectures`), and a family lists the classes whose answer it knows. A weight
# that a file lacks is a random number: no answer that depends on it is shown, and all are named.

PREDICTION_LAYER = "*predictions.transform"
"""The layer before the scores of BERT and its kin."""
OUTPUT_HINTS = (
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
        why=Claim(
            "Places of the text that stand for patches get the patches' tokens: from here on they are one stream.",
            so.without(so.rearranges),
            "several operands",
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


def architecture(config, known: Mapping[str, Callable]) -> Any:
    """Return a configuration's class of transformers, which is among the `known` ones."""
    return getattr(import_module("transformers"), class_of(config, known))


def answers(config, known: Mapping[str, Callable], tokenizer=None) -> Callable:
    """Return `result(model, inputs, output)` of a configuration's class."""
    sentence = known[class_of(config, known)]

    def result(model, inputs, output) -> dict:
        lacks = (model.card or {}).get("lacks", ())
        return {"kind": "none", "lacks": list(lacks)} if lacks else sentence(model, inputs, output, tokenizer)

    return result


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
    names = class_names(model, output["logits"].shape[-1])
    tokens = [names[number] for number in shares.indices.tolist()]
    prediction = {"text": list(inputs.words), "tokens": tokens, "probabilities": shares.values.tolist()}
    return {"kind": "tokens", "unit": "class", **prediction}


# Positions of a photo's patches in the sequence of a generic net, found by changing one patch.


def patches_start(net: torch.nn.Module, config, feed: Feed) -> int | None:
    """Return how many tokens precede the patches in the sequence that attention mixes, if each patch is one token and
    they are in reading order; else None.

    A changed patch changes one token of every layer before the first that mixes tokens, and all tokens behind it.
    """
    paths = attributes(config, type(net), feed.names)
    if "pixel_values" not in feed.names or not {"H", "P"} <= paths.keys():
        return None
    H, P = (number(*at(config, paths[symbol])) or 0 for symbol in "HP")
    inputs = feed.make(config, usual(config))
    photo = inputs["pixel_values"]
    if photo.shape[-2:] != (H, H) or H % P or H == P:
        return None
    first, last = photo.clone(), photo.clone()
    first[..., :P, :P] += 1
    last[..., -P:, -P:] += 1
    plain, *changed = (_sequences(net, {**inputs, "pixel_values": pixels}) for pixels in (photo, first, last))
    N, start = (H // P) ** 2, None
    for index, before in enumerate(plain):
        rows = [_different(before, each[index]) for each in changed if index < len(each)]
        if len(rows) < 2 or before.shape[1] < N:
            return None
        if [len(each) for each in rows] == [1, 1] and rows[1][0] - rows[0][0] == N - 1:
            start = rows[0][0], before.shape[1]
        elif start and all(len(each) == before.shape[1] == start[1] for each in rows):
            return start[0]
    return None


def resizes(module: torch.nn.Module) -> bool:
    """Return whether a module interpolates its position embeddings to photos of other sizes by default."""
    table = getattr(module, "position_embeddings", None)
    known = parameters(type(module))
    return (
        isinstance(table, torch.nn.Parameter)
        and hasattr(module, "interpolate_pos_encoding")
        and "interpolate_pos_encoding" not in known
    )


def _sequences(net: torch.nn.Module, named_inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs `[1, S, D]` of all modules, in the order of their ends."""
    sequences: list[torch.Tensor] = []

    def keep(module, inputs, output) -> None:
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, torch.Tensor) and output.dim() == 3:
            sequences.append(output)

    hooks = [module.register_forward_hook(keep) for module in net.modules()]
    try:
        with torch.no_grad(), seeded_draws(0):
            net(**named_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return sequences


def _different(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    """Return the tokens that differ between two outputs."""
    return (before != after).any(-1)[0].nonzero().flatten().tolist() if before.shape == after.shape else []


# Construction of a `Spec` from a configuration of transformers: nets at other sizes, photos and texts as inputs.

ATTENTION = ("sdpa", "eager")
"""The implementations of attention: PyTorch's fused kernel, or written out."""
EXPERTS = "batched_mm"
"""The implementation of experts that asks for no values: as many matrix products as tokens have experts."""
TEXT = "The quick brown fox jumps over the lazy dog."


def sizes_of(config, attributes: dict[str, str]) -> dict[str, int]:
    """Return the sizes of a configuration, by their symbols; `"text_config.hidden_size"` is that of an inner one."""
    return {symbol: int(getattr(*at(config, path))) for symbol, path in attributes.items()}


def builder(
    config, known: Mapping[str, Callable], attributes: dict[str, str], adjust: Callable = lambda config: None
) -> Callable[..., torch.nn.Module]:
    """Return `net(**sizes)`: a class of the `known` ones with seeded random weights, its configuration changed to these
    sizes.

    `adjust(config)` brings what follows from the sizes into line.
    """

    def net(*, attention: str = ATTENTION[0], **sizes: int) -> torch.nn.Module:
        changed = copy.deepcopy(config)
        for symbol, value in sizes.items():
            setattr(*at(changed, attributes[symbol]), value)
        adjust(changed)
        without_cache(changed)
        return build_from_config(architecture(changed, known), changed, attention)

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


def tokens(tokenizer, text: str, count: int) -> tuple[list[int], list[str]]:
    """Return token ids below `count` and their texts."""
    if tokenizer is None:
        data = text.encode("utf-8")
        return [byte % count for byte in data], [chr(byte) if byte < 128 else f"0x{byte:02x}" for byte in data]
    numbers = tokenizer(text)["input_ids"]
    return [number % count for number in numbers], [tokenizer.decode([number]).strip() or "␣" for number in numbers]
