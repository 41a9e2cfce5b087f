"""Claims: sentences about a run, each with a predicate that is evaluated on the run that shows it.

A `Why` is a sequence of claims, each shown if its predicate holds. Of alternatives, a tuple of claims, the first that
holds is shown. A claim without a predicate explains in general: no run can contradict it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isinf, prod
from typing import Any, NamedTuple

import sympy

from tracer.expr import Div, LayerNorm, Node, Norm, Product, Root, Sum, Tensor, tensors
from tracer.expr.arithmetic import Over, Plus, Times
from tracer.expr.embeddings import UnitLength
from tracer.expr.index_sets import Layout
from tracer.expr.indexing import CausalMask
from tracer.expr.norms import RMSNorm
from tracer.graph.attention_sites import AttentionSite
from tracer.graph.value_shapes import Shapes
from tracer.ops import ATTENTION
from tracer.record import AttentionRecord
from tracer.textbook.roles import Roles

# Contexts in which claims are evaluated: a line of a run with its equation, and the run's textbook.

PARAMETER = "parameter "
"""What the keys of parameters and buffers begin with."""


@dataclass
class Subject:
    """Run that lines belong to: its graph with the roles of lines, its shapes, its parameters by their paths, and its
    recorded attentions. `masks` are the equations of masks by the keys of their tensors, `equations` those of earlier
    lines by their keys, and `changes` the keys of the lines whose value was changed in the run."""

    roles: Roles
    shapes: Shapes
    parameters: Mapping[str, Any]
    records: Sequence[AttentionRecord]
    parts: Mapping[str, str]
    masks: dict[str, Node] = field(default_factory=dict)
    equations: dict[str, Node] = field(default_factory=dict)
    changes: frozenset[str] = frozenset()

    @cached_property
    def attention(self) -> dict[tuple[str, str], AttentionSite]:
        """Attention of each line, by its letter in it and the line's key."""
        roles, trail_of = self.roles, {}
        for site in self.roles.plan.sites:
            trails = {letter: roles.trail(key) for letter, key in zip("QKV", (site.q, site.k, site.v), strict=True)}
            several = Counter(line for trail in trails.values() for line in trail)  # packed: of no letter alone
            trail_of |= {
                (letter, line): site for letter, trail in trails.items() for line in trail if several[line] == 1
            }
            weights = roles.plan.upstream(site.weights) if site.weights else None
            context = roles.plan.downstream(site.result)
            if weights is not None:
                trail_of["A", weights] = site
                trail_of |= {("S", line): site for line in roles.operands[weights]}
            if context is not None:
                trail_of["H", context] = site
                trail_of |= {("O", line): site for line in roles.users[context]}
                if site.fused:
                    trail_of |= {(letter, context): site for letter in "SA"}
        return trail_of

    def record(self, site: AttentionSite) -> AttentionRecord | None:
        """Return the recording of an attention; None if there is none."""
        graph = self.roles.graph
        call = graph.calls[site.call] if site.fused else graph.call_of(site.weights or site.result)
        return next((record for record in self.records if call.first <= record.op < call.last), None)

    def trainable(self, key: str) -> bool:
        """Return whether a tensor is a trainable parameter rather than a buffer."""
        front, star, back = key.removeprefix(PARAMETER).partition("*")
        if not star:
            matching = [self.parameters[front]] if front in self.parameters else []
        else:
            matching = [
                weight for path, weight in self.parameters.items() if path.startswith(front) and path.endswith(back)
            ]
        return bool(matching) and all(parameter.requires_grad for parameter in matching)

    def made_of(self, key: str) -> set[str]:
        """Return the parameters and buffers that a value is computed from, through any calls."""
        graph, waiting, visited = self.roles.graph, [key], set()
        while waiting:
            origin = waiting.pop()
            if origin not in visited:
                visited.add(origin)
                waiting += [ref.key for ref in graph.inputs[graph.producer[origin]]] if origin in graph.producer else []
        return {origin for origin in visited if self.is_weight(origin)}

    def is_weight(self, key: str) -> bool:
        """Return whether a tensor is a parameter or a buffer, and not of integers."""
        ref = self.roles.graph.ref.get(key)
        return key.startswith(PARAMETER) and (ref is None or ref.dtype.is_floating_point)


@dataclass(frozen=True)
class Context:
    """A line in its textbook: its key in the graph, its label key, and its equation."""

    run: Subject
    key: str
    part: str
    equation: Node

    @property
    def role(self) -> str:
        """Role of the line, without primes."""
        return self.run.roles.plain(self.key)

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the lines that this one is computed from."""
        return self.run.roles.operands[self.key]

    @property
    def operand_roles(self) -> set[str]:
        return set(map(self.run.roles.plain, self.operands))

    @property
    def user_roles(self) -> set[str]:
        """Roles of the lines that use this one."""
        return set(map(self.run.roles.plain, self.run.roles.users[self.key]))

    def attention_with(self, letter: str) -> AttentionSite | None:
        """Return the attention in which this line is `letter`, or None.

        Letters are queries "Q", keys "K", values "V", scores "S", weights "A", context "H" and output "O".
        """
        return self.run.attention.get((letter, self.key))

    @cached_property
    def record(self) -> AttentionRecord | None:
        """Recording of the attention that the line belongs to."""
        site = next((site for letter in "QKVSAHO" if (site := self.attention_with(letter)) is not None), None)
        return None if site is None else self.run.record(site)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Parameters and buffers in the equation, by their keys."""
        return tuple(tensor.key for tensor in tensors(self.equation) if self.run.is_weight(tensor.key))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.run.roles.graph.shape(self.key)

    def widths(self) -> tuple[str, str]:
        """Return the last sizes, in symbols, of the line's operands and of itself; "" for a scalar."""
        before = [self.run.shapes.of(operand) for operand in self.operands]
        own = self.run.shapes.of(self.key)
        return str(before[-1][-1]) if before and before[-1] else "", str(own[-1]) if own else ""

    def block(self, key: str = "") -> str:
        """Return the path of the block that contains a line, by default this one."""
        return self.run.roles.block(key or self.key)

    def siblings(self) -> tuple[str, ...]:
        """Return the lines of the same block; none outside all blocks."""
        own = self.block()
        return self.run.roles.lines_by_block[own] if own else ()


@dataclass(frozen=True)
class Claim:
    """A sentence, a predicate that returns whether it holds for a line, and the name of the measure that checks it.

    The predicate looks at the graph. `measure` is a key of `tracer.verify.checks.sentences.MEASURES`: it looks at the
    numbers of a run, shares no code with the predicate, and gets the `values` that the sentence states. `values` are
    those of the fields of its text, such as `{mean}`; `fill` returns those that depend on the run, or None if they are
    unknown. An `optional` claim that does not hold is left out, and not refuted.
    """

    text: str
    holds: Callable[[Context], bool] | None = None
    measure: str = ""
    fill: Callable[[Context], dict[str, str] | None] | None = None
    optional: bool = False
    values: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def general(self) -> bool:
        """True if it states nothing about the run."""
        return self.holds is None

    @property
    def sentence(self) -> str:
        """Text with the values that are the same for all runs."""
        return self.text.format(**self.values) if self.values else self.text

    def of(self, context: Context) -> Fact | None:
        """Return the sentence for a line; None if it does not hold, or cannot be evaluated."""
        try:
            if self.holds is not None and not self.holds(context):
                return None
            values = self.fill(context) if self.fill else self.values
        except Exception:  # a form that no predicate foresaw: what cannot be evaluated is not shown
            return None
        if values is None:
            return None
        return Fact(self.text.format(**values) if values else self.text, self.measure, values, self.general)


@dataclass(frozen=True)
class Fact:
    """A claim as a line shows it: the sentence, the name of its measure, the values that the sentence states, and
    whether it is general. It is plain data, which another process gets."""

    text: str
    measure: str
    values: Mapping[str, str] = field(hash=False)
    general: bool = False


Why = tuple["Claim | tuple[Claim, ...]", ...]


class Explanation(NamedTuple):
    """Explanation of a line: its sentences together, those that state a fact, and refuted claims."""

    text: str = ""
    facts: tuple[Fact, ...] = ()
    refuted: tuple[str, ...] = ()


def explain(why: Why, context: Context, strict: bool = False) -> Explanation:
    """Evaluate claims on a line.

    The first claim describes the line: if it does not hold, it is refuted, and nothing is shown. With `strict`, as for
    hints of one model, each claim that does not hold is refuted.
    """
    shown, refuted = [], []
    for number, entry in enumerate(why):
        alternatives = entry if isinstance(entry, tuple) else (entry,)
        fact = next((fact for alternative in alternatives if (fact := alternative.of(context))), None)
        if fact is None:
            if number == 0 or (strict and not any(alternative.optional for alternative in alternatives)):
                refuted.append(alternatives[0].sentence)
            if number == 0:
                break
            continue
        shown.append(fact)
    facts = tuple(fact for fact in shown if not fact.general)
    return Explanation(" ".join(fact.text for fact in shown), facts, tuple(refuted))


def claims(why: Why) -> tuple[Claim, ...]:
    """Yield all claims of an explanation, alternatives included."""
    return tuple(claim for entry in why for claim in (entry if isinstance(entry, tuple) else (entry,)))


# Predicates of claims on a line and its run. Each is false for some line of some run.

Holds = Callable[[Context], bool]
MASK_THRESHOLD = 1e30
"""A mask value this low leaves a share of exactly 0 beside any score of a model."""


def both(*predicates: Holds) -> Holds:
    """Return the conjunction of predicates."""
    return lambda context: all(holds(context) for holds in predicates)


def without(predicate: Holds) -> Holds:
    """Return the negation of a predicate."""
    return lambda context: not predicate(context)


def top(*kinds: type[Node]) -> Holds:
    """Return a predicate: the equation is one of these nodes."""
    return lambda context: isinstance(context.equation, kinds)


def equation_is(*names: str) -> Holds:
    """Return a predicate: the equation is a node with one of these names."""
    return lambda context: type(context.equation).__name__ in names


def claim(sentence: str, *names: str) -> tuple[Claim]:
    """Return one claim, whose sentence is shown if the equation is a node with one of these names."""
    return (Claim(sentence, equation_is(*names)),)


def has(*kinds: type[Node]) -> Holds:
    """Return a predicate: the equation contains one of these nodes."""
    return lambda context: bool(context.equation.has(*kinds))


def part(*names: str) -> Holds:
    """Return a predicate: the line has one of these label keys."""
    return lambda context: context.part in names


def made_of(*roles: str) -> Holds:
    """Return a predicate: an operand has one of these roles."""
    return lambda context: bool(context.operand_roles & {*roles})


def taken_by(*roles: str) -> Holds:
    """Return a predicate: a user has one of these roles."""
    return lambda context: bool(context.user_roles & {*roles})


def taken_only_by(*roles: str) -> Holds:
    """Return a predicate: all users have one of these roles."""
    return lambda context: bool(context.user_roles) and context.user_roles <= {*roles}


def depends(on: str) -> Holds:
    """Return a predicate: the line depends on "x" inputs, "p" parameters alone, or "c" neither."""
    return lambda context: context.run.roles.graph.depends[context.key] == on


def widths(before: str, after: str) -> Holds:
    """Return a predicate: the last sizes of an operand and of the line, in symbols."""
    return lambda context: context.widths() == (before, after)


def ends_in(size: str) -> Holds:
    """Return a predicate: the line's last size, in symbols."""
    return lambda context: context.widths()[1] == size


# attention


def of_attention(*letters: str) -> Holds:
    """Return a predicate: the line is one of these in an attention over tokens: "Q", "K", "V", "S", "A", "H", "O"."""

    def holds(context: Context) -> bool:
        record = context.record
        return record is not None and record.over == "tokens" and any(map(context.attention_with, letters))

    return holds


def of_channels(context: Context) -> bool:
    """Return whether the line belongs to an attention over channels."""
    return context.record is not None and context.record.over == "channels"


def one_head(context: Context) -> bool:
    """Return whether its attention has a single head."""
    return context.record is not None and context.record.heads == 1


def several_heads(context: Context) -> bool:
    """Return whether its attention has more than one head."""
    return context.record is not None and context.record.heads > 1


def heads_apart(context: Context) -> bool:
    """Return whether nothing mixes the heads of its attention before they are merged."""
    record = context.record
    return record is not None and record.heads > 1 and not {"heads"} & {name for name, _ in record.chain}


def own_projection(letter: str, projection: str) -> Holds:
    """Return a predicate: its projection differs from that of `projection`, or is another slice of a packed one."""

    def holds(context: Context) -> bool:
        site = context.attention_with(letter)
        if site is None:
            return False
        keys, plan = {"Q": site.q, "K": site.k, "V": site.v}, context.run.roles.plan
        return plan.upstream(keys[letter]) != plan.upstream(keys[projection])

    return holds


def over_root(context: Context) -> bool:
    """Return whether the scores are a product of queries and keys over the root of a head's width."""
    equation = context.equation
    scaled = equation.args[0] if isinstance(equation, Plus) else equation
    return (
        context.attention_with("S") is not None
        and isinstance(scaled, Over)
        and isinstance(scaled.args[0], Product)
        and scaled.args[1] == sympy.sqrt(context.run.shapes.of(_query(context))[-1])
    )


def _query(context: Context) -> str:
    site = context.attention_with("S")
    return site.q if site is not None else context.key


def mask_number(context: Context) -> float | None:
    """Return the value of a causal mask in masked cells, of this line or added in it; None if there is no mask."""
    masks = list(context.equation.atoms(CausalMask))
    if isinstance(context.equation, Plus) and isinstance(context.equation.args[1], Tensor):
        mask = context.run.masks.get(context.equation.args[1].key)
        masks += list(mask.atoms(CausalMask)) if mask is not None else []
    if not masks:
        return None
    return float(masks[0].args[1]) if len(masks[0].args) > 1 else float("-inf")


def has_causal_mask(context: Context) -> bool:
    """Return whether a causal mask is added to scores."""
    return context.attention_with("S") is not None and mask_number(context) is not None


def by_infinity(context: Context) -> bool:
    """Return whether the value of the mask is -∞."""
    number = mask_number(context)
    return number is not None and isinf(number)


def by_a_low_number(context: Context) -> bool:
    """Return whether the value of the mask is finite, and so low that its share is 0."""
    number = mask_number(context)
    return number is not None and not isinf(number) and number < -MASK_THRESHOLD


def heads_joined(context: Context) -> bool:
    """Return whether the heads, unmixed so far, are concatenated along its last axis."""
    site, record = context.attention_with("H"), context.record
    if site is None or record is None or not (heads_apart(context) and mixes_values(context)):
        return False
    return context.shape[-1] == record.heads * context.run.roles.graph.shape(site.v)[-1]


def mixes_values(context: Context) -> bool:
    """Return whether the line is the product of weights and values, with nothing added."""
    return len(context.equation.atoms(Product)) == 1 and of_attention("H")(context)


def adds_to_mixture(context: Context) -> bool:
    """Return whether the line is a sum, one of whose summands is a product of two tensors."""
    sums = [node for node in context.equation.atoms(Plus) if any(summand.has(Product) for summand in node.args)]
    return bool(sums)


def is_unchanged(context: Context) -> bool:
    """Return whether the value of the line, as others read it, is what its equation gives."""
    return context.key not in context.run.changes


def adds_changed(*roles: str) -> Holds:
    """Return a predicate: a sum of two, as of `adds`, with an operand of these roles whose value was changed."""

    def holds(context: Context) -> bool:
        changed = [key for key in context.operands if key in context.run.changes]
        return adds(*roles)(context) and any(context.run.roles.plain(key) in roles for key in changed)

    return holds


def is_fused(context: Context) -> bool:
    """Return whether one kernel computes all of its attention, and not several ops that PyTorch chose instead."""
    call, own = context.run.roles.call(context.key), context.record
    records = [own] if own is not None else tower_records(context)
    return call is not None and call.name == ATTENTION and all(record.fused for record in records)


def tower_records(context: Context) -> list[AttentionRecord]:
    """Return the attentions of the line's tower; all of them if it is in none."""
    places, records = context.run.roles.places, list(context.run.records)
    own = places.part(context.run.roles.module(context.key))
    return [record for record in records if places.part(record.module) == own] if own else records


def open_to_first(context: Context) -> bool:
    """Return whether no attention of its tower has a mask, so that a token can attend to any other."""
    records = tower_records(context)
    return bool(records) and all(record.mask == "none" for record in records)


def causal(context: Context) -> bool:
    """Return whether every attention of its tower is causal; one over a single token always is."""
    records = tower_records(context)
    return bool(records) and all(record.mask == "causal" or record.queries == record.keys == 1 for record in records)


# norms


def norm_of_kind(kind: type[Node], *names: int) -> Holds:
    """Return a predicate: a norm of that kind with trainable factors and summands, by position after its input."""

    def holds(context: Context) -> bool:
        equation = context.equation
        if not isinstance(equation, kind) or len(equation.operands) != 1 + len(names):
            return False
        return all(
            isinstance(operand, Tensor) and context.run.trainable(operand.key)
            for operand in (equation.operands[n] for n in names)
        )

    return holds


def own_parameters(context: Context) -> bool:
    """Return whether no other line of its block uses its parameters."""
    mine = set(context.parameters)
    return bool(mine) and not any(
        mine & parameters_of(context, key) for key in context.siblings() if key != context.key
    )


def parameters_of(context: Context, key: str) -> set[str]:
    """Return the parameters that the calls of a line use."""
    roles = context.run.roles
    raw = roles.plan.raw(key)
    inside = () if raw is None else roles.plan.inner_calls[raw]
    roots = {roles.graph.root(ref.key) for index in inside for ref in roles.graph.inputs[index]}
    return {root for root in roots if root.startswith(PARAMETER)}


def in_front(context: Context) -> bool:
    """Return whether a norm's input is also used by a residual sum."""
    roles = context.run.roles
    others = {user for operand in context.operands for user in roles.users[operand]} - {context.key}
    return any(roles.plain(user) in ("X", "Y", "R") for user in others)


def behind_a_sum(context: Context) -> bool:
    """Return whether a norm is the only user of a residual sum: it normalises the stream itself."""
    roles = context.run.roles
    alone = all(roles.plain(operand) == "Y" and len(roles.users[operand]) == 1 for operand in context.operands)
    return isinstance(context.equation, (LayerNorm, RMSNorm)) and bool(context.operands) and alone


def behind_all_blocks(context: Context) -> bool:
    """Return whether a norm is the only one of the stream after the last block."""
    return (
        context.part == "last norm"
        and context.operand_roles <= {"X"}
        and isinstance(context.equation, (LayerNorm, RMSNorm))
    )


# sums, products and what parameters are


def adds(*roles: str) -> Holds:
    """Return a predicate: a sum of two with one operand of these roles; of three, if attention and MLP are parallel."""

    def holds(context: Context) -> bool:
        summands = list(map(context.run.roles.plain, context.operands))
        known, stream = [role in roles for role in summands], [role for role in summands if role not in ("O", "F")]
        both = sorted(known) == [False, True] or (sorted(known) == [False, False, True] and len(stream) == 1)
        return isinstance(context.equation, Plus) and both

    return holds


def straight(context: Context) -> bool:
    """Return whether a residual sum is passed on unchanged: there is no norm in the stream."""
    return context.role == "X"


def ends_its_block(context: Context) -> bool:
    """Return whether it is the last line of its block."""
    own = context.siblings()
    return bool(own) and own[-1] == context.key


def read_by_a_block(context: Context) -> bool:
    """Return whether a line of another block uses it."""
    return any(context.block(user) not in ("", context.block()) for user in context.run.roles.users[context.key])


def linear(context: Context) -> bool:
    """Return whether it is a product with one trainable matrix, perhaps with a bias: the same for every token."""
    products = list(context.equation.atoms(Product))
    named = context.parameters
    return len(products) == 1 and bool(named) and all(map(context.run.trainable, named))


def scores_by_matrix(context: Context) -> bool:
    """Return whether it is a product with one trainable matrix, or a pointwise function of a line that is."""
    if linear(context) or len(context.operands) != 1 or context.parameters:
        return linear(context)
    inner = context.run.equations.get(context.operands[0])
    if (
        inner is None
        or context.equation.has(Product)
        or context.run.shapes.of(context.operands[0])[-1:] != _width(context)
    ):
        return False
    return linear(replace(context, key=context.operands[0], equation=inner))


def _width(context: Context) -> tuple:
    return context.run.shapes.of(context.key)[-1:]


def whole_heads(letter: str) -> Holds:
    """Return a predicate: the line has all numbers of each query or key of its attention, not a part of them."""

    def holds(context: Context) -> bool:
        site, graph = context.attention_with(letter), context.run.roles.graph
        width = graph.shape(site.q)[-1] if site is not None else 0  # which keys may have along another axis
        return site is not None and (width in context.shape or context.shape[-1] > width)

    return holds


def widens(context: Context) -> bool:
    """Return whether the line has more numbers for each token than its operands."""
    before = [context.run.roles.graph.shape(operand) for operand in context.operands]
    return bool(before) and bool(before[-1]) and context.shape[-1:] > before[-1][-1:]


def trainable(context: Context) -> bool:
    """Return whether all parameters in the equation are trainable."""
    return bool(context.parameters) and all(map(context.run.trainable, context.parameters))


def _constant_summands(context: Context) -> list[str]:
    """Return the operands of a sum that do not depend on inputs."""
    roles = context.run.roles
    refs = roles.call_inputs(context.key) if roles.plan.raw(context.key) else ()
    return [ref.key for ref in refs if roles.graph.depends[ref.key] != "x"]


def adds_trainable(context: Context) -> bool:
    """Return whether the line adds something computed from trainable parameters only."""
    origins = [context.run.made_of(key) for key in _constant_summands(context)]
    return bool(origins) and all(origin and all(map(context.run.trainable, origin)) for origin in origins)


def adds_fixed(context: Context) -> bool:
    """Return whether the line adds something without trainable parameters."""
    origins = [context.run.made_of(key) for key in _constant_summands(context)]
    return bool(origins) and not any(map(context.run.trainable, set().union(*origins)))


def rearranges(context: Context) -> bool:
    """Return whether the line only rearranges its operand."""
    return isinstance(context.equation, Layout)


def multiplies(*roles: str) -> Holds:
    """Return a predicate: a pointwise product of lines with these roles."""
    return lambda context: isinstance(context.equation, Times) and context.operand_roles == {*roles}


def is_tied(context: Context) -> bool:
    """Return whether the matrix of the line's product is an embedding table, too."""
    return context.run.roles.is_tied(context.key)


def first_rows(context: Context) -> bool:
    """Return whether the line takes some, but not all, of the rows of a parameter."""
    summands = (context.run.parameters.get(key.removeprefix(PARAMETER)) for key in context.parameters)
    tables = [summand for summand in summands if summand is not None and summand.ndim > 1]
    return len(context.shape) > 1 and any(context.shape[-2] < len(table) for table in tables)


def begins_with_parameter(context: Context) -> bool:
    """Return whether the line is a sequence that begins with one parameter vector."""
    roles = context.run.roles
    if not roles.learned_first(context.key):
        return False
    front = roles.graph.root(roles.call_inputs(context.key)[0].key)
    return prod(roles.graph.shape(front)) == context.shape[-1]


def begins_with_parameters(context: Context) -> bool:
    """Return whether the line is a sequence that begins with parameters."""
    return context.run.roles.learned_first(context.key)


def takes_that_token(context: Context) -> bool:
    """Return whether the line takes the token that is the parameter at the start of the sequence."""
    roles = context.run.roles
    return context.part == "cls" and any(map(roles.learned_first, roles.plan.lines))


def has_part(*names: str) -> Holds:
    """Return a predicate: the book has a line with one of these label keys."""
    return lambda context: bool({*names} & {*context.run.parts.values()})


def packs(count: int) -> Holds:
    """Return a predicate: that many of queries, keys and values are slices of this product."""
    return lambda context: len(context.part) == count and {*context.part} <= {*"QKV"}


MATRICES = {"U": "mlp", "gate": "mlp", "F": "mlp", "Q": "attention", "K": "attention", "V": "attention"}
MATRICES |= dict.fromkeys(("O", "QKV", "QK", "KV"), "attention")
COUNTS = {1: "one matrix", 2: "two matrices", 3: "three matrices", 4: "four matrices"}


def weights_of_the_block(context: Context) -> dict[str, str] | None:
    """Return the number of matrices of the MLP and the attention of its block, and of their weights, as fields."""
    roles, by_stage = context.run.roles, {"mlp": {}, "attention": {}, "": {}}
    for key in context.siblings():
        shapes = {root: roles.graph.shape(root) for root in parameters_of(context, key)}
        kind = MATRICES.get(roles.plain(key), "")
        by_stage[kind] |= {
            root: prod(shape) for root, shape in shapes.items() if len(shape) == 2 and context.run.trainable(root)
        }
    if by_stage.pop("") or not all(by_stage.values()) or any(len(of) not in COUNTS for of in by_stage.values()):
        return None
    return {
        name: value
        for kind, of in by_stage.items()
        for name, value in ((f"{kind}_matrices", COUNTS[len(of)]), (kind, f"{sum(of.values()):,}"))
    }


def weights_known(context: Context) -> bool:
    """Return whether the weights of its block can be counted."""
    return weights_of_the_block(context) is not None


def ends_in_axis(size: str) -> Holds:
    """Return a predicate: its number of rows, in symbols."""

    def holds(context: Context) -> bool:
        own = context.run.shapes.of(context.key)
        return len(own) > 1 and str(own[-2]) == size

    return holds


def fewer_tokens(context: Context) -> bool:
    """Return whether the line has fewer rows than its operand."""
    before = [context.run.roles.graph.shape(operand) for operand in context.operands]
    return any(len(shape) > 1 and len(context.shape) > 1 and context.shape[-2] < shape[-2] for shape in before)


def own_to_it(context: Context) -> bool:
    """Return whether no other line uses its parameters."""
    mine, lines = set(context.parameters), context.run.roles.plan.lines
    return bool(mine) and not any(mine & parameters_of(context, key) for key in lines if key != context.key)


def unit_length(equation: Node | None) -> bool:
    """Return whether a node divides something by its own length."""
    if isinstance(equation, UnitLength):
        return True
    if not isinstance(equation, Div):
        return False
    above, below = equation.operands
    squares = isinstance(below, Root) and isinstance(below.operands[0], Sum)
    return (squares or isinstance(below, Norm)) and tensors(below) == tensors(above)


def divided_by_length(context: Context) -> bool:
    """Return whether the line divides something by its own length."""
    return unit_length(context.equation)


def of_unit_vectors(context: Context) -> bool:
    """Return whether the line is a product of unit vectors."""
    equations = [context.run.equations.get(operand) for operand in context.operands]
    return context.equation.has(Product) and len(equations) == 2 and all(map(unit_length, equations))


def of_cosines(context: Context) -> bool:
    """Return whether the line is computed from products of unit vectors."""
    return any(
        all(unit_length(context.run.equations.get(operand)) for operand in context.run.roles.operands[key])
        for key in context.operands
        if len(context.run.roles.operands[key]) == 2
    )
