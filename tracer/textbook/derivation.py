"""Derivation of a textbook from a run of any model: its calls become equations, in the notation of papers.

The graph has the dataflow, `plan` selects the steps, `roles` and `names` label them, and the writer builds their
equations. The lines cover the ops of the run, and are executed and verified."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tracer.capture import Recording
from tracer.capture.calls import CallLog, ChangedValue, refs
from tracer.expr import Node, OneHot, ShapeError, Tensor, infer, statement, tensors
from tracer.expr.arithmetic import Compare, Plus
from tracer.expr.function_call import Opaque, Scalar
from tracer.expr.indexing import CausalMask, PrefixMask, Triangle, by_cells, number_heads, numbers_heads
from tracer.expr.rearrangements import IsContiguous
from tracer.graph.dataflow import Graph, ModuleTree
from tracer.graph.passes import run_passes
from tracer.graph.value_shapes import OF_INPUT, THIS_RUN_NOTE, Shapes, join_moving
from tracer.lowering.aten import has_lowering, kernels
from tracer.ops import ATTENTION
from tracer.shapes import Solution
from tracer.textbook import names
from tracer.textbook.claims import PARAMETER, Context, Fact, Subject, causal
from tracer.textbook.conditions import Conditions, conditions_of
from tracer.textbook.explanations import why
from tracer.textbook.expression_builder import ExpressionBuilder, fused_lines
from tracer.textbook.formula_titles import Earlier, formula_title
from tracer.textbook.names import Hint, Hints, ParameterSymbols
from tracer.textbook.roles import Roles
from tracer.textbook.step_selection import StepPlan
from tracer.utils.cache import Cache
from tracer.utils.errors import describe_error

# Steps: the lines of the textbook, mapped to the ops of a run.
#
# A step covers the ops that lead from the tensors of earlier steps to its own. So every computing op belongs to exactly
# one step, or is reported as not covered.


class StepOrigin(NamedTuple):
    """Source of a step's tensor: the path of the module, and the op's output position."""

    module: str
    output: int = 0


@dataclass(frozen=True)
class Line:
    """One line of a textbook: `tensor = equation`, computed at `place`.

    `why` is the explanation for a student, `facts` are its sentences on the run, and `refuted` are claims that do not
    hold. A line without a place has a tensor that was never in memory, inside the fused op of the next line with a
    place. Such a step is recomputed from its equation. `outside` are the keys of tensors from outside PyTorch. A line
    `of_input` has a number that depends on the values of the input. An `idiom` has the name of the function that a
    group of calls computes, up to the digits of the code's constants.
    """

    id: str
    stage: str
    title: str
    tensor: Tensor
    equation: Node
    place: StepOrigin | None
    why: str
    layer: int | None = None
    note: str = ""
    facts: tuple[Fact, ...] = ()
    refuted: tuple[str, ...] = ()
    outside: frozenset[str] = frozenset()
    of_input: bool = False
    idiom: bool = False
    role: str = ""


def opaque(line: Line) -> bool:
    """Return whether a line has no equation."""
    return isinstance(line.equation, Opaque)


class DerivedStep(NamedTuple):
    """A line mapped to a run: the op that computes its tensor, and all ops that it covers, in order.

    A line without a place covers none; its op is the fused one. A derived line has the key of its traced tensor, with
    shape, dtype and solved shape, since an in-place write can have computed it.
    """

    line: Line
    op: int
    ops: tuple[int, ...]
    key: str = ""
    shape: tuple[int, ...] = ()
    dtype: object = None
    solved: tuple[str, ...] | None = None

    @property
    def output(self) -> int:
        """Output position of its tensor in its op."""
        return self.line.place.output if self.line.place else 0

    @property
    def value(self) -> str:
        """Key of its traced tensor."""
        return self.key or f"{self.op}.{self.output}"


def owners(steps: Sequence[DerivedStep], ops: Sequence) -> dict[int, str]:
    """Return the step of each covered op. Raise ValueError if a computing op belongs to two steps."""
    owner: dict[int, str] = {}
    for step in steps:
        for op in step.ops:
            if op in owner and not ops[op].layout:
                raise ValueError(f"op {op} ({ops[op].name}) belongs to both {owner[op]!r} and {step.line.id!r}")
            owner.setdefault(op, step.line.id)
    return owner


BROUGHT_NOTE = (
    "{} was computed outside PyTorch and changes with the values of the input; how it depends on them was not seen."
)
MOVED_NOTE = f"{THIS_RUN_NOTE}: {{}} was computed outside PyTorch and is another tensor at other sizes."
SIZED_NOTE = "A size of it follows from the values of the input."

KERNEL = "There is no formula for this call, so PyTorch's own kernel is run again: a weaker check."


CHANGED_NOTE = "The model does not do this: the run was changed here ({})."
CELLS_NOTES = {
    "kij": "The indices k, i and j run over the last three axes, from 0.",
    "ij": "The indices i and j run over rows and columns, from 0.",
    "j": "The index j runs over the last axis, from 0.",
}
"""What is said of the indices of a changed line."""
HEADS_NOTE = "Heads count from 1."
LETTER = re.compile(r"(\\(tilde|hat|bar)\{)?\\(mathbf|boldsymbol|mathrm)\{[^{}]*\}(?(1)\})|\w")
"""The letter at the start of a tensor's name, with its accent."""

SOURCE_PREFIXES = ("input ", PARAMETER, "constant ")
"""Prefixes of the keys of values that no op of the run computed."""

CACHE_SIZE = 64
"""Largest number of cached books: texts of a class have many lengths, each with its own book."""


@dataclass
class Textbook:
    """Lines of a run in order, mapped to its ops, and a sentence on each problem."""

    steps: list[DerivedStep] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    returned: tuple[str, ...] = ()
    """For each tensor that forward returned, the key of its line or of an input; "" if it has none."""
    matched_hints: set[Hint] = field(default_factory=set)
    """The hints that matched a line."""
    lent: bool = False
    """Whether it was derived from a run at other sizes."""
    idioms: frozenset[int] = frozenset()
    """The ops of calls that were recognised as a named function."""
    conditions: tuple[str, ...] = ()
    """Notes on the conditions of what forward returned."""

    def at(self, calls: CallLog) -> Textbook | None:
        """Return the book for a run of the same request at other sizes; None if that lacks one of its values."""
        every = (ref for call in calls.entries for inner_call in (call, *call.inner) for ref in inner_call.outputs)
        shapes = {ref.key: ref.shape for ref in every}
        if not all(step.key in shapes for step in self.steps if step.key):
            return None
        steps = [step._replace(shape=shapes[step.key]) if step.key else step for step in self.steps]
        return replace(self, steps=steps, problems=[], lent=True)


class ReusableTextbook(NamedTuple):
    """A book that is reusable at other sizes, with the solution and the sizes of its derivation."""

    solution: Solution
    sizes: dict[str, int]
    book: Textbook

    def lends(self, sizes: dict[str, int]) -> bool:
        """Return whether all sizes that differ now were unique, and not 1, in the derivation."""
        values = list(self.sizes.values())
        others = [value for name, value in self.sizes.items() if sizes.get(name) != value]
        return self.sizes.keys() == sizes.keys() and all(value > 1 and values.count(value) == 1 for value in others)


_books = Cache(CACHE_SIZE)
"""The books of the last runs with their solutions: a run of the same model on other values has the same one."""
_lenders = Cache(CACHE_SIZE)
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
) -> Textbook:
    """Return the book of a run with recorded calls.

    `same(a, b)` returns whether two sizes are equal, `fits(a, b)` whether they can be, if one of them has no symbol,
    and `here(a, b)` whether they are in this run. With `lend`, the book may come from other sizes: its proofs decide
    whether it holds here. The ops `spelled` are written as in the code, not by a name. Raise ValueError if no calls
    were recorded.
    """
    calls = recording.calls
    if calls is None:
        raise ValueError("a run whose calls were not recorded has no equations to derive")
    numbers, conditions = _numbers(recording, calls), conditions_of(recording, solution)
    held = tuple(numbers.items()), conditions
    key = calls.signature, id(solution), tuple(sizes.items()), same, hints, spelled, held
    entry = _books.get(key)
    if entry is None or entry[0] is not solution or (entry[1].lent and not lend):
        outline = calls.plan(), id(solution), sizes.get("B"), same, hints, spelled, held
        lender = _lenders.get(outline) if lend else None
        known = lender and lender.solution is solution and lender.lends(sizes)
        book = lender.book.at(calls) if lender and known else None
        if book is None:
            more = Hints(hints), numbers, spelled, conditions
            book = _derive(recording, calls, solution, sizes, same, fits, here, *more)
            if solution is not None and solution.has_sizes and _anywhere(book):
                _lenders.put(outline, ReusableTextbook(solution, dict(sizes), book))
        entry = solution, book
        _books.put(key, entry)
    return entry[1]


def _anywhere(book: Textbook) -> bool:
    """Return whether nothing in a book holds at the sizes of its run alone."""
    return not book.problems and not any(THIS_RUN_NOTE in step.line.note or opaque(step.line) for step in book.steps)


def _derive(
    recording: Recording,
    calls: CallLog,
    solution: Solution | None,
    sizes: dict[str, int],
    same,
    fits,
    here,
    hints: Hints,
    numbers: dict[str, float],
    spelled: frozenset[int],
    conditions: Conditions,
) -> Textbook:
    recorded, calls = calls, calls.without_changes()
    varying = solution.varying_paddings() if solution else frozenset()
    moving = solution.unsolved_numbers() if solution else frozenset()
    graph, named = run_passes(Graph.of(calls, has_lowering, varying), numbers, spelled, moving)
    shapes = Shapes(graph, calls, solution, sizes, same)
    places = ModuleTree(graph)
    plan = StepPlan(graph, shapes, places, hints.separates)
    roles = Roles(plan, places)
    parts = {key: names.part(roles, key, shapes.of(key)) for key in plan.lines}
    first = names.ids(roles, parts)
    hinted = {key: hints.of(id, parts[key], roles.module(key)) for key, id in first.items()}
    ids = names.apply_hint_ids(roles, first, hinted)
    writer = ExpressionBuilder(graph, plan, ParameterSymbols(roles, shapes, hinted, hints), shapes, fits)
    writer.ids = ids
    moving = shapes.value_dependent | shapes.size_dependent
    writer.numbers = {key: number for key, number in numbers.items() if key not in moving}
    changes = {change.before.key: change for change in recorded.changes}
    writer.changed = {
        key: _mark_changed(writer.line(key) if key in ids else writer.tensor(key))
        for key in changes
        if key in ids or key.startswith(PARAMETER)
    }
    records = recording.attentions.records if recording.attentions else ()
    subject = Subject(roles, shapes, recording.parameters, records, parts, changes=frozenset(changes))
    book, owned, masks = Textbook(matched_hints=hints.matched_hints, idioms=frozenset(named)), set(), {}
    earlier: dict[str, Earlier] = {}
    ends = {plan.unchanged_source(ref.key) for ref in graph.outputs}
    added = {ids[key] for key, role in roles.of.items() if role.rstrip("'") in ("O", "F")}
    for key in plan.lines:
        module, part, hint = roles.module(key), parts[key], hinted[key]
        ops = _ops(graph, plan, key, owned)
        owned.update(ops)
        value, layer, call = graph.ref[key], places.layer(module), roles.call(key)
        shapes.remarks.clear()
        try:
            shapes.plain = False
            before = ()
            if call is not None and call.name == ATTENTION:
                before, equation = fused_lines(writer, key, places.part(module), masks, hints, subject)
            else:
                equation = writer.equation(key)
            for line in before:
                statement(line["tensor"], line["equation"])  # printed once: an error is known before it is needed
                _fit(line["equation"], line["tensor"].shape, fits, here)
            note = _fit(equation, shapes.of(key), fits, here) or _bound(graph, plan, shapes, key, ops, equation)
            statement(writer.line(key), equation)
        except Exception as error:  # a form that no rule foresaw: this line stays open, all others are there
            before, equation, note = (), writer.opaque(key, describe_error(error)), ""
        if part == "one":
            writer.condition = writer.line(key)
        if part in ("X", "Y"):
            equation = _stream_first(equation, added)
        if part == "H" and not note.startswith(THIS_RUN_NOTE):
            shapes.restate(key, infer(equation, fits))
        if part == "M" and equation.has(CausalMask, PrefixMask, Triangle):
            kind = "prefix M" if equation.has(PrefixMask) else "causal M"
            part, equation = kind, writer.with_condition(equation)
            hint = hints.of(first[key], kind, module)
            if not equation.has(Triangle):
                subject.masks[writer.line(key).key] = equation
        elif part == "M" and causal(Context(subject, key, part, equation)) and _is_triangle(recording, equation):
            part, hint = "causal M", hints.of(first[key], "causal M", module)
        for line in before:
            fused_line = Line(**{"stage": "attention", "layer": layer, "place": None} | line)
            at = len(book.steps) if fused_line.layer == layer else _block(book, places, module, layer)
            book.steps.insert(at, DerivedStep(fused_line, _kernel(recording, graph, plan, key), ()))
        outside = tuple(tensor for tensor in tensors(equation) if tensor.key in shapes.value_dependent)
        remarks = [*shapes.remarks, *(BROUGHT_NOTE.format(f"${outsider.name}$") for outsider in outside)]
        moved = (tensor for tensor in tensors(equation) if tensor.key in shapes.size_dependent)
        remarks += [MOVED_NOTE.format(f"${outsider.name}$") for outsider in moved]
        remarks += [SIZED_NOTE] if shapes.depends_on_values(key) else []
        here_only = any(remark.startswith(THIS_RUN_NOTE) for remark in (*remarks, note))
        varying = bool(outside) or SIZED_NOTE in remarks or any(remark.endswith(OF_INPUT) for remark in remarks)
        remarks += conditions.notes(ops, not here_only, not varying)
        remarks += [note for note in conditions.returned if key in ends and note not in remarks]
        if any(remark.startswith(THIS_RUN_NOTE) for remark in remarks) and note.startswith(THIS_RUN_NOTE):
            note = ""
        subject.equations[key] = equation
        context = Context(subject, key, part, equation)
        kernel = KERNEL if kernels(equation) else ""
        note = " ".join(filter(None, (kernel, note, *join_moving(remarks), hint.remark(context))))
        explanation = hint.reason(why(context), context)
        line = Line(
            ids[key],
            hint.stage or names.stage(roles, key, part),
            hint.title
            or names.title(
                part,
                roles.last_name(key),
                equation,
                roles.result(key),
                formula_title(equation, earlier),
            ),
            writer.line(key),
            equation,
            StepOrigin(module, output=_output(key)),
            explanation.text,
            layer=layer,
            note=note,
            facts=explanation.facts,
            refuted=explanation.refuted,
            outside=frozenset(outsider.key for outsider in outside),
            of_input=any(remark.endswith(OF_INPUT) for remark in remarks)
            or (SIZED_NOTE in remarks and equation.has(OneHot)),
            idiom=not book.idioms.isdisjoint(ops),
            role=names.role(roles, key),
        )
        earlier[ids[key]] = Earlier(roles.name(key), equation)
        book.steps.append(DerivedStep(line, _op(key), ops, key, value.shape, value.dtype, shapes.solved.get(key)))
        if key in changes:
            book.steps.append(_changed_line(writer, line, changes[key], recorded, shapes))
    for key, change in changes.items():
        if key.startswith(PARAMETER):
            _add_changed_parameter(writer, book, change, recorded, shapes)
    lines = {step.key for step in book.steps}
    keys = (plan.unchanged_source(ref.key) for ref in graph.outputs)
    keys = (changes[key].after.key if key in changes else key for key in keys)
    book.returned = tuple(key if key in lines or key.startswith(SOURCE_PREFIXES) else "" for key in keys)
    book.conditions = conditions.returned
    return book


def _is_triangle(recording: Recording, equation: Node) -> bool:
    """Return whether a mask is read from one buffer, a square whose cells up to the diagonal are one number and those
    above it another."""
    names = {tensor.key.removeprefix(PARAMETER) for tensor in equation.atoms(Tensor)}
    buffer = recording.buffers.get(names.pop()) if len(names) == 1 else None
    if buffer is None or buffer.is_meta or buffer.dim() < 2 or buffer.numel() != buffer.shape[-1] ** 2:
        return False
    table = buffer.reshape(buffer.shape[-1], -1)
    above = table.new_ones(table.shape).triu(1) > 0
    lower, upper = table[~above].unique(), table[above].unique()
    return len(lower) == len(upper) == 1 and bool(lower != upper)


def _mark_changed(line: Tensor) -> Tensor:
    """Return the tensor that replaces that of a line whose value was changed: its letter with a caron."""
    id = f"parameters.{line.key.removeprefix(PARAMETER)}" if line.key.startswith(PARAMETER) else line.key
    return Tensor(LETTER.sub(r"\\check{\g<0>}", line.name, count=1), line.shape, f"{id}.changed")


def _add_changed_parameter(
    writer: ExpressionBuilder, book: Textbook, change: ChangedValue, calls: CallLog, shapes: Shapes
) -> None:
    """Add the line of a changed parameter to a book, in front of the first line that reads it."""
    key = change.before.key
    changed, equations = writer.changed[key], [step.line.equation for step in book.steps]
    readers = [number for number, equation in enumerate(equations) if changed in tensors(equation)]
    if not readers:
        return
    read = {tensor.key for equation in equations for tensor in tensors(equation) if tensor.transposed}
    writer.transposed = read | {key for equation in equations if equation.has(changed.T)}
    first, path = book.steps[readers[0]].line, key.removeprefix(PARAMETER)
    tensor = Tensor(writer.names.parameter(key), changed.shape, key)
    place = StepOrigin(path.rpartition(".")[0])
    line = Line(f"parameters.{path}", first.stage, path, tensor, tensor, place, "", layer=first.layer)
    book.steps.insert(readers[0], _changed_line(writer, line, change, calls, shapes))


def _changed_line(
    writer: ExpressionBuilder, line: Line, change: ChangedValue, calls: CallLog, shapes: Shapes
) -> DerivedStep:
    """Return the line of a changed value, which comes after the line that was changed."""
    key = change.after.key
    try:
        equation = by_cells(number_heads(writer.change(change, calls), change.behind_heads))
        statement(writer.changed[change.before.key], equation)
    except Exception as error:  # any function may be a change: the line stays open
        equation = Opaque(line.tensor, name="change", reason=describe_error(error), result=line.tensor.shape)
    heads_note = HEADS_NOTE if numbers_heads(equation) else ""
    changed = replace(
        line,
        id=f"{line.id}.changed",
        title=f"{line.title}, changed",
        tensor=writer.changed[change.before.key],
        equation=equation,
        place=line.place and line.place._replace(output=_output(key)),
        why=" ".join(filter(None, (CHANGED_NOTE.format(change.text), CELLS_NOTES.get(equation.cells), heads_note))),
        note=KERNEL if kernels(equation) else "",
        facts=(),
        refuted=(),
        outside=frozenset(),
        of_input=False,
        idiom=False,
    )
    calls_of_change = calls.entries[change.first : change.last]
    ops = tuple(range(calls_of_change[0].first, calls_of_change[-1].last)) if calls_of_change else ()
    return DerivedStep(changed, _op(key), ops, key, change.after.shape, change.after.dtype, shapes.solved.get(key))


def _block(book: Textbook, places: ModuleTree, module: str, layer: int | None) -> int:
    """Return the index of the first line of the block that contains a module; lines that all blocks share come before
    it."""
    for number, step in enumerate(book.steps):
        there = step.line.place.module if step.line.place else ""
        if step.line.layer == layer and there and places.part(there) == places.part(module):
            return number
    return len(book.steps)


def _numbers(recording: Recording, calls: CallLog) -> dict[str, float]:
    """Return the scalar constants of a run by their keys."""
    keys = {ref.key for call in calls.entries for ref in refs(call.arguments) if not ref.shape}
    values = {key: recording.store.get(key) for key in sorted(keys) if key.startswith("constant ")}
    return {key: float(value) for key, value in values.items() if value is not None and value.is_floating_point()}


def _stream_first(equation: Node, added: Collection[str]) -> Node:
    """Return a residual sum with the stream as its first operand, before the lines that are `added` to it."""
    first, *rest = equation.args
    if isinstance(equation, Plus) and len(rest) == 1 and isinstance(first, Tensor) and first.key in added:
        return Plus(*rest, first)
    return equation


def _kernel(recording: Recording, graph: Graph, plan: StepPlan, key: str) -> int:
    """Return the op of a fused attention that computes it."""
    call = graph.call_of(plan.computed_key(key))
    return next((i for i in reversed(range(call.first, call.last)) if not recording.ops[i].layout), call.last - 1)


def _op(key: str) -> int:
    """Return the index of the op that computed a value."""
    return int(key.partition(".")[0])


def _output(key: str) -> int:
    """Return the output position of a value in its op."""
    match = re.match(r"\d*\.?(\d*)", key)
    return int(match[1]) if match and match[1] else 0


def _fit(equation: Node, stated: tuple, fits, here) -> str:
    """Return a note if an equation has the right shape at the sizes of this run only, else "".

    Raise ShapeError if the shape is wrong here, too.
    """
    try:
        _same_shape(infer(equation, fits), stated, fits)
    except ShapeError as error:
        _same_shape(infer(equation, here), stated, here)
        return f"{THIS_RUN_NOTE}: {error}."
    return ""


def _bound(graph: Graph, plan: StepPlan, shapes: Shapes, key: str, ops: tuple[int, ...], equation: Node) -> str:
    """Return a note if a line can differ at other sizes, else ""."""
    raw = plan.raw(key)
    inside = plan.inner_calls.get(raw, ()) if raw else ()
    taken = [(ref.key, index) for index in inside for ref in graph.inputs[index]]
    otherwise = any(shapes.has_other_operand(key, graph.calls[index]) for key, index in taken)
    otherwise = otherwise or shapes.diverges(ops)
    if otherwise and not isinstance(equation, IsContiguous):  # which is the same however often the places are repeated
        return f"{THIS_RUN_NOTE}: at others, the code takes another path."
    if shapes.plain:
        return f"{THIS_RUN_NOTE}: its layout is not known in symbols."
    compared = (node for node in equation.atoms(Compare) if node.get("sign") in ("=", r"\ne"))
    numbers = (operand.value for node in compared for operand in node.operands if isinstance(operand, Scalar))
    if not shapes.has_sizes and any(number.is_Integer and number > 1 for number in numbers):
        return f"{THIS_RUN_NOTE}: the code compares with a number, which may be another one there."
    return ""


def _same_shape(inferred: tuple, stated: tuple, same) -> None:
    if len(inferred) != len(stated) or not all(map(same, inferred, stated)):
        raise ShapeError(f"the equation gives {inferred}, the run {stated}")


def _ops(graph: Graph, plan: StepPlan, key: str, owned: set[int]) -> tuple[int, ...]:
    """Return the ops that lead from other lines to this one, without those that another line owns."""
    ops: set[int] = set()

    def cover(index: int) -> None:
        waiting = [graph.calls[index]]
        while waiting:
            call = waiting.pop()
            ops.update(range(call.first, call.last))
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
        for index in plan.inner_calls[raw]:
            cover(index)
            for ref in graph.inputs[index]:
                layouts(ref.key)
    return tuple(sorted(ops - owned))
