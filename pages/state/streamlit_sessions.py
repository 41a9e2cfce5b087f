"""Streamlit sessions whose visitors left: each ends after a while, and its photos and runs with it.

By itself Streamlit ends one only once another visitor leaves, and without dropping its state
(https://github.com/streamlit/streamlit/issues/12506).
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from streamlit import config, runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

if TYPE_CHECKING:
    from streamlit.runtime.app_session import AppSession
    from streamlit.runtime.uploaded_file_manager import UploadedFile

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


def take_upload(file: UploadedFile) -> bytes:
    """Return the content of an uploaded file, which Streamlit would otherwise keep until the session ends."""
    data, context = file.getvalue(), get_script_run_ctx()
    context.uploaded_file_mgr.remove_file(context.session_id, file.file_id)
    return data
