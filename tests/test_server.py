"""Many visitors and many photos on one server: memory levels off, and models run in turns."""

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from test_app import picture

from pages.shared import runs, session


class Forgetful:
    """A model whose traces can be counted."""

    def __init__(self):
        self.alive = weakref.WeakSet()

    name, takes = "vit", ("image",)

    def trace(self, image):
        run = type("Run", (), {})()
        run.pixels = np.asarray(image)
        self.alive.add(run)
        return run


class Counted:
    """A model that counts how many of its runs go on at once."""

    name = "vit"

    def __init__(self):
        self.now, self.most, self.lock = 0, 0, threading.Lock()

    def trace(self, image):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        threading.Event().wait(0.02)
        with self.lock:
            self.now -= 1
        return image


def test_a_class_that_runs_the_model_at_once_runs_it_in_turns():
    model = Counted()
    with ThreadPoolExecutor(30) as visitors:
        found = list(visitors.map(lambda number: runs.proven(model, image=number), range(30)))
    assert found == list(range(30))
    assert model.most == 2


def test_memory_levels_off_over_many_photos(monkeypatch):
    """A session keeps one photo and one run, however many it has seen."""
    model = Forgetful()
    monkeypatch.setattr(session.st, "session_state", {"model": "vit"})
    monkeypatch.setattr(runs, "load", lambda name, chosen: model)
    for number in range(200):
        session.take_file(picture("PNG", (8, 8), number), f"{number}.png")
        run = session.trace()
        assert session.trace() is run
    del run
    gc.collect()
    assert len(model.alive) == 1
