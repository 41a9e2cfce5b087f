"""Ops, calls and costs as tables and curves."""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from tracer.export import verdicts
from tracer.export.rows import symbolic_shape, symbols
from tracer.figures.drawing import (
    Bar,
    BarPart,
    bars,
    round_ticks,
    stage_colour,
)
from tracer.ops import COMPUTING, ORDER, category, sentence
from tracer.record import CallRecord, Decomposition, ModuleRecord, Op, Step, TensorRecord, Trace
from tracer.symbols import notation
from tracer.utils.text import amount, scientific, shape_numbers, symbol_text

# Bars of the operations of a run by category, and of its arithmetic by module.

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
    return rows | {f"{len(rest)} others": dict(sum((Counter(table[module]) for module in rest), Counter[str]()))}


def flops(table: Mapping[str, Mapping[str, int]]) -> str:
    """Return FLOPs by module as stacked horizontal bars in HTML, one colour for each stage of the forward pass."""
    stages = dict.fromkeys(stage for row in table.values() for stage in row)
    sums = {module: sum(row.values()) for module, row in table.items()}
    rows = [
        Bar(
            module,
            [
                BarPart(row[stage], stage_colour(stage), f"{module}, {stage}: {amount(row[stage], 'FLOP')}")
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


def describe(by_category: Mapping[str, int], what: str) -> str:
    """Return the text alternative of bars: the largest five."""
    ranked = sorted(by_category.items(), key=lambda item: -item[1])[:5]
    return f"{what}: " + ", ".join(f"{name} {amount(value)}" for name, value in ranked)


# Rows of the Operations table for modules, as the forward hooks saw them, and for composite ops.

MAX_OPEN_ROWS = 4
"""Rows that are too few to open on."""
PASSES = "hands on what it is given"


def label(trace: Trace, number: int) -> str:
    """Return the path of a module within the module around it, with the number of its call if there are several."""
    module = trace.modules[number]
    around = trace.modules[module.around].path if module.around is not None else ""
    inside = f"{around}." if around else ""
    name = module.path.removeprefix(inside) if module.path else module.kind
    return name + (f" (call {module.call + 1})" if module.call else "")


def path(trace: Trace, number: int) -> list[str]:
    """Return the labels of the modules around a module, the outermost first."""
    ancestors, around = [], trace.modules[number].around
    while around is not None:
        ancestors.append(label(trace, around))
        around = trace.modules[around].around
    return ancestors[::-1]


def open_modules(trace: Trace) -> list[str]:
    """Return the tree positions of the modules that are unfolded at first: the outermost levels, until one branches."""
    if not trace.modules:
        return []
    depth, number = [], 0
    while True:
        depth.append("/".join(["", *path(trace, number), label(trace, number)]))
        inner = [i for i, module in enumerate(trace.modules) if module.around == number]
        largest = max(inner, key=lambda i: trace.modules[i].last - trace.modules[i].first, default=None)
        if len(inner) >= MAX_OPEN_ROWS or largest is None:
            return depth
        number = largest


def call_modules(trace: Trace) -> list[dict]:
    """Return one row for each call of a module; `holds` marks calls with modules in them. None shows its number."""
    holding = {module.around for module in trace.modules}
    rows = []
    for number, module in enumerate(trace.modules):
        cells = [
            label(trace, number),
            module.kind,
            call_shapes(module.inputs),
            call_shapes(module.outputs),
            module.params,
            call_flops(trace.ops[module.first : module.last]),
            module.last - module.first,
            module.verdict,
        ]
        rows.append({"id": f"module {number}", "path": path(trace, number), "number": number, "cells": cells})
        rows[-1] |= {"holds": number in holding, "mark": ""}
    return rows


def calls(trace: Trace) -> list[dict]:
    """Return one row for each composite op, with its arguments under the names of the op's schema."""
    rows = []
    for number, call in enumerate(trace.calls):
        beneath = trace.ops[call.first : call.last]
        cells = [
            call.name,
            arguments(call),
            call_shapes(call.outputs),
            call_flops(beneath),
            " ".join(op.op for op in beneath) or PASSES,
            " ".join(dict.fromkeys(op.step for op in beneath if op.step)),
        ]
        rows.append({"id": f"call {number}", "path": _path(call.module), "number": number, "cells": cells})
    return rows


def arguments(call: CallRecord) -> str:
    """Return the arguments that differ from their defaults: `input, weight, bias, dim=-1`."""
    return call.text.removeprefix(f"{call.name}(").removesuffix(")")


def call_flops(ops: Sequence[Op]) -> int | list:
    """Return the FLOPs of several ops; if some are not counted, a number to sort by and the text to display."""
    sum_of = sum(op.flops or 0 for op in ops)
    if all(op.flops is not None for op in ops):
        return sum_of
    return [sum_of, f"{sum_of:,}, some not counted" if sum_of else "not counted"]


def call_shapes(tensors: Sequence[TensorRecord]) -> list[str]:
    """Return the shapes of tensors in symbols and in numbers, with equal ones counted: `2 × [B, T, D]`."""
    both = Counter(map(symbolic_shape, tensors)), Counter(shape_numbers(tensor.shape) for tensor in tensors)
    return [", ".join(f"{n} × {text}" if n > 1 else text for text, n in counts.items()) for counts in both]


def of_op(records: Sequence[ModuleRecord | CallRecord], index: int) -> int | None:
    """Return the innermost of these calls that an op ran in, or None."""
    return next((i for i in reversed(range(len(records))) if records[i].first <= index < records[i].last), None)


# Rows of the table of operations at each zoom level, for drawing in the browser.
#
# Every row has a path of modules under which it folds, and cells that are text, numbers, or a shape in symbols and in
# numbers. The browser computes a module's sums from the rows under it, except for modules that are rows.

LEVELS = ("modules", "steps", "calls", "ops", "primitives")


def levels(trace: Trace) -> list[str]:
    """Return the levels that a run has."""
    empty = {"steps": not trace.steps, "modules": not trace.modules, "calls": not trace.calls}
    return [level for level in LEVELS if not empty.get(level)]


def table(
    trace: Trace,
    level: str,
    opened: Sequence[Decomposition] = (),
    note_of: Callable[[str], str] | None = None,
) -> dict:
    """Return everything that the browser needs: the columns, their kinds, and the rows of a level.

    `opened` are the decompositions of ops, for the level of primitives. `open` are the modules that are unfolded at
    first. `note_of` returns the number of a step in the note that the model is of.
    """
    contents = {"level": level, "open": []}
    if level == "modules":
        whole = {"parameters": trace.params, "FLOP": trace.flops}
        columns = [{**column, "whole": whole.get(column["name"], 0)} for column in MODULES]
        return contents | {
            "columns": columns,
            "rows": call_modules(trace),
            "open": open_modules(trace),
        }
    if level == "calls":
        return contents | {"columns": CALLS, "rows": calls(trace)}
    columns, rows = {"steps": _steps, "ops": _ops}[level](trace) if level != "primitives" else _parts(trace, opened)
    if level == "steps" and note_of:
        columns = [*columns[:2], NOTE_COLUMN, *columns[2:]]
        for step, row in zip(trace.steps, rows, strict=True):
            row["cells"].insert(2, note_of(step.id))
    if level == "primitives" and len(opened) < len(trace.ops):
        contents["noun"] = "ops and primitives"
    return contents | {"columns": columns, "rows": rows}


def folds(table: dict) -> int:
    """Return the number of modules of a table that fold, as an address numbers them.

    A module whose only content is another module is one with it.
    """
    rows, own, modules = Counter(), set(), set()
    for row in table["rows"]:
        path = tuple(row["path"])
        if row.get("holds"):
            path = (*path, row["cells"][0])
            own.add(path)
        else:
            rows[path] += 1
        modules |= {path[:length] for length in range(1, len(path) + 1)}
    inside = Counter(path[:-1] for path in modules)
    return sum(path in own or rows[path] > 0 or inside[path] != 1 for path in modules)


KINDS = {
    "in": "shape", "out": "shape", "gives": "shape", "parameters": "number", "FLOP": "number", "ops": "number",
    "arguments": "code", "ops beneath": "code", "error": "error", "error of the op": "error",
}  # fmt: skip
"""The kinds of columns; of any other name, text."""


def _columns(*names: str, total: bool = True) -> list[dict]:
    """Return columns with their kinds; `total` shows a module's sum of its rows, of those of numbers."""
    kinds = [KINDS.get(name, "text") for name in names]
    return [
        {"name": name, "kind": kind, "total": total and kind == "number"}
        for name, kind in zip(names, kinds, strict=True)
    ]


MODULES = _columns("name", "class", "in", "out", "parameters", "FLOP", "ops", "hooks and ops", total=False)
CALLS = _columns("name", "arguments", "gives", "FLOP", "ops beneath", "step")
OPS = _columns("name", "category", "inputs", "outputs", "parameters", "FLOP", "step", "source")
STEPS = _columns("name", "stage", "symbol", "shape", "parameters", "FLOP", "ops", "error")
PARTS = _columns("name", "category", "inputs", "outputs", "opened from", "error of the op", "what it does")
(NOTE_COLUMN,) = _columns("in the note")


def _ops(trace: Trace) -> tuple[list[dict], list[dict]]:
    return OPS, [
        {
            "id": f"op {op.index}",
            "path": _path(op.module),
            "number": op.index,
            "cells": [
                op.op,
                category(op.op),
                symbols(op.inputs),
                symbols(op.outputs),
                op.params,
                call_flops([op]),
                op.step or "",
                place(op),
            ],
        }
        for op in trace.ops
    ]


def _steps(trace: Trace) -> tuple[list[dict], list[dict]]:
    from tracer.record.costs import cost_of_step  # counting FLOPs imports torch, which pages start without

    ops = {op.index: op for op in trace.ops}
    costs = {step.id: cost_of_step(trace, step) for step in trace.steps}
    return STEPS, [
        {
            "id": f"step {step.id}",
            "path": [f"Block {step.layer + 1}"] if step.layer is not None else [],
            "number": number,
            "cells": [
                step.title,
                step.stage,
                symbol_text(step.symbol),
                f"{notation.shape_text(step.symbolic)} = {shape_numbers(step.shape)}",
                sum(ops[index].params for index in step.ops if index in ops),
                costs[step.id].flops
                if costs[step.id].counted
                else call_flops([ops[index] for index in step.ops if index in ops]),
                len(step.ops),
                _proof(step),
            ],
        }
        for number, step in enumerate(trace.steps, 1)
    ]


def _proof(step: Step) -> list:
    """Return a number to sort by and the text to display."""
    if step.verdict in ("recomputed", "pending", "recorded"):
        return ["", step.verdict]
    number, error_text = error(step.error)
    if step.refuted:
        return [number, verdicts.words(step)]
    return [number, f"{error_text}: {verdicts.words(step)}" if step.verdict == "refuted" else error_text]


def error(value: float | None) -> list:
    """Return a number to sort by and the text to display, for an error that may not have been measured."""
    return ["", "–"] if value is None else [value, scientific(value)]


def _parts(trace: Trace, opened: Sequence[Decomposition]) -> tuple[list[dict], list[dict]]:
    rows, known = [], {decomposition.op: decomposition for decomposition in opened}
    for op in trace.ops:
        decomposition = known.get(op.index)
        if decomposition is None:
            cells = [op.op, category(op.op), symbols(op.inputs), symbols(op.outputs), "not opened", ["", ""]]
            cells.append(sentence(op.op))
            rows.append({"id": f"op {op.index}", "path": _path(op.module), "number": op.index, "cells": cells})
            continue
        for number, part in enumerate(decomposition.primitives):
            rows.append(
                {
                    "id": f"op {op.index}",
                    "path": [*_path(op.module), f"{op.index} {op.op}"],
                    "number": op.index,
                    "mark": f"{op.index}.{number}",
                    "cells": [
                        part.name,
                        category(part.name),
                        symbols(part.inputs),
                        symbols(part.outputs),
                        part.within.replace("/", " → "),
                        error(decomposition.error) if number == 0 else ["", ""],
                        sentence(part.name),
                    ],
                }
            )
    return PARTS, rows


def _path(module: str) -> list[str]:
    return module.split(".") if module else []


def place(op: Op) -> str:
    """Return file and line of an op's source, without the folders."""
    return f"{op.source.file.rsplit('/', 1)[-1]}:{op.source.line}" if op.source else ""
