"""One call of a module or of a composite operation: inputs, outputs, cost, and the operations beneath."""

from collections.abc import Sequence

import streamlit as st

from pages import components
from pages.state import url_state
from pages.ui import data_tables, proof_badge, texts
from tracer.export.math_labels import shape_numbers
from tracer.figures.payload_budget import ROWS
from tracer.figures.tables import call_table
from tracer.record import CallRecord, ModuleRecord, Op, Step, TensorRecord, Trace
from tracer.symbols import notation

MAX_STEPS, LINES = 12, 3
"""Steps of a module that are named; those whose equations stand there."""


def marked_row(trace: Trace, level: str, op: int) -> str:
    """Return the marked row of the table: the last chosen one, else the one around operation `op`."""
    kind = level.removesuffix("s")
    return f"{kind} {_number(trace, kind, op)}"


def _number(trace: Trace, kind: str, op: int, say: bool = False) -> int:
    records = trace.modules if kind == "module" else trace.calls
    first = 0 if kind == "module" else call_table.of_op(records, op) or 0
    return url_state.choice(kind, range(len(records)), first, say)


def module(trace: Trace, op: int) -> None:
    """Show one call of a module, and the proof that hooks and operations recorded the same."""
    number = _number(trace, "module", op, say=True)
    record = trace.modules[number]
    times = sum(child.path == record.path for child in trace.modules)
    name = f"{record.path}: {record.kind}" if record.path else f"{record.kind}, the model itself"
    st.header(texts.plain(name + (f", call {record.call + 1} of {times}" if times > 1 else "")))
    strip(trace, trace.ops[record.first : record.last])
    proof_badge.box(record.verdict, _proof_text(trace, record))
    left, right = st.columns([3, 2], gap="large")
    with left:
        rows = tensors(trace, record.inputs, record.outputs, "")
        data_tables.show(rows, alt=f"Inputs and outputs of module {record.path}")
        _steps(trace, record)
    with right:
        _cost(trace, record)
    with st.container(horizontal=True):
        if record.around is not None and st.button("The module around it", icon=":material/zoom_out:"):
            url_state.keep(module=record.around)
            st.rerun()
        _beneath(trace, record, "calls")


def _proof_text(trace: Trace, record: ModuleRecord) -> str:
    """Return the proof as a sentence."""
    if record.problem:
        return f"**Disproven.** The forward hooks and the operations do not agree: {texts.escape(record.problem)}."
    if record.first == record.last:
        return "No operation ran in it: it returns its input tensor, and the operations around it agree."
    makers = [
        tensor.maker for tensor in record.outputs if isinstance(tensor.maker, int) and tensor.maker >= record.first
    ]
    count = record.last - record.first
    last = ", the last one in it" if record.last - 1 in makers else ""
    gave = f"its output comes from operation {max(makers)}{last}" if makers else "its output existed before it ran"
    ran = (
        f"operations {record.first} to {record.last - 1} all ran in it"
        if count > 1
        else f"operation {record.first} ran"
    )
    return (
        f"The forward hooks and the recorded operations agree: {gave}, its input existed before operation "
        f"{record.first}, and {ran}."
    )


def _steps(trace: Trace, record: ModuleRecord) -> None:
    """Show the textbook lines that the module computes."""
    steps = computed_steps(trace, trace.ops[record.first : record.last])
    if not steps:
        return
    named = [_symbol(step) for step in steps[:MAX_STEPS]]
    more = f" and {len(steps) - MAX_STEPS} more" if len(steps) > MAX_STEPS else ""
    st.markdown(f"It computes {', '.join(named)}{more}.")


def computed_steps(trace: Trace, ops: Sequence[Op]) -> list[Step]:
    """Return the textbook lines that operations compute."""
    covered, inside = {op.step for op in ops if op.step}, {op.index for op in ops}
    return [step for step in trace.steps if step.id in covered or step.inside in inside]


def strip(trace: Trace, ops: Sequence[Op]) -> None:
    """Show the equations and tensors that operations compute; where there are many lines, the last alone, which is
    their output."""
    steps = computed_steps(trace, ops)
    shown = steps if len(steps) <= LINES else steps[-1:]
    if shown and (step := components.equations(trace, shown)):
        url_state.open_step(step)


def _symbol(step: Step) -> str:
    return f"${step.symbol}$"


def _cost(trace: Trace, record: ModuleRecord) -> None:
    from tracer.record.cost_breakdown import of_module  # counting FLOPs imports torch, which a page starts without

    cost = of_module(trace, record)
    for what, value, formula, total in (
        ("parameters", cost.params, cost.params_symbolic, trace.params),
        ("FLOP", cost.flops, cost.flops_symbolic, trace.flops),
    ):
        symbols = f" $= {notation.inline_latex(formula)}$" if value and formula not in ("?", str(value)) else ""
        share = f", {value / total:.0%} of the model’s" if total and 0 < value < total else ""
        st.markdown(f"**{value:,}** {what}{symbols}{share}")
    if not cost.counted:
        st.caption(
            "Some of its operations may multiply matrices, but there is no formula for how many FLOPs that takes."
        )


def call(trace: Trace, op: int) -> None:
    """Show one composite operation: its arguments by the names of its schema, and the operations that it ran."""
    record = trace.calls[_number(trace, "call", op, say=True)]
    st.header(texts.plain(record.name))
    strip(trace, trace.ops[record.first : record.last])
    st.code(record.text, language="python", wrap_lines=True)
    beneath = trace.ops[record.first : record.last]
    if (source := next((child.source for child in beneath if child.source), None)) is not None:
        st.text(f"{source.file}, line {source.line}: {source.text.strip()}")
    rows = [(a.name, a.value or "nothing", "the default" if a.default else "given") for a in record.arguments]
    listed = [(a, child) for a in record.arguments for child in a.tensors[:ROWS]]
    data_tables.show(
        {
            "argument": [a.name for a, _ in listed] + [f"output {i}" for i in range(len(record.outputs))],
            **_shapes(trace, [*(child for _, child in listed), *record.outputs]),
        },
        alt=f"Tensors of {record.name}",
    )
    plain = [row for row, a in zip(rows, record.arguments, strict=True) if not a.tensors]
    if plain:
        columns = ("argument", "value", "")
        table = {name: [row[i] for row in plain] for i, name in enumerate(columns)}
        data_tables.show(table, alt=f"Other arguments of {record.name}")
    ran = ", ".join(f"{child.index} {child.op}" for child in beneath)
    flops = sum(child.flops or 0 for child in beneath)
    none = "It ran no operation: it returns its input."
    many = "1 operation" if len(beneath) == 1 else f"{len(beneath)} operations"
    st.markdown(f"It ran {many}: {texts.plain(ran)}. **{flops:,}** FLOP." if beneath else none)
    with st.container(horizontal=True):
        _beneath(trace, record, "ops")


def _beneath(trace: Trace, record: ModuleRecord | CallRecord, level: str) -> None:
    """Draw links to the calls and to the operations that ran in it."""
    if record.first == record.last:
        return
    if level == "calls" and st.button("See its calls", icon=":material/zoom_in:"):
        url_state.keep(zoom="calls", call=call_table.of_op(trace.calls, record.first) or 0)
        st.rerun()
    if st.button("See its operations", icon=":material/zoom_in:"):
        url_state.keep(zoom="ops", op=record.first)
        st.rerun()


def tensors(trace: Trace, inputs: Sequence[TensorRecord], outputs: Sequence[TensorRecord], own: str) -> dict:
    """Return inputs and outputs as a table: shapes in symbols and numbers, and the producer of each."""
    inputs, outputs = inputs[:ROWS], outputs[:ROWS]
    names = [f"input {i}" for i in range(len(inputs))] + [f"output {i}" for i in range(len(outputs))]
    table = {"": names, **_shapes(trace, [*inputs, *outputs])}
    if own:
        table["made by"][len(inputs) :] = [own] * len(outputs)
    return table


def _shapes(trace: Trace, tensors: Sequence[TensorRecord]) -> dict[str, list[str]]:
    return {
        "in symbols": [notation.shape_text(tensor.symbolic) if tensor.symbolic else "–" for tensor in tensors],
        "in numbers": [shape_numbers(tensor.shape) for tensor in tensors],
        "dtype": [tensor.dtype for tensor in tensors],
        "made by": [_producer_label(trace, tensor) for tensor in tensors],
    }


def _producer_label(trace: Trace, tensor: TensorRecord) -> str:
    producer = maker(trace, tensor)
    return str(tensor.maker) if producer is None else f"op {producer.index}: {producer.op}"


def maker(trace: Trace, tensor: TensorRecord) -> Op | None:
    """Return the operation that produced a tensor, or None if no operation of the run did."""
    number = tensor.maker
    return trace.ops[number] if isinstance(number, int) and 0 <= number < len(trace.ops) else None
