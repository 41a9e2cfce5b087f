"""Symbolic shapes by probing: the same model run again at tiny sizes, each dimension solved from all runs.

Nothing is annotated. The probes run on the CPU, where they take the same ops as the run itself (on `meta`,
attention dispatches to other kernels). Op lists that differ with the batch are solved with B held at the
run's value, and say so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tracer.probe.align import align
from tracer.probe.solve import UNKNOWN, Solver, base_form, value_of
from tracer.recorder import Seen, record

__all__ = ["UNKNOWN", "Solution", "Vocabulary", "base_form", "solve", "value_of"]


@dataclass(frozen=True)
class Vocabulary:
    """The sizes of a model: `names` that a dimension may be, in order of preference, what `derived` ones equal,
    and `build(sizes)`, which gives `(module, args)` or `(module, args, kwargs)` at other sizes."""

    names: tuple[str, ...]
    derived: dict[str, str]
    build: Callable[[dict[str, int]], tuple]

    def complete(self, sizes: dict[str, int]) -> dict[str, int]:
        """Sizes with the derived ones, in order, computed from the others."""
        full = dict(sizes)
        for name, text in self.derived.items():
            full[name] = int(value_of(text, full))
        return full


@dataclass(frozen=True, eq=False)
class Solution:
    """Symbolic shapes by op: `inputs[i]` and `outputs[i]` are tuples of shapes, `held[i]` a note or "".

    One is made once for each op list and sizes, and is equal to itself alone.
    """

    inputs: tuple[tuple[tuple[str, ...], ...], ...]
    outputs: tuple[tuple[tuple[str, ...], ...], ...]
    held: tuple[str, ...]


def solve(run: list[Seen], sizes: dict[str, int], vocabulary: Vocabulary, probes: list[dict[str, int]]) -> Solution:
    """Solves every dimension of `run`, made at `sizes`, with runs at `probes`; both name the underived sizes."""
    inputs: list = [None] * len(run)
    outputs: list = [None] * len(run)
    held = [""] * len(run)
    _fill(run, sizes, vocabulary, probes, vocabulary.names, inputs, outputs)
    if None in inputs and "B" in sizes:
        fixed = [{**probe, "B": sizes["B"]} for probe in probes]
        names = tuple(name for name in vocabulary.names if name != "B")
        missing = [i for i, found in enumerate(inputs) if found is None]
        _fill(run, sizes, vocabulary, fixed, names, inputs, outputs)
        for i in missing:
            held[i] = f"this op runs only at some batch sizes: solved with B held at {sizes['B']}"
    for i, op in enumerate(run):
        if inputs[i] is None:
            inputs[i] = tuple((UNKNOWN,) * len(shape) for shape, *_ in op.inputs)
            outputs[i] = tuple((UNKNOWN,) * len(shape) for shape, *_ in op.outputs)
    return Solution(tuple(inputs), tuple(outputs), tuple(held))


def _fill(run, sizes, vocabulary, probes, names, inputs, outputs):
    others = [_probe(vocabulary, probe) for probe in probes]
    matches = [align(run, other) for other in others]
    solver = Solver(names, vocabulary.derived, [vocabulary.complete(s) for s in (sizes, *probes)])
    for i, op in enumerate(run):
        if inputs[i] is None and all(match[i] is not None for match in matches):
            same = [op, *(other[match[i]] for other, match in zip(others, matches, strict=True))]
            inputs[i] = _solved(solver, [op.inputs for op in same])
            outputs[i] = _solved(solver, [op.outputs for op in same])


def _probe(vocabulary: Vocabulary, sizes: dict[str, int]) -> list[Seen]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, args, *kwargs = vocabulary.build(sizes)
        return record(module, args, *kwargs, cap=0, attention=False).ops


def _solved(solver: Solver, tensors: list) -> tuple[tuple[str, ...], ...]:
    return tuple(
        tuple(solver.solve(vector) for vector in zip(*(shape for shape, *_ in same), strict=True))
        for same in zip(*tensors, strict=True)
    )
