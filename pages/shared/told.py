"""Where a browser that steps by itself tells which step it shows: a small request that makes no script run.

The next run of the visitor's script reads it (`address.read`), so that links, other pages and another model open there.
"""

import secrets
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from pages.shared.visitor import Visitor

PATH = "/told"
LONGEST = 600
"""Bytes of a request that are read: the visitor's token and the id of a step."""
_visitors: WeakValueDictionary[str, Visitor] = WeakValueDictionary()


def token(visitor: Visitor) -> str:
    """The word by which a visitor's browser is known here; nobody else gets it, and it goes with the session."""
    if visitor.token is None:
        visitor.token = secrets.token_urlsafe(18)
    _visitors[visitor.token] = visitor
    return visitor.token


async def hear(request: Request) -> Response:
    """Takes `TOKEN ID` from a browser: 204, or 404 where no visitor of this server has that token."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LONGEST:
            return Response(status_code=413)
    word, _, step = body.decode(errors="replace").partition(" ")
    visitor = _visitors.get(word)
    if visitor is None:
        return Response(status_code=404)
    visitor.told = step
    return Response(status_code=204)
