"""View: what an address names, as one value that is read from a URL once and written back as it was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pages.jobs import model_costs, run_cache
from pages.state import page_registry
from tracer import models

FIRST_MODEL = "vit"
PLACES = {page.path.stem if order else "": page.places for order, page in enumerate(page_registry.find_pages())}
"""Positions on each page that its address names, in order. Blocks count from 1 there, as on screen."""
SEPARATOR = re.compile(r";(?![^()]*\))")
"""A semicolon outside brackets, between two changes."""


def split_changes(text: str) -> tuple[str, ...]:
    """Return the changes in a text; a semicolon between brackets belongs to a change."""
    return tuple(filter(None, map(str.strip, SEPARATOR.split(text))))


@dataclass(frozen=True)
class View:
    """Model, input and changes of a run, and a place on a page, as far as an address holds them.

    `options` are the options and sizes of one of our models, or the batch of a library's, as texts by name, and
    `changes` those of the run. Of the input, an address names a `sample`, a `text`, or the `file` of a photo or a saved
    run, which it can't contain; None is what it does not name. `place` are the positions on the page, and `panel` the
    part of a panel that it opens once.
    """

    model: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    file: str | None = None
    sample: str | None = None
    text: str | None = None
    place: Mapping[str, str] = field(default_factory=dict)
    panel: str = ""

    @classmethod
    def from_url(cls, page: str, parameters: Mapping[str, Sequence[str]]) -> View:
        """Read the parameters of the address of a page, each with all its values. Others than those of the model and of
        the page are left out."""
        last = {name: values[-1] for name, values in parameters.items() if values}
        model = last.get("model")
        view = cls(
            model=model,
            options={name: last[name] for name in option_names(model or FIRST_MODEL) if name in last},
            changes=split_changes(";".join(parameters.get(run_cache.CHANGE, ()))),
            file=last.get("file"),
            sample=last.get("sample"),
            text=last.get("text"),
            panel=last.get("panel", ""),
        )
        return view.at(page, place_on(page, last))

    def to_url(self) -> dict[str, str]:
        """Return the parameters of the address."""
        changes = {run_cache.CHANGE: ";".join(self.changes)} if self.changes else {}
        named = {"file": self.file, "sample": self.sample, "text": self.text}
        model = {} if self.model is None else {"model": self.model}
        return {**model, **self.options, **changes, **{n: v for n, v in named.items() if v is not None}, **self.place}

    def at(self, page: str, place: Mapping[str, str]) -> View:
        """Return the view at a place on a page. An option whose name is that of a position there is left out."""
        options = {name: text for name, text in self.options.items() if name not in PLACES.get(page, ())}
        return replace(self, options=options, place=place)

    def with_changes(self, changes: Iterable[str]) -> View:
        """Return the view with further changes, each once."""
        return replace(self, changes=tuple(dict.fromkeys((*self.changes, *changes))))

    def is_same_run(self, other: View) -> bool:
        """Return whether both name one model, one input, and the same options and changes."""
        pair = [replace(view, model=view.model or FIRST_MODEL, place={}, panel="") for view in (self, other)]
        return pair[0] == pair[1]


def option_names(model: str) -> tuple[str, ...]:
    """Return the options and sizes of one of our models that an address names; for a library's, the batch."""
    return (*models.spec_of(model).options, *model_costs.sizes(model)) if model in models.names() else ("B",)


def place_on(page: str, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that belong to a page, in the order in which they are written."""
    return {name: parameters[name] for name in PLACES.get(page, ()) if name in parameters}
