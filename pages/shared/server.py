"""The server around the pages: their addresses, what every answer passes, and what goes on while it runs."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import streamlit as st
from starlette.formparsers import MultiPartParser
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from streamlit import config, runtime
from streamlit.proto.NewSession_pb2 import CustomThemeConfig
from streamlit.runtime import app_session
from streamlit.runtime.pages_manager import PagesManager

from pages.shared import checks, compressed, crowd, document, downloads, gate, logs, qr, told, warm
from tracer import sources
from tracer.common.limits import limits, memory

SWEEP = 5
"""Seconds between two looks for sessions that ended."""


def around(pages: list[str]) -> dict:
    """What `st.App` is given for an app of the pages with these addresses, within the bounds of `limits`."""
    bounds = limits()
    config.set_option("server.maxUploadSize", bounds.upload_mb)
    MultiPartParser.spool_max_size = bounds.upload_mb << 20  # files of visitors stay in memory, off any disk
    if bounds.hosted:
        os.environ["HF_HUB_OFFLINE"] = "1"  # libraries go by it too
        config.set_option("logger.enableRich", False)  # it would print messages past the log
        logs.contentless()
    _remember_the_theme()
    _read_options_at_once()
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
        "middleware": [Middleware(gate.Gate, pages=addresses, document=first), Middleware(compressed.Compressed)],
        "lifespan": lifespan,
        "on_script_error": crowd.said,
    }


def _remember_the_theme() -> None:
    """Has Streamlit read its theme once. It would go through all options six times for every run of a script, a tenth
    of what a page costs; the theme is that of the configuration and stays as it is while the server runs."""
    populate, known = app_session._populate_theme_msg, {}

    def populated(theme: CustomThemeConfig, section: str = "theme") -> None:
        if section not in known:
            read = CustomThemeConfig()
            populate(read, section)
            known[section] = read
        theme.MergeFrom(known[section])

    app_session._populate_theme_msg = populated


def _read_options_at_once() -> None:
    """Has Streamlit read its options without a lock, once they are there. It asks for them at every message, and the
    threads of thirty visitors stood in line for that lock, with Python's own in their hands: a quarter of what their
    pages cost. What is read is an entry of a dictionary, which needs none."""
    config.get_config_options()
    config._config_lock = nullcontext()


async def health(request: Request) -> JSONResponse:
    """Whether this server can answer a visitor: 200 once it can, else 503. For proxies and whoever looks after it."""
    ready = warm.ready.is_set() and not limits().memory_full()
    facts = {"ready": ready, "memory_mb": memory() // 2**20, "runs": crowd.count()}
    return JSONResponse(facts, 200 if ready else 503, {"Cache-Control": "no-store"})


@asynccontextmanager
async def lifespan(app: st.App) -> AsyncIterator[None]:
    """What goes on beside the visitors' requests, from the server's start to its end."""
    sweeping = asyncio.create_task(_sweep())
    try:
        with warm.keeping():
            yield
    finally:
        sweeping.cancel()


async def _sweep() -> None:
    """Lets go of sessions whose visitors left and did not come back (`server.disconnectedSessionTTL`), with their
    photos and runs. By itself Streamlit does that when another visitor leaves, and its loop holds the last session."""
    left = runtime.get_instance()._session_mgr._session_storage._cache
    while True:
        await asyncio.sleep(SWEEP)
        for session_info in [info for id, info in left._data.items() if id not in left]:
            session_info.session.shutdown()
            session_info.session.session_state.clear()
        left.expire()
