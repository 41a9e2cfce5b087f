"""Statements of the package that run: in a verified model, and in each test of the nodes of equations."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

from tests.mutation import ROOT
from tests.mutation.nearest_tests import TESTS
from tracer.utils.files import parse

NODE_TESTS = (
    *("lowering/test_aten.py", "expr/test_cells.py", "expr/test_equations.py", "expr/test_layout_nodes.py"),
    *(
        "lowering/test_simplify_positions.py",
        "textbook/test_golden.py",
        "textbook/test_same_textbook.py",
        "shapes/test_probe.py",
        "shapes/test_probing.py",
        "shapes/test_solver.py",
        "shapes/test_floor_division.py",
        "shapes/test_op_size_rules.py",
        "shapes/test_op_windows.py",
        "shapes/test_windows.py",
        "symbols/test_costs.py",
        "capture/test_score_replay.py",
        "capture/test_hidden_keys.py",
        "lessons/test_claims.py",
    ),
)
"""The tests of nodes beside PyTorch's own ops: the proof of those that no model above is written with; of formulas that
are nearly what has a name; of the textbooks of our models, which say what each net is to compute; of sizes, paddings,
masks and costs that none of them has; of scores recomputed in ways that none of them takes; and of what is measured for
a sentence."""


class InstrumentingFinder:
    """An importer of the package's modules that makes each statement note that it runs."""

    def __init__(self, ran: dict[str, set[int]]):
        self.ran = ran

    def find_spec(self, name: str, path=None, target=None):
        """Return the module as Python finds it, with statements that note themselves."""
        if name.split(".")[0] != "tracer" or name.startswith("tracer.verify.checks"):
            return None
        from importlib.machinery import PathFinder  # only where statements are noted

        spec = PathFinder.find_spec(name, path)
        origin = (spec and spec.origin) or ""
        if spec is None or not origin.endswith(".py"):
            return spec
        loader, noted = spec.loader, self.ran.setdefault(Path(origin).relative_to(ROOT).as_posix(), set())

        def run(module) -> None:
            tree = _instrument(parse(Path(origin).read_text(encoding="utf-8")))
            vars(module)["__ran__"] = noted.add
            exec(compile(tree, origin, "exec"), vars(module))

        vars(loader)["exec_module"] = run
        return spec


def _instrument(tree: ast.Module) -> ast.Module:
    """Return the code with a call before each statement that notes the line on which it begins."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list) or not block or not isinstance(block[0], ast.stmt):
                continue
            noted = []
            for place, statement in enumerate(block):
                first = place == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
                if not first and not future:
                    note = parse(f"__ran__({statement.lineno})").body[0]
                    noted.append(ast.copy_location(note, statement))
                noted.append(statement)
            setattr(node, name, noted)
    return ast.fix_missing_locations(tree)


class CoveragePlugin:
    """A plugin of pytest: the first test that fails, and the statements that each test runs beyond those of imports."""

    def __init__(self, ran: dict[str, set[int]]):
        self.ran, self.first, self.imported, self.tests = ran, "", {}, {}

    def pytest_runtest_logstart(self, nodeid):
        """Before a test."""
        self.imported = self.imported or {file: set(lines) for file, lines in self.ran.items()}
        for lines in self.ran.values():
            lines.clear()

    def pytest_runtest_logreport(self, report):
        """After a part of a test."""
        self.first = self.first or (report.nodeid.partition("::")[2] if report.failed else "")

    def pytest_collectreport(self, report):
        """After a file of tests was imported."""
        self.first = self.first or ("it can't be imported" if report.failed else "")

    def pytest_runtest_logfinish(self, nodeid):
        """After a test."""
        self.tests[nodeid.partition("::")[2]] = {file: sorted(lines) for file, lines in self.ran.items() if lines}


def first_failure(
    name: str, tests: Iterable[str] = (), noted: CoveragePlugin | None = None, folder: Path = TESTS
) -> str:
    """Return the first of a file's tests that fails, of all or of some; empty where none does.

    `folder` is that of the tests, which lies beside the package that they import.
    """
    import pytest  # here, since only who develops the package has it

    noted = noted or CoveragePlugin({})
    asked = [f"{folder / name}::{test}" for test in tests] or [str(folder / name)]
    status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *asked], plugins=[noted])
    said = noted.first or (f"pytest ended with status {status:d}" if status else "")
    return f"{name}: {said}" if said else ""
