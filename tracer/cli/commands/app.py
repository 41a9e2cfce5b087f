"""Start the app, from a checkout or an installed package.

Options of Streamlit's own may follow `--`, such as `-- --logger.level=debug`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import socket
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from tracer.cli import shared_options
from tracer.utils import errors
from tracer.utils.errors import quote

PROJECT_FOLDER = Path(__file__).resolve().parents[2]
PLACES = (PROJECT_FOLDER / "website" / "app.py", PROJECT_FOLDER.parent / "app.py")
"""Where the app is: in an installed package, and in a checkout."""
MESSAGE = 256 * 2**10
"""Bytes of the longest message that a browser may send over its websocket. Files come by HTTP, so widgets' values are
all that messages hold."""
PING = 30
"""Seconds between two pings of a websocket, and until the answer to one, as Streamlit has them."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add --address, --port, and options for Streamlit."""
    parser.add_argument("--address", default="127.0.0.1", help="the address it listens on (default: 127.0.0.1)")
    parser.add_argument("--port", type=port, default=8501, help="its port (default: 8501)")
    parser.add_argument(
        "--own-code",
        action="store_true",
        help="add a page that runs a file of your own, with your rights; on this machine alone",
    )
    parser.add_argument("streamlit", nargs="*", metavar="-- OPTION", help="options of Streamlit's own")


def port(text: str) -> int:
    """Return a port's number. ArgumentTypeError quotes another text."""
    if not (re.fullmatch("[1-9][0-9]{0,4}", text) and int(text) < 1 << 16):
        raise argparse.ArgumentTypeError(f"{quote(text)} is not a port, expected a number from 1 to 65535")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Serve the app until this process is asked to end.

    The app is an ASGI application, which uvicorn serves: Streamlit's own command would accept messages from browsers as
    long as those that it sends.
    """
    if find_spec("streamlit") is None:
        raise ValueError(errors.sentence("streamlit", "the app"))
    places = [place for place in PLACES if place.exists()]
    if not places:
        raise ValueError(f"there is no app at {quote(str(PLACES[0]))}, expected one in the package or beside it")
    folder = places[0].parent
    for name, value in settings(folder / ".streamlit" / "config.toml", options.streamlit).items():
        os.environ.setdefault(name, value)
    os.environ.update(STREAMLIT_SERVER_ADDRESS=options.address, STREAMLIT_SERVER_PORT=str(options.port))
    sys.path.insert(0, str(folder))  # as Streamlit has it: pages are imported by their own name
    key = shared_options.enable(options.address) if options.own_code else ""
    outside = listening(options.address, options.port)
    print(f"Tensor tracer: http://{options.address}:{options.port}", flush=True)
    if key:
        print(f"My code: http://{options.address}:{options.port}/my_code, unlocked by the key {key}", flush=True)
    import uvicorn  # comes with streamlit

    config = uvicorn.Config(
        importlib.import_module(places[0].stem).app,
        ws="websockets-sansio",
        ws_max_size=MESSAGE,
        ws_ping_interval=PING,
        ws_ping_timeout=PING,
        log_level=os.environ.get(variable("logger.level"), "warning").lower(),
        access_log=False,  # an address holds a visitor's text
        log_config=None,  # Streamlit's, which a hosted server writes without content
        ssl_certfile=os.environ.get(variable("server.sslCertFile")),
        ssl_keyfile=os.environ.get(variable("server.sslKeyFile")),
    )
    server = uvicorn.Server(config)
    server.run(sockets=[outside])
    return 0 if server.started else 1


def settings(file: Path, options: Sequence[str]) -> dict[str, str]:
    """Return the environment variables of the settings in Streamlit's file beside the app, which Streamlit looks for in
    the current folder alone, and of `--section.name=value` options. ValueError quotes any other option."""
    stated = {}
    for name, value in _leaves(tomllib.loads(file.read_text(encoding="utf-8"))) if file.exists() else ():
        stated[variable(name)] = str(value)
    for option in options:
        if not (match := re.fullmatch(r"--([a-z]\w*(?:\.\w+)+)=(.*)", option, re.DOTALL)):
            raise ValueError(f"{quote(option)} is not an option of Streamlit's, expected one like --logger.level=debug")
        stated[variable(match[1])] = match[2]
    return stated


def variable(option: str) -> str:
    """Return the name of the environment variable that sets an option of Streamlit's, `STREAMLIT_SERVER_PORT` for
    `server.port`."""
    return "STREAMLIT_" + re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", option.replace(".", "_")).upper()


def _leaves(settings: Mapping, above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def listening(address: str, port: int) -> socket.socket:
    """Return a listening socket. Raise ValueError where the port is taken or the address is not this machine's."""
    try:
        return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ValueError(f"can't listen at {quote(f'{address}:{port}')}: {why}; expected a free port") from None
