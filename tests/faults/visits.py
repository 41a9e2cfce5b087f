"""Faults under visitors, in real browsers: their data stays, a sentence reports the fault, addresses lead back."""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import psutil
from PIL import Image

from tests.faults.place import Server, copy_install, read_only, small_disk

MAX_MILLISECONDS = 120_000
"""Milliseconds that a page may take on a machine that is busy."""
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
ARGUMENTS += ["--disable-component-update", "--disable-sync"]
DONE_TEXT = "The run in numbers"
WRITING = "/?model=nanogpt&text=To+be%2C+or+not"
LONG_ADDRESS = "/?model=nanogpt&text=" + "To+be%2C+or+not+" * 15
"""A text whose run takes long enough to be broken off."""


def browser_killed_in_a_run(folder: Path) -> str:
    """Keep the photo of another visitor, and reopen the address of the one whose browser was killed."""
    with Server(folder) as server, _browser() as mine, _browser() as other:
        page = _open_page(mine, server.address)
        _give(page, "mine.png", _photo())
        page.get_by_text("Your photo: mine.png").wait_for()
        long = f"{server.address}{LONG_ADDRESS}"
        _running(other, long)
        _kill(other)
        page.get_by_role("link", name="Attention").click()
        page.get_by_role("heading", name=re.compile("attend to")).wait_for()
        assert page.get_by_text("Your photo: mine.png").is_visible(), "the photo of another visitor is lost"
        again = _open_page(mine, long)
        assert again.get_by_text(DONE_TEXT).is_visible()
        server.quiet()
    return "the other visitor keeps the photo, and the same address opens anew"


def upload_cut_off(folder: Path) -> str:
    """Drop a partial upload; the same visitor uploads the file again."""
    with Server(folder) as server, _browser() as browser:
        page, sent = _open_page(browser, server.address), []
        page.on("request", lambda asked: sent.append(asked) if asked.method == "PUT" else None)
        _give(page, "first.png", _photo())
        page.get_by_text("Your photo: first.png").wait_for()
        _half(server, sent[0].url, sent[0].all_headers())
        page.route("**/_stcore/upload_file/**", lambda route: route.abort())
        _give(page, "second.png", _photo())
        said = page.get_by_test_id("stFileUploaderFileErrorMessage").or_(page.get_by_text("Network Error")).first
        said.wait_for()
        seen = said.inner_text()
        assert page.get_by_text("Your photo: first.png").is_visible(), "what was on screen is lost"
        page.unroute("**/_stcore/upload_file/**")
        _give(page, "third.png", _photo())
        page.get_by_text("Your photo: third.png").wait_for()
        server.quiet()
    return f"the page says {' '.join(seen.split())!r}, keeps what was on it, and takes the next file"


def sigterm_in_a_run(folder: Path) -> str:
    """End the server within seconds; started again, the page that is still open comes back by its address."""
    with Server(folder) as server, _browser() as browser:
        writer, looker = _open_page(browser, server.address + WRITING), _open_page(browser, server.address)
        _give(looker, "mine.png", _photo())
        looker.get_by_text("Your photo: mine.png").wait_for()
        running = _running(browser, server.address + LONG_ADDRESS)
        start = time.monotonic()
        status = server.end(signal.SIGTERM, 60)
        took = time.monotonic() - start
        server.quiet()
        assert status in (0, -signal.SIGTERM, 128 + signal.SIGTERM), f"it ended with status {status}"
        server.start()
        for page in (writer, looker, running):
            page.set_default_timeout(MAX_MILLISECONDS)
            page.reload()
        writer.locator(".sentence", has_text="To be, or not").wait_for()
        running.get_by_text(DONE_TEXT).wait_for()
        said = looker.get_by_text(re.compile("mine.png is not kept here any more"))
        said.wait_for()
        server.quiet()
        return (
            f"it ended in {took:.1f} s; text and model are back by the address, and of the photo: {said.inner_text()}"
        )


def server_restarted_behind_an_open_page(folder: Path) -> str:
    """A page that nobody reloads finds the server again by itself."""
    with Server(folder) as server, _browser() as browser:
        page = _open_page(browser, server.address + WRITING)
        server.end(signal.SIGKILL)
        server.start()
        page.get_by_role("link", name="Attention").click()
        page.get_by_role("heading", name=re.compile("attend to")).wait_for()
        assert "text=To+be" in page.url, page.url
        server.quiet()
    return "killed and started again, the open page goes on at its next click, with its text"


def full_disk_under_the_app(folder: Path) -> str:
    """Photos are taken and runs are saved with no room on the disk: neither touches it."""
    with small_disk(folder / "disk", 16 << 10), Server(folder, TMPDIR=str(folder / "disk")) as server:
        (folder / "disk" / "full").write_bytes(bytes(4 << 10))
        with _browser() as browser:
            page = _open_page(browser, server.address)
            for number in range(4):  # whatever room is left
                with (folder / "disk" / f"more{number}").open("wb") as file:
                    _fill(file)
            _give(page, "mine.png", _photo(900))
            page.get_by_text("Your photo: mine.png").wait_for()
            with page.expect_download(timeout=MAX_MILLISECONDS) as kept:
                page.get_by_role("button", name="Save this run").click()
            size = Path(kept.value.path()).stat().st_size
            assert size > 100_000, f"the file has {size} bytes"
            server.quiet()
    return f"a photo of {len(_photo(900)):,} bytes was taken and a run of {size:,} bytes saved"


def read_only_install_under_the_app(folder: Path) -> str:
    """Run the app from a folder that it can't write to, without a home."""
    root = copy_install(folder)
    with read_only(root), Server(folder, root, HOME="/proc/nothing") as server, _browser() as browser:
        _open_page(browser, server.address)
        server.quiet()
    return "it opens, with no HOME either"


def no_network_under_the_app(folder: Path) -> str:
    """A model that is not on the machine is refused in a sentence above the page that was there."""
    nothing = {"HF_HUB_OFFLINE": None, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder)}
    with Server(folder, **nothing) as server, _browser() as browser:
        page = browser.new_page()
        page.goto(f"{server.address}/?model=hf%3Aopenai-community%2Fgpt2")
        said = page.get_by_role("alert").filter(has_text="gpt2")
        said.wait_for(timeout=MAX_MILLISECONDS)
        page.get_by_text(DONE_TEXT).wait_for(timeout=MAX_MILLISECONDS)
        server.quiet()
        return " ".join(said.inner_text().split())


def weights_missing_under_the_app(folder: Path) -> str:
    """One sentence in the place of the run; the other models work, and so does this one once the file is back."""
    root = copy_install(folder)
    file = root / "tracer" / "models" / "weights" / "nanogpt.safetensors"
    shutil.move(file, folder / "aside")
    with Server(folder, root) as server, _browser() as browser:
        page = browser.new_page()
        page.goto(f"{server.address}{WRITING}")
        said = page.get_by_role("alert").filter(has_text="nanogpt.safetensors").first
        said.wait_for(timeout=MAX_MILLISECONDS)
        seen = " ".join(said.inner_text().split())
        _open_page(browser, server.address)
        shutil.move(folder / "aside", file)
        _open_page(browser, server.address + WRITING)
        server.quiet()
    return seen


@contextmanager
def _browser() -> Iterator:
    """Yield a Chromium in a process of its own that can be killed."""
    from playwright.sync_api import Error

    before = {process.pid for process in psutil.Process().children(recursive=True)}
    chromium = _driver().chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
    own = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    _processes[chromium] = own
    try:
        yield chromium
    finally:
        try:
            chromium.close()
        except Error:
            _processes.pop(chromium, None)  # it was killed


_processes: dict = {}
_drivers: list = []


def _driver():
    """Return Playwright, started once for each thread."""
    from playwright.sync_api import sync_playwright

    if not _drivers:
        _drivers.append(sync_playwright().start())
    return _drivers[0]


def _kill(chromium) -> None:
    for process in _processes[chromium]:
        if process.is_running():
            process.kill()


def _open_page(browser, address: str):
    """Open a page at an address, with the run on it."""
    page = browser.new_page()
    page.set_default_timeout(MAX_MILLISECONDS)
    page.goto(address)
    page.get_by_text(DONE_TEXT).wait_for()
    return page


def _running(browser, address: str):
    """Open a page at an address whose run has begun."""
    page = browser.new_page()
    page.goto(address)
    page.locator(".stApp[data-test-script-state=running]").wait_for(state="attached", timeout=MAX_MILLISECONDS)
    return page


def _give(page, name: str, data: bytes) -> None:
    page.set_input_files("input[type=file]", {"name": name, "mimeType": "image/png", "buffer": data})


def _photo(side: int = 60) -> bytes:
    Image.effect_noise((side, side), 90).convert("RGB").save(file := BytesIO(), "PNG")
    return file.getvalue()


def _half(server: Server, address: str, headers: dict[str, str]) -> None:
    """Return the first half of an upload, after which the connection breaks."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.putrequest("PUT", urlsplit(address).path, skip_accept_encoding=True)
    for name, value in headers.items():
        if not name.startswith(":") and name not in ("content-length", "host", "connection", "accept-encoding"):
            connection.putheader(name, value)
    connection.putheader("Content-Length", str(5 << 20))
    connection.endheaders()
    connection.send(b"-" * (2 << 20))
    connection.close()
    time.sleep(1)
    assert server.answers(), "the server is gone"


def _fill(file) -> None:
    try:
        file.write(bytes(64 << 10))
        file.flush()
    except OSError:
        return
