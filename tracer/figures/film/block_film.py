"""A block of a film, expanded: a film of its own whose beats are the block's steps, each with its operands and its
result as pictures to scale.

It has the form of `tracer.figures.film.message`, and `pictures` besides: what is drawn of each tensor, one byte for
each cell. A picture that several steps read is sent once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from tracer.figures.cell_payload import tensor_of, with_tensors
from tracer.figures.drawing import VALUES, tables
from tracer.figures.film.message import line_facts
from tracer.figures.film.sentences import STEPS, Caption
from tracer.figures.film.storyboard import Beat, Storyboard
from tracer.figures.tensors import as_array, has_weights, reduce, scale_ends
from tracer.record import Operand, Step, Trace
from tracer.utils.errors import quote
from tracer.utils.text import numeral, symbol_text

MAX_BYTES = 250_000
"""Bytes of a message."""
ROOM = 225_000
"""Bytes of pictures in a message, at most."""
OVERHEAD, PER_PICTURE = 8_000, 400
"""Bytes of a message beside its pictures and the texts of its steps, and of what a picture says of itself."""
CELLS = ((96, 128), (80, 80), (64, 64), (48, 32), (24, 24), (12, 12), (8, 8), (4, 4))
"""Rows and columns of a picture at most: the first at which all pictures fit into the room."""
HEADS = 16
"""Matrices of one tensor that are sent, at most."""
OPERANDS = 3
"""Operands beside a result that is no matrix product, at most."""
PART = re.compile(r"\\left\[|_\{\[[^\]]*:")
"""What a symbol has of a factor that is a part of a tensor, or several joined: no tensor of the run is it."""
MOST_PRODUCTS = 20_000_000
"""Products that are computed again to compare a step with its factors."""
MIN_INFINITE = 1e30
"""From this size on, a number stands for one without an end: masks of libraries have the smallest of their dtype."""
EMPTY_BYTE = 255
"""The byte of a cell that is not finite, such as one that a mask closes."""


Producers = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class _Drawn:
    """A tensor as matrices `[heads, rows, columns]`."""

    id: str
    symbol: str
    matrices: np.ndarray


def build(board: Storyboard, name: str, names: Sequence[str], room: int = ROOM) -> dict[str, Any]:
    """Return what the film of a block shows, for its message: of the block that a beat of this name shows; `names` are
    those of all beats.

    LookupError for a name without a beat, ValueError for a beat that is no block.
    """
    if name not in names:
        raise LookupError(f"no beat {quote(name)} in this film, expected one of {', '.join(names)}")
    beat = board.beats[names.index(name)]
    if not beat.number:
        raise ValueError(f"the beat {quote(name)} is no block, so it does not open")
    producers = board.trace.producers
    trace = with_tensors(board.trace, {*beat.steps, *(id for step in beat.steps for id in producers.get(step, ()))})
    scenes = list(_scenes(trace, beat.steps))
    pictures = {drawn.id: drawn for _, drawn in scenes for drawn in drawn if drawn is not None}
    texts = [_step_beat(step, beat.number, drawn) for step, drawn in scenes]
    room = min(
        room, MAX_BYTES - OVERHEAD - len(json.dumps(texts, ensure_ascii=False).encode()) - PER_PICTURE * len(pictures)
    )
    cells = next((size for size in CELLS if _weight(pictures.values(), size) <= room), CELLS[-1])
    weights = {step.id for step in trace.steps if has_weights(step)}
    drawings = [
        _picture(drawn, beat.number, cells, "attention" if drawn.id in weights else "sequential")
        for drawn in pictures.values()
    ]
    order = list(pictures)
    lanes = board.streams[beat.stream].lanes if beat.stream is not None else ()
    slots = board.streams[beat.stream].slots[beat.part] if beat.stream is not None else ()
    return {
        "model": f"{trace.model}, block {beat.number}",
        "inside": f"block {beat.number}",
        "photo": None,
        "streams": [
            {"lanes": [[lane.name, lane.mark, lane.patch, lane.word] for lane in lanes], "read": None,
             "focus": beat.focus, "rollout": None}
        ] if lanes else [],
        "slots": list(slots),
        "beats": [
            entry
            | {"drawn": [order.index(each.id) if each else None for each in drawn],
               "product": _is_product(step, drawn),
               "stream": 0 if lanes else None, "focus": beat.focus}
            for entry, (step, drawn) in zip(texts, scenes, strict=True)
        ],
        "snapshots": [],
        "looks": [],
        "pictures": drawings,
        "heads": max((len(drawn.matrices) for drawn in pictures.values()), default=1),
        "colours": tables((scale[2] for picture in drawings for scale in picture["scales"]), STEPS),
        "answer": None,
        "proofs": "",
        "unit": trace.result.get("unit", "token"),
    }  # fmt: skip


def _scenes(trace: Trace, ids: Sequence[str]) -> Iterator[tuple[Step, list[_Drawn | None]]]:
    """Yield each step of a block with its drawn tensors: the two factors and the result of a matrix product, else its
    operands and its result. A tensor that is not available is None."""
    steps = {step.id: step for step in trace.steps}
    producers = trace.producers
    for id in ids:
        step = steps[id]
        yield step, _product(trace, step, producers, steps) or _operands(trace, step, producers, steps)


def _product(trace: Trace, step: Step, producers: Producers, steps: Mapping[str, Step]) -> list[_Drawn | None] | None:
    """Return the two factors and the result of a step's product, None where they are not all available."""
    if step.product is None:
        return None
    near = [steps[id] for id in producers.get(step.id, ()) if id in steps]
    letters = [(each.symbol, each.id, False) for each in near]
    letters += [(name.symbol, name.of, name.transposed) for name in step.names]
    drawn: list[_Drawn | None] = []
    for operand in step.product[:2]:
        if PART.search(operand.symbol):
            return None
        named = [letter for letter in letters if letter[0] in operand.symbol]
        top = operand.symbol.rstrip("}").endswith(r"\top")
        factors = (_as_operand(trace, id, operand, steps, transposed or top) for _, id, transposed in named)
        factor = next(filter(None, factors), None)
        if factor is None:
            return None
        drawn.append(factor)
    result = _as_operand(trace, step.id, step.product[2], steps)
    return None if result is None else [*drawn, replace(result, symbol=symbol_text(step.symbol))]


def _beyond_product(left: np.ndarray, right: np.ndarray, result: np.ndarray) -> str:
    """Describe how numbers differ from the sums of products: by a factor, or by an addend that each column has; ""
    where they do not. It is read from the numbers of the first matrix."""
    rows = max(2, MOST_PRODUCTS // right[0].size)
    product = left[0, :rows].astype(np.float64) @ right[0].astype(np.float64)
    traced = result[0, :rows].astype(np.float64)
    close = partial(np.allclose, rtol=1e-4, atol=1e-4 * float(np.abs(product).max() or 1))
    if close(traced, product):
        return ""
    kept = np.isfinite(traced)
    ratio = float((traced[kept] * product[kept]).sum() / ((product[kept] ** 2).sum() or 1))
    if ratio > 0 and close(traced[kept], ratio * product[kept]):
        same, smaller = abs(ratio - 1) < 1e-3, ratio < 1
        factor = "" if same else f", divided by {1 / ratio:.3g}" if smaller else f", times {ratio:.3g}"
        return factor + ("" if kept.all() else ", where the mask leaves it open")
    addend = traced - product
    if len(addend) > 1 and close(addend, addend[:1]):
        return ", plus the bias of its column"
    return ", changed by the rest of the equation"


def _is_product(step: Step, drawn: Sequence[_Drawn | None]) -> bool:
    """Return whether the drawn tensors of a step are the factors of its product and the result."""
    if step.product is None or any(PART.search(factor.symbol) for factor in step.product[:2]):
        return False
    shapes = [each.matrices.shape[1:] for each in drawn if each is not None]
    return shapes == [operand.shape for operand in step.product]


def _as_operand(
    trace: Trace, id: str, operand: Operand, steps: Mapping[str, Step], transposed: bool = False
) -> _Drawn | None:
    """Return a tensor as the matrices that a product reads, `[heads, rows, columns]`; None for any other shape."""
    tensor = _first(trace, id, steps)
    if tensor is None:
        return None
    rows, columns = operand.shape
    last = tensor.shape[-2:]
    form = ""
    if last == (rows, columns) and not (rows == columns and transposed):
        matrices = tensor.reshape(-1, rows, columns)
    elif last == (columns, rows):
        form, matrices = " transposed", np.swapaxes(tensor, -2, -1).reshape(-1, rows, columns)
    elif tensor.ndim == 3 and tensor.shape[1] == rows and tensor.shape[0] * tensor.shape[2] == columns:
        form, matrices = " of all heads", np.swapaxes(tensor, 0, 1).reshape(1, rows, columns)
    elif tensor.ndim == 2 and last[0] == rows and last[1] % columns == 0:
        form, matrices = " by heads", np.swapaxes(tensor.reshape(rows, -1, columns), 0, 1)
    else:
        return None
    return _Drawn(f"{id}{form}", symbol_text(operand.symbol), matrices)


def _operands(trace: Trace, step: Step, producers: Producers, steps: Mapping[str, Step]) -> list[_Drawn | None]:
    """Return the operands of a step that other steps computed, and its result."""
    near = [steps[id] for id in producers.get(step.id, ()) if id in steps][:OPERANDS]
    return [*filter(None, (_whole(trace, each, steps) for each in near)), _whole(trace, step, steps)]


def _whole(trace: Trace, step: Step, steps: Mapping[str, Step]) -> _Drawn | None:
    """Return a step's tensor unchanged, its leading axes flattened."""
    tensor = _first(trace, step.id, steps)
    if tensor is None:
        return None
    tensor = tensor.reshape(-1, *(1, 1, *tensor.shape)[-2:])
    return _Drawn(step.id, symbol_text(step.symbol), tensor)


def _without_block(symbol: str, block: int) -> str:
    """Return a symbol without the number of the block, which all symbols inside it share: `Q^(3)` is Q."""
    return re.sub(rf"\^\w*\({block}\)", "", symbol)


def _first(trace: Trace, id: str, steps: Mapping[str, Step]) -> np.ndarray | None:
    """Return the tensor of the first input of a batch; None where it is not available, or too large to be drawn."""
    tensor = tensor_of(trace, id)
    if tensor is None or 0 in tensor.shape or prod(tensor.shape) > VALUES:
        return None
    batched = id in steps and steps[id].symbolic[:1] == ("B",)
    array = as_array(tensor[0] if batched and tensor.ndim > 2 else tensor)
    return (
        np.where(np.abs(array) < MIN_INFINITE, array, np.copysign(np.inf, array)) if array.dtype.kind == "f" else array
    )


def _weight(pictures: Iterable[_Drawn], cells: tuple[int, int]) -> int:
    """Return the size in bytes of pictures of at most so many rows and columns."""
    return sum(
        min(len(drawn.matrices), HEADS)
        * min(drawn.matrices.shape[1], cells[0])
        * min(drawn.matrices.shape[2], cells[1])
        for drawn in pictures
    )


def _picture(drawn: _Drawn, block: int, cells: tuple[int, int], kind: str) -> dict[str, Any]:
    """Return the cells of a picture, `[heads, rows, columns]`, and how to read them: a byte from 0 to 254 is
    a share of the way from `low` to `high` of its head."""
    matrices = drawn.matrices[:HEADS]
    reduced, box = reduce(matrices, *cells)
    known = np.where(np.isfinite(reduced), reduced, np.nan).astype(np.float64)  # the largest float32 has no double
    scales = []
    shares = np.full(reduced.shape, EMPTY_BYTE, np.uint8)
    for place, matrix in enumerate(known):
        low, high = (float(np.nanmin(matrix)), float(np.nanmax(matrix))) if np.isfinite(matrix).any() else (0.0, 0.0)
        start, end, scale = scale_ends(low, high, kind)
        scaled = np.nan_to_num((matrix - start) / (end - start) * (EMPTY_BYTE - 1))
        shares[place] = np.where(np.isfinite(matrix), np.round(scaled), EMPTY_BYTE).astype(np.uint8)
        scales.append([start, end, scale, numeral(start), numeral(end)])
    return {
        "symbol": _without_block(drawn.symbol, block).replace("^⊤", "ᵀ"),
        "full": list(drawn.matrices.shape[1:]),
        "box": list(box),
        "scales": scales,
        "cells": shares,
    }


def _step_beat(step: Step, block: int, drawn: Sequence[_Drawn | None]) -> dict[str, Any]:
    """Return the texts of a step."""
    caption = Caption(step.title, _sentence(step, drawn))
    label = _without_block(symbol_text(step.symbol), block).replace("_", "")
    beat = Beat("step", label, caption, step.symbol, step.latex, step.symbolic, step.shape, step,
                steps=(step.id,))  # fmt: skip
    return line_facts(beat) | {"id": step.id}


def _sentence(step: Step, drawn: Sequence[_Drawn | None]) -> str:
    """Return a sentence on the numbers of a step in this run."""
    result = drawn[-1]
    if result is None:
        return "This run did not keep the tensor of this step."
    count = f"{prod(step.shape):,} number{'s' * (prod(step.shape) != 1)}"
    known = result.matrices[np.isfinite(result.matrices)]
    if len(result.matrices) > 1:
        by_heads = result.id.endswith(" by heads") or any(size.split("_")[0] == "h" for size in step.symbolic)
        count += f" in {len(result.matrices):,} {'heads' if by_heads else 'matrices'}"
    between = f", from {numeral(float(known.min()))} to {numeral(float(known.max()))}" if known.size else ""
    if step.product is not None and _is_product(step, drawn):
        inner = step.product[0].shape[1]
        rest = _beyond_product(*(each.matrices for each in drawn if each is not None))
        products = f"a sum of {inner:,} products, of the lit row on the left with a column above"
        return f"{count}{between}. Each is {products}{rest}."
    sums = result.matrices.sum(-1)
    if known.size and known.min() >= 0 and np.allclose(sums, 1, atol=1e-3):
        return f"{count}{between}. Each row adds up to 1."
    return f"{count}{between}."
