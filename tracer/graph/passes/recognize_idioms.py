"""Idiom recognition: calls that together compute a named function are replaced by one call of it.

A region with one input (a single-entry region) runs again in float64 on random numbers, beside the functions that its
ops suggest. The function with the same results replaces the region, with parameters fitted to them, however the author
spelled it. The proof on the numbers of the run follows later, as for every line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from math import prod
from typing import NamedTuple

from tracer.capture.composite_calls import Call, Ref
from tracer.graph.dataflow import Graph, loses_precision
from tracer.graph.passes.idiom_candidates import (
    COMPUTES,
    HINGES,
    NONLINEAR_FUNCTIONS,
    ROOTS,
    NamedCall,
    Placeholder,
    Trial,
    recognise,
)
from tracer.ops import IDENTITIES, LAYOUTS, RESHAPES, base, takes_shape
from tracer.utils.cache import Cache
from tracer.utils.internals.torch_internals import function_schema

MAX_CALLS, MAX_TABLE_CALLS, MAX_OPERANDS = 40, 400, 5
"""How many calls an idiom has at most, how many those that make a table of nothing, and how many values it is tried to
be a function of."""
CACHE_SIZE = 4096
"""How many decisions are held: the blocks of a model ask for the same ones."""

ROTATES = frozenset("cat concat stack view_as_real".split())
"""Calls that a rotary position ends with, perhaps before a layout."""
ROTATIONS = ROTATES | frozenset(
    "add sub mul neg addcmul view_as_complex complex real imag roll flip overwrite copy empty_like zeros_like "
    "matmul einsum".split()
)
"""Calls that a rotation of pairs consists of."""
MULTIPLIES = frozenset("mul addcmul matmul einsum".split())
TURNS = frozenset("cos sin polar exp".split())
"""Calls that make its tables of angles."""
COUNTS = TURNS | {"arange", "linspace"}
"""Calls that compute tables and are not part of a function."""
PAIRS = ROTATES | frozenset("overwrite roll flip".split())
"""Calls that bring the two numbers of a pair together."""
ENDS_ROTATION = ROTATES | frozenset("add sub addcmul overwrite".split())
ENDS_TABLE = ROTATES | RESHAPES | frozenset("overwrite where add mul sin cos index_put scatter copy".split())
"""Calls that a table of sines and cosines ends with."""


HINTS = NONLINEAR_FUNCTIONS | HINGES | ROOTS | ROTATES
"""Calls of which no idiom has none."""


class Region(NamedTuple):
    """Calls, by their indices, that compute the value `end` from the values `inputs`.

    The first of `inputs` is the argument of the function. Parameters or tables follow.
    """

    calls: tuple[int, ...]
    inputs: tuple[Ref, ...]
    end: Ref
    constants: tuple[int, ...] = ()
    """The calls before them that take nothing, or shapes alone."""


class _Run(NamedTuple):
    """Graph of a run, and its constants without axes as numbers, by their keys."""

    graph: Graph
    numbers: dict[str, float]


_decisions = Cache(CACHE_SIZE)


def recognize_idioms(graph: Graph, numbers: dict[str, float], spelled: frozenset[int], named: set[int]) -> Graph:
    """Return the graph with each region that computes a named function as one call.

    Regions that end in ops of `spelled` stay. The ops of replaced regions are added to `named`. `numbers` are the
    scalar constants by their keys.
    """
    if not any(base(call.name) in HINTS for call in graph.calls):
        return graph
    run = _Run(graph, numbers)
    varies = {key for key, of in graph.depends.items() if of == "x"}
    replaced_calls: set[int] = set()
    groups: list[tuple[set[int], list[Call]]] = []
    for index in reversed(range(len(graph.calls))):
        if index in replaced_calls or graph.calls[index].last - 1 in spelled:
            continue
        tables = _find_tables(run, varies, index)
        regions = [*tables, *reversed([*_find_regions(run, varies, index)]), *_find_rotations(run, index)]
        for region in regions:
            if replaced_calls.isdisjoint(region.calls) and (named_call := _recognise_region(run, region)) is not None:
                group = _with_constants(graph, region, named_call)
                groups.append((group, [_build_call(graph, region, named_call, group)]))
                named.add(graph.calls[index].last - 1)
                replaced_calls |= group
                break
    return graph.replace(groups)


def _find_regions(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """Yield the regions with one input that end with a call, smallest first; values without inputs count as
    constants."""
    end = run.graph.calls[last].outputs
    if (
        run.graph.name(last) not in COMPUTES
        or len(end) != 1
        or not end[0].dtype.is_floating_point
        or end[0].key not in varies
    ):
        return
    beside: dict[str, Ref] = {}
    for region, waiting in _grow_upwards(run, last, COMPUTES | LAYOUTS, lambda key: key in varies, beside):
        alone = len(waiting) == 1 and waiting[0].dtype.is_floating_point
        if not alone:
            continue
        built = _build_region(run, region, [waiting[0], *beside.values()], end[0])
        if sum(run.graph.name(index) in COMPUTES for index in region) + len(built.constants) > 1:
            yield built


def _build_region(run: _Run, calls: list[int], inputs: list[Ref], end: Ref) -> Region:
    """Return the region of these calls, which also computes its constants."""
    constants: set[int] = set()
    open_ = []
    for ref in inputs:
        closed = _constant_calls(run, ref.key)
        if closed is None or len(closed) > MAX_CALLS or COUNTS & {run.graph.name(index) for index in closed}:
            open_.append(ref)
        else:
            constants |= closed
    return Region(tuple(sorted(calls)), tuple(open_), end, tuple(sorted(constants)))


def _constant_calls(run: _Run, key: str) -> set[int] | None:
    """Return the calls that compute a value from numbers and shapes alone; None if it has other inputs."""
    indices: set[int] = set()
    waiting = [key]
    while waiting:
        key = waiting.pop()
        index = run.graph.producer.get(key)
        if index is None and key not in run.numbers:
            return None
        if index is not None and index not in indices:
            indices.add(index)
            waiting += [] if takes_shape(run.graph.calls[index].name) else [ref.key for ref in run.graph.inputs[index]]
    return indices


def _find_rotations(run: _Run, last: int) -> Iterator[Region]:
    """Yield the regions that can rotate pairs: of a tensor and two tables, or one of complex numbers or angles."""
    call = run.graph.calls[last]
    source = run.graph.producing_call(run.graph.inputs[last][0].key) if run.graph.inputs[last] else None
    joins = source is not None and base(source.name) in ROTATES | {"matmul", "einsum", "squeeze"}
    if run.graph.name(last) not in ENDS_ROTATION and not (run.graph.name(last) in RESHAPES and joins):
        return
    (end,) = call.outputs[:1]
    ways = (ROTATIONS | LAYOUTS, ROTATIONS | LAYOUTS | TURNS)  # of tables, else of the angles that these are of
    for region, waiting in chain.from_iterable(_grow_upwards(run, last, may, lambda key: True, {}) for may in ways):
        names = {run.graph.name(index) for index in region}
        if not (MULTIPLIES & names and PAIRS & names) or len(waiting) > MAX_OPERANDS:
            continue
        built = _build_region(run, region, waiting, end)
        if len(built.inputs) not in (2, 3):
            continue
        for x in (ref for ref in built.inputs if ref.shape == end.shape and ref.dtype.is_floating_point):
            tables = tuple(ref for ref in built.inputs if ref is not x)
            for order in (tables, tables[::-1])[: len(tables)]:
                yield built._replace(inputs=(x, *order))


def _find_tables(run: _Run, varies: set[str], last: int) -> Iterator[Region]:
    """Yield the regions that compute a table of sines and cosines from constants."""
    call = run.graph.calls[last]
    if not call.outputs or call.outputs[0].key in varies or run.graph.name(last) not in ENDS_TABLE:
        return
    end = call.outputs[0]
    if len(end.shape) < 2 or prod(end.shape[:-2]) != 1 or not end.dtype.is_floating_point:
        return
    closed = _constant_calls(run, end.key)
    if closed and len(closed) <= MAX_TABLE_CALLS and {"sin", "cos"} & {run.graph.name(index) for index in closed}:
        yield Region((last,), (), end, tuple(sorted(closed - {last})))


def _grow_upwards(
    run: _Run, last: int, may: frozenset[str], follows: Callable[[str], bool], beside: dict[str, Ref]
) -> Iterator[tuple[list[int], list[Ref]]]:
    """Yield ever larger sets of calls, upwards from one, and their inputs.

    A producer joins if `may` allows it and nothing else uses its value. Inputs that are not followed go to `beside`.
    """
    region: list[int] = []
    waiting = {ref.key: ref for ref in run.graph.calls[last].outputs}
    while waiting and len(region) < MAX_CALLS:
        able = [key for key in waiting if _can_join(run.graph, run.graph.producer.get(key), region, last, may)]
        if not able:
            return
        index = max(run.graph.producer[key] for key in able)
        region.append(index)
        for ref in run.graph.calls[index].outputs:
            waiting.pop(ref.key, None)
        for ref in run.graph.inputs[index]:
            if ref.key not in run.numbers and not takes_shape(run.graph.calls[index].name):
                (waiting if follows(ref.key) else beside)[ref.key] = ref
        yield region, list(waiting.values())


def _can_join(graph: Graph, index: int | None, region: list[int], last: int, may: frozenset[str]) -> bool:
    """Return whether a call can be part of an idiom, and nothing outside its region uses its value."""
    if index is None:
        return False
    call, name = graph.calls[index], graph.name(index)
    drops = name in IDENTITIES and call.arguments.get("train") and call.arguments.get("p")
    if (
        name not in may | IDENTITIES
        or drops
        or any(loses_precision(ref.dtype, output.dtype) for ref in graph.inputs[index] for output in call.outputs)
    ):
        return False
    return index == last or all(
        ref.key not in graph.returned and all(taker in region for taker in graph.users.get(ref.key, ()))
        for ref in call.outputs
    )


def _recognise_region(run: _Run, region: Region) -> NamedCall | None:
    """Return the call that computes the same as a region; None if no known one does."""
    local: dict[str, object] = {ref.key: Placeholder(number) for number, ref in enumerate(region.inputs)}
    signature: list[object] = [tuple((ref.shape, ref.dtype) for ref in region.inputs)]
    local |= {key: ("number", number) for key, number in run.numbers.items()}
    for index in sorted({*region.calls, *region.constants}):
        call = run.graph.calls[index]
        local.update({ref.key: len(local) for ref in call.outputs if ref.key not in local})
        signature.append((str(call.func), repr([_signature(value, local) for value in call.arguments.values()])))
    key = tuple(signature)
    decision = _decisions.get(key)
    if decision is None:
        order = sorted({*region.calls, *region.constants})
        trial = Trial([run.graph.calls[call_index] for call_index in order], region.inputs, region.end, run.numbers)
        _decisions.put(key, decision := (recognise(trial),))
    return decision[0]


def _signature(value, local: dict) -> object:
    """Return an argument with tensors replaced by placeholders of the region."""
    if isinstance(value, Ref):
        return local.get(value.key), value.shape
    return tuple(_signature(item, local) for item in value) if isinstance(value, tuple) else value


def _with_constants(graph: Graph, region: Region, named: NamedCall) -> set[int]:
    """Return a region with the calls that compute constants for it alone, except those that its replacement uses."""
    if not region.inputs:
        return graph.with_exclusive_producers({region.calls[-1]}, lambda call: True)
    taken = {
        graph.producer.get(_fill_placeholder(graph, region, argument).key)
        for argument in named.arguments.values()
        if isinstance(argument, Placeholder)
    }
    return graph.with_exclusive_producers(
        set(region.calls), lambda call: graph.producer.get(call.outputs[0].key) not in taken
    )


def _build_call(graph: Graph, region: Region, named: NamedCall, group: set[int]) -> Call:
    """Return the call that replaces a region."""
    places = ((name, argument) for name, argument in named.arguments.items())
    arguments = {
        name: _fill_placeholder(graph, region, argument) if isinstance(argument, Placeholder) else argument
        for name, argument in places
    }
    name = function_schema(named.func).name.split("::")[-1]
    inner = tuple(graph.calls[argument] for argument in sorted(group))
    return graph.calls[region.calls[-1]]._replace(func=named.func, name=name, arguments=arguments, inner=inner)


def _fill_placeholder(graph: Graph, region: Region, place: Placeholder) -> Ref:
    """Return the tensor of a placeholder; a vector, as before it was broadcast."""
    ref = region.inputs[place.number]
    while place.vector and len(ref.shape) > 1 and (index := graph.producer.get(ref.key)) is not None:
        if graph.name(index) not in LAYOUTS | IDENTITIES:
            break
        ref = graph.inputs[index][0]
    return ref
