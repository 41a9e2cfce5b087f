"""One vocabulary for all models: what each size and each tensor is called, and how it is written.

Sizes are italic, tensors bold (the notes' table in `design.md`), so that the length S and the scores **S**
don't collide. A model lists which sizes it has; the meanings are defined here, once.
"""

from __future__ import annotations

from functools import lru_cache

import sympy

MEANINGS = {
    "B": "batch: how many inputs run at once",
    "H": "image height in pixels",
    "W": "image width in pixels",
    "C": "channels of the image (red, green, blue)",
    "P": "side of a square patch in pixels",
    "N": "number of patches",
    "T": "text length in tokens",
    "V": "vocabulary: how many different tokens there are",
    "S": "sequence length: tokens that go through the blocks",
    "D": "model width: numbers per token",
    "d_ff": "hidden width of the MLP",
    "h": "attention heads",
    "d_k": "width of one head",
    "L": "number of blocks",
    "K": "classes",
}

LATEX = {"d_ff": r"d_{\mathrm{ff}}", "d_k": "d_k"}

TENSORS = {
    "X_p": r"\mathbf{X}_p",
    "I": r"\mathbf{I}",
    "t": r"\mathbf{t}",
    "E": r"\mathbf{E}",
    "P": r"\mathbf{P}",
    "Q": r"\mathbf{Q}",
    "K": r"\mathbf{K}",
    "V": r"\mathbf{V}",
    "S": r"\mathbf{S}",
    "M": r"\mathbf{M}",
    "A": r"\mathbf{A}",
    "H": r"\mathbf{H}",
    "O": r"\mathbf{O}",
    "U": r"\mathbf{U}",
    "G": r"\mathbf{G}",
    "F": r"\mathbf{F}",
    "X_f": r"\mathbf{X}_f",
    "Z": r"\mathbf{Z}",
}


@lru_cache(maxsize=256)
def symbol(name: str) -> sympy.Symbol:
    """The sympy symbol of a size: a positive integer, so that quotients and roots simplify."""
    return sympy.Symbol(name, positive=True, integer=True)


@lru_cache(maxsize=4096)
def parse(text: str) -> sympy.Expr:
    """A symbolic dimension or formula from sympy's `str`, over our own symbols (`N`, `S`, `E`, `I` are not sympy's).

    Accepts names, integers, `+ - * / **`, `sqrt` and brackets only, so that a formula out of a stranger's file
    executes nothing. ValueError quotes anything else.
    """
    import ast

    operators = {
        ast.Add: lambda a, b: a + b,
        ast.Sub: lambda a, b: a - b,
        ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a / b,
        ast.Pow: lambda a, b: a**b,
    }

    def build(node):
        match node:
            case ast.Constant(value=int(value)):
                return sympy.Integer(value)
            case ast.Name(id=name):
                return symbol(name)
            case ast.Call(func=ast.Name(id="sqrt"), args=[argument], keywords=[]):
                return sympy.sqrt(build(argument))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -build(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in operators:
                return operators[type(op)](build(left), build(right))
        raise ValueError(f"{text!r} is not a formula over sizes: names, whole numbers, + - * / ** and brackets")

    try:
        return build(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"{text!r} is not a formula over sizes") from error


def latex(expression: str | sympy.Expr) -> str:
    """A size or formula as LaTeX; `"?"` stays `?`."""
    if expression == "?":
        return "?"
    if isinstance(expression, str):
        expression = parse(expression)
    return _latex(expression)


@lru_cache(maxsize=4096)
def _latex(expression: sympy.Expr) -> str:
    return sympy.latex(expression, symbol_names={symbol(name): text for name, text in LATEX.items()}, order="none")


def shape_latex(symbolic: tuple[str, ...]) -> str:
    r"""A symbolic shape as LaTeX: `("B", "N + 1", "D")` gives `[B,\ N + 1,\ D]`."""
    return "[" + r",\ ".join(latex(size) for size in symbolic) + "]"


def shape_text(symbolic: tuple[str, ...]) -> str:
    """A symbolic shape as plain text, for figures and tables: `("B", "N + 1", "P**2*C")` gives `[B, N+1, P²C]`."""
    return "[" + ", ".join(text(size) for size in symbolic) + "]"


def text(symbolic: str) -> str:
    """One symbolic dimension as plain text: `"C*P**2"` gives `C·P²`."""
    return symbolic.replace(" + ", "+").replace(" - ", "−").replace("**2", "²").replace("**3", "³").replace("*", "·")
