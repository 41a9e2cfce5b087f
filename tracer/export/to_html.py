"""One piece of HTML without scripts or requests; its colours follow the page around it.

Equations are MathML, which browsers draw by themselves.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from html import escape
from itertools import pairwise
from xml.etree import ElementTree

from latex2mathml.converter import convert

from tracer.export import rows
from tracer.export.letters import sizes_with_letters, with_letters
from tracer.export.rows import with_titles
from tracer.record import Finding, Step, Symbol, Trace
from tracer.symbols import notation
from tracer.symbols.letters import OWN, Letters
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
.tensor-trace th, .tensor-trace td { text-align: left !important; vertical-align: baseline;
  padding: 0.3em 1.5em 0.3em 0; border-bottom: 1px solid rgba(128, 128, 128, 0.35); background: none;
  white-space: nowrap; }
.tensor-trace th { font-weight: 600; }
.tensor-trace math { math-style: normal; font-size: 115%; }
.tensor-trace code { font: 12px/1.5 ui-monospace, monospace; background: none; color: inherit; }
.tensor-trace .quiet { opacity: 0.7; }
.tensor-trace td .quiet, .tensor-trace td.words { white-space: normal; }
.tensor-trace td.shape .quiet { white-space: nowrap; }
.tensor-trace .number { text-align: right !important; font-variant-numeric: tabular-nums; }
"""


def render(trace: Trace, level: str, letters: Letters = OWN) -> str:
    """Return a short header, the symbols, and the rows of the level as a table."""
    head = [
        f"<strong>{text(trace.model)}</strong> {quiet(trace.weights)}",
        text(rows.totals(trace, letters)),
        *map(quiet, trace.notes),
    ]
    views = {"modules": _modules, "calls": _calls, "ops": _ops, "primitives": _primitives}
    views["costs"] = _costs
    body = _steps(trace, letters) if level == "steps" else views[level](trace)
    lines = "".join(f"<div>{line}</div>\n" for line in head)
    found = tuple(finding for finding in trace.diagnosis or () if not finding.intent)
    symbols = _symbols(sizes_with_letters(trace, letters))
    return page(f"{lines}{symbols}{_findings(found) if found else ''}{body}")


def page(content: str) -> str:
    """Return HTML in the frame of a view, with its style."""
    return f'<meta charset="utf-8">\n<div class="tensor-trace">\n<style>{STYLE}</style>\n{content}</div>\n'


CODE = re.compile("`([^`]+)`")
"""Code in the text of a repair."""


def _code(match: re.Match[str]) -> str:
    return f"<code>{match[1]}</code>"


def findings(found: Sequence[Finding]) -> str:
    """Return findings as a table of their own, or that there is none."""
    return page(_findings(found) if found else "<div>No finding: no rule saw a likely mistake.</div>\n")


def _findings(found: Sequence[Finding]) -> str:
    body = [
        (
            f"<td><strong>{text(finding.kind)}</strong><br>{quiet(finding.step)}</td>",
            f'<td class="words">{text(finding.message)}</td>',
            f'<td class="words">{CODE.sub(_code, text(finding.fix))}</td>',
        )
        for finding in found
    ]
    return table((f"finding{'s' * (len(body) > 1)}", "what was measured", "repair"), body)


def step(one: Step) -> str:
    """Return one line of the textbook as a table of its own, with its reason."""
    why = f'<div class="words">{text(with_titles(one.why))}</div>\n' if one.why else ""
    return page(table(STEP_COLUMNS, [_step(one)]) + why)


def _symbols(symbols: Sequence[Symbol]) -> str:
    items = [
        f'<abbr title="{text(symbol.meaning)}">{text(symbol.name)}</abbr> = {symbol.value}'
        + (f" = {text(notation.text(symbol.equals))}" if symbol.equals else "")
        for symbol in symbols
    ]
    return f"<div>{', '.join(items)}</div>\n" if items else ""


STEP_COLUMNS = ("step", "equation", "shape", "error")


def _steps(trace: Trace, letters: Letters) -> str:
    return table(STEP_COLUMNS, [_step(with_letters(step, letters)) for step in trace.steps])


def _step(step: Step) -> tuple[str, ...]:
    return (
        f'<td title="{text(with_titles(step.why))}">{text(step.title)}<br>{quiet(step.id)}</td>',
        f"<td>{equation(step.latex)}{'<br>' + quiet(with_titles(step.note)) if step.note else ''}</td>",
        f"<td>{text(notation.shape_text(step.symbolic))}<br>{quiet(shape_numbers(step.shape))}</td>",
        f'<td class="number">{text(rows.proof(step))}</td>',
    )


def _costs(trace: Trace) -> str:
    body = []
    for row in rows.costs(trace):
        cells = [
            f'<td class="number">{row[name]:,}<br>{quiet(notation.text(row[f"{name}_symbolic"]))}</td>'
            for name in ("params", "flops", "numbers")
        ]
        body.append((f"<td>{text(row['part'])}</td>", *cells))
    return table(("part", "params", "FLOPs", "numbers"), body)


def _modules(trace: Trace) -> str:
    body = [
        (
            f"<td>{text(row['module'] or trace.model)}<br>{quiet(row['class'])}</td>",
            f'<td class="shape">{text(row["inputs"])} → {text(row["outputs"])}<br>{quiet(row["shapes"])}</td>',
            f'<td class="number">{row["params"]:,}</td>',
            f'<td class="number">{rows.count(row["flops"])}</td>',
            f'<td class="number">{text(row["ops"])}</td>',
            f'<td title="{text(row["note"])}">{row["verdict"]}</td>',
        )
        for row in rows.modules(trace)
    ]
    return table(("module", "shape", "params", "FLOPs", "ops", ""), body)


def _calls(trace: Trace) -> str:
    body = [
        (
            f"<td><code>{text(row['call'])}</code><br>{quiet(row['module'])}</td>",
            f'<td class="shape">{text(row["outputs"])}<br>{quiet(row["shapes"])}</td>',
            f'<td class="number">{rows.count(row["flops"])}</td>',
            f'<td class="number">{text(row["ops"])}</td>',
            f"<td>{text(row['steps'])}</td>",
        )
        for row in rows.calls(trace)
    ]
    return table(("call", "gives", "FLOPs", "ops", "steps"), body)


def _ops(trace: Trace) -> str:
    body = [
        (
            f'<td class="number">{op.index}</td>',
            f"<td>{text(op.op)}<br>{quiet(op.module)}</td>",
            f"<td>{text(rows.symbols(op.inputs))} → {text(rows.symbols(op.outputs))}</td>",
            f'<td class="number">{op.params:,}</td>',
            f'<td class="number">{rows.flops(op)}</td>',
            f'<td title="{text(rows.place(op.source))}"><code>{text(op.source.text if op.source else "")}</code></td>',
        )
        for op in trace.ops
    ]
    return table(("op", "", "shape", "params", "FLOPs", "source"), body)


def _primitives(trace: Trace) -> str:
    body = []
    for opened in trace.decompositions:
        op, several = trace.ops[opened.op], len(opened.primitives)
        whose = (
            f'<td class="number" rowspan="{several}">{op.index}</td>'
            f'<td rowspan="{several}">{text(op.op)}<br>{quiet(op.module)}</td>'
        )
        proof = text(rows.error(opened.error)) if opened.error is not None else quiet(opened.note)
        for number, primitive in enumerate(opened.primitives):
            within = quiet(primitive.within.rpartition("/")[2])
            body.append(
                (
                    whose if number == 0 else "",
                    f'<td title="{text(primitive.within)}">{text(primitive.name)}<br>{within}</td>',
                    f'<td class="shape">{text(rows.symbols(primitive.inputs))}'
                    f" → {text(rows.symbols(primitive.outputs))}"
                    f"<br>{quiet(rows.shapes(primitive))}</td>",
                    f'<td class="number" rowspan="{several}">{proof}</td>' if number == 0 else "",
                )
            )
    return table(("op", "", "primitive", "shape", "error"), body)


def table(names: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> str:
    """Return rows of cells as a table with a header."""
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table>\n<tr>{head}</tr>\n" + "".join(f"<tr>{''.join(line)}</tr>\n" for line in body) + "</table>\n"


PRIMES = re.compile(r"('{2,})\^\{")
"""Two primes or more before a superscript: to the converter, the primes are a superscript too."""
NAMES = re.compile(r"\\operatorname\{((?=[A-Za-z]*[\d\\])(?:[A-Za-z\d]|\\_)+)\}")
"""Names of functions with digits or underscores, which the converter would take for products of letters."""


BOLD = {"bold": "BOLD", "bold-italic": "BOLD ITALIC"}
"""Variants of letters as Unicode's names have them."""


def _bold(letter: str, variant: str) -> str:
    """Return a letter or digit in bold; any other character as it is."""
    name = unicodedata.name(letter, "").replace("LATIN ", "").replace("GREEK ", "").replace("LETTER ", "")
    try:
        return unicodedata.lookup(f"MATHEMATICAL {variant if not letter.isdigit() else 'BOLD'} {name}")
    except KeyError:
        return letter


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
    """Write the underscores of names and bold letters, and set the brace of cases as tall as their rows, and columns to
    the left.

    Browsers stretch the brace only if a mathematical font is installed, align columns by style sheets alone, and read
    of variants only `normal`: a bold letter is a character of its own.
    """
    for letters in (*tree.iter("mi"), *tree.iter("mn")):
        if (variant := letters.get("mathvariant")) in BOLD:
            del letters.attrib["mathvariant"]
            letters.text = "".join(_bold(letter, BOLD[variant]) for letter in letters.text or "")
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


def quiet(value: str) -> str:
    """Return text that steps back."""
    return f'<span class="quiet">{text(value)}</span>' if value else ""


def text(value: object) -> str:
    """Return escaped text, safe between tags and inside quoted attributes."""
    return escape(rows.cell(value))
