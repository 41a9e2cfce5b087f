"""Primitives of the operations that a visitor opened: each is decomposed alone, by one more run."""

import streamlit as st

from pages.state import session
from pages.state.visitor import visitor
from pages.ui import data_tables, proof_badge, texts
from tracer.export.math_labels import scientific
from tracer.figures.payload_budget import ROWS
from tracer.figures.tables import op_table
from tracer.ops import category, is_layout
from tracer.record import Decomposition, Op, Trace, verdict_within

OPENED_OPS_KEY = "opened operations"


def opened_primitives(trace: Trace, number: int) -> tuple[Decomposition, ...]:
    """Return the primitives of the operation on screen and of those opened before, in the order of the run."""
    if trace.decompositions or session.user_input().kind == "trace":
        return trace.decompositions
    _open(trace, number)
    decompositions = visitor().recall(OPENED_OPS_KEY, trace) or {}
    return tuple(decompositions[op] for op in sorted(decompositions))


def _open(trace: Trace, number: int) -> None:
    decompositions = visitor().recall(OPENED_OPS_KEY, trace) or {}
    if trace.ops and number not in decompositions:
        visitor().remember(
            OPENED_OPS_KEY,
            trace,
            decompositions | {decomposition.op: decomposition for decomposition in session.primitives(number)},
        )


def show(trace: Trace, op: Op, level: str) -> None:
    """Show the primitives of one operation, in order, and the distance of their output from the run's."""
    known_decompositions = trace.decompositions or (visitor().recall(OPENED_OPS_KEY, trace) or {}).values()
    decompositions = {
        decomposition.op: decomposition
        for decomposition in (opened_primitives(trace, op.index) if level == "primitives" else known_decompositions)
    }
    if op.index not in decompositions:
        with st.container(key="unopened"):
            st.header("Its primitives")
            if session.user_input().kind == "trace":
                st.caption("This saved run was recorded without the primitives of this operation.")
            elif st.button(
                "Open it into its primitives",
                icon=":material/zoom_in:",
                help="The app has to run the model once more to open it.",
            ):
                _open(trace, op.index)
                st.rerun()
        return
    st.header("Its primitives")
    decomposition = decompositions[op.index]
    if decomposition.error is not None:
        apart = f"values that differ from its own by at most **{scientific(decomposition.error)}** of the largest"
        proof_badge.box(
            verdict_within(decomposition.error, op.outputs[0].dtype),
            "PyTorch’s own decomposition, run on the arguments of this operation, gives "
            f"{apart if decomposition.error else 'exactly its values'}.",
        )
    else:
        only = "It only changes the layout of the data, and is a primitive itself." if is_layout(op.op) else ""
        st.caption(texts.plain(decomposition.note + "." if decomposition.note else only or "It is a primitive itself."))
    parts = decomposition.primitives[:ROWS]
    data_tables.show(
        {
            "": list(range(len(parts))),
            "primitive": [part.name for part in parts],
            "category": [category(part.name) for part in parts],
            "inputs": [op_table.shapes(part.inputs) for part in parts],
            "outputs": [op_table.shapes(part.outputs) for part in parts],
            "made from": [", ".join(str(t.maker) for t in part.inputs) for part in parts],
            "opened from": [part.within.replace("/", " → ") for part in parts],
        },
        alt=f"{len(decomposition.primitives)} primitives of operation {op.index}",
    )
