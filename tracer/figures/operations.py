"""What kinds of operations ran and how many, and where the arithmetic is, as bars."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import plotly.graph_objects as go

from tracer.figures.colours import OTHER, stage_colour
from tracer.figures.labels import amount
from tracer.figures.layout import CLEAR, title
from tracer.record import Op, Trace
from tracer.symbols.categories import COMPUTING, ORDER, category

TOP = "(top)"
"""What the ops are filed under that ran in no module but the model itself."""
MOST = 40
"""Bars that fit on a screen; the modules with the least arithmetic are summed up beyond."""
LAYOUT = "#9aa3ad"


def counts(names: Sequence[str]) -> dict[str, int]:
    """How many operations there are of each category, in the order of `tracer.symbols.categories`."""
    found = Counter(map(category, names))
    return {name: found[name] for name in ORDER if found[name]}


def categories(found: Mapping[str, int]) -> go.Figure:
    """The counts as horizontal bars; those that only lay data out are paler."""
    colours = [stage_colour("patches") if name in COMPUTING else LAYOUT for name in found]
    bar = go.Bar(
        x=list(found.values()),
        y=list(found),
        orientation="h",
        text=[f"{count:,}" for count in found.values()],
        textposition="outside",
        cliponaxis=False,
        marker={"color": colours, "cornerradius": 3},
        hovertemplate="%{y}: %{x:,}<extra></extra>",
    )
    across = {"title": title("operations"), "range": [0, 1.18 * max(found.values(), default=1)], "nticks": 5}
    return go.Figure(bar, _layout(across, "category", 90 + 34 * len(found)))


def modules(ops: Sequence[Op]) -> dict[str, list[Op]]:
    """The ops by the module that they are drawn under: the shallowest depth of module paths that tells them apart into
    at least four places with arithmetic; the deepest there is where none does."""
    depths = max((op.module.count(".") + 1 for op in ops if op.module), default=1)
    for depth in range(1, depths + 1):
        groups: dict[str, list[Op]] = {}
        for op in ops:
            groups.setdefault(".".join(op.module.split(".")[:depth]) or TOP, []).append(op)
        if sum(any(op.flops for op in group) for group in groups.values()) >= 4:
            break
    return groups


def arithmetic(trace: Trace) -> dict[str, dict[str, int]]:
    """FLOPs by module and, within each, by the stage of the step that they belong to; modules without any left out."""
    stages = {step.id: step.stage for step in trace.steps}
    table: dict[str, dict[str, int]] = {}
    groups = modules(trace.ops)
    names = _short(groups)
    for module, ops in groups.items():
        for op in ops:
            if op.flops:
                row = table.setdefault(names[module], {})
                stage = stages.get(op.step, "no step")
                row[stage] = row.get(stage, 0) + op.flops
    return _shortened(table)


def _short(modules: Collection[str]) -> dict[str, str]:
    """Modules without what comes before the last dot, where that tells them apart."""
    ends = Counter(module.rsplit(".", 1)[-1] for module in modules)
    return {
        module: end if ends[end := module.rsplit(".", 1)[-1]] == 1 and not end.isdecimal() else module
        for module in modules
    }


def _shortened(table: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    ranked = sorted(table, key=lambda module: -sum(table[module].values()))
    rest = set(ranked[MOST:])
    if not rest:
        return table
    kept = {module: row for module, row in table.items() if module not in rest}
    return kept | {f"{len(rest)} others": _sum([table[module] for module in rest])}


def _sum(rows: Sequence[Mapping[str, int]]) -> dict[str, int]:
    total: Counter = Counter()
    for row in rows:
        total.update(row)
    return dict(total)


def flops(table: Mapping[str, Mapping[str, int]]) -> go.Figure:
    """FLOPs by module as stacked horizontal bars, one colour for each stage of the forward pass."""
    bars = []
    for stage in dict.fromkeys(stage for row in table.values() for stage in row):
        values = [row.get(stage, 0) for row in table.values()]
        bars.append(
            go.Bar(
                x=values,
                y=list(table),
                orientation="h",
                name=stage,
                marker={"color": stage_colour(stage) if stage != "no step" else OTHER},
                customdata=[amount(value, "FLOP") for value in values],
                hovertemplate=f"%{{y}}, {stage}: %{{customdata}}<extra></extra>",
            )
        )
    tall = 26 if len(table) > 8 else 40
    layout = _layout({"title": title("FLOP"), "exponentformat": "SI", "nticks": 5}, "module", 140 + tall * len(table))
    layout["margin"]["t"] = 50
    place = {"orientation": "h", "y": 1, "yanchor": "bottom", "x": 0}
    legend = {**place, "traceorder": "normal", "font": {"size": 14}}
    return go.Figure(bars, {**layout, "barmode": "stack", "showlegend": True, "legend": legend})


def _layout(across: dict, rows: str, height: int) -> dict:
    """The layout of horizontal bars, the first on top; `rows` says what a bar is."""
    down = {"autorange": "reversed", "ticklabelstandoff": 6, "type": "category"}
    return {
        "xaxis": {"tickfont": {"size": 14}, **across},
        "yaxis": {"title": title(rows), "tickfont": {"size": 14}, **down},
        "height": height,
        "bargap": 0.3,
        "font": {"size": 15},
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        **CLEAR,
    }


def describe(found: Mapping[str, int], what: str) -> str:
    """The text alternative of bars: the largest five."""
    ranked = sorted(found.items(), key=lambda item: -item[1])[:5]
    return f"{what}: " + ", ".join(f"{name} {amount(value)}" for name, value in ranked)
