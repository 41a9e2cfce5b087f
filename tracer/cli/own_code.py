"""Switch of the app's page that runs its owner's code: on only where the command line turned it on in this process.

Nothing in the environment, in a file or in an address turns it on.
"""

from __future__ import annotations

import secrets
from ipaddress import ip_address

from tracer.utils.error_text import quote
from tracer.utils.limits import limits

_key = ""


def enable(address: str) -> str:
    """Turn the switch on and return the key that unlocks the page. Raise ValueError with one sentence where it may not
    be on: hosted, or listening to others."""
    global _key
    if limits().hosted:
        raise ValueError("--own-code runs code of visitors with your rights, so it can't be used with TRACER_HOSTED=1")
    if not is_loopback(address):
        raise ValueError(
            f"--own-code listens on this machine alone, expected --address 127.0.0.1, not {quote(address)}"
        )
    _key = "-".join(secrets.token_hex(2) for _ in range(3))
    return _key


def key() -> str:
    """Return the key, "" where the switch is off."""
    return _key


def is_loopback(name: str) -> bool:
    """Return whether a name or a numeric address is this machine's loopback."""
    try:
        address = ip_address(name)
    except ValueError:
        return name == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
