"""A survey over photos: its rows are those of the library, and a kill loses and doubles none."""

import io
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import tracer
from tracer import cli
from tracer.attention import survey
from tracer.attention.head_effects import head_effects
from tracer.inputs.samples import samples


def jpeg(seed: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(data, "JPEG")
    return data.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Five photos of two classes and one file that is no photo."""
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
    assert capsys.readouterr().out == f"{out}\n" and not out.with_name("rows.parquet.parts").exists()
    rows, model = pq.read_table(out).to_pylist(), tracer.load("vit")
    inputs = model.inputs(photo)
    found = head_effects(model, inputs, model.trace(photo, prove=False))
    heads = [row for row in rows if row["row"] == "head"]
    assert [(row["layer"], row["head"]) for row in heads] == list(np.ndindex(6, 4))
    for name in ("change", "entropy", "distance", "special", "flips"):
        assert [row[name] for row in heads] == pytest.approx(getattr(found, name).ravel().tolist(), abs=1e-4), name
    (hiding,) = [row for row in rows if row["row"] == "hiding"]
    assert hiding["answer"] == hiding["label"] == "horse" and hiding["hidden"] == 16
    shares = model.net(*inputs)[0].detach().double().softmax(-1)
    assert hiding["loss"] == pytest.approx(-float(shares.max().log()), abs=1e-4)
    weights = model.trace(photo, prove=False).attention(5)[0, :, 0, 1:].mean(0)
    patches = weights.topk(16).indices.tolist()
    hidden = model.trace(photo, prove=False, change={"image": tracer.changes.hide(patches, "grey")}).output
    after = float(hidden[0].double().softmax(-1)[shares.argmax()])
    assert hiding["attended"] == pytest.approx(100 * (after - float(shares.max())), abs=1e-3)


def test_a_survey_that_is_killed_goes_on_without_a_row_lost_or_doubled(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(survey, "PART", 2)
    model, whole, out = tracer.load("vit"), tmp_path / "whole.parquet", tmp_path / "rows.parquet"
    list(survey.Survey(model, folder, whole).run())
    script = (
        "import sys, tracer\nfrom tracer.attention import survey\nsurvey.PART = 2\n"
        "list(survey.Survey(tracer.load('vit'), *sys.argv[1:]).run())\n"
    )
    parts = tmp_path / "rows.parquet.parts"
    process = subprocess.Popen([sys.executable, "-c", script, str(folder), str(out)])
    until = time.monotonic() + 120
    while not list(parts.glob("*.parquet")) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    again = survey.Survey(model, folder, out)
    assert again.progress() >= 2
    written = sum(count for count, _ in again.run())
    assert again.progress() == 6 and written <= 4
    one, other = pq.read_table(whole), pq.read_table(out)
    assert one.column("photo").to_pylist() == other.column("photo").to_pylist()
    assert one.num_rows == 5 * 25 + 1 and pq.ParquetFile(out).num_row_groups == 3
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
        ("vit", "none", "is no folder or file"),
        ("vit", "empty", "has no photos"),
        ("vit", "text.parquet", "is no Parquet file"),
        ("vit", "numbers.parquet", "it has 'x'"),
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
