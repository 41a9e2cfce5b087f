"""Survey files of strangers: refused in one sentence, however small the file that would fill the memory."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracer import survey
from tracer.survey import file

MOST = 2**22
PHOTO = {"photo": "a.jpg", "row": "photo"}
HEAD = {"photo": "a.jpg", "row": "head", "layer": 0, "head": 0, "change": 1.0}


def encode_survey(*rows, **facts) -> bytes:
    return survey.encode(rows, json.dumps({"model": "vit", "weights": "w", **facts}))


def repeat_rows(count: int, **columns) -> bytes:
    """Return a file of a few kilobytes with a photo, and that many equal rows."""
    rows = {"photo": "a.jpg", "row": ["photo", "head"], "layer": 0, "head": 0, "change": 1.0, **columns}
    numbers = np.ones(count, np.int32)
    numbers[0] = 0
    arrays = {}
    for name, value in rows.items():
        several = isinstance(value, list)
        values = pa.array(value if several else [value])
        arrays[name] = pa.DictionaryArray.from_arrays(numbers if several else 0 * numbers, values)
    schema = pa.schema([(name, array.type) for name, array in arrays.items()])
    facts = {survey.FINGERPRINT: b'{"model": "vit", "weights": "w"}'}
    file = io.BytesIO()
    pq.write_table(pa.table(arrays).cast(schema).replace_schema_metadata(facts), file, compression="zstd")
    return file.getvalue()


def plain(**columns) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


FILES = {
    "a text": (b"hello", "is neither a Parquet nor an Arrow file"),
    "nothing": (b"", "is neither a Parquet nor an Arrow file"),
    "a file that is cut off": (lambda: encode_survey(PHOTO, HEAD)[:-40], ""),
    "a damaged file": (
        lambda: bytes(b ^ 255 if 100 < at < 400 else b for at, b in enumerate(encode_survey(PHOTO, HEAD))),
        "",
    ),
    "another table": (lambda: plain(x=[1]), "it lacks the columns 'change', 'head', 'layer', 'photo', 'row'"),
    "no model": (lambda: encode_survey(PHOTO, HEAD, model=3), "it does not say of which model it is"),
    "no rows": (lambda: encode_survey(), "no rows of photos and heads"),
    "photos alone": (lambda: encode_survey(PHOTO), "no rows of photos and heads"),
    "a head twice": (lambda: encode_survey(PHOTO, HEAD, HEAD), "a head of a photo twice"),
    "a photo twice": (lambda: encode_survey(PHOTO, PHOTO, HEAD), "a photo twice"),
    "a head of no photo": (lambda: encode_survey(PHOTO, HEAD, HEAD | {"photo": "b.jpg"}), "a photo that it lacks"),
    "a head of a billion": (lambda: encode_survey(PHOTO, HEAD | {"head": 2**30}), "expected numbers from 0 to 1,023"),
    "a head below 0": (lambda: encode_survey(PHOTO, HEAD | {"layer": -1}), "a row with no layer"),
    "more heads than a page can show": (
        lambda: encode_survey(PHOTO, *({**HEAD, "layer": i, "head": 1023} for i in range(5))),
        "5 blocks of 1,024 heads, expected at most 4,096 heads in all",
    ),
    "photos of heads without end": (
        lambda: encode_survey(
            *({"photo": f"{i}", "row": "photo"} for i in range(50)),
            *({**HEAD, "photo": "1", "layer": i, "head": 1023} for i in range(4)),
        ),
        "MB as arrays, expected at most 4 MB",
    ),
    "a name of a million letters": (
        lambda: encode_survey(PHOTO | {"photo": "x" * 10**6}, HEAD | {"photo": "x" * 10**6}),
        "",
    ),
    "a model of a million letters": (lambda: encode_survey(PHOTO, HEAD, model="x" * 10**6), "1,000,000 letters"),
    "millions of rows": (lambda: repeat_rows(5 * 10**6), "it has 5,000,000 rows"),
    "a picture a hundred thousand times": (lambda: repeat_rows(10**5, picture=b"x" * 30_000), ""),
    "a label a hundred thousand times": (lambda: repeat_rows(10**5, label="x" * 30_000), ""),
}


ISOLATED_CASES = {
    "a damaged file",
    "millions of rows",
    "a picture a hundred thousand times",
    "a label a hundred thousand times",
}
"""Those that are read in a process of its own, as the app reads all."""


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_survey_is_refused_in_a_sentence(name):
    make, expected = FILES[name]
    data = make() if callable(make) else make
    assert len(data) < MOST
    if name not in ISOLATED_CASES:
        with pytest.raises((ValueError, pa.ArrowException)) as refusal:
            file.read(data, MOST)
        assert expected in str(refusal.value) or isinstance(refusal.value, pa.ArrowException)
        return
    with pytest.raises(ValueError, match=r"\A[^\n]{1,500}\Z") as refusal:
        file.open_survey(data, "rows.parquet", MOST)
    assert expected in str(refusal.value) and str(refusal.value).startswith("'rows.parquet' ")


def test_a_file_beyond_the_bound_is_not_read():
    with pytest.raises(ValueError, match="has 5,000,000 bytes, expected a survey of at most 4 MB"):
        file.open_survey(b"PAR1" + bytes(4_999_996), "rows.parquet", MOST)


@pytest.mark.sweep
def test_a_survey_as_large_as_it_may_be_opens():
    photos, layers, heads = 1100, 12, 12
    each, count = layers * heads, photos * layers * heads
    of_photo = np.concatenate([np.arange(photos), np.repeat(np.arange(photos), each)]).astype(np.int32)
    is_head = (np.arange(photos + count) >= photos).astype(np.int32)
    cell = np.concatenate([np.zeros(photos), np.tile(np.arange(each), photos)]).astype(np.int32)
    table = pa.table(
        {
            "photo": pa.DictionaryArray.from_arrays(of_photo, pa.array([f"{at}.jpg" for at in range(photos)])),
            "row": pa.DictionaryArray.from_arrays(is_head, pa.array(["photo", "head"])),
            "layer": cell // heads,
            "head": cell % heads,
            "change": (of_photo + cell / each).astype(np.float64),
        }
    ).replace_schema_metadata({survey.FINGERPRINT: b'{"model": "vit", "weights": "w"}'})
    file = io.BytesIO()
    pq.write_table(table, file)
    assert 0.9 < len(table) * file.ROW / MOST < 1
    opened = file.open_survey(file.getvalue(), "rows.parquet", MOST)
    expected = np.arange(photos)[:, None, None] + np.arange(each).reshape(layers, heads) / each
    np.testing.assert_allclose(opened.tables["change"], expected, rtol=1e-5)
