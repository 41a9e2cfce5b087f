"""Calls that are one thing in a textbook, put in the place of the many that a run made for it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

from tracer.ops import base
from tracer.recorder.calls import Call, Calls, refs


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


class Flow:
    """Who makes and who takes the values of a list of calls, by the numbers of the calls."""

    def __init__(self, made: list[Call], calls: Calls):
        self.calls, self.outputs = made, {ref.key for ref in calls.outputs}
        self.inputs = [tuple(dict.fromkeys(refs(call.arguments))) for call in made]
        self.maker: dict[str, int] = {}
        self.takers: dict[str, list[int]] = {}
        self.ref = {ref.key: ref for ref in calls.inputs}
        self.shape = calls.weights | {ref.key: ref.shape for ref in calls.inputs}
        for index, call in enumerate(made):
            given = {ref.key for ref in self.inputs[index]}
            for ref in self.inputs[index]:
                self.takers.setdefault(ref.key, []).append(index)
                self.ref.setdefault(ref.key, ref)
                self.shape.setdefault(ref.key, ref.shape)
            for ref in call.outputs:
                if ref.key not in given:
                    self.maker.setdefault(ref.key, index)
                    self.ref[ref.key] = ref
                    self.shape[ref.key] = ref.shape

    def name(self, index: int) -> str:
        """What a call computes."""
        return base(self.calls[index].name)

    def made(self, key: str) -> Call | None:
        """The call that made a value."""
        return self.calls[self.maker[key]] if key in self.maker else None

    def only_in(self, region: set[int], may: Callable[[Call], bool]) -> set[int]:
        """These calls with those before them that `may` be of them and whose values nothing else takes."""
        found, waiting = set(region), list(region)
        while waiting:
            for ref in self.inputs[waiting.pop()]:
                index = self.maker.get(ref.key)
                if index is None or index in found or ref.key in self.outputs or not may(self.calls[index]):
                    continue
                if all(taker in found for one in self.calls[index].outputs for taker in self.takers.get(one.key, ())):
                    found.add(index)
                    waiting.append(index)
        return found


def replaced(made: list[Call], groups: list[tuple[set[int], Call]]) -> list[Call]:
    """The calls with each group's one call in the place of the last of the group."""
    gone = {index for group, _ in groups for index in group}
    there = {max(group): call for group, call in groups}
    return [there.get(index, call) for index, call in enumerate(made) if index in there or index not in gone]
