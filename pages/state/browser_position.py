"""Position that a browser reports when it moves by itself: a small request that reruns no script.

The next run of the visitor's script reads it (`url_state.read`), so that links, other pages and another model open
there.
"""

import secrets
from urllib.parse import parse_qsl
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from pages.server import uploads
from pages.state.visitor import Visitor

PATH = "/position"
MAX_REQUEST_BYTES = 600
"""Bytes of a request that are read: the visitor's token, a page and the place on it."""
_visitors: WeakValueDictionary[str, Visitor] = WeakValueDictionary()


def facts(visitor: Visitor) -> dict[str, str]:
    """Return the facts that a component needs to report: the endpoint, the token, and its page."""
    return {"endpoint": PATH, "token": token(visitor), "page": visitor.page}


def token(visitor: Visitor) -> str:
    """Return the secret token of a visitor's browser; it ends with the session."""
    if visitor.token is None:
        visitor.token = secrets.token_urlsafe(18)
    _visitors[visitor.token] = visitor
    return visitor.token


def visitor_of(word: str) -> Visitor | None:
    """Return the visitor whose browser has that token, None where no visitor of this server has it."""
    return _visitors.get(word)


def visitors() -> list[Visitor]:
    """Return all visitors whose browsers have a token."""
    return list(_visitors.values())


async def receive(request: Request) -> Response:
    """Take `TOKEN PAGE?PLACE` from a browser, such as `… trace?step=position`, or `… attention?block=2&query=` where no
    query is chosen any more. Answer 204, or 404 where no visitor of this server has that token."""
    if (body := await uploads.read(request, MAX_REQUEST_BYTES)) is None:
        return Response(status_code=413)
    word, _, value = body.decode(errors="replace").partition(" ")
    visitor = visitor_of(word)
    if visitor is None:
        return Response(status_code=404)
    page, _, place = value.partition("?")
    visitor.reported_place = page, dict(parse_qsl(place, keep_blank_values=True))
    return Response(status_code=204)
