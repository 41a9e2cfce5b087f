"""A link as a QR code, requested by a browser: drawn beside the event loop, one at a time, and cached for a class that
requests the same one."""

import asyncio
import io
from collections import Counter
from functools import lru_cache

import segno
from segno.encoder import DataOverflowError
from starlette.requests import Request
from starlette.responses import Response

from pages.server import uploads
from pages.server.websockets import address_of

PATH = "/qr"
MAX_BYTES = 2_900
"""Bytes of a link: the largest code holds a few more."""
MAX_QUEUE, MAX_PER_ADDRESS = 40, 12
"""Codes that wait to be drawn at once, and those of one address."""
_waiting: Counter[str] = Counter()
_drawing = asyncio.Semaphore(1)


@lru_cache(maxsize=64)
def draw(link: str) -> str:
    """Return the code as SVG, dark on light as readers expect it, with the quiet zone. Raise ValueError for a link too
    long for a code."""
    file = io.BytesIO()
    try:
        segno.make_qr(link, error="l").save(file, kind="svg", border=4, light="#fff", omitsize=True, xmldecl=False)
    except DataOverflowError as error:
        raise ValueError(f"the link has {len(link.encode()):,} bytes, expected at most {MAX_BYTES:,}") from error
    return file.getvalue().decode()


async def give(request: Request) -> Response:
    """Answer a link in the body with its code (200), 413 where it is too long, or 429 where too many are requested at
    once."""
    if (body := await uploads.read(request, MAX_BYTES)) is None:
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
