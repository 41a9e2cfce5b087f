"""Cache that a run returned: keys and values of its tokens, or anything else that a model keeps for the next token.

Its tensors are found in what forward returned. Their sizes are those that were solved for the steps that computed them.
"""

from __future__ import annotations

import re
from math import prod
from typing import NamedTuple

import sympy

from tracer.record import Trace
from tracer.symbols import cost
from tracer.symbols.notation import parse, symbol

NAMES = re.compile(r"(past_key_values|cache_params|past_buckets_states|mems|cache)\b.*")
"""The names under which models return what they keep for the next token."""
CACHE_OUTPUT = re.compile(r"\[1\]\[(\d+)\]\[[01]\]")
"""The places of keys and values in what a decoder returns that reads from a cache."""
T_PAST = "T_past"
"""The size of the cache that a run reads."""
KEYS = "block1.attention.key"
"""The line of our own decoders that computes the keys of the first block."""
BLOCK = re.compile(r"\[(\d+)\]")
UNKNOWN_SIZE = "?"


class CachedTensor(NamedTuple):
    """A tensor of a cache: its position in forward's output, the block that it belongs to, the step that computed it,
    its shape, in symbols too, and its dtype."""

    name: str
    block: int
    step: str
    shape: tuple[int, ...]
    symbolic: tuple[str, ...]
    dtype: str


def cached_tensors(trace: Trace) -> tuple[CachedTensor, ...]:
    """Return the tensors of the cache that a run returned; none for a model that keeps none."""
    steps = {step.id: step for step in trace.steps}
    reads = any(size.name == T_PAST for size in trace.symbols)
    tensors = []
    for returned in trace.returned:
        appended = CACHE_OUTPUT.fullmatch(returned.name) if reads else None
        if appended or NAMES.fullmatch(returned.name):
            number, step = appended or BLOCK.search(returned.name), steps.get(returned.step)
            solved = (
                step.symbolic
                if step is not None and step.shape == returned.shape
                else (UNKNOWN_SIZE,) * len(returned.shape)
            )
            block = int(number[1]) if number else 0
            tensors.append(CachedTensor(returned.name, block, returned.step, returned.shape, solved, returned.dtype))
    return tuple(tensors)


def elements(trace: Trace) -> tuple[int, str]:
    """Return the number of elements of a run's cache, and its formula; `"?"` where a size is not solved."""
    tensors = cached_tensors(trace)
    blocks = {tensor.block for tensor in tensors}
    depths = {size.value: size.name for size in reversed(trace.symbols) if size.name.startswith("L")}
    depth = {"": (depths[len(blocks)], len(blocks))} if len(blocks) in depths else {}
    formulas = [(cost.elements((tensor.symbolic,)), "", tensor.block) for tensor in tensors]
    return sum(prod(tensor.shape) for tensor in tensors), cost.total(formulas, depth)


def elements_of_whole(whole: Trace, cached: Trace) -> str:
    """Return the number of elements of the cache that holds every token of a run, as a formula.

    `whole` is that run, of one of our own decoders, and `cached` the run that reads its last token after a cache.
    """
    length, formula = parse(whole.step(KEYS).symbolic[-2]), parse(elements(cached)[1])
    return str(sympy.factor(formula.subs(symbol(T_PAST), length - symbol("T"))))
