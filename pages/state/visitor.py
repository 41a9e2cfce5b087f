"""State of one visitor between two runs of a script, and the keys of the widgets that pages read.

All of it is one `Visitor` in Streamlit's session state, which no other visitor's script sees and which ends with the
session. Only a widget's own value stays under that widget's own key.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import streamlit as st
from PIL import Image

from pages.jobs import run_cache
from pages.state.view import FIRST_MODEL, View
from tracer.inputs import images
from tracer.record import Trace

if TYPE_CHECKING:
    from tracer.survey.result import SurveyResult
    from tracer.zoo.downloads import Cost, Download

OF_INPUT = ("query",)
"""Places, as addresses name them, that another input does not have."""
KEY = "visitor"


class Key:
    """Keys of widgets that pages read or set; a widget of a model has another key for each model."""

    MODEL = "model"
    OP = "op listed"
    WRITING, MAP, STEPPER, MASK_MAP, GIVE = "writing step", "attention_map", "stepper", "mask map", "give"
    NUMBER, TOOLS, NEXT_TOKEN = "number", "tools", "next_token"
    FILM, BLOCK_FILM, UPLOAD = "film", "block_film", "upload{}"
    TEXT, SAMPLE, MASK = "text-{}", "sample-{}", "mask-{}"


@dataclass(frozen=True)
class PhotoView:
    """Photo, the crop that the model sees, that crop at the model's size, and the grid of patches."""

    photo: Image.Image
    crop: images.Crop
    image: Image.Image
    rows: int
    columns: int


@dataclass(frozen=True)
class UserInput:
    """Visitor's input: a sample, a photo or a text of their own, or a saved trace."""

    kind: str
    name: str
    photo: Image.Image | None = None
    trace: Trace | None = None
    text: str | None = None
    own: bool = False  # whether the photo is the visitor's
    model: str = ""  # the one that the text was written for: others know other words

    @cached_property
    def content(self) -> run_cache.Content:
        """Return the content of photo and text: one object for all who uploaded the same bytes."""
        photo = self.photo
        pixels = photo and hashlib.sha256(f"{photo.mode} {photo.size} ".encode() + photo.tobytes()).hexdigest()
        return run_cache.content((pixels, self.text))


class CurrentRun(NamedTuple):
    """Run on screen, with its input, model and options; `runs` bounds what is held together, and the photo of an
    abandoned input is not held by it."""

    user_input: weakref.ref[UserInput]
    key: tuple[str, run_cache.Options]
    run: weakref.ref[Trace]


class GeneratedText(NamedTuple):
    """A text that a model wrote: its owner, its tokens, the text before each of them, and all of it."""

    of: tuple
    tokens: list[str]
    before: list[str]
    text: str


class OpenSurvey(NamedTuple):
    """A survey that the visitor opened, with the name of its file."""

    name: str
    result: SurveyResult


class CachedResult(NamedTuple):
    """A value computed from a run, with the lifetime of that run."""

    run: weakref.ref[Trace]
    value: Any


HIDING = "hiding"
"""Comparison of hiding attended patches with hiding others, in the panel What if."""


@dataclass
class Visitor:
    """One visitor's model, input and run, and the positions that were visited.

    `model` is the model on screen, `pending_cost` the cost of another one that waits for consent, `consents` the cost
    of those that have it. `aside` is an input that the model on screen can't take, `own` the last photo of the
    visitor's, `second` a saved run that others are compared with, `survey` the survey that was opened last, `of_survey`
    the photo that was taken from it last, with its number there, `readable` the last input that the model could read.
    `wanted` is the view that a URL asks for, `written` the view in the URL now, `written_for` its input.
    `page` is the one on screen, and `places` the last choice of each position on a page, of a model, as in URLs.
    `widget_versions` counts how often something else than its widget moved a position, by its name.
    `reported_place` is the page and the position on it that the browser moved to by itself since the last run of a
    script, `at` the last step that it reported or was sent to, and `turn` counts the times that it was sent to one.
    `checking` is the model, with its options, whose background check the page on screen waits for. `back` is the model,
    its options and the input, with its name and its text, whose run was on screen last: cancelling leads back there.
    `panel` is the part of a panel that an address opens once, such as `HIDING`.
    """

    model: str = FIRST_MODEL
    pending_cost: Cost | None = None
    consents: dict[str, Download] = field(default_factory=dict)
    options: dict[str, run_cache.Options] = field(default_factory=dict)
    user_input: UserInput | None = None
    second: UserInput | None = None
    survey: OpenSurvey | None = None
    of_survey: tuple[weakref.ref[UserInput], int] | None = None
    aside: UserInput | None = None
    own: UserInput | None = None
    readable: UserInput | None = None
    refusal: str = ""
    refused_on: str | None = None
    wanted: View | None = None
    written: View | None = None
    written_for: weakref.ref[UserInput] | None = None
    current: CurrentRun | None = None
    instead: str = ""
    back: tuple[str, run_cache.Options, str, str | None, weakref.ref[UserInput]] | None = None
    step: str | None = None
    page: str = ""
    panel: str = ""
    places: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    widget_versions: dict[str, int] = field(default_factory=dict)
    reported_place: tuple[str, dict[str, str]] | None = None
    at: str | None = None
    turn: int = 0
    token: str | None = None
    checking: tuple[str, run_cache.Options] | None = None
    op: int | None = None
    writing: GeneratedText | None = None
    uploads: int = 0
    _results: dict[str, CachedResult] = field(default_factory=dict)
    _input_results: dict[str, tuple[weakref.ref[UserInput], dict]] = field(default_factory=dict)

    def choose(self, user_input: UserInput) -> UserInput:
        """Replace the input; the message for the last one has been read by now. A token that was chosen in the last
        input is dropped."""
        if user_input is not self.user_input:
            for places in (*self.places.values(), *(self.reported_place or ())[1:]):
                for name in OF_INPUT:
                    places.pop(name, None)
        self.user_input, self.aside, self.refusal = user_input, None, ""
        if user_input.own:
            self.own = user_input
        return user_input

    def ask(self, cost: Cost | None) -> None:
        """Ask the visitor for consent to a model of this cost; None withdraws the question."""
        self.pending_cost = cost

    def agree(self, name: str, download: Download) -> None:
        """Record the visitor's consent to a model."""
        self.consents[name], self.pending_cost = download, None
        st.session_state[Key.MODEL] = name

    def stay(self, refusal: str) -> None:
        """Reset the box of models to the model on screen, with a message on the refused one."""
        st.session_state[Key.MODEL], self.refusal = self.model, refusal

    def show(self, model: str) -> None:
        """Switch the screen to an available model."""
        st.session_state[Key.MODEL], self.model, self.refusal = model, model, ""

    def option(self, model: str, name: str, value: object) -> None:
        """Set an option of a model, such as its mask."""
        self.options[model] = run_cache.with_options(self.options.get(model, ()), **{name: value})

    def resize(self, model: str, chosen: dict[str, object]) -> None:
        """Replace all options and sizes that were chosen of a model; the changes of its runs stay."""
        changes = run_cache.changes(self.options.get(model, ()))
        self.options[model] = run_cache.with_changes(tuple(chosen.items()), changes)

    def change(self, model: str, texts: Sequence[str]) -> None:
        """Set the changes of a model's runs, as texts; none for the plain run."""
        self.options[model] = run_cache.with_changes(self.options.get(model, ()), texts)

    def run(self) -> Trace | None:
        """Return the run that was held last, if it still exists."""
        return self.current and self.current.run()

    def hold(self, user_input: UserInput, key: tuple[str, run_cache.Options], run: Trace) -> None:
        """Keep the run of an input."""
        self.current = CurrentRun(weakref.ref(user_input), key, weakref.ref(run))
        self.back = (*key, user_input.name, user_input.text, weakref.ref(user_input))

    def place(self, name: str) -> str | None:
        """Return the step or the operation that was chosen last, as in a URL."""
        place = {"step": self.step, "op": self.op}[name]
        return None if place is None else str(place)

    def leave(self, name: str) -> None:
        """Forget the step or the operation that was chosen last."""
        if name in ("step", "op"):
            setattr(self, name, None)

    def remember(self, what: str, run: Trace, value: object) -> None:
        """Keep a value that was computed from a run, such as both its paths."""
        self._results[what] = CachedResult(weakref.ref(run), value)

    def recall(self, what: str, run: Trace) -> Any:
        """Return the value computed from this very run, or None."""
        result = self._results.get(what)
        return result.value if result is not None and result.run() is run else None

    def results_of(self, what: str, user_input: UserInput) -> dict:
        """Return the results on this very input, by key; empty for another input than last time."""
        results = self._input_results.get(what)
        if results is None or results[0]() is not user_input:
            results = self._input_results[what] = (weakref.ref(user_input), {})
        return results[1]


def visitor() -> Visitor:
    """Return the visitor whose script this is."""
    try:
        return st.session_state[KEY]
    except KeyError:  # asked for so often that none is made in vain
        st.session_state[KEY] = Visitor()
        return st.session_state[KEY]


def new() -> bool:
    """Return whether nothing was chosen yet: the session has just begun."""
    return Key.MODEL not in st.session_state


def model_name() -> str:
    """Return the name of the chosen model."""
    return st.session_state.setdefault(Key.MODEL, FIRST_MODEL)
