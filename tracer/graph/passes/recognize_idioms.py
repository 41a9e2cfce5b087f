"""Idiom recognition: calls that together compute a function that has a name become one call of it.

However an author spelled it, what a group of calls computes is known by running it: each group that has one input (a
single-entry region) is run again in float64 on random numbers, beside the functions that its ops let expect. The one
that gives the same numbers takes the place of the group, its parameters fitted to what came out. What is named so
is proven once more, as every line is, on the numbers of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import prod
from typing import NamedTuple

from tracer.capture.composite_calls import Call, Ref
from tracer.graph.dataflow import Graph, loses
from tracer.graph.passes.idiom_candidates import COMPUTES, CURVED, HINGES, ROOTS, Named, Place, Trial, recognised
from tracer.ops import IDENTITIES, LAYOUTS, RESHAPES, base, takes_shape
from tracer.utils.cache import Cache

LONGEST, MOST_CALLS, MOST_GIVEN = 40, 400, 5
"""How many calls an idiom has at most, how many those that make a table of nothing, and how many values it is tried to
be a function of."""
HELD = 4096
"""How many decisions are held: the blocks of a model ask for the same ones."""

ROTATES = frozenset("cat concat stack view_as_real".split())
"""Calls that a rotary position ends with, perhaps before a layout."""
ROTATIONS = ROTATES | frozenset(
    "add sub mul neg addcmul view_as_complex complex real imag roll flip overwrite copy empty_like zeros_like "
    "matmul einsum".split()
)
"""Calls that it is made of."""
MULTIPLIES = frozenset("mul addcmul matmul einsum".split())
TURNS = frozenset("cos sin polar exp".split())
"""Calls that make its tables of angles."""
COUNTS = TURNS | {"arange", "linspace"}
"""Calls that tables are made by: these are no part of a function."""
PAIRS = ROTATES | frozenset("overwrite roll flip".split())
"""Calls that bring the two numbers of a pair together."""
ENDS_ROTATION = ROTATES | frozenset("add sub addcmul overwrite".split())
ENDS_TABLE = ROTATES | RESHAPES | frozenset("overwrite where add mul sin cos index_put scatter copy".split())
"""Calls that a table of sines and cosines ends with."""


HINTS = CURVED | HINGES | ROOTS | ROTATES
"""Calls of which no idiom has none."""


class Region(NamedTuple):
    """Calls, by their numbers, that together are a function of the values `given`, and what the last of them makes. The
    first of those given is the one that it is a function of; behind it stand parameters, or tables."""

    calls: tuple[int, ...]
    given: tuple[Ref, ...]
    end: Ref
    constants: tuple[int, ...] = ()
    """The calls before them that take nothing, or shapes alone."""


class _Run(NamedTuple):
    """The graph of a run, and its constants without axes as numbers, by their keys."""

    graph: Graph
    numbers: dict[str, float]


_decided = Cache(HELD)


def idioms(graph: Graph, numbers: dict[str, float], spelled: frozenset[int], named: set[int]) -> Graph:
    """Return the graph with each group that computes a function with a name as one call of it; their ops go to
    `named`. What ops of `spelled` end stays as it is. `numbers` are the constants without axes, by their keys."""
    if not any(base(call.name) in HINTS for call in graph.calls):
        return graph
    run = _Run(graph, numbers)
    varies = {key for key, of in graph.depends.items() if of == "x"}
    gone: set[int] = set()
    groups: list[tuple[set[int], list[Call]]] = []
    for index in reversed(range(len(graph.calls))):
        if index in gone or graph.calls[index].last - 1 in spelled:
            continue
        tables = _tables(run, varies, index)
        regions = [*tables, *reversed([*_regions(run, varies, index)]), *_rotations(run, index)]
        for region in regions:
            if gone.isdisjoint(region.calls) and (found := _decision(run, region)) is not None:
                group = _with_constants(graph, region, found)
                groups.append((group, [_call(graph, region, found, group)]))
                named.add(graph.calls[index].last - 1)
                gone |= group
                break
    return graph.replace(groups)


def _regions(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """The regions with one input, beside what depends on none, that end with a call, from the smallest on."""
    end = run.graph.calls[last].outputs
    if (
        run.graph.name(last) not in COMPUTES
        or len(end) != 1
        or not end[0].dtype.is_floating_point
        or end[0].key not in varies
    ):
        return
    beside: dict[str, Ref] = {}
    for region, waiting in _upwards(run, last, COMPUTES | LAYOUTS, lambda key: key in varies, beside):
        alone = len(waiting) == 1 and waiting[0].dtype.is_floating_point
        if not alone:
            continue
        found = _region(run, region, [waiting[0], *beside.values()], end[0])
        if sum(run.graph.name(one) in COMPUTES for one in region) + len(found.constants) > 1:
            yield found


def _region(run: _Run, calls: list[int], given: list[Ref], end: Ref) -> Region:
    """The region of these calls; what is made of nothing, among what it is given, is made in it."""
    constants: set[int] = set()
    open_ = []
    for ref in given:
        closed = _closure(run, ref.key)
        if closed is None or len(closed) > LONGEST or COUNTS & {run.graph.name(one) for one in closed}:
            open_.append(ref)
        else:
            constants |= closed
    return Region(tuple(sorted(calls)), tuple(open_), end, tuple(sorted(constants)))


def _closure(run: _Run, key: str) -> set[int] | None:
    """The calls that a value is made by, where it is made of nothing but numbers and shapes."""
    found: set[int] = set()
    waiting = [key]
    while waiting:
        key = waiting.pop()
        index = run.graph.maker.get(key)
        if index is None and key not in run.numbers:
            return None
        if index is not None and index not in found:
            found.add(index)
            waiting += [] if takes_shape(run.graph.calls[index].name) else [ref.key for ref in run.graph.inputs[index]]
    return found


def _rotations(run: _Run, last: int) -> Iterator[Region]:
    """The regions of a tensor and two tables, or one of complex numbers or angles, that may turn pairs of its cells."""
    call = run.graph.calls[last]
    source = run.graph.made(run.graph.inputs[last][0].key) if run.graph.inputs[last] else None
    joins = source is not None and base(source.name) in ROTATES | {"matmul", "einsum", "squeeze"}
    if run.graph.name(last) not in ENDS_ROTATION and not (run.graph.name(last) in RESHAPES and joins):
        return
    (end,) = call.outputs[:1]
    ways = (ROTATIONS | LAYOUTS, ROTATIONS | LAYOUTS | TURNS)  # of tables, else of the angles that these are of
    for region, waiting in chain.from_iterable(_upwards(run, last, may, lambda key: True, {}) for may in ways):
        names = {run.graph.name(one) for one in region}
        if not (MULTIPLIES & names and PAIRS & names) or len(waiting) > MOST_GIVEN:
            continue
        found = _region(run, region, waiting, end)
        if len(found.given) not in (2, 3):
            continue
        for x in (ref for ref in found.given if ref.shape == end.shape and ref.dtype.is_floating_point):
            tables = tuple(ref for ref in found.given if ref is not x)
            for order in (tables, tables[::-1])[: len(tables)]:
                yield found._replace(given=(x, *order))


def _tables(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """The calls that make a table of sines and cosines of nothing."""
    call = run.graph.calls[last]
    if not call.outputs or call.outputs[0].key in varies or run.graph.name(last) not in ENDS_TABLE:
        return
    end = call.outputs[0]
    if len(end.shape) < 2 or prod(end.shape[:-2]) != 1 or not end.dtype.is_floating_point:
        return
    closed = _closure(run, end.key)
    if closed and len(closed) <= MOST_CALLS and {"sin", "cos"} & {run.graph.name(one) for one in closed}:
        yield Region((last,), (), end, tuple(sorted(closed - {last})))


def _upwards(
    run: _Run, last: int, may: frozenset[str], follows: Callable[[str], bool], beside: dict[str, Ref]
) -> Iterator[tuple[list[int], list[Ref]]]:
    """The calls from one on upwards, as far as they may and nothing else takes what they make, one more each time, and
    the values that they are made of. What is not to be followed goes to `beside`."""
    region: list[int] = []
    waiting = {ref.key: ref for ref in run.graph.calls[last].outputs}
    while waiting and len(region) < LONGEST:
        able = [key for key in waiting if _joins(run.graph, run.graph.maker.get(key), region, last, may)]
        if not able:
            return
        index = max(run.graph.maker[key] for key in able)
        region.append(index)
        for ref in run.graph.calls[index].outputs:
            waiting.pop(ref.key, None)
        for ref in run.graph.inputs[index]:
            if ref.key not in run.numbers and not takes_shape(run.graph.calls[index].name):
                (waiting if follows(ref.key) else beside)[ref.key] = ref
        yield region, list(waiting.values())


def _joins(graph: Graph, index: int | None, region: list[int], last: int, may: frozenset[str]) -> bool:
    """Whether a call may be part of an idiom, and nothing outside of its region takes what it makes."""
    if index is None:
        return False
    call, name = graph.calls[index], graph.name(index)
    drops = name in IDENTITIES and call.arguments.get("train") and call.arguments.get("p")
    if (
        name not in may | IDENTITIES
        or drops
        or any(loses(ref.dtype, one.dtype) for ref in graph.inputs[index] for one in call.outputs)
    ):
        return False
    return index == last or all(
        ref.key not in graph.returned and all(taker in region for taker in graph.users.get(ref.key, ()))
        for ref in call.outputs
    )


def _decision(run: _Run, region: Region) -> Named | None:
    """The call that computes what a region does; None where none that is known does."""
    local: dict[str, object] = {ref.key: Place(number) for number, ref in enumerate(region.given)}
    said: list[object] = [tuple((ref.shape, ref.dtype) for ref in region.given)]
    local |= {key: ("number", number) for key, number in run.numbers.items()}
    for index in sorted({*region.calls, *region.constants}):
        call = run.graph.calls[index]
        local.update({ref.key: len(local) for ref in call.outputs if ref.key not in local})
        said.append((str(call.func), repr([_signed(value, local) for value in call.arguments.values()])))
    key = tuple(said)
    found = _decided.get(key)
    if found is None:
        order = sorted({*region.calls, *region.constants})
        trial = Trial([run.graph.calls[one] for one in order], region.given, region.end, run.numbers)
        _decided.put(key, found := (recognised(trial),))
    return found[0]


def _signed(value, local: dict) -> object:
    """An argument with the place of a tensor in its region in the place of the tensor."""
    if isinstance(value, Ref):
        return local.get(value.key), value.shape
    return tuple(_signed(one, local) for one in value) if isinstance(value, tuple) else value


def _with_constants(graph: Graph, region: Region, named: Named) -> set[int]:
    """A region with what was made of no input for it alone, but for what the call that replaces it takes."""
    if not region.given:
        return graph.only_in({region.calls[-1]}, lambda call: True)
    taken = {
        graph.maker.get(_given(graph, region, one).key) for one in named.arguments.values() if isinstance(one, Place)
    }
    return graph.only_in(set(region.calls), lambda call: graph.maker.get(call.outputs[0].key) not in taken)


def _call(graph: Graph, region: Region, named: Named, group: set[int]) -> Call:
    """The call that replaces a region."""
    places = ((name, one) for name, one in named.arguments.items())
    arguments = {name: _given(graph, region, one) if isinstance(one, Place) else one for name, one in places}
    name = named.func._schema.name.split("::")[-1]
    inner = tuple(graph.calls[one] for one in sorted(group))
    return graph.calls[region.calls[-1]]._replace(func=named.func, name=name, arguments=arguments, inner=inner)


def _given(graph: Graph, region: Region, place: Place) -> Ref:
    """What stands at a place; as a vector, before it was laid along an axis."""
    ref = region.given[place.number]
    while place.vector and len(ref.shape) > 1 and (index := graph.maker.get(ref.key)) is not None:
        if graph.name(index) not in LAYOUTS | IDENTITIES:
            break
        ref = graph.inputs[index][0]
    return ref
