"""Dataclasses to JSON by their type hints; tensors go to a table beside it.

Values of a free type (`object`, `Any`) are tagged, so that tuples stay tuples: `{"tuple": […]}`, `{"list": […]}`,
`{"dict": [[key, value], …]}`, `{"float": "nan"}`, `{"tensor": name}`.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import cache
from math import isfinite
from typing import Any, Union, get_args, get_origin

import torch

from tracer.record import Source, TensorRecord, Trace
from tracer.record.serialization.schema import LIMIT, hints

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
