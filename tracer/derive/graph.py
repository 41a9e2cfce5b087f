"""The graph of a run: which value came of which, through which calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from math import prod

import torch

from tracer.ops import ATTENTION, IDENTITIES, JOINS, LAYOUTS, PADS, base, takes_shape
from tracer.recorder.calls import Call, Calls, Ref, refs


def loses(before: torch.dtype, after: torch.dtype) -> bool:
    """Whether a cast to 16 bits rounds some numbers, or has no room for them. One from float64 to float32 does no more
    than the operations around it."""
    if not before.is_floating_point or after not in (torch.float16, torch.bfloat16):
        return False
    held, room = torch.finfo(before), torch.finfo(after)
    return room.eps > held.eps or room.max < held.max


class Graph:
    """The calls of a run that lead to its outputs, those without a word of their own opened into what they ran.

    `compose` puts calls that are one thing in a textbook in the place of several.

    Values go by the keys of their `Ref`s. A call is a "layout", the "same" numbers again, or it computes.
    """

    def __init__(self, calls: Calls, known: Callable[[str], bool], compose: Callable[[list[Call], Calls], list[Call]]):
        taken = {ref.key for call in calls.made for ref in refs(call.arguments)}
        self.calls = tuple(compose(list(self._opened(calls.made, known, taken)), calls))
        self.given, self.outputs, self.places = calls.inputs, calls.outputs, calls.places
        self.ref: dict[str, Ref] = {ref.key: ref for ref in calls.inputs}
        self.maker: dict[str, int] = {}
        self.inputs: list[tuple[Ref, ...]] = []
        self.kind: list[str] = []
        for index, call in enumerate(self.calls):
            inputs = tuple(dict.fromkeys(refs(call.arguments)))
            self.inputs.append(inputs)
            for ref in inputs:
                self.ref.setdefault(ref.key, ref)
            for ref in call.outputs:
                if ref.key not in self.ref or ref.key not in {one.key for one in inputs}:
                    self.ref[ref.key] = ref
                    self.maker[ref.key] = index
            self.kind.append(self._kind(call, inputs))
        self._depend()
        self._live()
        self._consume()
        self.instance = {}
        around = defaultdict(int)
        for module in calls.modules:
            around[module.around] += 1
        for number, module in enumerate(calls.modules):
            self.instance[module.path, module.call] = number, around[number]
        self.modules = calls.modules

    @staticmethod
    def _opened(made, known, taken: set[str]) -> Iterator[Call]:
        for call in made:
            returned = {ref.key for ref in call.outputs} & {ref.key for ref in refs(call.arguments)}
            if returned and (call.name.endswith("_") or not call.inner):
                continue  # it gave what it was given
            name = base(call.name)
            saved = [one for one in call.inner if Graph._saved(one, call, taken)]
            if saved:  # a gradient that is computed in forward takes what was computed inside of this call
                inside = {ref.key for one in call.inner for ref in one.outputs} - {ref.key for ref in call.outputs}
                apart = not any(ref.key in inside for one in saved for ref in refs(one.arguments))
                yield from (call, *saved) if apart else Graph._opened(call.inner, known, taken)
            elif call.inner and not (known(name) or name in LAYOUTS or name in IDENTITIES or name == ATTENTION):
                yield from Graph._opened(call.inner, known, taken)
            else:
                yield call

    @staticmethod
    def _saved(inner: Call, call: Call, taken: set[str]) -> bool:
        """Whether a later call takes what only the inside of an earlier one made."""
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
            return "same"
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

    def computing(self) -> list[int]:
        """The calls that compute what lives."""
        return [index for index in range(len(self.calls)) if self.computes(index) and self.lives(index)]

    def shape(self, key: str) -> tuple[int, ...]:
        return self.ref[key].shape

    def count(self, key: str) -> int:
        return prod(self.shape(key))

    def made(self, key: str) -> Call | None:
        """The call that made a value, or None for what the run was given."""
        return self.calls[self.maker[key]] if key in self.maker else None

    def call_of(self, key: str) -> Call:
        """The call that made a value. LookupError for what the run was given."""
        call = self.made(key)
        if call is None:
            raise LookupError(f"{key} was given to the run, so no call made it")
        return call

    def source(self, key: str) -> str | None:
        """The value that this one is a rearrangement of; None where it was computed or given."""
        index = self.maker.get(key)
        if index is None or self.kind[index] == "compute":
            return None
        call = self.calls[index]
        if base(call.name) == "copy":
            return call.arguments["src"].key
        if base(call.name) in JOINS:  # all but one of what it joins is empty
            return next(ref.key for ref in self.inputs[index] if 0 not in ref.shape)
        return self.inputs[index][0].key

    def laid_from(self, key: str) -> str:
        """The value that this one is a rearrangement of. LookupError where it was computed or given."""
        before = self.source(key)
        if before is None:
            raise LookupError(f"{key} is no rearrangement of another value")
        return before

    def rounds(self, key: str) -> torch.dtype | None:
        """The dtype that a value was cast to where that rounds its numbers; None where it does not, or where the value
        was computed or given."""
        before = self.source(key)
        dtype = self.ref[key].dtype
        return dtype if before is not None and loses(self.ref[before].dtype, dtype) else None

    def root(self, key: str) -> str:
        """The value at the start of the chain of layouts that this one ends."""
        while (before := self.source(key)) is not None:
            key = before
        return key

    def chain(self, key: str, start: str) -> list[str]:
        """The values from after `start` to `key`."""
        found = []
        while key != start:
            found.append(key)
            key = self.laid_from(key)
        return found[::-1]

    def _depend(self) -> None:
        """What each value depends on: "x" the inputs, "p" parameters alone, "c" nothing."""
        self.depends: dict[str, str] = {}
        given = {ref.key for ref in self.given}
        for key in self.ref:
            if key not in self.maker:
                self.depends[key] = "x" if key in given else "p" if key.startswith("parameter ") else "c"
        for index, call in enumerate(self.calls):
            of = {self.depends.get(ref.key, "c") for ref in self.inputs[index]}
            if takes_shape(call.name):
                of = set()
            found = "x" if "x" in of else "p" if "p" in of else "c"
            for ref in call.outputs:
                if self.maker.get(ref.key) == index:
                    self.depends[ref.key] = found

    def _live(self) -> None:
        """What is made of a value at all: outputs, all that leads to them, and what a call made that nobody takes."""
        self.live: set[str] = set()
        taken = {ref.key for call, given in zip(self.calls, self.inputs, strict=True) if call.outputs for ref in given}
        waiting = [ref.key for ref in self.outputs]
        for index, call in enumerate(self.calls):
            own = [ref.key for ref in call.outputs if self.maker.get(ref.key) == index]
            if self.kind[index] == "compute" and own and not any(key in taken for key in own):
                waiting.append(own[0])
        self._revive(waiting)
        for index in reversed(range(len(self.calls))):  # what is only laid out in the end, and then left
            own = [ref.key for ref in self.calls[index].outputs if self.maker.get(ref.key) == index]
            if self.kind[index] == "compute" and own and self.inputs[index] and not self.live.intersection(own):
                self._revive(own[:1])

    def _revive(self, waiting: list[str]) -> None:
        """These values live, and all that they were made of."""
        while waiting:
            key = waiting.pop()
            if key in self.live:
                continue
            self.live.add(key)
            if key in self.maker:
                waiting += [ref.key for ref in self.inputs[self.maker[key]]]

    def lives(self, index: int) -> bool:
        return any(ref.key in self.live for ref in self.calls[index].outputs)

    def _consume(self) -> None:
        """Who takes a value: directly, and through layouts."""
        self.takers: dict[str, list[int]] = defaultdict(list)
        self.consumers: dict[str, list[int]] = defaultdict(list)
        for index in range(len(self.calls)):
            if not self.lives(index):
                continue
            for ref in self.inputs[index]:
                self.takers[ref.key].append(index)
                if self.computes(index):
                    root = self.root(ref.key)
                    if index not in self.consumers[root]:
                        self.consumers[root].append(index)

    def within(self, index: int) -> int:
        """The number of the module call that a call was made in; -1 outside of all."""
        call = self.calls[index]
        return self.instance.get((call.module, call.call), (-1, 0))[0]

    def children(self, index: int) -> int:
        """How many modules the module of a call calls."""
        call = self.calls[index]
        return self.instance.get((call.module, call.call), (-1, 1))[1]
