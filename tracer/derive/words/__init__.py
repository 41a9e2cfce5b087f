"""Which node says what a call did: one function for each op, found in the files of this folder by the op's name.

Names are those of ATen without overload and without the underscore of ops in place: `add` is `aten::add_.Tensor` too.
Composite ops (`linear`) are here, and the ops that they lower to (`addmm`). What has no word is a `Kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

import torch

from tracer.derive.given import Given
from tracer.equations import Node
from tracer.equations.call import Kernel
from tracer.ops import AMBIGUOUS, base


class Word(NamedTuple):
    """How a call is written; `heavy`: a product, a convolution, a norm, a softmax, a pooling or a table, of which a
    line has one at most."""

    write: Callable[[Given], Node | None]
    heavy: bool


_WORDS: dict[str, Word] = {}


def of(*names: str, heavy: bool = False):
    """Registers a function for ops of these names. It may return None: that call has no formula."""

    def register(write):
        for name in names:
            if name in _WORDS:
                raise ValueError(f"the op {name!r} has two words")
            _WORDS[name] = Word(write, heavy)
        return write

    return register


def known(name: str) -> bool:
    """Whether an op has a word; one that has may still be a kernel with some arguments."""
    return base(name) in _WORDS


def word(name: str) -> Word | None:
    """The word of an op."""
    return _WORDS.get(base(name))


def heavy(name: str) -> bool:
    """Whether a line has one such op at most."""
    return known(name) and _WORDS[base(name)].heavy


def names() -> tuple[str, ...]:
    """All ops that have a word."""
    return tuple(sorted(_WORDS))


def node(given: Given) -> Node:
    """The node of a call; a `Kernel` where it has no formula."""
    found = word(given.func._schema.name)
    made = found.write(given) if found else None
    if made is not None:
        return made
    single = base(given.func._schema.name) in AMBIGUOUS and given.dtype(given.first) == torch.float32
    return Kernel.of(given.func, given.kernel(), given.position, given.result, single)


def kernels(equation: Node) -> tuple[Kernel, ...]:
    """The nodes of an equation that run PyTorch's own op."""
    inner = tuple(kernel for operand in equation.operands for kernel in kernels(operand))
    return (equation, *inner) if isinstance(equation, Kernel) else inner


for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
