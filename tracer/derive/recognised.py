"""Formulas that have a name: what a model writes out in several calls, as the one node that papers have for it."""

from __future__ import annotations

from tracer.equations import Node
from tracer.equations.algebra import Plus, Times
from tracer.equations.arithmetic import Power, Ratio
from tracer.equations.axes import Mean
from tracer.equations.call import Scalar
from tracer.equations.elementwise import Root
from tracer.equations.norms import RMSNorm


def recognised(node: Node) -> Node:
    """The same, by its name where it has one."""
    return _rms_norm(node) or node


def _rms_norm(node: Node) -> Node | None:
    """`γ ⊙ x / √(mean x² + ε)`, in either order."""
    if not isinstance(node, Times):
        return None
    for gamma, ratio in (node.operands, node.operands[::-1]):
        if not (isinstance(ratio, Ratio) and isinstance(ratio.operands[1], Root)):
            continue
        x, inside = ratio.operands[0], ratio.operands[1].operands[0]
        if not (isinstance(inside, Plus) and isinstance(inside.operands[0], Mean)):
            continue
        mean, eps = inside.operands[:2]
        square = mean.operands[0]
        last = mean.get("keep") and len(mean.get("axes")) == 1
        if isinstance(eps, Scalar) and isinstance(square, Power) and square.args[0] == x and last:
            return RMSNorm(float(eps.value), x, gamma)
    return None
