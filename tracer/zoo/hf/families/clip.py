"""CLIP of transformers: a photo tower and a text tower that meet in one space (Radford et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.record import Segment
from tracer.spec.preparation import photo_input
from tracer.spec.results import sentence_probabilities
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.names import Hint
from tracer.utils.errors import quote
from tracer.zoo.hf.spec_builders import ATTENTION, answers, builder, sizes_of, tokens

ATTRIBUTES = {
    "H": "vision_config.image_size",
    "P": "vision_config.patch_size",
    "D_v": "vision_config.hidden_size",
    "h_v": "vision_config.num_attention_heads",
    "d_ffv": "vision_config.intermediate_size",
    "L_v": "vision_config.num_hidden_layers",
    "V": "text_config.vocab_size",
    "T_max": "text_config.max_position_embeddings",
    "D": "text_config.hidden_size",
    "h": "text_config.num_attention_heads",
    "d_ff": "text_config.intermediate_size",
    "L": "text_config.num_hidden_layers",
    "D_e": "projection_dim",
}
SPACE = (
    Claim(
        "One matrix maps the output of the tower into the space that photos and sentences share.",
        so.linear,
        "trainable",
    ),
)
UNIT = (
    Claim("This vector is divided by its own length.", so.divided_by_length, "unit rows"),
    Claim("The products of such vectors are cosines, and only directions count."),
)
HINTS = (
    Hint("*.post_layernorm", letter=r"\hat{\mathbf{x}}_f", title="Normalise it", stage="head"),
    Hint("text_model.index", letter=r"\mathbf{x}_f", id="token", title="Take one token", stage="head"),
    Hint(
        "text_model.index",
        why=Claim("The text tower is causal: only a sentence's last token has seen all of it.", so.causal, "causal"),
    ),
    Hint("*_projection.linear", title="Into one space", why=SPACE, stage="head"),
    Hint("visual_projection.linear", letter=r"\mathbf{y}_v", below="v", id="vision_model.projection"),
    Hint("text_projection.linear", letter=r"\mathbf{y}_t", below="t", id="text_model.projection"),
    Hint("div*", title="Unit length", why=UNIT, stage="head"),
    Hint("div", letter=r"\hat{\mathbf{y}}_v", id="vision_model.unit"),
    Hint("div2", letter=r"\hat{\mathbf{y}}_t", id="text_model.unit"),
    Hint(
        "logits",
        title="Compare",
        why=Claim(
            "Every sentence is compared with every photo: these are cosines, times a trainable temperature.",
            so.trainable,
            "trainable",
        ),
    ),
)
"""Hints for the comparison of both towers."""
PROBES = (
    {"B": 19, "K": 7, "T": 11, "H": 35, "P": 5, "D_v": 66, "h_v": 6, "d_ffv": 26}
    | {"V": 83, "T_max": 59, "D": 20, "h": 4, "d_ff": 31, "D_e": 37},
    {"B": 13, "K": 5, "T": 17, "H": 33, "P": 3, "D_v": 14, "h_v": 2, "d_ffv": 29}
    | {"V": 89, "T_max": 47, "D": 24, "h": 3, "d_ff": 41, "D_e": 43},
    {"B": 8, "K": 9, "T": 19, "H": 42, "P": 7, "D_v": 55, "h_v": 5, "d_ffv": 41}
    | {"V": 97, "T_max": 53, "D": 78, "h": 6, "d_ff": 47, "D_e": 59},
)
SENTENCES = "a photo of a horse\na photo of a dog\na photo of a bird\na photo of a car"


def set_end_token(config) -> None:
    """Set the end of a text to its token with the highest number."""
    config.text_config.eos_token_id = 2


def preparation(tokenizer) -> Callable[..., Inputs]:
    """Return the preparation of a photo and sentences, one a line, to `input_ids` `[K, T]` and `pixel_values` `[B,
    C, H, W]`."""

    def prepare(model, image, text, sizes) -> Inputs:
        sentences = [line.strip() for line in (SENTENCES if text is None else text).splitlines() if line.strip()]
        if not sentences:
            raise ValueError(f"the text {quote(text)} has no sentence, expected at least one")
        count, most = sizes.get("K", len(sentences)), model.sizes["T_max"]
        sentences = (sentences * count)[:count]
        rows = [tokens(tokenizer, sentence, model.sizes["V"] - 1)[0][: most - 1] for sentence in sentences]
        length = min(sizes.get("T", max(map(len, rows)) + 1), most)
        last = model.sizes["V"] - 1  # what the text tower takes for the end
        ids = torch.tensor([[*(row + [last] * length)[: length - 1], last] for row in rows])
        photo_inputs = photo_input(model, image, None, {**sizes, "K": count, "T": length})
        return replace(photo_inputs, tensors=(ids, photo_inputs[0]), sentences=tuple(sentences))

    return prepare


def fits(model, inputs, output, tokenizer) -> dict:
    """Return the probability of each sentence for the photo, from `logits_per_image` `[B, K]`."""
    return sentence_probabilities(model, inputs, output["logits_per_image"])


HEADS = {"CLIPModel": fits}


def segments(sizes) -> tuple[Segment, ...]:
    """Return CLS and patches in the photo tower, the tokens of a sentence in the text tower."""
    vision, text = "vision_model", "text_model"
    return (
        Segment("CLS", 0, 1, vision),
        Segment("image", 1, sizes["N"] + 1, vision),
        Segment("text", 0, sizes["T"], text),
    )


def spec(config, files) -> Spec:
    """Return everything that is known of a CLIP, from its configuration."""
    return Spec(
        net=builder(config, HEADS, ATTRIBUTES, set_end_token),
        whole=False,
        takes=("image", "text"),
        samples="photos",
        sizes=sizes_of(config, ATTRIBUTES),
        runs=("B", "K", "T"),
        options={"attention": ATTENTION},
        derived={"W": "H", "C": "3", "N": "H**2/P**2", "d_v": "D_v/h_v", "d_k": "D/h"},
        names=tuple("B K T T+1 N N+1 D_v D D_e P H H/P h_v d_v d_ffv h d_k d_ff V T_max".split()),
        probes=PROBES,
        example=lambda sizes: (
            torch.randint(sizes["V"], (sizes["K"], sizes["T"])),
            torch.randn(sizes["B"], 3, sizes["H"], sizes["H"]),
        ),
        prepare=preparation(files.tokenizer),
        result=answers(config, HEADS),
        segments=segments,
        hints=HINTS,
        parts={"vision_model": "L_v", "text_model": "L"},
        tiny={**PROBES[0], "L": 2, "L_v": 2},
    )
