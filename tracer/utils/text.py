"""Numbers and LaTeX as text, as pages, files and the command line show them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping
from ctypes import c_float
from functools import partial
from math import isfinite, isinf

# Numbers as text: shares, amounts, powers of ten and shapes as every table, caption and figure writes them.
#
# The browser's are in `tracer/figures/film/player/numbers.js`, and round alike.

BLANK = "\N{NO-BREAK SPACE}"
SUPERSCRIPTS = str.maketrans("0123456789-+()ℓ⊤", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺⁽⁾ˡᵀ")


def percent(share: float, places: int | None = None) -> str:
    """Return a share in per cent with as many digits as it needs: `97.3 %`, `0.04 %`, `< 0.01 %`, `> 99.9 %`.

    With `places`, it has so many decimals: `97 %`, `< 1 %`, `> 99 %`. Only what is 0 is `0 %`, and only what is 1 is
    `100 %`. Blanks do not break, so a sign never begins a line.
    """
    digits = places if places is not None else 1 if share >= 0.01 or share == 0 else 2
    step = 10 ** -(digits + 2)
    if 0 < share < step:
        text = f"<{BLANK}{100 * step:g}"
    elif 1 - step / 2 <= share < 1:
        text = f">{BLANK}{100 - 100 * step:g}"
    else:
        text = f"{100 * share:.{digits}f}"
    return f"{text}{BLANK}%"


def scientific(value: float) -> str:
    """Return a number in scientific notation with real superscripts: `2.1e-07` gives `2.1 × 10⁻⁷`, infinity `∞`."""
    if value == 0:
        return "0"
    if isinf(value):
        return "∞" if value > 0 else "−∞"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits} × 10{superscript(int(exponent))}"


def three_digits(value: float) -> str:
    """Return a number with three digits, a tiny or a huge one in scientific notation: `0.0123`, `1.2 × 10⁻⁷`."""
    return scientific(value) if 0 < abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.3g}"


def round_numeral(value: float) -> str:
    """Return a number that stands in code, such as the fill of a mask: `0`, `−∞`, `−10⁹`, `−3.4 × 10³⁸`, `−100`."""
    size = f"{abs(value):g}" if abs(value) < 1e5 else scientific(abs(value)).removeprefix("1.0 × ")
    return f"−{size}" if value < 0 else size


def numeral(value: float | complex, digits: int = 4) -> str:
    """Return a number with that many significant digits, such as `0.6387` or `3.178 × 10⁻⁶`; whole numbers have all."""
    if isinstance(value, complex) or not isfinite(value) or _is_whole(value):
        return all_digits(value)
    text, _, power = f"{value:.{digits}g}".partition("e")
    return signed(text) + (f" × 10{superscript(int(power))}" if power else "")


def all_digits(value: float | complex) -> str:
    """Return a number with all the digits that float32 has."""
    if isinstance(value, complex):
        return f"{all_digits(value.real)} + {all_digits(value.imag)} i"
    if not isfinite(value):
        return {"inf": "∞", "-inf": "−∞"}.get(str(float(value)), "NaN")
    if _is_whole(value):
        return signed(str(int(value)))
    single = c_float(value).value
    rounded = (f"{single:.{digits}e}" for digits in range(9))
    text = next(text for text in rounded if c_float(float(text)).value == single)
    return signed(repr(float(text)).removesuffix(".0") if 1e-4 <= abs(value) < 1e7 else text)


def _is_whole(value: float) -> bool:
    return float(value).is_integer() and abs(value) < 1e9


def signed(text: str) -> str:
    """Return a printed number with a typographic minus sign."""
    return text.replace("-", "−")


def superscript(power: int) -> str:
    """Return a whole number in raised digits: `-7` gives `⁻⁷`."""
    return str(power).translate(SUPERSCRIPTS)


def amount(value: float, unit: str = "") -> str:
    """Return a count with an SI prefix: `17.6e9, "FLOP"` gives `17.6 GFLOP`, `812_170` gives `812 k`."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            scaled = value / factor
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f} {prefix}{unit}"
    return f"{value:g} {unit}".strip()


def shape_numbers(shape: tuple[int, ...]) -> str:
    """Return a concrete shape as text: `[1, 197, 768]`, or `scalar`."""
    return "scalar" if not shape else "[" + ", ".join(map(str, shape)) + "]"


def latex_number(value: float | complex, digits: int = 4) -> str:
    r"""Return a number as LaTeX, `-1.25 \cdot 10^{-7}`, with that many significant digits; whole numbers have all."""
    if isinstance(value, complex):
        imaginary = latex_number(value.imag, digits)
        sign = "" if imaginary.startswith("-") else "+"
        return rf"{latex_number(value.real, digits)}{sign}{imaginary}\,\mathrm{{i}}"
    if not isfinite(value):
        return {"inf": r"\infty", "-inf": r"-\infty"}.get(str(float(value)), r"\mathrm{NaN}")
    if _is_whole(value):
        return str(int(value))
    text, _, power = f"{value:.{digits}g}".partition("e")
    return latex_power(text, power) if power else text


def latex_scientific(value: float) -> str:
    r"""Return a number as LaTeX, to seven digits: `1e-6` gives `10^{-6}`, `3e-6` gives `3 \cdot 10^{-6}`."""
    digits, power = f"{value:.6e}".split("e")
    return latex_power(digits.rstrip("0").removesuffix("."), power)


def latex_power(digits: str, power: str) -> str:
    r"""Return printed digits times a power of ten as LaTeX: `3 \cdot 10^{-6}`, or `10^{-6}` alone."""
    times = f"10^{{{int(power)}}}"
    return times if digits in ("1", "1.0") else rf"{digits} \cdot {times}"


def latex_whole(value: float) -> str:
    """Return a number without decimals as LaTeX, in groups of three digits."""
    return f"{value:,.0f}".replace(",", "{,}")


# LaTeX as plain text and as HTML: `\mathbf{X}_p` as `X_p` or `<b>X</b><sub>p</sub>`.
#
# The HTML is the subset that plotly, SVG in a page and `st.html` share: b, i, sub, sup.

_TOKEN = re.compile(r"\\([a-zA-Z]+|.)|([{}^_'])|(\s+)|([^\\{}^_'\s])")
_FONTS = {"mathbf": "b", "boldsymbol": "b", "mathit": "i", "mathcal": "i", "mathbb": "double", "vec": ""}
_WORDS = ("mathrm", "mathsf", "text", "operatorname")
_ACCENTS = {"tilde": "\u0303", "hat": "\u0302", "bar": "\u0304", "check": "\u030c"}
_FRACTIONS = ("frac", "dfrac", "tfrac")
_SMALL = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon
phi chi psi omega""".split()
_BLANK = "\N{INVISIBLE SEPARATOR}"
_GLYPHS = {
    **dict(zip(_SMALL, "αβγδεζηθικλμνξοπρστυφχψω", strict=True)),
    **dict(zip(map(str.title, _SMALL), "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ", strict=True)),
    "ell": "ℓ", "top": "⊤", "cdot": "·", "times": "×", "in": "∈", "infty": "∞", "sum": "∑", "prime": "′",
    "odot": "⊙", "to": "→", "le": "≤", "ge": "≥", "ldots": "…", "leftrightarrow": "↔", "leftarrow": "←",
    "rightarrow": "→", "mapsto": "↦", "circ": "∘", "ast": "∗", "dots": "…",
    **dict.fromkeys(("left", "right", "big", "Big", "bigl", "bigr"), ""),
    **dict.fromkeys((",", ";", " ", "quad", "qquad"), _BLANK),
}  # fmt: skip


def symbol_html(latex: str) -> str:
    r"""Return a tensor's LaTeX symbol as escaped HTML: `\mathbf{X}^{(\ell)}` gives `<b>X</b><sup>(ℓ)</sup>`."""
    tags = {name: f"<{tag}>{{}}</{tag}>".format for name, tag in zip("bi_^", ("b", "i", "sub", "sup"), strict=True)}
    return _render(_parse(latex), tags).replace(_BLANK, "")


def symbol_text(latex: str) -> str:
    r"""Return a tensor's LaTeX symbol as plain text, for screen readers and tables: `\mathbf{X}_p` gives `X_p`."""
    return _text(latex, {"_": "_{}".format, "^": "^{}".format}).replace(_BLANK, "")


def symbol_unicode(latex: str) -> str:
    r"""Return a tensor's LaTeX symbol with Unicode's raised characters: `\mathbf{Q}^{(1)}` gives `Q⁽¹⁾`."""
    return _text(latex, _UNICODE).replace(_BLANK, " ").strip()


def sentence_math(latex: str) -> str:
    r"""Return LaTeX as text within a sentence: `S = QK^\top/\sqrt{D} \in \mathbb{R}^{B\times S}` gives
    `S = QKᵀ/√D ∈ ℝ^(B×S)`."""
    text = re.sub(r"([=∈≠≤≥≈→←≪≫∼⇒+⊙])", r" \1 ", _text(latex, _UNICODE)).replace(_BLANK, " ")
    text = re.sub(r"(_[a-z\d]+)(?=[A-Z])", r"\1 ", text)
    text = re.sub(r"([,;])(?=[^\s\d])", r"\1 ", text)
    return re.sub(r"\s+", " ", re.sub(r"\s+([,;])", r"\1", text)).strip()


def svg_text(markup: str) -> str:
    """Return the HTML of a label as SVG text: bold, italic, and smaller shifted spans for sub- and superscripts."""
    for tag, shift in (("sub", 0.3), ("sup", -0.5)):
        back = -0.7 * shift
        markup = re.sub(
            f"<{tag}>(.*?)</{tag}>",
            rf'<tspan dy="{shift}em" font-size="70%">\1</tspan><tspan dy="{back:.3g}em">&#8203;</tspan>',
            markup,
        )
    markup = re.sub("<b>(.*?)</b>", r'<tspan font-weight="700">\1</tspan>', markup)
    return re.sub("<i>(.*?)</i>", r'<tspan font-style="italic">\1</tspan>', markup)


def _superscript(piece: str) -> str:
    raised = re.fullmatch("[0-9()ℓ⊤′−+-]+", piece)
    return piece.translate(SUPERSCRIPTS) if raised else _script("^", piece)


def _script(mark: str, piece: str) -> str:
    return f"{mark}{piece}" if re.fullmatch(r"\w*(\([^()]*\))?", piece) else f"{mark}({piece})"


_UNICODE: Mapping[str, Callable[[str], str]] = {"_": partial(_script, "_"), "^": _superscript}


def _root(piece: str) -> str:
    return f"√{piece}" if re.fullmatch(r"\w(_\w+)?|\d+", piece) else f"√({piece})"


def _bracket_sum(piece: str) -> str:
    is_sum = re.search(r"(?<=[^^_,])[-+]", re.sub(r"\([^()]*\)", "()", piece))
    return f"({piece})" if is_sum else piece


def _double(piece: str) -> str:
    return piece.translate(str.maketrans("CNRZ", "ℂℕℝℤ"))


def _text(latex: str, marks: Mapping[str, Callable[[str], str]]) -> str:
    return html.unescape(_render(_parse(latex), marks))


def _parse(latex: str) -> list:
    """Return tokens as a tree: strings, lists (groups) and, as tuples, what is done to the next piece."""
    stack: list[list] = [[]]
    words = [False]
    for command, mark, blank, char in _TOKEN.findall(latex):
        around = stack[-1]
        if mark == "{":
            words.append(words[-1] or around[-1:] == [("words",)])
            stack.append([])
        elif mark == "}":
            if len(stack) > 1:
                words.pop()
                stack[-2].append(stack.pop())
        elif mark == "'":
            around.append("′")
        elif command in _WORDS:
            around.append(("words",))
        elif mark or command in _ACCENTS or command in _FONTS:
            around.append((mark or _ACCENTS.get(command) or _FONTS[command],))
        elif command == "sqrt":
            around.append((command,))
        elif command in _FRACTIONS:
            around.append(("above",))
        elif command:
            around.append(_GLYPHS.get(command, command if len(command) > 1 else ""))
        elif char or (blank and words[-1]):
            around.append(char or _BLANK)
    while len(stack) > 1:
        stack[-2].append(stack.pop())
    return stack[0]


def _render(tree: list, marks: Mapping[str, Callable[[str], str]]) -> str:
    marks = {"sqrt": _root, "above": _bracket_sum, "below": _bracket_sum, "double": _double, **marks}
    out: list[str] = []
    pending: list[str] = []
    for node in tree:
        if isinstance(node, tuple):
            pending.append(node[0])
            continue
        piece = _render(node, marks) if isinstance(node, list) else html.escape(node)
        above = "above" in pending
        while pending:
            mark = pending.pop()
            if mark in _ACCENTS.values():
                piece = re.sub("(^|>)([^<>]+)", rf"\1\2{mark}", piece, count=1)
            else:
                piece = marks.get(mark, str)(piece)
        if above:
            piece += "/"
            pending.append("below")
        out.append(piece)
    return "".join(out)
