"""Make the picture of the README, docs/overview.webp: the app's first page, as a browser shows it.

It needs Playwright and Chromium, which `make ready` installs.
"""

import io
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("overview.webp")
WIDTH, HEIGHT = 1280, 1090
MAX_BYTES = 200_000
"""Bytes of the picture at most: it is part of every clone."""
START = 180
"""Seconds until the app has to answer: it runs its first model before."""


def main() -> None:
    """Start the app, take the picture, and write it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = subprocess.Popen([sys.executable, "-m", "tracer", "app", "--port", str(port)], cwd=PICTURE.parents[1])
    try:
        wait(f"http://127.0.0.1:{port}/healthz")
        screenshot = take(f"http://127.0.0.1:{port}")
    finally:
        app.terminate()
        app.wait()
    Image.open(io.BytesIO(screenshot)).convert("RGB").save(PICTURE, quality=80, method=6)
    size = PICTURE.stat().st_size
    if size > MAX_BYTES:
        raise SystemExit(f"{PICTURE} has {size} bytes, expected at most {MAX_BYTES}")
    print(f"{PICTURE}: {size} bytes")


def wait(address: str) -> None:
    """Wait until an address answers. TimeoutError after START seconds."""
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(address, timeout=10).close()
            return
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.5)
    raise TimeoutError(f"{address} did not answer in {START} seconds")


def take(address: str) -> bytes:
    """Return the first page as a PNG, once its equations are drawn and nothing runs any more."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(address)
        page.get_by_text("What to look at next").wait_for(timeout=120_000)
        page.locator("[data-test-script-state=notRunning]").wait_for(timeout=120_000)
        page.wait_for_timeout(3_000)
        screenshot = page.screenshot()
        browser.close()
    return screenshot


if __name__ == "__main__":
    main()
