"""File of a survey: its columns, and the fingerprint of what it is a survey of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tracer.attention.survey.photo_source import PhotoSource

FINGERPRINT = b"tracer.survey"
"""The key in a file's metadata of what it is a survey of."""


def schema() -> Any:
    """Return the columns of a survey.

    `row` is "photo", "head", "hiding" or "unreadable". Layers and heads count from 0. `change` is in percentage points
    of the answer's probability; `output_change` is the size of the output's change as a share of the output's, for
    models whose answer has no probability. `loss` is in nats and known where the label is a class. `attended`,
    `random` and `centre` are changes in points with that many patches `hidden`. `picture` is a file of the photo as the
    model sees it: PNG where a run on it is that of the photo bit by bit, else a smaller JPEG.
    """
    import pyarrow as pa  # an extra

    columns: dict[str, Any] = {"photo": pa.string(), "label": pa.string(), "row": pa.string(), "answer": pa.string()}
    columns |= {"probability": pa.float64(), "loss": pa.float64(), "layer": pa.int32(), "head": pa.int32()}
    columns |= dict.fromkeys(("distance", "entropy", "special", "change", "output_change", "loss_change"), pa.float64())
    columns |= {"flips": pa.bool_(), "hidden": pa.int32()}
    columns |= dict.fromkeys(("attended", "random", "random_std", "centre"), pa.float64())
    return pa.schema([*columns.items(), ("picture", pa.binary()), ("problem", pa.string())])


def name_digest(source: PhotoSource) -> str:
    """Return a digest of the names of all photos, in order."""
    return hashlib.sha256("\n".join(source.names()).encode()).hexdigest()


def encode(rows: Sequence[Mapping[str, Any]], facts: str) -> bytes:
    """Return rows as a Parquet file with these `facts` as its fingerprint."""
    import pyarrow as pa  # an extra
    import pyarrow.parquet as pq  # with it

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema().with_metadata({FINGERPRINT: facts.encode()})), sink)
    return sink.getvalue().to_pybytes()
