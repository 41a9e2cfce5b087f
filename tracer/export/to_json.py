"""Whole trace as JSON, all levels together, for other programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

from tracer.export import rows
from tracer.record import (
    CallRecord,
    Decomposition,
    Finding,
    ModuleRecord,
    Op,
    ReturnedTensor,
    Source,
    Step,
    TensorRecord,
    Trace,
)

SUFFIXES = (".json",)


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
        "steps": [_step(step) for step in trace.steps],
        "ops": [_op(op) for op in trace.ops],
        "returned": [_return_value(record) for record in trace.returned],
        "result": plain(trace.result),
        "notes": list(trace.notes),
        "opened_error": plain(trace.opened_error),
    }
    if trace.changes:
        contents["changes"] = list(trace.changes)
    if trace.diagnosis:
        contents["findings"] = [_finding(finding) for finding in trace.diagnosis]
    if trace.repeats:
        contents["repeats"] = [repeat._asdict() | {"blocks": list(repeat.blocks)} for repeat in trace.repeats]
    levels = {
        "modules": [_module(record) for record in trace.modules],
        "calls": [_call(record) for record in trace.calls],
        "decompositions": [_decomposition(record) for record in trace.decompositions],
    }
    return contents | {name: level for name, level in levels.items() if level}


def _module(module: ModuleRecord) -> dict[str, object]:
    names = ("path", "kind", "call", "around", "first", "last", "inputs", "outputs", "params", "flops", "verdict")
    return {name: plain(getattr(module, name)) for name in names}


def _call(call: CallRecord) -> dict[str, object]:
    names = ("name", "text", "module", "call", "first", "last", "outputs")
    arguments = [
        {
            "name": argument.name,
            "value": argument.value,
            "default": argument.default,
            "tensors": plain(argument.tensors),
        }
        for argument in call.arguments
    ]
    return {name: plain(getattr(call, name)) for name in names} | {"arguments": arguments}


def _step(step: Step) -> dict[str, Any]:
    names = (
        "id",
        "stage",
        "layer",
        "role",
        "symbol",
        "latex",
        "reads",
        "symbolic",
        "shape",
        "error",
        "margin",
        "verdict",
        "checked",
        "replayed",
        "wrong",
        "recomputed",
        "source",
        "ops",
        "why",
        "note",
    )
    return {name: plain(getattr(step, name)) for name in names}


def _finding(finding: Finding) -> dict[str, Any]:
    names = ("kind", "step", "ops", "message", "fix", "intent")
    return {name: plain(getattr(finding, name)) for name in names}


def _return_value(tensor: ReturnedTensor) -> dict[str, Any]:
    return {name: plain(getattr(tensor, name)) for name in ("name", "shape", "dtype", "step", "of")}


def _op(op: Op) -> dict[str, Any]:
    names = ("index", "module", "op", "source", "inputs", "outputs", "params", "flops", "step")
    return {name: plain(getattr(op, name)) for name in names}


def _decomposition(decomposition: Decomposition) -> dict[str, Any]:
    names = ("name", "within", "inputs", "outputs")
    primitives = [{name: plain(getattr(primitive, name)) for name in names} for primitive in decomposition.primitives]
    return {
        "op": decomposition.op,
        "error": plain(decomposition.error),
        "note": decomposition.note,
        "primitives": primitives,
    }


def plain(value: object) -> Any:
    """Return any value of a trace as a type that JSON knows."""
    match value:
        case Source():
            return {"file": value.file, "line": value.line, "text": value.text}
        case TensorRecord():
            names = {"shape": value.shape, "symbolic": value.symbolic, "dtype": value.dtype, "from": value.maker}
            return {name: plain(item) for name, item in names.items()}
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case tuple() | list():
            return [plain(item) for item in value]
        case float() if not isfinite(value):
            return str(value)
    return value
