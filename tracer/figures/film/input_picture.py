"""Input of a run other than a photo or a text, for drawing: a wave, or a matrix in colours."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tracer.figures.film.half_numbers import HalfNumbers
from tracer.figures.film.sentences import Caption
from tracer.figures.palette import DIVERGING_SCALE, SEQUENTIAL, table
from tracer.figures.payload_budget import VALUES
from tracer.figures.tensors.cell_payload import short, tensor_of
from tracer.figures.tensors.heatmap import as_array, reduce
from tracer.record import TensorRecord, Trace

WAVE = 800
"""Columns of a wave at most; each is a line from the lowest to the highest of its values."""
ROWS, COLUMNS = 96, 320
"""Cells of a matrix at most."""
STOPS = 32
"""Colours of a scale."""


def name_of(tensors: Mapping[str, TensorRecord]) -> str | None:
    """Return the name of the largest input of real numbers that is a row or a matrix for each item of the batch."""
    drawn = {
        name: prod(record.shape)
        for name, record in tensors.items()
        if "float" in record.dtype and (record.symbolic or ())[:1] == ("B",) and len(record.shape) in (2, 3)
    }
    return max(drawn, key=drawn.__getitem__, default=None)


def values(trace: Trace, name: str) -> np.ndarray | None:
    """Return the numbers of an input for the first item of the batch; None where they are not available, or too
    many."""
    tensor = tensor_of(trace, name)
    if tensor is None or not 0 < prod(tensor.shape[1:]) <= VALUES:
        return None
    array = as_array(tensor[0])
    return array if np.isfinite(array).all() else None


def caption(array: np.ndarray | None, shape: tuple[int, ...]) -> Caption:
    """Return the caption of an input of a shape: how many numbers go in, and their range."""
    count = f"{shape[1]:,} numbers go in, one after the other" if len(shape) == 2 else ""
    count = count or f"A matrix of {shape[1]:,} × {shape[2]:,} numbers goes in"
    if array is None:
        return Caption("The input", f"{count}.")
    least, most = float(array.min()), float(array.max())
    sentence = f"{count}. They lie between {short(least)} and {short(most)}."
    return Caption("The input", sentence, {"least": least, "most": most})


def pack(array: np.ndarray, numbers: HalfNumbers) -> dict[str, Any]:
    """Return where the cells of an input lie, as shares.

    For a wave, they are shares of its largest number: a row of the lowest values of the columns, and one of the
    highest. For a matrix, they are shares of the way from one end of the scale to the other.
    """
    known = {"full": list(array.shape), "wave": array.ndim == 1}
    if array.ndim == 1:
        starts = np.arange(0, len(array), -(-len(array) // WAVE))
        cells = np.stack([ends.reduceat(array, starts) for ends in (np.minimum, np.maximum)])
        return known | {"shape": list(cells.shape), "at": numbers.add(cells / (np.abs(array).max() or 1)), "stops": []}
    cells = reduce(array, ROWS, COLUMNS)[0]
    low, high = float(cells.min()), float(cells.max())
    diverging = low < 0 < high
    start, end = (-max(-low, high), max(-low, high)) if diverging else (low, high if high > low else low + 1)
    colours = table(DIVERGING_SCALE if diverging else SEQUENTIAL, STOPS)
    stops = [list(colours[at : at + 3]) for at in range(0, len(colours), 3)]
    return known | {"shape": list(cells.shape), "at": numbers.add((cells - start) / (end - start)), "stops": stops}
