"""Scores of an attention without a part of their equation: without the mask, or without the scale of the products.

A closed mask can't be opened from the scores, since −∞ overwrites the score below it. The scores are computed again
from the lines that their equation reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import sympy
from torch import Tensor as Value

from tracer.capture.attention.score_replay import MASKED_SCORE
from tracer.expr import Node, Tensor, execute, tensors
from tracer.expr.function_call import Opaque, Scalar
from tracer.expr.layout.rearrange import Rearrange
from tracer.expr.layout.split_heads import SplitHeads
from tracer.expr.math.algebra import Over, Plus, Product, Transposed
from tracer.expr.math.arithmetic import Div, Scaled
from tracer.expr.math.comparisons import Where
from tracer.expr.nn.attention_masks import CausalMask, PrefixMask, Provided
from tracer.expr.nn.rope import RepeatKV
from tracer.record import split_id
from tracer.shapes import value_of

LAYOUTS = Rearrange, SplitHeads, Transposed, RepeatKV
"""Nodes that move numbers, and so hand a factor on."""
READABLE = "parameter "
NO_MASK = "its equation has no mask, so every query may look at every key"
NO_SCALE = "they are not divided by √d_k"
NO_EQUATION = "its equation is not known"
NO_SIZE = "its equation has the size {}, which no line before it has"
NOT_READ = "its equation reads {}, which is no line and no parameter"


@dataclass(frozen=True)
class ScoreEquation:
    """Scores by another equation than their own, from the lines and parameters that it `reads`. It is called with the
    original scores and the values of these. `size_lines` are lines that are read for their sizes alone."""

    scores: Tensor
    equation: Node
    size_lines: tuple[Tensor, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        keys = dict.fromkeys(tensor.key for tensor in (*tensors(self.equation), *self.size_lines))
        return tuple(key for key in keys if key != self.scores.key)

    def read_sizes(self, earlier: Sequence[Tensor]) -> ScoreEquation | str:
        """Return the equation with those of the `earlier` lines that have the sizes which its own operands lack, or in
        a sentence which size no line has."""
        known = set().union(*map(_known_sizes, (self.scores, *tensors(self.equation))))
        missing = sorted(self.equation.free_symbols - known, key=str)
        sized = {size: next((tensor for tensor in earlier if size in _known_sizes(tensor)), None) for size in missing}
        if unsized := next((size for size, tensor in sized.items() if tensor is None), None):
            return NO_SIZE.format(unsized)
        return replace(self, size_lines=tuple(dict.fromkeys(filter(None, sized.values()))))

    def __call__(self, scores: Value, *values: Value) -> Value:
        values_by_key = {self.scores.key: scores} | dict(zip(self.reads, values, strict=True))
        sizes: dict[str, int] = {}
        for tensor in (self.scores, *tensors(self.equation), *self.size_lines):
            shape = tensor.shape[::-1] if tensor.transposed else tensor.shape
            for formula, length in zip(shape, values_by_key[tensor.key].shape, strict=True):
                if _follows(formula):
                    (symbol,) = formula.free_symbols
                    sizes[str(symbol)] = length if formula == symbol else int(sympy.solve(formula - length, symbol)[0])

        def size(expression: sympy.Expr) -> float:
            return float(expression) if expression.is_number else value_of(str(expression), sizes)

        return execute(self.equation, lambda tensor: values_by_key[tensor.key], size)


def _known_sizes(tensor: Tensor) -> set[sympy.Expr]:
    """Return the sizes that follow from the shape of a tensor: those that an axis determines alone, such as N of N +
    1."""
    return {size for formula in tensor.shape if _follows(formula) for size in formula.free_symbols}


def _follows(formula: sympy.Expr) -> bool:
    """Return whether a length has one size, in a linear formula, so that the size follows from the length."""
    sizes = formula.free_symbols
    linear = len(sizes) == 1 and formula.is_polynomial(*sizes) and sympy.Poly(formula, *sizes).degree() == 1
    return formula.is_Symbol or linear


def unmask(scores: Tensor, lines: Mapping[str, Node]) -> ScoreEquation | str:
    """Return scores without their mask, or in a sentence why that can't be computed; `lines` are the equations of all
    lines by their ids."""
    return _rewritten(scores, _without_mask(lines[scores.key]), lines, NO_MASK)


def unscale(scores: Tensor, lines: Mapping[str, Node]) -> ScoreEquation | str:
    """Return scores whose queries and keys are multiplied without any factor, or why that can't be computed. The factor
    may be at the product, at its operands, or in the lines that these rearrange."""
    equation = lines[scores.key]
    recomputed = _rewritten(scores, _without_scale(equation, lines), lines, NO_SCALE)
    if isinstance(recomputed, str) and (factor := _scale(_without_mask(equation), lines)) != 1:  # its mask is not read
        return ScoreEquation(scores, Over(scores, factor))
    return recomputed


def _rewritten(scores: Tensor, rewritten: Node, lines: Mapping[str, Node], same: str) -> ScoreEquation | str:
    if isinstance(rewritten, Opaque):
        return NO_EQUATION
    if rewritten == lines[scores.key]:
        return same
    outside = (tensor for tensor in tensors(rewritten) if tensor.key not in lines)
    unread = next((tensor.key for tensor in outside if not tensor.key.startswith(READABLE)), "")
    return NOT_READ.format(repr(unread)) if unread else ScoreEquation(scores, rewritten)


def _without_mask(node: Node) -> Node:
    if isinstance(node, Where):
        _, first, second = node.operands
        if _is_lowest(first) or _is_lowest(second):
            return _without_mask(second if _is_lowest(first) else first)
    if isinstance(node, Plus):
        terms = [_without_mask(term) for term in node.operands if not _is_mask(term)]
        terms = [term for term in terms if term != Scalar(0)]
        return terms[0] if len(terms) == 1 else Plus(*terms)
    return _map(node, _without_mask) if isinstance(node, (*LAYOUTS, Over, Div)) else node


def _is_lowest(node: Node) -> bool:
    return isinstance(node, Scalar) and bool(node.value.is_extended_real) and float(node.value) <= MASKED_SCORE


def _is_mask(node: Node) -> bool:
    """Return whether a term of a sum is 0 where a query may look, and a very low number elsewhere."""
    if isinstance(node, (CausalMask, PrefixMask)):
        return True
    if isinstance(node, Provided):
        return _is_mask(node.operands[0])
    read = tensors(node)
    if read:
        return all("mask" in split_id(tensor.key)[1] for tensor in read)
    return any(map(_is_lowest, node.atoms(Scalar)))


def _without_scale(node: Node, lines: Mapping[str, Node]) -> Node:
    if isinstance(node, Product) or isinstance(_factor(node)[0], Product):
        factor = _scale(node, lines)
        product = node if isinstance(node, Product) else _factor(node)[0]
        own = 1 if product is node else _factor(node)[1]
        return product if factor == own else Over(product, factor / own)
    return node if isinstance(node, Tensor) else _map(node, lambda operand: _without_scale(operand, lines))


def _scale(node: Node, lines: Mapping[str, Node]) -> sympy.Expr:
    """Return the factor of queries times keys, 1 for anything but such a product."""
    while isinstance(node, LAYOUTS):
        node = node.operands[0]
    product, factor = _factor(node)
    if not isinstance(product, Product):
        return sympy.Integer(1)
    for operand in product.operands:
        factor *= _factor_of_operand(operand, lines)
    return factor


def _factor_of_operand(node: Node, lines: Mapping[str, Node]) -> sympy.Expr:
    """Return the factor of queries or keys, possibly from the line that they rearrange."""
    while isinstance(node, LAYOUTS):
        node = node.operands[0]
    if (factor := _factor(node)[1]) != 1:
        return factor
    line = lines.get(node.key) if isinstance(node, Tensor) else None
    return sympy.Integer(1) if line is None else _factor_of_operand(line, lines)


def _factor(node: Node) -> tuple[Node, sympy.Expr]:
    """Return a node without its factor, and the factor, 1 for none."""
    if isinstance(node, Over):
        return node.operands[0], 1 / node.args[1]
    if isinstance(node, Div) and isinstance(node.operands[1], Scalar):
        return node.operands[0], 1 / node.operands[1].value
    if isinstance(node, Scaled) and isinstance(node.operands[0], Scalar):
        return node.operands[1], node.operands[0].value
    return node, sympy.Integer(1)


def _map(node: Node, function: Callable[[Node], Node]) -> Node:
    """Return a node with its operands replaced."""
    changed = {operand: function(operand) for operand in node.operands}
    return node.func(*(changed.get(argument, argument) for argument in node.args))
