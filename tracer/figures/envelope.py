"""Messages to the browser: plain data, in which any value may be an array, as bytes.

A message is the length of a JSON text in four bytes, little end first, the text, and the bytes of the arrays, each from
a multiple of four on. The text is `{"header": …, "arrays": [[name, dtype, shape, power], …]}`. The name of an array is
its path in the header, which lacks it there. A power is there where the numbers are times that power of two. Film,
pages and files have this one form, and `scripts/envelope.js` reads it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

MAX_EXACT_CELLS = 4096
"""Numbers that are sent with all their digits."""
DTYPES = {"float32": "f4", "float16": "f2", "uint8": "u1"}
"""Dtypes of a message, by their names in NumPy."""
ALIGNMENT = 4


@dataclass(frozen=True)
class HalfArray:
    """Numbers in half precision: `scaled` is float16 and holds them times 2**`power`."""

    scaled: np.ndarray
    power: int

    @property
    def nbytes(self) -> int:
        """Bytes in a message."""
        return self.scaled.nbytes


Array = np.ndarray | HalfArray | bytes
"""What a message takes as an array; bytes are one of uint8."""


def half(values: np.ndarray) -> HalfArray:
    """Return numbers in half precision, which keeps three digits of the largest."""
    known = values if (finite := np.isfinite(values)).all() else values[finite]
    most = float(max(known.max(), -known.min())) if known.size else 0.0
    power = 15 - int(np.frexp(most)[1]) if most else 0
    return HalfArray(np.ldexp(np.asarray(values), power).astype(np.float16), power)


def compress(values: np.ndarray, exact: bool = False) -> np.ndarray | HalfArray:
    """Return numbers in half precision, or as float32 where they are few; with `exact` also where they are larger than
    the whole numbers that half precision has."""
    if values.size <= MAX_EXACT_CELLS or (exact and float(np.abs(values[np.isfinite(values)]).max(initial=0)) > 2048):
        return values.astype(np.float32)
    return half(values)


def pack(header: Any) -> bytes:
    """Return a message of plain data with arrays in it. TypeError for an array of a dtype that no message has."""
    arrays: list[tuple[list[str | int], Array]] = []
    plain = _lift(header, [], arrays)
    blobs = [_blob(array) for _, array in arrays]
    table = [[name, *facts] for (name, _), (*facts, _) in zip(arrays, blobs, strict=True)]
    text = json.dumps({"header": plain, "arrays": table}, ensure_ascii=False, separators=(",", ":"))
    encoded = text.encode("utf-8", "replace")  # a lone surrogate has no bytes
    encoded += b" " * (-len(encoded) % ALIGNMENT)
    return b"".join((len(encoded).to_bytes(4, "little"), encoded, *_align(blob for *_, blob in blobs)))


def to_text(message: bytes) -> str:
    """Return a message as text, for a page or a script that holds it."""
    return base64.b64encode(message).decode()


def _lift(node: Any, path: list[str | int], arrays: list[tuple[list[str | int], Array]]) -> Any:
    """Return data as JSON takes it, without its arrays, which are appended to `arrays`, each with its path. A number
    that JSON lacks is null."""
    if isinstance(node, str | int) or node is None:
        return node
    if isinstance(node, dict):
        plain = {key: _lift(value, [*path, key], arrays) for key, value in node.items()}
        return {key: value for key, value in plain.items() if not isinstance(node[key], Array)}
    if isinstance(node, list | tuple):
        return [_lift(value, [*path, at], arrays) for at, value in enumerate(node)]
    if isinstance(node, Array):
        arrays.append((path, node))
        return None
    if isinstance(node, np.generic):
        return _lift(node.item(), path, arrays)
    return None if isinstance(node, float) and not isfinite(node) else node


def _blob(array: Array) -> tuple[Any, ...]:
    """Return (dtype, shape, bytes) of an array, or (dtype, shape, power, bytes)."""
    if isinstance(array, bytes):
        return "u1", [len(array)], array
    values, power = (array.scaled, array.power) if isinstance(array, HalfArray) else (array, 0)
    dtype = DTYPES.get(values.dtype.name)
    if dtype is None:
        raise TypeError(f"a message has no arrays of {values.dtype}, expected one of {', '.join(DTYPES)}")
    powers = [power] if power else []
    return dtype, list(values.shape), *powers, np.ascontiguousarray(values, f"<{dtype}").tobytes()


def _align(blobs: Iterable[bytes]) -> Iterator[bytes]:
    for blob in blobs:
        yield blob
        yield bytes(-len(blob) % ALIGNMENT)
