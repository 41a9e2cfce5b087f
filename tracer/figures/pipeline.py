"""The picture of a run: its streams and blocks from the input to the answer."""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import NamedTuple

from tracer.figures.drawing import LINES, stage_colour
from tracer.record import INPUT, Step, Trace
from tracer.record.steps import Repeat, at_any
from tracer.symbols.notation import shape_html, size_html
from tracer.utils.errors import shorten
from tracer.utils.text import shape_numbers, symbol_html

# Lanes of a run: the steps from each input on, and where they meet.
#
# A model of two towers has two lanes that meet. A mask that no input produces and that the scores of every block use is
# a side input of them.

MAX_PRODUCERS = 64
"""Most producers that one step is drawn with; ours have three."""
MAX_DEPTH = 16
"""Most levels of lanes that meet in lanes that meet."""


@dataclass
class Lane:
    """A sequence of steps.

    `parts` are the lanes that meet in its first step, `apart` the complete lanes of their own that a later step uses;
    `inputs` come from outside.
    """

    steps: list[Step] = field(default_factory=list)
    parts: list[Lane] = field(default_factory=list)
    apart: list[Lane] = field(default_factory=list)
    inputs: set[str] = field(default_factory=set)
    depth: int = 0

    @property
    def first(self) -> Step:
        """First step of the lane, after the lanes that join in it."""
        return self.steps[0]

    @property
    def last(self) -> Step:
        """Last step of the lane."""
        return self.steps[-1]


def lanes(steps: Sequence[Step], inputs_of: Mapping[str, Sequence[str]]) -> tuple[list[Lane], dict[str, list[Lane]]]:
    """Return the lanes of a run, and for each step the lanes that only join there, from the side.

    From the side come constants, lanes whose inputs the main lane uses too, and lanes that join inside a block. More
    than one lane remains if the run has several outputs without a user.
    """
    place = {step.id: index for index, step in enumerate(steps)}
    of: dict[str, Lane] = {}
    live: list[Lane] = []
    sides: dict[str, list[Lane]] = {}
    constant: set[str] = set()
    for step in steps:
        if all(name in constant for name in inputs_of[step.id]):
            constant.add(step.id)
        lanes_by_id = {id(of[name]): of[name] for name in inputs_of[step.id] if name in of}
        joining_lanes = [lane for lane in lanes_by_id.values() if step.id not in constant or not lane.inputs]
        joining_lanes.sort(key=lambda lane: place[lane.first.id])
        main = [lane for lane in joining_lanes if lane.inputs] or joining_lanes[:1]
        if step.layer is not None and len(main) > 1:
            main = [max(main, key=lambda lane: place[lane.last.id])]
        elif len(main) > 1:
            main = [
                lane
                for lane in main
                if not any(
                    lane.inputs <= neighbour.inputs and len(lane.steps) < len(neighbour.steps) for neighbour in main
                )
            ]
        if len(main) > 1 and max(lane.depth for lane in main) >= MAX_DEPTH:
            main = main[:1]
        if len(main) == 1:
            lane = main[0]
        else:
            lane = Lane(parts=main, depth=1 + max((part.depth for part in main), default=0))
            live.append(lane)
        for neighbour in joining_lanes:
            if neighbour is not lane:
                live = [each for each in live if each is not neighbour]
                of.update((name, lane) for name, lane_of_name in list(of.items()) if lane_of_name is neighbour)
                lane.inputs |= neighbour.inputs
                if not any(neighbour is each for each in main):
                    apart = any(each.layer is not None for each in neighbour.steps) or neighbour.parts
                    apart = apart and neighbour.depth < MAX_DEPTH
                    lane.depth = max(lane.depth, neighbour.depth + 1) if apart else lane.depth
                    (lane.apart if apart else sides.setdefault(step.id, [])).append(neighbour)
        lane.steps.append(step)
        lane.inputs |= {name for name in inputs_of[step.id] if name.startswith(INPUT) and name not in place}
        of[step.id] = lane
    return live, sides


def stretches(steps: Sequence[Step]) -> list[list[Step]]:
    """Split steps into runs outside blocks and stacks of blocks; a stack ends where layer numbers restart."""
    out: list[list[Step]] = []
    for step in steps:
        last = out[-1][-1] if out else None
        before = last.layer if last else None
        new_stack = before is not None and step.layer is not None and step.layer < before
        if last is None or (step.layer is None) != (last.layer is None) or new_stack:
            out.append([])
        out[-1].append(step)
    return out


# Layered layout of steps and the lines between them: ranks from top to bottom, lanes from left to right.
#
# It follows Sugiyama et al. (1981). A value that is carried past a whole branch, such as a residual stream, is one
# straight line on the left. The layout knows nothing of transformers, only the producers and users of tensors.

GAP = 0.5
"""The height of a line's corner: the middle between two ranks."""


class Wire(NamedTuple):
    """A line from one box to another: its corners as (lane, rank), where rank + 0.5 is between two ranks."""

    source: str
    target: str
    points: tuple[tuple[float, float], ...]


class Circuit(NamedTuple):
    """(lane, rank) of each box, the wires, and the number of lanes."""

    places: dict[str, tuple[float, int]]
    wires: tuple[Wire, ...]
    lanes: float


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
    return Circuit(places, wires, most + 1)


def _neighbours(edges: Iterable[tuple[str, str]]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the nodes before each node, and those after it."""
    before, after = defaultdict(list), defaultdict(list)
    for tail, head in edges:
        before[head].append(tail)
        after[tail].append(head)
    return before, after


def _ranks(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the rank of each node: below all of its producers; a node without any is right above its first user."""
    before, after = _neighbours(edges)
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
    _, after = _neighbours(edges)

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
    before, _ = _neighbours(edges)
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


# Pipeline from pixels to logits, read from the run: steps as boxes with their shapes, tensors as lines.
#
# `circuit` lays out boxes and lines; a line is thicker for a
# larger tensor. A tensor from elsewhere comes in from a stub with its name, and a tensor without a user here leads to a
# stub with its destination: every line has two ends.

WHY = 300
"""Characters of a step's reason in its tooltip."""
MAX_LINE_WIDTH, MIN_LINE_WIDTH = 10.0, 1.0
"""Pixels of the line of the largest tensor, and of the thinnest one."""


def pipeline(trace: Trace) -> str:
    """Return the pipeline as HTML: the steps outside blocks, and one block for each stack of blocks.

    Towers are lanes side by side that meet. Each step is a button with its id in `data-step`. All text from the trace
    is escaped.
    """
    stages = dict.fromkeys(step.stage for step in trace.steps)
    key = "".join(f'<li style="--stage:{stage_colour(stage)}">{html.escape(stage)}</li>' for stage in stages)
    drawing = _Drawing(trace)
    scale = (
        f"Line width shows tensor size ({MAX_LINE_WIDTH:g} px = {drawing.most:,} numbers)."
        if drawing.wired
        else f"Its {drawing.lines:,} lines are left out: {LINES:,} can be told apart at most."
    )
    return (
        f'<div class="pipeline"><ul class="stages" aria-label="Colours">{key}</ul>{drawing.all()}'
        f'<p class="scale">{scale}</p></div>'
    )


class _Drawing:
    """A drawing of a run, with the producers of each step."""

    def __init__(self, trace: Trace):
        self.trace = trace
        self.steps = {step.id: step for step in trace.steps}
        self.names = {step.id: step.symbol for step in trace.steps}
        self.repeats = {trace.steps[repeat.start].id: repeat for repeat in trace.repeats}
        self.inputs = {
            taken.maker: (taken.symbolic or tuple(map(str, taken.shape)), taken.shape)
            for op in reversed(trace.ops)
            for taken in op.inputs
            if isinstance(taken.maker, str) and taken.maker.startswith(INPUT)
        }
        known = self.steps.keys() | self.inputs.keys()  # an input that no op of the record reads has no shape
        self.taken = {
            id: [name for name in producers if name in known][:MAX_PRODUCERS]
            for id, producers in trace.producers.items()
        }
        self.lanes, self.sides = lanes(trace.steps, self.taken)
        self.lines = sum(len(set(taken)) for taken in self.taken.values())
        self.wired = self.lines <= LINES
        self.most = max(
            [1, *(prod(step.shape) for step in trace.steps), *(prod(symbol) for _, symbol in self.inputs.values())]
        )
        self.takers: dict[str, list[str]] = {}
        for id, taken in self.taken.items():
            for name in taken:
                self.takers.setdefault(name, []).append(id)
        runs = (run for lane in self._every(self.lanes) for run in self._cut(lane.steps))
        self.stacks = sum(run[0].layer is not None for run in runs)

    def _cut(self, steps: Sequence[Step]) -> Iterator[list[Step]]:
        """Yield runs of steps: those outside blocks, each stack of equal blocks, and each other block."""
        for stretch in stretches(steps):
            cut, at = 0, 0
            while at < len(stretch):
                repeat = self.repeats.get(stretch[at].id)
                if repeat:
                    length = repeat.length * repeat.times
                    if cut < at:
                        yield stretch[cut:at]
                    yield stretch[at : at + length]
                    cut = at = at + length
                else:
                    if cut < at and stretch[at].layer != stretch[at - 1].layer:
                        yield stretch[cut:at]
                        cut = at
                    at += 1
            if cut < at:
                yield stretch[cut:]

    def _every(self, all_lanes: Sequence[Lane]) -> Iterator[Lane]:
        for lane in all_lanes:
            yield lane
            yield from self._every([*lane.parts, *lane.apart])

    def all(self) -> str:
        if not self.trace.steps:
            return ""
        return self._beside([self._lane(lane, end=True) for lane in self.lanes])

    def _beside(self, parts: Sequence[str]) -> str:
        if len(parts) == 1:
            return parts[0]
        return '<div class="lanes">' + "".join(f'<div class="lane">{lane}</div>' for lane in parts) + "</div>"

    def _lane(self, lane: Lane, end: bool = False) -> str:
        """Return a lane as HTML, from the lanes that join in it to its last step."""
        out = self._beside([self._lane(part) for part in lane.parts]) if lane.parts else ""
        out += "".join(self._lane(lane_id) for lane_id in lane.apart)
        stretch_list, way = list(self._cut(lane.steps)), ""
        incoming = [part.last for part in lane.parts]
        for index, steps in enumerate(stretch_list):
            last = index == len(stretch_list) - 1
            layer = steps[0].layer
            title = self._block_title(steps, layer) if layer is not None else self._title(lane, index, end and last)
            svg = self._circuit(steps, incoming)
            incoming = steps[-1:]
            if layer is None:
                way += f'<details class="stretch" open><summary><h3>{title}</h3></summary>{svg}</details>'
                continue
            kind = "block" if steps[0].id in self.repeats else "block one"
            way += f'<details class="{kind}"><summary><h3>{title}</h3>{self._inside(steps)}</summary>{svg}</details>'
        return f'{out}<div class="way">{way}</div>'

    def _title(self, lane: Lane, index: int, end: bool) -> str:
        if end:
            return "From the blocks to the answer" if index else "From the towers to the answer"
        if index:
            return "After the blocks"
        if lane.parts:
            return "Where they meet"
        came = [name for name in self.taken[lane.first.id] if name in self.inputs]
        return f"From the {_input_name(came[0])}" if came else "Made from nothing"

    def _block_title(self, steps: Sequence[Step], layer: int) -> str:
        size = next((size for size in self.trace.symbols if size.name == "L"), None)
        repeat = self.repeats.get(steps[0].id)
        count = repeat.times if repeat else 1
        whole = size is not None and self.stacks == 1 and size.value == count
        times = f"{size_html('L')} = {count}" if whole else str(count)
        if repeat is None:
            only = self.stacks == 1 and len({step.layer for step in steps}) == 1
            return f"The one block{f', {times}' if whole else ''}" if only else f"Block {layer + 1}"
        what = "One block" if repeat.period == 1 else f"{repeat.period} blocks in turn"
        own = "<small>, each with its own weights</small>" if self._reads_own(repeat) else ""
        return f"{what}, run {times} times{own}"

    def _reads_own(self, repeat: Repeat) -> bool:
        """Return whether each iteration of a repeat reads parameters that no other iteration reads."""
        parameters = {op.index: op.parameters for op in self.trace.ops}
        starts = range(repeat.start, repeat.start + repeat.length * repeat.times, repeat.length)
        turns = [
            {name for step in self.trace.steps[at : at + repeat.length] for op in step.ops for name in parameters[op]}
            for at in starts
        ]
        return all(turns) and sum(map(len, turns)) == len(set().union(*turns))

    def _inside(self, steps: Sequence[Step]) -> str:
        """Return the content of a folded block: the symbols of its steps in order."""
        repeat = self.repeats.get(steps[0].id)
        names = {id: at_any(name, repeat.blocks[0]) for id, name in self.names.items()} if repeat else self.names
        letters = "".join(
            f'<span style="--stage:{stage_colour(step.stage)}">{symbol_html(names[step.id])}</span>'
            for step in (steps[: repeat.length] if repeat else steps)
        )
        return f'<span class="letters" aria-hidden="true">{letters}</span>'

    def _circuit(self, steps: Sequence[Step], incoming: Sequence[Step]) -> str:
        """Return a run of steps as boxes and lines; of a stack of blocks the first, for all of them."""
        if not self.wired:
            return self._list_boxes([each for step in steps for each in (*self._beside_of(step), step)])
        rows, names, later, others = list(steps), self.names, {}, {}
        repeat = self.repeats.get(steps[0].id)
        if repeat:
            rows, second = (list(steps[turn * repeat.length : (turn + 1) * repeat.length]) for turn in (0, 1))
            names, others = (
                {id: at_any(name, number) for id, name in self.names.items()} for number in repeat.blocks[:2]
            )
            later = dict(zip((step.id for step in rows), second, strict=True))
        in_order = [each for step in rows for each in (*self._beside_of(step), step)]
        mine, straight = {step.id for step in in_order}, {step.id for step in incoming}
        boxes: dict[str, str] = {}
        takes: dict[str, list[str]] = {}
        sizes: dict[str, int] = {}
        for step in in_order:
            taken = []
            for name in self.taken[step.id]:
                node = name
                if name in self.inputs:
                    boxes.setdefault(name, _stub(_input_name(name), *self.inputs[name]))
                    sizes[name] = prod(self.inputs[name][1])
                elif name not in mine:
                    symbol, label = symbol_html(self._back(name, step, later, names, others)), self.steps[name]
                    node = f"from {name}" if name in straight else f"from {name} to {step.id}"
                    boxes.setdefault(node, _stub(symbol, label.symbolic, label.shape))
                    sizes[node] = prod(label.shape)
                taken.append(node)
            boxes[step.id], sizes[step.id] = _step(step, names), prod(step.shape)
            takes[step.id] = taken
        used = {name for taken in takes.values() for name in taken}
        for step in in_order:
            if step.id not in used:
                boxes[f"to {step.id}"] = _stub(self._onward(step, bool(repeat), names))
                takes[f"to {step.id}"] = [step.id]
        return self._wire_boxes(boxes, takes, sizes)

    def _list_boxes(self, steps: Sequence[Step]) -> str:
        """Return a run of steps as boxes in order."""
        return _boxes_html([(step.id, 0, rank, _step(step, self.names)) for rank, step in enumerate(steps)], 1, [])

    def _beside_of(self, step: Step) -> list[Step]:
        """Return the steps that join a step from the side."""
        return [step_id for lane in self.sides.get(step.id, ()) for step_id in lane.steps]

    def _onward(self, step: Step, repeats: bool, names: dict[str, str]) -> str:
        """Return the destination of a tensor without a user here."""
        if repeats:
            return "next block"
        symbols = list(dict.fromkeys(symbol_html(names[id]) for id in self.takers.get(step.id, ())))
        if symbols:
            return f"to {', '.join(symbols[:3])}{' …' * (len(symbols) > 3)}"
        return "answer" if step is self.trace.steps[-1] else "out"

    def _wire_boxes(self, boxes: dict[str, str], takes: dict[str, list[str]], sizes: dict[str, int]) -> str:
        """Return boxes at their positions, and the lines, which the browser draws between them."""
        layout = circuit(list(boxes), takes)
        wires = [
            {
                "from": wire.source,
                "to": wire.target,
                "by": wire.points,
                "wide": round(max(MIN_LINE_WIDTH, MAX_LINE_WIDTH * sizes[wire.source] / self.most), 2),
            }
            for wire in layout.wires
        ]
        return _boxes_html([(node, *layout.places[node], box) for node, box in boxes.items()], layout.lanes, wires)

    def _back(self, name: str, step: Step, later: dict[str, Step], names: dict[str, str], others: dict) -> str:
        """Return the symbol of a tensor from further back.

        If it is from before the stack, the second block shows the input of block ℓ: the output of the block before,
        which `others` has.
        """
        later_step = later.get(step.id)
        if later_step is None or name in later:
            return names[name]
        second = {step.id for step in later.values()}
        earlier_ids = [id for id in self.taken[later_step.id] if id in self.steps and id not in second]
        index = [id for id in self.taken[step.id] if id in self.steps and id not in later].index(name)
        return others[earlier_ids[index]] if index < len(earlier_ids) else names[name]


def _boxes_html(boxes: Sequence[tuple[str, float, int, str]], lanes: float, wires: Sequence[dict]) -> str:
    """Return boxes, each a name with its lane, rank and HTML, and the wires that the browser draws between them.

    Of the `lanes` those right of all boxes are narrow.
    """
    wide = max(lane for _, lane, _, _ in boxes) + 1
    cells = "".join(
        f'<div class="cell" data-node="{html.escape(node)}" data-rank="{rank}" '
        f'style="grid-row:{rank + 1};grid-column:{round(2 * lane) + 1} / span 2">{box}</div>'
        for node, lane, rank, box in boxes
    )
    wired = html.escape(json.dumps(wires, separators=(",", ":")))
    return (
        f'<div class="circuit" style="--halves:{round(2 * wide)};--beyond:{lanes - wide:g}" data-lanes="{wide:g}" '
        f'data-wires="{wired}"><svg aria-hidden="true"></svg>{cells}</div>'
    )


def _input_name(maker: str) -> str:
    """Return `"input pixel_values"` as "input pixel values", and `"input input_ids"` as "input ids"; escaped."""
    return html.escape(INPUT + maker.removeprefix(INPUT).replace("_", " ").removeprefix(INPUT))


def _step(step: Step, names: dict[str, str]) -> str:
    why = html.escape(shorten(step.why.partition(". ")[0], WHY))
    return (
        f'<button type="button" data-step="{html.escape(step.id)}" title="{why}" '
        f'style="--stage:{stage_colour(step.stage)}">'
        f'<span class="symbol">{symbol_html(names[step.id])}</span>'
        f'<span class="title">{html.escape(step.title)}</span>{_shape(step.symbolic, step.shape)}</button>'
    )


def _stub(caption: str, symbolic: tuple[str, ...] = (), shape: tuple[int, ...] = ()) -> str:
    """Return the stub of a tensor that comes from elsewhere or goes there, `caption` as HTML."""
    return f'<span class="end"><span>{caption}</span>{_shape(symbolic, shape) if shape else ""}</span>'


def _shape(symbolic: tuple[str, ...], shape: tuple[int, ...]) -> str:
    numbers = f'<span class="numbers">{shape_numbers(shape)}</span>' if shape else ""
    return f'<span class="shape">{shape_html(symbolic)} {numbers}</span>'
