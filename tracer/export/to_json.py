"""Whole trace as JSON, all levels together, for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from tracer.export import rows
from tracer.record import (
    Argument,
    CallRecord,
    Decomposition,
    Finding,
    ModuleRecord,
    Op,
    Primitive,
    ReturnedTensor,
    Source,
    Step,
    TensorRecord,
    Trace,
)

SUFFIXES = (".json",)
FIELDS: dict[type, tuple[str, ...]] = {
    Step: (
        "id", "stage", "layer", "role", "symbol", "latex", "reads", "symbolic", "shape", "error", "margin", "verdict",
        "checked", "replayed", "wrong", "recomputed", "source", "ops", "why", "note",
    ),
    Op: ("index", "module", "op", "source", "inputs", "outputs", "params", "flops", "step"),
    ReturnedTensor: ("name", "shape", "dtype", "step", "of"),
    Finding: ("kind", "step", "ops", "message", "fix", "intent"),
    ModuleRecord: (
        "path", "kind", "call", "around", "first", "last", "inputs", "outputs", "params", "flops", "verdict",
    ),
    CallRecord: ("name", "text", "module", "call", "first", "last", "outputs", "arguments"),
    Argument: ("name", "value", "default", "tensors"),
    Decomposition: ("op", "error", "note", "primitives"),
    Primitive: ("name", "within", "inputs", "outputs"),
    Source: ("file", "line", "text"),
    TensorRecord: ("shape", "symbolic", "dtype", "maker"),
}  # fmt: skip
"""What is written of each record, in order."""
RENAMED = {"maker": "from"}


def render(trace: Trace, level: str) -> str:
    """Return one JSON object; it holds all levels that the trace has, whatever the `level`."""
    contents = tree(trace)
    if level == "costs":
        contents["costs"] = rows.costs(trace)
    return json.dumps(contents, indent=1, ensure_ascii=False, allow_nan=False)


def tree(trace: Trace) -> dict[str, Any]:
    """Return the trace as dictionaries and lists; an infinite or undefined number is a string: `"inf"`, `"nan"`."""
    contents = {
        "model": trace.model,
        "symbols": {symbol.name: symbol.value for symbol in trace.symbols},
        "totals": {
            "params": trace.params,
            "params_symbolic": trace.params_symbolic,
            "flops": trace.flops,
            "flops_symbolic": trace.flops_symbolic,
        },
        "steps": plain(trace.steps),
        "ops": plain(trace.ops),
        "returned": plain(trace.returned),
        "result": plain(trace.result),
        "notes": list(trace.notes),
        "opened_error": plain(trace.opened_error),
    }
    if trace.changes:
        contents["changes"] = list(trace.changes)
    if trace.diagnosis:
        contents["findings"] = plain(trace.diagnosis)
    if trace.repeats:
        contents["repeats"] = [repeat._asdict() | {"blocks": list(repeat.blocks)} for repeat in trace.repeats]
    levels = {name: plain(getattr(trace, name)) for name in ("modules", "calls", "decompositions")}
    return contents | {name: level for name, level in levels.items() if level}


def plain(value: object) -> Any:
    """Return any value of a trace as a type that JSON knows."""
    if names := FIELDS.get(type(value)):
        return {RENAMED.get(name, name): plain(getattr(value, name)) for name in names}
    match value:
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case tuple() | list():
            return [plain(item) for item in value]
        case float() if not isfinite(value):
            return str(value)
    return value
