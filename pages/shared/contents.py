"""Which pages there are: every file of `pages/`, read once when the server starts and never at a rerun."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from tracer.common.parsing import stated

PAGES = Path(__file__).parent.parent


class Page(NamedTuple):
    """A page's file, its title and its icon."""

    path: Path
    title: str
    icon: str | None


@cache
def found(folder: Path = PAGES) -> tuple[Page, ...]:
    """The pages of a folder in order: each file says its `TITLE`, `ICON` and `ORDER`."""
    pages = []
    for path in folder.glob("*.py"):
        facts = stated(path)
        pages.append((facts.get("ORDER", 99), Page(path, facts.get("TITLE", path.stem.title()), facts.get("ICON"))))
    return tuple(page for _, page in sorted(pages))
