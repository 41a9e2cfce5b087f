"""Recipes of docs/extending.md, tried: in a copy of the tree each new thing is one file, found by itself."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.serving import ROOT

NODE = r'''"""A node for a test."""

from tracer.expr.node import Node


class AddedNode(Node):
    """A power of two."""

    def _latex(self, printer):
        return rf"2^{{{printer._print(self.args[0])}}}"

    def infer(self, same, shape):
        return shape

    def run(self, size, tensor):
        return 2**tensor
'''
ROW = '    "exp2": AddedNode(X),\n'
FORMAT = '''"""Names of steps alone, for a test."""

from tracer.export import rows

SUFFIXES = (".added",)


def render(trace, level: str) -> str:
    """One step a line."""
    return "".join(f"{rows.cell(step.id)}\\n" for step in trace.steps)
'''
PAGE = '''"""A page for a test."""

import streamlit as st

from pages.ui import page_frame as frame

TITLE = "Added"
ORDER = 9

frame.enter()
st.title("It was added")
'''
COMMAND = '''"""A command for a test."""


def arguments(parser) -> None:
    """None."""


def run(options) -> int:
    """Says so."""
    print("it runs")
    return 0
'''

RULE, MOVE = re.findall(
    r"^```python\n(.*?)^```$", (ROOT / "docs" / "extending.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
"""The rule of a finding and the move of a repair in the document."""

FOUND = r"""
from pages.state import page_registry
from tracer import cli
for command in ("models", "nodes"):
    assert cli.main([command]) == 0
    print("\f", end="")
print(*(page.title for page in page_registry.find_pages()), sep="\n")
print("\f", end="")
import torch, tracer
for forward in (torch.relu, lambda x: torch.relu(torch.relu(x))):
    print(*(f"{finding.kind}: {finding.message}" for finding in tracer.trace(forward, torch.randn(2, 3)).findings))
"""
"""What commands list, the titles of all pages, and the findings of a ReLU and of two, in one process."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """Tree with one new file of each kind; all others are links."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("tracer", "pages", "tests", ".streamlit"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, tree / name, copy_function=lambda a, b: Path(b).symlink_to(a), ignore=ignored)
    for name in ("app.py", "ARCHITECTURE.md", "pyproject.toml", "Makefile"):
        (tree / name).symlink_to(ROOT / name)
    for file in (tree / "tracer").rglob("*.py"):  # Python looks beside the file itself, not beside the link to it
        source = file.resolve()
        file.unlink()
        shutil.copy(source, file)
    model = (ROOT / "tracer" / "models" / "vit.py").read_text(encoding="utf-8")
    _, rest = model.split("\n", 1)
    new = {
        "tracer/models/added.py": f'"""A model for a test."""\n{rest}',
        "tracer/expr/added.py": NODE,
        "tracer/export/to_added.py": FORMAT,
        "tracer/cli/commands/added.py": COMMAND,
        "tracer/diagnostics/findings/added.py": RULE,
        "pages/added.py": PAGE,
    }
    for name, text in new.items():
        (tree / name).write_text(text, encoding="utf-8")
    formulas = tree / "tracer" / "lowering" / "aten" / "formulas.py"
    text = formulas.read_text(encoding="utf-8")
    text = text.replace("import (\n", "import (\n    AddedNode,\n", 1).replace("] = {\n", f"] = {{\n{ROW}", 1)
    formulas.write_text(text, encoding="utf-8")
    return tree


def ran(tree: Path, *command: str) -> str:
    """Return a command's output in that tree."""
    done = subprocess.run([sys.executable, *command], cwd=tree, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_the_move_of_the_document_is_one_of_the_library():
    assert MOVE in (ROOT / "tracer" / "diagnostics" / "failures" / "repair_calls.py").read_text(encoding="utf-8")


def test_each_new_file_is_found_by_itself(tree):
    said, nodes, pages, findings = (part.splitlines() for part in ran(tree, "-c", FOUND).split("\f"))
    assert [line.split() for line in said if line.startswith("added ")] == [
        "added seeded random weights A model for a test.".split()
    ]
    assert [line.split(None, 1) for line in nodes if "AddedNode" in line] == [["AddedNode", "A power of two."]]
    assert ran(tree, "-m", "tracer", "added") == "it runs\n"
    assert "Added" in pages
    assert findings == ["", "relu twice: A ReLU takes the result of another, and changes none of its 6 numbers."]


RUN = """
import torch, tracer
class Net(torch.nn.Module):
    def forward(self, x):
        return torch.exp2(x)
(step,) = tracer.trace(Net(), torch.randn(2, 3)).steps
print(step.verdict, step.latex)
"""
"""What becomes of an op whose formula is a new row."""


def test_the_formula_of_an_op_is_one_node_and_one_row(tree):
    assert ran(tree, "-c", RUN) == "verified \\mathbf{Z} = 2^{\\mathbf{x}}\n"


@pytest.mark.sweep
def test_a_new_model_runs_in_a_new_format_and_is_verified(tree, tmp_path):
    sizes = ["--set", "H=8", "--set", "W=8", "--set", "D=16", "--set", "L=1", "--set", "h=2", "--set", "d_ff=8"]
    steps = ran(tree, "-m", "tracer", "trace", "added", "--format", "added", *sizes).split()
    assert steps[0] == "patches" and steps[-1] == "logits"
    assert "Everything is verified" in ran(tree, "-m", "tracer", "verify", "added")


@pytest.mark.sweep
def test_nothing_else_turns_red(tree):
    """The tests that look at all models, pages, nodes, formats or commands; the example that a node needs besides is
    what docs/extending.md asks for."""
    files = (
        "tests/app/test_models_in_app.py tests/lessons/test_notes.py tests/project/test_architecture.py "
        "tests/cli/test_cli.py tests/export/test_formats.py"
    )
    ran(
        tree,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *files.split(),
        "-k",
        "not every_page and not process",
    )
