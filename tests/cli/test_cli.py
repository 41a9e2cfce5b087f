"""Command line: its output, the stream of it, and its exit status; errors are one line and no traceback."""

import json
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from tests.support.handmade import sample
from tracer import cli, export, serialization
from tracer.cli import shared_options

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["--set", "H=12", "W=8", "P=4", "D=6", "h=2", "d_ff=10", "L=1", "K=3"]


def run(capsys, *argv) -> tuple[int, str, str]:
    """Return the exit status, standard output and standard error."""
    status = cli.main([str(word) for word in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refusal(capsys, *argv) -> str:
    """Return the one line with which a command line is refused."""
    status, out, err = run(capsys, *argv)
    assert (status, out, err.count("\n"), err[-1]) == (2, "", 1, "\n"), (status, out, err)
    return err


def process(*argv, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "tracer", *map(str, argv)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture
def saved_path(tmp_path) -> Path:
    path = tmp_path / "hand.safetensors"
    serialization.save(sample(), path)
    return path


def test_every_command_of_the_contract_is_found():
    assert set(cli.find_commands()) >= {
        "app",
        "models",
        "nodes",
        "trace",
        "open",
        "verify",
        "train",
        "score",
        "bench",
        "compare",
    }


def test_help_and_models_start_without_torch(capsys):
    status, out, err = run(capsys, "--help")
    assert (status, err) == (0, "") and all(command in out for command in cli.find_commands())
    for argv in (["--help"], ["trace", "--help"], ["models"], ["open", "no-such-file", "--out", "x.pdf"]):
        code = (
            f"import sys; from tracer.cli import main; main({argv!r}); print({{'torch', 'pandas'}} & set(sys.modules))"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.stdout.splitlines()[-1] == "set()", argv


def test_models_are_listed_with_their_weights(capsys):
    status, out, _ = run(capsys, "models")
    lines = out.splitlines()
    assert status == 0 and lines[0].split() == ["name", "weights", "what"]
    assert any(line.startswith("vit ") and "Vision Transformer" in line for line in lines)


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        ([], ["required: COMMAND"]),
        (["trase"], ["'trase'", "'trace'"]),
        (["trace"], ["required: NAME"]),
        (["trace", "vit", "--frob"], ["--frob"]),
        (["trace", "vit", "--lev", "ops"], ["--lev"]),
        (["trace", "vit", "--level", "opps"], ["'opps'", "'steps'", "'ops'"]),
        (["trace", "vit", "--format", "pdf"], ["'pdf'", "'markdown'"]),
        (["trace", "vit", "--set", "D"], ["'D'", "SYMBOL=INT"]),
        (["trace", "vit", "--set", "D=x"], ["'D=x'", "SYMBOL=INT"]),
        (["trace", "vit", "--set", "D=0"], ["'D=0'", "from 1"]),
        (["trace", "vit", "--set", "D=-4"], ["'D=-4'", "from 1"]),
        (["trace", "vit", "--set", "D=1.5"], ["'D=1.5'"]),
        (["trace", "vit", "--set", "D=٣"], ["'D=٣'"]),
        (["trace", "vit", "--set", "=3"], ["'=3'"]),
        (["trace", "vit", "--set", "D=" + "9" * 5000], ["expected SYMBOL=INT"]),
        (["trace", "vit", "--set", "D=64", "--set", "D=32"], ["D=…", "2 times", "once"]),
        (["trace", "vit", "--set", "Q=3"], ["'Q'"]),
        (["trace", "vit", "--set", "N=5"], ["N=5", "derived", "H"]),
        (["trace", "vit", "--set", "S=5"], ["S=5"]),
        (["trace", "vit", "--set", "d_k=5"], ["d_k=5"]),
        (["trace", "vit", "--set", "D=65"], ["D=65", "h=4"]),
        (["trace", "vit", "--set", "B=100000000"], ["'B=100000000'", "memory"]),
        (["trace", "vut"], ["'vut'", "'vit'"]),
        (["trace", "vit", "--text", "a cat"], ["'a cat'", "takes no text", "image"]),
        (["trace", "vit", "--image", "none.jpg"], ["'none.jpg'", "No such file"]),
        (["trace", "vit", "--image", __file__], ["test_cli.py", "photo"]),
        (["trace", "vit", "--weights", "none.safetensors"], ["none.safetensors"]),
        (["trace", "vit", "--weights", __file__], ["test_cli.py", "safetensors"]),
        (["trace", "vit", "--out", "x.safetensors", "--format", "csv"], ["csv", "'x.safetensors'"]),
        (["trace", "vit", "--out", "x.pdf"], ["'x.pdf'", ".md", ".safetensors"]),
        (["trace", "vit", "--out", ""], ["''", ".md"]),
        (["trace", "vit", "--image", ""], ["''"]),
        (["trace", ""], ["''"]),
        (["open", ""], ["''", "No such file"]),
        (["open"], ["required: FILE"]),
        (["open", "none.safetensors"], ["'none.safetensors'", "No such file"]),
        (["open", __file__], ["test_cli.py", "not a trace"]),
        (["open", ROOT], ["can't read"]),
        (["verify", "vut"], ["'vut'"]),
        (["train", "vut"], ["'vut'"]),
        (["train", "vit", "--epochs", "0"], ["'0'", "from 1"]),
        (["train", "vit", "--seed", "x"], ["'x'"]),
        (["train", "vit", "--data", "/no/such/folder"], ["'/no/such/folder'"]),
        (["score", "vut"], ["'vut'"]),
        (["score", "vit", "--weights", "/no/such/file"], ["/no/such/file"]),
    ],
)
def test_bad_input_is_one_line_that_quotes_it(capsys, tmp_path, monkeypatch, argv, parts):
    line = refusal(capsys, *argv)
    assert line.startswith("tracer: ") and all(part in line for part in parts), line


def test_open_shows_a_saved_trace_in_every_format(capsys, saved_path):
    trace = serialization.open(saved_path)  # its proofs are made anew: none in the file is believed
    for level, format in {*product(export.LEVELS, ["json"]), *product(["ops"], export.FORMATS)}:
        status, out, err = run(capsys, "open", saved_path, "--level", level, "--format", format)
        assert (status, err) == (0, "") and out == export.render(trace, level, format)


def test_open_writes_what_the_suffix_asks_for(capsys, saved_path, tmp_path):
    trace = serialization.open(saved_path)
    for suffix, format in (
        ("md", "markdown"),
        ("tex", "latex"),
        ("csv", "csv"),
        ("json", "json"),
        ("html", "html"),
        ("txt", "table"),
    ):
        path = tmp_path / f"trace.{suffix}"
        assert run(capsys, "open", saved_path, "--out", path) == (0, "", "")
        assert path.read_text(encoding="utf-8") == export.render(trace, "steps", format)
    assert run(capsys, "open", saved_path, "--out", tmp_path / "trace.txt", "--format", "csv")[0] == 0
    assert (tmp_path / "trace.txt").read_text(encoding="utf-8") == export.render(trace, "steps", "csv")


def test_open_saves_an_equal_trace(capsys, saved_path, tmp_path):
    assert run(capsys, "open", saved_path, "--out", tmp_path / "again.safetensors") == (0, "", "")
    assert run(capsys, "open", tmp_path / "again.safetensors", "--out", tmp_path / "third.safetensors") == (0, "", "")
    assert (tmp_path / "again.safetensors").read_bytes() == (tmp_path / "third.safetensors").read_bytes()


def test_output_that_can_not_be_written(capsys, saved_path, tmp_path):
    for name in ("no/such/folder/x.md", "no/such/folder/x.safetensors"):
        assert "can't write" in refusal(capsys, "open", saved_path, "--out", tmp_path / name)


@pytest.mark.sweep
def test_a_reader_that_leaves_is_quiet(saved_path):
    command = f"{sys.executable} -m tracer open {saved_path} --format json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.startswith("{\n")


def test_a_closed_pipe_is_quiet(saved_path):
    """A reader that has gone before the first line."""
    code = "import os, sys; r, w = os.pipe(); os.dup2(w, 1); os.close(r); from tracer.cli import main; "
    code += "sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "open", saved_path], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupt_is_quiet(capsys, monkeypatch, saved_path):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(serialization, "open", interrupt)
    assert run(capsys, "open", saved_path) == (130, "", "")


def test_the_module_runs_and_gives_its_exit_status(saved_path):
    done = process("open", saved_path, "--format", "csv")
    shown = export.render(serialization.open(saved_path), "steps", "csv")
    assert done.returncode == 0 and done.stdout == shown and done.stderr == ""
    done = process("open", "none")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1


def test_score_prints_figures(capsys, monkeypatch):
    from tracer.models import training

    monkeypatch.setattr(training, "score", lambda name, *, data, weights: {"model": name, "accuracy": 0.5, "images": 7})
    assert run(capsys, "score", "vit", "--json") == (0, '{"model": "vit", "accuracy": 0.5, "images": 7}\n', "")
    assert run(capsys, "score", "vit")[1] == "figure    value\nmodel     vit\naccuracy  0.5\nimages    7\n"


def test_train_passes_its_options_on(capsys, monkeypatch):
    from tracer.models import training

    monkeypatch.setattr(training, "train", lambda name, **options: (name, options))
    given = {"data": "d", "out": "o", "epochs": 3, "seed": 7}
    argv = ["train", "vit", "--data", "d", "--out", "o", "--epochs", "3", "--seed", "7"]
    assert run(capsys, *argv) == (0, f"{('vit', given)}\n", "")


def test_train_reads_sizes_and_settings_of_the_recipe_as_what_they_are(capsys, monkeypatch):
    from tracer.models import training

    settings = {}
    monkeypatch.setattr(training, "train", lambda name, **options: settings.update(options))
    argv = ["train", "vit", "--set", "D=64", "batch=32", "whole=0.5", "bf16=True"]
    assert run(capsys, *argv)[0] == 0
    assert settings["sizes"] == training.recipe("vit").sizes | {"D": 64}
    assert [settings[name] for name in ("batch", "whole", "bf16")] == [32, 0.5, True]
    for text, wrong in (("batch=few", "'few': expected a whole number, such as batch=128"),
                        ("whole=x", "'x': expected a number, such as whole="),
                        ("bf16=1", "'1': expected True or False, such as bf16=False")):  # fmt: skip
        status, _, error = run(capsys, "train", "vit", "--set", text)
        assert status == 2 and wrong in error


def test_verify_fails_with_status_1(capsys, monkeypatch):
    from tracer import verify

    keys = [
        "model",
        "ops",
        "dims",
        "solved",
        "equations",
        "verified",
        "max_error",
        "coverage",
        "identical",
        "opened_error",
    ]
    report = dict(zip(keys, ["vit", 3, 4, 3, 2, 2, 1e-7, 1.0, True, None], strict=True))
    monkeypatch.setattr(verify, "verify", lambda name: {**report, "model": name})
    status, out, _ = run(capsys, "verify", "vit", "--json")
    assert status == 1 and json.loads(out) == [report]
    status, out, _ = run(capsys, "verify", "vit")
    assert status == 1 and out.splitlines()[-1] == "vit: 1 of 4 dimensions are not solved"


def test_bench_prints_figures_and_never_fails(capsys, monkeypatch):
    from tracer import benchmarks

    row = {"name": "tracing", "value": 1.25, "low": 1.2, "high": 1.5, "unit": "× time", "target": 1.1, "ok": False}
    monkeypatch.setattr(benchmarks, "bench", lambda: [row])
    status, out, _ = run(capsys, "bench", "--json")
    assert status == 0 and json.loads(out) == [row]
    status, out, _ = run(capsys, "bench")
    assert status == 0 and re.split("  +", out.splitlines()[1]) == [
        "tracing",
        "1.25",
        "1.2 to 1.5",
        "× time",
        "at most 1.1",
        "missed",
    ]


@pytest.mark.sweep
def test_bench_measures_memory_in_a_process_of_its_own():
    from tracer import benchmarks

    (peak,) = benchmarks._measure_in_a_new_process(benchmarks._peak)
    assert peak > 2**20


def test_bench_finds_that_traces_grow_linearly(monkeypatch):
    from tracer import benchmarks

    monkeypatch.setattr(benchmarks, "LENGTHS", (33, 257))
    *held, growth = benchmarks._growth()
    assert growth["ok"] is True and [row["value"] for row in held] == [
        11520,
        11520,
    ]  # what the steps of 4 layers made, and the output


def test_bench_of_pages_says_what_an_installed_package_lacks(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(shared_options, "CHECKOUT", tmp_path)
    status, _, error = run(capsys, "bench", "--app")
    assert status != 0 and "--app needs the tests of a checkout of the project" in error


def test_what_needs_a_checkout_finds_this_one():
    assert shared_options.CHECKOUT == ROOT


def test_bench_goes_on_without_the_cpu_of_a_server_that_ended(monkeypatch):
    from tests.benchmarks import page_latency

    known = iter((7.0, None))
    monkeypatch.setattr(page_latency, "_cpu", lambda number: next(known, None))
    monkeypatch.setattr(page_latency.time, "sleep", lambda seconds: None)
    assert page_latency._quiet(1) is None
    assert not list(page_latency._spent("a page", 1, 5.0, 1))


def test_equations_are_written_in_the_letters_of_a_text(capsys):
    status, out, _ = run(capsys, "trace", "vit", *SMALL, "--letters", "2021", "--format", "markdown")
    assert (
        status == 0 and r"\operatorname{heads}_{k}" in out and "D_h" in out and r"\operatorname{heads}_{h}" not in out
    )
    assert "'json'" in refusal(capsys, "trace", "vit", *SMALL, "--letters", "2021", "--format", "json")
    assert "'1999'" in refusal(capsys, "handout", "vit", "--letters", "1999")
    assert "'1999'" in refusal(capsys, "film", "vit", "--letters", "1999")
