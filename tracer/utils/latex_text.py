r"""LaTeX as plain text and as HTML: `\mathbf{X}_p` as `X_p` or `<b>X</b><sub>p</sub>`.

The HTML is the subset that plotly, SVG in a page and `st.html` share: b, i, sub, sup.
"""

import html
import re
from collections.abc import Callable, Mapping

from tracer.utils.text import SUPERSCRIPTS

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


def _subscript(piece: str) -> str:
    return _script("_", piece)


def _script(mark: str, piece: str) -> str:
    return f"{mark}{piece}" if re.fullmatch(r"\w*(\([^()]*\))?", piece) else f"{mark}({piece})"


_UNICODE = {"_": _subscript, "^": _superscript}


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
