"""Rules that select the explanation of a line by its role and its equation, independent of the model."""

from __future__ import annotations

from collections.abc import Collection

from tracer.expr import Node, Tensor
from tracer.expr.layout.image_grids import Unfold
from tracer.expr.math.algebra import Over, Plus
from tracer.expr.nn.attention_masks import CausalMask
from tracer.expr.nn.layer_norm import LayerNorm, RMSNorm
from tracer.expr.nn.rope import RepeatKV
from tracer.textbook.claims import Context, Why
from tracer.textbook.claims.predicates import is_fused, is_tied
from tracer.textbook.explanations import WHY

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
    "rotated Q": "rotated",
    "rotated K": "rotated",
    "A": "weights",
    "O": "output",
    "gate": "gate",
    "gated": "gated",
    "classes": "classes",
}
"""Parts whose explanation is the same everywhere."""


def why(context: Context) -> Why:
    """Return the claims for a line; none if no explanation is known."""
    part, equation, operand_roles, users = context.part, context.equation, context.operand_roles, context.user_roles
    name = OF_PARTS.get(part, "")
    match part:
        case "I" if equation.has(Unfold):
            name = "convolved"
        case "Q" if context.run.roles.graph.depends[context.key] == "p":
            name = "learned query"
        case "cls":
            name = "take" if "classes" in context.run.parts.values() else "taken"
        case "position":
            name = "patch positions" if operand_roles & {"I", "sequence"} else "position"
        case "norm1" | "norm2" if isinstance(equation, RMSNorm):
            name = "rms"
        case "norm1" | "norm2" if context.role != "norm" and isinstance(equation, LayerNorm):
            name = "norm after" if part == "norm1" else "norm after 2"
        case "norm1" if isinstance(equation, LayerNorm) and users & {"Q", "K", "V", "QKV"}:
            name = "norm1"
        case "norm2" if isinstance(equation, LayerNorm) and users & {"U", "gate"}:
            name = "norm2"
        case "S" | "masked S":
            name = scores(equation, context.run.masks)
        case "H":
            name = "grouped" if equation.has(RepeatKV) else "fused context" if is_fused(context) else "context"
        case "X" | "Y" if "O" in operand_roles:
            name = "residual"
        case "X" | "Y" if "F" in operand_roles:
            last = context.run.roles.of[context.key] == "X"
            name = "residual2" if part == "X" and last else "sum before norm" if part == "Y" else ""
        case "U" if context.widths() == ("D", "d_ff"):
            name = "hidden"
        case "G" | "activated gate":
            name = type(equation).__name__ if (part == "G") != (type(equation).__name__ == "SiLU") else ""
        case "F" if context.widths() == ("d_ff", "D"):
            name = "contract"
        case "causal M" if any(len(mask.args) > 1 for mask in equation.atoms(CausalMask)):
            name = "mask"
        case "vocabulary":
            name = "tied" if is_tied(context) else "head"
    return WHY.get(name, ())


def scores(equation: Node, masks: Collection[str]) -> str:
    """Return the name of the explanation of scores: scaled by a root of a size, with a mask or without."""
    if isinstance(equation, Over):
        return "scores"
    if isinstance(equation, Plus) and isinstance(equation.args[0], Over) and isinstance(equation.args[1], Tensor):
        return "masked scores" if equation.args[1].key in masks else ""
    return ""
