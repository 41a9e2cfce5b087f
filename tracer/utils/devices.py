"""Device of a model: the CPU with one thread for each run, or a GPU that the user names.

Tensors of a run that are kept, and proofs, are on the CPU.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tracer.utils.errors import quote
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    import torch
else:  # a server asks what is wanted before it loads anything
    torch = lazy_import("torch")

DEVICE_TYPES = ("cpu", "cuda", "mps")
LOCAL_DEVICES = ("cpu", "meta")
"""Devices whose tensors stay where they are."""


def default_device() -> str:
    """Return the device for the models of the app: `TRACER_DEVICE`, else the CPU."""
    return os.environ.get("TRACER_DEVICE", "").strip() or "cpu"


def available() -> tuple[str, ...]:
    """Return the devices of this machine."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return tuple(name for name in DEVICE_TYPES if there[name])


def device_of(name: str) -> torch.device:
    """Return the device of that name, such as "cuda" or "cuda:1". Raise ValueError in one sentence for one that does
    not exist here."""
    kind, _, number = str(name).partition(":")
    here = available()
    if kind not in (*DEVICE_TYPES, *here):
        raise ValueError(f"{quote(name)} is not a device, expected {' or '.join(here)}")
    if kind not in here:
        raise ValueError(f"{quote(name)} is not available here, expected {' or '.join(here)}")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if number and not (number.isdecimal() and int(number) < count):
        raise ValueError(f"{quote(name)} is not available here, expected {kind}:0 to {kind}:{count - 1}")
    return torch.device(str(name))


def use_one_thread() -> None:
    """Limit each run of this process to one core, so that as many runs go on in parallel as there are cores.

    With a team of threads for each matrix product, the threads of one run wait for each other at every op, and where
    anything else needs a core as well they wait for it too: beside other work, runs of our models took ten times as
    long with two threads as with one.
    """
    torch.set_num_threads(1)


def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU, where proofs run in float64, which not every device has; one without values stays."""
    return tensor if tensor.device.type in LOCAL_DEVICES else tensor.cpu()


def copy_to_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, without its gradient, on the CPU."""
    own = tensor.detach()
    return own.clone() if own.device.type in LOCAL_DEVICES else own.cpu()
