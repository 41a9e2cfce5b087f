"""BERT of transformers: post-norm encoder of text (Devlin et al. 2019)."""

from __future__ import annotations

from tracer.derive.hints import Hint
from tracer.derive.whys import WHY
from tracer.models.shared.model import Spec
from tracer.sources.configured import builder, text_facts
from tracer.sources.heads import POOLER, answers, class_of, classes, each_place, labels, vectors
from tracer.sources.transformers import imported

ATTRIBUTES = {
    "V": "vocab_size",
    "T_max": "max_position_embeddings",
    "D": "hidden_size",
    "h": "num_attention_heads",
    "d_ff": "intermediate_size",
    "L": "num_hidden_layers",
}
PROBES = (
    {"B": 19, "T": 11, "V": 83, "T_max": 59, "D": 66, "h": 6, "d_ff": 26},
    {"B": 23, "T": 17, "V": 89, "T_max": 47, "D": 14, "h": 2, "d_ff": 29},
    {"B": 8, "T": 13, "V": 97, "T_max": 53, "D": 55, "h": 5, "d_ff": 31},
)
HEADS = {
    "BertModel": vectors,
    "BertForMaskedLM": each_place,
    "BertForSequenceClassification": classes,
    "BertForTokenClassification": labels,
}
SCORED = "cls.predictions.transform"
HINTS = (
    *POOLER,
    Hint(role="first", letter=r"\mathbf{x}_1", id="pooler.first", why=WHY["first"]),
    Hint(role="types", title="Number the sentences", why=WHY["types"]),
    Hint(role="position", title="Add sentence and position", why=(*WHY["type"], *WHY["position"])),
    Hint(role="first norm", why=WHY["first norm"]),
    Hint(f"{SCORED}.dense*", letter=r"\mathbf{Y}_c", below="c", id=f"{SCORED}.dense", stage="head"),
    Hint(f"{SCORED}.dense*", title="Transform", why=WHY["transform"]),
    Hint(f"{SCORED}.*act*", letter=r"\mathbf{G}_c", id=f"{SCORED}.activation", stage="head", title="Activate"),
    Hint(f"{SCORED}.LayerNorm", letter=r"\mathbf{X}_f", below="c", id=f"{SCORED}.norm", why=WHY["one scale"]),
)


def config():
    """BERT base."""
    return imported().BertConfig()


def architecture(config):
    """The encoder with its pooler, or with a head."""
    return getattr(imported(), class_of(config, HEADS))


def spec(config, files) -> Spec:
    """All that is known of a BERT, from its configuration."""
    headed = class_of(config, HEADS).endswith("Classification")
    attributes = {**ATTRIBUTES, "K": "num_labels"} if headed else ATTRIBUTES
    probes = tuple({**probe, "K": size} for probe, size in zip(PROBES, (31, 37, 41), strict=True)) if headed else PROBES
    return Spec(
        net=builder(config, architecture, attributes),
        hints=HINTS,
        names=("B", "T", "D", *(["K"] if headed else []), *"h d_k d_ff V T_max".split()),
        result=answers(config, HEADS, files.tokenizer),
        **text_facts(config, files, attributes, probes),
    )
