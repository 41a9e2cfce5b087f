"""GPT-2 of transformers: pre-norm decoder, packed projections, tied head (Radford et al. 2019)."""

from __future__ import annotations

from tracer.models.shared.model import Spec
from tracer.sources.configured import builder, text_facts
from tracer.sources.heads import answers, class_of, classes, following, vectors
from tracer.sources.transformers import imported

ATTRIBUTES = {
    "V": "vocab_size",
    "T_max": "n_positions",
    "D": "n_embd",
    "h": "n_head",
    "d_ff": "n_inner",
    "L": "n_layer",
}
PROBES = (
    {"B": 19, "T": 11, "V": 83, "T_max": 59, "D": 66, "h": 6, "d_ff": 26},
    {"B": 23, "T": 17, "V": 89, "T_max": 47, "D": 14, "h": 2, "d_ff": 29},
    {"B": 8, "T": 13, "V": 97, "T_max": 53, "D": 55, "h": 5, "d_ff": 31},
)
HEADS = {"GPT2LMHeadModel": following, "GPT2Model": vectors, "GPT2ForSequenceClassification": classes}


def config():
    """GPT-2 small."""
    return imported().GPT2Config(n_inner=3072)


def architecture(config):
    """The language model, the decoder without a head, or a classifier."""
    return getattr(imported(), class_of(config, HEADS))


def fitted(config) -> None:
    """The token that fills short texts up, which a classifier of several texts must know."""
    if config.pad_token_id is None:
        config.pad_token_id = 0


def spec(config, files) -> Spec:
    """All that is known of a GPT-2, from its configuration."""
    if config.n_inner is None:
        config.n_inner = 4 * config.n_embd
    classed = class_of(config, HEADS) == "GPT2ForSequenceClassification"
    attributes = {**ATTRIBUTES, "K": "num_labels"} if classed else ATTRIBUTES
    with_classes = tuple({**probe, "K": size} for probe, size in zip(PROBES, (31, 37, 41), strict=True))
    probes = with_classes if classed else PROBES
    return Spec(
        net=builder(config, architecture, attributes, fitted if classed else lambda config: None),
        whole=not classed,
        names=("B", "T", "T+1", "D", *(["K"] if classed else []), *"h d_k d_ff V T_max".split()),
        result=answers(config, HEADS, files.tokenizer),
        **text_facts(config, files, attributes, probes),
    )
