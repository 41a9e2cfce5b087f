"""The columns of the attention matrices that belong to each head."""

from collections.abc import Sequence
from functools import partial

import streamlit as st

from pages import components
from pages.jobs.render_cache import of
from tracer.attention import layers
from tracer.export.math_labels import scientific
from tracer.figures.attention import head_columns
from tracer.record import Trace


def show(trace: Trace, part: str) -> None:
    """Draw the matrices of queries, keys and values in the first block to scale; nothing where the run names none."""
    blocks = layers(trace, part)
    found = of(trace, ("matrices", part), lambda: head_columns.matrices(trace, blocks[0]))
    if not found:
        return
    st.header("Where the heads come from")
    for matrix, place in zip(found, st.columns(len(found)), strict=True):
        with place:
            key = ("heads", part, matrix.symbol)
            components.drawing(of(trace, key, partial(head_columns.drawing, matrix)), f"heads {matrix.symbol}")
    said = _describe_packed(found[0]) if found[0].is_packed else _describe_separate(found[0])
    if any(matrix.turned for matrix in found):
        said += " The equation multiplies by [in, out], and PyTorch keeps the same numbers as [out, in], row by row."
    first = "Shown is the first block. " if len(blocks) > 1 else ""
    st.caption(f"{first}{said} {_proof(found)}".strip())


def _describe_separate(matrix: head_columns.Matrix) -> str:
    each = matrix.bands[0].width
    return f"Each head reads {each} columns of one matrix." if matrix.heads > 1 else "The one head reads all columns."


def _describe_packed(matrix: head_columns.Matrix) -> str:
    counts = {part: sum(band.part == part for band in matrix.bands) for part in "QKV"}
    many = ", ".join(f"{count} for {part}" for part, count in counts.items())
    return (
        f"One matrix makes queries, keys and values at once: its product has bands of {matrix.bands[0].width} columns, "
        f"{many}, one for each head. Each band was found by its numbers: what its head received is equal to it."
    )


def _proof(found: Sequence[head_columns.Matrix]) -> str:
    verdicts = {matrix.step.verdict for matrix in found}
    if len(verdicts) > 1:
        return ""
    worst = [matrix.step.error for matrix in found if matrix.step.error is not None]
    said = "The equation of this product is" if found[0].is_packed else "The equations of these products are"
    near = f": the largest difference is {scientific(max(worst))}." if worst else "."
    return f"{said} {verdicts.pop()} on this run{near}"
