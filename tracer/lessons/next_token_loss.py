"""Loss of the next token, as steps of a run: softmax, targets shifted by one, -log p of each, and their mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tracer.inputs.model_inputs import Inputs
from tracer.lessons.training_step import GradientNorms, TrainingStep, highway, training_step
from tracer.record import Step, tolerance
from tracer.spec.spec import Model, Spec
from tracer.textbook.claims import claim
from tracer.textbook.names import Hint
from tracer.tracing import counterfactual

if TYPE_CHECKING:
    from tracer.record import Trace


class NextToken(nn.Module):
    """Cross-entropy of the next token (note 000, section 2).

    It takes logits `[B, T, V]` and the token numbers `[B, T]` that the model read, and returns the mean loss, a number.
    The last logits have no target, and the first token has no prediction.
    """

    def forward(self, logits, tokens) -> torch.Tensor:
        shares = logits.softmax(dim=-1)  # [B, T, V]
        targets = tokens.narrow(1, 1, tokens.shape[1] - 1)  # [B, T-1]
        chosen = (shares[:, :-1] * F.one_hot(targets, shares.shape[-1])).sum(dim=-1)  # [B, T-1]
        losses = -chosen.log()  # [B, T-1]
        return losses.mean()


HINTS = (
    *(Hint(apart=call, module="") for call in ("softmax", "narrow", "sum", "neg")),
    Hint("input logits", letter=r"\mathbf{Z}"),
    Hint("input tokens", letter=r"\mathbf{t}"),
    Hint(
        "softmax",
        stage="head",
        title="Probabilities of what comes next",
        letter=r"\boldsymbol{\pi}",
        why=claim(
            "The softmax turns each row of logits into probabilities that sum to 1, one for every entry of the "
            "vocabulary.",
            "Softmax",
        ),
    ),
    Hint(
        "layout",
        id="targets",
        stage="head",
        title="The targets, shifted by one",
        letter=r"\mathbf{y}",
        why=claim(
            "The target of a token is the next token of the same text, so the targets are its tokens from the "
            "second on. The first token is not a target, because no token precedes it.",
            "Columns",
        ),
        note="Note 000 counts token numbers from 1 to V; the code counts them from 0 to V\u00a0−\u00a01.",
    ),
    Hint(
        "sum",
        id="chosen",
        stage="head",
        title="The probability of each target",
        letter=r"\mathbf{p}",
        why=claim(
            "Row i of the probabilities predicts the token after token i, so it is compared with target i. The "
            "last row has no target. In each row only one probability counts: that of the actual next token, "
            "where the one-hot row is 1.",
            "Sum",
        ),
    ),
    Hint(
        "neg",
        id="losses",
        stage="head",
        title="The loss of each token",
        letter=r"\boldsymbol{\ell}",
        why=claim(
            "The loss is 0 where the token was predicted with certainty. The less the token was expected, the "
            "larger it is.",
            "Negative",
        ),
    ),
    Hint(
        "logits",
        id="loss",
        title="The loss",
        letter=r"\mathcal{L}",
        why=claim("This is the mean over all targets. Training reduces it.", "Mean"),
    ),
)

SPEC = Spec(
    net=NextToken,
    hints=HINTS,
    takes=("text",),
    sizes={},
    derived={},
    names=("B", "T", "T - 1", "V"),
    probes=({"B": 3, "T": 7, "V": 11}, {"B": 5, "T": 13, "V": 17}, {"B": 2, "T": 19, "V": 23}),
    example=lambda sizes: (
        torch.linspace(-2, 2, sizes["B"] * sizes["T"] * sizes["V"]).view(sizes["B"], sizes["T"], sizes["V"]),
        torch.arange(sizes["B"] * sizes["T"]).view(sizes["B"], sizes["T"]) % sizes["V"],
    ),
    prepare=lambda model, image, text, sizes: model.card["inputs"],
    result=lambda model, inputs, output: {},
    segments=lambda sizes: (),
    runs=("B", "T", "V"),
)


class Loss(NamedTuple):
    """Loss of a text.

    It has its `steps`; the `losses` of each token but the first, `[T - 1]`, with the probabilities `[T - 1]`; their
    mean; the largest difference of a loss or the mean from `F.cross_entropy`, in nats, and whether that is no more than
    rounding; and the loss of a guess among V tokens, ln V.
    """

    steps: tuple[Step, ...]
    losses: tuple[float, ...]
    probabilities: tuple[float, ...]
    mean: float
    error: float
    verified: bool
    guess: float


@torch.no_grad()
def loss(logits: torch.Tensor, tokens: torch.Tensor) -> Loss:
    """Return the loss of logits `[1, T, V]` on their tokens `[1, T]`.

    Raise ValueError for a single token.
    """
    B, T, V = logits.shape
    if T < 2:
        raise ValueError("a single token has no next one, so there is nothing to predict")
    keywords = {"inputs": Inputs((logits, tokens), {"B": B, "T": T, "V": V})}
    trace = counterfactual.check(Model.of("next token", SPEC, NextToken(), {}, weights="", card=keywords).trace())
    losses, chosen = (trace.values[trace.step(id).value].flatten() for id in ("losses", "chosen"))
    mean: Any = trace.output
    rows, targets = logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
    apart = (losses - F.cross_entropy(rows, targets, reduction="none")).abs().max()
    error = max(float(apart), abs(float(mean - F.cross_entropy(rows, targets))))
    return Loss(
        steps=trace.steps,
        losses=tuple(losses.tolist()),
        probabilities=tuple(chosen.tolist()),
        mean=float(mean),
        error=error,
        verified=error <= tolerance("float32") * max(1.0, float(losses.max())),
        guess=log(V),
    )


# Loss of a text, and one step of training on it, by a model of ours: what a lesson has measured, in any process.


class TextLoss(NamedTuple):
    """Loss of a text, its tokens, and the gradient that flows back; or a sentence on why there is none."""

    loss: Loss | str
    highway: GradientNorms | str


def measure_loss(model: Model, inputs: Inputs, logits: torch.Tensor, blocks: Sequence[str]) -> TextLoss:
    """Return the loss of the first text of a batch by its logits `[1, T, V]`, and the gradient through blocks, by their
    paths."""
    first = tuple(tensor[:1] for tensor in inputs)
    try:
        text_loss = loss(logits, first[-1])
    except ValueError as error:
        return TextLoss(str(error), str(error))
    try:
        return TextLoss(text_loss, highway(model.net, first, first[-1], blocks))
    except ValueError as error:
        return TextLoss(text_loss, str(error))


def measure_step(model: Model, inputs: Inputs, trace: Trace | None) -> TrainingStep:
    """Return one step of training on inputs; `trace` has the lines of a run of them, or is None where none is known.
    ValueError, in a sentence, where no step can be taken."""
    trace = model.trace_inputs(inputs, prove=False) if trace is None else trace
    return training_step(model.net, tuple(inputs), inputs[-1], trace)
