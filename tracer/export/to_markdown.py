"""Markdown with LaTeX between dollar signs, as GitHub, Jupyter and most editors render it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracer.export import rows
from tracer.export.letters import as_printed, sizes_with_letters
from tracer.export.rows import with_titles
from tracer.record import Trace
from tracer.symbols import notation
from tracer.symbols.letters import OWN, Letters
from tracer.utils.text import shape_numbers

SUFFIXES = (".md", ".markdown")
LEFT_OUT = {"ops": ("function", "note"), "primitives": ("makers",)}
"""Columns that no table has, by the level."""


def render(trace: Trace, level: str, letters: Letters = OWN) -> str:
    """Return a heading, the symbols, then a table of the rows of the level."""
    symbols = sizes_with_letters(trace, letters)
    sizes = ", ".join(f"${notation.latex(s.name)}$ = {s.value} ({text(s.meaning)})" for s in symbols)
    head = [
        f"## {text(trace.model)}",
        text(trace.weights),
        sizes,
        text(rows.totals(trace, letters)),
        *map(text, trace.notes),
    ]
    table = _steps(trace, letters) if level == "steps" else _plain(trace, level)
    return "\n\n".join([*(part for part in head if part), table])


def _steps(trace: Trace, letters: Letters) -> str:
    """Return the table of steps; blocks that repeat are in it once, with their number."""
    body = [
        (
            (f"`{step.id}`" if "`" not in step.id else text(step.id)) + (f" × {repeat.times}" if repeat else ""),
            math(step.latex),
            math(notation.shape_latex(step.symbolic)),
            shape_numbers(step.shape),
            rows.proof(step),
            text(with_titles(step.why)),
            text(with_titles(step.note)),
        )
        for repeat, steps in as_printed(trace, letters)
        for step in steps
    ]
    return _table(("step", "equation", "shape", "here", "error", "why", "note"), body)


def _plain(trace: Trace, level: str) -> str:
    names = [name for name in rows.COLUMNS[level] if not name.endswith("_symbolic")]
    names = [name for name in names if name not in LEFT_OUT.get(level, ())]
    return _table(tuple(names), [tuple(_cell(name, row[name]) for name in names) for row in rows.rows(trace, level)])


def _cell(name: str, value: object) -> str:
    return rows.error(value) if name == "error" and isinstance(value, float) else text(value)


def _table(names: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    lines = [names, ("---",) * len(names), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def math(latex: str) -> str:
    """Return LaTeX for a table cell, where a bare bar would end the cell and a dollar sign the equation."""
    latex = latex.replace(r"\|", r"\Vert ").replace("|", r"\vert ").replace(r"\$", "").replace("$", "")
    return f"${rows.cell(latex)}$"


def text(value: object) -> str:
    """Return text with Markdown's and HTML's own characters escaped."""
    return re.sub(r"([\\`*_\[\]<>|#$~&])", r"\\\1", rows.cell(value))
