"""Published models of transformers: their configurations, and the number of parameters that was published of each.

`presets.json` is the table. A count is given as published: `405,853,388,800` to the number, `175B` to the billion.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import torch

from tracer.shapes.shadow_module import on_meta
from tracer.utils.error_text import quote
from tracer.zoo.hf import auto_classes, config_attributes
from tracer.zoo.hf.dummy import build_and_probe
from tracer.zoo.hf.hub import import_transformers

UNITS = {"": 1, "M": 10**6, "B": 10**9}


class PublishedModel(NamedTuple):
    """A published model: its title, its number of parameters as published, where that stands, and its configuration."""

    title: str
    parameters: str
    source: str
    config: dict[str, Any]

    def agrees(self, count: int) -> bool:
        """Return whether a number of parameters is the published one, to the digits that were published."""
        number, unit = re.fullmatch(r"([\d.,]+)([MB]?)", self.parameters).groups()  # type: ignore[union-attr]
        digits = number.replace(",", "")
        decimals = len(digits.partition(".")[2])
        return round(count / UNITS[unit], decimals) == float(digits) if unit else count == int(digits)


@lru_cache(maxsize=1)
def published_models() -> dict[str, PublishedModel]:
    """Return all published models by name."""
    table = json.loads((files(__package__) / "presets.json").read_text(encoding="utf-8"))
    return {name: PublishedModel(**entry) for name, entry in table.items()}


def configuration(name: str) -> Any:
    """Return the configuration of a published model. ValueError quotes an unknown name."""
    known = published_models()
    if name not in known:
        raise ValueError(f"{quote(name)} is not a published model, expected one of {', '.join(known)}")
    fields = dict(known[name].config)
    return config_attributes.with_defaults(
        import_transformers().AutoConfig.for_model(fields.pop("model_type"), **fields)
    )


@lru_cache(maxsize=64)
def count(name: str) -> int:
    """Return the number of parameters of a published model, counted on its net, which is built without memory."""
    config = configuration(name)
    architecture = auto_classes.classes(config)[0]
    net: torch.nn.Module = on_meta(lambda: build_and_probe.net(architecture, config))
    return sum(parameter.numel() for parameter in net.parameters())
