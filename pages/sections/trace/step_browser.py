"""Trace page around its component: the step it opens on, its data, and runs without steps."""

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from pages import components
from pages.jobs import single_flight
from pages.jobs.render_cache import of
from pages.sections.trace import step_payload
from pages.state import browser_position, session, url_state
from pages.state.visitor import Key, visitor
from pages.ui import data_tables, texts
from tracer.figures.payload_budget import ROWS
from tracer.record import Op, Step, Trace
from tracer.utils.error_text import quote


def choose(trace: Trace) -> Step:
    """Return the step that the page opens on: the one that its URL names, else the one that was displayed last."""
    now, known = visitor(), {step.id: step for step in trace.steps}
    step_id = st.query_params.get("step", now.step)
    current = known.get(step_id, trace.steps[0])
    if url_state.names_another("step", known):
        st.warning(texts.escape(f"This run has no step {quote(step_id)}. The page shows its first step."))
    if "step" in st.query_params and step_id not in known:
        now.step = st.query_params["step"] = current.id
    elif step_id in known:
        now.step = step_id
    if current.id != now.at:
        now.at, now.turn = current.id, now.turn + 1
    return current


@st.fragment
def browse(trace: Trace, step: Step) -> None:
    """Draw all steps; the browser moves between them by itself. It requests here what did not fit into one message, and
    pending proofs."""
    now, known = visitor(), {candidate.id for candidate in trace.steps}
    ran = None if session.user_input().kind == "trace" else now.run()
    run = of(ran or trace, "name", lambda: secrets.token_hex(8))  # one name, also once its lines are checked
    wanted = _request(run, known)
    shown = now.recall("proofs", trace) or trace
    waiting = any(candidate.pending for candidate in shown.steps) and shown.prover is not None
    if waiting and wanted.get("prove"):
        part = next(
            steps
            for steps in step_payload.parts(shown).values()
            if wanted["step"] in {candidate.id for candidate in steps}
        )
        shown = single_flight.in_turn(
            partial(shown.prove, [candidate.id for candidate in part]), "Proving the steps of this part"
        )
        now.remember("proofs", trace, shown)
    start = wanted.get("step") or (trace.steps[0] if step_payload.fits(trace) else step).id
    index = wanted.get("index", ())
    packed = of(shown, ("steps", start, *index), lambda: step_payload.pack(shown, start, index))
    facts = {"run": run, "step": now.at, "turn": now.turn} | browser_position.facts(now)
    facts |= {"prove": waiting, "checking": session.is_check_pending()}
    components.stepper(facts, packed)


def _request(run: str, known: set[str]) -> dict[str, Any]:
    """Return the browser's request for this run: a step, the index on the leading axes of its tensor, and whether
    proofs."""
    request = (st.session_state.get(Key.STEPPER) or {}).get("wanted")
    if not isinstance(request, Mapping) or request.get("run") != run or request.get("step") not in known:
        return {}
    index = request.get("index")
    index = index if isinstance(index, list) and all(type(at) is int for at in index) else []
    return {"step": request["step"], "index": tuple(index), "prove": bool(request.get("prove"))}


def operations(ops: Sequence[Op]) -> None:
    """Draw ops as a table: module, shapes in and out, cost."""
    widths = {"op": 50, "name": 110, "inputs": 165, "outputs": 110, "in symbols": 130, "module": 140, "source": 95}
    columns = {name: st.column_config.Column(width=width) for name, width in widths.items()}
    columns["parameters"] = st.column_config.NumberColumn(width=88, format="localized")
    table = pd.DataFrame(step_payload.rows(ops[:ROWS]), columns=list(step_payload.COLUMNS))
    st.dataframe(
        table,
        hide_index=True,
        alt=f"{len(ops[:ROWS])} operations with shapes and cost",
        column_config=columns,
    )
    data_tables.on_paper({name: list(table[name]) for name in table})
    if len(ops) > ROWS:
        st.caption(f"These are the first {ROWS:,} of {len(ops):,} operations; `python -m tracer open` lists them all.")
    st.caption(step_payload.FLOPS_NOTE)
