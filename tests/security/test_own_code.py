"""Page that runs its owner's code: it exists only where it was requested, and only for a page of this server."""

from __future__ import annotations

import re
import socket
import sys
import time
from urllib.parse import urlsplit

import pytest
from streamlit.testing.v1 import AppTest

from pages.jobs import own_code
from pages.sections import own_code_editor
from pages.state import page_registry
from pages.state.visitor import KEY
from tests.app.test_app import ROOT, SECONDS, text
from tests.cli.test_cli import refusal
from tests.load import visitor as concurrent
from tests.support.serving import App, run_in_thread
from tracer.cli import shared_options as switch

SIGNAL = "ran-in-the-test"
EXAMPLE_CODE = own_code_editor.EXAMPLE


@pytest.fixture
def server_key(monkeypatch):
    """Key of a server that runs its owner's code, in this process."""
    monkeypatch.setattr(switch, "_key", "")
    monkeypatch.setattr(own_code, "_wrong", [])
    monkeypatch.setattr(own_code, "address", lambda: "127.0.0.1")
    return switch.enable("127.0.0.1")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Server that runs its owner's code, and its key."""
    app = App(tmp_path_factory.mktemp("own") / "log.txt")
    app.command.insert(app.command.index("--"), "--own-code")
    with app:
        yield app, re.search(r"unlocked by the key (\S+)", app.log())[1]


def page() -> AppTest:
    """Page, alone in the app."""
    return AppTest.from_file(str(ROOT / "app.py"), default_timeout=SECONDS).switch_page("pages/my_code.py").run()


def unlock(at: AppTest, key: str) -> AppTest:
    at.text_input(key=next(box.key for box in at.text_input if box.label == "Key")).set_value(key)
    next(button for button in at.button if button.label == "Unlock").click().run()
    return at


def test_it_is_refused_where_others_could_reach_it(monkeypatch, capsys):
    assert "--address 127.0.0.1" in refusal(capsys, "app", "--own-code", "--address", "0.0.0.0")
    assert "--address 127.0.0.1" in refusal(capsys, "app", "--own-code", "--address", "192.168.1.7")
    monkeypatch.setenv("TRACER_HOSTED", "1")
    assert "TRACER_HOSTED" in refusal(capsys, "app", "--own-code")


def test_without_the_option_there_is_no_such_page(monkeypatch):
    for name in ("TRACER_OWN_CODE", "OWN_CODE"):
        monkeypatch.setenv(name, "1")
    assert not own_code.is_on() and not own_code.unlocks("")
    assert "My code" not in [each.title for each in page_registry.find_pages()]
    with pytest.raises(ValueError, match="runs no code"):
        own_code.run(EXAMPLE_CODE, "model")
    at = AppTest.from_file(str(ROOT / "pages" / "my_code.py"), default_timeout=SECONDS).run()
    assert not at.text_area and not [box for box in at.text_input if box.label == "Key"]


def test_a_hosted_server_never_has_it(server_key, monkeypatch):
    assert own_code.is_on() and "My code" in [each.title for each in page_registry.find_pages()]
    monkeypatch.setenv("TRACER_HOSTED", "1")
    assert not own_code.is_on() and not own_code.unlocks(server_key)
    assert "My code" not in [each.title for each in page_registry.find_pages()]


def test_another_address_turns_it_off(server_key, monkeypatch):
    monkeypatch.setattr(own_code, "address", lambda: "0.0.0.0")
    assert not own_code.is_on()


def scope(kind: str = "websocket", method: str = "GET", client: str = "127.0.0.1", **headers: str) -> dict:
    names = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": kind, "method": method, "client": (client, 1), "headers": names}


OWN = {"host": "127.0.0.1:8501", "origin": "http://127.0.0.1:8501"}


@pytest.mark.parametrize(
    ("request_", "accepted"),
    [
        (scope(**OWN), True),
        (scope(host="localhost:8501", origin="http://localhost:8501"), True),
        (scope(host="[::1]:8501", origin="http://[::1]:8501", client="::1"), True),
        (scope("http", host="127.0.0.1:8501"), True),
        (scope("http", "POST", **OWN), True),
        (scope(host="127.0.0.1:8501"), False),
        (scope("http", "POST", host="127.0.0.1:8501"), False),
        (scope("http", "PUT", host="127.0.0.1:8501", origin="null"), False),
        (scope(host="evil.example:8501", origin="http://evil.example:8501"), False),
        (scope("http", host="evil.example:8501"), False),
        (scope(host="127.0.0.1:8501", origin="http://evil.example"), False),
        (scope(host="127.0.0.1:8501", origin="http://127.0.0.1:9999"), False),
        (scope(host="127.0.0.1:8501", origin="http://localhost:8501"), False),
        (scope(host="127.0.0.1:8501", origin="http://x@127.0.0.1:8501"), False),
        (scope(host="127.0.0.1:8501", origin="file://127.0.0.1:8501"), False),
        (scope(host="127.0.0.1:8501", origin="http://["), False),
        (scope(host="127.0.0.1:8501", origin="http://127.0.0.1:8501/x"), False),
        (scope(host="127.0.0.1.evil.example:8501", origin="http://127.0.0.1.evil.example:8501"), False),
        (scope(**OWN, x_forwarded_for="203.0.113.5"), False),
        (scope(**OWN, forwarded="for=203.0.113.5"), False),
        (scope(**OWN, client="203.0.113.5"), False),
        (scope(origin="http://127.0.0.1:8501"), False),
    ],
)
def test_only_a_page_of_this_server_is_its_own(request_, accepted):
    assert own_code.is_own(request_) is accepted


def answer(app: App, *lines: str) -> bytes:
    """Return the first line of the server's answer to these lines."""
    port = urlsplit(app.address).port
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall("\r\n".join([line.format(port=port) for line in (*lines, "", "")]).encode())
        return connection.recv(100).split(b"\r\n")[0]


UPGRADE = (
    "GET /_stcore/stream HTTP/1.1",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)


def test_a_websocket_needs_a_page_of_this_server(server):
    app, _ = server
    own = "Host: 127.0.0.1:{port}"
    assert b"101" in answer(app, *UPGRADE, own, "Origin: http://127.0.0.1:{port}")
    for more in (
        (own,),
        (own, "Origin: http://evil.example"),
        (own, "Origin: null"),
        ("Host: evil.example:{port}", "Origin: http://evil.example:{port}"),
        (own, "Origin: http://127.0.0.1:{port}", "X-Forwarded-For: 203.0.113.5"),
    ):
        assert b"403" in answer(app, *UPGRADE, *more), more


def test_other_requests_name_this_machine(server):
    app, _ = server
    assert b"200" in answer(app, "GET /my_code HTTP/1.1", "Host: 127.0.0.1:{port}")
    assert b"403" in answer(app, "GET /my_code HTTP/1.1", "Host: evil.example:{port}")
    assert b"403" in answer(app, "POST /place HTTP/1.1", "Host: 127.0.0.1:{port}", "Content-Length: 0")


def test_a_link_runs_nothing(server, tmp_path):
    """An address with code in it, the key too, opens the locked page."""
    app, key = server
    target = tmp_path / SIGNAL
    code = f"open({str(target)!r},'w')"

    async def is_locked() -> bool:
        visitor = concurrent.Visitor(app.address)
        await visitor.open(f"my_code?code={code}&key={key}&own+code={code}&run=1&factory=model")
        locked = visitor.says("shows the key")
        await visitor.close()
        return locked

    assert run_in_thread(is_locked())
    assert not target.exists()


def test_nothing_runs_before_the_key(server_key, monkeypatch):
    ran = []
    monkeypatch.setattr(own_code, "run", lambda *given: ran.append(given))
    at = page()
    assert not at.exception and not at.text_area and "with your rights" in text(at)
    at.session_state[own_code_editor.RUN_REQUEST] = True
    at.session_state[own_code_editor.TEXT] = EXAMPLE_CODE
    at.run()
    assert not at.text_area and not ran
    unlock(at, "0000-0000-0000")
    assert "not the key" in text(at) and not at.text_area and not ran


def test_keys_cannot_be_tried_out(server_key):
    for _ in range(own_code.TRIES):
        assert not own_code.unlocks("0000-0000-0000")
    with pytest.raises(ValueError, match="Too many"):
        own_code.unlocks(server_key)


def test_a_failure_is_explained_repaired_and_then_on_screen(server_key):
    at = unlock(page(), server_key)
    next(button for button in at.button if button.label == "Run").click().run()
    assert not at.exception
    shown = "".join(each.proto.body for each in at.get("html"))
    assert "<mark>3·D</mark>" in shown and "<mark>32</mark>" in shown and 'class=lit data-line="14"' in shown
    assert "Linear(3·D, D)" in shown and "self.down = nn.Linear(3 * D, D)" in shown
    next(button for button in at.button if button.label == "Apply it and run").click().run()
    assert not at.exception and "self.down = nn.Linear(3 * D, D)" in at.text_area[0].value
    assert "It runs to the end" in text(at)
    trace = at.session_state[KEY].user_input.trace
    assert trace.model == "my_code:model" and trace.steps[-1].symbolic == ("B", "T", "D")


def test_a_run_without_an_end_is_ended(server_key, monkeypatch, tmp_path):
    alive = tmp_path / SIGNAL
    body = f"import time\nwhile True:\n    open({str(alive)!r}, 'a').write('.')\n    time.sleep(.05)\n"
    start = time.monotonic()
    assert "hello" in own_code.run("print('hello')\n", "model").output
    shortest = 1.5 * (time.monotonic() - start)  # a machine under load takes long until the code begins
    for seconds in (shortest, 3 * shortest, 60):
        monkeypatch.setattr(own_code, "MAX_SECONDS", seconds)
        assert "did not end" in own_code.run(body, "model").refusal
        if alive.exists():
            break
    size = alive.stat().st_size
    time.sleep(0.5)
    assert alive.stat().st_size == size


def test_what_the_code_does_to_python_stays_in_its_process(server_key):
    result = own_code.run("import os\nprint('hello')\ndef model():\n    os._exit(7)\n", "model")
    assert result.refusal == "Its process ended with status 7." and result.output.strip() == "hello"
    assert "my_code" not in sys.modules


def test_what_the_code_says_is_text(server_key):
    markup = "<img src=x onerror=alert(1)>"
    result = own_code.run(f"def model():\n    raise ValueError({markup!r})\n", "model")
    shown = own_code_editor.code(result.why["message"]) + own_code_editor.excerpt(
        result.text, result.why["source"], result.why["span"]
    )
    assert markup not in shown and "&lt;img" in shown


def test_what_is_no_file_that_can_run_is_refused(server_key):
    assert own_code.factories("def f(x): ...\ndef _g(): ...\ndef h(B=1): ...\nasync def k(): ...") == ["h"]
    at = unlock(page(), server_key)
    at.text_area[0].set_value("def f(:").run()
    assert "Line 1" in text(at)
    at.text_area[0].set_value("x = 1").run()
    assert text(at).count("a function that returns the model") == 1 and not at.exception  # said once
