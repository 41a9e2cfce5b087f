"""Scripts that the film and the components of pages share: modules that are joined into one script, as text."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = frozenset(path.stem for path in FOLDER.glob("*.js"))
IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\b)", re.MULTILINE)
COMMENT = re.compile(r"^ *(?://[^\n]*|/\*\*.*?\*/)\n", re.MULTILINE | re.DOTALL)
"""A comment with lines of its own."""


def read(name: str, folder: Path = FOLDER) -> str:
    """Return a module of this folder, or of another one, to be joined with others: without imports, exports and
    comments."""
    text = (folder / f"{name}.js").read_text(encoding="utf-8")
    for part in (IMPORT, EXPORT, COMMENT):
        text = part.sub("", text)
    return text
