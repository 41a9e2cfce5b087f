"""Columns of the attention matrices that belong to each head."""

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
    matrices = of(trace, ("matrices", part), lambda: head_columns.matrices(trace, blocks[0]))
    if not matrices:
        return
    st.header("Where the heads come from")
    with st.container(key="head-columns"):
        places = st.columns(len(matrices))
    for matrix, place in zip(matrices, places, strict=True):
        with place:
            key = ("heads", part, matrix.symbol)
            components.drawing(of(trace, key, partial(head_columns.drawing, matrix)), f"heads {matrix.symbol}")
    caption = _describe_packed(matrices[0]) if matrices[0].is_packed else _describe_separate(matrices[0])
    if any(matrix.transposed for matrix in matrices):
        caption += (
            " The equation multiplies by an [in, out] matrix. PyTorch stores the same numbers as [out, in], row by row."
        )
    first = _describe_blocks([record.heads for record in blocks])
    st.caption(f"{first}{caption} {_proof(matrices)}".strip())


def _describe_blocks(heads: Sequence[int]) -> str:
    """Describe which block is drawn, whichever is chosen above, and the heads of all blocks where they have equally
    many."""
    if len(heads) < 2:
        return ""
    all_alike = f"; each of the {len(heads)} blocks has {heads[0]} head{'s' * (heads[0] > 1)} of its own"
    return f"The picture shows block 1{all_alike * (len(set(heads)) == 1)}. "


def _describe_separate(matrix: head_columns.ProjectionMatrix) -> str:
    each = matrix.bands[0].width
    return f"Each head reads {each} columns of one matrix." if matrix.heads > 1 else "The one head reads all columns."


def _describe_packed(matrix: head_columns.ProjectionMatrix) -> str:
    counts = {part: sum(band.part == part for band in matrix.bands) for part in "QKV"}
    many = ", ".join(f"{count} for {part}" for part, count in counts.items())
    return (
        f"One matrix computes queries, keys and values at once. Its product has bands of {matrix.bands[0].width} "
        f"columns, one per head: {many}. The app found each band by its values, which are equal to those that its "
        "head received."
    )


def _proof(matrices: Sequence[head_columns.ProjectionMatrix]) -> str:
    verdicts = {matrix.step.verdict for matrix in matrices}
    if len(verdicts) > 1:
        return ""
    worst = [matrix.step.error for matrix in matrices if matrix.step.error is not None]
    lead = "The equation of this product is" if matrices[0].is_packed else "The equations of these products are"
    near = f": the largest difference is {scientific(max(worst))}." if worst else "."
    return f"{lead} {verdicts.pop()} on this run{near}"
