"""Matrices side by side as small pictures that a browser draws and describes, each with named axes and a scale."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracer.figures.palette import tables
from tracer.figures.tensors.heatmap import as_array, pack_cells, reduce


class Panel(NamedTuple):
    """A matrix `[rows, columns]` with its title, the names of its axes, and the first index on each.

    `edge` is the end of a scale around 0 that several share, `top` of one from 0; without them, the matrix has a scale
    of its own. `weights` says that the cells are attention weights, which have a colour of their own. `square` cells
    are as tall as they are wide. `names` replace the numbers of rows. `frame` is put around one "row" or "column", by
    its index from 0, and says what it is.
    """

    title: str
    cells: object
    row: str
    column: str
    first: tuple[int, int] = (1, 1)
    edge: float = 0.0
    square: bool = True
    names: Sequence[str] = ()
    top: float = 0.0
    frame: tuple[str, int, str] | None = None
    weights: bool = False


def edge(*matrices: object) -> float:
    """Return the end of a symmetric scale that fits all of these; cells that are not finite are left out."""
    known = [np.abs(cells[np.isfinite(cells)]) for cells in map(as_array, matrices)]
    return max((float(cells.max()) for cells in known if cells.size), default=0.0) or 1.0


def pack(panels: Sequence[Panel]) -> bytes:
    """Return the pictures as bytes.

    These are the length of the header in four bytes, little end first, the JSON header, three colour scales of 256 RGB
    triples, then the cells; header and cells start at a multiple of four.
    """
    facts, blobs, at = [], [], 0
    for panel in panels:
        cells, box = reduce(as_array(panel.cells))
        low, high, scale = (0.0, panel.top, "sequential") if panel.top else _scale(cells, panel.edge)
        known = {
            "title": panel.title,
            "axes": [panel.row, panel.column],
            "first": panel.first,
            "box": box,
            "shape": cells.shape,
            "full": as_array(panel.cells).shape,
            "ends": [low, high],
            "scale": "attention" if panel.weights else scale,
            "square": panel.square,
            "names": list(panel.names),
            "frame": panel.frame,
            "which": [0],
            "at": at,
        }
        known, blob = pack_cells(known, np.asarray(cells, dtype=np.float32))
        facts.append(known)
        blobs += [blob, bytes(-len(blob) % 4)]
        at += len(blob) + -len(blob) % 4
    text = json.dumps(facts, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    return b"".join((len(text).to_bytes(4, "little"), text, tables(), *blobs))


def _scale(cells: np.ndarray, shared: float) -> tuple[float, float, str]:
    """Return the ends of a matrix's colours, and the kind of its scale."""
    known = cells[np.isfinite(cells)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
    if shared or low < 0:
        end = shared or max(-low, high)
        return -end, end, "diverging"
    return low, high if high > low else low + 1, "sequential"
