"""Dataclasses to JSON and back, driven by their type hints; tensors go to a table beside it.

`decode` builds only what the hints of `Trace` allow: a wrong type, a missing or an unknown field is a
ValueError that says where. Values of a free type (`object`) are tagged, so that tuples stay tuples:
`{"tuple": […]}`, `{"list": […]}`, `{"dict": [[key, value], …]}`, `{"float": "nan"}`, `{"tensor": name}`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Union, get_args, get_origin, get_type_hints

import torch

from tracer.quoting import quoted
from tracer.record import Trace
from tracer.storage.bounds import FREE_TEXT, ITEMS, ITEMS_OF_A_RECORD, SHORT, TEXT

LIMIT = 1 << 63


@cache
def hints(record: type) -> dict[str, object]:
    """Name to type of the fields of a record that are data; names that `record.py` imports for type checkers only are
    given here."""
    found = get_type_hints(record, localns={"Mapping": Mapping, "torch": torch, "Later": object})
    return {field.name: found[field.name] for field in fields(record) if field.compare}


@cache
def required(record: type) -> tuple[str, ...]:
    """The fields of a record that have no default."""
    return tuple(f.name for f in fields(record) if f.default is MISSING and f.default_factory is MISSING)


def encode(trace: Trace) -> tuple[dict, dict[str, torch.Tensor]]:
    """The trace as (JSON-ready fields, tensors by name)."""
    writer, trace = Writer(), trace.prove()
    data = writer.typed(trace, Trace, "")
    if writer.left_out:
        notes = (*trace.notes, *writer.left_out)
        data["notes"] = writer.typed(notes, hints(Trace)["notes"], "notes")
    return data, writer.tensors


class Writer:
    """One encoding: collects the tensors, once each, and what could not be saved."""

    def __init__(self):
        self.tensors: dict[str, torch.Tensor] = {}
        self.left_out: list[str] = []
        self._names: dict[tuple, str] = {}

    def typed(self, value, hint, where: str):
        """A value of a known type."""
        if value is None:
            return None
        if is_dataclass(hint):
            return {
                name: self.typed(getattr(value, name), kind, f"{where}/{name}") for name, kind in hints(hint).items()
            }
        if get_origin(hint) in (Union, types.UnionType):
            return self.typed(value, _member(value, hint), where)
        if hint in (int, str, bool):
            return hint(value)
        if hint is float:
            return float(value) if isfinite(value) else str(float(value))
        if hint is torch.Tensor:
            return self._tensor(value, where)
        if get_origin(hint) is tuple:
            kinds = _elements(hint, len(value))
            return [
                self.typed(item, kind, f"{where}/{i}") for i, (item, kind) in enumerate(zip(value, kinds, strict=True))
            ]
        if get_origin(hint) is Mapping:
            return {str(key): self.typed(item, get_args(hint)[1], f"{where}/{key}") for key, item in value.items()}
        return self.free(value, where)

    def free(self, value, where: str):
        """A value of a free type."""
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return value if isfinite(value) else {"float": str(value)}
            case torch.Tensor():
                return {"tensor": self._tensor(value, where)}
            case list() | tuple():
                kind = "list" if isinstance(value, list) else "tuple"
                return {kind: [self.free(item, f"{where}/{i}") for i, item in enumerate(value)]}
            case Mapping():
                return {"dict": [[str(key), self.free(item, f"{where}/{key}")] for key, item in value.items()]}
        self.left_out.append(f"{where.strip('/')} ({type(value).__name__}) was not saved")
        return None

    def _tensor(self, tensor: torch.Tensor, where: str) -> str:
        """Files the tensor under a name that says where it belongs; one that is there already, once."""
        tensor = tensor.detach()
        same = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        if tensor.numel() and same in self._names:
            return self._names[same]
        name = where.strip("/")
        # a copy of its own: the file format holds contiguous tensors that share no memory
        self.tensors[name] = tensor.cpu().clone(memory_format=torch.contiguous_format)
        self._names[same] = name
        return name


def decode(data, tensors: Mapping[str, torch.Tensor]) -> Trace:
    """The trace from (JSON fields, tensors by name); ValueError says which field is not as expected."""
    return Reader(tensors).typed(data, Trace, "trace")


class Reader:
    """One decoding, strict: every value has the type its field declares."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self.tensors = tensors

    def typed(self, data, hint, where: str):
        """A value of a known type. A file has a hundred thousand of them: the commonest types are asked for first."""
        if hint is str:
            return _text(data, where)
        if hint is int:
            _expect(type(data) is int and -LIMIT <= data < LIMIT, where, "a whole number of 64 bits")
            return data
        origin = _origin(hint)
        if origin is tuple:
            _expect(type(data) is list, where, "a list")
            kinds = _elements(hint, len(data))
            if len(kinds) != len(data):
                raise ValueError(f"{where}: expected {len(kinds)} items")
            return tuple(
                self.typed(item, kind, f"{where}[{i}]") for i, (item, kind) in enumerate(zip(data, kinds, strict=True))
            )
        if origin in (Union, types.UnionType):
            return None if data is None else self.typed(data, _member(data, hint), where)
        if origin is None and is_dataclass(hint):
            return self._record(data, hint, where)
        if hint is bool:
            _expect(type(data) is bool, where, "true or false")
            return data
        if hint is float:
            return _float(data, where)
        if hint is torch.Tensor:
            return self._tensor(data, where)
        if origin is Mapping:
            _expect(type(data) is dict, where, "an object")
            kind = get_args(hint)[1]
            return {_text(key, where): self.typed(item, kind, f"{where}[{_at(key)}]") for key, item in data.items()}
        value = self.free(data, where)
        _expect(hint is object or isinstance(value, hint), where, f"a {getattr(hint, '__name__', hint)}")
        return value

    def free(self, data, where: str):
        """A value of a free type."""
        match data:
            case None | bool():
                return data
            case int():
                return self.typed(data, int, where)
            case float():
                return _float(data, where)
            case str():
                _expect(len(data) <= FREE_TEXT, where, f"at most {FREE_TEXT:,} letters")
                return _text(data, where)
            case {"float": str(value), **rest} if not rest:
                return _float(value, where)
            case {"tensor": name, **rest} if not rest:
                return self._tensor(name, where)
            case {"list": list(items), **rest} if not rest:
                return [self.free(item, f"{where}[{i}]") for i, item in enumerate(items)]
            case {"tuple": list(items), **rest} if not rest:
                return tuple(self.free(item, f"{where}[{i}]") for i, item in enumerate(items))
            case {"dict": list(items), **rest} if not rest:
                _expect(all(type(pair) is list and len(pair) == 2 for pair in items), where, "pairs of key and value")
                return {_text(key, where): self.free(item, f"{where}[{_at(key)}]") for key, item in items}
        raise ValueError(f"{where} is {quoted(data, 40)}, expected a tagged value")

    def _record(self, data, record: type, where: str):
        _expect(type(data) is dict, where, "an object")
        known = hints(record)
        extra = next((name for name in data if name not in known), None)
        if extra is not None:
            raise ValueError(f"{where}: expected no field {quoted(extra)}")
        if missing := next((name for name in required(record) if name not in data), None):
            raise ValueError(f"{where}: expected a field {missing!r}")
        found = {name: self.typed(value, known[name], f"{where}.{name}") for name, value in data.items()}
        for name, value in found.items():
            _bounded(value, SHORT.get(name, TEXT), ITEMS if record is Trace else ITEMS_OF_A_RECORD, f"{where}.{name}")
        return record(**found)

    def _tensor(self, name, where: str) -> torch.Tensor:
        _expect(type(name) is str and name in self.tensors, where, "the name of a tensor in the file")
        return self.tensors[name]


@cache
def _origin(hint):
    return get_origin(hint)


@cache
def _members(union) -> tuple:
    return tuple(kind for kind in get_args(union) if kind is not types.NoneType)


def _member(value, union):
    """The member of a union that a value is of; None and numbers in JSON decide it by their type."""
    kinds = _members(union)
    return next((kind for kind in kinds if isinstance(kind, type) and isinstance(value, kind)), kinds[0])


def _elements(hint, count: int) -> list:
    kinds = get_args(hint)
    return [kinds[0]] * count if kinds[-1:] == (Ellipsis,) else list(kinds)


def _float(data, where: str) -> float:
    if data in ("nan", "inf", "-inf"):
        return float(data)
    _expect((type(data) is float and isfinite(data)) or (type(data) is int and abs(data) < LIMIT), where, "a number")
    return float(data)


def _text(data, where: str) -> str:
    sound = type(data) is str and (data.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in data))
    _expect(sound, where, "text")
    return data


def _at(key) -> str:
    return quoted(key, 40)


def _bounded(value, letters: int, items: int, where: str) -> None:
    """ValueError for a text, or one of several, of more letters than that, and for more items than that."""
    if isinstance(value, str):
        several = (value,)
    elif isinstance(value, tuple):
        several = value
    else:
        return
    if len(several) > items:
        raise ValueError(f"{where}: expected at most {items:,} items, got {len(several):,}")
    if any(len(text) > letters for text in several if isinstance(text, str)):
        raise ValueError(f"{where}: expected at most {letters:,} letters")


def _expect(holds: bool, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"{where}: expected {what}")
