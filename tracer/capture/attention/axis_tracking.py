"""Axes of a tensor as tuples of atoms, followed through layout ops.

An atom is a stretch of indices that was one axis somewhere, such as heads or keys. A view that parts an axis parts its
atoms, one that joins axes lists several; an axis of size 1 has none. A slice of an axis is an atom that is `of` others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import prod

import torch

from tracer.ops import RESHAPES, SQUEEZES, ops_with


class Atom:
    """A range of indices: `size` of them, split into `parts` once a view has split them."""

    __slots__ = ("of", "parts", "size")

    def __init__(self, size: int, of: Iterable[Atom] = ()):
        self.size, self.of = size, list(of)
        self.parts: tuple[Atom, ...] = ()

    def part(self, first: int) -> tuple[Atom, Atom]:
        """Split the atom into `first` ranges of equal length."""
        self.parts = parts = Atom(first, (self,)), Atom(self.size // first, (self,))
        return parts

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
    pending, reshaped = deque(atom for axis in axes for atom in leaves(axis) if atom.size != 1), []
    for size in shape:
        axis = []
        while size > 1:
            if not pending:
                return None
            atom = pending.popleft()
            if size % atom.size == 0:
                axis.append(atom)
                size //= atom.size
            elif atom.size % size == 0:
                first, rest = atom.part(size)
                axis.append(first)
                pending.appendleft(rest)
                size = 1
            else:
                return None
        reshaped.append(tuple(axis))
    return tuple(reshaped) if not pending else None


ORDER_PRESERVING_OPS = RESHAPES | SQUEEZES
COPIES = ops_with("alias", "copy", "cast") | {"copy"}
SWAPS = {"t": (0, 1), "mT": (-2, -1)}
RANGES = ops_with("slice", "split")
SELECTS = ops_with("select")
REDUCTIONS = ops_with("reduce")


def axes_after(name: str, settings: tuple, axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Return the axes of a layout op's output, of this shape, from those of its input; None if they are lost.

    `settings` are the op's other arguments.
    """
    if name in COPIES:
        return axes if len(axes) == len(shape) else None  # a copy may be spread out
    if name in ORDER_PRESERVING_OPS:
        return reshape_axes(axes, shape)
    if name == "permute":
        return tuple(axes[axis] for axis in settings[0])
    if name == "transpose" or name in SWAPS:
        return _swap(axes, *(settings[:2] if name == "transpose" else SWAPS[name]))
    if name == "expand":
        new = (((),) * (len(shape) - len(axes))) + axes
        return tuple(
            old if size_of(leaves(old)) == size else (Atom(size),) for old, size in zip(new, shape, strict=True)
        )
    if name in SELECTS:
        axis = _axis(name, settings, len(axes))
        return axes[:axis] + axes[axis + 1 :]
    if name in RANGES and len(axes) == len(shape):
        return tuple(
            old if size_of(leaves(old)) == size else (Atom(size, leaves(old)),)
            for old, size in zip(axes, shape, strict=True)
        )
    return None


def axes_before(name: str, settings: tuple, axes: Axes, shape: Sequence[int]) -> Axes | None:
    """Return the axes of a layout op's input, of this shape, from those of its output; None if they are lost."""
    if name in COPIES:
        return axes
    if name in ORDER_PRESERVING_OPS:
        return reshape_axes(axes, shape)
    if name == "permute":
        axes_in: list[tuple[Atom, ...]] = [()] * len(axes)
        for axis, old in zip(settings[0], axes, strict=True):
            axes_in[axis] = old
        return tuple(axes_in)
    if name == "transpose" or name in SWAPS:
        return axes_after(name, settings, axes, shape)
    if name == "expand":
        new = axes[len(axes) - len(shape) :]
        return tuple(old if size != 1 else () for old, size in zip(new, shape, strict=True))
    if name in SELECTS or name in REDUCTIONS:
        axis = _axis(name, settings, len(shape))
        remaining = axes if len(axes) < len(shape) else axes[:axis] + axes[axis + 1 :]
        return (*remaining[:axis], (Atom(shape[axis]),), *remaining[axis:])
    if name in RANGES or name == "cat":
        pairs = zip(axes, shape, strict=True)
        return tuple(old if size_of(leaves(old)) == size else _widen(old, size) for old, size in pairs)
    return None


def _axis(name: str, settings: tuple, count: int) -> int:
    axis = settings[0] if settings else 0
    if isinstance(axis, (list, tuple)):
        axis = axis[0] if axis else 0
    return axis % count if isinstance(axis, int) else 0


def _swap(axes: Axes, first: int, second: int) -> Axes:
    swapped = list(axes)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    return tuple(swapped)


def _widen(axis: tuple[Atom, ...], size: int) -> tuple[Atom, ...]:
    """Return a longer axis that this one is a slice of."""
    known = leaves(axis)
    if known and size % size_of(known) == 0:
        return (Atom(size // size_of(known)), *known)
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
