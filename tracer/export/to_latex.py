r"""LaTeX: a fragment to `\input` into a document that loads amsmath and longtable."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tracer.export import rows
from tracer.export.letters import as_printed, sizes_with_letters
from tracer.record import CallRecord, ModuleRecord, Op, Primitive, Step, Trace
from tracer.record.steps import Repeat
from tracer.symbols import notation
from tracer.symbols.letters import OWN, Letters
from tracer.utils.text import shape_numbers

SUFFIXES = (".tex",)
ESCAPES = {letter: f"\\{letter}" for letter in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "→": r"$\to$", "·": r"$\cdot$", "²": r"$^2$",
    "³": r"$^3$", "−": "$-$", "×": r"$\times$", "ℓ": r"$\ell$", "–": "--", "…": r"\dots{}", "≤": r"$\le$",
    "≥": r"$\ge$",
}  # fmt: skip


def render(trace: Trace, level: str, letters: Letters = OWN) -> str:
    """Return the symbols, then the steps as aligned equations with their shapes, or another level as a long table."""
    head = ["% needs \\usepackage{amsmath,longtable}", rf"\subsection*{{{text(trace.model)}}}", text(trace.weights)]
    sizes = ", ".join(f"${notation.latex(s.name)} = {s.value}$" for s in sizes_with_letters(trace, letters))
    cost = [
        f"{number:,} {what}"
        + (
            f": ${notation.latex(letters.formula(formula))}$."
            if formula != "?"
            else f"{text(rows.unknown(trace, number))}."
        )
        for number, what, formula in (
            (trace.params, "parameters", trace.params_symbolic),
            (trace.flops, "FLOPs", trace.flops_symbolic),
        )
    ]
    cost += [f"{rows.uncounted_ops(trace)}."] if trace.uncounted_ops else []
    views = {"modules": _modules, "calls": _calls, "ops": _ops, "primitives": _primitives}
    views["costs"] = _costs
    body = _steps(trace, letters) if level == "steps" else views[level](trace)
    return "\n\n".join(part for part in [*head, sizes, *cost, *map(text, trace.notes), body] if part)


def _steps(trace: Trace, letters: Letters) -> str:
    if not trace.steps:
        return ""
    parts = []
    for repeat, steps in as_printed(trace, letters):
        lines = [f"  {_equation(step)} && {notation.shape_latex(step.symbolic)} && {_check(step)}" for step in steps]
        lead = _times(repeat) if repeat else "Then" if parts else ""
        parts.append((rf"  \intertext{{{lead}}}" + "\n" if lead else "") + " \\\\\n".join(lines))
    body = " \\\\\n".join(parts)
    return "{\\footnotesize\\allowdisplaybreaks\n\\begin{align*}\n" + body + "\n\\end{align*}}"


def _times(repeat: Repeat) -> str:
    """Return the heading of a repeat."""
    what = "One block" if repeat.period == 1 else f"{repeat.period} blocks in turn"
    return rf"{what}, $\times\,{repeat.times}$: ${repeat.numbers}$"


def _equation(step: Step) -> str:
    left, sign, right = rows.cell(step.latex).partition(" = ")
    if sign and left.count("{") == left.count("}"):
        return f"{left} &= {right}"
    return rf"{rows.cell(step.symbol)} &\colon\ {left}{sign}{right}"


def _check(step: Step) -> str:
    shape = r" \times ".join(map(str, step.shape))
    error = text(rows.proof(step))
    return rf"{shape} && \text{{{error}}}"


def _costs(trace: Trace) -> str:
    lines: list[tuple[str, ...]] = [("part", "params", "FLOPs", "numbers")]
    for row in rows.costs(trace):
        formulas = (row[f"{name}_symbolic"] for name in ("params", "flops", "numbers"))
        cells = ("?" if formula == "?" else f"${notation.latex(formula)}$" for formula in formulas)
        lines.append((text(row["part"]), *cells))
    return _long("llll", lines)


def _modules(trace: Trace) -> str:
    lines = [("module", "class", "outputs", "params", "FLOPs", "ops", "")]
    for module, row in zip(trace.modules, rows.modules(trace), strict=True):
        cost = (f"{row['params']:,}", text(row["flops"]), text(row["ops"]), row["verdict"])
        lines.append((text(row["module"] or trace.model), text(row["class"]), _shapes(module), *cost))
    return _long("lllrrll", lines)


def _calls(trace: Trace) -> str:
    lines = [("call", "module", "outputs", "FLOPs", "ops")]
    for call, row in zip(trace.calls, rows.calls(trace), strict=True):
        lines.append((text(row["call"]), text(row["module"]), _shapes(call), text(row["flops"]), text(row["ops"])))
    return _long("lllrl", lines)


def _ops(trace: Trace) -> str:
    names = ("index", "module", "op", "outputs", "params", "FLOPs")
    lines = [
        (str(op.index), text(op.module), text(op.op), _shapes(op), f"{op.params:,}", rows.flops(op)) for op in trace.ops
    ]
    return _long("rlllrr", [names, *lines])


def _primitives(trace: Trace) -> str:
    lines = [("index", "module", "op", "primitive", "within", "outputs", "error")]
    for opened in trace.decompositions:
        op = trace.ops[opened.op]
        for number, primitive in enumerate(opened.primitives):
            whose = (str(op.index), text(op.module), text(op.op)) if number == 0 else ("", "", "")
            error = text(rows.error(opened.error)) if opened.error is not None and number == 0 else ""
            lines.append((*whose, text(primitive.name), text(primitive.within), _shapes(primitive), error))
    return _long("rllllll", lines)


def _long(columns: str, lines: Sequence[tuple[str, ...]]) -> str:
    body = "\n".join("  " + " & ".join(line) + r" \\" for line in lines)
    start = f"{{\\scriptsize\\setlength{{\\tabcolsep}}{{3pt}}\n\\begin{{longtable}}{{{columns}}}\n"
    return start + body + "\n\\end{longtable}}"


def _shapes(op: Op | Primitive | ModuleRecord | CallRecord) -> str:
    shapes = (
        text(shape_numbers(x.shape)) if x.symbolic is None else f"${notation.shape_latex(x.symbolic)}$"
        for x in op.outputs
    )
    return ", ".join(shapes)


def text(value: object) -> str:
    """Return text with TeX's own characters escaped."""
    return re.sub(r".", lambda match: ESCAPES.get(match.group(), match.group()), rows.cell(value))
