"""Lesson on the loss: the text coloured by the loss of its tokens, the steps, and the gradient that flows back."""

from __future__ import annotations

from math import exp, expm1
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import streamlit as st

from pages import components
from pages.jobs import render_cache, run_cache, single_flight
from pages.sections.lessons import training_step
from pages.state import session
from pages.state.next_token_run import next_token_run
from pages.state.visitor import UserInput
from pages.ui import data_tables, page_frame, step_lines
from pages.ui.texts import escape, has_random_weights, plain
from tracer import models
from tracer.export.math_labels import scientific
from tracer.figures.predictions import token_loss as drawn
from tracer.figures.predictions.class_bars import percent
from tracer.figures.predictions.model_output import visible_token
from tracer.record import Trace

if TYPE_CHECKING:
    from tracer.lessons.loss.gradient_flow import GradientNorms
    from tracer.lessons.loss.measurements import TextLoss
    from tracer.lessons.loss.next_token_loss import Loss

DOING = "Computing the loss and its gradients"
MIN_DECIMAL = 1e-3
"""Nats below which a loss, and what its perplexity has beyond 1, are told by their exponent."""


def lesson() -> None:
    """Show the whole page."""
    run = next_token_run("Your model does not predict the next token", _suits)
    trace = run.trace
    where = run_cache.queue_of(run.name, run.options)
    losses = render_cache.of(trace, "loss", lambda: single_flight.in_turn(lambda: _compute(*run), DOING, where))
    if isinstance(losses.loss, str):
        st.info(plain(f"There is no loss: {losses.loss}."))
        page_frame.leave()
    if has_random_weights(trace):
        st.info(
            "The weights of this model are random: it has learned nothing. Its mean loss is "
            f"{_nats(losses.loss.mean)}; that of a guess among all {exp(losses.loss.guess):,.0f} tokens of its "
            f"vocabulary is {_nats(losses.loss.guess)}."
        )
    _text(trace, losses.loss)
    if dict(run.options).get("mask") == "bidirectional":
        st.warning("Without a causal mask, each token sees the very token that it should predict.")
    st.header("From logits to the loss, step by step")
    step_lines.show(losses.loss.steps)
    st.caption(
        f"PyTorch’s own `cross_entropy`, on the same logits and targets, differs from these steps by at most "
        f"{scientific(losses.loss.error)} nats in any token or in the mean: "
        + ("the same, up to rounding." if losses.loss.proven else "**not the same**.")
    )
    _gradient(trace, losses.highway)
    training_step.show(run)


def _suits(name: str) -> bool:
    """Return whether a model reads text, so that it may predict the next token."""
    return "text" in models.takes(name)


def _compute(name: str, options: run_cache.Options, chosen: UserInput, trace: Trace) -> TextLoss:
    """Return the loss of a run and its gradient; does not use the session."""
    from tracer.lessons.loss.gradient_flow import find_blocks  # both load torch
    from tracer.lessons.loss.measurements import measure_loss

    model, output = run_cache.load(name, options), cast("Any", trace.output)
    logits = output["logits"] if isinstance(output, dict) else output  # as a model of transformers returns them
    arguments = logits[:1].clone(), find_blocks(model.net, trace)
    return run_cache.measure(measure_loss, name, options, session.inputs(model, chosen, options), *arguments)


def _nats(loss: float) -> str:
    """Return a loss with three digits, a tiny one as a power of ten."""
    return f"{loss:.3g}" if loss >= MIN_DECIMAL else scientific(loss)


def _text(trace: Trace, loss: Loss) -> None:
    """Show the text coloured by loss; positions over the picture have no target."""
    components.style(Path(__file__).with_name("next_token_loss.css"))
    words = [visible_token(word) if len(word) > 1 else word for word in trace.words]
    joined = all(len(word) == 1 for word in words)
    text = drawn.colour_text(words, loss.losses, loss.probabilities, loss.guess, joined)
    if (view := session.traced_view(trace)) is not None:
        left, right = st.columns([1, 2], gap="large")
        with left:
            components.drawing(drawn.hatch(view.image, view.rows, view.columns), "unasked")
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
    with st.container(key="facts"):
        st.metric("loss, mean of −log p, in nats", _nats(loss.mean))
        st.metric(
            "perplexity, exp(loss)",
            f"{exp(loss.mean):.3g}" if loss.mean >= MIN_DECIMAL else f"1 + {scientific(expm1(loss.mean))}",
        )
        st.metric("random guessing: ln V (nats)", f"{loss.guess:.3g}")
    worst = max(range(len(loss.losses)), key=loss.losses.__getitem__)
    st.markdown(
        f"The model expected {escape(repr(trace.words[worst + 1]))} least (token {worst + 2}) and "
        f"gave it {percent(loss.probabilities[worst])}. The first token has no loss, because no token precedes it. "
        "The token after the last one is unknown."
    )
    with st.expander("The same data as a table"):
        data_tables.show(
            {
                "token": [repr(word) for word in trace.words[1:]],
                "p": list(loss.probabilities),
                "−log p": list(loss.losses),
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
    figure = render_cache.figure(trace, "gradients", lambda: drawn.gradients(whole, branches))
    lines = {"With the residual path": whole, "through attention and MLPs only": branches}
    ends = [f"{path} {sizes[-1]:.2g} at the end, {sizes[0]:.2g} at the start" for path, sizes in lines.items()]
    alt = f"The size of the gradient on its way back. {'; '.join(ends)}."
    st.plotly_chart(figure, config=render_cache.PLAIN_CONFIG, alt=alt)
    ratio = whole[0] / branches[0] if branches[0] else float("inf")
    more = "larger" if ratio > 1 else "smaller"
    st.markdown(
        f"Each line is one backward pass from the same loss, {_nats(highway.loss)}. In the second, the gradient goes "
        "back through attention and the MLPs only, not past them. At the input of the first block, it is "
        f"{max(ratio, 1 / ratio):.3g} times {more} with the residual path than without it."
    )
