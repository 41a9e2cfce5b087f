"""Admission of scripts: one draws its page at a time, the others wait for their turn.

Python runs one thread at a time. Thirty pages that are drawn at once would each take as long as all of them together;
one after another, half of them are done in half of that time. A script that waits for a run of a model leaves its
place, and goes first when it comes back. Background work lets all pages go first."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import count
from threading import Condition, Event, Lock
from time import monotonic

import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.scriptrunner import get_script_run_ctx

from tracer.cli.shared_options import is_loopback
from tracer.utils.errors import limits
from tracer.utils.job_queue import NOBODY, Owner, Progress, assign, position_text
from tracer.utils.text import amount

# Display while a visitor waits: the task, its progress, and a button that cancels it.

HIDDEN_STYLE_KEY = "hidden"
"""Where a visitor’s session keeps the place of the style that hides what was on screen, while a page is made."""
HIDING_STYLE = (
    "<span></span>"  # of style alone, Streamlit makes no element that could be emptied again
    "<style>:is([data-testid=stMain], [data-testid=stSidebar]) [data-stale=true] { display: none !important }</style>"
)
"""What was on screen before goes: it is of another model or input than the names that stand above it by now."""


OVERLAY = "overlay"
"""Where a visitor’s session keeps the place of bars that lie over the page."""
BAR_DELAY, KEPT_PAGE_DELAY = 0.1, 1.0
"""Seconds before a bar is shown; the second of one over a page that stays."""

_keeps_page: ContextVar[bool] = ContextVar("keeps_page", default=False)
_slots: ContextVar[list[DeltaGenerator]] = ContextVar("slots", default=[])  # noqa: B039 # nobody appends to it


def keep_page(keeps: bool = True) -> AbstractContextManager[None]:
    """Keep the screen unchanged during the block: bars lie over the page, and appear late."""
    return assign(_keeps_page, keeps)


def reserve() -> list[DeltaGenerator]:
    """Reserve containers for a bar that may appear: a page that always has them does not move when one comes or
    goes."""
    return [st.empty(), st.empty()]


def show_bars(slots: list[DeltaGenerator]) -> AbstractContextManager[None]:
    """Show bars in reserved containers during the block."""
    return assign(_slots, slots)


def delay() -> float:
    """Return the seconds of waiting before a bar is shown."""
    return KEPT_PAGE_DELAY if _keeps_page.get() else BAR_DELAY


class ProgressBar:
    """A progress bar, in the container of the result or over the page; `instead` where the result replaces the previous
    content, which is hidden then. `cancel()` is called when the visitor presses the button."""

    def __init__(self, doing: str, key: str, cancel: Callable[[], object], instead: bool):
        self.doing, self.shown = doing, (0.0, doing)
        keeps = _keeps_page.get() and OVERLAY in st.session_state
        hidden, place = _slots.get() or (None, None)
        if instead and not keeps and HIDDEN_STYLE_KEY not in st.session_state:
            st.session_state[HIDDEN_STYLE_KEY] = hidden or st.empty()
            st.session_state[HIDDEN_STYLE_KEY].html(HIDING_STYLE)
        self.place = st.session_state[OVERLAY] if keeps else place or st.empty()
        with self.place.container(border=True, key=f"over-{key}" if keeps else None):
            self.bar = st.progress(0.0, doing)
            st.button("Cancel", icon=":material/close:", key=key, on_click=cancel)

    def show(self, place: int, progress: Progress) -> None:
        """Show the position of the work in the queue, 0 once it has begun, and then its progress."""
        doing = self.doing
        if place:
            now = 0.0, f"{position_text(place)}, then: {doing[0].lower()}{doing[1:]}"
        else:
            now = min(1.0, progress.done / progress.whole) if progress.whole else 0.0, words(progress, doing)
        if now != self.shown:
            self.bar.progress(*now)
            self.shown = now

    def over(self) -> None:
        """Remove the bar."""
        self.place.empty()


def words(progress: Progress, doing: str) -> str:
    """Return the task and its progress in words, `doing` where the work reported none."""
    what = progress.doing or doing
    if not progress.whole:
        return what
    if progress.unit == "B":
        return f"{what}: {amount(min(progress.done, progress.whole), 'B')} of {amount(progress.whole, 'B')}"
    return f"{what}: {progress.unit} {progress.done:,} of {progress.whole:,}" if progress.done else what


def begin() -> None:
    """Forget what the last run of the script hid, which may have been stopped meanwhile."""
    st.session_state.pop(HIDDEN_STYLE_KEY, None)


def lay_overlay() -> None:
    """Create the container of bars that lie over the page, before the page is drawn."""
    st.session_state[OVERLAY] = st.empty()


def over() -> None:
    """Show again what a page keeps from one run to the next, once all of it is drawn."""
    if (hidden := st.session_state.pop(HIDDEN_STYLE_KEY, None)) is not None:
        hidden.empty()


# Admission control: runs in flight are counted, for each visitor and for all, and refused where there are too many.
#
# A visitor is a browser where a proxy sets a cookie (`hosting/nginx.conf`), else a session. A session runs one thing at
# a time, but a reload leaves a run behind, so a key held down could start dozens. Visitors without a cookie can't be
# told apart, so an address has a bound, too, for all who share it.

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


def count_act() -> int:
    """Return the number of runs that are in progress or waiting now."""
    return _runs.total()


PLACES = 1
"""Scripts that draw at once: two would take turns at Python's lock."""
PATIENCE = 1.0
"""Seconds after which a script no longer counts: others need not wait for a long one."""
POLL_SECONDS = 0.1
"""Seconds between two looks at whether a waiting script is still wanted."""


class Gate:
    """A gate that at most `places` scripts have passed at once, in the order of their arrival. One that takes more than
    `patience` seconds keeps nobody waiting."""

    def __init__(self, places: int, patience: float):
        self._places, self._patience = places, patience
        self._lock, self._arrivals = Lock(), count()
        self._waiting: list[tuple[int, Event]] = []
        self._inside: dict[int, float] = {}

    def arrive(self) -> int:
        """Return the number of a new arrival."""
        return next(self._arrivals)

    def enter(self, number: int, poll: Callable[[], object]) -> None:
        """Wait for the turn of an arrival. `poll` is called now and then; what it raises ends the waiting."""
        admitted = Event()
        with self._lock:
            heapq.heappush(self._waiting, (number, admitted))
            self._admit()
        try:
            while not admitted.wait(POLL_SECONDS):
                poll()
                with self._lock:  # a script inside may have become a long one
                    self._admit()
        except BaseException:
            self.leave(number)
            raise

    def leave(self, number: int) -> None:
        """Let the next arrivals in."""
        with self._lock:
            self._inside.pop(number, None)
            self._waiting = [waiting for waiting in self._waiting if waiting[0] != number]
            heapq.heapify(self._waiting)
            self._admit()

    def _admit(self) -> None:
        now = monotonic()
        places = self._places - sum(now - since < self._patience for since in self._inside.values())
        while self._waiting and places > 0:
            number, admitted = heapq.heappop(self._waiting)
            self._inside[number] = now
            admitted.set()
            places -= 1


_gate = Gate(PLACES, PATIENCE)
_number: ContextVar[int | None] = ContextVar("number", default=None)
"""The arrival of the script that runs in this context."""
_since: ContextVar[float | None] = ContextVar("since", default=None)
"""When that script arrived."""
_condition = Condition()
_pages = 0


@contextmanager
def turn(poll: Callable[[], object]) -> Iterator[None]:
    """Run a script in its turn, as a context. `poll` raises where the script is not wanted any more."""
    number, since = _gate.arrive(), monotonic()
    _gate.enter(number, poll)
    try:
        with assign(_number, number), assign(_since, since):
            yield
    finally:
        _gate.leave(number)


@contextmanager
def pause(poll: Callable[[], object]) -> Iterator[None]:
    """Leave the place of this script to others, as a context, and take one again afterwards; where it ends by an error,
    none is needed."""
    number = _number.get()
    if number is None:
        yield
        return
    _gate.leave(number)
    yield
    _gate.enter(number, poll)


def waits_since() -> float | None:
    """Return when the script of a whole page that runs in this context arrived, by `time.monotonic`; None for that of a
    fragment."""
    return _since.get()


@contextmanager
def drawing() -> Iterator[None]:
    """Count a page as being drawn, as a context."""
    global _pages
    with _condition:
        _pages += 1
    try:
        yield
    finally:
        with _condition:
            _pages -= 1
            _condition.notify_all()


def wait(seconds: float) -> None:
    """Wait until no page is being drawn, at most that many seconds."""
    with _condition:
        _condition.wait_for(lambda: not _pages, seconds)
