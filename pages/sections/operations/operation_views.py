"""Parts of the Operations page: the zoom, the table, one step, one operation, and the charts."""

import json
import re
from collections.abc import Sequence

import streamlit as st

from pages import components
from pages.jobs.render_cache import of
from pages.sections.operations import call_details, op_primitives
from pages.state import url_state
from pages.state.visitor import Key, visitor
from pages.ui import data_tables, texts
from tracer.export.math_labels import amount
from tracer.figures.payload_budget import PAGE, ROWS
from tracer.figures.tables import op_summary as bars
from tracer.figures.tables import op_table
from tracer.lessons.notes.step_numbers import number_steps
from tracer.ops import COMPUTING, category, is_layout
from tracer.record import Decomposition, Op, Trace
from tracer.symbols import notation
from tracer.utils import note_titles
from tracer.utils.error_text import quote, shorten

MAX_LINKS = 4
"""Operations before and after one that have a button each."""
MEANING = {
    "modules": "Each module call as forward hooks saw it: its inputs, its outputs, and what ran in it.",
    "steps": "The lines of the textbook: one symbol, one equation, one shape.",
    "calls": "Each composite operation that the model’s code called, with the arguments of its schema.",
    "ops": "Each tensor operation that PyTorch ran, in order, under the module that it ran in.",
    "primitives": "Choose an operation to open it: PyTorch’s own decomposition runs on the same arguments.",
}


def totals(trace: Trace) -> None:
    """Show the number of operations, and their cost."""
    computing = sum(category(op.op) in COMPUTING for op in trace.ops)
    with st.container(key="facts"):
        st.metric("operations", f"{len(trace.ops):,}")
        st.metric("that compute", f"{computing:,}")
        st.metric("parameters", amount(trace.params))
        st.metric("matrix products", amount(trace.flops, "FLOP"), help=texts.FLOPS_NOTE)
    if trace.uncounted_ops:
        st.caption(texts.plain(texts.uncounted_text(trace)))


def zoom(trace: Trace) -> str:
    """Return the zoom level that the visitor chose."""
    known = op_table.levels(trace)
    first = "ops" if "op" in st.query_params and "ops" in known else known[0]
    with st.container(key="zooms"):  # where the table hears which is chosen, and shows it before the server does
        level = st.segmented_control("Zoom", known, required=True, **url_state.widget("zoom", known, first))
    st.caption(MEANING[level])
    return level


def draw_table(trace: Trace, level: str) -> None:
    """Draw the table; a chosen row is shown below it."""
    chosen = _marked_row(trace, level)
    opened = op_primitives.opened_primitives(trace, number(trace)) if level == "primitives" else ()
    key = "table", level, tuple(decomposition.op for decomposition in opened)
    data = of(trace, key, lambda: _table(trace, level, opened))
    others = of(trace, "tables", lambda: _every(trace))
    url_state.check(fold=("on", "off"), sort=_sorts(level, len(data["columns"])))
    _check_open(level, data)
    clicked = components.operations_table({"tables": {**others, level: data}, "level": level, "chosen": chosen})
    if (count := data["count"]) > ROWS:
        st.caption(f"These are the first {ROWS:,} of {count:,} rows; `python -m tracer open` lists them all.")
    st.caption("Click a module to unfold it, a row to see its details below, or a column header to sort by it.")
    if level == "steps" and (note := number_steps(trace.model)):
        st.caption(texts.plain(note_titles.with_titles(f"In the note: the number of the step in note {note.note}.")))
    if clicked and clicked[0] != chosen:
        kind, _, id = clicked[0].partition(" ")
        if kind == "step" or (kind in ("op", "module", "call") and id.isdecimal()):
            url_state.keep(**{kind: id, "open": clicked[1]})
        st.rerun()


def _sorts(level: str, columns: int) -> list[str]:
    """Return the valid URL values for the order of a table: a column, ascending or descending; and the current value
    where it belongs to another level."""
    sort = st.query_params.get("sort", "")
    here = [f"{level}_{sign}{column}" for column in range(columns) for sign in ("", "-")]
    return [*here, sort] if sort.partition("_")[0] in set(MEANING) - {level} else here


def _check_open(level: str, data: dict) -> None:
    """Warn of modules in the URL that this table does not have; a value that belongs to another level is kept."""
    name = st.query_params.get("open", "")
    of, _, ranges = name.partition("_")
    if not name or of in set(MEANING) - {level}:
        return
    last = op_table.folds(data) - 1
    known = of == level and re.fullmatch(r"([0-9]+(-[0-9]+)?(\.[0-9]+(-[0-9]+)?)*)?", ranges, re.ASCII)
    if not known or any(int(number[-9:]) > last for number in re.findall("[0-9]+", ranges)):
        expected = f"numbers of modules from 0 to {last}, such as '{level}_0-{last}'" if last > 0 else f"'{level}_'"
        st.warning(texts.escape(f"This page has no open {quote(name)}, expected {expected}."))


def _marked_row(trace: Trace, level: str) -> str:
    """Return the marked row."""
    if level == "steps":
        return f"step {url_state.last_step(trace)}"
    return (
        call_details.marked_row(trace, level, number(trace)) if level in ("modules", "calls") else f"op {number(trace)}"
    )


def _table(trace: Trace, level: str, opened: Sequence[Decomposition] = ()) -> dict:
    """Return a table with the rows that are sent, and the number of all its rows."""
    note = number_steps(trace.model)
    table = op_table.table(trace, level, opened, note_of=note and note.of)
    return table | {"rows": table["rows"][:ROWS], "count": len(table["rows"])}


def _every(trace: Trace) -> dict[str, dict]:
    """Return the tables of all levels but that of primitives, which needs another run, so that the browser zooms by
    itself; none where the run is too large for that."""
    rows_of = {}
    for level in op_table.levels(trace):
        if level != "primitives":
            rows_of[level] = _table(trace, level)
    return rows_of if len(json.dumps(rows_of)) <= PAGE // 4 else {}


def go(number: int) -> None:
    """Show an operation; the URL of the page carries its number."""
    url_state.keep(op=number)


def number(trace: Trace) -> int:
    """Return the index of the operation on screen: the one that the URL names, or the first one that computes the step
    that it names; else the last one chosen, else the first matrix product."""
    known = {str(op.index) for op in trace.ops}
    if "op" not in st.query_params and st.query_params.get("zoom") in ("ops", "primitives"):
        step = st.query_params.get("step")
        if first := next((op for op in trace.ops if step and op.step == step and not is_layout(op.op)), None):
            go(first.index)
    number = st.query_params.get("op", visitor().place("op"))
    if number in known:
        return int(number)
    first = next((op.index for op in trace.ops if op.flops), 0)
    if url_state.names_another("op", known):
        message = f"This run has no operation {quote(number)}: operations count from 0 to {len(trace.ops) - 1}."
        st.warning(texts.escape(message))
        go(first)
    return first


def step(trace: Trace) -> None:
    """Show the chosen step, with links to its own page and to its operations."""
    if (last := url_state.last_step(trace)) is None:
        return
    chosen = trace.step(last)
    st.header(texts.plain(chosen.title))
    with st.container(key="equation"):
        st.latex(chosen.latex)
    st.markdown(texts.proof(chosen) + texts.unseen(chosen))
    with st.container(horizontal=True):
        if st.button("Open it on the page Trace", icon=":material/function:"):
            url_state.open_step(chosen.id)
        ops = chosen.ops or ((chosen.inside,) if chosen.inside is not None else ())
        if st.button("See its operations", icon=":material/zoom_in:", disabled=not ops):
            url_state.keep(op=ops[0], zoom="ops")
            st.rerun()


def operation(trace: Trace, level: str) -> None:
    """Show one operation: its line of source, inputs and outputs, cost, step and primitives."""
    if not trace.ops:
        st.info("This run has no operations.")
        return
    shown = number(trace)
    listed = trace.ops[max(0, shown - ROWS // 2) :][:ROWS]
    names = {op.index: f"{op.index}: {op.op}" + (f" in {op.module}" if op.module else "") for op in listed}
    st.session_state[Key.OP] = shown
    st.selectbox(
        "Operation",
        list(names),
        key=Key.OP,
        format_func=lambda number: names[number],
        on_change=lambda: go(st.session_state[Key.OP]),
    )
    op = trace.ops[shown]
    st.header(texts.plain(f"{op.index}: {op.op}"))
    call_details.strip(trace, [op])
    left, right = st.columns([3, 2], gap="large")
    with left:
        _line(op)
        tensors = call_details.tensors(trace, op.inputs, op.outputs, "this operation")
        data_tables.show(tensors, alt=f"Inputs and outputs of operation {op.index}")
        _makers(trace, op)
        if op.note:
            st.caption(texts.plain(op.note))
    with right:
        _cost(op)
        _its_step(trace, op)
    op_primitives.show(trace, op, level)


def _line(op: Op) -> None:
    called = f", called as {op.function}" if op.function and op.function != op.op else ""
    st.text(f"{category(op.op)}{called}" + (f", in module {op.module}" if op.module else ", in the model itself"))
    if op.source is not None:
        st.text(f"{op.source.file}, line {op.source.line}")
        st.code(op.source.text.strip(), language="python", wrap_lines=True)


def _makers(trace: Trace, op: Op) -> None:
    """Draw links back to the producers of the inputs, and on to the users of the outputs."""
    before = {
        producer.index: producer
        for tensor in op.inputs
        if (producer := call_details.maker(trace, tensor)) and producer.index != op.index
    }
    after = [user for user in trace.ops if any(tensor.maker == op.index for tensor in user.inputs)][:MAX_LINKS]
    with st.container(horizontal=True):
        for producer in list(before.values())[:MAX_LINKS]:
            st.button(
                f"{producer.index}: {producer.op}", icon=":material/arrow_back:", on_click=go, args=(producer.index,)
            )
        for user in after:
            label = f"{user.index}: {user.op}"
            st.button(label, icon=":material/arrow_forward:", on_click=go, args=(user.index,), key=f"on {user.index}")


def _cost(op: Op) -> None:
    solved = any(tensor.symbolic for tensor in (*op.inputs, *op.outputs))
    for name, value, formula in (
        ("parameters first used here", op.params, op.params_symbolic),
        ("FLOP", op.flops, op.flops_symbolic),
    ):
        if value is None:
            st.markdown(f"{name}: **not counted**")
            continue
        symbols = f" $= {notation.inline_latex(formula)}$" if value and formula not in ("?", str(value)) else ""
        symbols += ", not known in symbols" if value and formula == "?" and solved else ""
        st.markdown(f"**{value:,}** {name}{symbols}")
    if op.parameters:
        st.caption(texts.plain("Parameters: " + shorten(", ".join(op.parameters), 1000)))
    if op.flops is None:
        st.caption("It may multiply matrices, but there is no formula for how many FLOPs that takes.")
    elif not op.flops and category(op.op) in COMPUTING:
        st.caption("Only matrix products are counted, as usual: 2 FLOP per multiply-add.")


def _its_step(trace: Trace, op: Op) -> None:
    owner = next((step for step in trace.steps if step.id == op.step), None)
    if owner is None:
        st.caption("It belongs to no step." if trace.steps else "This run has no steps.")
        return
    inside = [step for step in trace.steps if step.inside == op.index]
    st.markdown(f"Belongs to ${owner.symbol}$: {texts.plain(owner.title)}.")
    if inside:
        names = ", ".join(f"${step.symbol}$" for step in inside)
        st.markdown(f"It also computes {names} on the way, but never stores them.")
        _parts(trace, op)
    if st.button("Open this step on the page Trace", icon=":material/function:"):
        url_state.open_step(owner.id)


def _parts(trace: Trace, op: Op) -> None:
    """Show the cost of a fused operation, by the steps that it computes."""
    from tracer.record.cost_breakdown import parts  # counting FLOPs imports torch, which a page starts without

    parts_of_op, steps = parts(trace, op.index), {step.id: step for step in trace.steps}
    if len(parts_of_op) > 1:
        for id, (flops, formula) in parts_of_op.items():
            symbols = "" if formula in ("?", str(flops)) else f" $= {notation.inline_latex(formula)}$"
            st.markdown(f"**{flops:,}** FLOP of it for ${steps[id].symbol}${symbols}")


def pictures(trace: Trace, level: str) -> None:
    """Draw the number of operations of each category, and their share of the arithmetic."""
    kind = "primitives" if level == "primitives" else "operations"
    opened = op_primitives.opened_primitives(trace, number(trace)) if kind == "primitives" else ()
    parts = [part.name for decomposition in opened for part in decomposition.primitives]
    counts, table = bars.counts(parts or [op.op for op in trace.ops]), bars.arithmetic(trace)
    sums = {module: sum(row.values()) for module, row in table.items()}
    left, right = st.columns(2, gap="large")
    with left:
        st.header(f"Kinds of {kind if parts else 'operations'}")
        components.drawing(of(trace, ("kinds", kind, len(parts)), lambda: bars.categories(counts)), "kinds")
    with right:
        st.header("Where the FLOPs are")
        if table:
            components.drawing(of(trace, "arithmetic", lambda: bars.flops(table)), "arithmetic")
        else:
            st.caption("This run has no matrix products.")
    with st.expander("The same data as tables"):
        data_tables.show({"category": list(counts), "count": list(counts.values())})
        data_tables.show({"module": list(sums), "FLOP": list(sums.values())})
