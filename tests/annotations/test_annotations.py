"""Shapes written into a copy of a source, solved from runs; the file itself stays as it is."""

import ast
import textwrap

import pytest

from tracer.annotations import annotate
from tracer.cli import main

SOURCE = '''
    """A module of mine."""

    import torch
    from torch import nn


    class Attention(nn.Module):
        def __init__(self, D, h):
            super().__init__()
            self.h = h
            self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

        def split(self, x: torch.Tensor):
            return x.view(x.shape[0], x.shape[1], self.h, -1).transpose(1, 2)

        def forward(self, x, mask=None):
            B, T, D = x.shape
            packed = self.qkv(x)
            q, k, v = packed.chunk(3, dim=-1)  # one for each role
            q, k, v = map(self.split, (q, k, v))  # [B, T, D] as a tutorial has it
            scores = torch.matmul(
                q, k.transpose(-2, -1)
            ) * q.shape[-1] ** -0.5
            y = scores.softmax(-1) @ v
            y = y.transpose(1, 2).reshape(B, T, D)
            return self.out(y)


    class Net(nn.Module):
        def __init__(self, D, h):
            super().__init__()
            self.block = Attention(D, h)
            self.ids = nn.Embedding(20, D)

        def forward(self, ids):
            x = self.ids(ids)
            x = x + self.block(x)
            both = (x, x.mean(1))
            return both


    def factory(B=2, T=5, D=16, h=4):
        return Net(D, h).eval(), torch.randint(0, 20, (B, T))
'''


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "annotated_by_a_test.py"
    path.write_text(textwrap.dedent(SOURCE))
    return path


def test_comments_are_the_shapes_of_the_run(file):
    text = annotate(f"{file}:factory")
    lines = {line.strip() for line in text.splitlines()}
    assert {
        "packed = self.qkv(x)  # [B, T, 3*D]",
        "q, k, v = packed.chunk(3, dim=-1)  # [B, T, D] one for each role",
        "q, k, v = map(self.split, (q, k, v))  # [B, h, T, D/h] as a tutorial has it",
        ") * q.shape[-1] ** -0.5  # [B, h, T, T]",
        "return self.out(y)  # [B, T, D]",
        "both = (x, x.mean(1))  # [B, T, D], [B, D]",
    } <= lines
    assert ast.dump(ast.parse(text)) == ast.dump(ast.parse(file.read_text()))  # only comments differ
    assert annotate(f"{file}:factory") == text and file.read_text() == textwrap.dedent(SOURCE)


def test_jaxtyping_annotates_signatures(file):
    text = annotate(f"{file}:factory", "jaxtyping")
    assert "from jaxtyping import Float, Int\nfrom torch import Tensor\nimport torch\n" in text
    assert 'def split(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B h T _"]:' in text
    assert 'def forward(self, x: Float[Tensor, "B T D"], mask=None) -> Float[Tensor, "B T D"]:' in text
    assert 'def forward(self, ids: Int[Tensor, "B T"]):' in text
    compile(text, "annotated", "exec")


def test_the_command_writes_a_copy_and_never_the_file_itself(file, tmp_path, capsys):
    assert main(["annotate", f"{file}:factory", "--out", str(tmp_path / "copy.py")]) == 0
    assert (tmp_path / "copy.py").read_text() == annotate(f"{file}:factory")
    assert main(["annotate", f"{file}:factory", "--out", str(file)]) == 2
    assert "is the file itself" in capsys.readouterr().err and file.read_text() == textwrap.dedent(SOURCE)
    assert main(["annotate", f"{file}:factory"]) == 0
    assert capsys.readouterr().out == annotate(f"{file}:factory")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("nowhere.py:factory", "there is no file 'nowhere.py'"),
        ("{file}:nothing", "has no function 'nothing'"),
        ("{file}:Net", "failed: TypeError"),
        ("nothing", "names no function"),
    ],
)
def test_a_wrong_reference_is_refused_in_a_sentence(file, capsys, reference, message):
    assert main(["annotate", reference.format(file=file)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
