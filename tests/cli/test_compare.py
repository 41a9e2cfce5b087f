"""`python -m tracer compare`: two runs as text and as JSON, its exit status, and its refusals."""

import json

import pytest

import tracer
from tests.cli.test_cli import refusal, run

WEIGHTS = "block3.attention.weights"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two saved runs of a small model on other inputs."""
    folder = tmp_path_factory.mktemp("runs")
    model = tracer.load("nanogpt", D=8, h=2, d_ff=8, L=1)
    for name, text in (("a", "ROMEO"), ("b", "JULIE")):
        model.trace(text=text).save(folder / f"{name}.safetensors")
    return folder / "a.safetensors", folder / "b.safetensors"


def test_two_saved_runs(capsys, files):
    a, b = files
    status, out, err = run(capsys, "compare", a, b)
    assert (status, err) == (1, "")
    lines = out.splitlines()
    comparison = tracer.compare(tracer.open(a), tracer.open(b))
    assert f"first difference: {comparison.first.id}: different" in out
    assert sum(line.startswith((">", "≠")) for line in lines) == sum(row.differs for row in comparison.rows)
    assert next(line for line in lines if line.startswith(">")).split()[1] == comparison.first.id
    status, out, err = run(capsys, "compare", a, a)
    assert (status, err) == (0, "") and "first difference: none" in out
    assert not any(line.startswith((">", "≠")) for line in out.splitlines())


def test_the_comparison_as_json(capsys, files):
    status, out, _ = run(capsys, "compare", *files, "--json")
    tree = json.loads(out)
    assert status == 1 and not tree["equal"]
    assert tree["first"] == next(row["b"] for row in tree["rows"] if row["values"] == "different")
    assert {"difference", "relative", "shape_a", "symbolic_b"} <= tree["rows"][0].keys()
    assert tree["attention"][0]["difference"] > 0 and tree["answers"]["shares"]


def test_a_model_beside_itself_with_a_change(capsys):
    status, out, _ = run(capsys, "compare", "vit", "vit", "--change", f"{WEIGHTS}=drop_heads(1)")
    assert status == 1 and f"first difference: {WEIGHTS}.changed" in out
    assert f"b: vit with {WEIGHTS}=drop_heads(1)" in out and "only in b" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--text", "O"], "--text 'O': both runs are saved ones, expected the name of a model"),
        (["--change", "logits=zero"], "is a saved run, expected a model"),
        (["--text-b", "O"], "--text-b 'O': "),
        (["--set-b", "gelu=exact"], "--set-b 'gelu=exact': "),
    ],
)
def test_saved_runs_take_no_input_and_no_change(capsys, files, more, message):
    assert message in refusal(capsys, "compare", *files, *more)


def test_bad_names_are_refused(capsys, files):
    assert "'vot'" in refusal(capsys, "compare", files[0], "vot")
    assert "none.safetensors" in refusal(capsys, "compare", "none.safetensors", "vit")
    assert "--text 'O': 'vit' takes no text, expected image" in refusal(capsys, "compare", "vit", "vit", "--text", "O")


def test_a_second_text_and_other_choices_are_for_the_second_run(capsys):
    first = ["nanogpt", "nanogpt", "--text", "ROMEO"]
    status, out, _ = run(capsys, "compare", *first, "--text-b", "JULIE", "--json")
    assert status == 1 and json.loads(out)["first"] == "embedding"
    status, out, _ = run(capsys, "compare", *first, "--set-b", "gelu=tanh", "--json")
    assert status == 1 and json.loads(out)["first"] == "block1.mlp.activation"
    assert "--text-b 'O': 'vit' takes no text" in refusal(capsys, "compare", "nanogpt", "vit", "--text-b", "O")
    assert "gelu=exact or gelu=tanh" in refusal(capsys, "compare", *first, "--set-b", "gelu=relu")


def test_eager_attention_of_a_library_beside_its_fused_kernel(capsys):
    status, out, _ = run(capsys, "compare", "hf:gpt2", "hf:gpt2", "--set-b", "attention=eager", "--json")
    tree = json.loads(out)
    assert status == 0 and tree["equal"] and tree["first"] is None
    weights = [row for row in tree["rows"] if str(row["b"]).endswith("attention.weights")]
    assert weights and {row["values"] for row in weights} == {"equal up to rounding"}


def test_models_of_two_makers_are_aligned_line_by_line(capsys):
    status, out, _ = run(capsys, "compare", "hf:gpt2", "nanogpt", "--json")
    pairs = {(row["a"], row["b"]) for row in json.loads(out)["rows"]}
    assert status == 1
    for line in ("norm1", "attention.scores", "attention.weights", "attention.output", "mlp.hidden", "mlp.residual"):
        assert (f"transformer.h.0.{line}", f"block1.{line}") in pairs, line
