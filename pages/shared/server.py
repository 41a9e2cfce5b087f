"""The server around the pages: their addresses, the middleware, and its background work."""

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

from pages.shared import checks, crowd, document, downloads, gate, logs, qr, sessions, told, warm
from tracer import sources
from tracer.common.limits import limits, memory

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
        logs.contentless()
    sessions.configure()
    downloads.say_why()
    PagesManager.uses_pages_directory = False  # its pages are those of `app.py`, for the first visitors too
    sources.examples()  # read once, and not by each of those who come first
    sent = document.document()
    first = document.first(sent)
    addresses = ("/", *(f"/{name}" for name in pages))
    return {
        "routes": [
            *document.routes(pages, sent, first),
            Route("/healthz", health),
            Route(told.PATH, told.hear, methods=["POST"]),
            Route(checks.PATH, checks.hear, methods=["POST"]),
            Route(qr.PATH, qr.give, methods=["POST"]),
        ],
        "middleware": [
            Middleware(gate.Gate, pages=addresses, document=first),
            Middleware(GZipMiddleware, minimum_size=1_000, compresslevel=LEVEL),
        ],
        "lifespan": lifespan,
        "on_script_error": crowd.show_refusal,
    }


async def health(request: Request) -> JSONResponse:
    """Answer a health probe: 200 once this server can answer a visitor, else 503."""
    ready = warm.ready.is_set() and not limits().memory_full()
    facts = {"ready": ready, "memory_mb": memory() // 2**20, "runs": crowd.count()}
    return JSONResponse(facts, 200 if ready else 503, {"Cache-Control": "no-store"})


@asynccontextmanager
async def lifespan(app: st.App) -> AsyncIterator[None]:
    """Run the background work from the server's start to its end."""
    sweeping = asyncio.create_task(_sweep())
    try:
        with warm.keeping():
            yield
    finally:
        sweeping.cancel()


async def _sweep() -> None:
    while True:
        await asyncio.sleep(SWEEP)
        sessions.end_left()
