"""The rows that every tabular format shares, and how their cells read as plain text."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from tracer.symbols import notation

if TYPE_CHECKING:
    from tracer.record import Op, Primitive, Source, Step, TensorRecord, Trace

STEP_COLUMNS = (
    "id", "stage", "layer", "title", "symbol", "latex", "symbolic", "shape", "error", "tolerance", "verdict",
    "recomputed", "source", "ops",
    "why", "note",
)  # fmt: skip
OP_COLUMNS = (
    "index", "module", "op", "function", "inputs", "outputs", "shapes", "dtype", "params", "flops", "step", "source",
    "note",
)  # fmt: skip
PRIMITIVE_COLUMNS = (
    "index", "module", "op", "number", "primitive", "within", "inputs", "outputs", "shapes", "dtype", "makers", "error",
    "note",
)  # fmt: skip
COLUMNS = {"steps": STEP_COLUMNS, "ops": OP_COLUMNS, "primitives": PRIMITIVE_COLUMNS}

NOT_COUNTED = "not counted"

LETTERS = {r"\ell": "ℓ", r"\top": "T", r"\,": " "}
ACCENTS = {
    r"\tilde": "\N{COMBINING TILDE}",
    r"\hat": "\N{COMBINING CIRCUMFLEX ACCENT}",
    r"\bar": "\N{COMBINING MACRON}",
}
RAISED = str.maketrans("0123456789()ℓT", "⁰¹²³⁴⁵⁶⁷⁸⁹⁽⁾ˡᵀ")


def columns(level: str) -> tuple[str, ...]:
    """The columns at a level, in order."""
    return COLUMNS[level]


def rows(trace: Trace, level: str) -> list[dict[str, object]]:
    """One dictionary per step, op or primitive, keyed by `columns(level)`."""
    if level == "primitives":
        return primitives(trace)
    return [_step(step) for step in trace.steps] if level == "steps" else [_op(op) for op in trace.ops]


def primitives(trace: Trace) -> list[dict[str, object]]:
    """One dictionary per primitive, numbered within its op; the error and the note of an op stand at its first one."""
    found = []
    for opened in trace.decompositions:
        op = trace.ops[opened.op]
        found += [
            {"index": op.index, "module": op.module, "op": op.op, "number": i, "primitive": one.name}
            | {"within": one.within, "inputs": symbols(one.inputs), "outputs": symbols(one.outputs)}
            | {"shapes": shapes(one), "dtype": dtypes(one), "makers": ", ".join(str(x.maker) for x in one.inputs)}
            | {"error": opened.error if i == 0 else None, "note": opened.note if i == 0 else ""}
            for i, one in enumerate(opened.primitives)
        ]
    return found


def _step(step: Step) -> dict[str, object]:
    row = {name: getattr(step, name) for name in STEP_COLUMNS}
    row |= {"symbolic": notation.shape_text(step.symbolic), "shape": numbers(step.shape), "source": place(step.source)}
    return row | {"ops": " ".join(map(str, step.ops))}


def _op(op: Op) -> dict[str, object]:
    row = {name: getattr(op, name) for name in ("index", "module", "op", "function", "params", "flops", "step", "note")}
    row |= {"inputs": symbols(op.inputs), "outputs": symbols(op.outputs), "source": place(op.source)}
    row |= {"flops": NOT_COUNTED if op.flops is None else op.flops}
    return row | {"shapes": shapes(op), "dtype": dtypes(op)}


def shapes(op: Op | Primitive) -> str:
    """`[1, 197, 768], [768] → [1, 197, 768]`."""
    return f"{', '.join(numbers(x.shape) for x in op.inputs)} → {', '.join(numbers(x.shape) for x in op.outputs)}"


def dtypes(op: Op | Primitive) -> str:
    """The dtypes of what an op gives, each once."""
    return ", ".join(dict.fromkeys(tensor.dtype for tensor in op.outputs))


def numbers(shape: tuple[int, ...]) -> str:
    """`[1, 197, 768]`, and `scalar` for `()`."""
    return str(list(shape)) if shape else "scalar"


def symbols(tensors: tuple[TensorRecord, ...]) -> str:
    """The symbolic shapes of tensors; the numeric one where none was looked for."""
    return ", ".join(numbers(x.shape) if x.symbolic is None else notation.shape_text(x.symbolic) for x in tensors)


def place(source: Source | None) -> str:
    """`file:line` of a source line, empty for none."""
    return f"{source.file}:{source.line}" if source else ""


def proof(step: Step) -> str:
    """How a step's proof went: its error, followed by the verdict where that is another than "proven"."""
    if step.verdict in ("recomputed", "pending"):
        return step.verdict
    return error(step.error) + (f" {step.verdict.upper()}" if step.verdict == "disproven" else "")


def error(value: float | None) -> str:
    """An error of the equations as text: `1.5e-07`, and `–` where the equation was not executed."""
    return "–" if value is None else f"{value:.1e}" if value else "0"


def cell(value: object) -> str:
    """A cell as one line of printable text: what a file says must not steer a terminal."""
    text = "" if value is None else str(value)
    return "".join(letter if letter.isprintable() else " " for letter in text)


def letters(latex: str) -> str:
    r"""A tensor's symbol without LaTeX: `\mathbf{Q}^{(1)}` gives `Q⁽¹⁾`."""
    text = re.sub(r"\\(?:mathbf|mathrm|boldsymbol|text|operatorname)\{([^{}]*)\}", r"\1", latex)
    for command, letter in LETTERS.items():
        text = text.replace(command, letter)
    for command, accent in ACCENTS.items():
        text = re.sub(rf"{re.escape(command)}\{{(\w)\}}", rf"\1{accent}", text)
    text = re.sub(r"\^\{([0-9()ℓT]+)\}", lambda match: match.group(1).translate(RAISED), text)
    return re.sub(r"\{([^{}]+)\}", r"\1", text).strip()


def totals(trace: Trace) -> str:
    """Parameters and FLOPs of the run, as numbers, and as formulas where they are solved."""
    costs = ((trace.params, "parameters", trace.params_symbolic), (trace.flops, "FLOPs", trace.flops_symbolic))
    said = [
        f"{number:,} {what}"
        + (f" = {notation.text(formula)}" if formula not in ("?", str(number)) else "")
        + (unknown(trace, number) if formula == "?" else "")
        for number, what, formula in costs
    ]
    return "; ".join(said + ([uncounted(trace)] if trace.uncounted else []))


def unknown(trace: Trace, number: int) -> str:
    """What stands behind a cost that has no formula, in a run that has symbols."""
    return " (not known in symbols)" if number and trace.symbols else ""


def uncounted(trace: Trace) -> str:
    """Which ops the FLOPs of a run lack: `not counted: 2 × mkldnn_rnn_layer`."""
    names = Counter(op.op for op in trace.uncounted)
    return f"{NOT_COUNTED}: " + ", ".join(f"{count} × {name}" for name, count in names.items())


def flops(op: Op) -> str:
    """The FLOPs of an op, or that they are not counted."""
    return NOT_COUNTED if op.flops is None else f"{op.flops:,}"


def sizes(trace: Trace) -> str:
    """The symbols with their values: `B=1, N=196=H·W/P²`, …"""
    return ", ".join(f"{s.name}={s.value}" + (f"={notation.text(s.equals)}" if s.equals else "") for s in trace.symbols)
