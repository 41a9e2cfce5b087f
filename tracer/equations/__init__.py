"""Equations: each step's line of mathematics as one sympy object, printed and executed.

Every file of this folder that defines nodes is found by itself; its nodes are importable from here.
"""

from importlib import import_module
from pkgutil import iter_modules

from tracer.equations.node import (
    Node,
    ShapeError,
    Tensor,
    execute,
    infer,
    latex,
    parameter,
    statement,
    tensors,
    weight,
)

__all__ = ["Node", "ShapeError", "Tensor", "execute", "infer", "latex", "parameter", "statement", "tensors", "weight"]

for _file in iter_modules(__path__):
    _module = import_module(f"{__name__}.{_file.name}")
    for _name, _value in vars(_module).items():
        if isinstance(_value, type) and issubclass(_value, Node) and not _name.startswith("_"):
            globals()[_name] = _value
            __all__.append(_name)
