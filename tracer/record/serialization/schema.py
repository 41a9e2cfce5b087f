"""Data fields of the records and their types, for writing and reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, get_type_hints

import torch

LIMIT = 1 << 63


@cache
def hints(record: type) -> dict[str, Any]:
    """Return name to type of the data fields of a record; names that a file of records imports for type checkers only
    are supplied here."""
    placeholders = dict.fromkeys(("Later", "Replay", "Reread"), object)
    annotations = get_type_hints(record, localns={"Mapping": Mapping, "torch": torch, **placeholders})
    return {field.name: annotations[field.name] for field in fields(record) if field.compare}


@cache
def required_fields(record: type) -> tuple[str, ...]:
    """Return the fields of a record that have no default."""
    return tuple(f.name for f in fields(record) if f.default is MISSING and f.default_factory is MISSING)
