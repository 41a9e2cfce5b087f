"""Imports point down only: app.py and pages/ show, tracer/ computes, and torch waits until a model is asked for."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tracer import cli

ROOT = Path(__file__).resolve().parents[2]
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


class Import(NamedTuple):
    """A line of `module` that imports `what`, inside a function or not, and whether a comment beside it says why."""

    module: str
    what: str
    line: int
    late: bool
    reason: bool


def dotted(path: Path) -> str:
    """A file as Python imports it: `tracer.models`, `tracer.record`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def lines_of(path: Path, source: str, known: frozenset[str]) -> Iterator[Import]:
    """The imports of a file that happen when it runs, those of the library by their modules."""
    lines, module = source.splitlines(), dotted(path)

    def within(node: ast.AST, late: bool) -> Iterator[Import]:
        for inner in ast.iter_child_nodes(node):
            if isinstance(inner, ast.If) and "TYPE_CHECKING" in ast.unparse(inner.test):
                continue
            if isinstance(inner, (ast.Import, ast.ImportFrom)):
                above = lines[inner.lineno - 2].strip() if inner.lineno > 1 else ""
                reason = "#" in "".join(lines[inner.lineno - 1 : inner.end_lineno]) or above.startswith("#")
                names = {alias.name for alias in inner.names}
                if isinstance(inner, ast.ImportFrom):
                    full = {f"{inner.module}.{name}" for name in names}
                    names = {name if name in known else inner.module for name in full}
                yield from (Import(module, name, inner.lineno, late, reason) for name in names)
            else:
                yield from within(inner, late or isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)))

    yield from within(ast.parse(source), False)


@cache
def all_imports() -> tuple[Import, ...]:
    known = frozenset(map(dotted, LIBRARY))
    return tuple(found for path in LIBRARY for found in lines_of(path, path.read_text(encoding="utf-8"), known))


@cache
def layers() -> tuple[str, ...]:
    """Return the layers of the library from the ground up, as ARCHITECTURE.md lists them."""
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("| where, from the ground up |")[2]
    found = re.findall(r"^\| `(tracer/[\w/]*)(?:\.py)?` \|", table, flags=re.MULTILINE)
    return tuple(place.removesuffix("__init__").strip("/").replace("/", ".") for place in found)


def layer(module: str) -> int:
    """How high a module stands: the most special of the layers that it is in."""
    if module == "tracer.__main__":
        return len(layers())
    inside = [place for place in layers() if place == module or (module.startswith(f"{place}.") and place != "tracer")]
    assert inside, f"{module} is in none of the layers of ARCHITECTURE.md"
    return layers().index(max(inside, key=len))


CONVENIENCES = "tracer.record.trace"
"""The one module that looks up, inside functions: a trace's own methods lead to what is made of it."""


def test_the_architecture_lists_every_folder_of_the_library():
    entries = {path for path in (ROOT / "tracer").iterdir() if path.name[0] != "_" and path.name != "py.typed"}
    folders = {f"tracer.{path.name.removesuffix('.py')}" for path in entries}
    assert folders == {place for place in layers() if place.count(".") == 1}
    assert "tracer" in layers() and "tracer.models.shared" in layers()


def test_the_library_shows_at_most_23_entries():
    entries = {path.name for path in (ROOT / "tracer").iterdir()} - {"__pycache__", "py.typed"}
    assert len(entries) <= 23


def test_imports_point_down_in_the_order_of_the_architecture():
    up = [
        f"{found.module}:{found.line} imports {found.what}, which is above it"
        for found in all_imports()
        if found.what.partition(".")[0] == "tracer"
        and found.module != "tracer"
        and layer(found.what) > layer(found.module)
        and not (found.module == CONVENIENCES and found.late)
    ]
    assert up == []


def test_no_imports_go_round_in_a_circle():
    graph: dict[str, set[str]] = {}
    for found in all_imports():
        looked_up = found.module == CONVENIENCES and found.late
        ours = found.what.startswith("tracer.") and found.module.startswith("tracer.")
        if ours and found.what != found.module and not looked_up:
            graph.setdefault(found.module, set()).add(found.what)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_an_import_inside_a_function_says_why():
    """Those of commands do it once for all, where the command line begins."""
    assert "Commands import torch when they run" in " ".join(cli.__doc__.split())
    late = [found for found in all_imports() if found.late and not found.module.startswith("tracer.cli.commands.")]
    assert [f"{found.module}:{found.line} {found.what}" for found in late if not found.reason] == []


def test_an_upward_import_would_be_found():
    source = "from tracer import cli\ndef f():\n    import tracer.verify\n    from tracer.models import vit  # late"
    known = frozenset(map(dotted, LIBRARY))
    found = list(lines_of(ROOT / "tracer" / "utils" / "x.py", source, known))
    assert [(one.what, one.late, one.reason) for one in found] == [
        ("tracer.cli", False, False),
        ("tracer.verify", True, False),
        ("tracer.models.vit", True, True),
    ]
    assert all(layer(one.what) > layer(one.module) for one in found)
