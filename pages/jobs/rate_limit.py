"""Admission control: runs in flight are counted, for each visitor and for all, and refused where there are too many.

A visitor is a browser where a proxy sets a cookie (`hosting/nginx.conf`), else a session. A session runs one thing at a
time, but a reload leaves a run behind, so a key held down could start dozens. Visitors without a cookie can't be told
apart, so an address has a bound, too, for all who share it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv6Address, ip_address, ip_network
from threading import Lock

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from tracer.cli.own_code import is_loopback
from tracer.utils.job_queue import NOBODY, Owner
from tracer.utils.limits import limits

COOKIE = "visitor"
_runs: Counter[Owner] = Counter()
_counting = Lock()


class ServerFull(Exception):
    """Refusal of more work at the moment; the message is one sentence."""


@contextmanager
def count_run() -> Iterator[Owner]:
    """Count a run from its request to its end, and yield its owner. Raise `ServerFull` where too many run or wait."""
    who = owner()
    with _counting:
        if problem := _problem(who):
            raise ServerFull(problem)
        _runs[who] += 1
    try:
        yield who
    finally:
        _release(who)


def _release(who: Owner) -> None:
    with _counting:
        _runs[who] -= 1
        if not _runs[who]:
            del _runs[who]


def _problem(who: Owner) -> str:
    """Return the reason for refusing this visitor's next run, in one sentence; empty where it is accepted."""
    most = limits()
    if who != NOBODY and _runs[who] >= most.visitor_runs:
        return (
            f"You have {_runs[who]} runs in progress, the most that this server allows one visitor: try again when "
            "one is done."
        )
    if (count := sum(runs for (address, _), runs in _runs.items() if address == who[0] != "")) >= most.address_runs:
        return (
            f"{count} runs from your address are in progress or waiting, the most that this server allows one "
            "address: try again in a minute."
        )
    if (count := _runs.total()) >= most.runs:
        return f"{count} runs are in progress or waiting, the most that this server allows: try again in a minute."
    return most.memory_full()


def owner() -> Owner:
    """Return the address of the request, empty for this machine's own, and the browser where a proxy identifies it,
    else the session; `NOBODY` where there is no visitor."""
    context = get_script_run_ctx(suppress_warning=True)
    if context is None:
        return NOBODY
    return network(st.context.ip_address or ""), st.context.cookies.get(COOKIE) or context.session_id


def network(address: str) -> str:
    """Return the network that counts as one address: the address itself, or the /64 of an IPv6 address, which one
    household has; empty for this machine's own."""
    if is_loopback(address):
        return ""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(parsed.ipv4_mapped or ip_network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)


def show_refusal(error: Exception) -> bool:
    """Show the reason for a refusal in place of the page; return whether the error was a refusal."""
    if isinstance(error, ServerFull):
        st.warning(str(error), icon=":material/hourglass:")
    return isinstance(error, ServerFull)


def count() -> int:
    """Return the number of runs that are in progress or waiting now."""
    return _runs.total()
