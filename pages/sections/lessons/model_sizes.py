"""Lesson on sizes: a control for each, their cost as formula and number, and the run that confirms it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from pages import components
from pages.jobs import render_cache, run_cache
from pages.sections.lessons import cost_figures
from pages.state import model_options, session, url_state
from pages.state.visitor import model_name, visitor
from pages.ui import texts
from tracer import models
from tracer.symbols import notation

if TYPE_CHECKING:
    from tracer.record import Trace
    from tracer.record.cost_scaling import Scaling

WIDGET, WHY, PRESET = "size {} {}", "size refused {}", "preset {}"
SHIPPED_SIZES = "As shipped"
OPTIONS = {
    "tied": "Tied vocabulary head",
    "bias": "Biases",
    "gelu": "GELU",
    "mask": "Mask",
    "positions": "Positions",
    "types": "Type embeddings",
}
"""What an option of a model is, in a few words."""
MEAN = "Shapes, equations and costs are exact, but its answers and its attention mean nothing."


class Refusal(NamedTuple):
    """Sizes and options that no model has: the values before, and the reason, by the names of their controls."""

    before: dict[str, object]
    why: dict[str, str]


def show(model: str) -> None:
    """Show the whole page."""
    scaling = model_options.scaling(model, session.options())
    now = current_sizes(scaling, model)
    refused = st.session_state.get(WHY.format(model)) or Refusal({}, {})
    if refused.before:
        sizes_text = ", ".join(f"${notation.latex(name)} = {value}$" for name, value in refused.before.items())
        st.warning(f"The numbers here still belong to {sizes_text}, because no model has the sizes that you chose.")
    cost_figures.show_costs(scaling, now, cost_figures.memory_controls())
    cost_figures.show_formulas(scaling)
    _presets(model, scaling)
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
    return not model_options.problem(model, options) and "random weights" in session.plain_model().weights


def current_sizes(scaling: Scaling, model: str) -> dict[str, int]:
    """Return all sizes as currently chosen."""
    return scaling.complete(model_options.chosen_sizes(model, session.options()))


def _presets(model: str, scaling: Scaling) -> None:
    presets = models.spec_of(model).presets
    key = PRESET.format(model)
    chosen = dict(session.options())
    named = {SHIPPED_SIZES: {}, **presets}
    at = next((name for name, sizes in named.items() if sizes == chosen), None)
    st.session_state[key] = at

    def take() -> None:
        if model == model_name() and (name := st.session_state[key]) is not None:
            _forget(model)
            visitor().resize(model, named[name])

    st.pills("Sizes of", list(named), key=key, on_change=take)


def _controls(model: str, scaling: Scaling, now: Mapping[str, int], refused: Refusal) -> None:
    """Draw a control for each size and each option, with the reason below a size for which no model can be built."""
    spec, chosen = models.spec_of(model), dict(session.options())
    options = {name: chosen.get(name, session.default_option(model, name)) for name in spec.options}
    idle = spec.idle(options)
    own_text = bool(session.user_input().text)
    meanings = notation.MEANINGS | spec.meanings
    with st.container(key="sizes"):
        for name in model_options.sizes(model):
            if name in idle or name not in now:
                continue
            key = WIDGET.format(model, name)
            if name not in refused.before:
                st.session_state[key] = now[name]
            with st.container(gap=None):
                st.number_input(
                    f"${notation.latex(name)}$ {_short(meanings.get(name, ''))}",
                    1,
                    model_options.MAX_SIZE,
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


def _short(meaning: str) -> str:
    """Return the meaning of a size in a word or two."""
    meaning_text = meaning.partition(":")[0].partition(",")[0]
    return meaning_text.partition(" that ")[0].removeprefix("number of ")


def _take(model: str, changed: str) -> None:
    """Apply the values of all controls; where no such model can be built, keep the old ones and show the reason at the
    control."""
    if model != model_name():
        return
    spec, state = models.spec_of(model), st.session_state
    values = {name: state.get(WIDGET.format(model, name)) for name in (*model_options.sizes(model), *spec.options)}
    scaling = model_options.scaling(model, session.options())
    first = {**scaling.sizes, **{name: session.default_option(model, name) for name in (*spec.options, *spec.sizes)}}
    chosen = {name: value for name, value in values.items() if value is not None and value != first.get(name)}
    if why := model_options.impossible(model, tuple(sorted(chosen.items())), scaling):
        now = {**first, **dict(session.options())}
        before = {name: now[name] for name, value in values.items() if value is not None and value != now.get(name)}
        each = {name: model_options.impossible(model, _with(name, values[name]), scaling) for name in before}
        state[WHY.format(model)] = Refusal(
            before, {name: control for name, control in each.items() if control} or {changed: why}
        )
        return
    _forget(model)
    visitor().resize(model, chosen)


def _with(name: str, value: object) -> run_cache.Options:
    """Return the current sizes and options with one of them changed."""
    return tuple(sorted({**dict(session.options()), name: value}.items()))


def _forget(model: str) -> None:
    st.session_state.pop(WHY.format(model), None)


def _curves(scaling: Scaling, now: Mapping[str, int]) -> None:
    """Draw how the share of the arithmetic changes as the sequence grows, and as the width does."""
    from tracer.figures.tables import cost_curves as figures  # loads plotly

    at = tuple(sorted(now.items()))
    meets = render_cache.of(scaling, ("meets", at), lambda: [scaling.crossover_length(now)])[0]
    grown = {scaling.length: "As the sequence grows", "D": "As the model grows wider"}
    names = [name for name in grown if name in now]
    for place, name in zip(st.columns(len(names), gap="large"), names, strict=True):
        crossing, step = (meets, 1) if name == scaling.length else (None, now.get("h", 1))
        most = min(model_options.MAX_SIZE, 4 * max(now[name], int(crossing or 0), 1024))
        values = figures.places(now[name], most, step)
        flops = render_cache.of(scaling, ("along", name, at), partial(scaling.along, name, values, now))
        make = partial(figures.draw_shares, name, values, flops, now[name], crossing)
        alt = figures.describe(name, flops, values, now[name])
        with place:
            st.header(grown[name])
            components.drawing(figures.parts(flops), f"parts {name}")
            render_cache.chart(scaling, ("curve", name, at), make, alt=alt)
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
    there, here = (f"${name} = {value:,.0f}$".replace(",", "{,}") for value in (crossing, length))
    if length >= crossing:
        return f"QKᵀ and the weighted sum cost more than the MLP at {here}, as they do from {there} on."
    return (
        "QKᵀ and the weighted sum grow with the square of the length. They cost as much as the MLP at "
        f"{there}, {crossing / length:,.1f} times the present {here}."
    )


def _show_confirmation(model: str, scaling: Scaling, now: Mapping[str, int], refused: Refusal) -> None:
    """Show the same numbers counted on a forward pass."""
    st.header("Does a run confirm it?")
    if problem := model_options.problem(model, session.options()):
        st.info(texts.escape(problem))
        return
    impossible, icon = bool(refused.before), ":material/play_arrow:"
    if session.current_run() is None and not st.button("Run it", type="primary", icon=icon, disabled=impossible):
        st.caption("The numbers above come from formulas. A forward pass at these sizes counts them again.")
        return
    trace = session.trace()
    sizes = {size.name: size.value for size in trace.symbols}
    numbers = scaling.numbers({**now, **sizes})
    lines = [
        f"| {label} | {_count(numbers[name])} | {counted:,} | {_agrees(numbers[name], counted)} |"
        for name, label, counted in _counts(trace)
    ]
    head = "| | by the formula | counted on this run | |\n|---|--:|--:|:-:|"
    st.markdown("\n".join([head, *lines]))
    st.caption(texts.plain(f"Weights: {trace.weights}."))
    with st.container(horizontal=True):
        for page, label, icon in (
            ("trace", "Walk through it", "function"),
            ("operations", "See its ops", "account_tree"),
        ):
            here = {"label": label, "icon": f":material/{icon}:", "query_params": url_state.of(page)}
            st.page_link(f"pages/{page}.py", **here)


def _counts(trace: Trace) -> list[tuple[str, str, int]]:
    """Return (name, meaning, count) of all that a run counts without any formula."""
    from tracer.record.cost_scaling import count_elements  # loads sympy

    return [
        ("params", "Parameters", trace.params),
        ("flops", "FLOPs", trace.flops),
        ("tensors", "Numbers in all activations", count_elements(trace)),
    ]


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _agrees(value: int | None, counted: int) -> str:
    return ":green[:material/check_circle:] equal" if value == counted else ":red[:material/cancel:] not equal"
