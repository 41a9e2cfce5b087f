"""GPT-2 of transformers: pre-norm decoder, packed projections, tied head (Radford et al. 2019)."""

from __future__ import annotations

from tracer.derive.steps import Place
from tracer.equations import GELU, Counting, GELUTanh, Lookup, Tensor
from tracer.models.shared.model import Spec
from tracer.models.shared.textbook import Page
from tracer.sources.configured import builder, text_facts
from tracer.sources.heads import answers, class_of, classes, following, vectors
from tracer.sources.textbook import Table, Writer, causal_mask
from tracer.sources.transformers import imported
from tracer.sources.why import WHY
from tracer.symbols.notation import symbol

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
BLOCK = {
    "norm1": Place("ln_1"),
    "packed": Place("attn.c_attn"),
    "key": Place("attn", "transpose", 0),
    "value": Place("attn", "transpose", 1),
    "query": Place("attn", "transpose", 2),
    "output": Place("attn.c_proj"),
    "residual1": Place("", "add", 0),
    "norm2": Place("ln_2"),
    "hidden": Place("mlp.c_fc"),
    "activation": Place("mlp.act"),
    "contract": Place("mlp.c_proj"),
    "residual2": Place("", "add", 1),
}
INSIDE = {
    "sdpa": {"context": Place("attn", "reshape", -1)},
    "eager": {
        "scores": Place("attn", "add"),
        "weights": Place("attn", "softmax"),
        "context": Place("attn", "reshape", -1),
    },
}
PARAMETERS = {
    "norm1": "ln_1",
    "packed": "attn.c_attn",
    "output": "attn.c_proj",
    "norm2": "ln_2",
    "hidden": "mlp.c_fc",
    "contract": "mlp.c_proj",
}
ACTIVATIONS = {"gelu_new": GELUTanh, "gelu_pytorch_tanh": GELUTanh, "gelu": GELU}

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


def lines(sizes: dict, config):
    """The textbook, over the ops that transformers runs."""
    B, T, T_max, V, D = map(symbol, ("B", "T", "T_max", "V", "D"))
    eps, head = config.layer_norm_epsilon, class_of(config, HEADS)
    module = "" if head == "GPT2Model" else "transformer"
    page, trunk = Page(eps=eps), f"{module}." if module else ""
    table = page.parameter(r"\mathbf{E}", (V, D), f"{trunk}wte.weight")
    made = page.tensor(r"\mathbf{X}_E", (B, T, D), "embedding")
    ids = Tensor(r"\mathbf{t}", (B, T), "input input_ids")
    x = page.line("embedding", "Look up the tokens", made, Lookup(table, ids), Place(f"{trunk}wte"), WHY["lookup"])
    made = page.tensor(r"\mathbf{p}", (1, T), "places")
    places = page.line("position", "Number the places", made, Counting(T), Place(module, "unsqueeze"), WHY["places"])
    made = page.tensor(r"\mathbf{X}^{(0)}", (B, T, D), "position")
    positions = Lookup(page.parameter(r"\mathbf{P}", (T_max, D), f"{trunk}wpe.weight"), places)
    x = page.line("position", "Add positions", made, x + positions, Place(module, "add", 1), WHY["position"])
    within = "" if sizes["attention"] == "eager" else f"{trunk}h.0.attention.context"
    mask = causal_mask(page, places, module, within)
    places = {**BLOCK, **INSIDE[sizes["attention"]]}
    table_of_block = Table(places, PARAMETERS, ACTIVATIONS[config.activation_function], eps, transposed=False)
    for layer in range(sizes["L"]):
        writer = Writer(table_of_block, f"{trunk}h.{layer}", layer + 1)
        x = writer.block(x, mask)
        page.lines += writer.page.lines
    made = page.tensor(r"\mathbf{X}_f", x.shape, "norm")
    norm = page.norm(x, "f", f"{trunk}ln_f")
    x = page.line("norm", "Last norm", made, norm, Place(f"{trunk}ln_f"), WHY["norm"])
    if head == "GPT2LMHeadModel":
        made = page.tensor(r"\mathbf{Z}", (B, T, V), "logits")
        page.line("head", "Score every token", made, x @ table.T, Place("lm_head"), WHY["tied"])
    return page.lines


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
        lines=lambda sizes: lines(sizes, config),
        whole=not classed,
        names=("B", "T", "T+1", "D", *(["K"] if classed else []), *"h d_k d_ff V T_max".split()),
        result=answers(config, HEADS, files.tokenizer),
        **text_facts(config, files, attributes, probes),
    )
