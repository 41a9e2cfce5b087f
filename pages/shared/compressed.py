"""Files of Streamlit's own, compressed once and kept: it sends them as they are, three times as large."""

import asyncio
import gzip
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FILES = re.compile(r"/static/\w+/\w[\w.-]*\.(js|css|ttf|svg|json|wasm)")
"""Those that are worth it: pictures and woff2 are compressed already. No file has two such addresses, so what is kept
is bounded by what is there."""


class Compressed:
    """ASGI middleware: files come gzipped to whoever takes that. Each is compressed when it is first asked for, beside
    the other requests; status and headers are those of the app behind it."""

    def __init__(self, app: ASGIApp):
        self.app = app
        self.kept: dict[str, tuple[Message, Message]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _worth_it(scope):
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        if path not in self.kept:
            begun, body = await self._asked(scope)
            if begun["status"] != 200 or _cut(begun, body):
                await send(begun)
                await send({"type": "http.response.body", "body": body})
                return
            self.kept[path] = await asyncio.to_thread(_compressed, begun, body)
        for message in self.kept[path]:
            await send({**message, "headers": list(message["headers"])} if "headers" in message else message)

    async def _asked(self, scope: Scope) -> tuple[Message, bytes]:
        """The whole answer of the app: its start, and its body. It is for all who come, so the app is not told where
        who asked first has gone: it would stop, and what it had sent would be kept."""
        said: list[Message] = []
        asked: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Message:
            return asked.pop() if asked else await asyncio.get_running_loop().create_future()

        async def collect(message: Message) -> None:
            said.append(message)

        await self.app(scope, receive, collect)
        return said[0], b"".join(message.get("body", b"") for message in said[1:])


def _worth_it(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "GET" or not FILES.fullmatch(scope["path"]):
        return False
    headers = Headers(scope=scope)
    return "gzip" in headers.get("accept-encoding", "") and "range" not in headers and "if-none-match" not in headers


def _cut(begun: Message, body: bytes) -> bool:
    """Whether less came than the answer says that it has."""
    return Headers(raw=begun["headers"]).get("content-length", str(len(body))) != str(len(body))


def _compressed(begun: Message, body: bytes) -> tuple[Message, Message]:
    """The two messages of the answer with this start and body."""
    small = gzip.compress(body, 9)
    start = {**begun, "headers": list(begun["headers"])}
    headers = MutableHeaders(raw=start["headers"])
    headers["Content-Encoding"], headers["Content-Length"] = "gzip", str(len(small))
    headers.add_vary_header("Accept-Encoding")
    del headers["ETag"]  # that of the file as it is
    return start, {"type": "http.response.body", "body": small}
