"""Similarity of the learned positions of patches: cosines between the rows of a model's table, on its grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tracer.figures.tensors.heatmap import as_array

if TYPE_CHECKING:
    from tracer.record import Trace


@dataclass(frozen=True, eq=False)
class Grid:
    """Cosines between the positions of N patches in rows and columns, `[N, N]`.

    It also has the table's letter in the equations, and its number of rows.
    """

    rows: int
    columns: int
    cosines: np.ndarray
    letter: str
    length: int

    def distances(self) -> np.ndarray:
        """Return the number of steps between two patches, the larger of those down and across: `[N, N]`."""
        down, across = np.divmod(np.arange(self.rows * self.columns), self.columns)
        return np.maximum(np.abs(down[:, None] - down), np.abs(across[:, None] - across))

    def mean(self, steps: int) -> float:
        """Return the mean cosine of patches that are that many steps apart."""
        return float(self.cosines[self.distances() == steps].mean())

    @property
    def farthest(self) -> int:
        """Largest number of steps between two patches."""
        return max(self.rows, self.columns) - 1


def grid(trace: Trace, net: torch.nn.Module) -> Grid | None:
    """Return the learned positions of the patches of a run's photo, or None if the run adds no such table.

    Rows of the table before those of the patches, such as that of the CLS token, are left out. Source: Dosovitskiy et
    al. 2021, figure 7, center.
    """
    if (picture := trace.picture) is None:
        return None
    count = picture.rows * picture.columns
    named = dict(net.named_parameters())
    used = [name for step in trace.steps if step.stage == "position" for name in step.names]
    for row in used:
        rows = named.get(row.of.removeprefix("parameter "))
        if rows is not None and rows.dim() == 2 and len(rows) == picture.first + count > 1:
            with torch.no_grad():
                unit = torch.nn.functional.normalize(rows[picture.first :].double(), dim=1)
                return Grid(picture.rows, picture.columns, as_array(unit @ unit.mT), row.symbol, len(rows))
    return None
