"""One visitor without a browser: Streamlit's own messages over its websocket, and a log of all errors.

The messages are those of `streamlit.proto`; the server can't tell this from a browser, but nothing is drawn.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import time
import tomllib
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import websockets
from streamlit.proto.Alert_pb2 import Alert
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Block_pb2 import Block
from streamlit.proto.Common_pb2 import UploadedFileInfo
from streamlit.proto.Element_pb2 import Element
from streamlit.proto.Exception_pb2 import Exception as ExceptionElement
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.proto.WidgetStates_pb2 import WidgetState
from websockets.exceptions import InvalidMessage

from tests.support.serving import ROOT

PATIENCE = 120
"""Seconds that a visitor waits for an answer before it counts as an error."""
MESSAGE_AGE = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["global"]["maxCachedMessageAge"]
"""Runs after which a browser forgets a large message that was not used again."""


@dataclass
class Answer:
    """Answer to one act: the seconds until it was complete, its bytes, and every error in it."""

    seconds: float = 0.0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)


class Visitor:
    """A session of the app at an address such as `http://127.0.0.1:8501`; `context` is for https,
    `headers` go with each of its requests.

    `elements` holds the page as it is shown: an element by its place, a tuple of numbers. `open` comes first.
    """

    def __init__(self, address: str, context: ssl.SSLContext | None = None, **headers: str):
        self.address, self.context, self.cookies, self.headers = address, context, {}, headers
        self.elements: dict[tuple[int, ...], Element] = {}
        self.page, self.query, self.session = "", "", ""  # the page by its hash
        self._panels: dict[tuple[int, ...], Block.Popover] = {}  # by their places
        self._states: dict[str, WidgetState] = {}
        self._fragments: dict[str, str] = {}  # of each widget on the page, the fragment that it is in
        self._large: dict[str, tuple[ForwardMsg, int]] = {}  # by hash: the message, and when it was last used
        self._runs, self._name = 0, ""

    async def open(self, path: str = "") -> Answer:
        """Open a page by its path, `trace?model=vit`, as a browser does: the document, then the websocket."""
        started = time.perf_counter()
        for asked in (f"/{path}", "/_stcore/health"):
            if (status := (await asyncio.to_thread(self.get, asked))[0]) != 200:
                return Answer(time.perf_counter() - started, 0, [f"{asked} came with status {status}"])
        await self.connect()
        self._name, _, self.query = path.partition("?")
        answer = await self.rerun()
        answer.seconds = time.perf_counter() - started
        return answer

    async def connect(self) -> None:
        """Connect the websocket, as this visitor's former session, if any; Streamlit's page too tries again, more
        often."""
        try:
            await self._connect()
        except InvalidMessage:  # the connection was closed before it was answered
            await asyncio.sleep(1)
            await self._connect()

    async def _connect(self) -> None:
        before = [self.session] if self.session else []
        self._socket = await websockets.connect(
            self.address.replace("http", "ws", 1) + "/_stcore/stream",
            subprotocols=["streamlit", self.cookies.get("_streamlit_xsrf", "none"), *before],
            origin=self.address,
            additional_headers=self._cookies(),
            ssl=self.context,
            max_size=None,
            open_timeout=PATIENCE,
            compression=None,
        )
        self._keep(self._socket.response.headers.get_all("Set-Cookie"))

    async def close(self) -> None:
        """Close the tab."""
        await self._socket.close()

    async def send(self, data: bytes) -> None:
        """Send any bytes, also such as Streamlit's page never would."""
        await self._socket.send(data)

    def says(self, text: str) -> bool:
        """Return whether the page shows a text."""
        return any(text in str(element) for element in self.elements.values())

    def find(self, kind: str, label: str = ""):
        """Return the first element of a kind on the page whose label begins with `label`, or None."""
        return next(iter(self.all(kind, label)), None)

    def all(self, kind: str, label: str = "") -> list:
        """Return every element of a kind on the page whose label begins with `label`, in their order."""
        shown = [_element_message(e) for _, e in sorted(self.elements.items()) if e.WhichOneof("type") == kind]
        return [one for one in shown if getattr(one, "label", "").startswith(label)]

    def panel(self, label: str) -> Block.Popover | None:
        """Return the panel that a button of this label opens, or None."""
        return next((panel for panel in self._panels.values() if panel.label == label), None)

    async def press(self, button) -> Answer:
        """Press a button."""
        return await self.set(button, trigger_value=True)

    async def set(self, widget, **value) -> Answer:
        """Give a widget a value: `string_value="clip"`, a field of `WidgetState`; a list for those of arrays."""
        state = WidgetState(id=widget.id)
        for name, given in value.items():
            if isinstance(given, list):
                getattr(state, name).data.extend(given)
            else:
                setattr(state, name, given)
        self._states[widget.id] = state
        return await self.rerun(fragment=self._fragments.get(widget.id, ""))

    async def follow(self, link) -> Answer:
        """Follow a link to a page."""
        self.page, self.query = link.page_script_hash, link.query_string
        return await self.rerun()

    async def upload(self, uploader, name: str, data: bytes) -> Answer:
        """Give a file to a file uploader."""
        started, wanted = time.perf_counter(), BackMsg()
        wanted.file_urls_request.request_id = secrets.token_hex(8)
        wanted.file_urls_request.file_names.append(name)
        wanted.file_urls_request.session_id = self.session
        await self._socket.send(wanted.SerializeToString())
        while (message := await self._message()).WhichOneof("type") != "file_urls_response":
            pass
        place = message.file_urls_response.file_urls[0]
        status = await asyncio.to_thread(self.put, place.upload_url, name, data)
        if status >= 300:
            return Answer(time.perf_counter() - started, 0, [f"the upload of {name} came back with status {status}"])
        info = UploadedFileInfo(name=name, size=len(data), file_id=place.file_id)
        info.file_urls.CopyFrom(place)
        state = WidgetState(id=uploader.id)
        state.file_uploader_state_value.uploaded_file_info.add().CopyFrom(info)
        self._states[uploader.id] = state
        answer = await self.rerun()
        answer.seconds = time.perf_counter() - started
        return answer

    async def rerun(self, fragment: str = "") -> Answer:
        """Request the current page again, or one fragment of it, and wait until it is complete."""
        request = BackMsg()
        script = request.rerun_script
        script.query_string, script.page_script_hash, script.fragment_id = self.query, self.page, fragment
        script.page_name = "" if self.page else self._name
        script.context_info.url = f"{self.address}/{self._name}"
        script.context_info.timezone, script.context_info.locale = "UTC", "en-GB"
        script.widget_states.widgets.extend(self._states.values())
        script.cached_message_hashes.extend(self._large)
        self._states = {id: s for id, s in self._states.items() if s.WhichOneof("value") != "trigger_value"}
        started, answer = time.perf_counter(), Answer()
        try:
            await self._socket.send(request.SerializeToString())
            async with asyncio.timeout(PATIENCE):
                await self._whole(answer, bool(fragment))
        except TimeoutError:
            answer.problems.append(f"no answer within {PATIENCE} s")
        except websockets.ConnectionClosed as closed:
            answer.problems.append(f"the connection was closed: {closed}")
        answer.seconds = time.perf_counter() - started
        return answer

    async def _whole(self, answer: Answer, fragment: bool) -> None:
        """Receive messages until the requested run is over; one that stops for another run is not."""
        over = ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY if fragment else ForwardMsg.FINISHED_SUCCESSFULLY
        self._runs += 1
        while True:
            message = await self._message(answer)
            match message.WhichOneof("type"):
                case "new_session":
                    self._begin(message)
                case "delta":
                    self._show(message, answer)
                case "page_info_changed":
                    self.query = message.page_info_changed.query_string
                case "page_not_found":
                    answer.problems.append(f"there is no page {message.page_not_found.page_name!r}")
                case "script_finished" if message.script_finished == ForwardMsg.FINISHED_WITH_COMPILE_ERROR:
                    answer.problems.append("the script could not be compiled")
                    return
                case "script_finished" if message.script_finished in (over, ForwardMsg.FINISHED_SUCCESSFULLY):
                    self._forget()
                    return

    async def _message(self, answer: Answer | None = None) -> ForwardMsg:
        """Return the next message, or the former large message that it refers to."""
        data = await self._socket.recv()
        if answer:
            answer.bytes += len(data)
        message = ForwardMsg.FromString(data)
        if message.WhichOneof("type") == "ref_hash":
            known, place = self._large[message.ref_hash][0], message.metadata
            self._large[message.ref_hash] = known, self._runs
            message = ForwardMsg(delta=known.delta, metadata=place)
        elif message.metadata.cacheable:
            self._large[message.hash] = message, self._runs
        return message

    def _begin(self, message: ForwardMsg) -> None:
        self.session = message.new_session.initialize.session_id or self.session
        self.page = message.new_session.page_script_hash
        if not message.metadata.run.fragment_ids:
            self.elements, self._fragments, self._panels = {}, {}, {}

    def _show(self, message: ForwardMsg, answer: Answer) -> None:
        if message.delta.WhichOneof("type") == "add_block" and (panel := message.delta.add_block.popover).id:
            self._panels[tuple(message.metadata.delta_path)] = panel
            self._fragments[panel.id] = message.delta.fragment_id
        if message.delta.WhichOneof("type") != "new_element":
            return
        element = message.delta.new_element
        self.elements[tuple(message.metadata.delta_path)] = element
        shown = _element_message(element)
        if isinstance(shown, ExceptionElement):
            answer.problems.append(f"{shown.type}: {shown.message}"[:300])
        elif isinstance(shown, Alert) and shown.format == Alert.ERROR:
            answer.problems.append(f"the page says: {shown.body}"[:300])
        if id := getattr(shown, "id", ""):
            self._fragments[id] = message.delta.fragment_id
            if getattr(shown, "set_value", False):  # the server chose another value, and browsers take it
                self._states.pop(id, None)

    def _forget(self) -> None:
        """Drop what a browser drops after a run: the states of removed widgets, and old large messages."""
        self._states = {id: state for id, state in self._states.items() if id in self._fragments}
        self._large = {hash: kept for hash, kept in self._large.items() if kept[1] > self._runs - MESSAGE_AGE}

    def put(self, path: str, name: str, data: bytes) -> int:
        """Send the request that carries a file and return its status; it waits."""
        edge = secrets.token_hex(16)
        head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename={json.dumps(name)}\r\n'
        body = f"{head}Content-Type: application/octet-stream\r\n\r\n".encode() + data + f"\r\n--{edge}--\r\n".encode()
        kind, token = f"multipart/form-data; boundary={edge}", self.cookies.get("_streamlit_xsrf", "")
        return self.get(path, "PUT", body, **{"Content-Type": kind, "X-Xsrftoken": token, "Origin": self.address})[0]

    def get(self, path: str, method: str = "GET", data: bytes | None = None, **headers: str) -> tuple[int, str, bytes]:
        """Return status, headers as lower-case text, and body; cookies are kept as a browser does. It waits."""
        request = urllib.request.Request(self.address + path, data, {**self._cookies(), **headers}, method=method)
        try:
            answer = urllib.request.urlopen(request, timeout=PATIENCE, context=self.context)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            self._keep(answer.headers.get_all("Set-Cookie") or ())
            return answer.status, str(answer.headers).lower(), answer.read()

    def _cookies(self) -> dict[str, str]:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {**self.headers, "Cookie": cookies}

    def _keep(self, cookies) -> None:
        for cookie in cookies:
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name.strip()] = value


def _element_message(element: Element):
    """Return the message of an element's kind, such as a `Button`; None for an empty one."""
    kind = element.WhichOneof("type")
    return kind and getattr(element, kind)
