"""Surveys: what every head of a model does, over many photos, as rows of a Parquet file.

A survey is cut into parts of a few photos. Each part is a file that is written whole or not at all, beside the result,
so a survey that was killed goes on where it was, without a row lost or doubled. At the end the parts become one file,
one row group each. Parts are computed in this process, or by Ray on a cluster.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tracer.survey.result import FINGERPRINT, Photo, PhotoSource, encode, name_digest, open_source, schema
from tracer.utils import errors, files
from tracer.utils.errors import quote
from tracer.utils.lazy_import import lazy_import

if TYPE_CHECKING:
    from tracer.spec.spec import Model

lib = lazy_import("pyarrow.lib")
pq = lazy_import("pyarrow.parquet")


PART = 16
"""Photos of one part, which is one row group."""


class Survey:
    """A survey of one model over the photos of a folder or a Parquet file, into the file `out`.

    With a `cluster`, the address of a Ray cluster, its machines compute the rows: each has the photos under the same
    path. ValueError in one sentence for a model that takes no photo, for data without photos, and for an `out` with
    parts of another survey.
    """

    def __init__(self, model: Model, data: str | Path, out: str | Path, cluster: str = ""):
        errors.require("pyarrow", "a survey")
        if cluster:
            errors.require("ray", "a survey on a cluster")
        if "image" not in model.takes:
            raise ValueError(f"{quote(model.name)} takes no photo, and a survey is one over photos")
        self.model, self.data, self.out, self.cluster = model, data, Path(out), cluster
        self.source = open_source(data)
        self.parts = self.out.with_name(f"{self.out.name}.parts")
        facts = {
            "model": model.name,
            "weights": model.weights,
            "photos": len(self.source),
            "names": name_digest(self.source),
            "part": PART,
        }
        self.facts = json.dumps(facts)
        for path in filter(Path.is_file, (self.out, *sorted(self.parts.glob("*.parquet")))):
            if _facts_of(path) != self.facts:
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
            self.parts.mkdir(parents=True, exist_ok=True)
            missing = {number: part for number, part in self._ranges() if not self._path(number).is_file()}
            for number, data in self._compute(missing):
                files.write(self._path(number), data)
                yield len(missing[number]), _unreadable(data)
            self._join()
        shutil.rmtree(self.parts, ignore_errors=True)

    def _compute(self, parts: Mapping[int, range]) -> Iterator[tuple[int, bytes]]:
        """Yield each part by its number, as a Parquet file, in any order."""
        if self.cluster:
            from tracer.survey.rows import compute  # loads ray

            yield from compute(self.cluster, self.model.name, self.data, self.facts, parts)
            return
        from tracer.survey.rows import PhotoRows  # loads torch

        rows = PhotoRows(self.model)
        for number, part in parts.items():
            yield number, rows.file(self.source, part, self.facts)

    def _ranges(self) -> Iterator[tuple[int, range]]:
        return enumerate(range(first, min(first + PART, len(self))) for first in range(0, len(self), PART))

    def _path(self, number: int) -> Path:
        return self.parts / f"{number:06d}.parquet"

    def _join(self) -> None:
        """Write all parts into one file, one row group each, under another name until it is whole."""
        whole, columns = self.parts / "whole", schema().with_metadata({FINGERPRINT: self.facts.encode()})
        with pq.ParquetWriter(whole, columns) as writer:
            for number, _ in self._ranges():
                writer.write_table(pq.read_table(self._path(number), schema=columns))
        whole.replace(self.out)


def _unreadable(data: bytes) -> list[Photo]:
    """Return the photos of a part that can't be read, each with its problem."""
    table = pq.read_table(io.BytesIO(data), columns=["photo", "problem"]).to_pylist()
    return [Photo(row["photo"], b"", problem=row["problem"]) for row in table if row["problem"]]


def _facts_of(path: Path) -> str:
    try:
        return ((pq.read_schema(path).metadata or {}).get(FINGERPRINT) or b"").decode()
    except (lib.ArrowException, OSError):
        return ""


__all__ = ["FINGERPRINT", "PART", "Photo", "PhotoSource", "Survey", "encode", "name_digest", "open_source", "schema"]
