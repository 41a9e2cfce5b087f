"""Formulas and equations out of a stranger's file: read only if reading them, or showing them, can do no harm."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

import sympy

from tracer import notation
from tracer.parsing import parsed
from tracer.record import Symbol

UNKNOWN = "?"
LENGTH = 2000
POWER = 16
# commands that read, write or define, or that leave the page: no equation needs them
FORBIDDEN = re.compile(
    r"\\(input|include\w*|openin|openout|read|write\w*|immediate|[egx]?def|let|catcode|csname|expandafter|loop|repeat"
    r"|special|directlua|new\w+|renew\w+|providecommand|usepackage|href|url|html\w*|verb\w*|begingroup|endgroup)"
    r"(?![A-Za-z])|\\(begin|end)\{(?!\w?matrix|cases|aligned|array)|\^\^"
)


@lru_cache(maxsize=4096)
def formula(text: str) -> None:
    """ValueError unless the text is `"?"` or a formula that is cheap to read: short, small powers, finite."""
    if text == UNKNOWN:
        return
    if len(text) > LENGTH:
        raise ValueError(f"a formula of {len(text):,} letters, expected at most {LENGTH:,}")
    try:
        tree = parsed(text.strip(), "eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not a formula over sizes") from error
    _powers(tree, text)
    if notation.parse(text).has(sympy.zoo, sympy.oo, sympy.nan, sympy.I):
        raise ValueError(f"{text!r} is not finite")


@lru_cache(maxsize=4096)
def value(text: str, symbols: tuple[Symbol, ...]) -> sympy.Expr:
    """The value of a formula at the symbols' values; ValueError for a symbol that isn't among them."""
    sizes = {notation.symbol(symbol.name): symbol.value for symbol in symbols}
    expression = notation.parse(text)
    unknown = sorted(str(symbol) for symbol in expression.free_symbols - sizes.keys())
    if unknown:
        raise ValueError(f"{text!r} has {unknown[0]!r}, which is no symbol of this trace")
    return expression.subs(sizes)


def _powers(node: ast.AST, text: str) -> int:
    """The highest power that nested exponents reach; a tower of them would take for ever to read."""
    inner = max((_powers(child, text) for child in ast.iter_child_nodes(node)), default=1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = node.right.operand if isinstance(node.right, ast.UnaryOp) else node.right
        if not (isinstance(exponent, ast.Constant) and type(exponent.value) is int):
            raise ValueError(f"{text!r} has an exponent that is not a whole number")
        inner *= max(1, exponent.value)
        if inner > POWER:
            raise ValueError(f"{text!r} has a power above {POWER}")
    return inner


def mathematics(latex: str, where: str) -> None:
    """ValueError unless the LaTeX has matching braces and no command that could read, write or define."""
    bare = re.sub(r"\\.", "", latex)
    depth = 0
    for letter in bare:
        depth += (letter == "{") - (letter == "}")
        if depth < 0:
            break
    if depth:
        raise ValueError(f"{where}: expected LaTeX with matching braces")
    if set(bare) & set("$%#~"):
        raise ValueError(f"{where}: expected LaTeX for mathematics, without $, %, # and ~")
    found = FORBIDDEN.search(latex)
    if found:
        raise ValueError(f"{where}: expected LaTeX for mathematics, got {found.group()!r}")
