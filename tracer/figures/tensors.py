"""The picture of a tensor: its last two axes as a heatmap, axes named after the symbols, a colour bar with numbers."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from tracer.figures import colours
from tracer.figures.labels import size_html, symbol_html
from tracer.figures.layout import CLEAR, PLAIN, title

MAX_ROWS, MAX_COLUMNS = 256, 512


def as_array(tensor) -> np.ndarray:
    """A tensor of any kind as a float array (half precision and bfloat16 become float32)."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().cpu().numpy()
    return np.asarray(tensor, dtype=np.float32)


def reduce(matrix: np.ndarray, rows: int = MAX_ROWS, columns: int = MAX_COLUMNS) -> tuple[np.ndarray, tuple[int, int]]:
    """A matrix of at most `rows` × `columns` cells, each the mean of a box of values, and the box's (height, width).

    The last row and column of boxes may be smaller; a box of one value is the value itself.
    """
    high, wide = (max(1, -(-size // most)) for size, most in zip(matrix.shape, (rows, columns), strict=True))
    if (high, wide) == (1, 1):
        return matrix, (1, 1)
    starts = (np.arange(0, size, step) for size, step in zip(matrix.shape, (high, wide), strict=True))
    down, across = starts
    sums = np.add.reduceat(np.add.reduceat(matrix.astype(np.float64), down, axis=0), across, axis=1)
    heights = np.diff(np.append(down, matrix.shape[0]))
    widths = np.diff(np.append(across, matrix.shape[1]))
    return (sums / np.outer(heights, widths)).astype(np.float32), (high, wide)


def heatmap(
    matrix: np.ndarray,
    symbol: str,
    symbolic: Sequence[str],
    *,
    roles: tuple[str, str] = ("row", "column"),
    ticks: Sequence[str] | None = None,
) -> go.Figure:
    r"""The heatmap of a matrix `[rows, columns]`: row 0 on top, colour bar titled with the tensor's symbol.

    `symbol` is LaTeX (`\mathbf{Q}`), `symbolic` the two symbolic sizes. Values of both signs get a diverging scale
    centred on 0, others a sequential one; -inf and NaN are left empty. A mask of one value and -inf gets two colours.
    `roles` says what rows and columns are, where their sizes alone don't; `ticks` names the columns.
    """
    cells, box = reduce(np.atleast_2d(matrix))
    if (open_value := mask_value(cells)) is not None:
        cells = np.isfinite(cells).astype(np.float32)
    cells = np.where(np.isfinite(cells), cells, np.nan)
    known = cells[np.isfinite(cells)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    bar, hover = {}, "%{z:.4g}"
    if open_value is not None:
        closed, opened = colours.MASK
        scale = {"colorscale": [(0, closed), (0.5, closed), (0.5, opened), (1, opened)], "zmin": 0, "zmax": 1}
        bar, hover = {"tickvals": [0.25, 0.75], "ticktext": ["−∞", f"{open_value:g}"]}, "%{text}"
        scale["text"] = np.where(cells > 0, f"{open_value:g}", "−∞")
    elif low < 0 < high:
        edge = max(-low, high)
        scale = {"colorscale": colours.DIVERGING, "zmin": -edge, "zmax": edge}
    else:
        scale = {"colorscale": colours.SEQUENTIAL, "zmin": low, "zmax": high if high > low else low + 1}
    rows, columns = ([index * step for index in range(size)] for size, step in zip(cells.shape, box, strict=True))
    heat = dict(
        type="heatmap",
        z=cells,
        x=list(ticks) if ticks and box[1] == 1 else columns,
        y=rows,
        colorbar={
            "title": {"text": symbol_html(symbol)},
            "thickness": 14,
            "outlinewidth": 0,
            "nticks": 4 if cells.shape[0] < 20 else 9,
            "tickfont": {"size": 14},
            **bar,
        },
        hovertemplate=f"{roles[0]} %{{y}}, {roles[1]} %{{x}}: {hover}<extra></extra>",
        **scale,
    )
    names = (_axis(role, size, count) for role, size, count in zip(roles, symbolic, matrix.shape, strict=True))
    down, across = ({"title": title(name), "tickfont": {"size": 14}, **PLAIN} for name in names)
    down |= {"autorange": "reversed", **({"dtick": box[0]} if cells.shape[0] <= 12 else {})}
    return go.Figure(
        heat,
        {
            "xaxis": across,
            "yaxis": down,
            "height": int(np.clip(cells.shape[0] * 7 + 110, 230, 560)),
            "font": {"size": 15},
            "margin": {"l": 8, "r": 8, "t": 16, "b": 8},
            **CLEAR,
        },
    )


def mask_value(matrix: np.ndarray) -> float | None:
    """The one finite value of a matrix that else holds only −∞, as a mask does that is added; else None."""
    known = matrix[np.isfinite(matrix)]
    if known.size == matrix.size or not known.size or known.min() != known.max():
        return None
    return float(known.flat[0]) if np.isneginf(matrix).sum() + known.size == matrix.size else None


def caption(matrix: np.ndarray) -> str:
    """One sentence on how the picture was reduced and what it leaves empty; empty where it shows every value."""
    _, (high, wide) = reduce(matrix)
    parts = []
    if (high, wide) != (1, 1):
        parts.append(f"Each cell is the mean of {high} × {wide} values, because {matrix.size:,} don't fit on a screen.")
    if mask_value(matrix) is not None:
        parts.append(f"{int(np.isinf(matrix).sum()):,} of {matrix.size:,} values are −∞.")
    elif missing := int((~np.isfinite(matrix)).sum()):
        kinds = {"−∞": np.isneginf(matrix).any(), "+∞": np.isposinf(matrix).any(), "NaN": np.isnan(matrix).any()}
        found = " or ".join(name for name, there in kinds.items() if there)
        parts.append(f"{missing:,} {'value is' if missing == 1 else 'values are'} {found} and left empty.")
    return " ".join(parts)


def describe(matrix: np.ndarray, name: str) -> str:
    """The text alternative of the heatmap: what it shows, its size, smallest, mean and largest value."""
    known = matrix[np.isfinite(matrix)]
    if not known.size:
        return f"Heatmap of {name}, {matrix.shape[0]} × {matrix.shape[1]}, no finite value."
    return (
        f"Heatmap of {name}, {matrix.shape[0]} rows × {matrix.shape[1]} columns: "
        f"smallest {known.min():.3g}, mean {known.mean():.3g}, largest {known.max():.3g}."
    )


def _axis(role: str, symbolic: str, size: int) -> str:
    return f"{role}, {size_html(symbolic)} = {size}" if symbolic not in ("?", str(size)) else f"{role}, {size}"
