"""A survey over photos: its rows are those of the library, and a kill loses and doubles none."""

import io
import json
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import tracer
from tracer import cli, survey
from tracer.attention.head_effects import head_effects
from tracer.inputs.images import open_photo
from tracer.inputs.model_inputs import samples
from tracer.survey.file import open_survey
from tracer.survey.result import collect
from tracer.survey.rows import PhotoRows


def jpeg(seed: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(data, "JPEG")
    return data.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Five photos of two classes and one file that is not a photo."""
    for number in range(5):
        place = tmp_path / "data" / ("dog", "cat")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.jpg").write_bytes(jpeg(number))
    (tmp_path / "data" / "dog" / "9.jpg").write_bytes(b"no photo")
    return tmp_path / "data"


def test_the_rows_of_a_photo_are_what_the_library_measures(tmp_path, capsys):
    (tmp_path / "horse").mkdir()
    photo = samples("photos")["horse"]()
    photo.save(tmp_path / "horse" / "a.png")
    out = tmp_path / "rows.parquet"
    assert cli.main(["survey", "vit", "--data", str(tmp_path), "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}\n" and not out.with_name("rows.parquet.parts").exists()
    assert printed.err.strip().endswith("/attention?model=vit&over=survey")
    rows, model = pq.read_table(out).to_pylist(), tracer.load("vit")
    inputs = model.inputs(photo)
    found = head_effects(model, inputs, model.trace(photo, prove=False))
    heads = [row for row in rows if row["row"] == "head"]
    assert [(row["layer"], row["head"]) for row in heads] == list(np.ndindex(6, 4))
    for name in ("change", "entropy", "distance", "special", "flips"):
        assert [row[name] for row in heads] == pytest.approx(getattr(found, name).ravel().tolist(), abs=1e-4), name
    (first,) = [row for row in rows if row["row"] == "photo"]
    assert all(map(torch.equal, model.inputs(open_photo(first["picture"])), inputs))  # a run on it is the same run
    (hiding,) = [row for row in rows if row["row"] == "hiding"]
    assert hiding["answer"] == hiding["label"] == "horse" and hiding["hidden"] == 16
    shares = model.net(*inputs)[0].detach().double().softmax(-1)
    assert hiding["loss"] == pytest.approx(-float(shares.max().log()), abs=1e-4)
    weights = model.trace(photo, prove=False).attention(5)[0, :, 0, 1:].mean(0)
    patches = weights.topk(16).indices.tolist()
    hidden = model.trace(photo, prove=False, change={"image": tracer.changes.hide(patches, "grey")}).output
    after = float(hidden[0].double().softmax(-1)[shares.argmax()])
    assert hiding["attended"] == pytest.approx(100 * (after - float(shares.max())), abs=1e-3)


def test_a_survey_that_is_killed_goes_on_without_a_row_lost_or_doubled(folder, tmp_path, monkeypatch, vit):
    monkeypatch.setattr(survey, "PART", 2)
    model, whole, out = vit, tmp_path / "whole.parquet", tmp_path / "rows.parquet"
    list(survey.Survey(model, folder, whole).run())
    script = (
        "import sys, tracer\nfrom tracer import survey\nsurvey.PART = 2\n"
        "for _ in survey.Survey(tracer.load('vit'), *sys.argv[1:]).run():\n    print(flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(folder), str(out)], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()  # the first part is there, the second is being computed
        process.kill()
    assert process.returncode == -signal.SIGKILL and not out.exists()
    again = survey.Survey(model, folder, out)
    before = again.progress()
    written = sum(count for count, _ in again.run())
    assert again.progress() == 6 and 2 <= before == 6 - written
    one, other = pq.read_table(whole), pq.read_table(out)
    assert one.column("photo").to_pylist() == other.column("photo").to_pylist()
    assert one.num_rows == 5 * 26 + 1 and pq.ParquetFile(out).num_row_groups == 3
    torch.testing.assert_close(
        *(
            torch.tensor(table.filter(pa.compute.equal(table["row"], "head"))["change"].to_pylist())
            for table in (one, other)
        ),
        rtol=1e-4,
        atol=1e-3,
    )
    assert not list(survey.Survey(model, folder, out).run())


def test_photos_that_can_not_be_read_are_listed_with_the_reason(folder, tmp_path, capsys):
    out = tmp_path / "rows.parquet"
    assert cli.main(["survey", "vit", "--data", str(folder), "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "dog/9.jpg: " in said and "1 photo could not be read" in said
    (bad,) = [row for row in pq.read_table(out).to_pylist() if row["row"] == "unreadable"]
    assert bad["photo"] == "dog/9.jpg" and bad["problem"] and bad["layer"] is None


def test_photos_and_labels_of_a_parquet_file_are_read_across_row_groups(tmp_path):
    rows = [{"image": {"bytes": jpeg(number), "path": None}, "label": number} for number in range(5)]
    rows.append({"image": {"bytes": None, "path": "x"}, "label": None})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=2)
    source = survey.open_source(tmp_path / "a.parquet")
    photos = list(source.read(range(1, 6)))
    assert [photo.label for photo in photos] == [1, 2, 3, 4, None]
    assert [photo.data for photo in photos[:4]] == [jpeg(number) for number in range(1, 5)]
    assert photos[4].problem == "has no bytes" and source.names()[1] == "a.parquet:1"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("nanogpt", "data", "'nanogpt' takes no photo"),
        ("vit", "none", "is not a folder or file"),
        ("vit", "empty", "has no photos"),
        ("vit", "text.parquet", "is not a Parquet file"),
        ("vit", "numbers.parquet", "not only 'x'"),
    ],
)
def test_wrong_data_is_refused_in_a_sentence(folder, tmp_path, capsys, name, data, message):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.parquet").write_text("no")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "numbers.parquet")
    assert cli.main(["survey", name, "--data", str(tmp_path / data), "--out", str(tmp_path / "rows.parquet")]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def test_the_parts_of_another_survey_are_refused(folder, tmp_path):
    out = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": [1]}), out)
    with pytest.raises(ValueError, match="is of another survey"):
        survey.Survey(tracer.load("vit"), folder, out)


@pytest.fixture(scope="module")
def photo_rows(vit):
    """Measured rows of three photos of noise, and the text of the weights."""
    model = vit
    measured = PhotoRows(model)
    return [
        row for seed in range(3) for row in measured.of(survey.Photo(f"{seed}.jpg", jpeg(seed), seed))
    ], model.weights


def encode_survey(rows, weights: str = "w", **facts) -> bytes:
    return survey.encode(rows, json.dumps({"model": "vit", "weights": weights, **facts}))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_survey_opens_as_what_was_measured(photo_rows, kind):
    rows, weights = photo_rows
    data = encode_survey([*rows, {"photo": "bad", "row": "unreadable", "problem": "cut off"}], weights)
    if kind == "arrow":
        table, sink = pq.read_table(io.BytesIO(data)), pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        data = sink.getvalue().to_pybytes()
    opened, direct = open_survey(data, "a", 2**24), collect("vit", weights, rows)
    assert (opened.model, opened.weights, len(opened)) == ("vit", weights, 3)
    assert opened.problems == (("bad", "cut off"),) and opened.pictures == direct.pictures
    assert opened.names == ("0.jpg", "1.jpg", "2.jpg") and opened.labels == ("0", "1", "2")
    for name, table in direct.tables.items():
        np.testing.assert_array_equal(opened.tables[name], table)
        assert table.shape == (3, 6, 4) and np.isfinite(table).all() == (name != "output_change")
    change = np.array([row["change"] for row in rows if row["row"] == "head"]).reshape(3, 6, 4)
    np.testing.assert_allclose(opened.mean("change"), change.mean(0), rtol=1e-5)
    np.testing.assert_allclose(opened.spread("change"), change.std(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(opened.hiding["attended"], direct.hiding["attended"])
    assert np.isfinite(opened.hiding["attended"]).all() and opened.flips.any() == direct.flips.any()
