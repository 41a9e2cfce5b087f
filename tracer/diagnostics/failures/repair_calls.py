"""Moves that repair the failed call itself: another axis, another shape, other letters, another function."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, combinations, permutations, product
from math import isqrt, prod
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.capture.modes import FailedCall
from tracer.diagnostics.failures.clashes import STRIDES, einsum_operands, letter_places, subscripts, wanted_shape
from tracer.diagnostics.failures.explanation import assignments, construction_of
from tracer.diagnostics.failures.failure_site import UNKNOWN_SITE, Expression, FailureSite, callee_name, items_of
from tracer.diagnostics.failures.trials import Candidate, Clash, Scene, argument, move
from tracer.symbols import notation
from tracer.utils.files import set_argument

LETTERS = 6
"""Most letters of an operand whose orders are tried."""

call_move = partial(move, edits="call")


def _write(scene: Scene, node: ast.AST, text: str, message: str, cost: float = 0.0) -> Candidate:
    return Candidate(message, cost, (scene.edit(node, text),))


def _rename_call(scene: Scene, node: ast.Call, name: str) -> Candidate:
    text = scene.site.text_of(node.func)
    new = text.rpartition(".")[0] + "." + name if "." in text else name
    return _write(scene, node.func, new, f"call `{new}` in the place of `{text}`")


class AxisArguments(NamedTuple):
    """Arguments of a call that are axes, and whether they are unnamed, where there may be others."""

    call: ast.Call
    nodes: list[ast.expr]
    rank: int


def _axis_arguments(scene: Scene) -> Iterator[AxisArguments]:
    """Yield the axes of the failed call."""
    node = scene.node
    if not isinstance(node, ast.Call) or not scene.tensors:
        return
    keyword = next((k.value for k in node.keywords if k.arg in ("dim", "axis")), None)
    index = 1 if isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") in ("torch", "F") else 0
    whole: list[ast.expr] = [a for a in node.args[index:] if isinstance(a, (ast.Constant, ast.UnaryOp))]
    yield AxisArguments(node, whole if keyword is None else [keyword], scene.tensors[0].dim())


@call_move("join", "axis", cost=0.9)
def take_another_axis(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the call along each other axis."""
    for _, nodes, rank in _axis_arguments(scene):
        for node in nodes:
            for axis in dict.fromkeys((-1, *range(rank))):
                if scene.site.text_of(node) != str(axis):
                    yield _write(scene, node, str(axis), f"take axis {axis}: `dim={axis}`", axis / 100)


@call_move("join", "axis", cost=1.1)
def name_an_axis(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the call along each axis but the first, where it names none."""
    for call, nodes, rank in _axis_arguments(scene):
        for axis in range(1, rank) if call.args and not nodes else ():
            text = f"{scene.site.text_of(call.args[-1])}, dim={axis}"
            yield _write(scene, call.args[-1], text, f"take axis {axis}: `dim={axis}`", axis / 100)


@call_move("join", cost=1.4)
def join_along_an_axis(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the call that joins tensors along an axis that they have, in the place of a new one."""
    if isinstance(scene.node, ast.Call) and scene.call is not None and scene.call.name == "stack":
        yield _rename_call(scene, scene.node, "cat")


@call_move("view", cost=1.0)
def copy_the_tensor(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the view as a reshape, which copies, of the axes in an order in which it joins whole axes.

    A reshape whose boundaries are none of the tensor's would mix the numbers of several places: heads that are joined
    without a transpose.
    """
    if not isinstance(scene.node, ast.Call) or not isinstance(function := scene.node.func, ast.Attribute):
        return
    x = scene.tensors[0]
    shape = whole_shape(scene.call, x) if scene.call and STRIDES in str(scene.error) else None
    if shape is None:
        return
    receiver, orders = scene.site.text_of(function.value), [(0, 0), *combinations(range(x.dim()), 2)]
    for i, j in orders:
        moved = x.transpose(i, j)
        if not boundaries(shape) <= boundaries(moved.shape):
            continue
        text = f"{receiver}.reshape" if i == j else f"{receiver}.transpose({i}, {j}).reshape"
        batch = i != j and i == 0
        yield _write(scene, function, text, f"write `{text}(…)`, which copies the tensor", (i != j) / 10 + batch)
        if i == j:
            return


def whole_shape(call: FailedCall, x: Tensor) -> tuple[int, ...] | None:
    """Return the shape that a view is to have, with the size that PyTorch infers; None where that is no whole one."""
    shape = wanted_shape(call)
    if shape is None or -1 not in shape:
        return shape
    rest = -prod(shape)
    return None if not rest or x.numel() % rest else tuple(x.numel() // rest if n == -1 else n for n in shape)


def boundaries(shape: Sequence[int]) -> set[int]:
    """Return the numbers of cells in which whole axes end: of `[2, 5, 8]`, 2, 10 and 80."""
    return set(accumulate(shape[:-1], mul))


def _sizes(scene: Scene) -> list[ast.expr]:
    """Return the sizes that the failed call writes out."""
    node = scene.node
    if not isinstance(node, ast.Call):
        return []
    of_torch = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "torch"
    written = items_of(node.args[of_torch and callee_name(node) in ("view", "reshape", "expand", "unflatten") :])
    return [item for item in written if not isinstance(item, ast.Starred)]


def _is_minus_one(item: ast.expr) -> bool:
    return isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub) and getattr(item.operand, "value", 0) == 1


@call_move("view", cost=1.3)
def infer_a_size(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the view with one of its sizes inferred by PyTorch, where it has another number of cells.

    A number by which another size is divided is a choice, as that of heads, and no remainder."""
    copies = isinstance(scene.node, ast.Call) and isinstance(scene.node.func, ast.Attribute)
    sizes = [] if copies and STRIDES in str(scene.error) else _sizes(scene)
    for number, item in enumerate(() if any(map(_is_minus_one, sizes)) else reversed(sizes)):
        text = scene.site.text_of(item)
        divides = any(isinstance(n, ast.BinOp) and scene.site.text_of(n.right) == text for n in sizes)
        message = f"leave this size to PyTorch: `-1` in the place of `{text}`"
        yield _write(scene, item, "-1", message, number / 100 + divides)


@call_move("view", cost=0.95)
def view_before_the_exchange(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the view that only splits axes, with two of them exchanged afterwards, where the view itself would join
    numbers of several places: heads before tokens."""
    shape = wanted_shape(scene.call) if scene.call else None
    sizes, node = _sizes(scene), scene.node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or shape is None:
        return
    whole = boundaries(scene.tensors[0].shape)
    if len(sizes) != len(shape) or -1 in shape or whole <= boundaries(shape) or STRIDES not in str(scene.error):
        return
    texts = [scene.site.text_of(item) for item in sizes]
    for i, j in combinations(range(len(shape)), 2):
        if whole <= boundaries(_exchanged(shape, i, j)):
            view = f"{scene.site.text_of(node.func)}({', '.join(_exchanged(texts, i, j))}).transpose({i}, {j})"
            yield _write(scene, node, view, f"split the axis, then exchange: `{view}`", (i == 0) + (j - i) / 10)


def _exchanged(items: Sequence[Any], i: int, j: int) -> list[Any]:
    """Return items with two of them exchanged."""
    changed = list(items)
    changed[i], changed[j] = items[j], items[i]
    return changed


@call_move("view", cost=0.6)
def leave_out_tokens(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the view of a tensor without its first or its last tokens, where those are what does not fit: a class token
    in a grid of patches."""
    node, shape = scene.node, wanted_shape(scene.call) if scene.call else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or shape is None:
        return
    x, known = scene.tensors[0], prod(size for size in shape if size != -1)
    receiver = scene.site.expression(node.func.value)
    for axis in range(1, x.dim()) if known and STRIDES not in str(scene.error) else ():
        row = x.numel() // max(1, x.shape[axis])
        for more in range(1, min(MAX_TOKENS, x.shape[axis] - 1) + 1):
            rest = x.numel() - more * row
            if rest % known or (-1 not in shape and rest != known):
                continue
            if -1 in shape and rest // known not in x.shape:
                continue
            joined = joined_lengths(scene, x, axis)
            if not joined and axis == x.dim() - 1:  # numbers of a token
                continue
            for last in (False, True):
                part = f":-{more}" if last else f"{more}:"
                text = _with_index(scene, receiver, axis, part)
                if joined and joined[-last] != more:
                    continue
                which = "last" if last else "first"
                message = f"leave out the {f'{which} {more} tokens' if more > 1 else f'{which} token'}: `{text}`"
                yield _write(scene, node.func.value, text, message, 0.5 * (not joined) + more / 20)


MAX_TOKENS = 8
"""Most tokens besides those of a grid."""


def joined_lengths(scene: Scene, x: Tensor, axis: int) -> tuple[int, ...]:
    """Return the lengths of the tensors that were joined along an axis; none where it was not joined."""
    maker, ops, length = scene.maker(x), scene.run.recording.ops, x.shape[axis]
    for _ in range(MAX_STEPS):
        if not isinstance(maker, int) or maker >= len(ops) or not ops[maker].inputs:
            return ()
        op = ops[maker]
        if op.function in ("cat", "concat", "concatenate"):
            lengths = (tuple(taken[0][place] for taken in op.inputs) for place in range(len(op.outputs[0][0])))
            return next((each for each in lengths if sum(each) == length and length not in each), ())
        maker = next((taken[2] for taken in op.inputs if length in taken[0]), "")
    return ()


def _with_index(scene: Scene, x: Expression, axis: int, part: str) -> str:
    """Return a tensor with a part of one axis as code, before its transpose where it has one."""
    node = x.node
    if (
        isinstance(node, ast.Call)
        and callee_name(node) in ("transpose", "permute")
        and isinstance(node.func, ast.Attribute)
    ):
        order = [scene.site.value(item) for item in items_of(node.args)]
        if all(type(place) is int for place in order):
            rank = scene.tensors[0].dim()
            places = list(range(rank)) if node.func.attr == "transpose" else [place % rank for place in order]
            if node.func.attr == "transpose" and len(order) == 2:
                i, j = (place % rank for place in order)
                places[i], places[j] = places[j], places[i]
            inner = scene.site.expression(node.func.value)
            rest = x.text[len(scene.site.text_of(node.func.value)) :]
            return f"{inner.atom}[{':, ' * places[axis]}{part}]{rest}"
    return f"{x.atom}[{':, ' * axis}{part}]"


@call_move("view", cost=1.1)
def write_the_sides_of_a_grid(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a grid with the sides that its tokens have, for two sizes that are written out: their formulas, or those of
    a square."""
    shape, sizes, node = wanted_shape(scene.call) if scene.call else None, _sizes(scene), scene.node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or shape is None:
        return
    x, receiver = scene.tensors[0], scene.site.expression(node.func.value).atom
    for i, kept in product(range(len(shape) - 1), dict.fromkeys((1, *x.shape))):
        others = [kept if size == -1 else size for size in (*shape[:i], *shape[i + 2 :])]
        rest = prod(others)
        if len(sizes) != len(shape) or -1 in shape[i : i + 2] or not rest or x.numel() % rest:
            continue
        cells = x.numel() // rest
        for axis in (axis for axis, size in enumerate(x.shape) if size == cells and cells not in others):
            square = f"int({receiver}.size({axis}) ** 0.5)"
            pairs = [_formula_texts(scene, x, axis), [square] * 2 if isqrt(cells) ** 2 == cells else []]
            for cost, texts in enumerate(pair for pair in pairs if len(pair) == 2):
                edits = tuple(scene.edit(item, text) for item, text in zip(sizes[i : i + 2], texts, strict=True))
                message = f"write the sides of {cells} tokens: `{', '.join(texts)}`"
                yield Candidate(message, cost / 10, edits)


def _formula_texts(scene: Scene, x: Tensor, axis: int) -> list[str]:
    """Return the factors of a size as Python, in terms of sizes in scope; none where one can't be written."""
    symbolic = scene.symbolic(x)
    formula = notation.parse(symbolic[axis]) if symbolic else None
    texts = []
    for factor in getattr(formula, "args", ()) if getattr(formula, "is_Mul", False) else ():
        text = QUOTIENT.sub(r"\1 // \2", str(factor))
        for letter in map(str, factor.free_symbols):
            known = _names_of_letter(scene, letter)
            if not known:
                return []
            text = re.sub(rf"\b{letter}\b", known, text)
        texts.append(text)
    return [] if any("floor" in text or "ceiling" in text for text in texts) else texts


QUOTIENT = re.compile(r"floor\((\w+)/(\d+)\)")
"""A size that is divided, in a formula."""


def _names_of_letter(scene: Scene, letter: str) -> str:
    """Return the text of a size of the run in scope: a variable of that name, or an axis of a tensor; "" for none."""
    variables = scene.site.frame.f_locals
    if variables.get(letter) == scene.shapes.sizes.get(letter, 0):
        return letter
    for name, value in variables.items():
        symbolic = scene.symbolic(value) if isinstance(value, Tensor) else None
        if symbolic and letter in symbolic:
            return f"{name}.size({symbolic.index(letter)})"
    return ""


@call_move("view", cost=0.9)
def pad_to_whole_windows(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the view of a tensor that is padded to a multiple of the window, where its length is divided by that and
    the rest is lost."""
    node, functional = scene.node, functional_name(scene)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not functional:
        return
    x, receiver = scene.tensors[0], scene.site.text_of(node.func.value)
    for item in _sizes(scene):
        if not isinstance(item, ast.BinOp) or not isinstance(item.op, ast.FloorDiv):
            continue
        length, window = scene.site.expression(item.left), scene.site.expression(item.right)
        if type(length.value) is not int or type(window.value) is not int or not length.value % (window.value or 1):
            continue
        for axis in (axis for axis in range(1, x.dim()) if x.shape[axis] == length.value):
            left = "0, 0, " * (x.dim() - 1 - axis)
            padded = f"{functional}.pad({receiver}, ({left}0, -{length.atom} % {window.atom}))"
            count = f"-(-{length.atom} // {window.atom})"
            edits = (scene.edit(node.func.value, padded), scene.edit(item, count))
            of_a_token = axis == x.dim() - 1 == 2  # the width, which is no length
            yield Candidate(f"pad axis {axis} to a multiple of `{window.text}`: `{padded}`", 1.5 * of_a_token, edits)


def functional_name(scene: Scene) -> str:
    """Return the name of `torch.nn.functional` in the failing file; "" where it has none."""
    names = scene.site.frame.f_globals
    known = [name for name, value in names.items() if value is torch.nn.functional]
    known += [f"{name}.functional" for name, value in names.items() if value is nn]
    known += [f"{name}.nn.functional" for name, value in names.items() if value is torch]
    return next(iter(known), "")


@call_move("norm", cost=1.2)
def norm_each_head(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a norm over each head, whose width it was built for, where that divides the width of all."""
    node, module = scene.node, scene.module
    if not isinstance(node, ast.Call) or not scene.is_module_call or len(node.args) != 1:
        return
    size = module.normalized_shape[0] if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) else 0
    if not size or len(scene.tensors[0].shape) < 2 or scene.tensors[0].shape[-1] % size:
        return
    built = construction_of(scene.run.module, scene.path)
    written = built.argument(type(module), "normalized_shape") if built else None
    quotient = isinstance(written, ast.BinOp) and isinstance(written.op, ast.FloorDiv)
    layer, x = scene.site.text_of(node.func), scene.site.expression(node.args[0])
    text = f"{layer}({x.atom}.unflatten(-1, (-1, {layer}.normalized_shape[0]))).flatten(-2)"
    yield _write(scene, node, text, f"norm each head alone: `{text}`", 0.0 if quotient else 1.4)


@call_move("gather", cost=1.0)
def take_a_row_of_each_sample(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the rows that an index of fewer axes names: one of each sample, or several with all their numbers."""
    call, node = scene.call, scene.node
    if call is None or not isinstance(node, ast.Call) or not node.args or argument(call, 1, "dim") != 1:
        return
    of_torch = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") == "torch"
    receiver = node.args[0] if of_torch or not isinstance(node.func, ast.Attribute) else node.func.value
    index = next((keyword.value for keyword in node.keywords if keyword.arg == "index"), node.args[-1])
    x, rows = scene.site.expression(receiver), scene.site.expression(index)
    ids = argument(call, 2, "index")
    if ids.dim() == 1 or (ids.dim() == 2 and ids.shape[1] == 1):
        text = f"{x.atom}[torch.arange({x.atom}.size(0)), {_without_new_axis(scene, rows, ids)}]"
        yield _write(scene, node, text, f"take one row of each sample: `{text}`")
    new = f"{rows.atom}{'[:, None, None]' if ids.dim() == 1 else '[..., None]'}"
    text = f"{new}.expand(-1, -1, {x.atom}.size(-1))"
    yield _write(scene, index, text, f"choose all numbers of a row: `{text}`", 0.2)


@call_move("gather", cost=0.8)
def gather_one_number_of_each_place(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the look-up along the last axis by an index that has a place for each row: the score of each label."""
    call, node = scene.call, scene.node
    if call is None or not isinstance(node, ast.Call) or not node.args:
        return
    x, ids = argument(call, 0, "input"), argument(call, 2, "index")
    if argument(call, 1, "dim") not in (-1, x.dim() - 1) or ids.shape != x.shape[:-1]:
        return
    index = next((keyword.value for keyword in node.keywords if keyword.arg == "index"), node.args[-1])
    text = f"{scene.site.expression(index).atom}.unsqueeze(-1)"
    yield _write(scene, index, text, f"take one number of each row: `{text}`")


def _without_new_axis(scene: Scene, index: Expression, ids: Tensor) -> str:
    """Return an index of one axis: without the axis of length 1 that the code adds, else the only column."""
    node = index.node
    if ids.dim() == 1:
        return index.text
    if isinstance(node, ast.Subscript) and scene.site.text_of(node.slice).replace(" ", "") in (":,None", "...,None"):
        return scene.site.text_of(node.value)
    if isinstance(node, ast.Call) and callee_name(node) == "unsqueeze" and isinstance(node.func, ast.Attribute):
        return scene.site.text_of(node.func.value)
    return f"{index.atom}[:, 0]"


@call_move("expand", cost=1.2)
def keep_an_axis(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the expansion without one of its axes."""
    for number, item in enumerate(_sizes(scene)):
        if not _is_minus_one(item):
            text = scene.site.text_of(item)
            yield _write(scene, item, "-1", f"keep this axis: `-1` in the place of `{text}`", number / 100)


@call_move("expand", cost=0.9)
def expand_new_axes(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the expansion of a tensor with new axes, or with a size for each of its own, where fewer are named."""
    node, shape = scene.node, wanted_shape(scene.call) if scene.call else None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or shape is None:
        return
    x, receiver, sizes = scene.tensors[0], scene.site.expression(node.func.value), _sizes(scene)
    if sizes and len(sizes) <= x.dim() and shape[-1] in (-1, x.shape[-1]):
        kept = x.dim() + 1 - len(sizes)
        texts = [*map(scene.site.text_of, sizes), *["-1"] * kept]
        text = f"{scene.site.text_of(node.func)}({', '.join(texts)})"
        yield _write(scene, node, text, f"keep all axes after a new one: `{text}`")
    for places in combinations(range(len(shape)), len(shape) - x.dim()):
        lengths = iter(x.shape)
        new = [1 if place in places else next(lengths) for place in range(len(shape))]
        if places and all(size in (1, wanted) or wanted == -1 for size, wanted in zip(new, shape, strict=True)):
            items = ["None" if place in places else ":" for place in range(len(shape))]
            text = (
                f"{receiver.atom}[{', '.join(items)}]" if len(places) > 1 else f"{receiver.atom}.unsqueeze({places[0]})"
            )
            keys = 0.0 if len(shape) - 1 not in places else 0.2
            yield _write(scene, node.func.value, text, f"add the axes: `{text}`", keys + sum(places) / 100)


@call_move("expand", cost=1.0)
def repeat_what_can_not_be_expanded(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the repetition of an axis of several places, such as heads of keys, in place of its expansion."""
    node, shape = scene.node, wanted_shape(scene.call) if scene.call else None
    x, sizes = scene.tensors[0], _sizes(scene)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or shape is None:
        return
    if len(shape) != x.dim() or len(sizes) != len(shape):
        return
    receiver = scene.site.expression(node.func.value)
    for axis, (size, wanted) in enumerate(zip(x.shape, shape, strict=True)):
        if axis and 1 < size < wanted and not wanted % size:
            times = f"{scene.site.expression(sizes[axis]).atom} // {receiver.atom}.size({axis})"
            text = f"{receiver.atom}.repeat_interleave({times}, dim={axis})"
            yield _write(scene, node, text, f"repeat each place of axis {axis}: `{text}`")
        elif axis and 1 < wanted < size:
            part = f"{receiver.atom}[{':, ' * axis}:{scene.site.text_of(sizes[axis])}]"
            yield _write(scene, node.func.value, part, f"take the first of axis {axis}: `{part}`", 0.2)


@call_move("einsum", cost=0.7)
def write_other_letters(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield other letters of an `einsum`: another order of those of one operand, or an ellipsis before them."""
    known = einsum_operands(scene.call) if scene.call else None
    arguments = scene.node.args if isinstance(scene.node, ast.Call) else []
    literal = next((a for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, str)), None)
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
        texts.append((ellipsis, f"...{letters.result}" if letters.result is not None else None, 0.5))
    for number, text in enumerate(letters.operands):
        if len(text) > LETTERS:
            continue
        for order in permutations(text):
            if (new := "".join(order)) != text and len(new) == operands[number].dim():
                changed = [*letters.operands[:number], new, *letters.operands[number + 1 :]]
                moved = sum(a != b for a, b in zip(new, text, strict=True))
                texts.append((changed, letters.result, moved / 10 + number / 100))
    for changed, result, cost in texts:
        places = letter_places(subscripts(",".join(changed)), operands).values()
        if any(len({operands[n].shape[a] for n, a in each} - {1}) > 1 for each in places):
            continue
        new = ",".join(changed) + (f"->{result}" if result is not None else "")
        yield _write(scene, literal, f"{quoted}{new}{quoted}", f"write the letters `{new}`", cost)


# Losses: the usual layouts of scores and target.


class Loss(NamedTuple):
    """A failed loss: the expressions of its scores and of its target, their tensors, and whether it is one of
    classes."""

    scores: Expression
    target: Expression
    x: Tensor
    y: Tensor
    classes: bool


def loss_of(scene: Scene, clash: Clash) -> Loss | None:
    """Return the failed loss; None for another call, and where its operands are not known."""
    call = scene.call
    if call is None or not isinstance(scene.node, (ast.Call, ast.Subscript)):
        return None
    if clash.kind == "range" and "entropy" not in call.name:
        return None
    x, y = argument(call, 0, "input"), argument(call, 1, "target")
    scores, target = _loss_operands(scene, x, y)
    if scores is None or target is None or scores is target or not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return None
    return Loss(scores, target, x, y, "entropy" in call.name or "nll" in call.name)


def _loss_operands(scene: Scene, x: Any, y: Any) -> tuple[Expression | None, Expression | None]:
    """Return the expressions of the scores and of the target of a loss."""
    operands = scene.site.operands
    by = [next((o for o in operands if o.value is value), None) for value in (x, y)]
    if None in by:
        tensors = [
            o
            for o in operands
            if o.value is not scene.module and not (isinstance(o.node, ast.Attribute) and o.text in ("F", "self.loss"))
        ]
        by = [one or other for one, other in zip(by, tensors[-2:] if len(tensors) > 1 else (None, None), strict=True)]
    return by[0], by[1]


loss_move = partial(call_move, "loss", "range")


@loss_move(cost=0.9)
def leave_out_the_last_token(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield scores without those of the last token, for labels that begin at the second."""
    if (loss := loss_of(scene, clash)) is None or not loss.classes:
        return
    scores, shift = loss.scores, "[:, :-1]"
    if (flat := _flattened(scene, scores.node)) is not None:
        if flat.tensor.value.dim() == 3:
            text = f"{flat.tensor.atom}{shift}"
            message = f"leave out the scores of the last token: `{text}`"
            yield _write(scene, flat.method, f"{text}.{flat.of_a_slice}", message)
    elif isinstance(scores.value, Tensor) and scores.value.dim() == 3:
        text = f"{scores.atom}{shift}.transpose(1, 2)"
        yield _write(scene, scores.node, text, f"leave out the scores of the last token: `{text}`", 0.05)


@loss_move(cost=0.9)
def leave_out_the_first_label(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield labels without those of the first token, for scores that end at the last but one."""
    if (loss := loss_of(scene, clash)) is None or not loss.classes:
        return
    flat = _flattened(scene, loss.target.node)
    labels = loss.target if flat is None else flat.tensor
    if not isinstance(labels.value, Tensor) or labels.value.dim() != 2:
        return
    samples, tokens = labels.value.shape
    places = (samples * (tokens - 1),) if flat is not None else (samples, tokens - 1)
    if (loss.x.shape[0], *loss.x.shape[2:]) != places:
        return
    text = f"{labels.atom}[:, 1:]"
    message = f"leave out the label of the first token: `{text}`"
    if flat is None:
        yield _write(scene, labels.node, text, message)
    else:
        yield _write(scene, flat.method, f"{text}.{flat.of_a_slice}", message)


class Flattened(NamedTuple):
    """A call that flattens a tensor: its method, as written, and the tensor before."""

    method: ast.Attribute
    tensor: Expression

    @property
    def of_a_slice(self) -> str:
        """Name of the method that flattens a slice, which no view does."""
        return self.method.attr.replace("view", "reshape")


def _flattened(scene: Scene, node: ast.AST) -> Flattened | None:
    """Return the call of a view, reshape or flatten that an expression is; None for any other."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    tensor = scene.site.expression(node.func.value)
    flattens = node.func.attr in ("view", "reshape", "flatten")
    return Flattened(node.func, tensor) if flattens and isinstance(tensor.value, Tensor) else None


def loss_layout(
    scores: str = "",
    target: str = "",
    message: str = "write {}",
    *,
    cost: float,
    when: Callable[[Loss], bool] = lambda loss: True,
) -> None:
    """Register a usual layout of scores and target as a move: what is written after each, where `{n}` is the last
    axis of the scores, and `{m}` the one before it."""

    @loss_move(cost=cost)
    def candidates(scene: Scene, clash: Clash) -> Iterator[Candidate]:
        if (loss := loss_of(scene, clash)) is None or not when(loss):
            return
        pairs = [(loss.scores, scores.format(n=loss.x.dim() - 1, m=loss.x.dim() - 2)), (loss.target, target)]
        texts = [(operand, f"{operand.atom}{suffix}") for operand, suffix in pairs if suffix]
        edits = tuple(scene.edit(operand.node, text) for operand, text in texts)
        yield Candidate(message.format(" and ".join(f"`{text}`" for _, text in texts)), edits=edits)


def _has_places(loss: Loss) -> bool:
    return loss.classes and loss.x.dim() > 2


def _has_rows(loss: Loss) -> bool:
    return loss.classes and loss.y.dim() == loss.x.dim()


def _has_one_label_of_each_sample(loss: Loss) -> bool:
    return loss.classes and loss.x.dim() == 3 and loss.y.dim() == 1 and loss.x.shape[0] == loss.y.shape[0]


loss_layout(".mean(1)", message="pool the tokens of each sample: {}", cost=0.9, when=_has_one_label_of_each_sample)
loss_layout("[:, 0]", message="take the first token: {}", cost=0.95, when=_has_one_label_of_each_sample)
loss_layout(".transpose(1, {n})", message="put the classes on axis 1: {}", cost=0.9, when=_has_places)
loss_layout(".flatten(0, {m})", ".flatten()", "count all places as samples: {}", cost=1.0, when=_has_places)
for axis in (-1, 1):
    loss_layout("", f".argmax({axis})", "take the number of the class: {}", cost=1.6, when=_has_rows)
    loss_layout("", f".squeeze({axis})", cost=1.0, when=_has_rows)
loss_layout("", "[:, 0]", cost=2.0, when=lambda loss: _has_rows(loss) and loss.x.dim() == 2)
loss_layout("", ".long()", cost=1.0, when=lambda loss: loss.classes)
loss_layout(
    "",
    " - 1",
    "count classes from 0: {}",
    cost=1.1,
    when=lambda loss: loss.classes and loss.x.dim() >= 2 and _counts_from_1(loss.y),
)
loss_layout(".squeeze(-1)", cost=1.0)
loss_layout("", ".unsqueeze(-1)", cost=1.1)
loss_layout("", ".unsqueeze(-1).float()", cost=1.3)
loss_layout(".squeeze(-1)", ".float()", cost=1.3)


@loss_move(cost=1.4)
def take_logits(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the loss of logits, in the place of that of probabilities."""
    probabilities = scene.call is not None and scene.call.name == "binary_cross_entropy"
    if probabilities and loss_of(scene, clash) and isinstance(scene.node, ast.Call):
        yield _rename_call(scene, scene.node, "binary_cross_entropy_with_logits")


# Indices that are out of range.


def _counts_from_1(value: Any) -> bool:
    """Return whether a tensor holds whole numbers above 0."""
    if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
        return False
    return bool(value.numel()) and not value.is_meta and int(value.min()) >= 1


def _index_items(scene: Scene) -> list[ast.expr]:
    """Return the items of the failed `x[…]`."""
    if not isinstance(scene.node, ast.Subscript):
        return []
    return scene.node.slice.elts if isinstance(scene.node.slice, ast.Tuple) else [scene.node.slice]


def _whole_indices(scene: Scene) -> list[tuple[int, ast.expr]]:
    """Return the items of the failed `x[…]` that are whole numbers, each with its place."""
    return [(n, item) for n, item in enumerate(_index_items(scene)) if type(scene.site.value(item)) is int]


@call_move("index", "range", cost=1.0)
def take_the_last_place(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the last place for an index that is out of range."""
    for number, item in _whole_indices(scene):
        yield _write(scene, item, "-1", "take the last place: `-1`", number / 100)


@call_move("index", "range", cost=1.2)
def count_an_index_from_0(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield an index that counts from 0."""
    for number, item in _whole_indices(scene):
        text = f"{scene.site.text_of(item)} - 1"
        yield _write(scene, item, text, f"count from 0: `{text}`", number / 100)


@call_move("index", cost=1.6)
def index_fewer_axes(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield an index without one of its items, where there are more than axes."""
    items = _index_items(scene)
    for number in range(len(items)) if len(items) > 1 and "too many indices" in str(scene.error) else ():
        kept = ", ".join(scene.site.text_of(item) for i, item in enumerate(items) if i != number)
        slices = scene.node.slice  # type: ignore[union-attr] # of a subscript, which has items
        yield _write(scene, slices, kept, f"index fewer axes: `[{kept}]`", number / 100)


@call_move("index", "range", cost=1.4)
def count_from_0(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield whole numbers that count from 0 in place of those that count from 1."""
    if isinstance(scene.node, ast.Subscript) or (isinstance(scene.node, ast.Call) and clash.kind == "range"):
        for operand in scene.site.operands:
            if _counts_from_1(operand.value):
                text = f"{operand.atom} - 1"
                yield _write(scene, operand.node, text, f"count from 0: `{text}`")


# Operands of the failed line: another order of axes, an axis more or fewer, a part, a dtype, a device.

SHAPES = tuple("product convolution join broadcast expand norm loss mask attention einsum".split())
"""The kinds of failures that another shape may repair."""
JOINS = "broadcast", "join", "mask", "attention", "product"
"""Those that tensors of one more axis, or a part of one, may repair."""
FACTORIES = frozenset("arange zeros ones full empty eye tensor randn rand linspace tril_indices triu_indices".split())
"""Functions that build a tensor from no other."""
PERMUTATIONS = {3: ("(2, 0, 1)", "(1, 2, 0)"), 4: ("(0, 3, 1, 2)", "(0, 2, 3, 1)")}
"""By the number of axes, the orders that no single exchange gives: pictures with the channels first, or last."""


class Target(NamedTuple):
    """An operand of the failed line, its text and value, and the other tensors of the line. `rank` is the number of its
    axes, and `most` the largest of the others."""

    operand: Expression
    atom: str
    value: Any
    others: list[Expression]
    rank: int
    most: int


def _operands(scene: Scene) -> list[Expression]:
    return [operand for operand in scene.operands if not isinstance(operand.value, nn.Module)]


def _targets(scene: Scene) -> Iterator[Target]:
    """Yield the operands of the failed line that are tensors, or whose value is not known."""
    operands = _operands(scene)
    for operand in operands:
        if operand.value is not UNKNOWN_SITE and not isinstance(operand.value, Tensor):
            continue
        others = [other for other in operands if other is not operand and isinstance(other.value, Tensor)]
        rank = operand.value.dim() if isinstance(operand.value, Tensor) else 3
        most = max((other.value.dim() for other in others), default=rank)
        yield Target(operand, operand.atom, operand.value, others, rank, most)


def _exchange(scene: Scene, operand: Expression, text: str, cost: float = 0.0) -> Candidate:
    return _write(scene, operand.node, text, f"write `{text}` in the place of `{operand.text}`", cost)


UNMARKED_COST = 0.4
"""What another shape of an operand costs besides that does not clash."""
Texts = Callable[[Scene, Clash, Target], Iterator[tuple[str, float]]]


def operand_move(*kinds: str, cost: float, family: str = "") -> Callable[[Texts], Texts]:
    """Register a function that yields texts in the place of an operand, with what each costs besides, as a move; one of
    a family is enough."""

    def register(texts: Texts) -> Texts:
        @move(*kinds, cost=cost, edits="operand")
        def candidates(scene: Scene, clash: Clash) -> Iterator[Candidate]:
            for target in _targets(scene):
                marked = target.value is UNKNOWN_SITE or id(target.value) in clash.axes
                more = UNMARKED_COST if clash.kind in SHAPES and not marked else 0.0
                for text, extra in texts(scene, clash, target):
                    yield replace(_exchange(scene, target.operand, text, extra + more), family=family)

        return texts

    return register


@move(cost=1.0, edits="operand")
def take_the_first_tensor(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the first tensor of a tuple, such as what a layer returns besides its state."""
    for operand in _operands(scene):
        returned = operand.value is UNKNOWN_SITE and isinstance(operand.node, ast.Call)
        if returned and "tuple" in str(scene.error):
            yield _exchange(scene, operand, f"{operand.atom}[0]")
        if isinstance(operand.value, (tuple, list)) and not isinstance(operand.node, (ast.Tuple, ast.List)):
            index = next((i for i, item in enumerate(operand.value) if isinstance(item, Tensor)), None)
            if index is not None:
                yield _exchange(scene, operand, f"{operand.atom}[{index}]")


def _is_large(scene: Scene, clash: Clash, target: Target) -> float:
    """Return what moving the axes of the larger of two tensors that are broadcast costs besides; more where the smaller
    is a table, such as a bias of heads, which has to fit what it is added to."""
    if clash.kind not in ("broadcast", "mask") or target.rank < target.most:
        return 0.0
    smaller = (other.value for other in target.others if other.value.dim() < target.rank)
    return 1.2 if any(is_table(scene, other) for other in smaller) else 0.8


def _turns_equal_axes(target: Target, i: int, j: int) -> bool:
    """Return whether an exchange of two axes turns the order of two that are equally long, such as those of queries and
    keys."""
    shape = target.value.shape[i : j + 1] if isinstance(target.value, Tensor) else ()
    return len(set(shape)) < len(shape)


@operand_move(*SHAPES, cost=1.0)
def transpose(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor with two axes exchanged. Moving the batch, the first axis, costs more."""
    atom, rank = target.atom, target.rank
    for i, j in sorted(combinations(range(rank), 2), key=lambda pair: (-pair[0], -pair[1])):
        last, batch = (i, j) == (rank - 2, rank - 1), i == 0 and rank > 2
        picture = 1.6 if clash.kind == "convolution" and rank == 4 else 0.0  # an exchange would turn it, too
        text = f"{atom}.transpose(-2, -1)" if last and rank != 3 else f"{atom}.transpose({i}, {j})"
        apart = 0.6 if j - i > 1 else 0.0  # those between would change their order, too
        apart += _turns_equal_axes(target, i, j)
        left = clash.kind == "product" and rank == 2 and clash.tensors[0] is target.value
        if left and samples(scene, target.value):
            apart = 0.6  # the product would sum over the samples
        cost = (0.0 if last else 1.0 if batch else 0.2) + apart + _is_large(scene, clash, target) + picture
        yield f"{atom}.T" if rank == 2 else text, cost


@operand_move(*SHAPES, cost=1.5)
def permute(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor with its axes in an order that no single exchange gives."""
    for order in PERMUTATIONS.get(target.rank, ()):
        yield (
            f"{target.atom}.permute{order}",
            (0.0 if order.startswith("(0") else 0.9) + _is_large(scene, clash, target),
        )


@operand_move("product", "norm", "convolution", cost=1.4)
def flatten(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor with its last axes as one; where those are all of length 1 but the first, there is no grid."""
    shape = target.value.shape if isinstance(target.value, Tensor) else ()
    for start in range(1, target.rank - 1):
        pooled = bool(shape) and set(shape[start + 1 :]) == {1}
        yield f"{target.atom}.flatten({start})", start / 10 - 0.5 * pooled


@operand_move(*JOINS, "convolution", "expand", cost=1.3)
def unsqueeze(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor with one axis more."""
    if clash.kind in JOINS and target.rank >= target.most:
        return
    closes = (
        isinstance(target.value, Tensor) and target.value.dtype == torch.bool
    )  # a mask of keys: its last axis stays
    for axis in (*range(target.rank), -1):
        yield f"{target.atom}.unsqueeze({axis})", axis / 100 + (axis < 0 and closes)


@operand_move("broadcast", "mask", cost=1.3)
def index_new_axes(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor with several axes more."""
    if target.rank == 2 and target.most == 4:
        yield f"{target.atom}[:, None, None, :]", 0.0
        yield f"{target.atom}[:, None, :, None]", 0.4
        yield f"{target.atom}[:, :, None, None]", 0.4
    if target.rank == target.most == 1 and isinstance(target.value, Tensor) and not is_table(scene, target.value):
        yield f"{target.atom}[:, None]", 0.0
    if target.rank == 1 and target.most > 2:
        yield f"{target.atom}[:, {', '.join(['None'] * (target.most - 1))}]", 0.2


@operand_move("loss", cost=1.2)
def unsqueeze_for_a_loss(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor with one axis more, at its end or after the batch."""
    yield from ((f"{target.atom}.unsqueeze(-1)", 0.0), (f"{target.atom}.unsqueeze(1)", 0.3))


@operand_move(*SHAPES, cost=1.1)
def squeeze(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor without one of its axes of length 1."""
    for axis, size in enumerate(target.value.shape if isinstance(target.value, Tensor) else ()):
        if size == 1:
            yield f"{target.atom}.squeeze({-1 if axis == target.rank - 1 else axis})", 0.0


@operand_move(*JOINS, cost=1.2, family="part")  # too short at other sizes, a table stays right at these
def take_a_part(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield the part of a table or a mask that is as long as another tensor."""
    if not isinstance(target.value, Tensor) or not is_table(scene, target.value):
        return
    for other, axis in product(target.others, range(target.rank)):
        for theirs in range(1, other.value.dim()):
            if 1 < other.value.shape[theirs] < target.value.shape[axis]:
                stop = f":{other.atom}.size({theirs})"
                yield f"{target.atom}[{', '.join([*[':'] * axis, stop])}]", abs(theirs - axis) / 10
                if axis == target.rank - 2 and target.value.shape[-1] == target.value.shape[-2]:
                    apart = abs(theirs - other.value.dim() + 2)
                    yield f"{target.atom}[..., {stop}, {stop}]", 0.2 + apart / 10


class Short(NamedTuple):
    """An axis of an operand that is shorter than that of another tensor with as many axes."""

    other: Expression
    axis: int
    size: int
    theirs: int


def _short_axes(target: Target) -> Iterator[Short]:
    if not isinstance(target.value, Tensor):
        return
    for other in target.others:
        if target.rank == other.value.dim():
            for axis, (size, theirs) in enumerate(zip(target.value.shape, other.value.shape, strict=True)):
                if size < theirs:
                    yield Short(other, axis, size, theirs)


@operand_move("join", cost=1.0)
def expand_for_a_join(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor of fewer axes with those of another, of length 1 where they are joined: a token of each sample."""
    axis = argument(scene.call, 1, "dim", 0) if scene.call is not None else 0
    if not isinstance(target.value, Tensor) or not isinstance(axis, int):
        return
    for other in (other for other in target.others if other.value.dim() == target.most > target.rank):
        new = range(target.most - target.rank)
        sizes = ["1" if place == axis % target.most else f"{other.atom}.size({place})" for place in new]
        yield f"{target.atom}.expand({', '.join([*sizes, *['-1'] * target.rank])})", 0.0


@call_move("attention", cost=0.9)
def group_the_queries(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield fused attention in which several heads of queries share those of keys and values."""
    call, node = scene.call, scene.node
    if call is None or call.name != "scaled_dot_product_attention" or not isinstance(node, ast.Call):
        return
    q, k = argument(call, 0, "query"), argument(call, 1, "key")
    if q.dim() == k.dim() == 4 and q.shape[1] > k.shape[1] and not q.shape[1] % k.shape[1]:
        edit = set_argument(scene.site.file, scene.site.lines, node, "enable_gqa", "True")
        yield Candidate("share each head of keys among several of queries: `enable_gqa=True`", edits=(edit,))


@operand_move(*JOINS, cost=1.1)
def expand(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield the expansion of an axis of 1 to that of another tensor."""
    for other, axis, size, _ in _short_axes(target):
        if size == 1:
            length = _size_text(scene, other, axis)
            sizes = [length if i == axis else "-1" for i in range(target.rank)]
            yield f"{target.atom}.expand({', '.join(sizes)})", 0.0 if is_table(scene, target.value) else 0.6


@operand_move(*JOINS, cost=1.3)
def repeat(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor repeated along an axis that another one has several times as long, each number or the whole.

    Which of them fits an axis of samples and heads depends on which come first; findings tell it.
    """
    for other, axis, size, theirs in _short_axes(target):
        if size == 1 or theirs % size:
            continue
        if axis == target.rank - 1 and axis:
            if theirs == 2 * size:
                text = double_the_width(scene, target.operand)
                yield text, 0.1 + _is_data(scene, target.value)
        elif axis == 0 or axis < target.rank - 2:
            sizes = [f"{other.atom}.size({axis}) // {target.atom}.size({axis})"]
            parts = _parts_of_axis(scene, other.value, axis)
            more = _is_data(scene, target.value) if clash.kind == "broadcast" and parts is None else 0.0
            for number, times in enumerate(_names_of_times(scene, target.value, other.value, axis) or sizes):
                if parts is None or parts[0] == size:
                    yield f"{target.atom}.repeat_interleave({times}, dim={axis})", number / 50 + more
                if axis == 0 and (parts is None or parts[1] == size):
                    yield f"{target.atom}.repeat({times}{', 1' * (target.rank - 1)})", 0.01 + number / 50 + more


def double_the_width(scene: Scene, x: Expression) -> str:
    """Return a tensor of twice the width as code: each number twice where the failed line turns neighbours, such as
    those of `x[..., ::2]` and `x[..., 1::2]`, else the whole after itself."""
    if _turns_neighbours(scene):
        return f"{x.atom}.repeat_interleave(2, dim=-1)"
    return f"torch.cat([{x.text}] * 2, dim=-1)"


def _turns_neighbours(scene: Scene) -> bool:
    """Return whether the failed line, or a function of the file that it calls, takes each second number of an axis."""
    site = scene.site
    called = {callee_name(call) for call in site.nodes_of_line(ast.Call)}
    functions = [function for function in site.nodes(ast.FunctionDef) if function.name in called]
    nodes = [*site.nodes_of_line(ast.Slice), *(n for function in functions for n in ast.walk(function))]
    return any(isinstance(n, ast.Slice) and getattr(n.step, "value", None) == 2 for n in nodes)


def _parts_of_axis(scene: Scene, tensor: Tensor, axis: int) -> tuple[int, int] | None:
    """Return the lengths of the two axes that a view joined to one, the outer first; None where none did."""
    maker, ops, size = scene.maker(tensor), scene.run.recording.ops, tensor.shape[axis]
    for _ in range(MAX_STEPS):
        if not isinstance(maker, int) or maker >= len(ops):
            return None
        for shape, _, before in ops[maker].inputs:
            if (length := shape[axis : axis + 1]) == (size,):
                maker = before
                break
            if len(shape) > axis + 1 and length and length[0] * shape[axis + 1] == size:
                return length[0], shape[axis + 1]
        else:
            return None
    return None


MAX_STEPS = 12
"""Most ops between a tensor and the view that joined two of its axes."""


def _size_text(scene: Scene, other: Expression, axis: int) -> str:
    """Return the size of an axis as code: of a variable with the same symbol where the operand itself is no name."""
    symbol = scene.formula(other.value, axis)
    if not isinstance(other.node, (ast.Name, ast.Attribute)) and symbol.isidentifier():
        return _names_of_letter(scene, symbol) or f"{other.atom}.size({axis})"
    return f"{other.atom}.size({axis})"


def _is_data(scene: Scene, tensor: Tensor) -> float:
    """Return what repeating the numbers of a tensor that was computed from an input costs besides."""
    return 0.0 if is_table(scene, tensor) else 1.0


def _names_of_times(scene: Scene, tensor: Tensor, other: Tensor, axis: int) -> list[str]:
    """Return the names in scope of how often an axis is repeated: of its symbol, or of a number that is no symbol."""
    ratio = str(notation.parse(scene.formula(other, axis)) / notation.parse(scene.formula(tensor, axis)))
    times = other.shape[axis] // tensor.shape[axis]
    names = names_of(scene, times) if times != tensor.shape[axis] else []  # else a name may be that of the axis
    if ratio.isdecimal():
        return [name for name in names if name not in scene.shapes.sizes]
    return [name for name in names if name == ratio]


def names_of(scene: Scene, number: int) -> list[str]:
    """Return the names in scope of a whole number: variables, and attributes of the running module."""
    variables = scene.site.frame.f_locals
    names = [name for name, value in variables.items() if type(value) is int and value == number]
    own = vars(variables["self"]).items() if isinstance(variables.get("self"), nn.Module) else ()
    return [*names, *(f"self.{name}" for name, value in own if type(value) is int and value == number)]


@operand_move("broadcast", "join", cost=1.9)
def crop(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor cut to the lengths of another where it is a little longer: a picture of odd sides, or more tokens
    than a table has rows."""
    if not isinstance(value := target.value, Tensor) or is_table(scene, value):
        return
    axes = {axis % target.rank for axis in clash.axes.get(id(value), ())}
    for other in target.others:
        offset = target.rank - other.value.dim()
        sizes = {axis: other.value.shape[axis - offset] for axis in axes if axis >= max(1, offset)}
        if axes and len(sizes) == len(axes) and all(1 < n < value.shape[axis] < 2 * n for axis, n in sizes.items()):
            stops = [f":{other.atom}.size({axis - offset})" if axis in axes else ":" for axis in range(max(axes) + 1)]
            yield f"{target.atom}[{', '.join(stops)}]", 0.3 * is_table(scene, other.value)


@operand_move("broadcast", "join", "product", "norm", cost=1.2)
def flatten_a_grid(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield the places of a picture of channels as tokens, for what has one row for each."""
    if isinstance(target.value, Tensor) and target.rank >= 4:
        yield f"{target.atom}.flatten(2).transpose(1, 2)", 0.0


@operand_move("dtype", cost=1.0)
def cast(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor in the dtype of another, of the parameter, or in a usual one."""
    atom, value = target.atom, target.value
    flags = isinstance(value, Tensor) and are_flags(value)
    for other in target.others:
        if isinstance(value, Tensor) and value.dtype == other.value.dtype:
            continue
        yield f"{atom}.to({other.atom}.dtype)", ((isinstance(value, Tensor) and value.is_floating_point()) or flags) / 2
    if isinstance(value, Tensor) and not value.is_floating_point():
        yield f"{atom}.float()", 0.1
        if value.dtype not in (torch.int64, torch.bool):
            yield f"{atom}.long()", 0.15  # numbers of classes, or of rows
    else:
        yield from ((f"{atom}.long()", 0.1), (f"{atom}.float()", 0.2))
    if path := _parameter_path(scene):
        yield f"{atom}.to(self.{path}.dtype)", 0.3
    if not (isinstance(target.operand.node, ast.UnaryOp) and isinstance(target.operand.node.op, ast.Invert)):
        yield f"{atom}.bool()", 0.0 if flags else 0.6  # of ~1 = -2, it would be True


def are_flags(value: Tensor) -> bool:
    """Return whether whole numbers are 0 and 1 alone, as those of a mask: as floats, they would be numbers to add."""
    whole = not value.is_floating_point() and not value.is_complex() and not value.is_meta
    return whole and bool(((value == 0) | (value == 1)).all())


@operand_move("device", cost=1.0)
def move_to_the_device(scene: Scene, clash: Clash, target: Target) -> Iterator[tuple[str, float]]:
    """Yield a tensor on the device of another, or of the parameter."""
    cost = 0.0 if isinstance(target.value, Tensor) and is_table(scene, target.value) else 1.5
    yield from ((f"{target.atom}.to({other.atom}.device)", cost) for other in target.others)
    if path := _parameter_path(scene):
        yield f"{target.atom}.to(self.{path}.device)", cost + 0.5


@move("product", cost=2.5, edits="operand")
def exchange_factors(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the product the other way round."""
    node, operands = scene.site.node, _operands(scene)
    if isinstance(node, ast.BinOp) and len(operands) == 2:
        left, right = operands
        text = f"{right.atom} {'@' if isinstance(node.op, ast.MatMult) else '*'} {left.atom}"
        yield _write(scene, node, text, f"exchange the factors: `{text}`")


@move("product", "broadcast", cost=1.2, edits="operand")
def exchange_queries_and_keys(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the product that computed an operand with its two tensors exchanged, as scores of queries by keys."""
    site = scene.site
    names = {name.id for operand in _operands(scene) for name in ast.walk(operand.node) if isinstance(name, ast.Name)}
    for line in filter(None, map(site.last_assignment, sorted(names))):
        for node in ast.walk(line.value):
            factors = _factors(node)
            inside = [[n for n in ast.walk(factor) if _is_tensor_name(scene, n)] for factor in factors]
            ids = [{n.id for n in names} for names in inside]  # type: ignore[attr-defined] # of names
            if len(ids) != 2 or any(len(each) != 1 for each in ids) or ids[0] == ids[1]:
                continue
            (first,), (second,) = ids
            edits = (*(scene.edit(n, second) for n in inside[0]), *(scene.edit(n, first) for n in inside[1]))
            yield Candidate(f"exchange `{first}` and `{second}` in `{site.text_of(node)}`", 0.0, edits)


def _factors(node: ast.AST) -> list[ast.expr]:
    """Return the factors of a product of matrices, none of another expression."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return [node.left, node.right]
    if isinstance(node, ast.Call) and callee_name(node) in ("matmul", "bmm"):
        method = isinstance(node.func, ast.Attribute) and getattr(node.func.value, "id", "") != "torch"
        return [*([node.func.value] if method and isinstance(node.func, ast.Attribute) else []), *node.args]
    return []


def _is_tensor_name(scene: Scene, node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(scene.site.frame.f_locals.get(node.id), Tensor)


@move("broadcast", "product", "attention", cost=1.5, edits="operand")
def repeat_where_it_is_assigned(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a tensor of twice the width in the line that assigned it, so that all lines after it read that one."""
    site, operands = scene.site, _operands(scene)
    waiting = [(inner, 0) for operand in operands for inner in ast.walk(operand.node)]
    visited = set[str]()
    while waiting:
        node, steps = waiting.pop(0)
        if not isinstance(node, ast.Name) or node.id in visited:
            continue
        visited.add(node.id)
        value, assigned = site.value(node), assigned_value(site, node.id)
        if assigned is None or not isinstance(value, Tensor) or not value.dim():
            continue
        waiting += [(inner, steps + 1) for inner in ast.walk(assigned)]  # cosines and sines are those of one angle
        widths = {other.value.shape[-1] for other in operands if isinstance(other.value, Tensor) and other.value.dim()}
        if 2 * value.shape[-1] in widths:
            before = Expression(assigned, site.text_of(assigned), value)
            yield _exchange(scene, before, double_the_width(scene, before), _is_data(scene, value) + steps / 20)


@move("broadcast", cost=1.25, edits="operand")
def add_an_axis_where_it_is_assigned(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a table with an axis of 1 more in the line that assigned it, so that all lines after it read that one:
    angles of tokens beside heads."""
    site = scene.site
    for operand in _operands(scene):
        for inner in ast.walk(operand.node):
            value = site.value(inner) if isinstance(inner, ast.Name) else None
            if not isinstance(value, Tensor) or not is_table(scene, value) or not isinstance(inner, ast.Name):
                continue
            assigned = assigned_value(site, inner.id)
            more = max((other.value.dim() for other in _operands(scene) if isinstance(other.value, Tensor)), default=0)
            if assigned is None or not 1 < value.dim() < more:
                continue
            for axis in range(1, value.dim()):
                text = f"{site.expression(assigned).atom}.unsqueeze({axis})"
                yield _exchange(scene, Expression(assigned, site.text_of(assigned), value), text, axis / 100)


def assigned_value(site: FailureSite, name: str) -> ast.expr | None:
    """Return what the last line before the failed one assigns to a name alone, or to one of several."""
    function = site.function
    pairs = assignments(function) if function is not None else iter(())
    values = [v for target, v in pairs if getattr(target, "id", "") == name and v.lineno < site.line]
    return max(values, key=lambda value: (value.lineno, value.col_offset), default=None)


@move("device", cost=0.9, edits="operand")
def build_on_the_device(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the repair of a tensor that was built on another device, in the line that builds it."""
    site, operands = scene.site, _operands(scene)
    for operand in operands:
        maker = scene.maker(operand.value) if isinstance(operand.value, Tensor) else ""
        if not isinstance(maker, int) or not is_table(scene, operand.value):
            continue
        line = scene.run.recording.ops[maker].line
        others = [
            other
            for other in operands
            if isinstance(other.value, Tensor) and other.value.device != operand.value.device
        ]
        if line is None or line[0] != site.file:
            continue
        for node in site.nodes(ast.Call):
            if node.lineno == line[1] and site.text_of(node.func).rpartition(".")[2] in FACTORIES:
                for other in others[:1]:
                    edit = set_argument(site.file, site.lines, node, "device", f"{other.atom}.device")
                    yield Candidate(f"build `{operand.text}` on the device of `{other.text}`", edits=(edit,))


def samples(scene: Scene, tensor: Tensor) -> bool:
    """Return whether axis 0 of a tensor is that of the samples of the first input."""
    inputs = scene.run.recording.inputs.values()
    size = next((x.shape[0] for x in inputs if x.dim()), 0)
    return not is_table(scene, tensor) and tensor.shape[0] == size


def is_table(scene: Scene, tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter or a buffer, or was not computed from one of the inputs."""
    return table_from(scene, scene.maker(tensor))


def table_from(scene: Scene, maker: int | str) -> bool:
    """Return whether what an op computed, or a named tensor, was computed from none of the inputs."""
    ops = scene.run.recording.ops
    waiting, seen = [maker], set[int]()
    while waiting:
        maker = waiting.pop()
        if isinstance(maker, str):
            if maker.startswith("input "):
                return False
        elif maker not in seen and maker < len(ops):
            seen.add(maker)
            waiting += [tensor[2] for tensor in ops[maker].inputs]
    return True


def _parameter_path(scene: Scene) -> str:
    """Return the name by which the running module reads a parameter of the module that failed."""
    holder = scene.site.modules[scene.site.own - 1] if scene.site.own else None
    if holder is None or scene.module is None:
        return ""
    names = {id(parameter): name for name, parameter in holder.named_parameters()}
    parameter = next(iter(scene.module.parameters()), None)
    path = names.get(id(parameter), "")
    return "" if any(part.isdigit() for part in path.split(".")) else path
