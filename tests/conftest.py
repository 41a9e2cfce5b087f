"""Fixtures that the tests share: the app on a port of its own, and a browser that reaches nothing else."""

import functools
import gc
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import hypothesis
import pytest

from tests.support.serving import App

# Set before torch is imported, so that torch need not be imported here: workers with two threads each would wait for
# each other's cores. They inherit the environment of the process that starts them, so nothing is set there.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

# Processes that tests start keep what they compile: compiling the package takes each of them half a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Thousands of formulas are simplified in one process; SymPy's own default holds a thousand results.
os.environ.setdefault("SYMPY_CACHE_SIZE", "50000")

# The same examples on every run: a failure is then a change, and nothing is written beside the tests.
hypothesis.settings.register_profile("steady", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("steady")

_CHROMIUM_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no other host is reached
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--overwrite", action="store_true", help="write the golden files anew instead of comparing")


@pytest.fixture(autouse=True)
def keep_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what a test adds to the folders of modules: a file of its own, such as `copy.py`, would hide Python's."""
    monkeypatch.setattr(sys, "path", sys.path[:])


def pytest_sessionfinish() -> None:
    """End what pages left running: a thread that Python ends in the middle of a run takes the process down with it."""
    if checks := sys.modules.get("pages.jobs.background_checks"):
        checks.end(60)


def pytest_collection_finish() -> None:
    """Look for components of other packages once: each page that is run without a browser would look through all
    installed ones, which took a fifth of a second.

    What was imported stays: going through it again each time that garbage is collected took a tenth of all time."""
    if "streamlit" in sys.modules:
        from streamlit.components.v2 import manifest_scanner

        manifest_scanner.scan_component_manifests = functools.cache(manifest_scanner.scan_component_manifests)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # what a run makes is seldom in cycles


@pytest.fixture
def overwrite(request: pytest.FixtureRequest) -> bool:
    """Return whether golden files are to be written anew."""
    return request.config.getoption("--overwrite")


@pytest.fixture(scope="session")
def vit():
    """Return the model that most tests run, at its own sizes; it is never modified."""
    import tracer  # loads torch

    return tracer.load("vit")


@pytest.fixture(scope="session")
def plain(vit):
    """Return the run of its own sample, without changes."""
    return vit.trace()


@pytest.fixture(scope="session")
def app_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the app, started for this worker on a free port and ended with it."""
    log = tmp_path_factory.mktemp("app") / "log.txt"
    with App(log) as app:
        yield app.address


@pytest.fixture(scope="session")
def chromium() -> Iterator:
    """Start a headless Chromium, by `launch` or `launch_persistent_context`: that on the PATH, or Playwright's own."""
    playwright = pytest.importorskip("playwright.sync_api") if "CI" not in os.environ else _playwright()
    playwright.expect.set_options(timeout=120_000)  # milliseconds: for a machine under load
    with playwright.sync_playwright() as driver:

        def start(how: str, *folder: str, **options):
            path = shutil.which("chromium")
            try:
                return getattr(driver.chromium, how)(*folder, executable_path=path, args=_CHROMIUM_ARGUMENTS, **options)
            except playwright.Error as error:
                if "CI" in os.environ:
                    raise
                pytest.skip(f"no browser: {error.message.splitlines()[0]}")

        yield start


@pytest.fixture(scope="session")
def browser(chromium) -> Iterator:
    """Browser of contexts that know of nothing before."""
    browser = chromium("launch")
    yield browser
    browser.close()


def _playwright():
    import playwright.sync_api

    return playwright.sync_api


@dataclass
class Seen:
    """Log of a page's forbidden acts."""

    foreign: list[str] = field(default_factory=list)  # addresses asked for outside the app's own server
    errors: list[str] = field(default_factory=list)  # of the console, and uncaught exceptions


@pytest.fixture(scope="session")
def profile(chromium, app_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    """Yield the profile that the pages of this worker share: fetched and compiled scripts of the app, which only a
    folder keeps."""
    folder = str(tmp_path_factory.mktemp("profile"))
    viewport = {"width": 1280, "height": 900}
    context = chromium("launch_persistent_context", folder, base_url=app_server, viewport=viewport)
    yield context
    context.close()


@pytest.fixture
def page(profile, app_server: str) -> Iterator:
    """Page of a visitor who was never here; `page.seen` holds its requests to other hosts, and its errors."""
    own = urlsplit(app_server).netloc
    page = profile.new_page()
    page.seen = Seen()

    def look(request) -> None:
        address = urlsplit(request.url)
        left = request.failure != "csp"  # else the browser itself did not let it go
        if left and address.scheme not in ("data", "blob", "about") and address.netloc != own:
            page.seen.foreign.append(request.url)

    page.on("requestfinished", look)
    page.on("requestfailed", look)
    page.on("console", lambda message: message.type == "error" and page.seen.errors.append(message.text))
    page.on("pageerror", lambda error: page.seen.errors.append(str(error)))
    page.on("websocket", lambda socket: urlsplit(socket.url).netloc != own and page.seen.foreign.append(socket.url))
    yield page
    if page.url.startswith(app_server):
        page.evaluate("localStorage.clear()")
    page.close()
    profile.clear_cookies()
    profile.clear_permissions()
