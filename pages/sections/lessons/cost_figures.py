"""Costs of a model at its sizes: parameters, arithmetic, memory at a dtype, and the formulas of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from pages.state import url_state
from tracer.export.math_labels import amount
from tracer.symbols import notation

if TYPE_CHECKING:
    from tracer.record.cost_scaling import Scaling

DTYPES = {"float32": 4, "bfloat16": 2, "float8": 1}
"""The bytes of a number by dtype."""
FIRST_DTYPE = "bfloat16"


class Memory(NamedTuple):
    """Dtype that numbers are stored in, and the available memory."""

    dtype: str
    gigabytes: int

    @property
    def width(self) -> int:
        """Bytes of a number."""
        return DTYPES[self.dtype]


def memory_controls() -> Memory:
    """Draw a control for the dtype of numbers, and one for the available memory; return their values."""
    with st.container(horizontal=True, vertical_alignment="bottom", key="memory-controls"):
        at = url_state.widget("dtype", list(DTYPES), FIRST_DTYPE)
        dtype = st.segmented_control("Each number is", list(DTYPES), required=True, **at)
        gigabytes = st.number_input("Memory in GB", 1, 100_000, 80, key="memory", width=160)
    return Memory(dtype, int(gigabytes))


def show_costs(scaling: Scaling, now: Mapping[str, int], memory: Memory) -> None:
    """Show parameters, arithmetic and memory at the sizes `now`; a cache of a model that has one alone."""
    numbers = scaling.numbers(now)
    held = {name: None if count is None else memory.width * count for name, count in numbers.items()}
    caches, flops = scaling.cache != "0", numbers["flops"]
    facts = (
        ("Parameters", numbers["params"], ""),
        ("FLOPs of one forward pass", flops, ""),
        ("Memory of the weights", held["params"], "B"),
        *([("Memory of the cache", held["cache"], "B")] if caches else []),
        ("Memory of the activations", held["tensors"], "B"),
    )
    with st.container(key="facts"):
        for label, value, unit in facts:
            st.metric(label, "?" if value is None else amount(value, unit))
    _show_fit(held["params"], held["cache"], memory)
    if caches and (crossing := _cache_text(scaling, now)):
        st.markdown(crossing)
    counted = ""
    if flops is not None:
        counted = f"{amount(flops)} FLOPs are {amount(flops // 2)} multiply-adds, at 2 FLOPs each. "
        counted += "Norms, softmax and sums are not counted. "
    st.caption(
        f"{counted}A number in {memory.dtype} takes {memory.width} byte{'s' if memory.width > 1 else ''}. "
        + "Activations are all tensors that the steps compute. A program that frees each of them needs far less."
    )


def _show_fit(params: int | None, cache: int | None, memory: Memory) -> None:
    """State whether weights and cache, in bytes, fit into the memory."""
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


def _cache_text(scaling: Scaling, now: Mapping[str, int]) -> str:
    """Return a sentence on the length at which the cache overtakes the weights; empty where it never does."""
    overtakes = scaling.cache_overtakes_weights(now)
    if overtakes is None:
        return ""
    name = notation.latex(scaling.length)
    return f"The cache is as large as the weights at ${name} = {whole(overtakes)}$, with $B = {whole(now['B'])}$."


def whole(value: float) -> str:
    """Return a number without decimals as LaTeX, in groups of three digits."""
    return f"{value:,.0f}".replace(",", "{,}")


def show_formulas(scaling: Scaling) -> None:
    """Show the formula of each count that has one, and of each size that follows from others."""
    formulas = {
        "Parameters": scaling.params,
        "FLOPs of one forward pass": scaling.flops,
        "Numbers in the cache of keys and values": scaling.cache,
        "Numbers in all activations, the tensors that the steps compute": scaling.tensors,
    }
    lines = [
        f"**{label}**\n\n$$\n{notation.inline_latex(formula)}\n$$"
        for label, formula in formulas.items()
        if formula != "?" and not formula.isdecimal()
    ]
    follows = ", ".join(
        f"${notation.latex(name)} = {notation.latex(equals)}$" for name, equals in scaling.derived.items()
    )
    lines += [f"Where {follows}."] if follows else []
    with st.expander("The formulas", expanded=False):
        st.markdown("\n\n".join(lines))
