"""Comma-separated values: every column, one line per step, op or primitive."""

from __future__ import annotations

import csv
import io

from tracer.export import rows
from tracer.record import Trace

SUFFIXES = (".csv",)


def render(trace: Trace, level: str) -> str:
    """Return RFC 4180 text with a header line; missing layers and errors are empty cells."""
    file = io.StringIO()
    writer = csv.DictWriter(file, rows.COLUMNS[level], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: rows.cell(value) for name, value in row.items()} for row in rows.rows(trace, level))
    return file.getvalue()
