"""Pipeline from pixels to logits, read from the run: steps as boxes with their shapes, tensors as lines.

`flow` finds the producers of each step in the ops, and `circuit` lays out boxes and lines; a line is thicker for a
larger tensor. A tensor from elsewhere comes in from a stub with its name, and a tensor without a user here leads to a
stub with its destination: every line has two ends.
"""

import html
import json
from collections.abc import Iterator, Sequence
from math import prod

from tracer.export.math_labels import shape_html, shape_numbers, size_html, symbol_html
from tracer.figures.graph.lanes import INPUT, Lane, lanes, sources, stretches
from tracer.figures.graph.layered_layout import circuit
from tracer.figures.palette import stage_colour
from tracer.figures.payload_budget import LINES
from tracer.record import Step, Trace
from tracer.record.repeats import Repeat, at_any
from tracer.utils.error_text import shorten

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
        self.taken = sources(trace)
        self.lanes, self.sides = lanes(trace.steps, self.taken)
        self.repeats = {trace.steps[repeat.start].id: repeat for repeat in trace.repeats}
        self.inputs = {
            taken.maker: (taken.symbolic or tuple(map(str, taken.shape)), taken.shape)
            for op in reversed(trace.ops)
            for taken in op.inputs
            if isinstance(taken.maker, str) and taken.maker.startswith(INPUT)
        }
        self.lines = sum(len(set(taken)) for taken in self.taken.values())
        self.wired = self.lines <= LINES
        self.most = max(
            [1, *(prod(step.shape) for step in trace.steps), *(prod(symbol) for _, symbol in self.inputs.values())]
        )
        self.takers: dict[str, list[str]] = {}
        for id, taken in self.taken.items():
            for name in taken:
                self.takers.setdefault(name, []).append(id)
        self.stacks = self._count()

    def _count(self) -> int:
        return sum(each[0].layer is not None for lane in self._every(self.lanes) for each in self._cut(lane.steps))

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
