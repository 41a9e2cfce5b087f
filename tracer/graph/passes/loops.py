"""Loops over the parts of a sequence, and slices written one by one, as one step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from tracer.capture.calls import Call, Layout, Ref, refs
from tracer.expr.recurrence import BACKWARD_SLICE, CARRY, FORWARD_SLICE, INVARIANT
from tracer.graph.dataflow import Graph, SyntheticOp
from tracer.ops import ACTIVATIONS, JOINS, POINTWISE, SPLITS, schema

# Cancel splits that are joined again unchanged: `cat(unbind(x))` moves nothing.


def cancel_unbinds(graph: Graph) -> Graph:
    """Return the graph with each join of all parts of one tensor, in order, as one layout of that tensor."""
    return graph.replace(
        [match for index in range(len(graph.calls)) if (match := _match_rejoin(graph, index)) is not None]
    )


def _match_rejoin(graph: Graph, index: int) -> tuple[set[int], list[Call]] | None:
    """Return the two calls and their replacement; None if a part has another user or is left out."""
    join = graph.calls[index]
    parts: tuple[Ref, ...] = tuple(join.arguments.get("tensors", ())) if graph.name(index) in JOINS else ()
    deal = graph.producer.get(parts[0].key) if parts else None
    if deal is None or graph.name(deal) not in SPLITS | {"unbind"} or graph.calls[deal].outputs != parts:
        return None
    if any(graph.users[part.key] != [index] or part.key in graph.returned for part in parts):
        return None
    call = graph.calls[deal]
    whole, axis = call.arguments["self"], call.arguments.get("dim", 0)
    axis %= len(whole.shape)
    if join.arguments.get("dim", 0) % len(parts[0].shape) != axis:
        return None
    func, name, arguments = torch.ops.aten.alias.default, "alias", {"self": whole}
    if graph.name(deal) == "unbind":
        func, name = torch.ops.aten.flatten.using_ints, "flatten"
        arguments |= {"start_dim": axis, "end_dim": axis + 1}
    op, inner = schema(name), (call, join)
    return {deal, index}, [join._replace(func=func, op=op, name=name, arguments=arguments, inner=inner)]


# Fuse writes into all slices of one tensor, `y[:, 0] = …`, `y[:, 1] = …`, into one `stack`.

WRITES = frozenset(("overwrite",))
"""Calls of which a tensor that is written slice by slice has some."""
FEWEST_WRITES = 2
"""Smallest number of slices of such a tensor."""


def fuse_slice_writes(graph: Graph) -> Graph:
    """Return the graph with all writes into the slices of one tensor as one `stack` of the written values."""
    writes = (index for index, call in enumerate(graph.calls) if call.name in WRITES)
    return graph.replace([match for index in writes if (match := _match_writes(graph, index)) is not None])


def _match_writes(graph: Graph, index: int) -> tuple[set[int], list[Call]] | None:
    """Return the writes that end with this one, and their replacement.

    Return None if they leave a slice unwritten, or if anything else uses the unfinished tensor.
    """
    last = graph.calls[index]
    into, axis = last.arguments["into"], _written_axis(last)
    if axis is None or into.shape[axis] < FEWEST_WRITES:
        return None
    parts: dict[int, Ref] = {}
    group: set[int] = set()
    count = into.shape[axis]
    backwards = last.arguments["part"].offset == into.offset
    for number in range(count) if backwards else reversed(range(count)):
        call = graph.calls[index]
        source = _written_value(graph, call, group)
        at = call.arguments["part"].offset - into.offset
        if (
            source is None
            or call.arguments["into"] != into
            or at != number * into.stride[axis]
            or _written_axis(call) != axis
        ):
            return None
        parts[number] = source
        group.add(index)
        before = graph.producer.get(call.arguments["old"].key)
        if len(parts) < count and (before is None or graph.calls[before].name != "overwrite"):
            return None
        index = before if before is not None else -1
    for write in sorted(group)[:-1]:
        if any(taker not in group for ref in graph.calls[write].outputs for taker in graph.users.get(ref.key, ())):
            return None
    group = graph.with_exclusive_producers(group, lambda call: "factory" in call.op.traits or call.op.takes_shape)
    func, inner = torch.ops.aten.stack.default, tuple(graph.calls[write] for write in sorted(group))
    arguments = {"tensors": tuple(parts[number] for number in range(count)), "dim": axis}
    return group, [last._replace(func=func, op=schema("stack"), name="stack", arguments=arguments, inner=inner)]


def _written_axis(call: Call) -> int | None:
    """Return the axis along which a write covers one index; None if there is none."""
    into, part = call.arguments["into"], call.arguments["part"]
    for axis in range(len(into.shape)):
        rest = (*into.shape[:axis], *into.shape[axis + 1 :]), (*into.stride[:axis], *into.stride[axis + 1 :])
        if Layout(*rest, part.offset) == part:
            return axis
    return None


def _written_value(graph: Graph, call: Call, group: set[int]) -> Ref | None:
    """Return the value that is written unchanged, and add its copy and the written slice to the group."""
    copy = graph.producer.get(call.arguments["new"].key)
    if copy is None or graph.calls[copy].op.name != "copy":
        return None
    source, part = graph.calls[copy].arguments["src"], graph.calls[copy].arguments["self"]
    picked = graph.producer.get(part.key)
    if picked is None or (source.shape, source.dtype) != (part.shape, part.dtype):
        return None
    if len(graph.users[part.key]) != 1 or len(graph.users[call.arguments["new"].key]) != 1:
        return None
    group |= {copy, picked}
    return source


# One iteration of a rolled loop over time.

SCAN = schema("scan")
FUNC = SyntheticOp("scan", ("body", "operands", "initial"))
JOIN = "|"
"""Separator of the keys of the values in one sequence, none of which was in memory as a tensor of its own."""


@dataclass(frozen=True)
class LoopBody:
    """One recorded iteration: its calls, the key of its result, the axis of iterations, and their number.

    `places` are the operands: (key in the iteration, kind, axis, key of the whole, index in `initial`). `own` is the
    key of the loop's result. `back`: iterations go from the last slice to the first. `keepdim`: operands and results
    keep the axis of iterations, of size 1.
    """

    calls: tuple[Call, ...]
    key: str
    axis: int
    length: int
    places: tuple[tuple[str, int, int, str, int], ...]
    own: str
    back: bool = False
    keepdim: bool = False


# Slices of length 1 that a run takes of a sequence: `x[:, 0]`, `x[:, 1]` …, or `x[:, 0:1]`, `x[:, 1:2]` …


SLICES = frozenset(("select", "slice"))
"""Calls of which a loop over the parts of a sequence has some."""


class SequenceSlice(NamedTuple):
    """One index of a tensor along an axis; `keepdim`: that axis stays, with size 1."""

    whole: str
    axis: int
    place: int
    keepdim: bool


def match_slice(call: Call) -> SequenceSlice | None:
    """Return the slice of length 1 that a call takes; None for any other call."""
    arguments = call.arguments
    if call.name == "select" and isinstance(arguments.get("index"), int) and arguments["index"] >= 0:
        return SequenceSlice(
            arguments["self"].key, arguments["dim"] % len(arguments["self"].shape), arguments["index"], False
        )
    if call.name == "slice" and arguments.get("start") is not None and arguments["end"] == arguments["start"] + 1:
        axis = arguments["dim"] % len(arguments["self"].shape)
        if arguments["step"] == 1 and arguments["start"] >= 0 and arguments["self"].shape[axis] > 1:
            return SequenceSlice(arguments["self"].key, axis, arguments["start"], True)
    return None


def find_sliced_sequences(calls: Sequence[Call]) -> Iterator[tuple[list[int], set[int]]]:
    """Yield the calls that slice one tensor at 0, 1, 2 …, or from its end, and those that take the first slice
    again."""
    places: dict[tuple, list[int]] = defaultdict(list)
    again: dict[tuple, set[int]] = defaultdict(set)
    for index, call in enumerate(calls):
        if (slice_match := match_slice(call)) is None:
            continue
        from_end = call.arguments["self"].shape[slice_match.axis] - 1 - slice_match.place
        for backwards, place in ((False, slice_match.place), (True, from_end)):
            whole = slice_match.whole, slice_match.axis, slice_match.keepdim, backwards
            if place == len(places[whole]):
                places[whole].append(index)
            elif place == 0 and len(places[whole]) == 1:
                again[whole].add(index)
    yield from ((slices, again[whole]) for whole, slices in places.items())


def is_rowwise(call: Call, axis: int) -> bool:
    """Return whether a call treats each index along an axis alike, so that this axis can be left out."""
    name, rank = call.op.name, len(call.outputs[0].shape)
    shapes = [ref.shape for ref in refs(call.arguments)]
    if name in ("linear", "layer_norm", "rms_norm", "softmax", "cat", "concat", "chunk", "split", "slice"):
        on_last = (
            call.arguments.get("dim", -1) % rank == rank - 1 and len(call.arguments.get("normalized_shape", "1")) == 1
        )
        return on_last and axis < rank - 1 and len(shapes[0]) == rank
    if name == "matmul":
        return len(shapes[0]) == rank and len(shapes[1]) == 2 and axis < rank - 1
    cell_by_cell = name in POINTWISE | ACTIVATIONS - {"glu"}
    return cell_by_cell and all(len(shape) == rank or len(shape) < rank - axis for shape in shapes)


# Roll loops over time: iterations that do the same to the next slice of a sequence and to the last state.
#
# They are found by their slices, x[:, 0], x[:, 1] …, at equal distances in the list of calls, forwards or backwards. A
# carried state becomes a sequence of states, and collected results become one sequence. Each sequence is one call.

FEWEST = 3
"""Smallest number of iterations of a loop."""
MAX_CALLS = 400
"""Largest number of calls in one iteration."""


class NotALoop(Exception):
    """Raised if loop iterations are not structurally equal."""


def roll_loops(graph: Graph) -> Graph:
    """Return the graph with each loop over time as one call for each sequence that it computes."""
    taken: set[int] = set()
    groups: list[tuple[set[int], list[Call]]] = []
    for places, again in find_sliced_sequences(graph.calls):
        count = len(places)
        if count < FEWEST:
            continue
        period = places[2] - places[1]
        if places[1] - period in again:  # before the loop, something else took the first part
            places[0] = places[1] - period
        if places[0] in taken:
            continue
        if period > MAX_CALLS or any(b - a != period for a, b in pairwise(places)):
            continue
        for start in range(places[0], max(places[0] - period, -1), -1):
            if start + count * period > len(graph.calls):
                continue
            try:
                group, lines = _Loop(graph, start, period, count).roll()
            except NotALoop:
                continue
            if not group & taken:
                taken |= group
                groups.append((group, lines))
            break
    return graph.replace(groups)


class _Loop:
    """A loop of `count` iterations of `period` calls each, from call `start` on."""

    def __init__(self, graph: Graph, start: int, period: int, count: int):
        self.graph, self.start, self.period, self.count = graph, start, period, count
        self.stop = start + period * count
        self.parts: dict[str, tuple[Ref, int]] = {}
        self.states: dict[tuple[int, int], Ref] = {}
        self.ways: set[tuple[bool, bool]] = set()
        for j in range(period):
            self._compare(j)
        if len(self.ways) != 1:
            raise NotALoop
        ((self.mirrored, self.keepdim),) = self.ways
        self.back = self.mirrored

    def call_at(self, iteration: int, j: int) -> Call:
        return self.graph.calls[self.start + iteration * self.period + j]

    def locate(self, key: str) -> tuple[int, int, int] | None:
        """Return the iteration in which a value was computed, the call's index in it, and the output's; None outside
        the loop."""
        index = self.graph.producer.get(key)
        if index is None or not self.start <= index < self.stop:
            return None
        iteration, j = divmod(index - self.start, self.period)
        return iteration, j, next(n for n, ref in enumerate(self.graph.calls[index].outputs) if ref.key == key)

    def _compare(self, j: int) -> None:
        """Compare one call in all iterations. Raise Unlike if these differ structurally."""
        iterations = [self.call_at(iteration, j) for iteration in range(self.count)]
        first = iterations[0]

        def outline(call: Call) -> tuple:
            return call.name, call.func, call.module, [*call.arguments], [ref.shape for ref in call.outputs]

        if first.name == "overwrite" or any(outline(call) != outline(first) for call in iterations):
            raise NotALoop
        if (slices := self._match_slices(iterations)) is not None:
            self.parts[iterations[1].outputs[0].key] = slices
            return
        for name in first.arguments:
            self._compare_arguments([call.arguments[name] for call in iterations])

    def _match_slices(self, iterations: list[Call]) -> tuple[Ref, int] | None:
        """Return the tensor that these calls slice, one index each, and the axis; None for other calls."""
        source, slices = next(iter(iterations[0].arguments.values())), [match_slice(call) for call in iterations]
        first = slices[0]
        if first is None or self.locate(source.key) is not None or source.shape[first.axis] != self.count:
            return None
        for mirrored in (False, True):
            places = range(self.count)[::-1] if mirrored else range(self.count)
            if slices == [first._replace(place=place) for place in places]:
                self.ways.add((mirrored, first.keepdim))
                return source, first.axis
        return None

    def _compare_arguments(self, values: list) -> None:
        first = values[0]
        if isinstance(first, Ref):
            if not all(isinstance(value, Ref) for value in values):
                raise NotALoop
            self._compare_tensors(values)
        elif isinstance(first, tuple):
            if any(not isinstance(value, tuple) or len(value) != len(first) for value in values):
                raise NotALoop
            for several in zip(*values, strict=True):
                self._compare_arguments(list(several))
        elif any(type(value) is not type(first) or value != first for value in values):
            raise NotALoop

    def _compare_tensors(self, values: list[Ref]) -> None:
        first, *later = (self.locate(ref.key) for ref in values)
        places = [place for place in later if place is not None]
        if first is None and not places:
            if len({ref.key for ref in values}) > 1:
                raise NotALoop
            return
        if len(places) < len(later):
            raise NotALoop
        positions = {place[1:] for place in places}
        behind = {iteration - place[0] for iteration, place in enumerate(places, 1)} | ({-first[0]} if first else set())
        if len(positions) > 1 or behind not in ({0}, {1}):
            raise NotALoop
        if behind == {1}:
            (state,) = positions
            if first is not None or self.states.setdefault(state, values[0]).key != values[0].key:
                raise NotALoop
        elif first is None:
            raise NotALoop

    def roll(self) -> tuple[set[int], list[Call]]:
        """Return all calls of the loop, with those that collect its results, and their replacements."""
        group = set(range(self.start, self.stop))
        collected = self._find_collected(group)
        if not self.states:
            raise NotALoop  # the same for each part, with nothing carried on, is not a loop over time
        sequences = {state: self._sequence_of(state, collected) for state in self.states}
        for state, outputs in collected.items():
            sequences.setdefault(state, (outputs[0], outputs[1]))
        for packed in self._find_packed():
            sequences.setdefault(packed, self._sequence_of(packed, collected))
        owned, lines = set(), []
        for state in sorted(sequences):
            lines.append(self._build_call(state, sequences, owned, collected))
        last = [self._build_select(state, sequences[state]) for state in sequences if self._is_used_after(state, group)]
        return group, [*lines, *last]

    def _find_packed(self) -> Iterator[tuple[int, int]]:
        """Yield the values of an iteration that are split, such as the gates of a cell from one product."""
        for j in range(self.period):
            call = self.call_at(1, j)
            source = next(refs(call.arguments), None)
            located = self.locate(source.key) if source and "split" in call.op.traits else None
            if located is not None and located[0] == 1 and "layout" not in self.call_at(1, located[1]).op.traits:
                yield located[1:]

    def _state_keys(self, state: tuple[int, int]) -> list[str]:
        """Return the values of a state, by iteration."""
        j, output = state
        return [self.call_at(iteration, j).outputs[output].key for iteration in range(self.count)]

    def _find_collected(self, group: set[int]) -> dict[tuple[int, int], tuple[Ref, int, int]]:
        """Return the stacked results: by state, the result, its axis, and the call."""
        collected, graph, orders = {}, self.graph, set()
        for j in range(self.period):
            for output in range(len(self.call_at(0, j).outputs)):
                keys = self._state_keys((j, output))
                outside = [[i for i in graph.users.get(key, ()) if i not in group] for key in keys]
                if not any(outside[:-1]):
                    continue
                takers = {i for call_index in outside[:-1] for i in call_index}
                if len(takers) != 1 or graph.returned & set(keys[:-1]):
                    raise NotALoop
                (index,) = takers
                call = graph.calls[index]
                stacked = [ref.key for ref in call.arguments.get("tensors", ()) if isinstance(ref, Ref)]
                if call.name not in ("stack", "cat", "concat") or stacked not in (keys, keys[::-1]):
                    raise NotALoop
                orders.add(stacked != keys)
                result = call.outputs[0]
                axis = call.arguments.get("dim", 0) % len(result.shape)
                same = (call.name != "stack") == self.keepdim
                collected[(j, output) if same else self._find_unsqueezed(j, axis)] = result, axis, index
        if len(orders) > 1:
            raise NotALoop
        self.back = orders.pop() if orders else self.mirrored
        group |= {index for *_, index in collected.values()}
        return collected

    def _find_unsqueezed(self, j: int, axis: int) -> tuple[int, int]:
        """Return the value before a call that inserts or drops the axis of iterations, of size 1."""
        call = self.call_at(1, j)
        name, (ref, *_) = ("squeeze", call.outputs) if self.keepdim else ("unsqueeze", [*refs(call.arguments)])
        located = self.locate(call.arguments["self"].key) if call.name == name else None
        if located is None or located[0] != 1 or call.arguments.get("dim") not in (axis, axis - len(ref.shape) - 1):
            raise NotALoop
        return located[1:]

    def _sequence_of(self, state: tuple[int, int], collected: dict) -> tuple[Ref, int]:
        """Return all values of a state as one tensor, and the axis of iterations."""
        if state in collected:
            return collected[state][:2]
        output = self.call_at(0, state[0]).outputs[state[1]]
        keys = self._state_keys(state)[:: -1 if self.back else 1]
        if not self.keepdim:
            return Ref(JOIN.join(keys), (self.count, *output.shape), output.dtype), 0
        ((_, axis), *_) = self.parts.values()
        shape = (*output.shape[:axis], self.count, *output.shape[axis + 1 :])
        return Ref(JOIN.join([*keys, f":{axis}"]), shape, output.dtype), axis

    def _is_used_after(self, state: tuple[int, int], group: set[int]) -> bool:
        """Return whether the last state is used after the loop, by more than the call that collects all."""
        key = self._state_keys(state)[-1]
        return key in self.graph.returned or not group.issuperset(self.graph.users.get(key, ()))

    def _build_select(self, state: tuple[int, int], sequence: tuple[Ref, int]) -> Call:
        """Return the call that selects the last state from its sequence."""
        j, output = state
        call, place = self.call_at(self.count - 1, j), 0 if self.back else self.count - 1
        arguments = {"self": sequence[0], "dim": sequence[1], "index": place}
        ref, func = call.outputs[output], torch.ops.aten.select.int
        if self.keepdim:
            arguments = {"self": sequence[0], "dim": sequence[1], "start": place, "end": place + 1, "step": 1}
            func = torch.ops.aten.slice.Tensor
        op = schema("slice" if self.keepdim else "select")
        selection = call._replace(func=func, op=op, name=op.name, arguments=arguments)
        return selection._replace(outputs=(ref,), last=call.first, inner=())

    def _build_call(self, state, sequences: dict, owned: set[int], collected: dict) -> Call:
        """Return the call of one sequence, with the ops of all iterations that lead to it and to no earlier
        sequence."""
        j, output = state
        calls = [self.call_at(1, k) for k in range(self.period)]
        key = calls[j].outputs[output].key
        sequence, axis = sequences[state]
        places, operands, starts = [], [], []

        def operand(ref: Ref, what: int, along: int, of: str, start: int = -1) -> None:
            if of not in {place[0] for place in places}:
                operands.append(ref)
                places.append((of, what, along, ref.key, start))

        others = {self._state_keys(other)[1]: slices for other, slices in sequences.items() if other != state}
        before = {self._state_keys(other)[0]: other for other in self.states}
        waiting, visited, inside = [key], set(), set()
        while waiting:
            at = waiting.pop()
            if at in visited:
                continue
            visited.add(at)
            if at in others:
                operand(others[at][0], FORWARD_SLICE, others[at][1], at)
            elif at in before:
                ref, along = sequences[before[at]]
                starts.append(self.states[before[at]])
                operand(ref, CARRY, along, at, len(starts) - 1)
            elif at in self.parts:
                ref, along = self.parts[at]
                operand(ref, FORWARD_SLICE if self.back == self.mirrored else BACKWARD_SLICE, along, at)
                inside.add(self.graph.producer[at] - self.start - self.period)
            elif (located := self.locate(at)) is None:
                operand(next(ref for call in calls for ref in refs(call.arguments) if ref.key == at), INVARIANT, 0, at)
            else:
                inside.add(located[1])
                waiting += [ref.key for ref in refs(calls[located[1]].arguments)]
        mine = sorted(inside - owned)
        owned |= inside
        ops = [self.call_at(iteration, k) for iteration in range(self.count) for k in mine]
        ops += [self.graph.calls[collected[state][2]]] if state in collected else []
        chosen = tuple(calls[k] for k in sorted(inside) if calls[k].outputs[0].key not in self.parts)
        if self.keepdim and not all(is_rowwise(state_place, axis) for state_place in chosen):
            raise NotALoop
        body = LoopBody(chosen, key, axis, self.count, tuple(places), sequence.key, self.back, self.keepdim)
        arguments = {
            "body": body,
            "operands": tuple(ref for ref in operands if ref.key != sequence.key),
            "initial": tuple(starts),
        }
        first = self.call_at(0, j)
        where = first.module, first.call, first.first, first.last
        return Call(FUNC, SCAN, SCAN.name, arguments, (sequence,), *where, tuple(ops))
