"""Markdown sentences as plain pieces for components; the browser shows each as text."""

import re

_PIECE = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])|\$(?P<maths>[^$]+)\$|`(?P<code>[^`]+)`|\*\*(?P<bold>.+?)\*\*|(?P<text>[^\\$`*]+|.)",
    re.DOTALL,
)

Piece = tuple[str, str]
"""(kind, text): "text", "bold", "code" or "maths", which is LaTeX."""


def pieces(markdown: str) -> list[Piece]:
    r"""Split a sentence into pieces: `**bold**`, code in backticks, `$maths$` and escaped signs; all else is plain
    text.

    `"grows as $d_k$"` gives `[("text", "grows as "), ("maths", "d_k")]`.
    """
    out: list[Piece] = []
    for match in _PIECE.finditer(markdown):
        kind = match.lastgroup or "text"
        text = match[kind]
        kind = "text" if kind == "escaped" else kind
        if kind == "text" and out and out[-1][0] == "text":
            text = out.pop()[1] + text
        out.append((kind, text))
    return out
