"""Rules on positions in attention: rotations of queries and keys, and the position of tokens behind a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.capture.calls import Call, Ref
from tracer.diagnostics.findings.batches import position_lookups
from tracer.diagnostics.findings.run_view import Evidence, rule
from tracer.graph.attention_sites import AttentionSite
from tracer.ops import ATTENTION, LINEAR, PROJECTIONS

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


ROTATION_TOLERANCE = 1e-3
"""How far a sum of squares of cosines and sines may be from that of the other angles."""


class Rotation(NamedTuple):
    """A rotation of vectors by their positions (Su et al. 2021): the product with its cosines, these, its sines, and
    the vectors."""

    call: Call
    cosines: torch.Tensor
    sines: torch.Tensor
    vectors: Ref


def find_rotation(run: RunView, key: str) -> Rotation | None:
    """Return the rotation of queries, keys or values after their projection, by the numbers of its tables: the squares
    of cosines and sines add up alike. None where there is none."""
    graph = run.graph

    def follows(value: str) -> bool:
        name = graph.call_of(value).op.name
        return name not in PROJECTIONS | LINEAR | {ATTENTION, "embedding"}

    tables: list[tuple[Call, torch.Tensor, Ref]] = []
    for value in graph.ancestors([key], follows):
        call = graph.producing_call(value)
        if call is None or call.op.name != "mul" or not follows(value):
            continue
        operands = [ref for ref in call.arguments.values() if isinstance(ref, Ref)]
        if len(operands) != 2:
            continue
        data = [ref for ref in operands if _is_projected(run, ref.key)]
        constant = [ref for ref in operands if ref not in data]
        numbers = run.value(constant[0].key) if len(data) == len(constant) == 1 else None
        if numbers is None or numbers.dim() < 1 or numbers.numel() < 2 or run.is_learned(constant[0].key):
            continue
        if numbers.is_complex():
            return Rotation(call, numbers.real, numbers.imag, data[0])
        if numbers.is_floating_point():
            tables.append((call, numbers, data[0]))
    for call, cosines, vectors in tables:
        for _, sines, _ in tables:
            if sines.shape != cosines.shape:
                continue
            squares = cosines.double().square() + sines.double().square()
            high = float(squares.max())
            turned = float(sines.double().square().mean()) < float(cosines.double().square().mean())
            if high > 0 and float(squares.min()) > (1 - ROTATION_TOLERANCE) * high and turned:
                return Rotation(call, cosines, sines, vectors)
    return None


def _is_projected(run: RunView, key: str) -> bool:
    """Return whether a value depends on inputs by a parameter or on floats of the input, and is no table."""
    graph = run.graph
    if graph.depends[key] != "x":
        return False
    calls = filter(None, map(graph.producing_call, graph.ancestors([key])))
    return any(call.op.name in PROJECTIONS | LINEAR | {"embedding"} for call in calls)


class Turned(NamedTuple):
    """What is wrong with the rotations of an attention: the call, a sentence, and the repair."""

    call: Call
    what: str
    repair: str


VALUES_TURNED = (
    "Values are rotated by their positions, as queries and keys are: what a token reads of another then depends on"
    " where that one stands, and not on how far it is."
)
ONE_TURNED = (
    "{one} are rotated by their positions, and {other} are not: scores then depend on the position of one of the two"
    " tokens, and not on how far they are apart."
)
OTHER_ANGLES = (
    "Queries and keys are rotated by other angles at the same positions, by up to {angle:.3g} radians: each token"
    " stands somewhere else as a query than as a key."
)
OTHER_AXIS = (
    "The angles of this rotation change along axis {axis} ({length} places) of the vectors, and attention is over"
    " {tokens} tokens: vectors are rotated by another number than their position."
)
ROTATE_BOTH = (
    "Rotate queries and keys alike, each at its own position, and leave values as they are: `q, k = rope(q), rope(k)`."
)
EXCHANGE = (
    "Exchange heads and tokens before the rotation, `[B, h, T, d_k]`, or give its tables an axis of heads:"
    " `cos[:, None]`."
)


def turned_sites(run: RunView) -> Iterator[Turned]:
    """Yield the attentions whose queries, keys and values are not rotated as they should be."""
    for site in run.sites:
        query, keys, values = (find_rotation(run, key) for key in (site.q, site.k, site.v))
        if query is None and keys is None:
            continue
        if values is not None:
            yield Turned(values.call, VALUES_TURNED, ROTATE_BOTH)
        if query is None or keys is None:
            turned = query or keys
            names = ("Queries", "keys") if keys is None else ("Keys", "queries")
            if turned is not None and all(_is_projected(run, key) for key in (site.q, site.k)):
                yield Turned(turned.call, ONE_TURNED.format(one=names[0], other=names[1]), ROTATE_BOTH)
            continue
        if (wrong := _other_axis(run, site, query)) is not None:
            yield wrong
        elif (angle := _angle(query, keys)) > ROTATION_TOLERANCE:
            yield Turned(keys.call, OTHER_ANGLES.format(angle=angle), ROTATE_BOTH)


def _angle(query: Rotation, keys: Rotation) -> float:
    """Return the largest angle between rotations at the same positions, those of the last queries and keys; 0 where
    they have no positions in common."""
    tables = [table.double().squeeze() for table in (query.cosines, keys.cosines, query.sines, keys.sines)]
    tables = [table.unsqueeze(0) if table.dim() < 2 else table for table in tables]
    if any(table.dim() != 2 or table.shape[1] != tables[0].shape[1] for table in tables):
        return 0.0
    count = min(len(table) for table in tables)
    cosines, other_cosines, sines, other_sines = (table[-count:] for table in tables)
    turn = torch.atan2(sines, cosines) - torch.atan2(other_sines, other_cosines)
    return float(torch.atan2(turn.sin(), turn.cos()).abs().max())


def _other_axis(run: RunView, site: AttentionSite, rotation: Rotation) -> Turned | None:
    """Return that a rotation goes along another axis than that of tokens; None if it does not, or if that is not
    known."""
    shape, table = rotation.vectors.shape, rotation.cosines
    if run.graph.calls[site.call].op.name == "einsum" or table.dim() > len(shape):
        return None
    padded = (1,) * (len(shape) - table.dim()) + tuple(table.shape)
    axes = [axis for axis, size in enumerate(padded[:-1]) if size > 1 and bool(_varies(table, axis - len(shape)))]
    record, queries = run.record(rotation.vectors.key), run.record(site.q)
    if len(axes) != 1 or record is None or queries is None:
        return None
    axis, tokens = axes[0], queries.shape[-2]
    names = record.symbolic[axis] if record.symbolic else "", queries.symbolic[-2] if queries.symbolic else ""
    if shape[axis] == tokens and (not all(names) or "?" in names or names[0] == names[1]):
        return None
    if len(queries.shape) != 4 or len(shape) != 4 or shape[axis] != queries.shape[1]:
        return None  # not that of heads
    return Turned(rotation.call, OTHER_AXIS.format(axis=axis, length=shape[axis], tokens=tokens), EXCHANGE)


def _varies(table: torch.Tensor, axis: int) -> torch.Tensor:
    return (table != table.narrow(axis, 0, 1)).any()


@rule(
    "rotary positions",
    turned_sites,
    "{what}",
    "{repair}",
    lesson="positions",
    runs_again=True,
)
def find_turned(run: RunView, turned: Turned) -> Evidence:
    """Find rotations that are not those of queries and keys alike.

    Source: Su et al. 2021, equation 16.
    """
    return Evidence(turned.call, what=turned.what, repair=turned.repair)


# The position of tokens whose keys stand behind those of a cache.


class CachedSite(NamedTuple):
    """An attention whose keys are those of a cache and those of new tokens: the call that joins them, and the number of
    keys of the cache."""

    site: AttentionSite
    call: Call
    length: int


def cached_sites(run: RunView) -> Iterator[CachedSite]:
    """Yield the attentions whose keys are joined to keys that were an input."""
    graph = run.graph
    for site in run.sites:
        call = graph.producing_call(graph.root(site.k))
        operands = call.arguments.get("tensors") if call is not None and "concat" in call.op.traits else None
        if call is None or not isinstance(operands, tuple) or len(operands) != 2:
            continue
        past, new = operands
        axis = call.arguments.get("dim", 0) % len(past.shape)
        if graph.depends[past.key] == "x" and not _is_projected(run, past.key) and _is_projected(run, new.key):
            yield CachedSite(site, call, past.shape[axis])


@rule(
    "position behind a cache",
    cached_sites,
    "{length} keys of a cache stand before those of the new tokens, and the first new token has position 0{how}: that"
    " of the first token of the cache.",
    "Count positions on from the cache: `torch.arange(past, past + T)`, with `past = past_k.shape[-2]`.",
    lesson="positions",
    runs_again=True,
)
def find_restart(run: RunView, cached: CachedSite) -> Evidence | None:
    """Find new tokens that are counted from 0 although keys of a cache stand before them."""
    site, call, length = cached
    rotation = find_rotation(run, site.q)
    if rotation is not None:
        angles = torch.atan2(rotation.sines.double(), rotation.cosines.double()).squeeze()
        first = angles if angles.dim() < 2 else angles[0]
        if angles.dim() <= 2 and float(first.abs().max()) == 0:
            return Evidence(
                rotation.call, call, at=rotation.call.first, length=length, how=", as its rotation by 0 says"
            )
        return None
    above = {*run.graph.ancestors([site.q])}
    for lookup in position_lookups(run):
        numbers = run.value(lookup.places.key)
        if lookup.call.outputs[0].key in above and numbers is not None and numbers.numel() and int(numbers.min()) == 0:
            return Evidence(lookup.call, call, at=lookup.call.first, length=length, how=" in the table of positions")
    return None
