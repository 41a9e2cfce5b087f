"""The step of each tensor that forward returned, and notes on those that none has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracer.capture.composite_calls import Calls
from tracer.record import Returned, dtype_name
from tracer.textbook.derivation import Book
from tracer.textbook.steps import Found
from tracer.utils.error_text import quote, shorten

MOST = 4
"""Tensors that a note names."""


def returned_of(calls: Calls, book: Book, found: Sequence[Found]) -> tuple[Returned, ...]:
    """Return a record of each tensor that forward returned."""
    steps = {one.key: one.line.id for one in found if one.key}
    keys = book.returned or ("",) * len(calls.outputs)
    return tuple(
        Returned(shorten(place, 400), ref.shape, dtype_name(ref.dtype), steps.get(key, ""), "" if key in steps else key)
        for place, ref, key in zip(calls.places, calls.outputs, keys, strict=True)
    )


def unaccounted_note(returned: Iterable[Returned]) -> str:
    """Return a sentence on the outputs of forward that no step has, "" if there are none."""
    missing = [one for one in returned if not one.step and not one.of]
    return f"no step has what forward returns{_list_names(missing)}" if missing else ""


def given_back(returned: Iterable[Returned]) -> str:
    """Return a sentence on the inputs that forward returned unchanged, "" if there are none."""
    same = [one for one in returned if one.of]
    kinds = " and ".join(dict.fromkeys(quote(one.of) for one in same[:MOST]))
    return f"forward returns {kinds} as it is{_list_names(same)}" if same else ""


def _list_names(some: Sequence[Returned]) -> str:
    names = [quote(one.name) for one in some if one.name]
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f" as {', '.join(names[:MOST])}{more}" if names else ""
