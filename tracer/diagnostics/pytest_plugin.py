"""A plugin for pytest: runs of a module as a fixture, and its findings as failures.

pytest loads it where this package is installed; in a checkout, `-p tracer.diagnostics.pytest_plugin` does.

Examples:
    def test_shapes(trace_module):
        trace = trace_module(MyModel().eval(), torch.randn(2, 5, 16), symbols={"B": 0, "T": 1})
        assert trace.step("attention.scores").symbolic == ("B", "4", "T", "T")

    def test_no_findings(trace_module, assert_no_findings):
        assert_no_findings(trace_module(MyModel().eval(), torch.randn(2, 5, 16), symbols={"B": 0, "T": 1}))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tracer.record import Trace


@pytest.fixture
def trace_module() -> Callable[..., Trace]:
    """Return `tracer.trace` without gradients, with lazy proofs: a step is verified when a test reads its verdict."""

    def run(module: Any, *args: Any, **named: Any) -> Trace:
        import torch  # a test run that traces nothing needs none

        from tracer.tracing import trace  # loads torch

        with torch.no_grad():
            return trace(module, *args, **{"prove": "later", **named})

    return run


@pytest.fixture
def assert_no_findings() -> Callable[[Trace], None]:
    """Return a check of a run that fails with one line for each finding that nobody acknowledged."""

    def check(trace: Trace) -> None:
        from tracer.diagnostics import findings  # loads torch

        if lines := list(findings.report(trace)):
            pytest.fail("\n".join(lines), pytrace=False)

    return check
