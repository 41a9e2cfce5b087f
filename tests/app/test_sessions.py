"""Sessions whose visitors left: who comes back in time finds everything, and after that nothing is held."""

import gc
import weakref
from types import SimpleNamespace

import pytest
from streamlit import config, runtime

from pages.sections import answer
from pages.server import websockets


class Session:
    """Stand-in for Streamlit's session, with the parts that ending it needs."""

    def __init__(self):
        self.ended, self.session_state = 0, {"photo": "cat"}

    def shutdown(self) -> None:
        self.ended += 1


@pytest.fixture
def server(monkeypatch):
    """Server of Streamlit's with sessions `a` and `b`, both connected, and a clock that is set by hand."""
    opened = {"a": Session(), "b": Session()}
    server = SimpleNamespace(active=set(opened), opened=opened, closed=[], now=1000.0)
    server.is_active_session = server.active.__contains__
    server.get_app_session = lambda id: opened.get(id) if id in server.active else None
    server.close_session = server.closed.append
    monkeypatch.setattr(runtime, "exists", lambda: True)
    monkeypatch.setattr(runtime, "get_instance", lambda: server)
    monkeypatch.setattr(websockets, "monotonic", lambda: server.now)
    monkeypatch.setattr(websockets, "_sessions", {})
    return server


def test_a_session_ends_once_nobody_came_back_in_time(server):
    for id in ("a", "b", "nobody"):
        websockets.register(id)
    assert set(websockets._sessions) == {"a", "b"}
    server.active.discard("a")
    for seconds, closed in ((0, []), (websockets.KEEP - 1, []), (1, ["a"]), (websockets.KEEP, ["a"])):
        server.now += seconds
        websockets.end_left()
        assert server.closed == closed
    assert server.opened["a"].ended == 1 and server.opened["a"].session_state == {}
    assert server.opened["b"].ended == 0 and server.opened["b"].session_state
    gone = weakref.ref(server.opened.pop("a"))
    assert gone() is None


def test_only_connected_sessions_count(server):
    assert websockets.count_connected() == 0
    for id in ("a", "b"):
        websockets.register(id)
    assert websockets.count_connected() == 2
    server.active.discard("a")
    assert websockets.count_connected() == 1


def test_who_comes_back_has_all_the_time_again(server):
    websockets.register("a")
    for _ in range(3):
        server.active.discard("a")
        websockets.end_left()
        server.now += websockets.KEEP - 1
        websockets.end_left()
        server.active.add("a")
        websockets.end_left()
    assert server.closed == [] and server.opened["a"].session_state


def test_streamlit_keeps_sessions_until_they_are_ended_here():
    websockets.configure()
    assert config.get_option("server.disconnectedSessionTTL") > websockets.KEEP


def test_the_film_of_a_run_does_not_keep_the_run(vit):
    run = vit.trace()
    assert answer.of_run(run).packed
    gone = weakref.ref(run)
    del run
    gc.collect()
    assert gone() is None
