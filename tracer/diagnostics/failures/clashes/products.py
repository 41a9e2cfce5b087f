"""Products that do not fit: matrices, linear layers, convolutions, `einsum`, recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from tracer.capture.dispatch_modes import FailedCall
from tracer.diagnostics.failures.scene import Clash, Scene, argument


def matmul(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the last axis of the first factor is as long as the last but one of the second."""
    a, b = argument(call, 0, "input"), argument(call, 1, "other", call.kwargs.get("mat2", call.kwargs.get("tensor2")))
    if call.name in ("addmm", "baddbmm", "addbmm"):
        a, b = argument(call, 1, "mat1"), argument(call, 2, "mat2")
    if call.name == "rmatmul":
        a, b = b, a
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return None
    left, right = scene.name(a, "the first factor"), scene.name(b, "the second factor")
    wanted = {"mm": 2, "bmm": 3, "baddbmm": 3}.get(call.name)
    for tensor, name in ((a, left), (b, right)):
        if tensor.dim() == 0 or (wanted is not None and tensor.dim() != wanted):
            axes = f"{wanted} axes" if wanted else "one axis or more"
            message = f"`{call.name}` takes tensors of {axes}, and {name} is {scene.shape(tensor)}."
            return Clash("product", message, {id(tensor): tuple(range(tensor.dim()))}, (a, b))
    inner = -2 if b.dim() > 1 else -1
    if a.shape[-1] != b.shape[inner]:
        message = (
            f"A product sums over the last axis of {left}, which is {scene.size(a, -1)} long, and over the "
            f"{'last but one' if inner == -2 else 'only'} of {right}, which is {scene.size(b, inner)} long: "
            f"{scene.shape(a)} meets {scene.shape(b)}."
        )
        return Clash("product", message, {id(a): (-1, inner)} if a is b else {id(a): (-1,), id(b): (inner,)}, (a, b))
    pairs = [
        (-axis, -axis)
        for axis in range(3, min(a.dim(), b.dim()) + 1)
        if a.shape[-axis] != b.shape[-axis] and 1 not in (a.shape[-axis], b.shape[-axis])
    ]
    if call.name == "bmm" and a.shape[0] != b.shape[0]:
        pairs = [(0, 0)]
    if not pairs:
        return None
    message = (
        f"The matrices fit, but not the axes before them: {left} is {scene.shape(a)} and {right} is {scene.shape(b)}."
    )
    return Clash("product", message, {id(a): tuple(p for p, _ in pairs), id(b): tuple(q for _, q in pairs)}, (a, b))


def linear(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the last axis of the input is as long as the second of the weight."""
    x, weight = argument(call, 0, "input"), argument(call, 1, "weight")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)) or x.dim() == 0 or weight.dim() != 2:
        return None
    if x.shape[-1] == weight.shape[1]:
        return None
    layer = f"`{scene.path}`" if scene.is_module_call and scene.path else "the layer"
    message = (
        f"{layer} is Linear({_size(scene, weight, 1)}, {_size(scene, weight, 0)}): it takes {scene.size(weight, 1)} "
        f"numbers along the last axis, and {scene.name(x, 'its input')} {scene.shape(x)} has {scene.size(x, -1)}."
    )
    return Clash("product", message, {id(x): (-1,), id(weight): (1,)}, (x, weight))


def _size(scene: Scene, tensor: Tensor, axis: int) -> str:
    return scene.size(tensor, axis).partition(" = ")[0]


def conv(scene: Scene, call: FailedCall) -> Clash | None:
    """Compare the channels of the input with those of the weight; the input has a batch, channels and positions."""
    x, weight = argument(call, 0, "input"), argument(call, 1, "weight")
    if not (isinstance(x, Tensor) and isinstance(weight, Tensor)):
        return None
    groups = argument(call, 6, "groups", 1)
    transposed = "transpose" in call.name
    channels = weight.shape[0] if transposed else weight.shape[1] * (groups if isinstance(groups, int) else 1)
    places = weight.dim() - 2
    name, layer = scene.name(x, "its input"), f"`{scene.path}`" if scene.path else f"`{call.name}`"
    if x.dim() not in (places + 1, places + 2):
        order = ", ".join(("B", "C", "D", "H", "W")[:2] + ("D", "H", "W")[3 - places :])
        message = f"{layer} takes [{order}], {places + 2} axes, and {name} is {scene.shape(x)}, {x.dim()} axes."
        return Clash("convolution", message, {id(x): tuple(range(x.dim()))}, (x, weight))
    axis = x.dim() - places - 1
    if x.shape[axis] != channels:
        message = (
            f"{layer} takes {channels} channels along axis {axis}, and {name} {scene.shape(x)} has "
            f"{scene.size(x, axis)} there."
        )
        return Clash("convolution", message, {id(x): (axis,), id(weight): (0 if transposed else 1,)}, (x, weight))
    small = [x.dim() - places + i for i in range(places) if x.shape[axis + 1 + i] < weight.shape[2 + i]]
    if small:
        message = f"The kernel of {layer}, {list(weight.shape[2:])}, is larger than {name}, {scene.shape(x)}."
        return Clash("convolution", message, {id(x): tuple(small)}, (x, weight))
    return None


def recurrent(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that the last axis of the input is the input size of the layer."""
    module, x = scene.module, argument(call, 0, "input")
    if not isinstance(module, nn.RNNBase) or not isinstance(x, Tensor) or x.shape[-1] == module.input_size:
        return None
    return recurrent_clash(scene, module, x)


def recurrent_clash(scene: Scene, module: nn.RNNBase, x: Tensor) -> Clash:
    """Describe how the input of a recurrent layer differs in size."""
    message = (
        f"`{scene.path}` takes {module.input_size} numbers along the last axis, and "
        f"{scene.name(x, 'its input')} {scene.shape(x)} has {scene.size(x, -1)}."
    )
    return Clash("product", message, {id(x): (-1,)}, (x,))


class Subscripts(NamedTuple):
    """Letters of an `einsum`: of each operand, and of the result, None where they are left out."""

    operands: tuple[str, ...]
    result: str | None


def subscripts(equation: str) -> Subscripts:
    """Return the letters of an equation such as `bhqd,bhkd->bhqk`."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    return Subscripts(tuple(left.split(",")), right if arrow else None)


def einsum_operands(call: FailedCall) -> tuple[str, list[Tensor]] | None:
    """Return the equation and the tensors of an `einsum`."""
    equation, *rest = call.args or ("",)
    operands = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], (list, tuple)) else rest
    if not isinstance(equation, str) or not all(isinstance(x, Tensor) for x in operands):
        return None
    return equation, operands


def letter_sizes(letters: Subscripts, operands: list[Tensor]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield each letter with its positions: (operand, axis)."""
    places: dict[str, list[tuple[int, int]]] = {}
    for number, (text, tensor) in enumerate(zip(letters.operands, operands, strict=False)):
        if "." in text or len(text) != tensor.dim():
            continue
        for axis, letter in enumerate(text):
            places.setdefault(letter, []).append((number, axis))
    yield from places.items()


def einsum(scene: Scene, call: FailedCall) -> Clash | None:
    """Check that each letter has one size, and each operand a letter for each axis."""
    known = einsum_operands(call)
    if known is None:
        return None
    equation, operands = known
    letters = subscripts(equation)
    names = [scene.name(tensor, f"operand {number + 1}") for number, tensor in enumerate(operands)]
    if len(letters.operands) != len(operands):
        message = f"`{equation}` names {len(letters.operands)} operands, and there are {len(operands)}."
        return Clash("einsum", message, {}, tuple(operands))
    for text, tensor, name in zip(letters.operands, operands, names, strict=True):
        if "." not in text and len(text) != tensor.dim():
            message = (
                f"`{text}` in `{equation}` has {len(text)} letters, and {name} {scene.shape(tensor)} has "
                f"{tensor.dim()} axes."
            )
            return Clash("einsum", message, {id(tensor): tuple(range(tensor.dim()))}, tuple(operands))
    for letter, places in letter_sizes(letters, operands):
        sizes = {operands[number].shape[axis] for number, axis in places} - {1}
        if len(sizes) > 1:
            stated = " and ".join(f"{scene.size(operands[n], axis)} in {names[n]}" for n, axis in places)
            message = f"The letter `{letter}` of `{equation}` stands for axes of two lengths: {stated}."
            axes: dict[int, tuple[int, ...]] = {}
            for number, axis in places:
                axes[id(operands[number])] = (*axes.get(id(operands[number]), ()), axis)
            return Clash("einsum", message, axes, tuple(operands))
    if letters.result is not None and (unknown := set(letters.result) - set("".join(letters.operands)) - {"."}):
        message = f"The result of `{equation}` has the letter `{min(unknown)}`, which no operand has."
        return Clash("einsum", message, {}, tuple(operands))
    return None


RULES = {
    **dict.fromkeys(("matmul", "rmatmul", "mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addbmm"), matmul),
    "linear": linear,
    **dict.fromkeys([f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)], conv),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent),
    "einsum": einsum,
}
