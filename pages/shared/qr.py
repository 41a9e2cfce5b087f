"""A link as a QR code, which a browser asks for: drawn at once, and not kept."""

import io

import segno
from segno.encoder import DataOverflowError
from starlette.requests import Request
from starlette.responses import Response

from pages.shared import bodies

PATH = "/qr"
LONGEST = 2_900
"""Bytes of a link: the largest code holds a few more."""


def drawn(link: str) -> str:
    """The code as SVG, dark on light as readers expect it, with the quiet zone around it. ValueError for a longer link
    than a code holds."""
    file = io.BytesIO()
    try:
        segno.make_qr(link, error="l").save(file, kind="svg", border=4, light="#fff", omitsize=True, xmldecl=False)
    except DataOverflowError as error:
        raise ValueError(f"the link has {len(link.encode()):,} bytes, expected at most {LONGEST:,}") from error
    return file.getvalue().decode()


async def give(request: Request) -> Response:
    """Takes a link as the body: 200 with its code, or 413 where it is too long for one."""
    if (body := await bodies.read(request, LONGEST)) is None:
        return Response(status_code=413)
    try:
        code = drawn(body.decode(errors="replace") or " ")
    except ValueError:
        return Response(status_code=413)
    return Response(code, media_type="image/svg+xml", headers={"Cache-Control": "no-store"})
