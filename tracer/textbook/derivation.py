"""Derivation of a textbook from a run of any model: its calls become equations, in the notation of the papers.

The graph has the dataflow, `plan` selects the steps, `roles` and `names` label them, and the writer builds their
equations. The lines cover the ops of the run, and are executed and proven.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tracer.capture import Recording
from tracer.capture.composite_calls import Calls, refs
from tracer.expr import Node, OneHot, ShapeError, Tensor, infer, statement, tensors
from tracer.expr.function_call import Scalar
from tracer.expr.layout.projection_layouts import IsContiguous
from tracer.expr.math.algebra import Plus
from tracer.expr.math.comparisons import Compare
from tracer.expr.nn.attention_masks import CausalMask, PrefixMask
from tracer.graph.dataflow import Graph
from tracer.graph.module_tree import ModuleTree
from tracer.graph.passes.cancel_unbind import cancel_unbinds
from tracer.graph.passes.fuse_slice_writes import fuse_slice_writes
from tracer.graph.passes.fuse_topk_moe import fuse_moe
from tracer.graph.passes.recognize_idioms import recognise_idioms
from tracer.graph.passes.roll_loops import roll_loops
from tracer.graph.value_shapes import HERE, OF_INPUT, Shapes
from tracer.lowering.aten import has_lowering, kernels
from tracer.ops import ATTENTION
from tracer.shapes import Solution
from tracer.textbook import step_labels
from tracer.textbook.claims import Context
from tracer.textbook.claims.context import Subject
from tracer.textbook.explanation_rules import why
from tracer.textbook.expression_builder import ExpressionBuilder
from tracer.textbook.fused_attention import fused_lines
from tracer.textbook.hints import Hint, Hints
from tracer.textbook.parameter_symbols import Names
from tracer.textbook.roles import Roles
from tracer.textbook.step_selection import Plan
from tracer.textbook.steps import Found, Line, Place, opaque
from tracer.utils.cache import Cache
from tracer.utils.error_text import describe_error

BROUGHT = (
    "{} came from outside of PyTorch and is another for other values of the input: how it depends on it was not seen."
)
SIZED = "A size of it follows from the values of the input."

KERNEL = "PyTorch's own kernel is run again here, for lack of a formula: a weaker proof."


GIVEN = ("input ", "parameter ", "constant ")
"""Prefixes of the keys of values that no op of the run computed."""

HELD = 64
"""Largest number of cached books: texts of a class have many lengths, each with its own book."""


@dataclass
class Book:
    """The lines of a run in order, mapped to its ops, and a sentence on each problem."""

    found: list[Found] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    returned: tuple[str, ...] = ()
    """For each tensor that forward returned, the key of its line or of an input; "" if it has none."""
    fitted: set[Hint] = field(default_factory=set)
    """The hints that matched a line."""
    lent: bool = False
    """Whether it was derived from a run at other sizes."""
    idioms: frozenset[int] = frozenset()
    """The ops of calls that were recognised as a named function."""

    def at(self, calls: Calls) -> Book | None:
        """Return the book for a run of the same request at other sizes; None if that lacks one of its values."""
        every = (ref for call in calls.made for one in (call, *call.inner) for ref in one.outputs)
        shapes = {ref.key: ref.shape for ref in every}
        if not all(step.key in shapes for step in self.found if step.key):
            return None
        found = [step._replace(shape=shapes[step.key]) if step.key else step for step in self.found]
        return Book(found, returned=self.returned, fitted=self.fitted, lent=True, idioms=self.idioms)


class Lender(NamedTuple):
    """A book that is reusable at other sizes, with the solution and the sizes of its derivation."""

    solution: Solution
    sizes: dict[str, int]
    book: Book

    def lends(self, sizes: dict[str, int]) -> bool:
        """Return whether all sizes that differ now were unique, and not 1, in the derivation."""
        values = list(self.sizes.values())
        others = [value for name, value in self.sizes.items() if sizes.get(name) != value]
        return self.sizes.keys() == sizes.keys() and all(value > 1 and values.count(value) == 1 for value in others)


_books = Cache(HELD)
"""The books of the last runs with their solutions: a run of the same model on other values has the same one."""
_lenders = Cache(HELD)
"""Books that hold at any sizes, by the requests of their runs."""


def derive(
    recording: Recording,
    solution: Solution | None,
    sizes: dict[str, int],
    same,
    fits,
    here,
    hints: tuple[Hint, ...] = (),
    lend: bool = False,
    spelled: frozenset[int] = frozenset(),
) -> Book:
    """Return the book of a run with recorded calls.

    `same(a, b)` returns whether two sizes are equal, `fits(a, b)` whether they can be, if one of them has no symbol,
    and `here(a, b)` whether they are in this run. With `lend`, the book may come from other sizes: its proofs decide
    whether it holds here. The ops `spelled` are written as in the code, not by a name. Raise ValueError if no calls
    were recorded.
    """
    calls = recording.calls
    if calls is None:
        raise ValueError("a run whose calls were not recorded has no equations to derive")
    numbers = _numbers(recording, calls)
    key = calls.signature, id(solution), tuple(sizes.items()), same, hints, spelled, tuple(numbers.items())
    found = _books.get(key)
    if found is None or found[0] is not solution or (found[1].lent and not lend):
        outline = calls.plan(), id(solution), sizes.get("B"), same, hints, spelled, tuple(numbers.items())
        book = _borrow(outline, calls, solution, sizes) if lend else None
        if book is None:
            book = _derive(recording, calls, solution, sizes, same, fits, here, Hints(hints), numbers, spelled)
            if solution is not None and solution.has_sizes and _anywhere(book):
                _lenders.put(outline, Lender(solution, dict(sizes), book))
        found = solution, book
        _books.put(key, found)
    return found[1]


def _borrow(outline, calls: Calls, solution: Solution | None, sizes: dict[str, int]) -> Book | None:
    lender = _lenders.get(outline)
    return lender.book.at(calls) if lender and lender.solution is solution and lender.lends(sizes) else None


def _anywhere(book: Book) -> bool:
    """Return whether nothing in a book holds at the sizes of its run alone."""
    return not book.problems and not any(HERE in step.line.note or opaque(step.line) for step in book.found)


def _derive(
    recording: Recording,
    calls: Calls,
    solution: Solution | None,
    sizes: dict[str, int],
    same,
    fits,
    here,
    hints: Hints,
    numbers: dict[str, float],
    spelled: frozenset[int],
) -> Book:
    named: set[int] = set()
    graph = Graph.of(calls, has_lowering)
    named_too = partial(recognise_idioms, numbers=numbers, spelled=spelled, named=named)
    for rewrite in (fuse_slice_writes, cancel_unbinds, named_too, fuse_moe, roll_loops):
        graph = rewrite(graph)
    shapes = Shapes(graph, calls, solution, sizes, same)
    places = ModuleTree(graph)
    plan = Plan(graph, shapes, places, hints.apart)
    roles = Roles(plan, places)
    parts = {key: step_labels.part(roles, key, shapes.of(key)) for key in plan.lines}
    first = step_labels.ids(roles, parts)
    hinted = {key: hints.of(id, parts[key], roles.module(key)) for key, id in first.items()}
    ids = step_labels.apply_hint_ids(roles, first, hinted)
    writer = ExpressionBuilder(graph, plan, Names(roles, shapes, hinted, hints), shapes, fits)
    writer.ids = ids
    records = recording.attentions.records if recording.attentions else ()
    subject = Subject(roles, shapes, recording.parameters, records, parts)
    book, owned, masks = Book(fitted=hints.fitted, idioms=frozenset(named)), set(), {}
    for key in plan.lines:
        module, part, hint = roles.module(key), parts[key], hinted[key]
        ops = _ops(graph, plan, key, owned)
        owned.update(ops)
        made, layer, call = graph.ref[key], places.layer(module), roles.call(key)
        shapes.remarks.clear()
        try:
            shapes.plain = False
            before = ()
            if call is not None and call.name == ATTENTION:
                before, equation = fused_lines(writer, key, places.part(module), masks, hints, subject)
            else:
                equation = writer.equation(key)
            for line in before:
                _print_once(line["tensor"], line["equation"])
                _fit(line["equation"], line["tensor"].shape, fits, here)
            note = _fit(equation, shapes.of(key), fits, here) or _bound(graph, plan, shapes, key, ops, equation)
            _print_once(writer.tensor(key), equation)
        except Exception as error:  # a form that no rule foresaw: this line stays open, all others are there
            before, equation, note = (), writer.opaque(key, describe_error(error)), ""
        if part == "one":
            writer.condition = writer.tensor(key)
        if part in ("X", "Y"):
            equation = _stream_first(roles, ids, equation)
        if part == "H" and not note.startswith(HERE):
            shapes.restate(key, infer(equation, fits))
        if part == "M" and equation.has(CausalMask, PrefixMask):
            kind = "causal M" if equation.has(CausalMask) else "prefix M"
            part, equation = kind, writer.with_condition(equation)
            hint = hints.of(first[key], kind, module)
            subject.masks[writer.tensor(key).key] = equation
        for line in before:
            told = Line(**{"stage": "attention", "layer": layer, "place": None} | line)
            at = len(book.found) if told.layer == layer else _block(book, places, module, layer)
            book.found.insert(at, Found(told, _kernel(recording, graph, plan, key), ()))
        outside = tuple(tensor for tensor in tensors(equation) if tensor.key in shapes.brought)
        remarks = [*shapes.remarks, *(BROUGHT.format(f"${one.name}$") for one in outside)]
        remarks += [SIZED] if shapes.depends_on_values(key) else []
        if any(remark.startswith(HERE) for remark in remarks) and note.startswith(HERE):
            note = ""
        subject.equations[key] = equation
        context = Context(subject, key, part, equation)
        note = " ".join(filter(None, (KERNEL if kernels(equation) else "", note, *remarks, hint.remark(context))))
        said = hint.reason(why(context), context)
        line = Line(
            ids[key],
            hint.stage or step_labels.stage(roles, key, part),
            hint.title or step_labels.title(part, call.name if call else "", equation, roles.result(key)),
            writer.tensor(key),
            equation,
            Place(module, output=_output(key)),
            said.text,
            layer=layer,
            note=note,
            facts=said.facts,
            refuted=said.refuted,
            outside=frozenset(one.key for one in outside),
            of_input=any(remark.endswith(OF_INPUT) for remark in remarks)
            or (SIZED in remarks and equation.has(OneHot)),
            idiom=not book.idioms.isdisjoint(ops),
        )
        book.found.append(Found(line, _op(key), ops, key, made.shape, made.dtype, shapes.solved.get(key)))
    lines = {step.key for step in book.found}
    held = (plan.held(ref.key) for ref in graph.outputs)
    book.returned = tuple(key if key in lines or key.startswith(GIVEN) else "" for key in held)
    return book


def _print_once(made: Tensor, equation: Node) -> None:
    """Print a line once, so that an error in printing is known before the line is needed."""
    statement(made, equation)


def _block(book: Book, places: ModuleTree, module: str, layer: int | None) -> int:
    """Return the index of the first line of the block that contains a module; lines that all blocks share come before
    it."""
    for number, step in enumerate(book.found):
        there = step.line.place.module if step.line.place else ""
        if step.line.layer == layer and there and places.part(there) == places.part(module):
            return number
    return len(book.found)


def _numbers(recording: Recording, calls: Calls) -> dict[str, float]:
    """Return the scalar constants of a run by their keys."""
    keys = {ref.key for call in calls.made for ref in refs(call.arguments) if not ref.shape}
    found = {key: recording.kept.get(key) for key in sorted(keys) if key.startswith("constant ")}
    return {key: float(one) for key, one in found.items() if one is not None and one.is_floating_point()}


def _stream_first(roles: Roles, ids: dict[str, str], equation: Node) -> Node:
    """Return a residual sum with the stream as its first operand."""
    added = {ids[key] for key, role in roles.of.items() if role.rstrip("'") in ("O", "F")}
    first, *rest = equation.args
    if isinstance(equation, Plus) and len(rest) == 1 and isinstance(first, Tensor) and first.key in added:
        return Plus(*rest, first)
    return equation


def _kernel(recording: Recording, graph: Graph, plan: Plan, key: str) -> int:
    """Return the op of a fused attention that computes it."""
    call = graph.call_of(plan.computed(key))
    return next((i for i in reversed(range(call.first, call.last)) if not recording.ops[i].layout), call.last - 1)


def _op(key: str) -> int:
    """Return the index of the op that computed a value."""
    return int(key.partition(".")[0])


def _output(key: str) -> int:
    """Return the output position of a value in its op."""
    found = re.match(r"\d*\.?(\d*)", key)
    return int(found[1]) if found and found[1] else 0


def _fit(equation: Node, stated: tuple, fits, here) -> str:
    """Return a note if an equation has the right shape at the sizes of this run only, else "".

    Raise ShapeError if the shape is wrong here, too.
    """
    try:
        _same_shape(infer(equation, fits), stated, fits)
    except ShapeError as error:
        _same_shape(infer(equation, here), stated, here)
        return f"{HERE}: {error}."
    return ""


def _bound(graph: Graph, plan: Plan, shapes: Shapes, key: str, ops: tuple[int, ...], equation: Node) -> str:
    """Return a note if a line can be different at other sizes, else ""."""
    raw = plan.raw(key)
    taken = [(ref.key, index) for index in (plan.inside.get(raw, ()) if raw else ()) for ref in graph.inputs[index]]
    otherwise = any(shapes.has_other_operand(key, graph.calls[index]) for key, index in taken)
    otherwise = otherwise or shapes.diverges(ops)
    if otherwise and not isinstance(equation, IsContiguous):  # which is the same however often the places are repeated
        return f"{HERE}: at others, the code takes another way to it."
    if shapes.plain:
        return f"{HERE}: its layout is not known in symbols."
    compared = (node for node in equation.atoms(Compare) if node.get("sign") in ("=", r"\ne"))
    numbers = (one.value for node in compared for one in node.operands if isinstance(one, Scalar))
    if any(number.is_Integer and number > 1 for number in numbers):
        return f"{HERE}: the code compares with a number, which may be another one there."
    return ""


def _same_shape(made: tuple, stated: tuple, same) -> None:
    if len(made) != len(stated) or not all(map(same, made, stated)):
        raise ShapeError(f"the equation gives {made}, the run {stated}")


def _ops(graph: Graph, plan: Plan, key: str, owned: set[int]) -> tuple[int, ...]:
    """Return the ops that lead from other lines to this one, without those that another line owns."""
    found: set[int] = set()

    def cover(index: int) -> None:
        waiting = [graph.calls[index]]
        while waiting:
            call = waiting.pop()
            found.update(range(call.first, call.last))
            waiting += call.inner

    def layouts(at: str) -> None:
        while at not in plan.named and (before := graph.source(at)) is not None:
            cover(graph.producer[at])
            at = before

    raw = plan.raw(key)
    if raw is None:
        cover(graph.producer[key])
        layouts(graph.layout_source(key))
    else:
        for step in graph.chain(key, raw):
            cover(graph.producer[step])
        for index in plan.inside[raw]:
            cover(index)
            for ref in graph.inputs[index]:
                layouts(ref.key)
    return tuple(sorted(found - owned))
