"""Photos of a survey in an order that stays, and the format of the rows on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tracer.utils.errors import quote
from tracer.utils.lazy_import import lazy_import

pa = lazy_import("pyarrow")
lib = lazy_import("pyarrow.lib")
pq = lazy_import("pyarrow.parquet")


# Photos of a survey: the files of a folder, or the rows of a Parquet file, in an order that stays.

ENDS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".heic", ".avif"}
"""Ends of the names of photos; other files of a folder are passed over."""
IMAGES, LABELS = ("image", "img", "photo", "bytes"), ("label", "labels", "class", "fine_label")
"""Names of the columns of a Parquet file that hold photos and labels."""


class Photo(NamedTuple):
    """A photo as bytes, its name, and its label: the name of a class, its number, or None. `problem` says why it can't
    be read."""

    name: str
    data: bytes
    label: str | int | None = None
    problem: str = ""


class PhotoSource(Protocol):
    """Photos that are read by index."""

    def __len__(self) -> int:
        """Return the number of photos."""

    def names(self) -> Sequence[str]:
        """Return a name of each photo, in order."""

    def read(self, part: range) -> Iterator[Photo]:
        """Yield the photos at these indices."""


def open_source(data: str | Path) -> PhotoSource:
    """Return the photos of a folder or of a Parquet file. Raise ValueError in one sentence where there are none."""
    path = Path(data)
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        return ParquetFile(path)
    expected = "expected a folder of photos or a Parquet file"
    raise ValueError(f"--data {quote(str(data))} is not a folder or file, {expected}")


class Folder:
    """Photos below a folder, by their paths. The label is the name of the folder in which a photo lies."""

    def __init__(self, path: Path):
        self.path = path
        self._files = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDS and file.is_file())
        if not self._files:
            raise ValueError(f"--data {quote(str(path))} has no photos, expected files such as {quote('dog/1.jpg')}")

    def __len__(self) -> int:
        return len(self._files)

    def names(self) -> list[str]:
        return [file.relative_to(self.path).as_posix() for file in self._files]

    def read(self, part: range) -> Iterator[Photo]:
        for number in part:
            file = self._files[number]
            label = file.parent.name if file.parent != self.path else None
            name = file.relative_to(self.path).as_posix()
            try:
                yield Photo(name, file.read_bytes(), label)
            except OSError as error:
                yield Photo(name, b"", label, f"can't be read: {error.strerror or error}")


class ParquetFile:
    """Rows of a Parquet file with a column of photos, as bytes or as structs with `bytes`, and perhaps labels."""

    def __init__(self, path: Path):
        try:
            self._file = pq.ParquetFile(path)
        except (lib.ArrowException, OSError) as error:
            raise ValueError(f"--data {quote(str(path))} is not a Parquet file that can be read") from error
        columns = self._file.schema_arrow.names
        self._image = next((name for name in IMAGES if name in columns), "")
        self._label = next((name for name in LABELS if name in columns), "")
        if not self._image or not len(self):
            known = ", ".join(map(quote, columns)) or "none"
            raise ValueError(f"--data {quote(str(path))} has no photos, expected a column 'image', not only {known}")
        self._stem = path.name

    def __len__(self) -> int:
        return self._file.metadata.num_rows

    def names(self) -> list[str]:
        return [f"{self._stem}:{row}" for row in range(len(self))]

    def read(self, part: range) -> Iterator[Photo]:
        columns = [name for name in (self._image, self._label) if name]
        first = 0
        for group in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(group).num_rows
            if first < part.stop and first + count > part.start:
                table = self._file.read_row_group(group, columns=columns)
                begin, end = max(part.start, first), min(part.stop, first + count)
                for row, record in enumerate(table.slice(begin - first, end - begin).to_pylist(), start=begin):
                    yield self._photo(row, record)
            first += count

    def _photo(self, row: int, record: dict[str, Any]) -> Photo:
        image, label = record[self._image], record.get(self._label)
        data = image.get("bytes") if isinstance(image, dict) else image
        label = label if isinstance(label, (str, int)) and not isinstance(label, bool) else None
        name = f"{self._stem}:{row}"
        return Photo(name, data, label) if isinstance(data, bytes) else Photo(name, b"", label, "has no bytes")


# File of a survey: its columns, and the fingerprint of what it is a survey of.

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
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema().with_metadata({FINGERPRINT: facts.encode()})), sink)
    return sink.getvalue().to_pybytes()
