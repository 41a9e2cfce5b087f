"""A process, bounded in time and memory, that proves the lines of a stranger's file.

Reads from standard input one line of JSON, then the bytes of the arrays that it names, each with its dtype, shape and
size; writes one line of JSON for each step. What a line asks for beyond its bounds ends that line, or this process, and
nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from tracer.latex_reader.evaluator import (
    UNITS,
    Operands,
    Perturbations,
    evaluate,
    rounding_bounds,
    shares,
    zero_empty_rows,
)
from tracer.latex_reader.parser import UnreadableLatex, read
from tracer.utils.child_processes import limit_resources

MEMORY = 1 << 30
"""Bytes that evaluating may take besides the tensors of the file."""
SECONDS = 20
"""Seconds of a core for all lines together."""
PERTURBATION_SECONDS = 8
"""Seconds of it after which lines are not evaluated with their parts moved, which takes four times as long again."""


def outcomes(request: dict[str, Any], arrays: dict[str, np.ndarray]) -> Iterator[dict[str, Any]]:
    """Yield the outcome of each line, in order: `error`, `margin`, `wrong`, or the `reason` for none.

    A line may name sizes, inputs, parameters, constants and the lines before it; itself only turn by turn.
    """
    table: dict[str, str] = {}
    operands = Operands(table, request["sizes"], arrays.get)
    began = time.process_time()
    for step in request["steps"]:
        own = step["symbol"]
        outcome: dict[str, Any] = {"id": step["id"]}
        table.update({symbol: of + ".T" * transposed for symbol, of, transposed in step["names"]})
        try:
            line = read(step["latex"], {*table, *request["sizes"], own})
            if line.name != own:
                raise UnreadableLatex(f"it says what {line.name} is")
            if own not in table and _names_itself(line.right, own, line.turns[0] if line.turns else ""):
                raise UnreadableLatex("it says what it is by itself")
            ran = arrays.get(f"step {step['id']}")
            if ran is None and not step["recomputed"]:
                raise UnreadableLatex("its tensor is not in the file")
            if line.turns and own not in table:
                table[own] = f"step {step['id']}"  # of the turn before
            computed = evaluate(line, operands, tuple(step["shape"]))
            if step["recomputed"]:
                operands.computed[own] = computed
            else:
                computed = zero_empty_rows(computed, ran, line, operands)
                off = shares(computed, ran)
                over = np.where(off == 0, 0, off / step["tolerance"] if step["tolerance"] else np.inf)
                if off.any() and step["dtype"] in UNITS and time.process_time() - began < PERTURBATION_SECONDS:
                    again = partial(evaluate, line, operands, tuple(step["shape"]))
                    over = np.maximum(over, _cells(again, computed, ran, step["dtype"]))
                wrong = np.argwhere(~(over <= 1))
                outcome |= {
                    "error": float(off.max(initial=0)),
                    "margin": float(over.max(initial=0)),
                    "wrong": [int(i) for i in wrong[0]] if len(wrong) else None,
                }
        except UnreadableLatex as error:
            outcome["reason"] = str(error)
        except MemoryError:
            outcome["reason"] = "it asks for more memory than it may take"
        except Exception as error:  # whatever a stranger's line makes of the reader
            outcome["reason"] = type(error).__name__
        if not step["recomputed"]:
            operands.computed.pop(own, None)
        table[own] = f"step {step['id']}"
        yield outcome


def _names_itself(tree, own: str, turn: str) -> bool:
    """Return whether a printed expression names its own result; in a recurrence, that of the same iteration or of
    none."""
    if not isinstance(tree, tuple):
        return False
    if turn and tree[:2] == ("cells", ("name", own)):
        return ("index", turn) in tree[2]
    return tree[:2] == ("name", own) or any(_names_itself(part, own, turn) for part in tree)


def _cells(
    evaluate: Callable[[Perturbations], np.ndarray], computed: np.ndarray, ran: np.ndarray, dtype: str
) -> np.ndarray:
    """Return the deviation of each cell as a share of its own rounding bound; 0 for cells that are not finite
    numbers."""
    with np.errstate(all="ignore"):
        over = np.abs(computed - ran) / rounding_bounds(evaluate, computed, dtype)
        return np.where(np.isfinite(computed) & np.isfinite(ran), over, 0)


def main(source: BinaryIO) -> None:
    """Prove the request in `source`."""
    request = json.loads(source.readline())
    arrays = {}
    for key, dtype, shape, size in request["arrays"]:
        array = np.frombuffer(source.read(size), dtype).reshape(shape)
        arrays[key] = array.astype(float) if array.dtype.kind in "fb" else array
    limit_resources(MEMORY + 4 * sum(array.nbytes for array in arrays.values()), SECONDS)
    sys.setrecursionlimit(2000)
    for outcome in outcomes(request, arrays):
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main(sys.stdin.buffer)
