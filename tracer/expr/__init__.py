"""Equations: each step's line of mathematics as one sympy object, printed and executed.

Every file below this folder that defines nodes is found by itself; its nodes are importable from here.
"""

from functools import cache
from importlib import import_module
from pkgutil import walk_packages

from tracer.expr import arithmetic  # noqa: F401 # nodes can be added up from now on
from tracer.expr.node import Node, ShapeError, Tensor, execute, infer, latex, parameter, statement, tensors, weight

__all__ = [
    "Node",
    "ShapeError",
    "Tensor",
    "execute",
    "infer",
    "latex",
    "nodes",
    "parameter",
    "statement",
    "tensors",
    "weight",
]


@cache
def nodes() -> dict[str, type[Node]]:
    """Every node by its name; those whose names begin with an underscore are parts of others."""
    for file in walk_packages(__path__, f"{__name__}."):
        import_module(file.name)
    classes, waiting = {}, [Node]
    while waiting:
        node = waiting.pop()
        waiting += node.__subclasses__()
        if node.__module__.startswith(f"{__name__}.") and not node.__name__.startswith("_"):
            classes[node.__name__] = node
    return dict(sorted(classes.items()))


def __getattr__(name: str) -> type[Node]:
    if not name.startswith("_") and name in nodes():
        return nodes()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
