"""Which values of a run are lines of its textbook, and what stands within a line.

One line for each computing call, except where a call does so little that it reads better inside the line of its only
consumer: a scale, a mask that is added, the parts of a norm. At most one heavy call stands in a line.
"""

from __future__ import annotations

from collections.abc import Callable

from tracer.graph.attention_sites import is_heavy, linear_sites, sites
from tracer.graph.dataflow import Graph
from tracer.graph.module_tree import Places
from tracer.graph.value_shapes import Shapes
from tracer.ops import IDENTITIES, MATMULS, NOOP_VIEWS, TRANSPOSES, base
from tracer.textbook.inlining import IN_LEAF, joins
from tracer.textbook.layout_steps import folded, laid


class Plan:
    """`lines` are the keys of the values that have a line, in order; `ends[raw]` is where the name of a computed value
    stands, at the end of a chain of layouts that all its consumers take; `inside[key]` are the calls in a line."""

    def __init__(self, graph: Graph, shapes: Shapes, places: Places, apart: Callable[[str, str], bool]):
        self.graph, self._shapes, self.apart = graph, shapes, apart
        self.named: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self.cost: dict[str, int] = {}
        self.heavy: dict[str, int] = {}
        self.inside: dict[str, tuple[int, ...]] = {}
        self.batch = next((shapes.of(ref.key)[0] for ref in graph.given if ref.shape), None)
        self._per_instance: dict[int, int] = {}
        for index in graph.computing():
            module = graph.within(index)
            self._per_instance[module] = self._per_instance.get(module, 0) + 1
        for index in graph.computing():
            self._place(index)
        self.sites = (*sites(graph), *linear_sites(graph, shapes.of))
        self._operands_of_attention()
        self._layouts_apart()
        for index in graph.computing():
            self.named.update(dict.fromkeys(laid(self, shapes, places, index), "layout"))
        self.results = self._results()
        order = {key: (graph.maker[key], key) for key in self.named}
        self.lines = tuple(sorted(self.named, key=order.__getitem__))

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
        cost, heavy, inside = int(bool(graph.inputs[index])), int(is_heavy(call.name)), [index]
        for ref in graph.inputs[index]:
            root = graph.root(ref.key)
            if root in self.cost and root not in self.named and root not in self.ends:
                cost += self.cost[root]
                heavy += self.heavy[root]
                inside += self.inside[root]
        for ref in call.outputs:
            self.cost[ref.key], self.heavy[ref.key] = cost, heavy
            self.inside[ref.key] = tuple(dict.fromkeys(inside))
        if not joins(self, index):
            for ref in call.outputs:
                if ref.key in graph.live and graph.maker.get(ref.key) == index:
                    self._name(ref.key)

    def _name(self, key: str) -> None:
        """A computed value has its line; the name goes to the end of a chain that all consumers take, while the batch
        stays in front."""
        graph, path, end = self.graph, [key], key
        if graph.call_of(key).name == "turns":  # its name has a t below
            self.named[key] = "step"
            return
        outputs = {ref.key for ref in graph.outputs}
        while len(graph.live_users[end]) == 1 and end not in outputs:
            taker = graph.live_users[end][0]
            following = [ref.key for ref in graph.calls[taker].outputs if ref.key in graph.live]
            if graph.kind[taker] == "compute" or len(following) != 1 or graph.source(following[0]) != end:
                break
            if graph.rounds(following[0]):
                break
            if graph.count(following[0]) != graph.count(end) or self._shapes.repeats(end, following[0]):
                break
            if self._turned(end, following[0]):
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
        end = first[0 if shared or self._windows(path, len(first)) else -1]
        self.named[end] = "step"
        if end != key:
            self.ends[key] = end

    def _shared(self, key: str) -> bool:
        """Whether several parts are taken of a value, as queries, keys and values are of a packed product."""
        graph, takers = self.graph, self.graph.live_users[key]
        parts = [ref.key for index in takers for ref in graph.calls[index].outputs if ref.key in graph.live]
        smaller = all(graph.source(part) == key and graph.count(part) < graph.count(key) for part in parts)
        return len(parts) > 1 and smaller

    def _windows(self, path: list[str], behind: int) -> bool:
        """Whether a chain of layouts cuts a grid into windows, which are a batch from `path[behind]` on."""
        ranks = [len(self.graph.shape(key)) for key in path]
        return behind < len(path) and ranks[0] == 4 and max(ranks[:behind]) == 6 and ranks[behind] in (3, 4)

    def _unmoved(self, key: str, after: str) -> bool:
        """Whether a layout leaves everything where it is."""
        call = self.graph.call_of(after)
        return self.graph.shape(key) == self.graph.shape(after) and base(call.name) in NOOP_VIEWS | IDENTITIES

    def _widened(self, key: str, after: str) -> bool:
        """Whether a layout only puts in an axis of size 1, along which all that take it repeat the value, here or at
        other sizes."""
        plain = tuple(n for n in self.graph.shape(key) if n != 1) == tuple(n for n in self.graph.shape(after) if n != 1)
        repeated = all(self._repeats(after, index) for index in self.graph.live_users[after])
        return plain and repeated and len(self.graph.shape(after)) > len(self.graph.shape(key))

    def _repeats(self, key: str, taker: int) -> bool:
        """Whether a call repeats what it takes, or takes more of it at other sizes."""
        made = [ref.key for ref in self.graph.calls[taker].outputs]
        more = any(self.graph.source(one) == key and self._shapes.repeats(key, one) for one in made)
        return more or self._shapes.taken_otherwise(key, self.graph.calls[taker])

    def _turned(self, key: str, after: str) -> bool:
        """Whether a layout exchanges the last two axes for a product, which is a transpose of its equation."""
        shape, turned = self.graph.shape(key), self.graph.shape(after)
        name = base(self.graph.calls[self.graph.maker[after]].name)
        if name not in TRANSPOSES or turned != (*shape[:-2], *shape[:-3:-1]):
            return False
        takers = [base(self.graph.calls[index].name) for index in self.graph.live_users[after]]
        return len(takers) == 1 and takers[0] in MATMULS

    def _operands_of_attention(self) -> None:
        """Queries, keys and values that are parts of a larger value have lines of their own."""
        graph = self.graph
        for site in self.sites:
            for key in map(self._unscaled, (site.q, site.k, site.v)):
                root = self.named_root(key)
                if root != key and root in self.named and graph.count(key) < graph.count(root):
                    before = graph.laid_from(key)
                    self.named[before if before != root and self._turned(before, key) else key] = "layout"

    def _results(self) -> frozenset[str]:
        """The layouts that have a line of their own since forward returns them."""
        held = {self.held(ref.key) for ref in self.graph.outputs}
        found = frozenset(key for key in held if key not in self.named and self.graph.source(key) is not None)
        self.named.update(dict.fromkeys(found, "layout"))
        return found

    def held(self, key: str) -> str:
        """The first value above this one, as far as the nearest line, that is the same bits in the same shape."""
        graph = self.graph
        while key not in self.named and (before := graph.source(key)) is not None:
            if not self._unmoved(before, key) or graph.ref[before].dtype != graph.ref[key].dtype:
                break
            key = before
        return key

    def _unscaled(self, key: str) -> str:
        """What a value was before a number was multiplied to it within a line, as to queries before their product."""
        root = self.graph.root(key)
        scaled = root in self.cost and base(self.graph.call_of(root).name) in ("mul", "div")
        given = self.graph.inputs[self.graph.maker[root]] if scaled else ()
        return given[0].key if len(given) == 1 and root not in self.named and root not in self.ends else key

    def _layouts_apart(self) -> None:
        """Layouts that people want lines of their own for."""
        for index, call in enumerate(self.graph.calls):
            if self.graph.kind[index] != "compute" and self.apart(base(call.name), call.module):
                self.named.update({ref.key: "layout" for ref in call.outputs if ref.key in self.graph.live})

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
            walk(graph.laid_from(key))
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

    def computed(self, key: str) -> str:
        """The same for a line that computes. LookupError for a layout."""
        raw = self.raw(key)
        if raw is None:
            raise LookupError(f"the line at {key} only lays out another value")
        return raw

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
