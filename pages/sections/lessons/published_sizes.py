"""Lesson on sizes for published models: one that the reader chooses, and all of them beside each other."""

from __future__ import annotations

from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

import streamlit as st

from pages.jobs import run_cache
from pages.sections.lessons import any_model_sizes, cost_figures
from pages.state import model_options, url_state
from pages.state.visitor import visitor
from pages.ui import texts
from tracer import zoo
from tracer.export.math_labels import amount
from tracer.symbols import notation
from tracer.utils.limits import limits
from tracer.zoo.hf.published_models import PublishedModel, published_models

if TYPE_CHECKING:
    from tracer.zoo.hf.presets import PublishedRun, ShapeLine

DOING = "Running the published model without values"
MAX_DEFAULT_TOKENS = 2048
"""Tokens of a text at first, if the model takes so many."""


def choose() -> str | None:
    """Draw the choice of a published model, and return its name; None for the model of the sidebar, and on a server
    that offers listed models alone."""
    if not zoo.available("hf") or limits().models(()) is not None:
        return None
    known = published_models()
    at = url_state.widget("published", list(known), None, length=None)
    return st.selectbox(
        "A published model",
        list(known),
        format_func=lambda name: known[name].title,
        index=None,
        placeholder="Choose one instead of the model of the sidebar",
        width=420,
        **at,
    )


def show(name: str) -> None:
    """Show shapes, parameters, cache and arithmetic of a published model at a batch, a length and a dtype."""
    from tracer.zoo.hf import presets  # loads transformers

    entry = published_models()[name]
    visitor().instead = entry.title
    try:
        run = run_cache.of_sample_too("costs", ("published", name), lambda: presets.run(name), DOING)
    except ValueError as error:
        st.info(texts.escape(f"{entry.title} was not run: {error}."))
        return
    memory = cost_figures.memory_controls()
    now = _sizes(run)
    cost_figures.show_costs(run.scaling, now, memory)
    any_model_sizes.show_crossing(run.scaling, now)
    _compare_parameters(entry, run)
    cost_figures.show_formulas(run.scaling)
    _shapes(run, now)


def _sizes(run: PublishedRun) -> dict[str, int]:
    """Draw the controls of batch and length and list the published sizes; return all of them."""
    sizes, longest = dict(run.sizes), run.sizes.get("T_max", model_options.MAX_SIZE)
    with st.container(key="sizes"):
        at = url_state.count("batch", 1, model_options.MAX_SIZE)
        sizes["B"] = int(st.number_input(any_model_sizes.size_label("B"), step=1, **at))
        if "T" in sizes:
            at = url_state.count("length", min(MAX_DEFAULT_TOKENS, longest), longest)
            sizes["T"] = int(st.number_input(any_model_sizes.size_label("T"), step=1, **at))
    held = [
        f"${notation.latex(name)} = {cost_figures.whole(run.sizes[name])}$" for name in sizes if name not in ("B", "T")
    ]
    st.markdown(f"As published: {', '.join(held)}.")
    return run.scaling.complete(sizes)


def _compare_parameters(entry: PublishedModel, run: PublishedRun) -> None:
    """Compare the number of parameters with the published one."""
    same = "which is the published number" if entry.agrees(run.params) else "which is **not** the published number"
    st.markdown(
        texts.plain(f"The net, built without memory, has {run.params:,} parameters, {same}, {entry.parameters} ")
        + texts.escape(f"({entry.source}).")
    )


def _shapes(run: PublishedRun, now: dict[str, int]) -> None:
    """List the tensors of the run, of equal blocks once, with their shapes in symbols and at the chosen sizes."""
    st.header("Its shapes")
    ran = ", ".join(f"${name} = {run.scaling.sizes[name]}$" for name in ("B", "T") if name in run.scaling.sizes)
    depth = (
        f" Only the first {run.blocks} of {run.sizes['L']} blocks ran, which have all kinds of blocks, so FLOPs and "
        "activations of the whole model are not counted."
        if run.blocks
        else ""
    )
    st.caption(
        f"The code of transformers ran at {ran} and the published sizes on tensors without values, so no equation was "
        f"executed at this size.{depth} Shapes in symbols were solved from runs at other sizes; numbers follow from "
        f"them. {texts.escape(run.proven)}"
    )
    head = "| tensor | what it is | shape |\n|---|---|---|"
    with st.container(key="shapes"):
        for blocks, lines in groupby(run.lines, key=lambda line: line.blocks):
            if blocks:
                st.markdown(f"**In the blocks** ${blocks}$")
            st.markdown("\n".join([head, *(_row(line, now) for line in lines)]))


def _row(line: ShapeLine, now: dict[str, int]) -> str:
    """Return a row of a table: a tensor, and its shape in symbols above that in numbers."""
    from tracer.record.cost_scaling import evaluate  # loads sympy

    values = [evaluate(size, now) for size in line.symbolic]
    numbers = r",\ ".join("?" if value is None else cost_figures.whole(value) for value in values)
    shape = rf"\begin{{array}}{{l}}{notation.shape_latex(line.symbolic)}\\ {{[{numbers}]}}\end{{array}}"
    title = texts.escape(line.title).replace(".", ".\u200b")  # a path may break after each part
    return f"| ${line.symbol}$ | {title} | ${shape}$ |"


def show_all() -> None:
    """Show published models beside each other: their numbers of parameters as published, and as counted here."""
    if not zoo.available("hf"):
        return
    with st.expander("Published models beside each other", expanded=False):
        if not st.toggle("Count their parameters", key="count published"):
            st.caption("Each net is built without memory, and its parameters are counted.")
            return
        st.dataframe(_rows(), hide_index=True, width="stretch")


@lru_cache(maxsize=1)
def _rows() -> list[dict[str, str]]:
    from tracer.zoo.hf import presets  # loads transformers

    rows = []
    for name, entry in published_models().items():
        count = presets.count(name)
        rows.append(
            {
                "model": entry.title,
                "published": entry.parameters,
                "counted here": f"{count:,}",
                "equal": "yes" if entry.agrees(count) else "no",
                "weights in bfloat16": amount(2 * count, "B"),
                "source": entry.source,
            }
        )
    return rows
