"""Why a line is there, where its role and its equation say so: nothing here may depend on the model."""

from __future__ import annotations

from tracer.derive.kinds import ATTENTION
from tracer.derive.roles import Roles
from tracer.derive.whys import WHY
from tracer.equations import Node, Tensor
from tracer.equations.algebra import Over, Plus
from tracer.equations.grids import Unfold
from tracer.equations.masks import CausalMask
from tracer.equations.norms import LayerNorm, RMSNorm
from tracer.equations.rotary import Grouped

OF_PARTS = {
    "cls in front": "cls",
    "E": "lookup",
    "places": "places",
    "one": "one",
    "angles": "angles",
    "cosine": "cosine",
    "sine": "sine",
    "last norm": "norm",
    **dict.fromkeys(("QKV", "QK", "KV"), "packed"),
    "Q": "query",
    "K": "key",
    "V": "value",
    "turned Q": "turned",
    "turned K": "turned",
    "A": "weights",
    "O": "output",
    "gate": "gate",
    "gated": "gated",
    "classes": "classes",
}
"""Parts whose reason is the same wherever they stand."""

OF_ONE_HEAD = {"query": ["D", "d_k"], "scores": [], "context": ["d_k", "d_k"], "output": ["d_k", "D"]}
"""Reasons that speak of several heads, with the widths before and after for which they are told of a single one."""


def why(roles: Roles, key: str, part: str, equation: Node, shapes, masks: set[str], parts: set[str]) -> str:
    """The reason for a line in two or three sentences, "" where none is known; `masks` are the keys of tensors that
    hold causal masks, `parts` those that the book has."""
    users = {roles.of.get(user, "").rstrip("'") for user in roles.users[key]}
    made = {roles.of.get(one, "").rstrip("'") for one in roles.operands[key]}
    widths = [str(shapes.of(one)[-1]) for one in (*roles.operands[key], key) if shapes.of(one)]
    name = OF_PARTS.get(part, "")
    match part:
        case "I" if equation.has(Unfold):
            name = "convolved"
        case "Q" if roles.graph.depends[key] == "p":
            name = "learned query"
        case "cls":
            name = "take" if "classes" in parts else "taken"
        case "position":
            name = "patch positions" if made & {"I", "sequence"} else "position"
        case "norm1" | "norm2" if isinstance(equation, RMSNorm):
            name = "rms"
        case "norm1" | "norm2" if roles.of[key] != "norm" and isinstance(equation, LayerNorm):
            name = "norm after" if part == "norm1" else "norm after 2"
        case "norm1" if isinstance(equation, LayerNorm) and users & {"Q", "K", "V", "QKV"}:
            name = "norm1"
        case "norm2" if isinstance(equation, LayerNorm) and users & {"U", "gate"}:
            name = "norm2"
        case "S" | "masked S":
            name = scores(equation, masks)
        case "H":
            fused = (call := roles.call(key)) is not None and call.name == ATTENTION
            name = "grouped" if equation.has(Grouped) else "fused context" if fused else "context"
        case "X" | "Y" if "O" in made:
            name = "residual"
        case "X" | "Y" if "F" in made:
            name = "residual2" if part == "X" and roles.of[key] == "X" else "sum before norm" if part == "Y" else ""
        case "U" if widths[-2:] == ["D", "d_ff"]:
            name = "hidden"
        case "G" | "activated gate":
            name = type(equation).__name__ if (part == "G") != (type(equation).__name__ == "SiLU") else ""
        case "F" if widths[-2:] == ["d_ff", "D"]:
            name = "contract"
        case "causal M" if any(len(mask.args) > 1 for mask in equation.atoms(CausalMask)):
            name = "mask"
        case "vocabulary":
            name = "tied" if roles.tied(key) else "head"
    if name in OF_ONE_HEAD and one_head(roles, key):
        name = f"{name} of one head" if widths[-2:] == (OF_ONE_HEAD[name] or widths[-2:]) else ""
    return WHY.get(name, "")


def one_head(roles: Roles, key: str) -> bool:
    """Whether a line of attention is of a single head."""
    before = {"S": "Q", "H": "V", "O": "H"}.get(roles.of.get(key, ""))
    return key in roles.alone or any(one_head(roles, one) for one in roles.operands[key] if roles.of.get(one) == before)


def scores(equation: Node, masks: set[str]) -> str:
    """The name of the reason for scores: over a root of a size, with a mask or without."""
    if isinstance(equation, Over):
        return "scores"
    if isinstance(equation, Plus) and isinstance(equation.args[0], Over) and isinstance(equation.args[1], Tensor):
        return "masked scores" if equation.args[1].key in masks else ""
    return ""
