"""The way from pixels to logits as a picture: steps as boxes, shapes at the arrows, read from the run itself.

Which steps stand side by side and which reach back over others (a residual sum, the values of an attention) is
worked out from the ops: who made what each of them took.
"""

import html
from collections.abc import Iterable, Sequence

from tracer.figures.colours import stage_colour
from tracer.figures.labels import shape_html, shape_numbers, size_html, symbol_html
from tracer.record import Op, Step, Trace


def sources(trace: Trace) -> dict[str, frozenset[str]]:
    """For each step the ids of the steps whose tensors it takes, looking through layout ops."""
    ops = {op.index: op for op in trace.ops}
    known: dict[int, frozenset[str]] = {}

    def makers(op: Op) -> frozenset[str]:
        if op.index not in known:
            known[op.index] = frozenset()
            found: set[str] = set()
            for maker in (taken.maker for taken in op.inputs):
                if (made := ops.get(maker) if isinstance(maker, int) else None) is None:
                    continue
                if made.step is None or made.step == op.step:
                    found |= makers(made)
                else:
                    found.add(made.step)
            known[op.index] = frozenset(found)
        return known[op.index]

    return {
        step.id: frozenset().union(*(makers(ops[index]) for index in step.ops if index in ops)) - {step.id}
        for step in trace.steps
    }


def groups(steps: Iterable[Step], taken: dict[str, frozenset[str]]) -> list[list[Step]]:
    """Steps in order, those that stand side by side in one list: neighbours that take the same tensors."""
    out: list[list[Step]] = []
    for step in steps:
        beside = out and out[-1][0].stage == step.stage and taken[step.id] and taken[out[-1][0].id] == taken[step.id]
        if beside:
            out[-1].append(step)
        else:
            out.append([step])
    return out


TITLES = ("From the input to tokens", "On the way", "From tokens to the answer")


def stretches(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps cut into stretches outside of blocks and stacks of blocks; a stack ends where its layers start anew."""
    out: list[list[Step]] = []
    for step in steps:
        last = out[-1][-1] if out else None
        new_stack = last is not None and None not in (step.layer, last.layer) and step.layer < last.layer
        if last is None or (step.layer is None) != (last.layer is None) or new_stack:
            out.append([])
        out[-1].append(step)
    return out


def pipeline(trace: Trace) -> str:
    """The pipeline as HTML: the steps outside of blocks, and for each stack of blocks one block for all of them.

    Each step is a button with its id in `data-step`. All text out of the trace is escaped.
    """
    taken = sources(trace)
    names = {step.id: step.symbol for step in trace.steps}
    symbol = next((size for size in trace.symbols if size.name == "L"), None)
    found = stretches(trace.steps)
    stacks = sum(1 for steps in found if steps[0].layer is not None)
    rows, arrow = [], _start(trace)
    for index, steps in enumerate(found):
        box = steps[0].layer is not None
        if box:
            count = len({step.layer for step in steps})
            whole = symbol is not None and stacks == 1 and symbol.value == count
            times = f"{size_html('L')} = {count}" if whole else str(count)
            title = f"One block, run {times} times, each time with weights of its own"
            steps = [step for step in steps if step.layer == steps[0].layer]
        else:
            title = TITLES[0] if index == 0 else TITLES[2] if index == len(found) - 1 else TITLES[1]
        row = _row(steps, taken, _at_any_layer(names, steps[0].layer) if box else names, arrow)
        arrow = _shape(steps[-1:])
        if index == len(found) - 1:
            row += f'<li class="unit">{arrow}<span class="end">answer</span></li>'
        rows.append(f'<section class="{"block" if box else "line"}"><h4>{title}</h4><ol>{row}</ol></section>')
    stages = dict.fromkeys(step.stage for step in trace.steps)
    key = "".join(f'<li style="--stage:{stage_colour(stage)}">{html.escape(stage)}</li>' for stage in stages)
    return f'<div class="pipeline"><ul class="stages" aria-label="Colours">{key}</ul>{"".join(rows)}</div>'


def _row(steps: Sequence[Step], taken: dict[str, frozenset[str]], names: dict[str, str], arrow: str) -> str:
    """Steps in a row, each with the arrow that leads to it; `arrow` is the one that comes in."""
    units, before = [], None
    for group in groups(steps, taken):
        back = sorted(taken[group[0].id] - before) if before is not None else []
        note = ", ".join(symbol_html(names[id]) for id in back)
        note = f'<span class="back">with {note}</span>' if note else ""
        boxes = "".join(_step(step, names) for step in group)
        units.append(f'<li class="unit">{arrow}<div class="group">{note}{boxes}</div></li>')
        arrow, before = _shape(group), {step.id for step in group}
    return "".join(units)


def _at_any_layer(names: dict[str, str], layer: int) -> dict[str, str]:
    """Symbols of one block as those of block ℓ, and of the one before it as those of block ℓ−1."""
    return {
        id: name.replace(f"({layer + 1})", r"(\ell)").replace(f"({layer})", r"(\ell-1)") for id, name in names.items()
    }


def _step(step: Step, names: dict[str, str]) -> str:
    return (
        f'<button type="button" data-step="{html.escape(step.id)}" style="--stage:{stage_colour(step.stage)}">'
        f'<span class="symbol">{symbol_html(names[step.id])}</span>'
        f'<span class="title">{html.escape(step.title)}</span></button>'
    )


def _shape(steps: Sequence[Step]) -> str:
    """The arrow behind steps that stand side by side: their shapes, once each."""
    return "".join(_arrow(*shape) for shape in dict.fromkeys((step.symbolic, step.shape) for step in steps))


def _arrow(symbolic: tuple[str, ...], shape: tuple[int, ...]) -> str:
    return (
        f'<div class="arrow"><span class="symbolic">{shape_html(symbolic)}</span><span class="line"></span>'
        f'<span class="numbers">{shape_numbers(shape)}</span></div>'
    )


def _start(trace: Trace) -> str:
    """What the first op took that came from outside: the image or the token ids."""
    for op in trace.ops:
        for taken in op.inputs:
            if isinstance(taken.maker, str) and taken.symbolic and taken.maker not in op.parameters:
                return f'<span class="end">input</span>{_arrow(taken.symbolic, taken.shape)}'
    return ""
