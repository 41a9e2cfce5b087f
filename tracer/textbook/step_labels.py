"""Titles, stages and ids of lines by their roles."""

from __future__ import annotations

from typing import NamedTuple

from tracer import ops
from tracer.expr import BatchNorm, GroupNorm, Node
from tracer.ops import CONVOLUTIONS, RECURRENT
from tracer.textbook.hints import Hint
from tracer.textbook.roles import Roles


class Said(NamedTuple):
    """The labels of a role: its stage, its title, and the end of its id."""

    stage: str
    title: str
    id: str = ""


SAID = {
    "patches": Said("patches", "Cut into patches", "patches"),
    "I": Said("embedding", "Embed the patches", "embedding"),
    "sequence": Said("embedding", "Make the sequence", "sequence"),
    "cls in front": Said("embedding", "CLS in front", "sequence"),
    "E": Said("embedding", "Look up the tokens", "embedding"),
    "P": Said("position", "Positions", "positions"),
    "position": Said("position", "Add positions", "position"),
    "places": Said("position", "Number the positions", "places"),
    "one": Said("attention", "Check that positions are contiguous", "one"),
    "M": Said("attention", "Mask", "mask"),
    "bias": Said("position", "Bias of the distance", "bias"),
    "ALiBi": Said("position", "ALiBi: slopes times positions", "alibi"),
    "causal M": Said("attention", "Causal mask", "mask"),
    "prefix M": Said("attention", "Prefix mask", "mask"),
    "types": Said("embedding", "Token-type ids", "types"),
    "angles": Said("position", "Angles", "angles"),
    "cosine": Said("position", "Cosine", "cosine"),
    "sine": Said("position", "Sine", "sine"),
    "first norm": Said("norm", "Normalise", "embedding.norm"),
    "norm1": Said("norm", "Normalise each token", "norm1"),
    "norm2": Said("norm", "Normalise again", "norm2"),
    "norm": Said("norm", "Normalise"),
    "last norm": Said("norm", "Last norm", "norm"),
    **dict.fromkeys(("QKV", "QK", "KV"), Said("attention", "Packed product", "attention.packed")),
    "Q": Said("attention", "Queries", "attention.query"),
    "K": Said("attention", "Keys", "attention.key"),
    "V": Said("attention", "Values", "attention.value"),
    "turned Q": Said("position", "Rotate queries (RoPE)", "attention.turned query"),
    "turned K": Said("position", "Rotate keys (RoPE)", "attention.turned key"),
    "S": Said("attention", "Scores", "attention.scores"),
    "masked S": Said("attention", "Scores", "attention.scores"),
    "A": Said("attention", "Attention weights", "attention.weights"),
    "H": Said("attention", "Context", "attention.context"),
    "linear Q": Said("attention", "Queries", "attention.query"),
    "linear K": Said("attention", "Keys", "attention.key"),
    "linear V": Said("attention", "Values", "attention.value"),
    "linear H": Said("attention", "Context", "attention.context"),
    "features Q": Said("attention", "Features of the queries", "attention.query features"),
    "features K": Said("attention", "Features of the keys", "attention.key features"),
    "shared QKV": Said("attention", "Queries, keys and values", "attention.shared"),
    "shared QK": Said("attention", "Queries and keys", "attention.shared"),
    "shared KV": Said("attention", "Keys and values", "attention.shared"),
    "memory": Said("attention", "Keys times values", "attention.memory"),
    "normaliser": Said("attention", "Sum of the weights", "attention.normaliser"),
    "O": Said("attention", "Output projection", "attention.output"),
    "scaled O": Said("attention", "Scale the attention output", "attention.scaled"),
    "scaled F": Said("mlp", "Scale the result", "mlp.scaled"),
    "X": Said("", "Residual sum", "residual"),
    "Y": Said("", "Residual sum", "residual"),
    "R": Said("", "Sum", "sum"),
    "mix": Said("", "Mix of two"),
    "placed": Said("position", "Add positions", "attention.placed"),
    "gate": Said("mlp", "Gate", "mlp.gate"),
    "U": Said("mlp", "Expand", "mlp.hidden"),
    "G": Said("mlp", "Activate", "mlp.activation"),
    "activated gate": Said("mlp", "Activate the gate", "mlp.activation"),
    "gated": Said("mlp", "Gate (element-wise product)", "mlp.gated"),
    "F": Said("mlp", "Contract", "mlp.output"),
    "state": Said("recurrence", "Recurrence", "state"),
    "cell": Said("recurrence", "State of the cell", "cell"),
    "state normaliser": Said("recurrence", "Normaliser of the cell", "normaliser"),
    "stabiliser": Said("recurrence", "Largest exponent", "stabiliser"),
    "read": Said("recurrence", "Read the state", "read"),
    "decay": Said("recurrence", "State decay", "stays"),
    "enter": Said("recurrence", "State input", "enters"),
    "delta": Said("recurrence", "Step in time", "step"),
    "router": Said("experts", "Scores of the experts"),
    "routed": Said("experts", "Shares of the experts"),
    "top": Said("experts", "Shares of the chosen experts"),
    "chosen": Said("experts", "Chosen experts"),
    "gates": Said("experts", "Gates"),
    "experts": Said("mlp", "Mixture of experts", "mlp.output"),
    "cls": Said("head", "Take the CLS token", "cls"),
    "first": Said("head", "Take the first token", "first"),
    "every token": Said("embedding", "Broadcast one vector to all tokens", "every"),
    "chosen tokens": Said("patches", "Choose tokens", "chosen"),
    "put": Said("embedding", "Scatter tokens back", "put"),
    "tokens": Said("head", "Take some of the tokens", "tokens"),
    "grid": Said("head", "Tokens to a grid", "grid"),
    "pixels": Said("head", "Unpatchify", "logits"),
    "Z": Said("head", "Output", "logits"),
    "result": Said("head", "Output", "output"),
    "shares": Said("head", "Probabilities", "probabilities"),
    "classes": Said("head", "Classify", "logits"),
    "vocabulary": Said("head", "Score every token", "logits"),
}


def part(roles: Roles, key: str, shape: tuple) -> str:
    """Return the label key of a line in `SAID`: its role with details, such as rotated queries or the first norm of a
    block."""
    role = roles.of.get(key, "")
    plain = role.rstrip("'")
    around = {roles.of.get(one) for one in roles.operands[key]}
    nth = roles.nth.get(key)
    if role == "norm" and key in roles.first:
        return "first norm"
    if role == "norm" or (plain == "X" and nth):
        return {0: "last norm", 1: "norm1", 2: "norm2", None: "norm"}.get(nth, "norm")
    if plain in ("Q", "K") and {"cosine", "sine"} & around:
        return f"turned {plain}"
    if len(roles.share_photo.get(key, "")) > 1:
        return f"shared {roles.share_photo[key]}"
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
    if role == "G" and roles.gated(key):
        return "activated gate"
    if role == "first" and any(roles.learned_first(one) for one in roles.of):
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
    elif part in SAID and SAID[part].stage:
        return SAID[part].stage
    if call in CONVOLUTIONS or call in RECURRENT:
        return "convolution" if call in CONVOLUTIONS else "recurrence"
    words = module.lower()
    if "expert" in words:
        return "experts"
    return next((found for found in ("attention", "mlp", "norm", "embedding", "head") if found[:4] in words), "other")


def stage_of_sum(roles: Roles, key: str) -> str:
    """Return the stage of a residual sum, that of the added value; "" if that has no role."""
    for operand in reversed(roles.operands[key]):
        found = {"O": "attention", "F": "mlp"}.get(roles.of.get(operand, "").rstrip("'"))
        if found:
            return found
    return ""


OF_MAPS = {BatchNorm: "Normalise each channel", GroupNorm: "Normalise groups of channels"}
"""Titles of norms that are not over tokens."""


def title(part: str, call: str, equation: Node, result: str | None) -> str:
    """Return the title of a line: `Scores`, or its output field `result`, or the name of its call, `Convolution`."""
    of_maps = next((said for kind, said in OF_MAPS.items() if equation.has(kind)), "")
    if of_maps and part.rstrip("12").endswith("norm"):
        return of_maps
    if part in SAID and part not in ("Z", "result"):
        return SAID[part].title
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
    found: dict[str, str] = {}
    taken: set[str] = set()
    for key, id in ids.items():
        number, whole = 1, id
        while whole in taken:
            number += 1
            whole = f"{id}{number}"
        taken.add(whole)
        found[key] = whole
    return found


def _id(roles: Roles, key: str, part: str) -> str:
    module, places = roles.module(key), roles.places
    own = SAID[part].id if part in SAID else ""
    if part in ("X", "Y"):
        own = f"{stage(roles, key, part)}.residual"
    elif part == "R" or not own:
        end = own or ("" if part == "norm" else roles.name(key).strip("_") or "layout")
        return ".".join(filter(None, (module, end))) or part
    return ".".join(filter(None, (places.prefix(module) or places.part(module), own)))
