"""Admission of scripts: in the order of their arrival, and nobody waits for a long one."""

import threading

import pytest

from pages.jobs import render_gate
from pages.jobs.render_gate import Gate
from tests.app.test_app import open_page

LONG = 60.0
"""Seconds of patience that no test takes."""


def nothing():
    pass


def enter(gate: Gate, number: int, passed: list[int]) -> threading.Thread:
    """Have an arrival wait in a thread of its own, and note in `passed` that it is in."""

    def wait() -> None:
        gate.enter(number, nothing)
        passed.append(number)

    thread = threading.Thread(target=wait)
    thread.start()
    while not any(waiting[0] == number for waiting in gate._waiting) and number not in gate._inside:
        thread.join(0.001)
    return thread


def test_arrivals_enter_in_their_order_as_places_become_free():
    gate, passed = Gate(2, LONG), []
    numbers = [gate.arrive() for _ in range(4)]
    threads = [enter(gate, number, passed) for number in (0, 1, 3, 2)]
    assert sorted(gate._inside) == numbers[:2]
    gate.leave(0)
    threads[3].join(10)
    assert passed[2:] == [2] and sorted(gate._inside) == [1, 2]
    gate.leave(1)
    threads[2].join(10)
    assert passed[2:] == [2, 3] and not gate._waiting


def test_one_that_left_its_place_for_a_while_goes_before_later_ones():
    gate, passed = Gate(1, LONG), []
    early, late, last = (gate.arrive() for _ in range(3))
    gate.enter(early, nothing)
    gate.leave(early)  # it waits for a run
    gate.enter(late, nothing)
    waiting = [enter(gate, last, passed), enter(gate, early, passed)]
    gate.leave(late)
    waiting[1].join(10)
    assert passed == [early]
    gate.leave(early)
    waiting[0].join(10)
    assert passed == [early, last]


def test_a_long_one_keeps_nobody_waiting():
    gate = Gate(1, 0.2)
    gate.enter(gate.arrive(), nothing)
    gate.enter(gate.arrive(), nothing)  # the first never leaves
    assert len(gate._inside) == 2


def test_one_that_is_not_wanted_any_more_leaves_the_queue():
    class Unwanted(Exception):
        pass

    def stop() -> None:
        raise Unwanted

    gate = Gate(1, LONG)
    inside, waiting = gate.arrive(), gate.arrive()
    gate.enter(inside, nothing)
    with pytest.raises(Unwanted):
        gate.enter(waiting, stop)
    gate.leave(inside)
    assert not gate._waiting and not gate._inside


def test_a_page_leaves_its_place_when_it_is_drawn_and_while_it_waits(monkeypatch):
    gate = Gate(1, LONG)
    monkeypatch.setattr(render_gate, "_gate", gate)
    open_page("pages/mask.py")
    assert not gate._inside and not gate._waiting
    with render_gate.turn(nothing):
        with render_gate.pause(nothing):
            assert not gate._inside
        assert len(gate._inside) == 1
    assert not gate._inside
    with render_gate.pause(nothing):  # outside of a script
        pass
