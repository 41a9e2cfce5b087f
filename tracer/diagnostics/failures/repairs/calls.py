"""Repairs of the failed call itself: another axis, another shape, other letters, another function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, permutations
from operator import mul

import torch
from torch import Tensor

from tracer.diagnostics.failures.clashes.layouts import STRIDES, wanted_shape
from tracer.diagnostics.failures.clashes.products import einsum_operands, letter_sizes, subscripts
from tracer.diagnostics.failures.failure_site import Expression
from tracer.diagnostics.failures.scene import Clash, Scene, argument
from tracer.diagnostics.failures.source_edits import edit_node
from tracer.diagnostics.failures.trials import Candidate

LETTERS = 6
"""Most letters of an operand whose orders are tried."""


def call_repairs(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield repairs of the failed call, by its kind."""
    node = scene.site.node
    if isinstance(node, (ast.Return, ast.Assign, ast.Expr)):
        node = node.value
    if not isinstance(node, (ast.Call, ast.Subscript)) or scene.call is None:
        return
    if clash.kind == "loss" or (clash.kind == "range" and "entropy" in scene.call.name):
        yield from _losses(scene, node)
    if isinstance(node, ast.Subscript):
        yield from _indices(scene, clash, node)
        return
    match clash.kind:
        case "join":
            yield from _axes(scene, node)
            if scene.call.name == "stack":
                yield _rename_call(scene, node, "cat")
        case "view":
            yield from _views(scene, node)
        case "expand":
            yield from _expansions(scene, node)
        case "axis":
            yield from _axes(scene, node)
        case "einsum":
            yield from _letters(scene, node)
        case "range":
            yield from _shift_indices(scene)


def _edit(scene: Scene, node: ast.AST, text: str, message: str, cost: float) -> Candidate:
    return Candidate(message, cost, (edit_node(scene.site.file, scene.site.lines, node, text),))


def _rename_call(scene: Scene, node: ast.Call, name: str) -> Candidate:
    function = node.func
    text = scene.site.text_of(function)
    new = text.rpartition(".")[0] + "." + name if "." in text else name
    return _edit(scene, function, new, f"call `{new}` in the place of `{text}`", 1.4)


def _axes(scene: Scene, node: ast.Call) -> Iterator[Candidate]:
    """Yield the call along each other axis."""
    x = scene.tensors[0][1] if scene.tensors else None
    if x is None:
        return
    keyword = next((k.value for k in node.keywords if k.arg in ("dim", "axis")), None)
    index = 1 if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("torch", "F") else 0
    whole = [argument for argument in node.args[index:] if isinstance(argument, (ast.Constant, ast.UnaryOp))]
    for axis_node in [keyword] if keyword is not None else whole:
        for axis in dict.fromkeys((-1, *range(x.dim()))):
            text = str(axis)
            if scene.site.text_of(axis_node) != text:
                yield _edit(scene, axis_node, text, f"take axis {axis}: `dim={axis}`", 0.9 + axis / 100)
    if keyword is None and not whole and node.args:
        for axis in range(1, x.dim()):
            text = f"{scene.site.text_of(node.args[-1])}, dim={axis}"
            yield _edit(scene, node.args[-1], text, f"take axis {axis}: `dim={axis}`", 1.1 + axis / 100)


def _views(scene: Scene, node: ast.Call) -> Iterator[Candidate]:
    """Yield the view as a reshape, and with one of its sizes inferred by PyTorch."""
    if STRIDES in str(scene.error) and isinstance(node.func, ast.Attribute):
        yield from _copies(scene, node.func)
        return
    items = _shape_nodes(scene, node)
    if any(_is_minus_one(item) for item in items):
        for number, item in enumerate(items):
            if isinstance(item, ast.Constant) and not _is_minus_one(item):
                left = next(i for i in items if _is_minus_one(i))
                edits = (
                    edit_node(scene.site.file, scene.site.lines, item, "-1"),
                    edit_node(scene.site.file, scene.site.lines, left, scene.site.text_of(item)),
                )
                yield Candidate(f"exchange `-1` and `{scene.site.text_of(item)}`", 1.6 + number / 100, edits)
        return
    for number, item in enumerate(reversed(items)):
        text = scene.site.text_of(item)
        yield _edit(scene, item, "-1", f"leave this size to PyTorch: `-1` in the place of `{text}`", 1.3 + number / 100)


def _copies(scene: Scene, function: ast.Attribute) -> Iterator[Candidate]:
    """Yield the view as a reshape, which copies, of the axes in an order in which it joins whole axes.

    A reshape whose boundaries are none of the tensor's would mix the numbers of several places: heads that are joined
    without a transpose.
    """
    x = scene.tensors[0][1]
    shape = wanted_shape(scene.call) if scene.call else None
    if shape is None or -1 in shape[:-1]:
        return
    receiver, orders = scene.site.text_of(function.value), [(0, 0), *combinations(range(x.dim()), 2)]
    for i, j in orders:
        moved = x.transpose(i, j)
        if not boundaries(shape) <= boundaries(moved.shape):
            continue
        text = f"{receiver}.reshape" if i == j else f"{receiver}.transpose({i}, {j}).reshape"
        batch = i != j and i == 0
        yield _edit(scene, function, text, f"write `{text}(…)`, which copies the tensor", 1.0 + (i != j) / 10 + batch)


def boundaries(shape: Sequence[int]) -> set[int]:
    """Return the numbers of cells in which whole axes end: of `[2, 5, 8]`, 2, 10 and 80."""
    return set(accumulate(shape[:-1], mul))


def _shape_nodes(scene: Scene, node: ast.Call) -> list[ast.expr]:
    method = isinstance(node.func, ast.Attribute) and node.func.attr in ("view", "reshape", "expand", "unflatten")
    items = list(node.args)
    if method and isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "torch":
        items = items[1:]
    if len(items) == 1 and isinstance(items[0], (ast.Tuple, ast.List)):
        items = list(items[0].elts)
    return [item for item in items if not isinstance(item, ast.Starred)]


def _is_minus_one(item: ast.expr) -> bool:
    return isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub) and getattr(item.operand, "value", 0) == 1


def _expansions(scene: Scene, node: ast.Call) -> Iterator[Candidate]:
    for number, item in enumerate(_shape_nodes(scene, node)):
        text = scene.site.text_of(item)
        if not _is_minus_one(item):
            yield _edit(scene, item, "-1", f"keep this axis: `-1` in the place of `{text}`", 1.2 + number / 100)


def _letters(scene: Scene, node: ast.Call) -> Iterator[Candidate]:
    """Yield other letters of an `einsum`: another order of those of one operand."""
    known = einsum_operands(scene.call) if scene.call else None
    literal = next((a for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)), None)
    if known is None or literal is None:
        return
    equation, operands = known
    letters = subscripts(equation)
    if len(letters.operands) != len(operands):
        return
    quoted = scene.site.text_of(literal)[:1]
    ellipsis = [
        f"...{text}" if len(text) < x.dim() and "." not in text else text
        for text, x in zip(letters.operands, operands, strict=True)
    ]
    texts = []
    if tuple(ellipsis) != letters.operands:
        texts.append((ellipsis, f"...{letters.result}" if letters.result is not None else None, 1.2))
    for number, text in enumerate(letters.operands):
        if len(text) > LETTERS:
            continue
        for order in permutations(text):
            if (new := "".join(order)) != text and len(new) == operands[number].dim():
                changed = [*letters.operands[:number], new, *letters.operands[number + 1 :]]
                moved = sum(a != b for a, b in zip(new, text, strict=True))
                texts.append((changed, letters.result, 0.7 + moved / 10 + number / 100))
    for changed, result, cost in texts:
        sizes = {
            letter: {operands[n].shape[a] for n, a in places}
            for letter, places in letter_sizes(subscripts(",".join(changed)), operands)
        }
        if any(len(each - {1}) > 1 for each in sizes.values()):
            continue
        new = ",".join(changed) + (f"->{result}" if result is not None else "")
        yield _edit(scene, literal, f"{quoted}{new}{quoted}", f"write the letters `{new}`", cost)


def _operand_texts(scene: Scene) -> tuple[Expression | None, Expression | None]:
    """Return the expressions of the scores and of the target of a loss."""
    if scene.call is None:
        return None, None
    x, target = argument(scene.call, 0, "input"), argument(scene.call, 1, "target")
    operands = scene.site.operands
    by = [next((o for o in operands if o.value is value), None) for value in (x, target)]
    if None in by:
        tensors = [
            o
            for o in operands
            if o.value is not scene.module and not (isinstance(o.node, ast.Attribute) and o.text in ("F", "self.loss"))
        ]
        by = [one or other for one, other in zip(by, tensors[-2:] if len(tensors) > 1 else (None, None), strict=True)]
    return by[0], by[1]


def _losses(scene: Scene, node: ast.AST) -> Iterator[Candidate]:
    """Yield the usual layouts of scores and target."""
    scores, target = _operand_texts(scene)
    if scores is None or target is None or scores is target or scene.call is None:
        return
    file, lines = scene.site.file, scene.site.lines

    def both(first: str, second: str, message: str, cost: float) -> Candidate:
        edits = [
            edit_node(file, lines, e.node, text) for e, text in ((scores, first), (target, second)) if text != e.text
        ]
        return Candidate(message, cost, tuple(edits))

    x, y = argument(scene.call, 0, "input"), argument(scene.call, 1, "target")
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return
    if "entropy" in scene.call.name or "nll" in scene.call.name:
        yield from _shift(scene, scores)
        if x.dim() > 2:
            text = f"{scores.atom}.transpose(1, {x.dim() - 1})"
            yield both(text, target.text, f"put the classes on axis 1: `{text}`", 0.9)
            first, second = f"{scores.atom}.flatten(0, {x.dim() - 2})", f"{target.atom}.flatten()"
            yield both(first, second, f"count all places as samples: `{first}` and `{second}`", 1.0)
        if y.dim() == x.dim():
            for axis in (-1, 1):
                yield both(
                    scores.text,
                    f"{target.atom}.argmax({axis})",
                    f"take the number of the class: `{target.atom}.argmax({axis})`",
                    1.6,
                )
                yield both(scores.text, f"{target.atom}.squeeze({axis})", f"write `{target.atom}.squeeze({axis})`", 1.0)
            if x.dim() == 2:
                yield both(scores.text, f"{target.atom}[:, 0]", f"write `{target.atom}[:, 0]`", 2.0)
        yield both(scores.text, f"{target.atom}.long()", f"write `{target.atom}.long()`", 1.0)
        if x.dim() >= 2 and not y.is_floating_point() and y.numel() and not y.is_meta and int(y.min()) >= 1:
            text = f"{target.atom} - 1"
            yield both(scores.text, text, f"count classes from 0: `{text}`", 1.1)
    yield both(f"{scores.atom}.squeeze(-1)", target.text, f"write `{scores.atom}.squeeze(-1)`", 1.0)
    yield both(scores.text, f"{target.atom}.unsqueeze(-1)", f"write `{target.atom}.unsqueeze(-1)`", 1.1)
    yield both(scores.text, f"{target.atom}.unsqueeze(-1).float()", f"write `{target.atom}.unsqueeze(-1).float()`", 1.3)
    yield both(
        f"{scores.atom}.squeeze(-1)",
        f"{target.atom}.float()",
        f"write `{scores.atom}.squeeze(-1)` and `{target.atom}.float()`",
        1.3,
    )
    if scene.call.name == "binary_cross_entropy" and isinstance(node, ast.Call):
        yield _rename_call(scene, node, "binary_cross_entropy_with_logits")


def _shift(scene: Scene, scores: Expression) -> Iterator[Candidate]:
    """Yield scores without those of the last token, for labels that begin at the second."""
    node, shift = scores.node, "[:, :-1]"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("view", "reshape"):
        base = scene.site.expression(node.func.value)
        if isinstance(base.value, Tensor) and base.value.dim() == 3:
            text = f"{base.atom}{shift}.reshape"
            yield _edit(scene, node.func, text, f"leave out the scores of the last token: `{base.atom}{shift}`", 0.9)
    elif isinstance(scores.value, Tensor) and scores.value.dim() == 3:
        text = f"{scores.atom}{shift}.transpose(1, 2)"
        yield _edit(scene, node, text, f"leave out the scores of the last token: `{text}`", 0.95)


def _indices(scene: Scene, clash: Clash, node: ast.Subscript) -> Iterator[Candidate]:
    """Yield other positions for an index that is out of range."""
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for number, item in enumerate(items):
        value = scene.site.value(item)
        if isinstance(value, int) and not isinstance(value, bool):
            yield _edit(scene, item, "-1", "take the last place: `-1`", 1.0 + number / 100)
            text = scene.site.text_of(item)
            yield _edit(scene, item, f"{text} - 1", f"count from 0: `{text} - 1`", 1.2 + number / 100)
    if len(items) > 1 and clash.kind == "index" and "too many indices" in str(scene.error):
        for number in range(len(items)):
            kept = [scene.site.text_of(item) for i, item in enumerate(items) if i != number]
            yield _edit(
                scene, node.slice, ", ".join(kept), f"index fewer axes: `[{', '.join(kept)}]`", 1.6 + number / 100
            )
    yield from _shift_indices(scene)


def _shift_indices(scene: Scene) -> Iterator[Candidate]:
    """Yield whole numbers that count from 0 in place of those that count from 1."""
    for operand in scene.site.operands:
        value = operand.value
        if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
            continue
        if value.numel() and not value.is_meta and int(value.min()) >= 1:
            text = f"{operand.atom} - 1"
            yield _edit(scene, operand.node, text, f"count from 0: `{text}`", 1.4)
