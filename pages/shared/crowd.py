"""Who runs what now: runs in flight are counted, for each visitor and for all, and refused where they are too many.

A visitor is a browser where a proxy tells them apart (`hosting/nginx.conf` gives each a cookie), else a session. A
session runs one thing at a time; but one that was reloaded leaves a run behind, so that a key held down made dozens.
Visitors without a cookie can't be told from one another, so an address has a bound, too, and all who share it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address, ip_network
from threading import Lock

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.shared import hosts
from tracer.common.limits import limits
from tracer.common.line import NOBODY, Owner

COOKIE = "visitor"
_runs: Counter[Owner] = Counter()
_counting = Lock()


class Full(Exception):
    """The server takes nothing more at the moment; says so in one sentence."""


@contextmanager
def one_more() -> Iterator[Owner]:
    """Count a run from the asking for it to its end; gives whose it is. `Full` where too many go on or wait."""
    who = owner()
    with _counting:
        if problem := _problem(who):
            raise Full(problem)
        _runs[who] += 1
    try:
        yield who
    finally:
        _done(who)


def _done(who: Owner) -> None:
    with _counting:
        _runs[who] -= 1
        if not _runs[who]:
            del _runs[who]


def _problem(who: Owner) -> str:
    """Why this visitor's next run is refused, in one sentence; empty where it is taken."""
    most = limits()
    if who != NOBODY and _runs[who] >= most.visitor_runs:
        return (
            f"{_runs[who]} runs of yours are still going on, as many as this server makes for one visitor: try again "
            "when one is done."
        )
    if (count := sum(runs for (address, _), runs in _runs.items() if address == who[0] != "")) >= most.address_runs:
        return (
            f"{count} runs of your address are going on or waiting, as many as this server makes for one: try again "
            "in a minute."
        )
    if (count := _runs.total()) >= most.runs:
        return f"{count} runs are going on or waiting, as many as this server takes: try again in a minute."
    return most.memory_full()


def owner() -> Owner:
    """Return the address that asks, empty for this machine's own, and the browser where a proxy tells them apart, else
    the session; `NOBODY` where no visitor does."""
    context = get_script_run_ctx(suppress_warning=True)
    if context is None:
        return NOBODY
    return network(st.context.ip_address or ""), st.context.cookies.get(COOKIE) or context.session_id


def network(address: str) -> str:
    """Return what counts as one address: itself, or of IPv6 the network of 64 bits, which one household has; an empty
    text for this machine's own."""
    if hosts.loopback(address):
        return ""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or ip_network((int(found) >> 64 << 64, 64)))
    return str(found)


def said(error: Exception) -> bool:
    """Says of what was refused why, in the place of what would have been shown; whether there was anything to say."""
    if isinstance(error, Full):
        st.warning(str(error), icon=":material/hourglass:")
    return isinstance(error, Full)


def count() -> int:
    """How many runs go on or wait now."""
    return _runs.total()
