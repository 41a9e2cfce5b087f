"""Fused attention as the three lines that it computes: scores, weights, context (Vaswani et al. 2017, equation 1)."""

from __future__ import annotations

import re

import sympy

from tracer.expr import Node, Tensor
from tracer.expr.function_call import Scalar
from tracer.expr.layout.split_heads import SplitHeads
from tracer.expr.math.activations import Softmax
from tracer.expr.math.algebra import Over, Plus
from tracer.expr.math.arithmetic import Scaled
from tracer.expr.math.comparisons import Where
from tracer.expr.nn.attention_masks import CausalMask, CausalMaskBetween
from tracer.expr.nn.rope import RepeatKV
from tracer.lowering.scalar_operands import scale
from tracer.textbook.claims import Context, Why
from tracer.textbook.claims.context import Subject
from tracer.textbook.explanation_rules import scores as reason_of
from tracer.textbook.explanations import WHY
from tracer.textbook.hints import Hints

SCALE_TOLERANCE = 1e-6
"""How far a scale may be from the usual one, as a share of it."""
PARTS = {"mask": "causal M", "scores": "S", "weights": "A"}
TITLES = {"mask": "Causal mask", "scores": "Scores", "weights": "Attention weights"}


def fused_lines(
    writer, key: str, part: str, masks: dict, hints: Hints, subject: Subject
) -> tuple[tuple[dict, ...], Node]:
    """Return the lines of scores and weights, as arguments of `Line`, and the equation of the result.

    The kernel never stores scores and weights. `masks` are the masks by tower (`part`) and length that have a line; a
    new one is added. Claims on these lines are evaluated on `subject`.
    """
    bound, restore_layout = writer.attention(key)
    q, k, v = bound["query"], bound["key"], bound["value"]
    shapes = {name: bound.shape(name) for name in ("query", "key", "value")}
    heads, shared = shapes["query"][-3:-2], shapes["key"][-3:-2]
    if bound.get("enable_gqa") and heads != shared:
        k, v = RepeatKV(k, heads[0]), RepeatKV(v, heads[0])
    result, lines = writer.line(key), []
    base, number = _split(result.key)
    q, scaling = _split_scale(writer, bound, q)
    scores = Over(q @ k.T, sympy.sqrt(shapes["query"][-1])) if scaling is None else scale(bound, q @ k.T, scaling)
    S_q, S_k = shapes["query"][-2], shapes["key"][-2]
    mask = bound.get("attn_mask")
    if bound.get("is_causal"):
        if (part, S_q, S_k) not in masks:
            id = ".".join(filter(None, (part, "mask")))
            hidden = Tensor(
                writer.names.mask(part), (S_q, S_k), id if id not in writer.ids.values() else f"{base}.mask"
            )
            masks[part, S_q, S_k] = hidden
            causal = CausalMask(S_q) if writer.shapes.same(S_q, S_k) else CausalMaskBetween(S_q, S_k)
            subject.masks[hidden.key] = writer.with_condition(causal)
            lines.append(_line("mask", hidden, subject.masks[hidden.key], WHY["flag"]) | {"layer": None})
        scores = Plus(scores, masks[part, S_q, S_k])
    elif mask is not None:
        shown = str(bound.dtype("attn_mask")) == "torch.bool"
        scores = Where(mask, scores, Scalar(-sympy.oo)) if shown else Plus(scores, mask)
    shape = (*shapes["query"][:-2], S_q, S_k)
    score_tensor = Tensor(_letter(result, "S"), shape, _free(writer, f"{base}.scores{number}"))
    weights = Tensor(_letter(result, "A"), shape, _free(writer, f"{base}.weights{number}"))
    reason = WHY.get(reason_of(scores, subject.masks), ())
    lines += [
        _line("scores", score_tensor, scores, reason),
        _line("weights", weights, Softmax(score_tensor), WHY["weights"]),
    ]
    return tuple(_apply_hints(line, hints, subject, key) for line in lines), restore_layout(weights @ v)


def _split(id: str) -> tuple[str, str]:
    """Return the module that contains an attention's lines, and their number there, from the id of its context."""
    match = re.fullmatch(r"(.*)\.context(\d*)", id)
    return (match[1], match[2]) if match else (id, "")


def _free(writer, id: str) -> str:
    """Return an id, with a number appended if a line outside this kernel has it."""
    number, whole, taken = 1, id, set(writer.ids.values())
    while whole in taken:
        number += 1
        whole = f"{id}{number}"
    return whole


def _split_scale(writer, bound, q: Node) -> tuple[Node, float | None]:
    """Return the queries and the scale of the scores.

    If queries were multiplied by 1/√d_k before they were split into heads, that factor is removed. The usual scale is
    None.
    """
    scaling, inner = bound.get("scale"), q.args[0] if isinstance(q, SplitHeads) else q
    factor = _factor(inner)
    if scaling == 1 and factor is not None:
        width = bound.shape("query")[-1]
        usual = (
            abs(float(factor) * bound.numeric("query")[-1] ** 0.5 - 1) <= SCALE_TOLERANCE
            if factor.is_number
            else (writer.shapes.same(factor**-2, width))
        )
        if usual:
            inner = inner.args[0] if isinstance(inner, Over) else inner.args[1]
            return q.func(inner, *q.args[1:]) if isinstance(q, SplitHeads) else inner, None
    return q, scaling


def _factor(node: Node) -> sympy.Expr | None:
    """Return the factor of a tensor, or the reciprocal of its divisor."""
    if isinstance(node, Over):
        return 1 / node.args[1]
    return node.args[0].value if isinstance(node, Scaled) and isinstance(node.args[0], Scalar) else None


def _apply_hints(line: dict, hints: Hints, subject: Subject, key: str) -> dict:
    """Return a line of the fused attention with the result `key`, with the hints and the claims that hold."""
    part = PARTS[line["tensor"].key.rpartition(".")[2].rstrip("0123456789")]
    hint = hints.of(line["id"], part)
    context = Context(subject, key, part, line["equation"])
    explanation = hint.reason(line.pop("why"), context)
    texts = {"why": explanation.text, "facts": explanation.facts, "refuted": explanation.refuted}
    return {**line, **texts, "title": hint.title or line["title"], "note": hint.remark(context)}


def _letter(tensor: Tensor, letter: str) -> str:
    """Return the letter of a line before the result, with the same accents and indices."""
    name = tensor.name.replace(r"\mathbf{H}", rf"\mathbf{{{letter}}}")
    return name if name != tensor.name else rf"\mathbf{{{letter}}}_{{\text{{{tensor.key.replace('_', ' ')}}}}}"


def _line(step: str, tensor: Tensor, equation: Node, why: Why) -> dict:
    return {"id": tensor.key, "title": TITLES[step], "tensor": tensor, "equation": equation, "why": why}
