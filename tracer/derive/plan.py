"""Which values of a run are lines of its textbook, and what stands within a line.

One line for each computing call, except where a call does so little that it reads better inside the line of its only
consumer: a scale, a mask that is added, the parts of a norm. At most one heavy call stands in a line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tracer.derive.graph import Graph
from tracer.derive.kinds import (
    ACTIVATIONS,
    ARITHMETIC,
    ATTENTION,
    EMPTY,
    FINDS,
    JOINS,
    PICKS,
    PRODUCTS,
    PROJECTIONS,
    SAME,
    SOFTMAXES,
    STILL,
    TOTALS,
    TURNS,
    base,
)
from tracer.derive.laid import folded, laid
from tracer.derive.places import Places
from tracer.derive.shapes import Shapes
from tracer.derive.words import heavy as is_heavy
from tracer.derive.words import known

IN_LEAF, ELSEWHERE, WITH_HEAVY, HEAVY_IN_LEAF = 14, 6, 5, 10
"""How many calls one line holds: in a module without children and outside of them, without a heavy one and with."""


class Site(NamedTuple):
    """One attention: the values of queries, keys and values, of the weights where they were made, and of the result;
    `call` is the fused call, or the product of queries and keys."""

    q: str
    k: str
    v: str
    weights: str | None
    result: str
    call: int
    fused: bool


class Plan:
    """`lines` are the keys of the values that have a line, in order; `ends[raw]` is where the name of a computed value
    stands, at the end of a chain of layouts that all its consumers take; `inside[key]` are the calls in a line."""

    def __init__(self, graph: Graph, shapes: Shapes, places: Places, apart: Callable[[str, str], bool]):
        self.graph, self._shapes, self._apart = graph, shapes, apart
        self.named: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self._cost: dict[str, int] = {}
        self._heavy: dict[str, int] = {}
        self.inside: dict[str, tuple[int, ...]] = {}
        self.batch = next((shapes.of(ref.key)[0] for ref in graph.given if ref.shape), None)
        self._per_instance: dict[int, int] = {}
        for index in self._computing():
            module = graph.within(index)
            self._per_instance[module] = self._per_instance.get(module, 0) + 1
        for index in self._computing():
            self._place(index)
        self.sites = tuple(self._sites())
        self._operands_of_attention()
        for index in self._computing():
            self.named.update(dict.fromkeys(laid(self, shapes, places, index), "layout"))
        order = {key: (graph.maker[key], key) for key in self.named}
        self.lines = tuple(sorted(self.named, key=order.__getitem__))

    def _computing(self) -> list[int]:
        graph = self.graph
        return [i for i in range(len(graph.calls)) if graph.computes(i) and graph.lives(i)]

    def leaf(self, index: int) -> bool:
        """Whether a call was made in a module that calls no other, and does not do much."""
        return self.graph.children(index) == 0 and self._per_instance.get(self.graph.within(index), 0) <= IN_LEAF

    def named_root(self, key: str) -> str:
        """The nearest value with a line at or above this one, along the chain of layouts, else the chain's start."""
        while key not in self.named and (before := self.graph.source(key)) is not None:
            key = before
        return key

    def _place(self, index: int) -> None:
        graph, call = self.graph, self.graph.calls[index]
        cost, heavy, inside = int(bool(graph.inputs[index])), int(self._is_heavy(index)), [index]
        for ref in graph.inputs[index]:
            root = graph.root(ref.key)
            if root in self._cost and root not in self.named and root not in self.ends:
                cost += self._cost[root]
                heavy += self._heavy[root]
                inside += self.inside[root]
        for ref in call.outputs:
            self._cost[ref.key], self._heavy[ref.key] = cost, heavy
            self.inside[ref.key] = tuple(dict.fromkeys(inside))
        if not self._joins(index):
            for ref in call.outputs:
                if ref.key in graph.live and graph.maker.get(ref.key) == index:
                    self._name(ref.key)

    def _is_heavy(self, index: int) -> bool:
        name = base(self.graph.calls[index].name)
        return name == ATTENTION or is_heavy(name)

    def _name(self, key: str) -> None:
        """A computed value has its line; the name goes to the end of a chain that all consumers take, while the batch
        stays in front."""
        graph, path, end = self.graph, [key], key
        if graph.made(key).name == "turns":  # its name has a t below
            self.named[key] = "step"
            return
        outputs = {ref.key for ref in graph.outputs}
        while len(graph.takers[end]) == 1 and end not in outputs:
            taker = graph.takers[end][0]
            following = [ref.key for ref in graph.calls[taker].outputs if ref.key in graph.live]
            if graph.kind[taker] == "compute" or len(following) != 1 or graph.source(following[0]) != end:
                break
            if graph.count(following[0]) != graph.count(end) or self._turned(end, following[0]):
                break
            end = following[0]
            path.append(end)
        if folded(graph, self._shapes, path):
            self.named[key], self.named[end] = "step", "layout"
            return
        shared = self._shared(end)
        while len(path) > 1 and (self._widened(path[-2], path[-1]) or self._unmoved(path[-2], path[-1])):
            path.pop()
        first = [key for key in path if graph.shape(key) and self._shapes.of(key)[0] == self.batch] or path
        end = first[0 if shared else -1]
        self.named[end] = "step"
        if end != key:
            self.ends[key] = end

    def _shared(self, key: str) -> bool:
        """Whether several parts are taken of a value, as queries, keys and values are of a packed product."""
        graph, takers = self.graph, self.graph.takers[key]
        parts = [ref.key for index in takers for ref in graph.calls[index].outputs if ref.key in graph.live]
        smaller = all(graph.source(part) == key and graph.count(part) < graph.count(key) for part in parts)
        return len(parts) > 1 and smaller

    def _unmoved(self, key: str, after: str) -> bool:
        """Whether a layout leaves everything where it is."""
        call = self.graph.made(after)
        return self.graph.shape(key) == self.graph.shape(after) and base(call.name) in STILL | SAME

    def _widened(self, key: str, after: str) -> bool:
        """Whether a layout only puts in an axis of size 1, along which the value is then repeated."""
        more = [ref.key for index in self.graph.takers[after] for ref in self.graph.calls[index].outputs]
        plain = tuple(n for n in self.graph.shape(key) if n != 1) == tuple(n for n in self.graph.shape(after) if n != 1)
        repeated = any(
            self.graph.source(one) == after and self.graph.count(one) > self.graph.count(after) for one in more
        )
        return plain and repeated and len(self.graph.shape(after)) > len(self.graph.shape(key))

    def _turned(self, key: str, after: str) -> bool:
        """Whether a layout exchanges the last two axes for a product, which is a transpose of its equation."""
        shape, turned = self.graph.shape(key), self.graph.shape(after)
        name = base(self.graph.calls[self.graph.maker[after]].name)
        if name not in TURNS or turned != (*shape[:-2], *shape[:-3:-1]):
            return False
        takers = [base(self.graph.calls[index].name) for index in self.graph.takers[after]]
        return len(takers) == 1 and takers[0] in PRODUCTS

    def _joins(self, index: int) -> bool:
        """Whether a call's value stands inside the line of what consumes it."""
        graph, call = self.graph, self.graph.calls[index]
        live = [ref.key for ref in call.outputs if ref.key in graph.live]
        name = base(call.name)
        if len(live) != 1 or not (known(name) or name == "overwrite") or name == ATTENTION:
            return False
        key = live[0]
        consumers = graph.consumers[key]
        if name in EMPTY or (name == "overwrite" and self._written_over(key, consumers)):
            return True
        if any(self._turned_over(key, graph.calls[other]) for other in consumers):
            return False
        if not consumers or key in {graph.root(ref.key) for ref in graph.outputs}:
            return False
        if self._apart(name, call.module) or (name in FINDS | TOTALS and graph.depends[key] == "x"):
            return False
        if name == "embedding" and graph.depends[key] != "x" and graph.takers[key] == consumers and len(consumers) == 1:
            return base(graph.calls[consumers[0]].name) == "add"  # rows of places, which are added to tokens
        if any(graph.within(other) != graph.within(index) for other in consumers):
            return False
        leaf = self.leaf(index)
        if name in JOINS and graph.depends[key] == "x" and not leaf:
            rank = len(graph.shape(key))
            if call.arguments.get("dim", 0) % rank != rank - 1:
                return False  # a sequence that is made of parts
        if not leaf and self._moves_tokens(key, index, consumers):
            return False
        cost, heavy = self._cost[key], self._heavy[key]
        if len(consumers) > 1:
            return leaf and len(consumers) == 2 and cost <= 2 and not heavy
        other = graph.calls[consumers[0]]
        other_name = base(other.name)
        if not known(other_name) and other_name not in (ATTENTION, "overwrite", "turns"):
            return False
        beside = [root for ref in graph.inputs[consumers[0]] if (root := graph.root(ref.key)) != key]
        if name in ACTIVATIONS and not leaf and other_name == "mul" and self._of_map(index):
            return False  # the bend of an MLP's gate
        if not heavy:
            if self._is_heavy(consumers[0]):
                return cost <= 2
            more = sum(self._cost[root] for root in beside if root in self._cost and not self._has_line(root))
            return cost + more <= (IN_LEAF if leaf else ELSEWHERE)
        if self._is_heavy(consumers[0]):
            return False
        if self._scaled_by_one(key, other_name, beside) and not leaf:
            return False
        if name in PRODUCTS and other_name == "add" and len(beside) == 1 and self._also_a_product(beside[0]):
            return cost <= WITH_HEAVY
        if name in PRODUCTS and other_name in ARITHMETIC and self._weighs(key):
            return cost <= WITH_HEAVY
        still = all(graph.depends[root] != "x" or graph.count(root) < graph.count(key) for root in beside)
        if leaf:
            return cost <= HEAVY_IN_LEAF and still and (other_name in ARITHMETIC or other_name not in ACTIVATIONS)
        return cost <= WITH_HEAVY and still and other_name in ARITHMETIC | PICKS

    def _scaled_by_one(self, key: str, consumer: str, beside: list[str]) -> bool:
        """Whether all that becomes of a value is that one learned number multiplies it: a temperature."""
        graph = self.graph
        return consumer == "mul" and any(graph.depends[one] == "p" and graph.count(one) == 1 for one in beside)

    def _also_a_product(self, key: str) -> bool:
        """Whether a value is a product that only the sum takes in which it meets another."""
        made = self.graph.made(key)
        return made is not None and base(made.name) in PRODUCTS and len(self.graph.consumers[key]) == 1

    def _weighs(self, key: str) -> bool:
        """Whether a value becomes the weights of attention, whatever is added to it on the way."""
        graph = self.graph
        for _ in range(ELSEWHERE):
            if len(graph.consumers[key]) != 1:
                return False
            call = graph.calls[graph.consumers[key][0]]
            if base(call.name) not in ARITHMETIC:
                return base(call.name) in SOFTMAXES
            key = call.outputs[0].key
        return False

    def _moves_tokens(self, key: str, index: int, consumers: list[int]) -> bool:
        """Whether some tokens of a value are chosen, or tokens were put to their places to make it."""
        if len(self.graph.shape(key)) != 3 or not self.graph.ref[key].dtype.is_floating_point:
            return False
        chosen = any(base(self.graph.calls[other].name) == "gather" for other in consumers)
        return chosen or base(self.graph.calls[index].name) == "scatter"

    def _turned_over(self, key: str, call) -> bool:
        """Whether a call is a loop that takes a value part by part."""
        given = call.arguments.get("given", ()) if call.name == "turns" else ()
        return any(self.graph.root(ref.key) == key for ref in given)

    def _of_map(self, index: int) -> bool:
        """Whether a call takes what a linear map gave."""
        makers = [self.graph.made(self.graph.root(ref.key)) for ref in self.graph.inputs[index]]
        return any(call is not None and base(call.name) in PROJECTIONS for call in makers)

    def _written_over(self, key: str, consumers: list[int]) -> bool:
        """Whether all that becomes of a value is that something else is written into it."""
        calls = [self.graph.calls[index] for index in consumers]
        return all(call.name == "overwrite" and self.graph.root(call.arguments["old"].key) == key for call in calls)

    def _has_line(self, root: str) -> bool:
        return root in self.named or root in self.ends

    def _sites(self):
        """The attentions of the run: fused calls, and each softmax between a product and a product that takes it."""
        graph = self.graph
        for index in self._computing():
            call = graph.calls[index]
            if call.name == ATTENTION:
                q, k, v = (call.arguments[name].key for name in ("query", "key", "value"))
                yield Site(q, k, v, None, call.outputs[0].key, index, True)
            elif call.name in SOFTMAXES:
                weights = call.outputs[0].key
                after = self._after(weights)
                before = self._before(call)
                if after is None or before is None:
                    continue
                pair = [ref.key for ref in graph.inputs[before]][-2:]
                values = [ref.key for ref in graph.inputs[after] if graph.root(ref.key) != weights][:1]
                if len(pair) == 2 and values:
                    yield Site(*pair, values[0], weights, graph.calls[after].outputs[0].key, before, False)

    def _after(self, weights: str, steps: int = 3) -> int | None:
        """The product that takes values by these weights: the nearest."""
        near = [weights]
        for _ in range(steps + 1):
            takers = [index for key in near for index in self.graph.consumers[key]]
            found = next((index for index in takers if base(self.graph.calls[index].name) in PRODUCTS), None)
            if found is not None:
                return found
            light = (self.graph.calls[index] for index in takers if not self._is_heavy(index))
            near = [call.outputs[0].key for call in light if call.outputs]
        return None

    def _before(self, call) -> int | None:
        """The product that the scores of a softmax were made by."""
        graph, waiting, seen = self.graph, [next(iter(call.arguments.values())).key], 0
        while waiting and seen < 40:
            key, seen = graph.root(waiting.pop(0)), seen + 1
            index = graph.maker.get(key)
            if index is None:
                continue
            name, given = base(graph.calls[index].name), graph.inputs[index]
            computed = not any(graph.root(ref.key).startswith("parameter ") for ref in given)
            if name in PRODUCTS and graph.depends[key] == "x" and computed:
                return index
            if not self._is_heavy(index):
                waiting += [ref.key for ref in graph.inputs[index]][:2]
        return None

    def _operands_of_attention(self) -> None:
        """Queries, keys and values that are parts of a larger value have lines of their own."""
        graph = self.graph
        for site in self.sites:
            for key in (site.q, site.k, site.v):
                root = self.named_root(key)
                if root != key and root in self.named and graph.count(key) < graph.count(root):
                    before = graph.source(key)
                    self.named[before if before != root and self._turned(before, key) else key] = "layout"

    def operands(self, key: str) -> tuple[str, ...]:
        """The lines that a line is made of."""
        graph, found = self.graph, []

        def walk(at: str) -> None:
            near = self.named_root(at)
            root = graph.root(near)
            if near in self.named:
                found.append(near)
            elif root in self.ends:
                found.append(self.ends[root])
            elif root in graph.maker and root not in self.named:
                for ref in graph.inputs[graph.maker[root]]:
                    walk(ref.key)

        raw = self.raw(key)
        if raw is None:
            walk(graph.source(key))
        else:
            for ref in graph.inputs[graph.maker[raw]]:
                walk(ref.key)
        return tuple(one for one in dict.fromkeys(found) if one != key)

    def raw(self, key: str) -> str | None:
        """The computed value whose name stands at `key`; None for a line that is a layout."""
        if self.named[key] == "layout":
            return None
        root = self.graph.root(key)
        return root if self.ends.get(root, root) == key else key

    def downstream(self, key: str) -> str | None:
        """The line that a computed value has or stands in."""
        while key not in self.named:
            if key in self.ends:
                return self.ends[key]
            takers = self.graph.consumers[key]
            if len(takers) != 1:
                return None
            key = self.graph.calls[takers[0]].outputs[0].key
        return key

    def upstream(self, key: str) -> str | None:
        """The nearest line at or above a value, on the way of its first operand that depends on the inputs."""
        graph = self.graph
        for _ in range(60):
            near = self.named_root(key)
            if near in self.named:
                return near
            root = graph.root(near)
            if root in self.ends:
                return self.ends[root]
            if root not in graph.maker:
                return None
            key = next((r.key for r in graph.inputs[graph.maker[root]] if graph.depends[r.key] == "x"), None)
            if key is None:
                return None
        return None
