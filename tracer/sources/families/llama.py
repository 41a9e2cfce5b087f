"""Llama of transformers: rotary positions, grouped heads, RMS norms, gated MLP (Touvron et al. 2023)."""

from __future__ import annotations

from tracer.models.shared.model import Spec
from tracer.sources.configured import builder, own_width, text_facts
from tracer.sources.heads import answers, class_of, classes, following, vectors
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
    {"B": 8, "T": 19, "V": 101, "D": 140, "h": 10, "h_kv": 2, "d_ff": 37},
)

WIDTHS = 20, 14, 26, 34
"""Widths of a head in the probes of a model where they don't follow from the others."""
HEADS = {"LlamaForCausalLM": following, "LlamaModel": vectors, "LlamaForSequenceClassification": classes}


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
    """The language model, the decoder without a head, or a classifier."""
    return getattr(imported(), class_of(config, HEADS))


def fitted(config) -> None:
    """The width of a head follows from the model's."""
    config.head_dim = config.hidden_size // config.num_attention_heads


def padded(config) -> None:
    """The token that fills short texts up, which a classifier of several texts must know."""
    if config.pad_token_id is None:
        config.pad_token_id = 0


def spec(config, files) -> Spec:
    """All that is known of a Llama, from its configuration."""
    classed, wide = class_of(config, HEADS) == "LlamaForSequenceClassification", own_width(config) is not None
    more = [{} for _ in PROBES]
    if wide:
        more = [{**probe, "d_k": width} for probe, width in zip(more, WIDTHS, strict=True)]
    if classed:
        more = [{**probe, "K": size} for probe, size in zip(more, (37, 41, 43, 47), strict=True)]
    attributes = ATTRIBUTES | ({"d_k": "head_dim"} if wide else {}) | ({"K": "num_labels"} if classed else {})
    facts = text_facts(config, files, attributes, tuple({**a, **b} for a, b in zip(PROBES, more, strict=True)))
    if wide:
        facts["derived"] = {}

    def adjust(config) -> None:
        if not wide:
            fitted(config)
        if classed:
            padded(config)

    return Spec(
        net=builder(config, architecture, attributes, adjust),
        whole=not classed,
        names=("B", "T", "T+1", "D", *(["K"] if classed else []), *"h h_kv h/h_kv d_k d_k/2 d_ff V".split()),
        result=answers(config, HEADS, files.tokenizer),
        **facts,
    )
