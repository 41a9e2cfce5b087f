"""Uploads: the files that are accepted, and a bound on the bytes of all sessions together.

An upload counts from its first byte, and for as long as Streamlit keeps it for its session."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from streamlit import runtime

from pages.server import websockets
from pages.server.websockets import address_of
from tracer.utils.errors import limits

ADDRESS = re.compile(r"/_stcore/upload_file/(?P<session>[^/]+)/[^/]+")
SHARE = 0.5
"""Of the bytes of all, those that one address may have."""
PATIENCE = 120.0
"""Seconds that a file may take to arrive."""


class UploadStore:
    """Files that are arriving, and those that wait to be read; `arriving` are the bytes of each session."""

    def __init__(self):
        self.arriving: Counter[str] = Counter()
        self._owners: dict[str, str] = {}

    async def take(self, app: ASGIApp, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept a file of a session of this server; Streamlit itself bounds the size of each."""
        size, address = _size(scope), address_of(scope)
        if refusal := self._refusal(session, size, address):
            await _drain(receive)
            await refusal(scope, receive, send)
            return
        websockets.register(session)
        self.arriving[session] = size
        self._owners[session] = address
        try:
            await asyncio.wait_for(app(scope, receive, send), PATIENCE)
        except TimeoutError:
            pass  # the connection is closed without an answer
        finally:
            del self.arriving[session]

    def _refusal(self, session: str, size: int, address: str) -> Response | None:
        """Return the response that refuses a file, or None. For a session of another server it is 404, so that a proxy
        asks the next replica."""
        if not runtime.exists() or not runtime.get_instance().is_active_session(session):
            return PlainTextResponse("This page’s session is not on this server: reload the page.", 404)
        if session in self.arriving:
            return PlainTextResponse("Another file of yours is still being uploaded: send one at a time.", 429)
        most, pending = limits(), self._pending_bytes()
        if pending[session] > most.upload_mb << 20:
            waiting = f"Your uploads that wait to be read take {pending[session] / 2**20:.0f} MB"
            return PlainTextResponse(f"{waiting}, expected at most {most.upload_mb} MB.", 413)
        pending.update(self.arriving)
        own = sum(count for of, count in pending.items() if self._owners.get(of) == address)
        if size + pending.total() > most.uploads_mb << 20 or (address and size + own > SHARE * (most.uploads_mb << 20)):
            return PlainTextResponse("This server holds as many files as it can: try again in a few minutes.", 503)
        if reason := most.memory_full():
            return PlainTextResponse(reason, 503)
        return None

    def _pending_bytes(self) -> Counter[str]:
        """Return the bytes of each session that wait to be read."""
        files = dict(runtime.get_instance().uploaded_file_mgr.file_storage)
        for session in set(self._owners) - set(files) - set(self.arriving):
            del self._owners[session]
        return Counter({session: sum(len(file.data) for file in own.values()) for session, own in files.items()})


def _size(scope: Scope) -> int:
    """Return the bytes that a request declares; the maximum where it declares none."""
    most = limits().upload_mb << 20
    stated = Headers(scope=scope).get("content-length", "")
    return min(int(stated), most) if stated.isascii() and stated.isdigit() else most


async def _drain(receive: Receive) -> None:
    """Read a request's body and drop it: browsers show no response to a request that they could not finish."""
    left = limits().upload_mb << 20
    while left > 0 and (message := await receive()).get("more_body"):
        left -= len(message["body"])
