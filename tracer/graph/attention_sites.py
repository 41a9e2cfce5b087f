"""Attentions of a run: fused calls, and matrix products around a softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from tracer.capture.calls import Call, Ref, refs
from tracer.graph.dataflow import Graph, einsum_letters
from tracer.ops import ATTENTION, COMPARES, LOOKUPS, MATMULS, SOFTMAXES, ops_with


class AttentionSite(NamedTuple):
    """One attention, by the keys of its queries, keys, values, weights (None if fused) and result.

    `call` is the fused call, or the product of queries and keys. In linear attention it is the product of keys and
    values.
    """

    q: str
    k: str
    v: str
    weights: str | None
    result: str
    call: int
    fused: bool
    linear: bool = False


SITES = SOFTMAXES | {ATTENTION}
"""Calls of which an attention has one."""
LINEAR_SITES = MATMULS
"""Calls of which a linear attention has two."""


def find_attention_sites(graph: Graph) -> Iterator[AttentionSite]:
    """Yield the fused attention calls, and each softmax between a product and a product that uses it."""
    for index in graph.computing_calls():
        call = graph.calls[index]
        if call.name == ATTENTION:
            q, k, v = (call.arguments[name].key for name in ("query", "key", "value"))
            yield AttentionSite(q, k, v, None, call.outputs[0].key, index, True)
        elif "softmax" in call.op.traits:
            weights = call.outputs[0].key
            after = _find_value_product(graph, weights)
            before = _find_score_product(graph, call)
            if after is None or before is None:
                continue
            pair = [ref.key for ref in graph.inputs[before]][-2:]
            weighed = graph.descendants(weights, after)
            values = [ref.key for ref in graph.inputs[after] if ref.key not in weighed][:1]
            if len(pair) == 2 and values:
                yield AttentionSite(
                    pair[0], pair[1], values[0], weights, graph.calls[after].outputs[0].key, before, False
                )


def find_linear_attention_sites(graph: Graph, sizes: Callable[[str], tuple]) -> Iterator[AttentionSite]:
    """Yield the linear attentions: each product of keys and values over all tokens that queries are multiplied by.

    `sizes` returns the symbolic shape of a value.
    """
    tokens = {
        sizes(ref.key)[-2 if ref.dtype.is_floating_point else -1] for ref in graph.placeholders if len(ref.shape) > 1
    }
    for index in graph.computing_calls():
        call, pair = graph.calls[index], graph.inputs[index]
        summed = _contracted_axis(call) if "matmul" in call.op.traits and len(pair) == 2 else None
        if summed is None or any(graph.depends[ref.key] != "x" for ref in pair):
            continue
        ref, axis = summed
        size = sizes(ref.key)[axis]
        if size not in tokens or size.is_Integer:
            continue
        result = call.outputs[0].key
        for after in [i for i in graph.consumers[result] if "matmul" in graph.calls[i].op.traits][:1]:
            queries = [ref for ref in graph.inputs[after] if graph.root(ref.key) != result]
            if not queries or any(graph.depends[ref.key] != "x" for ref in queries):
                continue
            keys, values = (
                pair if _is_summed_alone(graph, pair[0].key) or not _is_summed_alone(graph, pair[1].key) else pair[::-1]
            )
            q = max(queries, key=lambda ref: graph.count(ref.key))
            yield AttentionSite(
                q.key, keys.key, values.key, None, graph.calls[after].outputs[0].key, index, False, True
            )


def _contracted_axis(call: Call) -> tuple[Ref, int] | None:
    """Return the operand and the axis that a product contracts; None if it contracts several axes."""
    if call.op.name != "einsum":
        return next(iter(refs(call.arguments))), -1
    (first, *others), output = einsum_letters(call)
    summed = [
        i for i, letter in enumerate(first) if letter not in output and all(letter in operand for operand in others)
    ]
    return (call.arguments["tensors"][0], summed[0]) if len(summed) == 1 else None


def _is_summed_alone(graph: Graph, key: str) -> bool:
    """Return whether a value is also summed by itself, as keys are for the normaliser of linear attention."""
    return any(graph.calls[index].op.name == "sum" for index in graph.consumers[graph.root(key)])


def _find_value_product(graph: Graph, weights: str) -> int | None:
    """Return the nearest product that multiplies values by these weights."""
    near = [weights]
    for _ in range(4):
        takers = [index for key in near for index in graph.consumers[key]]
        product = next((index for index in takers if "matmul" in graph.calls[index].op.traits), None)
        if product is not None:
            return product
        light = (graph.calls[index] for index in takers if not graph.calls[index].op.is_heavy)
        near = [call.outputs[0].key for call in light if call.outputs]
    return None


def _find_score_product(graph: Graph, call: Call) -> int | None:
    """Return the product that computed the scores of a softmax: of two computed values, else of learned queries or
    keys. A product of queries with a table, such as one of relative positions, is only added to it."""
    waiting, count, learned = [next(iter(call.arguments.values())).key], 0, None
    while waiting and count < 40:
        key, count = graph.root(waiting.pop(0)), count + 1
        index = graph.producer.get(key)
        if index is None:
            continue
        op, operands = graph.calls[index].op, graph.inputs[index]
        computed = not any(graph.root(ref.key).startswith("parameter ") for ref in operands)
        if "matmul" in op.traits and graph.depends[key] == "x" and computed:
            if len(graph.data(index)) == len(operands):
                return index
            learned = index if learned is None else learned
        elif not op.is_heavy:
            waiting += [ref.key for ref in operands if ref.dtype != torch.bool][:2]
    return learned


POWERS = ops_with("exponential")
"""What slopes that halve from head to head are made by."""


def bias_role(graph: Graph, key: str) -> str:
    """Return the role of a line that is added to scores, or "".

    "bias" if it was learned (Raffel et al. 2020), "ALiBi" if it is a slope for each head times positions (Press et al.
    2022).
    """
    if graph.depends[key] == "x" or not graph.ref[key].dtype.is_floating_point:
        return ""
    above = graph.ancestors([key], lambda key: graph.call_of(key).op.name not in LOOKUPS)
    names = {call.op.name for call in map(graph.producing_call, above) if call is not None}
    if names & COMPARES:
        return ""
    if graph.depends[key] == "p":
        return "bias" if names & LOOKUPS else ""
    return "ALiBi" if names >= {"arange", "mul"} and names & POWERS else ""
