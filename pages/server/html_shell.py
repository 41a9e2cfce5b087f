"""HTML document of every page: Streamlit's own, with changes that let a browser show it sooner."""

import html
import re
from io import BytesIO
from pathlib import Path
from string import Template

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from streamlit import config

from pages.state.visitor import FIRST_MODEL
from pages.ui import texts
from tracer import models
from tracer.inputs.samples import samples

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


def first(shell: str) -> str:
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


def _photo():
    return next(iter(samples(models.samples(FIRST_MODEL)).values()))()


def routes(pages: list[str], shell: str, first: str) -> list[Route]:
    """Return routes for the pages with these addresses, which then open directly, without a failed request: each serves
    the document `shell`, or `first` where nothing has been chosen yet."""

    async def page(request: Request) -> HTMLResponse:
        new = request.url.path == "/" and not request.url.query
        return HTMLResponse(first if new else shell, headers={"Cache-Control": "no-cache"})

    async def photo(request: Request) -> Response:
        return Response(data, media_type="image/jpeg", headers={"Cache-Control": "max-age=3600"})

    file = BytesIO()
    _photo().save(file, "JPEG", quality=88)
    data = file.getvalue()
    return [Route(PHOTO, photo), *(Route(f"/{name}", page) for name in ("", *pages))]
