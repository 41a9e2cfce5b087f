"""Selection of the values of a run that are lines of its textbook, and of the calls inlined in each line.

Each computing call is a line, unless it is so small that it reads better in the line of its only user: a scale, an
added mask, the parts of a norm. A line has at most one heavy call. Some layouts are lines, too: a photo cut into
patches, a slice of a sequence, tokens as a grid, one vector as every token, cells as pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import prod

from tracer.capture.calls import Call, Ref, refs
from tracer.graph.attention_sites import (
    LINEAR_SITES,
    SITES,
    AttentionSite,
    bias_role,
    find_attention_sites,
    find_linear_attention_sites,
)
from tracer.graph.dataflow import Graph, ModuleTree
from tracer.graph.value_shapes import Shapes
from tracer.lowering.aten import has_lowering
from tracer.ops import (
    ATTENTION,
    IDENTITIES,
    NOOP_VIEWS,
    TRANSPOSES,
    Op,
)


class StepPlan:
    """Selected steps: `lines` are the keys of the values with a line, in order.

    `ends[raw]` is the value that gets the name of a computed one, at the end of a chain of layouts that all its users
    share. `inner_calls[key]` are the calls in a line.
    """

    def __init__(self, graph: Graph, shapes: Shapes, places: ModuleTree, separates: Callable[[str, str], bool]):
        self.graph, self._shapes, self.separates = graph, shapes, separates
        self.named: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self.cost: dict[str, int] = {}
        self.heavy: dict[str, int] = {}
        self.inner_calls: dict[str, tuple[int, ...]] = {}
        self.batch = next((shapes.of(ref.key)[0] for ref in graph.placeholders if ref.shape), None)
        self.masks: set[str] = set()
        """Computed values that say which attention scores are filled."""
        self._per_instance: dict[int, int] = {}
        for index in graph.computing_calls():
            module = graph.module_call(index)
            self._per_instance[module] = self._per_instance.get(module, 0) + 1
        for index in graph.computing_calls():
            self._place(index)
        self.sites: tuple[AttentionSite, ...] = ()
        if not SITES.isdisjoint(graph.names):
            self.sites += (*find_attention_sites(graph),)
        if not LINEAR_SITES.isdisjoint(graph.names):
            self.sites += (*find_linear_attention_sites(graph, shapes.of),)
        self._operands_of_attention()
        self._layouts_apart()
        for index in graph.computing_calls():
            self.named.update(dict.fromkeys(_layout_lines(self, shapes, places, index), "layout"))
        self.results = self._results()
        order = {key: (graph.producer[key], key) for key in self.named}
        self.lines = tuple(sorted(self.named, key=order.__getitem__))

    def leaf(self, index: int) -> bool:
        """Return whether a call is in a small module without children."""
        small = self._per_instance.get(self.graph.module_call(index), 0) <= IN_LEAF
        return small and self.graph.child_count(index) == 0

    def named_root(self, key: str) -> str:
        """Return the nearest value with a line at or above this one in its chain of layouts, else the chain's start."""
        while key not in self.named and (before := self.graph.source(key)) is not None:
            key = before
        return key

    def _place(self, index: int) -> None:
        graph, call = self.graph, self.graph.calls[index]
        cost, heavy, inside = int(bool(graph.inputs[index])), int(call.op.is_heavy), [index]
        for ref in graph.inputs[index]:
            root = graph.root(ref.key)
            if root in self.cost and root not in self.named and root not in self.ends:
                cost += self.cost[root]
                heavy += self.heavy[root]
                inside += self.inner_calls[root]
        for ref in call.outputs:
            self.cost[ref.key], self.heavy[ref.key] = cost, heavy
            self.inner_calls[ref.key] = tuple(dict.fromkeys(inside))
        if not _is_inlined(self, index):
            for ref in call.outputs:
                if ref.key in graph.live and graph.producer.get(ref.key) == index:
                    self._name(ref.key)

    def _name(self, key: str) -> None:
        """Add a line for a computed value, named at the end of a chain that all users share, with the batch first."""
        graph, path, end = self.graph, [key], key
        if graph.call_of(key).name == "scan":  # its name has a t below
            self.named[key] = "step"
            return
        outputs = {ref.key for ref in graph.outputs}
        while len(graph.live_users[end]) == 1 and end not in outputs:
            taker = graph.live_users[end][0]
            following = [ref.key for ref in graph.calls[taker].outputs if ref.key in graph.live]
            if graph.kind[taker] == "compute" or len(following) != 1 or graph.source(following[0]) != end:
                break
            if graph.rounding_dtype(following[0]):
                break
            if graph.count(following[0]) != graph.count(end) or self._shapes.has_repeats(end, following[0]):
                break
            if self._is_transposed(end, following[0]):
                break
            end = following[0]
            path.append(end)
        if _unfolds_tokens(graph, self._shapes, path):
            self.named[key], self.named[end] = "step", "layout"
            return
        shared = self._is_shared(end)
        while len(path) > 1 and (self._is_widened(path[-2], path[-1]) or self._is_unmoved(path[-2], path[-1])):
            path.pop()
        first = [key for key in path if graph.shape(key) and self._shapes.of(key)[0] == self.batch] or path
        end = first[0 if shared or self._windows(path, len(first)) else -1]
        self.named[end] = "step"
        if end != key:
            self.ends[key] = end

    def _is_shared(self, key: str) -> bool:
        """Return whether a value is sliced several times, as a packed product into queries, keys and values."""
        graph, takers = self.graph, self.graph.live_users[key]
        parts = [ref.key for index in takers for ref in graph.calls[index].outputs if ref.key in graph.live]
        smaller = all(graph.source(part) == key and graph.count(part) < graph.count(key) for part in parts)
        return len(parts) > 1 and smaller

    def _windows(self, path: list[str], behind: int) -> bool:
        """Return whether a chain of layouts cuts a grid into windows, a batch from `path[behind]` on."""
        ranks = [len(self.graph.shape(key)) for key in path]
        return behind < len(path) and ranks[0] == 4 and max(ranks[:behind]) == 6 and ranks[behind] in (3, 4)

    def _is_unmoved(self, key: str, after: str) -> bool:
        """Return whether a layout changes nothing."""
        call = self.graph.call_of(after)
        return self.graph.shape(key) == self.graph.shape(after) and call.op.name in NOOP_VIEWS | IDENTITIES

    def _is_widened(self, key: str, after: str) -> bool:
        """Return whether a layout only inserts an axis of size 1 that all users repeat, here or at other sizes."""
        plain = tuple(n for n in self.graph.shape(key) if n != 1) == tuple(n for n in self.graph.shape(after) if n != 1)
        repeated = all(self._repeats(after, index) for index in self.graph.live_users[after])
        return plain and repeated and len(self.graph.shape(after)) > len(self.graph.shape(key))

    def _repeats(self, key: str, taker: int) -> bool:
        """Return whether a call repeats its operand, or has a larger one at other sizes."""
        results = [ref.key for ref in self.graph.calls[taker].outputs]
        more = any(self.graph.source(result) == key and self._shapes.has_repeats(key, result) for result in results)
        return more or self._shapes.has_other_operand(key, self.graph.calls[taker])

    def _is_transposed(self, key: str, after: str) -> bool:
        """Return whether a layout swaps the last two axes for a product, as the transpose in its equation."""
        shape, swapped = self.graph.shape(key), self.graph.shape(after)
        if "transpose" not in self.graph.call_of(after).op.traits or swapped != (*shape[:-2], *shape[:-3:-1]):
            return False
        takers = [self.graph.calls[index].op for index in self.graph.live_users[after]]
        return len(takers) == 1 and "matmul" in takers[0].traits

    def _operands_of_attention(self) -> None:
        """Add separate lines for queries, keys and values that are slices of a larger value."""
        graph = self.graph
        for site in self.sites:
            for key in map(self._before_scale, (site.q, site.k, site.v)):
                root = self.named_root(key)
                if root != key and root in self.named and graph.count(key) < graph.count(root):
                    before = graph.layout_source(key)
                    self.named[before if before != root and self._is_transposed(before, key) else key] = "layout"

    def _results(self) -> frozenset[str]:
        """Add separate lines for returned layouts, and return them."""
        keys = {self.unchanged_source(ref.key) for ref in self.graph.outputs}
        layouts = frozenset(key for key in keys if key not in self.named and self.graph.source(key) is not None)
        self.named.update(dict.fromkeys(layouts, "layout"))
        return layouts

    def unchanged_source(self, key: str) -> str:
        """Return the first value above this one, up to the nearest line, with the same bits in the same shape."""
        graph = self.graph
        while key not in self.named and (before := graph.source(key)) is not None:
            if not self._is_unmoved(before, key) or graph.ref[before].dtype != graph.ref[key].dtype:
                break
            key = before
        return key

    def _before_scale(self, key: str) -> str:
        """Return a value before a scalar factor within a line, as of queries before their product."""
        root = self.graph.root(key)
        scaled = root in self.cost and self.graph.call_of(root).op.name in ("mul", "div")
        operands = self.graph.inputs[self.graph.producer[root]] if scaled else ()
        return operands[0].key if len(operands) == 1 and root not in self.named and root not in self.ends else key

    def _layouts_apart(self) -> None:
        """Add separate lines for layouts where hints ask for it."""
        for index, call in enumerate(self.graph.calls):
            if self.graph.kind[index] != "compute" and self.separates(call.op.name, call.module):
                self.named.update({ref.key: "layout" for ref in call.outputs if ref.key in self.graph.live})

    def operands(self, key: str) -> tuple[str, ...]:
        """Return the lines that a line is computed from."""
        graph, lines = self.graph, []

        def walk(at: str) -> None:
            near = self.named_root(at)
            root = graph.root(near)
            if near in self.named:
                lines.append(near)
            elif root in self.ends:
                lines.append(self.ends[root])
            elif root in graph.producer and root not in self.named:
                for ref in graph.inputs[graph.producer[root]]:
                    walk(ref.key)

        raw = self.raw(key)
        if raw is None:
            walk(graph.layout_source(key))
        else:
            for ref in graph.inputs[graph.producer[raw]]:
                walk(ref.key)
        return tuple(line for line in dict.fromkeys(lines) if line != key)

    def raw(self, key: str) -> str | None:
        """Return the computed value that is named at `key`; None for a layout."""
        if self.named[key] == "layout":
            return None
        root = self.graph.root(key)
        return root if self.ends.get(root, root) == key else key

    def computed_key(self, key: str) -> str:
        """Return the computed value that is named at `key`. Raise LookupError for a layout."""
        raw = self.raw(key)
        if raw is None:
            raise LookupError(f"the line at {key} only lays out another value")
        return raw

    def downstream(self, key: str) -> str | None:
        """Return the line that a computed value is in, or None."""
        while key not in self.named:
            if key in self.ends:
                return self.ends[key]
            takers = self.graph.consumers[key]
            if len(takers) != 1:
                return None
            key = self.graph.calls[takers[0]].outputs[0].key
        return key

    def upstream(self, key: str) -> str | None:
        """Return the nearest line at or above a value, along first operands that depend on the inputs; or None."""
        graph = self.graph
        for _ in range(60):
            near = self.named_root(key)
            if near in self.named:
                return near
            root = graph.root(near)
            if root in self.ends:
                return self.ends[root]
            if root not in graph.producer:
                return None
            key = next((r.key for r in graph.inputs[graph.producer[root]] if graph.depends[r.key] == "x"), None)
            if key is None:
                return None
        return None


IN_LEAF, ELSEWHERE, WITH_HEAVY, HEAVY_IN_LEAF, IN_SCALE = 14, 6, 5, 10, 4
"""Largest numbers of calls in a line: in a module without children and elsewhere, without a heavy call and with one;
and of calls in a scale of channels that is inlined twice."""


def _is_inlined(plan: StepPlan, index: int) -> bool:
    """Return whether a call's value is inlined in the line of its user."""
    graph, call = plan.graph, plan.graph.calls[index]
    live = [ref.key for ref in call.outputs if ref.key in graph.live]
    op, name = call.op, call.op.name
    if len(live) != 1 or not (has_lowering(name) or name == "overwrite") or name == ATTENTION:
        return False
    key = live[0]
    consumers = graph.consumers[key]
    takers = [graph.calls[consumer] for consumer in consumers]
    if _starts(op, takers):
        return True
    returned = key in {graph.root(ref.key) for ref in graph.outputs}
    if "uninitialised" in op.traits or (name == "overwrite" and not returned and _written_over(graph, key, takers)):
        return True
    if any(_is_scanned(graph, key, taker) or _gates(graph, key, taker) for taker in takers):
        return False
    if not consumers or returned:
        return False
    if plan.separates(name, call.module) or (op.traits & {"argreduce", "scatter-reduce"} and graph.depends[key] == "x"):
        return False
    constant = graph.depends[key] == "c" and "mask-builder" in op.traits and len(graph.shape(key)) > 1
    if graph.depends[key] != "x" and _biases(graph, takers) and (constant or bias_role(graph, key)):
        return False
    if len(graph.shape(key)) > 1 and _hides(graph, key, takers):
        plan.masks.add(key)
        return False
    if name == "embedding" and graph.depends[key] != "x" and graph.live_users[key] == consumers and len(consumers) == 1:
        return graph.calls[consumers[0]].op.name == "add"  # rows of places, which are added to tokens
    elsewhere = any(graph.module_call(consumer) != graph.module_call(index) for consumer in consumers)
    if elsewhere and not _shifts(graph, index, consumers):
        return False
    leaf = plan.leaf(index)
    if "concat" in op.traits and graph.depends[key] == "x" and not leaf:
        rank = len(graph.shape(key))
        if call.arguments.get("dim", 0) % rank != rank - 1:
            return False  # a sequence that is made of parts
    if not leaf and _moves_tokens(graph, key, call, takers):
        return False
    cost, heavy = plan.cost[key], plan.heavy[key]
    if len(consumers) > 1:
        scales = graph.depends[key] == "p" and all("arithmetic" in call.op.traits for call in takers)
        return leaf and len(consumers) == 2 and cost <= (IN_SCALE if scales else 2) and not heavy
    other = takers[0].op
    if not has_lowering(other.name) and other.name not in (ATTENTION, "overwrite", "scan"):
        return False
    beside = [root for ref in graph.inputs[consumers[0]] if (root := graph.root(ref.key)) != key]
    if "activation" in op.traits and not leaf and other.name == "mul" and _of_map(graph, index):
        return False  # the bend of an MLP's gate
    if not heavy:
        if other.is_heavy:
            return cost <= 2
        loose = [root for root in beside if root not in plan.named and root not in plan.ends]
        more = sum(plan.cost.get(root, 0) for root in loose)
        return cost + more <= (IN_LEAF if leaf else ELSEWHERE)
    if other.is_heavy:
        return False
    if _scaled_by_one(graph, key, other.name, beside) and not leaf:
        return False
    if "matmul" in op.traits and other.name == "add" and len(beside) == 1 and _also_a_product(graph, beside[0]):
        return cost <= WITH_HEAVY
    if "matmul" in op.traits and "arithmetic" in other.traits and _weighs(graph, key):
        return cost <= WITH_HEAVY
    still = all(graph.depends[root] != "x" or graph.count(root) < graph.count(key) for root in beside)
    if leaf:
        return cost <= HEAVY_IN_LEAF and still and ("arithmetic" in other.traits or "activation" not in other.traits)
    return cost <= WITH_HEAVY and still and ("arithmetic" in other.traits or other.name == "gather")


JOINS_SCORES = frozenset(("add", "sub", "mul"))
"""Calls that join a mask or a bias with scores."""


def _biases(graph: Graph, takers: list[Call]) -> bool:
    """Return whether a value is only added to attention scores, or taken from them, or multiplied with them."""
    return bool(takers) and all(call.op.name in JOINS_SCORES and _weighs(graph, call.outputs[0].key) for call in takers)


FILLS = {"masked_fill": "mask", "where": "condition"}
"""Argument of a call that says which scores it fills."""


def _hides(graph: Graph, key: str, takers: list[Call]) -> bool:
    """Return whether a value only says which attention scores are filled with a number."""

    def fills(call: Call) -> bool:
        mask = call.arguments.get(FILLS.get(call.op.name, ""))
        if not isinstance(mask, Ref) or graph.root(mask.key) != key:
            return False
        filled = any(graph.root(ref.key) != key and graph.depends[ref.key] == "x" for ref in refs(call.arguments))
        return filled and _weighs(graph, call.outputs[0].key)

    return bool(takers) and all(map(fills, takers))


def _scaled_by_one(graph: Graph, key: str, consumer: str, beside: list[str]) -> bool:
    """Return whether a value is only multiplied by one learned number: a temperature."""
    return consumer == "mul" and any(graph.depends[operand] == "p" and graph.count(operand) == 1 for operand in beside)


def _also_a_product(graph: Graph, key: str) -> bool:
    """Return whether a value is a product that is only used in a sum with another product."""
    producer = graph.producing_call(key)
    return producer is not None and "matmul" in producer.op.traits and len(graph.consumers[key]) == 1


def _weighs(graph: Graph, key: str) -> bool:
    """Return whether a value becomes attention weights, perhaps after sums."""
    for _ in range(ELSEWHERE):
        if len(graph.consumers[key]) != 1:
            return False
        call = graph.calls[graph.consumers[key][0]]
        if "arithmetic" not in call.op.traits:
            return "softmax" in call.op.traits
        key = call.outputs[0].key
    return False


def _moves_tokens(graph: Graph, key: str, call: Call, takers: list[Call]) -> bool:
    """Return whether a value's tokens are gathered, or were scattered to compute it."""
    if len(graph.shape(key)) != 3 or not graph.ref[key].dtype.is_floating_point:
        return False
    return call.op.name == "scatter" or any(taker.op.name == "gather" for taker in takers)


def _is_scanned(graph: Graph, key: str, call) -> bool:
    """Return whether a call is a loop that slices a value."""
    operands = call.arguments.get("operands", ()) if call.name == "scan" else ()
    return any(graph.root(ref.key) == key for ref in operands)


def _shifts(graph: Graph, index: int, consumers: list[int]) -> bool:
    """Return whether a call shifts a grid before its one user, in a module inside its own, maps the windows."""
    inside = graph.calls[consumers[0]].module.startswith(f"{graph.calls[index].module}.")
    return graph.calls[index].op.name == "roll" and len(consumers) == 1 and inside


def _starts(op: Op, takers: list[Call]) -> bool:
    """Return whether a call computes only zeros, or other constants, that loops start from."""
    return bool(takers) and ("factory" in op.traits or op.takes_shape) and all(call.name == "scan" for call in takers)


def _gates(graph: Graph, key: str, call: Call) -> bool:
    """Return whether a value is the gates of a mixture of experts."""
    return call.name == "experts" and graph.root(call.arguments["gates"].key) == key


def _of_map(graph: Graph, index: int) -> bool:
    """Return whether a call's operand comes from a linear map."""
    makers = [graph.producing_call(graph.root(ref.key)) for ref in graph.inputs[index]]
    return any(call is not None and "projection" in call.op.traits for call in makers)


def _written_over(graph: Graph, key: str, takers: list[Call]) -> bool:
    """Return whether a value is only overwritten."""
    return all(call.name == "overwrite" and graph.root(call.arguments["old"].key) == key for call in takers)


def _layout_lines(plan: StepPlan, shapes: Shapes, places: ModuleTree, index: int) -> Iterator[str]:
    """Yield the layouts among a call's operands that are lines."""
    graph = plan.graph
    input_keys = {ref.key for ref in graph.placeholders}
    for ref in () if graph.calls[index].op.takes_shape else graph.inputs[index]:
        root = plan.named_root(ref.key)
        if _same_tokens(plan, shapes, ref.key) and not places.numbers(graph.calls[index].module):
            yield ref.key
        if root == ref.key or ref.key in plan.named or graph.depends[ref.key] != "x":
            continue
        fewer = prod(ref.shape) < graph.count(root)
        if root in input_keys:
            if ref.dtype.is_floating_point and graph.count(root) > 1 and _moves(graph, shapes, ref.key, root):
                yield ref.key
        elif root in plan.named and graph.module_call(graph.producer[root]) != graph.module_call(index):
            if fewer and len(ref.shape) < len(graph.shape(root)):
                yield ref.key
            elif "anchor" in graph.calls[index].op.traits and not places.numbers(graph.calls[index].module):
                yield from _tokens(graph, root, ref.key)


def _moves(graph: Graph, shapes: Shapes, key: str, root: str) -> bool:
    """Return whether a layout does more than insert or drop axes of size 1, at any sizes."""
    after, before = (tuple(n for n in shapes.of(k) if n != 1) for k in (key, root))
    names = {graph.calls[graph.producer[k]].op.name for k in graph.chain(key, root)}
    return after != before or bool(names & TRANSPOSES)


def _same_tokens(plan: StepPlan, shapes: Shapes, key: str) -> bool:
    """Return whether a value is one parameter vector as every token of a sequence, `[B, n, D]`."""
    graph, shape = plan.graph, shapes.of(key)
    root = graph.root(key)
    learned = root.startswith("parameter ") and graph.ref[root].dtype.is_floating_point
    single = [n for n in shapes.of(root) if n != 1] == [shape[-1]] if learned and len(shape) == 3 else False
    return single and root != key and shape[1] not in (1, plan.batch)


def _tokens(graph: Graph, root: str, key: str) -> Iterator[str]:
    """Return whether a value is some tokens of a sequence, `[B, n, D]` of `[B, S, D]`, or a sequence as a grid, `[B, n,
    m, D]`."""
    for before, after in pairwise([root, *graph.chain(key, root)]):
        old, new = graph.shape(before), graph.shape(after)
        if len(old) != 3 or old[0] != new[0] or old[-1] != new[-1]:
            continue
        split = "reshape" in graph.call_of(after).op.traits and len(new) == 4 and new == graph.shape(key)
        if split or (len(new) == 3 and new[1] < old[1]):
            yield after


def _unfolds_tokens(graph: Graph, shapes: Shapes, path: list[str]) -> bool:
    """Return whether a chain of layouts splits each token's numbers over new axes: a cell as pixels.

    On the way, `path`, there are more axes than before and after, and the last one is split.
    """
    first, last = len(graph.shape(path[0])), len(graph.shape(path[-1]))
    split = next((key for key in path if len(graph.shape(key)) >= max(first, last) + 2), None)
    return split is not None and not shapes.same(shapes.of(split)[-1], shapes.of(path[0])[-1])
