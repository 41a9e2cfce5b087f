"""Contexts in which claims are evaluated: a line of a run with its equation, and the run's textbook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
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
    """Run that lines belong to: its graph with the roles of lines, its shapes, its parameters by their paths, and its
    recorded attentions. `masks` are the equations of masks by the keys of their tensors, `equations` those of earlier
    lines by their keys."""

    roles: Roles
    shapes: Shapes
    parameters: Mapping[str, Any]
    records: Sequence[AttentionRecord]
    parts: Mapping[str, str]
    masks: dict[str, Node] = field(default_factory=dict)
    equations: dict[str, Node] = field(default_factory=dict)

    @cached_property
    def attention(self) -> dict[tuple[str, str], AttentionSite]:
        """Attention of each line, by its letter in it and the line's key."""
        roles, trail_of = self.roles, {}
        for site in self.roles.plan.sites:
            trails = {letter: roles.trail(key) for letter, key in zip("QKV", (site.q, site.k, site.v), strict=True)}
            several = Counter(line for trail in trails.values() for line in trail)  # packed: of no letter alone
            trail_of |= {
                (letter, line): site for letter, trail in trails.items() for line in trail if several[line] == 1
            }
            weights = roles.plan.upstream(site.weights) if site.weights else None
            context = roles.plan.downstream(site.result)
            if weights is not None:
                trail_of["A", weights] = site
                trail_of |= {("S", line): site for line in roles.operands[weights]}
            if context is not None:
                trail_of["H", context] = site
                trail_of |= {("O", line): site for line in roles.users[context]}
                if site.fused:
                    trail_of |= {(letter, context): site for letter in "SA"}
        return trail_of

    def record(self, site: AttentionSite) -> AttentionRecord | None:
        """Return the recording of an attention; None if there is none."""
        graph = self.roles.graph
        call = graph.calls[site.call] if site.fused else graph.call_of(site.weights or site.result)
        return next((record for record in self.records if call.first <= record.op < call.last), None)

    def trainable(self, key: str) -> bool:
        """Return whether a tensor is a trainable parameter rather than a buffer."""
        front, star, back = key.removeprefix(PARAMETER).partition("*")
        if not star:
            matching = [self.parameters[front]] if front in self.parameters else []
        else:
            matching = [
                weight for path, weight in self.parameters.items() if path.startswith(front) and path.endswith(back)
            ]
        return bool(matching) and all(parameter.requires_grad for parameter in matching)

    def made_of(self, key: str) -> set[str]:
        """Return the parameters and buffers that a value is computed from, through any calls."""
        graph, waiting, visited = self.roles.graph, [key], set()
        while waiting:
            origin = waiting.pop()
            if origin not in visited:
                visited.add(origin)
                waiting += [ref.key for ref in graph.inputs[graph.producer[origin]]] if origin in graph.producer else []
        return {origin for origin in visited if self.is_weight(origin)}

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
        """Role of the line, without primes."""
        return self.run.roles.of.get(self.key, "").rstrip("'")

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the lines that this one is computed from."""
        return self.run.roles.operands[self.key]

    @property
    def operand_roles(self) -> set[str]:
        return {self.run.roles.of.get(operand, "").rstrip("'") for operand in self.operands}

    @property
    def user_roles(self) -> set[str]:
        """Roles of the lines that use this one."""
        return {self.run.roles.of.get(user, "").rstrip("'") for user in self.run.roles.users[self.key]}

    def attention_with(self, letter: str) -> AttentionSite | None:
        """Return the attention in which this line is `letter`, or None.

        Letters are queries "Q", keys "K", values "V", scores "S", weights "A", context "H" and output "O".
        """
        return self.run.attention.get((letter, self.key))

    @cached_property
    def record(self) -> AttentionRecord | None:
        """Recording of the attention that the line belongs to."""
        site = next((site for letter in "QKVSAHO" if (site := self.attention_with(letter)) is not None), None)
        return None if site is None else self.run.record(site)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters and buffers in the equation, by their keys."""
        return tuple(tensor.key for tensor in tensors(self.equation) if self.run.is_weight(tensor.key))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.run.roles.graph.shape(self.key)

    def widths(self) -> tuple[str, str]:
        """Return the last sizes, in symbols, of the line's operands and of itself; "" for a scalar."""
        before = [self.run.shapes.of(operand) for operand in self.operands]
        own = self.run.shapes.of(self.key)
        return str(before[-1][-1]) if before and before[-1] else "", str(own[-1]) if own else ""

    def block(self, key: str = "") -> str:
        """Return the path of the block that contains a line, by default this one."""
        return self.run.roles.block(key or self.key)

    def siblings(self) -> tuple[str, ...]:
        """Return the lines of the same block; none outside all blocks."""
        own = self.block()
        return self.run.roles.lines_by_block[own] if own else ()
