"""The ops of a run: tables, the call that is chosen, and its primitives."""

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import streamlit as st

from pages import components
from pages.jobs.single_flight import of
from pages.state import session, url_state
from pages.state.visitor import Key, visitor
from pages.ui import texts, widgets
from tracer.export import verdicts
from tracer.export.rows import symbols, with_titles
from tracer.figures import op_tables
from tracer.figures.drawing import PAGE, ROWS
from tracer.lessons.notes.statements import number_steps
from tracer.ops import COMPUTING, category, is_layout, sentence
from tracer.record import CallRecord, Decomposition, ModuleRecord, Op, Step, TensorRecord, Trace, verdict_within
from tracer.symbols import notation
from tracer.utils.errors import quote, shorten
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent, scientific, shape_numbers

if TYPE_CHECKING:
    from tracer.record import costs
else:  # imported when first used
    costs = lazy_import("tracer.record.costs")


# Primitives of the operations that a visitor opened: each is decomposed alone, by one more run.

OPENED_OPS_KEY = "opened operations"


def opened_primitives(trace: Trace, number: int | None) -> tuple[Decomposition, ...]:
    """Return the primitives of an operation, which this opens, and of those opened before, in the order of the run."""
    if trace.decompositions or session.user_input().kind == "trace":
        return trace.decompositions
    opened = visitor().recall(OPENED_OPS_KEY, trace) or {}
    if trace.ops and number is not None and number not in opened:
        opened = opened | {decomposition.op: decomposition for decomposition in session.primitives(number)}
        visitor().remember(OPENED_OPS_KEY, trace, opened)
    return tuple(opened[op] for op in sorted(opened))


def show(trace: Trace, op: Op, level: str) -> None:
    """Show the primitives of one operation, in order, and the distance of their output from the run's."""
    opened = opened_primitives(trace, op.index if level == "primitives" else None)
    decomposition = next((decomposition for decomposition in opened if decomposition.op == op.index), None)
    if decomposition is None:
        with st.container(key="unopened"):
            st.header("Its primitives")
            if session.user_input().kind == "trace":
                st.caption("This saved run was recorded without the primitives of this operation.")
            elif st.button(
                "Open it into its primitives",
                icon=":material/zoom_in:",
                help="The app has to run the model once more to open it.",
            ):
                opened_primitives(trace, op.index)
                st.rerun()
        return
    st.header("Its primitives")
    if decomposition.error is not None:
        apart = f"values that differ from its own by at most **{scientific(decomposition.error)}** of the largest"
        widgets.box(
            verdict_within(decomposition.error, op.outputs[0].dtype),
            "PyTorch’s own decomposition, run on the arguments of this operation, gives "
            f"{apart if decomposition.error else 'exactly its values'}.",
        )
    else:
        only = "It only changes the layout of the data, and is a primitive itself." if is_layout(op.op) else ""
        st.caption(texts.plain(decomposition.note + "." if decomposition.note else only or "It is a primitive itself."))
    parts = decomposition.primitives[:ROWS]
    texts.show(
        {
            "": list(range(len(parts))),
            "primitive": [part.name for part in parts],
            "what it does": [sentence(part.name) for part in parts],
            "category": [category(part.name) for part in parts],
            "inputs": [symbols(part.inputs) for part in parts],
            "outputs": [symbols(part.outputs) for part in parts],
            "made from": [", ".join(str(t.maker) for t in part.inputs) for part in parts],
            "opened from": [part.within.replace("/", " → ") for part in parts],
        },
        alt=f"{len(decomposition.primitives)} primitives of operation {op.index}",
    )


# One call of a module or of a composite operation: inputs, outputs, cost, and the operations beneath.

MAX_STEPS, LINES = 12, 3
"""Steps of a module that are named; those whose equations stand there."""


def _number(trace: Trace, kind: str, op: int, say: bool = False) -> int:
    records = trace.modules if kind == "module" else trace.calls
    first = 0 if kind == "module" else op_tables.of_op(records, op) or 0
    return widgets.choice(kind, range(len(records)), first, say)


def module(trace: Trace, op: int) -> None:
    """Show one call of a module, and whether hooks and operations recorded the same."""
    number = _number(trace, "module", op, say=True)
    record = trace.modules[number]
    times = sum(child.path == record.path for child in trace.modules)
    name = f"{record.path}: {record.kind}" if record.path else f"{record.kind}, the model itself"
    st.header(texts.plain(name + (f", call {record.call + 1} of {times}" if times > 1 else "")))
    strip(trace, trace.ops[record.first : record.last])
    widgets.box(record.verdict, _proof_text(record))
    left, right = st.columns([3, 2], gap="large")
    with left:
        rows = show_tensors(trace, record.inputs, record.outputs, "")
        texts.show(rows, alt=f"Inputs and outputs of module {record.path}")
        _steps(trace, record)
    with right:
        _call_cost(trace, record)
    with st.container(horizontal=True):
        if record.around is not None:
            _go_button("The module around it", ":material/zoom_out:", module=record.around)
        _beneath(trace, record, "calls")


def _proof_text(record: ModuleRecord) -> str:
    """Return the verdict as a sentence."""
    if record.problem:
        return f"**Refuted.** The forward hooks and the operations do not agree: {texts.escape(record.problem)}."
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
    named = [f"${step.symbol}$" for step in steps[:MAX_STEPS]]
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
    if shown:
        url_state.open_step(components.equations(trace, shown))


def _equal(value: int, formula: str) -> str:
    """Return that a cost equals its formula; empty where there is none, or it is the number itself."""
    return f" $= {notation.inline_latex(formula)}$" if value and formula not in ("?", str(value)) else ""


def _call_cost(trace: Trace, record: ModuleRecord) -> None:
    cost = costs.of_module(trace, record)
    for what, value, formula, total in (
        ("parameters", cost.params, cost.params_symbolic, trace.params),
        ("FLOP", cost.flops, cost.flops_symbolic, trace.flops),
    ):
        share = f", {percent(value / total, 0)} of the model’s" if total and 0 < value < total else ""
        st.markdown(f"**{value:,}** {what}{_equal(value, formula)}{share}")
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
    listed = [(a, child) for a in record.arguments for child in a.tensors[:ROWS]]
    texts.show(
        {
            "argument": [a.name for a, _ in listed] + [f"output {i}" for i in range(len(record.outputs))],
            **_shapes(trace, [*(child for _, child in listed), *record.outputs]),
        },
        alt=f"Tensors of {record.name}",
    )
    if plain := [a for a in record.arguments if not a.tensors]:
        table = {
            "argument": [a.name for a in plain],
            "value": [a.value or "nothing" for a in plain],
            "": ["the default" if a.default else "given" for a in plain],
        }
        texts.show(table, alt=f"Other arguments of {record.name}")
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
    if level == "calls":
        call = op_tables.of_op(trace.calls, record.first) or 0
        _go_button("See its calls", ":material/zoom_in:", zoom="calls", call=call)
    _go_button("See its operations", ":material/zoom_in:", zoom="ops", op=record.first)


def _go_button(label: str, icon: str, disabled: bool = False, **places: object) -> None:
    """Draw a button that shows other positions of this page."""
    if st.button(label, icon=icon, disabled=disabled):
        url_state.keep(**places)
        st.rerun()


def show_tensors(trace: Trace, inputs: Sequence[TensorRecord], outputs: Sequence[TensorRecord], own: str) -> dict:
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


# Parts of the Operations page: the zoom, the table, one step, one operation, and the charts.

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
    counts = {"operations": f"{len(trace.ops):,}", "that compute": f"{computing:,}"}
    widgets.cost_facts(trace, counts, {})


def zoom(trace: Trace) -> str:
    """Return the zoom level that the visitor chose."""
    known = op_tables.levels(trace)
    first = "ops" if "op" in st.query_params and "ops" in known else known[0]
    with st.container(key="zooms"):  # where the table hears which is chosen, and shows it before the server does
        level = widgets.segments("Zoom", "zoom", known, first)
    st.caption(MEANING[level])
    return level


def draw_table(trace: Trace, level: str) -> None:
    """Draw the table; a chosen row is shown below it."""
    chosen = _marked_row(trace, level)
    opened = opened_primitives(trace, number(trace)) if level == "primitives" else ()
    key = "table", level, tuple(decomposition.op for decomposition in opened)
    data = of(trace, key, lambda: _table(trace, level, opened))
    others = of(trace, "tables", lambda: _every(trace))
    widgets.check(fold=("on", "off"), sort=_sorts(level, len(data["columns"])))
    _check_open(level, data)
    clicked = components.operations_table({"tables": {**others, level: data}, "level": level, "chosen": chosen})
    if (count := data["count"]) > ROWS:
        st.caption(f"These are the first {ROWS:,} of {count:,} rows; `python -m tracer open` lists them all.")
    st.caption("Click a module to unfold it, a row to see its details below, or a column header to sort by it.")
    if level == "steps" and (note := number_steps(trace.model)):
        st.caption(texts.plain(with_titles(f"In the note: the number of the step in note {note.note}.")))
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
    last = op_tables.folds(data) - 1
    known = of == level and re.fullmatch(r"([0-9]+(-[0-9]+)?(\.[0-9]+(-[0-9]+)?)*)?", ranges, re.ASCII)
    if not known or any(int(number[-9:]) > last for number in re.findall("[0-9]+", ranges)):
        expected = f"numbers of modules from 0 to {last}, such as '{level}_0-{last}'" if last > 0 else f"'{level}_'"
        st.warning(texts.escape(f"This page has no open {quote(name)}, expected {expected}."))


def _marked_row(trace: Trace, level: str) -> str:
    """Return the marked row: the last chosen one, else the one around the operation on screen."""
    if level == "steps":
        return f"step {url_state.last_step(trace)}"
    kind = level.removesuffix("s")
    return f"{kind} {_number(trace, kind, number(trace))}" if kind in ("module", "call") else f"op {number(trace)}"


def _table(trace: Trace, level: str, opened: Sequence[Decomposition] = ()) -> dict:
    """Return a table with the rows that are sent, and the number of all its rows."""
    note = number_steps(trace.model)
    table = op_tables.table(trace, level, opened, note_of=note and note.of)
    return table | {"rows": table["rows"][:ROWS], "count": len(table["rows"])}


def _every(trace: Trace) -> dict[str, dict]:
    """Return the tables of all levels but that of primitives, which needs another run, so that the browser zooms by
    itself; none where the run is too large for that."""
    rows_of = {level: _table(trace, level) for level in op_tables.levels(trace) if level != "primitives"}
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
    st.markdown(texts.proof(chosen) + texts.unseen(chosen), help=verdicts.MEANING)
    with st.container(horizontal=True):
        if st.button("Open it on the page Trace", icon=":material/function:"):
            url_state.open_step(chosen.id)
        ops = chosen.ops or ((chosen.inside,) if chosen.inside is not None else ())
        op = ops[0] if ops else None
        _go_button("See its operations", ":material/zoom_in:", disabled=not ops, op=op, zoom="ops")


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
    strip(trace, [op])
    left, right = st.columns([3, 2], gap="large")
    with left:
        _line(op)
        tensors = show_tensors(trace, op.inputs, op.outputs, "this operation")
        texts.show(tensors, alt=f"Inputs and outputs of operation {op.index}")
        _makers(trace, op)
        if op.note:
            st.caption(texts.plain(op.note))
    with right:
        _cost(op)
        _its_step(trace, op)
    show(trace, op, level)


def _line(op: Op) -> None:
    called = f", called as {op.function}" if op.function and op.function != op.op else ""
    st.text(sentence(op.op))
    st.text(f"{category(op.op)}{called}" + (f", in module {op.module}" if op.module else ", in the model itself"))
    if op.source is not None:
        st.text(f"{op.source.file}, line {op.source.line}")
        st.code(op.source.text.strip(), language="python", wrap_lines=True)


def _makers(trace: Trace, op: Op) -> None:
    """Draw links back to the producers of the inputs, and on to the users of the outputs."""
    before = {
        producer.index: producer
        for tensor in op.inputs
        if (producer := maker(trace, tensor)) and producer.index != op.index
    }
    after = [user for user in trace.ops if any(tensor.maker == op.index for tensor in user.inputs)][:MAX_LINKS]
    with st.container(horizontal=True):
        for producer in list(before.values())[:MAX_LINKS]:
            label = f"{producer.index}: {producer.op}"
            st.button(label, icon=":material/arrow_back:", on_click=go, args=(producer.index,))
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
        unknown = ", not known in symbols" if value and formula == "?" and solved else ""
        st.markdown(f"**{value:,}** {name}{_equal(value, formula)}{unknown}")
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
    parts_of_op, steps = costs.parts_of_step(trace, op.index), {step.id: step for step in trace.steps}
    if len(parts_of_op) > 1:
        for id, (flops, formula) in parts_of_op.items():
            st.markdown(f"**{flops:,}** FLOP of it for ${steps[id].symbol}${_equal(flops, formula)}")


def pictures(trace: Trace, level: str) -> None:
    """Draw the number of operations of each category, and their share of the arithmetic."""
    kind = "primitives" if level == "primitives" else "operations"
    opened = opened_primitives(trace, number(trace)) if kind == "primitives" else ()
    parts = [part.name for decomposition in opened for part in decomposition.primitives]
    counts, table = op_tables.counts(parts or [op.op for op in trace.ops]), op_tables.arithmetic(trace)
    sums = {module: sum(row.values()) for module, row in table.items()}
    left, right = st.columns(2, gap="large")
    with left:
        st.header(f"Kinds of {kind if parts else 'operations'}")
        components.drawing(of(trace, ("kinds", kind, len(parts)), lambda: op_tables.categories(counts)), "kinds")
    with right:
        st.header("Where the FLOPs are")
        if table:
            components.drawing(of(trace, "arithmetic", lambda: op_tables.flops(table)), "arithmetic")
        else:
            st.caption("This run has no matrix products.")
    with st.expander("The same data as tables"):
        texts.show({"category": list(counts), "count": list(counts.values())})
        texts.show({"module": list(sums), "FLOP": list(sums.values())})
