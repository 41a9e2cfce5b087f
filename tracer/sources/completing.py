"""Says what a configuration of transformers leaves open: what its own code asks for, as the code finds it missing.

Some families are configurations without all numbers: those stand in their checkpoints. A number is taken from another
part of the configuration that has it, from one that it usually equals, or is a small one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import getsource
from linecache import getline
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from tracer.sources.small import DEPTHS, OPEN, parts

MOST = 8
"""Numbers that are said of one configuration."""
ABSENT = re.compile(r"'(\w+)' object has no attribute '(\w+)'")
TUPLE = 'can only concatenate list (not "tuple")'
READ = re.compile(r"\bconfig((?:\.\w+)+)")
OWN = re.compile(r"\bself\.(\w+)")
"""What a module reads of itself: often what it was told by a configuration."""
USUAL: dict[str, tuple[str, ...] | float] = {
    r".*dropout.*|.*drop_rate": 0.0,
    r".*rope_theta": 10000.0,
    r"(.*_)?clip(_.*)?": 8.0,
    r"num_key_value_heads": ("num_attention_heads", "decoder_num_attention_heads", "num_heads"),
    r".*intermediate_size": ("intermediate_size",),
    r".*_act(ivation)?(_fn)?": ("hidden_act", "hidden_activation", "activation_function"),
    r".*_eps(ilon)?": ("rms_norm_eps", "layer_norm_eps", "norm_eps"),
}
"""What a number usually is, by the form of its name: those of other names, or a value."""
KINDS = {"mlp_layer_types": ("dense", "sparse"), "layer_types": ("full_attention",)}
"""The kinds of blocks, the first ones first, where a list of them is left open."""


def completed(config, error: Exception) -> bool:
    """Says, in place, what the code that raised `error` asked for; whether there was something that could be said."""
    if TUPLE in str(error):
        listed = [_listed(part) for part in parts(config)]
        return any(listed)
    if found := ABSENT.search(str(error)):
        for part in parts(config):
            if type(part).__name__ == found[1]:
                return _said(part, found[2], config, error)
    said = [_said(part, name, config, error) for part, name in _left(config, error)]
    return any(said)


def completed_at(config, error: Exception) -> bool:
    """The same of a net that was built and does not run: of what the line reads at which its code stopped."""
    own = [one for one in _frames(error.__traceback__) if "modeling_" in one[0].f_code.co_filename][-1:]
    said = [
        _said(part, name, config, error) for frame, lines in own for part, name in _none_at(config, frame, lines[0])
    ]
    return any(said)


def _listed(part) -> bool:
    """Makes lists of the tuples of a configuration, as all of those are that come from a file."""
    tuples = {name: value for name, value in vars(part).items() if isinstance(value, tuple)}
    for name, value in tuples.items():
        setattr(part, name, list(value))
    return bool(tuples)


def left_open(config, error: Exception) -> str:
    """The name of what the code that raised `error` reads and the configuration leaves open; empty where it is none."""
    if found := ABSENT.search(str(error)):
        return found[2] if any(type(part).__name__ == found[1] for part in parts(config)) else ""
    return next((name for _, name in _left(config, error)), "")


def stopped(error: Exception) -> str:
    """Where the code of a library stopped, in words."""
    places = [(traceback.tb_frame.f_code.co_filename, traceback.tb_lineno) for traceback in _each(error.__traceback__)]
    file, line = next((one for one in reversed(places) if "modeling_" in one[0]), places[-1])
    return f"{Path(file).name}, line {line}"


def _left(config, error: Exception) -> list[tuple[Any, str]]:
    """What the innermost line, or function, that failed reads of a configuration where that is None."""
    for frame, lines in reversed(list(_frames(error.__traceback__))) if "None" in str(error) else ():
        for text in lines:
            if found := _none_at(config, frame, text):
                return found
    return []


def _none_at(config, frame: FrameType, text: str) -> list[tuple[Any, str]]:
    """What a line reads of a configuration, or its module of itself that a configuration said, where that is None."""
    read = [_open(frame, path.strip(".").split(".")) for path in dict.fromkeys(READ.findall(text))]
    mine = [(next((one for one in parts(config) if type(one) is type(part)), None), name) for part, name in read]
    own = getattr(frame.f_locals.get("self"), "__dict__", {})
    kept = [name for name in dict.fromkeys(OWN.findall(text)) if own.get(name, 0) is None]
    mine += [(part, name) for name in kept for part in parts(config) if name in vars(part)]
    return [(part, name) for part, name in mine if part is not None and _none(part, name)]


def _none(part, name: str) -> bool:
    return getattr(part, name, None) is None


def _each(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, tuple[str, str]]]:
    """The functions that failed, each with the line where it did, or the one before an error that is its own, and with
    all its lines."""
    for one in _each(traceback):
        frame = one.tb_frame
        try:
            whole = getsource(frame.f_code)
        except (OSError, TypeError):  # code without a file
            whole = ""
        line = getline(frame.f_code.co_filename, one.tb_lineno)
        if line.lstrip().startswith("raise "):
            line = getline(frame.f_code.co_filename, one.tb_lineno - 1)
        yield frame, (line, whole)


def _open(frame: FrameType, names: list[str]) -> tuple[Any, str]:
    """The first of these attributes, one in the other, that is None, and whose it is; the last one where none is."""
    own = frame.f_locals
    part = own.get("config", getattr(own.get("self"), "config", None))
    for number, name in enumerate(names, 1):
        value = getattr(part, name, None)
        if value is None or number == len(names):
            return part, name
        part = value
    return part, ""


def _said(part, name: str, config, error: Exception) -> bool:
    value = _value(part, name, config, error)
    if value is None:
        return False
    setattr(part, name, value)
    return True


def _value(part, name: str, config, error: Exception):
    """What a number is likely to be; None where nothing is known of it."""
    for other in parts(config):
        if other is not part and (value := getattr(other, name, None)) is not None and not hasattr(value, "to_dict"):
            return value
    kinds = next((kinds for end, kinds in KINDS.items() if name.endswith(end)), ())
    depth = next((size for one, size in vars(part).items() if DEPTHS.fullmatch(one) and type(size) is int), 0)
    if kinds and depth:
        return [kinds[min(number, len(kinds) - 1)] for number in range(depth)]
    usual = next((known for form, known in USUAL.items() if re.fullmatch(form, name)), None)
    if isinstance(usual, float):
        return usual
    for one in usual or ():
        if (value := getattr(part, one, None)) is not None:
            return value
    found = next((size for form, size in OPEN.items() if re.fullmatch(form, name)), None)
    if found is None and name.startswith("default_"):
        return next(iter(getattr(part, f"{name.removeprefix('default_')}s", None) or ()), None)
    if found is None and ("no len()" in str(error) or "not iterable" in str(error)):
        return []
    if found is None and re.search(r"no attribute '(get|items|keys)'", str(error)):
        return {}
    return found
