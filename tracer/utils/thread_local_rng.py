"""Seeded random numbers that are this thread's own: other threads draw at the same time and change none of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock

import torch

from tracer.utils.internals.torch_internals import DispatchMode, function_schema

_whole_process = Lock()


@contextmanager
def seeded_draws(seed: int) -> Iterator[None]:
    """Draw the random numbers of ops on the CPU inside the block from a new generator with this seed.

    `torch.manual_seed` would seed the process: two threads that build a net at once would then draw from one generator
    in turns, and get other weights each time. The numbers are those that it would give to one thread alone, and the
    process's generator is neither read nor moved.
    """
    with _SeededDraws(torch.Generator().manual_seed(seed)):
        yield


class _SeededDraws(DispatchMode):
    """A mode that passes the generator to each op that draws; it holds for its own thread."""

    def __init__(self, generator: torch.Generator):
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if not _draws(func) or kwargs.get("generator") is not None or _elsewhere(args, kwargs):
            return func(*args, **kwargs)
        if (own := _with_generator(func)) is not None:
            return own(*args, **{**kwargs, "generator": self.generator})  # some say that they want none
        with _whole_process, torch.random.fork_rng(devices=[]):  # such as rand_like, which takes no generator
            torch.default_generator.set_state(self.generator.get_state())
            result = func(*args, **kwargs)
            self.generator.set_state(torch.default_generator.get_state())
        return result


def _draws(func) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _elsewhere(args, kwargs) -> bool:
    """Return whether an op draws on another device than the CPU, such as `meta`, which draws nothing."""
    devices = {argument.device.type for argument in args if isinstance(argument, torch.Tensor)}
    devices |= {torch.device(kwargs["device"]).type} if kwargs.get("device") is not None else set()
    return bool(devices - {"cpu"})


@lru_cache(maxsize=256)
def _with_generator(func):
    """Return the op itself or its overload that takes a generator; None where there is none."""
    packet, name = func.overloadpacket, func.name().partition(".")[2] or "default"
    for overload_name in (name, "generator" if name == "default" else f"{name}_generator"):
        overload = getattr(packet, overload_name) if overload_name in packet.overloads() else None
        if overload is not None and any(
            argument.name == "generator" for argument in function_schema(overload).arguments
        ):
            return overload
    return None
