"""Repairs of an operand in the failed line: another order of its axes, an axis more or fewer, a part of it, a dtype."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import combinations

import torch
from torch import Tensor, nn

from tracer.diagnostics.failures.failure_site import UNKNOWN, Expression
from tracer.diagnostics.failures.scene import Clash, Scene
from tracer.diagnostics.failures.source_edits import edit_node, edit_span
from tracer.diagnostics.failures.trials import Candidate

SHAPES = frozenset("product convolution join broadcast expand norm loss mask attention einsum".split())
"""The kinds of failures that another shape may repair."""
FACTORIES = frozenset("arange zeros ones full empty eye tensor randn rand linspace tril_indices triu_indices".split())
"""Functions that build a tensor from no other."""
PERMUTATIONS = {3: ("(2, 0, 1)", "(1, 2, 0)"), 4: ("(0, 3, 1, 2)", "(0, 2, 3, 1)")}
"""By the number of axes, the orders that no single exchange gives: pictures with the channels first, or last."""


def operand_repairs(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield repairs of each operand of the failed line."""
    operands = [each for each in scene.site.operands if not isinstance(each.value, nn.Module)]
    for operand in operands:
        others = [other for other in operands if other is not operand]
        for text, cost in _variants(scene, clash, operand, others):
            yield _candidate(scene, operand, text, cost)
    if clash.kind == "device":
        yield from _factories(scene, operands)
    if clash.kind in ("broadcast", "product", "attention"):
        yield from _of_assignments(scene, operands)
    if clash.kind == "product" and isinstance(scene.site.node, ast.BinOp) and len(operands) == 2:
        left, right = operands
        text = f"{right.atom} {'@' if isinstance(scene.site.node.op, ast.MatMult) else '*'} {left.atom}"
        edit = edit_node(scene.site.file, scene.site.lines, scene.site.node, text)
        yield Candidate(f"exchange the factors: `{text}`", 2.5, (edit,))


def _of_assignments(scene: Scene, operands: list[Expression]) -> Iterator[Candidate]:
    """Yield repairs of a tensor in the line that assigned it, so that all lines after it read the repaired one."""
    site = scene.site
    if site.tree is None:
        return
    names = {
        inner.id: site.value(inner)
        for operand in operands
        for inner in ast.walk(operand.node)
        if isinstance(inner, ast.Name) and isinstance(site.value(inner), Tensor)
    }
    for name, value in names.items():
        lines = [
            node
            for node in ast.walk(site.tree)
            if isinstance(node, ast.Assign)
            and site.code.co_firstlineno < node.lineno < site.line
            and [getattr(target, "id", "") for target in node.targets] == [name]
        ]
        if not lines:
            continue
        node = max(lines, key=lambda line: line.lineno).value
        before = Expression(node, site.text_of(node), value)
        for other in operands:
            wanted = other.value
            if not isinstance(wanted, Tensor) or not wanted.dim() or not value.dim():
                continue
            if wanted.shape[-1] == 2 * value.shape[-1]:
                text = f"torch.cat([{before.text}] * 2, dim=-1)"
                yield _candidate(scene, before, text, 1.5)


def _factories(scene: Scene, operands: list[Expression]) -> Iterator[Candidate]:
    """Yield the repair of a tensor that was built on another device, in the line that builds it."""
    site = scene.site
    for operand in operands:
        maker = scene.maker(operand.value) if isinstance(operand.value, Tensor) else ""
        if not isinstance(maker, int) or not _is_table(scene, operand.value):
            continue
        line = scene.run.recording.ops[maker].line
        others = [
            other
            for other in operands
            if isinstance(other.value, Tensor) and other.value.device != operand.value.device
        ]
        if line is None or line[0] != site.file or site.tree is None:
            continue
        for node in ast.walk(site.tree):
            if (
                isinstance(node, ast.Call)
                and node.lineno == line[1]
                and site.text_of(node.func).rpartition(".")[2] in FACTORIES
            ):
                for other in others[:1]:
                    text = f"device={other.atom}.device"
                    keyword = next((k for k in node.keywords if k.arg == "device"), None)
                    end = (node.end_lineno or node.lineno, (node.end_col_offset or 1) - 1)
                    edit = (
                        edit_node(site.file, site.lines, keyword, text)
                        if keyword
                        else edit_span(site.file, site.lines, end, end, f", {text}")
                    )
                    yield Candidate(f"build `{operand.text}` on the device of `{other.text}`", 0.9, (edit,))


def _candidate(scene: Scene, operand: Expression, text: str, cost: float) -> Candidate:
    edit = edit_node(scene.site.file, scene.site.lines, operand.node, text)
    return Candidate(f"write `{text}` in the place of `{operand.text}`", cost, (edit,))


def _variants(scene: Scene, clash: Clash, operand: Expression, others: list[Expression]) -> Iterator[tuple[str, float]]:
    """Yield texts that may replace an operand, with their costs."""
    value, atom = operand.value, operand.atom
    if isinstance(value, (tuple, list)) and any(isinstance(item, Tensor) for item in value):
        first = next(index for index, item in enumerate(value) if isinstance(item, Tensor))
        yield f"{atom}[{first}]", 1.0
        return
    if value is not UNKNOWN and not isinstance(value, Tensor):
        return
    tensors = [other for other in others if isinstance(other.value, Tensor)]
    if clash.kind == "dtype":
        yield from _dtypes(scene, operand, tensors)
        return
    if clash.kind == "device":
        cost = 1.0 if isinstance(value, Tensor) and _is_table(scene, value) else 2.5
        yield from ((f"{atom}.to({other.atom}.device)", cost) for other in tensors)
        if path := _parameter_path(scene):
            yield f"{atom}.to(self.{path}.device)", cost + 0.5
        return
    if clash.kind not in SHAPES:
        return
    marked = isinstance(value, Tensor) and id(value) in clash.axes
    extra = 0.0 if marked or value is UNKNOWN else 0.4
    rank = value.dim() if isinstance(value, Tensor) else 3
    most = max((other.value.dim() for other in tensors), default=rank)  # type: ignore[union-attr] # tensors
    yield from ((text, cost + extra) for text, cost in _layouts(atom, value, rank, most, clash.kind))
    if clash.kind in ("broadcast", "join", "mask", "product", "attention"):
        for other in tensors:
            yield from ((text, cost + extra) for text, cost in _parts(scene, atom, value, other))


def _layouts(atom: str, value: object, rank: int, most: int, kind: str) -> Iterator[tuple[str, float]]:
    """Yield a tensor with its axes in another order, with one axis more, with fewer. Moving the batch, the first axis,
    costs more, and so does moving the axes of the larger of two tensors that are broadcast."""
    large = 0.8 if kind in ("broadcast", "mask") and rank >= most else 0.0
    for i, j in sorted(combinations(range(rank), 2), key=lambda pair: (-pair[0], -pair[1])):
        last, batch = (i, j) == (rank - 2, rank - 1), i == 0 and rank > 2
        picture = 1.6 if kind == "convolution" and rank == 4 else 0.0  # an exchange would turn it, too
        text = f"{atom}.transpose(-2, -1)" if last and rank != 3 else f"{atom}.transpose({i}, {j})"
        yield f"{atom}.T" if rank == 2 else text, (1.0 if last else 2.0 if batch else 1.2) + large + picture
    for order in PERMUTATIONS.get(rank, ()):
        yield f"{atom}.permute{order}", (1.5 if order.startswith("(0") else 2.4) + large
    if kind in ("product", "norm", "convolution"):
        yield from ((f"{atom}.flatten({start})", 1.4 + start / 10) for start in range(1, rank - 1))
    joins = kind in ("broadcast", "join", "mask", "attention", "product") and rank < most
    if joins or kind in ("convolution", "expand"):
        closes = isinstance(value, Tensor) and value.dtype == torch.bool  # a mask of keys: its last axis stays
        yield from (
            (f"{atom}.unsqueeze({axis})", 1.3 + axis / 100 + (axis < 0 and closes)) for axis in (*range(rank), -1)
        )
    if kind in ("broadcast", "mask") and rank < most:
        if rank == 2 and most == 4:
            yield from ((f"{atom}[:, None, None, :]", 1.3), (f"{atom}[:, None, :, None]", 1.7))
            yield from ((f"{atom}[:, :, None, None]", 1.7),)
        if rank == 1 and most > 2:
            yield f"{atom}[:, {', '.join(['None'] * (most - 1))}]", 1.5
    if kind == "loss":
        yield from ((f"{atom}.unsqueeze(-1)", 1.2), (f"{atom}.unsqueeze(1)", 1.5))
    if isinstance(value, Tensor):
        ones = [axis for axis in range(rank) if value.shape[axis] == 1]
        yield from ((f"{atom}.squeeze({-1 if axis == rank - 1 else axis})", 1.1) for axis in ones)


def _parts(scene: Scene, atom: str, value: object, other: Expression) -> Iterator[tuple[str, float]]:
    """Yield the part of a table or a mask that is as long as another tensor, and the expansion of an axis of 1."""
    if not isinstance(value, Tensor) or not isinstance(other.value, Tensor):
        return
    for axis in range(value.dim() if _is_table(scene, value) else 0):
        for theirs in range(1, other.value.dim()):
            if 1 < other.value.shape[theirs] < value.shape[axis]:
                stop = f":{other.atom}.size({theirs})"
                yield f"{atom}[{', '.join([*[':'] * axis, stop])}]", 1.2 + abs(theirs - axis) / 10
                if axis == value.dim() - 2:
                    yield f"{atom}[..., {stop}, {stop}]", 1.4 + abs(theirs - other.value.dim() + 2) / 10
    if value.dim() == other.value.dim():
        for axis in range(value.dim()):
            if value.shape[axis] == 1 and other.value.shape[axis] != 1:
                sizes = [f"{other.atom}.size({i})" if i == axis else "-1" for i in range(value.dim())]
                yield f"{atom}.expand({', '.join(sizes)})", 1.1 if _is_table(scene, value) else 1.7
            elif 1 < value.shape[axis] < other.value.shape[axis] and other.value.shape[axis] % value.shape[axis] == 0:
                times = f"{other.atom}.size({axis}) // {atom}.size({axis})"
                if axis == value.dim() - 1 and other.value.shape[axis] == 2 * value.shape[axis]:
                    yield f"torch.cat([{atom}, {atom}], dim=-1)", 1.4
                elif 0 < axis < value.dim() - 2:
                    yield f"{atom}.repeat_interleave({times}, dim={axis})", 1.3


def _is_table(scene: Scene, tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter or a buffer, or was not computed from one of the inputs."""
    maker, ops = scene.maker(tensor), scene.run.recording.ops
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


def _dtypes(scene: Scene, operand: Expression, others: list[Expression]) -> Iterator[tuple[str, float]]:
    atom, value = operand.atom, operand.value
    for other in others:
        if isinstance(value, Tensor) and isinstance(other.value, Tensor) and value.dtype == other.value.dtype:
            continue
        yield f"{atom}.to({other.atom}.dtype)", 1.0 + (isinstance(value, Tensor) and value.is_floating_point()) / 2
    integer = isinstance(value, Tensor) and not value.is_floating_point()
    yield (f"{atom}.float()", 1.1) if integer else (f"{atom}.long()", 1.1)
    if not integer:
        yield f"{atom}.float()", 1.2
    if path := _parameter_path(scene):
        yield f"{atom}.to(self.{path}.dtype)", 1.3
    yield f"{atom}.bool()", 1.6


def _parameter_path(scene: Scene) -> str:
    """Return the name by which the running module reads a parameter of the module that failed."""
    holder = scene.site.modules[scene.site.own - 1] if scene.site.own else None
    if holder is None or scene.module is None:
        return ""
    names = {id(parameter): name for name, parameter in holder.named_parameters()}
    parameter = next(iter(scene.module.parameters()), None)
    path = names.get(id(parameter), "")
    return "" if any(part.isdigit() for part in path.split(".")) else path
