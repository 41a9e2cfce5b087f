"""The loss of the next token, and one training step."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import exp, expm1
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import streamlit as st

from pages import components
from pages.jobs import run_cache, single_flight
from pages.state import session
from pages.state.visitor import UserInput
from pages.ui import page_frame, texts, widgets
from pages.ui.screen import NextTokenRun, next_token_run
from pages.ui.texts import escape, has_random_weights, plain
from pages.ui.widgets import SIGNS
from tracer import models
from tracer.figures import predictions
from tracer.figures.predictions import visible_token
from tracer.record import Trace
from tracer.symbols import notation
from tracer.utils.errors import result_or_reason
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import percent, scientific, shape_numbers, signed, three_digits

if TYPE_CHECKING:
    from tracer.lessons import next_token_loss, training_step
    from tracer.lessons.next_token_loss import Loss, TextLoss
    from tracer.lessons.training_step import Descent, GradientLine, GradientNorms, TrainingStep
else:  # imported when first used
    next_token_loss = lazy_import("tracer.lessons.next_token_loss")
    training_step = lazy_import("tracer.lessons.training_step")


# One step of training on the text of the page: forward, loss, gradients, update, and each gradient as an equation.

DOING_STEP = "Taking one step of training on a copy of the model"
FIRST_RATE = 0.01
MIN_DECIMAL = 1e-3
"""Values below which numbers are told by their exponent."""


def show(run: NextTokenRun) -> None:
    """Show the four parts of a step at a chosen learning rate, and the gradients of all parameters."""
    st.header("One step of training")
    where = run_cache.queue_of(run.name, run.options)
    step = single_flight.of_queued(run.trace, "training", partial(_compute_step, *run), DOING_STEP, where)
    if isinstance(step, str):
        st.info(plain(f"No step of training is shown: {step}."))
        return
    st.markdown(
        "Training repeats four parts for text after text. Here they run once, on a copy of the model, with this text. "
        "The model on screen keeps its weights."
    )
    if run_cache.changes(run.options):
        st.caption("The step is taken by the model without the change of the run on screen.")
    rates = [descent.rate for descent in step.descents]
    rate = widgets.choose(st.select_slider, "Learning rate η", "rate", rates, FIRST_RATE, format_func="{:g}".format)
    descent = step.at(rate)
    _four_parts(run, step, descent)
    _agreement(step, descent)
    after, foreseen = [each.after for each in step.descents], [each.prediction for each in step.descents]
    figure = lambda: predictions.losses(rates, after, foreseen, step.before)  # noqa: E731
    alt = (
        f"The loss after the step over the learning rate: {_number(after[0])} at {rates[0]:g}, {_number(after[-1])} at "
        f"{rates[-1]:g}; before it, {_number(step.before)}."
    )
    single_flight.chart(run.trace, "descent", figure, alt=alt)
    _gradients(step)


def _compute_step(name: str, options: run_cache.Options, chosen, trace) -> TrainingStep | str:
    """Return the step, or the reason why there is none; does not use the session."""
    plain_options = run_cache.without_changes(options)
    user_input = session.inputs(run_cache.load(name, plain_options), chosen, plain_options)
    lines = None if run_cache.changes(options) else replace(trace, values={}, later=None, replay=None, reread=None)
    arguments = next_token_loss.measure_step, name, plain_options, user_input, lines
    return result_or_reason(partial(run_cache.measure, *arguments))


def _four_parts(run: NextTokenRun, step: TrainingStep, descent: Descent) -> None:
    """Show forward, loss, gradients and update side by side, each with its equation and its number."""
    verified = sum(len(line.paths) for line in step.lines if line.verdict == "verified")
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
        st.caption(f"equations: {verified} of {total} verified")
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
    """Show the gradient of each parameter as an equation, with its norm and its verdict."""
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
                "shape": [f"${notation.shape_latex(line.symbolic)}$ = {shape_numbers(line.shape)}" for line in lines],
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
    """Return a number that does not break, with a typographic sign."""
    return signed(three_digits(value)).replace(" ", "\u00a0")


def _format_change(value: float) -> str:
    """Return a change with its sign; `st.metric` reads a hyphen as a fall."""
    return f"{'-' if value < 0 else '+'}{_number(abs(value))}"


# Lesson on the loss: the text coloured by the loss of its tokens, the steps, and the gradient that flows back.

DOING_LOSS = "Computing the loss and its gradients"
"""Nats below which a loss, and what its perplexity has beyond 1, are told by their exponent."""


def lesson() -> None:
    """Show the whole page."""
    reads_text = lambda name: "text" in models.takes(name)  # noqa: E731  (it may predict the next token)
    run = next_token_run("Your model does not predict the next token", reads_text)
    trace = run.trace
    where = run_cache.queue_of(run.name, run.options)
    losses = single_flight.of_queued(trace, "loss", partial(_compute_loss, *run), DOING_LOSS, where)
    if isinstance(losses.loss, str):
        st.info(plain(f"There is no loss: {losses.loss}."))
        page_frame.leave()
    if has_random_weights(trace):
        st.info(
            "The weights of this model are random: it has learned nothing. Its mean loss is "
            f"{three_digits(losses.loss.mean)}; that of a guess among all {exp(losses.loss.guess):,.0f} tokens of its "
            f"vocabulary is {three_digits(losses.loss.guess)}."
        )
    _text(trace, losses.loss)
    if dict(run.options).get("mask") == "bidirectional":
        st.warning("Without a causal mask, each token sees the very token that it should predict.")
    st.header("From logits to the loss, step by step")
    widgets.show(losses.loss.steps)
    st.caption(
        f"PyTorch’s own `cross_entropy`, on the same logits and targets, differs from these steps by at most "
        f"{scientific(losses.loss.error)} nats in any token or in the mean: "
        + ("the same, up to rounding." if losses.loss.verified else "**not the same**.")
    )
    _gradient(trace, losses.highway)
    show(run)


def _compute_loss(name: str, options: run_cache.Options, chosen: UserInput, trace: Trace) -> TextLoss:
    """Return the loss of a run and its gradient; does not use the session."""
    model, output = run_cache.load(name, options), cast("Any", trace.output)
    logits = output["logits"] if isinstance(output, dict) else output  # as a model of transformers returns them
    arguments = logits[:1].clone(), training_step.find_blocks(model.net, trace)
    return run_cache.measure(
        next_token_loss.measure_loss, name, options, session.inputs(model, chosen, options), *arguments
    )


def _text(trace: Trace, loss: Loss) -> None:
    """Show the text coloured by loss; positions over the picture have no target."""
    components.style(Path(__file__).with_name("next_token_loss.css"))
    words = [visible_token(word) if len(word) > 1 else word for word in trace.words]
    joined = all(len(word) == 1 for word in words)
    text = predictions.colour_text(words, loss.losses, loss.probabilities, loss.guess, joined)
    if (view := session.traced_view(trace)) is not None:
        left, right = st.columns([1, 2], gap="large")
        with left:
            components.drawing(predictions.hatch(view.image, view.rows, view.columns), "unasked")
            st.caption(
                f"The patches have no targets. {view.rows * view.columns} patches went through the blocks before the "
                f"words, but none of the {len(words)} rows of logits belongs to a patch. So the first word, "
                f"{escape(repr(words[1]))}, is predicted from {escape(repr(words[0]))} and not from the last patch. "
                "Without such a begin token, nothing would predict the first word."
            )
        with right:
            st.html(text)
    else:
        st.html(text)
    perplexity = f"{exp(loss.mean):.3g}" if loss.mean >= MIN_DECIMAL else f"1 + {scientific(expm1(loss.mean))}"
    facts = {"loss, mean of −log p, in nats": three_digits(loss.mean), "perplexity, exp(loss)": perplexity}
    widgets.facts(facts | {"random guessing: ln V (nats)": f"{loss.guess:.3g}"})
    worst = max(range(len(loss.losses)), key=loss.losses.__getitem__)
    st.markdown(
        f"The model expected {escape(repr(trace.words[worst + 1]))} least (token {worst + 2}) and "
        f"gave it {percent(loss.probabilities[worst])}. The first token has no loss, because no token precedes it. "
        "The token after the last one is unknown."
    )
    with st.expander("The same data as a table"):
        texts.show(
            {
                "token": [repr(word) for word in trace.words[1:]],
                "p": list(map(percent, loss.probabilities)),
                "−log p": list(map(three_digits, loss.losses)),
            },
            alt="The loss of each token",
        )


def _gradient(trace: Trace, highway: GradientNorms | str) -> None:
    """Draw the norm of the gradient on its way back."""
    st.header("The gradient highway")
    if isinstance(highway, str):
        st.info(plain(f"The gradient is not followed back: {highway}."))
        return
    whole, branches = highway.whole, highway.branches
    lines = {"With the residual path": whole, "through attention and MLPs only": branches}
    ends = [f"{path} {sizes[-1]:.2g} at the end, {sizes[0]:.2g} at the start" for path, sizes in lines.items()]
    alt = f"The size of the gradient on its way back. {'; '.join(ends)}."
    single_flight.chart(trace, "gradients", partial(predictions.gradients, whole, branches), alt=alt)
    ratio = whole[0] / branches[0] if branches[0] else float("inf")
    more = "larger" if ratio > 1 else "smaller"
    st.markdown(
        f"Each line is one backward pass from the same loss, {three_digits(highway.loss)}. In the second, the gradient "
        "goes back through attention and the MLPs only, not past them. At the input of the first block, it is "
        f"{max(ratio, 1 / ratio):.3g} times {more} with the residual path than without it."
    )
