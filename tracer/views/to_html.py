"""One piece of HTML: no script, nothing loaded; colours follow the page it is put into.

Equations stand between dollar signs: notebooks typeset them, elsewhere they read as LaTeX.
"""

from __future__ import annotations

from html import escape

from tracer import notation
from tracer.record import Op, Step, Trace
from tracer.views import rows

SUFFIXES = (".html", ".htm")

STYLE = """
.tensor-trace { font: 14px/1.5 system-ui, sans-serif; color-scheme: light dark; overflow-x: auto; }
.tensor-trace table { border-collapse: collapse; margin: 0.5em 0; }
.tensor-trace th, .tensor-trace td { text-align: left; vertical-align: top; padding: 0.2em 0.8em 0.2em 0;
  border-bottom: 1px solid rgba(128, 128, 128, 0.35); background: none; }
.tensor-trace th { font-weight: 600; }
.tensor-trace code { font: 12px/1.5 ui-monospace, monospace; background: none; color: inherit; }
.tensor-trace .quiet { opacity: 0.7; }
.tensor-trace .number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
"""


def render(trace: Trace, level: str) -> str:
    """A short header, the symbols, and the steps or ops as a table."""
    head = [
        f"<strong>{text(trace.model)}</strong> {_quiet(trace.weights)}",
        text(rows.totals(trace)),
        *map(_quiet, trace.notes),
    ]
    table = _steps(trace.steps) if level == "steps" else _ops(trace.ops)
    lines = "".join(f"<div>{line}</div>\n" for line in head)
    return f'<div class="tensor-trace">\n<style>{STYLE}</style>\n{lines}{_symbols(trace)}{table}</div>\n'


def _symbols(trace: Trace) -> str:
    items = [
        f'<abbr title="{text(symbol.meaning)}">{text(symbol.name)}</abbr> = {symbol.value}'
        + (f" = {text(notation.text(symbol.equals))}" if symbol.equals else "")
        for symbol in trace.symbols
    ]
    return f"<div>{', '.join(items)}</div>\n" if items else ""


def _steps(steps: tuple[Step, ...]) -> str:
    body = [
        (
            f'<td title="{text(step.why)}">{text(step.title)}<br>{_quiet(step.id)}</td>',
            f"<td>${text(step.latex)}${'<br>' + _quiet(step.note) if step.note else ''}</td>",
            f"<td>{text(notation.shape_text(step.symbolic))}<br>{_quiet(rows.numbers(step.shape))}</td>",
            f'<td class="number">{"recomputed" if step.recomputed else text(rows.error(step.error))}</td>',
        )
        for step in steps
    ]
    return _table(("step", "equation", "shape", "error"), body)


def _ops(ops: tuple[Op, ...]) -> str:
    body = [
        (
            f'<td class="number">{op.index}</td>',
            f"<td>{text(op.op)}<br>{_quiet(op.module)}</td>",
            f"<td>{text(rows.symbols(op.inputs))} → {text(rows.symbols(op.outputs))}</td>",
            f'<td class="number">{op.params:,}</td>',
            f'<td class="number">{op.flops:,}</td>',
            f'<td title="{text(rows.place(op.source))}"><code>{text(op.source.text if op.source else "")}</code></td>',
        )
        for op in ops
    ]
    return _table(("op", "", "shape", "params", "FLOPs", "source"), body)


def _table(names: tuple[str, ...], body: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table>\n<tr>{head}</tr>\n" + "".join(f"<tr>{''.join(line)}</tr>\n" for line in body) + "</table>\n"


def _quiet(value: str) -> str:
    return f'<span class="quiet">{text(value)}</span>' if value else ""


def text(value: object) -> str:
    """Escaped text, safe between tags and inside quoted attributes."""
    return escape(rows.cell(value))
