"""Tensor tracer: every shape, equation and attention map of a transformer's forward pass, proven by the run.

>>> import tracer
>>> model = tracer.load("vit")
>>> trace = model.trace()                   # the sample photo; or image=…, a PIL photo
>>> trace.steps[0].symbolic
('B', 'N', 'C*P**2')
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
_HOME = {"load": "tracer.models", "trace": "tracer.tracing", "open": "tracer.record.storage", "Trace": "tracer.record"}
__all__ = [*_HOME, "inputs"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for, so that `import tracer` needs no torch."""
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "inputs":
        return import_module("tracer.inputs.images") and import_module("tracer.inputs")
    raise AttributeError(f"module 'tracer' has no attribute {name!r}")
