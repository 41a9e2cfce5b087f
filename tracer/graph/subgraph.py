"""Calls that are one thing in a textbook, put in the place of the many that a run made for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple


class Made(NamedTuple):
    """In the place of an op, for a call that no op is: its name, and those of its arguments."""

    name: str
    arguments: tuple[str, ...]

    @property
    def _schema(self):
        given = [
            SimpleNamespace(name=name, has_default_value=lambda: False, kwarg_only=False) for name in self.arguments
        ]
        return SimpleNamespace(name=f"tracer::{self.name}", arguments=given)

    def __str__(self) -> str:
        return f"tracer.{self.name}.default"
