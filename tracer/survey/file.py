"""Survey files of any origin: read in a process of its own, whose memory and time are bounded.

A Parquet file of a few kilobytes can hold billions of rows, and Arrow's reader is a large piece of C++. So neither the
memory nor the life of a server depends on what a stranger's file says.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracer.survey.result import FINGERPRINT, NUMBERS, TABLES, TEXTS, SurveyResult, arrange
from tracer.utils.child_processes import ONE_THREAD, environment, limit_resources, module_command
from tracer.utils.errors import quote, shorten
from tracer.utils.lazy_import import lazy_import

pa = lazy_import("pyarrow")
pq = lazy_import("pyarrow.parquet")

MEMORY, TIMES = 256 * 2**20, 16
"""Bytes that reading may take beside the libraries themselves: so many, and so many times those of the arrays."""
SECONDS = 30
"""Seconds of processor time that reading may take."""
ROW = 4 * len(TABLES) + 1
"""Bytes of the arrays for each row."""
REFUSAL_STATUS = 3
"""The exit status of a reader that refuses a file in a sentence."""


def open_survey(data: bytes, name: str, most: int) -> SurveyResult:
    """Return the survey in the bytes of a Parquet or Arrow file, whoever wrote it.

    ValueError in one sentence for any other file, and for one that takes more than `most` bytes as arrays.
    """
    if len(data) > most:
        raise ValueError(f"{quote(name)} has {len(data):,} bytes, expected a survey of at most {most >> 20:,} MB")
    # pools of Arrow's own and arenas reserve a gigabyte of addresses, which are limited
    frugal = ONE_THREAD | {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    try:
        child = subprocess.run(
            module_command(__name__, str(most)),
            input=data,
            capture_output=True,
            env=environment(**frugal),
            timeout=3 * SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"{quote(name)} takes too long to read, expected a survey of at most {SECONDS} s") from None
    if child.returncode == REFUSAL_STATUS:
        problem = child.stderr.decode(errors="replace").strip()
        raise ValueError(f"{quote(name)} is not a survey: {shorten(problem, 300)}")
    if child.returncode:
        raise ValueError(f"{quote(name)} can’t be read: it is damaged, or takes too much memory or time")
    return SurveyResult.unpack(child.stdout)


def read(data: bytes, most: int) -> SurveyResult:
    """Return the survey in the bytes of a file. Raise ValueError with one sentence; Arrow may raise anything else."""
    if data[:4] == b"PAR1":
        table = _parquet(data, most)
    elif data[:6] == b"ARROW1":
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        _check(table.column_names, table.num_rows, most)
    else:
        raise ValueError("it is neither a Parquet nor an Arrow file")
    table.validate(full=True)
    table = table.unify_dictionaries()
    try:
        facts = json.loads((table.schema.metadata or {})[FINGERPRINT])
        model, weights = facts["model"], facts["weights"]
        if not isinstance(model, str) or not isinstance(weights, str):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise ValueError("it does not say of which model it is") from None
    if "picture" in table.column_names and table["picture"].nbytes > most:
        raise ValueError(
            f"its pictures take {table['picture'].nbytes / 2**20:,.0f} MB, expected {most / 2**20:,.0f} MB"
        )
    photo = table["photo"].combine_chunks().dictionary_encode() if table.num_rows else None
    if photo is None or photo.null_count:
        raise ValueError("it has no rows of photos and heads, or a row without a photo")
    photo = photo.combine_chunks() if isinstance(photo, pa.ChunkedArray) else photo
    columns: dict[str, Any] = {name: _texts(table, name, pa.string()) for name in ("row", *TEXTS, "problem")}
    columns["picture"] = _texts(table, "picture", pa.binary())
    for name in NUMBERS:
        columns[name] = _numbers(table, name)
        table = table.drop_columns([name] if name in table.column_names else [])  # one copy at a time
    names = photo.dictionary.cast(pa.string()).to_pylist()
    return arrange(model, weights, names, photo.indices.to_numpy(), columns, most)


def _check(columns: Sequence[str], rows: int, most: int) -> None:
    if missing := sorted({"photo", "row", "layer", "head", "change"} - set(columns)):
        raise ValueError(f"it lacks the columns {', '.join(map(quote, missing))}, which python -m tracer survey writes")
    if rows > most // ROW:
        raise ValueError(f"it has {rows:,} rows, expected at most {most // ROW:,}")


def _parquet(data: bytes, most: int) -> Any:
    """Return a Parquet file as a table; a text is stored once, however often a file repeats it."""
    texts = ("photo", "row", *TEXTS, "picture", "problem")
    source = pa.BufferReader(data)
    columns = [name for name in (*texts[:2], *NUMBERS, *texts[2:]) if name in pq.read_schema(source).names]
    file = pq.ParquetFile(source, read_dictionary=[name for name in texts if name in columns])
    _check(columns, file.metadata.num_rows, most)
    return file.read(columns=columns, use_threads=False)


def _numbers(table: Any, name: str) -> Any:
    """Return a column as float32, NaN where there is none."""
    if name not in table.column_names:
        return np.full(table.num_rows, np.nan, np.float32)
    return table[name].cast(pa.float64()).to_numpy().astype(np.float32)


def _texts(table: Any, name: str, kind: Any) -> list:
    """Return a column as texts or bytes, None where there is none; equal ones are one object."""
    if name not in table.column_names:
        return [None] * table.num_rows
    column = table[name].combine_chunks().dictionary_encode()
    fields: list = []
    for chunk in getattr(column, "chunks", [column]):
        values = chunk.dictionary.cast(kind).to_pylist()
        fields += [None if at is None else values[at] for at in chunk.indices.to_pylist()]
    return fields


def main() -> int:
    """Read a file from standard input and write the survey to standard output."""
    import pyarrow.ipc  # before memory is bounded
    import pyarrow.lib  # with it
    import pyarrow.parquet  # with it

    data, most = sys.stdin.buffer.read(), int(sys.argv[1])
    limit_resources(MEMORY + TIMES * most, SECONDS)
    try:
        packed = read(data, most).pack()
    except (pyarrow.lib.ArrowException, ValueError) as error:
        damaged = isinstance(error, pyarrow.lib.ArrowException)  # some are ValueErrors, too
        problem = "it is damaged, or has columns of other types" if damaged else " ".join(str(error).split())
        print(problem, file=sys.stderr)
        return REFUSAL_STATUS
    sys.stdout.buffer.write(packed)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
