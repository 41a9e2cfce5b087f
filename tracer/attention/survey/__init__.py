"""Surveys: what every head of a model does, over many photos, as rows of a Parquet file.

A survey is cut into parts of a few photos. Each part is a file that is written whole or not at all, beside the result,
so a survey that was killed goes on where it was, without a row lost or doubled. At the end the parts become one file,
one row group each.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.attention.survey.photo_source import Photo, PhotoSource, open_source
from tracer.utils import atomic_write, extras
from tracer.utils.error_text import quote

if TYPE_CHECKING:
    from tracer.models.shared.spec import Model

PART = 16
"""Photos of one part, which is one row group."""
FINGERPRINT = b"tracer.survey"
"""The key in a file's metadata of what it is a survey of."""


def schema() -> Any:
    """Return the columns of a survey.

    `row` is "head", "hiding" or "unreadable". Layers and heads count from 0. `change` is in percentage points of the
    answer's probability, `loss` in nats and known where the label is a class; `attended`, `random` and `centre` are
    changes in points with that many patches `hidden`.
    """
    import pyarrow as pa  # an extra

    columns: dict[str, Any] = {"photo": pa.string(), "label": pa.string(), "row": pa.string(), "answer": pa.string()}
    columns |= {"probability": pa.float64(), "loss": pa.float64(), "layer": pa.int32(), "head": pa.int32()}
    columns |= dict.fromkeys(("distance", "entropy", "special", "change", "loss_change"), pa.float64())
    columns |= {"flips": pa.bool_(), "hidden": pa.int32()}
    columns |= dict.fromkeys(("attended", "random", "random_std", "centre"), pa.float64())
    return pa.schema([*columns.items(), ("problem", pa.string())])


class Survey:
    """A survey of one model over the photos of a folder or a Parquet file, into the file `out`.

    ValueError in one sentence for a model that takes no photo, for data without photos, and for an `out` with parts of
    another survey.
    """

    def __init__(self, model: Model, data: str | Path, out: str | Path):
        extras.require("pyarrow", "a survey")
        if "image" not in model.takes:
            raise ValueError(f"{quote(model.name)} takes no photo, and a survey is one over photos")
        self.model, self.out, self.source = model, Path(out), open_source(data)
        self.parts = self.out.with_name(f"{self.out.name}.parts")
        names = hashlib.sha256("\n".join(self.source.names()).encode()).hexdigest()
        facts = {
            "model": model.name,
            "weights": model.weights,
            "photos": len(self.source),
            "names": names,
            "part": PART,
        }
        self._facts = json.dumps(facts)
        for path in filter(Path.is_file, (self.out, *sorted(self.parts.glob("*.parquet")))):
            if _facts_of(path) != self._facts:
                raise ValueError(f"{quote(str(path))} is of another survey: move it away, or choose another --out")

    def __len__(self) -> int:
        return len(self.source)

    def progress(self) -> int:
        """Return the number of photos whose rows are written."""
        if self.out.is_file():
            return len(self)
        return sum(len(part) for number, part in self._ranges() if self._path(number).is_file())

    def run(self) -> Iterator[tuple[int, list[Photo]]]:
        """Write what is missing, part by part; yield the number of photos of each, and those that can't be read."""
        if not self.out.is_file():
            from tracer.attention.survey.photo_rows import PhotoRows  # loads torch

            self.parts.mkdir(parents=True, exist_ok=True)
            rows = PhotoRows(self.model, self.source)
            for number, part in self._ranges():
                if not self._path(number).is_file():
                    table, bad = [], []
                    for photo in self.source.read(part):
                        found = rows.of(photo)
                        table += found
                        bad += [photo._replace(problem=one["problem"]) for one in found if one["row"] == "unreadable"]
                    atomic_write.write(self._path(number), self._encode(table))
                    yield len(part), bad
            self._join()
        shutil.rmtree(self.parts, ignore_errors=True)

    def _ranges(self) -> Iterator[tuple[int, range]]:
        for number, first in enumerate(range(0, len(self), PART)):
            yield number, range(first, min(first + PART, len(self)))

    def _path(self, number: int) -> Path:
        return self.parts / f"{number:06d}.parquet"

    def _schema(self) -> Any:
        return schema().with_metadata({FINGERPRINT: self._facts.encode()})

    def _encode(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        import pyarrow as pa  # an extra
        import pyarrow.parquet as pq  # with it

        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(rows), schema=self._schema()), sink)
        return sink.getvalue().to_pybytes()

    def _join(self) -> None:
        """Write all parts into one file, one row group each, under another name until it is whole."""
        import pyarrow.parquet as pq  # an extra

        whole = self.parts / "whole"
        with pq.ParquetWriter(whole, self._schema()) as writer:
            for number, _ in self._ranges():
                writer.write_table(pq.read_table(self._path(number), schema=self._schema()))
        whole.replace(self.out)


def _facts_of(path: Path) -> str:
    import pyarrow.lib as lib  # an extra
    import pyarrow.parquet as pq  # with it

    try:
        return ((pq.read_schema(path).metadata or {}).get(FINGERPRINT) or b"").decode()
    except (lib.ArrowException, OSError):
        return ""


__all__ = ["PART", "Photo", "PhotoSource", "Survey", "open_source", "schema"]
