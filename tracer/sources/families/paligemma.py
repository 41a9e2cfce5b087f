"""PaliGemma of transformers: a vision tower, then one stream with a prefix mask (Beyer et al. 2024)."""

from __future__ import annotations

from dataclasses import replace

import torch

from tracer.models.shared.model import Spec
from tracer.record import Segment
from tracer.sources import single_stream
from tracer.sources.configured import builder, own_width
from tracer.sources.families.llava import (
    ATTRIBUTES,
    HINTS,
    PROBES,
    SMALL,
    STREAM,
    TOWER,
    image_and_text,
)
from tracer.sources.heads import class_of, following
from tracer.sources.single_stream import place_of_a_patch, stream_facts
from tracer.sources.transformers import imported

HEADS = {"PaliGemmaForConditionalGeneration": following}


def config():
    """A small PaliGemma: the smallest that was published does not fit a laptop."""
    vision = imported().SiglipVisionConfig(**SMALL, image_size=112, patch_size=14, vision_use_head=False)
    text = imported().GemmaConfig(**SMALL, num_key_value_heads=2, vocab_size=1024, head_dim=32)
    return imported().PaliGemmaConfig(vision_config=vision, text_config=text, image_token_id=1023)


def architecture(config):
    """Tower, projector and language model."""
    return getattr(imported(), class_of(config, HEADS))


def fitted(config, width: int | None = None) -> None:
    """What follows from the sizes: the widths of a head and of the projection, and the token of a patch's place."""
    text = config.text_config
    text.head_dim = width or text.hidden_size // text.num_attention_heads
    config.projection_dim = config.vision_config.projection_dim = text.hidden_size
    config.image_token_id = place_of_a_patch(text.vocab_size)


def with_prefix(sizes: dict):
    """The inputs of a probe: the image is the prefix, the text is not."""
    inputs, N = image_and_text(sizes), (sizes["H"] // sizes["P"]) ** 2
    types = torch.arange(N + sizes["T"]).ge(N).long().expand(sizes["B"], -1).contiguous()
    return replace(inputs, named={**inputs.named, "token_type_ids": types})


def segments(sizes) -> tuple[Segment, ...]:
    """Patches in the tower; patches, then text in the stream."""
    return Segment("image", 0, sizes["N"], TOWER), *single_stream.segments(sizes, STREAM)


def spec(config, files) -> Spec:
    """All that is known of a PaliGemma, from its configuration."""
    width = own_width(config.text_config)
    d_k = "D/h" if width is None else str(width)
    return Spec(
        **stream_facts(config, files, ATTRIBUTES, HEADS, types=True),
        net=builder(config, architecture, ATTRIBUTES, lambda changed: fitted(changed, width)),
        derived={"W": "H", "C": "3", "N": "H**2/P**2", "S": "N + T", "d_v": "D_v/h_v", "d_k": d_k},
        names=tuple("B T N S S+1 D D_v P H H/P h_v d_v d_ffv h h_kv h/h_kv d_k d_k/2 d_ff V".split()),
        probes=PROBES,
        example=with_prefix,
        segments=segments,
        hints=HINTS,
        parts={TOWER: "L_v", STREAM: "L"},
        tiny={**PROBES[0], "L": 2, "L_v": 2},
    )
