"""Two replicas of the hosted app behind nginx, on this machine, with the very `hosting/nginx.conf`: `make replicas`.

Says what was tried, line by line; exit status 1 at the first that is not so. Needs nginx and openssl on the PATH.
`--crowd 100` has so many visitors come within half a minute, go through pages and run the model on a text each.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from string import ascii_letters
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from tests.hosted.visitor import Visitor
from tests.load import visitor as concurrent
from tests.support.serving import ROOT, App

PORTS = (8631, 8632)
PLAIN, SECURE = 8633, 8634
ADDRESS = f"https://127.0.0.1:{SECURE}"
VISITORS = 10
PAGES = ("Trace", "Attention", "Mask", "Operations", "Tokens", "Overview")
ARRIVAL, THINKING_SECONDS = 30.0, (1.0, 5.0)
"""Seconds in which a crowd arrives, and for which each of it looks at a page, from least to most."""
TYPED_TEXT, FILE = "ZEBRA", "giraffe-4711.png"
"""What must be in no log: a text that is typed, and the name of a file."""


def true(what: str, is_so: object) -> None:
    print(("yes  " if is_so else "NO   ") + what, flush=True)
    if not is_so:
        raise SystemExit(1)


def write_configuration(folder: Path) -> Path:
    """Return the configuration with ports, folders and replicas of this machine, each of them named there once."""
    text = (ROOT / "hosting" / "nginx.conf").read_text(encoding="utf-8")
    replicas = "".join(f"server 127.0.0.1:{port} max_fails=1 fail_timeout=5s; " for port in PORTS)
    temporary = "".join(f"{kind}_temp_path {folder / kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi"))
    here = {
        "listen 80;": f"listen 127.0.0.1:{PLAIN};",
        "listen 443 ssl;": f"listen 127.0.0.1:{SECURE} ssl;",
        "server app:8501 max_fails=1 fail_timeout=5s;": replicas,
        "/etc/nginx/tls/certificate.pem": str(folder / "certificate.pem"),
        "/etc/nginx/tls/key.pem": str(folder / "key.pem"),
        "http {": f"http {{ {temporary} scgi_temp_path {folder / 'scgi'};",
    }
    for theirs, ours in here.items():
        assert text.count(theirs) == 1, theirs
        text = text.replace(theirs, ours)
    path = folder / "nginx.conf"
    path.write_text(f"daemon off; pid {folder / 'pid'};\n{text}", encoding="utf-8")
    return path


def certificate(folder: Path) -> ssl.SSLContext:
    """Return a self-signed certificate for this machine, and a context that trusts it."""
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    made = [*command.split(), "-keyout", folder / "key.pem", "-out", folder / "certificate.pem"]
    subprocess.run(made, check=True, capture_output=True)
    return ssl.create_default_context(cafile=folder / "certificate.pem")


def replica(port: int, folder: Path, running: ExitStack) -> App:
    return running.enter_context(
        App(folder / f"replica-{port}.log", port=port, health="/healthz", TRACER_HOSTED="1", TRACER_PREWARM="all")
    )


def start(command: list, log, running: ExitStack) -> None:
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    running.callback(lambda: (process.terminate(), process.wait(30)))


def photo() -> bytes:
    file = BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 255, (60, 90, 3), dtype=np.uint8)).save(file, "PNG")
    return file.getvalue()


def connected_replicas(log: Path) -> set[str]:
    """Return the replicas that websockets were opened to, as the proxy's log says once they are closed."""
    return {line.split()[-1] for line in log.read_text().splitlines() if " 101 " in line}


def main() -> None:
    parser = argparse.ArgumentParser(prog="replicas", description=__doc__)
    parser.add_argument("--crowd", type=int, default=0, help="visitors who come at about the same time")
    options = parser.parse_args()
    for needed in ("nginx", "openssl"):
        if not shutil.which(needed):
            sys.exit(f"{needed} is not installed, and the replicas are tried behind it: apt-get install {needed}")
    with TemporaryDirectory() as name, ExitStack() as running:
        folder = Path(name)
        folder.chmod(0o755)
        context, log = certificate(folder), folder / "nginx.log"
        nginx = ["nginx", "-p", folder, "-c", write_configuration(folder)]
        subprocess.run([*nginx, "-t"], check=True, capture_output=True)
        replicas = {port: replica(port, folder, running) for port in PORTS}
        true("both replicas say at /healthz that they are ready", all(app.answers() for app in replicas.values()))
        start(nginx, running.enter_context(log.open("ab")), running)
        time.sleep(1)
        if options.crowd:
            asyncio.run(crowd(context, options.crowd))
        check_proxy(context, folder, log, replicas[PORTS[0]])


async def crowd(context: ssl.SSLContext, count: int) -> None:
    """Open many visitors at about the same time, all behind one address."""

    async def visit(number: int) -> list[concurrent.Answer]:
        chance, visitor = random.Random(number), concurrent.Visitor(ADDRESS, context)
        await asyncio.sleep(chance.uniform(0, ARRIVAL))
        answers = [await visitor.open()]
        for page in PAGES:
            await asyncio.sleep(chance.uniform(*THINKING_SECONDS))
            answers.append(await visitor.follow(visitor.find("page_link", page)))
        answers.append(await visitor.set(visitor.find("selectbox", "Model"), string_value="nanogpt"))
        text, typed = (
            visitor.find("text_area", "Your text"),
            f"{TYPED_TEXT} {''.join(chance.choices(ascii_letters, k=9))}",
        )
        answers.append(await visitor.set(text, string_value=typed))
        if not visitor.says(typed):
            answers[-1].problems.append("the text is not on the page")
        if visitor.says("going on or waiting, as many as this server"):
            answers[-1].problems.append("the run was refused")
        await visitor.close()
        return answers

    visits = await asyncio.gather(*map(visit, range(count)))
    answers = [answer for visit in visits for answer in visit]
    problems = [problem for answer in answers for problem in answer.problems]
    for what, part in (("pages", answers), ("texts", [visit[-1] for visit in visits])):
        took = sorted(answer.seconds for answer in part)
        print(f"     {len(took)} {what}, p95 {took[int(0.95 * len(took))]:.2f} s, longest {took[-1]:.2f} s")
    true(f"a crowd of {count} goes through pages and texts without an error {problems[:3] or ''}", not problems)


def check_proxy(context: ssl.SSLContext, folder: Path, log: Path, first: App) -> None:
    one = Visitor(ADDRESS, context)
    status, headers, body = one.get("/trace", **{"Accept-Encoding": "gzip"})
    true("a page comes over TLS, and says that it always will", status == 200 and "strict-transport" in headers)
    true("its content security policy comes through", "content-security-policy" in headers)
    true("it is compressed", "content-encoding: gzip" in headers)
    script = next(part for part in one.get("/trace")[2].decode().split('"') if "static/js/index" in part)
    status, headers, body = one.get(script.removeprefix("."), **{"Accept-Encoding": "gzip"})
    true(f"so is its script: {len(body):,} bytes", status == 200 and "content-encoding: gzip" in headers)
    true("http leads to https", b"308" in redirect())
    true(f"a head that never ends is cut off after {(took := half_sent()):.1f} s", took < HEAD + 5)
    true("/healthz and /_stcore/metrics are closed to visitors", {one.get(path)[0] for path in BLOCKED_PATHS} == {404})
    true("a file of 30 MB is refused", one.put("/_stcore/upload_file/a/b", FILE, bytes(30 * 2**20)) == 413)

    visitors = [Visitor(ADDRESS, context).open() for _ in range(VISITORS)]
    before = [visitor.session for visitor in visitors]
    for visitor in visitors:
        true(f"an upload finds the replica of its page: {visitor.session[:8]}", visitor.give(FILE, photo()))
        true("and the page shows the photo", visitor.says(f"Your photo: {FILE}"))
    for visitor in visitors:
        visitor.close()
        visitor.connect()
        visitor.rerun()
    true("who connects again comes back to the same session", [visitor.session for visitor in visitors] == before)
    true("with the photo that is there", all(visitor.says(f"Your photo: {FILE}") for visitor in visitors))
    time.sleep(1)
    true(f"both replicas serve visitors: {connected_replicas(log)}", len(connected_replicas(log)) == 2)

    first.end(signal.SIGKILL)
    moved = [visitor for visitor in visitors if is_disconnected(visitor)]
    true(f"one replica is killed, and {len(moved)} of {VISITORS} visitors lose it", 0 < len(moved) < VISITORS)
    for visitor in moved:
        visitor.connect()
        visitor.run(f"model=nanogpt&text={TYPED_TEXT}")
    true("they come back to the other one", all(visitor.session not in before for visitor in moved))
    true("and the address brings their text back", all(visitor.says(TYPED_TEXT) for visitor in moved))
    true("the replica is started again", first.start().answers())
    time.sleep(6)
    true("who moved can upload although the cookie names the first", all(v.give(FILE, photo()) for v in moved))
    true("and reads what becomes of the file", all(visitor.says(FILE) for visitor in moved))

    with ThreadPoolExecutor(20) as asking:  # one after another they may be slower than what is allowed
        answers = list(asking.map(lambda _: one.get(f"/trace?text={TYPED_TEXT}")[0], range(400)))
    true(f"of 400 pages at once {answers.count(429)} are answered 429, the others 200", set(answers) == {200, 429})
    for visitor in visitors:
        visitor.close()
    time.sleep(1)
    written = "".join(path.read_text(errors="replace") for path in folder.glob("*.log"))
    true(f"of {len(written):,} characters of logs none are a visitor's", not any(word in written for word in SECRETS))


HEAD = 10.0
"""Seconds that the proxy waits for the head of a request."""
BLOCKED_PATHS = ("/healthz", "/_stcore/metrics")
SECRETS = (TYPED_TEXT, FILE, "nanogpt")


def redirect() -> bytes:
    with socket.create_connection(("127.0.0.1", PLAIN), timeout=10) as plain:
        plain.sendall(b"GET /trace HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
        return plain.recv(1000)


def half_sent() -> float:
    """Return the seconds for which a connection whose request never ends is held."""
    with socket.create_connection(("127.0.0.1", PLAIN), timeout=HEAD * 3) as plain:
        began = time.monotonic()
        plain.sendall(b"GET /trace HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half")
        while plain.recv(1000):
            pass
    return time.monotonic() - began


def is_disconnected(visitor: Visitor) -> bool:
    """Return whether the visitor's websocket was closed."""
    return any("was closed" in problem for problem in visitor.rerun().problems)


if __name__ == "__main__":
    main()
