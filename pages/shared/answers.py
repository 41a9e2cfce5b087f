"""What the model says, each kind of result in its own form: classes, words, a caption, a label map, an anomaly."""

from collections.abc import Callable

import numpy as np
import streamlit as st

from pages.shared.texts import plain
from tracer.figures import answers, classes
from tracer.record import Trace

PLAIN = {"displayModeBar": False}


def show(trace: Trace) -> None:
    """Shows the result of a run; one of no known kind is passed over, and one that a file holds wrongly is named."""
    if form := FORMS.get(str(trace.result.get("kind"))):
        try:
            form(trace.result)
        except (KeyError, TypeError, ValueError, IndexError):  # out of a stranger's file, whose results nobody checked
            st.caption("The answer that this run recorded can’t be read.")


def _bars(title: str, names, shares, axis: str) -> None:
    ranked = classes.ranking([answers.shown(name) for name in names], shares)
    st.subheader(plain(title))
    figure = classes.bars(*zip(*ranked, strict=True))
    figure.update_yaxes(title=axis)
    st.plotly_chart(figure, alt=classes.describe(*zip(*ranked, strict=True)), config=PLAIN)


def _classes(result) -> None:
    best = classes.ranking(result["classes"], result["probabilities"])[0][0]
    _bars(f"The answer: {best}", result["classes"], result["probabilities"], "class")


def _next(result) -> None:
    st.markdown("The text so far:")
    st.code("".join(result["text"]), language=None, wrap_lines=True)
    first = classes.ranking(result["tokens"], result["probabilities"])[0][0]
    _bars(f"Most probable next: {answers.shown(first)!r}", result["tokens"], result["probabilities"], "next token")


def _tokens(result) -> None:
    st.subheader("Token in, token out")
    st.dataframe(
        {
            "place": list(range(len(result["tokens"]))),
            "in": [answers.shown(token) for token in result["text"]],
            "out": [answers.shown(token) for token in result["tokens"]],
            "probability": [classes.percent(share) for share in result["probabilities"]],
        },
        hide_index=True,
    )


def _caption(result) -> None:
    st.subheader(plain(f"The caption: {result['caption'] or '(none)'}"))
    said = " ".join(result["text"])
    _bars(f"After “{said}” comes", result["tokens"], result["probabilities"], "next word")


def _sentences(result) -> None:
    best = classes.ranking(result["sentences"], result["probabilities"])[0][0]
    _bars(f"The answer: {best}", result["sentences"], result["probabilities"], "sentence")


def _labels(result) -> None:
    st.subheader("The class of every pixel")
    shares = {name: share for name, share in zip(result["classes"], result["shares"], strict=True) if share}
    said = ", ".join(f"{name} {classes.percent(share)}" for name, share in shares.items())
    st.plotly_chart(answers.label_map(result["labels"], result["classes"]), alt=f"Label map: {said}", config=PLAIN)
    st.caption(plain(said))


def _reconstruction(result) -> None:
    st.subheader("What it draws, and what it could not foresee")
    pixels = np.asarray(result["pixels"], dtype=float).mean(axis=-1)
    anomaly = np.asarray(result["anomaly"], dtype=float)
    panels = {"predicted picture": pixels, "anomaly": anomaly}
    row, column = np.unravel_index(int(anomaly.argmax()), anomaly.shape)
    said = f"The patch in row {row}, column {column} is the hardest to predict from the others."
    st.plotly_chart(answers.maps(panels, {"anomaly": "error"}), alt=said, config=PLAIN)
    st.caption(said + " Every patch was hidden once and predicted from the patches around it.")


FORMS: dict[str, Callable] = {
    "classes": _classes,
    "next": _next,
    "tokens": _tokens,
    "caption": _caption,
    "sentences": _sentences,
    "labels": _labels,
    "reconstruction": _reconstruction,
}
