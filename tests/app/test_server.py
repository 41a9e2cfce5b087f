"""Many visitors and many photos on one server: memory levels off, and models run in turns."""

import gc
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from PIL import Image

from pages.jobs import render_gate, run_cache, single_flight
from pages.server import prewarm
from pages.state import session
from pages.ui import screen
from tests.app.test_app import picture
from tracer import models
from tracer.utils import job_queue
from tracer.utils.cache import Cache
from tracer.utils.job_queue import BACKGROUND, JobEnd, JobQueue, NoWaiters, Progress, doing, listen, position_text, tell


class Forgetful:
    """A model whose traces can be counted."""

    def __init__(self):
        self.alive = weakref.WeakSet()

    name, takes, captions = "vit", ("image",), {}

    def trace(self, image):
        run = type("Run", (), {"steps": ()})()
        run.values, run.ops, run.picture = {"photo": np.asarray(image)}, (), None
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
        found = list(
            visitors.map(lambda number: single_flight.in_turn(partial(model.trace, number), "Running"), range(30))
        )
    assert found == list(range(30))
    assert model.most == 1


def test_memory_levels_off_over_many_photos(monkeypatch):
    """A session keeps one photo and one run, however many it has seen."""
    model = Forgetful()
    monkeypatch.setattr(session.st, "session_state", {"model": "vit"})
    monkeypatch.setattr(run_cache, "load", lambda name, chosen: model)
    for number in range(200):
        session.take_file(picture("PNG", (8, 8), number), f"{number}.png")
        run = screen.trace()
        assert screen.trace() is run
    del run
    gc.collect()
    assert len(model.alive) == 1


def test_the_same_photo_is_run_once_and_gone_with_the_last_who_gave_it(monkeypatch):
    model = Forgetful()
    monkeypatch.setattr(run_cache, "load", lambda name, chosen: model)
    visitors = [{"model": "vit"}, {"model": "vit"}]
    found = []
    for state in visitors:
        monkeypatch.setattr(session.st, "session_state", state)
        session.take_file(picture("PNG", (8, 8), 1), "mine.png")
        found.append(screen.trace())
    assert found[0] is found[1]
    found.clear()
    for state in visitors:
        gc.collect()
        assert len(model.alive) == 1
        state.clear()
    gc.collect()
    assert len(model.alive) == 0


def test_runs_together_are_held_to_a_bound_and_the_oldest_go_first():
    kept = Cache(100, len)
    for number in range(5):
        kept.put(number, bytes(40))
    assert [number for number in range(5) if kept.get(number)] == [3, 4] and kept.weight == 80
    kept.put("large", bytes(400))
    assert len(kept) == 1 and kept.get("large")


def test_visitors_go_before_what_nobody_waits_for_and_see_their_place():
    line, begun, order = JobQueue(1), threading.Event(), []
    first = line.join(begun.wait)
    ahead = line.join(lambda: order.append("ahead"), BACKGROUND)
    visitors = [line.join(lambda number=number: order.append(number)) for number in range(3)]
    line.hurry(ahead)
    while line.place(first):
        threading.Event().wait(0.001)
    assert [line.place(task) for task in (first, *visitors, ahead)] == [0, 1, 2, 3, 4]
    line.leave(visitors[1])
    begun.set()
    assert ahead.wait(10) and order == [0, 2, "ahead"]
    assert isinstance(visitors[1].error, NoWaiters)


def test_short_work_goes_one_after_the_other_and_long_work_holds_nobody_up():
    line, going, most, go = JobQueue(2, patience=60), [], [], threading.Event()

    def short():
        going.append(1)
        most.append(len(going))
        time.sleep(0.01)
        going.pop()

    for task in [line.join(short) for _ in range(8)]:
        assert task.wait(10)
    assert max(most) == 1 and len(most) == 8
    line, began = JobQueue(2, patience=0.3), time.monotonic()
    long = line.join(go.wait)
    while line.place(long):
        time.sleep(0.001)
    assert line.join(short).wait(10) and not long.over and time.monotonic() - began >= 0.3
    go.set()
    assert long.wait(10) and not line._begun


def test_no_visitor_waits_for_work_in_the_background():
    line, go = JobQueue(2, patience=60), threading.Event()
    ahead = line.join(go.wait, BACKGROUND)
    while line.place(ahead):
        time.sleep(0.001)
    assert line.join(lambda: 7).wait(10) and not ahead.over
    go.set()
    assert ahead.wait(10)


def test_work_in_the_background_takes_no_place_of_visitors_and_has_one():
    line, go = JobQueue(1), threading.Event()
    ahead = [line.join(go.wait, BACKGROUND) for _ in range(2)]
    while line.place(ahead[0]):
        time.sleep(0.001)
    assert line.join(lambda: 7).wait(10) and line.place(ahead[1]) == 1
    go.set()
    assert ahead[1].wait(10)


def test_work_in_the_background_pauses_while_a_visitors_runs_and_goes_on_once_a_visitor_waits_for_it(monkeypatch):
    monkeypatch.setattr(job_queue, "PAUSE", 60.0)
    line, go, begun, told = JobQueue(1), threading.Event(), threading.Event(), []

    def works():
        begun.set()
        while len(told) < 10_000_000 and not go.is_set():
            tell()
            told.append(1)
        return len(told)

    ahead = line.join(works, BACKGROUND)
    assert begun.wait(10)
    visitor = line.join(go.wait)
    time.sleep(0.5)
    count = len(told)
    time.sleep(0.2)
    assert len(told) == count
    line.hurry(ahead)
    until = time.monotonic() + 10
    while len(told) == count and time.monotonic() < until:
        time.sleep(0.001)
    assert len(told) > count and not visitor.over
    go.set()
    assert ahead.wait(10) and ahead.result == len(told)


def test_a_run_that_fails_is_told_to_all_who_wait_for_it_and_tried_again():
    kept, asked = Cache(10), []

    def fails():
        asked.append(1)
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            single_flight.once(kept, "key", fails, "Running")
    assert len(asked) == 2 and not single_flight._tasks


@pytest.mark.parametrize(
    ("place", "words"), [(1, "Next in line"), (3, "Third in line"), (11, "11th in line"), (22, "22nd in line")]
)
def test_a_place_in_the_line_is_said_in_words(place, words):
    assert position_text(place) == words


def test_runs_on_one_photo_share_it_and_models_forget_it_with_them():
    photo = Image.effect_noise((40, 30), 60).convert("RGB")
    what = run_cache.content(("a photo of a test", None))
    made = {name: run_cache.of_given(name, (), what, {"image": photo}) for name in ("vit", "segmenter", "vit-text")}
    photos = {trace.values[trace.picture.value].data_ptr() for trace in made.values()}
    assert len(photos) == 1 and made["vit"].values["photo"].shape == (30, 40, 3)
    assert what.share_photo(made["vit"]).values["photo"] is made["vit"].values["photo"]
    assert run_cache.load("vit-text").captions and ("vit", (), what.digest) in run_cache._user_runs._values
    del what
    gc.collect()
    assert (
        not run_cache.load("vit-text").captions
        and ("vit", (), ("a photo of a test", None)) not in run_cache._user_runs._values
    )


def test_what_many_ask_for_at_once_is_drawn_once():
    owner, made, begun = type("Run", (), {})(), [], threading.Barrier(8)

    def draws() -> str:
        made.append(threading.get_ident())
        time.sleep(0.05)
        return "drawn"

    def asks(_) -> str:
        begun.wait(10)
        return single_flight.of(owner, "way", draws)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(asks, range(8))) == {"drawn"} and len(made) == 1


def test_runs_ahead_let_pages_that_are_drawn_go_first():
    began = time.monotonic()
    with render_gate.drawing():
        render_gate.wait(0.1)
        assert time.monotonic() - began >= 0.1
    render_gate.wait(60)
    assert time.monotonic() - began < 30


def occupy(line: JobQueue, go: threading.Event) -> None:
    """Have the one place of a queue taken until `go` is set."""
    task = line.join(go.wait)
    while line.place(task):
        time.sleep(0.001)


def test_work_goes_in_the_order_in_which_its_pages_began():
    line, order, go, now = JobQueue(1), [], threading.Event(), time.monotonic()
    occupy(line, go)
    pages = {"b": now - 2, "a": now - 3, "c": now - 1, "d": None}  # the last is not for a page, and joins now
    tasks = [line.join(partial(order.append, name), owner=("x", name), since=at) for name, at in pages.items()]
    tasks.append(line.join(lambda: order.append("b again"), owner=("x", "b"), since=now - 2))
    background = line.join(lambda: order.append("background"), BACKGROUND, since=now - 4)
    go.set()
    assert all(task.wait(10) for task in (*tasks, background))
    assert order == ["a", "b", "b again", "c", "d", "background"]


def test_a_page_that_began_first_goes_first_though_its_work_comes_later():
    order, go, first_began = [], threading.Event(), threading.Event()
    joined = {count: threading.Event() for count in (1, 2, 3)}

    class Line(JobQueue):
        def join(self, *args, **kwargs):
            task = super().join(*args, **kwargs)
            joined[min(count for count, event in joined.items() if not event.is_set())].set()
            return task

    def draw(name, before, begins):
        with render_gate.turn(lambda: None):
            begins.set()
            assert before.wait(10)
            single_flight.in_turn(partial(order.append, name), "", line)

    line = Line(1)
    occupy(line, go)
    with ThreadPoolExecutor(2) as pool:
        pages = [pool.submit(draw, "first", joined[2], first_began)]
        assert first_began.wait(10)
        pages.append(pool.submit(draw, "second", joined[1], threading.Event()))
        assert joined[3].wait(10)
        go.set()
        assert [page.result(10) for page in pages] == [None, None]
    assert order == ["first", "second"]


def test_all_samples_can_be_run_ahead():
    found = list(prewarm.ahead())
    assert found[:2] == [("vit", "horse"), ("nanogpt", run_cache.OWN_SAMPLE)] and len(set(found)) == len(found)
    assert {name for name, _ in found} == set(models.names())


@pytest.mark.parametrize(("prewarm_bound", "count"), [("first", 1), ("all", 3)])
def test_a_server_computes_ahead_what_its_variable_says(monkeypatch, prewarm_bound, count):
    runs, rest, over = [], [], threading.Event()
    monkeypatch.setenv("TRACER_PREWARM", prewarm_bound)
    monkeypatch.setattr(prewarm, "ahead", lambda: iter([("vit", "horse"), ("vit", "ship"), ("vit", "cat")]))
    monkeypatch.setattr(prewarm.mask_controls, "ahead", lambda name, sample, photo: runs.append(sample))
    monkeypatch.setattr(prewarm, "_prewarm_checks_and_notes", lambda over: rest.append(over))
    monkeypatch.setattr(over, "wait", lambda seconds: True)
    monkeypatch.setattr(prewarm.model_worker, "raise_thresholds", lambda: None)
    prewarm._keep(over)
    assert len(runs) == count and bool(rest) == (prewarm_bound == "all")


def test_of_a_model_whose_runs_are_large_one_is_made_ahead(monkeypatch):
    monkeypatch.setattr(run_cache, "large", lambda name, sample: (name, sample) == ("vit", "horse"))
    of_vit = [sample for name, sample in prewarm.ahead() if name == "vit"]
    of_others = Counter(name for name, _ in prewarm.ahead())
    assert of_vit == ["horse"] and of_others["vit-note"] > 1


def test_a_run_that_is_cancelled_frees_its_turn_and_is_made_anew_for_the_next():
    line, kept, told = JobQueue(1), Cache(10), threading.Event()

    def works():
        with doing("Running the model"):
            while True:
                tell(3, 12, "block")
                told.set()
                time.sleep(0.001)

    task = line.join(works)
    assert told.wait(10) and render_gate.words(task.progress, "Running") == "Running the model: block 3 of 12"
    single_flight.cancel(line, weakref.ref(task))
    assert task.wait(10) and isinstance(task.error, JobEnd)
    assert (after := line.join(lambda: 7)).wait(10) and after.result == 7
    assert single_flight.once(kept, "key", lambda: 8, "Running", where=line) == 8


def test_a_run_beside_another_is_awaited_afterwards_and_not_made_twice():
    line, kept, made = JobQueue(1), Cache(10), []

    def makes():
        made.append("run")
        return "run"

    for _ in range(2):  # the second time it is cached
        with single_flight.beside(kept, "key", makes, "Running", line):
            pass
        assert single_flight.once(kept, "key", makes, "Running", where=line) == "run"
    assert made == ["run"]


def test_a_run_beside_another_that_fails_or_is_not_wanted_any_more_leaves_nothing_behind():
    line, kept, go = JobQueue(1), Cache(10), threading.Event()
    busy = line.join(lambda: go.wait(10))
    for key in ("first", "second"):
        with pytest.raises(KeyError), single_flight.beside(kept, key, lambda: 1, "Running", line):
            raise KeyError
    assert line._tasks in ([], [busy])  # it may not have begun
    assert not {("Running", "first"), ("Running", "second")} & single_flight._tasks.keys()
    go.set()

    def fails():
        raise ValueError

    with single_flight.beside(kept, "third", fails, "Running", line):
        assert busy.wait(10) and line.join(int).wait(10)
    assert ("Running", "third") not in single_flight._tasks and kept.get("third") is None


def test_a_run_that_another_waits_for_goes_on_without_the_one_who_cancels():
    line, go = JobQueue(1), threading.Event()
    task = line.join(go.wait)
    task.waiting = 1  # of another visitor
    single_flight.cancel(line, weakref.ref(task))
    assert not task.ended
    go.set()
    assert task.wait(10) and task.error is None


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (Progress("Downloading x", 1_500_000, 23_000_000, "B"), "Downloading x: 1.50 MB of 23.0 MB"),
        (Progress("Verifying its equations", 40, 152, "step"), "Verifying its equations: step 40 of 152"),
        (Progress("Running the model", 0, 12, "block"), "Running the model"),
        (Progress(), "Running"),
    ],
)
def test_how_far_work_is_is_said_in_words(told, words):
    assert render_gate.words(told, "Running") == words


def test_a_run_tells_its_blocks_and_its_steps():
    told: list[Progress] = []
    with listen(told.append):
        models.load("vit").trace()
    blocks = [one.done for one in told if one.doing == "Running the model" and one.unit == "block"]
    assert sorted(blocks) == blocks and set(blocks) == set(range(7)) and told[1].whole == 6
    steps = [one for one in told if one.doing == "Verifying its equations" and one.unit == "step"]
    assert [one.done for one in steps] == list(range(1, steps[0].whole + 1))
