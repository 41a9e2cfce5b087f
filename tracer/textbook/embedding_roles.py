"""Roles before the first block: patches and their embedding, what is joined to a sequence, places and their angles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracer.graph.module_tree import own_name
from tracer.ops import JOINS, LINEAR, base

if TYPE_CHECKING:
    from tracer.textbook.roles import Roles

TOKENS = frozenset(("E", "I", "sequence", "position", "chosen tokens", "put"))
"""Roles of sequences before the first block."""


def beginnings(roles: Roles) -> None:
    """Patches and their embedding, what is joined to a sequence, angles of rotary positions."""
    graph = roles.graph
    photos = {ref.key for ref in graph.given if len(ref.shape) == 4 and ref.dtype.is_floating_point}
    for key in roles.plan.lines:
        call, name = roles.call(key), roles.name(key)
        if call is None:
            root = graph.root(key)
            if root in photos and len(graph.shape(key)) == 3:
                roles.of.setdefault(key, "patches")
            continue
        if key in roles.of or roles.places.numbers(call.module):
            continue
        given = {graph.root(ref.key) for ref in roles.given(key)}
        patches = any(roles.of.get(operand) == "patches" for operand in roles.operands[key])
        cut = name == "conv2d" and given & photos and call.arguments["weight"].shape[2:] == call.arguments["stride"]
        if (name in LINEAR and patches) or cut:
            roles.of[key] = "I"
        elif name in JOINS and any(_of_patches(roles, one) for one in roles.operands[key]):
            roles.of[key] = "sequence"
        elif name == "gather" and roles.of_operands(key) & TOKENS:
            roles.of[key] = "chosen tokens"
        elif name == "scatter" and len(roles.graph.shape(key)) == 3:
            roles.of[key] = "put"
        elif name == "embedding":
            _looked_up(roles, key, call)
        elif name == "sinusoids":
            roles.of[key] = "P"
        elif name == "mul" and "embedding" in roles.inside(key):
            roles.of[key] = "E"
        elif name == "add" and _adds_places(roles, key):
            roles.of[key] = "position"
        elif name in ("cos", "sin") or ({"cos", "sin"} & roles.inside(key) and name == "mul"):
            roles.of[key] = "cosine" if "cos" in roles.inside(key) else "sine"
            for operand in roles.operands[key]:
                roles.of.setdefault(operand, "angles")
                for places in roles.operands[operand]:
                    if not graph.ref[places].dtype.is_floating_point:
                        roles.of.setdefault(places, "places")
        elif graph.depends[key] != "x" and _of_position(call.module) and len(graph.shape(key)) > 1:
            left = [user for user in roles.users[key] if not roles.module(user).startswith(call.module)]
            if left and graph.ref[key].dtype.is_floating_point:
                roles.of[key] = "P"


def _of_position(path: str) -> bool:
    """Whether a module or a parameter is one of positions, by its own name."""
    return "pos" in own_name(path.removesuffix(".weight")).lower()


def placed(roles: Roles, key: str) -> bool:
    """Whether a sum is of tokens and positions, for queries and keys alone."""
    users = {roles.of.get(user, "")[:1] for user in roles.users[key]}
    given = [roles.graph.root(ref.key) for ref in roles.given(key)]
    made = [call.module if (call := roles.graph.made(root)) is not None else root for root in given]
    return bool(users) and users <= {"Q", "K"} and any(map(_of_position, made))


def _of_patches(roles: Roles, key: str) -> bool:
    """Whether a line is embedded patches, perhaps with something added that all photos have."""
    if roles.of.get(key) == "I":
        return True
    return roles.name(key) == "add" and len(roles.operands[key]) == 1 and _of_patches(roles, roles.operands[key][0])


def _looked_up(roles: Roles, key: str, call) -> None:
    """Rows of a table: those of the tokens that were given, or of their places."""
    numbers = call.arguments["indices"].key
    roles.of[key] = "E" if roles.graph.depends[numbers] == "x" else "P"
    _numbered(roles, numbers)


def _numbered(roles: Roles, numbers: str) -> None:
    """The line that makes the numbers of a table's rows has a role of its own, where no input has to do with it."""
    places = roles.plan.named_root(numbers)
    if roles.graph.depends[numbers] != "x" and places in roles.plan.named:
        roles.of.setdefault(places, "places" if roles.graph.depends[numbers] == "c" else "types")


def _adds_places(roles: Roles, key: str) -> bool:
    """Whether a sum adds something that is the same for all inputs to tokens."""
    inside = [roles.graph.calls[i] for i in roles.plan.inside[roles.plan.computed(key)]]
    for call in inside:
        if base(call.name) == "embedding":
            _numbered(roles, call.arguments["indices"].key)
    given = roles.given(key)
    tokens = roles.of_operands(key) & TOKENS
    same = [ref for ref in given if roles.graph.depends[ref.key] != "x" and len(ref.shape) > 1]
    tokens |= {"E"} if any(base(call.name) == "embedding" for call in inside) and same else set()
    placed = any(roles.of.get(operand) == "P" for operand in roles.operands[key])
    return bool(tokens) and (bool(same) or placed)
