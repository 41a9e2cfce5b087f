"""Which calls stand inside the line of what takes their value, since they do so little: scales, masks that are added,
the parts of a norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracer.graph.attention_sites import is_heavy
from tracer.graph.dataflow import Graph
from tracer.lowering.aten import known
from tracer.ops import (
    ACTIVATIONS,
    ARGREDUCES,
    ARITHMETIC,
    ATTENTION,
    FACTORIES,
    JOINS,
    MASK_BUILDERS,
    MATMULS,
    PROJECTIONS,
    SCATTER_REDUCES,
    SOFTMAXES,
    UNINITIALISED,
    base,
    takes_shape,
)
from tracer.textbook.attention_bias import bias

if TYPE_CHECKING:
    from tracer.textbook.step_selection import Plan

IN_LEAF, ELSEWHERE, WITH_HEAVY, HEAVY_IN_LEAF, IN_SCALE = 14, 6, 5, 10, 4
"""How many calls one line holds: in a module without children and outside of them, without a heavy one and with; and
how many make a number for each channel that stands in a line twice."""


def joins(plan: Plan, index: int) -> bool:
    """Whether a call's value stands inside the line of what consumes it."""
    graph, call = plan.graph, plan.graph.calls[index]
    live = [ref.key for ref in call.outputs if ref.key in graph.live]
    name = base(call.name)
    if len(live) != 1 or not (known(name) or name == "overwrite") or name == ATTENTION:
        return False
    key = live[0]
    consumers = graph.consumers[key]
    if _starts(graph, name, consumers):
        return True
    returned = key in {graph.root(ref.key) for ref in graph.outputs}
    if name in UNINITIALISED or (name == "overwrite" and not returned and _written_over(graph, key, consumers)):
        return True
    if any(_turned_over(graph, key, graph.calls[other]) or _gates(graph, key, other) for other in consumers):
        return False
    if not consumers or returned:
        return False
    if plan.apart(name, call.module) or (name in ARGREDUCES | SCATTER_REDUCES and graph.depends[key] == "x"):
        return False
    constant = graph.depends[key] == "c" and name in MASK_BUILDERS and len(graph.shape(key)) > 1
    if graph.depends[key] != "x" and _biases(graph, consumers) and (constant or bias(graph, key)):
        return False
    if name == "embedding" and graph.depends[key] != "x" and graph.live_users[key] == consumers and len(consumers) == 1:
        return base(graph.calls[consumers[0]].name) == "add"  # rows of places, which are added to tokens
    if any(graph.within(other) != graph.within(index) for other in consumers) and not _shifts(graph, index, consumers):
        return False
    leaf = plan.leaf(index)
    if name in JOINS and graph.depends[key] == "x" and not leaf:
        rank = len(graph.shape(key))
        if call.arguments.get("dim", 0) % rank != rank - 1:
            return False  # a sequence that is made of parts
    if not leaf and _moves_tokens(graph, key, index, consumers):
        return False
    cost, heavy = plan.cost[key], plan.heavy[key]
    if len(consumers) > 1:
        scales = graph.depends[key] == "p" and all(base(graph.calls[one].name) in ARITHMETIC for one in consumers)
        return leaf and len(consumers) == 2 and cost <= (IN_SCALE if scales else 2) and not heavy
    other = graph.calls[consumers[0]]
    other_name = base(other.name)
    if not known(other_name) and other_name not in (ATTENTION, "overwrite", "turns"):
        return False
    beside = [root for ref in graph.inputs[consumers[0]] if (root := graph.root(ref.key)) != key]
    if name in ACTIVATIONS and not leaf and other_name == "mul" and _of_map(graph, index):
        return False  # the bend of an MLP's gate
    if not heavy:
        if is_heavy(other.name):
            return cost <= 2
        loose = [root for root in beside if root not in plan.named and root not in plan.ends]
        more = sum(plan.cost.get(root, 0) for root in loose)
        return cost + more <= (IN_LEAF if leaf else ELSEWHERE)
    if is_heavy(other.name):
        return False
    if _scaled_by_one(graph, key, other_name, beside) and not leaf:
        return False
    if name in MATMULS and other_name == "add" and len(beside) == 1 and _also_a_product(graph, beside[0]):
        return cost <= WITH_HEAVY
    if name in MATMULS and other_name in ARITHMETIC and _weighs(graph, key):
        return cost <= WITH_HEAVY
    still = all(graph.depends[root] != "x" or graph.count(root) < graph.count(key) for root in beside)
    if leaf:
        return cost <= HEAVY_IN_LEAF and still and (other_name in ARITHMETIC or other_name not in ACTIVATIONS)
    return cost <= WITH_HEAVY and still and other_name in ARITHMETIC | {"gather"}


def _biases(graph: Graph, consumers: list[int]) -> bool:
    """Whether all that becomes of a value is that it is added to the scores of attention."""
    calls = [graph.calls[index] for index in consumers]
    return bool(calls) and all(base(call.name) == "add" and _weighs(graph, call.outputs[0].key) for call in calls)


def _scaled_by_one(graph: Graph, key: str, consumer: str, beside: list[str]) -> bool:
    """Whether all that becomes of a value is that one learned number multiplies it: a temperature."""
    return consumer == "mul" and any(graph.depends[one] == "p" and graph.count(one) == 1 for one in beside)


def _also_a_product(graph: Graph, key: str) -> bool:
    """Whether a value is a product that only the sum takes in which it meets another."""
    made = graph.made(key)
    return made is not None and base(made.name) in MATMULS and len(graph.consumers[key]) == 1


def _weighs(graph: Graph, key: str) -> bool:
    """Whether a value becomes the weights of attention, whatever is added to it on the way."""
    for _ in range(ELSEWHERE):
        if len(graph.consumers[key]) != 1:
            return False
        call = graph.calls[graph.consumers[key][0]]
        if base(call.name) not in ARITHMETIC:
            return base(call.name) in SOFTMAXES
        key = call.outputs[0].key
    return False


def _moves_tokens(graph: Graph, key: str, index: int, consumers: list[int]) -> bool:
    """Whether some tokens of a value are chosen, or tokens were put to their places to make it."""
    if len(graph.shape(key)) != 3 or not graph.ref[key].dtype.is_floating_point:
        return False
    chosen = any(base(graph.calls[other].name) == "gather" for other in consumers)
    return chosen or base(graph.calls[index].name) == "scatter"


def _turned_over(graph: Graph, key: str, call) -> bool:
    """Whether a call is a loop that takes a value part by part."""
    given = call.arguments.get("given", ()) if call.name == "turns" else ()
    return any(graph.root(ref.key) == key for ref in given)


def _shifts(graph: Graph, index: int, consumers: list[int]) -> bool:
    """Whether a call shifts a grid whose windows the one consumer, in a module within its own, then maps."""
    inside = graph.calls[consumers[0]].module.startswith(f"{graph.calls[index].module}.")
    return base(graph.calls[index].name) == "roll" and len(consumers) == 1 and inside


def _starts(graph: Graph, name: str, consumers: list[int]) -> bool:
    """Whether a call makes the zeros, or other single numbers, that loops start from, and nothing else."""
    calls = [graph.calls[index] for index in consumers]
    return bool(calls) and (name in FACTORIES or takes_shape(name)) and all(call.name == "turns" for call in calls)


def _gates(graph: Graph, key: str, index: int) -> bool:
    """Whether a value is what weighs the experts of a mixture."""
    call = graph.calls[index]
    return call.name == "experts" and graph.root(call.arguments["gates"].key) == key


def _of_map(graph: Graph, index: int) -> bool:
    """Whether a call takes what a linear map gave."""
    makers = [graph.made(graph.root(ref.key)) for ref in graph.inputs[index]]
    return any(call is not None and base(call.name) in PROJECTIONS for call in makers)


def _written_over(graph: Graph, key: str, consumers: list[int]) -> bool:
    """Whether all that becomes of a value is that something else is written into it."""
    calls = [graph.calls[index] for index in consumers]
    return all(call.name == "overwrite" and graph.root(call.arguments["old"].key) == key for call in calls)
