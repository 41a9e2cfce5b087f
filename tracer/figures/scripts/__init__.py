"""Scripts that the film and the components of pages share: modules that are joined into one script, as text."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parent
IMPORT = re.compile(r"^import [^;]*;\n", re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|class)\b)", re.MULTILINE)
NAMES = frozenset(path.stem for path in FOLDER.glob("*.js"))


def read(name: str, folder: Path = FOLDER) -> str:
    """Return a module of this folder, or of another one, without its imports and exports, to be joined with others."""
    return EXPORT.sub("", IMPORT.sub("", (folder / f"{name}.js").read_text(encoding="utf-8")))
