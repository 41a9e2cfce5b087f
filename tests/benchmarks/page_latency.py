"""Waiting times of a visitor, measured in a real browser: the first heading, a key, another page; and the bytes on the
wire.

It needs Playwright and a Chromium, as the tests do. Figures of a busy machine are noise: run it when nothing else runs.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from tracer.benchmarks import MB, _row

STARTS, KEYS, TURNS = 5, 40, 3
MAX_IDLE_CPU = 0.1
"""Seconds of CPU in a second of which a server has nothing to do."""
PAGES = ("Trace", "Attention", "Mask", "Operations", "Overview")
HEADING = "[data-testid=stMain] h1"
WATCH = """() => {
  window.painted = [];
  addEventListener("keydown", ({ timeStamp }) => requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => window.painted.push(performance.now() - timeStamp);
    channel.port2.postMessage(0);
  }), true);
}"""
"""From a key to the frame in which what it did is painted."""

FIRST_PICTURE_SCRIPT = """new PerformanceObserver((list) => {
  for (const { url, startTime } of list.getEntries()) if (url) window.pictured ??= startTime;
}).observe({ type: "largest-contentful-paint", buffered: true });"""
"""When the first picture is painted."""


def bench() -> list[dict[str, Any]]:
    """Return all figures, as `tracer.benchmarks.bench` does.

    Raise ValueError without Playwright or a browser.
    """
    try:
        from playwright.sync_api import Error, sync_playwright  # the tests bring it, the app does not
    except ImportError:
        raise ValueError("bench --app needs Playwright, which is not installed: pip install playwright") from None
    with _server() as (address, number), sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except Error as error:
            raise ValueError(f"bench --app needs a browser: {error.message.splitlines()[0]}") from None
        with closing(browser):
            return [
                *_first(browser, address, number),
                *_beats(browser, address, number),
                *_keys(browser, address, number),
                *_turns(browser, address, number),
            ]


@contextmanager
def _server() -> Iterator[tuple[str, int]]:
    """Start the app on a free port, warm; yield its address and the number of its process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command, away = [sys.executable, "-m", "tracer", "app", "--port", str(port)], subprocess.DEVNULL
    server = subprocess.Popen(command, stdin=away, stdout=away, stderr=away)
    try:
        deadline = time.monotonic() + 180
        while not _well(address):
            if server.poll() is not None or time.monotonic() > deadline:
                raise ValueError(f"the app did not come up on {address}")
            time.sleep(0.1)
        _quiet(server.pid)
        yield address, server.pid
    finally:
        server.terminate()
        server.wait()


def _well(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5):
            return True
    except OSError:
        return False


def _cpu(number: int) -> float | None:
    """Return the seconds of CPU of a process so far; None if the system does not say."""
    try:
        with open(f"/proc/{number}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _quiet(number: int) -> None:
    """Wait until a process has finished its background work."""
    before, deadline = _cpu(number), time.monotonic() + 180
    while before is not None and time.monotonic() < deadline:
        time.sleep(1)
        if (now := _cpu(number)) is None or now - before < MAX_IDLE_CPU:
            return
        before = now


def _spent(name: str, number: int, since: float | None, count: int) -> Iterator[dict]:
    if since is not None and (now := _cpu(number)) is not None:
        yield _row(f"server CPU, {name}", [1000 * (now - since) / count], "ms")


def _first(browser, address: str, number: int) -> Iterator[dict]:
    """Measure fresh visitors, with nothing of the app in their cache; the first of them is not counted."""
    headings, pictures, alive, sizes, since = [], [], [], [], None
    for start in range(STARTS + 1):
        page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
        page.add_init_script(FIRST_PICTURE_SCRIPT)
        asked = _requests(page)
        started = time.perf_counter()
        page.goto(address, wait_until="commit")
        page.locator("h1").first.wait_for()
        headings.append(time.perf_counter() - started)
        page.locator(".film[data-beat]").wait_for()
        alive.append(time.perf_counter() - started)
        page.wait_for_load_state("networkidle")
        pictures.append(page.evaluate("window.pictured") / 1000)
        found = [request.sizes() for request in asked]
        sizes.append(sum(size["responseBodySize"] + size["responseHeadersSize"] for size in found) / MB)
        page.context.close()
        since = _cpu(number) if start == 0 else since
    yield _row("first heading of a new visitor", headings[1:], "s", 1.2)
    yield _row("first picture of a new visitor", pictures[1:], "s", 1.2)
    yield _row("the map that follows the pointer", alive[1:], "s")
    yield _row("first load, requests on the wire", sizes[1:], "MB", 2.5)
    yield from _spent("a new visitor", number, since, STARTS)


def _beats(browser, address: str, number: int) -> Iterator[dict]:
    """Measure the film of the front page: its bytes, and from a key to the painted frame of the next beat."""
    import tracer
    from tracer.figures.envelope import pack
    from tracer.figures.film import block_film, message
    from tracer.figures.film.storyboard import storyboard

    board = storyboard(tracer.load("vit").trace())
    names = message.ids(board)
    opened = [len(pack(block_film.build(board, name, names))) / 1000 for name in names if name.startswith("block")]
    yield _row("film of vit, as it is sent", [len(pack(message.build(board))) / 1000], "kB", 400)
    yield _row("largest block of vit, when it opens", [max(opened)], "kB", 250)
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    received: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: received.append(len(data))))
    page.goto(address)
    page.locator(".film[data-beat]").wait_for()
    page.wait_for_timeout(2000)
    page.evaluate(WATCH)
    received.clear()
    since = _cpu(number)
    for key in ("ArrowLeft", "ArrowRight") * (KEYS // 8):
        for _ in range(4):
            page.keyboard.press(key)
            page.wait_for_timeout(150)
    yield _row("film, from a key to the painted frame", page.evaluate("window.painted"), "ms", 50)
    yield _row("film, messages that came for these keys", [len(received)], "messages", 0)
    yield from _spent("a key on the film", number, since, KEYS)
    page.close()


def _requests(page) -> list:
    """Return the finished requests of a page, a list that grows with them."""
    asked = []
    page.on("requestfinished", lambda request: asked.append(request))
    return asked


def _keys(browser, address: str, number: int) -> Iterator[dict]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    received = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda data: received.append(len(data))))
    page.goto(f"{address}/trace?step=patches")
    page.locator(".stepper .equation .katex").first.wait_for()
    page.wait_for_timeout(2000)
    yield _row("Trace, messages over the websocket", [sum(received) / MB], "MB", 4)
    page.evaluate(WATCH)
    received.clear()
    since = _cpu(number)
    for _ in range(KEYS):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(150)
    yield _row("Trace, from a key to the painted frame", page.evaluate("window.painted"), "ms", 50)
    yield _row("Trace, messages that came for these keys", [len(received)], "messages", 0)
    yield from _spent("a key on Trace", number, since, KEYS)
    page.close()


def _turns(browser, address: str, number: int) -> Iterator[dict]:
    """Measure from a click on a page's link to its heading; the first round is not counted."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.locator(HEADING).wait_for()
    page.wait_for_load_state("networkidle")
    took: dict[str, list[float]] = {name: [] for name in PAGES}
    since = None
    for turn in range(TURNS + 1):
        for name in PAGES:
            before = page.locator(HEADING).inner_text()
            started = time.perf_counter()
            page.get_by_role("link", name=name, exact=True).click()
            page.locator(HEADING).filter(has_not_text=before).wait_for()
            if turn:
                took[name].append(1000 * (time.perf_counter() - started))
            page.wait_for_timeout(1500)
        since = _cpu(number) if turn == 0 else since
    for name, found in took.items():
        yield _row(f"another page: {name}", found, "ms", 250)
    yield from _spent("another page", number, since, TURNS * len(PAGES))
    page.close()
