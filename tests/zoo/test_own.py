"""A user's own module by the name of its factory: traced, solved over the factory's arguments, refused in words."""

import doctest
import importlib
import sys
from pathlib import Path

import pytest
import torch

import tracer
from tests.cli.test_cli import refusal
from tracer import cli
from tracer.zoo import user_factory

CODE = """
import torch

def small(B=2, T=5, D=8, h=2):
    return torch.nn.TransformerEncoderLayer(D, h, 4 * D, batch_first=True).eval(), torch.randn(B, T, D)

def named(D=3, K=4):
    return torch.nn.Linear(D, K), (), {"input": torch.randn(2, D)}

def plain():
    return torch.nn.ReLU(), torch.randn(3)

def raises():
    raise RuntimeError("boom\\nand more")

def returns():
    return 3

class Fails(torch.nn.Module):
    def forward(self, x):
        return x @ x

def fails(D=3):
    return Fails(), torch.randn(D, D + 1)

class Heads(torch.nn.Module):
    def __init__(self, D, h):
        super().__init__()
        assert D % h == 0
        self.proj = torch.nn.Linear(D, D // h)

    def forward(self, x):
        return self.proj(x)

def heads(D=10, h=4):
    return Heads(D, h), torch.randn(2, D)

def refused(T=5, D=10):
    return torch.nn.MultiheadAttention(D, 3), (torch.randn(T, 2, D),) * 3

def uses():
    return torch.nn.ReLU(), torhc.zeros(3)

number = 3

class Grouped(torch.nn.Module):
    def __init__(self, D, h, kv):
        super().__init__()
        assert D % h == 0 and h % kv == 0
        self.q, self.k, self.heads = torch.nn.Linear(D, D), torch.nn.Linear(D, D // h * kv), (h, kv)

    def forward(self, x):
        assert x.shape[1] <= 16, "too long"
        (b, t, _), (h, kv) = x.shape, self.heads
        q = self.q(x).view(b, t, h, -1).transpose(1, 2)
        k = self.k(x).view(b, t, kv, -1).transpose(1, 2).repeat_interleave(h // kv, 1)
        return torch.softmax(q @ k.transpose(2, 3), -1)

def grouped(B=3, T=7, D=32, h=4, kv=2):
    return Grouped(D, h, kv), torch.randn(B, T, D)

class Patches(torch.nn.Conv2d):
    def forward(self, x):
        assert x.shape[2] % self.stride[0] == x.shape[3] % self.stride[0] == 0 and x.shape[2] <= 64
        return super().forward(x).flatten(2).transpose(1, 2)

def patches(B=2, H=32, W=24, P=8, D=10):
    return Patches(3, D, P, P), torch.randn(B, 3, H, W)

def function(B=2, T=5):
    return (lambda x: torch.softmax(x @ x.mT, -1)), torch.randn(B, T, 3)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Folder with the user's code, which is the working directory."""
    (tmp_path / "users_own.py").write_text(CODE)
    (tmp_path / "users_broken.py").write_text("import nothing_of_that_name")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def test_every_dimension_is_solved_over_the_arguments_of_the_factory(here):
    trace = user_factory.trace("users_own:small")
    shapes = [x.symbolic for op in trace.ops for x in (*op.inputs, *op.outputs)]
    assert shapes and all("?" not in shape for shape in shapes)
    assert trace.ops[-1].outputs[0].symbolic == ("B", "T", "D")
    assert {symbol.name: symbol.value for symbol in trace.symbols} == {"B": 2, "T": 5, "D": 8, "h": 2}
    assert trace.params_symbolic != "?" and trace.attention(0).shape == (2, 2, 5, 5)


@pytest.mark.parametrize(
    ("factory", "shape"),
    [
        ("grouped", ("B", "h", "T", "T")),
        ("patches", ("B", "H*W/P**2", "D")),
        ("function", ("B", "T", "T")),
    ],
)
def test_sizes_that_have_conditions_are_solved_where_these_hold(here, factory, shape):
    run = user_factory.trace(f"users_own:{factory}")
    assert run.notes == () and run.steps[-1].symbolic == shape


def test_other_sizes_and_inputs_by_name(here):
    assert user_factory.trace("users_own:small", D=12, h=3).ops[-1].outputs[0].shape == (2, 5, 12)
    trace = user_factory.trace("users_own:named")
    assert trace.ops[-1].outputs[0].symbolic == ("2", "K")


def test_a_module_without_sizes_or_attention_still_traces(here):
    trace = user_factory.trace("users_own:plain")
    assert [op.op for op in trace.ops] == ["relu"] and trace.attentions == ()


def test_the_command_line_shows_it(here, capsys):
    assert cli.main(["trace", "--module", "users_own:small", "--set", "T=7", "--level", "ops"]) == 0
    assert "native_layer_norm" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (["users_own"], ["'users_own'", "package.file:function"]),
        (["users_own:"], ["'users_own:'"]),
        (["no_such_file:x"], ["'no_such_file'", "ModuleNotFoundError"]),
        (["users_broken:x"], ["'users_broken'", "nothing_of_that_name"]),
        (["users_own:nothing"], ["'nothing'", "(module, args)"]),
        (["users_own:number"], ["'number'"]),
        (["users_own:returns"], ["returned int", "(module, args)"]),
        (["users_own:small", "--set", "X=3"], ["'X'", "B, T, D, h"]),
        (["users_own:small", "--image", "x.jpg"], ["--image", "--set alone"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(here, capsys, given, parts):
    line = refusal(capsys, "trace", "--module", *given)
    assert all(part in line for part in parts), line


@pytest.mark.parametrize(
    ("factory", "parts"),
    [
        ("raises", ["The code itself refuses: boom", "RuntimeError: boom", "users_own.py:14"]),
        (
            "fails",
            ["x  [▸D◂, ▸D+1◂]", "repair 1: write `x.T`", "+         return x.T @ x", "at other sizes"],
        ),
        ("heads", ["`D % h == 0` does not hold. Here D = 10, h = 4.", "choose h=5", "+ def heads(D=10, h=5):"]),
        ("refused", ["`torch.nn.MultiheadAttention(D, 3)` is refused: embed_dim must be divisible", "(D, 5)"]),
        ("uses", ["There is no name `torhc` here; there is `torch`", "+     return torch.nn.ReLU(), torch.zeros(3)"]),
    ],
)
def test_a_module_that_fails_is_explained(here, capsys, factory, parts):
    assert cli.main(["trace", "--module", f"users_own:{factory}"]) == 1
    printed = capsys.readouterr()
    assert all(part in printed.err for part in parts), printed.err
    assert printed.out == "" and "Traceback" not in printed.err


def test_a_repaired_file_runs(here, capsys):
    """Apply the command's repair to the file and run it."""
    cli.main(["trace", "--module", "users_own:fails"])
    added = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("  + "))
    file = Path("users_own.py")
    file.write_text(file.read_text().replace("        return x @ x\n", f"{added.removeprefix('  + ')}\n"))
    sys.modules.pop("users_own")
    assert cli.main(["trace", "--module", "users_own:fails"]) == 0


def test_both_a_name_and_a_module_are_refused(here, capsys):
    assert "two models" in refusal(capsys, "trace", "vit", "--module", "users_own:small")


def test_an_axis_of_a_parameter_is_a_symbol_where_the_module_can_be_built():
    def build(sizes):
        return torch.nn.Linear(sizes["D"], sizes["K"]), (torch.randn(sizes["B"], sizes["D"]),)

    module, args = build({"D": 4, "K": 6, "B": 3})
    symbols = {"B": 0, "D": ("weight", 1), "K": ("weight", 0)}
    trace = tracer.trace(module, *args, symbols=symbols, build=build)
    assert trace.ops[-1].outputs[0].symbolic == ("B", "K") and trace.params_symbolic == "D*K + K"
    with pytest.raises(ValueError, match=r"'D'.*'weight', 1"):
        tracer.trace(module, *args, symbols=symbols)


@pytest.mark.parametrize("name", ["tracer", "tracer.tracing", "tracer.diagnostics.failures"])
def test_the_examples_of_docstrings_run(name):
    done = doctest.testmod(importlib.import_module(name))
    assert done.attempted and not done.failed
