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


class BackendPaths(NamedTuple):
    """Ops of each attention backend, in order; and the distance of the outputs of any two, as a share of the
    largest value; of the weights too, where a backend returns them."""

    module: str
    ops: Mapping[str, Sequence[Op]]
    outputs: Sequence[Sequence[float]]
    weights: Sequence[Sequence[float | None]]


def show(trace: Trace) -> None:
    """Show both backends side by side, on request; nothing for models that compute attention explicitly."""
    fused = [attention for attention in trace.attentions if attention.fused]
    if not fused:
        return
    st.header("Fused and standard attention")
    st.markdown(
        "A fused kernel computes scores, softmax and context in one operation and never stores the scores. The "
        "standard path writes them out. Both compute the same formula. Where the order of additions differs, the last "
        "digits may differ."
    )
    if session.user_input().kind == "trace":
        st.caption("Running both paths needs the model, which a saved run does not contain.")
        return
    comparison = visitor().recall("paths", trace)
    if comparison is None:
        module = next((attention.module for attention in fused if _comparable(attention.module)), None)
        if module is None:
            st.caption("No attention in this model is PyTorch’s nn.MultiheadAttention, the module that has both paths.")
            return
        if not st.button("Run both paths", icon=":material/compare_arrows:"):
            return
        with st.spinner("Running the attention on both paths"):
            try:
                comparison = _run(trace, module)
            except ValueError as error:
                st.info(texts.plain(f"The other path can’t be run here: {error}."))
                return
        visitor().remember("paths", trace, comparison)
    _beside(comparison)


def _comparable(module: str) -> bool:
    """Return whether the attention of that path has more than one backend."""
    from tracer.tracing.attention_backends import comparable

    model = session.model()
    return "attention" in model.spec.options or comparable(model.net, module)


def _run(trace: Trace, module: str) -> BackendPaths:
    model = session.model()
    inputs = model.inputs(**session.inputs(model, session.user_input(), session.options()))
    if "attention" in model.spec.options:
        return _settings(trace, model, module)
    from tracer.tracing.attention_backends import compare

    comparison = compare(model.net, *inputs, module=module, **inputs.named)
    return BackendPaths(
        comparison.module, {way.name: way.ops for way in comparison.ways}, comparison.outputs, comparison.weights
    )


def _settings(trace: Trace, model, module: str) -> BackendPaths:
    """Return both backends of a library that lets one choose: the same weights, loaded with the other setting."""
    from tracer.utils.tensor_diff import relative_difference

    names = {"standard": "eager", "fused": "sdpa"}
    settings = []
    for value in names.values():
        counterpart = run_cache.load(
            model_name(), tuple(sorted({**dict(session.options()), "attention": value}.items()))
        )
        settings.append(
            counterpart.trace(**session.inputs(counterpart, session.user_input(), session.options()), prove=False)
        )

    ops = {name: [op for op in run.ops if op.module == module] for name, run in zip(names, settings, strict=True)}
    outputs, weights = [_output(run.output) for run in settings], [_weights(run, module) for run in settings]
    return BackendPaths(
        module,
        ops,
        [[relative_difference(a, b) for b in outputs] for a in outputs],
        [[None if a is None or b is None else relative_difference(a, b) for b in weights] for a in weights],
    )


def _weights(run: Trace, module: str):
    """Return the attention weights of a module, `[B, h, S_q, S_k]`, or None where they are not recorded."""
    record = next(
        (candidate for candidate in run.attentions if candidate.module == module and not candidate.problem), None
    )
    return record and run.attention(record.layer, part=record.part)


def _output(output):
    """Return the first tensor of a model's output."""
    values = list(output.values()) if hasattr(output, "values") else output
    return values[0] if isinstance(values, (list, tuple)) else values


def _beside(paths: BackendPaths) -> None:
    names = list(paths.ops)
    a, b = names.index("standard"), names.index("fused")
    weights = paths.weights[b][a]
    sentence = f"The outputs differ by at most **{scientific(paths.outputs[b][a])}** of the largest value"
    sentence += "" if weights is None else f", the attention weights by **{scientific(weights)}**"
    st.success(sentence + ".", icon=":material/compare_arrows:")
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
        with st.expander("All ways to run it, and how much their outputs differ"):
            rows: dict[str, list] = {"": list(names), "operations": [len(paths.ops[name]) for name in names]}
            rows |= {name: [scientific(row[i]) for row in paths.outputs] for i, name in enumerate(names)}
            data_tables.show(rows)
