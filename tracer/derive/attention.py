"""Fused attention as the three lines that it computes: scores, weights, context (Vaswani et al. 2017, equation 1)."""

from __future__ import annotations

import sympy

from tracer.derive.hints import Hint, Hints
from tracer.derive.numbers import scaled
from tracer.derive.reasons import scores as reason_of
from tracer.derive.whys import WHY
from tracer.equations import Node, Tensor
from tracer.equations.activations import Softmax
from tracer.equations.algebra import Over, Plus
from tracer.equations.arithmetic import Scaled
from tracer.equations.call import Scalar
from tracer.equations.heads import Heads
from tracer.equations.masks import CausalMask
from tracer.equations.relations import Where
from tracer.equations.rotary import Grouped

NEAR = 1e-6
"""How far a scale may be from the usual one, as a share of it."""
PARTS = {"mask": "causal M", "scores": "S", "weights": "A"}
TITLES = {"mask": "Causal mask", "scores": "Scores", "weights": "Attention weights"}


def fused_lines(writer, key: str, part: str, masks: dict, hints: Hints) -> tuple[tuple[dict, ...], Node]:
    """The lines of scores and weights, which the kernel never holds, as arguments of `Line`; and the equation of the
    result. `masks` are the masks of towers (`part`) and lengths that have a line already; a new one is added."""
    given, laid = writer.attention(key)
    q, k, v = given["query"], given["key"], given["value"]
    shapes = {name: given.shape(name) for name in ("query", "key", "value")}
    heads, shared = shapes["query"][-3:-2], shapes["key"][-3:-2]
    if given.get("enable_gqa") and heads != shared:
        k, v = Grouped(k, heads[0]), Grouped(v, heads[0])
    made, lines = writer.tensor(key), []
    base = made.key.removesuffix(".context")
    q, scale = _unscaled(given, q)
    scores = Over(q @ k.T, sympy.sqrt(shapes["query"][-1])) if scale is None else scaled(given, q @ k.T, scale)
    S_q, S_k = shapes["query"][-2], shapes["key"][-2]
    mask = given.get("attn_mask")
    if given.get("is_causal"):
        if (part, S_q) not in masks:
            id = ".".join(filter(None, (part, "mask")))
            hidden = Tensor(
                writer.names.mask(part), (S_q, S_k), id if id not in writer.ids.values() else f"{base}.mask"
            )
            masks[part, S_q] = hidden
            lines.append(_line("mask", hidden, writer.provided(CausalMask(S_q)), WHY["flag"]) | {"layer": None})
        scores = Plus(scores, masks[part, S_q])
    elif mask is not None:
        shown = str(given.dtype("attn_mask")) == "torch.bool"
        scores = Where(mask, scores, Scalar(-sympy.oo)) if shown else Plus(scores, mask)
    shape = (*shapes["query"][:-2], S_q, S_k)
    said = Tensor(_letter(made, "S"), shape, f"{base}.scores")
    weights = Tensor(_letter(made, "A"), shape, f"{base}.weights")
    reason = WHY.get(reason_of(scores, {one.key for one in masks.values()}), "")
    lines += [_line("scores", said, scores, reason), _line("weights", weights, Softmax(said), WHY["weights"])]
    return tuple(
        _hinted(line, hints.of(line["id"], PARTS[line["tensor"].key.rpartition(".")[2]])) for line in lines
    ), laid(weights @ v)


def _unscaled(given, q: Node) -> tuple[Node, float | None]:
    """Queries and the scale of the scores; queries that were multiplied by 1/√d_k before they were dealt out, without
    that, and None for the usual scale."""
    scale, inner = given.get("scale"), q.args[0] if isinstance(q, Heads) else q
    if scale == 1 and isinstance(inner, Scaled) and isinstance(inner.args[0], Scalar) and inner.args[0].value.is_number:
        usual = given.numeric("query")[-1] ** -0.5
        if abs(float(inner.args[0].value) - usual) <= NEAR * usual:
            return q.func(inner.args[1], *q.args[1:]) if isinstance(q, Heads) else inner.args[1], None
    return q, scale


def _hinted(line: dict, hint: Hint) -> dict:
    """A line with what hints say of it."""
    return {**line, "title": hint.title or line["title"], "why": hint.reason(line["why"]), "note": hint.note}


def _letter(made: Tensor, letter: str) -> str:
    """The letter of what comes before the result, with the same above and below it."""
    name = made.name.replace(r"\mathbf{H}", rf"\mathbf{{{letter}}}")
    return name if name != made.name else rf"\mathbf{{{letter}}}_{{\text{{{made.key.replace('_', ' ')}}}}}"


def _line(step: str, made: Tensor, equation: Node, why: str) -> dict:
    return {"id": made.key, "title": TITLES[step], "tensor": made, "equation": equation, "why": why}
