"""Files that come compressed: once each, the very same bytes inside, and only to whoever takes that."""

import asyncio
import gzip

import pytest
from serving import awaited
from starlette.responses import Response, StreamingResponse

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


class Streamed:
    """An app that sends a file piece by piece, and stops where it hears that who asked has gone."""

    def __init__(self, pieces: int = 4):
        self.pieces = pieces

    async def __call__(self, scope, receive, send):
        async def sent():
            for piece in range(self.pieces):
                await asyncio.sleep(0)
                yield BODY[piece * len(BODY) // 4 : (piece + 1) * len(BODY) // 4]

        headers = {"Content-Length": str(len(BODY)), "Content-Type": "text/javascript"}
        await StreamingResponse(sent(), 200, headers)(scope, receive, send)


async def gone():
    return {"type": "http.disconnect"}


def get(app, path: str, receive=None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    said = []

    async def send(message):
        said.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw}
    awaited(app(scope, receive, send))
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


def test_a_file_is_whole_for_the_next_where_who_asked_first_has_gone():
    app = Compressed(Streamed())
    for receive in (gone, None):
        _, headers, body = get(app, "/static/js/index.abc.js", receive, accept_encoding="gzip")
        assert headers["content-encoding"] == "gzip" and gzip.decompress(body) == BODY


def test_a_file_that_came_cut_off_is_not_kept():
    app = Compressed(Streamed(pieces=2))
    _, headers, body = get(app, "/static/js/index.abc.js", accept_encoding="gzip")
    assert "content-encoding" not in headers and body == BODY[: len(BODY) // 2] and not app.kept
