"""Python's own parser, one text at a time.

CPython 3.11 counts how deep a syntax tree is in one place for all threads: where two of them parse at once and a
garbage collection comes between, one gets `SystemError: AST constructor recursion depth mismatch`. On a server every
visitor has a thread, so all that is parsed is parsed here.
"""

import ast
from importlib.resources.abc import Traversable
from threading import Lock
from typing import Any

_one_at_a_time = Lock()


def parsed(text: str) -> ast.Module:
    """The syntax tree of Python source, as `ast.parse` gives it and with its errors."""
    with _one_at_a_time:
        return ast.parse(text)


def stated(file: Traversable) -> dict[str, Any]:
    """What a file assigns on its outermost level to plain names, where that is a literal; the file does not run."""
    found = {}
    for line in parsed(file.read_text(encoding="utf-8")).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:
                continue  # it is computed
    return found
