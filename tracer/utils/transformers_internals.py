"""Private names of transformers that the project needs, each with the reason. Tested with transformers 5.

| what | why no public name serves |
|---|---|
| `_from_config` | `AutoModel.from_config` chooses the class itself; here a given class is built. |
| `_supports_sdpa` | A class says by nothing else which implementations of attention it has. |
| the tables of the Auto classes | `AutoModel` opens a configuration, but does not list the classes that it may be of. |

The library is imported by `tracer.zoo.hf.hub.import_transformers` before, so here it is when a function is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch


def build_from_config(architecture: Any, config, attention: str | None = None) -> torch.nn.Module:
    """Build a model of that class with random weights; `attention` is its implementation, by default the library's own
    choice."""
    return architecture._from_config(config, **({"attn_implementation": attention} if attention else {}))


def supports_sdpa(net: torch.nn.Module) -> bool:
    """Return whether all models within a net can run PyTorch's fused attention; False where there is none."""
    parts = [part for part in net.modules() if hasattr(part, "_supports_sdpa")]
    return bool(parts) and all(part._supports_sdpa for part in parts)


def model_types() -> tuple[str, ...]:
    """Return the families that transformers knows."""
    return tuple(import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING_NAMES)


def auto_classes(task: str, model_type: str) -> tuple[str, ...]:
    """Return the names of the classes that the Auto class of a task opens for a family; none if there is no such
    task."""
    names = _auto_tables().get(f"{task}_MAPPING_NAMES", {}).get(model_type, ())
    return (names,) if isinstance(names, str) else tuple(names)


def has_auto_class(model_type: str) -> bool:
    """Return whether an Auto class opens the models of a family; otherwise the family belongs to a part of other
    models."""
    tables = _auto_tables()
    return any(model_type in tables[name] for name in tables if name.startswith("MODEL_") and "_NAMES" in name)


def _auto_tables() -> dict[str, Any]:
    return vars(import_module("transformers.models.auto.modeling_auto"))
