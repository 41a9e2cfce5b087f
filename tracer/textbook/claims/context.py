"""Contexts in which claims are evaluated: a line of a run with its equation, and the run's textbook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tracer.expr import Node, tensors
from tracer.graph.attention_sites import AttentionSite
from tracer.graph.value_shapes import Shapes
from tracer.record import AttentionRecord
from tracer.textbook.roles import Roles

PARAMETER = "parameter "


@dataclass
class Subject:
    """The run that lines are of: its graph with the roles of lines, its shapes, its parameters by their paths, and its
    attentions as the recorder saw them. `masks` are the equations of masks by the keys of their tensors, `equations`
    those of the lines before by their keys."""

    roles: Roles
    shapes: Shapes
    parameters: Mapping[str, Any]
    records: Sequence[AttentionRecord]
    parts: Mapping[str, str]
    masks: dict[str, Node] = field(default_factory=dict)
    equations: dict[str, Node] = field(default_factory=dict)

    @cached_property
    def attention(self) -> dict[tuple[str, str], AttentionSite]:
        """The attention of each line, by its letter in it and the line's key."""
        roles, found = self.roles, {}
        for site in self.roles.plan.sites:
            trails = {letter: roles.trail(key) for letter, key in zip("QKV", (site.q, site.k, site.v), strict=True)}
            several = Counter(one for trail in trails.values() for one in trail)  # packed: of no letter alone
            found |= {(letter, one): site for letter, trail in trails.items() for one in trail if several[one] == 1}
            weights = roles.plan.upstream(site.weights) if site.weights else None
            context = roles.plan.downstream(site.result)
            if weights is not None:
                found["A", weights] = site
                found |= {("S", one): site for one in roles.operands[weights]}
            if context is not None:
                found["H", context] = site
                found |= {("O", one): site for one in roles.users[context]}
                if site.fused:
                    found |= {(letter, context): site for letter in "SA"}
        return found

    def record(self, site: AttentionSite) -> AttentionRecord | None:
        """Return the recording of an attention; None if there is none."""
        graph = self.roles.graph
        call = graph.calls[site.call] if site.fused else graph.call_of(site.weights or site.result)
        return next((one for one in self.records if call.first <= one.op < call.last), None)

    def trainable(self, key: str) -> bool:
        """Return whether a tensor is a trainable parameter, and no buffer."""
        front, star, back = key.removeprefix(PARAMETER).partition("*")
        if not star:
            found = [self.parameters[front]] if front in self.parameters else []
        else:
            found = [one for path, one in self.parameters.items() if path.startswith(front) and path.endswith(back)]
        return bool(found) and all(parameter.requires_grad for parameter in found)

    def made_of(self, key: str) -> set[str]:
        """Return the parameters and buffers that a value is computed from, through any calls."""
        graph, waiting, seen = self.roles.graph, [key], set()
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += [ref.key for ref in graph.inputs[graph.producer[one]]] if one in graph.producer else []
        return {one for one in seen if self.is_weight(one)}

    def is_weight(self, key: str) -> bool:
        """Return whether a tensor is a parameter or a buffer, and not of integers."""
        ref = self.roles.graph.ref.get(key)
        return key.startswith(PARAMETER) and (ref is None or ref.dtype.is_floating_point)


@dataclass(frozen=True)
class Context:
    """A line in its textbook: its key in the graph, its label key, and its equation."""

    run: Subject
    key: str
    part: str
    equation: Node

    @property
    def role(self) -> str:
        """The role of the line, without primes."""
        return self.run.roles.of.get(self.key, "").rstrip("'")

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the lines that it is computed from."""
        return self.run.roles.operands[self.key]

    @property
    def operand_roles(self) -> set[str]:
        return {self.run.roles.of.get(one, "").rstrip("'") for one in self.operands}

    @property
    def user_roles(self) -> set[str]:
        """The roles of the lines that use it."""
        return {self.run.roles.of.get(one, "").rstrip("'") for one in self.run.roles.users[self.key]}

    def within(self, letter: str) -> AttentionSite | None:
        """Return the attention in which this line is `letter`, or None.

        Letters are queries "Q", keys "K", values "V", scores "S", weights "A", context "H" and output "O".
        """
        return self.run.attention.get((letter, self.key))

    @cached_property
    def record(self) -> AttentionRecord | None:
        """The recording of the attention that the line belongs to."""
        site = next((site for letter in "QKVSAHO" if (site := self.within(letter)) is not None), None)
        return None if site is None else self.run.record(site)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters and buffers in the equation, by their keys."""
        return tuple(one.key for one in tensors(self.equation) if self.run.is_weight(one.key))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.run.roles.graph.shape(self.key)

    def widths(self) -> tuple[str, str]:
        """Return the last sizes, in symbols, of the line's operands and of itself; "" for a scalar."""
        before = [self.run.shapes.of(one) for one in self.operands]
        own = self.run.shapes.of(self.key)
        return str(before[-1][-1]) if before and before[-1] else "", str(own[-1]) if own else ""

    def block(self, key: str = "") -> str:
        """Return the path of the block that contains a line, by default this one."""
        roles = self.run.roles
        return roles.places.prefix(roles.module(key or self.key))

    def siblings(self) -> Iterator[str]:
        """Yield the lines of the same block."""
        own = self.block()
        yield from (key for key in self.run.roles.plan.lines if own and self.block(key) == own)
