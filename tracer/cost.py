"""Cost of each op: floating point operations (2 per multiply-add) and parameters, as numbers and as formulas.

The formulas are those of `torch.utils.flop_counter`, which are functions of shapes and so take symbolic shapes
too. It has none for the fused attention of the CPU (and so counts 0 there): that op gets the formula of its
siblings on other devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import sympy
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from tracer.notation import parse

_FUSED = "_scaled_dot_product_flash_attention_for_cpu"


def fused(q, k, v, *rest, out_val=None, out_shape=None, **options):
    """FLOPs of fused attention from the shapes of queries, keys and values `[B, h, S, d_k]`; fewer heads of keys are
    each multiplied by all queries of their group (Ainslie et al. 2023)."""
    return sdpa_flop_count(q, (*k[:1], q[1], *k[2:]), (*v[:1], q[1], *v[2:]))


@lru_cache(maxsize=1)
def _formulas() -> dict:
    named = {packet.__name__: formula for packet, formula in flop_registry.items() if hasattr(packet, "__name__")}
    return named | {_FUSED: fused}


def counts(op: str) -> bool:
    """Whether an op of this name multiplies matrices, and so has FLOPs."""
    return op in _formulas()


@lru_cache(maxsize=4096)
def flops(op: str, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...]) -> int:
    """FLOPs of an op from the shapes of its tensor arguments; 0 for ops that multiply no matrices."""
    formula = _formulas().get(op)
    if formula is None:
        return 0
    return int(formula(*_arguments(op, inputs), out_val=output))


@lru_cache(maxsize=4096)
def flops_symbolic(op: str, inputs: tuple[tuple[str, ...], ...], output: tuple[str, ...]) -> str:
    """The same as a formula over the sizes, sympy's `str`; `"?"` where a dimension is not solved."""
    if op not in _formulas():
        return "0"
    if any("?" in shape for shape in inputs):
        return "?"
    shapes = [tuple(parse(size) for size in shape) for shape in inputs]
    try:
        return str(_formulas()[op](*_arguments(op, shapes), out_val=tuple(parse(size) for size in output)))
    except AssertionError:  # the formula compares sizes that are equal but written in two ways (D and h·d_k)
        return "?"


def _arguments(op, inputs):
    if op == "convolution":
        return (*inputs[:2], None, None, None, None, False)
    return inputs


def elements(shapes: Sequence[tuple[str, ...]]) -> str:
    """How many numbers tensors of these symbolic shapes hold, as a formula; `"?"` where a size is not solved."""
    if any("?" in shape for shape in shapes):
        return "?"
    return str(sum((sympy.prod(map(parse, shape)) for shape in shapes), sympy.Integer(0)))


def total(formulas: Sequence[tuple[str, str, int | None]], depths: dict[str, tuple[str, int]]) -> str:
    """The sum of (formula, part, layer) triples as one formula, with a symbol for the number of blocks of a part.

    `depths` says by what symbol and how many: `{"": ("L", 12)}`. A part whose blocks don't all cost the same is
    summed block by block.
    """
    whole, inside = sympy.Integer(0), {}
    for formula, part, layer in formulas:
        if formula == "?":
            return "?"
        if formula == "0":
            continue
        if layer is None:
            whole += parse(formula)
        else:
            blocks = inside.setdefault(part, {})
            blocks[layer] = blocks.get(layer, 0) + parse(formula)
    for part, blocks in inside.items():
        name, count = depths.get(part, ("", 0))
        costs = list(blocks.values())
        whole += parse(name) * costs[0] if len(costs) == count and len(set(costs)) == 1 else sum(costs)
    return str(whole)
