"""Cases of one test, of which a few are tried in every run and the others by `make sweep`."""

from collections.abc import Container, Iterable

import pytest


def cases(known: Iterable, always: Container) -> list:
    """Return the arguments of `parametrize`: those in `always` unmarked, the others marked."""
    return [one if one in always else _swept(one) for one in known]


def _swept(one: object):
    return pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.sweep)
