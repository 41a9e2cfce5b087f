"""Decision whether this server runs its owner's own code, and whose requests it then accepts.

It does only where `python -m tracer app --own-code` started it, on this machine's loopback and not hosted. Nothing in
the environment, in a file or in an address turns it on. The code runs with the rights of the process, so everything
else is refused while it is on: other hosts, pages of other origins, requests without an Origin that open a websocket,
and what a proxy passes on. Other users of this machine can reach its loopback, too, so the page stays locked until
somebody types the key that the terminal shows.
"""

from __future__ import annotations

import secrets
from time import monotonic
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope
from streamlit import config

from tracer.cli import own_code as switch
from tracer.cli.own_code import is_loopback
from tracer.utils.limits import limits

PROXY_HEADERS = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Headers by which a proxy says that a request is somebody else's."""
TRIES, PAUSE = 5, 60.0
"""Wrong keys, of all visitors together, after which no key is taken for some seconds."""
REFUSAL = "This server runs code of its owner, so it answers pages of its own on this machine alone."

_wrong: list[float] = []


def is_on() -> bool:
    """Return whether this server runs its owner's code."""
    return bool(switch.key()) and not limits().hosted and is_loopback(_address())


def _address() -> str:
    """Return the address that the server listens on."""
    return config.get_option("server.address") or "0.0.0.0"


def unlocks(text: str) -> bool:
    """Return whether a text is the key. Raise ValueError after too many wrong ones."""
    now = monotonic()
    _wrong[:] = [at for at in _wrong if now - at < PAUSE]
    if len(_wrong) >= TRIES:
        raise ValueError("Too many wrong keys: try again in a minute.")
    right = is_on() and secrets.compare_digest(text.strip().lower().encode(), switch.key().encode())
    if not right:
        _wrong.append(now)
    return right


def is_own(scope: Scope) -> bool:
    """Return whether a request comes from a page of this server, opened on this machine under one of its own names."""
    headers = Headers(scope=scope)
    host, origin = headers.get("host"), headers.get("origin")
    client = scope["client"][0] if scope.get("client") else ""
    if any(name in headers for name in PROXY_HEADERS) or (client and not is_loopback(client)):
        return False
    if not _is_loopback(host):
        return False
    if origin is None:
        return scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
    scheme, _, place = origin.partition("://")
    return scheme in ("http", "https") and _is_loopback(place) and place == host


def _is_loopback(host: str | None) -> bool:
    """Return whether a Host header, or the host of an Origin, names this machine's loopback."""
    try:
        parts = urlsplit(f"//{host or ''}")
        _ = parts.port  # ValueError where that is not a number
    except ValueError:
        return False
    return (
        parts.netloc == host and parts.username is None and bool(parts.hostname) and is_loopback(parts.hostname or "")
    )
