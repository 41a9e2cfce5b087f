"""Host names of this server: a request that names another host is refused.

A stranger's page may resolve its own name to this machine (DNS rebinding), and its scripts would then share our origin.
So the list of names counts, and not that Origin and Host agree. A numeric address is nobody's name.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from streamlit import config

from tracer.cli.own_code import is_loopback
from tracer.utils.limits import limits


def is_allowed(host: str | None) -> bool:
    """Return whether a Host header names this server: this machine itself, a name of `TRACER_HOST`, and where it
    listens to others, its numeric address and, at home, its own name."""
    if (name := _name(host)) is None:
        return False
    return (
        is_loopback(name)
        or any(_matches(name, known) for known in limits().hosts)
        or (_listens_to_others() and _own(name))
    )


def expected_names() -> str:
    """Return the accepted names, in words."""
    return ", ".join(("localhost", *limits().hosts))


def is_same_origin(origin: str | None, host: str | None) -> bool:
    """Return whether a request comes from a page of this server; a request without Origin comes from no browser."""
    return origin is None or urlsplit(origin).netloc == host


def _name(host: str | None) -> str | None:
    """Return the name or address in a Host header, without its port; None where there is none."""
    try:
        parts = urlsplit(f"//{host or ''}")
        _ = parts.port  # ValueError where that is not a number
    except ValueError:
        return None
    plain = parts.netloc == host and parts.username is None
    return parts.hostname.rstrip(".") if parts.hostname and plain else None


def _matches(name: str, known: str) -> bool:
    """Return whether a name matches a pattern: `*.example.org` is any name below it, `*` any at all."""
    return known == "*" or name == known or (known.startswith("*.") and name.endswith(known[1:]))


def _listens_to_others() -> bool:
    return not is_loopback(config.get_option("server.address") or "0.0.0.0")


def _own(name: str) -> bool:
    """Return whether a name is a numeric address or, at home, this machine's name in its network."""
    try:
        ip_address(name)
    except ValueError:
        own = socket.gethostname().lower()
        return not limits().hosted and name in (own, f"{own.partition('.')[0]}.local")
    return True
