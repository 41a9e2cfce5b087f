"""Llama of transformers: rotary positions, grouped heads, RMS norms, gated MLP (Touvron et al. 2023)."""

from __future__ import annotations

import sympy

from tracer.derive.steps import Place
from tracer.equations import (
    Angles,
    Cosine,
    Counting,
    Grouped,
    Heads,
    Joined,
    Lookup,
    RMSNorm,
    Rotated,
    SiLU,
    Sine,
    Softmax,
    Tensor,
    Times,
    weight,
)
from tracer.models.shared.model import Spec
from tracer.models.shared.textbook import Page
from tracer.sources.configured import builder, own_width, text_facts
from tracer.sources.heads import answers, class_of, classes, following, vectors
from tracer.sources.textbook import causal_mask
from tracer.sources.transformers import imported
from tracer.sources.why import WHY
from tracer.symbols.notation import symbol

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


def lines(sizes: dict, config):
    """The textbook, over the ops that transformers runs."""
    B, T, V, D, d_k = map(symbol, ("B", "T", "V", "D", "d_k"))
    headed = class_of(config, HEADS) != "LlamaModel"
    page, module = Page(), "model" if headed else ""
    trunk = f"{module}." if module else ""
    made = page.tensor(r"\mathbf{X}^{(0)}", (B, T, D), "embedding")
    ids = Tensor(r"\mathbf{t}", (B, T), "input input_ids")
    found = Lookup(page.parameter(r"\mathbf{E}", (V, D), f"{trunk}embed_tokens.weight"), ids)
    x = page.line("embedding", "Look up the tokens", made, found, Place(f"{trunk}embed_tokens"), WHY["lookup"])
    made = page.tensor(r"\mathbf{p}", (1, T), "places")
    p = page.line("position", "Number the places", made, Counting(T), Place(module, "unsqueeze"), WHY["places"])
    within = "" if sizes["attention"] == "eager" else f"{trunk}layers.0.attention.context"
    mask = causal_mask(page, p, module, within)
    inside, shape = f"{trunk}rotary_emb", (1, T, d_k)
    made = page.tensor(r"\boldsymbol{\Theta}", shape, "angles")
    equation = Angles(p, page.parameter(r"\boldsymbol{\theta}", (d_k / 2,), f"{inside}.inv_freq"))
    angles = page.line("position", "Angles", made, equation, Place(inside, "cat"), WHY["angles"])
    turn = []
    for name, node, nth in (("cosine", Cosine, 1), ("sine", Sine, 2)):
        made = page.tensor(rf"\mathbf{{{name[0]}}}", shape, name)
        turn.append(page.line("position", name.title(), made, node(angles), Place(inside, "mul", nth), WHY[name]))
    for layer in range(sizes["L"]):
        x = block(page, f"{trunk}layers.{layer}", layer, x, turn, mask, config.rms_norm_eps, sizes["attention"])
    made = page.tensor(r"\mathbf{X}_f", x.shape, "norm")
    norm = RMSNorm(config.rms_norm_eps, x, page.parameter(r"\boldsymbol{\gamma}_f", (D,), f"{trunk}norm.weight"))
    x = page.line("norm", "Last norm", made, norm, Place(f"{trunk}norm"), WHY["norm"])
    if class_of(config, HEADS) != "LlamaForCausalLM":
        return page.lines
    made = page.tensor(r"\mathbf{Z}", (B, T, V), "logits")
    head = weight(r"\mathbf{W}_{\mathrm{vocab}}", (D, V), "lm_head.weight")
    page.line("head", "Score every token", made, x @ head, Place("lm_head"), WHY["head"])
    return page.lines


def block(
    whole: Page, path: str, layer: int, x: Tensor, turn: list[Tensor], mask, eps: float, attention: str
) -> Tensor:
    """Writes the block at `path` whose input is `x`, `[B, T, D]`, with cosines and sines `[1, T, d_k]`; returns what it
    makes."""
    B, T, D, d_k, d_ff, h, h_kv = map(symbol, ("B", "T", "D", "d_k", "d_ff", "h", "h_kv"))
    page, shape = Page(path, layer + 1), x.shape
    core, eager = "self_attn", attention == "eager"

    def write(id, stage, title, name, shape, equation, place, why):
        return page.line(stage, title, page.tensor(name, shape, id), equation, place, WHY[why])

    def product(value, name, shape, path):
        return value @ weight(rf"\mathbf{{W}}_{{{name}}}{page.tag}", shape, page.path(f"{path}.weight"))

    def normed(value, name, path):
        return RMSNorm(eps, value, page.parameter(rf"\boldsymbol{{\gamma}}_{{{name}}}", (D,), f"{path}.weight"))

    first, second = "input_layernorm", "post_attention_layernorm"
    n = write(
        "norm1",
        "norm",
        "Normalise each token",
        r"\tilde{\mathbf{X}}",
        shape,
        normed(x, "1", first),
        Place(first),
        "rms",
    )
    made = []
    for nth, (id, title, heads) in enumerate(
        (("query", "Queries", h), ("key", "Keys", h_kv), ("value", "Values", h_kv))
    ):
        name, place = id[0].upper(), Place(core, "transpose", nth)
        equation = Heads(product(n, name, (D, heads * d_k), f"{core}.{id[0]}_proj"), heads)
        symbols = rf"\mathbf{{{name}}}", (B, heads, T, d_k)
        made.append(write(f"attention.{id}", "attention", title, *symbols, equation, place, id))
    q, k, v = made
    turned = []
    for nth, (one, id, what) in enumerate(((q, "query", "queries"), (k, "key", "keys"))):
        symbols, place = (rf"\mathbf{{{id[0].upper()}}}'", one.shape), Place(core, "add", nth)
        title, equation = f"Turn {what} by their place", Rotated(one, *turn)
        turned.append(write(f"attention.turned {id}", "position", title, *symbols, equation, place, "turned"))
    q, k = turned
    places = {"scores": Place(core, "add", 2), "weights": Place(core, "softmax")} if eager else {}
    square, equation = (B, h, T, T), q @ Grouped(k, h).T / sympy.sqrt(d_k) + mask
    s = write(
        "attention.scores",
        "attention",
        "Scores",
        r"\mathbf{S}",
        square,
        equation,
        places.get("scores"),
        "masked scores",
    )
    a = write(
        "attention.weights",
        "attention",
        "Attention weights",
        r"\mathbf{A}",
        square,
        Softmax(s),
        places.get("weights"),
        "weights",
    )
    c = write(
        "attention.context",
        "attention",
        "Context",
        r"\mathbf{H}",
        (B, T, h * d_k),
        Joined(a @ Grouped(v, h)),
        Place(core, "reshape", -1),
        "grouped",
    )
    equation, out = product(c, "O", (h * d_k, D), f"{core}.o_proj"), Place(f"{core}.o_proj")
    o = write("attention.output", "attention", "Output projection", r"\mathbf{O}", shape, equation, out, "output")
    y = write(
        "attention.residual", "attention", "Residual sum", r"\mathbf{X}'", shape, x + o, Place("", "add", 0), "residual"
    )
    n = write(
        "norm2", "norm", "Normalise again", r"\hat{\mathbf{X}}", shape, normed(y, "2", second), Place(second), "rms"
    )
    wide = (B, T, d_ff)
    gate = product(n, "g", (D, d_ff), "mlp.gate_proj")
    gate = write("mlp.gate", "mlp", "Gate", r"\mathbf{U}_g", wide, gate, Place("mlp.gate_proj"), "gate")
    gate = write(
        "mlp.activation", "mlp", "Activate the gate", r"\mathbf{G}", wide, SiLU(gate), Place("mlp.act_fn"), "SiLU"
    )
    up = product(n, "u", (D, d_ff), "mlp.up_proj")
    up = write("mlp.hidden", "mlp", "Expand", r"\mathbf{U}", wide, up, Place("mlp.up_proj"), "hidden")
    both = write("mlp.gated", "mlp", "Let through", r"\mathbf{U}'", wide, Times(gate, up), Place("mlp", "mul"), "gated")
    f = product(both, "d", (d_ff, D), "mlp.down_proj")
    f = write("mlp.output", "mlp", "Contract", r"\mathbf{F}", shape, f, Place("mlp.down_proj"), "contract")
    x = write("mlp.residual", "mlp", "Residual sum", r"\mathbf{X}", shape, y + f, Place("", "add", 1), "residual2")
    whole.lines += page.lines
    return x


def plain(config) -> bool:
    """Whether a configuration is the textbook's: no biases, SiLU, one head of the model's own width."""
    return not (config.attention_bias or config.mlp_bias) and config.hidden_act == "silu"


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
        lines=lambda sizes: lines(sizes, config) if plain(config) else [],
        whole=plain(config) and not classed,
        names=("B", "T", "T+1", "D", *(["K"] if classed else []), *"h h_kv h/h_kv d_k d_k/2 d_ff V".split()),
        result=answers(config, HEADS, files.tokenizer),
        **facts,
    )
