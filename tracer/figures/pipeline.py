"""The way from pixels to logits as a picture: steps as boxes, shapes at the arrows, read from the run itself.

What stands side by side, what comes in from the side and what reaches back over other steps (a residual sum, the
values of an attention) is worked out from the ops in `flow`.
"""

import html
from collections.abc import Iterator, Sequence

from tracer.common.quoting import shortened
from tracer.figures.colours import stage_colour
from tracer.figures.flow import INPUT, Lane, groups, lanes, sources, stretches
from tracer.figures.labels import shape_html, shape_numbers, size_html, symbol_html
from tracer.figures.views.repeats import at_any
from tracer.record import Step, Trace

WHY = 300
"""Characters of the reason of a step that is told where one points at it."""


def pipeline(trace: Trace) -> str:
    """The pipeline as HTML: the steps outside of blocks, and for each stack of blocks one block for all of them.

    Towers are lanes beside each other that meet. Each step is a button with its id in `data-step`. All text out of the
    trace is escaped.
    """
    stages = dict.fromkeys(step.stage for step in trace.steps)
    key = "".join(f'<li style="--stage:{stage_colour(stage)}">{html.escape(stage)}</li>' for stage in stages)
    return f'<div class="pipeline"><ul class="stages" aria-label="Colours">{key}</ul>{_Drawing(trace).all()}</div>'


class _Drawing:
    """One drawing of a run, which knows for each step what it takes."""

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
        self.stacks = self._count()

    def _count(self) -> int:
        return sum(each[0].layer is not None for lane in self._every(self.lanes) for each in self._cut(lane.steps))

    def _cut(self, steps: Sequence[Step]) -> Iterator[list[Step]]:
        """Steps cut into stretches: what stands outside of blocks, each stack of blocks that are alike, and each block
        that is like no other."""
        for found in stretches(steps):
            cut, at = 0, 0
            while at < len(found):
                repeat = self.repeats.get(found[at].id)
                if repeat:
                    length = repeat.length * repeat.times
                    if cut < at:
                        yield found[cut:at]
                    yield found[at : at + length]
                    cut = at = at + length
                else:
                    if cut < at and found[at].layer != found[at - 1].layer:
                        yield found[cut:at]
                        cut = at
                    at += 1
            if cut < at:
                yield found[cut:]

    def _every(self, found: Sequence[Lane]) -> Iterator[Lane]:
        for lane in found:
            yield lane
            yield from self._every([*lane.parts, *lane.apart])

    def all(self) -> str:
        if not self.trace.steps:
            return ""
        return self._beside([self._lane(lane, end=True) for lane in self.lanes])

    def _beside(self, drawn: Sequence[str]) -> str:
        if len(drawn) == 1:
            return drawn[0]
        return '<div class="lanes">' + "".join(f'<div class="lane">{lane}</div>' for lane in drawn) + "</div>"

    def _lane(self, lane: Lane, end: bool = False) -> str:
        """A lane from what meets in it to its last step."""
        out = self._beside([self._lane(part) for part in lane.parts]) if lane.parts else ""
        out += "".join(self._lane(other) for other in lane.apart)
        found = list(self._cut(lane.steps))
        incoming = [part.last for part in lane.parts]
        for index, steps in enumerate(found):
            last = index == len(found) - 1
            box = steps[0].layer is not None
            title = self._block_title(steps) if box else self._title(lane, index, end and last)
            row = self._row(steps, incoming, named=len(incoming) > 1)
            incoming = steps[-1:]
            if end and last:
                row += (
                    f'<li class="unit">{_arrows(incoming)}<div class="group"><span class="end">answer</span></div></li>'
                )
            if not box:
                out += f'<section class="line"><h4>{title}</h4><ol>{row}</ol></section>'
                continue
            kind = "block" if steps[0].id in self.repeats else "block one"
            out += (
                f'<details class="{kind}"><summary><h4>{title}</h4>{self._inside(steps)}</summary>'
                f"<ol>{row}</ol></details>"
            )
        return out

    def _title(self, lane: Lane, index: int, end: bool) -> str:
        if end:
            return "From tokens to the answer" if index else "Where they meet, to the answer"
        if index:
            return "After the blocks"
        if lane.parts:
            return "Where they meet"
        came = [name for name in self.taken[lane.first.id] if name in self.inputs]
        return f"From the {_input_name(came[0])}" if came else "Made from nothing"

    def _block_title(self, steps: Sequence[Step]) -> str:
        size = next((size for size in self.trace.symbols if size.name == "L"), None)
        repeat = self.repeats.get(steps[0].id)
        count = repeat.times if repeat else 1
        whole = size is not None and self.stacks == 1 and size.value == count
        times = f"{size_html('L')} = {count}" if whole else str(count)
        if repeat is None:
            only = self.stacks == 1 and len({step.layer for step in steps}) == 1
            return f"The one block{f', {times}' if whole else ''}" if only else f"Block {steps[0].layer + 1}"
        what = "One block" if repeat.period == 1 else f"{repeat.period} blocks in turn"
        return f"{what}, run {times} times, each time with weights of its own"

    def _inside(self, steps: Sequence[Step]) -> str:
        """What a folded block holds: the letters of its steps in their order."""
        repeat = self.repeats.get(steps[0].id)
        names = {id: at_any(name, repeat.blocks[0]) for id, name in self.names.items()} if repeat else self.names
        letters = "".join(
            f'<span style="--stage:{stage_colour(step.stage)}">{symbol_html(names[step.id])}</span>'
            for step in (steps[: repeat.length] if repeat else steps)
        )
        return f'<span class="letters" aria-hidden="true">{letters}</span>'

    def _row(self, steps: Sequence[Step], incoming: Sequence[Step], named: bool) -> str:
        """Steps in a row, each with the arrow that leads to it; of a stack of blocks the first, for all of them."""
        rows, names, later, others = list(steps), self.names, {}, {}
        if repeat := self.repeats.get(steps[0].id):
            rows, second = (list(steps[turn * repeat.length : (turn + 1) * repeat.length]) for turn in (0, 1))
            names, others = (
                {id: at_any(name, number) for id, name in self.names.items()} for number in repeat.blocks[:2]
            )
            later = dict(zip((step.id for step in rows), second, strict=True))
        units, before = [], list(incoming)
        for group in groups(rows, self.taken):
            first = group[0]
            straight = {step.id for step in before}
            inputs = [name for name in self.taken[first.id] if name in self.inputs]
            takes = [name for name in self.taken[first.id] if name in self.steps]
            side = self.sides.get(first.id, [])
            beside = {step.id for lane in side for step in lane.steps}
            back = [self._back(name, first, later, names, others) for name in takes if name not in straight | beside]
            start = not before and inputs
            arrow = self._start(inputs[0]) if start else ""
            if straight & set(takes):
                arrow = _arrows(before, self.names if named else None)
            named = False
            notes = [symbol_html(symbol) for symbol in back] + [_input_name(name) for name in inputs[bool(start) :]]
            word = "with" if arrow else "takes"
            above = f'<span class="back">{word} {", ".join(notes)}</span>' if notes else ""
            above += "".join(self._side(lane) for lane in side)
            above = f'<div class="above">{above}</div>' if above else ""
            boxes = "".join(_step(step, names) for step in group)
            units.append(f'<li class="unit">{above}{arrow}<div class="group">{boxes}</div></li>')
            before = group
        return "".join(units)

    def _back(self, name: str, step: Step, later: dict[str, Step], names: dict[str, str], others: dict) -> str:
        """The symbol of a step taken from further back. Where that is from before the stack, the second block tells
        what block ℓ takes there: what the block before it made, which `others` has."""
        other = later.get(step.id)
        if other is None or name in later:
            return names[name]
        second = {step.id for step in later.values()}
        found = [id for id in self.taken[other.id] if id in self.steps and id not in second]
        index = [id for id in self.taken[step.id] if id in self.steps and id not in later].index(name)
        return others[found[index]] if index < len(found) else names[name]

    def _side(self, lane: Lane) -> str:
        """What comes in from the side: its steps, one under the other, and the arrow down into the step below."""
        out = ""
        for step in lane.steps:
            mine = {other.id for other in lane.steps}
            came = [
                symbol_html(self.names[name]) if name in self.names else _input_name(name)
                for name in self.taken[step.id]
                if name not in mine
            ]
            out += f'<span class="back">from {", ".join(came)}</span>' if came else ""
            out += _step(step, self.names) + _arrow(step.symbolic, step.shape, "down")
        return f'<div class="side">{out}</div>'

    def _start(self, name: str) -> str:
        """What came from outside: the image or the token numbers."""
        return f'<div class="arrows"><span class="end">{_input_name(name)}</span>{_arrow(*self.inputs[name])}</div>'


def _input_name(maker: str) -> str:
    """`"input pixel_values"` as "input pixel values", and `"input input_ids"` as "input ids"; escaped."""
    return html.escape(INPUT + maker.removeprefix(INPUT).replace("_", " ").removeprefix(INPUT))


def _step(step: Step, names: dict[str, str]) -> str:
    why = html.escape(shortened(step.why.partition(". ")[0], WHY))
    return (
        f'<button type="button" data-step="{html.escape(step.id)}" title="{why}" '
        f'style="--stage:{stage_colour(step.stage)}">'
        f'<span class="symbol">{symbol_html(names[step.id])}</span>'
        f'<span class="title">{html.escape(step.title)}</span></button>'
    )


def _arrows(steps: Sequence[Step], names: dict[str, str] | None = None) -> str:
    """The arrows behind steps that stand side by side: each shape once, or with `names` each step with its symbol."""
    if names is None:
        found = [_arrow(*shape) for shape in dict.fromkeys((step.symbolic, step.shape) for step in steps)]
    else:
        found = [_arrow(step.symbolic, step.shape, symbol=names[step.id]) for step in steps]
    return f'<div class="arrows">{"".join(found)}</div>'


def _arrow(symbolic: tuple[str, ...], shape: tuple[int, ...], kind: str = "", symbol: str = "") -> str:
    name = f"{symbol_html(symbol)} " if symbol else ""
    return (
        f'<div class="arrow {kind}"><span class="symbolic">{name}{shape_html(symbolic)}</span>'
        f'<span class="line"></span>'
        f'<span class="numbers">{shape_numbers(shape) if shape else ""}</span></div>'
    )
