"""Call sites: the place of a composite call in a model's code, which is the same at other sizes; and parameters."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tracer.capture.composite_calls import CallLog


class CallSite(NamedTuple):
    """`ordinal`-th call of the op `name` in the `call`-th call of the module `path`; all count from 0."""

    path: str
    call: int
    name: str
    ordinal: int


class ParameterSite(NamedTuple):
    """A parameter or buffer, by its path: its value is replaced where calls read it."""

    path: str


Site = CallSite | ParameterSite
"""What an intervention replaces the value of."""


class SiteCounter:
    """A counter of the calls of one run, which gives each its site."""

    def __init__(self):
        self._counts: Counter[tuple[str, int, str]] = Counter()

    def next(self, path: str, call: int, name: str) -> CallSite:
        """Return the site of a call that begins now."""
        key = path, call, name
        self._counts[key] += 1
        return CallSite(*key, self._counts[key] - 1)


def call_sites(calls: CallLog) -> dict[str, tuple[CallSite, int]]:
    """Return the site and the output position of each value of a run that a composite call returned, by its key."""
    counter, sites = SiteCounter(), {}
    for call in calls.entries:
        if call.func is None:  # a write into a part of a tensor, which is not a call of PyTorch's
            continue
        site = counter.next(call.module, call.call, call.name)
        for position, ref in enumerate(call.outputs):
            sites.setdefault(ref.key, (site, position))  # others may return the value that they take
    return sites
