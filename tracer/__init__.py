"""Tensor tracer: every shape, equation and attention map of a transformer's forward pass, checked against the run.

Examples:
    >>> import tracer
    >>> model = tracer.load("vit")
    >>> trace = model.trace()               # the sample photo; or image=…, a PIL photo
    >>> trace.steps[0].symbolic
    ('B', 'N', 'C*P**2')
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tracer.utils.lazy_import import register_providers

__version__ = "0.1.0"
__all__ = ["Trace", "changes", "compare", "explain", "inputs", "load", "open", "trace"]

register_providers(
    {
        "attention": "tracer.attention:weights",
        "cell": "tracer.tracing.provenance:cell",
        "film": "tracer.figures.film:film",
        "findings": "tracer.diagnostics.findings:find",
        "html": "tracer.export:html",
        "html of findings": "tracer.export.to_html:findings",
        "html of a step": "tracer.export.to_html:step",
        "save": "tracer.serialization:save",
        "table": "tracer.export:table",
        "users": "tracer.tracing.provenance:users",
    }
)

if TYPE_CHECKING:
    from tracer import changes, inputs
    from tracer.comparison import compare
    from tracer.diagnostics.failures import explain
    from tracer.models import load
    from tracer.record import Trace
    from tracer.serialization import open
    from tracer.tracing import trace
else:
    _MODULES = {
        "Trace": "tracer.record",
        "compare": "tracer.comparison",
        "explain": "tracer.diagnostics.failures",
        "load": "tracer.models",
        "open": "tracer.serialization",
        "trace": "tracer.tracing",
    }

    def __getattr__(name):
        """Import a public name when it is first asked for, so that `import tracer` needs no torch."""
        if name in _MODULES:
            globals()[name] = value = getattr(import_module(_MODULES[name]), name)
            return value
        if name == "changes":
            return import_module("tracer.changes")
        if name == "inputs":
            import_module("tracer.inputs.images")
            return import_module("tracer.inputs")
        raise AttributeError(f"module 'tracer' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names alone, for completion."""
    return [*__all__, "__version__"]
