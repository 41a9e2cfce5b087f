"""Where a model runs: on the CPU, or on a GPU that the user names. What is kept of a run, and its proofs, are here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracer.common.quoting import quoted

if TYPE_CHECKING:
    import torch

KNOWN = ("cpu", "cuda", "mps")
STAYING = ("cpu", "meta")
"""Devices whose tensors stay where they are."""


def wanted() -> str:
    """Where the models of the app run: the device that `TRACER_DEVICE` names, else the CPU."""
    return os.environ.get("TRACER_DEVICE", "").strip() or "cpu"


def available() -> tuple[str, ...]:
    """The devices of this machine."""
    import torch  # here, since a server asks what is wanted before it loads anything

    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return tuple(name for name in KNOWN if there[name])


def device_of(name: str) -> torch.device:
    """The device of that name, such as "cuda" or "cuda:1". ValueError in one sentence for one that is not here."""
    import torch  # as above

    kind, _, number = str(name).partition(":")
    here = available()
    if kind not in (*KNOWN, *here):
        raise ValueError(f"{quoted(name)} is no device, expected {' or '.join(here)}")
    if kind not in here:
        raise ValueError(f"{quoted(name)} is not available here, expected {' or '.join(here)}")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not (number.isdecimal() and int(number) < count):
        raise ValueError(f"{quoted(name)} is not available here, expected {kind}:0 to {kind}:{count - 1}")
    return torch.device(str(name))


def brought(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU, where proofs run in float64, which not every device has; one without values stays."""
    return tensor if tensor.device.type in STAYING else tensor.cpu()


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor, without its gradient, on the CPU."""
    own = tensor.detach()
    return own.clone() if own.device.type in STAYING else own.cpu()
