"""Path from a product of queries and keys to the softmax over it: the axes, and the ops on the scores.

Queries, keys and all that was added or filled in are arranged as `[batch…, heads, queries, keys]`, whatever the model's
own order was. The search begins at the softmax and goes back through ops that only lay scores out, and through what the
model did to them, which becomes the chain of the record.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from tracer.capture.attention.axis_tracking import (
    RANGES,
    REDUCTIONS,
    SELECTS,
    Atom,
    Axes,
    arrange,
    axes_after,
    axes_before,
    axes_of,
    leaves,
    reshape_axes,
    size_of,
)
from tracer.capture.attention.score_replay import SCORES
from tracer.capture.op_schema import PRODUCTS, PROJECTIONS
from tracer.capture.tensors.producers import CONSTANT
from tracer.ops import CONVOLUTIONS, OVERWRITES

CELLS = 1 << 24
"""Numbers of a bias that has to be repeated to lie on the scores."""


class PathLost(Exception):
    """Reason why scores can't be read, in words."""


class OpCall(NamedTuple):
    """A call of an op; `inputs` are (shape, dtype, maker) of its tensors, `args` are held while it is recent."""

    index: int  # type: ignore[assignment]
    name: str
    module: str
    args: tuple
    kwargs: dict
    inputs: tuple


class PathStep(NamedTuple):
    """One op on the path from the product to the softmax: the scores are its tensor input number `order`; its output
    was read in this shape. `call` is None for an op that only changes the layout, or writes a part."""

    index: int  # type: ignore[assignment]
    call: OpCall | None
    order: int
    shape: tuple[int, ...]


class ChainLink(NamedTuple):
    """One op of a chain, with the axes that the scores had there."""

    name: str
    arguments: tuple
    axes: Axes


class ScoreOperands(NamedTuple):
    """Operands of a softmax: `q` `[batch…, heads, queries, d_k]`, `k` `[batch…, heads, keys, d_k]`, and the links
    with their tensors arranged in the same way. `axes` are those of the softmax's input and `groups` how they are
    arranged; `edited` says that something was written into a part of the scores."""

    q: torch.Tensor
    k: torch.Tensor
    links: list[tuple[str, tuple]]
    axes: Axes
    groups: list[list[Atom]]
    heads: int
    over: str
    edited: bool


class ScorePath:
    """Axes of scores and the ops on them, followed from their product to their use."""

    def __init__(self, reader: ScoreReader, product: OpCall, steps: list[PathStep]):
        self.reader, self._product = reader, product
        first = len(product.inputs) - 2
        self._operands = a, b = product.args[first : first + 2]
        self._makers = product.inputs[first][2], product.inputs[first + 1][2]
        *batch, self.rows, self.inner = axes_of(a.shape)
        self.batch, self.columns = (batch[0] if batch else ()), axes_of(b.shape)[-1]
        self.axes: Axes = (*batch, self.rows, self.columns)
        self.links: list[ChainLink] = []
        self.replaced: list[tuple[int, list[Atom], list[Atom]]] = []  # from which link on, by what, what
        self.edited = False
        if product.name == "baddbmm":
            beta, alpha = product.kwargs.get("beta", 1), product.kwargs.get("alpha", 1)
            self.links.append(ChainLink("mul", (SCORES, alpha), self.axes))
            if beta:
                self.links.append(ChainLink("add", (SCORES, product.args[0] * beta), self.axes))
        for step in steps:
            self._apply_step(step)

    def _apply_step(self, step: PathStep) -> None:
        call, name = step.call, self.reader.ops[step.index].name.rstrip("_")
        if call is None and name in OVERWRITES:
            self.edited = True
        elif call is None:
            axes = axes_after(
                name, self.reader.settings.get(step.index, ()), self.axes, self.reader.ops[step.index].outputs[0][0]
            )
            if axes is None:
                raise PathLost(f"its scores are laid out by {name} in a way that can't be followed")
            self.axes = axes
        elif name in PROJECTIONS:
            self._mix(call, step.order)
        elif name == "cat":
            self._join(call, step.order)
        else:
            self.links.append(ChainLink(name, _arguments(call, step.order), self.axes))
        if [size_of(leaves(axis)) for axis in self.axes] != list(step.shape):
            axes = reshape_axes(self.axes, step.shape)
            if axes is None:
                raise PathLost(f"{name} gives its scores a shape that can't be followed")
            self.axes = axes

    def _join(self, call: OpCall, order: int) -> None:
        """Add columns beside the scores, such as attention sinks."""
        tensors, axis = call.args[0], call.args[1] if len(call.args) > 1 else call.kwargs.get("dim", 0)
        axis %= len(self.axes)
        old = leaves(self.axes[axis])
        others = [Atom(operand.shape[axis]) for operand in tensors]
        beside = sum(operand.size for operand in others) - size_of(old)
        if (
            beside > size_of(old)
            or sum(self.reader.origin(maker) in self.reader.recent for *_, maker in call.inputs) > 1
        ):
            raise PathLost("its scores are those of several products, side by side")
        new = Atom(sum(size_of(old) if i == order else operand.size for i, operand in enumerate(others)), old)
        for i, (operand, atom) in enumerate(zip(tensors, others, strict=True)):
            if i != order:
                beside = (*self.axes[:axis], (atom,), *self.axes[axis + 1 :])
                operands = (SCORES, operand) if i > order else (operand, SCORES)
                self.links.append(ChainLink("cat", operands, beside))
        self.replaced.append((len(self.links), [new], old))
        self.axes = (*self.axes[:axis], (new,), *self.axes[axis + 1 :])

    def _mix(self, call: OpCall, order: int) -> None:
        """Add a link that mixes heads by a matrix (Shazeer et al. 2020)."""
        first = len(call.inputs) - 2
        matrix, axis = call.args[2 * first + 1 - order], -1 if order == first else -2
        matrix = matrix if order == first else matrix.mT  # [heads before, heads after]
        while matrix.dim() > 2:
            if matrix.shape[0] != 1:
                raise PathLost("its heads are mixed by more than one matrix")
            matrix = matrix[0]
        if size_of(leaves(self.axes[axis])) != matrix.shape[0]:
            raise PathLost("its heads are mixed in a way that can't be followed")
        old, new = leaves(self.axes[axis]), Atom(matrix.shape[1])
        self.links.append(ChainLink("heads", (SCORES, matrix), self.axes))
        self.replaced.append((len(self.links), [new], old))
        axes = list(self.axes)
        axes[axis] = (new,)
        self.axes = tuple(axes)
        if first:
            self.links.append(ChainLink("add", (SCORES, call.args[0]), self.axes))

    def _atoms_before(self, group: list[Atom], link: int) -> list[Atom]:
        """Return the atoms that formed a group before link number `link`."""
        for since, new, old in reversed(self.replaced):
            if since > link and set(leaves(new)) & set(group):
                group = leaves(old)
        return group

    def arrange(self, axis: int, shape: tuple[int, ...]) -> ScoreOperands:
        """Return the scores as `[batch…, heads, queries, keys]`, for a softmax over `axis` of its input."""
        own = self._atoms_before(leaves(self.axes[axis]), -1)
        is_transposed = bool(own) and set(own) <= set(leaves(self.rows))
        if not is_transposed and set(own) - set(leaves(self.columns)):
            raise PathLost("its softmax does not run over the keys of one product")
        a, b = self._operands
        a_axes, b_axes = (*self._batches, self.rows, self.inner), (*self._batches, self.inner, self.columns)
        if is_transposed:
            a, b, a_axes, b_axes = b, a, b_axes, a_axes
        features = self.reader.features(a_axes, self._makers[1 if is_transposed else 0])  # this may part atoms
        rows = leaves(self.columns if is_transposed else self.rows)
        own_features = None if features is None else {atom for atom in rows + leaves(self.batch) if _on(atom, features)}
        place = self._queries(axis, rows, own_features)
        queries = [atom for atom in leaves(self.axes[place]) if atom in rows] if place is not None else []
        rest = [
            atom
            for i, axis_factor in enumerate(self.axes)
            if i != axis
            for atom in leaves(axis_factor)
            if atom not in queries
        ]
        heads = self._heads(rest, own_features, place, axis)
        keys = leaves(self.axes[axis])
        own = self._atoms_before(keys, -1)
        batch = [[atom] for atom in rest if atom not in heads] or [[]]
        groups = [*batch, heads, queries, keys]
        inner = leaves(self.inner)
        before = self._atoms_before(heads, -1)
        q = arrange(a, a_axes, [*batch, before, queries, inner])
        k = arrange(b, b_axes, [*batch, before, own, inner], short=True)
        q, k = (x.expand(*(size_of(group) for group in batch), *x.shape[-3:]) for x in (q, k))
        links = [self._link(link, i, batch, heads, queries, keys) for i, link in enumerate(self.links)]
        channels = own_features is not None and bool(queries) and set(queries) <= own_features
        over = "channels" if channels else "tokens"
        return ScoreOperands(q, k, links, self.axes, groups, size_of(heads), over, self.edited)

    @property
    def _batches(self) -> Axes:
        return (self.batch,) if self._operands[0].dim() == 3 else ()

    def _queries(self, axis: int, rows: list[Atom], features: set[Atom] | None) -> int | None:
        """Return the axis of the softmax's input that has the queries: the last of those that are not heads."""
        positions = [
            i for i, atom in enumerate(self.axes) if i != axis % len(self.axes) and set(leaves(atom)) & set(rows)
        ]
        places = [i for i in positions if features is None or not set(leaves(self.axes[i])) & set(rows) <= features]
        return max(places or positions, default=None)

    def _heads(self, rest: list[Atom], features: set[Atom] | None, place: int | None, axis: int) -> list[Atom]:
        """Return the atoms that are heads: outputs of the projection; if none is known, the axis before the queries."""
        if features is not None:
            return [atom for atom in rest if set(self._atoms_before([atom], -1)) & features]
        count, place = len(self.axes), axis if place is None else place
        if count > 3:
            others = [i for i in range(count) if i not in (place, axis % count)]
            return [atom for atom in leaves(self.axes[others[-1]]) if atom in rest]
        if len(rest) == 1 and not self.replaced and rest[0].size % self.reader.batch() == 0:
            size = self.reader.batch()
            if size == 1:
                return rest
            if size < rest[0].size:
                batch, heads = rest[0].part(size)
                rest[:] = [batch, heads]
                return [heads]
        return []

    def _link(self, link: ChainLink, number: int, batch, heads, queries, keys) -> tuple[str, tuple]:
        """Return a link with its tensors arranged like the scores."""
        heads, keys = self._atoms_before(heads, number), self._atoms_before(keys, number)
        arguments = []
        for value in link.arguments:
            if not isinstance(value, torch.Tensor) or link.name == "heads":
                arguments.append(value)
                continue
            if value.numel() == 1:
                arguments.append(value.item())
                continue
            axes = _beside(value.shape, link.axes)
            last = leaves(link.axes[-1]) if link.name == "cat" else keys
            try:
                placed = arrange(value, axes, [*batch, heads, queries, last])
            except ValueError as error:
                raise PathLost(f"what {link.name} does to its scores can't be followed: {error}") from None
            if placed.numel() > max(CELLS, value.numel()):
                raise PathLost(
                    f"what {link.name} does to its scores takes {placed.numel():,} numbers, too many to keep"
                )
            arguments.append(placed)
        return link.name, tuple(arguments)


def _arguments(call: OpCall, order: int) -> tuple:
    """Return the arguments of an element-wise op, with the scores marked."""
    arguments, tensor = [], -1
    for value in call.args:
        if value is SCORES or isinstance(value, torch.Tensor):
            tensor += 1
            value = SCORES if tensor == order else value
        arguments.append(value)
    more = dict(call.kwargs)
    alpha = more.pop("alpha", 1)
    if more or (alpha != 1 and arguments[0] is not SCORES):
        raise PathLost(f"what {call.name} does to its scores can't be followed")
    if alpha != 1:
        arguments[1] = arguments[1] * alpha
    return tuple(arguments)


def _beside(shape, axes: Axes) -> Axes:
    """Return the axes of a tensor that is broadcast over one of these axes."""
    if len(shape) > len(axes):
        raise PathLost("its scores are repeated before the softmax")
    kept_axes = []
    for size, axis in zip(shape, axes[len(axes) - len(shape) :], strict=True):
        if size not in (1, size_of(leaves(axis))):
            raise PathLost("its scores are repeated before the softmax")
        kept_axes.append(axis if size != 1 else ())
    return tuple(kept_axes)


def _on(atom: Atom, axis) -> bool:
    """Return whether an atom lies on this axis."""
    own = leaves(axis)
    return any(leaf.is_part_of(own) for leaf in leaves((atom,)))


DEPTH = 64
"""How many ops a search goes back at most."""
NO_PRODUCT = "its scores could not be followed back to a product of queries and keys: they come from {origin}"


class ScoreReader:
    """Finder of the path from a softmax back to the product of queries and keys, by recorded ops and recent calls."""

    def __init__(self, ops: list, settings: dict[int, tuple], recent: dict[int, OpCall], batch):
        self.ops, self.settings, self.recent, self.batch = ops, settings, recent, batch

    def origin(self, maker) -> int | str:
        """Walk back through ops that only change the layout of their first input."""
        while isinstance(maker, int) and maker not in self.recent and (op := self.ops[maker]).layout and op.inputs:
            maker = op.inputs[0][2]
        return maker

    def is_learned(self, maker) -> bool:
        """Return whether a tensor is a parameter or buffer, after any layout ops."""
        origin = self.origin(maker)
        return isinstance(origin, str) and origin != CONSTANT and not origin.startswith("input ")

    def read(self, shape: tuple[int, ...], maker, axis: int) -> ScoreOperands:
        """Return the scores of this shape from op `maker`, for a softmax over `axis`. Raise `PathLost` if it fails."""
        path = self._path(shape, maker, 0)
        if path is None:
            origin = self.origin(maker)
            origin = self.ops[origin].name.rstrip("_") if isinstance(origin, int) else f"the {origin}"
            raise PathLost(NO_PRODUCT.format(origin=origin))
        return ScorePath(self, *path).arrange(axis, shape)

    def _path(self, shape, maker, depth: int) -> tuple[OpCall, list[PathStep]] | None:
        """Return the product that scores come from, and the steps from it, in order."""
        if not isinstance(maker, int) or depth > DEPTH:
            return None
        call = self.recent.get(maker)
        if call is not None and call.name in PROJECTIONS:
            mixed = self._through_mixing(call, shape, depth)
            plain = (call.name in PRODUCTS and call.kwargs.get("alpha", 1) == 1) or call.name == "baddbmm"
            return mixed or ((call, []) if plain else None)
        op = self.ops[maker]
        if call is not None:
            for order, (input_shape, _, source) in enumerate(call.inputs):
                if path := self._path(input_shape, source, depth + 1):
                    path[1].append(PathStep(maker, call, order, shape))
                    return path
            return None
        if not op.inputs:
            return None
        input_shape, _, source = op.inputs[0]
        if op.name.rstrip("_") in OVERWRITES:
            if op.name == "copy_" and input_shape == shape and len(op.inputs) > 1:  # all of it is written anew
                input_shape, _, source = op.inputs[1]
            while input_shape != shape and isinstance(source, int) and self.ops[source].name in RANGES | SELECTS:
                input_shape, _, source = self.ops[source].inputs[0]
            if input_shape != shape:
                return None
        elif not op.layout:
            return None
        path = self._path(input_shape, source, depth + 1)
        if path:
            path[1].append(PathStep(maker, None, 0, shape))
        return path

    def _through_mixing(self, call: OpCall, shape, depth: int) -> tuple[OpCall, list[PathStep]] | None:
        """Return the path through a product that only mixes the heads of scores, by a matrix of parameters."""
        first = len(call.inputs) - 2  # before the operands, a bias
        for operand in (0, 1):
            input_shape, _, source = call.inputs[first + operand]
            if (
                not self.is_learned(call.inputs[first + 1 - operand][2])
                or (path := self._path(input_shape, source, depth + 1)) is None
            ):
                continue
            product, steps = path
            try:
                path = ScorePath(self, product, steps)
            except PathLost:
                continue
            inner = leaves(path.axes[-1 if operand == 0 else -2])
            if inner and all(atom.is_part_of(path.batch) for atom in inner):
                steps.append(PathStep(call.index, call, first + operand, shape))
                return product, steps
        return None

    def features(self, axes: Axes, maker) -> tuple[Atom, ...] | None:
        """Return the atoms of a tensor, of these axes, that are features: outputs of its projection, and not positions
        of its input. None if no projection is found."""
        for _ in range(DEPTH):
            if not isinstance(maker, int) or not (op := self.ops[maker]).inputs:
                return None
            name, shape = op.name.rstrip("_"), op.outputs[0][0]
            sizes = [size_of(leaves(axis)) for axis in axes]
            if name not in RANGES and sizes != list(shape) and (axes := reshape_axes(axes, shape)) is None:
                return None
            if name in PROJECTIONS:
                first = len(op.inputs) - 2 if name != "linear" else 0
                return axes[-2 if name in PRODUCTS and self.is_learned(op.inputs[first][2]) else -1]
            input_shape, _, source = op.inputs[0]
            if name in CONVOLUTIONS:
                if op.inputs[1][0][1] > 1 or input_shape[1] != shape[1] or input_shape[1] == 1:
                    return axes[1]
                axes = (axes[0], axes[1], *axes_of(input_shape[2:]))  # each channel on its own
            elif op.layout and name not in ("copy",):
                axes = axes_before(name, self.settings.get(maker, ()), axes, input_shape)
            elif name == "cat":
                input_shape, _, source = max(op.inputs, key=lambda operand: torch.Size(operand[0]).numel())
                axes = axes_before(name, (), axes, input_shape) if len(input_shape) == len(axes) else None
            elif (same := next((operand for operand in op.inputs if operand[0] == shape), None)) is not None:
                source = same[2]
            elif name in REDUCTIONS:
                axes = axes_before(name, self.settings.get(maker, ()), axes, input_shape)
            else:
                return None
            if axes is None:
                return None
            maker = source
        return None
