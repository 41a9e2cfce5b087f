"""Roles in mixtures of experts and in loops over time: what chooses and weighs, what stays of a state and enters it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracer.capture.composite_calls import refs
from tracer.expr.nn.scan import BEFORE, PARTS
from tracer.ops import CONCATENATIONS, LINEAR, MATMULS, base

if TYPE_CHECKING:
    from tracer.graph.passes.loop_body import Turn
    from tracer.textbook.roles import Roles


def experts(roles: Roles) -> None:
    """Mixtures of experts, with what chose and what weighs them."""
    graph = roles.graph
    for key in roles.plan.lines:
        call = roles.call(key)
        if call is None or call.name != "experts":
            continue
        roles.of[key] = "F"
        x, gates = (graph.root(call.arguments[name].key) for name in ("x", "gates"))
        chosen = graph.root(one.key) if (one := call.arguments["chosen"]) is not None else ""
        lines = {graph.root(line): line for line in roles.plan.lines}
        for name, role in ((chosen, "chosen"), (gates, "gates")):
            if name in lines:
                roles.of.setdefault(lines[name], role)
        waiting = [lines[name] for name in (chosen, gates) if name in lines]
        while waiting:
            line = waiting.pop()
            for operand in roles.operands[line]:
                if graph.root(operand) == x or operand in roles.of:
                    continue
                name = roles.name(operand)
                role = "router" if name in LINEAR else "routed" if name in ("softmax", "sigmoid") else "top"
                if role == "top" and graph.shape(operand) != call.arguments["gates"].shape:
                    continue
                roles.of[operand] = role
                waiting.append(operand)


def loops(roles: Roles) -> None:
    """States that a loop carries on, and what multiplies and joins them, as in state-space models."""
    lines = {roles.graph.root(line): line for line in roles.plan.lines}
    turns = {
        key: call.arguments["turn"] for key in roles.plan.lines if (call := roles.call(key)) and call.name == "turns"
    }
    states = {of for turn in turns.values() for _, what, _, of, _ in turn.places if what == BEFORE}
    _cells(roles, turns, states)
    now = {of for turn in turns.values() for _, what, _, of, _ in turn.places if what in PARTS}
    for key, turn in turns.items():
        if turn.own in now and turn.own not in states:  # a step on the way to a state
            continue
        wholes = {at: roles.graph.root(of) for at, what, _, of, _ in turn.places if what in PARTS}
        before = {at for at, what, _, of, _ in turn.places if what == BEFORE and of == turn.own}
        cell = any(one.name == "lstm_cell" and one.outputs[1].key == turn.key for one in turn.calls)
        roles.of.setdefault(key, ("cell" if cell else "state") if turn.own in states else "read")
        if not before:
            continue
        carried = set()
        for one in turn.calls:
            given = [ref.key for ref in refs(one.arguments)]
            name = base(one.name)
            role = "decay" if name == "mul" and before & set(given) else "enter" if name == "add" else ""
            if role == "decay":
                carried |= {ref.key for ref in one.outputs}
            for at in given if role == "decay" or carried & set(given) else ():
                if role and wholes.get(at) in lines:
                    roles.of.setdefault(lines[wholes[at]], role)
                    _step_size(roles, lines[wholes[at]], role)


def _cells(roles: Roles, turns: dict[str, Turn], carried: set[str]) -> None:
    """The states of a loop beside the one that linear maps take: of a cell, what that is divided by, and the largest
    exponent (Hochreiter and Schmidhuber 1997; Beck et al. 2024)."""
    found: dict[tuple, dict[str, Turn]] = {}
    for key, turn in turns.items():
        if turn.own in carried and (call := roles.call(key)) is not None:
            found.setdefault((call.module, call.call), {})[key] = turn
    for states in found.values():
        own = {turn.own: key for key, turn in states.items()}
        mapped, divides = set(), set()
        for turn in turns.values():
            of = {at: own.get(sequence) for at, _, _, sequence, _ in turn.places}
            for one in turn.calls:
                name, given = base(one.name), [of.get(ref.key) for ref in refs(one.arguments)]
                joined = next(filter(None, given), None) if name in CONCATENATIONS else None
                of |= {ref.key: joined for ref in one.outputs if joined}
                mapped.update(given if name in LINEAR | MATMULS else ())
                divides.update(given[1:2] if name == "div" else ())
        for key, turn in states.items() if mapped - {None} and states.keys() - mapped else ():
            made = {base(one.name) for one in turn.calls if turn.key in {ref.key for ref in one.outputs}}
            if key not in mapped and made != {"lstm_cell"}:
                roles.of[key] = (
                    "stabiliser" if made == {"maximum"} else "state normaliser" if key in divides else "cell"
                )


def _step_size(roles: Roles, line: str, role: str) -> None:
    """The width of a step in time, which the decay is made of."""
    for operand in roles.operands[line] if role == "decay" else ():
        if roles.name(operand) == "softplus":
            roles.of.setdefault(operand, "delta")
