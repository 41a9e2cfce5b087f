"""Files that are built when their button is pressed: built, or refused in the sentence that gives the reason."""

import pytest
from streamlit.proto.BackMsg_pb2 import BackendOperationRequest
from streamlit.runtime.backend_operation_handler import DeferredFileHandler
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

from pages.sections import sidebar
from pages.server import app_factory
from tests.support.handmade import sample
from tests.support.serving import run_in_thread
from tracer import serialization
from tracer.utils.errors import quote


@pytest.fixture
def press_download(monkeypatch):
    """Return a function that presses the button of a file and returns the response."""
    monkeypatch.setattr(DeferredFileHandler, "handle", DeferredFileHandler.handle)
    app_factory.say_why()
    files = MediaFileManager(MemoryMediaFileStorage("/media"))

    def press(make):
        request = BackendOperationRequest(request_id="7")
        request.deferred_file.file_id = files.add_deferred(make, "text/plain", "0.1", "run.txt")
        return run_in_thread(DeferredFileHandler(lambda: files).handle(request, "session"))

    return press


def test_a_file_is_made(press_download):
    answer = press_download(lambda: b"seven")
    assert answer.request_id == "7" and not answer.error_msg
    assert answer.deferred_file.url.startswith("/media/")


def test_a_run_that_can_not_be_saved_says_why(press_download, monkeypatch):
    monkeypatch.setattr(serialization, "MAX_BYTES", 1000)
    trace = sample()
    said = press_download(lambda: sidebar._file(None, trace)).error_msg
    assert said.startswith(f"This run of {quote(trace.model)} can't be saved: it would take ") and said.endswith(
        "1,000."
    )


def test_of_any_other_error_nothing_is_told(press_download):
    said = press_download(lambda: [][0]).error_msg
    assert said == "This file could not be made: the server’s log says why."
