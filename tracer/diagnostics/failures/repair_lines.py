"""Moves that repair a line before the failed one: the order in which it unpacks, or how it differs from a line that
begins alike."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial
from itertools import permutations

from torch import Tensor

from tracer.diagnostics.failures.alike_lines import rename, renames, suffixes
from tracer.diagnostics.failures.explanation import assignments
from tracer.diagnostics.failures.failure_site import UNKNOWN_SITE, source_text
from tracer.diagnostics.failures.trials import Candidate, Clash, Scene, move

MAX_NAMES = 4
"""Most names of an unpacking whose orders are tried."""
USUAL_ORDERS = "qkv", "bhtd", "bhsd", "bhnd", "bhld", "btd", "bsd", "bnd", "bld", "btc", "bnc", "bchw", "hc"
"""The usual orders of what is unpacked, by the first letters of the names."""
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
