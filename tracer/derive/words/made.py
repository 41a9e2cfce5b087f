"""What calls make of nothing: counted numbers, one number all over."""

from __future__ import annotations

from tracer.derive.given import Given
from tracer.derive.kinds import EMPTY
from tracer.derive.words import of
from tracer.equations import Node
from tracer.equations.call import Scalar
from tracer.equations.joining import Full
from tracer.equations.made import Counted
from tracer.equations.positions import Sinusoids


@of("arange")
def counted(given: Given) -> Node | None:
    """From 0 up in steps of 1, else the kernel."""
    plain = given.get("start", 0) == 0 and given.get("step", 1) == 1
    return Counted(given.result[0]) if plain and given.result_numeric[0] == given["end"] else None


@of("sinusoids", heavy=True)
def sinusoids(given: Given) -> Node:
    return Sinusoids(*given.result)


@of("zeros", *EMPTY)
def zeros(given: Given) -> Node:
    """Also memory that is taken whatever it holds, since all of it is written into."""
    return Full(Scalar(0), shape=given.result)


@of("ones")
def ones(given: Given) -> Node:
    return Full(Scalar(1), shape=given.result)


@of("full")
def full(given: Given) -> Node:
    return Full(Scalar(given["fill_value"]), shape=given.result)
