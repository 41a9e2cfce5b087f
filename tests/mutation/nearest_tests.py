"""Test files that guard a file of the package: those that import it, or else its importers, by the fewest steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from tests.mutation import ROOT
from tracer.utils.files import parse

TESTS = ROOT / "tests"
MAX_IMPORTS, MAX_TEST_FILES = 4, 8
"""How many imports lie between a test file and what it guards at most, and how many test files are tried."""

EXCLUDED_TESTS = ("mutation/test_mutation.py", "project/test_architecture.py", "project/test_installed.py")
"""Tests of this harness, of imports and of the package as it is built: none of them runs what a mutation changes."""


def find_tests(file: str) -> tuple[str, ...]:
    """Return the names of the test files that guard a file such as `"tracer/figures/drawing.py"`, the nearest first.

    Those at the least number of imports; of them first those in the folder of tests that mirrors the file's package.
    Tests that need a browser are not among them.
    """
    if not file.endswith(".py"):
        return ()
    module, graph = _module(file), _graph()
    package = module.split(".")[1:2]
    reached = {module}
    for _ in range(MAX_IMPORTS):
        tests = [name for name, modules in _tests().items() if modules & reached]
        if tests:
            order = sorted(tests, key=lambda name: (name.split("/")[:1] != package, len(_tests()[name]), name))
            return tuple(order[:MAX_TEST_FILES])
        above = {name for name, modules in graph.items() if modules & reached}
        while not above and module:  # what a folder finds by itself nobody imports
            module = module.rpartition(".")[0]
            above = {name for name, modules in graph.items() if module in modules}
        reached |= above
    return ()


@lru_cache(maxsize=512)
def is_verified(file: str) -> bool:
    """Return whether `verify` of a model may run a file."""
    return _module(file) in _verify_imports()


@lru_cache(maxsize=1)
def _verify_imports() -> frozenset[str]:
    """Return the modules that `verify` imports, and all of a package that it imports: a package may find its own by
    itself."""
    reached, waiting = set(), ["tracer.verify"]
    while waiting:
        module = waiting.pop()
        own = {name for name in _graph() if name.rpartition(".")[0] == module}
        fresh = ({name for name in _graph()[module] if name in _graph()} | own) - reached - {"tracer"}
        reached |= fresh
        waiting += fresh
    return frozenset(reached)


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@lru_cache(maxsize=1)
def _graph() -> dict[str, frozenset[str]]:
    """Return the modules that each module of the package imports."""
    paths = sorted([*(ROOT / "tracer").rglob("*.py"), *(ROOT / "pages").rglob("*.py")])
    return {_module(path.relative_to(ROOT).as_posix()): frozenset(_imports(path)) for path in paths}


@lru_cache(maxsize=1)
def _tests() -> dict[str, frozenset[str]]:
    """Return the modules of the package that each test file imports, also by way of a helper beside it."""
    support = sorted((TESTS / "support").glob("*.py"))
    helpers = {_module(path.relative_to(ROOT).as_posix()): path for path in support}
    tests = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        name = path.relative_to(TESTS).as_posix()
        if name in EXCLUDED_TESTS or "mark.browser" in path.read_text(encoding="utf-8"):
            continue
        names = set(_imports(path))
        for helper in names & set(helpers):
            names |= set(_imports(helpers[helper]))
        pages = re.findall(r"pages/(\w+)\.py", path.read_text(encoding="utf-8"))
        names |= {f"pages.{page}" for page in pages}
        tests[name] = frozenset(names)
    return tests


def _imports(path: Path) -> Iterator[str]:
    """Yield the modules that a file imports anywhere in it; of `from a import b` both `a` and `a.b`, since b may be
    one."""
    for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
