"""Sizes of models: published ones, and any that can be chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

import tracer
from pages import components
from pages.jobs import model_costs, run_cache, single_flight
from pages.sections import note_statements
from pages.state import session
from pages.state.visitor import model_name, visitor
from pages.ui import screen, texts, widgets
from tracer import models, zoo
from tracer.attention import parts
from tracer.symbols import notation
from tracer.utils.errors import capitalize, limits
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import amount, latex_whole
from tracer.zoo.recommendations import PublishedModel, published_models

if TYPE_CHECKING:
    from tracer.figures import cost_curves
    from tracer.lessons.notes import torchvision_block_counts
    from tracer.record import costs
    from tracer.record.costs import Scaling
    from tracer.zoo.hf import hub
    from tracer.zoo.hf.hub import PublishedRun, ShapeLine
else:  # imported when first used
    cost_curves = lazy_import("tracer.figures.cost_curves")
    torchvision_block_counts = lazy_import("tracer.lessons.notes.torchvision_block_counts")
    costs = lazy_import("tracer.record.costs")
    hub = lazy_import("tracer.zoo.hf.hub")


# Number of operations of each kind in a block: by the note, in the block that it describes, and in any other.

COUNT_MESSAGE = "Opening the operations of the block"


def show_op_counts(kinds: Mapping[str, Counter[str]]) -> None:
    """Show the table for the note's block, which has these `kinds`, and for one that is chosen."""
    st.header("Operations of one block, by kind", anchor="kinds")
    left, right = st.columns(2)
    with left:
        trace, model, inputs = note_statements.run()
    known = torchvision_block_counts.layers(trace)
    with right:
        named = {layer + 1: layer for layer in known}
        chosen = widgets.choose(st.selectbox, "Block", "block", named, 1) if named else None
    table = {"kind": list(kinds), "the note": list(torchvision_block_counts.STATED_COUNTS.values())}
    table["its block"], table["which"] = _count_columns(kinds)
    if chosen:
        count = partial(torchvision_block_counts.kinds_of, model, trace, named[chosen], inputs)
        own = single_flight.of_queued(trace, ("kinds", chosen), count, COUNT_MESSAGE)
        table[f"block {chosen} of {trace.model}"], table["which of these"] = _count_columns(own)
    st.table(table, hide_index=True)
    both = " In a model of several towers, that block of each tower is counted." if len(parts(trace)) > 1 else ""
    none = "" if chosen else texts.plain(f" {trace.model} has no blocks.")
    st.caption(
        "These are the primitives into which PyTorch decomposes each operation. The note counts torchvision’s block "
        f"on the standard path.{both}{none}"
    )


def _count_columns(kinds: Mapping[str, Counter[str]]) -> tuple[list[str], list[str]]:
    """Return how many operations each kind has, and which."""
    each = [", ".join(f"{name} × {count}" for name, count in counts.most_common()) for counts in kinds.values()]
    return [str(counts.total()) for counts in kinds.values()], each


# Costs of a model at its sizes: parameters, arithmetic, memory at a dtype, and the formulas of all of them.

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
        dtype = widgets.segments("Each number is", "dtype", DTYPES, FIRST_DTYPE)
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
    widgets.facts({label: "?" if value is None else amount(value, unit) for label, value, unit in facts})
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
    cached, batch = latex_whole(overtakes), latex_whole(now["B"])
    return f"The cache is as large as the weights at ${name} = {cached}$, with $B = {batch}$."


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


# Lesson on sizes: a control for each, their cost as formula and number, and the run that confirms it.

WIDGET, WHY, PRESET = "size {} {}", "size refused {}", "preset {}"
SHIPPED_SIZES = "As shipped"
OPTIONS = {
    "tied": "Tied vocabulary head",
    "bias": "Biases",
    "gelu": "GELU",
    "mask": "Mask",
    "positions": "Positions",
    "types": "Type embeddings",
    "single": "One head without biases",
}
"""What an option of a model is, in a few words."""
MEAN = "Shapes, equations and costs are exact, but its answers and its attention mean nothing."


class Refusal(NamedTuple):
    """Sizes and options that no model has: the values before, and the reason, by the names of their controls."""

    before: dict[str, object]
    why: dict[str, str]


def show_model(model: str) -> None:
    """Show the whole page."""
    scaling = model_costs.scaling(model, session.options())
    now = scaling.complete(model_costs.chosen_sizes(model, session.options()))
    refused = st.session_state.get(WHY.format(model)) or Refusal({}, {})
    if refused.before:
        sizes_text = ", ".join(f"${notation.latex(name)} = {value}$" for name, value in refused.before.items())
        st.warning(f"The numbers here still belong to {sizes_text}, because no model has the sizes that you chose.")
    show_costs(scaling, now, memory_controls())
    show_formulas(scaling)
    _presets(model)
    _controls(model, scaling, now, refused)
    _curves(scaling, now)
    _show_confirmation(model, scaling, now, refused)


def notice(page: str) -> None:
    """Warn on every page but the first, which does so beside the answer, that weights are random; offer on all pages a
    way back from chosen sizes."""
    model, options = model_name(), run_cache.without_changes(session.options())
    if session.user_input().kind == "trace" or model not in models.names() or not _random(model, options):
        return
    if page:
        which = f"for {model}" if not options else "for the sizes and options that you chose"
        st.info(f"**Random weights:** no trained weights exist {which}. {MEAN}", icon=":material/casino:")
    if options and models.card(model):
        st.button("Back to the trained model", icon=":material/undo:", on_click=visitor().resize, args=(model, {}))


def _random(model: str, options: run_cache.Options) -> bool:
    if not options:
        return models.card(model) is None
    if (trace := session.current_run()) is not None:
        return texts.has_random_weights(trace)
    return not model_costs.problem(model, options) and "random weights" in session.plain_model().weights


def _presets(model: str) -> None:
    presets = models.spec_of(model).presets
    key, chosen = PRESET.format(model), dict(session.options())
    named = {SHIPPED_SIZES: {}, **presets}
    st.session_state[key] = next((name for name, sizes in named.items() if sizes == chosen), None)

    def take() -> None:
        if model == model_name() and (name := st.session_state[key]) is not None:
            _forget(model)
            visitor().resize(model, named[name])

    st.pills("Sizes of", list(named), key=key, on_change=take)


def _controls(model: str, scaling: Scaling, now: Mapping[str, int], refused: Refusal) -> None:
    """Draw a control for each size and each option, with the reason below a size for which no model can be built."""
    spec, chosen = models.spec_of(model), dict(session.options())
    options = {name: chosen.get(name, model_costs.default_option(model, name)) for name in spec.options}
    idle = spec.idle(options)
    own_text = bool(session.user_input().text)
    meanings = notation.MEANINGS | spec.meanings
    with st.container(key="sizes"):
        for name in model_costs.sizes(model):
            if name in idle or name not in now:
                continue
            key = WIDGET.format(model, name)
            if name not in refused.before:
                st.session_state[key] = now[name]
            with st.container(gap=None):
                st.number_input(
                    size_label(name, meanings).partition(" that ")[0],
                    1,
                    model_costs.MAX_SIZE,
                    step=1,
                    key=key,
                    on_change=_take,
                    args=(model, name),
                    help=meanings.get(name),
                    disabled=name == "T" and own_text,
                )
                if name in refused.why:
                    st.error(texts.escape(refused.why[name]))
        for name, choices in spec.options.items():
            key = WIDGET.format(model, name)
            if name not in refused.before:
                st.session_state[key] = options[name]
            st.selectbox(
                OPTIONS.get(name, name),
                choices,
                key=key,
                format_func=lambda choice: {True: "yes", False: "no"}.get(choice, str(choice)),
                on_change=_take,
                args=(model, name),
            )
            if name in refused.why:
                st.error(texts.escape(refused.why[name]))
    follows = ", ".join(f"${notation.latex(name)} = {now[name]:,}$" for name in scaling.derived)
    if follows:
        st.caption(f"From these follow {follows}.")


def _take(model: str, changed: str) -> None:
    """Apply the values of all controls; where no such model can be built, keep the old ones and show the reason at the
    control."""
    if model != model_name():
        return
    spec, state = models.spec_of(model), st.session_state
    values = {name: state.get(WIDGET.format(model, name)) for name in (*model_costs.sizes(model), *spec.options)}
    scaling = model_costs.scaling(model, session.options())
    first = {
        **scaling.sizes,
        **{name: model_costs.default_option(model, name) for name in (*spec.options, *spec.sizes)},
    }
    chosen = {name: value for name, value in values.items() if value is not None and value != first.get(name)}
    if why := model_costs.impossible(model, tuple(sorted(chosen.items())), scaling):
        now = {**first, **dict(session.options())}
        before = {name: now[name] for name, value in values.items() if value is not None and value != now.get(name)}
        alone = {name: run_cache.with_options(session.options(), **{name: values[name]}) for name in before}
        each = {name: model_costs.impossible(model, options, scaling) for name, options in alone.items()}
        state[WHY.format(model)] = Refusal(
            before, {name: control for name, control in each.items() if control} or {changed: why}
        )
        return
    _forget(model)
    visitor().resize(model, chosen)


def _forget(model: str) -> None:
    st.session_state.pop(WHY.format(model), None)


def _curves(scaling: Scaling, now: Mapping[str, int]) -> None:
    """Draw how the share of the arithmetic changes as the sequence grows, and as the width does."""
    at = tuple(sorted(now.items()))
    meets = single_flight.of(scaling, ("meets", at), lambda: [scaling.crossover_length(now)])[0]
    grown = {scaling.length: "As the sequence grows", "D": "As the model grows wider"}
    names = [name for name in grown if name in now]
    for place, name in zip(st.columns(len(names), gap="large"), names, strict=True):
        crossing, step = (meets, 1) if name == scaling.length else (None, now.get("h", 1))
        most = min(model_costs.MAX_SIZE, 4 * max(now[name], int(crossing or 0), 1024))
        values = cost_curves.places(now[name], most, step)
        flops = single_flight.of(scaling, ("along", name, at), partial(scaling.along, name, values, now))
        make = partial(cost_curves.draw_shares, name, values, flops, now[name], crossing)
        alt = cost_curves.describe_curves(name, flops, values, now[name])
        with place:
            st.header(grown[name])
            components.drawing(cost_curves.parts(flops), f"parts {name}")
            single_flight.chart(scaling, ("curve", name, at), make, alt=alt)
            if name == scaling.length:
                if crossing_text := _meeting(scaling, now, crossing):
                    st.caption(crossing_text)
            elif "d_ff" in now:
                times = now["d_ff"] / now["D"]
                st.caption(f"The hidden width of the MLP grows with it: $d_{{\\mathrm{{ff}}}} = {times:.3g}\\,D$.")


def _meeting(scaling: Scaling, now: Mapping[str, int], crossing: float | None) -> str:
    """Return a sentence on the length at which attention overtakes the MLP; empty where none is known."""
    if crossing is None:
        return ""
    name, length = notation.latex(scaling.length), now[scaling.length]
    there, here = (f"${name} = {latex_whole(value)}$" for value in (crossing, length))
    if length >= crossing:
        return f"QKᵀ and the weighted sum cost more than the MLP at {here}, as they do from {there} on."
    return (
        "QKᵀ and the weighted sum grow with the square of the length. They cost as much as the MLP at "
        f"{there}, {crossing / length:,.1f} times the present {here}."
    )


def _show_confirmation(model: str, scaling: Scaling, now: Mapping[str, int], refused: Refusal) -> None:
    """Show the same numbers counted on a forward pass."""
    st.header("Does a run confirm it?")
    if problem := model_costs.problem(model, session.options()):
        st.info(texts.escape(problem))
        return
    impossible, icon = bool(refused.before), ":material/play_arrow:"
    if session.current_run() is None and not st.button("Run it", type="primary", icon=icon, disabled=impossible):
        st.caption("The numbers above come from formulas. A forward pass at these sizes counts them again.")
        return
    trace = screen.trace()
    sizes = {size.name: size.value for size in trace.symbols}
    numbers = scaling.numbers({**now, **sizes})
    lines = ["| | by the formula | counted on this run | |\n|---|--:|--:|:-:|"]
    for name, label, counted in (
        ("params", "Parameters", trace.params),
        ("flops", "FLOPs", trace.flops),
        ("tensors", "Numbers in all activations", costs.count_elements(trace)),
    ):
        value = numbers[name]
        verdict = ":green[:material/check_circle:] equal" if value == counted else ":red[:material/cancel:] not equal"
        lines.append(f"| {label} | {'?' if value is None else f'{value:,}'} | {counted:,} | {verdict} |")
    st.markdown("\n".join(lines))
    st.caption(texts.plain(f"Weights: {trace.weights}."))
    with st.container(horizontal=True):
        widgets.link("trace", "Walk through it", ":material/function:")
        widgets.link("operations", "See its ops", ":material/account_tree:")


# Lesson on sizes for models of libraries: their costs at any size, from the formulas of a run without values.

ANY_MODEL_WIDGET = "any size {} {}"
DOING_ANY_MODEL = "Running the model without values"


class RunFormulas(NamedTuple):
    """Formulas of a run without values, and the note on where its equations were verified."""

    scaling: Scaling
    note: str


def formulas(model: str) -> RunFormulas:
    """Return the formulas of a model's run without values, computed once for all visitors."""

    def compute() -> RunFormulas:
        trace = tracer.load(model, values=False).trace(values=False)
        note = next((note for note in trace.notes if note.startswith("shapes at this size")), "")
        return RunFormulas(costs.scaling(trace), note)

    return run_cache.shared_result("costs", model, compute, DOING_ANY_MODEL)


def show_any_model(model: str) -> None:
    """Show the costs of a library's model with a control for each of its sizes."""
    try:
        scaling, note = formulas(model)
    except ValueError as error:
        st.info(texts.escape(f"{error}."))
        return
    memory = memory_controls()
    sizes = _any_model_controls(model, scaling)
    try:
        now = scaling.complete(sizes)
    except ValueError as error:
        st.error(texts.escape(f"{error}."))
        return
    show_costs(scaling, now, memory)
    show_crossing(scaling, now)
    show_formulas(scaling)
    st.caption(texts.escape(f"{capitalize(note)}." if note else ""))


def _any_model_controls(model: str, scaling: Scaling) -> dict[str, int]:
    """Draw a control for each size that is not derived; return their values."""
    sizes = {}
    with st.container(key="sizes"):
        for name, value in scaling.sizes.items():
            if name in scaling.derived:
                continue
            label, meaning = size_label(name), notation.MEANINGS.get(name)
            key = ANY_MODEL_WIDGET.format(model, name)
            chosen = st.number_input(label, 1, model_costs.MAX_SIZE, value, step=1, key=key, help=meaning)
            sizes[name] = int(chosen)
    return sizes


def size_label(name: str, meanings: Mapping[str, str] = notation.MEANINGS) -> str:
    """Return the symbol of a size and its meaning in a word or two."""
    meaning = meanings.get(name, "").partition(":")[0].partition(",")[0]
    return f"${notation.latex(name)}$ {meaning.removeprefix('number of ')}"


def show_crossing(scaling: Scaling, now: Mapping[str, int]) -> None:
    """State the length at which attention overtakes the MLP, if any."""
    if (meets := scaling.crossover_length(now)) is not None:
        at = f"${notation.latex(scaling.length)} = {latex_whole(meets)}$"
        st.markdown(f"QKᵀ and the weighted sum cost as much as the MLP at {at}.")


# Lesson on sizes for published models: one that the reader chooses, and all of them beside each other.

DOING_PUBLISHED = "Running the published model without values"
MAX_DEFAULT_TOKENS = 2048
"""Tokens of a text at first, if the model takes so many."""


def choose() -> str | None:
    """Draw the choice of a published model, and return its name; None for the model of the sidebar, and on a server
    that offers listed models alone."""
    if not zoo.available("hf") or limits().models(()) is not None:
        return None
    known = published_models()
    at = widgets.widget("published", list(known), None, length=None)
    return st.selectbox(
        "A published model",
        list(known),
        format_func=lambda name: known[name].title,
        index=None,
        placeholder="Choose one instead of the model of the sidebar",
        width=420,
        **at,
    )


def show_published(name: str) -> None:
    """Show shapes, parameters, cache and arithmetic of a published model at a batch, a length and a dtype."""
    entry = published_models()[name]
    visitor().instead = entry.title
    try:
        run = run_cache.shared_result("costs", ("published", name), lambda: hub.run(name), DOING_PUBLISHED)
    except ValueError as error:
        st.info(texts.escape(f"{entry.title} was not run: {error}."))
        return
    memory = memory_controls()
    now = _sizes(run)
    show_costs(run.scaling, now, memory)
    show_crossing(run.scaling, now)
    _compare_parameters(entry, run)
    show_formulas(run.scaling)
    _shapes(run, now)


def _sizes(run: PublishedRun) -> dict[str, int]:
    """Draw the controls of batch and length and list the published sizes; return all of them."""
    sizes, longest = dict(run.sizes), run.sizes.get("T_max", model_costs.MAX_SIZE)
    with st.container(key="sizes"):
        at = widgets.count("batch", 1, model_costs.MAX_SIZE)
        sizes["B"] = int(st.number_input(size_label("B"), step=1, **at))
        if "T" in sizes:
            at = widgets.count("length", min(MAX_DEFAULT_TOKENS, longest), longest)
            sizes["T"] = int(st.number_input(size_label("T"), step=1, **at))
    held = [f"${notation.latex(name)} = {latex_whole(run.sizes[name])}$" for name in sizes if name not in ("B", "T")]
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
        f"them. {texts.escape(run.verified)}"
    )
    head = "| tensor | what it is | shape |\n|---|---|---|"
    with st.container(key="shapes"):
        for blocks, lines in groupby(run.lines, key=lambda line: line.blocks):
            if blocks:
                st.markdown(f"**In the blocks** ${blocks}$")
            st.markdown("\n".join([head, *(_row(line, now) for line in lines)]))


def _row(line: ShapeLine, now: dict[str, int]) -> str:
    """Return a row of a table: a tensor, and its shape in symbols above that in numbers."""
    values = [costs.evaluate(size, now) for size in line.symbolic]
    numbers = r",\ ".join("?" if value is None else latex_whole(value) for value in values)
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
    rows = []
    for name, entry in published_models().items():
        count = hub.count(name)
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
