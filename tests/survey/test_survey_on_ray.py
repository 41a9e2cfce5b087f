"""A survey on a Ray cluster: the same rows as here, also where a machine of the cluster is lost on the way."""

import os
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tracer
from tracer import survey
from tracer.survey.rows import SurveyActor, compute


@pytest.fixture
def data(tmp_path):
    for number in range(10):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        (tmp_path / "data").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "data" / f"{number}.png")
    return tmp_path / "data"


def actors(node) -> list[psutil.Process]:
    """Return the actors of a machine of the cluster that hold a copy of the model."""
    (raylet,) = node.all_processes["raylet"]
    known = psutil.Process(raylet.process.pid).children(recursive=True)
    return [process for process in known if SurveyActor.__name__ in " ".join(process.cmdline())]


@pytest.mark.sweep
def test_a_cluster_of_two_of_which_one_is_killed_gives_the_same_rows(data, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(survey, "PART", 1)
    monkeypatch.setenv(
        "PYTHONPATH",
        os.pathsep.join(filter(None, (str(Path(tracer.__file__).parents[1]), os.environ.get("PYTHONPATH")))),
    )
    model, here, there = tracer.load("vit"), tmp_path / "here.parquet", tmp_path / "there.parquet"
    list(survey.Survey(model, data, here).run())
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        workers = [cluster.add_node(num_cpus=1) for _ in range(2)]
        lost = None
        for _ in survey.Survey(model, data, there, cluster.address).run():
            if lost is None:
                lost = next(worker for worker in workers if actors(worker))
                cluster.remove_node(lost, allow_graceful=False)
    finally:
        cluster.shutdown()
    rows = [pq.read_table(file).to_pylist() for file in (here, there)]
    assert lost is not None and len(rows[0]) == len(rows[1]) == 10 * 26
    for row, expected in zip(*rows, strict=True):
        decimals = {name for name, value in row.items() if isinstance(value, float)}
        assert {name: row[name] for name in row.keys() - decimals} == {
            name: expected[name] for name in row.keys() - decimals
        }
        assert [row[name] for name in decimals] == pytest.approx(
            [expected[name] for name in decimals], rel=1e-4, abs=1e-3
        )


def test_a_machine_with_other_photos_is_refused(data):
    facts = survey.Survey(tracer.load("vit"), data, data / "rows.parquet").facts
    SurveyActor("vit", str(data), facts)
    (data / "new.png").write_bytes(b"")
    with pytest.raises(ValueError, match="other photos at"):
        SurveyActor("vit", str(data), facts)


def test_an_address_without_a_cluster_is_refused_in_a_sentence():
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=r"--ray '127.0.0.1:1' is no Ray cluster that answers: .*refused"):
        list(compute("127.0.0.1:1", "vit", "data", "{}", {0: range(1)}))
