"""State dicts that do not load: all tensors whose shapes differ, those that are transposed, and their repair."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from contextlib import suppress
from traceback import walk_tb
from typing import NamedTuple

from torch import Tensor, nn

from tracer.diagnostics.failures.explanation import Fix
from tracer.diagnostics.failures.failure_site import FailureSite
from tracer.utils.files import edit_node

LOADING = "Error(s) in loading state_dict"
"""Message of PyTorch on a state dict that does not load."""
MAX_NAMES = 4
"""Most tensors of a kind that a sentence names."""
Shapes = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]


class Loading(NamedTuple):
    """A state dict that did not load into a module: the shapes in it and in the module, by name, where they differ.

    `transposed` are those that differ by a transposition, and `square` those of the same layers whose shape can't tell.
    """

    module: nn.Module
    state: Mapping[str, Tensor]
    shapes: Shapes
    transposed: list[str]
    square: list[str]
    missing: list[str]
    unexpected: list[str]


def loading_of(error: BaseException) -> Loading | None:
    """Return the state dict that an error is of; None for another error."""
    if LOADING not in str(error):
        return None
    for frame, _ in walk_tb(error.__traceback__):
        module, state = frame.f_locals.get("self"), frame.f_locals.get("state_dict")
        if frame.f_code.co_name == "load_state_dict" and isinstance(module, nn.Module) and isinstance(state, Mapping):
            own = module.state_dict()
            both = {name: tensor for name, tensor in own.items() if isinstance(state.get(name), Tensor)}
            shapes = {name: (tuple(state[name].shape), tuple(tensor.shape)) for name, tensor in both.items()}
            differ = {name: pair for name, pair in shapes.items() if pair[0] != pair[1]}
            transposed = [name for name, (theirs, ours) in differ.items() if len(ours) == 2 and theirs == ours[::-1]]
            kinds = {_kind(module, name) for name in transposed}
            square = [name for name in shapes if _kind(module, name) in kinds and _is_square(shapes[name])]
            missing, unexpected = [n for n in own if n not in state], [n for n in state if n not in own]
            return Loading(module, state, differ, transposed, square, missing, unexpected)
    return None


def _kind(module: nn.Module, name: str) -> tuple[type, str]:
    """Return the class of the layer that holds a parameter, and the parameter's name in it."""
    path, _, parameter = name.rpartition(".")
    return type(module.get_submodule(path)), parameter


def _is_square(pair: tuple[tuple[int, ...], tuple[int, ...]]) -> bool:
    return pair[0] == pair[1] and len(pair[0]) == 2 and pair[0][0] == pair[0][1]


def loading_text(loading: Loading) -> str:
    """Return in sentences which tensors do not fit, and how."""
    shapes, count = loading.shapes, len(loading.shapes)
    texts = []
    if shapes:
        each = [f"`{name}` is {list(theirs)} there and {list(ours)} here" for name, (theirs, ours) in shapes.items()]
        number = "one tensor has" if count == 1 else f"{count} tensors have"
        texts.append(f"In the state dict, {number} another shape than in the module: {_listed(each)}.")
    if loading.transposed:
        which = "Each is" if len(loading.transposed) == count else f"{_listed(_code(loading.transposed))}:"
        texts.append(f"{which} the transpose of the other, as `Conv1D` keeps what `nn.Linear` has.")
    if loading.transposed and loading.square:
        texts.append(f"{_listed(_code(loading.square))}: square, so it loads without an error, transposed or not.")
    for names, text in ((loading.missing, "It lacks"), (loading.unexpected, "The module has no")):
        if names:
            texts.append(f"{text} {_listed(_code(names))}.")
    return " ".join(texts)


def _code(names: list[str]) -> list[str]:
    return [f"`{name}`" for name in names]


def _listed(texts: list[str]) -> str:
    more = len(texts) - MAX_NAMES
    return ", ".join(texts[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def transpose_what_is_transposed(error: BaseException, site: FailureSite) -> Iterator[Fix]:
    """Yield the call that loads a state dict with its transposed tensors transposed, where a copy loads that."""
    loading, node = loading_of(error), site.node
    if loading is None or not loading.transposed or not isinstance(node, ast.Call) or not node.args:
        return
    names = [*loading.transposed, *loading.square]
    module = copy.deepcopy(loading.module)
    with suppress(RuntimeError):  # other tensors do not fit either
        module.load_state_dict({n: x.t() if n in names else x for n, x in loading.state.items()})
        state = site.expression(node.args[0]).atom
        listed = ", ".join(f'"{name}"' for name in names)
        text = f"{{n: x.t() if n in [{listed}] else x for n, x in {state}.items()}}"
        square = ", ".join(_code(loading.square))
        doubts = (f"The shape of {square} can't tell whether it is transposed, too.",) if square else ()
        edit = edit_node(site.file, site.lines, node.args[0], text)
        yield Fix(f"transpose {_listed(_code(names))}", (edit,), ({},), doubts, "all tensors load")
