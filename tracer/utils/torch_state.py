"""Random numbers of one thread alone, and differences of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import inf
from threading import RLock

import torch

from tracer.utils.torch_internals import DispatchMode, function_schema

# Seeded random numbers that are this thread's own: other threads draw at the same time and change none of them.

_whole_process = RLock()  # one mode may run inside another


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
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if not draws or kwargs.get("generator") is not None or _elsewhere(args, kwargs):
            return func(*args, **kwargs)
        if (own := _with_generator(func)) is not None:
            return own(*args, **{**kwargs, "generator": self.generator})  # some say that they want none
        with _whole_process, torch.random.fork_rng(devices=[]):  # such as rand_like, which takes no generator
            torch.default_generator.set_state(self.generator.get_state())
            result = func(*args, **kwargs)
            self.generator.set_state(torch.default_generator.get_state())
        return result


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
        if overload_name in packet.overloads():
            overload = getattr(packet, overload_name)
            if any(argument.name == "generator" for argument in function_schema(overload).arguments):
                return overload
    return None


# Difference of two tensors: as a share of the largest value, and cell by cell as a share of the tolerance.
#
# Some masks have the lowest number of float32 where others have -∞. Beside it every other number would be nothing, so
# a number that far out is compared with itself, and counts for no other.

INFINITY_THRESHOLD = 1e30
"""Numbers beyond it are far out: they stand for infinities."""


class Difference:
    """Difference of a tensor from a reference of the same shape, computed once."""

    def __init__(self, computed: torch.Tensor, reference: torch.Tensor):
        self.computed, self.reference = computed, reference.to(computed.dtype)
        difference = computed - self.reference
        self.sizes = difference.abs() if difference.is_complex() else difference.abs_()
        self.largest = self.sizes.amax().item() if self.sizes.numel() else 0.0

    def relative(self) -> float:
        """max|computed - reference| / max|reference| over finite values; equal infinities count 0, 0 against 0 is 0.

        Element by element such a ratio would say nothing near zeros.
        """
        if self.largest == 0:
            return 0.0
        if self.computed.dtype == torch.float64 and self.largest < inf:  # as proofs have it: the same with fewer passes
            scale = _largest(self.reference)
            if scale <= INFINITY_THRESHOLD:
                return self.largest / scale if scale else inf
        difference, largest = self.sizes, self.sizes.max()
        if largest.isnan():  # an infinity less itself is undefined too, and no difference
            difference = difference.masked_fill(self.computed == self.reference, 0)
            largest = difference.amax()
        if largest == 0:
            return 0.0
        scale = _scale(self.reference)
        return float((difference / scale).masked_fill(difference == 0, 0).max() if scale.dim() else largest / scale)

    def shares(self, allowed: torch.Tensor | None) -> torch.Tensor:
        """Return |computed - reference| of each cell as a share of its tolerance, infinite where that is 0.

        Equal numbers count 0, infinities too, and so do cells that are NaN in both. A cell that is NaN or infinite in
        one of them only is infinitely far off.
        """
        if self.largest == 0:
            return self.sizes
        shares = self.sizes / (torch.zeros((), dtype=self.sizes.dtype) if allowed is None else allowed)
        if shares.numel() and not shares.amax() < inf:  # an infinity less itself, 0 over 0, or beyond
            computed, reference = self.computed, self.reference
            shares = shares.masked_fill(self.sizes.isinf() | shares.isnan(), inf)
            shares = shares.masked_fill((computed == reference) | (computed.isnan() & reference.isnan()), 0)
        return shares


def identical(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors are the same, bit by bit: -0 is not 0, and a NaN is itself."""
    if (a.dtype, a.shape, a.layout) != (b.dtype, b.shape, b.layout):
        return False
    if a.is_quantized:
        return torch.equal(a, b)
    return torch.equal(_bits(a), _bits(b))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of all numbers, also of those that a sparse tensor does not keep."""
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    dense = dense.resolve_conj().resolve_neg().contiguous().flatten()
    return dense.view(torch.uint8) if dense.numel() else dense


def relative_difference(computed: torch.Tensor, reference: torch.Tensor) -> float:
    """Return `Difference.relative` of two tensors."""
    return Difference(computed, reference).relative()


def first_beyond(shares: torch.Tensor) -> tuple[int, ...] | None:
    """Return the index of the first cell, row by row, whose difference exceeds the tolerance."""
    indices = (shares > 1).nonzero()
    return tuple(indices[0].tolist()) if len(indices) else None


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest absolute value, NaN where there is one."""
    least, most = tensor.aminmax()
    return max(-least.item(), most.item())


def _scale(reference: torch.Tensor) -> torch.Tensor:
    """Return the largest value that is no outlier, 1 where there is none; for an outlier, the number itself."""
    sizes = reference.abs()
    if sizes.numel() and (largest := sizes.max()) <= INFINITY_THRESHOLD:
        return largest
    far = (sizes > INFINITY_THRESHOLD) & sizes.isfinite()
    near = sizes[sizes <= INFINITY_THRESHOLD]
    largest = near.max() if near.numel() else torch.ones((), dtype=reference.dtype)
    return torch.where(far, sizes, largest) if far.any() else largest
