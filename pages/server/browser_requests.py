"""Small requests of the browser, which run no script: the position that it moved to, whether the check that its page
waits for is done, and a link as a QR code."""

import asyncio
import io
from collections import Counter
from functools import lru_cache
from urllib.parse import parse_qsl

import segno
from segno.encoder import DataOverflowError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pages.components import CHECK_PATH, QR_PATH
from pages.jobs import background_checks
from pages.server.websockets import address_of
from pages.state import browser_position

MAX_POSITION_BYTES = 600
"""Bytes of a position: the visitor's token, a page and the place on it."""
MAX_TOKEN_BYTES = 100
"""Bytes of a visitor's token."""
MAX_LINK_BYTES = 2_900
"""Bytes of a link: the largest code holds a few more."""
MAX_QUEUE, MAX_PER_ADDRESS = 40, 12
"""Codes that wait to be drawn at once, and those of one address."""
_waiting: Counter[str] = Counter()
_drawing = asyncio.Semaphore(1)


async def read(request: Request, most: int) -> bytes | None:
    """Return the body of a request, or None if it is longer than `most` bytes."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return body


async def take_position(request: Request) -> Response:
    """Take `TOKEN PAGE?PLACE` from a browser, such as `… trace?step=position`, or `… attention?block=2&query=` where no
    query is chosen any more. Answer 204, or 404 where no visitor of this server has that token."""
    if (body := await read(request, MAX_POSITION_BYTES)) is None:
        return Response(status_code=413)
    word, _, value = body.decode(errors="replace").partition(" ")
    visitor = browser_position.visitor_of(word)
    if visitor is None:
        return Response(status_code=404)
    page, _, place = value.partition("?")
    visitor.reported_place = page, dict(parse_qsl(place, keep_blank_values=True))
    return Response(status_code=204)


async def give_check(request: Request) -> Response:
    """Answer whether the check that a visitor's page waits for is done: 202 if not, 204 if it is or the page on screen
    waits for none, 404 for an unknown visitor."""
    if (body := await read(request, MAX_TOKEN_BYTES)) is None:
        return Response(status_code=413)
    visitor = browser_position.visitor_of(body.decode(errors="replace"))
    if visitor is None:
        return Response(status_code=404)
    waits = visitor.checking is not None and background_checks.find(visitor.checking) is None
    return Response(status_code=202 if waits else 204)


# QR codes: drawn beside the event loop, one at a time, and cached for a class that requests the same one.


@lru_cache(maxsize=64)
def draw(link: str) -> str:
    """Return the code as SVG, dark on light as readers expect it, with the quiet zone. Raise ValueError for a link too
    long for a code."""
    file = io.BytesIO()
    try:
        segno.make_qr(link, error="l").save(file, kind="svg", border=4, light="#fff", omitsize=True, xmldecl=False)
    except DataOverflowError as error:
        raise ValueError(f"the link has {len(link.encode()):,} bytes, expected at most {MAX_LINK_BYTES:,}") from error
    return file.getvalue().decode()


async def give_code(request: Request) -> Response:
    """Answer a link in the body with its code (200), 413 where it is too long, or 429 where too many are requested at
    once."""
    if (body := await read(request, MAX_LINK_BYTES)) is None:
        return Response(status_code=413)
    address = address_of(request.scope) or "here"
    if _waiting.total() >= MAX_QUEUE or _waiting[address] >= MAX_PER_ADDRESS:
        return Response(status_code=429, headers={"Retry-After": "1"})
    _waiting[address] += 1
    try:
        async with _drawing:
            code = await asyncio.to_thread(draw, body.decode(errors="replace") or " ")
    except ValueError:
        return Response(status_code=413)
    finally:
        _waiting.subtract({address: 1})
    return Response(code, media_type="image/svg+xml", headers={"Cache-Control": "no-store"})


def routes() -> list[Route]:
    """Return the routes of these requests."""
    handlers = {browser_position.PATH: take_position, CHECK_PATH: give_check, QR_PATH: give_code}
    return [Route(path, handler, methods=["POST"]) for path, handler in handlers.items()]
