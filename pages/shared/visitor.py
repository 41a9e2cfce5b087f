"""What pages remember of one visitor between two runs of a script, and the keys of the widgets whose values they read.

All of it is one `Visitor` in Streamlit's session state, which no other visitor's script sees and which is gone with the
session. Only what a widget holds itself stays under that widget's own key.
"""

from __future__ import annotations

import hashlib
import weakref
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import streamlit as st
from PIL import Image

from pages.shared import runs
from tracer.record import Trace

if TYPE_CHECKING:
    from tracer.sources.download import Cost, Download

FIRST_MODEL = "vit"
OF_INPUT = ("query",)
"""Places, as addresses name them, that another input does not have."""
KEY = "visitor"


class Key:
    """Keys of widgets that pages read or set; a widget of a model has another key for each model."""

    MODEL = "model"
    OP = "op listed"
    WRITING, MAP, STEPPER, MASK_MAP, GIVE = "writing step", "attention_map", "stepper", "mask map", "give"
    UPLOAD = "upload{}"
    TEXT, SAMPLE, MASK = "text-{}", "sample-{}", "mask-{}"


@dataclass(frozen=True)
class Given:
    """What the pages show: a sample photo, a photo of the visitor's, or a saved trace."""

    kind: str
    name: str
    photo: Image.Image | None = None
    trace: Trace | None = None
    text: str | None = None
    own: bool = False  # whether the photo is the visitor's
    model: str = ""  # the one that the text was written for: others know other words

    @cached_property
    def content(self) -> runs.Content:
        """The photo, by its pixels, and the text: one for all who gave the very same."""
        photo = self.photo
        pixels = photo and hashlib.sha256(f"{photo.mode} {photo.size} ".encode() + photo.tobytes()).hexdigest()
        return runs.content((pixels, self.text))


class Held(NamedTuple):
    """The run on screen, of what was given to a model with its options; what is held together is bounded by `runs`, and
    a photo that was left is not held by it."""

    given: weakref.ref[Given]
    key: tuple[str, runs.Options]
    run: weakref.ref[Trace]


class Written(NamedTuple):
    """A text that a model wrote: what it belongs to, its tokens, the text before each of them, and all of it."""

    of: tuple
    tokens: list[str]
    before: list[str]
    text: str


class Remembered(NamedTuple):
    """Something that was made of a run, for as long as that run is there."""

    run: weakref.ref[Trace]
    made: Any


@dataclass
class Visitor:
    """One visitor's model, input and run, and the places that were looked at.

    `shown` is the model on screen, `asked` what another one takes that waits for a yes, `agreed` what those take that
    got it. `aside` is what the model on screen can't take, `own` the last photo of the visitor's, `readable` the last
    input that the model could read. `wanted` is what an address asks for, `written` what the address says now,
    `written_for` of which input. `page` is the one on screen, and `places` what was chosen last on a page, of a model,
    as addresses say it. `told` is the page and the place on it that the browser went to by itself since the last run of
    a script, `at` the last step that it told or was sent to, and `turn` counts the times that it was sent to one.
    `checking` is the model, with its options, whose check in the background the page on screen waits for.
    `back` is the model, its options and the input, with its name and its text, whose run was on screen last, where one
    who cancels goes back to.
    """

    shown: str = FIRST_MODEL
    asked: Cost | None = None
    agreed: dict[str, Download] = field(default_factory=dict)
    options: dict[str, runs.Options] = field(default_factory=dict)
    given: Given | None = None
    aside: Given | None = None
    own: Given | None = None
    readable: Given | None = None
    refusal: str = ""
    refused_on: str | None = None
    wanted: dict[str, str] | None = None
    written: dict[str, str] | None = None
    written_for: weakref.ref[Given] | None = None
    held: Held | None = None
    instead: str = ""
    back: tuple[str, runs.Options, str, str | None, weakref.ref[Given]] | None = None
    step: str | None = None
    page: str = ""
    places: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    told: tuple[str, dict[str, str]] | None = None
    at: str | None = None
    turn: int = 0
    token: str | None = None
    checking: tuple[str, runs.Options] | None = None
    op: int | None = None
    writing: Written | None = None
    uploads: int = 0
    _made: dict[str, Remembered] = field(default_factory=dict)
    _found: dict[str, tuple[weakref.ref[Given], dict]] = field(default_factory=dict)

    def choose(self, given: Given) -> Given:
        """Takes an input in the place of the one before; a refusal has been read by now. A token that was chosen in the
        one before is none of the new one's."""
        if given is not self.given:
            for places in (*self.places.values(), *(self.told or ())[1:]):
                for name in OF_INPUT:
                    places.pop(name, None)
        self.given, self.aside, self.refusal = given, None, ""
        if given.own:
            self.own = given
        return given

    def ask(self, cost: Cost | None) -> None:
        """Puts a model before the visitor that takes this much; None takes the question back."""
        self.asked = cost

    def agree(self, name: str, download: Download) -> None:
        """The visitor's yes to a model."""
        self.agreed[name], self.asked = download, None
        st.session_state[Key.MODEL] = name

    def stay(self, refusal: str) -> None:
        """Goes back to the model on screen in the box of models, with what there is to say of the other."""
        st.session_state[Key.MODEL], self.refusal = self.shown, refusal

    def show(self, model: str) -> None:
        """Makes a model, which can be had, the one on screen."""
        st.session_state[Key.MODEL], self.shown, self.refusal = model, model, ""

    def option(self, model: str, name: str, value: object) -> None:
        """Chooses an option of a model, such as its mask."""
        chosen = {**dict(self.options.get(model, ())), name: value}
        self.options[model] = tuple(sorted(chosen.items()))

    def resize(self, model: str, chosen: dict[str, object]) -> None:
        """Takes these options and sizes of a model in the place of all that were chosen of it."""
        self.options[model] = tuple(sorted(chosen.items()))

    def run(self) -> Trace | None:
        """The run that was held last, if it is still there."""
        return self.held and self.held.run()

    def hold(self, given: Given, key: tuple[str, runs.Options], run: Trace) -> None:
        """Keeps the run of what is given."""
        self.held = Held(weakref.ref(given), key, weakref.ref(run))
        self.back = (*key, given.name, given.text, weakref.ref(given))

    def place(self, name: str) -> str | None:
        """The step or the operation that was chosen last, as an address says it."""
        place = {"step": self.step, "op": self.op}[name]
        return None if place is None else str(place)

    def leave(self, name: str) -> None:
        """Forgets the step or the operation that was chosen last."""
        if name in ("step", "op"):
            setattr(self, name, None)

    def remember(self, what: str, run: Trace, made: object) -> None:
        """Keeps something that was made of a run, such as both its paths."""
        self._made[what] = Remembered(weakref.ref(run), made)

    def remembered(self, what: str, run: Trace) -> Any:
        """What was made of this very run, or None."""
        kept = self._made.get(what)
        return kept.made if kept is not None and kept.run() is run else None

    def found(self, what: str, given: Given) -> dict:
        """What was found out about this very input, by a key; empty for another one than last time."""
        kept = self._found.get(what)
        if kept is None or kept[0]() is not given:
            kept = self._found[what] = (weakref.ref(given), {})
        return kept[1]


def visitor() -> Visitor:
    """The visitor whose script this is."""
    return st.session_state.setdefault(KEY, Visitor())


def new() -> bool:
    """Whether nothing was chosen yet: the session has just begun."""
    return Key.MODEL not in st.session_state


def model_name() -> str:
    """The name of the chosen model."""
    return st.session_state.setdefault(Key.MODEL, FIRST_MODEL)
