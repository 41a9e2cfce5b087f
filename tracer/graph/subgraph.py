"""Synthetic ops for calls that replace a subgraph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple


class SyntheticOp(NamedTuple):
    """A stand-in for an op: a name and argument names, for a call that no ATen op computes."""

    name: str
    arguments: tuple[str, ...]

    @property
    def schema(self) -> SimpleNamespace:
        arguments = [
            SimpleNamespace(name=name, has_default_value=lambda: False, kwarg_only=False) for name in self.arguments
        ]
        return SimpleNamespace(name=f"tracer::{self.name}", arguments=arguments)

    def __str__(self) -> str:
        return f"tracer.{self.name}.default"
