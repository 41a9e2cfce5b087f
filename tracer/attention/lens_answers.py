"""Answers of a model's logit lens: its prediction after each block, by the names of its choices."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import torch

from tracer.attention.head_effects import SINGLE_ANSWER_KINDS, as_probabilities
from tracer.record import Step, Trace
from tracer.spec.preparation import names
from tracer.tracing.logit_lens import LogitLens
from tracer.utils.errors import quote

if TYPE_CHECKING:
    import numpy as np

    from tracer.inputs.model_inputs import Inputs
    from tracer.spec.spec import Model


class LensAnswer(NamedTuple):
    """Most probable choice after a depth, and its probability; `final` is that of the run's own answer there.

    `layer` counts from 0 and is None before the first block. `patches` are the probabilities of the run's answer that
    the head gives to each token of the stream, `[S]`; None where it reads several tokens at once.
    """

    layer: int | None
    answer: str
    probability: float
    final: float
    patches: np.ndarray | None


class LensAnswers(NamedTuple):
    """Answers of all depths, in order, with the equation of the lens and its proof on the last block."""

    answers: tuple[LensAnswer, ...]
    latex: str
    proof: Step


def lens_answers(model: Model, inputs: Inputs, trace: Trace, part: str = "") -> LensAnswers:
    """Apply the model's own last norm and head to the stream after every block of a run.

    ValueError in one sentence for a model whose answer is not one choice, or that has no such head.
    """
    kind = str(trace.result.get("kind"))
    if kind not in SINGLE_ANSWER_KINDS:
        raise ValueError(f"the answer of {quote(trace.model)} is not one of several choices, so it does not form")
    lens, last = LogitLens(trace, part), slice(-1, None)
    depths = len(lens.depths)
    whole = lens.scores(depths - 1)
    if whole.dim() == 3 and (kind != "next" or not _same_last(lens, whole, last)):
        last = slice(None)
    shares = [_probabilities(lens.scores(at, last if whole.dim() == 3 else None)) for at in range(depths)]
    final, known = int(shares[-1].argmax()), _names(model, inputs, trace, kind)
    patches = _patches(lens, trace, final)
    answers = [
        LensAnswer(depth.layer, known(scores), float(scores.max()), float(scores[final]), each)
        for depth, scores, each in zip(lens.depths, shares, patches, strict=True)
    ]
    return LensAnswers(tuple(answers), lens.latex, lens.proof)


def _same_last(lens: LogitLens, whole: torch.Tensor, last: slice) -> bool:
    """Return whether the head maps the last token alone as it does among all tokens."""
    try:
        alone = lens.scores(len(lens.depths) - 1, last)
    except (RuntimeError, IndexError, ValueError):
        return False
    return alone.shape[1:2] == (1,) and bool((alone[:, -1] - whole[:, -1]).abs().max() <= 1e-6 * whole.abs().max())


def _probabilities(scores: torch.Tensor) -> torch.Tensor:
    return as_probabilities(scores[0, -1] if scores.dim() == 3 else scores[0])


def _patches(lens: LogitLens, trace: Trace, final: int) -> list[np.ndarray | None]:
    if trace.picture is not None:
        with suppress(ValueError):
            return [as_probabilities(lens.token_scores(at))[:, final].numpy() for at in range(len(lens.depths))]
    return [None] * len(lens.depths)


def _names(model: Model, inputs: Inputs, trace: Trace, kind: str):
    """Return a function from probabilities to the name of the largest."""
    if kind in ("classes", "sentences"):
        choices = trace.result[kind]
        return lambda shares: str(choices[int(shares.argmax())])
    if kind == "caption":
        words = names(model)
        return lambda shares: words[int(shares.argmax())]

    def read(shares: torch.Tensor) -> str:
        logits = shares.log().float()[None, None]
        output = logits if isinstance(trace.output, torch.Tensor) else {"logits": logits}
        return str(model.spec.result(model, inputs, output)["tokens"][0])

    return read
