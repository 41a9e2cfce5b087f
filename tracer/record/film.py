"""Film of a run: one page of HTML, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from tracer.utils import atomic_write

HEIGHT = 640
"""Pixels of the film in a notebook."""


@dataclass(frozen=True)
class Film:
    """Film of a run of `model`: `html` is a page that loads nothing and needs no server. A notebook shows it."""

    model: str
    html: str = field(repr=False)

    def save(self, path: str | Path) -> None:
        """Write the film to an HTML file. Raise OSError where that can't be written."""
        atomic_write.write(path, self.html.encode())

    def _repr_html_(self) -> str:
        name = escape(f"The run of {self.model} as a film")
        return (
            f'<iframe title="{name}" sandbox="allow-scripts" style="width:100%;height:{HEIGHT}px;border:0" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )
