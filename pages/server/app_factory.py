"""Server around the pages: their addresses, the middleware, and its background work."""

import asyncio
import html
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from string import Template

import streamlit as st
from starlette.formparsers import MultiPartParser
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from streamlit import config
from streamlit.proto.BackMsg_pb2 import BackendOperationRequest
from streamlit.proto.ForwardMsg_pb2 import BackendOperationResponse, DeferredFileResponsePayload
from streamlit.runtime.backend_operation_handler import DeferredFileHandler
from streamlit.runtime.pages_manager import PagesManager

from pages.jobs import render_gate
from pages.server import browser_requests, prewarm, request_gate, websockets
from pages.state.view import FIRST_MODEL
from pages.ui import texts
from tracer import models, zoo
from tracer.inputs.model_inputs import samples
from tracer.utils.errors import limits, memory

# HTML document of every page: Streamlit's own, with changes that let a browser show it sooner.

STATIC = Path(st.__file__).parent / "static"
BACKEND_SCRIPT = "<script>window.__streamlit = { BACKEND_BASE_URL: new URL('.', location).href };</script>"
"""Streamlit's script looks for its server under the page's own address first, at `/trace/_stcore/health`, and browsers
log the answer, 404, as an error. This tells it where the server is, also behind a proxy that gives it a folder."""
PHOTO = "/first.jpg"
COLOURS = {
    "text": "textColor",
    "page": "backgroundColor",
    "primary": "primaryColor",
    "sidebar": "sidebar.backgroundColor",
}
"""Colours of the theme, and the options that hold them."""


def document() -> str:
    """Return Streamlit's document with the base path of its server."""
    return (STATIC / "index.html").read_text(encoding="utf-8").replace("<head>", f"<head>{BACKEND_SCRIPT}", 1)


def first_page(shell: str) -> str:
    """Insert the first page's heading and photo into the document `shell`, visible while the page itself loads."""
    font = re.search(r'href="(\S+\.woff2)"', shell)
    colours = {
        f"{theme}_{name}": config.get_option(f"theme.{theme}.{option}")
        for theme in ("light", "dark")
        for name, option in COLOURS.items()
    }
    template = Template(Path(__file__).with_name("first.html").read_text(encoding="utf-8")).substitute(
        colours,
        font=font[1] if font else "",
        title=html.escape(texts.title(FIRST_MODEL)),
        photo=PHOTO,
    )
    early = f'<link rel="preload" as="image" href=".{PHOTO}" fetchpriority="high">'
    return shell.replace("<head>", f"<head>{early}", 1).replace("<body>", f"<body>{template}", 1)


def routes(pages: list[str], shell: str, first: str) -> list[Route]:
    """Return routes for the pages with these addresses, which then open directly, without a failed request: each serves
    the document `shell`, or `first` where nothing has been chosen yet."""

    async def page(request: Request) -> HTMLResponse:
        new = request.url.path == "/" and not request.url.query
        return HTMLResponse(first if new else shell, headers={"Cache-Control": "no-cache"})

    async def photo(request: Request) -> Response:
        return Response(data, media_type="image/jpeg", headers={"Cache-Control": "max-age=3600"})

    file = BytesIO()
    first_photo = next(iter(samples(models.samples(FIRST_MODEL)).values()))()
    first_photo.save(file, "JPEG", quality=88)
    data = file.getvalue()
    return [Route(PHOTO, photo), *(Route(f"/{name}", page) for name in ("", *pages))]


# Log lines of a hosted server: time, level, line of code, and error, without any content of a visitor.
#
# A message may quote a text, the name of a file or an address, so no message is written at all: the position in the
# code tells what happened, and the lines that raised the errors tell why. Each record is one line, so that a thousand
# refused requests fill no disk.

MAX_CAUSES = 4
"""Errors of which one came of the other."""


def contentless() -> None:
    """Strip the content from everything that this process logs, warns of or dies with, for every handler."""
    logging.setLogRecordFactory(_record)
    logging.captureWarnings(True)
    sys.excepthook = lambda kind, error, trace: _log(error)
    sys.unraisablehook = lambda args: _log(args.exc_value)
    threading.excepthook = lambda args: _log(args.exc_value)


def _record(name, level, path, line, message, args, error, *rest, **more) -> logging.LogRecord:
    """Return a record whose message is the position in the code, and each error with the line that raised it."""
    place = " ".join([f"{path}:{line}", *_error_positions(error[1] if error else None)])
    return logging.LogRecord(name, level, path, line, place.replace("%", "%%"), (), None, *rest[:1])


def _error_positions(error: BaseException | None) -> list[str]:
    errors: list[str] = []
    while error is not None and len(errors) < MAX_CAUSES:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        errors.append(f"{type(error).__module__}.{type(error).__qualname__}{where}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return errors


def _log(error: BaseException | None) -> None:
    logging.getLogger(__name__).error("", exc_info=error)


# Files that are built when their button is pressed; where that fails, the button shows our own message.


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


SWEEP = 5
"""Seconds between two looks for sessions that ended."""
LEVEL = 3
"""Of gzip. What a new browser's first page loads takes 28 ms of processor time and has 0.81 MB then; 41 ms and 0.74 MB
at level 5, 73 ms and 0.73 MB at level 9."""


def around(pages: list[str]) -> dict:
    """Return the arguments of `st.App` for pages with these addresses, within the bounds of `limits`."""
    bounds = limits()
    config.set_option("server.maxUploadSize", bounds.upload_mb)
    MultiPartParser.spool_max_size = bounds.upload_mb << 20  # files of visitors stay in memory, off any disk
    if bounds.hosted:
        os.environ["HF_HUB_OFFLINE"] = "1"  # libraries go by it too
        config.set_option("logger.enableRich", False)  # it would print messages past the log
        contentless()
    websockets.configure()
    say_why()
    PagesManager.uses_pages_directory = False  # its pages are those of `app.py`, for the first visitors too
    zoo.examples()  # read once, and not by each of those who come first
    sent = document()
    first = first_page(sent)
    addresses = ("/", *(f"/{name}" for name in pages))
    return {
        "routes": [
            *routes(pages, sent, first),
            Route("/healthz", health),
            *browser_requests.routes(),
        ],
        "middleware": [
            Middleware(request_gate.RequestGate, pages=addresses, document=first),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=LEVEL),
        ],
        "lifespan": lifespan,
        "on_script_error": render_gate.show_refusal,
    }


async def health(request: Request) -> JSONResponse:
    """Answer a health probe: 200 once this server can answer a visitor, else 503."""
    ready = prewarm.ready.is_set() and not limits().memory_full()
    facts = {"ready": ready, "memory_mb": memory() // 2**20, "runs": render_gate.count_act()}
    return JSONResponse(facts, 200 if ready else 503, {"Cache-Control": "no-store"})


@asynccontextmanager
async def lifespan(app: st.App) -> AsyncIterator[None]:
    """Run the background work from the server's start to its end."""
    sweeping = asyncio.create_task(_sweep())
    try:
        with prewarm.keeping():
            yield
    finally:
        sweeping.cancel()


async def _sweep() -> None:
    while True:
        await asyncio.sleep(SWEEP)
        websockets.end_left()
