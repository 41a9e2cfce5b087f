"""The names under which this server is reached: a request that names another host is refused.

A page of a stranger may have its own name lead to this machine (DNS rebinding), and its scripts would then be of the
same origin as ours. So what counts is the list of names, and not that Origin and Host are alike. An address in digits
is nobody's name.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from streamlit import config

from tracer.common.limits import limits


def allowed(host: str | None) -> bool:
    """Whether a Host header names this server: this machine itself, a name of `TRACER_HOST`, and where it listens to
    others, its address in digits and, at home, its own name."""
    if (name := _name(host)) is None:
        return False
    return (
        loopback(name)
        or any(_matches(name, known) for known in limits().hosts)
        or (_listens_to_others() and _own(name))
    )


def expected() -> str:
    """The names that are expected, in words."""
    return ", ".join(("localhost", *limits().hosts))


def same(origin: str | None, host: str | None) -> bool:
    """Whether a page of this server asks; who sends no Origin is no browser."""
    return origin is None or urlsplit(origin).netloc == host


def _name(host: str | None) -> str | None:
    """The name or address in a Host header, without its port; None where there is none."""
    try:
        parts = urlsplit(f"//{host or ''}")
        _ = parts.port  # ValueError where that is no number
    except ValueError:
        return None
    plain = parts.netloc == host and parts.username is None
    return parts.hostname.rstrip(".") if parts.hostname and plain else None


def loopback(name: str) -> bool:
    """Return whether a name or an address in digits is this machine's own for itself."""
    try:
        found = ip_address(name)
    except ValueError:
        return name == "localhost"
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def _matches(name: str, known: str) -> bool:
    """Whether a name is one of those that a pattern stands for: `*.example.org` is any below it, `*` any at all."""
    return known == "*" or name == known or (known.startswith("*.") and name.endswith(known[1:]))


def _listens_to_others() -> bool:
    return not loopback(config.get_option("server.address") or "0.0.0.0")


def _own(name: str) -> bool:
    """Whether a name is an address in digits or, at home, what this machine is called in its network."""
    try:
        ip_address(name)
    except ValueError:
        own = socket.gethostname().lower()
        return not limits().hosted and name in (own, f"{own.partition('.')[0]}.local")
    return True
