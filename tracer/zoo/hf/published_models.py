"""Table of published models, read without loading any library: `presets.json`.

A count is given as published: `405,853,388,800` to the number, `175B` to the billion.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

UNITS = {"": 1, "M": 10**6, "B": 10**9}


class PublishedModel(NamedTuple):
    """A published model: its title, its number of parameters as published, the source of that number, and its
    configuration.

    `blocks` is the number of first blocks that have all kinds of blocks, of a model that is too deep to be run with all
    of them; None for any other.
    """

    title: str
    parameters: str
    source: str
    config: dict[str, Any]
    blocks: int | None = None

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
