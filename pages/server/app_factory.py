"""Server around the pages: their addresses, the middleware, and its background work."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import streamlit as st
from starlette.formparsers import MultiPartParser
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from streamlit import config
from streamlit.runtime.pages_manager import PagesManager

from pages.jobs import background_checks, prewarm, rate_limit
from pages.server import downloads, html_shell, log_redaction, qr, request_gate
from pages.state import browser_position, streamlit_sessions
from tracer import zoo
from tracer.utils.limits import limits, memory

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
        log_redaction.contentless()
    streamlit_sessions.configure()
    downloads.say_why()
    PagesManager.uses_pages_directory = False  # its pages are those of `app.py`, for the first visitors too
    zoo.examples()  # read once, and not by each of those who come first
    sent = html_shell.document()
    first = html_shell.first(sent)
    addresses = ("/", *(f"/{name}" for name in pages))
    return {
        "routes": [
            *html_shell.routes(pages, sent, first),
            Route("/healthz", health),
            Route(browser_position.PATH, browser_position.receive, methods=["POST"]),
            Route(background_checks.PATH, background_checks.receive, methods=["POST"]),
            Route(qr.PATH, qr.give, methods=["POST"]),
        ],
        "middleware": [
            Middleware(request_gate.RequestGate, pages=addresses, document=first),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=LEVEL),
        ],
        "lifespan": lifespan,
        "on_script_error": rate_limit.show_refusal,
    }


async def health(request: Request) -> JSONResponse:
    """Answer a health probe: 200 once this server can answer a visitor, else 503."""
    ready = prewarm.ready.is_set() and not limits().memory_full()
    facts = {"ready": ready, "memory_mb": memory() // 2**20, "runs": rate_limit.count()}
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
        streamlit_sessions.end_left()
