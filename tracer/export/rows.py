"""Rows of all tabular formats, and their cells as plain text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tracer.export import verdicts
from tracer.record import Step, Symbol, Trace
from tracer.record.steps import Repeat, at_any
from tracer.symbols import notation
from tracer.symbols.letters import OWN, Letters
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import shape_numbers

if TYPE_CHECKING:
    from tracer.record import CallRecord, ModuleRecord, Op, Primitive, Source, TensorRecord
    from tracer.record import costs as key_value_cache
else:  # imported when first used
    key_value_cache = lazy_import("tracer.record.costs")


# Book as it is printed: the steps of repeated blocks once, × L.


def as_printed(trace: Trace) -> Iterator[tuple[Repeat | None, list[Step]]]:
    """Yield the printed book: runs of single steps, with None, and the steps of each repeat once, at any ℓ.

    A step of a repeat has the largest error of all its iterations.
    """
    at = 0
    for repeat in trace.repeats:
        if at < repeat.start:
            yield None, list(trace.steps[at : repeat.start])
        at = repeat.start + repeat.times * repeat.length
        yield repeat, [_merge(trace.steps, repeat, place) for place in range(repeat.length)]
    if at < len(trace.steps):
        yield None, list(trace.steps[at:])


def repeat_of(trace: Trace, step: Step) -> Repeat | None:
    """Return the repeat that a step is in, or None."""
    at = trace.steps.index(step)
    return next(
        (repeat for repeat in trace.repeats if repeat.start <= at < repeat.start + repeat.times * repeat.length), None
    )


def _merge(steps: Sequence[Step], repeat: Repeat, place: int) -> Step:
    """Return one line for all iterations of a repeat."""
    several = steps[repeat.start + place : repeat.start + repeat.times * repeat.length : repeat.length]
    order = ("refuted", "not executed", "recorded", "pending", "verified", "recomputed")
    worst = min(several, key=lambda step: (order.index(step.verdict), -(step.error or 0)))
    number, first = repeat.blocks[0], several[0]
    latex, symbol = at_any(first.latex, number), at_any(first.symbol, number)
    return replace(worst, id=_star_numbers([step.id for step in several]), latex=latex, symbol=symbol, layer=None)


def _star_numbers(ids: Sequence[str]) -> str:
    """Return ids that differ in numbers alone as one, with a star for them: `block*.attention.query`."""
    parts = [re.split(r"(\d+)", id) for id in ids]
    if len({len(parts_at) for parts_at in parts}) > 1:
        return ids[0]
    return "".join(parts_at[0] if len(set(parts_at)) == 1 else "*" for parts_at in zip(*parts, strict=True))


COLUMNS = {
    "costs": ("part", "params", "params_symbolic", "flops", "flops_symbolic", "numbers", "numbers_symbolic"),
    "modules": (
        "index", "module", "class", "call", "inputs", "outputs", "shapes", "dtype", "params", "params_symbolic",
        "flops", "flops_symbolic", "ops", "verdict", "note",
    ),
    "calls": ("index", "module", "call", "outputs", "shapes", "dtype", "flops", "ops", "steps"),
    "steps": (
        "id", "stage", "layer", "title", "symbol", "latex", "symbolic", "shape", "error", "margin", "verdict",
        "checked", "recomputed", "source", "ops", "why", "note",
    ),
    "ops": (
        "index", "module", "op", "function", "inputs", "outputs", "shapes", "dtype", "params", "flops", "step",
        "source", "note",
    ),
    "primitives": (
        "index", "module", "op", "number", "primitive", "within", "inputs", "outputs", "shapes", "dtype", "makers",
        "error", "note",
    ),
}  # fmt: skip
"""The columns at each level, in order."""
NOT_COUNTED = "not counted"


def rows(trace: Trace, level: str) -> list[dict[str, Any]]:
    """Return one dictionary per row, keyed by the `COLUMNS` of the level."""
    levels = {"modules": modules, "calls": calls, "steps": steps, "ops": ops, "primitives": primitives, "costs": costs}
    return levels[level](trace)


def costs(trace: Trace) -> list[dict[str, Any]]:
    """Return one dictionary per part of the blocks, and one for the cache: parameters, FLOPs, and the numbers in all
    tensors that it computes."""
    from tracer.record.costs import parts  # counting FLOPs imports torch, which pages start without

    return [part._asdict() for part in parts(trace)]


def steps(trace: Trace) -> list[dict[str, Any]]:
    """Return one dictionary per step."""
    return [
        {name: getattr(step, name) for name in COLUMNS["steps"]}
        | {"symbolic": notation.shape_text(step.symbolic), "shape": shape_numbers(step.shape)}
        | {"source": place(step.source), "ops": " ".join(map(str, step.ops))}
        for step in trace.steps
    ]


def ops(trace: Trace) -> list[dict[str, Any]]:
    """Return one dictionary per op."""
    names = ("index", "module", "op", "function", "params", "step", "note")
    return [
        {name: getattr(op, name) for name in names}
        | {"inputs": symbols(op.inputs), "outputs": symbols(op.outputs), "source": place(op.source)}
        | {"flops": sum_flops([op]), "shapes": shapes(op), "dtype": dtypes(op)}
        for op in trace.ops
    ]


def modules(trace: Trace) -> list[dict[str, Any]]:
    """Return one dictionary per call of a module, in the order in which they began."""
    from tracer.record.costs import of_module  # counting FLOPs imports torch, which pages start without

    rows = []
    for index, module in enumerate(trace.modules):
        cost = of_module(trace, module)
        rows.append(
            {"index": index, "module": module.path, "class": module.kind, "call": module.call}
            | {"inputs": symbols(module.inputs), "outputs": symbols(module.outputs), "shapes": shapes(module)}
            | {"dtype": dtypes(module), "params": cost.params, "params_symbolic": cost.params_symbolic}
            | {
                "flops": cost.flops if cost.counted or cost.flops else NOT_COUNTED,
                "flops_symbolic": cost.flops_symbolic,
            }
            | {"ops": between(module), "verdict": module.verdict, "note": module.problem}
        )
    return rows


def calls(trace: Trace) -> list[dict[str, Any]]:
    """Return one dictionary per composite op: its call in Python, its output, and its ops and steps."""
    return [
        {"index": index, "module": call.module, "call": call.text, "outputs": symbols(call.outputs)}
        | {"shapes": ", ".join(shape_numbers(x.shape) for x in call.outputs), "dtype": dtypes(call)}
        | {"flops": sum_flops(beneath), "ops": between(call)}
        | {"steps": " ".join(dict.fromkeys(op.step for op in beneath if op.step))}
        for index, call in enumerate(trace.calls)
        for beneath in (trace.ops[call.first : call.last],)
    ]


def between(record: ModuleRecord | CallRecord) -> str:
    """Return the numbers of the ops beneath a module or a call: `12–15`, or "" for none."""
    if record.first == record.last:
        return ""
    return f"{record.first}–{record.last - 1}" if record.last - record.first > 1 else str(record.first)


def sum_flops(ops: Sequence[Op]) -> int | str:
    """Return the FLOPs of several ops, or a note that their matrix products are not counted."""
    total = sum(op.flops or 0 for op in ops)
    return NOT_COUNTED if not total and any(op.flops is None for op in ops) else total


def primitives(trace: Trace) -> list[dict[str, Any]]:
    """Return one dictionary per primitive, numbered within its op; an op's error and note are at its first one."""
    rows = []
    for opened in trace.decompositions:
        op = trace.ops[opened.op]
        rows += [
            {"index": op.index, "module": op.module, "op": op.op, "number": i, "primitive": primitive.name}
            | {"within": primitive.within, "inputs": symbols(primitive.inputs), "outputs": symbols(primitive.outputs)}
            | {
                "shapes": shapes(primitive),
                "dtype": dtypes(primitive),
                "makers": ", ".join(str(x.maker) for x in primitive.inputs),
            }
            | {"error": opened.error if i == 0 else None, "note": opened.note if i == 0 else ""}
            for i, primitive in enumerate(opened.primitives)
        ]
    return rows


def shapes(op: Op | Primitive | ModuleRecord) -> str:
    """Return `[1, 197, 768], [768] → [1, 197, 768]`."""
    return " → ".join(", ".join(shape_numbers(x.shape) for x in tensors) for tensors in (op.inputs, op.outputs))


def dtypes(op: Op | Primitive | ModuleRecord | CallRecord) -> str:
    """Return the dtypes of an op's outputs, each once."""
    return ", ".join(dict.fromkeys(tensor.dtype for tensor in op.outputs))


def symbols(tensors: tuple[TensorRecord, ...]) -> str:
    """Return the shapes of tensors in symbols."""
    return ", ".join(map(symbolic_shape, tensors))


def symbolic_shape(tensor: TensorRecord) -> str:
    """Return the symbolic shape of a tensor, or the numeric one of a tensor without a solved shape."""
    return shape_numbers(tensor.shape) if tensor.symbolic is None else notation.shape_text(tensor.symbolic)


def place(source: Source | None) -> str:
    """Return `file:line` of a source line, or "" for none."""
    return f"{source.file}:{source.line}" if source else ""


def proof(step: Step) -> str:
    """Return the error of a step's equation, followed by the verdict where other runs were tried, or one refutes it."""
    if step.verdict in ("recomputed", "pending", "recorded"):
        return step.verdict
    words = verdicts.words(step)
    if step.verdict == "refuted":
        words = words.replace("refuted", "REFUTED")
        return words if step.refuted else f"{error(step.error)} {words}"
    return f"{error(step.error)}, {words}" if step.checked else error(step.error)


def error(value: float | None) -> str:
    """Return an error of the equations as text: `1.5e-07`, or `–` if the equation was not executed."""
    return "–" if value is None else f"{value:.1e}" if value else "0"


def cell(value: object) -> str:
    """Return a cell as one line of printable text: text from a file must not steer a terminal."""
    text = "" if value is None else str(value)
    return "".join(letter if letter.isprintable() else " " for letter in text)


def totals(trace: Trace, letters: Letters = OWN) -> str:
    """Return parameters and FLOPs of the run, as numbers, and as formulas if they are solved."""
    costs = [(trace.params, "parameters", trace.params_symbolic), (trace.flops, "FLOPs", trace.flops_symbolic)]
    cached, formula = key_value_cache.cache_elements(trace)
    costs += [(cached, "numbers in the cache", formula)] if cached else []
    figures = [
        f"{number:,} {what}"
        + (f" = {notation.text(letters.formula(formula))}" if formula not in ("?", str(number)) else "")
        + (unknown(trace, number) if formula == "?" else "")
        for number, what, formula in costs
    ]
    return "; ".join(figures + ([uncounted_ops(trace)] if trace.uncounted_ops else []))


def unknown(trace: Trace, number: int) -> str:
    """Return the note behind a cost without a formula, in a run that has symbols."""
    return " (not known in symbols)" if number and trace.symbols else ""


def uncounted_ops(trace: Trace) -> str:
    """Return the ops that the FLOPs of a run lack: `not counted: 2 × mkldnn_rnn_layer`."""
    names = Counter(op.op for op in trace.uncounted_ops)
    return f"{NOT_COUNTED}: " + ", ".join(f"{count} × {name}" for name, count in names.items())


def flops(op: Op) -> str:
    """Return the FLOPs of an op, or a note that they are not counted."""
    return NOT_COUNTED if op.flops is None else f"{op.flops:,}"


def count(flops: int | str) -> str:
    """Return a number with thousands separators, and a note as it is."""
    return flops if isinstance(flops, str) else f"{flops:,}"


def sizes(symbols: Iterable[Symbol]) -> str:
    """Return symbols with their values: `B=1, N=196=H·W/P²`, …"""
    return ", ".join(f"{s.name}={s.value}" + (f"={notation.text(s.equals)}" if s.equals else "") for s in symbols)


NOTE_TITLES = {
    "000": "Transformer and ViT dataflow notation",
    "001": "Vision Transformers",
    "002": "Vision Transformer - Basics",
    "003": "Vision Transformer (ViT) Encoder - Low-Level Operations",
    "004": "Tokenization … Final Projection & Softmax",
}
"""Titles of the notes behind the project: code uses their numbers, the screen their names.

Each is the title that the text gives itself; the last has none and is called by its first and last section.
"""


def with_titles(text: str) -> str:
    """Replace every "note 001" in a text by its title; numbers of no note stay."""
    return re.sub(r"\b([Nn])ote (\d{3})\b", lambda match: _note_title(match[2], match[1] == "N") or match[0], text)


def _note_title(number: str, first: bool) -> str:
    return f"{'The' if first else 'the'} note “{NOTE_TITLES[number]}”" if number in NOTE_TITLES else ""
