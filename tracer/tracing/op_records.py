"""Op records of a run and their total cost."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple

from tracer.capture import OpEvent
from tracer.capture.source_lines import source
from tracer.record import Op, TensorRecord, dtype_name
from tracer.shapes import Solution, held_size
from tracer.symbols import cost

TRANSPOSED_ARGUMENT = 6
"""Which argument of a convolution says that it is a transposed one."""


class OpSequence(tuple):
    """Ops of a run as seen. Equality compares all of it, the hash only the parts that are quick to hash."""

    def __hash__(self) -> int:
        return hash((len(self), self[-1])) if self else 0


class RunCost(NamedTuple):
    """All ops of a run and their total cost."""

    ops: tuple[Op, ...]
    params: int
    params_symbolic: str
    flops: int
    flops_symbolic: str


@lru_cache(maxsize=32)
def account(run: OpSequence, parameters, owner, solution: Solution | None, parts, depths) -> RunCost:
    """Return the records of all ops. Runs of one model on other values have the same ones, and all visitors share
    them."""
    layers = {op: layer for op, _, layer in owner}
    ops = _ops(run, dict(parameters), {op: step for op, step, _ in owner}, solution)
    places = [(part_of(op.module, parts), layers.get(op.index)) for op in ops]
    depths = {part: depth for part, *depth in depths}
    return RunCost(
        ops,
        sum(op.params for op in ops),
        cost.total([(op.params_symbolic, *place) for op, place in zip(ops, places, strict=True)], depths),
        sum(op.flops or 0 for op in ops),
        cost.total(
            [(op.flops_symbolic, *place) for op, place in zip(ops, places, strict=True) if op.flops is not None], depths
        ),
    )


def _ops(events, sizes_of: dict[str, int], owner: dict[int, str], solution: Solution | None) -> tuple[Op, ...]:
    counted: set[str] = set()
    known: dict = {}
    ops = []
    for i, op in enumerate(events):
        inputs, outputs = (solution.inputs[i], solution.outputs[i]) if solution and solution.has_sizes else (None, None)
        names, fresh = (), {}
        for j, (_, _, maker) in enumerate(op.inputs):
            if maker in sizes_of:
                names = (*names, maker) if maker not in names else names
                if maker not in counted:
                    counted.add(maker)
                    fresh[maker] = j
        is_transposed = op.name == "convolution" and op.settings[TRANSPOSED_ARGUMENT]
        flops = (
            0
            if op.layout
            else cost.flops(op.name, tuple([shape for shape, *_ in op.inputs]), _first(op), is_transposed)
        )
        formula = "0" if flops == 0 else "?"
        params_symbolic = "?" if fresh else "0"
        if inputs is not None:
            formula = (
                cost.flops_symbolic(op.name, inputs, outputs[0] if outputs else (), is_transposed) if flops else formula
            )
            params_symbolic = cost.elements(tuple([inputs[j] for j in fresh.values()]))
        ops.append(
            Op(
                index=i,
                module=op.module,
                call=op.call,
                op=op.name,
                function=op.function,
                source=source(*op.line) if op.line else None,
                inputs=tensor_records(op.inputs, inputs, known),
                outputs=tensor_records(op.outputs, outputs, known),
                parameters=names,
                params=sum([sizes_of[name] for name in fresh]),
                params_symbolic=params_symbolic,
                flops=flops,
                flops_symbolic=formula,
                step=owner.get(i),
                note=solution.notes[i] if solution else "",
            )
        )
    return tuple(ops)


def _first(op: OpEvent) -> tuple[int, ...]:
    return op.outputs[0][0] if op.outputs else ()


def tensor_records(tensors, symbolic, known: dict) -> tuple[TensorRecord, ...]:
    """Return the records of described tensors; a tensor that several ops take is one record."""
    records = []
    for key in zip(tensors, symbolic, strict=True) if symbolic else tensors:
        record = known.get(key)
        if record is None:
            (shape, dtype, maker), names = key if symbolic else (key, None)  # type: ignore[misc]
            record = known[key] = TensorRecord(shape, dtype_name(dtype), maker, names)
        records.append(record)
    return tuple(records)


def part_of(module: str, parts: Collection[str]) -> str:
    """Return the tower that a module's path is in, or ""."""
    return next((part for part in parts if part and f"{module}.".startswith(f"{part}.")), "")


def limit_note(ops: tuple[Op, ...], sizes: dict[str, int]) -> str:
    """Return a note for a FLOP formula that holds only at the run's own size of a symbol; "" for any other."""
    limits = [name for op in ops if op.flops and (name := held_size(op.note))]
    if not limits:
        return ""
    subject = "one of the operations runs" if len(limits) == 1 else f"{len(limits)} of the operations run"
    names = list(dict.fromkeys(limits))
    at = " and ".join(f"{name} = {sizes[name]}" for name in names)
    which = "this batch size" if names == ["B"] else "this size" if len(names) == 1 else "these sizes"
    return f"the FLOP formula holds at {at} only: {subject} at {which} alone"
