"""Step of each tensor that forward returned, and notes on those without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracer.capture.composite_calls import CallLog
from tracer.record import ReturnedTensor, dtype_name
from tracer.textbook.derivation import Textbook
from tracer.textbook.steps import DerivedStep
from tracer.utils.error_text import quote, shorten

MAX_NAMED_TENSORS = 4
"""Tensors that a note names."""


def returned_of(calls: CallLog, book: Textbook, derived_steps: Sequence[DerivedStep]) -> tuple[ReturnedTensor, ...]:
    """Return a record of each tensor that forward returned."""
    steps = {step.key: step.line.id for step in derived_steps if step.key}
    keys = book.returned or ("",) * len(calls.outputs)
    return tuple(
        ReturnedTensor(
            shorten(place, 400), ref.shape, dtype_name(ref.dtype), steps.get(key, ""), "" if key in steps else key
        )
        for place, ref, key in zip(calls.places, calls.outputs, keys, strict=True)
    )


def unaccounted_note(returned: Iterable[ReturnedTensor]) -> str:
    """Return a sentence on the outputs of forward that no step has, "" if there are none."""
    missing = [tensor for tensor in returned if not tensor.step and not tensor.of]
    return f"no step has what forward returns{_list_names(missing)}" if missing else ""


def given_back(returned: Iterable[ReturnedTensor]) -> str:
    """Return a sentence on the inputs that forward returned unchanged, "" if there are none."""
    same = [tensor for tensor in returned if tensor.of]
    kinds = " and ".join(dict.fromkeys(quote(tensor.of) for tensor in same[:MAX_NAMED_TENSORS]))
    return f"forward returns {kinds} as it is{_list_names(same)}" if same else ""


def _list_names(some: Sequence[ReturnedTensor]) -> str:
    names = [quote(tensor.name) for tensor in some if tensor.name]
    more = f" and {len(names) - MAX_NAMED_TENSORS} more" if len(names) > MAX_NAMED_TENSORS else ""
    return f" as {', '.join(names[:MAX_NAMED_TENSORS])}{more}" if names else ""
