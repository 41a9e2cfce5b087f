"""One vocabulary for all models: the name and the notation of each size and each tensor.

Sizes are italic, tensors bold, so that the length S and the scores **S** don't collide. A model lists which sizes it
has; the meanings are defined here, once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from html import escape

import sympy
from sympy.printing.latex import LatexPrinter
from sympy.printing.str import StrPrinter

from tracer.symbols import formula_parser
from tracer.utils.text import SUPERSCRIPTS

MEANINGS = {
    "B": "batch: how many inputs run at once",
    "H": "height of the picture that the model sees, in pixels",
    "W": "width of the picture that the model sees, in pixels",
    "C": "colour channels: 3 for red, green and blue, 1 for grey",
    "P": "side of a square patch, in pixels",
    "N": "number of patches",
    "T": "text length in tokens",
    "T_max": "the longest text that the model can read, in tokens",
    "T_past": "tokens in the cache: those whose keys and values were computed in earlier runs",
    "V": "size of the vocabulary: how many different tokens there are",
    "n": "number of tokens of the input, whatever its kind",
    "F": "frames of a video",
    "tau": "frames of a tubelet",
    "M": "measured values: samples of a sound, values of a series, points of a cloud",
    "P_t": "values in one patch of a time series",
    "w": "samples in one frame of sound",
    "s": "hop: samples from the beginning of one frame of sound to that of the next",
    "k": "points in a group",
    "c": "numbers that describe a group of points",
    "S": "sequence length: tokens that go through the blocks together",
    "D": "model width: numbers per token",
    "d_ff": "hidden width of the MLP: numbers per token between its two layers",
    "h": "number of attention heads",
    "d_k": "width of one head: numbers in a query, a key or a value",
    "L": "number of blocks, one after the other",
    "K": "number of possible answers: classes, or sentences to choose from",
    "R": "reach: the largest distance between tokens that relative positions distinguish",
    "N_v": "number of visible patches: those that the encoder gets",
    "N_h": "number of hidden patches: those that the decoder predicts",
    "L_dec": "number of blocks of the decoder",
    "D_e": "width of the space in which photos and sentences are compared",
    "h_kv": "number of heads of keys and values, each shared by h/h_kv heads of queries",
    "D_v": "width of the vision tower: numbers per patch",
    "h_v": "number of attention heads of the vision tower",
    "d_v": "width of one head of the vision tower",
    "d_ffv": "hidden width of the MLPs of the vision tower",
    "L_v": "number of blocks of the vision tower",
    "D_dec": "width of the decoder: numbers per token",
    "h_dec": "number of attention heads of the decoder",
    "d_dec": "width of one head of the decoder",
    "d_ffdec": "hidden width of the MLPs of the decoder",
    "R_g": "number of register tokens: extra tokens without pixels",
    "T_d": "length of the decoder's text, in tokens",
    "T_f": "frames of a video that the model sees",
    "T_a": "samples of a sound",
    "F_a": "frames of a sound: columns of its spectrogram, one after the other",
    "n_mel": "mel bins: frequency bands, one number each per frame of sound",
    "S_a": "the longest sound that the encoder can read, in tokens",
    "N_q": "number of queries: the largest number of objects that the model can find",
    "L_f": "levels: maps of the same photo from coarse to fine",
    "T_c": "context length: values of a series that the model gets",
    "T_p": "prediction length: values of a series that the model predicts",
    "s_t": "stride: values from the beginning of one patch of a series to that of the next",
    "m": "variates: series measured in parallel",
}
"""What each size is, for a reader who meets it for the first time."""
NAMED_MEANING = "a size that the caller named"
"""What is said of the sizes of a stranger's module."""

AXES = {
    "B": "input",
    **dict.fromkeys(("N", "N_v", "N_h"), "patch"),
    **dict.fromkeys(
        ("S", "T", "n", "N + 1", "N + T", "T + 1", "T_past", "T + T_past", "N_v + 1", "N + R_g + 1"), "token"
    ),
    **dict.fromkeys(("D", "D_v", "D_dec", "D_e", "d_k", "d_v", "d_dec", "d_ff", "d_ffv", "d_ffdec"), "feature"),
    **dict.fromkeys(("h*d_k", "h_kv*d_k", "h_v*d_v", "h_dec*d_dec"), "feature"),
    "C*P**2": "pixel value",
    **dict.fromkeys(("K", "K + 1"), "class"),
    "N_q": "query",
    "n_mel": "mel bin",
    "F_a": "frame",
    **dict.fromkeys(("T_a", "T_c", "T_p"), "value"),
    "m": "variate",
    "V": "token of the vocabulary",
    "C": "channel",
    "H": "row of pixels",
    "W": "pixel of the row",
    "H/P": "row of patches",
    "W/P": "patch of the row",
    "K*P**2": "class of a pixel",
}
"""What one place along an axis is, by the axis' size, where that has its meaning."""

LATEX = {
    "d_ff": r"d_{\mathrm{ff}}",
    "d_k": "d_k",
    "T_max": r"T_{\max}",
    "T_past": r"T_{\mathrm{past}}",
    "N_v": "N_v",
    "N_h": "N_h",
    "L_dec": r"L_{\mathrm{dec}}",
    "h_kv": r"h_{\mathrm{kv}}",
    "d_ffv": r"d_{\mathrm{ff,v}}",
    "D_dec": r"D_{\mathrm{dec}}",
    "h_dec": r"h_{\mathrm{dec}}",
    "d_dec": r"d_{\mathrm{dec}}",
    "d_ffdec": r"d_{\mathrm{ff,dec}}",
    "n_mel": r"n_{\mathrm{mel}}",
    "d_model": r"d_{\mathrm{model}}",
    "D_h": "D_h",
    "N_p": "N_p",
    "H_img": r"H_{\mathrm{img}}",
    "W_img": r"W_{\mathrm{img}}",
}

ORDER = (
    "B",
    "L",
    "L_dec",
    "N",
    "N_v",
    "N_h",
    "S",
    "T",
    "P",
    "H",
    "W",
    "C",
    "h",
    "d_k",
    "D_h",
    "D",
    "d_model",
    "d_ff",
    "V",
    "K",
)
"""The order in which sizes stand in a product: `P²C`, `h·d_k`, `B·N`."""


def namesakes(sizes: Iterable[str], equations: Iterable[str]) -> list[str]:
    r"""Return sizes whose letter is also a tensor, in bold, in an equation.

    `["K", "D"]` beside `[r"\mathbf{K} = \mathbf{X}\,\mathbf{W}_K"]` gives `["K"]`.
    """
    bold = set(re.findall(r"\\mathbf\{([A-Z])\}", " ".join(equations)))
    return [size for size in sizes if size in bold]


@lru_cache(maxsize=256)
def symbol(name: str) -> sympy.Symbol:
    """Return the sympy symbol of a size: a positive integer, so that quotients and roots simplify."""
    return sympy.Symbol(name, positive=True, integer=True)


@lru_cache(maxsize=4096)
def parse(text: str) -> sympy.Expr:
    """Return a symbolic dimension or formula from sympy's `str`, over our own symbols (`N`, `S`, `E`, `I` are not
    sympy's).

    Accepts the grammar of `formula` only, so that a formula out of a stranger's file executes nothing, and costs no
    more than that grammar allows. ValueError quotes anything else.
    """

    def build(tree: formula_parser.Tree) -> sympy.Expr:
        if isinstance(tree, int):
            return sympy.Integer(tree)
        if isinstance(tree, str):
            return symbol(tree)
        if tree[0] == "**":
            return build(tree[1]) ** sympy.Rational(tree[2])
        operands = [build(operand) for operand in tree[1:]]
        match tree[0]:
            case "-":
                return -operands[0]
            case "sqrt" | "log" | "floor" | "ceiling":
                return getattr(sympy, tree[0])(operands[0])
            case "+":
                return sympy.Add(*operands)
        return sympy.Mul(*operands)

    return build(formula_parser.read(text))


def latex(expression: str | sympy.Expr) -> str:
    """Return a size or formula as LaTeX; `"?"` stays `?`."""
    if expression == "?":
        return "?"
    if isinstance(expression, str):
        expression = parse(expression)
    return _latex(expression)


def inline_latex(formula: str) -> str:
    r"""Return a formula as LaTeX for running text: its parentheses do not grow, so that a line may break between its
    terms."""
    return latex(formula).replace(r"\left(", "(").replace(r"\right)", ")")


@lru_cache(maxsize=4096)
def _latex(expression: sympy.Expr) -> str:
    return SizePrinter().doprint(expression)


def shape_latex(symbolic: tuple[str, ...]) -> str:
    r"""Return a symbolic shape as LaTeX: `("B", "N + 1", "D")` gives `[B,\ N + 1,\ D]`."""
    return "[" + r",\ ".join(latex(size) for size in symbolic) + "]"


def shape_text(symbolic: tuple[str, ...]) -> str:
    """Return a symbolic shape as plain text, for figures and tables: `("B", "N + 1", "P**2*C")` gives `[B, N+1, P²·C]`,
    and `()` gives `scalar`."""
    return "scalar" if not symbolic else "[" + ", ".join(text(size) for size in symbolic) + "]"


@lru_cache(maxsize=4096)
def text(symbolic: str) -> str:
    """Return one symbolic dimension as plain text, in the field's order: `"C*P**2"` gives `P²·C`, `"d_k*h"` gives
    `h·d_k`."""
    return symbolic if symbolic == "?" else PlainPrinter().doprint(parse(symbolic))


def size_html(symbolic: str) -> str:
    """Return one symbolic dimension as HTML with italic sizes: `"C*P**2"` gives `<i>C</i>·<i>P</i>²`."""
    plain = escape(text(symbolic))
    return re.sub(
        r"([A-Za-z])(?:_([A-Za-z]+))?", lambda m: f"<i>{m[1]}</i>" + (f"<sub>{m[2]}</sub>" if m[2] else ""), plain
    )


def shape_html(symbolic: tuple[str, ...]) -> str:
    """Return a symbolic shape as HTML, sizes in italics: `("B", "N + 1", "D")` gives `[B, N+1, D]`, `()` a scalar."""
    return "scalar" if not symbolic else "[" + ", ".join(map(size_html, symbolic)) + "]"


def _place(factor: sympy.Expr) -> tuple[int, str]:
    """Return the sort key of a factor in a product: numbers, then sizes, then sums."""
    base = str(factor.as_base_exp()[0])
    return (-1 if factor.is_number else ORDER.index(base) if base in ORDER else len(ORDER)), base


def _terms(sum_of: sympy.Add) -> list[sympy.Expr]:
    """Return terms in reading order: `N + 1`, with numbers last, and subtracted terms after those they are subtracted
    from."""
    return sorted(
        sum_of.args,
        key=lambda term: (term.is_number, term.could_extract_minus_sign(), *_place(sympy.Mul.make_args(term)[-1])),
    )


class SizePrinter(LatexPrinter):
    """A printer of sizes as LaTeX: products in the field's order, numbers last in sums."""

    def __init__(self):
        super().__init__({"symbol_names": {symbol(name): text for name, text in LATEX.items()}})

    def _print_Mul(self, expr):
        if expr.as_coeff_Mul()[0] < 0:
            return f"-{self._print(-expr)}"
        if expr.is_number and (expr**2).is_Integer:  # as an author writes it: √32, not 4√2
            return rf"\sqrt{{{expr**2}}}"
        if expr.is_number and (expr**-2).is_Integer:
            return rf"\frac{{1}}{{\sqrt{{{expr**-2}}}}}"
        above, below = sympy.fraction(expr)
        if below != 1:
            return rf"\frac{{{self._print(above)}}}{{{self._print(below)}}}"
        factors = sorted(sympy.Mul.make_args(above), key=_place)
        return r"\,".join(rf"\left({self._print(f)}\right)" if f.is_Add else self._print(f) for f in factors)

    def _print_Add(self, expr, order=None):
        return " + ".join(self._print(term) for term in _terms(expr)).replace("+ -", "- ")

    def _print_log(self, expr, exp=None):
        text = rf"\log\left({self._print(expr.args[0])}\right)"
        return text if exp is None else rf"\left({text}\right)^{{{exp}}}"

    def _print_floor(self, expr, exp=None):
        return self._print_rounding(expr, "floor", exp)

    def _print_ceiling(self, expr, exp=None):
        return self._print_rounding(expr, "ceil", exp)

    def _print_rounding(self, expr, name: str, exp: str | None) -> str:
        inside = self._print(sympy.together(expr.args[0]))
        text = rf"\left\l{name} {inside} \right\r{name}"
        return text if exp is None else f"{text}^{{{exp}}}"


class PlainPrinter(StrPrinter):
    """A printer of sizes as plain text, for figures and tables: `P²·C`, `h·d_k`, `N+1`, `H/P`."""

    def _print_Mul(self, expr):
        if expr.as_coeff_Mul()[0] < 0:
            return f"-{self._print(-expr)}"
        above, below = sympy.fraction(expr)
        factors = sorted(sympy.Mul.make_args(above), key=_place)
        product = "·".join(f"({self._print(f)})" if f.is_Add else self._print(f) for f in factors)
        return product if below == 1 else f"{product}/{self._print(below)}"

    def _print_Add(self, expr, order=None):
        return "+".join(self._print(term) for term in _terms(expr)).replace("+-", "−")

    def _print_floor(self, expr):
        return f"⌊{self._print(sympy.together(expr.args[0]))}⌋"

    def _print_ceiling(self, expr):
        return f"⌈{self._print(sympy.together(expr.args[0]))}⌉"

    def _print_Pow(self, expr, rational=False):
        if expr.exp.is_Integer and expr.exp > 1:
            base = f"({self._print(expr.base)})" if expr.base.is_Add else self._print(expr.base)
            return base + str(expr.exp).translate(SUPERSCRIPTS)
        return super()._print_Pow(expr, rational)
