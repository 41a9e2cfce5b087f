"""What calls make of nothing: counted numbers, one number all over."""

from __future__ import annotations

from tracer.derive.given import Given
from tracer.derive.kinds import EMPTY
from tracer.derive.words import of
from tracer.equations import Node
from tracer.equations.call import Scalar
from tracer.equations.joining import Full
from tracer.equations.made import Counted, CountedFrom
from tracer.equations.positions import Sinusoids


@of("arange")
def counted(given: Given) -> Node | None:
    """From 0 up in steps of 1, or from another whole number in other steps; else the kernel."""
    start, step = given.get("start", 0), given.get("step", 1)
    if start == 0 and step == 1 and given.result_numeric[0] == given["end"]:
        return Counted(given.result[0])
    whole = isinstance(start, int) and isinstance(step, int)
    return CountedFrom(given.result[0], start, step) if whole and given.result_numeric[0] > 2 else None


@of("sinusoids", heavy=True)
def sinusoids(given: Given) -> Node:
    return Sinusoids(*given.result)


@of("zeros", *EMPTY)
def zeros(given: Given) -> Node:
    """Also memory that is taken whatever it holds, since all of it is written into."""
    return _filled(Scalar(0), given)


@of("ones")
def ones(given: Given) -> Node:
    return _filled(Scalar(1), given)


@of("full")
def full(given: Given) -> Node:
    return _filled(Scalar(given["fill_value"]), given)


def _filled(number: Scalar, given: Given) -> Node:
    """A number for all cells of the result; the number itself where that has no axes."""
    return Full(number, shape=given.result) if given.result else number
