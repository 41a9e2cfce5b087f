"""Dataflow graph of a run: the producer and the users of each value."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from math import prod

import torch

from tracer.capture.composite_calls import Call, CallLog, Ref, refs
from tracer.ops import ATTENTION, IDENTITIES, JOINS, LAYOUTS, PADS, base, takes_shape


def loses_precision(before: torch.dtype, after: torch.dtype) -> bool:
    """Return whether a cast to 16 bits loses precision or range.

    A cast from float64 to float32 does not count: it rounds no more than the ops around it.
    """
    if not before.is_floating_point or after not in (torch.float16, torch.bfloat16):
        return False
    source, room = torch.finfo(before), torch.finfo(after)
    return room.eps > source.eps or room.max < source.max


class Graph:
    """Dataflow graph of a run: its calls in order, and the producer and the users of each value.

    Calls are identified by their indices, values by the keys of their `Ref`s. A pass returns a rewritten copy
    (`replace`). Derived properties, such as liveness, are computed on first use.
    """

    def __init__(self, calls: Iterable[Call], run: CallLog, varying: frozenset[int] = frozenset()):
        self.calls, self.run, self.varying = tuple(calls), run, varying
        self.placeholders, self.outputs, self.modules = run.inputs, run.outputs, run.modules
        self.returned = frozenset(ref.key for ref in run.outputs)
        self.inputs = [tuple(dict.fromkeys(refs(call.arguments))) for call in self.calls]
        self.producer: dict[str, int] = {}
        self.users: dict[str, list[int]] = {}
        self.ref: dict[str, Ref] = {ref.key: ref for ref in run.inputs}
        for index, call in enumerate(self.calls):
            taken = {ref.key for ref in self.inputs[index]}
            for ref in self.inputs[index]:
                self.users.setdefault(ref.key, []).append(index)
                self.ref.setdefault(ref.key, ref)
            for ref in call.outputs:
                if ref.key not in taken:
                    self.producer.setdefault(ref.key, index)
                    self.ref[ref.key] = ref

    @classmethod
    def of(cls, run: CallLog, known: Callable[[str], bool], varying: frozenset[int] = frozenset()) -> Graph:
        """Return the graph of a run. Calls without a lowering of their own are replaced by their inner calls.

        `varying` are the ops that pad by other numbers at other sizes: none of them is an identity, even if it adds
        nothing in this run.
        """
        taken = {ref.key for call in run.entries for ref in refs(call.arguments)}
        return cls(cls._expand(run.entries, known, taken), run, varying)

    def replace(self, groups: Iterable[tuple[set[int], list[Call]]]) -> Graph:
        """Return the graph with each group of calls replaced by other calls, at the position of the group's last
        call."""
        groups = list(groups)
        if not groups:
            return self
        grouped_calls = {index for group, _ in groups for index in group}
        there = {max(group): calls for group, calls in groups}
        calls = (
            [call] if index not in grouped_calls else there.get(index, []) for index, call in enumerate(self.calls)
        )
        return Graph((call for some in calls for call in some), self.run, self.varying)

    def name(self, index: int) -> str:
        """Return the canonical op name of a call."""
        return base(self.calls[index].name)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all values, including parameters that the run did not use."""
        return self.run.weights | {key: ref.shape for key, ref in self.ref.items()}

    def with_exclusive_producers(self, region: set[int], may: Callable[[Call], bool]) -> set[int]:
        """Return these calls and their producers that satisfy `may` and whose values are used nowhere else."""
        region_calls, waiting = set(region), list(region)
        while waiting:
            for ref in self.inputs[waiting.pop()]:
                index = self.producer.get(ref.key)
                if index is None or index in region_calls or ref.key in self.returned or not may(self.calls[index]):
                    continue
                if all(
                    user in region_calls
                    for value in self.calls[index].outputs
                    for user in self.users.get(value.key, ())
                ):
                    region_calls.add(index)
                    waiting.append(index)
        return region_calls

    @cached_property
    def kind(self) -> list[str]:
        """Kind of each call: "layout", "same" (an identity) or "compute"."""
        return [self._kind(call, inputs) for call, inputs in zip(self.calls, self.inputs, strict=True)]

    @cached_property
    def instance(self) -> dict[tuple[str, int], tuple[int, int]]:
        """For each module call, its index and the number of its child calls."""
        around = Counter(module.around for module in self.modules)
        return {(module.path, module.call): (number, around[number]) for number, module in enumerate(self.modules)}

    @staticmethod
    def _expand(call_record, known, taken: set[str]) -> Iterator[Call]:
        for call in call_record:
            returned = {ref.key for ref in call.outputs} & {ref.key for ref in refs(call.arguments)}
            if returned and (call.name.endswith("_") or not call.inner):
                continue  # it gave what it was given
            name = base(call.name)
            saved = [inner_call for inner_call in call.inner if Graph._escapes(inner_call, call, taken)]
            if saved:  # a gradient that is computed in forward takes what was computed inside of this call
                inside = {ref.key for inner_call in call.inner for ref in inner_call.outputs} - {
                    ref.key for ref in call.outputs
                }
                apart = not any(ref.key in inside for inner_call in saved for ref in refs(inner_call.arguments))
                yield from (call, *saved) if apart else Graph._expand(call.inner, known, taken)
            elif call.inner and not (known(name) or name in LAYOUTS or name in IDENTITIES or name == ATTENTION):
                yield from Graph._expand(call.inner, known, taken)
            else:
                yield call

    @staticmethod
    def _escapes(inner: Call, call: Call, taken: set[str]) -> bool:
        """Return whether a later call uses a value that only the inside of an earlier call computed."""
        return not taken.isdisjoint(ref.key for ref in inner.outputs if ref not in call.outputs)

    def _kind(self, call: Call, inputs) -> str:
        if call.name == "overwrite" or not inputs or not call.outputs:
            return "compute"
        before, after, name = inputs[0], call.outputs[0], base(call.name)
        if name in JOINS:
            full = [ref for ref in inputs if 0 not in ref.shape]
            return "same" if len(full) == 1 and full[0].shape == after.shape else "compute"
        if name == "copy":
            before = call.arguments["src"]
        if name in PADS and not any(call.arguments.get("pad", (1,))):
            return "same" if self.varying.isdisjoint(range(call.first, call.last)) else "compute"
        if name not in IDENTITIES and name not in LAYOUTS:
            return "compute"
        if (
            before.dtype.is_floating_point != after.dtype.is_floating_point
            or before.dtype.is_complex != after.dtype.is_complex
        ):
            return "compute"
        if before.dtype != after.dtype and not after.dtype.is_floating_point:
            return "compute" if str(after.dtype) in ("torch.bool", "torch.uint8", "torch.int8") else "same"
        if name in IDENTITIES:
            drops = call.arguments.get("train") and call.arguments.get("p")
            return "compute" if drops else "same"
        return "layout" if name != "repeat_interleave" or len(inputs) == 1 else "compute"

    def computes(self, index: int) -> bool:
        return self.kind[index] == "compute"

    def computing_calls(self) -> list[int]:
        """Return the live calls that compute."""
        return [index for index in range(len(self.calls)) if self.computes(index) and self.is_live(index)]

    def shape(self, key: str) -> tuple[int, ...]:
        return self.ref[key].shape

    def count(self, key: str) -> int:
        return prod(self.shape(key))

    def producing_call(self, key: str) -> Call | None:
        """Return the call that produced a value; None for inputs of the run."""
        return self.calls[self.producer[key]] if key in self.producer else None

    def call_of(self, key: str) -> Call:
        """Return the call that produced a value. Raise LookupError for inputs of the run."""
        call = self.producing_call(key)
        if call is None:
            raise LookupError(f"{key} was given to the run, so no call made it")
        return call

    def source(self, key: str) -> str | None:
        """Return the value that this one is a rearrangement of; None if it was computed or is an input."""
        index = self.producer.get(key)
        if index is None or self.kind[index] == "compute":
            return None
        call = self.calls[index]
        if base(call.name) == "copy":
            return call.arguments["src"].key
        if base(call.name) in JOINS:  # all but one of what it joins is empty
            return next(ref.key for ref in self.inputs[index] if 0 not in ref.shape)
        return self.inputs[index][0].key

    def layout_source(self, key: str) -> str:
        """Return the value that this one is a rearrangement of. Raise LookupError if there is none."""
        before = self.source(key)
        if before is None:
            raise LookupError(f"{key} is not a rearrangement of another value")
        return before

    def rounding_dtype(self, key: str) -> torch.dtype | None:
        """Return the dtype of a cast that loses precision or range; None if the value is no such cast."""
        before = self.source(key)
        dtype = self.ref[key].dtype
        return dtype if before is not None and loses_precision(self.ref[before].dtype, dtype) else None

    def root(self, key: str) -> str:
        """Return the value at the start of the chain of layouts that ends with `key`."""
        while (before := self.source(key)) is not None:
            key = before
        return key

    def chain(self, key: str, start: str) -> list[str]:
        """Return the values after `start` up to `key`, along its chain of layouts."""
        steps = []
        while key != start:
            steps.append(key)
            key = self.layout_source(key)
        return steps[::-1]

    @cached_property
    def depends(self) -> dict[str, str]:
        """Dependence of each value: "x" on inputs, "p" on parameters alone, "c" on nothing."""
        depends: dict[str, str] = {}
        input_keys = {ref.key for ref in self.placeholders}
        for key in self.ref:
            if key not in self.producer:
                depends[key] = "x" if key in input_keys else "p" if key.startswith("parameter ") else "c"
        for index, call in enumerate(self.calls):
            of = {depends.get(ref.key, "c") for ref in self.inputs[index]}
            if takes_shape(call.name):
                of = set()
            for ref in call.outputs:
                if self.producer.get(ref.key) == index:
                    depends[ref.key] = "x" if "x" in of else "p" if "p" in of else "c"
        return depends

    @cached_property
    def live(self) -> set[str]:
        """Live values: outputs, all that leads to them, and computed values without a user."""
        live: set[str] = set()
        taken = {
            ref.key for call, inputs in zip(self.calls, self.inputs, strict=True) if call.outputs for ref in inputs
        }
        waiting = [ref.key for ref in self.outputs]
        for index in range(len(self.calls)):
            own = self._results(index)
            if self.kind[index] == "compute" and own and not any(key in taken for key in own):
                waiting.append(own[0])
        self._mark_live(live, waiting)
        for index in reversed(range(len(self.calls))):  # what is only laid out in the end, and then left
            own = self._results(index)
            if self.kind[index] == "compute" and own and self.inputs[index] and not live.intersection(own):
                self._mark_live(live, own[:1])
        return live

    def _results(self, index: int) -> list[str]:
        """Return the values that a call produced."""
        return [ref.key for ref in self.calls[index].outputs if self.producer.get(ref.key) == index]

    def _mark_live(self, live: set[str], waiting: list[str]) -> None:
        """Add these values, and all that they were computed from, to the live ones."""
        while waiting:
            key = waiting.pop()
            if key in live:
                continue
            live.add(key)
            if key in self.producer:
                waiting += [ref.key for ref in self.inputs[self.producer[key]]]

    def is_live(self, index: int) -> bool:
        return any(ref.key in self.live for ref in self.calls[index].outputs)

    @cached_property
    def live_users(self) -> dict[str, list[int]]:
        """Live calls that use each value."""
        users = {key: [index for index in indices if self.is_live(index)] for key, indices in self.users.items()}
        return defaultdict(list, {key: indices for key, indices in users.items() if indices})

    @cached_property
    def consumers(self) -> dict[str, list[int]]:
        """Live calls that compute with a value, directly or through layouts, by the root of these layouts."""
        consumers: dict[str, list[int]] = defaultdict(list)
        for index in range(len(self.calls)):
            if self.is_live(index) and self.computes(index):
                for root in dict.fromkeys(self.root(ref.key) for ref in self.inputs[index]):
                    consumers[root].append(index)
        return consumers

    def module_call(self, index: int) -> int:
        """Return the index of the module call that contains a call; -1 outside all modules."""
        call = self.calls[index]
        return self.instance.get((call.module, call.call), (-1, 0))[0]

    def child_count(self, index: int) -> int:
        """Return the number of child modules that the module of a call calls."""
        call = self.calls[index]
        return self.instance.get((call.module, call.call), (-1, 1))[1]
