"""Fuyu of transformers: patches straight into the decoder, one stream of image and text (Bavishi et al. 2023)."""

from __future__ import annotations

import torch

from tracer.models.shared.model import Spec
from tracer.sources.configured import builder, example
from tracer.sources.families.llava import HINTS, SMALL
from tracer.sources.heads import class_of, following
from tracer.sources.single_stream import numbers, place_of_a_patch, segments, stream_facts
from tracer.sources.transformers import imported

ATTRIBUTES = {
    "H": "image_size",
    "P": "patch_size",
    "C": "num_channels",
    "V": "text_config.vocab_size",
    "D": "text_config.hidden_size",
    "h": "text_config.num_attention_heads",
    "d_ff": "text_config.intermediate_size",
    "L": "text_config.num_hidden_layers",
}
PROBES = (
    {"B": 19, "T": 11, "H": 35, "P": 5, "C": 2, "V": 83, "D": 72, "h": 6, "d_ff": 31},
    {"B": 13, "T": 17, "H": 33, "P": 3, "C": 5, "V": 89, "D": 80, "h": 4, "d_ff": 37},
    {"B": 7, "T": 23, "H": 14, "P": 2, "C": 3, "V": 97, "D": 128, "h": 8, "d_ff": 43},
    {"B": 8, "T": 29, "H": 42, "P": 7, "C": 4, "V": 101, "D": 140, "h": 5, "d_ff": 53},
)

HEADS = {"FuyuForCausalLM": following}


def config():
    """A small Fuyu: the one that was published does not fit a laptop."""
    text = imported().PersimmonConfig(**SMALL, vocab_size=1024)
    return imported().FuyuConfig(text_config=text, image_size=120, patch_size=15, image_token_id=1023)


def architecture(config):
    """The language model, which takes patches too."""
    return getattr(imported(), class_of(config, HEADS))


def fitted(config) -> None:
    """The token that holds a patch's place: the last of the vocabulary."""
    config.image_token_id = place_of_a_patch(config.text_config.vocab_size)


def cut(pixels: torch.Tensor, P: int) -> torch.Tensor:
    """Pixels `[B, C, H, W]` as flat patches `[B, N, P²C]`, channels last, as Fuyu's processor gives them."""
    rows = pixels.unfold(2, P, P).unfold(3, P, P)  # [B, C, H/P, W/P, P, P]
    return rows.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2).contiguous()


def patches_and_text(sizes: dict):
    """The inputs of a probe."""
    N = (sizes["H"] // sizes["P"]) ** 2
    return example(numbers(sizes), pixel_values=torch.randn(sizes["B"], N, sizes["P"] ** 2 * sizes["C"]))


def spec(config, files) -> Spec:
    """All that is known of a Fuyu, from its configuration."""
    return Spec(
        **stream_facts(config, files, ATTRIBUTES, HEADS, lambda pixels, model: cut(pixels, model.sizes["P"])),
        net=builder(config, architecture, ATTRIBUTES, fitted),
        derived={"W": "H", "N": "H**2/P**2", "S": "N + T", "d_k": "D/h"},
        names=tuple("B T N S S+1 D P C H H/P h d_k d_k/2 d_k/4 d_ff V C*P**2".split()),
        probes=PROBES,
        example=patches_and_text,
        segments=segments,
        hints=HINTS,
        tiny={**PROBES[0], "L": 2},
    )
