"""Parameters of the modules in a list, such as experts: those of one name are one tensor with a part for each module.

Its key has `*` in the place of the module's number: `parameter experts.*.up.weight`.
"""

from __future__ import annotations

from typing import NamedTuple

from tracer.graph.dataflow import Graph

GIVEN = "parameter "


class Listed(NamedTuple):
    """The key of all of one name, and the number of the module that one of them is of."""

    key: str
    number: int


def listed(graph: Graph, key: str, count: int) -> Listed | None:
    """What a parameter is a part of, where just so many modules, counted from 0, have one of its name and shape."""
    parts = key.split(".")
    for place in reversed(range(len(parts) if key.startswith(GIVEN) else 0)):
        if parts[place].isdecimal() and int(parts[place]) < count:
            others = [".".join([*parts[:place], str(number), *parts[place + 1 :]]) for number in range(count + 1)]
            if [graph.shapes.get(other) == graph.shapes[key] for other in others] == [True] * count + [False]:
                return Listed(".".join([*parts[:place], "*", *parts[place + 1 :]]), int(parts[place]))
    return None
