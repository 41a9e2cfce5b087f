"""Rows of the table of operations at each zoom level, for drawing in the browser.

Every row has a path of modules under which it folds, and cells that are text, numbers, or a shape in symbols and in
numbers. The browser computes a module's sums from the rows under it, except for modules that are rows.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from tracer.export.math_labels import scientific, shape_numbers, symbol_text
from tracer.figures.tables import call_table
from tracer.figures.tables.call_table import flops
from tracer.ops import category
from tracer.record import Decomposition, Op, Step, TensorRecord, Trace
from tracer.symbols import notation

LEVELS = ("modules", "steps", "calls", "ops", "primitives")


def levels(trace: Trace) -> list[str]:
    """Return the levels that a run has."""
    empty = {"steps": not trace.steps, "modules": not trace.modules, "calls": not trace.calls}
    return [level for level in LEVELS if not empty.get(level)]


def table(
    trace: Trace,
    level: str,
    opened: Sequence[Decomposition] = (),
    chosen: str = "",
    note_of: Callable[[str], str] | None = None,
) -> dict:
    """Return everything that the browser needs: the columns, their kinds, and the rows of a level.

    `opened` are the decompositions of ops, for the level of primitives; `chosen` the row that is marked. `open` are the
    modules that are unfolded at first. `note_of` returns the number of a step in the note that the model is of.
    """
    contents = {"level": level, "chosen": chosen, "open": []}
    if level == "modules":
        whole = {"parameters": trace.params, "FLOP": trace.flops}
        columns = [{**column, "whole": whole.get(column["name"], 0)} for column in MODULES]
        return contents | {
            "columns": columns,
            "rows": call_table.modules(trace),
            "open": call_table.open_modules(trace),
        }
    if level == "calls":
        return contents | {"columns": CALLS, "rows": call_table.calls(trace)}
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


def _column(name: str, kind: str = "text", total: bool = False) -> dict:
    """Return a column of a `kind`: text, code, number, shape, or error; `total` shows a module's sum of its rows."""
    return {"name": name, "kind": kind, "total": total}


MODULES = [
    _column("name"),
    _column("class"),
    _column("in", "shape"),
    _column("out", "shape"),
    _column("parameters", "number"),
    _column("FLOP", "number"),
    _column("ops", "number"),
    _column("hooks and ops"),
]
CALLS = [
    _column("name"),
    _column("arguments", "code"),
    _column("gives", "shape"),
    _column("FLOP", "number", True),
    _column("ops beneath", "code"),
    _column("step"),
]
OPS = [
    _column("name"),
    _column("category"),
    _column("inputs"),
    _column("outputs"),
    _column("parameters", "number", True),
    _column("FLOP", "number", True),
    _column("step"),
    _column("source"),
]
STEPS = [
    _column("name"),
    _column("stage"),
    _column("symbol"),
    _column("shape"),
    _column("parameters", "number", True),
    _column("FLOP", "number", True),
    _column("ops", "number", True),
    _column("error", "error"),
]
NOTE_COLUMN = _column("in the note")
PARTS = [
    _column("name"),
    _column("category"),
    _column("inputs"),
    _column("outputs"),
    _column("opened from"),
    _column("error of the op", "error"),
]


def _ops(trace: Trace) -> tuple[list[dict], list[dict]]:
    return OPS, [
        {
            "id": f"op {op.index}",
            "path": _path(op.module),
            "number": op.index,
            "cells": [
                op.op,
                category(op.op),
                shapes(op.inputs),
                shapes(op.outputs),
                op.params,
                flops([op]),
                op.step or "",
                place(op),
            ],
        }
        for op in trace.ops
    ]


def _steps(trace: Trace) -> tuple[list[dict], list[dict]]:
    from tracer.record.cost_breakdown import of_step  # counting FLOPs imports torch, which pages start without

    ops = {op.index: op for op in trace.ops}
    costs = {step.id: of_step(trace, step) for step in trace.steps}
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
                else flops([ops[index] for index in step.ops if index in ops]),
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
        return [number, "disproven on another run"]
    return [number, f"{error_text}: {step.verdict}" if step.verdict == "disproven" else error_text]


def error(value: float | None) -> list:
    """Return a number to sort by and the text to display, for an error that may not have been measured."""
    return ["", "–"] if value is None else [value, scientific(value)]


def _parts(trace: Trace, opened: Sequence[Decomposition]) -> tuple[list[dict], list[dict]]:
    rows, known = [], {decomposition.op: decomposition for decomposition in opened}
    for op in trace.ops:
        decomposition = known.get(op.index)
        if decomposition is None:
            cells = [op.op, category(op.op), shapes(op.inputs), shapes(op.outputs), "not opened", ["", ""]]
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
                        shapes(part.inputs),
                        shapes(part.outputs),
                        part.within.replace("/", " → "),
                        error(decomposition.error) if number == 0 else ["", ""],
                    ],
                }
            )
    return PARTS, rows


def _path(module: str) -> list[str]:
    return module.split(".") if module else []


def shapes(tensors: Sequence[TensorRecord]) -> str:
    """Return shapes in symbols if they are known, else in numbers."""
    return ", ".join(shape(tensor) for tensor in tensors)


def shape(tensor: TensorRecord) -> str:
    """Return one tensor's shape in symbols if they are known, else in numbers."""
    return shape_numbers(tensor.shape) if tensor.symbolic is None else notation.shape_text(tensor.symbolic)


def place(op: Op) -> str:
    """Return file and line of an op's source, without the folders."""
    return f"{op.source.file.rsplit('/', 1)[-1]}:{op.source.line}" if op.source else ""
