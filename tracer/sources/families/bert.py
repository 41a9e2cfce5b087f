"""BERT of transformers: post-norm encoder of text (Devlin et al. 2019)."""

from __future__ import annotations

from tracer.derive.steps import Place
from tracer.equations import GELU, Lookup, ReLU, Row, Rows, Tanh, Tensor
from tracer.models.shared.model import Spec
from tracer.models.shared.textbook import Page
from tracer.sources.configured import builder, text_facts
from tracer.sources.heads import answers, class_of, classes, each_place, labels, vectors
from tracer.sources.textbook import Table, Writer, pooled
from tracer.sources.transformers import imported
from tracer.sources.why import WHY
from tracer.symbols.notation import symbol

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
BLOCK = {
    "query": Place("attention.self", "transpose", 0),
    "key": Place("attention.self", "transpose", 1),
    "value": Place("attention.self", "transpose", 2),
    "output": Place("attention.output.dense"),
    "residual1": Place("attention.output", "add"),
    "norm1": Place("attention.output.LayerNorm"),
    "hidden": Place("intermediate.dense"),
    "activation": Place("intermediate.intermediate_act_fn"),
    "contract": Place("output.dense"),
    "residual2": Place("output", "add"),
    "norm2": Place("output.LayerNorm"),
}
INSIDE = {
    "sdpa": {"context": Place("attention.self", "reshape", -1)},
    "eager": {
        "scores": Place("attention.self", "mul"),
        "weights": Place("attention.self", "softmax"),
        "context": Place("attention.self", "reshape", -1),
    },
}
PARAMETERS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "output": "attention.output.dense",
    "norm1": "attention.output.LayerNorm",
    "hidden": "intermediate.dense",
    "contract": "output.dense",
    "norm2": "output.LayerNorm",
}
ACTIVATIONS = {"gelu": GELU, "relu": ReLU}
HEADS = {
    "BertModel": vectors,
    "BertForMaskedLM": each_place,
    "BertForSequenceClassification": classes,
    "BertForTokenClassification": labels,
}


def config():
    """BERT base."""
    return imported().BertConfig()


def architecture(config):
    """The encoder with its pooler, or with a head."""
    return getattr(imported(), class_of(config, HEADS))


def lines(sizes: dict, config):
    """The textbook, over the ops that transformers runs."""
    B, T, T_max, V, D = map(symbol, ("B", "T", "T_max", "V", "D"))
    eps, head = config.layer_norm_eps, class_of(config, HEADS)
    trunk = "" if head == "BertModel" else "bert."
    page = Page(f"{trunk}embeddings", eps=eps)
    made = page.tensor(r"\mathbf{X}_E", (B, T, D), "tokens")
    ids = Tensor(r"\mathbf{t}", (B, T), "input input_ids")
    found = Lookup(page.parameter(r"\mathbf{E}", (V, D), "word_embeddings.weight"), ids)
    words = page.line("embedding", "Look up the tokens", made, found, Place("word_embeddings"), WHY["lookup"])
    made = page.tensor(r"\mathbf{X}_{\mathrm{type}}", (B, T, D), "types")
    kind = Row(
        page.parameter(r"\mathbf{E}_{\mathrm{type}}", (config.type_vocab_size, D), "token_type_embeddings.weight"), 0
    )
    x = page.line("embedding", "Add the type", made, words + kind, Place("", "add", 0), WHY["type"])
    made = page.tensor(r"\mathbf{X}_P", (B, T, D), "position")
    positions = Rows(page.parameter(r"\mathbf{P}", (T_max, D), "position_embeddings.weight"), T)
    x = page.line("position", "Add positions", made, x + positions, Place("", "add", 1), WHY["position"])
    made = page.tensor(r"\mathbf{X}^{(0)}", (B, T, D), "norm")
    x = page.line("norm", "Normalise", made, page.norm(x, "E", "LayerNorm"), Place("LayerNorm"), WHY["first norm"])
    lines = page.lines
    places = {**BLOCK, **INSIDE[sizes["attention"]]}
    table = Table(places, PARAMETERS, ACTIVATIONS[config.hidden_act], eps, post=True)
    for layer in range(sizes["L"]):
        writer = Writer(table, f"{trunk}encoder.layer.{layer}", layer + 1)
        x = writer.block(x)
        lines += writer.page.lines
    page = Page(eps=eps)
    if head in ("BertModel", "BertForSequenceClassification"):
        x = pooled(page, x, f"{trunk}pooler", Tanh, WHY["first"])
    if head == "BertForMaskedLM":
        words = Tensor(r"\mathbf{E}", (V, D), f"parameter {trunk}embeddings.word_embeddings.weight")
        said(page, x, words, ACTIVATIONS[config.hidden_act])
    elif trunk:
        K = symbol("K")
        made = page.tensor(r"\mathbf{Z}", (*x.shape[:-1], K), "logits")
        equation = page.linear(x, r"\mathrm{cls}", (D, K), "classifier")
        page.line("head", "Classify", made, equation, Place("classifier"), WHY["classify"])
    return lines + page.lines


def said(page: Page, x: Tensor, words: Tensor, activation) -> None:
    """Writes the head that says which token stands at each place, from **X**, `[B, T, D]`, and the matrix of words."""
    V, D = map(symbol, ("V", "D"))
    inner, shape = Page("cls.predictions.transform", eps=page.eps), x.shape
    made = inner.tensor(r"\mathbf{Y}_c", shape, "dense")
    x = inner.line("head", "Transform", made, inner.linear(x, "c", (D, D), "dense"), Place("dense"), WHY["transform"])
    made = inner.tensor(r"\mathbf{G}_c", shape, "activation")
    why = WHY[activation.__name__]
    x = inner.line("head", "Activate", made, activation(x), Place("transform_act_fn"), why)
    made = inner.tensor(r"\mathbf{X}_f", shape, "norm")
    x = inner.line("norm", "Normalise", made, inner.norm(x, "c", "LayerNorm"), Place("LayerNorm"), WHY["norm"])
    page.lines += inner.lines
    made = page.tensor(r"\mathbf{Z}", (*shape[:-1], V), "logits")
    bias = page.parameter(r"\mathbf{b}_V", (V,), "cls.predictions.bias")
    place = Place("cls.predictions.decoder")
    page.line("head", "Score every token", made, x @ words.T + bias, place, WHY["tied"])


def spec(config, files) -> Spec:
    """All that is known of a BERT, from its configuration."""
    headed = class_of(config, HEADS).endswith("Classification")
    attributes = {**ATTRIBUTES, "K": "num_labels"} if headed else ATTRIBUTES
    probes = tuple({**probe, "K": size} for probe, size in zip(PROBES, (31, 37, 41), strict=True)) if headed else PROBES
    return Spec(
        net=builder(config, architecture, attributes),
        lines=lambda sizes: lines(sizes, config),
        names=("B", "T", "D", *(["K"] if headed else []), *"h d_k d_ff V T_max".split()),
        result=answers(config, HEADS, files.tokenizer),
        **text_facts(config, files, attributes, probes),
    )
