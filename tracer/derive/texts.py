"""Titles and stages of lines, and why they are there, by their roles."""

from __future__ import annotations

from tracer.sources.why import WHY

STAGES = {
    **dict.fromkeys(("Q", "K", "V", "QKV", "QK", "KV", "S", "A", "H", "O", "M"), "attention"),
    **dict.fromkeys(("U", "G", "F"), "mlp"),
    "norm": "norm",
    "patches": "patches",
    **dict.fromkeys(("I", "sequence"), "embedding"),
    **dict.fromkeys(("angles", "cosine", "sine"), "position"),
    **dict.fromkeys(("router", "routed", "top", "gates", "chosen"), "experts"),
    "first": "head",
    "E": "embedding",
    "X0": "embedding",
    "P": "position",
    "Z": "head",
}
"""The stage of a role; a sum of the residual stream has that of what it adds."""

TITLES = {
    "Q": "Queries",
    "K": "Keys",
    "V": "Values",
    "QKV": "Packed product",
    "QK": "Packed product",
    "KV": "Packed product",
    "S": "Scores",
    "A": "Attention weights",
    "H": "Context",
    "O": "Output projection",
    "X": "Residual sum",
    "R": "Sum",
    "Y": "Residual sum",
    "U": "Expand",
    "U'": "Expand beside the gate",
    "G": "Activate",
    "G'": "Gate",
    "F": "Contract",
    "norm": "Normalise",
    "router": "Scores of the experts",
    "routed": "Shares of the experts",
    "top": "Shares of the chosen experts",
    "chosen": "Chosen experts",
    "gates": "Gates",
    "patches": "Cut into patches",
    "I": "Embed the patches",
    "sequence": "Make the sequence",
    "angles": "Angles",
    "cosine": "Cosines",
    "sine": "Sines",
    "first": "Take one token",
    "E": "Embed",
    "P": "Positions",
    "X0": "Into the first block",
    "Z": "Output",
}
"""What a line of a role is called; one without says what its call does."""

IDS = {
    "Q": "attention.query",
    "K": "attention.key",
    "V": "attention.value",
    "QKV": "attention.packed",
    "QK": "attention.packed",
    "KV": "attention.packed",
    "S": "attention.scores",
    "A": "attention.weights",
    "H": "attention.context",
    "O": "attention.output",
    "U": "mlp.hidden",
    "G": "mlp.activation",
    "F": "mlp.output",
    "Z": "logits",
    "patches": "patches",
    "sequence": "sequence",
    "angles": "angles",
    "cosine": "cosine",
    "sine": "sine",
}
"""The ends of ids that our own models have too."""

WHYS = {
    "Q": WHY["query"],
    "K": WHY["key"],
    "V": WHY["value"],
    "QKV": WHY["packed"],
    "A": WHY["weights"],
    "H": WHY["context"],
    "O": WHY["output"],
}
"""Why a line is there, where its role alone says so: nothing here may depend on the model."""


def stage(role: str, module: str, call: str = "") -> str:
    """The stage of a line by its role, else by its call or a word in its module's path, else "other"."""
    plain = role.rstrip("'")
    if plain in STAGES:
        return STAGES[plain]
    if call in CONVOLVED or call in RECURRENT:
        return "convolution" if call in CONVOLVED else "recurrence"
    if "expert" in module.lower():
        return "experts"
    words = module.lower()
    for found in ("attention", "mlp", "norm", "embedding", "head"):
        if found[:4] in words:
            return found
    return "other"


CONVOLVED = frozenset(("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "convolution"))
RECURRENT = frozenset(("lstm", "gru", "rnn_tanh", "rnn_relu"))


def title(role: str, call: str) -> str:
    """What a line is called: `Scores`; by its call, `Conv2d`, where it has no role."""
    plain = role.rstrip("'")
    if call == "experts":
        return "Mixture of experts"
    found = TITLES.get(role) or TITLES.get(plain)
    return found or CALLS.get(call) or call.strip("_").replace("_", " ").capitalize() or "Rearrange"


def word(role: str, call: str) -> str:
    """The end of an id: by the role, else by the call."""
    plain = role.rstrip("'")
    return WORDS[plain] if plain in WORDS else call.strip("_") or "layout"


WORDS = {
    "norm": "",
    "Y": "residual",
    "X": "residual",
    "R": "sum",
    "X0": "start",
    "E": "embedding",
    "P": "position",
}
"""The ends of ids of roles that a module has one of."""

CALLS = {
    "linear": "Linear map",
    "addmm": "Linear map",
    "matmul": "Matrix product",
    "bmm": "Matrix product",
    "conv1d": "Convolution",
    "conv2d": "Convolution",
    "conv3d": "Convolution",
    "convolution": "Convolution",
    "add": "Sum",
    "sub": "Difference",
    "mul": "Product, cell by cell",
    "div": "Quotient, cell by cell",
    "cat": "Join",
    "concat": "Join",
    "stack": "Stack",
    "mean": "Mean",
    "sum": "Sum along an axis",
    "embedding": "Look up",
    "index": "Choose",
    "gather": "Choose",
    "where": "Choose cell by cell",
    "masked_fill": "Fill where masked",
    "overwrite": "Write into a part",
    "": "Rearrange",
}
"""What calls are called in words."""
