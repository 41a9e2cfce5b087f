"""A trace as one safetensors file: its tensors, and everything else as JSON in the header.

Opening needs neither the model nor its code, and executes nothing: no pickle, no import by name, formulas
only in the grammar of `tracer.symbols.notation`. Format of the file: https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import builtins
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from tracer.record import Trace
from tracer.serialization import validation
from tracer.serialization.format import decode, encode, from_version_1
from tracer.serialization.proof_on_opening import unverified
from tracer.serialization.validation import HEADER, ITEMS
from tracer.tracing.proofs import weight, weights
from tracer.utils import files
from tracer.utils.errors import quote, shorten

VERSION = 2
MAX_BYTES = 2 << 30
OPERANDS = 64 << 20
"""Bytes of parameters and inputs that are saved with a run."""
READ_ERRORS = ValueError, SafetensorError, RecursionError, MemoryError


def save(trace: Trace, path: str | Path) -> None:
    """Write the trace to `path`, whole or not at all. Raise OSError with one sentence if that can't be done, ValueError
    for a trace that `open` would refuse."""
    files.write(path, to_bytes(trace))


def to_bytes(trace: Trace, net: torch.nn.Module | None = None) -> bytes:
    """Return the trace as the bytes of a file. ValueError with one sentence for a trace that `open` would refuse.

    The parameters and inputs that lines name are saved with them, up to `OPERANDS` bytes, so that the lines can be
    verified again; of a trace that no longer holds its model, the parameters are those of `net`. Of an output, tensors
    and the tuples, lists and dicts around them are saved; anything else is left out and named in `Trace.notes`.
    """
    try:
        validation.check_counts(trace)  # before anything large is made of it
        fields, tensors = encode(replace(trace, values=_operands(trace, net)))
        # one key, so that the same trace gives the same bytes
        text = json.dumps({"version": VERSION, **fields}, allow_nan=False)
        data = safetensors.torch.save(tensors, {"trace": text})
        if len(data) > MAX_BYTES:
            raise ValueError(f"it would take {len(data):,} bytes, expected at most {MAX_BYTES:,}")
        fields = _fields(data)
        del fields["version"]
        validation.check(decode(fields, tensors))
    except (*READ_ERRORS, KeyError, TypeError, RuntimeError) as error:  # of the file format too: a dtype that it lacks
        raise ValueError(f"this run of {quote(trace.model)} can't be saved: {_problem(error)}") from error
    return data


def _operands(trace: Trace, net: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """Return the values of a trace, with the parameters and inputs that its lines name, as far as they fit."""
    operands, left = dict(trace.values), OPERANDS
    if trace.later is not None:
        value, changed = trace.later.values(), trace.later.rewritten()
    elif net is not None:
        value, changed = partial(_parameter, net), set()
    else:
        return operands
    for key in dict.fromkeys(name.of for step in trace.steps for name in step.names):
        if key not in operands and key not in changed and (tensor := value(key)) is not None and tensor.nbytes <= left:
            operands[key] = tensor
            left -= tensor.nbytes
    return operands


def _parameter(net: torch.nn.Module, key: str) -> torch.Tensor | None:
    """Return the parameter or buffer of a key; None for a key of something else."""
    parameter = weight(weights(net), key.removeprefix("parameter ")) if key.startswith("parameter ") else None
    return None if parameter is None else parameter.detach().cpu()


def open(source: str | Path | bytes, *, name: str = "the file", prove: bool | str = True) -> Trace:
    """Return the trace in a file, or in the bytes of one (`name` is then what errors call it).

    No proof in it is believed: its lines are read and verified again from the tensors in the file, those that need
    others are `recorded`. With `prove="later"` they are pending, until `Trace.prove` is asked for them.
    ValueError with one sentence for anything that is not a whole, consistent trace file; OSError where the
    path can't be read.
    """
    if not isinstance(source, bytes):
        name, source = str(source), _read(str(source))
    try:
        fields = _fields(source)
        version = fields.pop("version")
        trace = decode(fields, _tensors(source))
        validation.check(trace)
        trace = from_version_1(trace) if version == 1 else trace
    except READ_ERRORS as error:
        problem = _problem(error)
        if "not fully covered" in problem:
            problem = "it is cut off, or goes on after its end"
        raise ValueError(
            f"{quote(name)} is not a trace saved by this program (a safetensors file): {problem}"
        ) from error
    trace = unverified(trace)
    return trace if prove == "later" else trace.prove()


def _problem(error: Exception) -> str:
    return shorten(" ".join(str(error).split()).rstrip(".") or type(error).__name__, 240)


def _read(path: str) -> bytes:
    try:
        with builtins.open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise ValueError(f"{quote(path)} has {size:,} bytes, expected a trace of at most {MAX_BYTES:,}")
            return file.read(MAX_BYTES)
    except OSError as error:
        raise type(error)(f"can't read {quote(path)}: {error.strerror or error}") from error


def _tensors(data: bytes) -> dict[str, torch.Tensor]:
    try:
        return safetensors.torch.load(data)
    except RuntimeError as error:  # an empty tensor may state sizes whose product no 64 bits hold
        raise ValueError(f"PyTorch refuses the shape of one of its tensors: {error}") from error


def _fields(data: bytes) -> dict:
    """Return the JSON in the header's metadata, read before any tensor is."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise ValueError(f"expected 8 bytes of length and a header that long, got {len(data):,} bytes in all")
    if length > HEADER:
        raise ValueError(f"its header has {length:,} bytes, expected at most {HEADER:,}")
    header = data[8 : 8 + length]
    if (items := sum(map(header.count, (b",", b"[", b"{")))) > ITEMS:  # each value follows one of these
        raise ValueError(f"its header has {items:,} values, expected at most {ITEMS:,}")
    try:
        fields = json.loads(json.loads(header)["__metadata__"]["trace"])
        version = fields["version"]
    except (UnicodeDecodeError, json.JSONDecodeError, LookupError, TypeError, AttributeError):
        raise ValueError("its header holds no trace") from None
    if type(version) is not int or not 1 <= version <= VERSION:
        raise ValueError(f"its format is version {quote(version, 40)}, expected 1 to {VERSION}")
    return fields
