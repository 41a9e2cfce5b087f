"""Imports point down only: app.py and pages/ show, tracer/ computes, and torch waits until a model is asked for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted((ROOT / "tracer").rglob("*.py"))
APP = sorted(path for path in [ROOT / "app.py", *(ROOT / "pages").rglob("*.py")] if path.exists())


def imported(path: Path) -> set[str]:
    """Return the top-level names of every package that a file imports, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if function in ("import_module", "__import__"):
                names.add(str(node.args[0].value).partition(".")[0])
    return names


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", LIBRARY, ids=named)
def test_the_library_knows_nothing_of_the_app(path):
    assert not imported(path) & {"streamlit", "app", "pages"}


@pytest.mark.parametrize("path", APP, ids=named)
def test_the_app_leaves_tensors_to_the_library(path):
    assert not imported(path) & {"torch", "torchvision", "timm", "transformers"}


def test_nested_imports_are_found(tmp_path):
    source = tmp_path / "nested.py"
    source.write_text(
        "def f():\n    import torch.nn as nn\n    importlib.import_module('timm.models')\n    from . import x"
    )
    assert imported(source) == {"torch", "timm"}


@pytest.mark.parametrize("module", ["tracer", "tracer.inputs.images", "app"])
def test_importing_leaves_torch_out(module):
    """The first page is on screen before torch is loaded."""
    if module == "app" and not (ROOT / "app.py").exists():
        pytest.skip("there is no app.py")
    program = f"import {module}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"
