"""Moves that repair a line before the failed one: the order in which it unpacks, how it differs from a line that begins
alike, the tensor whose length it reads, or the table that changes the dtype of what it is added to."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import partial
from itertools import permutations

from torch import Tensor

from tracer.diagnostics.failures.alike_lines import rename, renames, suffixes
from tracer.diagnostics.failures.explanation import assignments
from tracer.diagnostics.failures.failure_site import (
    UNKNOWN_SITE,
    Expression,
    callee_name,
    nodes_of,
    source_text,
    tree_of,
)
from tracer.diagnostics.failures.repair_calls import MAX_STEPS, table_from
from tracer.diagnostics.failures.trials import Candidate, Clash, Scene, move
from tracer.utils.files import edit_node

MAX_NAMES = 4
"""Most names of an unpacking whose orders are tried."""
USUAL_ORDERS = "qkv", "bhtd", "bhsd", "bhnd", "bhld", "btd", "bsd", "bnd", "bld", "btc", "bnc", "bchw", "hc"
"""Usual orders of what is unpacked, by the first letters of the names."""
SHAPES = "view", "product", "broadcast", "attention", "join", "norm", "mask", "expand", "einsum", "convolution"

MAX_AXES = 5
"""Most axes of a tensor that a function returned and a line unpacks."""

line_move = partial(move, edits="operand")


def _is_usual(names: tuple[str, ...]) -> bool:
    letters = "".join(name.lower().lstrip("_")[:1] for name in names)
    return any(_is_part(letters, order) for order in USUAL_ORDERS)


def _is_part(letters: str, order: str) -> bool:
    """Return whether letters stand in an order, of which some may be left out."""
    rest = iter(order)
    return all(letter in rest for letter in letters)


@line_move(*SHAPES, cost=0.7)
def unpack_in_another_order(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the names that a line unpacks in another order; the usual one, such as queries, keys and values, first."""
    site = scene.site
    for line in site.nodes(ast.Assign):
        target = line.targets[0]
        if not site.code.co_firstlineno <= line.lineno <= site.line or not isinstance(target, ast.Tuple):
            continue
        names = tuple(node.id for node in target.elts if isinstance(node, ast.Name))
        if len(names) != len(target.elts) or not 1 < len(set(names)) == len(names) <= MAX_NAMES:
            continue
        if isinstance(line.value, ast.Tuple) or "_" in names:
            continue
        for order in list(permutations(names))[1:]:
            moved = sum(a != b for a, b in zip(order, names, strict=True))
            unusual = 0.5 * (not _is_usual(order)) + 0.8 * _is_usual(names)
            edits = tuple(scene.edit(n, new) for n, new in zip(target.elts, order, strict=True))
            yield Candidate(f"unpack in the order `{', '.join(order)}`", unusual + moved / 20, edits)


@line_move(cost=1.0)
def unpack_along_another_axis(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the tensor that a line unpacks taken apart along an axis that has as many places as there are names."""
    if not isinstance(scene.error, ValueError) or "values to unpack" not in str(scene.error):
        return
    for line in scene.site.nodes_of_line(ast.Assign):
        x, count = scene.site.expression(line.value), len(getattr(line.targets[0], "elts", ()))
        if not isinstance(x.value, Tensor) and x.value is not UNKNOWN_SITE:
            continue
        axes = range(1, x.value.dim() if isinstance(x.value, Tensor) else MAX_AXES)
        for axis in (axis for axis in axes if not isinstance(x.value, Tensor) or x.value.shape[axis] == count):
            text = f"{x.atom}.unbind({axis})"
            yield Candidate(f"unpack along axis {axis}: `{text}`", axis / 100, (scene.edit(line.value, text),))


@line_move(*SHAPES, cost=0.8)
def write_as_the_line_like_it(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield an operand's line that goes on as another that begins alike: keys with the transpose of queries."""
    site, lines = scene.site, scene.site.lines
    function = site.function
    if function is None:
        return
    pairs = [(target.id, value) for target, value in assignments(function) if isinstance(target, ast.Name)]
    read = {n.id for operand in scene.operands for n in ast.walk(operand.node) if isinstance(n, ast.Name)}
    read |= {name for name, value in pairs if value.lineno == site.line}
    for name, value in pairs:
        if name not in read or value.lineno > site.line:
            continue
        for other, theirs in pairs:
            text = _in_the_manner_of(lines, (name, value), (other, theirs)) if other != name else ""
            if text:
                shorter = 0.8 * source_text(lines, value).startswith(text)
                wrong = (
                    isinstance(site.frame.f_locals.get(name), Tensor) and id(site.frame.f_locals[name]) in clash.axes
                )
                message = f"write the line of `{name}` as that of `{other}`: `{text}`"
                yield Candidate(message, shorter + 0.1 * (not wrong), (scene.edit(value, text),))


def _in_the_manner_of(lines: list[str], mine: tuple[str, ast.expr], theirs: tuple[str, ast.expr]) -> str:
    """Return the value of a line that begins like another and goes on like it; "" where the two do not begin alike, or
    are alike."""
    if renames(theirs[1], mine[1]) is not None:
        return ""
    for begin, mine_rest in suffixes(lines, mine[1]):
        for other, rest in suffixes(lines, theirs[1]):
            names = renames(other, begin)
            if isinstance(begin, ast.Name) and begin.id != mine[0]:  # it may be that of a package or of the module
                continue
            if names is None or names.get(theirs[0], mine[0]) != mine[0]:
                continue
            if mine_rest and mine_rest.partition("(")[0] != rest.partition("(")[0]:
                continue
            changed = {a: b for a, b in names.items() if a != b} | {theirs[0]: mine[0]}
            return source_text(lines, begin) + rename(rest, changed)
    return ""


@line_move("mask", "broadcast", "view", "expand", "attention", "product", "join", cost=0.7)
def read_the_length_of_another_tensor(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a line that the failed one depends on, with the length of another tensor that has as many axes: a mask of
    the tokens that go in, in the place of all of them."""
    site, tensors = scene.site, scene.site.frame.f_locals
    wanted = {size for tensor in scene.tensors for size in tensor.shape}
    for line in _lines_behind(scene):
        for name in dict.fromkeys(name for name, _ in _lengths(line)):
            read = [(node, axis) for node, axis in _lengths(line) if node.id == name.id]
            value = tensors.get(name.id)
            for other, new in tensors.items():
                if not isinstance(value, Tensor) or not isinstance(new, Tensor) or new.dim() != value.dim():
                    continue
                axes = {axis for _, axis in read if -value.dim() <= axis < value.dim()}
                if not any(new.shape[axis] != value.shape[axis] and new.shape[axis] in wanted for axis in axes):
                    continue
                if not _is_assigned_before(scene, other, line):
                    continue
                edits = tuple(dict.fromkeys(scene.edit(node, other) for node, _ in read))
                part = (found := site.last_assignment(other)) is not None and name.id in _names_in(found.value)
                message = f"read the length of `{other}` in the place of that of `{name.id}`"
                yield Candidate(message, 0.4 * (not part), edits)


def _lines_behind(scene: Scene) -> Iterator[ast.stmt | ast.expr]:
    """Yield the failed expression and the assignments that its operands are computed from, the nearest first."""
    if isinstance(scene.node, ast.expr):
        yield scene.node
    waiting = [name for operand in scene.operands for name in _names_in(operand.node)]
    visited = set[str]()
    while waiting:
        name = waiting.pop(0)
        line = scene.site.last_assignment(name) if name not in visited else None
        visited.add(name)
        if line is not None:
            yield line
            waiting += _names_in(line.value)


def _names_in(node: ast.AST) -> list[str]:
    return [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]


def _lengths(line: ast.AST) -> list[tuple[ast.Name, int]]:
    """Return the tensors whose lengths a line reads, `x.size(1)`, `x.shape[1]` or `len(x)`, each with the axis."""
    found: list[tuple[ast.Name, int]] = []
    for node in ast.walk(line):
        x: ast.expr | None = None
        axis: ast.expr | None = None
        if isinstance(node, ast.Call) and callee_name(node) == "size" and isinstance(node.func, ast.Attribute):
            x, axis = node.func.value, node.args[0] if len(node.args) == 1 else None
        elif isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "shape":
            x, axis = getattr(node.value, "value", None), node.slice
        elif isinstance(node, ast.Call) and callee_name(node) == "len" and len(node.args) == 1:
            x, axis = node.args[0], ast.Constant(0)
        if isinstance(x, ast.Name) and axis is not None:
            try:
                place = ast.literal_eval(axis)
            except ValueError:  # an axis that is computed
                continue
            if type(place) is int:
                found.append((x, place))
    return found


def _is_assigned_before(scene: Scene, name: str, line: ast.stmt | ast.expr) -> bool:
    """Return whether a variable had its value before a line: it is an argument, or was assigned once, above it."""
    lines = [n for n in scene.site.nodes(ast.Assign) if name in map(_id, _targets_of(n))]
    lines = [n for n in lines if scene.site.code.co_firstlineno <= n.lineno <= scene.site.line]
    return all(n.lineno < line.lineno for n in lines)


def _targets_of(line: ast.Assign) -> list[ast.AST]:
    return [inner for target in line.targets for inner in ast.walk(target)]


def _id(node: ast.AST) -> str:
    return getattr(node, "id", "")


@line_move("dtype", cost=0.8)
def cast_where_a_table_changes_the_dtype(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a table in the dtype of what it meets, where the sum of both has another dtype than that had: all lines
    after it, such as a residual sum, then have the one that their layers have."""
    ops, kinds = scene.run.recording.ops, {tensor.dtype for tensor in scene.tensors}
    for tensor in scene.tensors:
        maker = scene.maker(tensor)
        for _ in range(MAX_STEPS):
            if not isinstance(maker, int) or maker >= len(ops):
                break
            op = ops[maker]
            floats = [taken for taken in op.inputs if taken[1].is_floating_point]
            other = next((taken for taken in floats if taken[1] in kinds - {tensor.dtype}), None)
            wide = [number for number, taken in enumerate(op.inputs) if taken[1] == tensor.dtype]
            if other is None:
                maker = op.inputs[wide[0]][2] if wide else ""
                continue
            if op.frame and all(table_from(scene, op.inputs[number][2]) for number in wide):
                yield from _cast(op.frame, wide, op.inputs.index(other), len(op.inputs))
            break


def _cast(frame: tuple[str, tuple[int, int, int, int]], wide: list[int], other: int, count: int) -> Iterator[Candidate]:
    """Yield a line with some operands of an operator, or some tensors of a join, in the dtype of another one."""
    file, span = frame
    lines = linecache.getlines(file)
    tree = tree_of(lines)
    for node in nodes_of(tree) if tree is not None else ():
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], (ast.List, ast.Tuple)):
            parts = node.args[0].elts
        if len(parts) != count or (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) != span:  # type: ignore[attr-defined] # of an expression
            continue
        atoms = [Expression(part, source_text(lines, part)).atom for part in parts]
        texts = {place: f"{atoms[place]}.to({atoms[other]}.dtype)" for place in wide}
        edits = tuple(edit_node(file, lines, parts[place], text) for place, text in texts.items())
        yield Candidate(f"write the table in the dtype of what it meets: `{', '.join(texts.values())}`", edits=edits)
