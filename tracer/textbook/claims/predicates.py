"""Predicates of claims: what is so of a line and of the run that it is of. Each is false of some line of some run."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf, prod

import sympy

from tracer.expr import Div, LayerNorm, Node, Norm, Product, Root, Sum, Tensor, tensors
from tracer.expr.math.activations import Softmax
from tracer.expr.math.algebra import Over, Plus, Times
from tracer.expr.nn.attention_masks import CausalMask
from tracer.expr.nn.embeddings import UnitLength
from tracer.expr.nn.layer_norm import RMSNorm
from tracer.expr.provenance_rules import Layout
from tracer.ops import ATTENTION
from tracer.record import AttentionRecord
from tracer.textbook.claims.context import PARAMETER, Context

Holds = Callable[[Context], bool]
LOWEST = 1e30
"""A mask with a number so low leaves a share of exactly 0 beside any score of a model."""


def both(*predicates: Holds) -> Holds:
    """All of these."""
    return lambda context: all(holds(context) for holds in predicates)


def without(predicate: Holds) -> Holds:
    """The contrary."""
    return lambda context: not predicate(context)


def top(*kinds: type[Node]) -> Holds:
    """The equation is one of these nodes."""
    return lambda context: isinstance(context.equation, kinds)


def equation_is(*names: str) -> Holds:
    """The same, by the names of the nodes."""
    return lambda context: type(context.equation).__name__ in names


def has(*kinds: type[Node]) -> Holds:
    """One of these nodes stands in the equation."""
    return lambda context: bool(context.equation.has(*kinds))


def part(*names: str) -> Holds:
    """The line is one of these parts of the textbook."""
    return lambda context: context.part in names


def made_of(*roles: str) -> Holds:
    """A line of one of these roles is among its operands."""
    return lambda context: bool(context.operand_roles & {*roles})


def taken_by(*roles: str) -> Holds:
    """A line of one of these roles takes it."""
    return lambda context: bool(context.user_roles & {*roles})


def taken_only_by(*roles: str) -> Holds:
    """All lines that take it have one of these roles."""
    return lambda context: bool(context.user_roles) and context.user_roles <= {*roles}


def depends(on: str) -> Holds:
    """It is made of "x" the inputs, "p" parameters alone, or "c" neither."""
    return lambda context: context.run.roles.graph.depends[context.key] == on


def widths(before: str, after: str) -> Holds:
    """The last size of what it is made of, and its own, in symbols."""
    return lambda context: context.widths() == (before, after)


def ends_in(size: str) -> Holds:
    """Its own last size, in symbols."""
    return lambda context: context.widths()[1] == size


# attention


def of_attention(*letters: str) -> Holds:
    """The line is that part of an attention of tokens: "Q", "K", "V", "S", "A", "H" or "O"."""

    def holds(context: Context) -> bool:
        record = context.record
        return record is not None and record.over == "tokens" and any(map(context.within, letters))

    return holds


def of_channels(context: Context) -> bool:
    """The line is a part of an attention in which channels look at channels."""
    return context.record is not None and context.record.over == "channels"


def one_head(context: Context) -> bool:
    """Its attention has a single head."""
    return context.record is not None and context.record.heads == 1


def several_heads(context: Context) -> bool:
    """Its attention has more than one head."""
    return context.record is not None and context.record.heads > 1


def heads_apart(context: Context) -> bool:
    """Nothing mixes the heads of its attention before the context is laid together."""
    record = context.record
    return record is not None and record.heads > 1 and not {"heads"} & {name for name, _ in record.chain}


def own_projection(letter: str, other: str) -> Holds:
    """What it is in its attention is made by another product, or another part of one, than what stands for `other`."""

    def holds(context: Context) -> bool:
        site = context.within(letter)
        if site is None:
            return False
        keys, plan = {"Q": site.q, "K": site.k, "V": site.v}, context.run.roles.plan
        return plan.upstream(keys[letter]) != plan.upstream(keys[other])

    return holds


def over_root(context: Context) -> bool:
    """The scores are a product of queries and keys over the root of a head's width."""
    equation = context.equation
    scaled = equation.args[0] if isinstance(equation, Plus) else equation
    return (
        context.within("S") is not None
        and isinstance(scaled, Over)
        and isinstance(scaled.args[0], Product)
        and scaled.args[1] == sympy.sqrt(context.run.shapes.of(_query(context))[-1])
    )


def _query(context: Context) -> str:
    site = context.within("S")
    return site.q if site is not None else context.key


def mask_number(context: Context) -> float | None:
    """The number that a causal mask of this line, or added in it, has in closed cells; None where there is none."""
    found = list(context.equation.atoms(CausalMask))
    if isinstance(context.equation, Plus) and isinstance(context.equation.args[1], Tensor):
        mask = context.run.masks.get(context.equation.args[1].key)
        found += list(mask.atoms(CausalMask)) if mask is not None else []
    if not found:
        return None
    return float(found[0].args[1]) if len(found[0].args) > 1 else float("-inf")


def masked(context: Context) -> bool:
    """A causal mask is added to scores."""
    return context.within("S") is not None and mask_number(context) is not None


def by_infinity(context: Context) -> bool:
    """The number of the mask is -∞."""
    number = mask_number(context)
    return number is not None and isinf(number)


def by_a_low_number(context: Context) -> bool:
    """The number of the mask is finite, and so low that its share is 0."""
    number = mask_number(context)
    return number is not None and not isinf(number) and number < -LOWEST


def softmax_of_scores(context: Context) -> bool:
    """The weights are a softmax over keys."""
    return isinstance(context.equation, Softmax) and of_attention("A")(context)


def heads_joined(context: Context) -> bool:
    """The heads, which nothing mixed before, lie side by side along its last axis."""
    site, record = context.within("H"), context.record
    if site is None or record is None or not (heads_apart(context) and mixes_values(context)):
        return False
    return context.shape[-1] == record.heads * context.run.roles.graph.shape(site.v)[-1]


def mixes_values(context: Context) -> bool:
    """The line is the product of weights and values, with nothing added."""
    return len(context.equation.atoms(Product)) == 1 and of_attention("H")(context)


def fused(context: Context) -> bool:
    """One kernel does all of its attention."""
    call = context.run.roles.call(context.key)
    return call is not None and call.name == ATTENTION


def tower_records(context: Context) -> list[AttentionRecord]:
    """The attentions of the tower that the line stands in; all of them where it stands in none."""
    places, records = context.run.roles.places, list(context.run.records)
    own = places.part(context.run.roles.module(context.key))
    return [one for one in records if places.part(one.module) == own] if own else records


def open_to_first(context: Context) -> bool:
    """No attention of its tower has a mask, so that a token may look at any other."""
    records = tower_records(context)
    return bool(records) and all(record.mask == "none" for record in records)


def causal(context: Context) -> bool:
    """Every attention of its tower is masked causally; one of a single token is, with a mask or without."""
    records = tower_records(context)
    return bool(records) and all(one.mask == "causal" or one.queries == one.keys == 1 for one in records)


# norms


def normed(kind: type[Node], *names: int) -> Holds:
    """A norm of that kind, whose `names` factors and summands, counted behind its input, training changes."""

    def holds(context: Context) -> bool:
        equation = context.equation
        if not isinstance(equation, kind) or len(equation.operands) != 1 + len(names):
            return False
        return all(
            isinstance(one, Tensor) and context.run.trainable(one.key) for one in (equation.operands[n] for n in names)
        )

    return holds


def own_parameters(context: Context) -> bool:
    """No other line of its block takes the parameters that it names."""
    mine = set(context.parameters)
    return bool(mine) and not any(mine & taken(context, key) for key in context.siblings() if key != context.key)


def taken(context: Context, key: str) -> set[str]:
    """The parameters that the calls of a line take."""
    roles = context.run.roles
    raw = roles.plan.raw(key)
    inside = () if raw is None else roles.plan.inside[raw]
    roots = {roles.graph.root(ref.key) for index in inside for ref in roles.graph.inputs[index]}
    return {root for root in roots if root.startswith(PARAMETER)}


def in_front(context: Context) -> bool:
    """A norm of what goes on beside it: its input is taken by a residual sum, too."""
    roles = context.run.roles
    return any(
        roles.of.get(user, "").rstrip("'") in ("X", "Y", "R")
        for one in context.operands
        for user in roles.users[one]
        if user != context.key
    )


def behind_a_sum(context: Context) -> bool:
    """A norm of a residual sum that nothing else takes: the stream itself is normalised."""
    roles = context.run.roles
    return (
        isinstance(context.equation, (LayerNorm, RMSNorm))
        and bool(context.operands)
        and all(roles.of.get(one, "").rstrip("'") == "Y" and len(roles.users[one]) == 1 for one in context.operands)
    )


def behind_all_blocks(context: Context) -> bool:
    """A norm of the stream behind the last block, whose last sum nothing else normalises."""
    return (
        context.part == "last norm"
        and context.operand_roles <= {"X"}
        and isinstance(context.equation, (LayerNorm, RMSNorm))
    )


# sums, products and what parameters are


def adds(*roles: str) -> Holds:
    """A sum of two, one of which has one of these roles and the other has none of them; where attention and MLP run
    side by side, of three."""

    def holds(context: Context) -> bool:
        found = [context.run.roles.of.get(one, "").rstrip("'") for one in context.operands]
        known, stream = [role in roles for role in found], [role for role in found if role not in ("O", "F")]
        both = sorted(known) == [False, True] or (sorted(known) == [False, False, True] and len(stream) == 1)
        return isinstance(context.equation, Plus) and both

    return holds


def straight(context: Context) -> bool:
    """A residual sum that goes on to the next one as it is: no norm stands in the stream."""
    return context.role == "X"


def ends_its_block(context: Context) -> bool:
    """It is the last line of its block."""
    own = list(context.siblings())
    return bool(own) and own[-1] == context.key


def read_by_a_block(context: Context) -> bool:
    """A line of another block takes it."""
    return any(context.block(user) not in ("", context.block()) for user in context.run.roles.users[context.key])


def linear(context: Context) -> bool:
    """A product with one matrix that training changes, with a bias or without: the same for every token."""
    products = list(context.equation.atoms(Product))
    named = context.parameters
    return len(products) == 1 and bool(named) and all(map(context.run.trainable, named))


def widened(context: Context) -> bool:
    """More numbers for each token than what it is made of has."""
    before = [context.run.roles.graph.shape(one) for one in context.operands]
    return bool(before) and bool(before[-1]) and context.shape[-1:] > before[-1][-1:]


def between_products(context: Context) -> bool:
    """Cell by cell between two linear maps, with no gate behind it."""
    return made_of("U")(context) and taken_only_by("F")(context)


def trainable(context: Context) -> bool:
    """All parameters that the equation names are changed by training."""
    return bool(context.parameters) and all(map(context.run.trainable, context.parameters))


def _added(context: Context) -> list[str]:
    """What the sum of a line adds that no input makes."""
    roles = context.run.roles
    refs = roles.given(context.key) if roles.plan.raw(context.key) else ()
    return [ref.key for ref in refs if roles.graph.depends[ref.key] != "x"]


def adds_trainable(context: Context) -> bool:
    """What it adds is made of parameters that training changes, and of no other."""
    made = [context.run.made_of(key) for key in _added(context)]
    return bool(made) and all(one and all(map(context.run.trainable, one)) for one in made)


def adds_fixed(context: Context) -> bool:
    """What it adds is made of nothing that training changes."""
    made = [context.run.made_of(key) for key in _added(context)]
    return bool(made) and not any(map(context.run.trainable, set().union(*made)))


def rearranges(context: Context) -> bool:
    """It has the very numbers of what it is made of, in another order."""
    return isinstance(context.equation, Layout)


def multiplies(*roles: str) -> Holds:
    """Cell by cell the product of lines with these roles."""
    return lambda context: isinstance(context.equation, Times) and context.operand_roles == {*roles}


def tied(context: Context) -> bool:
    """The matrix of its product is a table that tokens are looked up in."""
    return context.run.roles.tied(context.key)


def first_rows(context: Context) -> bool:
    """It takes some of the rows of a parameter, and not all."""
    found = (context.run.parameters.get(key.removeprefix(PARAMETER)) for key in context.parameters)
    tables = [one for one in found if one is not None and one.ndim > 1]
    return len(context.shape) > 1 and any(context.shape[-2] < len(table) for table in tables)


def begins_with_parameter(context: Context) -> bool:
    """A sequence in front of which one vector of parameters stands."""
    roles = context.run.roles
    if not roles.learned_first(context.key):
        return False
    front = roles.graph.root(roles.given(context.key)[0].key)
    return prod(roles.graph.shape(front)) == context.shape[-1]


def begins_with_parameters(context: Context) -> bool:
    """A sequence in front of which parameters stand."""
    return context.run.roles.learned_first(context.key)


def takes_that_token(context: Context) -> bool:
    """The token that it takes is the parameter in front of the sequence."""
    roles = context.run.roles
    return context.part == "cls" and any(map(roles.learned_first, roles.plan.lines))


def has_part(*names: str) -> Holds:
    """The book has a line that is one of these parts."""
    return lambda context: bool({*names} & {*context.run.parts.values()})


def packs(count: int) -> Holds:
    """So many of queries, keys and values are parts of this product."""
    return lambda context: len(context.part) == count and {*context.part} <= {*"QKV"}


MATRICES = {"U": "mlp", "gate": "mlp", "F": "mlp", "Q": "attention", "K": "attention", "V": "attention"}
MATRICES |= dict.fromkeys(("O", "QKV", "QK", "KV"), "attention")
COUNTS = {1: "one matrix", 2: "two matrices", 3: "three matrices", 4: "four matrices"}


def weights_of_the_block(context: Context) -> dict[str, str] | None:
    """How many matrices the MLP and the attention of its block have, and how many weights these hold, as they are."""
    roles, found = context.run.roles, {"mlp": {}, "attention": {}, "": {}}
    for key in context.siblings():
        shapes = {root: roles.graph.shape(root) for root in taken(context, key)}
        kind = MATRICES.get(roles.of.get(key, "").rstrip("'"), "")
        found[kind] |= {
            root: prod(shape) for root, shape in shapes.items() if len(shape) == 2 and context.run.trainable(root)
        }
    if found.pop("") or not all(found.values()) or any(len(of) not in COUNTS for of in found.values()):
        return None
    return {
        name: value
        for kind, of in found.items()
        for name, value in ((f"{kind}_matrices", COUNTS[len(of)]), (kind, f"{sum(of.values()):,}"))
    }


def weights_known(context: Context) -> bool:
    """The weights of its block can be counted."""
    return weights_of_the_block(context) is not None


def ends_in_axis(size: str) -> Holds:
    """So many rows, in symbols."""

    def holds(context: Context) -> bool:
        own = context.run.shapes.of(context.key)
        return len(own) > 1 and str(own[-2]) == size

    return holds


def fewer_tokens(context: Context) -> bool:
    """Some of the rows of what it is made of are not there."""
    before = [context.run.roles.graph.shape(one) for one in context.operands]
    return any(len(shape) > 1 and len(context.shape) > 1 and context.shape[-2] < shape[-2] for shape in before)


def own_to_it(context: Context) -> bool:
    """No other line takes the parameters that it names."""
    mine, lines = set(context.parameters), context.run.roles.plan.lines
    return bool(mine) and not any(mine & taken(context, key) for key in lines if key != context.key)


def unit_length(equation: Node | None) -> bool:
    """Something over its own length."""
    if isinstance(equation, UnitLength):
        return True
    if not isinstance(equation, Div):
        return False
    above, below = equation.operands
    squares = isinstance(below, Root) and isinstance(below.operands[0], Sum)
    return (squares or isinstance(below, Norm)) and tensors(below) == tensors(above)


def divided_by_length(context: Context) -> bool:
    """The line is something over its own length."""
    return unit_length(context.equation)


def of_unit_vectors(context: Context) -> bool:
    """A product of vectors that were divided by their length."""
    made = [context.run.equations.get(one) for one in context.operands]
    return context.equation.has(Product) and len(made) == 2 and all(map(unit_length, made))


def of_cosines(context: Context) -> bool:
    """Made of products of unit vectors."""
    return any(
        all(unit_length(context.run.equations.get(one)) for one in context.run.roles.operands[key])
        for key in context.operands
        if len(context.run.roles.operands[key]) == 2
    )
