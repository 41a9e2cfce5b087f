"""Limits of a server: their defaults, their variables, and the sentence where one is reached."""

import threading
from itertools import cycle

import pytest
from streamlit.testing.v1 import AppTest

import tracer
from pages.jobs import render_gate, single_flight
from pages.state.view import FIRST_MODEL
from tests.app.test_app import open_page, picture, text, upload
from tests.app.test_libraries_in_app import type_name
from tracer import models, zoo
from tracer.utils.errors import BOUNDS, limits
from tracer.utils.job_queue import JobQueue


def test_at_home_bounds_are_wide_and_hosted_they_are_narrow(monkeypatch):
    home = limits()
    monkeypatch.setenv("TRACER_HOSTED", "1")
    hosted = limits()
    assert home.models(models.names()) is None and hosted.models(models.names()) == models.names()
    assert all(getattr(hosted, name) <= getattr(home, name) for name in BOUNDS)


def test_each_bound_has_a_variable(monkeypatch):
    for name in BOUNDS:
        monkeypatch.setenv(f"TRACER_{name.upper()}", "7")
        assert getattr(limits(), name) == 7


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("TRACER_HOSTED", "yes", "TRACER_HOSTED='yes' was given, expected 1 or 0"),
        ("TRACER_RUN_PROCESS", "2", "TRACER_RUN_PROCESS='2' was given, expected 1 or 0"),
        ("TRACER_TEXT", "many", "TRACER_TEXT='many' was given, expected a whole number above 0"),
        ("TRACER_VISITORS", "0", "TRACER_VISITORS='0' was given, expected a whole number above 0"),
        ("TRACER_MEMORY_GB", "nan", "TRACER_MEMORY_GB='nan' was given, expected a number above 0"),
        ("TRACER_PREWARM", "none", "TRACER_PREWARM='none' was given, expected all or first"),
        ("TRACER_RUNS", "x" * 200, r"TRACER_RUNS='x+ … x+' was given"),
    ],
)
def test_a_variable_that_can_not_be_read_is_quoted(monkeypatch, variable, value, expected):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=expected):
        limits()


def test_a_hosted_server_offers_its_own_models_and_what_the_operator_adds(monkeypatch):
    monkeypatch.setenv("TRACER_HOSTED", "1")
    monkeypatch.setenv("TRACER_MODELS", "hf:bert, hf:gpt2")
    assert open_page().sidebar.selectbox[0].options == [*models.names(), "hf:bert", "hf:gpt2"]


@pytest.mark.parametrize("name", ["hf:bert", "torchvision:vit_b_16", "hf:/etc", "hf:.", "hf:" + "x" * 5000, "nolib:x"])
def test_any_other_model_is_refused_before_anything_is_looked_up(monkeypatch, name):
    monkeypatch.setenv("TRACER_HOSTED", "1")
    for touched in ("takes", "_load"):
        monkeypatch.setattr(f"pages.state.library_models.{touched}", pytest.fail, raising=False)
    at = type_name(open_page(), name)
    assert len(at.error) == 1 and "is not on this server" in at.error[0].value and len(at.error[0].value) < 400
    assert at.sidebar.selectbox[0].value == "vit"
    with pytest.raises(ValueError, match="is not on this server"):
        zoo.source_of(name)


def test_a_text_that_is_too_long_leaves_what_was_there(monkeypatch):
    at = open_page()
    at.sidebar.selectbox[0].set_value("nanogpt").run()
    monkeypatch.setenv("TRACER_TEXT", "20")
    at.sidebar.text_area[0].set_value("To be, or not to be, that").run()
    assert at.error[0].value.startswith("Your text has 25 characters; this server takes 20 at most")
    assert at.session_state["visitor"].user_input.kind == "sample"


def test_a_text_of_too_many_tokens_is_refused(monkeypatch):
    monkeypatch.setenv("TRACER_TOKENS", "4")
    with pytest.raises(ValueError, match="it has 5 tokens, and this server takes 4 at most"):
        tracer.load("nanogpt").inputs(text="To be")


@pytest.mark.parametrize(("name", "variable"), [("a.png", "TRACER_PHOTO_MB"), ("a.safetensors", "TRACER_UPLOAD_MB")])
def test_a_file_that_is_too_large_is_refused(monkeypatch, name, variable):
    monkeypatch.setenv(variable, "1")
    at = upload(open_page(), picture("PNG", (900, 500)), name)
    assert "of 1 MB at most" in at.error[0].value and name in at.error[0].value


def test_a_model_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setenv("TRACER_HOSTED", "1")
    monkeypatch.setenv("TRACER_MODEL_GB", "0.0001")
    with pytest.raises(ValueError, match=r"at most 0.0001 GB are allowed \(TRACER_MODEL_GB"):
        tracer.load("vit")


@pytest.mark.parametrize(
    ("variable", "visitors", "expected"),
    [
        ("TRACER_VISITOR_RUNS", ["xa"], "You have 3 runs in progress, the most that this server allows one visitor"),
        ("TRACER_ADDRESS_RUNS", ["xa", "xb", "xc"], "3 runs from your address are in progress or waiting"),
        ("TRACER_RUNS", ["xa", "yb", "zc", "xd"], "3 runs are in progress or waiting, the most that this server"),
    ],
)
def test_a_run_too_many_is_refused_and_those_before_go_on(monkeypatch, variable, visitors, expected):
    monkeypatch.setenv(variable, "3")
    asks, go, begun = cycle(map(tuple, visitors)), threading.Event(), threading.Semaphore(0)
    monkeypatch.setattr(render_gate, "owner", lambda: next(asks))
    monkeypatch.setattr(single_flight, "line", JobQueue(3))

    def make():
        begun.release()
        return go.wait(30)

    threads = [threading.Thread(target=single_flight.in_turn, args=(make, "Running")) for _ in range(3)]
    for thread in threads:
        thread.start()
        assert begun.acquire(timeout=30)
    with pytest.raises(render_gate.ServerFull, match=expected):
        single_flight.in_turn(lambda: pytest.fail("the fourth run was let in"), "Running")
    go.set()
    for thread in threads:
        thread.join(30)
    assert render_gate.count_act() == 0
    assert single_flight.in_turn(lambda: 4, "Running") == 4


def test_no_run_is_taken_while_the_memory_is_full(monkeypatch):
    monkeypatch.setenv("TRACER_MEMORY_GB", "0.001")
    with pytest.raises(render_gate.ServerFull, match="The server’s memory is full"):
        single_flight.in_turn(lambda: pytest.fail("the run was let in"), "Running")
    assert render_gate.count_act() == 0


def test_one_who_waits_for_several_runs_has_a_bar_for_each():
    def waits():
        import time

        from pages.jobs import single_flight

        for _ in range(8):  # what was waited for is gone by then, and the next may lie where it lay
            single_flight.in_turn(lambda: time.sleep(1.5 * single_flight.POLL_SECONDS), "Running")

    assert not AppTest.from_function(waits).run(timeout=30).exception


def test_runs_that_fail_are_counted_no_more():
    with pytest.raises(ZeroDivisionError):
        single_flight.in_turn(lambda: 1 / 0, "Running")
    assert render_gate.count_act() == 0


def test_a_run_is_counted_while_it_goes_on(monkeypatch):
    counted = []
    made = type("Made", (), {"name": "vit", "trace": lambda self, **given: counted.append(render_gate.count_act())})()
    single_flight.in_turn(made.trace, "Running")
    assert counted == [1]


def test_the_default_sample_still_opens(monkeypatch):
    monkeypatch.setenv("TRACER_HOSTED", "1")
    assert "10 classes" in text(open_page()) and FIRST_MODEL in limits().models(models.names())


def test_addresses_are_served_in_turn_and_in_each_its_sessions():
    line, go, order = JobQueue(1), threading.Event(), []
    first = line.join(go.wait)
    while line.place(first):
        threading.Event().wait(0.001)
    asked = [*(("x", f"attacker {number % 3}") for number in range(6)), ("y", "student"), ("z", "student"), ("y", "b")]
    tasks = [line.join(lambda number=number: order.append(number), owner=owner) for number, owner in enumerate(asked)]
    places = [line.place(task) for task in tasks]
    go.set()
    assert all(task.wait(10) for task in tasks)
    assert [order.index(number) + 1 for number in range(len(tasks))] == places
    assert [asked[number][0] for number in order[:4]] == ["x", "y", "z", "x"]
    assert [asked[number][1][-1] for number in order if asked[number][0] == "x"] == list("012012")


def test_work_that_several_wait_for_goes_with_the_one_who_has_less_in_the_line():
    line, go = JobQueue(1), threading.Event()
    first = line.join(go.wait)
    while line.place(first):
        threading.Event().wait(0.001)
    tasks = [line.join(int, owner=("x", str(number))) for number in range(5)]
    assert line.place(tasks[-1]) == 5
    line.share(tasks[-1], ("y", "student"))
    assert line.place(tasks[-1]) == 2
    go.set()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("", ""),
        ("testclient", "testclient"),
        *((address, "") for address in ("127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost")),
    ],
)
def test_an_address_of_ipv6_is_its_network_and_this_machines_own_is_none(address, expected):
    assert render_gate.network(address) == expected
