"""Links as QR codes: drawn for any visitor, and refused where they are too long."""

from starlette.applications import Starlette
from starlette.testclient import TestClient

from pages.components import QR_PATH
from pages.server import browser_requests


def test_a_link_becomes_a_code_and_one_that_is_too_long_does_not():
    client = TestClient(Starlette(routes=browser_requests.routes()))
    found = client.post(QR_PATH, content="http://127.0.0.1:8501/trace?step=embedding")
    assert found.status_code == 200 and found.headers["content-type"] == "image/svg+xml"
    assert found.text.startswith("<svg") and found.text == browser_requests.draw(
        "http://127.0.0.1:8501/trace?step=embedding"
    )
    assert browser_requests.draw("another") != found.text
    assert client.post(QR_PATH, content="x" * 2_901).status_code == 413
    assert client.post(QR_PATH, content="é" * 1_450).status_code in (200, 413)
    assert client.post(QR_PATH, content=b"\xff\xfe").status_code == 200
