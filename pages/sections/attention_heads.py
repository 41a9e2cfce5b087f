"""Heads beside each other, and one query in all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st
from PIL import Image

from pages import components
from pages.jobs import run_cache
from pages.jobs.single_flight import of
from pages.sections import head_survey, mask_controls
from pages.sections.head_survey import NAMES, MeasureUnit
from pages.state import session
from pages.state.visitor import model_name, visitor
from pages.ui import texts, widgets
from tracer.attention import block_names, layers, places, segments, token_segments
from tracer.export import verdicts
from tracer.export.rows import symbols
from tracer.figures import attention_maps, drawing, predictions
from tracer.figures.attention_maps import Measure
from tracer.ops import category
from tracer.record import TensorRecord, Trace
from tracer.utils.errors import result_or_reason, shorten
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent, scientific, shape_numbers

if TYPE_CHECKING:
    from tracer.attention import head_effects
    from tracer.attention.head_effects import HeadEffects
    from tracer.tracing import attention_backends
    from tracer.tracing.attention_backends import BackendComparison
else:  # imported when first used
    head_effects = lazy_import("tracer.attention.head_effects")
    attention_backends = lazy_import("tracer.tracing.attention_backends")


# Fused and standard attention, run on the same input and compared.


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
                comparison = _run(module)
            except ValueError as error:
                st.info(texts.plain(f"The other path can’t be run here: {error}."))
                return
        visitor().remember("paths", trace, comparison)
    _beside(comparison)


def _comparable(module: str) -> bool:
    """Return whether the attention of that path has more than one backend."""
    model = session.model()
    return "attention" in model.spec.options or attention_backends.comparable(model.net, module)


def _run(module: str) -> BackendComparison:
    model = session.model()
    if "attention" in model.spec.options:
        return _settings(module)
    inputs = model.inputs(**session.inputs(model, session.user_input(), session.options()))
    return attention_backends.compare(model.net, *inputs, module=module, **inputs.named)


def _settings(module: str) -> BackendComparison:
    """Return both backends of a library that lets one choose: the same weights, loaded with the other setting."""
    runs = []
    for name, value in {"standard": "eager", "fused": "sdpa"}.items():
        counterpart = run_cache.load(model_name(), run_cache.with_options(session.options(), attention=value))
        inputs = session.inputs(counterpart, session.user_input(), session.options())
        run = counterpart.trace(**inputs, prove=False)
        ops = tuple(op for op in run.ops if op.module == module)
        way = attention_backends.BackendRun(name, need_weights=name == "standard", fast=False, ops=ops)
        runs.append((way, _output(run.output), _weights(run, module)))
    return attention_backends.measure_differences(module, runs)


def _weights(run: Trace, module: str):
    """Return the attention weights of a module, `[B, h, S_q, S_k]`, or None where they are not recorded."""
    known = (record for record in run.attentions if record.module == module and not record.problem)
    record = next(known, None)
    return record and run.attention(record.layer, part=record.part)


def _output(output):
    """Return the first tensor of a model's output."""
    values = list(output.values()) if hasattr(output, "values") else output
    return values[0] if isinstance(values, (list, tuple)) else values


def _beside(paths: BackendComparison) -> None:
    ops_of = {way.name: way.ops for way in paths.ways}
    names = list(ops_of)
    a, b = names.index("standard"), names.index("fused")
    weights = paths.weights[b][a]
    sentence = f"The outputs differ by at most **{scientific(paths.outputs[b][a])}** of the largest value"
    sentence += "" if weights is None else f", the attention weights by **{scientific(weights)}**"
    st.success(sentence + ".", icon=":material/compare_arrows:")
    st.caption(texts.plain(f"The operations of {paths.module}, in order."))
    for name in ("standard", "fused"):
        ops = ops_of[name]
        st.markdown(f"**{name}**: {len(ops)} operations")
        table = {
            "operation": [op.op for op in ops],
            "category": [category(op.op) for op in ops],
            "inputs": [symbols(op.inputs) for op in ops],
            "inputs, in numbers": [_numbers(op.inputs) for op in ops],
            "outputs": [symbols(op.outputs) for op in ops],
            "outputs, in numbers": [_numbers(op.outputs) for op in ops],
        }
        texts.show(table, alt=f"Operations of the {name} path")
    if len(names) > 2:
        with st.expander("All ways to run it, and how much their outputs differ"):
            rows: dict[str, list] = {"": list(names), "operations": list(map(len, ops_of.values()))}
            rows |= {name: [scientific(row[i]) for row in paths.outputs] for i, name in enumerate(names)}
            texts.show(rows)


def _numbers(tensors: Sequence[TensorRecord]) -> str:
    return ", ".join(shape_numbers(tensor.shape) for tensor in tensors)


# Columns of the attention matrices that belong to each head.


def show_head_columns(trace: Trace, part: str) -> None:
    """Draw the matrices of queries, keys and values in the first block to scale; nothing where the run names none."""
    blocks = layers(trace, part)
    matrices = of(trace, ("matrices", part), lambda: attention_maps.matrices(trace, blocks[0]))
    if not matrices:
        return
    st.header("Where the heads come from")
    with st.container(key="head-columns"):
        places = st.columns(len(matrices))
    for matrix, place in zip(matrices, places, strict=True):
        with place:
            key = ("heads", part, matrix.symbol)
            components.drawing(of(trace, key, partial(attention_maps.draw_columns, matrix)), f"heads {matrix.symbol}")
    caption = _describe_matrices(matrices)
    if any(matrix.transposed for matrix in matrices):
        caption += (
            " The equation multiplies by an [in, out] matrix. PyTorch stores the same numbers as [out, in], row by row."
        )
    first = _describe_blocks(block_names(trace, part), [record.heads for record in blocks])
    st.caption(f"{first}{caption} {_proof(matrices)}".strip())


def _describe_blocks(names: Sequence[str], heads: Sequence[int]) -> str:
    """Describe which block is drawn, whichever is chosen above, and the heads of all where they have equally many."""
    if len(heads) < 2:
        return ""
    what = "blocks" if names[-1] == f"block {len(names)}" else "attentions"
    all_alike = f"; each of the {len(heads)} {what} has {heads[0]} head{'s' * (heads[0] > 1)}"
    return f"The picture shows {names[0]}{all_alike * (len(set(heads)) == 1)}. "


def _describe_matrices(matrices: Sequence[attention_maps.ProjectionMatrix]) -> str:
    """Describe which columns belong to a head: of one of several matrices, or of one that computes all."""
    matrix = matrices[0]
    each = matrix.bands[0].width
    if not matrix.is_packed:
        if matrix.heads == 1:
            return "The one head reads all columns."
        own = f"Each head reads {each} columns of one matrix"
        fewer = [other for other in matrices if 0 < other.heads < matrix.heads]
        if not fewer:
            return f"{own}."
        shared = " and ".join(f"${other.symbol}$" for other in fewer)
        share = f"{matrix.heads // fewer[0].heads} heads share the same {fewer[0].bands[0].width} columns"
        return f"{own} of queries, and {share} of {shared}."
    counts = {part: sum(band.part == part for band in matrix.bands) for part in "QKV"}
    many = ", ".join(f"{count} for {part}" for part, count in counts.items())
    return (
        f"One matrix computes queries, keys and values at once. Its product has bands of {each} "
        f"columns, one per head: {many}. The app found each band by its values, which are equal to those that its "
        "head received."
    )


def _proof(matrices: Sequence[attention_maps.ProjectionMatrix]) -> str:
    if len({matrix.step.verdict for matrix in matrices}) > 1:
        return ""
    weakest = min((matrix.step for matrix in matrices), key=lambda step: step.checked)
    worst = [matrix.step.error for matrix in matrices if matrix.step.error is not None]
    lead = "The equation of this product is" if matrices[0].is_packed else "The equations of these products are"
    near = f": the largest difference is {scientific(max(worst))}." if worst else "."
    return f"{lead} {verdicts.words(weakest)}{near}"


# All heads at a glance: the effect of switching each one off on the answer, and what each attends to.

DOING = "Switching each head off"
CHEAP = 2e10
"""FLOPs of all runs together up to which they are made without asking."""
CHEAP_ONCE = 2e11
"""The same of runs that are made once for all visitors."""
OVER = {"photo": "This photo", "samples": "The sample photos", "survey": "A survey"}
"""What the heads are measured on, as addresses name it."""
RUNS = 23
"""Runs of each sample photo beside those of the heads: the hiding test."""


@st.fragment
def show_all_heads(trace: Trace, part: str) -> None:
    """Draw all heads of a tower as one table, coloured by the measure that the visitor chooses."""
    count = sum(record.heads for record in layers(trace, part))
    if count < 2:
        return
    st.header("All heads at a glance")
    if session.user_input().kind == "trace":
        st.caption(
            "Switching heads off runs the model again, so it needs the model, which a saved run does not contain."
        )
        return
    over = "photo"
    if places(trace, part):
        offered = [name for name in OVER if name != "samples" or len(session.sample_names()) > 1]
        over = widgets.segments("Measured on", "over", offered, drop=["cell"], format_func=OVER.__getitem__)
    if over == "survey":
        head_survey.over_survey()
    elif over == "samples":
        photos = len(session.sample_names())
        if _agree(trace, "samples", (count + RUNS) * photos, f"Measure all heads on {photos} photos", CHEAP_ONCE):
            head_survey.over_samples(part)
    elif _agree(trace, "photo", count, f"Switch off each of the {count} heads"):
        _show_one(trace, part)


def _agree(trace: Trace, over: str, runs: int, label: str, cheap: float = CHEAP) -> bool:
    """Return whether runs are cheap, or the visitor agreed to them; else draw the button that asks."""
    key = f"heads of {trace.model} on {over}"
    if trace.flops * runs <= cheap or st.session_state.get(key):
        return True
    if not st.button(label, icon=":material/toggle_off:"):
        st.caption(f"This runs the model {runs:,} more times.")
        return False
    st.session_state[key] = True
    return True


def _show_one(trace: Trace, part: str) -> None:
    effects = _effects(trace, part)
    if isinstance(effects, str):
        st.caption(texts.plain(f"The heads of this model can’t be switched off one at a time: {effects}."))
        return
    known = [name for name in NAMES if name != "loss" and np.isfinite(_table(effects, name)).any()]
    name = head_survey.choose_measure(known)
    unit = MeasureUnit(bool(places(trace, part)), effects.points)
    measure = head_survey.measure_heads(name, _table(effects, name), unit)
    blocks, flips = block_names(trace, part), effects.flips & (name == "effect")
    components.head_grid(attention_maps.grid(measure, effects.layers, flips, blocks=blocks))
    st.markdown(texts.plain(_describe(trace, effects, measure, name, blocks)))
    head_survey.compare_recorded(trace, effects)
    if name == "effect":
        st.caption(
            "Each head is switched off in a run of its own: its weights are set to 0, and everything else stays as it "
            "is in this run. The effects need not add up, since other heads may do the same work (Michel et al. 2019). "
            "Choose a cell to open that head above."
        )
    else:
        source = " (distance: Dosovitskiy et al. 2021, figure 7)" if name == "distance" else ""
        st.caption(f"Choose a cell to open that head above{source}.")


def _effects(trace: Trace, part: str) -> HeadEffects | str:
    request = mask_controls.MaskRequest.now().with_text_of(trace)

    def run() -> HeadEffects:
        return request.measure(head_effects.measure_heads, head_effects.head_sites(trace, part))

    make = partial(result_or_reason, run)
    return mask_controls.once("heads", request, (part,), make, DOING, where=request.queue())


def _table(effects: HeadEffects, name: str) -> np.ndarray:
    return effects.change if name == "effect" else getattr(effects, name)


def _describe(trace: Trace, effects: HeadEffects, measure: Measure, name: str, blocks: Sequence[str]) -> str:
    """Describe the table in sentences that are computed from it."""
    if name != "effect":
        return head_survey.describe_ends(measure, effects.layers, blocks)
    most, which = head_survey.describe_cell(measure, effects.layers, head_survey.find_largest(measure), blocks)
    if not effects.points:
        return f"Switching off {which} changes the output most, by {most} of its size."
    count, flips = int(np.isfinite(measure.values).sum()), int(effects.flips.sum())
    verb = "changes" if flips == 1 else "change"
    start = "With these changes" if trace.changes else "With all heads"
    others = (
        f"{flips} of the {count} heads {verb} which answer is the most probable: a frame marks each."
        if flips
        else "No head alone changes which answer is the most probable."
    )
    return (
        f"{start}, {_answer(trace)} of {percent(effects.probability or 0.0)}. Switching off {which} "
        f"changes it most, by {most}. {others}"
    )


def _answer(trace: Trace) -> str:
    """Return whose probability is measured."""
    result = trace.result
    names = result.get("tokens") or result.get("classes") or result.get("sentences")
    if result["kind"] in ("tokens", "labels") or not names:
        return "the answers at all positions have a mean probability"
    name, _ = drawing.ranking(names, result["probabilities"])[0]
    return f"the answer “{shorten(str(predictions.visible_token(name)), 40)}” has a probability"


# Map of one query, for attention with more cells than a page can hold: one row is cheap at any length.

TOP_TOKENS = 10
"""Tokens that are listed."""


def show_query(trace: Trace, part: str | None) -> None:
    """Draw the weights of one query of one block over the photo, with the tokens that get most."""
    known = [record for record in layers(trace, part) if not record.problem]
    st.info(texts.one_query(known[0]))
    numbers = [record.layer + 1 for record in known]
    left, middle, right = st.columns(3)
    blocks = block_names(trace, part)
    short = lambda number: blocks[number - 1].replace("block ", "")  # noqa: E731
    block = widgets.choose(left.selectbox, "Block", "block", numbers, numbers[-1], format_func=short)
    record = next(record for record in known if record.layer == block - 1)
    heads = ["mean", *map(str, range(record.heads))]
    number = lambda head: head if head == "mean" else str(int(head) + 1)  # noqa: E731
    head = widgets.choose(middle.selectbox, "Head", "head", heads, format_func=number)
    rows, columns = token_segments(trace, record)
    asking = attention_maps.names(trace, part, record.queries, rows)
    names = attention_maps.names(trace, part, record.keys, columns)
    first = next((segment.start for segment in segments(trace, part) if segment.name == "CLS"), 0)
    queries = range(record.queries)
    query = widgets.choose(right.selectbox, "Query", "query", queries, first, format_func=asking.__getitem__)
    weights = of(trace, ("row", part, block, head, query), lambda: attention_maps.row(trace, record, head, query))
    order = np.argsort(-weights, kind="stable")[:TOP_TOKENS]
    left, right = st.columns([3, 2])
    with right:
        st.markdown(texts.plain(f"**{asking[query]} attends most to:**"))
        lines = [f"- {names[token]}: {percent(float(weights[token]))}" for token in order]
        st.markdown(texts.plain("\n".join(lines)))
    if trace.picture is not None and (patches := places(trace, part)) and max(patches) < record.keys:
        with left:
            image = attention_maps.over_photo(trace, patches, weights)
            st.image(Image.fromarray(image), width="stretch")
            most = percent(float(max(weights[token] for token in patches)))
            st.caption(f"The brighter a patch, the larger its weight. The brightest has {most}.")
