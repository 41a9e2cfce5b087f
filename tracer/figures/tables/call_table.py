"""Rows of the Operations table for modules, as the forward hooks saw them, and for composite ops."""

from collections.abc import Sequence

from tracer.export.math_labels import shape_numbers
from tracer.record import CallRecord, ModuleRecord, Op, TensorRecord, Trace
from tracer.symbols import notation

MAX_OPEN_ROWS = 4
"""Rows that are too few to open on."""
PASSES = "hands on what it is given"


def label(trace: Trace, number: int) -> str:
    """Return the path of a module within the module around it, with the number of its call if there are several."""
    module = trace.modules[number]
    around = trace.modules[module.around].path if module.around is not None else ""
    inside = f"{around}." if around else ""
    name = module.path.removeprefix(inside) if module.path else module.kind
    return name + (f" (call {module.call + 1})" if module.call else "")


def path(trace: Trace, number: int) -> list[str]:
    """Return the labels of the modules around a module, the outermost first."""
    ancestors, around = [], trace.modules[number].around
    while around is not None:
        ancestors.append(label(trace, around))
        around = trace.modules[around].around
    return ancestors[::-1]


def open_modules(trace: Trace) -> list[str]:
    """Return the tree positions of the modules that are unfolded at first: the outermost levels, until one branches."""
    if not trace.modules:
        return []
    depth, number = [], 0
    while True:
        depth.append("/".join(["", *path(trace, number), label(trace, number)]))
        inner = [i for i, module in enumerate(trace.modules) if module.around == number]
        largest = max(inner, key=lambda i: trace.modules[i].last - trace.modules[i].first, default=None)
        if len(inner) >= MAX_OPEN_ROWS or largest is None:
            return depth
        number = largest


def modules(trace: Trace) -> list[dict]:
    """Return one row for each call of a module; `holds` marks calls with modules in them. None shows its number."""
    holding = {module.around for module in trace.modules}
    rows = []
    for number, module in enumerate(trace.modules):
        cells = [
            label(trace, number),
            module.kind,
            [shapes(module.inputs, symbols), shapes(module.inputs, numbers)],
            [shapes(module.outputs, symbols), shapes(module.outputs, numbers)],
            module.params,
            flops(trace.ops[module.first : module.last]),
            module.last - module.first,
            module.verdict,
        ]
        rows.append({"id": f"module {number}", "path": path(trace, number), "number": number, "cells": cells})
        rows[-1] |= {"holds": number in holding, "mark": ""}
    return rows


def calls(trace: Trace) -> list[dict]:
    """Return one row for each composite op, with its arguments under the names of the op's schema."""
    rows = []
    for number, call in enumerate(trace.calls):
        beneath = trace.ops[call.first : call.last]
        cells = [
            call.name,
            arguments(call),
            [shapes(call.outputs, symbols), shapes(call.outputs, numbers)],
            flops(beneath),
            " ".join(op.op for op in beneath) or PASSES,
            " ".join(dict.fromkeys(op.step for op in beneath if op.step)),
        ]
        way = call.module.split(".") if call.module else []
        rows.append({"id": f"call {number}", "path": way, "number": number, "cells": cells})
    return rows


def arguments(call: CallRecord) -> str:
    """Return the arguments that differ from their defaults: `input, weight, bias, dim=-1`."""
    return call.text.removeprefix(f"{call.name}(").removesuffix(")")


def flops(ops: Sequence[Op]) -> int | list:
    """Return the FLOPs of several ops; if some are not counted, a number to sort by and the text to display."""
    sum_of = sum(op.flops or 0 for op in ops)
    if all(op.flops is not None for op in ops):
        return sum_of
    return [sum_of, f"{sum_of:,}, some not counted" if sum_of else "not counted"]


def shapes(tensors: Sequence[TensorRecord], known_shapes) -> str:
    """Return the shapes of tensors, each in the format of `known_shapes`, with equal ones counted: `2 × [B, T, D]`."""
    columns: dict[str, int] = {}
    for tensor in tensors:
        columns[known_shapes(tensor)] = columns.get(known_shapes(tensor), 0) + 1
    return ", ".join(f"{count} × {shape}" if count > 1 else shape for shape, count in columns.items())


def symbols(tensor: TensorRecord) -> str:
    """Return a shape in symbols if they are known, else in numbers."""
    return numbers(tensor) if tensor.symbolic is None else notation.shape_text(tensor.symbolic)


def numbers(tensor: TensorRecord) -> str:
    """Return a shape in numbers."""
    return shape_numbers(tensor.shape)


def of_op(records: Sequence[ModuleRecord | CallRecord], index: int) -> int | None:
    """Return the innermost of these calls that an op ran in, or None."""
    return next((i for i in reversed(range(len(records))) if records[i].first <= index < records[i].last), None)
