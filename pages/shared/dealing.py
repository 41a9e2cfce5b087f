"""Where the heads of an attention come from: matrices whose columns are dealt out to them."""

from functools import partial

import streamlit as st

from pages.shared import components
from pages.shared.pictures import of
from tracer.attention import layers
from tracer.figures import heads
from tracer.figures.labels import scientific
from tracer.record import Trace


def show(trace: Trace, part: str) -> None:
    """The matrices of queries, keys and values in the first block, drawn to scale; nothing where the run names none."""
    found = of(trace, ("matrices", part), lambda: heads.matrices(trace, layers(trace, part)[0]))
    if not found:
        return
    st.header("Where the heads come from")
    for matrix, place in zip(found, st.columns(len(found)), strict=True):
        with place:
            key = ("heads", part, matrix.symbol)
            components.drawing(of(trace, key, partial(heads.drawing, matrix)), f"heads {matrix.symbol}")
    first = found[0]
    each = first.shape[1] // first.heads
    said = [f"Each head reads {each} columns of one matrix" if first.heads > 1 else "The one head reads all columns"]
    if any(matrix.turned for matrix in found):
        said.append("the equation multiplies by [in, out], and PyTorch keeps the same numbers as [out, in], row by row")
    verdicts = {matrix.step.verdict for matrix in found}
    proof = f"The equations that deal them out are {verdicts.pop()} on this run" if len(verdicts) == 1 else ""
    worst = [matrix.step.error for matrix in found if matrix.step.error is not None]
    proof += f", off by {scientific(max(worst))} at most." if proof and worst else "." if proof else ""
    st.caption(f"{'; '.join(said)}. {proof}")
