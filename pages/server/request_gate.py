"""Checks of every request: visitors admitted, files accepted, and the headers of each response.

The headers are set here and not by a proxy, so that they hold without one too."""

from __future__ import annotations

import base64
import hashlib
import re
import socket
from html import escape
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.jobs import own_code
from pages.server import uploads
from pages.server.uploads import UploadStore
from pages.server.websockets import SocketLimits, address_of
from tracer.cli.shared_options import is_loopback
from tracer.utils.errors import limits, quote

# Host names of this server: a request that names another host is refused.
#
# A stranger's page may resolve its own name to this machine (DNS rebinding), and its scripts would then share our
# origin. So the list of names counts, and not that Origin and Host agree. A numeric address is nobody's name.


def is_allowed(host: str | None) -> bool:
    """Return whether a Host header names this server: this machine itself, a name of `TRACER_HOST`, and where it
    listens to others, its numeric address and, at home, its own name."""
    if (named := own_code.host_name(host)) is None:
        return False
    name, listens_to_others = named.rstrip("."), not is_loopback(own_code.address())
    return (
        is_loopback(name)
        or any(_matches(name, known) for known in limits().hosts)
        or (listens_to_others and _own(name))
    )


def expected_names() -> str:
    """Return the accepted names, in words."""
    return ", ".join(("localhost", *limits().hosts))


def is_same_origin(origin: str | None, host: str | None) -> bool:
    """Return whether a request comes from a page of this server; a request without Origin comes from no browser."""
    return origin is None or urlsplit(origin).netloc == host


def _matches(name: str, known: str) -> bool:
    """Return whether a name matches a pattern: `*.example.org` is any name below it, `*` any at all."""
    return known == "*" or name == known or (known.startswith("*.") and name.endswith(known[1:]))


def _own(name: str) -> bool:
    """Return whether a name is a numeric address or, at home, this machine's name in its network."""
    try:
        ip_address(name)
    except ValueError:
        own = socket.gethostname().lower()
        return not limits().hosted and name in (own, f"{own.partition('.')[0]}.local")
    return True


BLOCKED_PATHS = ("/_stcore/metrics", "/_stcore/agent")
"""Where Streamlit tells a stranger how the server is doing, and where programs could drive it."""
SPARE = 1.1
"""Sockets are refused a little later than pages, so that who was let in is not turned away at the next door."""


def policy(document: str) -> str:
    """Return the Content-Security-Policy for a document, whose own inline scripts it allows by their hash.

    Streamlit loads our components as `blob:` modules, runs WebAssembly, sets styles of elements, and draws pictures as
    `data:`. Nothing evaluates text as code.
    """
    inline = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in inline]
    rules = {
        "default-src": "'self'",
        "script-src": " ".join(["'self'", "blob:", "'wasm-unsafe-eval'", *(f"'sha256-{digest}'" for digest in hashes)]),
        "style-src": "'self' 'unsafe-inline'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "media-src": "'self' blob:",
        "worker-src": "'self' blob:",
        "connect-src": "'self'",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-src": "'none'",
        "frame-ancestors": " ".join(limits().framed_by) or "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


class RequestGate:
    """ASGI middleware around the whole app; `pages` are the addresses of its pages, `document` is their HTML."""

    def __init__(self, app: ASGIApp, *, pages: tuple[str, ...], document: str):
        self.app, self.pages = app, pages
        self.sockets, self.uploads = SocketLimits(), UploadStore()
        self.headers = {
            "Content-Security-Policy": policy(document),
            "X-Content-Type-Options": "nosniff",
            **({} if limits().framed_by else {"X-Frame-Options": "DENY"}),  # which knows no list
            "Referrer-Policy": "no-referrer",  # an address may hold a visitor's text
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and own_code.is_on() and not own_code.is_own(scope):
            await PlainTextResponse(own_code.REFUSAL, 403)(scope, receive, self._with_headers(send))
        elif scope["type"] == "http":
            await self._answer(scope, receive, self._with_headers(send))
        elif scope["type"] == "websocket":
            await self._connect(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _with_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        return send_with_headers

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host")
        upload = scope["method"] == "PUT" and uploads.ADDRESS.fullmatch(scope["path"])
        if not is_allowed(host):
            refusal = f"{quote(host or '')} is not a name of this server, expected one of {expected_names()}."
            await PlainTextResponse(f"{refusal} TRACER_HOST adds names.", 421)(scope, receive, send)
        elif upload:
            await self.uploads.take(self.app, upload["session"], scope, receive, send)
        elif scope["path"].startswith(BLOCKED_PATHS):
            await PlainTextResponse("Not Found", 404)(scope, receive, send)
        elif scope["path"] in self.pages and self.sockets.count.total() >= limits().visitors:
            await full(limits().visitors)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, address = Headers(scope=scope), address_of(scope)
        foreign = not (is_allowed(headers.get("host")) and is_same_origin(headers.get("origin"), headers.get("host")))
        if foreign:
            refused = PlainTextResponse("A page from another host may not open a websocket here.", 403)
            await refused(scope, receive, send)
        elif refusal := self.sockets.refusal(address, limits().visitors * SPARE):
            await PlainTextResponse(refusal, 503, {"Retry-After": "20"})(scope, receive, send)
        else:
            await self.sockets.serve(self.app, address, scope, receive, send)


def full(visitors: int) -> HTMLResponse:
    """Return the page for a visitor for whom there is no room; it reloads by itself."""
    most = f"{visitors} pages are open here, the most that this server serves at once."
    message = f"{most} This page tries again by itself."
    head = "<!doctype html><html lang=en><title>Tensor tracer</title><meta http-equiv=refresh content=20>"
    return HTMLResponse(f"{head}<p>{escape(message)}", 503, {"Retry-After": "20", "Cache-Control": "no-store"})
