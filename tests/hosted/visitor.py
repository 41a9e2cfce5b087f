"""A visitor without a browser: Streamlit's own messages over its websocket, and a file on its way to the server."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
import uuid

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Common_pb2 import UploadedFileInfo
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import InvalidMessage
from websockets.sync.client import connect

SECONDS = 60


class Visitor:
    """One browser on one page of the app at `address`; `context` is for https."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None):
        self.address, self.context, self.cookies = address, context, {}
        self.session = self.script = ""
        self.elements: list = []  # of the last run of the page
        self.uploader = None

    def get(self, path: str, method: str = "GET", data: bytes | None = None, **headers: str) -> tuple[int, str, bytes]:
        """Status, headers as text in small letters, and body; cookies are kept as a browser does."""
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        request = urllib.request.Request(self.address + path, data, {"Cookie": cookies, **headers}, method=method)
        try:
            answer = urllib.request.urlopen(request, timeout=SECONDS, context=self.context)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            self._keep(answer.headers.get_all("Set-Cookie") or ())
            return answer.status, str(answer.headers).lower(), answer.read()

    def _keep(self, cookies) -> None:
        for cookie in cookies:
            name, _, value = cookie.partition(";")[0].partition("=")
            self.cookies[name.strip()] = value

    def open(self, query: str = "", path: str = "/") -> Visitor:
        """Opens a page as a browser does, document first, and runs it once."""
        self.get(path)
        self.get("/_stcore/health")
        self.connect()
        self.run(query, path)
        return self

    def connect(self) -> None:
        """The websocket, as the session that this visitor had, if any; Streamlit's page too tries again, more often."""
        try:
            self._connect()
        except InvalidMessage:  # the connection was closed before it was answered
            time.sleep(1)
            self._connect()

    def _connect(self) -> None:
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        before = [self.session] if self.session else []
        self.socket = connect(
            self.address.replace("http", "ws", 1) + "/_stcore/stream",
            subprotocols=["streamlit", self.cookies.get("_streamlit_xsrf", "none"), *before],
            origin=self.address,
            additional_headers={"Cookie": cookies},
            ssl=self.context,
            max_size=None,
            legacy=True,
            open_timeout=SECONDS,
        )
        self._keep(self.socket.response.headers.get_all("Set-Cookie"))

    def run(self, query: str = "", path: str = "/", files: list[UploadedFileInfo] = ()) -> None:
        """Runs the page, with these files in its uploader."""
        message = BackMsg()
        rerun = message.rerun_script
        rerun.query_string, rerun.page_name, rerun.page_script_hash = query, path.strip("/"), self.script
        rerun.context_info.url, rerun.context_info.timezone = self.address + path, "UTC"
        if files:
            state = rerun.widget_states.widgets.add()
            state.id = self.uploader
            for file in files:
                state.file_uploader_state_value.uploaded_file_info.add().CopyFrom(file)
        self.send(message)
        self.until_finished()

    def send(self, message: BackMsg) -> None:
        self.socket.send(message.SerializeToString())

    def receive(self) -> ForwardMsg:
        message = ForwardMsg()
        message.ParseFromString(self.socket.recv(timeout=SECONDS))
        return message

    def until_finished(self) -> None:
        """Collects what the page shows until its script has ended."""
        self.elements = []
        while True:
            message = self.receive()
            kind = message.WhichOneof("type")
            if kind == "new_session":
                self.session = message.new_session.initialize.session_id or self.session
                self.script = message.new_session.page_script_hash
            elif kind == "delta":
                self._read(message.delta.new_element)
            elif kind == "script_finished" and message.script_finished in (0, 1):
                return

    def _read(self, element) -> None:
        self.elements.append(element)
        if element.WhichOneof("type") == "file_uploader":
            self.uploader = element.file_uploader.id

    def says(self, text: str) -> bool:
        """Whether the page shows a text."""
        return any(text in str(element) for element in self.elements)

    def upload(self, name: str, data: bytes) -> int:
        """Puts a file into the page's uploader and runs the page; the status of the request that carried it."""
        message = BackMsg()
        message.file_urls_request.request_id, message.file_urls_request.session_id = uuid.uuid4().hex, self.session
        message.file_urls_request.file_names.append(name)
        self.send(message)
        while (answer := self.receive()).WhichOneof("type") != "file_urls_response":
            pass
        urls = answer.file_urls_response.file_urls[0]
        status = self.put(urls.upload_url, name, data)
        if status == 204:
            file = UploadedFileInfo(name=name, size=len(data), file_id=urls.file_id)
            file.file_urls.CopyFrom(urls)
            self.run(files=[file])
        return status

    def put(self, path: str, name: str, data: bytes) -> int:
        boundary = uuid.uuid4().hex
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename={json.dumps(name)}\r\n\r\n'
        body = head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
        kind = f"multipart/form-data; boundary={boundary}"
        token = self.cookies.get("_streamlit_xsrf", "")
        return self.get(path, "PUT", body, **{"Content-Type": kind, "X-Xsrftoken": token, "Origin": self.address})[0]

    def close(self) -> None:
        self.socket.close()
