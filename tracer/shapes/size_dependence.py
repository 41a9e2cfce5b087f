"""Dependence of a run on its sizes that no solved dimension shows: external tensors, tensors picked from lists, and
formulas that a run at smaller sizes contradicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from tracer.capture import RETURN_OP, OpEvent, Recording
from tracer.capture.python_scalars import Scalars
from tracer.shapes.op_alignment import Match
from tracer.shapes.scalar_solver import (
    DATA,
    SLICES,
    TOLERANCE,
    CallIndex,
    Key,
    SliceBounds,
    Where,
    clamp_slice,
    flatten,
    solve_bound,
)
from tracer.shapes.solver import UNKNOWN, Solver, evaluator

Probes = Sequence[tuple[Recording, Match]]
"""Runs at other sizes, each aligned with the traced one."""
Operand = tuple[int, int]
"""An op, and the place of an operand."""
Digests = Mapping[Operand, bytes]


def moved_constants(constants: Digests, probes: Probes) -> Iterator[Operand]:
    """Yield the operands from outside PyTorch, by their digests, that are other tensors in a probe."""
    for (op, place), digest in constants.items():
        for probe, match in probes:
            j = match[op]
            there = probe.constants.get((probe.numbers[j], place)) if j is not None else None
            if digest and there and digest != there:
                yield op, place


def solve_positions(
    solver: Solver, run: Sequence[OpEvent], returned: Sequence[int | str], positions: Mapping, probes: Probes
) -> dict[Operand, str]:
    """Solve which tensors a run takes from the lists that its ops return, such as `⌊T/2⌋` of `unbind`.

    Return a formula for each op and position, "?" for a position that has none or that several operands reach in
    several ways.
    """
    formulas: dict[Operand, str] = {}
    for (op, place), position in positions.items():
        maker = returned[place] if op == RETURN_OP else run[op].inputs[place][2]
        same = [_position(probe, match, op, place, maker) for probe, match in probes]
        if not isinstance(maker, int) or None in same:
            continue
        places, counts = zip((position, len(run[maker].outputs)), *filter(None, same), strict=True)
        whole = solver.solve(counts) if len({*counts}) > 1 else str(counts[0])
        text = solve_bound(solver, places, counts, whole) if whole != UNKNOWN else UNKNOWN
        formulas[maker, position] = text if formulas.get((maker, position), text) == text else UNKNOWN
    return formulas


def _position(probe: Recording, match: Match, op: int, place: int, maker: int | str) -> tuple[int, int] | None:
    """Return the position of the same operand in a probe and the length of its list; None if there is none."""
    at = RETURN_OP if op == RETURN_OP else match[op]
    list_op = match[maker] if isinstance(maker, int) else None
    if at is None or list_op is None or Counter(match)[at] > 1:
        return None
    position = probe.positions.get((at if at == RETURN_OP else probe.numbers[at], place))
    return None if position is None else (position, len(probe.ops[list_op].outputs))


class SmallRun:
    """A run at sizes below those of all probes, which shows the effect of a threshold, such as that of `min(T, 8)`.

    Ops in loops with fewer iterations are not compared, nor those that were solved at one batch only (`notes`).
    """

    def __init__(self, probe: Recording, match: Match, sizes: dict[str, int], notes: Sequence[str]):
        self._probe, self._value = probe, evaluator(sizes)
        self._missing = {i for i, j in enumerate(match) if j is None and not notes[i]}
        times = Counter(j for j in match if j is not None)
        self._match = [None if j is None or times[j] > 1 or note else j for j, note in zip(match, notes, strict=True)]
        self._owners = CallIndex(probe.scalars, probe.numbers)

    def refute_shapes(self, inputs: list, outputs: list) -> None:
        """Replace the formulas of dimensions that the run contradicts by "?"."""
        for i, j in enumerate(self._match):
            if j is not None and inputs[i] is not None:
                op = self._probe.ops[j]
                inputs[i], outputs[i] = self._shapes(inputs[i], op.inputs), self._shapes(outputs[i], op.outputs)

    def _shapes(self, solved: tuple, tensors: tuple) -> tuple:
        shapes = []
        for n, shape in enumerate(solved):
            real = tensors[min(n, len(tensors) - 1)][0] if tensors else ()
            if len(real) == len(shape):
                shape = tuple(
                    UNKNOWN if size != UNKNOWN and self._value(size) != number else size
                    for size, number in zip(shape, real, strict=True)
                )
            shapes.append(shape)
        return tuple(shapes)

    def refute_missing_slices(
        self, entries: Mapping[Key, Scalars], edges: dict[int, SliceBounds], inputs, outputs
    ) -> None:
        """Replace the end of slices by "?" that the run lacks although its axis is shorter: PyTorch leaves out a slice
        of a whole axis."""
        for name, i, _ in entries:
            if name != "slice" or i not in self._missing or i not in edges or inputs[i] is None:
                continue
            axis = entries[name, i, i + 1].values["dim"] % len(inputs[i][0])
            size, taken = inputs[i][0][axis], outputs[i][0][axis]
            if UNKNOWN not in (size, taken) and self._value(size) != self._value(taken):
                edges[i] = edges[i]._replace(stop=UNKNOWN)
                outputs[i] = ((*outputs[i][0][:axis], UNKNOWN, *outputs[i][0][axis + 1 :]),)

    def refute_numbers(
        self, entries: Mapping[Key, Scalars], solved: Mapping[Key, dict[Where, str]], edges: dict[int, SliceBounds]
    ) -> Iterator[int]:
        """Replace the formulas of numbers and of the bounds of slices that the run contradicts by "?".

        Yield the ops whose other arguments differ.
        """
        for key, entry in entries.items():
            there = self._owners.of(entry, self._match)
            if there is None or key not in solved:
                continue
            if self._has_other_arguments(entry, there):
                yield from range(entry.first, entry.last)
            formulas, numbers = solved[key], flatten(there)
            for where, number in flatten(entry).items():
                text = formulas.get(where, "")
                if where not in numbers or text in (UNKNOWN, DATA):
                    continue
                if not _is_equal(self._value(text) if text else number, numbers[where]):
                    formulas[where] = UNKNOWN
            if (edge := edges.get(entry.first)) is not None and entry.name in SLICES:
                shape = self._probe.ops[self._match[entry.first] or 0].inputs[0][0]
                bounds = (edge.start, edge.stop), clamp_slice(there, shape[there.values["dim"] % len(shape)])
                start, stop = (
                    text if text in (UNKNOWN, DATA) or self._value(text) == number else UNKNOWN
                    for text, number in zip(*bounds, strict=True)
                )
                edges[entry.first] = edge._replace(start=start, stop=stop)

    def _has_other_arguments(self, entry: Scalars, there: Scalars) -> bool:
        """Return whether a call has other arguments besides numbers; a single query may see its single key, whether it
        is causal or not."""
        ours, theirs = dict(entry.flags), dict(there.flags)
        if "is_causal" in ours and all(
            shape[-2] == 1 for shape, *_ in self._probe.ops[self._match[entry.first] or 0].inputs[:2] if len(shape) > 1
        ):
            ours["is_causal"] = theirs.get("is_causal")
        return ours != theirs or there.values.keys() != entry.values.keys()

    def refute_positions(self, run: Sequence[OpEvent], positions: Mapping, solved: dict[Operand, str]) -> None:
        """Replace the formulas of positions in lists that the run contradicts by "?"."""
        for (op, place), position in positions.items():
            j = self._match[op] if op != RETURN_OP else None
            if j is None:
                continue
            taken = run[op].inputs[place][2], position
            there = self._probe.positions.get((self._probe.numbers[j], place))
            text = solved.get(taken, UNKNOWN)
            if there is not None and text != UNKNOWN and self._value(text) != there:
                solved[taken] = UNKNOWN


def _is_equal(value: float, number: float) -> bool:
    """Return whether two numbers are equal up to float rounding; infinities and NaN equal themselves."""
    if value != value or number != number:
        return value != value and number != number
    return value == number or abs(value - number) <= TOLERANCE * abs(number)
