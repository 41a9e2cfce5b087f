"""One step of training on the text of the page: forward, loss, gradients, update, and each gradient as an equation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import streamlit as st

from pages.jobs import render_cache, run_cache, single_flight
from pages.state import session, url_state
from pages.state.next_token_run import NextTokenRun
from pages.ui.step_lines import SIGNS
from pages.ui.texts import plain
from tracer.export import rows
from tracer.export.math_labels import scientific
from tracer.figures.predictions import descent_curve
from tracer.symbols import notation

if TYPE_CHECKING:
    from tracer.lessons.loss.training_step import Descent, GradientLine, TrainingStep

DOING = "Taking one step of training on a copy of the model"
FIRST_RATE = 0.01
MIN_DECIMAL = 1e-3
"""Values below which numbers are told by their exponent."""


class StepResult(NamedTuple):
    """A step of training, or the reason why there is none."""

    step: TrainingStep | None
    problem: str = ""


def show(run: NextTokenRun) -> None:
    """Show the four parts of a step at a chosen learning rate, and the gradients of all parameters."""
    st.header("One step of training")
    where = run_cache.queue_of(run.name, run.options)
    result = render_cache.of(run.trace, "training", lambda: single_flight.in_turn(lambda: _compute(*run), DOING, where))
    if (step := result.step) is None:
        st.info(plain(f"No step of training is shown: {result.problem}."))
        return
    st.markdown(
        "Training repeats four parts for text after text. Here they run once, on a copy of the model, with this text. "
        "The model on screen keeps its weights."
    )
    if run_cache.changes(run.options):
        st.caption("The step is taken by the model without the change of the run on screen.")
    rates = [descent.rate for descent in step.descents]
    rate = st.select_slider(
        "Learning rate η", rates, format_func=lambda rate: f"{rate:g}", **url_state.widget("rate", rates, FIRST_RATE)
    )
    descent = step.at(rate)
    _four_parts(run, step, descent)
    _agreement(step, descent)
    after, predictions = [each.after for each in step.descents], [each.prediction for each in step.descents]
    figure = lambda: descent_curve.losses(rates, after, predictions, step.before)  # noqa: E731
    alt = (
        f"The loss after the step over the learning rate: {_number(after[0])} at {rates[0]:g}, {_number(after[-1])} at "
        f"{rates[-1]:g}; before it, {_number(step.before)}."
    )
    render_cache.chart(run.trace, "descent", figure, alt=alt)
    _gradients(step)


def _compute(name: str, options: run_cache.Options, chosen, trace) -> StepResult:
    """Return the step; does not use the session."""
    from tracer.lessons.loss.measurements import measure_step  # loads torch

    plain_options = run_cache.without_changes(options)
    user_input = session.inputs(run_cache.load(name, plain_options), chosen, plain_options)
    lines = None if run_cache.changes(options) else replace(trace, values={}, later=None, replay=None, reread=None)
    try:
        return StepResult(run_cache.measure(measure_step, name, plain_options, user_input, lines))
    except ValueError as error:
        return StepResult(None, str(error))


def _four_parts(run: NextTokenRun, step: TrainingStep, descent: Descent) -> None:
    """Show forward, loss, gradients and update side by side, each with its equation and its number."""
    proven = sum(len(line.paths) for line in step.lines if line.verdict == "proven")
    total = sum(len(line.paths) for line in step.lines)
    forward, loss, gradients, update = st.columns(4, border=True)
    with forward:
        _part("1. Forward", r"\mathbf{Z} = f_{\boldsymbol{\theta}}(\mathbf{t})")
        st.metric("parameters θ", f"{run.trace.params:,}")
    with loss:
        _part("2. Loss", r"\mathcal{L} = \operatorname{mean}(-\log \mathbf{p})")
        st.metric("loss before", _number(step.before))
    with gradients:
        _part("3. Gradients", r"\nabla\mathcal{L} = \partial\mathcal{L} / \partial\boldsymbol{\theta}")
        st.metric("norm ‖∇L‖", _number(step.squared_norm**0.5))
        st.caption(f"equations: {proven} of {total} proven")
    with update:
        _part("4. Update", r"\boldsymbol{\theta} \leftarrow \boldsymbol{\theta} - \eta\,\nabla\mathcal{L}")
        st.metric(
            "loss after", _number(descent.after), _format_change(descent.after - step.before), delta_color="inverse"
        )
        st.caption(f"by the slope: {_format_change(descent.prediction - step.before).replace('-', '−')}")


def _part(name: str, equation: str) -> None:
    st.markdown(f"**{name}**\n\n${equation}$")


def _agreement(step: TrainingStep, descent: Descent) -> None:
    """State whether the loss changed as its slope predicts."""
    change, predicted = descent.after - step.before, descent.prediction - step.before
    way = "fell" if change < 0 else "rose"
    measured = f"At η = {descent.rate:g}, the loss {way} by {_number(abs(change))}. "
    slope = f"The slope alone predicts a fall by η‖∇L‖² = {_number(-predicted)}. "
    if step.agrees(descent):
        verdict = "They agree within a tenth: over so short a step, the loss is almost a straight line."
    elif change < 0:
        verdict = "They differ by more than a tenth: on the way, the slope itself changed."
    else:
        verdict = "The step was too long: the loss is higher than before it."
    st.markdown(measured + slope + verdict)


def _gradients(step: TrainingStep) -> None:
    """Show the gradient of each parameter as an equation, with its norm and its proof."""
    st.subheader("The gradient of each parameter")
    st.markdown(
        "The backward pass begins at the logits and goes through the calls in reverse order. There, the gradient of "
        "a parameter needs two tensors only: the input, and the gradient at the output. Each equation ran on these, "
        "and its result was compared with the gradient of PyTorch’s autograd, number by number."
    )
    lines = [step.logits, *step.lines]
    with st.container(key="gradient-equations"):
        st.table(
            {
                "parameter": [_name(line) for line in lines],
                "gradient": [f"$\\displaystyle {line.latex}$" if line.latex else f"${line.symbol}$" for line in lines],
                "proof": [_proof(line) for line in lines],
                "norm": [_norms(line) for line in lines],
                "shape": [f"${notation.shape_latex(line.symbolic)}$ = {rows.numbers(line.shape)}" for line in lines],
            },
            hide_index=True,
            alt="The gradient of each parameter",
        )
    margins = [line.margin for line in lines if line.margin is not None]
    notes = [
        "Tensors are read as matrices with one row for each token. Weights are written as in the textbook, in × out; "
        "PyTorch stores them transposed.",
        f"The largest error of any number is {max(margins):.2g} times what rounding explains there.",
    ]
    if any(" + " in line.latex and "onehot" in line.latex for line in step.lines):
        notes.append(
            "The embedding matrix is used twice, to look up tokens and to compute logits, so its gradient has two "
            "terms."
        )
    st.caption(" ".join(notes))


def _name(line: GradientLine) -> str:
    """Return the name of a parameter, without the number of its block where it stands for several."""
    if not line.paths:
        return "logits"
    first = line.paths[0]
    if len(line.paths) == 1:
        return f"`{first}`"
    return f"`{first.partition('.')[2]}` in {len(line.paths)} blocks"


def _norms(line: GradientLine) -> str:
    low, high = min(line.norms), max(line.norms)
    return _number(high) if len(line.norms) == 1 else f"{_number(low)} to {_number(high)}"


def _proof(line: GradientLine) -> str:
    if line.margin is None:
        return f":gray[no equation: {plain(line.problem)}]"
    return f"{SIGNS[line.verdict]}\u00a0{line.verdict}"


def _number(value: float) -> str:
    """Return a number with three digits, a tiny one by its exponent."""
    text = f"{value:.3g}" if abs(value) >= MIN_DECIMAL or not value else scientific(value).replace(" ", "\u00a0")
    return text.replace("-", "\N{MINUS SIGN}")


def _format_change(value: float) -> str:
    """Return a change with its sign; `st.metric` reads a hyphen as a fall."""
    return f"{'-' if value < 0 else '+'}{_number(abs(value))}"
