"""Parameters of modules in a list, such as experts: those of one name are stacked into one tensor.

The key of the stack has `*` for the module's index: `parameter experts.*.up.weight`.
"""

from __future__ import annotations

from typing import NamedTuple

from tracer.graph.dataflow import Graph

PARAMETER_PREFIX = "parameter "


class ListParameter(NamedTuple):
    """A parameter of a module in a list: the key of the stack, and the index of the module."""

    key: str
    number: int


def list_parameter(graph: Graph, key: str, count: int) -> ListParameter | None:
    """Return the stack that a parameter belongs to; None unless exactly `count` modules have one of its name and
    shape."""
    parts = key.split(".")
    for place in reversed(range(len(parts) if key.startswith(PARAMETER_PREFIX) else 0)):
        if parts[place].isdecimal() and int(parts[place]) < count:
            others = [".".join([*parts[:place], str(number), *parts[place + 1 :]]) for number in range(count + 1)]
            if [graph.shapes.get(sibling) == graph.shapes[key] for sibling in others] == [True] * count + [False]:
                return ListParameter(".".join([*parts[:place], "*", *parts[place + 1 :]]), int(parts[place]))
    return None
