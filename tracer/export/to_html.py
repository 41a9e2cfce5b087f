"""One piece of HTML without scripts or requests; its colours follow the page around it.

Equations are MathML, which browsers draw by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from itertools import pairwise
from xml.etree import ElementTree

from latex2mathml.converter import convert

from tracer.export import rows
from tracer.export.rows import with_titles
from tracer.record import Trace
from tracer.symbols import notation
from tracer.utils.text import shape_numbers

SUFFIXES = (".html", ".htm")

TAGS = set(
    "math mrow mi mn mo mtext mspace mstyle mpadded msup msub msubsup mfrac msqrt mroot mover munder munderover "
    "mtable mtr mtd".split()
)
ATTRIBUTES = set(
    "display displaystyle scriptlevel stretchy fence form separator accent width height depth lspace rspace minsize "
    "maxsize linethickness mathvariant columnalign rowspacing".split()
)

STYLE = """
.tensor-trace { font: 14px/1.5 system-ui, sans-serif; overflow-x: auto; }
.tensor-trace table { border-collapse: collapse; margin: 0.5em 0; font: inherit; color: inherit; }
.tensor-trace th, .tensor-trace td { text-align: left; vertical-align: baseline; padding: 0.3em 1.5em 0.3em 0;
  border-bottom: 1px solid rgba(128, 128, 128, 0.35); background: none; white-space: nowrap; }
.tensor-trace th { font-weight: 600; }
.tensor-trace math { math-style: normal; font-size: 115%; }
.tensor-trace code { font: 12px/1.5 ui-monospace, monospace; background: none; color: inherit; }
.tensor-trace .quiet { opacity: 0.7; }
.tensor-trace td .quiet { white-space: normal; }
.tensor-trace td.shape .quiet { white-space: nowrap; }
.tensor-trace .number { text-align: right; font-variant-numeric: tabular-nums; }
"""


def render(trace: Trace, level: str) -> str:
    """Return a short header, the symbols, and the rows of the level as a table."""
    head = [
        f"<strong>{text(trace.model)}</strong> {_quiet(trace.weights)}",
        text(rows.totals(trace)),
        *map(_quiet, trace.notes),
    ]
    views = {"modules": _modules, "steps": _steps, "calls": _calls, "ops": _ops, "primitives": _primitives}
    views["costs"] = _costs
    table = views[level](trace)
    lines = "".join(f"<div>{line}</div>\n" for line in head)
    start = f'<meta charset="utf-8">\n<div class="tensor-trace">\n<style>{STYLE}</style>\n'
    return f"{start}{lines}{_symbols(trace)}{table}</div>\n"


def _symbols(trace: Trace) -> str:
    items = [
        f'<abbr title="{text(symbol.meaning)}">{text(symbol.name)}</abbr> = {symbol.value}'
        + (f" = {text(notation.text(symbol.equals))}" if symbol.equals else "")
        for symbol in trace.symbols
    ]
    return f"<div>{', '.join(items)}</div>\n" if items else ""


def _steps(trace: Trace) -> str:
    body = [
        (
            f'<td title="{text(with_titles(step.why))}">{text(step.title)}<br>{_quiet(step.id)}</td>',
            f"<td>{equation(step.latex)}{'<br>' + _quiet(with_titles(step.note)) if step.note else ''}</td>",
            f"<td>{text(notation.shape_text(step.symbolic))}<br>{_quiet(shape_numbers(step.shape))}</td>",
            f'<td class="number">{text(rows.proof(step))}</td>',
        )
        for step in trace.steps
    ]
    return _table(("step", "equation", "shape", "error"), body)


def _costs(trace: Trace) -> str:
    body = []
    for row in rows.costs(trace):
        cells = [
            f'<td class="number">{row[name]:,}<br>{_quiet(notation.text(row[f"{name}_symbolic"]))}</td>'
            for name in ("params", "flops", "numbers")
        ]
        body.append((f"<td>{text(row['part'])}</td>", *cells))
    return _table(("part", "params", "FLOPs", "numbers"), body)


def _modules(trace: Trace) -> str:
    body = [
        (
            f"<td>{text(row['module'] or trace.model)}<br>{_quiet(row['class'])}</td>",
            f'<td class="shape">{text(row["inputs"])} → {text(row["outputs"])}<br>{_quiet(row["shapes"])}</td>',
            f'<td class="number">{row["params"]:,}</td>',
            f'<td class="number">{rows.count(row["flops"])}</td>',
            f'<td class="number">{text(row["ops"])}</td>',
            f'<td title="{text(row["note"])}">{row["verdict"]}</td>',
        )
        for row in rows.modules(trace)
    ]
    return _table(("module", "shape", "params", "FLOPs", "ops", ""), body)


def _calls(trace: Trace) -> str:
    body = [
        (
            f"<td><code>{text(row['call'])}</code><br>{_quiet(row['module'])}</td>",
            f'<td class="shape">{text(row["outputs"])}<br>{_quiet(row["shapes"])}</td>',
            f'<td class="number">{rows.count(row["flops"])}</td>',
            f'<td class="number">{text(row["ops"])}</td>',
            f"<td>{text(row['steps'])}</td>",
        )
        for row in rows.calls(trace)
    ]
    return _table(("call", "gives", "FLOPs", "ops", "steps"), body)


def _ops(trace: Trace) -> str:
    body = [
        (
            f'<td class="number">{op.index}</td>',
            f"<td>{text(op.op)}<br>{_quiet(op.module)}</td>",
            f"<td>{text(rows.symbols(op.inputs))} → {text(rows.symbols(op.outputs))}</td>",
            f'<td class="number">{op.params:,}</td>',
            f'<td class="number">{rows.flops(op)}</td>',
            f'<td title="{text(rows.place(op.source))}"><code>{text(op.source.text if op.source else "")}</code></td>',
        )
        for op in trace.ops
    ]
    return _table(("op", "", "shape", "params", "FLOPs", "source"), body)


def _primitives(trace: Trace) -> str:
    body = []
    for opened in trace.decompositions:
        op, several = trace.ops[opened.op], len(opened.primitives)
        whose = (
            f'<td class="number" rowspan="{several}">{op.index}</td>'
            f'<td rowspan="{several}">{text(op.op)}<br>{_quiet(op.module)}</td>'
        )
        proof = text(rows.error(opened.error)) if opened.error is not None else _quiet(opened.note)
        for number, primitive in enumerate(opened.primitives):
            within = _quiet(primitive.within.rpartition("/")[2])
            body.append(
                (
                    whose if number == 0 else "",
                    f'<td title="{text(primitive.within)}">{text(primitive.name)}<br>{within}</td>',
                    f'<td class="shape">{text(rows.symbols(primitive.inputs))}'
                    f" → {text(rows.symbols(primitive.outputs))}"
                    f"<br>{_quiet(rows.shapes(primitive))}</td>",
                    f'<td class="number" rowspan="{several}">{proof}</td>' if number == 0 else "",
                )
            )
    return _table(("op", "", "primitive", "shape", "error"), body)


def _table(names: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table>\n<tr>{head}</tr>\n" + "".join(f"<tr>{''.join(line)}</tr>\n" for line in body) + "</table>\n"


PRIMES = re.compile(r"('{2,})\^\{")
"""Two primes or more before a superscript: to the converter, the primes are a superscript too."""
NAMES = re.compile(r"\\operatorname\{((?=[A-Za-z]*[\d\\])(?:[A-Za-z\d]|\\_)+)\}")
"""Names of functions with digits or underscores, which the converter would take for products of letters."""


@lru_cache(maxsize=4096)
def equation(latex: str) -> str:
    """Return LaTeX as MathML, or as text if it can't be converted or holds more than mathematics (a link, a style)."""
    try:
        plain = PRIMES.sub(lambda match: r"^{" + r"\prime" * len(match[1]) + " ", latex)
        plain = NAMES.sub(r"\\text{\1}", plain)
        tree = ElementTree.fromstring(convert(plain, xmlns=""))
    except Exception:  # whatever the converter or the parser make of a stranger's text
        return f"<code>{text(latex)}</code>"
    if all(node.tag in TAGS and node.attrib.keys() <= ATTRIBUTES for node in tree.iter()):
        _fix_layout(tree)
        return ElementTree.tostring(tree, encoding="unicode")
    return f"<code>{text(latex)}</code>"


def _fix_layout(tree: ElementTree.Element) -> None:
    """Write the underscores of names, and set the brace of cases as tall as their rows, and columns to the left.

    Browsers stretch the brace only if a mathematical font is installed, and align columns by style sheets alone.
    """
    for name in tree.iter("mtext"):
        name.text = (name.text or "").replace(r"\_", "_")
    for cell in tree.iter("mtd"):
        if cell.attrib.pop("columnalign", "") == "left":
            cell.set("style", "text-align: left")
    for row in tree.iter("mrow"):
        for brace, table in pairwise(row):
            if (brace.text, table.tag) == ("{", "mtable"):
                brace.set("stretchy", "false")
                brace.set("style", f"transform: scaleY({1.2 * len(table):g})")


def _quiet(value: str) -> str:
    return f'<span class="quiet">{text(value)}</span>' if value else ""


def text(value: object) -> str:
    """Return escaped text, safe between tags and inside quoted attributes."""
    return escape(rows.cell(value))
