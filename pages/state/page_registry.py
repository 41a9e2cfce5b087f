"""List of pages: every file of `pages/`, read once when the server starts and never at a rerun."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

from pages.jobs import own_code
from tracer.utils.files import read_literals

PAGES = Path(__file__).parent.parent


class Page(NamedTuple):
    """A page's file, its title and icon, and the heading above its link: none for pages that show the run. `places` are
    the URL parameters of positions on the page, in order. A page for `own_code` exists only where this server runs its
    owner's code."""

    path: Path
    title: str
    icon: str | None
    heading: str = ""
    places: tuple[str, ...] = ()
    own_code: bool = False


def find_pages(folder: Path = PAGES) -> tuple[Page, ...]:
    """Return the pages of a folder in order: each file assigns its `TITLE`, `ICON`, `ORDER`, `HEADING`, `PLACES` and
    `OWN_CODE`."""
    return tuple(page for page in _read_pages(folder) if not page.own_code or own_code.is_on())


@cache
def _read_pages(folder: Path) -> tuple[Page, ...]:
    pages = []
    for path in folder.glob("*.py"):
        facts = read_literals(path)
        title = facts.get("TITLE", path.stem.title())
        more = facts.get("HEADING", ""), facts.get("PLACES", ()), facts.get("OWN_CODE", False)
        pages.append((facts.get("ORDER", 99), Page(path, title, facts.get("ICON"), *more)))
    return tuple(page for _, page in sorted(pages))
