"""LLaVA of transformers: a vision tower, then one stream of image and text (Liu et al. 2023)."""

from __future__ import annotations

import torch

from tracer.derive.claims import Claim
from tracer.derive.claims import facts as so
from tracer.derive.hints import Hint
from tracer.models.shared.model import Spec
from tracer.record import Segment
from tracer.sources import single_stream
from tracer.sources.configured import builder, example, own_width
from tracer.sources.heads import class_of, following
from tracer.sources.single_stream import numbers, place_of_a_patch, stream_facts
from tracer.sources.transformers import imported

ATTRIBUTES = {
    "H": "vision_config.image_size",
    "P": "vision_config.patch_size",
    "D_v": "vision_config.hidden_size",
    "h_v": "vision_config.num_attention_heads",
    "d_ffv": "vision_config.intermediate_size",
    "L_v": "vision_config.num_hidden_layers",
    "V": "text_config.vocab_size",
    "D": "text_config.hidden_size",
    "h": "text_config.num_attention_heads",
    "h_kv": "text_config.num_key_value_heads",
    "d_ff": "text_config.intermediate_size",
    "L": "text_config.num_hidden_layers",
}
PROBES = (
    {"B": 19, "T": 11, "H": 35, "P": 5, "D_v": 66, "h_v": 6, "d_ffv": 26}
    | {"V": 83, "D": 72, "h": 6, "h_kv": 3, "d_ff": 31},
    {"B": 13, "T": 17, "H": 33, "P": 3, "D_v": 14, "h_v": 2, "d_ffv": 29}
    | {"V": 89, "D": 80, "h": 4, "h_kv": 2, "d_ff": 37},
    {"B": 7, "T": 23, "H": 14, "P": 2, "D_v": 30, "h_v": 3, "d_ffv": 41}
    | {"V": 97, "D": 112, "h": 8, "h_kv": 2, "d_ff": 43},
    {"B": 9, "T": 29, "H": 42, "P": 7, "D_v": 55, "h_v": 5, "d_ffv": 47}
    | {"V": 101, "D": 140, "h": 10, "h_kv": 2, "d_ff": 53},
)
SMALL = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 8}
TOWER, STREAM = "model.vision_tower", "model.language_model"

MERGED = (
    Claim(
        "Places of the text that stand for patches get the patches' tokens: from here on they are one stream.",
        so.without(so.rearranges),
    ),
)
HINTS = (
    Hint(module="model.multi_modal_projector*", stage="embedding", title="Into the width of the text"),
    Hint("model.eq", letter=r"\mathbf{m}", title="Which places are patches?", stage="embedding"),
    Hint("model.is_all_true", letter="c", title="Are they as many as the patches?", stage="embedding"),
    Hint("model.masked_scatter", id="stream", title="One stream", why=MERGED, stage="embedding"),
)
"""What the run alone does not say of where patches and words meet."""
HEADS = {"LlavaForConditionalGeneration": following}


def config():
    """A small LLaVA: the smallest that was published does not fit a laptop."""
    vision = imported().CLIPVisionConfig(**SMALL, image_size=112, patch_size=14)
    text = imported().LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=1024)
    return imported().LlavaConfig(vision_config=vision, text_config=text, image_token_id=1023)


def architecture(config):
    """Tower, projector and language model."""
    return getattr(imported(), class_of(config, HEADS))


def fitted(config, width: int | None = None) -> None:
    """What follows from the sizes: the width of a head, and the token that holds a patch's place."""
    text = config.text_config
    text.head_dim = width or text.hidden_size // text.num_attention_heads
    config.image_token_id = place_of_a_patch(text.vocab_size)


def image_and_text(sizes: dict):
    """The inputs of a probe."""
    return example(numbers(sizes), pixel_values=torch.randn(sizes["B"], 3, sizes["H"], sizes["H"]))


def segments(sizes) -> tuple[Segment, ...]:
    """CLS and patches in the tower; patches, then text in the stream."""
    return (
        Segment("CLS", 0, 1, TOWER),
        Segment("image", 1, sizes["N"] + 1, TOWER),
        *single_stream.segments(sizes, STREAM),
    )


def spec(config, files) -> Spec:
    """All that is known of a LLaVA, from its configuration."""
    width = own_width(config.text_config)
    d_k = "D/h" if width is None else str(width)
    return Spec(
        **stream_facts(config, files, ATTRIBUTES, HEADS),
        net=builder(config, architecture, ATTRIBUTES, lambda changed: fitted(changed, width)),
        derived={"W": "H", "C": "3", "N": "H**2/P**2", "S": "N + T", "d_v": "D_v/h_v", "d_k": d_k},
        names=tuple("B T N N+1 S S+1 D D_v P H H/P h_v d_v d_ffv h h_kv h/h_kv d_k d_k/2 d_ff V".split()),
        probes=PROBES,
        example=image_and_text,
        segments=segments,
        hints=HINTS,
        parts={TOWER: "L_v", STREAM: "L"},
        tiny={**PROBES[0], "L": 2, "L_v": 2},
    )
