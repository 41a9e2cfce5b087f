"""Files that are built when their button is pressed; where that fails, the button shows our own message."""

import asyncio
import logging

from streamlit.proto.BackMsg_pb2 import BackendOperationRequest
from streamlit.proto.ForwardMsg_pb2 import BackendOperationResponse, DeferredFileResponsePayload
from streamlit.runtime.backend_operation_handler import DeferredFileHandler


def say_why() -> None:
    """Have Streamlit show the message of a ValueError below the button, instead of its "Failed to generate"."""
    DeferredFileHandler.handle = handle


async def handle(
    self: DeferredFileHandler, request: BackendOperationRequest, session_id: str
) -> BackendOperationResponse:
    """Build the file of a button. Return its address, or the error."""
    try:
        url = await asyncio.to_thread(self._get_media_file_mgr().execute_deferred, request.deferred_file.file_id)
    except Exception as error:
        return BackendOperationResponse(request_id=request.request_id, error_msg=_error_message(error))
    return BackendOperationResponse(request_id=request.request_id, deferred_file=DeferredFileResponsePayload(url=url))


def _error_message(error: Exception) -> str:
    cause = error.__cause__
    if isinstance(cause, ValueError) and (message := str(cause)):
        return f"{message[0].upper()}{message[1:]}."
    logging.error("a file could not be made", exc_info=error)
    return "This file could not be made: the server’s log says why."
