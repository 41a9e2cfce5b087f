"""A survey as arrays: photos × blocks × heads, with what is known of each photo. Torch-free."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from tracer.utils.errors import quote
from tracer.utils.lazy_import import lazy_import

# Photos of a survey in an order that stays, and the format of the rows on them.

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
        """Return a name of each photo, in order."""
        return [file.relative_to(self.path).as_posix() for file in self._files]

    def read(self, part: range) -> Iterator[Photo]:
        """Yield the photos at these indices."""
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
        """Return a name of each photo, in order."""
        return [f"{self._stem}:{row}" for row in range(len(self))]

    def read(self, part: range) -> Iterator[Photo]:
        """Yield the photos at these indices."""
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


PhotoSource = Folder | ParquetFile
"""Photos that are read by index."""


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


TABLES = ("change", "output_change", "loss_change", "entropy", "distance", "special")
"""Columns of numbers of each head, as in `tracer.survey.schema`."""
HIDING_COLUMNS = ("attended", "random", "random_std", "centre", "hidden")
"""Columns of numbers of the hiding test of each photo."""
KINDS = ("photo", "hiding", "head", "unreadable")
"""Kinds of rows."""
TEXTS = ("label", "answer")
PHOTO = ("probability", "loss")
NUMBERS = (*TABLES, *HIDING_COLUMNS, *PHOTO, "layer", "head", "flips")
"""All columns of numbers."""
ARRAYS = ("tables", "hiding", "facts")
PLAIN = ("model", "weights", "names", "labels", "answers", "layers", "problems")
"""Fields of a result: groups of arrays, and plain data."""
LETTERS = 500
"""The most letters of a name, a label, an answer or a problem."""
HEADS, BLOCKS, CELLS = 1024, 1024, 4096
"""The most heads of a block, blocks, and heads of all blocks: a page has a button for each."""


@dataclass(frozen=True, eq=False)
class SurveyResult:
    """Numbers of a survey, of photos that could be read.

    `tables` are `[photos, blocks, heads]` by the names of `TABLES`, `hiding` and `facts` arrays `[photos]` by those of
    `HIDING_COLUMNS` and `PHOTO`; NaN where a number is not known. `flips` is True where another answer becomes the most
    probable. `layers` count from 0. `pictures` are files of the photos, empty where there is none; `problems` are pairs
    of a photo that could not be read and the reason.
    """

    model: str
    weights: str
    names: tuple[str, ...]
    labels: tuple[str | None, ...]
    answers: tuple[str | None, ...]
    facts: Mapping[str, np.ndarray]
    layers: tuple[int, ...]
    tables: Mapping[str, np.ndarray]
    flips: np.ndarray
    hiding: Mapping[str, np.ndarray]
    pictures: tuple[bytes, ...]
    problems: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    def mean(self, table: str) -> np.ndarray:
        """Return the mean over photos, `[blocks, heads]`, of those where it is known."""
        return _over_photos(np.nanmean, self.tables[table])

    def spread(self, table: str) -> np.ndarray:
        """Return the standard deviation over photos, `[blocks, heads]`."""
        return _over_photos(np.nanstd, self.tables[table])

    def has_numbers(self, table: str) -> bool:
        """Return whether a table has a number."""
        return bool(np.isfinite(self.tables[table]).any())

    def pack(self) -> bytes:
        """Pack the result into bytes, for `unpack`."""
        arrays = {f"{group} {name}": array for group in ARRAYS for name, array in getattr(self, group).items()}
        arrays |= {"flips": self.flips, "pictures": np.frombuffer(b"".join(self.pictures), np.uint8)}
        plain = {name: getattr(self, name) for name in PLAIN} | {"sizes": list(map(len, self.pictures))}
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return save(contiguous, {"survey": json.dumps(plain)})

    @classmethod
    def unpack(cls, data: bytes) -> SurveyResult:
        """Return the result that `pack` wrote."""
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        plain, arrays = json.loads(header["__metadata__"]["survey"]), load(data)
        ends = np.cumsum([0, *plain.pop("sizes")]).tolist()
        files = arrays.pop("pictures").tobytes()
        groups: dict[str, Any] = {"flips": arrays.pop("flips"), **{group: {} for group in ARRAYS}}
        for name, array in arrays.items():
            group, _, column = name.partition(" ")
            groups[group][column] = array
        fields = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
        groups |= fields | {"problems": tuple(map(tuple, plain["problems"]))}
        return cls(**groups, pictures=tuple(files[start:stop] for start, stop in pairwise(ends)))


def collect(model: str, weights: str, rows: Sequence[Mapping[str, Any]]) -> SurveyResult:
    """Return the result of rows as `tracer.survey.rows` computes them."""
    names = list(dict.fromkeys(str(row["photo"]) for row in rows))
    numbers = {name: at for at, name in enumerate(names)}
    columns: dict[str, Any] = {
        name: np.array([np.nan if row.get(name) is None else row[name] for row in rows], dtype=np.float64)
        for name in NUMBERS
    }
    columns |= {name: [row.get(name) for row in rows] for name in ("row", *TEXTS, "picture", "problem")}
    return arrange(model, weights, names, np.array([numbers[str(row["photo"])] for row in rows], dtype=int), columns)


def arrange(
    model: str,
    weights: str,
    names: Sequence[str],
    photo: np.ndarray,
    columns: Mapping[str, Any],
    most: float = float("inf"),
) -> SurveyResult:
    """Return the result of columns: `photo` has the index of each row's name, numbers are arrays of floats with NaN for
    none, and texts and files are lists with None.

    ValueError in one sentence for columns that are no survey, or that take more than `most` bytes as arrays.
    """
    photos, hiding, heads, unreadable = (
        np.fromiter((each == kind for each in columns["row"]), bool, len(columns["row"])) for kind in KINDS
    )
    if not photos.any() or not heads.any():
        raise ValueError("it has no rows of photos and heads")
    layer, head = (columns[name][heads] for name in ("layer", "head"))
    for name, values, bound in (("layer", layer, BLOCKS), ("head", head, HEADS)):
        if not (np.isfinite(values).all() and (values >= 0).all() and (values < bound).all()):
            raise ValueError(f"it has a row with no {name}, expected numbers from 0 to {bound - 1:,}")
    layers, block = np.unique(layer.astype(int), return_inverse=True)
    order = np.flatnonzero(photos)
    places = order.tolist()
    of_photo = np.full(len(names), -1)
    of_photo[photo[order]] = np.arange(len(order))
    if len(np.unique(photo[order])) < len(order):
        raise ValueError("it has a photo twice")
    if (of_photo[photo[heads]] < 0).any():
        raise ValueError("it has a head of a photo that it lacks")
    shape = len(order), len(layers), int(head.max()) + 1
    if shape[1] * shape[2] > CELLS:
        raise ValueError(f"it has {shape[1]:,} blocks of {shape[2]:,} heads, expected at most {CELLS:,} heads in all")
    cells = int(np.prod(shape, dtype=float))
    size = cells * (4 * len(TABLES) + 1) + sum(len(file or b"") for file in columns["picture"])
    if size > most:
        raise ValueError(f"it takes {size / 2**20:,.0f} MB as arrays, expected at most {most / 2**20:,.0f} MB")
    cell = (of_photo[photo[heads]] * shape[1] + block) * shape[2] + head.astype(int)
    if len(np.unique(cell)) < len(cell):
        raise ValueError("it has a head of a photo twice")

    def table(values: np.ndarray) -> np.ndarray:
        full = np.full(cells, np.nan, np.float32)
        full[cell] = values[heads]
        return np.where(np.isfinite(full), full, np.float32(np.nan)).reshape(shape)

    def text(name: str, at: int) -> str | None:
        return _check_length(columns[name][at], name)

    def photo_name(at: Any) -> str:
        return str(_check_length(names[photo[at]], "name of a photo"))

    tests = {name: np.full(len(order), np.nan, np.float32) for name in HIDING_COLUMNS}
    tested = of_photo[photo[hiding]]
    for name, values in tests.items():
        values[tested[tested >= 0]] = columns[name][hiding][tested >= 0]
    return SurveyResult(
        str(_check_length(model, "model")),
        str(_check_length(weights, "text of the weights")),
        tuple(map(photo_name, places)),
        tuple(text("label", at) for at in places),
        tuple(text("answer", at) for at in places),
        {name: columns[name][order].astype(np.float32) for name in PHOTO},
        tuple(map(int, layers)),
        {name: table(columns[name]) for name in TABLES},
        np.nan_to_num(table(columns["flips"])).astype(bool),
        tests,
        tuple(columns["picture"][at] or b"" for at in order),
        tuple((photo_name(at), str(text("problem", at))) for at in np.flatnonzero(unreadable).tolist()),
    )


def _over_photos(statistic: Any, table: np.ndarray) -> np.ndarray:
    """Return a statistic of each head that has a number, NaN for others."""
    means = np.full(table.shape[1:], np.nan)
    known = np.isfinite(table).any(0)
    means[known] = statistic(table[:, known].astype(np.float64), axis=0)
    return means


def _check_length(text: str | None, name: str) -> str | None:
    if text is not None and len(text) > LETTERS:
        raise ValueError(f"it has a {name} of {len(text):,} letters, {quote(text)}, expected at most {LETTERS}")
    return text
