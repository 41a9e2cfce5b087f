r"""Labels for figures without LaTeX: `\mathbf{X}_p` as `<b>X</b><sub>p</sub>` or `X_p`.

The HTML is the subset that plotly, SVG in a page and `st.html` share: b, i, sub, sup.
"""

import html
import re
from collections.abc import Mapping

from tracer.symbols import notation
from tracer.utils.text import SUPERSCRIPTS

_TOKEN = re.compile(r"\\([a-zA-Z]+|.)|([{}^_'])|\s+|([^\\{}^_'\s])")
_FONTS = {"mathbf": "b", "boldsymbol": "b", "mathit": "i", "mathrm": "", "text": "", "operatorname": "", "mathbb": "b"}
_FONTS |= {"mathcal": "i", "mathsf": ""}
ACCENTS = {"tilde": "\u0303", "hat": "\u0302", "bar": "\u0304", "check": "\u030c"}
_SMALL = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon
phi chi psi omega""".split()
GLYPHS = {
    **dict(zip(_SMALL, "αβγδεζηθικλμνξοπρστυφχψω", strict=True)),
    **dict(zip(map(str.title, _SMALL), "ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ", strict=True)),
    "ell": "ℓ", "top": "⊤", "cdot": "·", "times": "×", "in": "∈", "infty": "∞", "sum": "∑", "prime": "′",
    "odot": "⊙", "quad": " ", "to": "→", "le": "≤", "ge": "≥", "ldots": "…",
    "leftrightarrow": "↔", "leftarrow": "←", "rightarrow": "→", "mapsto": "↦", "circ": "∘", "ast": "∗", "dots": "…",
    "left": "", "right": "", "big": "", "Big": "", "bigl": "", "bigr": "",
}  # fmt: skip
"""Characters for commands of LaTeX: one table for pictures and texts."""
_BLANK = "\N{INVISIBLE SEPARATOR}"


def symbol_html(latex: str) -> str:
    r"""Return a tensor's LaTeX symbol as escaped HTML: `\mathbf{X}^{(\ell)}` gives `<b>X</b><sup>(ℓ)</sup>`."""
    return _render(_parse(latex), {"b": "<b>{}</b>", "i": "<i>{}</i>", "_": "<sub>{}</sub>", "^": "<sup>{}</sup>"})


def symbol_text(latex: str) -> str:
    r"""Return a tensor's LaTeX symbol as plain text, for screen readers and tables: `\mathbf{X}_p` gives `X_p`."""
    return html.unescape(_render(_parse(latex), {"_": "_{}", "^": "^{}"}))


class _Script:
    """Superscript or subscript in plain text: a character of its own where Unicode has one, else in brackets."""

    def __init__(self, mark: str):
        self.mark = mark

    def format(self, piece: str) -> str:
        if self.mark == "^" and re.fullmatch("[0-9⊤′−-]{1,3}", piece):
            return piece.translate(SUPERSCRIPTS)
        return f"{self.mark}{piece}" if re.fullmatch(r"\w*", piece) or piece[:1] == "(" else f"{self.mark}({piece})"


def sentence_math(latex: str) -> str:
    r"""Return LaTeX as text within a sentence: `S = QK^\top/\sqrt{D} \in \mathbb{R}^{B\times S}` gives
    `S = QKᵀ/√D ∈ ℝ^(B×S)`."""
    latex = re.sub(r"\\mathbb\{?R\}?", "ℝ", latex)
    latex = re.sub(r"\\(?:mathbf|boldsymbol)\{([^{}]*)\}|\\vec\s*", lambda m: m[1] or "", latex)
    latex = re.sub(r"\\(?:text|mathrm|operatorname)\{([^{}]*)\}", lambda m: m[1].replace(" ", _BLANK), latex)
    latex = re.sub(r"\\sqrt\{(\w(?:_\w)?|\d+)\}", r"√\1", latex)
    latex = re.sub(r"\\sqrt\{([^{}]*)\}", r"√(\1)", latex)
    latex = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", lambda m: "/".join(map(_bracket, m.groups())), latex)
    marks = {mark: _Script(mark) for mark in "_^"}
    text = html.unescape(_render(_parse(re.sub(r"\\q?quad|\\[ ,;]", _BLANK, latex)), marks))
    text = re.sub(r"([=∈≠≤≥≈→←≪≫∼⇒+⊙])", r" \1 ", text).replace(_BLANK, " ")
    text = re.sub(r"(_[a-z\d]+)(?=[A-Z])", r"\1 ", text)
    text = re.sub(r"([,;])(?=[^\s\d])", r"\1 ", text)
    return re.sub(r"\s+", " ", re.sub(r"\s+([,;])", r"\1", text)).strip()


def _bracket(latex: str) -> str:
    return f"({latex})" if re.search(r"\s[-+]\s", latex) else latex


def size_html(symbolic: str) -> str:
    """Return one symbolic dimension as HTML with italic sizes: `"C*P**2"` gives `<i>C</i>·<i>P</i>²`."""
    plain = html.escape(notation.text(symbolic))
    return re.sub(
        r"([A-Za-z])(?:_([A-Za-z]+))?", lambda m: f"<i>{m[1]}</i>" + (f"<sub>{m[2]}</sub>" if m[2] else ""), plain
    )


def shape_html(symbolic: tuple[str, ...]) -> str:
    """Return a symbolic shape as HTML, sizes in italics: `("B", "N + 1", "D")` gives `[B, N+1, D]`, `()` a scalar."""
    return "scalar" if not symbolic else "[" + ", ".join(map(size_html, symbolic)) + "]"


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


def _parse(latex: str) -> list:
    """Return tokens as a tree: strings, lists (groups) and one-character marks for sub- and superscripts."""
    stack: list[list] = [[]]
    for macro, mark, char in _TOKEN.findall(latex):
        if mark == "{":
            stack.append([])
        elif mark == "}":
            if len(stack) > 1:
                group = stack.pop()
                stack[-1].append(group)
        elif mark == "'":
            stack[-1].append("′")
        elif mark:
            stack[-1].append((mark,))
        elif macro in ACCENTS:
            stack[-1].append((ACCENTS[macro],))
        elif macro in _FONTS:
            stack[-1].append((_FONTS[macro],))
        elif macro:
            stack[-1].append(GLYPHS.get(macro, macro if len(macro) > 1 else ""))
        elif char:
            stack[-1].append(char)
    while len(stack) > 1:
        group = stack.pop()
        stack[-1].append(group)
    return stack[0]


def _render(tree: list, marks: Mapping[str, str | _Script]) -> str:
    out, pending = [], []
    for node in tree:
        if isinstance(node, tuple):
            pending.append(node[0])
            continue
        piece = _render(node, marks) if isinstance(node, list) else html.escape(node)
        while pending:
            mark = pending.pop()
            if mark in ACCENTS.values():
                piece = re.sub("(^|>)([^<>]+)", rf"\1\2{mark}", piece, count=1)
            else:
                piece = marks.get(mark, "{}").format(piece)
        out.append(piece)
    return "".join(out)
