"""Path of a lesson: the acts of one student, in fixed shares, the same for the same number."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from PIL import Image
from streamlit.proto.ButtonGroup_pb2 import ButtonGroup

from tests.load.visitor import Answer, Visitor
from tracer import models
from tracer.inputs.synthetic import COLOURS, SHAPES, SIZES

SHARES = {"page": 30, "sample": 10, "model": 10, "text": 10, "photo": 10, "choice": 10, "change": 20}
"""Of 100 acts, how many are of which kind."""
PAGES = ("Overview", "Trace", "Attention", "Mask", "Operations")
LESSONS = ("Tokens", "Positions", "Sizes", "The notes", "The loss")
ASIDE = 0.2
"""Of the pages that are asked for, the share that are lessons."""
CHOICES = ("Mask", "Operations")
"""Pages with something to choose that the server must answer."""
PAGES_WITH_CHANGES = ("Overview", "Trace", "Attention", "Mask")
"""Pages with a panel of changes of the run."""
PANEL = "What if?"
PHOTO = (1600, 1200)


@dataclass
class Act:
    """A completed act, whether it made the model run on a new input, its outcome, when it ended, and the page and
    model on screen."""

    kind: str
    run: bool
    answer: Answer
    place: str = ""
    ended: float = field(default_factory=time.monotonic)


class Student:
    """One student in a lesson. `runs=False` leaves out texts and photos of their own and changes, and with them
    all runs."""

    def __init__(self, number: int, address: str, runs: bool = True):
        self.visitor = Visitor(address)
        self.chance = random.Random(number)
        self.model, self.page, self.own = models.names()[0], PAGES[0], False
        self._left_out = () if runs else ("photo", "text", "change")
        self._changed: set[str] = set()  # models whose runs are changed
        self._deck: list[str] = []

    async def open(self) -> Act:
        """Open the app as everybody sees it."""
        return Act("open", False, await self.visitor.open())

    async def act(self) -> Act:
        """Do the next act."""
        if len(self._deck) < 10:
            self._deck += self._shuffle_deck()
        kind = next(kind for kind in self._deck if self._suits(kind))
        self._deck.remove(kind)
        does: Callable = getattr(self, f"_{kind}")
        answer = await does()
        verified = self.page == "Mask" and (
            self.own or kind == "choice"
        )  # a token is changed, and the model runs again
        anew = kind == "model" and (self.own or self.model in self._changed)
        run = (
            verified
            or kind in ("text", "photo", "change")
            or anew
            or (kind == "sample" and self.model in self._changed)
        )
        return Act(kind, run, answer, f"{self.page} of {self.model}")

    def _shuffle_deck(self) -> list[str]:
        """Return twenty acts in the fixed shares, in random order."""
        deck = [kind for kind, share in SHARES.items() if kind not in self._left_out for _ in range(share // 5)]
        self.chance.shuffle(deck)
        return deck

    def _suits(self, kind: str) -> bool:
        """Return whether the act can be done now; one that can't waits for the model or the page that it can be done
        on."""
        takes = models.takes(self.model)
        return {
            "text": "text" in takes,
            "photo": "image" in takes,
            "sample": bool(self._samples() or self._back()),
            "choice": self.page in CHOICES and any(self._choices()),
            "change": self.page in PAGES_WITH_CHANGES and self.visitor.panel(PANEL) is not None,
        }.get(kind, True)

    async def _page(self) -> Answer:
        pages = LESSONS if self.chance.random() < ASIDE else PAGES
        self.page = self.chance.choice([page for page in pages if page != self.page])
        return await self.visitor.follow(self.visitor.find("page_link", self.page))

    async def _sample(self) -> Answer:
        """Choose another sample; a student with an own input goes back from it."""
        self.own = False
        if back := self._back():
            return await self.visitor.press(back)
        pills = self._samples()
        return await self.visitor.set(pills, string_array_value=[self.chance.choice(pills.options).content])

    def _samples(self):
        """Return the choice among samples, where the page has one: a lesson on something else has none."""
        return self.visitor.find("button_group", "Sample")

    def _back(self):
        """Return the way back from an input of one's own, where there is one."""
        return self.visitor.find("button", "Back to the sample")

    async def _model(self) -> Answer:
        """Choose another model; one that the waiting acts of the deck need, where any wait."""
        waiting = next((kind for kind in self._deck if not self._suits(kind)), None)
        wanted = {"text": "text", "photo": "image"}.get(waiting)
        known = [n for n in models.names() if n != self.model and (wanted is None or wanted in models.takes(n))]
        self.model = self.chance.choice(known)
        if not models.samples(self.model) or "image" not in models.takes(self.model):
            self.own = False  # what it can't take is set aside
        return await self.visitor.set(self.visitor.find("selectbox", "Model"), string_value=self.model)

    async def _text(self) -> Answer:
        self.own = True
        box = self.visitor.find("text_area", "Your text")
        return await self.visitor.set(box, string_value=text(self.model, self.chance))

    async def _photo(self) -> Answer:
        self.own = True
        place, name = self.visitor.find("file_uploader", "Your photo"), f"{self.chance.getrandbits(32)}.jpg"
        return await self.visitor.upload(place, name, photo(self.chance.getrandbits(32)))

    async def _choice(self) -> Answer:
        """Choose another token or operation; steps, queries and zooms are handled in the browser."""
        tokens, operations, zoom = self._choices()
        if tokens is not None:
            return await self.visitor.set(tokens, string_array_value=[self.chance.choice(tokens.options)])
        if operations is not None:
            return await self.visitor.set(operations, string_value=self.chance.choice(operations.options))
        return await self.visitor.set(zoom, string_array_value=["ops"])

    def _choices(self) -> tuple:
        """Return the tokens, operations and zooms that the page offers, None for each that it does not: the Mask page
        of a single token has no token to change."""
        find = self.visitor.find
        if self.page == "Mask":
            return find("slider", "Change this token"), None, None
        return None, find("selectbox", "Operation"), find("button_group", "Zoom")

    async def _change(self) -> Answer:
        """Apply one of the panel's changes; or, every other time, return to the run without changes."""
        find, chance = self.visitor.find, self.chance
        if self.model in self._changed and (undo := find("button", "Undo the changes")) and chance.random() < 0.5:
            self._changed.discard(self.model)
            return await self.visitor.press(undo)
        opening = await self.visitor.set(self.visitor.panel(PANEL), bool_value=True)
        if opening.problems:
            return opening
        groups = [group for group in self.visitor.all("button_group") if group.click_mode == ButtonGroup.MULTI_SELECT]
        if not groups:  # what is on screen has nothing that can be changed by itself
            return opening
        self._changed.add(self.model)
        group = chance.choice(groups)
        return await self.visitor.set(group, string_array_value=[chance.choice(group.options).content])


def photo(number: int) -> bytes:
    """Return a photo that nobody else has: soft colours with some grain, as large as a downscaled one of a phone."""
    chance = np.random.default_rng(number)
    small = Image.fromarray(chance.integers(0, 255, (24, 32, 3), dtype=np.uint8))
    file = io.BytesIO()
    small.resize(PHOTO, Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    return file.getvalue()


def text(model: str, chance: random.Random) -> str:
    """Return a text that the model can read."""
    if model == "nanogpt":
        return " ".join(chance.choices("to be or not that is the question what light through yonder".split(), k=8))
    if model == "transformer":
        return "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(4, 8)))
    things = [f"a {chance.choice(list(COLOURS))} {chance.choice(list(SHAPES))}" for _ in range(4)]
    return "; ".join(things) if model == "clip" else f"a {chance.choice(list(SIZES))} {things[0][2:]}"
