"""The parts of the Trace page: choosing a step, and showing one."""

import re
from collections.abc import Sequence
from functools import partial

import pandas as pd
import streamlit as st

from pages.shared import address, session, texts, verdicts
from pages.shared.components import copy_button, drawing
from pages.shared.pictures import chart
from pages.shared.visitor import Key, visitor
from tracer.common.quoting import quoted
from tracer.figures import products, tensors
from tracer.figures import terms as pictures
from tracer.figures.budget import ROWS, VALUES
from tracer.figures.classes import answer
from tracer.figures.colours import STREAMLIT
from tracer.figures.labels import scientific, shape_numbers, symbol_text
from tracer.figures.views.repeats import repeat_of
from tracer.figures.views.rows import flops
from tracer.record import Op, Step, Trace
from tracer.symbols import notation


def parts(trace: Trace) -> dict[str, list[Step]]:
    """The steps by where they stand: before the blocks, in each block, after the blocks."""
    out: dict[str, list[Step]] = {}
    for step in trace.steps:
        late = any(name.startswith("Block") for name in out)
        name = f"Block {step.layer + 1}" if step.layer is not None else "Output" if late else "Input"
        out.setdefault(name, []).append(step)
    return out


def choose(trace: Trace) -> Step:
    """The list of steps of one part, and the step chosen from it; the address of the page carries its id."""
    known = {step.id: step for step in trace.steps}
    asked = st.query_params.get("step", visitor().step)
    current = known.get(asked, trace.steps[0])
    if address.names_another("step", known):
        st.warning(texts.quoted(f"This run has no step {quoted(asked)}; this is its first."))
    if "step" in st.query_params and asked not in known:
        go(current.id)
    elif asked in known:
        visitor().step = asked
    where = parts(trace)
    part = next(name for name, steps in where.items() if current in steps)
    st.session_state[Key.PART] = part
    st.selectbox("Part of the model", list(where), key=Key.PART, on_change=_open_part, args=(where,))
    only = st.toggle("Only where the shape in symbols changes", key=Key.CHANGES, persist_state="session")
    shown = [step for step in where[part] if not only or step.id in _changes(trace) or step is current]
    st.session_state[Key.STEPS] = current.id if current in shown else None
    with st.container(key="steps"):
        st.radio(
            "Steps",
            [step.id for step in shown],
            key=Key.STEPS,
            format_func=lambda id: (
                f":{STREAMLIT.get(known[id].stage, 'gray')}[■] ${known[id].symbol}$  {texts.plain(known[id].title)}"
            ),
            captions=[
                f"${notation.shape_latex(step.symbolic)}$  {shape_numbers(step.shape)}" if step.shape else "scalar"
                for step in shown
            ],
            on_change=lambda: go(st.session_state[Key.STEPS]),
        )
    return current


def go(id: str) -> None:
    """Makes a step the one that is shown."""
    visitor().step = st.query_params["step"] = id


def _open_part(where: dict[str, list[Step]]) -> None:
    go(where[st.session_state[Key.PART]][0].id)


def _changes(trace: Trace) -> set[str]:
    """The ids of the steps whose shape in symbols is not that of the step before."""
    pairs = zip((None, *trace.steps), trace.steps, strict=False)
    return {step.id for last, step in pairs if last is None or last.symbolic != step.symbolic}


def heading(trace: Trace, step: Step) -> None:
    """The step's name and stage, and the buttons to its neighbours."""
    index = trace.steps.index(step)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.subheader(texts.plain(step.title), width="content")
        with st.container(horizontal=True, width="content", vertical_alignment="center"):
            st.caption(f"{index + 1} of {len(trace.steps)}")
            st.badge(step.stage, color=STREAMLIT.get(step.stage, "gray"))
            for label, icon, other in (("Previous", "arrow_back", index - 1), ("Next", "arrow_forward", index + 1)):
                there = 0 <= other < len(trace.steps)
                target = trace.steps[other].id if there else step.id
                st.button(label, icon=f":material/{icon}:", disabled=not there, on_click=go, args=(target,))


def equation(trace: Trace, step: Step) -> None:
    """The equation, large, with its copy button and its shape in symbols and numbers, and in which blocks it is the
    same."""
    with st.container(key="equation"):
        st.latex(step.latex)
    with st.container(horizontal=True, vertical_alignment="center"):
        numbers = ",\\ ".join(map(str, step.shape))
        shape = f"\\in {notation.shape_latex(step.symbolic)} = [{numbers}]" if step.shape else "\\text{ is a scalar}"
        st.markdown(f"${step.symbol} {shape}$", width="content")
        copy_button("Copy LaTeX", step.latex, key="copy")
    if repeat := repeat_of(trace, step):
        st.caption(f"The same line in {repeat.times} blocks, ${repeat.numbers}$, but for their numbers.")
    if step.names:
        st.caption(texts.in_the_code(step.names))


def source_lines(trace: Trace, step: Step) -> dict[str, dict[int, str]]:
    """The lines of the model's code that the step's operations ran in, by file, in the order in which they ran."""
    covered = set(step.ops)
    ran = [op.source for op in trace.ops if op.index in covered] or [step.source]
    files: dict[str, dict[int, str]] = {}
    for source in filter(None, ran):
        files.setdefault(source.file, {})[source.line] = source.text.strip()
    return files


def reasons(trace: Trace, step: Step) -> None:
    """Why the step is there, the proof, the line of source, and where texts and run differ."""
    if step.why:
        st.markdown(texts.prose(step.why))
    verdicts.box(step.verdict, texts.proof(step))
    if step.note and (step.error is not None or step.pending):
        st.info(texts.prose(step.note), icon=":material/edit_note:")
    for file, lines in source_lines(trace, step).items():
        st.text(f"{file}, {'line' if len(lines) == 1 else 'lines'} {', '.join(map(str, lines))}")
        st.code("\n".join(lines.values()), language="python", wrap_lines=True)
        if any(re.search(r"\bS\b", line.partition("#")[2]) for line in lines.values()):
            st.caption("In the comment, S is the length of the sequence.")


def tensor(trace: Trace, step: Step) -> None:
    """The tensor itself: sliders for its leading axes, a heatmap of the last two."""
    value = trace.value(step)
    if value is None:
        never = "It is never held: a fused operation goes through it. The equation says what it would be."
        st.caption(never if step.recomputed else "The tensor of this step was not kept, to hold memory down.")
        return
    values, names = value, list(step.symbolic)
    while values.ndim < 2:
        values, names = values[None], ["1", *names]
    if not values.numel() or values.shape[-2:].numel() > VALUES:
        st.caption(f"The tensor of this step has {values.shape[-2:].numel():,} values in a matrix: it is not drawn.")
        return
    st.subheader("The tensor")
    index = [_index(names[axis], size, axis) for axis, size in enumerate(values.shape[:-2])]
    matrix = tensors.as_array(values[tuple(index)])
    square = step.stage == "attention" and names[-1] == names[-2]
    drawn = partial(
        tensors.heatmap,
        matrix,
        step.symbol,
        names[-2:],
        roles=("query", "key") if square else (_role(names[-2], "row"), _role(names[-1], "column")),
        ticks=class_names(trace, step),
    )
    alt = tensors.describe(matrix, symbol_text(step.symbol))
    chart(trace, ("tensor", step.id, *index), drawn, alt=alt, config={"displayModeBar": False})
    st.caption(tensors.caption(matrix) or "Every value is shown.")


def four_terms(trace: Trace, step: Step) -> None:
    """Beside the scores of a first block that reads tokens plus positions: the four terms that they fall into."""
    if step.id != "block1.attention.scores" or session.given().kind == "trace":
        return
    from tracer.attention.terms import terms

    try:
        found = terms(session.model(), trace)
    except ValueError:  # this block reads something else, or the run did not keep what the terms are made of
        return
    scores = trace.value(step)
    if scores is None:
        return
    st.subheader("The same scores as four terms")
    st.markdown(
        "The block reads content plus position, so queries and keys are sums of two parts each, and every score is a "
        "sum of four products: content or position of the query’s token, against content or position of the key’s."
    )
    head = min(st.session_state.get(Key.AXIS.format(1), 0), scores.shape[1] - 1)
    error = scientific(pictures.difference(found, scores))
    shares = {name: float(term[0, head].square().mean().sqrt()) for name, term in found.items()}
    largest = max(shares, key=shares.get)
    st.plotly_chart(
        pictures.maps({name: term[0, head] for name, term in found.items()}, scores[0, head]),
        alt=f"Four maps of head {head} that add up to its scores; the largest term is {largest}.",
        config={"displayModeBar": False},
    )
    st.caption(
        f"Head {head}, in the order query–key. By root mean square the largest is **{largest}**. Over all heads, the "
        f"sum differs from the scores that ran by at most **{error}** of the largest score."
    )


def class_names(trace: Trace, step: Step) -> Sequence[str] | None:
    """The names of the last axis where it holds the classes: the last step of a classifier."""
    known = answer(trace.result)
    return known[0] if known and step is trace.steps[-1] and len(known[0]) == step.shape[-1] else None


def _role(size: str, place: str) -> str:
    return notation.AXES.get(size, place)


def _index(name: str, size: int, axis: int) -> int:
    if size == 1:
        return 0
    label = {"h": "Head", "B": "Input of the batch"}.get(name, f"${notation.latex(name)}$ index")
    return st.slider(label, 0, size - 1, key=Key.AXIS.format(axis))


HEADS = {"d_k": "h", "d_v": "h_v", "d_dec": "h_dec"}
"""Of the width of one head, how many heads there are."""


def product(trace: Trace, step: Step) -> None:
    """The step's matrix product, drawn to scale."""
    if step.product is None:
        return
    st.subheader("The matrix product, to scale")
    drawing(products.drawing(step.product, step.stage), "product")
    inner, result = step.product[0].shape[1], step.product[2].symbol
    rest = "" if result == step.symbol else " The rest of the equation comes after this product."
    sizes = {size.name: size.value for size in trace.symbols}
    own = [HEADS[name] for operand in step.product for name in operand.symbolic if name in HEADS]
    if own and (heads := sizes.get(own[0], 1)) > 1:
        rest = f" This is one of {heads} heads; each has such a product of its own.{rest}"
    st.caption(
        f"The marked row meets the marked column in one value: {inner:,} products of two numbers, added up.{rest}"
    )


def covered(trace: Trace, step: Step) -> None:
    """The operations that a step covers; of one that is recomputed, the fused operation that goes through it."""
    if step.inside is None:
        st.subheader("The operations it covers")
        operations([op for op in trace.ops if op.index in set(step.ops)])
        return
    from tracer.symbols.shares import of_step  # counting FLOPs imports torch, which a page starts without

    op = trace.ops[step.inside]
    st.subheader("The fused operation it is inside of")
    part = of_step(trace, step).flops
    cost = f" Of its {op.flops:,} FLOP, {part:,} are of this step." if part and op.flops else ""
    st.caption(f"Operation {op.index} computes this step on the way, and never holds its tensor.{cost}")
    operations([op])


def operations(ops: Sequence[Op]) -> None:
    """Ops as a table: what ran where, shapes in and out, cost."""
    counted = all(op.flops is not None for op in ops[:ROWS])
    rows = [
        {
            "op": op.index,
            "name": op.op,
            "parameters": op.params,
            "FLOP": op.flops if counted else flops(op),
            "module": op.module,
            "source": f"{op.source.file.rsplit('/', 1)[-1]}:{op.source.line}" if op.source else "",
            "inputs": "  ".join(shape_numbers(one.shape) for one in op.inputs),
            "outputs": "  ".join(shape_numbers(one.shape) for one in op.outputs),
            "in symbols": "  ".join(notation.shape_text(one.symbolic) for one in op.outputs if one.symbolic),
        }
        for op in ops[:ROWS]
    ]
    widths = {"op": 50, "name": 110, "inputs": 165, "outputs": 110, "in symbols": 130, "module": 140, "source": 95}
    columns = {name: st.column_config.Column(width=width) for name, width in widths.items()}
    numbers = ("parameters", "FLOP") if counted else ("parameters",)
    columns |= {name: st.column_config.NumberColumn(width=88, format="localized") for name in numbers}
    st.dataframe(
        pd.DataFrame(rows),
        hide_index=True,
        alt=f"{len(rows)} operations with shapes and cost",
        column_config=columns,
        column_order=("op", "name", "inputs", "outputs", "in symbols", "parameters", "FLOP", "module", "source"),
    )
    if len(ops) > ROWS:
        st.caption(f"These are the first {ROWS:,} of {len(ops):,} operations; `python -m tracer open` lists them all.")


def how_it_counts() -> None:
    """What the columns of cost hold."""
    st.caption(
        "FLOP are counted as PyTorch counts them: two for each multiply-add of matrix products and convolutions, none "
        "for other operations. Parameters stand at the first operation that reads them, be it only to transpose them."
    )
