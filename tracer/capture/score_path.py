"""Path from a product of queries and keys to the softmax over it: the axes, and the ops on the scores.

Queries, keys and all that was added or filled in are arranged as `[batch…, heads, queries, keys]`, whatever the model's
own order was. The search begins at the softmax and goes back through ops that only lay scores out, and through what the
model did to them, which becomes the chain of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from tracer.capture.calls import PROJECTIONS
from tracer.capture.tensors import CONSTANT, TensorStore, place_of
from tracer.ops import CONVOLUTIONS, MATMULS, OVERWRITES, RESHAPES, SQUEEZES, ops_with
from tracer.symbols.axes import common_factors
from tracer.utils.errors import quote
from tracer.utils.torch_internals import storage_id

# Axes of a tensor as tuples of atoms, followed through layout ops.
#
# An atom is a stretch of indices that was one axis somewhere, such as heads or keys. A view that parts an axis parts
# its atoms, one that joins axes lists several; an axis of size 1 has none. A slice of an axis is an atom that is `of`
# others.


class Atom:
    """A range of indices: `size` of them, split into `parts` once a view has split them."""

    __slots__ = ("of", "parts", "size")

    def __init__(self, size: int, of: Iterable[Atom] = ()):
        self.size, self.of = size, list(of)
        self.parts: tuple[Atom, ...] = ()

    def split(self, sizes: Iterable[int]) -> tuple[Atom, ...]:
        """Split the atom into factors of these sizes, outer to inner."""
        self.parts = tuple(Atom(size, (self,)) for size in sizes)
        return self.parts

    def is_part_of(self, others) -> bool:
        """Return whether the atom is one of `others`, or a part of one."""
        return self in others or any(atom.is_part_of(others) for atom in self.of)


Axes = tuple[tuple[Atom, ...], ...]


def axes_of(shape: Sequence[int]) -> Axes:
    """Return an atom for each axis."""
    return tuple((Atom(size),) if size != 1 else () for size in shape)


def leaves(axis: Iterable[Atom]) -> list[Atom]:
    """Return the atoms of an axis in their present split."""
    atoms = []
    for atom in axis:
        atoms += leaves(atom.parts) if atom.parts else [atom]
    return atoms


def size_of(axis: Iterable[Atom]) -> int:
    """Return the length of an axis."""
    return prod(atom.size for atom in axis)


def reshape_axes(axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Return the axes after a reshape of all elements, in their order; None if no atoms fit it."""
    atoms = [atom for axis in axes for atom in leaves(axis) if atom.size != 1]
    factors = common_factors(tuple(atom.size for atom in atoms), tuple(shape))
    if factors is None:
        return None
    sizes, left, right = factors
    own: list[Atom] = []
    for atom, numbers in zip(atoms, left, strict=True):
        own += (atom,) if len(numbers) == 1 else atom.split(sizes[number] for number in numbers)
    return tuple(tuple(own[number] for number in axis) for axis in right)


ORDER_PRESERVING_OPS = RESHAPES | SQUEEZES
COPIES = ops_with("alias", "copy", "cast") | {"copy"}
SWAPS = {"t": (0, 1), "mT": (-2, -1)}
RANGES = ops_with("slice", "split")
SELECTS = ops_with("select")
REDUCTIONS = ops_with("reduce")


def axis_order(name: str, settings: tuple, rank: int) -> list[int] | None:
    """Return the axes of its input in the order in which a permutation's output has them; None for any other op."""
    order = list(range(rank))
    if name == "permute":
        return [order[axis] for axis in settings[0]]
    if name != "transpose" and name not in SWAPS:
        return None
    first, second = settings[:2] if name == "transpose" else SWAPS[name]
    order[first], order[second] = order[second], order[first]
    return order


def axes_after(name: str, settings: tuple, axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Return the axes of a layout op's output, of this shape, from those of its input; None if they are lost.

    `settings` are the op's other arguments.
    """
    if name in COPIES:
        return axes if len(axes) == len(shape) else None  # a copy may be spread out
    if name in ORDER_PRESERVING_OPS:
        return reshape_axes(axes, shape)
    if (order := axis_order(name, settings, len(axes))) is not None:
        return tuple(axes[axis] for axis in order)
    if name == "expand":
        new = (((),) * (len(shape) - len(axes))) + axes
        return _fit_axes(new, shape, lambda old, size: (Atom(size),))
    if name in SELECTS:
        axis = _axis(name, settings, len(axes))
        return axes[:axis] + axes[axis + 1 :]
    if name in RANGES and len(axes) == len(shape):
        return _fit_axes(axes, shape, lambda old, size: (Atom(size, leaves(old)),))
    return None


def axes_before(name: str, settings: tuple, axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Return the axes of a layout op's input, of this shape, from those of its output; None if they are lost."""
    if name in COPIES:
        return axes
    if name in ORDER_PRESERVING_OPS:
        return reshape_axes(axes, shape)
    if (order := axis_order(name, settings, len(axes))) is not None:
        return tuple(axes[order.index(axis)] for axis in range(len(axes)))
    if name == "expand":
        new = axes[len(axes) - len(shape) :]
        return tuple(old if size != 1 else () for old, size in zip(new, shape, strict=True))
    if name in SELECTS or name in REDUCTIONS:
        axis = _axis(name, settings, len(shape))
        remaining = axes if len(axes) < len(shape) else axes[:axis] + axes[axis + 1 :]
        return (*remaining[:axis], (Atom(shape[axis]),), *remaining[axis:])
    if name in RANGES or name == "cat":
        return _fit_axes(axes, shape, _widen)
    return None


def _fit_axes(axes: Axes, shape: Sequence[int], make: Callable[[tuple[Atom, ...], int], tuple[Atom, ...]]) -> Axes:
    """Return the axes of these sizes: those that have theirs as they are, others as `make` makes them."""
    pairs = zip(axes, shape, strict=True)
    return tuple(old if size_of(leaves(old)) == size else make(old, size) for old, size in pairs)


def _axis(name: str, settings: tuple, count: int) -> int:
    axis = settings[0] if settings else 0
    if isinstance(axis, (list, tuple)):
        axis = axis[0] if axis else 0
    return axis % count if isinstance(axis, int) else 0


def _widen(axis: tuple[Atom, ...], size: int) -> tuple[Atom, ...]:
    """Return a longer axis that this one is a slice of."""
    known, length = leaves(axis), size_of(leaves(axis))
    if known and length and size % length == 0:
        return (Atom(size // length), *known)
    whole = Atom(size)
    for atom in known:
        atom.of.append(whole)
    return (whole,)


def arrange(tensor: torch.Tensor, axes: Axes, groups: Sequence[Sequence[Atom]], *, short: bool = False) -> torch.Tensor:
    """Return `tensor`, whose axes are these, with one axis for each group of atoms.

    A group that the tensor lacks is an axis of size 1. Where it has a part of one, it is repeated over the others;
    with `short` it is not if that part is the group's first atoms. ValueError where it has an atom that is in no group.
    """
    own = [atom for axis in axes for atom in leaves(axis)]
    order = [atom for group in groups for atom in group if atom in own]
    if len(order) != len(own):
        raise ValueError("it has an axis that the scores lack")
    tensor = tensor.reshape([atom.size for atom in own]).permute([own.index(atom) for atom in order])
    narrow, wide = [], []
    for group in groups:
        there = [atom in own for atom in group]
        first = there.index(False) if False in there else len(there)
        repeated = any(there[first:]) if short else any(there)
        narrow += [atom.size if has else 1 for atom, has in zip(group, there, strict=True)]
        wide.append([atom.size if has or repeated else 1 for atom, has in zip(group, there, strict=True)])
    spread = tensor.reshape(narrow).expand([size for sizes in wide for size in sizes])
    return spread.reshape([prod(sizes) for sizes in wide])


# Attention weights from queries and keys, by the chain of ops that the model itself ran on the scores.

SCORES = "scores"
"""Stands in a link's arguments for the scores themselves."""

MASKED_SCORE = -1e4
"""Scores and additive masks from here down hide their key: models write -∞, the lowest number of their dtype, or
-10,000."""
PENALTY = 16.0
"""A score from which so much is taken off has a weight below 1.2e-7, the resolution of float32; Swin takes off 100."""

_SAME_NAMES = "add sub mul div masked_fill where tanh clamp clamp_min clamp_max neg exp log relu pow"
_REPLAY_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    **{name: getattr(torch, name) for name in _SAME_NAMES.split()},
    "minimum": lambda scores, bound: torch.minimum(scores, torch.as_tensor(bound)),
    "maximum": lambda scores, bound: torch.maximum(scores, torch.as_tensor(bound)),
}


def closes(mask: torch.Tensor) -> torch.Tensor:
    """Return where an additive mask of scores, `[…, S_q, S_k]`, hides a key: bool of its shape.

    Where it is as low as `MASKED_SCORE`; and where it takes off `PENALTY` or more and nothing takes off between that
    and half of it, so that a bias that falls with the distance is no mask.
    """
    hidden = mask <= -PENALTY
    return mask <= MASKED_SCORE if bool(((mask <= -PENALTY / 2) & ~hidden).any()) else hidden


def is_windowed(closed: torch.Tensor) -> bool:
    """Return whether closed cells, bool `[…, S, S]`, are those between groups of tokens that see only themselves, as in
    shifted windows: some cell is closed, and not all tokens are alone."""
    groups = (~closed).flatten(0, -3) if closed.dim() > 2 else ~closed[None]
    if groups.shape[-1] != groups.shape[-2] or bool(groups.all()):
        return False
    size = groups.shape[-1]
    if bool((groups.sum(dim=(-1, -2)) == size).all()) or not bool(groups.diagonal(dim1=-2, dim2=-1).all()):
        return False
    # whoever sees another sees just what that one sees: the first that a token sees names its group
    first = groups.to(torch.uint8).argmax(dim=-1)
    return bool((groups == (first[..., :, None] == first[..., None, :])).all())


def hides(link: tuple[str, tuple], get) -> bool:
    """Return whether a link of the chain hides keys from queries; an additive bias that hides none is no mask.

    `get(key)` gives the tensors that the link names.
    """
    name, arguments = link
    if name in ("causal", "pieces"):
        return True
    if name in ("masked_fill", "where"):
        at = arguments[1 if name == "masked_fill" else 0]
        cells = get(at) if isinstance(at, str) else torch.tensor(at)  # of one cell
        closed = cells if cells is None or name == "masked_fill" or arguments[2] == SCORES else ~cells
        return closed is None or bool(closed.any())
    low = {"add": 1, "sub": -1}.get(name)
    if low is None:
        return False
    masks = [get(argument) for argument in arguments if isinstance(argument, str) and argument != SCORES]
    return any(
        tensor is not None and tensor.shape[-1:] != (1,) and bool(closes(low * tensor).any()) for tensor in masks
    )


def pick_rows(tensor: torch.Tensor, rows) -> torch.Tensor:
    """Return the chosen rows of `[..., S, d]`; those of a `range` cost no copy."""
    if isinstance(rows, range):
        rows = slice(rows.start, rows.stop, rows.step)
    return tensor[..., rows, :]


def scores_rows(q, k, chain, rows, get) -> torch.Tensor:
    """Return the scores as they enter the softmax, for chosen query rows: `[..., len(rows), S_k]`.

    `q` is `[..., S_q, d_k]`, `k` is `[..., S_k, d_k]` (fewer key heads than query heads are repeated, Ainslie et
    al. 2023); `get(key)` gives the tensors that the chain names. RuntimeError for a link that isn't known.
    """
    queries, keys = q.shape[-2], k.shape[-2]
    if q.dim() > 3 and k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], dim=-3)
    scores = pick_rows(q, rows) @ k.transpose(-2, -1)
    for name, arguments in chain:
        if name == "causal":
            later = torch.arange(keys, device=q.device) > torch.as_tensor(rows, device=q.device)[:, None]
            scores = scores.masked_fill(later, arguments[0])
            continue
        if name == "pieces":
            scores = scores.masked_fill(_apart(arguments, rows, queries, keys, q.device), float("-inf"))
            continue
        if name not in _REPLAY_FUNCTIONS and name not in _LAYOUT_FUNCTIONS:
            raise RuntimeError(f"{quote(name)} is not an op that can be replayed on scores")
        if name in ("cat", "heads"):
            scores = _LAYOUT_FUNCTIONS[name](scores, arguments, rows, queries, get)
            continue
        operands = [_argument(a, scores, rows, queries, get) for a in arguments]
        shapes = [operand.shape for operand in operands if isinstance(operand, torch.Tensor)]
        if torch.broadcast_shapes(*shapes).numel() != scores.numel():  # before it takes memory
            raise RuntimeError(f"{quote(name)} does not give one number for each score")
        scores = _REPLAY_FUNCTIONS[name](*operands)
    return scores


def _apart(sizes, rows, queries: int, keys: int, device) -> torch.Tensor:
    """Return which keys are in another piece than the query, bool `[rows, S_k]`; `sizes` are the numbers of queries and
    keys of each piece in order."""
    own, theirs = sizes[::2], sizes[1::2]
    whole = all(isinstance(size, int) and size >= 0 for size in sizes) and (sum(own), sum(theirs)) == (queries, keys)
    if not whole:
        raise RuntimeError(f"'pieces' does not part {queries} queries and {keys} keys")
    numbers = [
        torch.arange(len(counts), device=device).repeat_interleave(torch.tensor(counts, device=device))
        for counts in (own, theirs)
    ]
    return numbers[0][torch.as_tensor(rows, device=device)][:, None] != numbers[1]


def softmax_columns(q, k, chain, rows, get) -> torch.Tensor:
    """Return the softmax of chosen query rows over all columns, also over those beside the keys, such as attention
    sinks; a fully masked row is all zeros. Numbers of 16 bits are summed in float32."""
    return softmax_of(scores_rows(q, k, chain, rows, get))


def softmax_of(scores: torch.Tensor) -> torch.Tensor:
    """Return the softmax of scores as `softmax_columns` does."""
    scores = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    return scores.softmax(dim=-1).nan_to_num(0.0)


def softmax_rows(q, k, chain, rows, get) -> torch.Tensor:
    """Return attention weights for chosen query rows: `[..., len(rows), S_k]`; a fully masked row is all zeros."""
    return own_columns(softmax_columns(q, k, chain, rows, get), chain, k.shape[-2], get)


def own_columns(rows: torch.Tensor, chain, keys: int, get) -> torch.Tensor:
    """Return the columns of keys, for rows that have others beside them."""
    first = 0
    for name, arguments in chain:
        if name == "cat" and arguments[-1] == SCORES:
            first += get(arguments[0]).shape[-1]
    return rows[..., first : first + keys]


def sinks(chain) -> bool:
    """Return whether a part of each row goes to columns beside the keys, so that weights sum to less than 1."""
    return any(name == "cat" for name, _ in chain)


def _cat(scores, arguments, rows, queries, get) -> torch.Tensor:
    parts = [_argument(value, scores, rows, queries, get) for value in arguments]
    if len(parts) != 2 or not all(isinstance(part, torch.Tensor) for part in parts):
        raise RuntimeError("'cat' needs the scores and a kept tensor")
    parts = [part if part is scores else part.expand(*scores.shape[:-1], part.shape[-1]) for part in parts]
    if sum(part.shape[-1] for part in parts) > 2 * scores.shape[-1] + 64:
        raise RuntimeError("'cat' adds more columns than a row has keys")
    return torch.cat(parts, dim=-1)


def _heads(scores, arguments, rows, queries, get) -> torch.Tensor:
    matrix = get(arguments[1])  # [heads before, heads after]
    if matrix is None or matrix.dim() != 2 or matrix.shape[1] > 4 * matrix.shape[0]:
        raise RuntimeError("'heads' needs a matrix that mixes the heads")
    return torch.einsum("...hqk,hg->...gqk", scores, matrix)


_LAYOUT_FUNCTIONS = {"cat": _cat, "heads": _heads}


def _argument(value, scores, rows, queries, get):
    if value == SCORES:
        return scores
    if isinstance(value, bool):  # a mask of one cell
        return torch.tensor(value, device=scores.device)
    if not isinstance(value, str):
        return value
    tensor = get(value)
    if tensor is None:
        raise RuntimeError(f"the tensor {quote(value)} was not kept")
    if tensor.dim() >= 2 and tensor.shape[-2] == queries > 1:
        tensor = pick_rows(tensor, rows)
    if tensor.dim() == 3 and scores.dim() == 4 and tensor.shape[0] == scores.shape[0] * scores.shape[1]:
        tensor = tensor.reshape(*scores.shape[:2], *tensor.shape[1:])
    return tensor


# Chains of ops on scores, as plain data: their tensors are kept, once each, and their masks are named.


class ScoreOpChains:
    """Chains of one run."""

    def __init__(self, store: TensorStore):
        self._store = store
        self._keys: dict[tuple, str] = {}
        self._hidden: list[torch.Tensor] = []
        self._patterns: dict[tuple[str, str], str] = {}
        self._hiding: dict[str, bool] = {}
        self._fills: dict[str, float] = {}

    def close_link(self, scores: torch.Tensor, queries: int, keys: int) -> tuple[str, tuple]:
        """Return the cells closed by writes into scores `[…, heads, queries, keys]`, as a link."""
        closed = scores <= MASKED_SCORE
        least, most = scores[closed].aminmax() if bool(closed.any()) else (float("-inf"),) * 2
        number = float(least) if least == most else float("-inf")
        for axis in range(closed.dim() - 2):
            if bool((closed == closed.narrow(axis, 0, 1)).all()):
                closed = closed.narrow(axis, 0, 1)
        known = next((link for link in self._hidden if torch.equal(link, closed)), None)
        if known is None:
            known = closed.contiguous()
            self._hidden.append(known)
        return self.link("masked_fill", (SCORES, known, number), queries, keys)

    def link(self, name: str, arguments: tuple, queries: int, keys: int) -> tuple[str, tuple]:
        """Return one link of the chain as plain data: tensors become keys of kept tensors, a causal mask becomes its
        name with the number of its closed cells."""
        plain = []
        for value in arguments:
            if isinstance(value, torch.Tensor) and value.numel() == 1 and name not in ("heads", "cat"):
                value = value.item()
            if isinstance(value, torch.Tensor):
                key = self.keep(value, "mask")
                if name in ("add", "masked_fill") and self._pattern(key, value, name, queries, keys) == "causal":
                    return "causal", (float(arguments[2] if name == "masked_fill" else self._fills[key]),)
                value = key
            plain.append(value)
        return name, tuple(plain)

    def _pattern(self, key: str, mask: torch.Tensor, name: str, queries: int, keys: int) -> str:
        """Return the pattern of a mask by its cells: "causal", "windows", or ""."""
        if (key, name) not in self._patterns:
            pattern = ""
            if queries == keys > 1 and mask.shape[-2:] == (queries, keys):
                later = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(1)
                hidden = mask if name == "masked_fill" else closes(mask)
                rest = torch.zeros((), device=mask.device) if name == "masked_fill" else mask.masked_fill(hidden, 0)
                lowest = mask.amin()
                same = name == "masked_fill" or bool((mask == lowest).eq(later).all())
                if same and bool((hidden == later).all()) and not bool(rest.any()):
                    pattern, self._fills[key] = "causal", lowest.item()
                elif is_windowed(hidden):
                    pattern = "windows"
            self._patterns[key, name] = pattern
        return self._patterns[key, name]

    def keep(self, tensor: torch.Tensor, kind: str) -> str:
        place = storage_id(tensor.untyped_storage()), *place_of(tensor)[1:]  # RuntimeError for one without a storage
        key = self._keys.get(place)
        if key is None:
            key = self._keys[place] = f"attention.{kind}{len(self._keys)}"
            self._store.offer(key, tensor, needed=True)
        return key

    def keep_operands(self, q: torch.Tensor, k: torch.Tensor, chain: list) -> dict[str, Any]:
        """Keep queries and keys. Return what a record of their attention says of them and of the chain."""
        sizes = {"queries": q.shape[-2], "keys": k.shape[-2]}
        kept = {"q": self.keep(q, "q"), "k": self.keep(k, "k")}
        return sizes | kept | {"chain": tuple(chain), "mask": self.mask_kind(chain)}

    def mask_kind(self, chain) -> str:
        """Return the kind of mask in a chain: "none", "causal", "windows", or "given" for any other."""
        closing = [link for link in chain if self._hides(link)]
        names = {name for name, _ in closing}
        patterns = {self._patterns.get((arguments[1], name)) for name, arguments in closing if len(arguments) > 1}
        if not closing:
            return "none"
        windows = names == {"pieces"} or patterns == {"windows"}
        return "causal" if names == {"causal"} else "windows" if windows else "given"

    def _hides(self, link: tuple[str, tuple]) -> bool:
        """Return whether a link hides keys; computed once for links that all layers share."""
        name = repr(link)
        if name not in self._hiding:
            self._hiding[name] = hides(link, self._store.get)
        return self._hiding[name]


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
        try:
            q = arrange(a, a_axes, [*batch, before, queries, inner])
            k = arrange(b, b_axes, [*batch, before, own, inner], short=True)
        except ValueError as error:
            raise PathLost(
                OF_A_PART if self._is_part() else f"its queries and keys can't be laid out: {error}"
            ) from None
        q, k = (x.expand(*(size_of(group) for group in batch), *x.shape[-3:]) for x in (q, k))
        links = [self._link(link, i, batch, heads, queries, keys) for i, link in enumerate(self.links)]
        channels = own_features is not None and bool(queries) and set(queries) <= own_features
        over = "channels" if channels else "tokens"
        return ScoreOperands(q, k, links, self.axes, groups, size_of(heads), over, self.edited)

    def _is_part(self) -> bool:
        """Return whether the axes of the scores are parts of those of the product."""
        whole = [atom for axis in (self.batch, self.rows, self.columns) for atom in leaves(axis)]
        rest = [atom for axis in self.axes for atom in leaves(axis) if atom not in whole]
        return any(atom.is_part_of(whole) for atom in rest)

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
                batch, heads = rest[0].split((size, rest[0].size // size))
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
OF_A_PART = (
    "its softmax runs on a part of the scores, such as half of the batch, whose queries and keys are not followed"
)
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

    def _of_stack(self, operand: tuple, batch: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Return the atoms on the first axis of a product that number the learned matrices of an operand; none where
        one matrix is repeated."""
        shape, _, maker = operand
        if len(shape) != 3 or not self.is_learned(maker):
            return ()
        axes: Axes | None = (batch, *axes_of(shape[1:]))
        while isinstance(maker, int) and axes is not None:
            op = self.ops[maker]
            shape, _, source = op.inputs[0]
            axes = axes_before(op.name.rstrip("_"), self.settings.get(maker, ()), axes, shape)
            maker = source
        return tuple(atom for axis in axes or () for atom in leaves(axis) if atom.is_part_of(batch))

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
            plain = (call.name in MATMULS and call.kwargs.get("alpha", 1) == 1) or call.name == "baddbmm"
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
                left = name in MATMULS and self.is_learned(op.inputs[first][2])
                own = axes[-2 if left and not self.is_learned(op.inputs[first + 1][2]) else -1]  # learned queries
                operands = op.inputs[first : first + 2] if name in MATMULS else ()
                return (*own, *(atom for operand in operands for atom in self._of_stack(operand, axes[0])))
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
