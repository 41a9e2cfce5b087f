"""Roles of lines in the language of the papers, from the structure of the run: queries, scores, a residual sum, a norm.

Attention is found by its products and its softmax, a residual sum by its operands, an MLP by its activation; module
names only decide where structure is ambiguous. Before the first block there are patches, their embedding and positions;
in mixtures of experts, the router and the gates; in loops over time, the states and their inputs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import torch

from tracer.capture.calls import Call, Ref, refs
from tracer.expr.recurrence import CARRY, PARTS
from tracer.graph.attention_sites import AttentionSite, bias_role
from tracer.graph.dataflow import Graph, ModuleTree, einsum_letters, own_name
from tracer.ops import (
    ACTIVATIONS,
    ARITHMETIC,
    JOINS,
    LINEAR,
    MASK_BUILDERS,
    MATMULS,
    NORMS,
    POINTWISE,
    PROJECTIONS,
    SOFTMAXES,
)
from tracer.textbook.step_selection import StepPlan

if TYPE_CHECKING:
    from tracer.graph.passes.loops import LoopBody

HALF = 2
"""Stop following a value once it has lost more than this fraction of its elements."""


class Roles:
    """Role of each line: `of[key]` is "Q", "X'" or "norm", with a prime for each role of its kind before it.

    Lines without a role are not in `of`. `first` are the lines that the first block of a tower reads, with the tower's
    label. `nth` is the number of a norm in its block, from 1, or 0 after all blocks. `alone` are queries, keys and
    values that are not split into heads. `mixed` has the learned weights that mix two values.
    """

    def __init__(self, plan: StepPlan, places: ModuleTree):
        self.plan, self.graph, self.places = plan, plan.graph, places
        self.of: dict[str, str] = {}
        self.nth: dict[str, int] = {}
        self.alone: set[str] = set()
        self.first: dict[str, str] = {}
        self.mixed: dict[str, str] = {}
        self.shared_letters: dict[str, str] = {}
        """Projections that are used as a whole, with their letters: queries, keys and values."""
        self.linear: set[str] = set()
        """The lines of queries, keys, values and results of linear attention."""
        self.returned: dict[str, str] = {}
        """The output field of each returned value."""
        for ref, place in zip(self.graph.outputs, self.graph.run.places, strict=True):
            self.returned.setdefault(plan.unchanged_source(ref.key), place)
        self.operands = {key: plan.operands(key) for key in plan.lines}
        self.users: dict[str, list[str]] = defaultdict(list)
        for key in plan.lines:
            for operand in self.operands[key]:
                self.users[operand].append(key)
        for site in plan.sites:
            self._attention(site)
        for key in plan.lines:
            if plan.raw(key) in plan.masks:
                self.of.setdefault(key, "M")
        _find_experts(self)
        _find_loops(self)
        _find_embeddings(self)
        self._sums_and_norms()
        self._mlps()
        self._ends()
        self._count_norms()

    def call(self, key: str) -> Call | None:
        """Return the call that computes a line, or None for a layout."""
        raw = self.plan.raw(key)
        return None if raw is None else self.graph.producing_call(raw)

    def call_inputs(self, key: str) -> tuple[Ref, ...]:
        """Return the operands of the call of a line that computes."""
        return self.graph.inputs[self.graph.producer[self.plan.computed_key(key)]]

    def name(self, key: str) -> str:
        """Return the name of that call, "" for a layout."""
        call = self.call(key)
        return "" if call is None else call.op.name

    def maps(self, key: str) -> bool:
        """Return whether a line is a linear map: an einsum contracts an axis, unlike an outer product."""
        call = self.call(key)
        if call is None or call.op.name not in LINEAR:
            return False
        if call.op.name != "einsum":
            return True
        parts, output = einsum_letters(call)
        return bool(set("".join(parts)) - set(output))

    def last_name(self, key: str) -> str:
        """Return the name of the last call in a line: of a loop, the last call of an iteration."""
        call = self.call(key)
        return call.arguments["body"].calls[-1].op.name if call and call.name == "scan" else self.name(key)

    def module(self, key: str) -> str:
        return (self.call(key) or self.graph.call_of(key)).module

    def block(self, key: str) -> str:
        """Return the path of the block that contains a line; "" outside all blocks."""
        return self.places.prefix(self.module(key))

    @cached_property
    def lines_by_block(self) -> dict[str, tuple[str, ...]]:
        """Lines of each block, in order, by its path."""
        lines = defaultdict(list)
        for key in self.plan.lines:
            lines[self.block(key)].append(key)
        return {block: tuple(keys) for block, keys in lines.items()}

    def kind(self, key: str) -> str:
        """Return the class of the module that contains a line."""
        call = self.call(key) or self.graph.call_of(key)
        number, _ = self.graph.instance.get((call.module, call.call), (-1, 0))
        return self.graph.modules[number].kind if number >= 0 else ""

    def call_names(self, key: str) -> set[str]:
        """Return the names of all calls in a line."""
        raw = self.plan.raw(key)
        return {self.graph.calls[i].op.name for i in self.plan.inner_calls[raw]} if raw is not None else set()

    def trail(self, key: str) -> list[str]:
        """Return the lines from a value up to its projection, which is last, as long as they are as large.

        What some other projection reads, such as a norm, is the input of projections, and is not in the trail.
        """
        trail, at = [], self.plan.upstream(key)
        while at is not None and len(trail) < 6:
            trail.append(at)
            if self.name(at) in PROJECTIONS:
                break
            above = [
                operand
                for operand in self.operands[at]
                if self.graph.count(operand) * HALF >= self.graph.count(at)
                and (self.name(operand) in PROJECTIONS or not self._is_projected(operand))
            ]
            at = min(above, key=lambda operand: self.name(operand) not in PROJECTIONS, default=None)
        return trail

    def _is_projected(self, key: str) -> bool:
        """Return whether a linear map reads a line."""
        return any(self.name(user) in LINEAR and self.name(user) not in MATMULS for user in self.users[key])

    def _attention(self, site: AttentionSite) -> None:
        operands = dict(zip("QKV", (site.q, site.k, site.v), strict=True))
        trails = {letter: self.trail(key) for letter, key in operands.items()}
        shared = Counter(trail[-1] for trail in trails.values() if trail)
        for letter, trail in trails.items():
            if not trail:
                continue
            projected = self.name(trail[-1]) in PROJECTIONS
            whole = projected and self._whole(trail, operands[letter])
            packed = projected and shared[trail[-1]] > 1 and not whole
            together = "".join(which for which, other in trails.items() if other[-1:] == trail[-1:])
            if whole:
                self.shared_letters[trail[-1]] = together
            if packed:
                self.of.setdefault(trail[-1], together)
            own = trail[: -1 if packed else None][::-1] if projected else trail[:1]
            line = self.plan.raw(trail[-1]) or trail[-1]
            if self.graph.shape(line)[:-1] == self.graph.shape(operands[letter])[:-1]:
                self.alone.update(own)
            for primes, key in enumerate(own):
                self.of.setdefault(key, letter + "'" * primes)
                if site.linear:
                    self.linear.add(key)
        if site.weights is not None and (weights := self.plan.upstream(site.weights)) is not None:
            self.of.setdefault(weights, "A")
            scores = self.graph.calls[site.call].outputs[0].key
            scored = self.graph.descendants(scores, self.graph.producer[site.weights])
            for key in self.operands[weights]:
                if (self.plan.raw(key) or key) not in scored and (bias := bias_role(self.graph, key)):
                    self.of.setdefault(key, bias)
                    continue
                self.of.setdefault(key, "S")
                for operand in self.operands[key]:
                    if bias := bias_role(self.graph, operand):
                        self.of.setdefault(operand, bias)
                    elif self._hides(operand, key):
                        self.of.setdefault(operand, "M")
        mask = self.graph.calls[site.call].arguments.get("attn_mask") if site.fused else None
        if mask is not None and (line := self.plan.upstream(mask.key)) is not None:
            self.of.setdefault(line, bias_role(self.graph, line) or "M")
        line = self.plan.downstream(site.result)
        if line is not None:
            self.of.setdefault(line, "H")
            if site.linear:
                self.linear.add(line)
                if (memory := self.plan.downstream(self.graph.calls[site.call].outputs[0].key)) is not None:
                    self.of.setdefault(memory, "memory")
                for key in self.operands[line]:
                    self.of.setdefault(key, "normaliser")
            for operand in self.operands[line] if site.fused else ():  # a bias that is read inside the mask of a kernel
                if bias := bias_role(self.graph, operand):
                    self.of.setdefault(operand, bias)
            for key in self.users[line]:
                if self.name(key) in PROJECTIONS:
                    self.of.setdefault(key, "O")

    def _whole(self, trail: list[str], key: str) -> bool:
        """Return whether a projection's result is used as a whole, not sliced."""
        graph, count = self.graph, self.graph.count(self.plan.raw(trail[-1]) or trail[-1])
        chain = graph.chain(key, graph.root(key))
        return all(graph.count(line) >= count for line in (*chain, *trail[:-1]))

    def hides_keys(self, key: str) -> bool:
        """Return whether a mask of the input hides keys from all queries alike, as padding."""
        shape = self.graph.shape(key)
        return self.graph.depends[key] == "x" and len(shape) > 2 and shape[-2] == 1

    def _hides(self, key: str, scores: str) -> bool:
        """Return whether a line can be the mask of scores: of their rows and columns, from positions or comparisons."""
        square = self.graph.shape(key)[-2:] == self.graph.shape(scores)[-2:]
        hides = self.name(key) in MASK_BUILDERS or self.graph.ref[key].dtype == torch.bool
        constant = self.graph.depends[key] == "c" and self.graph.ref[key].dtype.is_floating_point
        return square and hides and (constant or not self.places.numbers(self.module(key)))

    def _sums_and_norms(self) -> None:
        graph, sums = self.graph, defaultdict(list)
        inputs = {ref.key for ref in graph.placeholders}
        for key in self.plan.lines:
            call = self.call(key)
            if call is None or key in self.of:
                continue
            inside = self.call_names(key)
            operands = self.call_inputs(key)
            computed = all(graph.depends[ref.key] == "x" for ref in operands)
            adds = computed or "O" in self.of_operands(key)  # to queries that are 0 for a start, too
            two = len(operands) == 2 and operands[0].shape == operands[1].shape and len(operands[0].shape) > 1
            start = two and self.places.numbers(call.module) and inputs & {graph.root(ref.key) for ref in operands}
            if self.name(key) == "add" and two and (weight := self._mixed_by([ref.key for ref in operands])):
                self.of[key], self.mixed[key] = "mix", weight
            elif self.name(key) == "add" and two and _adds_positions(self, key):
                self.of[key] = "placed"
            elif self.name(key) == "add" and two and adds and (start or len(self.operands[key]) > 1):
                sums[self.places.tower(call.module), self.places.numbers(call.module)].append(key)
            elif not self._of_weights(key) and (inside & NORMS or "norm" in self.kind(key).lower()):
                self.of[key] = "norm"
            elif self._bends(key) and self._between_maps(key):
                self.of[key] = "G"
            elif self.name(key) == "mul" and computed and len(operands) == 2 and "G" in self.of_operands(key):
                self.of[key] = "gated"
            elif "cumsum" in inside and self.name(key) == "all" and graph.depends[key] == "c":
                self.of[key] = "one"
        for (_, block), keys in sums.items():
            for primes, key in enumerate(keys):
                marks = "" if primes == len(keys) - 1 else "'" * (primes + 1)
                after = self.users[key]
                normed = len(after) == 1 and self.of.get(after[0]) == "norm"
                if block and normed and self.block(after[0]) == self.block(key):
                    self.of[key], self.of[after[0]] = "Y" + "'" * primes, f"X{marks}"  # the norm comes after the sum
                    self.nth[after[0]] = primes + 1
                else:
                    self.of[key] = f"X{marks}" if block else "R"

    def _of_weights(self, key: str) -> bool:
        """Return whether a line is computed from parameters as they are, such as a matrix with rows of length one."""
        roots = [self.graph.root(ref.key) for ref in self.call_inputs(key)]
        return self.graph.depends[key] == "p" and not self.operands[key] and roots[0].startswith("parameter ")

    def _mixed_by(self, operands: list[str]) -> str:
        """Return the parameter of a weighted sum of two values with learned weights; "" for any other sum.

        Such a sum mixes a token with the one before, each of its features by a weight. It is not a residual sum, whose
        weights are single numbers.
        """
        weights = []
        for root in map(self.graph.root, operands):
            call = self.graph.producing_call(root)
            if call is None or call.op.name != "mul" or root in self.plan.named or root in self.plan.ends:
                return ""
            learned = [
                ref.key
                for ref in self.graph.inputs[self.graph.producer[root]]
                if self.graph.depends[ref.key] == "p" and prod(ref.shape) > 1
            ]
            weights += map(self.graph.root, learned[:1])
        return next((key for key in weights if key.startswith("parameter ")), "") if len(weights) == 2 else ""

    def _bends(self, key: str) -> bool:
        """Return whether a line is an activation, also a spelled-out one: pointwise in one line, and not only sums and
        products."""
        if self.name(key) in ACTIVATIONS:
            return True
        inside = self.call_names(key)
        if len(self.operands[key]) != 1 or not inside <= POINTWISE or inside <= ARITHMETIC:
            return False
        calls = (self.graph.calls[i] for i in self.plan.inner_calls[self.plan.computed_key(key)])
        references = (ref for call in calls for ref in call.arguments.values() if hasattr(ref, "key"))
        return not any(self.graph.root(ref.key).startswith("parameter ") for ref in references)

    def plain(self, key: str) -> str:
        """Return the role of a line without primes; "" if it has none."""
        return self.of.get(key, "").rstrip("'")

    def of_operands(self, key: str) -> set[str | None]:
        """Return the roles of a line's operands."""
        return {self.of.get(operand) for operand in self.operands[key]}

    def _between_maps(self, key: str) -> bool:
        """Return whether an activation is between two linear maps, with a gate perhaps: an MLP's."""
        if not any(map(self.maps, self.operands[key])):
            return False
        after = [
            user
            for consumer in self.users[key]
            for user in ([consumer, *self.users[consumer]] if self.name(consumer) == "mul" else [consumer])
        ]
        inside = self.places.numbers(self.module(key)) or "mlp" in self.module(key).lower()
        return bool(inside) and any(map(self.maps, after))

    def _mlps(self) -> None:
        for key in (line for line in self.plan.lines if line not in self.of and self.maps(line)):
            used = {self.of.get(user) for user in self.users[key]}
            if "G" in used:
                bends = [user for user in self.users[key] if self.of.get(user) == "G"]
                gates = any(self.of.get(user) == "gated" for bend in bends for user in self.users[bend])
                self.of[key] = "gate" if gates and "gated" not in used else "U"
            elif "gated" in used:
                self.of[key] = "U"
            elif self.of_operands(key) & {"G", "gated"}:
                self.of[key] = "F"

        for key in self.plan.lines:  # what attention or an MLP made, scaled by parameters
            operands = self.operands[key]
            made = len(operands) == 1 and self.of.get(operands[0]) in ("O", "F")
            if made and key not in self.of and self.name(key) == "mul":
                self.of[key] = f"{self.of[operands[0]]}'"

    def is_gated(self, key: str) -> bool:
        """Return whether the MLP of a line has a gate."""
        near = {self.of.get(neighbour) for neighbour in (*self.users[key], *self.operands[key])}
        return self.of.get(key) in ("gate", "gated") or "gated" in near

    def _ends(self) -> None:
        """Assign roles to the logits, the input of the first block, and the token that a head reads."""
        if self.graph.outputs:
            first = self._computed_line(self.graph.outputs[0].key)
            if first is not None and self.of.get(first) in (None, "F", "O"):
                before = self.operands[first]
                shares = self.name(first) in SOFTMAXES and len(before) == 1 and before[0] not in self.of
                self.of[before[0] if shares else first] = "Z"
                if shares:
                    self.of[first] = "shares"
        for key in self.plan.lines:
            if key in self.plan.results:
                self.of.setdefault(key, "result")
            elif self.call(key) is None and key not in self.of and (role := self._layout(key)):
                self.of[key] = role
        inner = [key for key in self.plan.lines if self.places.numbers(self.module(key))]
        while inner:
            start = next((key for key in inner if self.plain(key) in ("X", "Y")), None)
            if start is None:
                break
            tower = self.places.tower(self.module(start))
            for operand in self.operands[start]:
                outside = not self.places.numbers(self.module(operand))
                if outside and self.of.get(operand) in (None, "R", "norm", *TOKENS):
                    self.first.setdefault(operand, tower)
            inner = [line for line in inner if self.places.tower(self.module(line)) != tower]

    def result(self, key: str) -> str | None:
        """Return the title of a returned value: "Output", "Output: pooler_output"; None if it is not returned."""
        if key not in self.returned:
            return None
        main = next(iter(self.returned)) == key
        return "Output" if main else f"Output: {self.returned[key]}"

    def result_name(self, key: str) -> str:
        """Return the output field of a line, `pooler_output`; "" for the main one and for unnamed ones."""
        main = next(iter(self.returned)) == key
        return "" if main else self.returned[key].rpartition(".")[2].partition("[")[0]

    def _computed_line(self, key: str) -> str | None:
        """Return the line of a returned value, before the layouts that only serve the return."""
        line = self.plan.upstream(key)
        while line in self.plan.results:
            line = self.plan.upstream(self.graph.layout_source(line))
        return line

    def _layout(self, key: str) -> str:
        """Return the role of a layout: the first token or some of a sequence, or a sequence as a grid; or ""."""
        rank, count = len(self.graph.shape(key)), self.graph.count(key)
        if rank == 2:
            return "first" if self.of_operands(key) & {"norm", "X"} else ""
        if self.graph.depends[key] == "p" and rank == 3:
            return "every token"
        (before,) = self.operands[key][:1] or (key,)
        if len(self.graph.shape(before)) != 3:
            return ""
        if rank == 3 and count < self.graph.count(before):
            return "tokens"
        return "grid" if rank == 4 and count == self.graph.count(before) else ""

    def learned_first(self, key: str) -> bool:
        """Return whether a line is a sequence that begins with a parameter: a CLS token."""
        call = self.call(key) if self.of.get(key) == "sequence" else None
        operands = self.call_inputs(key) if call else ()
        return bool(operands) and self.graph.root(operands[0].key).startswith("parameter ")

    def is_tied(self, key: str) -> bool:
        """Return whether the matrix of a line is an embedding table, too."""
        raw = self.plan.raw(key)
        operands = self.graph.inputs[self.graph.producer[raw]] if raw is not None else ()
        users = (index for ref in operands for index in self.graph.consumers[self.graph.root(ref.key)])
        return any(self.graph.calls[index].op.name == "embedding" for index in users)

    def _count_norms(self) -> None:
        """Assign each norm its number in its block; 0 after all blocks."""
        count: Counter = Counter()
        for key in (line for line in self.plan.lines if self.of.get(line) == "norm"):
            block, before = self.block(key), self.operands[key]
            if block:
                count[block] += 1
                self.nth[key] = count[block]
            elif key not in self.first and before and all(map(self.places.numbers, map(self.module, before))):
                self.nth[key] = 0


TOKENS = frozenset(("E", "I", "sequence", "position", "chosen tokens", "put"))
"""Roles of sequences before the first block."""


def _find_embeddings(roles: Roles) -> None:
    """Assign roles to patches and their embedding, to joined sequences, and to angles of rotary positions."""
    graph = roles.graph
    photos = {ref.key for ref in graph.placeholders if len(ref.shape) == 4 and ref.dtype.is_floating_point}
    for key in roles.plan.lines:
        call, name = roles.call(key), roles.name(key)
        if call is None:
            root = graph.root(key)
            if root in photos and len(graph.shape(key)) == 3 and splits_grid(graph, key, root):
                roles.of.setdefault(key, "patches")
            continue
        if key in roles.of or roles.places.numbers(call.module):
            continue
        roots = {graph.root(ref.key) for ref in roles.call_inputs(key)}
        if name == "im2col" and roots & photos and call.arguments["kernel_size"] == call.arguments["stride"]:
            roles.of[key] = "patches"
            continue
        patches = any(roles.of.get(operand) == "patches" for operand in roles.operands[key])
        cut = name == "conv2d" and roots & photos and call.arguments["weight"].shape[2:] == call.arguments["stride"]
        if (name in LINEAR and patches) or cut:
            roles.of[key] = "I"
        elif name in JOINS and any(_of_patches(roles, source) for source in roles.operands[key]):
            roles.of[key] = "sequence"
        elif name == "gather" and roles.of_operands(key) & TOKENS:
            roles.of[key] = "chosen tokens"
        elif name == "scatter" and len(roles.graph.shape(key)) == 3:
            roles.of[key] = "put"
        elif name == "embedding":
            _looked_up(roles, key, call)
        elif name == "sinusoids":
            roles.of[key] = "P"
        elif name == "mul" and "embedding" in roles.call_names(key):
            roles.of[key] = "E"
        elif name == "add" and _adds_places(roles, key):
            roles.of[key] = "position"
        elif name in ("cos", "sin") or ({"cos", "sin"} & roles.call_names(key) and name == "mul"):
            roles.of[key] = "cosine" if "cos" in roles.call_names(key) else "sine"
            for operand in roles.operands[key]:
                roles.of.setdefault(operand, "angles" if graph.ref[operand].dtype.is_floating_point else "places")
                for places in roles.operands[operand]:
                    if not graph.ref[places].dtype.is_floating_point:
                        roles.of.setdefault(places, "places")
        elif graph.depends[key] != "x" and _of_position(call.module) and len(graph.shape(key)) > 1:
            left = [user for user in roles.users[key] if not roles.module(user).startswith(call.module)]
            if left and graph.ref[key].dtype.is_floating_point:
                roles.of[key] = "P"


GRID_RANK = 6
"""Number of axes of a picture whose rows and columns are each split into patches and the pixels in them."""


def splits_grid(graph: Graph, key: str, start: str) -> bool:
    """Return whether the layouts from `start` to `key` cut a picture into patches, or put patches together."""
    return any(len(graph.shape(at)) >= GRID_RANK for at in graph.chain(key, start))


def _of_position(path: str) -> bool:
    """Return whether a module or a parameter holds positions, by its own name."""
    return "pos" in own_name(path.removesuffix(".weight")).lower()


def _adds_positions(roles: Roles, key: str) -> bool:
    """Return whether a sum of tokens and positions is used for queries and keys alone."""
    users = {roles.of.get(user, "")[:1] for user in roles.users[key]}
    roots = [roles.graph.root(ref.key) for ref in roles.call_inputs(key)]
    modules = [call.module if (call := roles.graph.producing_call(root)) is not None else root for root in roots]
    return bool(users) and users <= {"Q", "K"} and any(map(_of_position, modules))


def _of_patches(roles: Roles, key: str) -> bool:
    """Return whether a line is embedded patches, also with a constant added."""
    if roles.of.get(key) == "I":
        return True
    return roles.name(key) == "add" and len(roles.operands[key]) == 1 and _of_patches(roles, roles.operands[key][0])


def _looked_up(roles: Roles, key: str, call) -> None:
    """Assign roles to rows of a table: tokens by ids, or positions."""
    numbers = call.arguments["indices"].key
    roles.of[key] = "E" if roles.graph.depends[numbers] == "x" else "P"
    _assign_index_role(roles, numbers)


def _assign_index_role(roles: Roles, numbers: str) -> None:
    """Assign a role to the line of a table's indices, if it does not depend on the input."""
    places = roles.plan.named_root(numbers)
    if roles.graph.depends[numbers] != "x" and places in roles.plan.named:
        roles.of.setdefault(places, "places" if roles.graph.depends[numbers] == "c" else "types")


def _adds_places(roles: Roles, key: str) -> bool:
    """Return whether a sum adds something to tokens that is the same for all inputs."""
    inside = [roles.graph.calls[i] for i in roles.plan.inner_calls[roles.plan.computed_key(key)]]
    for call in inside:
        if call.op.name == "embedding":
            _assign_index_role(roles, call.arguments["indices"].key)
    operands = roles.call_inputs(key)
    tokens = roles.of_operands(key) & TOKENS
    same = [ref for ref in operands if roles.graph.depends[ref.key] != "x" and len(ref.shape) > 1]
    tokens |= {"E"} if any(call.op.name == "embedding" for call in inside) and same else set()
    placed = any(roles.of.get(operand) == "P" for operand in roles.operands[key])
    return bool(tokens) and (bool(same) or placed)


def _find_experts(roles: Roles) -> None:
    """Assign roles to mixtures of experts, their routers and gates."""
    graph = roles.graph
    for key in roles.plan.lines:
        call = roles.call(key)
        if call is None or call.name != "experts":
            continue
        roles.of[key] = "F"
        x, gates = (graph.root(call.arguments[name].key) for name in ("x", "gates"))
        chosen = graph.root(indices.key) if (indices := call.arguments["chosen"]) is not None else ""
        lines = {graph.root(line): line for line in roles.plan.lines}
        for name, role in ((chosen, "chosen"), (gates, "gates")):
            if name in lines:
                roles.of.setdefault(lines[name], role)
        waiting = [lines[name] for name in (chosen, gates) if name in lines]
        while waiting:
            line = waiting.pop()
            for operand in roles.operands[line]:
                if graph.root(operand) == x or operand in roles.of:
                    continue
                name = roles.name(operand)
                role = "router" if name in LINEAR else "routed" if name in ("softmax", "sigmoid") else "top"
                if role == "top" and graph.shape(operand) != call.arguments["gates"].shape:
                    continue
                roles.of[operand] = role
                waiting.append(operand)


def _find_loops(roles: Roles) -> None:
    """Assign roles to the states of loops, their factors and inputs, as in state-space models."""
    lines = {roles.graph.root(line): line for line in roles.plan.lines}
    turns = {
        key: call.arguments["body"] for key in roles.plan.lines if (call := roles.call(key)) and call.name == "scan"
    }
    states = {of for turn in turns.values() for _, what, _, of, _ in turn.places if what == CARRY}
    _cells(roles, turns, states)
    now = {of for turn in turns.values() for _, what, _, of, _ in turn.places if what in PARTS}
    for key, turn in turns.items():
        if turn.own in now and turn.own not in states:  # a step on the way to a state
            if any(_opens_gate(later, turn.own) for later in turns.values()):
                roles.of.setdefault(key, "pre-activations")
            continue
        wholes = {at: roles.graph.root(of) for at, what, _, of, _ in turn.places if what in PARTS}
        before = {at for at, what, _, of, _ in turn.places if what == CARRY and of == turn.own}
        cell = any(body_call.name == "lstm_cell" and body_call.outputs[1].key == turn.key for body_call in turn.calls)
        roles.of.setdefault(key, ("cell" if cell else "state") if turn.own in states else "read")
        if not before:
            continue
        carried = set()
        for body_call in turn.calls:
            keys = [ref.key for ref in refs(body_call.arguments)]
            name = body_call.op.name
            role = "decay" if name == "mul" and before & set(keys) else "enter" if name == "add" else ""
            if role == "decay":
                carried |= {ref.key for ref in body_call.outputs}
            for at in keys if role == "decay" or carried & set(keys) else ():
                if role and wholes.get(at) in lines:
                    roles.of.setdefault(lines[wholes[at]], role)
                    _step_size(roles, lines[wholes[at]], role)


def _opens_gate(turn: LoopBody, sequence: str) -> bool:
    """Return whether a loop computes a gate, a sigmoid, from parts of a value and sums with them."""
    carried = {at for at, what, _, of, _ in turn.places if what in PARTS and of == sequence}
    for call in turn.calls:
        if carried & {ref.key for ref in refs(call.arguments)}:
            if call.op.name == "sigmoid":
                return True
            if call.op.name == "add" or call.op.is_layout:
                carried |= {ref.key for ref in call.outputs}
    return False


def _cells(roles: Roles, turns: dict[str, LoopBody], carried: set[str]) -> None:
    """Assign roles to the states of a cell, its normaliser and its largest exponent.

    The sources are Hochreiter and Schmidhuber 1997, and Beck et al. 2024.
    """
    cells: dict[tuple, dict[str, LoopBody]] = {}
    for key, turn in turns.items():
        if turn.own in carried and (call := roles.call(key)) is not None:
            cells.setdefault((call.module, call.call), {})[key] = turn
    for states in cells.values():
        own = {turn.own: key for key, turn in states.items()}
        mapped, divides = set(), set()
        for turn in turns.values():
            of = {at: own.get(sequence) for at, _, _, sequence, _ in turn.places}
            for body_call in turn.calls:
                op, operand_states = body_call.op, [of.get(ref.key) for ref in refs(body_call.arguments)]
                joined = next(filter(None, operand_states), None) if op.traits & {"concat", "stack"} else None
                of |= {ref.key: joined for ref in body_call.outputs if joined}
                mapped.update(operand_states if op.traits & {"linear", "matmul"} else ())
                divides.update(operand_states[1:2] if op.name == "div" else ())
        for key, turn in states.items() if mapped - {None} and states.keys() - mapped else ():
            ops = {body_call.op.name for body_call in turn.calls if turn.key in {ref.key for ref in body_call.outputs}}
            if key not in mapped and ops != {"lstm_cell"}:
                roles.of[key] = "stabiliser" if ops == {"maximum"} else "state normaliser" if key in divides else "cell"


def _step_size(roles: Roles, line: str, role: str) -> None:
    """Assign roles to the width of a step in time, which the decay is computed from."""
    for operand in roles.operands[line] if role == "decay" else ():
        product = roles.name(operand) in ("mul", "einsum") and not roles.maps(operand)
        for factor in roles.operands[operand] if product else (operand,):
            if roles.name(factor) == "softplus":
                roles.of.setdefault(factor, "delta")
