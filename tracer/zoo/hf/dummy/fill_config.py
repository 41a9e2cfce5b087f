"""Defaults for attributes that a configuration of transformers leaves open, where its model does not run without them.

Some families are configurations without all numbers: those stand in their checkpoints. What a number usually equals is
known by its name, and by the type that a configuration declares for it; else it is taken from another part that has it,
or is a small one. What was said may still not be what was missed: then the next kind of knowledge is tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tracer.zoo.hf.dummy.tiny_config import DEPTHS, OPEN_SIZES, parts

MAX_ROUNDS = 8
"""Times that one configuration is completed."""
ABSENT = re.compile(r"'(\w+)' object has no attribute '(\w+)'")
TUPLE = 'can only concatenate list (not "tuple")'
DEFAULT_VALUES: dict[str, tuple[str, ...] | float] = {
    r".*dropout.*|.*drop_rate": 0.0,
    r".*rope_theta": 10000.0,
    r"(.*_)?clip(_.*)?": 8.0,
    r"num_key_value_heads": ("num_attention_heads", "decoder_num_attention_heads", "num_heads"),
    r".*intermediate_size": ("intermediate_size",),
    r".*_act(ivation)?(_fn)?": ("hidden_act", "hidden_activation", "activation_function"),
    r".*_eps(ilon)?": ("rms_norm_eps", "layer_norm_eps", "norm_eps"),
}
"""The usual value of a number by the form of its name: names of other attributes, or a value."""
KINDS = {"mlp_layer_types": ("dense", "sparse"), "layer_types": ("full_attention",)}
"""The kinds of blocks, the first ones first, where a list of them is left open."""


def fill_missing(config, error: Exception | None = None) -> bool:
    """Set, in place, what a model likely lacks that can't be built, for this reason, or does not run; return whether
    there was anything to set."""
    if error is not None and TUPLE in str(error):
        listed = [_use_lists(part) for part in parts(config)]
        return any(listed)
    if error is not None and (absent := _absent(config, error)):
        part, name = absent
        return any(_set_value(part, name, value) for value in (known(part, name, config) for known in VALUE_SOURCES))
    if error is not None and "None" not in str(error):
        return False
    for known in VALUE_SOURCES:
        open_ = [(part, name) for part in parts(config) for name, value in vars(part).items() if value is None]
        changes = [
            _set_value(part, name, known(part, name, config)) for part, name in open_ if not name.startswith("_")
        ]
        if any(changes):
            return True
    return False


def missing_attribute(config, error: Exception) -> str:
    """Return the name of the attribute that a configuration lacks according to `error`; "" if it is another error."""
    absent = _absent(config, error)
    return absent[1] if absent else ""


def _absent(config, error: Exception) -> tuple[object, str] | None:
    match = ABSENT.search(str(error))
    part = next((part for part in parts(config) if match and type(part).__name__ == match[1]), None)
    return (part, match[2]) if match and part is not None else None


def _use_lists(part) -> bool:
    """Replace the tuples of a configuration by lists, as in one that comes from a file."""
    tuples = {name: value for name, value in vars(part).items() if isinstance(value, tuple)}
    for name, value in tuples.items():
        setattr(part, name, list(value))
    return bool(tuples)


def _set_value(part, name: str, value) -> bool:
    if value is None:
        return False
    setattr(part, name, value)
    return True


def _usual(part, name: str, config):
    """Return the usual value of a number, by its name."""
    kinds = next((kinds for end, kinds in KINDS.items() if name.endswith(end)), ())
    depth = next(
        (size for attribute, size in vars(part).items() if DEPTHS.fullmatch(attribute) and type(size) is int), 0
    )
    if kinds and depth:
        return [kinds[min(number, len(kinds) - 1)] for number in range(depth)]
    usual = next((known for form, known in DEFAULT_VALUES.items() if re.fullmatch(form, name)), ())
    if isinstance(usual, float):
        return usual
    if name.startswith("default_"):
        return next(iter(getattr(part, f"{name.removeprefix('default_')}s", None) or ()), None)
    return next((value for attribute in usual if (value := getattr(part, attribute, None)) is not None), None)


def _empty(part, name: str, config):
    """Return an empty value of the type that a configuration declares."""
    declared = next((str(kind.__annotations__[name]) for kind in type(part).__mro__ if name in _annotations(kind)), "")
    return [] if re.match(r"list\b", declared) else {} if re.match(r"dict\b", declared) else None


def _annotations(kind: type) -> dict:
    return vars(kind).get("__annotations__", {})


def _elsewhere(part, name: str, config):
    """Return the value in another part."""
    values = (getattr(inner, name, None) for inner in parts(config) if inner is not part)
    return next((value for value in values if value is not None and not hasattr(value, "to_dict")), None)


def _small(part, name: str, config):
    """Return a small number."""
    return next((size for form, size in OPEN_SIZES.items() if re.fullmatch(form, name)), None)


VALUE_SOURCES: tuple[Callable, ...] = (_usual, _empty, _elsewhere, _small)
"""The kinds of knowledge, in the order in which they are tried."""
