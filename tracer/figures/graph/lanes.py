"""Data flow between the steps of a run: the producers of each step, and the steps of one lane.

All of it follows from the ops and the producers of their inputs, and for steps inside a fused op from their equations.
A model of two towers has two lanes that meet. A mask that no input produces and that the scores of every block use is a
side input of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from tracer.ops import takes_shape
from tracer.record import CHANGED_SUFFIX, Op, Step, Trace

INPUT = "input "
MAX_PRODUCERS = 64
"""Most producers that one step lists; ours have three."""
MAX_DEPTH = 16
"""Most levels of lanes that meet in lanes that meet."""
MAX_EQUATIONS = 50_000
"""Equations that are searched for a symbol that no op leads to."""


def sources(trace: Trace) -> dict[str, tuple[str, ...]]:
    """Return the producers of each step: ids of steps and names of inputs (`"input image"`).

    Layout ops, and ops that only lead to the tensor of a step, are passed through. An op that takes the shape of a
    tensor alone, such as `new_zeros`, has no producer.
    """
    ops = {op.index: op for op in trace.ops}
    steps = {step.id: step for step in trace.steps}
    ends = {step.ops[-1]: step.id for step in trace.steps if step.ops}
    makers: dict[int, dict[str, None]] = {}
    for op in trace.ops:  # in the order in which they ran, so that what made an input is known already
        step_sources: dict[str, None] = {}
        for record in () if takes_shape(op.op) else op.inputs:
            producer = ops.get(record.maker) if isinstance(record.maker, int) else None
            if producer is None:
                if isinstance(record.maker, str) and record.maker.startswith(INPUT):
                    step_sources[record.maker] = None
            elif (
                producer.index in ends
                and producer.step != op.step
                and not _beside(producer, steps[ends[producer.index]], steps.get(op.step or ""))
            ):
                step_sources[ends[producer.index]] = None
            else:
                step_sources |= makers.get(producer.index, {})
            if len(step_sources) >= MAX_PRODUCERS:
                break
        makers[op.index] = step_sources

    out: dict[str, tuple[str, ...]] = {}
    left = [MAX_EQUATIONS]
    before: list[Step] = []
    for step in trace.steps:
        if step.recomputed or (before and before[-1].recomputed and before[-1].layer == step.layer):
            step_sources = dict.fromkeys(_in_equation(step, before, left))
        else:
            step_sources = {id: None for index in step.ops if index in ops for id in makers[index]}
        if not step_sources and step.id.endswith(
            CHANGED_SUFFIX
        ):  # such as zeros: they stand in the place of the line before
            step_sources = {step.id.removesuffix(CHANGED_SUFFIX): None}
        out[step.id] = tuple(islice((id for id in step_sources if id != step.id), MAX_PRODUCERS))
        before.append(step)
    used = {id for step_sources in out.values() for id in step_sources}
    unused = [place for place, step in enumerate(trace.steps[:-1]) if step.id not in used]
    for place in unused:
        step, later = trace.steps[place], trace.steps[place + 1 :]
        # what the code only looked at leads to no op: equations name it
        if takes := next((later_step for later_step in later if _in_equation(later_step, [step], left)), None):
            out[takes.id] = (*out[takes.id], step.id)
    return out


def _beside(op: Op, step: Step, user: Step | None) -> bool:
    """Return whether a user of an op with several outputs, such as a split, takes another of them than the step's
    tensor: its equation does not name the step."""
    return len(op.outputs) > 1 and user is not None and not _in_equation(user, [step], [MAX_EQUATIONS])


def _in_equation(step: Step, before: Sequence[Step], left: list[int]) -> list[str]:
    """Return ids of the earlier steps whose symbols are on the right of the equation, longer symbols first.

    `left` holds the number of lookups that remain.
    """
    right, operands = step.latex.partition("=")[2], []
    left[0] -= 1 + len(before) // 50
    if left[0] <= 0:
        return operands
    named = {earlier.symbol: earlier.id for earlier in before if earlier.symbol and earlier.symbol in right}
    for symbol, id in sorted(named.items(), key=lambda named: -len(named[0])):
        alone = r"(?<![\\{_^A-Za-z])" if symbol[0].isalpha() else ""  # the r of \frac is not a symbol
        right, count = re.subn(rf"{alone}{re.escape(symbol)}(?![A-Za-z])", " ", right)
        left[0] -= 1
        if count:
            operands.append(id)
        if left[0] <= 0:
            break
    return operands


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


def lanes(steps: Sequence[Step], inputs_of: dict[str, tuple[str, ...]]) -> tuple[list[Lane], dict[str, list[Lane]]]:
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
