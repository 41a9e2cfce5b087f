"""Structure of the code: layers, circles of imports, and the vocabulary of public names."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tracer import cli

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = sorted((ROOT / "tracer").rglob("*.py"))
APP = sorted([ROOT / "app.py", *(ROOT / "pages").rglob("*.py")])
NAMES_OF_ANYTHING = frozenset(
    "Account Base Below Beside Data Details Entry Facts Full Group Handler Helper Info Inside Item Kind Later Manager "
    "Many Misfit Names Numbers Object Other Part Parts Reader Said Signs Some Stuff Thing Things Use Util Utils Way "
    "Whole Writer".split()
)
"""Names that would suit any class. A node of an equation is named for what it computes, such as `Full`."""
TESTS_BESIDE_PACKAGES = frozenset(
    "app project security support benchmarks faults fuzz golden hosted load mutation".split()
)
"""Folders of tests that belong to no package of the library: of the app, of the repository, of strangers' input, what
tests share, and the tools that try a server or change the code."""


class Import(NamedTuple):
    """An import of `target` by `module`: `late` inside a function, with a `reason` where a comment beside it gives
    one."""

    module: str
    target: str
    line: int
    late: bool = False
    reason: bool = False


def module_name(path: Path) -> str:
    """Return the name by which Python imports a file: `tracer.models`, `tracer.record`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_imports(module: str, source: str, known: Iterable[str]) -> Iterator[Import]:
    """Yield the imports of a module, those behind `TYPE_CHECKING` too; a name that is one of the `known` modules in
    full."""
    lines, known = source.splitlines(), frozenset(known)

    def walk(node: ast.AST, late: bool) -> Iterator[Import]:
        for inner in ast.iter_child_nodes(node):
            targets: set[str] = set()
            if isinstance(inner, ast.Import):
                targets = {alias.name for alias in inner.names}
            elif isinstance(inner, ast.ImportFrom) and not inner.level:
                full = {f"{inner.module}.{alias.name}" for alias in inner.names}
                targets = {name if name in known else str(inner.module) for name in full}
            elif isinstance(inner, ast.Call) and inner.args and isinstance(inner.args[0], ast.Constant):
                function = inner.func.attr if isinstance(inner.func, ast.Attribute) else getattr(inner.func, "id", "")
                if function in ("import_module", "__import__"):
                    yield Import(module, str(inner.args[0].value), inner.lineno, late, True)
            if targets:
                above = lines[inner.lineno - 2].strip() if inner.lineno > 1 else ""
                reason = "#" in "".join(lines[inner.lineno - 1 : inner.end_lineno]) or above.startswith("#")
                yield from (Import(module, target, inner.lineno, late, reason) for target in sorted(targets))
            yield from walk(inner, late or isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)))

    yield from walk(ast.parse(source), False)


@cache
def all_imports() -> tuple[Import, ...]:
    """Return the imports of the library and of the pages."""
    known = frozenset(map(module_name, (*LIBRARY, *APP)))
    files = ((module_name(path), path.read_text(encoding="utf-8")) for path in (*LIBRARY, *APP))
    return tuple(found for module, source in files for found in read_imports(module, source, known))


@cache
def layers() -> tuple[str, ...]:
    """Return the packages from the ground up, one in each row of the two tables in ARCHITECTURE.md."""
    tables = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split("| where, from the ground up |")[1:]
    found = re.findall(r"^\| `(tracer/\w*|pages/\w*)(?:\.py|/)?` \|", "".join(tables), flags=re.MULTILINE)
    return tuple(place.removesuffix("__init__").strip("/").replace("/", ".") for place in found)


def package(module: str) -> str:
    """Return the package that a module is in: `tracer.record` for `tracer.record.trace`, `pages` for a page."""
    name = ".".join(module.split(".")[:2])
    return "pages" if name.startswith("pages.") and name not in layers() else name


def layer(module: str) -> int:
    """Return the height of the package of a module."""
    if module in ("app", "tracer.__main__"):
        return len(layers())
    assert package(module) in layers(), f"{module} is in none of the packages of ARCHITECTURE.md"
    return layers().index(package(module))


def upward(imports: Iterable[Import]) -> list[str]:
    """Return the imports of a higher layer, those of types alone, too. Importing a package alone loads nothing."""
    return [
        f"{found.module}:{found.line} imports {found.target}, which is above it"
        for found in imports
        if found.target.partition(".")[0] in ("tracer", "pages")
        and not {"tracer", "pages"} & {found.module, found.target}
        and layer(found.target) > layer(found.module)
    ]


def circle(imports: Iterable[Import]) -> str:
    """Return the modules of a circle of imports, empty where there is none."""
    graph: dict[str, set[str]] = {}
    for found in imports:
        ours = found.target.partition(".")[0] in ("tracer", "pages", "app") and found.target != found.module
        # the package itself loads its names when they are asked for
        if ours and "tracer" not in (found.module, found.target):
            graph.setdefault(found.module, set()).add(found.target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " → ".join(error.args[1])
    return ""


def importing(paths: Iterable[Path], packages: set[str]) -> list[str]:
    """Return where one of these packages is imported, also inside a function."""
    modules = set(map(module_name, paths))
    return [
        f"{found.module}:{found.line} imports {found.target}"
        for found in all_imports()
        if found.module in modules and found.target.partition(".")[0] in packages
    ]


def public_names(source: str) -> Iterator[str]:
    """Yield the public functions, classes and methods of a module."""

    def walk(node: ast.Module | ast.ClassDef) -> Iterator[str]:
        for inner in node.body:
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and inner.name[0] != "_":
                yield inner.name
                if isinstance(inner, ast.ClassDef):
                    yield from walk(inner)

    yield from walk(ast.parse(source))


def test_no_class_has_a_name_that_would_suit_any():
    sources = [path for path in (*LIBRARY, *APP) if "expr" not in path.parts]
    names = {name for path in sources for name in public_names(path.read_text(encoding="utf-8"))}
    assert names & NAMES_OF_ANYTHING == set()


def test_imports_point_down_in_the_order_of_the_architecture():
    assert upward(all_imports()) == []


def test_no_imports_go_round_in_a_circle():
    assert circle(all_imports()) == ""


def test_the_library_knows_nothing_of_the_app():
    assert importing(LIBRARY, {"streamlit", "app", "pages"}) == []


def test_the_app_leaves_tensors_to_the_library():
    assert importing(APP, {"torch", "torchvision", "timm", "transformers"}) == []


@pytest.mark.parametrize("module", ["tracer", "tracer.inputs.images", "tracer.latex_reader.proof_worker", "app"])
def test_importing_leaves_torch_out(module):
    """The first page is on screen before torch is loaded, and an opened file is verified without it."""
    program = f"import {module}, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


def test_an_import_inside_a_function_says_why():
    """Those of commands do it once for all, where the command line begins."""
    assert "Commands import torch when they run" in " ".join(cli.__doc__.split())
    names = set(map(module_name, LIBRARY))
    late = [found for found in all_imports() if found.late and not found.reason and found.module in names]
    assert [f"{found.module}:{found.line} {found.target}" for found in late if ".commands." not in found.module] == []


def test_what_breaks_a_rule_would_be_found():
    source = (
        "from tracer import cli\nif TYPE_CHECKING:\n    from tracer.verify import text\n"
        "def f():\n    from tracer.models import vit  # late\n    importlib.import_module('timm.models')"
    )
    found = list(read_imports("tracer.utils.x", source, map(module_name, LIBRARY)))
    assert found == [
        Import("tracer.utils.x", "tracer.cli", 1),
        Import("tracer.utils.x", "tracer.verify", 3),
        Import("tracer.utils.x", "tracer.models.vit", 5, late=True, reason=True),
        Import("tracer.utils.x", "timm.models", 6, late=True, reason=True),
    ]
    above = [line.split()[2].rstrip(",") for line in upward(found)]
    assert above == ["tracer.cli", "tracer.verify", "tracer.models.vit"]
    back = Import("tracer.verify", "tracer.utils.x", 1)
    assert circle([*found, back]) == "tracer.utils.x → tracer.verify → tracer.utils.x" and not circle(found)


def test_the_architecture_lists_every_package_once():
    entries = {path for path in (ROOT / "tracer").iterdir() if path.name[0] != "_" and path.name != "py.typed"}
    parts = {path for path in (ROOT / "pages").iterdir() if path.is_dir() and path.name[0] != "_"}
    expected = {
        "tracer",
        "pages",
        *(f"tracer.{path.stem}" for path in entries),
        *(f"pages.{part.name}" for part in parts),
    }
    assert sorted(layers()) == sorted(set(expected))


def test_tests_lie_where_the_packages_do():
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests"}
    packages = {place.partition(".")[2] for place in layers() if place.startswith("tracer.")}
    assert {folder.relative_to(ROOT / "tests").parts[0] for folder in folders} <= packages | TESTS_BESIDE_PACKAGES
    assert packages - {"benchmarks"} <= {folder.name for folder in folders}  # `tests/cli/test_cli.py` tries them


def twice_imported(source: str) -> list[str]:
    """Return what a module imports under two names."""
    names: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                names.setdefault(f"{node.module}.{alias.name}", set()).add(alias.asname or alias.name)
    return [target for target, own in names.items() if len(own) > 1]


def test_a_file_knows_a_module_by_one_name():
    assert twice_imported("from a import b\nfrom a import b as c") == ["a.b"]
    assert {path.name: again for path in (*LIBRARY, *APP) if (again := twice_imported(path.read_text("utf-8")))} == {}


def titles_without_code(source: str) -> list[str]:
    """Return the comments at the margin that another such comment follows, with nothing between them."""
    return re.findall(r"^# .+\n(?=\n+# )", source, flags=re.MULTILINE)


def test_a_title_stands_above_its_code():
    assert titles_without_code("# a\n\n# b\n\nx = 1\n") == ["# a\n"]
    found = {path.name: titles_without_code(path.read_text(encoding="utf-8")) for path in (*LIBRARY, *APP)}
    assert {name: titles for name, titles in found.items() if titles} == {}
