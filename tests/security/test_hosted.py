"""A hosted server from outside: whom and what it admits, the content of its answers, and what its log omits."""

import json
import logging
import sys
import time
from http.client import HTTPConnection

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from pages.server import app_factory, request_gate
from tests.app.test_app import picture
from tests.hosted.audit import print_findings
from tests.hosted.visitor import Visitor
from tests.support.serving import App

TYPED_TEXT, FILE, ADDRESS_QUERY = "zebra quagga", "okapi-4711.png", "giraffe"
"""What a visitor gives that no log may hold: a text, the name of a file, the query of an address."""


@pytest.fixture(scope="module")
def hosted_app(tmp_path_factory):
    """Address of a hosted app with room for two visitors, and the file of its output."""
    log = tmp_path_factory.mktemp("hosted") / "log.txt"
    bounds = {"TRACER_HOSTED": "1", "TRACER_VISITORS": "2", "TRACER_UPLOAD_MB": "1", "TRACER_PHOTO_MB": "1"}
    with App(log, "--logger.level=debug", health="/healthz", **bounds) as app:
        yield app.address, log


def test_health_is_a_few_facts_as_json(hosted_app):
    status, headers, body = Visitor(hosted_app[0]).get("/healthz")
    found = json.loads(body)
    assert status == 200 and found["ready"] is True and found["runs"] == 0 and found["memory_mb"] > 0
    assert "no-store" in headers


@pytest.mark.parametrize(
    "path", ["/", "/trace?text=x", "/static/none.js", "/_stcore/health", "/healthz", "/media/none"]
)
def test_every_answer_carries_the_headers(hosted_app, path):
    _, headers, _ = Visitor(hosted_app[0]).get(path)
    for header in (
        "content-security-policy: default-src 'self'; script-src 'self' blob: 'wasm-unsafe-eval' 'sha256-",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "x-frame-options: deny",
        "referrer-policy: no-referrer",
        "cross-origin-opener-policy: same-origin",
    ):
        assert header in headers


@pytest.mark.parametrize("path", ["/_stcore/metrics", "/_stcore/agent/openapi.json"])
def test_what_tells_of_the_server_is_closed(hosted_app, path):
    assert Visitor(hosted_app[0]).get(path)[0] == 404


def test_a_policy_allows_the_scripts_of_its_document_alone():
    one, other = (request_gate.policy(f"<head><script>{script}</script></head>") for script in ("run()", "run( )"))
    assert one != other and "'unsafe-inline'" not in one.split("style-src")[0] and " 'unsafe-eval'" not in one


def test_visitors_beyond_the_bound_read_why_and_the_others_stay(hosted_app):
    visitors = [Visitor(hosted_app[0]).open() for _ in range(2)]
    status, headers, body = Visitor(hosted_app[0]).get("/trace")
    assert status == 503 and "retry-after" in headers
    assert b"2 pages are open here, the most that this server serves at once." in body
    visitors[0].rerun()
    assert visitors[0].elements
    visitors[0].close()
    deadline = time.monotonic() + 30
    while Visitor(hosted_app[0]).get("/trace")[0] != 200:
        assert time.monotonic() < deadline
    visitors[1].close()


def test_files_are_taken_from_visitors_who_are_here_and_a_few_at_a_time(hosted_app):
    visitor = Visitor(hosted_app[0]).open()
    assert visitor.put("/_stcore/upload_file/nobody/1", FILE, b"x") == 404
    address = f"/_stcore/upload_file/{visitor.session}/"
    found = [visitor.put(f"{address}{number}", FILE, bytes(700_000)) for number in range(4)]
    assert found == [204, 204, 413, 413]
    visitor.close()


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(hosted_app):
    visitor = Visitor(hosted_app[0]).open()
    connection = HTTPConnection(hosted_app[0].removeprefix("http://"), timeout=60)
    connection.putrequest("PUT", f"/_stcore/upload_file/{visitor.session}/large")
    for name, value in (("Content-Length", str(3 * 2**20)), ("X-Xsrftoken", visitor.cookies["_streamlit_xsrf"])):
        connection.putheader(name, value)
    connection.putheader("Cookie", f"_streamlit_xsrf={visitor.cookies['_streamlit_xsrf']}")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    visitor.close()


def test_a_page_of_another_host_opens_no_websocket(hosted_app):
    """And asking costs no request to the internet, which takes Streamlit's own refusal seconds."""
    where = hosted_app[0].replace("http", "ws") + "/_stcore/stream"
    with pytest.raises(InvalidStatus) as refused:
        connect(where, subprotocols=["streamlit"], origin=f"https://{ADDRESS_QUERY}.example", legacy=True)
    assert refused.value.response.status_code == 403


def test_nothing_that_a_visitor_gives_is_logged(hosted_app):
    """Also not where the server complains: of a run that fails, a frame that is none, a host that is another one."""
    address, log = hosted_app
    visitor = Visitor(address).open(f"attention?model=nanogpt&text={TYPED_TEXT.replace(' ', '+')}")
    assert visitor.says("zebra")
    visitor.get(f"/trace?text={ADDRESS_QUERY}")
    visitor.get(f"/{ADDRESS_QUERY}")
    visitor.close()
    visitor = Visitor(address).open(f"?model={ADDRESS_QUERY}:{ADDRESS_QUERY}")
    assert visitor.says("is not on this server")
    visitor.give(FILE, picture("PNG"))
    assert visitor.says(FILE)
    visitor.give(FILE, picture("PNG")[:200] + ADDRESS_QUERY.encode())
    visitor.send(ADDRESS_QUERY.encode())  # no message of Streamlit's
    visitor.close()
    written = log.read_text()
    assert len(written.splitlines()) > 10  # it does log: with `debug`, all that there is
    for given in (*TYPED_TEXT.split(), FILE, ADDRESS_QUERY, "okapi", "nanogpt"):
        assert given not in written


def test_a_record_holds_the_place_and_no_message():
    try:
        try:
            raise ValueError(f"can't read {TYPED_TEXT}")
        except ValueError as error:
            raise RuntimeError(FILE) from error
    except RuntimeError:
        record = app_factory._record("name", logging.ERROR, "file.py", 7, "%s is odd", (TYPED_TEXT,), sys.exc_info())
    line = logging.Formatter().format(record)
    assert line.startswith("file.py:7") and "builtins.RuntimeError" in line and "builtins.ValueError" in line
    assert __file__ in line and TYPED_TEXT not in line and FILE not in line and "odd" not in line


def test_an_audit_without_an_answer_is_not_clean(capsys):
    asked = {"name": "numpy", "version": "2", "vulns": []}
    hole = {"id": "PYSEC-1", "fix_versions": ["3"]}
    assert print_findings([asked]) == 0
    assert print_findings([{"name": "numpy", "skip_reason": "not found"}, asked]) == 2
    assert print_findings([{**asked, "vulns": [hole]}]) == 1
    assert "numpy 2: PYSEC-1, fixed in 3" in capsys.readouterr().out
