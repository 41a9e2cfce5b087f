"""Masks: those that models build, those read from a trace, and the outputs that a token really changes.

`visible` reads the mask that ran, cell by cell, from any trace. `influence` is a second proof that does not use masks:
it changes one token and compares the positions' outputs. `reach` predicts these positions from the mask,
`largest_share` bounds the attention of unchanged positions to changed ones. `predict_under_mask` runs a model under its
mask, `close_picture` predicts each word with the picture masked in some blocks.
"""

from tracer.attention.masks.ablation import AblationResult, close_picture
from tracer.attention.masks.constructors import causal, padding, prefix
from tracer.attention.masks.counterfactual_masks import Prediction, predict_under_mask
from tracer.attention.masks.inspection import (
    MaskedRow,
    MaskValues,
    RowsOfHeads,
    RowSums,
    SegmentVisibility,
    blocks,
    kind,
    largest_share,
    numbers,
    reach,
    row,
    rows,
    visible,
    whole,
)
from tracer.attention.masks.perturbation import (
    ChangedPositions,
    Streams,
    change_and_compare,
    influence,
    streams,
    tower_ends,
    traced_streams,
)

__all__ = [
    "AblationResult",
    "ChangedPositions",
    "MaskValues",
    "MaskedRow",
    "Prediction",
    "RowSums",
    "RowsOfHeads",
    "SegmentVisibility",
    "Streams",
    "blocks",
    "causal",
    "change_and_compare",
    "close_picture",
    "influence",
    "kind",
    "largest_share",
    "numbers",
    "padding",
    "predict_under_mask",
    "prefix",
    "reach",
    "row",
    "rows",
    "streams",
    "tower_ends",
    "traced_streams",
    "visible",
    "whole",
]
