"""From a recording and its textbook to the plain records of a trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import sympy
import torch
from torch import Tensor as Value

from tracer.capture.calls import Call, CallLog, ModuleCall, Ref, refs, source
from tracer.capture.primitives import OpDecomposition
from tracer.capture.score_path import MASKED_SCORE
from tracer.expr import Tensor, execute, latex, statement, tensors
from tracer.expr.arithmetic import Div, Over, Plus, Product, Transposed, Where
from tracer.expr.embeddings import RepeatKV
from tracer.expr.function_call import Opaque, Scalar
from tracer.expr.indexing import CausalMask, PrefixMask, Provided
from tracer.expr.node import Node, infer
from tracer.expr.rearrangements import Rearrange, SplitHeads
from tracer.lowering.call_arguments import split_factor
from tracer.record import (
    Argument,
    CallRecord,
    Decomposition,
    ModuleRecord,
    Name,
    Op,
    Operand,
    Primitive,
    ReturnedTensor,
    Step,
    TensorRecord,
    dtype_name,
    split_id,
)
from tracer.shapes import UNKNOWN, Solution, held_size, value_of
from tracer.shapes.solver import names_of
from tracer.symbols import cost
from tracer.textbook.claims import PARAMETER
from tracer.textbook.derivation import SOURCE_PREFIXES, DerivedStep, Line, Textbook, opaque
from tracer.tracing.proofs import VALUELESS, Proof, Rerun, Values, apply_proof, prove, verified_shape
from tracer.utils.cache import Cache, IdentityKey
from tracer.utils.errors import describe_error, quote, shorten
from tracer.utils.job_queue import doing, tell
from tracer.utils.torch_internals import default_arguments

# Calls of modules and the composite ops of a run as plain records, from the recorder's.
#
# What the forward hooks saw of a module is held against the ops that ran beneath it, which the dispatch mode saw: two
# observers that know nothing of each other.

LETTERS = 120
"""Of an argument that is a long list."""
Levels = tuple[tuple[ModuleRecord, ...], tuple[CallRecord, ...]]
_records = Cache(32)
"""The levels of the last runs."""


def levels(calls: CallLog, ops: Sequence[Op]) -> Levels:
    """Return the records of all calls of modules, and of all composite ops, in the order in which they began. Runs of
    one model on other values, whose `ops` are one object, share the records, which are built once."""
    key = calls.signature, IdentityKey(ops)
    if (records := _records.get(key)) is None:
        known = TensorRecords(ops)
        modules = tuple(_module(number, calls.modules, ops, known) for number in range(len(calls.modules)))
        records = modules, tuple(_call(call, known) for call in calls.entries if call.func is not None)
        _records.put(key, records)
    return records


class TensorRecords:
    """Records of the ops' input and output tensors, and the sizes of the parameters among them."""

    def __init__(self, ops: Sequence[Op]):
        self._records = {}
        for op in ops:
            for tensor in (*op.inputs, *op.outputs):
                self._records.setdefault((tensor.maker, tensor.shape, tensor.dtype), tensor)
        named = {name for op in ops for name in op.parameters}
        self.sizes = {maker: prod(shape) for maker, shape, _ in self._records if maker in named}

    def record(self, ref: Ref) -> TensorRecord:
        """Return the record of a tensor of the run; without symbols for one that is not an input or output of an op."""
        key = maker(ref), tuple(ref.shape), dtype_name(ref.dtype)
        if key not in self._records:
            self._records[key] = TensorRecord(key[1], key[2], key[0])
        return self._records[key]


def maker(ref: Ref) -> int | str:
    """Return the op that produced a tensor, or the name of its parameter, input or constant, in the form that ops
    use."""
    head = ref.key.partition(".")[0]
    if head.isdecimal():
        return int(head)
    return ref.key.removeprefix("parameter ") if not ref.key.startswith("constant ") else "constant"


def _module(number: int, modules: list[ModuleCall], ops: Sequence[Op], known: TensorRecords) -> ModuleRecord:
    call = modules[number]
    beneath = ops[call.first : call.last]
    inputs = (*call.inputs, *(ref for ref in call.named if not _within(ref, call)))
    return ModuleRecord(
        path=call.path,
        kind=call.kind,
        call=call.call,
        around=None if call.around < 0 else call.around,
        first=call.first,
        last=call.last,
        inputs=tuple(map(known.record, inputs)),
        outputs=tuple(map(known.record, call.outputs)),
        params=sum(known.sizes[name] for name in {name for op in beneath for name in op.parameters}),
        flops=sum(op.flops or 0 for op in beneath),
        problem=next(_problems(number, modules, ops), ""),
    )


def _within(ref: Ref, call: ModuleCall) -> bool:
    op = maker(ref)
    return isinstance(op, int) and call.first <= op < call.last


def _problems(number: int, modules: list[ModuleCall], ops: Sequence[Op]) -> Iterator[str]:
    """Yield the contradictions between the hooks and the ops of one call of a module."""
    call = modules[number]
    inside, last = {(call.path, call.call)}, number
    while (last := last + 1) < len(modules) and modules[last].around >= number:
        inside.add((modules[last].path, modules[last].call))
    for op in ops[call.first : call.last]:
        if (op.module, op.call) not in inside:
            yield f"operation {op.index} ran in {op.module or 'the model itself'}, which is not in this module"
    for ref in call.inputs:
        if _within(ref, call):
            yield f"its input of shape {list(ref.shape)} is what operation {maker(ref)} in it made"
    for ref in call.outputs:
        producer = maker(ref)
        if not isinstance(producer, int) or ref.key in {passed.key for passed in (*call.inputs, *call.named)}:
            continue  # it hands on what it was given, or gives a parameter
        if not _within(ref, call):
            yield f"its output of shape {list(ref.shape)} was made by operation {producer}, which did not run in it"
        elif (place := ref.key.partition(".")[2]).isdecimal() and int(place) < len(ops[producer].outputs):
            gave = ops[producer].outputs[int(place)]  # anything else was written into
            if (gave.shape, gave.dtype) != (tuple(ref.shape), dtype_name(ref.dtype)):
                yield f"its output has the shape {list(ref.shape)}, operation {producer} gave {list(gave.shape)}"


def _call(call: Call, known: TensorRecords) -> CallRecord:
    defaults = {} if call.func is None else default_arguments(call.func)
    return CallRecord(
        name=call.name,
        arguments=tuple(_argument(name, value, defaults, known) for name, value in call.arguments.items()),
        outputs=tuple(map(known.record, call.outputs)),
        module=call.module,
        call=call.call,
        first=call.first,
        last=call.last,
    )


def _argument(name: str, value, defaults: dict, known: TensorRecords) -> Argument:
    tensors = tuple(map(known.record, refs(value)))
    default = name in defaults and not tensors and defaults[name] == value
    return Argument(name, "" if tensors else shorten(_text(value), LETTERS), tensors, default)


def _text(value) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return dtype_name(value) if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)) else str(value)


# Op records of a run and their total cost.

TRANSPOSED_ARGUMENT = 6
"""Which argument of a convolution says that it is a transposed one."""


class OpSequence(tuple):
    """Ops of a run as seen. Equality compares all of it, the hash only the parts that are quick to hash."""

    def __hash__(self) -> int:
        return hash((len(self), self[-1])) if self else 0


class RunCost(NamedTuple):
    """All ops of a run and their total cost."""

    ops: tuple[Op, ...]
    params: int
    params_symbolic: str
    flops: int
    flops_symbolic: str


@lru_cache(maxsize=32)
def account(run: OpSequence, parameters, owner, solution: Solution | None, parts, depths) -> RunCost:
    """Return the records of all ops. Runs of one model on other values have the same ones, and all visitors share
    them."""
    layers = {op: layer for op, _, layer in owner}
    ops = _ops(run, dict(parameters), {op: step for op, step, _ in owner}, solution)
    places = [(part_of(op.module, parts), layers.get(op.index)) for op in ops]
    depths = {part: depth for part, *depth in depths}
    return RunCost(
        ops,
        sum(op.params for op in ops),
        cost.total([(op.params_symbolic, *place) for op, place in zip(ops, places, strict=True)], depths),
        sum(op.flops or 0 for op in ops),
        cost.total(
            [(op.flops_symbolic, *place) for op, place in zip(ops, places, strict=True) if op.flops is not None], depths
        ),
    )


def _ops(events, sizes_of: dict[str, int], owner: dict[int, str], solution: Solution | None) -> tuple[Op, ...]:
    counted: set[str] = set()
    known: dict = {}
    ops = []
    for i, op in enumerate(events):
        inputs, outputs = (solution.inputs[i], solution.outputs[i]) if solution and solution.has_sizes else (None, None)
        names, fresh = (), {}
        for j, (_, _, maker) in enumerate(op.inputs):
            if maker in sizes_of:
                names = (*names, maker) if maker not in names else names
                if maker not in counted:
                    counted.add(maker)
                    fresh[maker] = j
        is_transposed = op.name == "convolution" and op.settings[TRANSPOSED_ARGUMENT]
        made = op.outputs[0][0] if op.outputs else ()
        taken = tuple([shape for shape, *_ in op.inputs])
        flops = 0 if op.layout else cost.flops(op.name, taken, made, is_transposed)
        formula = "0" if flops == 0 else "?"
        params_symbolic = "?" if fresh else "0"
        if inputs is not None:
            formula = (
                cost.flops_symbolic(op.name, inputs, outputs[0] if outputs else (), is_transposed) if flops else formula
            )
            params_symbolic = cost.elements(tuple([inputs[j] for j in fresh.values()]))
        ops.append(
            Op(
                index=i,
                module=op.module,
                call=op.call,
                op=op.name,
                function=op.function,
                source=source(*op.line) if op.line else None,
                inputs=tensor_records(op.inputs, inputs, known),
                outputs=tensor_records(op.outputs, outputs, known),
                parameters=names,
                params=sum([sizes_of[name] for name in fresh]),
                params_symbolic=params_symbolic,
                flops=flops,
                flops_symbolic=formula,
                step=owner.get(i),
                note=solution.notes[i] if solution else "",
            )
        )
    return tuple(ops)


def tensor_records(tensors, symbolic, known: dict) -> tuple[TensorRecord, ...]:
    """Return the records of described tensors; a tensor that several ops take is one record."""
    records = []
    for key in zip(tensors, symbolic, strict=True) if symbolic else tensors:
        record = known.get(key)
        if record is None:
            (shape, dtype, maker), names = key if symbolic else (key, None)  # type: ignore[misc]
            record = known[key] = TensorRecord(shape, dtype_name(dtype), maker, names)
        records.append(record)
    return tuple(records)


def part_of(module: str, parts: Collection[str]) -> str:
    """Return the tower that a module's path is in, or ""."""
    return next((part for part in parts if part and f"{module}.".startswith(f"{part}.")), "")


def limit_note(ops: tuple[Op, ...], sizes: dict[str, int]) -> str:
    """Return a note for a FLOP formula that holds only at the run's own size of a symbol; "" for any other."""
    limits = [name for op in ops if op.flops and (name := held_size(op.note))]
    if not limits:
        return ""
    subject = "one of the operations runs" if len(limits) == 1 else f"{len(limits)} of the operations run"
    names = list(dict.fromkeys(limits))
    at = " and ".join(f"{name} = {sizes[name]}" for name in names)
    which = "this batch size" if names == ["B"] else "this size" if len(names) == 1 else "these sizes"
    return f"the FLOP formula holds at {at} only: {subject} at {which} alone"


# Primitives of a run as plain records, from the recorder's opened ops and the solved probes.


def decompositions(opened: Sequence[OpDecomposition], solution: Solution | None) -> tuple[Decomposition, ...]:
    """Return one record for each op of a run that was opened."""
    solved = solution.parts if solution else ()
    return tuple(
        Decomposition(i, _primitives(op.parts, solved[i] if solved else None), op.error, op.note)
        for i, op in enumerate(opened)
        if op is not None
    )


@lru_cache(maxsize=4096)  # the blocks of a model are alike
def _primitives(parts, solved) -> tuple[Primitive, ...]:
    shapes = solved or ((None, None),) * len(parts)
    return tuple(
        Primitive(
            part.name, part.within, tensor_records(part.inputs, inputs, {}), tensor_records(part.outputs, outputs, {})
        )
        for part, (inputs, outputs) in zip(parts, shapes, strict=True)
    )


# Step of each tensor that forward returned, and notes on those without one.

MAX_NAMED_TENSORS = 4
"""Tensors that a note names."""


def returned_of(calls: CallLog, book: Textbook, derived_steps: Sequence[DerivedStep]) -> tuple[ReturnedTensor, ...]:
    """Return a record of each tensor that forward returned."""
    steps = {step.key: step.line.id for step in derived_steps if step.key}
    keys = book.returned or ("",) * len(calls.outputs)
    return tuple(
        ReturnedTensor(
            shorten(place, 400), ref.shape, dtype_name(ref.dtype), steps.get(key, ""), "" if key in steps else key
        )
        for place, ref, key in zip(calls.places, calls.outputs, keys, strict=True)
    )


def unaccounted_note(returned: Iterable[ReturnedTensor]) -> str:
    """Return a sentence on the outputs of forward that no step has, "" if there are none."""
    missing = [tensor for tensor in returned if not tensor.step and not tensor.of]
    return f"no step has what forward returns{_list_names(missing)}" if missing else ""


def given_back(returned: Iterable[ReturnedTensor], conditions: Iterable[str] = ()) -> str:
    """Return a sentence on the inputs that forward returned unchanged, with the conditions of that, "" if there are
    none."""
    same = [tensor for tensor in returned if tensor.of]
    kinds = " and ".join(dict.fromkeys(quote(tensor.of) for tensor in same[:MAX_NAMED_TENSORS]))
    return ". ".join([f"forward returns {kinds} as it is{_list_names(same)}", *conditions]) if same else ""


def _list_names(some: Sequence[ReturnedTensor]) -> str:
    names = [quote(tensor.name) for tensor in some if tensor.name]
    more = f" and {len(names) - MAX_NAMED_TENSORS} more" if len(names) > MAX_NAMED_TENSORS else ""
    return f" as {', '.join(names[:MAX_NAMED_TENSORS])}{more}" if names else ""


# Steps of a run as plain records: written once for all runs of one textbook and one list of ops, then verified.

Same = Callable[[Any, Any], bool]
"""Whether two sizes are one."""

UNVERIFIED = "not executed: the trace was made with prove=False"
FUSED_NOTE = (
    "The fused op {op} never holds this tensor: it is recomputed from the equation, and verified with what follows."
)
FUSED_UNVERIFIED_NOTE = (
    "The fused op {op} never holds this tensor: it is recomputed from the equation; what follows was not executed, so "
    "nothing verifies it."
)
HELD_NOTE = "Its shape was solved with {size} held at {number}: it is not known at others."


def steps_of(
    derived_steps: Sequence[DerivedStep],
    ops: Sequence[Op],
    solution: Solution | None,
    sizes: dict[str, int],
    same: Same,
    value: Values | None,
    later: bool,
    rerun: Rerun | None = None,
) -> tuple[tuple[Step, ...], tuple[DerivedStep, ...]]:
    """Return the records of all steps, verified if `value` has the tensors of the run, or if `rerun` recomputes them;
    with `later` their proofs are pending, else they were not executed. Also return the lines in their final form: one
    that can't be expressed is only its call."""
    proof, at = Proof(None, "" if value or later else UNVERIFIED), tuple(sizes.items())
    with doing("Writing its equations"):
        steps, lines = _write_steps(IdentityKey(derived_steps), IdentityKey(ops), solution, at, same, proof, later)
    if not value:
        return steps, lines
    records: list[Step] = []
    unexecuted: dict[int, str] = {}
    proofs = rerun.prove(rerun.missing_lines(lines, value), lines) if rerun else {}
    with doing("Verifying its equations"):
        for number, (step, line) in enumerate(zip(steps, lines, strict=True), 1):
            tell(number, len(steps), "step")
            if not (step.recomputed or opaque(line.line)):
                proof = proofs.get(step.id) or prove(line, value, sizes)
                step = apply_proof(step, proof)
                unexecuted |= dict.fromkeys(step.ops, proof.note) if proof.error is None else {}
            records.append(step)
    return tuple(_note_unverified(step, unexecuted.get(step.inside or 0, ""), ops) for step in records), lines


def _note_unverified(step: Step, reason: str, ops: Sequence[Op]) -> Step:
    """Return a step inside a fused op whose own line was not executed, for a `reason`, without the statement that it is
    verified with that; any other as it is."""
    if step.inside is None or not reason:
        return step
    note = FUSED_NOTE.format(op=ops[step.inside].op)
    if reason == VALUELESS:
        return replace(step, recomputed=False, note=step.note.replace(note, reason))
    return replace(step, note=step.note.replace(note, FUSED_UNVERIFIED_NOTE.format(op=ops[step.inside].op)))


@lru_cache(maxsize=32)
def _write_steps(
    derived_steps: IdentityKey, ops: IdentityKey, solution, at, same: Same, proof: Proof, later: bool
) -> tuple[tuple[Step, ...], tuple[DerivedStep, ...]]:
    """Return all steps before they are verified, and their lines, which a run of the same textbook on other values
    shares."""
    steps, lines = [], []
    for number, line in enumerate(derived_steps.it, 1):
        tell(number, len(derived_steps.it), "step")
        try:
            step = _step(line, ops.it, solution, dict(at), same, proof, later)
        except Exception as error:  # whatever is wrong with one line, all others are there
            line = _opaque(line, ops.it[line.op], describe_error(error))
            step = _step(line, ops.it, None, dict(at), same, proof, later)
        steps.append(step)
        lines.append(line)
    return tuple(steps), tuple(lines)


def _opaque(derived: DerivedStep, op: Op, reason: str) -> DerivedStep:
    """Return a line whose right side is only the op that computed its tensor."""
    line = derived.line
    shape = line.tensor.shape if line.place is None else derived.shape or op.outputs[derived.output].shape
    tensor = Tensor(line.tensor.name, shape, line.tensor.key)
    equation = Opaque(*tensors(line.equation), name=op.op, reason=reason, result=shape)
    return derived._replace(line=replace(line, tensor=tensor, equation=equation))


def _step(
    derived: DerivedStep,
    ops: Sequence[Op],
    solution: Solution | None,
    sizes: dict[str, int],
    same: Same,
    proof: Proof,
    later: bool,
) -> Step:
    line, op = derived.line, ops[derived.op]
    fused = line.place is None
    solved = None
    if solution and solution.has_sizes and not fused:
        solved = derived.solved or solution.outputs[derived.op][derived.output]
    symbolic, note = verified_shape(line, solved, same)
    notes = ("", FUSED_NOTE.format(op=op.op)) if fused else (note or _note_held(op, symbolic), proof.note)
    if isinstance(line.equation, Opaque):
        notes = (*notes[:1], line.equation.note)
    return Step(
        id=line.id,
        stage=line.stage,
        layer=line.layer,
        title=line.title,
        symbol=line.tensor.name,
        latex=statement(line.tensor, line.equation),
        symbolic=symbolic,
        shape=tuple(int(value_of(size, sizes)) for size in symbolic)
        if fused
        else derived.shape or op.outputs[derived.output].shape,
        error=None,
        recomputed=fused,
        source=op.source,
        ops=derived.ops,
        why=line.why,
        note=" ".join(filter(None, (line.note, *notes))),
        value="" if fused else derived.value,
        product=_product(line, sizes, same),
        dtype=dtype_name(derived.dtype) if derived.dtype else op.outputs[derived.output].dtype,
        names=_names(line),
        pending=later and not fused and not opaque(line),
        inside=op.index if fused else None,
        of_input=line.of_input,
        reads=tuple(dict.fromkeys(tensor.key for tensor in tensors(line.equation))),
        role=line.role,
    )


def _note_held(op: Op, symbolic: Sequence[str]) -> str:
    """Return a note on a shape that was solved with a size held, and may depend on it; "" for any other."""
    held, names = held_size(op.note), {name for size in symbolic if size != UNKNOWN for name in names_of(size)}
    return HELD_NOTE.format(size=held, number=op.note.split()[-1]) if held and names and held not in names else ""


@lru_cache(maxsize=4096)
def _names(line: Line) -> tuple[Name, ...]:
    """Return the inputs and parameters that the equation names."""
    outside = (tensor for tensor in tensors(line.equation) if tensor.key.startswith(SOURCE_PREFIXES))
    return tuple(Name(tensor.name, tensor.key, tensor.transposed, tensor.key in line.outside) for tensor in outside)


def _product(line: Line, sizes: dict[str, int], same: Same) -> tuple[Operand, Operand, Operand] | None:
    """Return the first matrix product of the equation, to be drawn to scale."""
    factors = [
        Operand(symbol, (row, column), (int(value_of(row, sizes)), int(value_of(column, sizes))))
        for symbol, (row, column) in _factors(line, same)
    ]
    return (factors[0], factors[1], factors[2]) if factors else None


@lru_cache(maxsize=4096)
def _factors(line: Line, same: Same) -> tuple[tuple[str, tuple[str, str]], ...]:
    """Return symbols and last two sizes of left, right and result of the equation's first matrix product."""

    def find(node: Node) -> Product | None:
        if isinstance(node, Product):
            return node
        return next((inner for operand in node.operands if (inner := find(operand))), None)

    product = find(line.equation)
    if product is None or min(len(infer(node, same)) for node in (product, *product.operands)) < 2:
        return ()
    names = [latex(operand) for operand in product.operands]
    names.append(line.tensor.name if line.equation is product else latex(product))
    shapes = [infer(node, same)[-2:] for node in (*product.operands, product)]
    return tuple((name, (str(row), str(column))) for name, (row, column) in zip(names, shapes, strict=True))


# Scores of an attention without a part of their equation: without the mask, or without the scale of the products.
#
# A closed mask can't be opened from the scores, since −∞ overwrites the score below it. The scores are computed again
# from the lines that their equation reads.

LAYOUTS = Rearrange, SplitHeads, Transposed, RepeatKV
"""Nodes that move numbers, and so hand a factor on."""
NO_MASK = "its equation has no mask, so every query may look at every key"
NO_SCALE = "they are not divided by √d_k"
NO_EQUATION = "its equation is not known"
NO_SIZE = "its equation has the size {}, which no line before it has"
NOT_READ = "its equation reads {}, which is no line and no parameter"


@dataclass(frozen=True)
class ScoreEquation:
    """Scores by another equation than their own, from the lines and parameters that it `reads`. It is called with the
    original scores and the values of these. `size_lines` are lines that are read for their sizes alone."""

    scores: Tensor
    equation: Node
    size_lines: tuple[Tensor, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        keys = dict.fromkeys(tensor.key for tensor in (*tensors(self.equation), *self.size_lines))
        return tuple(key for key in keys if key != self.scores.key)

    def read_sizes(self, earlier: Sequence[Tensor]) -> ScoreEquation | str:
        """Return the equation with those of the `earlier` lines that have the sizes which its own operands lack, or in
        a sentence which size no line has."""
        known = set().union(*map(_known_sizes, (self.scores, *tensors(self.equation))))
        missing = sorted(self.equation.free_symbols - known, key=str)
        sized = {size: next((tensor for tensor in earlier if size in _known_sizes(tensor)), None) for size in missing}
        if unsized := next((size for size, tensor in sized.items() if tensor is None), None):
            return NO_SIZE.format(unsized)
        return replace(self, size_lines=tuple(dict.fromkeys(filter(None, sized.values()))))

    def __call__(self, scores: Value, *values: Value) -> Value:
        values_by_key = {self.scores.key: scores} | dict(zip(self.reads, values, strict=True))
        sizes: dict[str, int] = {}
        for tensor in (self.scores, *tensors(self.equation), *self.size_lines):
            shape = tensor.shape[::-1] if tensor.transposed else tensor.shape
            for formula, length in zip(shape, values_by_key[tensor.key].shape, strict=True):
                if _follows(formula):
                    (symbol,) = formula.free_symbols
                    sizes[str(symbol)] = length if formula == symbol else int(sympy.solve(formula - length, symbol)[0])

        def size(expression: sympy.Expr) -> float:
            return float(expression) if expression.is_number else value_of(str(expression), sizes)

        return execute(self.equation, lambda tensor: values_by_key[tensor.key], size)


def _known_sizes(tensor: Tensor) -> set[sympy.Expr]:
    """Return the sizes that follow from the shape of a tensor: those that an axis determines alone, such as N of N +
    1."""
    return {size for formula in tensor.shape if _follows(formula) for size in formula.free_symbols}


def _follows(formula: sympy.Expr) -> bool:
    """Return whether a length has one size, in a linear formula, so that the size follows from the length."""
    sizes = formula.free_symbols
    linear = len(sizes) == 1 and formula.is_polynomial(*sizes) and sympy.Poly(formula, *sizes).degree() == 1
    return formula.is_Symbol or linear


def unmask(scores: Tensor, lines: Mapping[str, Node]) -> ScoreEquation | str:
    """Return scores without their mask, or in a sentence why that can't be computed; `lines` are the equations of all
    lines by their ids."""
    return _rewritten(scores, _without_mask(lines[scores.key]), lines, NO_MASK)


def unscale(scores: Tensor, lines: Mapping[str, Node]) -> ScoreEquation | str:
    """Return scores whose queries and keys are multiplied without any factor, or why that can't be computed. The factor
    may be at the product, at its operands, or in the lines that these rearrange."""
    equation = lines[scores.key]
    recomputed = _rewritten(scores, _without_scale(equation, lines), lines, NO_SCALE)
    if isinstance(recomputed, str) and (factor := _scale(_without_mask(equation), lines)) != 1:  # its mask is not read
        return ScoreEquation(scores, Over(scores, factor))
    return recomputed


def _rewritten(scores: Tensor, rewritten: Node, lines: Mapping[str, Node], same: str) -> ScoreEquation | str:
    if isinstance(rewritten, Opaque):
        return NO_EQUATION
    if rewritten == lines[scores.key]:
        return same
    outside = (tensor for tensor in tensors(rewritten) if tensor.key not in lines)
    unread = next((tensor.key for tensor in outside if not tensor.key.startswith(PARAMETER)), "")
    return NOT_READ.format(repr(unread)) if unread else ScoreEquation(scores, rewritten)


def _without_mask(node: Node) -> Node:
    if isinstance(node, Where):
        _, first, second = node.operands
        if _is_lowest(first) or _is_lowest(second):
            return _without_mask(second if _is_lowest(first) else first)
    if isinstance(node, Plus):
        terms = [_without_mask(term) for term in node.operands if not _is_mask(term)]
        terms = [term for term in terms if term != Scalar(0)]
        return terms[0] if len(terms) == 1 else Plus(*terms)
    return _map(node, _without_mask) if isinstance(node, (*LAYOUTS, Over, Div)) else node


def _is_lowest(node: Node) -> bool:
    return isinstance(node, Scalar) and bool(node.value.is_extended_real) and float(node.value) <= MASKED_SCORE


def _is_mask(node: Node) -> bool:
    """Return whether a term of a sum is 0 where a query may look, and a very low number elsewhere."""
    if isinstance(node, (CausalMask, PrefixMask)):
        return True
    if isinstance(node, Provided):
        return _is_mask(node.operands[0])
    read = tensors(node)
    if read:
        return all("mask" in split_id(tensor.key)[1] for tensor in read)
    return any(map(_is_lowest, node.atoms(Scalar)))


def _without_scale(node: Node, lines: Mapping[str, Node]) -> Node:
    if isinstance(node, Product) or isinstance(split_factor(node)[0], Product):
        factor = _scale(node, lines)
        product = node if isinstance(node, Product) else split_factor(node)[0]
        own = 1 if product is node else split_factor(node)[1]
        return product if factor == own else Over(product, factor / own)
    return node if isinstance(node, Tensor) else _map(node, lambda operand: _without_scale(operand, lines))


def _scale(node: Node, lines: Mapping[str, Node]) -> sympy.Expr:
    """Return the factor of queries times keys, 1 for anything but such a product."""
    while isinstance(node, LAYOUTS):
        node = node.operands[0]
    product, factor = split_factor(node)
    if not isinstance(product, Product):
        return sympy.Integer(1)
    for operand in product.operands:
        factor *= _factor_of_operand(operand, lines)
    return factor


def _factor_of_operand(node: Node, lines: Mapping[str, Node]) -> sympy.Expr:
    """Return the factor of queries or keys, possibly from the line that they rearrange."""
    while isinstance(node, LAYOUTS):
        node = node.operands[0]
    if (factor := split_factor(node)[1]) != 1:
        return factor
    line = lines.get(node.key) if isinstance(node, Tensor) else None
    return sympy.Integer(1) if line is None else _factor_of_operand(line, lines)


def _map(node: Node, function: Callable[[Node], Node]) -> Node:
    """Return a node with its operands replaced."""
    changed = {operand: function(operand) for operand in node.operands}
    return node.func(*(changed.get(argument, argument) for argument in node.args))
