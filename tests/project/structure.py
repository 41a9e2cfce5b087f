"""Figures on the structure of the code: `python -m tests.project.structure`.

Files and lines of code, late imports, circles of packages, and the files that are entered to trace one `nn.Linear`, and
to draw the first page again where nothing has changed.
"""

from __future__ import annotations

import ast
import io
import sys
import threading
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from streamlit.testing.v1 import AppTest

import tracer
from pages.jobs import background_checks
from tests.project.test_architecture import APP, LIBRARY, ROOT, all_imports, package

OWN = tuple(str(ROOT / folder) for folder in ("tracer", "pages", "app.py"))
SECONDS = 60.0
"""Seconds in which a check of lines that is begun is done."""
BLANK = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_code_lines(source: str) -> int:
    """Return the lines of Python that are not blank, comments, docstrings or imports."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for token in tokens if token.type not in BLANK for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        skipped: list[ast.AST] = [node] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
        if isinstance(node, DOCUMENTED):
            skipped += [part for part in node.body if isinstance(part, ast.Expr) and is_text(part.value)]
        for part in skipped:
            lines -= set(range(part.lineno, part.end_lineno + 1))  # type: ignore[attr-defined]
    return len(lines)


def is_text(node: ast.expr) -> bool:
    """Return whether an expression is a string, as a docstring is."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def count_script_lines(paths: Iterable[Path]) -> int:
    """Return the lines of JavaScript that are neither blank nor comments."""
    lines = (line.strip() for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return sum(bool(line) and not line.startswith(("//", "/*", "*")) for line in lines)


def find_late_imports(source: str) -> Iterator[int]:
    """Yield the lines of the import statements inside functions."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    imports = (node for function in functions for node in ast.walk(function))
    yield from {node.lineno for node in imports if isinstance(node, (ast.Import, ast.ImportFrom))}


def find_circle(root: str, late: bool) -> set[str]:
    """Return the packages below `root` that are in a circle of imports, with or without those inside functions."""
    graph = defaultdict(set)
    for found in all_imports():
        ends = package(found.module), package(found.target)
        if all(end.startswith(f"{root}.") for end in ends) and ends[0] != ends[1] and (late or not found.late):
            graph[ends[0]].add(ends[1])
    return {start for start in graph if start in _reach(graph, start)}


def _reach(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [*graph[start]]
    while waiting:
        if (module := waiting.pop()) not in reached:
            reached.add(module)
            waiting += graph.get(module, ())
    return reached


def count_visits(run: Callable[[], object]) -> Counter[str]:
    """Return the calls of functions in each file of the library and of the pages during a run, in all threads that it
    starts."""
    visits: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN) and code.co_name != "<module>":
            visits[code.co_filename] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type] # which ends it
    return visits


def trace_linear() -> Counter[str]:
    """Return the visits while an `nn.Linear` with one named axis is traced."""
    tracer.trace(torch.nn.LayerNorm(4).eval(), torch.randn(2, 4), symbols={"B": 0})  # whatever is loaded once
    layer, x = torch.nn.Linear(8, 4).eval(), torch.randn(2, 8)
    return count_visits(lambda: tracer.trace(layer, x, symbols={"B": 0}))


def draw_again() -> Counter[str]:
    """Return the visits while an unchanged first page is drawn again."""
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for _ in range(3):
        page.run()
    visits = count_visits(page.run)
    background_checks.end(SECONDS)  # a check that goes on while Python ends takes the process down
    return visits


def main() -> None:
    """Print the figures."""
    sources = {path: path.read_text(encoding="utf-8") for path in (*LIBRARY, *APP)}
    scripts = [path for folder in ("tracer", "pages") for path in (ROOT / folder).rglob("*.js")]
    traced, drawn = trace_linear(), draw_again()
    figures = {
        "files of Python in tracer/ and pages/": len(sources) - 1,  # without app.py
        "lines of code, Python": sum(map(count_code_lines, sources.values())),
        "lines of code, JavaScript": count_script_lines(scripts),
        "imports inside functions": sum(len(list(find_late_imports(source))) for source in sources.values()),
        "packages of tracer/ in a circle of imports": len(find_circle("tracer", late=False)),
        "the same, imports inside functions counted": len(find_circle("tracer", late=True)),
        "packages of pages/ in a circle of imports": len(find_circle("pages", late=False)),
        "files entered to trace nn.Linear": len(traced),
        "calls of functions to trace nn.Linear": traced.total(),
        "files entered to draw the first page again": len(drawn),
        "calls of functions to draw the first page again": drawn.total(),
    }
    for name, figure in figures.items():
        print(f"{name}: {figure:,}")


if __name__ == "__main__":
    main()
