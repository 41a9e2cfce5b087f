"""The lesson on sizes for models of libraries: their costs at any size, from the formulas of a run without values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from pages.state import model_options
from pages.ui import texts
from tracer.export.math_labels import amount
from tracer.symbols import notation

if TYPE_CHECKING:
    from tracer.record.cost_scaling import Scaling

DTYPES = {"float32": 4, "bfloat16": 2, "float8": 1}
"""The bytes of a number by dtype."""
WIDGET = "any size {} {}"


class Memory(NamedTuple):
    """The dtype that numbers are stored in, and the memory that there is."""

    dtype: str
    gigabytes: int

    @property
    def width(self) -> int:
        """The bytes of a number."""
        return DTYPES[self.dtype]


@lru_cache(maxsize=8)
def formulas(model: str) -> tuple[Scaling, str]:
    """Return the formulas of a model's run without values, and the note on where its equations were proven."""
    import tracer
    from tracer.record.cost_scaling import scaling

    trace = tracer.load(model, values=False).trace(values=False)
    return scaling(trace), next((note for note in trace.notes if note.startswith("shapes at this size")), "")


def show(model: str) -> None:
    """Show the costs of a library's model with a control for each of its sizes."""
    try:
        with st.spinner("Running the model without values"):
            scaling, note = formulas(model)
    except ValueError as error:
        st.info(texts.escape(f"{error}."))
        return
    memory = memory_controls()
    sizes = _controls(model, scaling)
    try:
        now = scaling.complete(sizes)
    except ValueError as error:
        st.error(texts.escape(f"{error}."))
        return
    _show_costs(scaling, now, memory)
    _show_crossings(scaling, now)
    _show_formulas(scaling)
    st.caption(texts.escape(f"{note[:1].upper()}{note[1:]}." if note else ""))


def memory_controls() -> Memory:
    """Draw a control for the dtype of numbers, and one for the memory that there is; return their values."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="memory-controls"):
        dtype = st.segmented_control("Each number is", list(DTYPES), default="bfloat16", key="dtype") or "bfloat16"
        gigabytes = st.number_input("Memory in GB", 1, 100_000, 80, key="memory", width=160)
    return Memory(dtype, int(gigabytes))


def show_fit(params: int | None, cache: int | None, memory: Memory) -> None:
    """Say whether weights and cache, in bytes, fit into the memory."""
    if params is None or cache is None:
        return
    total, most = params + cache, memory.gigabytes * 10**9
    what = "Weights and cache take" if cache else "The weights take"
    share = f"{what} {amount(total, 'B')}"
    if total <= most:
        st.info(f"{share}: they fit into {memory.gigabytes:,} GB.", icon=":material/memory:")
    else:
        count = -(-total // most)
        st.warning(f"{share}: {count:,} times {memory.gigabytes:,} GB are needed.", icon=":material/memory:")


def _controls(model: str, scaling: Scaling) -> dict[str, int]:
    """Draw a control for each size that is not derived; return their values."""
    sizes = {}
    with st.container(key="sizes"):
        for name, value in scaling.sizes.items():
            if name in scaling.derived:
                continue
            meaning = notation.MEANINGS.get(name, "")
            label = f"${notation.latex(name)}$ {meaning.partition(':')[0].partition(',')[0].removeprefix('number of ')}"
            chosen = st.number_input(
                label, 1, model_options.LARGEST, value, step=1, key=WIDGET.format(model, name), help=meaning or None
            )
            sizes[name] = int(chosen)
    return sizes


def _show_costs(scaling: Scaling, now: dict[str, int], memory: Memory) -> None:
    numbers = scaling.numbers(now)
    counts = {name: numbers[name] for name in ("params", "cache", "tensors")}
    held = {name: None if count is None else count * memory.width for name, count in counts.items()}
    facts = (
        ("Parameters", numbers["params"], ""),
        ("FLOPs of one forward pass", numbers["flops"], ""),
        ("Memory of the weights", held["params"], "B"),
        ("Memory of the cache", held["cache"], "B"),
        ("Memory of the activations", held["tensors"], "B"),
    )
    with st.container(key="facts"):
        for label, value, unit in facts:
            st.metric(label, "?" if value is None else amount(value, unit))
    show_fit(held["params"], held["cache"], memory)
    st.caption("Activations are all tensors that the steps compute. A program that frees each of them needs far less.")


def _show_crossings(scaling: Scaling, now: dict[str, int]) -> None:
    name, meets = notation.latex(scaling.length), scaling.crossing(now)
    lines = [cache_text(scaling, now)]
    if meets is not None:
        lines.insert(0, f"QKᵀ and the weighted sum cost as much as the MLP at ${name} = {_whole(meets)}$.")
    st.markdown("\n\n".join(filter(None, lines)))


def cache_text(scaling: Scaling, now: Mapping[str, int]) -> str:
    """Return a sentence on the length at which the cache overtakes the weights; empty where it never does."""
    overtakes = scaling.cache_overtakes_weights(now)
    if overtakes is None:
        return ""
    name = notation.latex(scaling.length)
    return f"The cache is as large as the weights at ${name} = {_whole(overtakes)}$, with $B = {now['B']}$."


def _whole(value: float) -> str:
    return f"{value:,.0f}".replace(",", "{,}")


def _show_formulas(scaling: Scaling) -> None:
    with st.expander("The formulas", expanded=False):
        texts_of = (
            ("Parameters", scaling.params),
            ("FLOPs", scaling.flops),
            ("Numbers in the cache of keys and values", scaling.cache),
            ("Numbers in all activations", scaling.tensors),
        )
        for label, formula in texts_of:
            if formula not in ("0", "?"):
                st.markdown(f"**{label}**\n\n$$\n{notation.flowing(formula)}\n$$")


def show_published() -> None:
    """Show published models beside each other: their numbers of parameters as published, and as counted here."""
    from tracer import zoo

    if not zoo.available("hf"):
        return
    with st.expander("Published models", expanded=False):
        if not st.toggle("Count their parameters", key="count published"):
            st.caption("Each net is built without memory, and its parameters are counted.")
            return
        st.dataframe(_published_rows(), hide_index=True, width="stretch")


@lru_cache(maxsize=1)
def _published_rows() -> list[dict[str, str]]:
    from tracer.zoo.hf import presets  # loads transformers

    rows = []
    for name, entry in presets.published_models().items():
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
