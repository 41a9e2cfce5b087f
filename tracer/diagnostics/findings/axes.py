"""Rules on axes that meet: of the same length and in another order, or of one sample with all others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from tracer.capture.calls import Call, Ref
from tracer.diagnostics.findings.run_view import Evidence, rule
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import RearrangePattern
from tracer.ops import ATTENTION, LINEAR, MATMULS
from tracer.symbols.notation import parse, shape_text

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


class Factor(NamedTuple):
    """A factor of an axis: its length in symbols, in this run, and whether a call repeated numbers along it."""

    text: str
    size: int
    repeated: bool = False


Factors = tuple[tuple[Factor, ...], ...]
"""Axes of a tensor, each as its factors, outer to inner."""

ELEMENTWISE = frozenset(("add", "sub", "mul", "div", "where", "masked_fill"))


class Meeting(NamedTuple):
    """A call where two orders of the factors of one axis meet: the axis, and both orders."""

    call: Call
    axis: int
    first: tuple[Factor, ...]
    second: tuple[Factor, ...]


class AxisOrders:
    """Factors of the axes of all values of a run, followed through layouts and element-wise calls, and the calls
    where two orders of one axis meet."""

    def __init__(self, run: RunView):
        self._run, self._graph = run, run.graph
        self._factors: dict[str, Factors] = {}
        self.meetings: list[Meeting] = []
        for index in range(len(self._graph.calls)):
            self._read_call(index)

    def of(self, ref: Ref) -> Factors:
        """Return the factors of the axes of a value; each axis is one factor where nothing else is known."""
        if ref.key not in self._factors:
            self._factors[ref.key] = self._plain(ref)
        return self._factors[ref.key]

    def _plain(self, ref: Ref) -> Factors:
        record = self._run.record(ref.key)
        texts = record.symbolic if record is not None and record.symbolic else tuple(map(str, ref.shape))
        texts = texts if len(texts) == len(ref.shape) else tuple(map(str, ref.shape))
        return tuple((Factor(text, size),) for text, size in zip(texts, ref.shape, strict=True))

    def _read_call(self, index: int) -> None:
        graph, call = self._graph, self._graph.calls[index]
        operands = graph.inputs[index]
        if not call.outputs or not operands:
            return
        source = graph.source(call.outputs[0].key) if graph.kind[index] != "compute" else None
        if source is not None:
            for position, out in enumerate(call.outputs):
                self._lay_out(call, position, graph.ref[source], out)
            return
        out = call.outputs[0]
        name = call.op.name
        if name == ATTENTION or (name in MATMULS and name != "einsum"):
            self._meet(call, [self.of(ref)[:-2] for ref in operands], before=2)
            tensors = [ref for ref in operands if len(ref.shape) == len(out.shape)]
            if tensors:
                first = self.of(max(tensors, key=lambda ref: sum(len(axis) for axis in self.of(ref)[:-1])))
                self._keep(out, (*first[:-1], *self._plain(out)[-1:]))
        elif name in LINEAR:
            self._keep(out, (*self.of(operands[0])[:-1], *self._plain(out)[-1:]))
        elif name in ELEMENTWISE or "pointwise" in call.op.traits:
            self._meet(call, [self.of(ref) for ref in operands])
            self._keep(out, self._broadcast(out, operands))
        elif "concat" in call.op.traits and len({ref.shape for ref in call.arguments.get("tensors", ())}) == 1:
            self._keep(out, self._join(call))
        elif operands[0].shape == out.shape:
            self._keep(out, self.of(operands[0]))

    def _keep(self, out: Ref, factors: Factors) -> None:
        """Remember the factors of a value, if they multiply to its shape."""
        if tuple(prod(factor.size for factor in axis) for axis in factors) == out.shape:
            self._factors[out.key] = factors

    def _join(self, call: Call) -> Factors:
        """Return the factors of tensors of one shape that are joined: along that axis, the number of tensors is the
        outer factor."""
        tensors, axis = call.arguments["tensors"], call.arguments.get("dim", 0)
        factors = list(self.of(tensors[0]))
        factors[axis] = (Factor(str(len(tensors)), len(tensors)), *factors[axis])
        return tuple(factors)

    def _broadcast(self, out: Ref, operands: Iterable[Ref]) -> Factors:
        """Return the factors of an element-wise result: on each axis those of the operand that knows the most."""
        factors = list(self._plain(out))
        for ref in operands:
            for axis, own in enumerate(self.of(ref), start=len(out.shape) - len(ref.shape)):
                if axis >= 0 and len(own) > len(factors[axis]) and prod(f.size for f in own) == out.shape[axis]:
                    factors[axis] = own
        return tuple(factors)

    def _meet(self, call: Call, operands: Sequence[Factors], before: int = 0) -> None:
        """Note the axes where operands have the same factors in another order; `before` axes are left out."""
        for number, first in enumerate(operands):
            for second in operands[number + 1 :]:
                for back, (own, other) in enumerate(zip(reversed(first), reversed(second), strict=False), start=1):
                    if self._differ(own, other):
                        self.meetings.append(Meeting(call, len(call.outputs[0].shape) - before - back, own, other))

    def _differ(self, first: tuple[Factor, ...], second: tuple[Factor, ...]) -> bool:
        """Return whether one axis has the factors of another in another order, places of the input among them."""
        texts = [[factor.text for factor in axis] for axis in (first, second)]
        if len(first) < 2 or texts[0] == texts[1] or sorted(texts[0]) != sorted(texts[1]):
            return False
        return any(not self._places.isdisjoint(map(str, parse(text).free_symbols)) for text in texts[0] if text != "?")

    @cached_property
    def _places(self) -> frozenset[str]:
        """Symbols of samples, tokens, heights and widths: those of inputs, but not of the features of tokens."""
        places: set[str] = set()
        for record in self._run.input_records.values():
            features = len(record.shape) == 3 and "float" in record.dtype
            places.update((record.symbolic or ())[: 2 if features else None])
        return frozenset(text for text in places if not text.isdecimal() and text != "?")

    def _lay_out(self, call: Call, position: int, source: Ref, out: Ref) -> None:
        """Note the factors of a rearranged value."""
        before = self.of(source)
        if source.shape == out.shape and "identity" in call.op.traits:
            self._keep(out, before)
            return
        places = self._run.maps.of(source.shape, [(call, position)])
        pattern = self._run.maps.pattern(places, source.shape)
        if pattern is None:
            return
        plain = self._plain(out)
        alone = {side[0]: axis[0].text for side, axis in zip(pattern.right, plain, strict=True) if len(side) == 1}
        named = _name_factors(pattern, before, alone)
        for axis, own in enumerate(before):
            parts = [part for factor in pattern.left[axis] for part in named.get(factor, ())]
            stated = [Factor(alone[factor], pattern.sizes[factor]) for factor in pattern.left[axis] if factor in alone]
            if len(stated) == len(pattern.left[axis]) == len(parts) and self._differ(own, tuple(stated)):
                self.meetings.append(Meeting(call, axis, own, tuple(stated)))
        for factor in pattern.repeated:
            named[factor] = (Factor(str(pattern.sizes[factor]), pattern.sizes[factor], True),)
        sides = [tuple(part for factor in side for part in named.get(factor, ())) for side in pattern.right]
        self._keep(out, tuple(side or axis for side, axis in zip(sides, plain, strict=True)))


def _name_factors(pattern: RearrangePattern, before: Factors, alone: dict[int, str]) -> dict[int, tuple[Factor, ...]]:
    """Return the factors of the operand that each factor of a pattern stands for, outer to inner."""
    named: dict[int, tuple[Factor, ...]] = {}
    for axis, side in enumerate(pattern.left):
        waiting = list(before[axis]) if pattern.slices[axis] is None else []
        for factor in side:
            size, taken = pattern.sizes[factor], []
            while waiting and prod(part.size for part in taken) * waiting[0].size <= size:
                if prod(part.size for part in taken) == size and waiting[0].size != 1:
                    break
                taken.append(waiting.pop(0))
            if prod(part.size for part in taken) != size:  # it splits a factor, or cuts across two
                taken, waiting = [Factor(alone.get(factor, str(size)), size)], []
            named[factor] = tuple(taken)
    return named


def _order(factors: tuple[Factor, ...]) -> str:
    """Return factors as text, outer to inner."""
    return " × ".join(shape_text((factor.text,))[1:-1] for factor in factors)


def _order_repair(meeting: Meeting) -> str:
    """Return the repair of an order: of the call that repeated numbers, if one did."""
    axis, sides = max(meeting.axis, 0), (meeting.first, meeting.second)
    repeat = next(((place, factor) for side in sides for place, factor in enumerate(side) if factor.repeated), None)
    if repeat is None:
        return "Flatten both in one order: exchange the axes of one of them before, such as `.transpose(0, 1)`."
    place, factor = repeat
    if place:
        return (
            f"Lay whole copies one after another, as `repeat` does with {factor.text} at axis {axis}:"
            " `repeat_interleave` repeats each number in its place."
        )
    return (
        f"Repeat each number in its place: `repeat_interleave({factor.text}, {axis})`. `repeat` lays whole copies one"
        " after another."
    )


@rule(
    "axis order",
    lambda run: AxisOrders(run).meetings,
    "Axis {axis} counts {first} in one operand and {second} in the other, outer to inner. Both have {length} places, so"
    " that no error reports it, and place {place} of one meets another place than it stands for.",
    "{repair}",
    names_axes=True,
)
def find_meeting(run: RunView, meeting: Meeting) -> Evidence:
    """Find two tensors that meet along an axis whose factors they have in another order."""
    call, axis, first, second = meeting
    length = prod(factor.size for factor in first)
    return Evidence(
        call,
        axis=axis,
        first=_order(first),
        second=_order(second),
        length=length,
        place=1,
        repair=_order_repair(meeting),
    )


# Heads of keys and values that are repeated for those of queries.

MIXED_GROUPS = (
    "Keys count their heads as {keys} and values as {values}, outer to inner: they are repeated in one order for keys,"
    " and in another for values, so that weights of one group read values of another."
)
COPIED_GROUPS = (
    "{groups} heads of keys and values are repeated as whole copies, so that query head 1 reads group 1. In"
    " grouped-query attention, {size} neighbours share a group (Ainslie et al. 2023, figure 2), as in `enable_gqa` of"
    " PyTorch and in weights that are published: there, query head 1 reads group 0. A model that is trained as it"
    " stands learns either."
)


class Groups(NamedTuple):
    """An attention whose heads of keys and values were repeated: the factors of both, outer to inner."""

    call: Call
    keys: tuple[Factor, ...]
    values: tuple[Factor, ...]


def repeated_groups(run: RunView) -> Iterator[Groups]:
    """Yield the attentions whose keys and values have an axis of heads that was repeated."""
    graph, orders = run.graph, None
    for site in run.sites:
        if min(len(graph.shape(key)) for key in (site.q, site.k, site.v)) != 4:
            continue
        orders = orders or AxisOrders(run)
        keys, values = (orders.of(graph.ref[key])[1] for key in (site.k, site.v))
        if all(sum(factor.repeated for factor in side) == 1 and len(side) == 2 for side in (keys, values)):
            yield Groups(graph.calls[site.call], keys, values)


@rule(
    "groups of heads",
    repeated_groups,
    "{what}",
    "Repeat each head in its place: `k.repeat_interleave(h // groups, dim=1)`, and values alike.",
)
def find_groups(run: RunView, groups: Groups) -> Evidence | None:
    """Find heads of keys and values that are repeated in different orders, or as whole copies."""
    call, keys, values = groups
    if keys[0].repeated != values[0].repeated:
        texts = [" × ".join("copies" if factor.repeated else "groups" for factor in side) for side in (keys, values)]
        return Evidence(call, what=MIXED_GROUPS.format(keys=texts[0], values=texts[1]))
    size, count = keys
    if not size.repeated or size.size < 2 or count.size < 2:
        return None
    return Evidence(call, what=COPIED_GROUPS.format(groups=count.size, size=size.size))


# A broadcast of a column with a row of as many numbers: all pairs, where one number for each was meant.

PAIRWISE = frozenset(("sub", "add", "mul", "div"))
LOSSES = frozenset(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"))


class Broadcast(NamedTuple):
    """A call on a column and a row of one length: the two operands."""

    call: Call
    column: Ref
    row: Ref


def broadcasts(run: RunView) -> Iterator[Broadcast]:
    """Yield the calls that broadcast two tensors of different rank, from different sources."""
    graph = run.graph
    for index in graph.computing_calls():
        call, operands = graph.calls[index], graph.data(index)
        if call.op.name in LOSSES:
            operands = [_before_expand(graph, ref) for ref in operands]
        elif call.op.name not in PAIRWISE:
            continue
        if len(operands) == 2 and len(operands[0].shape) != len(operands[1].shape):
            row, column = sorted(operands, key=lambda ref: len(ref.shape))
            if graph.root(row.key) != graph.root(column.key):  # all pairs of one tensor are meant
                yield Broadcast(call, column, row)


def _before_expand(graph: Graph, ref: Ref) -> Ref:
    """Return the operand of a loss before the loss itself broadcast it."""
    call = graph.producing_call(ref.key)
    return graph.ref[graph.layout_source(ref.key)] if call is not None and call.op.name == "expand" else ref


@rule(
    "broadcast to pairs",
    broadcasts,
    "{column} and {row} are broadcast to {result}: each of the {length} numbers of one meets all of the other, and not"
    " its own alone.",
    "Give both the same shape: `x.squeeze(-1)`, or `y.unsqueeze(-1)`.",
    names_axes=True,
)
def find_pairs(run: RunView, broadcast: Broadcast) -> Evidence | None:
    """Find a column and a row of one length, where the column has its axis of 1 from a computation or an input: an axis
    that was inserted asks for all pairs."""
    call, column, row = broadcast
    if _is_inserted(run.graph, column):
        return None
    records = [run.record(ref.key) for ref in (column, row)]
    first, second = (tuple(record.symbolic or ()) if record is not None else () for record in records)
    offset = len(first) - len(second)
    for axis, size in enumerate(second, start=offset):
        once = second.count(size) == first.count(size) == 1
        if once and not size.isdecimal() and size != "?" and first[axis] == "1" and first.index(size) < axis:
            rows = ("1",) * offset + second
            result = [one if other == "1" else other for one, other in zip(first, rows, strict=True)]
            texts = [shape_text(tuple(each)) for each in (first, second, result)]
            return Evidence(call, column=texts[0], row=texts[1], result=texts[2], length=row.shape[axis - offset])
    return None


def _is_inserted(graph: Graph, column: Ref) -> bool:
    """Return whether the axis of 1 was inserted by a layout, before any element-wise calls."""
    key = column.key
    while True:
        root = graph.root(key)
        if any(len(graph.shape(before)) != len(column.shape) for before in (root, *graph.chain(key, root))):
            return True
        index = graph.producer.get(root)
        alike = [] if index is None else [ref for ref in graph.data(index) if ref.shape == column.shape]
        if index is None or len(alike) != 1 or not graph.calls[index].op.traits & {"pointwise", "arithmetic"}:
            return False
        key = alike[0].key
