"""Bars of the operations of a run by category, and of its arithmetic by module."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from tracer.export.math_labels import amount
from tracer.figures.html_bars import Bar, BarPart, bars, round_ticks
from tracer.figures.palette import stage_colour
from tracer.ops import COMPUTING, ORDER, category
from tracer.record import Op, Trace

TOP = "the model itself"
"""The label of ops that ran in no module but the model itself."""
MAX_BARS = 40
"""Bars that fit on a screen; the modules with the least arithmetic are summed up beyond."""
LAYOUT = "#9aa3ad"


def counts(names: Sequence[str]) -> dict[str, int]:
    """Return the number of operations of each category, in the order of `tracer.ops`."""
    by_category = Counter(map(category, names))
    return {name: by_category[name] for name in ORDER if by_category[name]}


def categories(by_category: Mapping[str, int]) -> str:
    """Return the counts as horizontal bars in HTML; those of ops that move data are grey."""
    rows = [
        Bar(name, [BarPart(count, _colour(name), f"{name}: {count:,}")], f"{count:,}")
        for name, count in by_category.items()
    ]
    ticks = {at: f"{at:,.0f}" for at in round_ticks(max(by_category.values(), default=1)) if at == int(at)}
    keys = [(stage_colour("patches"), "compute"), (LAYOUT, "move or create data")]
    caption = describe(by_category, "By category")
    return bars(rows, ticks, ("category", "operations"), caption, "Kinds of operations", keys)


def _colour(category: str) -> str:
    return stage_colour("patches") if category in COMPUTING else LAYOUT


def modules(ops: Sequence[Op]) -> dict[str, list[Op]]:
    """Return the ops by the module that they are drawn under.

    That is the shallowest depth of module paths with at least four modules with arithmetic; the deepest there is if
    none has.
    """
    depths = max((op.module.count(".") + 1 for op in ops if op.module), default=1)
    for depth in range(1, depths + 1):
        groups: dict[str, list[Op]] = {}
        for op in ops:
            groups.setdefault(".".join(op.module.split(".")[:depth]) or TOP, []).append(op)
        if sum(any(op.flops for op in group) for group in groups.values()) >= 4:
            break
    return groups


def arithmetic(trace: Trace) -> dict[str, dict[str, int]]:
    """Return FLOPs by module and, within each, by the stage of the step; modules without any are left out."""
    stages: dict[str | None, str] = {step.id: step.stage for step in trace.steps}
    table: dict[str, dict[str, int]] = {}
    groups = modules(trace.ops)
    names = _short(groups)
    for module, ops in groups.items():
        for op in ops:
            if op.flops:
                row = table.setdefault(names[module], {})
                stage = stages.get(op.step, "no step")
                row[stage] = row.get(stage, 0) + op.flops
    return _limit_rows(table)


def _short(modules: Collection[str]) -> dict[str, str]:
    """Return modules without the path before the last dot, if the rest is unique."""
    ends = Counter(module.rsplit(".", 1)[-1] for module in modules)
    return {
        module: end if ends[end := module.rsplit(".", 1)[-1]] == 1 and not end.isdecimal() else module
        for module in modules
    }


def _limit_rows(table: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    ranked = sorted(table, key=lambda module: -sum(table[module].values()))
    rest = set(ranked[MAX_BARS:])
    if not rest:
        return table
    rows = {module: row for module, row in table.items() if module not in rest}
    return rows | {f"{len(rest)} others": _sum([table[module] for module in rest])}


def _sum(rows: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter = Counter()
    for row in rows:
        total.update(row)
    return dict(total)


def flops(table: Mapping[str, Mapping[str, int]]) -> str:
    """Return FLOPs by module as stacked horizontal bars in HTML, one colour for each stage of the forward pass."""
    stages = dict.fromkeys(stage for row in table.values() for stage in row)
    sums = {module: sum(row.values()) for module, row in table.items()}
    rows = [
        Bar(
            module,
            [
                BarPart(row[stage], stage_colour(stage), _tooltip(module, stage, row[stage]))
                for stage in stages
                if stage in row
            ],
            amount(sums[module]),
        )
        for module, row in table.items()
    ]
    ticks = {at: re.sub(r"\.0+(?=\D)", "", amount(round(at))) for at in round_ticks(max(sums.values(), default=1))}
    keys = [(stage_colour(stage), stage) for stage in stages]
    return bars(rows, ticks, ("module", "FLOP"), describe(sums, "FLOP by module"), "Where the FLOPs are", keys)


def _tooltip(module: str, stage: str, flops: int) -> str:
    return f"{module}, {stage}: {amount(flops, 'FLOP')}"


def describe(by_category: Mapping[str, int], what: str) -> str:
    """Return the text alternative of bars: the largest five."""
    ranked = sorted(by_category.items(), key=lambda item: -item[1])[:5]
    return f"{what}: " + ", ".join(f"{name} {amount(value)}" for name, value in ranked)
