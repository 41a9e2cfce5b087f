"""Starts the app in a browser, from a checkout or an installed package.

Options of Streamlit's own may follow `--`, such as `-- --server.headless=false`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tracer.cli import several
from tracer.common.quoting import quoted

HERE = Path(__file__).resolve().parents[1]
PLACES = (HERE / "website" / "app.py", HERE.parent / "app.py")
"""Where the app is: in an installed package, and in a checkout."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """--address, --port, and what Streamlit is told."""
    parser.add_argument("--address", default="127.0.0.1", help="the address it listens on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=8501, help="its port (default: 8501)")
    parser.add_argument(
        "--servers", type=servers, default=1, help="processes that share the port, for a class: one per core at most"
    )
    parser.add_argument("streamlit", nargs="*", metavar="-- OPTION", help="options of Streamlit's own")


def port(text: str) -> int:
    """A port's number. ArgumentTypeError quotes another text."""
    if not (re.fullmatch("[1-9][0-9]{0,4}", text) and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is not a port, expected a number from 1 to 65535")
    return int(text)


def servers(text: str) -> int:
    """A number of servers. ArgumentTypeError quotes another text."""
    if not (re.fullmatch("[1-9][0-9]?", text)):
        raise argparse.ArgumentTypeError(f"{quoted(text)} is no number of servers, expected one from 1 to 99")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Becomes the server: this process is then Streamlit's, or stands before several of them."""
    if find_spec("streamlit") is None:
        raise ValueError("the app needs streamlit, which is not installed: pip install 'tensor-tracer[app]'")
    found = [place for place in PLACES if place.exists()]
    if not found:
        raise ValueError(f"there is no app at {quoted(str(PLACES[0]))}, expected one in the package or beside it")
    command = [sys.executable, "-m", "streamlit", "run", str(found[0])]
    said = f"Tensor tracer: http://{options.address}:{options.port}"
    if options.servers == 1:
        print(said, flush=True)
        at = ["--server.address", options.address, "--server.port", str(options.port)]
        os.execv(sys.executable, [*command, *at, *options.streamlit])
    if any(option.startswith("--server.ssl") for option in options.streamlit):
        raise ValueError(f"--servers {options.servers} can't be had with --server.ssl…: put a proxy before them")
    outside = listening(options.address, options.port)
    print(said, flush=True)
    ports = several.free_ports(options.servers)
    quiet = ["--logger.hideWelcomeMessage", "true", *options.streamlit]  # which would say the port of each
    environment = {**os.environ, "TRACER_SERVERS": str(options.servers)}
    if sys.platform == "linux":
        outside.set_inheritable(True)
        forked = str(found[0].parent / "pages" / "shared" / "forked.py")
        told = [several.__file__, str(found[0]), str(outside.detach()), *map(str, ports), "--", *quiet]
        os.execve(sys.executable, [sys.executable, forked, *told], environment)
    at = ["--server.address", several.HERE, *quiet, "--server.port"]
    started = {port: subprocess.Popen([*command, *at, str(port)], env=environment) for port in ports}
    return asyncio.run(several.serve(outside, started))


def listening(address: str, port: int) -> socket.socket:
    """A socket that listens there. ValueError where the port is taken or the address is not this machine's."""
    try:
        return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ValueError(f"can't listen at {quoted(f'{address}:{port}')}: {why}; expected a free port") from None
