"""Position that a browser reports when it moves by itself: a small request that reruns no script.

The next run of the visitor's script reads it (`url_state.read`), so that links, other pages and another model open
there.
"""

import secrets
from weakref import WeakValueDictionary

from pages.jobs import background_checks
from pages.state.visitor import Visitor

PATH = "/position"
_visitors: WeakValueDictionary[str, Visitor] = WeakValueDictionary()


def facts(visitor: Visitor) -> dict[str, str]:
    """Return the facts that a component needs to report: the endpoint, the token, and its page."""
    return {"endpoint": PATH, "token": token(visitor), "page": visitor.page}


def token(visitor: Visitor) -> str:
    """Return the secret token of a visitor's browser; it ends with the session."""
    if visitor.token is None:
        visitor.token = secrets.token_urlsafe(18)
    _visitors[visitor.token] = visitor
    return visitor.token


def visitor_of(word: str) -> Visitor | None:
    """Return the visitor whose browser has that token, None where no visitor of this server has it."""
    return _visitors.get(word)


def keys_on_screen() -> list[background_checks.Key]:
    """Return the models and options of the runs on the screens of all visitors whose browsers have a token."""
    return [visitor.current.key for visitor in list(_visitors.values()) if visitor.current is not None]


background_checks.keys_on_screen = keys_on_screen
