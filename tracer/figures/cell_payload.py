"""One cell of a run for the browser: its number, its equation with numbers, its operands, and the cells that read it.

Places are counted from 1 in all that is read on screen, and from 0 in `index`, which is an index as code has it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tracer.attention import parts
from tracer.figures import attention_maps
from tracer.figures.tensors import as_array, has_weights, mask_value, reduce, scale_ends
from tracer.record import Step, Trace
from tracer.record.trace import Cell, Number, User
from tracer.symbols.letters import OWN, Letters
from tracer.symbols.notation import AXES
from tracer.utils.errors import quote
from tracer.utils.lazy_import import lazy_import
from tracer.utils.text import all_digits, numeral, signed, symbol_text

if TYPE_CHECKING:
    from tracer.tracing import provenance
else:  # imported when first used
    provenance = lazy_import("tracer.tracing.provenance")


TERMS = 24
"""Terms that are listed; the others are added up."""
ROWS, COLUMNS = 48, 96
"""Cells of the small picture of an operand."""
BOX = 4096
"""Numbers that one mean is made of at most."""
PLACE = re.compile(r"(.+):((?:\d{1,9}(?:-\d{1,9})?)(?:\.\d{1,9}(?:-\d{1,9})?)*|)", re.DOTALL)
"""A cell as an address names it: `block1.attention.scores:0.1.5.2`, or `…:0.1.4-5.2-3` for the mean of a box."""
SAVED_RUN_NOTE = (
    "This run was opened from a file, which holds numbers and not the equations as code, so the way does not go on "
    "from here. Run the model again to follow it."
)


def read_place(text: str) -> tuple[str, tuple[tuple[int, int], ...]] | None:
    """Parse the id and the first and last index along each axis of a cell in an address; None for any other text."""
    if (match := PLACE.fullmatch(text)) is None:
        return None
    spans = [span.partition("-")[::2] for span in match[2].split(".")] if match[2] else []
    return match[1], tuple((int(first), int(last or first)) for first, last in spans)


def build(trace: Trace, place: str, letters: Letters = OWN) -> dict[str, Any]:
    """Return everything to display of one cell, with equations in these letters, or `{"problem": …}` with one
    sentence."""
    if (read := read_place(place)) is None:
        return {"problem": f"{quote(place)} is not a cell, expected a name, a colon and its index."}
    id, spans = read
    index = tuple(first for first, _ in spans)
    try:
        if any(first != last for first, last in spans):
            return _mean(trace, place, id, spans)
        cell = _cell(trace, trace.cell(id, index)) if trace.later else _kept_cell(trace, id, index)
        return {name: _with_letters(name, value, letters) for name, value in cell.items()}
    except (KeyError, ValueError) as error:
        text = str(error.args[0] if error.args else error)
        return {"problem": f"{text[:1].upper()}{text[1:]}."}


def _with_letters(name: str, value: Any, letters: Letters) -> Any:
    """Return a part of the answer, of that name, with its LaTeX in these letters."""
    if isinstance(value, dict):
        other = {key: _with_letters(key, part, letters) for key, part in value.items()}
        return other | ({"plain": symbol_text(other["symbol"])} if "plain" in other and "symbol" in other else {})
    if isinstance(value, list):
        return [_with_letters(name, part, letters) for part in value]
    return letters.line(value) if name in ("symbol", "latex") and isinstance(value, str) else value


def value(trace: Trace, place: str) -> str:
    """Return the number of a cell with all its digits, or the mean of a box; empty where it is not available."""
    if (read := read_place(place)) is None:
        return ""
    id, spans = read
    tensor = tensor_of(trace, id)
    if tensor is None or not _inside(spans, tensor.shape):
        return ""
    box = tensor[tuple(slice(first, last + 1) for first, last in spans)]
    return all_digits(box.item()) if box.numel() == 1 else f"{float(box.double().mean()):.9g}"


def _inside(spans: Sequence[tuple[int, int]], shape: Sequence[int]) -> bool:
    """Return whether a tensor of this shape has all cells of a box."""
    return len(spans) == len(shape) and all(a <= b < n for (a, b), n in zip(spans, shape, strict=True))


def tensor_of(trace: Trace, id: str) -> Any:
    """Return the tensor of a step, an input or a parameter, None where it is not available."""
    if id in trace.values:
        return trace.values[id]
    step = next((step for step in trace.steps if step.id == id), None)
    if step is not None and (kept := trace.value(step)) is not None:
        return kept
    if trace.later is None:
        return trace.values.get(id)
    return trace.later.values(provenance.RecomputedValues)(id)


def with_tensors(trace: Trace, ids: Collection[str]) -> Trace:
    """Return a run that has the tensors of these steps. Those that it did not keep are recomputed together, in one
    run."""
    lacking = {step.id for step in trace.steps if step.id in ids and trace.value(step) is None}
    if trace.later is None or not lacking:
        return trace
    return replace(trace, values={**trace.values, **trace.later.values(provenance.RecomputedValues).recompute(lacking)})


def _kept_cell(trace: Trace, id: str, index: tuple[int, ...]) -> dict[str, Any]:
    """Return a cell of a run that was opened from a file."""
    step = trace.step(id) if id not in trace.values else None
    tensor = tensor_of(trace, id)
    if tensor is None:
        raise ValueError(f"the tensor {quote(id)} is not in the file")
    if len(index) != tensor.ndim or any(at >= n for at, n in zip(index, tensor.shape, strict=True)):
        raise ValueError(f"{index} is not a cell of {quote(id)}, whose shape is {list(tensor.shape)}")
    number = tensor[index].item()
    cell = Cell(id, index, number, None, step.latex if step else "", {}, SAVED_RUN_NOTE, trace=trace)
    return _cell(trace, cell)


def _cell(trace: Trace, cell: Cell) -> dict[str, Any]:
    steps = {step.id: step for step in trace.steps}
    step = steps.get(cell.id)
    rows, more, beside = _rows(trace, steps, cell)
    return {
        **_head(trace, step, cell.id, cell.index),
        "value": all_digits(cell.value),
        "latex": cell.latex,
        "numeric": cell.numeric_latex and f"= {cell.numeric_latex}",
        "exact": _exact(cell),
        "note": cell.note,
        "rows": rows,
        "more": more,
        "beside": beside,
        "operands": _operands(trace, steps, cell),
        "users": [_user(trace, steps[user.step], user) for user in cell.users()],
        "code": f"trace.cell({cell.id!r}, {cell.index})",
        "ends": "" if cell.terms else _end(trace, cell),
    }


def _exact(cell: Cell) -> str:
    """Return the sum of the terms in float64, beside the number of the run."""
    if cell.computed is None or isinstance(cell.computed, complex) or isinstance(cell.value, complex):
        return ""
    if not isfinite(cell.computed):
        return ""
    apart = abs(cell.computed - cell.value)
    return signed(f"The terms come to {cell.computed:.9g}") + (
        f", {apart:.1g} from the number that ran: rounding." if apart else ", the number that ran."
    )


def _head(trace: Trace, step: Step | None, id: str, index: Sequence[int]) -> dict[str, Any]:
    return {
        "id": id,
        "index": list(index),
        "step": step.id if step else "",
        "title": step.title if step else _kind(id),
        "symbol": step.symbol if step else _letter(trace, id),
        "place": _place(_printed_index(trace, id, index)),
        "where": where(trace, id, index),
    }


def _kind(id: str) -> str:
    kind, _, name = id.partition(" ")
    return {"input": f"Input {name}", "parameter": f"Weight {name}", "constant": f"Constant {name}"}.get(kind, id)


def _letter(trace: Trace, id: str) -> str:
    return next(
        (name.symbol for step in trace.steps for name in step.names if name.of == id), rf"\text{{{_plain(id)}}}"
    )


def _plain(id: str) -> str:
    return re.sub(r"[^\w .]", " ", id).replace("_", r"\_")


def _printed_index(trace: Trace, id: str, index: Sequence[int]) -> Sequence[int]:
    """Return an index in the layout of equations: they print the weight of a linear layer `[in, out]`, and PyTorch
    stores its transpose."""
    return (*index[:-2], index[-1], index[-2]) if len(index) > 1 and _is_transposed(trace, id) else index


def _is_transposed(trace: Trace, id: str) -> bool:
    uses = [name.transposed for step in trace.steps for name in step.names if name.of == id]
    return bool(uses) and all(uses)


def _place(index: Sequence[int]) -> str:
    """Return an index as displayed: counted from 1."""
    return f"[{', '.join(str(at + 1) for at in index)}]" if index else ""


def where(trace: Trace, id: str, index: Sequence[int]) -> str:
    """Describe the index of a cell in words: its head, its tokens, its features; a batch of one is left out."""
    step = next((step for step in trace.steps if step.id == id), None)
    if step is None:
        return _where_outside(trace, id, index)
    words = []
    for axis, (name, at, size) in enumerate(zip(step.symbolic, index, step.shape, strict=True)):
        role = _role(step, axis, f"place along {name}" if name != "?" else "place")
        if size == 1 and name in ("B", "1"):
            continue
        words.append(f"{role} {at + 1}{_token(trace, id, role, at, size)}")
    return "; ".join(words)


def _role(step: Step, axis: int, unknown: str) -> str:
    """Return the role of one index along an axis, such as a head, a token, a key."""
    names = step.symbolic
    square = len(names) > 1 and step.stage == "attention" and names[-1] == names[-2]
    if square and axis >= len(names) - 2:
        return ("query", "key")[axis - len(names) + 2]
    return {"h": "head", "B": "input"}.get(names[axis]) or AXES.get(names[axis], unknown)


def _where_outside(trace: Trace, id: str, index: Sequence[int]) -> str:
    if id == "input image" and len(index) == 4:
        channel = ("red", "green", "blue")[index[1]] if index[1] < 3 else f"channel {index[1] + 1}"
        return f"{channel}, row of pixels {index[2] + 1}, pixel {index[3] + 1}"
    return ""


def _token(trace: Trace, id: str, role: str, at: int, size: int) -> str:
    """Return the name of a token behind a colon, where the axis is of tokens or of patches."""
    if role == "patch" and trace.picture and size == trace.picture.rows * trace.picture.columns:
        row, column = divmod(at, trace.picture.columns)
        return f": row {row + 1}, column {column + 1}"
    if role not in ("token", "query", "key"):
        return ""
    towers = parts(trace)
    part = next((part for part in towers if part and id.startswith(f"{part}.")), towers[0] if towers else None)
    names = attention_maps.names(trace, part, size) if part is not None else []
    return f": {names[at]}" if at < len(names) and not names[at].isdecimal() else ""


def _end(trace: Trace, cell: Cell) -> str:
    """Describe a number that no line of the run computed."""
    if cell.note:
        return ""
    kind = cell.id.partition(" ")[0]
    if kind == "parameter":
        return "The way ends here: this number is a weight that the model learned."
    if kind == "input":
        if cell.id == "input image":
            return "The way ends here: this is a number of the photo, as the model reads it."
        words = trace.words
        if len(cell.index) == 2 and cell.index[1] < len(words) and cell.id.endswith(("tokens", "text", "ids")):
            return f"The way ends here: this is the id of token {cell.index[1] + 1}, “{words[cell.index[1]]}”."
        return "The way ends here: this is a number of the input."
    if kind in ("number", "constant"):
        return "The way ends here: this number stands in the model's code."
    return "The way ends here: this line computes its numbers from sizes and positions alone."


def _rows(trace: Trace, steps: Mapping[str, Step], cell: Cell):
    """Return the terms as rows, the largest contribution first; the sum of the rest; and the numbers that are read and
    not counted."""
    counted: list[tuple[str, Number]] = []
    uncounted: dict[str, list[Number]] = {}
    for key, numbers in cell.terms.items():
        for number in numbers:
            counted.append((key, number)) if number.counted else uncounted.setdefault(key, []).append(number)
    partners = _partners(cell)
    counted.sort(key=lambda term: -_size(term[1]))
    total = sum(_size(number) for _, number in counted) or 1
    rows = []
    for key, number in counted[:TERMS]:
        row = _term(trace, steps, cell, key, number, total)
        if partner := partners.get((key, number.index)):
            row["by"] = _operand(trace, steps, cell, *partner)
        rows.append(row)
    rest = [number.share for _, number in counted[TERMS:]]
    known = [share for share in rest if share is not None]
    more = {"count": len(rest), "share": numeral(sum(known)) if len(known) == len(rest) else ""} if rest else None
    paired = {(key, number.index) for key, number in partners.values()}
    every = ((key, number) for key, numbers in uncounted.items() for number in numbers)
    beside = [(key, number) for key, number in every if (key, number.index) not in paired]
    beside.sort(key=lambda term: -_size(term[1]))
    return rows, more, [_operand(trace, steps, cell, key, number) for key, number in beside[: TERMS // 2]]


def _size(number: Number) -> float:
    return abs(number.share) if number.share is not None and number.share == number.share else 0.0


def _partners(cell: Cell) -> dict[tuple[str, tuple[int, ...]], tuple[str, Number]]:
    """Return, for each counted number of a sum of products, the number that it is multiplied by."""
    groups = [(key, numbers) for key, numbers in cell.terms.items() if len(numbers) > 1]
    for key, numbers in groups:
        for other, others in groups:
            if key == other or len(numbers) != len(others):
                continue
            pairs = list(zip(numbers, others, strict=True))
            if all(a.counted and not b.counted and a.share == b.share is not None for a, b in pairs):
                return {(key, a.index): (other, b) for a, b in pairs}
    return {}


def _term(
    trace: Trace, steps: Mapping[str, Step], cell: Cell, key: str, number: Number, total: float
) -> dict[str, Any]:
    share = number.share
    return _operand(trace, steps, cell, key, number) | {
        "share": "" if share is None else numeral(share),
        "part": _size(number) / total,
        "negative": bool(share is not None and not isinstance(share, complex) and share < 0),
    }


def _operand(trace: Trace, steps: Mapping[str, Step], cell: Cell, key: str, number: Number) -> dict[str, Any]:
    return {
        "id": key,
        "index": list(number.index),
        "symbol": cell.symbols.get(key) or (steps[key].symbol if key in steps else ""),
        "place": _place(_printed_index(trace, key, number.index)),
        "where": where(trace, key, number.index) if not key.startswith("number ") else "",
        "value": numeral(number.value),
        "ends": key.startswith("number "),
    }


def _operands(trace: Trace, steps: Mapping[str, Step], cell: Cell) -> list[dict[str, Any]]:
    """Return a small picture of each tensor that the cell was computed from, with the numbers that it read
    highlighted."""
    places = {key: [number.index for number in numbers] for key, numbers in cell.terms.items()}
    if not places:
        places = {cell.id: [cell.index]}
    pictures = []
    for key, indices in list(places.items())[:6]:
        tensor = None if key.startswith("number ") else tensor_of(trace, key)
        if tensor is None or not tensor.ndim or tensor.is_complex():
            continue
        pictures.append(_picture(trace, steps, cell, key, tensor, indices))
    return pictures


def _picture(trace: Trace, steps, cell: Cell, key: str, tensor, indices) -> dict[str, Any]:
    lead = indices[0][:-2]
    here = [index for index in indices if index[:-2] == lead]
    matrix = as_array(tensor[lead] if lead else tensor)
    matrix = matrix[None] if matrix.ndim == 1 else matrix
    if _is_transposed(trace, key) and len(here[0]) > 1:
        matrix, here = matrix.T, [(*index[:-2], index[-1], index[-2]) for index in here]
    if matrix.size > 1 << 22:  # the rows around what was read say enough
        matrix = matrix[: max(1, (1 << 22) // matrix.shape[1])]
    cells, box = reduce(matrix, ROWS, COLUMNS)
    step = steps.get(key)
    known = cells[np.isfinite(cells)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    low, high, scale = scale_ends(low, high, "attention" if step and has_weights(step) else "sequential")
    scaled = np.nan_to_num((cells - low) / (high - low), nan=0.0, posinf=1.0, neginf=0.0).clip(0, 1)
    rows = [index[-2] if len(index) > 1 else 0 for index in here]
    columns = [index[-1] for index in here]
    return {
        "id": key,
        "symbol": cell.symbols.get(key) or (step.symbol if step else _letter(trace, key)),
        "title": step.title if step else _kind(key),
        "lead": f"{_place(lead)[:-1]}, …]" if lead and prod(tensor.shape[:-2]) > 1 else "",
        "full": list(matrix.shape),
        "scale": scale,
        "mask": mask_value(matrix) is not None,
        "cells": (scaled * 255).round().astype(np.uint8),
        "lit": [
            min(rows) / matrix.shape[0],
            (max(rows) + 1) / matrix.shape[0],
            min(columns) / matrix.shape[1],
            (max(columns) + 1) / matrix.shape[1],
        ],
        "count": len(indices),
        "box": list(box),
    }


def _user(trace: Trace, step: Step, user: User) -> dict[str, Any]:
    """Return the cells of one line that read the number, in words, with the first of them."""
    count = prod(map(len, user.axes))
    spans = []
    for axis, (places, size) in enumerate(zip(user.axes, step.shape, strict=True)):
        if size == 1:
            continue
        role = _role(step, axis, "place")
        if len(places) == 1:
            spans.append(f"{role} {places[0] + 1}")
        elif len(places) == size:
            spans.append(f"all {size} {_plural(role)}")
        else:
            spans.append(f"{_plural(role)} {places[0] + 1} to {places[-1] + 1}")
    index = [places[0] for places in user.axes]
    cells = "One cell" if count == 1 else f"{'' if user.exact else 'At most '}{count:,} cells"
    return {
        "id": step.id,
        "index": index,
        "symbol": step.symbol,
        "plain": symbol_text(step.symbol),
        "title": step.title + (f", block {step.layer + 1}" if step.layer is not None else ""),
        "text": f"{cells}: {', '.join(spans)}" if spans else cells,
    }


def _plural(role: str) -> str:
    head, _, tail = role.partition(" ")
    plural = {"query": "queries", "class": "classes", "patch": "patches", "matrix": "matrices"}.get(head, f"{head}s")
    return f"{plural} {tail}".strip()


def _mean(trace: Trace, place: str, id: str, spans: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the mean of a box of numbers, as a picture draws it where a tensor has more cells than fit."""
    step = next((step for step in trace.steps if step.id == id), None)
    tensor = tensor_of(trace, id)
    if tensor is None:
        raise ValueError(f"the tensor {quote(id)} was not kept")
    count = prod(last - first + 1 for first, last in spans)
    if not _inside(spans, tensor.shape) or count > BOX:
        raise ValueError(f"{quote(place)} is not a box of that tensor, whose shape is {list(tensor.shape)}")
    box = tensor[tuple(slice(first, last + 1) for first, last in spans)].double()
    index = tuple(first for first, _ in spans)
    numbers = [
        Number(
            tuple(first + i for (first, _), i in zip(spans, at, strict=True)), float(box[at]), float(box[at]) / count
        )
        for at in np.ndindex(*box.shape)
    ]
    mean = float(box.mean())
    cell = Cell(id, index, mean, mean, "", {id: tuple(numbers)}, trace=trace)
    steps = {step.id: step for step in trace.steps}
    rows, more, _ = _rows(trace, steps, cell)
    texts = [numeral(number.value) for number in numbers[:4]] + (["…"] if count > 4 else [])
    slices = ", ".join(f"{first}:{last + 1}" if first < last else str(first) for first, last in spans)
    spans_read = ", ".join(f"{first + 1}" if first == last else f"{first + 1} to {last + 1}" for first, last in spans)
    return {
        **_head(trace, step, id, index),
        "place": f"[{spans_read}]",
        "where": "",
        "mean": f"This is a mean of {count:,} cells: the picture has fewer cells than the tensor.",
        "value": signed(f"{mean:.9g}"),
        "latex": "",
        "numeric": rf"= \frac{{{' + '.join(texts).replace('−', '-').replace('…', chr(92) + 'ldots')}}}{{{count}}}",
        "exact": "",
        "note": "",
        "rows": rows,
        "more": more,
        "beside": [],
        "operands": _operands(trace, steps, cell),
        "users": [],
        "code": f"trace.value({id!r})[{slices}].mean()",
        "ends": "",
    }
