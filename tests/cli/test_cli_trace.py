"""`python -m tracer trace`: the whole chain on small models, with sizes, settings and photos."""

import csv
import io
import json
from pathlib import Path

import pytest

import tracer
from tests.cli.test_cli import SMALL, refusal, run
from tests.support.sweeping import cases
from tracer import cli, export, serialization
from tracer.export import to_html


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> tuple[Path, dict]:
    """Small ViT traced to a file, and the same as JSON."""
    path = tmp_path_factory.mktemp("small") / "vit.safetensors"
    assert cli.main(["trace", "vit", *SMALL, "--out", str(path)]) == 0
    return path, json.loads(export.render(serialization.open(path), "steps", "json"))


@pytest.fixture(scope="module")
def checked_trace():
    """Run of that ViT, whose lines were checked on other runs."""
    sizes = {name: int(value) for name, value in (pair.split("=") for pair in SMALL[1:])}
    return tracer.load("vit", **sizes).trace().check()


SHOWN = [*(("steps", format) for format in export.FORMATS), ("ops", "table"), ("ops", "json")]


@pytest.mark.parametrize(("level", "format"), cases(SHOWN, (("steps", "table"), ("steps", "json"), ("ops", "json"))))
def test_trace_prints_its_run_and_open_what_the_file_has(capsys, small, checked_trace, level, format):
    """The lines of a run are checked on other runs, those of a file are not: nobody has its model."""
    assert any(step.checked for step in checked_trace.steps)
    status, out, err = run(capsys, "trace", "vit", *SMALL, "--level", level, "--format", format)
    assert status == 0 and err == "vit with H=12, W=8, P=4, D=6, h=2, d_ff=10, L=1, K=3: seeded random weights\n"
    assert out == export.render(checked_trace, level, format)
    out = run(capsys, "open", small[0], "--level", level, "--format", format)[1]
    assert out == export.render(serialization.open(small[0]), level, format)


@pytest.fixture(scope="module")
def with_primitives(tmp_path_factory) -> Path:
    """That ViT traced to a file with its primitives."""
    path = tmp_path_factory.mktemp("small") / "primitives.safetensors"
    assert cli.main(["trace", "vit", *SMALL, "--level", "primitives", "--out", str(path)]) == 0
    return path


@pytest.mark.parametrize("format", cases(export.FORMATS, ("table", "json")))
def test_primitives_are_printed_in_every_format(capsys, with_primitives, format):
    status, out, _ = run(capsys, "trace", "vit", *SMALL, "--level", "primitives", "--format", format)
    opened = run(capsys, "open", with_primitives, "--level", "primitives", "--format", format)[1]
    if format == "json":  # of the lines, trace says what other runs told, and open what the file proves
        out, opened = ({**json.loads(shown), "steps": []} for shown in (out, opened))
    assert status == 0 and out == opened


def test_primitives_are_recorded_when_asked_for(capsys, small, with_primitives):
    assert run(capsys, "open", with_primitives)[1] == run(capsys, "open", small[0])[1]
    line = refusal(capsys, "open", small[0], "--level", "primitives")
    assert "without primitives" in line and "--level primitives --out FILE" in line


def test_json_of_a_real_trace(small):
    _, tree = small
    assert tree["model"] == "vit" and tree["symbols"]["N"] == 6 and tree["symbols"]["D"] == 6
    ids = [step["id"] for step in tree["steps"]]
    assert len(set(ids)) == len(ids) and "block1.attention.scores" in ids
    for step in tree["steps"]:
        assert step["error"] <= 1e-5 and len(step["symbolic"]) == len(step["shape"]) and "?" not in step["symbolic"]
        assert all(tree["ops"][op]["index"] == op for op in step["ops"])
        assert step["stage"] in {"patches", "embedding", "position", "attention", "mlp", "norm", "head", "decoder"}
    for op in tree["ops"]:
        assert all(isinstance(x["from"], str) or x["from"] < op["index"] for x in op["inputs"])
        assert all(x["from"] == op["index"] for x in op["outputs"])
    assert sum(op["params"] for op in tree["ops"]) == tree["totals"]["params"]
    assert sum(op["flops"] for op in tree["ops"]) == tree["totals"]["flops"]
    assert next(step for step in tree["steps"] if step["id"] == "block1.attention.scores")["layer"] == 0


def test_equations_of_a_real_trace_can_be_typeset(small):
    _, tree = small
    assert all(to_html.equation(step["latex"]).startswith("<math ") for step in tree["steps"])


def test_a_saved_trace_still_has_its_attention(small):
    path, _ = small
    import torch

    import tracer

    live = tracer.load("vit", H=12, W=8, P=4, D=6, h=2, d_ff=10, L=1, K=3).trace()
    opened = tracer.open(path)
    assert torch.equal(opened.attention(layer=0), live.attention(layer=0)) and torch.equal(opened.output, live.output)
    assert opened.ops == live.ops and opened.picture == live.picture
    lines = [[(step.id, step.latex, step.shape, step.verdict) for step in trace.steps] for trace in (opened, live)]
    assert lines[0] == lines[1] and {verdict for *_, verdict in lines[0]} == {"verified"}


def test_batch_repeats_the_input_and_keeps_the_weights(capsys):
    status, out, err = run(capsys, "trace", "transformer", "--set", "B=3", "--format", "json")
    tree = json.loads(out)
    assert (status, err) == (0, "") and tree["symbols"]["B"] == 3
    assert tree["steps"][-1]["shape"][0] == 3 and tree["steps"][-1]["symbolic"][0] == "B"


def test_another_size_says_that_the_weights_are_random(capsys):
    status, out, err = run(capsys, "trace", "vit", "--set", "D=64", "h=4", "L=1", "--format", "csv")
    assert (status, err) == (0, "vit with D=64, h=4, L=1: seeded random weights\n")
    shapes = {line["id"]: line["shape"] for line in csv.DictReader(io.StringIO(out))}
    assert shapes["block1.attention.query"] == "[1, 4, 65, 16]"


def test_a_photo_from_a_file(capsys, tmp_path):
    from PIL import Image

    pictures = []
    for colour in ("red", "blue"):
        path = tmp_path / f"{colour}.png"
        Image.new("RGB", (40, 30), colour).save(path)
        status, out, _ = run(capsys, "trace", "vit", *SMALL, "--image", path, "--format", "json")
        assert status == 0
        pictures.append(json.loads(out)["result"]["probabilities"])
    assert pictures[0] != pictures[1]


def test_verify_a_model(capsys):
    status, out, _ = run(capsys, "verify", "nanogpt", "--json")
    report = json.loads(out)[0]
    assert status == 0 and report["model"] == "nanogpt" and report["dims"] == report["solved"] > 1000
    assert report["identical"] is True and report["coverage"] == 1 and report["max_error"] <= 1e-5


SURFACE = ["trace", "mae", "--format", "json", "--set", "L=1", "L_dec=1", "D=8", "h=2", "d_ff=8"]


def visible(capsys, *given) -> list[int]:
    assert cli.main([*SURFACE, *given]) == 0
    return json.loads(capsys.readouterr().out)["result"]["visible"]


@pytest.mark.sweep
def test_a_seed_may_be_zero_and_decides_what_is_hidden(capsys):
    assert visible(capsys, "seed=0") == visible(capsys) != visible(capsys, "seed=1")


@pytest.mark.parametrize("wrong", ["seed=-1", "seed=x", "seed=0.5"])
def test_other_seeds_are_refused_in_one_line(capsys, wrong):
    assert cli.main(["trace", "mae", "--set", wrong]) == 2
    assert capsys.readouterr().err == f"tracer: '{wrong}' can't be set, expected a whole number from 0\n"


def test_a_size_of_zero_is_still_refused(capsys):
    assert cli.main(["trace", "mae", "--set", "N_v=0"]) == 2
    assert "'N_v=0' is not a size" in capsys.readouterr().err


def test_a_trace_without_values_needs_no_weights(capsys, tmp_path):
    config = {"model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256}
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 131072}))
    chosen = ("--no-values", "--set", "T=8192", "B=2", "--level", "costs")
    status, out, err = run(capsys, "trace", f"hf:{tmp_path}", *chosen)
    assert status == 0 and not err and "10,578,116,608 parameters" in out and "B=2, T=8192, D=16384" in out
    cache = next(line for line in out.splitlines() if line.startswith("Cache of keys and values"))
    assert "67,108,864" in cache and cache.endswith("2·B·L·T·d_k·h_kv")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--weights", "f.pt"], "--weights 'f.pt' with --no-values: nothing has values there, expected sizes alone"),
        (["--change", "mask=off"], "--change 'mask=off' with --no-values: nothing has values there"),
        (["--level", "primitives"], "--level primitives with --no-values: nothing has values there"),
        (["--set", "d_k=3"], "d_k=3 can't be set, since d_k is derived"),
        (["--set", "T_past=0"], "'T_past=0' is not a size, expected SYMBOL=INT"),
    ],
)
def test_what_needs_values_is_refused_without_them(capsys, more, message):
    assert message in refusal(capsys, "trace", "nanogpt", "--no-values", *more)


def test_costs_are_rows_in_every_format(capsys, small):
    table = run(capsys, "trace", "nanogpt", "--level", "costs", "--format", "csv")[1]
    rows = {row["part"]: row for row in csv.DictReader(io.StringIO(table))}
    assert rows["MLP"]["flops_symbolic"] == "4*B*D*L*T*d_ff" and int(rows["QKᵀ"]["flops"]) == 2 * 4 * 28 * 28 * 128
    for format in export.FORMATS:
        assert "Norms and residual sums" in run(capsys, "open", small[0], "--level", "costs", "--format", format)[1]
