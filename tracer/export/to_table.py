"""Aligned plain text, for the terminal."""

from __future__ import annotations

import unicodedata

from tracer.export import rows
from tracer.export.letters import as_printed, sizes_with_letters
from tracer.record import Trace
from tracer.symbols import notation
from tracer.symbols.letters import OWN, Letters
from tracer.utils.text import shape_numbers, symbol_unicode

SUFFIXES = (".txt",)
RIGHT = {"index", "number", "error", "params", "flops", "times", "numbers"}


def render(trace: Trace, level: str, letters: Letters = OWN) -> str:
    """Return a header, then one line per row of the level."""
    head = [
        trace.model + (f": {trace.weights}" if trace.weights else ""),
        rows.sizes(sizes_with_letters(trace, letters)),
        rows.totals(trace, letters),
        *trace.notes,
    ]
    views = {"modules": _modules, "calls": _calls, "ops": _ops, "primitives": _primitives}
    views["costs"] = _costs
    table = _steps(trace, letters) if level == "steps" else views[level](trace)
    body = align(table) or f"This run has no {level}; --level ops shows its operations."
    return "\n".join([*(rows.cell(line) for line in head if line), "", body])


def _steps(trace: Trace, letters: Letters) -> list[dict[str, str]]:
    """Return one line per step; blocks that repeat are listed once, with their number."""
    return [
        {
            "step": step.id,
            **({"times": f"× {repeat.times}" if repeat else ""} if trace.repeats else {}),
            "symbol": symbol_unicode(step.symbol),
            "shape": notation.shape_text(step.symbolic),
            "here": shape_numbers(step.shape),
            "error": rows.proof(step),
            "equation": step.latex,
        }
        for repeat, steps in as_printed(trace, letters)
        for step in steps
    ]


def _modules(trace: Trace) -> list[dict[str, str]]:
    """Return one line per module; modules within others are indented."""
    depth: list[int] = []
    table = []
    for module, row in zip(trace.modules, rows.modules(trace), strict=True):
        depth.append(0 if module.around is None else depth[module.around] + 1)
        name = row["module"] or trace.model
        table.append(
            {
                "module": "  " * depth[-1] + name + (f" (call {module.call + 1})" if module.call else ""),
                "class": row["class"],
                "shape": f"{row['inputs']} → {row['outputs']}",
                "here": row["shapes"],
                "params": f"{row['params']:,}",
                "flops": rows.count(row["flops"]),
                "ops": row["ops"],
                "verdict": row["verdict"] + (f": {row['note']}" if row["note"] else ""),
            }
        )
    return table


def _calls(trace: Trace) -> list[dict[str, str]]:
    return [
        {
            "call": row["call"],
            "shape": row["outputs"],
            "here": row["shapes"],
            "flops": rows.count(row["flops"]),
            "ops": row["ops"],
            "module": row["module"],
            "steps": row["steps"],
        }
        for row in rows.calls(trace)
    ]


def _ops(trace: Trace) -> list[dict[str, str]]:
    return [
        {
            "index": str(row["index"]),
            "module": row["module"],
            "op": row["op"],
            "shape": f"{row['inputs']} → {row['outputs']}",
            "here": row["shapes"],
            "dtype": row["dtype"],
            "params": f"{row['params']:,}",
            "flops": rows.count(row["flops"]),
            "step": row["step"] or "",
            "source": row["source"],
        }
        for row in rows.ops(trace)
    ]


def _primitives(trace: Trace) -> list[dict[str, str]]:
    return [
        {
            "index": str(row["index"]) if row["number"] == 0 else "",
            "module": row["module"] if row["number"] == 0 else "",
            "op": row["op"] if row["number"] == 0 else "",
            "number": str(row["number"]),
            "primitive": row["primitive"],
            "within": row["within"],
            "shape": f"{row['inputs']} → {row['outputs']}",
            "here": row["shapes"],
            "dtype": row["dtype"],
            "error": "" if row["error"] is None else rows.error(row["error"]),
            "note": row["note"],
        }
        for row in rows.primitives(trace)
    ]


def _costs(trace: Trace) -> list[dict[str, str]]:
    return [
        {
            name: f"{value:,}" if isinstance(value, int) else notation.text(value) if "_" in name else value
            for name, value in row.items()
        }
        for row in rows.costs(trace)
    ]


def align(lines: list[dict[str, str]]) -> str:
    """Return rows of one set of columns as text: columns as wide as their longest cell, numbers to the right.

    No rows give "".
    """
    if not lines:
        return ""
    names = list(lines[0])
    grid = [names, *([rows.cell(line[name]) for name in names] for line in lines)]
    widths = [max(map(_width, column)) for column in zip(*grid, strict=True)]
    return "\n".join(
        "  ".join(
            " " * (width - _width(cell)) + cell if name in RIGHT else cell + " " * (width - _width(cell))
            for name, cell, width in zip(names, line, widths, strict=True)
        ).rstrip()
        for line in grid
    )


def _width(cell: str) -> int:
    """Return the number of columns that a cell takes: accents are above the letter before."""
    return sum(not unicodedata.combining(letter) for letter in cell)
