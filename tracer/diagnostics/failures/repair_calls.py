"""Repairs of the failed call itself: another axis, another shape, other letters, another function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import accumulate, combinations, permutations
from operator import mul

import torch
from torch import Tensor, nn

from tracer.diagnostics.failures.clashes import STRIDES, einsum_operands, letter_sizes, subscripts, wanted_shape
from tracer.diagnostics.failures.failure_site import UNKNOWN_SITE, Expression
from tracer.diagnostics.failures.trials import Candidate, Clash, Scene, argument, edit_node, edit_span

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


# Repairs of an operand in the failed line: another order of its axes, an axis more or fewer, a part of it, a dtype.

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
    if value is not UNKNOWN_SITE and not isinstance(value, Tensor):
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
    extra = 0.0 if marked or value is UNKNOWN_SITE else 0.4
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
