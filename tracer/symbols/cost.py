"""Cost of each op: floating point operations (2 per multiply-add) and parameters, as numbers and as formulas.

The formulas are those of `torch.utils.flop_counter`, which are functions of shapes and so take symbolic shapes
too. It has none for the fused attention of the CPU (and so counts 0 there): that op gets the formula of its
siblings on other devices. An op that multiplies matrices, or may, and has no formula is not counted, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import sympy
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from tracer.symbols.formula_parser import LETTERS
from tracer.symbols.notation import parse
from tracer.utils.torch_internals import OpOverloadPacket

FUSED_OPS = ("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math_for_mps")
"""Fused attention of devices that PyTorch's own counter does not know."""
_PRODUCTS = (
    "mm", "mv", "dot", "conv", "rnn", "lstm", "gru", "linear", "linalg", "matmul", "attention", "encoder_layer", "fft",
    "cdist", "euclidean_dist", "trilinear", "cholesky", "lu_factor", "lu_solve", "geqrf", "addr", "outer",
)  # fmt: skip
"""What the names of ops have in them that multiply matrices, whoever wrote them."""
_LOOKALIKES = ("gamma", "upsample", "vector_norm", "bilinear2d", "cumm", "convert", "hamming", "fftshift", "dummy")
"""What the names of ops have in them that are none, although the above is in them too."""


def attention_flops(q, k, v, *rest, out_val=None, out_shape=None, **options) -> int:
    """Return the FLOPs of fused attention from the shapes of queries, keys and values `[B, h, S, d_k]`; fewer heads of
    keys are each multiplied by all queries of their group (Ainslie et al. 2023)."""
    return sdpa_flop_count(q, (*k[:1], q[1], *k[2:]), (*v[:1], q[1], *v[2:]))


@lru_cache(maxsize=1)
def _formulas() -> dict:
    overloads = {packet: formula for packet, formula in flop_registry.items() if isinstance(packet, OpOverloadPacket)}
    named = {packet.__name__: formula for packet, formula in overloads.items()} | dict.fromkeys(
        FUSED_OPS, attention_flops
    )
    return named | {f"{name}_": formula for name, formula in named.items()}  # in place


@lru_cache(maxsize=4096)
def counts(op: str) -> bool | None:
    """Return whether an op of this name has FLOPs that are counted; None for one without a formula that may multiply
    matrices: an op of PyTorch that does by its name, or any of another library."""
    if op in _formulas():
        return True
    theirs = "." in op or any(part in op for part in _PRODUCTS)
    return None if theirs and not any(part in op for part in _LOOKALIKES) else False


@lru_cache(maxsize=4096)
def flops(op: str, inputs: tuple[tuple[int, ...], ...], output: tuple[int, ...], transposed=False) -> int | None:
    """Return the FLOPs of an op from the shapes of its tensor arguments; 0 for ops that multiply no matrices, None for
    one whose FLOPs are not counted."""
    if not counts(op):
        return 0 if counts(op) is False else None
    return int(_formulas()[op](*_arguments(op, inputs, transposed), out_val=output))


@lru_cache(maxsize=4096)
def flops_symbolic(op: str, inputs: tuple[tuple[str, ...], ...], output: tuple[str, ...], transposed=False) -> str:
    """Return the FLOPs as a formula over the sizes, sympy's `str`; `"?"` where a dimension is not solved, or nothing is
    counted."""
    if not counts(op):
        return "0" if counts(op) is False else "?"
    if any("?" in shape for shape in (*inputs, output)):
        return "?"
    shapes, out = [tuple(map(parse, shape)) for shape in inputs], tuple(map(parse, output))
    try:
        return str(_formulas()[op](*_arguments(op, shapes, transposed), out_val=out))
    except AssertionError:  # the formula compares sizes that are equal but written in two ways (D and h·d_k)
        return "?"


def _arguments(op, inputs, transposed):
    if op == "convolution":
        return (*inputs[:2], None, None, None, None, transposed)
    return inputs


@lru_cache(maxsize=4096)
def elements(shapes: tuple[tuple[str, ...], ...]) -> str:
    """Return the number of elements of tensors of these symbolic shapes, as a formula; `"?"` where a size is not
    solved."""
    if any("?" in shape for shape in shapes):
        return "?"
    return str(sum((sympy.prod(map(parse, shape)) for shape in shapes), sympy.Integer(0)))


def total(formulas: Sequence[tuple[str, str, int | None]], depths: dict[str, tuple[str, int]]) -> str:
    """Return the sum of (formula, part, layer) triples as one formula, with a symbol for the number of blocks of a
    part.

    `depths` holds that symbol and the number: `{"": ("L", 12)}`. A part whose blocks don't all cost the same is summed
    block by block. `"?"` for one that is longer than a formula may be.
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
    sum_text = str(whole)
    return sum_text if len(sum_text) <= LETTERS else "?"
