"""What every request passes: who is let in, which files are taken, and the headers that each answer carries.

The headers are set here and not by a proxy, so that they hold without one too.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from html import escape
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from streamlit import config, runtime
from streamlit.web.server.server_util import is_allowed_origin

from tracer.common.limits import limits

UPLOAD = re.compile(r"/_stcore/upload_file/(?P<session>[^/]+)/[^/]+")
CLOSED = ("/_stcore/metrics", "/_stcore/agent")
"""Where Streamlit tells a stranger how the server is doing, and where programs could drive it."""
SPARE = 1.1
"""Sockets are refused a little later than pages, so that who was let in is not turned away at the next door."""


def policy(document: str) -> str:
    """The Content-Security-Policy for a document, whose own inline scripts it allows by their hash.

    Streamlit makes modules of our components as `blob:`, counts in WebAssembly, sets styles of elements, and draws
    pictures as `data:`. Nothing makes code out of text.
    """
    inline = re.findall(r"<script>(.*?)</script>", document, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in inline]
    rules = {
        "default-src": "'self'",
        "script-src": " ".join(["'self'", "blob:", "'wasm-unsafe-eval'", *(f"'sha256-{found}'" for found in hashes)]),
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
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


class Gate:
    """ASGI middleware around the whole app; `pages` are the addresses of its pages, `document` what they send."""

    def __init__(self, app: ASGIApp, *, pages: tuple[str, ...], document: str):
        self.app, self.pages = app, pages
        self.visitors, self.uploads = 0, Counter()
        self.headers = {
            "Content-Security-Policy": policy(document),
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Referrer-Policy": "no-referrer",  # an address may hold a visitor's text
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
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
        upload = scope["method"] == "PUT" and UPLOAD.fullmatch(scope["path"])
        if upload:
            await self._upload(upload["session"], scope, receive, send)
        elif scope["path"].startswith(CLOSED):
            await PlainTextResponse("Not Found", 404)(scope, receive, send)
        elif scope["path"] in self.pages and self.visitors >= limits().visitors:
            await full(limits().visitors)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        full = self.visitors >= limits().visitors * SPARE
        if full or _foreign(Headers(scope=scope)):
            await receive()
            await send({"type": "websocket.close", "code": 1013 if full else 1008})  # try again later; not allowed
            return
        self.visitors += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.visitors -= 1

    async def _upload(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Takes a file of a session that is here; Streamlit itself bounds the size of each."""
        if refusal := self._refusal(session):
            await _drained(receive)
            await refusal(scope, receive, send)
            return
        self.uploads[session] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.uploads[session] -= 1
            self.uploads += Counter()  # drops those at 0

    def _refusal(self, session: str) -> Response | None:
        """Why a file is not taken. Of a session that is elsewhere 404, so that a proxy asks the next replica."""
        if not runtime.exists() or not (here := runtime.get_instance()).is_active_session(session):
            return PlainTextResponse("This page’s session is not on this server: reload the page.", 404)
        if self.uploads[session]:
            return PlainTextResponse("A file of yours is still on its way: send one at a time.", 429)
        waiting = sum(len(file.data) for file in here.uploaded_file_mgr.file_storage.get(session, {}).values())
        if waiting > limits().upload_mb * 2**20:
            said = f"Files of yours of {waiting / 2**20:.0f} MB wait to be read; {limits().upload_mb} MB may."
            return PlainTextResponse(said, 413)
        if said := limits().memory_full():
            return PlainTextResponse(said, 503)
        return None


def _foreign(headers: Headers) -> bool:
    """Whether a page of another host opens a websocket here. Streamlit refuses that too, but asks a host on the
    internet for this server's own address before."""
    origin = headers.get("origin")
    own = origin is None or urlsplit(origin).netloc == headers.get("host")
    return not own and config.get_option("server.enableCORS") and not is_allowed_origin(origin)


async def _drained(receive: Receive) -> None:
    """Reads what is sent and drops it: browsers show no answer to a request that they could not finish."""
    left = limits().upload_mb * 2**20
    while left > 0 and (message := await receive()).get("more_body"):
        left -= len(message["body"])


def full(visitors: int) -> HTMLResponse:
    """What a visitor reads for whom there is no room; the page asks again by itself."""
    said = f"{visitors} pages are open here, as many as this server serves at once. This page tries again by itself."
    head = "<!doctype html><html lang=en><title>Tensor tracer</title><meta http-equiv=refresh content=20>"
    return HTMLResponse(f"{head}<p>{escape(said)}", 503, {"Retry-After": "20", "Cache-Control": "no-store"})
