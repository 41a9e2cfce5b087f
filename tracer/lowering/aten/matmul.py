"""Lowerings of matrix products and einsum."""

from __future__ import annotations

from collections import Counter

from tracer.expr import ColumnProduct, Dot, Einsum, GroupedProduct, Node, Outer, Plus, Product, RowProduct
from tracer.expr.math.einsum import LETTERS
from tracer.lowering.aten import register_lowering
from tracer.lowering.call_arguments import BoundCall
from tracer.lowering.scalar_operands import plus, scale
from tracer.utils.internals.torch_internals import function_schema


@register_lowering("linear")
def linear(call: BoundCall) -> Node | None:
    if call.rank("weight") != 2:
        return None
    weight = call.weight("weight")
    product = (Product if call.rank("input") > 1 else RowProduct)(call["input"], weight)
    return Plus(product, call["bias"]) if call.has("bias") else product


@register_lowering("matmul", "mm", "bmm", "mv", "dot", "vdot", "inner")
def matmul(call: BoundCall) -> Node | None:
    left, right = (argument.name for argument in function_schema(call.func).arguments[:2])
    ranks = call.rank(left), call.rank(right)
    if call.op_name == "aten::inner" and ranks != (1, 1):
        return None
    node = Product if min(ranks) > 1 else RowProduct if ranks[1] > 1 else ColumnProduct if ranks[0] > 1 else Dot
    return node(call[left], call[right])


@register_lowering("addmm", "addmv", "baddbmm")
def add_product(call: BoundCall) -> Node:
    added, left, right = (argument.name for argument in function_schema(call.func).arguments[:3])
    product = (Product if call.rank(right) > 1 else ColumnProduct)(call[left], call[right])
    scaled = scale(call, product, call["alpha"])
    return scaled if call["beta"] == 0 else plus(scaled, scale(call, call[added], call["beta"]))


@register_lowering("outer", "ger")
def outer(call: BoundCall) -> Node:
    return Outer(call["self"], call["vec2"])


@register_lowering("_grouped_mm")
def grouped_mm(call: BoundCall) -> Node | None:
    ranks = call.rank("self"), call.rank("mat2")
    if ranks != (2, 3) or not call.has("offs"):
        return None
    product = GroupedProduct(call["self"], call["mat2"], call["offs"])
    return plus(product, call["bias"]) if call.has("bias") else product


@register_lowering("einsum")
def einsum(call: BoundCall) -> Node | None:
    """Lower an einsum, with the letters i, j, k … in the order of the result's axes, then of the contracted ones."""
    left, arrow, output = call["equation"].replace(" ", "").partition("->")
    parts, ranks = left.split(","), [len(shape) for shape in call.numeric("tensors")]
    free = max((rank - len(part) + 3 for part, rank in zip(parts, ranks, strict=True) if "..." in part), default=0)
    dots = "0123456789"[:free]
    parts = [
        part.replace("...", dots[free - (rank - len(part) + 3) :] if rank - len(part) + 3 else "")
        for part, rank in zip(parts, ranks, strict=True)
    ]
    if not arrow:
        once = Counter("".join(parts))
        output = "..." * bool(free) + "".join(
            sorted(letter for letter, count in once.items() if count == 1 and letter.isalpha())
        )
    output = output.replace("...", dots)
    letters = list(dict.fromkeys(output + "".join(parts)))
    if len(letters) > len(LETTERS):
        return None
    if len(parts) == 2 and (product := _of_matrices(call["tensors"], parts[0], parts[1], output)) is not None:
        return product
    new = str.maketrans(dict(zip(letters, LETTERS, strict=False)))
    return Einsum(*call["tensors"], axes=f"{','.join(parts)}->{output}".translate(new))


def _of_matrices(tensors: list[Node], left: str, right: str, output: str) -> Node | None:
    """Return an einsum as a product of matrices, transposed where needed; None if it is none.

    A second operand without leading axes is broadcast over them.
    """
    if (
        min(map(len, (left, right, output))) < 2
        or max(Counter(letters).most_common(1)[0][1] for letters in (left, right, output)) > 1
    ):
        return None
    first, second = tensors
    for left_axes, a in ((first, left), (first.T, left[:-2] + left[:-3:-1])):
        for right_axes, b in ((second, right), (second.T, right[:-2] + right[:-3:-1])):
            alike = a[:-2] == output[:-2] and b[:-2] in ("", output[:-2])
            if alike and (a[-2], b[-1], a[-1]) == (output[-2], output[-1], b[-2]) and a[-1] not in output:
                return Product(left_axes, right_axes)
    return None


@register_lowering("bilinear")
def bilinear(call: BoundCall) -> Node | None:
    """Lower a bilinear map: a weight for each pair of one element of each input."""
    count = call.rank("input1") - 1
    lead, output, left, right = LETTERS[:count], LETTERS[count], LETTERS[count + 1], LETTERS[count + 2]
    axes = f"{lead}{left},{output}{left}{right},{lead}{right}->{lead}{output}"
    equation = Einsum(call["input1"], call["weight"], call["input2"], axes=axes)
    return plus(equation, call["bias"]) if call.has("bias") else equation
