"""Llama of transformers: rotary positions, grouped heads, RMS norms, gated MLP (Touvron et al. 2023)."""

from __future__ import annotations

import torch

from tracer.model import Spec
from tracer.record import Segment
from tracer.sources.configured import ATTENTION, builder, following, sizes_of, text_as
from tracer.sources.transformers import imported

ATTRIBUTES = {
    "V": "vocab_size",
    "D": "hidden_size",
    "h": "num_attention_heads",
    "h_kv": "num_key_value_heads",
    "d_ff": "intermediate_size",
    "L": "num_hidden_layers",
}
PROBES = (
    {"B": 19, "T": 11, "V": 83, "D": 72, "h": 6, "h_kv": 3, "d_ff": 26},
    {"B": 23, "T": 17, "V": 89, "D": 80, "h": 4, "h_kv": 2, "d_ff": 29},
    {"B": 29, "T": 13, "V": 97, "D": 112, "h": 8, "h_kv": 2, "d_ff": 31},
)


def config():
    """A small Llama: the smallest that was published does not fit a laptop."""
    return imported().LlamaConfig(
        vocab_size=1024,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=None,
    )


def architecture(config):
    """The language model."""
    return imported().LlamaForCausalLM


def fitted(config) -> None:
    """The width of a head follows from the model's."""
    config.head_dim = config.hidden_size // config.num_attention_heads


def spec(config, files) -> Spec:
    """All that is known of a Llama, from its configuration."""
    tokenizer = files.tokenizer if files.exist else None
    return Spec(
        net=builder(config, architecture, ATTRIBUTES, fitted),
        lines=lambda sizes: [],
        whole=False,
        takes=("text",),
        sizes=sizes_of(config, ATTRIBUTES),
        runs=("B", "T"),
        options={"attention": ATTENTION},
        derived={"d_k": "D/h"},
        names=tuple("B T T+1 D h h_kv h/h_kv d_k d_k/2 d_ff V".split()),
        probes=PROBES,
        example=lambda sizes: (torch.randint(sizes["V"], (sizes["B"], sizes["T"])),),
        prepare=text_as(tokenizer),
        result=following(tokenizer),
        segments=lambda sizes: (Segment("text", 0, sizes["T"]),),
        tiny={**PROBES[0], "L": 2},
    )
