"""The format of a saved run: its fields, and how each is written and read."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache
from math import isfinite
from typing import Any, Union, get_args, get_origin, get_type_hints

import torch

from tracer.latex_reader.parser import signs
from tracer.record import (
    ATTENTION_WEIGHTS,
    LOGITS,
    RESIDUAL_STREAM,
    SCORES,
    SELECTED_TOKENS,
    SEQUENCE,
    Source,
    Step,
    TensorRecord,
    Trace,
)
from tracer.serialization.validation import FREE_TEXT, ITEMS, ITEMS_OF_A_RECORD, MAX_LETTERS, TEXT
from tracer.utils.errors import quote

# Runs in files of earlier versions of the format: what they do not state, derived from what they do, and words that
# have changed.

FORMER_PHRASES = (
    ("Not executed at this size; proven on", "Not executed at this size; verified on"),
    ("shapes at this size; equations proven on", "shapes at this size; equations verified on"),
    ("shapes at this size; no equation is proven", "shapes at this size; no equation is verified"),
    ("from the equation, and proven with what follows", "from the equation, and verified with what follows"),
    ("kernel is run again: a weaker proof", "kernel is run again: a weaker check"),
)
"""Words of notes in older files, which called a verified equation proven, and those of today."""
MAX_SIGNS, SIGN_COST = 100_000_000, 32
"""Signs of equations that are compared with names, and what each adds besides; a run of 1,000 steps has a sixth."""
ENVIRONMENT = re.compile(r"\\(?:begin|end)\{\w*\}")
ROLE_OF_SYMBOL = (
    (r"\mathbf{X}'", RESIDUAL_STREAM),
    (r"\mathbf{S}", SCORES),
    (r"\check{\mathbf{S}}", SCORES),
    (r"\mathbf{A}", ATTENTION_WEIGHTS),
    (r"\check{\mathbf{A}}", ATTENTION_WEIGHTS),
    (r"\mathbf{Z}", LOGITS),
)
"""The roles that a symbol tells, by its start."""


def from_version_1(trace: Trace) -> Trace:
    """Return the trace of a file of version 1, in which steps state neither what they read nor their roles."""
    steps = (replace(step, note=_renew(step.note)) for step in _with_dataflow(trace))
    return replace(trace, steps=tuple(steps), notes=tuple(map(_renew, trace.notes)))


def _renew(note: str) -> str:
    for former, today in FORMER_PHRASES:
        note = note.replace(former, today)
    return note


def _with_dataflow(trace: Trace) -> list[Step]:
    """Return the steps of a trace with what its steps read, by the names on the right of their equations, and with the
    roles that figures look for, by their symbols and shapes."""
    table: dict[tuple[str, ...], str] = {}
    lengths: set[int] = set()
    steps, left, before = [], MAX_SIGNS, None
    for step in trace.steps:
        own, named = signs(step.symbol), {signs(name.symbol): name.of for name in step.names}
        table |= {own: table.get(own, step.id), **named}
        lengths |= {len(own), *map(len, named)} - {0}
        longest_first = sorted(lengths, reverse=True)
        right = signs(ENVIRONMENT.sub(" ", step.latex.partition("=")[2])) if left > 0 else ()
        reads: dict[str, None] = {}
        at, left = 0, left - len(right) * (SIGN_COST + sum(lengths))
        while left > 0 and at < len(right):
            name = next((right[at : at + length] for length in longest_first if right[at : at + length] in table), ())
            reads |= {table[name]: None} if name else {}
            at += len(name) or 1
        table[own] = step.id
        steps.append(replace(step, reads=tuple(reads), role=_role(step, before)))
        before = step
    return steps


def _role(step: Step, before: Step | None) -> str:
    """Return the role of a step by its symbol, or by its shape and that of the step before it."""
    if step.layer is None and before is not None and step.stage in ("embedding", "patches"):
        (*_, count, width), (*_, count_before, width_before) = (0, 0, *step.shape), (0, 0, *before.shape)
        if width == width_before and len(step.shape) == len(before.shape) == 3:
            if step.stage == "embedding" and count > count_before:
                return SEQUENCE
            if step.stage == "patches" and count < count_before:
                return SELECTED_TOKENS
    return next((role for start, role in ROLE_OF_SYMBOL if step.symbol.startswith(start)), "")


# Data fields of the records and their types, for writing and reading.

LIMIT = 1 << 63


@cache
def hints(record: type) -> dict[str, Any]:
    """Return name to type of the data fields of a record; names that a file of records imports for type checkers only
    are supplied here."""
    placeholders = dict.fromkeys(("Later", "Replay", "Reread"), object)
    annotations = get_type_hints(record, localns={"Mapping": Mapping, "torch": torch, **placeholders})
    return {field.name: annotations[field.name] for field in fields(record) if field.compare}


# Dataclasses to JSON by their type hints; tensors go to a table beside it.
#
# Values of a free type (`object`, `Any`) are tagged, so that tuples stay tuples: `{"tuple": […]}`, `{"list": […]}`,
# `{"dict": [[key, value], …]}`, `{"float": "nan"}`, `{"tensor": name}`.

SHARED_RECORDS = TensorRecord, Source


def encode(trace: Trace) -> tuple[dict, dict[str, torch.Tensor]]:
    """Return the trace as (JSON-ready fields, tensors by name)."""
    writer, trace = Encoder(), trace.prove()
    data = writer.encode_typed(trace, Trace, "")
    if writer.left_out:
        notes = (*trace.notes, *writer.left_out)
        data["notes"] = writer.encode_typed(notes, hints(Trace)["notes"], "notes")
    return data, writer.tensors


class Encoder:
    """One encoding: the tensors, once each, and the parts that could not be saved."""

    def __init__(self):
        self.tensors: dict[str, torch.Tensor] = {}
        self.left_out: list[str] = []
        self._names: dict[tuple, str] = {}
        self._records: dict[int, dict] = {}

    def _record(self, value, record: Any, where: str) -> dict:
        return {
            name: self.encode_typed(getattr(value, name), kind, f"{where}/{name}")
            for name, kind in hints(record).items()
        }

    def encode_typed(self, value, hint, where: str) -> Any:
        """Return the JSON of a value of a known type."""
        if value is None:
            return None
        if hint in SHARED_RECORDS:  # one record of a tensor stands at each op that takes it
            if id(value) not in self._records:
                self._records[id(value)] = self._record(value, hint, where)
            return self._records[id(value)]
        if is_dataclass(hint):
            return self._record(value, hint, where)
        if get_origin(hint) in (Union, types.UnionType):
            return self.encode_typed(value, _member(value, hint), where)
        if hint in (int, str, bool):
            return hint(value)
        if hint is float:
            return float(value) if isfinite(value) else str(float(value))
        if hint is torch.Tensor:
            return self._tensor(value, where)
        if get_origin(hint) is tuple:
            kinds = _elements(hint, len(value))
            return [
                self.encode_typed(item, kind, f"{where}/{i}")
                for i, (item, kind) in enumerate(zip(value, kinds, strict=True))
            ]
        if get_origin(hint) is Mapping:
            return self._mapping(value, get_args(hint)[1], where)
        return self.free(value, where)

    def _mapping(self, value, kind, where: str) -> dict:
        lost = [key for key, item in value.items() if isinstance(item, torch.Tensor) and not storable(item)]
        self.left_out += [f"{where}/{key} ({value[key].dtype}) was not saved".strip("/") for key in lost]
        entries = {key: item for key, item in value.items() if key not in lost}
        return {str(key): self.encode_typed(item, kind, f"{where}/{key}") for key, item in entries.items()}

    def free(self, value, where: str) -> Any:
        """Return the JSON of a value of a free type."""
        match value:
            case None | bool() | str():
                return value
            case int() if abs(value) < LIMIT:
                return value
            case float():
                return value if isfinite(value) else {"float": str(value)}
            case torch.Tensor() if storable(value):
                return {"tensor": self._tensor(value, where)}
            case list() | tuple():
                kind = "list" if isinstance(value, list) else "tuple"
                return {kind: [self.free(item, f"{where}/{i}") for i, item in enumerate(value)]}
            case Mapping():
                return {"dict": [[_tag_key(key), self.free(item, f"{where}/{key}")] for key, item in value.items()]}
        what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        self.left_out.append(f"{where.strip('/')} ({what}) was not saved")
        return None

    def _tensor(self, tensor: torch.Tensor, where: str) -> str:
        """Store the tensor once, under a name for its position, and return that name."""
        tensor = tensor.detach()
        same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and same in self._names:
            return self._names[same]
        name = where.strip("/")
        # a copy of its own: the file format holds contiguous tensors that share no memory
        self.tensors[name] = tensor.cpu().clone(memory_format=torch.contiguous_format)
        self._names[same] = name
        return name


def storable(tensor: torch.Tensor) -> bool:
    """Return whether the file format can hold a tensor: its numbers exist, in order, and in a dtype that it knows."""
    wide = tensor.is_complex() and tensor.dtype != torch.complex64
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_quantized or wide)


def _tag_key(key) -> str | int:
    return key if type(key) is int else str(key)


@cache
def _members(union) -> tuple:
    return tuple(kind for kind in get_args(union) if kind is not types.NoneType)


def _member(value, union):
    """Return the member of a union that a value belongs to; None and numbers in JSON decide it by their type."""
    kinds = _members(union)
    return next((kind for kind in kinds if isinstance(kind, type) and isinstance(value, kind)), kinds[0])


def _elements(hint, count: int) -> list:
    kinds = get_args(hint)
    return [kinds[0]] * count if kinds[-1:] == (Ellipsis,) else list(kinds)


# JSON back to dataclasses: the type hints of `Trace` bound what is built.
#
# A wrong type, a missing or an unknown field is a ValueError that says where. Values of a free type are tagged, as
# `tracer.serialization.format` has them.

FREE_TYPES = object, Any


def decode(data, tensors: Mapping[str, torch.Tensor]) -> Trace:
    """Return the trace from (JSON fields, tensors by name); raise ValueError that names a field which is not as
    expected."""
    try:
        return Decoder(tensors).of(Trace)(data)
    except TypeMismatch as misfit:
        raise ValueError(f"trace{misfit.where}{misfit.message}") from None


class TypeMismatch(Exception):
    """A value that its field's type forbids; its containers add its position as the error propagates."""

    def __init__(self, message: str):
        super().__init__(message)
        self.message, self.where = message, ""

    def within(self, place: str) -> TypeMismatch:
        self.where = place + self.where
        return self


class Decoder:
    """One strict decoding: every value has the type that its field declares. A file has half a million values, so the
    reader of each type is cached."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self.tensors = tensors
        self._known: dict = {str: _text, int: _whole, bool: _truth, float: _float, torch.Tensor: self._tensor}

    def of(self, hint) -> Callable:
        """Return the reader of a known type."""
        if hint not in self._known:
            self._known[hint] = self._build(hint)
        return self._known[hint]

    def _build(self, hint) -> Callable:
        origin = get_origin(hint)
        if origin is tuple:
            return self._several(get_args(hint))
        if origin in (Union, types.UnionType):
            kinds = _members(hint)
            reads = {kind: self.of(kind) for kind in kinds if isinstance(kind, type)}
            first = self.of(kinds[0])
            return lambda data: None if data is None else reads.get(type(data), first)(data)
        if origin is None and is_dataclass(hint):
            return self._record(hint)
        if origin is Mapping:
            return self._mapping(self.of(get_args(hint)[1]))
        if hint in FREE_TYPES:
            return self.free

        def loose(data):
            value = self.free(data)
            _expect(isinstance(value, hint), f"a {hint.__name__}")
            return value

        return loose

    def _several(self, kinds: tuple) -> Callable:
        if kinds[-1] is not Ellipsis:
            reads = [self.of(kind) for kind in kinds]

            def read_fixed(data):
                _expect(type(data) is list, "a list")
                _expect(len(data) == len(reads), f"{len(reads)} items")
                return tuple([_at(i, read, item) for i, (read, item) in enumerate(zip(reads, data, strict=True))])

            return read_fixed
        read = self.of(kinds[0])

        def several(data):
            if type(data) is not list:
                raise TypeMismatch(": expected a list")
            try:
                return tuple([read(item) for item in data])
            except TypeMismatch:  # which of them it was is only asked now
                return tuple([_at(i, read, item) for i, item in enumerate(data)])

        return several

    def _mapping(self, read: Callable) -> Callable:
        def mapping(data):
            _expect(type(data) is dict, "an object")
            return {_text(key): _at(quote(key, 40), read, value) for key, value in data.items()}

        return mapping

    def _record(self, record: Any) -> Callable:
        items = ITEMS if record is Trace else ITEMS_OF_A_RECORD
        known = {
            name: (self.of(hint), MAX_LETTERS.get(name, TEXT), *_texts(hint)) for name, hint in hints(record).items()
        }
        needed = [f.name for f in fields(record) if f.default is MISSING and f.default_factory is MISSING]

        def read(data):
            if type(data) is not dict:
                raise TypeMismatch(": expected an object")
            if not known.keys() >= data.keys():
                raise TypeMismatch(f": expected no field {quote(next(name for name in data if name not in known))}")
            fields_read = {}
            for name, value in data.items():
                field_reader, letters, text, several = known[name]
                try:
                    fields_read[name] = value = field_reader(value)
                except TypeMismatch as misfit:
                    raise misfit.within(f".{name}") from None
                if text and value is not None and type(value) is str and len(value) > letters:
                    raise TypeMismatch(f".{name}: expected at most {letters:,} letters")
                if several and value:
                    if len(value) > items:
                        raise TypeMismatch(f".{name}: expected at most {items:,} items, got {len(value):,}")
                    if text and max(map(len, value)) > letters:
                        raise TypeMismatch(f".{name}: expected at most {letters:,} letters")
            if len(fields_read) < len(known) and (
                missing := next((name for name in needed if name not in fields_read), None)
            ):
                raise TypeMismatch(f": expected a field {missing!r}")
            return record(**fields_read)

        return read

    def free(self, data) -> Any:
        """Return a value of a free type."""
        match data:
            case None | bool():
                return data
            case int():
                return _whole(data)
            case float():
                return _float(data)
            case str():
                _expect(len(data) <= FREE_TEXT, f"at most {FREE_TEXT:,} letters")
                return _text(data)
            case {"float": str(value), **rest} if not rest:
                return _float(value)
            case {"tensor": name, **rest} if not rest:
                return self._tensor(name)
            case {"list": list(items), **rest} if not rest:
                return [_at(i, self.free, item) for i, item in enumerate(items)]
            case {"tuple": list(items), **rest} if not rest:
                return tuple([_at(i, self.free, item) for i, item in enumerate(items)])
            case {"dict": list(items), **rest} if not rest:
                _expect(all(type(pair) is list and len(pair) == 2 for pair in items), "pairs of key and value")
                return {_key(key): _at(quote(key, 40), self.free, item) for key, item in items}
        raise TypeMismatch(f" is {quote(data, 40)}, expected a tagged value")

    def _tensor(self, name) -> torch.Tensor:
        _expect(type(name) is str and name in self.tensors, "the name of a tensor in the file")
        return self.tensors[name]


def _at(place, read: Callable, data):
    """Read a value at a position of another."""
    try:
        return read(data)
    except TypeMismatch as misfit:
        raise misfit.within(f"[{place}]") from None


def _texts(hint) -> tuple[bool, bool]:
    """Return whether a type is a text, or holds several of them; and whether it holds several of anything."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    several = [kind for kind in kinds if get_origin(kind) is tuple]
    return any(kind is str for kind in (*kinds, *(get_args(kind)[0] for kind in several))), bool(several)


def _whole(data) -> int:
    if type(data) is not int or not -LIMIT <= data < LIMIT:
        raise TypeMismatch(": expected a whole number of 64 bits")
    return data


def _truth(data) -> bool:
    _expect(type(data) is bool, "true or false")
    return data


def _float(data) -> float:
    if data in ("nan", "inf", "-inf"):
        return float(data)
    _expect((type(data) is float and isfinite(data)) or (type(data) is int and abs(data) < LIMIT), "a number")
    return float(data)


def _text(data) -> str:
    if type(data) is not str or not (data.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in data)):
        raise TypeMismatch(": expected text")
    return data


def _key(data) -> str | int:
    return _whole(data) if type(data) is int else _text(data)


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise TypeMismatch(f": expected {what}")
