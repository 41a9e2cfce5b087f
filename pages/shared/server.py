"""What the server sends before any page runs: each page's address opens directly, without a request that fails."""

from pathlib import Path

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from streamlit.proto.NewSession_pb2 import CustomThemeConfig
from streamlit.runtime import app_session

INDEX = Path(st.__file__).parent / "static" / "index.html"
HERE = "<script>window.__streamlit = { BACKEND_BASE_URL: new URL('.', location).href };</script>"
"""Streamlit's script looks for its server under the page's own address first, at `/trace/_stcore/health`, and browsers
log the answer, 404, as an error. This tells it where the server is, also behind a proxy that gives it a folder."""


def remember_the_theme() -> None:
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


def routes(pages: list[str]) -> list[Route]:
    """Routes of the pages with these addresses: Streamlit's own document, with `HERE` in its head."""
    document = INDEX.read_text(encoding="utf-8").replace("<head>", f"<head>{HERE}", 1)

    async def page(request: Request) -> HTMLResponse:
        return HTMLResponse(document, headers={"Cache-Control": "no-cache"})

    return [Route(f"/{name}", page) for name in pages]
