"""Records of attention, of the positions of tokens on a photo, and of segments of the token sequence."""

from __future__ import annotations

from dataclasses import dataclass

MOVED_TOKENS = (
    "A change can put the tokens of this run in another order, so attention is not laid over the photo: patch 5 is the "
    "fifth token of the patches here, wherever it was cut from."
)
"""The note of a run whose tokens do not lie on the photo, since a change may have moved them."""


@dataclass(frozen=True, slots=True)
class AttentionRecord:
    """One attention of the run: the keys of its queries, keys and mask, and the ops that compute its scores.

    `chain` lists what the model did to the product of queries and keys before the softmax: pairs of op name
    and its other arguments, each a number or the key of a kept tensor. `problem` says why the weights
    can't be recovered, and is empty where they can. `part` names the tower in models of several. `mask` is "none",
    "causal", "windows" or "given"; `over` says what queries and keys are, "tokens" or "channels". `after` names what
    the model did to the weights between the softmax and the values, which the weights here are from before. `weights`
    is the key of the weights `[B, h, S_q, S_k]` that a change put in their place, and `scores` that of the scores which
    the softmax took, where they do not follow from queries and keys any more.
    """

    layer: int
    part: str
    module: str
    op: int
    heads: int
    queries: int
    keys: int
    q: str
    k: str
    chain: tuple[tuple[str, tuple], ...]
    mask: str = "none"
    fused: bool = False
    problem: str = ""
    over: str = "tokens"
    after: tuple[str, ...] = ()
    weights: str = ""
    scores: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Layout of the run's tokens on the photo, whose pixels are `Trace.values[value]`, uint8 `[H, W, 3]`.

    `crop` is (left, top, right, bottom) in photo pixels; token `first + row * columns + column` is the patch
    at (row, column) of the crop.
    """

    value: str
    crop: tuple[float, float, float, float]
    rows: int
    columns: int
    first: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A named segment of the token sequence: CLS, image or text; tokens `start` to `stop - 1`.

    `part` names the tower whose sequence it is, in models of several. `places` are the patches that its tokens are,
    one for each and in their order, counted row by row over the grid of the `Picture`, where a tower has only some of
    them; empty elsewhere.
    """

    name: str
    start: int
    stop: int
    part: str = ""
    places: tuple[int, ...] = ()
