"""Process of models beside the server: when it starts, what it computes, and what happens where it ends."""

import os
import signal
import sys
import time
from contextlib import contextmanager
from threading import Event

import numpy as np
import pytest
import torch
from PIL import Image

import tracer
from pages.jobs import model_process, model_worker, run_cache, single_flight
from pages.server import websockets
from tests.app.test_app import open_page
from tracer import models
from tracer.attention import masks
from tracer.attention.head_effects import head_sites, measure_heads
from tracer.spec import preparation
from tracer.tracing import counterfactual
from tracer.utils.job_queue import VISITOR, JobEnd, JobQueue, listen

NAME = "transformer"
"""The smallest model."""


@pytest.fixture(scope="module")
def process():
    """Yield the pid of a process that serves, started once for all tests that leave it alive."""
    with serving() as pid:
        yield pid


@contextmanager
def serving():
    with model_process.allow():
        model_process.start()
        until = time.monotonic() + 120
        while not model_process.is_ready() and time.monotonic() < until:
            time.sleep(0.05)
        assert model_process.is_ready()
        yield pid_of(model_process._of_model(NAME))


def end_all() -> None:
    for process in [*model_process._processes]:
        model_process.end(process)


def pid_of(process: model_process.Process | None) -> int | None:
    return model_process._ask(process, os.getpid)


@pytest.fixture(scope="module")
def model():
    return tracer.load(NAME)


def test_a_class_starts_the_process_and_fewer_visitors_do_not(monkeypatch):
    started = []
    monkeypatch.setattr(model_process, "start", lambda: started.append(visitors))
    for visitors in (1, model_process.CLASS - 1, model_process.CLASS):
        monkeypatch.setattr(websockets, "count_connected", lambda count=visitors: count)
        open_page()
    assert started == [model_process.CLASS]


def test_a_run_of_the_process_is_the_run_of_the_server(process, model):
    assert process != os.getpid()
    for changes in ((), ("block1.attention.weights=drop_heads(0)",)):
        here = model.with_changes(tracer.changes.parse_all(changes)) if changes else model
        arrived, expected = (
            model_process.run_model((NAME, (), changes), {"text": "hello"}, here),
            here.trace(text="hello"),
        )
        assert arrived.steps == expected.steps
        assert arrived.changes == expected.changes == changes
        assert torch.equal(arrived.output, expected.output)
        assert list(model_process._folder.iterdir()) == []


def test_a_caption_that_the_process_generated_is_not_generated_here_again(process, monkeypatch):
    model = tracer.load("vit-text")
    photo = Image.fromarray(np.random.default_rng(5).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    run = model_process.run_model(("vit-text", (), ()), {"image": photo}, model)
    monkeypatch.setattr(preparation, "greedy", None)
    assert model.inputs(image=photo).words[1:] == tuple(run.result["words"])


@pytest.mark.parametrize("changes", [(), ("image=hide(0,1,grey)",)])
def test_a_run_arrives_with_the_photo_that_the_model_saw(process, changes):
    model = tracer.load("vit").with_changes(tracer.changes.parse_all(changes)) if changes else tracer.load("vit")
    photo = Image.fromarray(np.random.default_rng(5).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    arrived, expected = model_process.run_model(("vit", (), changes), {"image": photo}, model), model.trace(image=photo)
    assert torch.equal(arrived.values["photo"], expected.values["photo"])
    assert np.array_equal(arrived.values["photo"], np.array(photo)) is not bool(changes)


def test_the_process_keeps_no_caption_of_an_earlier_run(tmp_path):
    photos = [Image.effect_noise((64, 64), 20 + 40 * number).convert("RGB") for number in range(2)]
    runs = [
        model_worker.run(("vit-text", (), ()), {"image": photo}, tmp_path / str(number))
        for number, photo in enumerate((*photos, photos[0]))
    ]
    assert [len(run.captions) for run in runs] == [1, 1, 1]
    assert runs[2].captions == runs[0].captions and runs[1].captions.keys() != runs[0].captions.keys()


def test_a_run_that_fails_there_raises_here(process, model):
    with pytest.raises(ValueError, match="'transformer' takes text, but was given"):
        model_process.run_model((NAME, (), ()), {"image": "no photo"}, model)
    assert model_process.is_ready()


@pytest.mark.sweep
def test_its_checks_are_those_of_the_server(process, model):
    answer = model_process.check((NAME, (), ()), {})
    assert answer.checks == counterfactual.results(counterfactual.check(model.trace()))
    assert answer.findings == model.trace().diagnose().diagnosis


def test_what_the_process_measures_is_what_the_server_would(process, monkeypatch):
    change = "block1.attention.weights=drop_heads(0)"
    key, user_input = ("nanogpt", (("change", (change,)),)), {"text": "to be or not"}
    model = run_cache.load(*key)
    inputs, trace = model.inputs(**user_input), model.trace(**user_input)
    ends = masks.tower_ends(model, trace.later.derived_steps)
    before = masks.traced_streams(model, trace)
    monkeypatch.setattr(run_cache, "load", None)  # the server runs nothing
    heads = run_cache.measure(measure_heads, *key, user_input, head_sites(trace))
    moved = run_cache.measure(masks.change_and_compare, *key, user_input, 3, "", ends, before)
    prediction = run_cache.measure(masks.predict_under_mask, *key, user_input)
    expected = measure_heads(model, inputs, head_sites(trace))
    assert np.array_equal(heads.change, expected.change) and np.array_equal(heads.flips, expected.flips)
    assert moved == masks.influence(model, inputs, 3)
    assert prediction.result == masks.predict_under_mask(model, inputs).result
    assert torch.equal(prediction.cells, masks.visible(trace))


def test_what_the_process_refuses_to_measure_is_refused_here_in_the_same_sentence(process):
    model = run_cache.load("nanogpt")
    trace = model.trace(text="to be")
    ends = masks.tower_ends(model, trace.later.derived_steps)
    before = masks.traced_streams(model, trace)
    with pytest.raises(ValueError, match="token 99 is outside the sequence"):
        run_cache.measure(masks.change_and_compare, "nanogpt", (), {"text": "to be"}, 99, "", ends, before)


def test_what_fails_to_be_measured_there_is_measured_here(process):
    measured = run_cache.measure(_fail_in_process, NAME, (), {"text": "hello"}, process)
    assert measured == os.getpid() != process


def _fail_in_process(model, inputs, process: int) -> int:
    if os.getpid() == process:
        raise RuntimeError("not here")
    return os.getpid()


def test_checks_have_a_process_of_their_own_that_comes_last(process):
    assert model_process.check((NAME, (), ()), {}) is not None
    checker = pid_of(model_process._checker)
    assert checker not in (process, os.getpid())
    priorities = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (os.getpid(), process, checker)]
    assert priorities[0] == priorities[1] and priorities[2] == model_worker.LOWEST_PRIORITY


def test_where_the_process_of_checks_is_killed_the_next_check_starts_another(process):
    model_process.check((NAME, (), ()), {})
    checker = pid_of(model_process._checker)
    os.kill(checker, signal.SIGKILL)
    while model_process._checker is not None:
        assert model_process.check((NAME, (), ()), {}) is None
    assert model_process.check((NAME, (), ()), {}) is not None
    assert pid_of(model_process._of_model(NAME)) == process, "the process of runs is another one"


def test_a_check_that_fails_there_is_left_to_the_server(process):
    assert model_process.check((NAME, (), ()), {"image": "no photo"}) is None
    assert model_process.check((NAME, (), ()), {}) is not None


def test_without_room_on_the_disk_the_server_runs_the_model(process, model, monkeypatch, tmp_path):
    expected = model.trace(text="full")
    monkeypatch.setattr(model_process, "_folder", tmp_path / "missing")  # nothing can be written there
    assert model_process.run_model((NAME, (), ()), {"text": "full"}, model).steps == expected.steps
    assert model_process.is_ready()


def test_where_the_file_of_a_run_is_gone_the_server_runs_the_model(process, model, monkeypatch, caplog):
    ask = model_process._ask

    def lose(*arguments, **named):
        run = ask(*arguments, **named)
        os.unlink(run.packed.file)
        return run

    monkeypatch.setattr(model_process, "_ask", lose)
    assert model_process.run_model((NAME, (), ()), {"text": "gone"}, model).steps == model.trace(text="gone").steps
    assert "could not be read" in caplog.text


def test_a_run_that_nobody_waits_for_leaves_no_file(process, model):
    def end(how_far):
        raise JobEnd

    with listen(end), pytest.raises(JobEnd):
        model_process.run_model((NAME, (), ()), {"text": "left"}, model)
    folder, until = model_process._folder, time.monotonic() + 30
    pid_of(model_process._of_model(NAME))  # the run before it is done
    while list(folder.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert list(folder.iterdir()) == []


def test_where_the_process_is_killed_the_server_runs_the_model(model, caplog):
    end_all()
    with serving() as pid:
        os.kill(pid, signal.SIGKILL)
        assert model_process.run_model((NAME, (), ()), {"text": "on"}, model).steps == model.trace(text="on").steps
        assert not model_process.is_ready() and not any(model_process._processes)
        assert "has ended" in caplog.text


def test_the_next_process_starts_once_the_first_serves_and_takes_what_that_has_no_time_for(monkeypatch):
    end_all()
    with serving() as first:
        model_process.start()
        both = [*model_process._processes]
        assert len(both) == min(model_process.PROCESSES, os.cpu_count()) == 2
        model_process.start()
        assert model_process._processes == both
        assert both[1].loaded.result(120) is None and all(process.serves for process in both)
        own = {name: model_process._of_model(name) for name in models.names()}
        assert set(own.values()) == set(both), "each has models of its own"
        busy = own[NAME]
        monkeypatch.setattr(busy, "pending", {1})
        other = model_process._of_model(NAME)
        assert other is not busy and pid_of(other) not in (os.getpid(), pid_of(busy)) and pid_of(busy) == first
        model_process.end(busy)
        assert model_process.is_ready() and model_process._of_model(NAME) is other


def test_threads_keep_pythons_lock_longer_where_the_process_has_the_runs():
    end_all()
    own = model_process._PYTHONS_TURN
    with serving():
        until = time.monotonic() + 10
        while sys.getswitchinterval() != own and time.monotonic() < until:  # set just after it is ready
            time.sleep(0.01)
        assert sys.getswitchinterval() == own
        end_all()
        assert sys.getswitchinterval() == pytest.approx(model_process.TURN) and own > model_process.TURN
    assert sys.getswitchinterval() == own


def test_it_starts_only_where_another_visitor_waits(monkeypatch):
    started, go, line = [], Event(), JobQueue(1)
    monkeypatch.setattr(single_flight, "line", line)
    monkeypatch.setattr(model_process, "start", lambda: started.append(True))
    monkeypatch.setattr(model_process, "is_ready", lambda: False)
    mine, other = ("", "mine"), ("", "other")
    monkeypatch.setattr(run_cache.render_gate, "owner", lambda: mine)
    try:
        line.join(lambda: go.wait(60), VISITOR, mine)
        assert run_cache.queue_of(NAME, ()) is None
        assert not started
        line.join(lambda: None, VISITOR, other)
        assert run_cache.queue_of(NAME, ()) is None
        assert started
    finally:
        go.set()


def test_models_of_libraries_and_at_other_sizes_run_in_the_server(monkeypatch):
    monkeypatch.setattr(model_process, "is_ready", lambda: True)
    assert run_cache.queue_of(NAME, ()) is model_process.line
    assert run_cache.queue_of("vit", (("change", ("position=off",)),)) is model_process.line
    assert run_cache.queue_of("vit", (("L", 2),)) is None
    assert run_cache.queue_of("hf:bert", ()) is None


@pytest.mark.parametrize(("variable", "value"), [("TRACER_RUN_PROCESS", "0"), ("TRACER_HOSTED", "1")])
def test_a_server_may_do_without_it(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    end_all()
    monkeypatch.setattr(model_process, "_folder", None)
    with model_process.allow():
        model_process.start()
        assert not any(model_process._processes)
        assert not model_process.is_ready()


def test_a_server_without_a_folder_does_without_it(monkeypatch):
    def full(**named):
        raise OSError("No space left on device")

    end_all()
    monkeypatch.setattr(model_process, "_folder", None)
    monkeypatch.setattr(model_process, "TemporaryDirectory", full)
    with model_process.allow():
        model_process.start()
        assert not any(model_process._processes)
