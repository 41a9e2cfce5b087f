"""Fused and standard attention, run on the same input and compared."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import streamlit as st

from pages.jobs import run_cache
from pages.state import session
from pages.state.visitor import model_name, visitor
from pages.ui import data_tables, texts
from tracer.export.math_labels import scientific
from tracer.figures.tables.op_table import shapes
from tracer.ops import category
from tracer.record import Op, Trace


class Paths(NamedTuple):
    """The ops of each attention backend, in order; and the distance of the outputs of any two, as a share of the
    largest value; of the weights too, where a backend returns them."""

    module: str
    ops: Mapping[str, Sequence[Op]]
    outputs: Sequence[Sequence[float]]
    weights: Sequence[Sequence[float | None]]


def show(trace: Trace) -> None:
    """Show both backends side by side, once the visitor asks; nothing for models that write their attention out."""
    fused = [attention for attention in trace.attentions if attention.fused]
    if not fused:
        return
    st.header("Fused and standard attention")
    st.markdown(
        "A fused kernel computes scores, softmax and context in one operation and never holds the scores. The standard "
        "path writes them out. Both are the same formula; where the order of additions differs, the last digits may."
    )
    if session.user_input().kind == "trace":
        st.caption("To run both, the model is needed: a saved run has none.")
        return
    found = visitor().recall("paths", trace)
    if found is None:
        module = next((attention.module for attention in fused if _comparable(attention.module)), None)
        if module is None:
            st.caption("Here no attention is an nn.MultiheadAttention of PyTorch’s, the module that has both paths.")
            return
        if not st.button("Run both paths", icon=":material/compare_arrows:"):
            return
        with st.spinner("Running the attention on both paths"):
            try:
                found = _run(trace, module)
            except ValueError as error:
                st.info(texts.plain(f"The other path can’t be run here: {error}."))
                return
        visitor().remember("paths", trace, found)
    _beside(found)


def _comparable(module: str) -> bool:
    """Return whether the attention of that path has more than one backend."""
    from tracer.tracing.attention_backends import comparable

    made = session.model()
    return "attention" in made.spec.options or comparable(made.net, module)


def _run(trace: Trace, module: str) -> Paths:
    made = session.model()
    given = made.inputs(**session.inputs(made, session.user_input(), session.options()))
    if "attention" in made.spec.options:
        return _settings(trace, made, module)
    from tracer.tracing.attention_backends import compare

    found = compare(made.net, *given, module=module, **given.named)
    return Paths(found.module, {way.name: way.ops for way in found.ways}, found.outputs, found.weights)


def _settings(trace: Trace, made, module: str) -> Paths:
    """Return both backends of a library that lets one choose: the same weights, loaded with the other setting."""
    from tracer.utils.tensor_diff import relative_difference

    names = {"standard": "eager", "fused": "sdpa"}
    found = []
    for value in names.values():
        other = run_cache.load(model_name(), tuple(sorted({**dict(session.options()), "attention": value}.items())))
        found.append(other.trace(**session.inputs(other, session.user_input(), session.options()), prove=False))

    ops = {name: [op for op in run.ops if op.module == module] for name, run in zip(names, found, strict=True)}
    outputs, weights = [_output(run.output) for run in found], [_weights(run, module) for run in found]
    return Paths(
        module,
        ops,
        [[relative_difference(a, b) for b in outputs] for a in outputs],
        [[None if a is None or b is None else relative_difference(a, b) for b in weights] for a in weights],
    )


def _weights(run: Trace, module: str):
    """Return the attention weights of a module, `[B, h, S_q, S_k]`, or None where they are not recorded."""
    found = next((one for one in run.attentions if one.module == module and not one.problem), None)
    return found and run.attention(found.layer, part=found.part)


def _output(output):
    """Return the first tensor of a model's output."""
    found = list(output.values()) if hasattr(output, "values") else output
    return found[0] if isinstance(found, (list, tuple)) else found


def _beside(paths: Paths) -> None:
    names = list(paths.ops)
    a, b = names.index("standard"), names.index("fused")
    weights = paths.weights[b][a]
    said = f"The outputs differ by at most **{scientific(paths.outputs[b][a])}** of the largest value"
    said += "" if weights is None else f", the attention weights by **{scientific(weights)}**"
    st.success(said + ".", icon=":material/compare_arrows:")
    st.caption(texts.plain(f"The operations of {paths.module}, in order."))
    for column, name in zip(st.columns(2, gap="large"), ("standard", "fused"), strict=True):
        with column:
            ops = paths.ops[name]
            st.markdown(f"**{name}**: {len(ops)} operations")
            table = {
                "operation": [op.op for op in ops],
                "category": [category(op.op) for op in ops],
                "inputs": [shapes(op.inputs) for op in ops],
                "outputs": [shapes(op.outputs) for op in ops],
            }
            data_tables.show(table, alt=f"Operations of the {name} path")
    if len(names) > 2:
        with st.expander("All ways to run it, and how far their outputs are apart"):
            rows: dict[str, list] = {"": list(names), "operations": [len(paths.ops[name]) for name in names]}
            rows |= {name: [scientific(row[i]) for row in paths.outputs] for i, name in enumerate(names)}
            data_tables.show(rows)
