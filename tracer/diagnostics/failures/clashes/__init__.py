"""Mismatches in a failed call, by the function of PyTorch that was called, in a sentence with both shapes."""

from __future__ import annotations

import re

from torch import Tensor, nn

from tracer.diagnostics.failures.clashes import attention, layouts, lookups, losses, norms, products
from tracer.diagnostics.failures.scene import Clash, Scene
from tracer.utils.error_text import reason

RULES = products.RULES | layouts.RULES | lookups.RULES | norms.RULES | losses.RULES | attention.RULES
"""The rules by the name of the function."""

DTYPES = re.compile(
    r"scalar type|same dtype|to have the same dtype|same type|Input type|not implemented for '|must be .*(Long|Int)"
    r"|Expected floating point|expected m1 and m2|dtype|can't be cast|Found dtype|only Tensors of floating"
)
DEVICES = re.compile(r"same device|is on (cpu|cuda|mps|meta)|devices?, |device type|device meta")


def clash_of(scene: Scene, error: BaseException) -> Clash | None:
    """Return the mismatch in the failed call; None where its kind is not known."""
    call = scene.call
    if call is None:
        return None
    message = str(error)
    tensors = [tensor for _, tensor in scene.tensors]
    if len({tensor.device for tensor in tensors}) > 1 and DEVICES.search(message):
        return _device(scene, tensors)
    rule = RULES.get(call.name)
    if rule is not None and call.name in losses.RULES and (clash := rule(scene, call)):
        return clash
    if DTYPES.search(message) and (clash := _dtype(scene, tensors, message)):
        return clash
    return rule(scene, call) if rule is not None else None


def _device(scene: Scene, tensors: list[Tensor]) -> Clash:
    places = [
        f"{scene.name(tensor, 'a tensor')} is on {str(tensor.device)!r}" for tensor in _one_each(tensors, "device")
    ]
    message = f"All tensors of a call have to be on one device: {' and '.join(places)}."
    return Clash("device", message, {}, tuple(tensors))


def _dtype(scene: Scene, tensors: list[Tensor], message: str) -> Clash | None:
    names = [
        f"{scene.name(tensor, 'a tensor')} is {str(tensor.dtype).removeprefix('torch.')}"
        for tensor in _one_each(tensors, "dtype")
    ]
    if not names:
        return None
    what = call_name(scene)
    if len(names) == 1:
        wanted = reason(ValueError(message)).rstrip(".")
        return Clash("dtype", f"{what} does not take this dtype: {names[0]} ({wanted}).", {}, tuple(tensors))
    return Clash("dtype", f"{what} needs tensors of one dtype: {' and '.join(names)}.", {}, tuple(tensors))


def call_name(scene: Scene) -> str:
    """Return the failed call in words: "`self.fc` (Linear)", or "`matmul`"."""
    if scene.is_module_call and isinstance(scene.module, nn.Module):
        return f"`{scene.path or type(scene.module).__name__}` ({type(scene.module).__name__})"
    return f"`{scene.call.name}`" if scene.call else "the call"


def _one_each(tensors: list[Tensor], attribute: str) -> list[Tensor]:
    firsts: dict[object, Tensor] = {}
    for tensor in tensors:
        firsts.setdefault(getattr(tensor, attribute), tensor)
    return list(firsts.values())
