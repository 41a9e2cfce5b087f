"""Layered layout of steps and the lines between them: ranks from top to bottom, lanes from left to right.

It follows Sugiyama et al. (1981). A value that is carried past a whole branch, such as a residual stream, is one
straight line on the left. The layout knows nothing of transformers, only the producers and users of tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

GAP, PORT = 0.5, 0.0
"""The height of a line's corner: the middle between two ranks, or that of the box that it enters from the side."""


class Wire(NamedTuple):
    """A line from one box to another: its corners as (lane, rank), where rank + 0.5 is between two ranks."""

    source: str
    target: str
    points: tuple[tuple[float, float], ...]


class Circuit(NamedTuple):
    """(lane, rank) of each box, the wires, and the number of lanes and ranks."""

    places: dict[str, tuple[float, int]]
    wires: tuple[Wire, ...]
    lanes: float
    ranks: int


def circuit(nodes: Sequence[str], takes: Mapping[str, Iterable[str]]) -> Circuit:
    """Return the layout of `nodes`, each below its producers; producers that are not among `nodes` are left out."""
    known = set(nodes)
    edges = [(source, node) for node in nodes for source in dict.fromkeys(takes.get(node, ())) if source in known]
    ranks = _ranks(nodes, edges)
    spine, carried = _spine(edges, ranks)
    lanes, through = _lanes(nodes, edges, ranks, spine, carried)
    places = {node: (lanes[node], ranks[node]) for node in nodes}
    wires = _tracks([_wire(edge, places, through, spine) for edge in edges])
    most = max([lane for lane, _ in places.values()] + [x for wire in wires for x, _ in wire.points], default=0)
    return Circuit(places, wires, most + 1, max(ranks.values(), default=-1) + 1)


def _ranks(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the rank of each node: below all of its producers; a node without any is right above its first user."""
    before: dict[str, list[str]] = {node: [] for node in nodes}
    after: dict[str, list[str]] = {node: [] for node in nodes}
    for tail, head in edges:
        before[head].append(tail)
        after[tail].append(head)
    ranks: dict[str, int] = {}
    for node in nodes:
        ranks[node] = 1 + max((ranks[tail] for tail in before[node]), default=-1)
    for node in reversed(nodes[1:]):
        if not before[node] and after[node]:
            ranks[node] = max(0, min(ranks[tail] for tail in after[node]) - 1)
    return ranks


def _spine(edges: Sequence[tuple[str, str]], ranks: Mapping[str, int]) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the nodes and edges that pass a branch on the main path.

    These nodes hang on edges around a longer path, one such edge below the next.
    """
    after: dict[str, list[str]] = {}
    for tail, head in edges:
        after.setdefault(tail, []).append(head)

    def leads(tail: str, head: str) -> bool:
        """Return whether a path other than the edge joins the two nodes."""
        visited, left = set(), [next_ for next_ in after.get(tail, ()) if next_ != head]
        while left:
            at = left.pop()
            if at == head:
                return True
            if at not in visited and ranks[at] < ranks[head]:
                visited.add(at)
                left += after.get(at, ())
        return False

    spine: set[str] = set()
    carried: set[tuple[str, str]] = set()
    free = 0
    for tail, head in sorted(edges, key=lambda edge: (ranks[edge[0]], -ranks[edge[1]])):
        if ranks[head] - ranks[tail] > 1 and ranks[tail] >= free and leads(tail, head):
            spine |= {tail, head}
            carried.add((tail, head))
            free = ranks[head]
    return spine, carried


def _lanes(nodes, edges, ranks, spine, carried) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """Return the lane of each node, and of each edge that crosses ranks."""
    before: dict[str, list[str]] = {node: [] for node in nodes}
    for tail, head in edges:
        before[head].append(tail)
    beside = {rank for tail, head in carried for rank in range(ranks[tail], ranks[head] + 1)}
    lanes: dict[str, float] = {}
    through: dict[tuple[str, str], float] = dict.fromkeys(carried, 0.0)
    for rank in range(max(ranks.values(), default=-1) + 1):
        wanted: list[tuple[float, int, str | tuple[str, str]]] = []
        left = 1.0 if rank in beside else 0.0
        for edge in edges:
            if edge not in carried and ranks[edge[0]] < rank < ranks[edge[1]]:
                wanted.append((through.get(edge, lanes[edge[0]] if edge[0] not in spine else left), 0, edge))
        for node in nodes:
            if ranks[node] != rank:
                continue
            if node in spine:
                lanes[node] = 0.0
                continue
            near = [tail for tail in before[node] if ranks[tail] == max(ranks[each] for each in before[node])]
            free = [max(left, lanes[tail]) if tail in spine else lanes[tail] for tail in near]
            if not free:  # it stands next to what stands there already
                free = [max((lane for lane, _, item in wanted if isinstance(item, str)), default=left - 1) + 1]
            wanted.append((round(2 * sum(free) / len(free)) / 2, 1, node))
        for item, lane in _apart(wanted, left):
            if isinstance(item, str):
                lanes[item] = lane
            else:
                through[item] = lane
    return lanes, through


def _apart(wanted: list, left: float) -> list[tuple]:
    """Return the items of a rank at least one lane apart, each as near as possible to its wanted lane.

    Items that want the same lane fan out from it, to both sides if there is room. Lines of one box share a lane.
    """
    placed: list[tuple] = []
    taken: list[float] = []
    at: dict[str, float] = {}
    last = left - 1
    for lane, _, item in sorted(wanted, key=lambda entry: (entry[0], entry[1])):
        if not isinstance(item, str) and item[0] in at:
            placed.append((item, at[item[0]]))
            continue
        place = max(lane, last + 1)
        if not isinstance(item, str):
            at[item[0]] = place
        taken.append(place)
        placed.append((item, place))
        last = place
    return placed


def _tracks(wires: Sequence[Wire]) -> tuple[Wire, ...]:
    """Return the lines with those of different boxes separated where they cross between the same two ranks."""
    across: dict[float, dict[str, tuple[float, float]]] = {}
    for wire in wires:
        for (x, y), (corner, below) in pairwise(wire.points):
            if y == below and y % 1:
                low, high = across.setdefault(y, {}).get(wire.source, (x, x))
                across[y][wire.source] = min(low, x, corner), max(high, x, corner)
    height: dict[tuple[str, float], float] = {}
    for y, spans in across.items():
        tracks: list[float] = []
        of: dict[str, int] = {}
        for source, (low, high) in sorted(spans.items(), key=lambda item: item[1]):
            of[source] = next((number for number, end in enumerate(tracks) if end <= low), len(tracks))
            tracks[of[source] :] = [high, *tracks[of[source] + 1 :]]
        height |= {(source, y): y - GAP + (number + 1) / (len(tracks) + 1) for source, number in of.items()}
    return tuple(
        wire._replace(points=tuple((x, height.get((wire.source, y), y)) for x, y in wire.points)) for wire in wires
    )


def _wire(edge, places, through, spine) -> Wire:
    """Return the corners of a line: down from its box, across between two ranks, and down into the other box.

    It enters a box from the side if other lines enter the box from above.
    """
    (x, top), (end, bottom) = places[edge[0]], places[edge[1]]
    joins = edge[1] in spine and edge[0] not in spine
    lane = through.get(edge, end if bottom - top == 1 and not joins else x)
    points = [(x, float(top))]
    if lane != x:
        points += [(x, top + GAP), (lane, top + GAP)]
    if lane != end:
        beside = joins or bottom - top > 1
        points += [(lane, float(bottom)) if beside else (lane, bottom - GAP)]
        if not beside:
            points += [(end, bottom - GAP)]
    points.append((end, float(bottom)))
    return Wire(edge[0], edge[1], tuple(dict.fromkeys(points)))
