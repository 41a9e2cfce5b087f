"""A tensor as a heatmap of its last two axes: axes named after the symbols, a colour bar with numbers."""

import re
from collections.abc import Collection, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from tracer.figures.payload_budget import VALUES
from tracer.record import Step
from tracer.symbols.notation import AXES, latex

MAX_ROWS, MAX_COLUMNS = 256, 512
MATRICES, ALL_BYTES = 64, 400_000
"""Of a tensor with more matrices, or whose matrices take more bytes together, one is packed at a time."""
LETTER = re.compile(r"[A-Za-z]\w*")
"""A size in a formula of sizes."""
MAX_EXACT_CELLS = 4096
"""Cells that are packed with all their digits."""


def as_array(tensor) -> np.ndarray:
    """Return a tensor of any kind as a float array (half precision and bfloat16 become float32)."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().float().cpu().numpy()
    return np.asarray(tensor, dtype=np.float32)


def reduce(matrix: np.ndarray, rows: int = MAX_ROWS, columns: int = MAX_COLUMNS) -> tuple[np.ndarray, tuple[int, int]]:
    """Return `[…, rows, columns]` reduced to `rows` × `columns` cells, means of boxes, and the boxes' (height, width).

    The last row and column of boxes may be smaller; a box of one value is the value itself.
    """
    size = matrix.shape[-2:]
    high, wide = (max(1, -(-long // most)) for long, most in zip(size, (rows, columns), strict=True))
    if (high, wide) == (1, 1):
        return matrix, (1, 1)
    down, across = (np.arange(0, long, step) for long, step in zip(size, (high, wide), strict=True))
    sums = np.add.reduceat(np.add.reduceat(matrix.astype(np.float64), down, axis=-2), across, axis=-1)
    heights = np.diff(np.append(down, size[0]))
    widths = np.diff(np.append(across, size[1]))
    return (sums / np.outer(heights, widths)).astype(np.float32), (high, wide)


class HeatmapData(NamedTuple):
    """A tensor's picture: its facts as plain data, and the cells themselves, matrix after matrix."""

    facts: dict[str, Any]
    cells: bytes


def pack(
    value,
    symbolic: Sequence[str],
    stage: str,
    *,
    index: Sequence[int] = (),
    ticks: Sequence[str] | None = None,
    named: Collection[str] = (),
    kind: str = "sequential",
) -> HeatmapData | None:
    """Return the matrices of a tensor `[…, rows, columns]` for drawing in the browser; None if it is not drawn.

    All of them are packed if they are few and small, else the one at `index` of the leading axes. The facts: `lead` are
    the leading axes as [label, size], `which` the numbers of the packed matrices, counted in order, `shape` their rows
    and columns as drawn and `full` before reduction, `box` the values that a cell is the mean of, `axes` the labels of
    rows and columns, `roles` the roles of these (rows and columns of sizes that the caller `named`), `ticks` the names
    of columns. `slices` has for each matrix its scale, [lowest, highest, "diverging", "mask" or else `kind`], the text
    alternative without the tensor's name, and a caption. A mask of one value and -inf is 1 if it is open and has that
    value as its lowest. The cells are float16 of the values times 2**`power`, or float32 (`bits`) if they are few, or
    whole numbers that float16 would round.
    """
    names = list(symbolic)
    while value.ndim < 2:
        value, names = value[None], ["1", *names]
    lead, full = tuple(value.shape[:-2]), tuple(value.shape[-2:])
    if 0 in value.shape or full[0] * full[1] > VALUES:
        return None
    wanted = (*index, *[0] * len(lead))
    chosen = tuple(min(max(at, 0), size - 1) for at, size in zip(wanted, lead, strict=False))
    count = prod(lead)
    if _together(count, full):
        which, matrices = list(range(count)), as_array(value).reshape(count, *full)
    else:
        which, matrices = [int(np.ravel_multi_index(chosen, lead))], as_array(value[chosen])[None]
    cells, box = reduce(matrices)
    if np.isfinite(matrices).all():  # as most are
        note = _reduction(matrices[0], box)
        slices = [
            [*_range(drawn.min(), drawn.max(), kind), _description(matrix, matrix), note]
            for drawn, matrix in zip(cells, matrices, strict=True)
        ]
    else:
        cells, slices = np.array(cells, dtype=np.float32), []
        for place, matrix in enumerate(matrices):
            scale, cells[place] = _scale(cells[place], kind)
            slices.append([*scale, describe(matrix), caption(matrix)])
    square = stage == "attention" and names[-1] == names[-2]
    known = {name: role for name, role in AXES.items() if not named or not set(LETTER.findall(name)) & {*named}}
    roles = ("query", "key") if square else (known.get(names[-2], "row"), known.get(names[-1], "column"))
    facts = {
        "lead": [
            [f"${latex(name)}$ index" if name in named else _lead(name), size]
            for name, size in zip(names, lead, strict=False)
        ],
        "which": which,
        "shape": list(cells.shape[-2:]),
        "full": list(full),
        "box": list(box),
        "axes": [_axis(*axis) for axis in zip(roles, names[-2:], full, strict=True)],
        "roles": list(roles),
        "ticks": list(ticks) if ticks and box[1] == 1 else None,
        "slices": slices,
    }
    whole = not getattr(value, "is_floating_point", lambda: value.dtype.kind == "f")()
    return HeatmapData(*pack_cells(facts, cells, exact=whole))


def has_weights(step: Step) -> bool:
    """Return whether the tensor of a step are attention weights."""
    return step.stage == "attention" and step.symbol.startswith((r"\mathbf{A}", r"\check{\mathbf{A}}"))


def weight(shape: Sequence[int]) -> int:
    """Return the approximate number of bytes of a packed tensor's cells, by its shape."""
    full, count = (1, 1, *shape)[-2:], prod(shape[:-2])
    return 2 * min(full[0], MAX_ROWS) * min(full[1], MAX_COLUMNS) * (count if _together(count, full) else 1)


def _together(count: int, full: Sequence[int]) -> bool:
    """Return whether that many matrices are packed at once."""
    return count <= MATRICES and 2 * count * min(full[0], MAX_ROWS) * min(full[1], MAX_COLUMNS) <= ALL_BYTES


def pack_cells(facts: dict[str, Any], cells: np.ndarray, exact: bool = False) -> tuple[dict[str, Any], bytes]:
    """Return `facts` with `bits` and `power`, and the cells as bytes, as `pack` returns them."""
    known = cells if (finite := np.isfinite(cells)).all() else cells[finite]
    most = float(max(known.max(), -known.min())) if known.size else 0.0
    if cells.size <= MAX_EXACT_CELLS or (exact and most > 2048):
        return facts | {"bits": 32, "power": 0}, cells.astype("<f4").tobytes()
    power = 15 - int(np.frexp(most)[1]) if most else 0
    scaled = np.ldexp(cells, power)
    return facts | {"bits": 16, "power": power}, scaled.astype("<f2").tobytes()


def _scale(cells: np.ndarray, kind: str) -> tuple[tuple[float, float, str], np.ndarray]:
    """Return (lowest, highest, kind) of the colours of a matrix, and the cells that are drawn with them."""
    if (open_value := mask_value(cells)) is not None:
        return (open_value, open_value, "mask"), np.isfinite(cells).astype(np.float32)
    known = cells[np.isfinite(cells)]
    lowest, highest = (known.min(), known.max()) if known.size else (0.0, 1.0)
    return _range(lowest, highest, kind), cells


def _range(lowest: float, highest: float, kind: str) -> tuple[float, float, str]:
    """Return (lowest, highest, kind) of the colours of finite values between these."""
    low, high = float(lowest), float(highest)
    if low < 0 < high:
        edge = max(-low, high)
        return -edge, edge, "diverging"
    return low, high if high > low else low + 1, kind


def mask_value(matrix: np.ndarray) -> float | None:
    """Return the one finite value of a matrix with only −∞ beside it, as an additive mask has, else None."""
    known = matrix[np.isfinite(matrix)]
    if known.size == matrix.size or not known.size or known.min() != known.max():
        return None
    return float(known.flat[0]) if np.isneginf(matrix).sum() + known.size == matrix.size else None


def caption(matrix: np.ndarray) -> str:
    """Return one sentence on the reduction of the picture and its empty cells; "" if it shows every value."""
    _, box = reduce(matrix)
    parts = [text] if (text := _reduction(matrix, box)) else []
    if mask_value(matrix) is not None:
        parts.append(f"{int(np.isinf(matrix).sum()):,} of {matrix.size:,} values are −∞.")
    elif missing := int((~np.isfinite(matrix)).sum()):
        kinds = {"−∞": np.isneginf(matrix).any(), "+∞": np.isposinf(matrix).any(), "NaN": np.isnan(matrix).any()}
        kind_names = " or ".join(name for name, there in kinds.items() if there)
        parts.append(f"{missing:,} {'value is' if missing == 1 else 'values are'} {kind_names} and left empty.")
    return " ".join(parts)


def _reduction(matrix: np.ndarray, box: tuple[int, int]) -> str:
    if box == (1, 1):
        return ""
    high, wide = box
    return f"Each cell is the mean of {high} × {wide} values, because {matrix.size:,} don't fit on a screen."


def describe(matrix: np.ndarray) -> str:
    """Return the size and the smallest, mean and largest value of a matrix, to follow the words "Heatmap of …"."""
    known = matrix[np.isfinite(matrix)]
    if not known.size:
        return f"{matrix.shape[0]} × {matrix.shape[1]}, no finite value."
    return _description(matrix, known)


def _description(matrix: np.ndarray, known: np.ndarray) -> str:
    return (
        f"{matrix.shape[0]} rows × {matrix.shape[1]} columns: "
        f"smallest {known.min():.3g}, mean {known.mean():.3g}, largest {known.max():.3g}."
    )


def _axis(role: str, symbolic: str, size: int) -> str:
    return f"{role}, ${latex(symbolic)} = {size}$" if symbolic not in ("?", str(size)) else f"{role}, {size}"


def _lead(name: str) -> str:
    """Return the label of a leading axis's slider."""
    return {"h": "Head", "B": "Input of the batch"}.get(name, f"${latex(name)}$ index" if name != "?" else "Index")
