"""Files that come compressed: once each, the very same bytes inside, and only to whoever takes that."""

import gzip

import pytest
from serving import awaited
from starlette.responses import Response

from pages.shared.compressed import Compressed

BODY = b"export const one = 1;\n" * 500


class Files:
    """An app that counts how often it is asked."""

    asked = 0

    async def __call__(self, scope, receive, send):
        self.asked += 1
        status = 404 if "none" in scope["path"] else 200
        headers = {"Cache-Control": "immutable", "ETag": "x", "Content-Type": "text/javascript"}
        await Response(BODY, status, headers)(scope, receive, send)


def get(app, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    said = []

    async def send(message):
        said.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw}
    awaited(app(scope, None, send))
    found = {name.decode(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], found, b"".join(message["body"] for message in said[1:])


def test_a_file_is_compressed_once_for_those_who_take_it():
    app = Compressed(files := Files())
    for _ in range(3):
        status, headers, body = get(app, "/static/js/index.abc.js", accept_encoding="gzip, br")
        assert status == 200 and gzip.decompress(body) == BODY and len(body) < len(BODY) / 9
        assert headers["content-encoding"] == "gzip" and int(headers["content-length"]) == len(body)
        assert (
            headers["vary"] == "Accept-Encoding" and headers["cache-control"] == "immutable" and "etag" not in headers
        )
    assert files.asked == 1 and len(app.kept) == 1


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/static/js/index.abc.js", {}),
        ("/static/js/index.abc.js", {"accept_encoding": "gzip", "range": "bytes=0-9"}),
        ("/static/media/font.woff2", {"accept_encoding": "gzip"}),
        ("/static/js/../js/index.abc.js", {"accept_encoding": "gzip"}),
        ("/static/js/none.js", {"accept_encoding": "gzip"}),
        ("/media/photo.json", {"accept_encoding": "gzip"}),
    ],
)
def test_all_else_comes_as_it_is_and_nothing_of_it_is_kept(path, headers):
    app = Compressed(Files())
    status, found, body = get(app, path, **headers)
    assert body == BODY and "content-encoding" not in found and status == (404 if "none" in path else 200)
    assert not app.kept
