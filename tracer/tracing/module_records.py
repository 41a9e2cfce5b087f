"""Calls of modules and the composite ops of a run as plain records, from the recorder's.

What the forward hooks saw of a module is held against the ops that ran beneath it, which the dispatch mode saw: two
observers that know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod
from threading import Lock
from typing import Any

import torch

from tracer.capture.composite_calls import Call, CallLog, ModuleCall, Ref, refs
from tracer.record import Argument, CallRecord, ModuleRecord, Op, TensorRecord, dtype_name
from tracer.utils.error_text import shorten
from tracer.utils.internals.torch_internals import function_schema

LETTERS = 120
"""Of an argument that is a long list."""
Levels = tuple[tuple[ModuleRecord, ...], tuple[CallRecord, ...]]
CACHE_SIZE = 32
"""How many runs' levels are held."""
_records: dict[tuple[int, int], tuple[Sequence[Op], Levels]] = {}
_lock = Lock()


def levels(calls: CallLog, ops: Sequence[Op]) -> Levels:
    """Return the records of all calls of modules, and of all composite ops, in the order in which they began. Runs of
    one model on other values, whose `ops` are one object, share the records, which are built once."""
    key = calls.signature, id(ops)
    with _lock:
        entry = _records.get(key)
    if entry is not None and entry[0] is ops:
        return entry[1]
    known = TensorRecords(ops)
    modules = tuple(_module(number, calls.modules, ops, known) for number in range(len(calls.modules)))
    records = modules, tuple(_call(call, known) for call in calls.entries if call.func is not None)
    with _lock:
        while len(_records) >= CACHE_SIZE:
            del _records[next(iter(_records))]
        _records[key] = ops, records
    return records


class TensorRecords:
    """Records of the ops' input and output tensors, and the sizes of the parameters among them."""

    def __init__(self, ops: Sequence[Op]):
        self._records = {}
        for op in ops:
            for tensor in (*op.inputs, *op.outputs):
                self._records.setdefault((tensor.maker, tensor.shape, tensor.dtype), tensor)
        named = {name for op in ops for name in op.parameters}
        self.sizes = {maker: prod(shape) for maker, shape, _ in self._records if maker in named}

    def record(self, ref: Ref) -> TensorRecord:
        """Return the record of a tensor of the run; without symbols for one that is not an input or output of an op."""
        key = maker(ref), tuple(ref.shape), dtype_name(ref.dtype)
        if key not in self._records:
            self._records[key] = TensorRecord(key[1], key[2], key[0])
        return self._records[key]


def maker(ref: Ref) -> int | str:
    """Return the op that produced a tensor, or the name of its parameter, input or constant, in the form that ops
    use."""
    head = ref.key.partition(".")[0]
    if head.isdecimal():
        return int(head)
    return ref.key.removeprefix("parameter ") if not ref.key.startswith("constant ") else "constant"


def _module(number: int, modules: list[ModuleCall], ops: Sequence[Op], known: TensorRecords) -> ModuleRecord:
    call = modules[number]
    beneath = ops[call.first : call.last]
    inputs = (*call.inputs, *(ref for ref in call.named if not _within(ref, call)))
    return ModuleRecord(
        path=call.path,
        kind=call.kind,
        call=call.call,
        around=None if call.around < 0 else call.around,
        first=call.first,
        last=call.last,
        inputs=tuple(map(known.record, inputs)),
        outputs=tuple(map(known.record, call.outputs)),
        params=sum(known.sizes[name] for name in {name for op in beneath for name in op.parameters}),
        flops=sum(op.flops or 0 for op in beneath),
        problem=next(_problems(number, modules, ops), ""),
    )


def _within(ref: Ref, call: ModuleCall) -> bool:
    op = maker(ref)
    return isinstance(op, int) and call.first <= op < call.last


def _problems(number: int, modules: list[ModuleCall], ops: Sequence[Op]) -> Iterator[str]:
    """Yield the contradictions between the hooks and the ops of one call of a module."""
    call = modules[number]
    inside, last = {(call.path, call.call)}, number
    while (last := last + 1) < len(modules) and modules[last].around >= number:
        inside.add((modules[last].path, modules[last].call))
    for op in ops[call.first : call.last]:
        if (op.module, op.call) not in inside:
            yield f"operation {op.index} ran in {op.module or 'the model itself'}, which is not in this module"
    for ref in call.inputs:
        if _within(ref, call):
            yield f"its input of shape {list(ref.shape)} is what operation {maker(ref)} in it made"
    for ref in call.outputs:
        producer = maker(ref)
        if not isinstance(producer, int) or ref.key in {passed.key for passed in (*call.inputs, *call.named)}:
            continue  # it hands on what it was given, or gives a parameter
        if not _within(ref, call):
            yield f"its output of shape {list(ref.shape)} was made by operation {producer}, which did not run in it"
        elif (place := ref.key.partition(".")[2]).isdecimal() and int(place) < len(ops[producer].outputs):
            gave = ops[producer].outputs[int(place)]  # anything else was written into
            if (gave.shape, gave.dtype) != (tuple(ref.shape), dtype_name(ref.dtype)):
                yield f"its output has the shape {list(ref.shape)}, operation {producer} gave {list(gave.shape)}"


def _call(call: Call, known: TensorRecords) -> CallRecord:
    defaults = {} if call.func is None else _defaults(call.func)
    return CallRecord(
        name=call.name,
        arguments=tuple(_argument(name, value, defaults, known) for name, value in call.arguments.items()),
        outputs=tuple(map(known.record, call.outputs)),
        module=call.module,
        call=call.call,
        first=call.first,
        last=call.last,
    )


@lru_cache(maxsize=1024)
def _defaults(func: Callable) -> dict[str, Any]:
    """Return the default values of an op's arguments."""
    arguments = function_schema(func).arguments
    return {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}


def _argument(name: str, value, defaults: dict, known: TensorRecords) -> Argument:
    tensors = tuple(map(known.record, refs(value)))
    default = name in defaults and not tensors and defaults[name] == value
    return Argument(name, "" if tensors else shorten(_text(value), LETTERS), tensors, default)


def _text(value) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return dtype_name(value) if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)) else str(value)
