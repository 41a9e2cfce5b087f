"""The rows of the table of operations at each of the three zoom levels, for drawing in the browser.

Every row has a path of modules under which it folds, and cells that are text or numbers. A module's sums are made
where the table is drawn, from the rows under it.
"""

from collections.abc import Sequence

from tracer.figures.labels import scientific, shape_numbers, symbol_text
from tracer.record import Decomposition, Op, Step, TensorRecord, Trace
from tracer.symbols import notation
from tracer.symbols.categories import category

LEVELS = ("steps", "ops", "primitives")


def table(trace: Trace, level: str, opened: Sequence[Decomposition] = (), chosen: str = "") -> dict:
    """All that the browser needs: the columns, their kinds, and one row per step, op or primitive.

    `opened` are the decompositions of the run's ops, for the level of primitives; `chosen` the row that is marked.
    """
    columns, rows = {"steps": _steps, "ops": _ops}[level](trace) if level != "primitives" else _parts(trace, opened)
    return {"level": level, "columns": columns, "rows": rows, "chosen": chosen}


def _column(name: str, kind: str = "text", total: bool = False) -> dict:
    """`kind` is text, number, or error; `total` says that a module shows the sum of its rows."""
    return {"name": name, "kind": kind, "total": total}


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
                _flops([op]),
                op.step or "",
                place(op),
            ],
        }
        for op in trace.ops
    ]


def _steps(trace: Trace) -> tuple[list[dict], list[dict]]:
    ops = {op.index: op for op in trace.ops}
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
                _flops([ops[index] for index in step.ops if index in ops]),
                len(step.ops),
                _proof(step),
            ],
        }
        for number, step in enumerate(trace.steps, 1)
    ]


def _flops(ops: Sequence[Op]) -> int | list:
    """The FLOPs of ops together; where some are not counted, a number to sort by and the text that is shown."""
    sum_of = sum(op.flops or 0 for op in ops)
    if all(op.flops is not None for op in ops):
        return sum_of
    return [sum_of, f"{sum_of:,}, some not counted" if sum_of else "not counted"]


def _proof(step: Step) -> list:
    """A number to sort by and the text that is shown."""
    if step.verdict in ("recomputed", "pending"):
        return ["", step.verdict]
    number, said = error(step.error)
    return [number, f"{said}: {step.verdict}" if step.verdict == "disproven" else said]


def error(value: float | None) -> list:
    """A number to sort by and the text that is shown, for an error that may not have been measured."""
    return ["", "–"] if value is None else [value, scientific(value)]


def _parts(trace: Trace, opened: Sequence[Decomposition]) -> tuple[list[dict], list[dict]]:
    rows, known = [], {found.op: found for found in opened}
    for op in trace.ops:
        found = known.get(op.index)
        for number, part in enumerate(found.primitives if found else ()):
            rows.append(
                {
                    "id": f"op {op.index}",
                    "path": [*_path(op.module), f"{op.index} {op.op}"],
                    "number": len(rows),
                    "cells": [
                        part.name,
                        category(part.name),
                        shapes(part.inputs),
                        shapes(part.outputs),
                        part.within.replace("/", " → "),
                        error(found.error) if number == 0 else ["", ""],
                    ],
                }
            )
    return PARTS, rows


def _path(module: str) -> list[str]:
    return module.split(".") if module else []


def shapes(tensors: Sequence[TensorRecord]) -> str:
    """Shapes in symbols where those are known, else in numbers."""
    return ", ".join(shape(tensor) for tensor in tensors)


def shape(tensor: TensorRecord) -> str:
    """One tensor's shape in symbols where those are known, else in numbers."""
    return shape_numbers(tensor.shape) if tensor.symbolic is None else notation.shape_text(tensor.symbolic)


def place(op: Op) -> str:
    """File and line of an op's source, without the folders."""
    return f"{op.source.file.rsplit('/', 1)[-1]}:{op.source.line}" if op.source else ""
