"""Websockets of open pages: how many an address may open, and which messages are accepted.

Streamlit opens a session for every socket, and answers in the event loop, where all others wait. So a socket that is
silent, or sends what no page of ours sends, is closed, and one that sends too much is read at the pace of a page."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from starlette.types import Message, Receive, Scope, Send
from streamlit import config, runtime
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.jobs import render_gate
from tracer.utils.cache import Cache
from tracer.utils.errors import limits

if TYPE_CHECKING:
    from streamlit.runtime.app_session import AppSession


# Streamlit sessions whose visitors left: each ends after a while, and its photos and runs with it.
#
# By itself Streamlit ends one only once another visitor leaves, and without dropping its state
# (https://github.com/streamlit/streamlit/issues/12506).

KEEP = 120.0
"""Seconds in which a visitor whose connection broke finds the session again."""
SPARE = 60
"""Seconds that Streamlit keeps it longer, so that it is still there when it is ended here."""


@dataclass
class Session:
    """A session, and the time since which nobody is connected to it, None while somebody is."""

    session: AppSession
    left: float | None = None


_sessions: dict[str, Session] = {}


def configure() -> None:
    """Have Streamlit keep sessions until they are ended here."""
    config.set_option("server.disconnectedSessionTTL", int(KEEP) + SPARE)


def register(id: str = "") -> None:
    """Register a session that holds data of a visitor: the one of that id, else the one whose script this is."""
    if not id and (context := get_script_run_ctx(suppress_warning=True)):
        id = context.session_id
    if id not in _sessions and runtime.exists() and (session := runtime.get_instance().get_app_session(id)):
        _sessions[id] = Session(session)


def count_connected() -> int:
    """Return the number of sessions that somebody is connected to."""
    if not runtime.exists():
        return 0
    server = runtime.get_instance()
    return sum(server.is_active_session(id) is True for id in list(_sessions))


def end_left() -> None:
    """End the sessions that nobody came back to. Called in the event loop, as Streamlit requires."""
    server, now = runtime.get_instance(), monotonic()
    for id, known in list(_sessions.items()):
        if server.is_active_session(id):
            known.left = None
        elif known.left is None:
            known.left = now
        elif now - known.left >= KEEP:
            server.close_session(id)
            known.session.shutdown()  # also one that Streamlit forgot, as it does with the oldest of 128
            known.session.session_state.clear()
            del _sessions[id]


FIRST = 10.0
"""Seconds in which a page says what it wants to see."""
NAMES = 8
"""Files that an uploader asks addresses for at once: each is made in the event loop."""
RATE, BURST = 40.0, 200
"""Messages of one socket in a second, and how many more at first: a slider that is dragged sends some thirty."""
SOCKETS_PER_SECOND = 2.0
"""New sockets of one address in a second, once as many as it may have were opened at once."""
NOT_ALLOWED = 1008
"""The code of a websocket that is closed for what came (RFC 6455)."""
MAX_ADDRESSES = 4_000
"""Addresses of which is known how many sockets they opened."""


class TokenBucket:
    """A token bucket: a burst, and then a fixed rate per second."""

    def __init__(self, rate: float, burst: float):
        self.rate, self.burst = rate, burst
        self._tokens, self._at = burst, monotonic()

    def wait(self) -> float:
        """Take the next slot, and return the seconds until it is due."""
        now = monotonic()
        self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate) - 1
        self._at = now
        return max(0.0, -self._tokens / self.rate)

    def take(self) -> bool:
        """Return whether the next slot is due, and take it if so."""
        if self.wait() > 0:
            self._tokens += 1
            return False
        return True


class SocketLimits:
    """Open sockets, of each address and of all."""

    def __init__(self):
        self.count: Counter[str] = Counter()
        self._opened = Cache(MAX_ADDRESSES)

    def refusal(self, address: str, most: float) -> str:
        """Return the reason for refusing an address a further socket, in one sentence; empty where it is accepted.
        `most` is the limit of all sockets."""
        bound = limits().address_visitors
        if self.count.total() >= most:
            return f"{self.count.total()} pages are open here, the most that this server serves at once."
        if address and self.count[address] >= bound:
            return f"{bound} pages are open from your address, the most that this server serves to one address."
        if address and not self._pace(address, bound).take():
            return "Your address opens pages faster than this server serves them: try again in a minute."
        return ""

    def _pace(self, address: str, bound: int) -> TokenBucket:
        if (pace := self._opened.get(address)) is None:
            self._opened.put(address, pace := TokenBucket(SOCKETS_PER_SECOND, bound))
        return pace

    async def serve(self, app, address: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a socket until it is closed, and count it meanwhile."""
        self.count[address] += 1
        try:
            await app(scope, SocketGuard(receive, send).receive, send)
        finally:
            self.count[address] -= 1
            self.count += Counter()  # drops those at 0


class SocketGuard:
    """Receiving side of a socket, which passes on what a page may send."""

    def __init__(self, receive: Receive, send: Send):
        self._receive, self._send = receive, send
        self._pace, self._deadline = TokenBucket(RATE, BURST), monotonic() + FIRST
        self._connected = self._spoke = False

    async def receive(self) -> Message:
        """Return the next message; `websocket.disconnect` in place of one that no page sends."""
        if not self._connected:  # the first event of every socket
            self._connected = True
            return await self._receive()
        if self._spoke:
            await asyncio.sleep(self._pace.wait())
            message = await self._receive()
        else:
            try:
                message = await asyncio.wait_for(self._receive(), self._deadline - monotonic())
            except TimeoutError:
                return await self._close("it said nothing")
        if message["type"] != "websocket.receive":
            return message
        self._spoke = True
        problem = self._problem(message.get("bytes"))
        return await self._close(problem) if problem else message

    def _problem(self, data: bytes | None) -> str:
        """Describe how a message differs from any that a page sends; empty for a valid one."""
        if data is None:
            return "it sent text"
        message = BackMsg()
        try:
            message.ParseFromString(data)
        except DecodeError:
            return "it sent no message of Streamlit's"
        if message.WhichOneof("type") is None:
            return "it sent an empty message"
        if (names := len(message.file_urls_request.file_names)) > NAMES:
            return f"it asked addresses for {names} files"
        return ""

    async def _close(self, problem: str) -> Message:
        logging.warning("a websocket was closed: %s", problem)
        await self._send({"type": "websocket.close", "code": NOT_ALLOWED})
        return {"type": "websocket.disconnect", "code": NOT_ALLOWED}


def address_of(scope: Scope) -> str:
    """Return the address of a request, empty for this machine's own: behind a trusted proxy (`FORWARDED_ALLOW_IPS`),
    the forwarded one."""
    client = scope["client"][0] if scope.get("client") else ""
    return render_gate.network(client)
