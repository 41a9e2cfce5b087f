"""Titles, stages and ids of lines by their roles."""

from __future__ import annotations

from typing import NamedTuple

from tracer import ops
from tracer.expr import BatchNorm, GroupNorm, Node
from tracer.ops import CONVOLUTIONS, RECURRENT
from tracer.textbook.hints import Hint
from tracer.textbook.roles import Roles


class StepLabel(NamedTuple):
    """Labels of a role: its stage, its title, and the end of its id."""

    stage: str
    title: str
    id: str = ""


ROLE_LABELS = {
    "patches": StepLabel("patches", "Cut into patches", "patches"),
    "I": StepLabel("embedding", "Embed the patches", "embedding"),
    "sequence": StepLabel("embedding", "Make the sequence", "sequence"),
    "cls in front": StepLabel("embedding", "CLS in front", "sequence"),
    "E": StepLabel("embedding", "Look up the tokens", "embedding"),
    "P": StepLabel("position", "Positions", "positions"),
    "position": StepLabel("position", "Add positions", "position"),
    "places": StepLabel("position", "Number the positions", "places"),
    "one": StepLabel("attention", "Check that positions are contiguous", "one"),
    "M": StepLabel("attention", "Mask", "mask"),
    "bias": StepLabel("position", "Bias of the distance", "bias"),
    "ALiBi": StepLabel("position", "ALiBi: slopes times positions", "alibi"),
    "causal M": StepLabel("attention", "Causal mask", "mask"),
    "prefix M": StepLabel("attention", "Prefix mask", "mask"),
    "types": StepLabel("embedding", "Token-type ids", "types"),
    "angles": StepLabel("position", "Angles", "angles"),
    "cosine": StepLabel("position", "Cosine", "cosine"),
    "sine": StepLabel("position", "Sine", "sine"),
    "first norm": StepLabel("norm", "Normalise", "embedding.norm"),
    "norm1": StepLabel("norm", "Normalise each token", "norm1"),
    "norm2": StepLabel("norm", "Normalise again", "norm2"),
    "norm": StepLabel("norm", "Normalise"),
    "last norm": StepLabel("norm", "Last norm", "norm"),
    **dict.fromkeys(("QKV", "QK", "KV"), StepLabel("attention", "Packed product", "attention.packed")),
    "Q": StepLabel("attention", "Queries", "attention.query"),
    "K": StepLabel("attention", "Keys", "attention.key"),
    "V": StepLabel("attention", "Values", "attention.value"),
    "rotated Q": StepLabel("position", "Rotate queries (RoPE)", "attention.rotated query"),
    "rotated K": StepLabel("position", "Rotate keys (RoPE)", "attention.rotated key"),
    "S": StepLabel("attention", "Scores", "attention.scores"),
    "masked S": StepLabel("attention", "Scores", "attention.scores"),
    "A": StepLabel("attention", "Attention weights", "attention.weights"),
    "H": StepLabel("attention", "Context", "attention.context"),
    "linear Q": StepLabel("attention", "Queries", "attention.query"),
    "linear K": StepLabel("attention", "Keys", "attention.key"),
    "linear V": StepLabel("attention", "Values", "attention.value"),
    "linear H": StepLabel("attention", "Context", "attention.context"),
    "features Q": StepLabel("attention", "Features of the queries", "attention.query features"),
    "features K": StepLabel("attention", "Features of the keys", "attention.key features"),
    "shared QKV": StepLabel("attention", "Queries, keys and values", "attention.shared"),
    "shared QK": StepLabel("attention", "Queries and keys", "attention.shared"),
    "shared KV": StepLabel("attention", "Keys and values", "attention.shared"),
    "memory": StepLabel("attention", "Keys times values", "attention.memory"),
    "normaliser": StepLabel("attention", "Sum of the weights", "attention.normaliser"),
    "O": StepLabel("attention", "Output projection", "attention.output"),
    "scaled O": StepLabel("attention", "Scale the attention output", "attention.scaled"),
    "scaled F": StepLabel("mlp", "Scale the result", "mlp.scaled"),
    "X": StepLabel("", "Residual sum", "residual"),
    "Y": StepLabel("", "Residual sum", "residual"),
    "R": StepLabel("", "Sum", "sum"),
    "mix": StepLabel("", "Mix of two"),
    "placed": StepLabel("position", "Add positions", "attention.placed"),
    "gate": StepLabel("mlp", "Gate", "mlp.gate"),
    "U": StepLabel("mlp", "Expand", "mlp.hidden"),
    "G": StepLabel("mlp", "Activate", "mlp.activation"),
    "activated gate": StepLabel("mlp", "Activate the gate", "mlp.activation"),
    "gated": StepLabel("mlp", "Gate (element-wise product)", "mlp.gated"),
    "F": StepLabel("mlp", "Contract", "mlp.output"),
    "state": StepLabel("recurrence", "Recurrence", "state"),
    "cell": StepLabel("recurrence", "State of the cell", "cell"),
    "state normaliser": StepLabel("recurrence", "Normaliser of the cell", "normaliser"),
    "stabiliser": StepLabel("recurrence", "Largest exponent", "stabiliser"),
    "pre-activations": StepLabel("recurrence", "Pre-activations of the gates", "gates"),
    "read": StepLabel("recurrence", "Read the state", "read"),
    "decay": StepLabel("recurrence", "State decay", "stays"),
    "enter": StepLabel("recurrence", "State input", "enters"),
    "delta": StepLabel("recurrence", "Step in time", "step"),
    "router": StepLabel("experts", "Scores of the experts"),
    "routed": StepLabel("experts", "Shares of the experts"),
    "top": StepLabel("experts", "Shares of the chosen experts"),
    "chosen": StepLabel("experts", "Chosen experts"),
    "gates": StepLabel("experts", "Gates"),
    "experts": StepLabel("mlp", "Mixture of experts", "mlp.output"),
    "cls": StepLabel("head", "Take the CLS token", "cls"),
    "first": StepLabel("head", "Take the first token", "first"),
    "every token": StepLabel("embedding", "Broadcast one vector to all tokens", "every"),
    "chosen tokens": StepLabel("patches", "Choose tokens", "chosen"),
    "put": StepLabel("embedding", "Scatter tokens back", "put"),
    "tokens": StepLabel("head", "Take some of the tokens", "tokens"),
    "grid": StepLabel("head", "Tokens to a grid", "grid"),
    "pixels": StepLabel("head", "Unpatchify", "logits"),
    "Z": StepLabel("head", "Output", "logits"),
    "result": StepLabel("head", "Output", "output"),
    "shares": StepLabel("head", "Probabilities", "probabilities"),
    "classes": StepLabel("head", "Classify", "logits"),
    "vocabulary": StepLabel("head", "Score every token", "logits"),
}


def part(roles: Roles, key: str, shape: tuple) -> str:
    """Return the label key of a line in `ROLE_LABELS`: its role with details, such as rotated queries or the first norm
    of a block."""
    role = roles.of.get(key, "")
    plain = role.rstrip("'")
    around = {roles.of.get(operand) for operand in roles.operands[key]}
    nth = roles.nth.get(key)
    if role == "norm" and key in roles.first:
        return "first norm"
    if role == "norm" or (plain == "X" and nth):
        return {0: "last norm", 1: "norm1", 2: "norm2", None: "norm"}.get(nth, "norm")
    if plain in ("Q", "K") and {"cosine", "sine"} & around:
        return f"rotated {plain}"
    if len(roles.shared_letters.get(key, "")) > 1:
        return f"shared {roles.shared_letters[key]}"
    if key in roles.linear:
        return f"features {plain}" if role != plain and plain in ("Q", "K") else f"linear {plain}"
    if role == "S" and "M" in around:
        return "masked S"
    if role == "sequence" and roles.learned_first(key):
        return "cls in front"
    if role in ("O'", "F'"):
        return f"scaled {plain}"
    if role == "F" and roles.name(key) == "experts":
        return "experts"
    if role == "G" and roles.is_gated(key):
        return "activated gate"
    if role == "first" and any(roles.learned_first(operand) for operand in roles.of):
        return "cls"
    if role == "Z" and roles.call(key) is None:
        return "pixels"
    if role == "Z":
        return {"K": "classes", "V": "vocabulary"}.get(str(shape[-1]) if shape else "", role)
    return plain


def stage(roles: Roles, key: str, part: str) -> str:
    """Return the stage of a line by its role, else by its call or a word in its module's path, else "other"."""
    module, call = roles.module(key), roles.name(key)
    if part in ("X", "Y", "R"):
        module, call = stage_of_sum(roles, key) or module, ""
    elif part in ROLE_LABELS and ROLE_LABELS[part].stage:
        return ROLE_LABELS[part].stage
    if call in CONVOLUTIONS or call in RECURRENT:
        return "convolution" if call in CONVOLUTIONS else "recurrence"
    words = module.lower()
    if "expert" in words:
        return "experts"
    return next(
        (candidate for candidate in ("attention", "mlp", "norm", "embedding", "head") if candidate[:4] in words),
        "other",
    )


def stage_of_sum(roles: Roles, key: str) -> str:
    """Return the stage of a residual sum, that of the added value; "" if that has no role."""
    for operand in reversed(roles.operands[key]):
        stage = {"O": "attention", "F": "mlp"}.get(roles.of.get(operand, "").rstrip("'"))
        if stage:
            return stage
    return ""


OF_MAPS = {BatchNorm: "Normalise each channel", GroupNorm: "Normalise groups of channels"}
"""Titles of norms that are not over tokens."""


def title(part: str, call: str, equation: Node, result: str | None) -> str:
    """Return the title of a line: `Scores`, or its output field `result`, or the name of its call, `Convolution`."""
    of_maps = next((label for kind, label in OF_MAPS.items() if equation.has(kind)), "")
    if of_maps and part.rstrip("12").endswith("norm"):
        return of_maps
    if part in ROLE_LABELS and part not in ("Z", "result"):
        return ROLE_LABELS[part].title
    if result is not None:
        return result
    return ops.title(call)


def ids(roles: Roles, parts: dict[str, str]) -> dict[str, str]:
    """Return an id for each line: the path of its block and its role, or the path of its module and its call."""
    return _apart({key: _id(roles, key, parts[key]) for key in roles.plan.lines})


def apply_hint_ids(roles: Roles, ids: dict[str, str], hints: dict[str, Hint]) -> dict[str, str]:
    """Return the ids with the endings that hints set."""

    def whole(key: str) -> str:
        module = roles.module(key)
        around = roles.places.prefix(module) or roles.places.part(module)
        return ".".join(filter(None, (around, hints[key].id))) if hints[key].id else ids[key]

    return _apart({key: whole(key) for key in ids})


def _apart(ids: dict[str, str]) -> dict[str, str]:
    """Return the ids with a number appended to repeated ones."""
    distinct: dict[str, str] = {}
    taken: set[str] = set()
    for key, id in ids.items():
        number, whole = 1, id
        while whole in taken:
            number += 1
            whole = f"{id}{number}"
        taken.add(whole)
        distinct[key] = whole
    return distinct


def _id(roles: Roles, key: str, part: str) -> str:
    module, places = roles.module(key), roles.places
    own = ROLE_LABELS[part].id if part in ROLE_LABELS else ""
    if part in ("X", "Y"):
        own = f"{stage(roles, key, part)}.residual"
    elif part == "R" or not own:
        end = own or ("" if part == "norm" else roles.last_name(key).strip("_") or "layout")
        return ".".join(filter(None, (module, end))) or part
    return ".".join(filter(None, (places.prefix(module) or places.part(module), own)))
